"""``timewheel send``: send one message, to be delivered now or later."""

from __future__ import annotations

import asyncio
import sys
from datetime import UTC, datetime, timedelta

import click

from broker.cli.common import account_option, namesrv_option, one_line_errors, pairs, say, secret_of, tls_options
from remoting.errors import MessageError
from remoting.hosts import parse_message_id
from store.disk.delay_id import DELAY_ID_BASE
from timewheel_client import Producer
from timewheel_client.net.client_core import now_ms
from timewheel_client.net.tls import Tls
from timewheel_client.values.times import format_instant, format_span, parse_instant, parse_span

__all__ = ["send_command"]

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@click.command("send")
@click.argument("topic")
@click.argument("body")
@click.option(
    "--at",
    "at_text",
    metavar="TIME",
    help="Deliver at this time: ISO 8601 (local time if it names no zone) or epoch ms.",
)
@click.option("--in", "in_text", metavar="SPAN", help="Deliver after this delay: 47m, 1h30m, 1500ms.")
@click.option("--level", type=click.IntRange(1, 18), help="Deliver after the delay of this level.")
@click.option("--tags", help="The message's tag.")
@click.option("--key", "--keys", "keys", multiple=True, help="A key (KEYS) to query the message by. Repeatable.")
@click.option("--property", "properties", multiple=True, metavar="NAME=VALUE", help="A user property. Repeatable.")
@namesrv_option
@account_option
@tls_options
def send_command(
    topic: str,
    body: str,
    at_text: str | None,
    in_text: str | None,
    level: int | None,
    tags: str | None,
    keys: tuple[str, ...],
    properties: tuple[str, ...],
    namesrv: str,
    access_key: str | None,
    tls: Tls,
) -> None:
    """Send BODY to TOPIC and print the message id. BODY "-" is read from standard input."""
    if sum(value is not None for value in (at_text, in_text, level)) > 1:
        raise click.UsageError("--at, --in and --level exclude each other")
    at, delay_ms = _understand(at_text, in_text)
    more = pairs(properties, "--property")
    secret_key = secret_of(access_key)
    content = sys.stdin.buffer.read() if body == "-" else body.encode()

    async def send() -> None:
        async with Producer(namesrv, access_key=access_key, secret_key=secret_key, tls=tls) as producer:
            result = await producer.send(
                topic,
                content,
                at=None if at is None else EPOCH + timedelta(milliseconds=at),
                delay=None if delay_ms is None else delay_ms / 1000,
                level=level,
                tags=tags,
                keys=list(keys),
                properties=more,
            )
        queue = result.queue
        where = f"queue {queue.queue_id} of {queue.broker_name}"
        say(f"sent {result.message_id} to {queue.topic}, {where} ({result.status})")
        if _waits(result.offset_message_id):
            say(f"it waits as {result.offset_message_id}, the id for `timewheel pending`")

    with one_line_errors():
        try:
            asyncio.run(send())
        except (ValueError, OverflowError) as error:
            raise click.UsageError(str(error)) from None


def _waits(offset_message_id: str) -> bool:
    """True if a message id has a virtual offset: the message is pending and not in the CommitLog yet."""
    try:
        return parse_message_id(offset_message_id)[1] >= DELAY_ID_BASE
    except MessageError:
        return False


def _understand(at_text: str | None, in_text: str | None) -> tuple[int | None, int | None]:
    """Read the time options and print the delivery time."""
    now = now_ms()
    try:
        at = None if at_text is None else parse_instant(at_text)
        delay_ms = None if in_text is None else parse_span(in_text)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    if at is not None:
        ahead = f"in {format_span(at - now)}" if at > now else "which has passed: at once"
        say(f"deliver at {format_instant(at)} ({at}), {ahead}")
    if delay_ms is not None:
        say(f"deliver in {format_span(delay_ms)} ({delay_ms} ms), at about {format_instant(now + delay_ms)}")
    return at, delay_ms
