"""``timewheel consume``: print received messages, one line each, and optionally write them to a file as JSON lines."""

from __future__ import annotations

import asyncio
import base64
from typing import BinaryIO

import click

from broker.cli.common import (
    account_option,
    namesrv_option,
    one_line_errors,
    run_until_signal,
    say,
    secret_of,
    tls_options,
)
from remoting.json_dialect import dumps
from timewheel_client import Consumer, ReceivedMessage
from timewheel_client.net.tls import Tls
from timewheel_client.values.times import format_instant

__all__ = ["consume_command", "message_line", "message_record"]


@click.command("consume")
@click.argument("topics", nargs=-1, required=True, metavar="TOPIC...")
@click.option("--group", default="timewheel_consume", show_default=True, help="Consumer group.")
@click.option("--tags", default="*", show_default=True, help='Tags to subscribe to, such as "a || b".')
@click.option("--sql", help='Instead of --tags: an SQL92 filter on properties, such as "price > 5".')
@click.option(
    "--from",
    "start_from",
    type=click.Choice(["first", "last"]),
    default="first",
    show_default=True,
    help="Where a group without consumer offsets begins.",
)
@click.option("--count", type=click.IntRange(1), help="Stop after this number of messages.")
@click.option("--record", type=click.File("wb", lazy=False), help="Write each message to this file as a line of JSON.")
@click.option("--quiet", is_flag=True, help="Do not print the messages.")
@namesrv_option
@account_option
@tls_options
def consume_command(
    topics: tuple[str, ...],
    group: str,
    tags: str,
    sql: str | None,
    start_from: str,
    count: int | None,
    record: BinaryIO | None,
    quiet: bool,
    namesrv: str,
    access_key: str | None,
    tls: Tls,
) -> None:
    """Receive and acknowledge the messages of the TOPICs until --count is reached or Ctrl-C."""
    with one_line_errors():
        try:
            consumer = Consumer(
                namesrv,
                group,
                topics,
                tags=tags,
                sql=sql,
                start_from=start_from,
                access_key=access_key,
                secret_key=secret_of(access_key),
                tls=tls,
            )
        except ValueError as error:
            raise click.UsageError(str(error)) from None

        async def consume(stop: asyncio.Event) -> None:
            async with consumer:
                ender = asyncio.ensure_future(_close_when(stop, consumer))
                taken = 0
                async for message in consumer:
                    if record is not None:
                        record.write(dumps(message_record(message)) + b"\n")
                        record.flush()
                    if not quiet:
                        say(message_line(message))
                    await message.ack()
                    taken += 1
                    if taken == count:
                        break
                ender.cancel()

        run_until_signal(consume)


async def _close_when(stop: asyncio.Event, consumer: Consumer) -> None:
    await stop.wait()
    await consumer.close()


def message_line(message: ReceivedMessage) -> str:
    """One message as a line of text: store time, lateness in ms, id, tags and keys, body."""
    late = "" if message.due_ms is None else f" {message.store_ms - message.due_ms:+d}ms"
    labels = "".join(f" [{text}]" for text in filter(None, (message.tags, " ".join(message.keys))))
    again = f" (retry {message.reconsume_times})" if message.reconsume_times else ""
    body = message.body.decode("utf-8", "backslashreplace")
    return f"{format_instant(message.store_ms)}{late} {message.message_id}{labels}{again} {body}"


def message_record(message: ReceivedMessage) -> dict[str, object]:
    """One message as a JSON object. A body that is not UTF-8 becomes ``body_base64``; times are epoch ms."""
    try:
        body = {"body": message.body.decode()}
    except UnicodeDecodeError:
        body = {"body_base64": base64.b64encode(message.body).decode()}
    return {
        "topic": message.topic,
        "message_id": message.message_id,
        "offset_message_id": message.offset_message_id,
        "broker": message.queue.broker_name,
        "queue_topic": message.queue.topic,
        "queue_id": message.queue.queue_id,
        "queue_offset": message.queue_offset,
        "tags": message.tags,
        "keys": message.keys,
        "flag": message.flag,
        "born_ms": message.born_ms,
        "born_host": "{}:{}".format(*message.born_host),
        "store_ms": message.store_ms,
        "due_ms": message.due_ms,
        "received_ms": message.received_ms,
        "reconsume_times": message.reconsume_times,
        "properties": message.properties,
        **body,
    }
