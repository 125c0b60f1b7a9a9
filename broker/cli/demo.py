"""``timewheel demo``: delayed messages in ten seconds, with a verdict.

This process runs a broker in a temporary directory, a producer and a consumer, which talk over real sockets. The
producer sends a few hundred messages, due at random milliseconds of the next seconds. The demo shows the pending
messages and how late each one came.
"""

from __future__ import annotations

import asyncio
import logging
import random
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import click

from broker.broker import Broker
from broker.cli.common import one_line_errors, run_until_signal, say, settle
from broker.cli.demo_view import DemoView, live_view
from broker.cli.tally import Tally
from broker.config.broker_config import BrokerConfig
from remoting.printable import printable
from timewheel_client import Consumer, Producer
from timewheel_client.net.client_core import now_ms

__all__ = ["demo_command"]

TOPIC = "demo"
GRACE_MS = 5_000
REPEAT_WAIT_MS = 300
FIRST_DUE_MS = 500
SENDS_AT_ONCE = 100


@click.command("demo")
@click.option(
    "--messages", type=click.IntRange(1, 1_000_000), default=500, show_default=True, help="Number of messages."
)
@click.option(
    "--seconds",
    type=click.IntRange(1, 3_600),
    default=10,
    show_default=True,
    help="The due times are random within this time.",
)
@click.option("--seed", type=int, default=None, help="Seed of the due times.")
@click.option("--plain", is_flag=True, help="Print lines instead of a live view (the default without a terminal).")
def demo_command(messages: int, seconds: int, seed: int | None, plain: bool) -> None:
    """Start a broker, send it a few hundred delayed messages, and show how late each one comes."""
    with one_line_errors(), _collected_warnings(), tempfile.TemporaryDirectory(prefix="timewheel-demo-") as directory:
        demo = _Demo(Path(directory), messages, seconds, random.Random(seed), plain or not sys.stdout.isatty())
        finished = run_until_signal(demo.run)
    if not finished:
        say("interrupted")
        raise SystemExit(130)
    say(demo.tally.verdict())
    raise SystemExit(0 if demo.tally.good else 1)


class _Demo:
    """One run of the demo."""

    def __init__(self, directory: Path, messages: int, seconds: int, rng: random.Random, plain: bool) -> None:
        self.tally = Tally()
        self._config = BrokerConfig(
            directory,
            {"mappedFileSizeCommitLog": str(64 << 20)},
            listen_port=0,
            namesrv_listen=("127.0.0.1", 0),
        )
        self._messages = messages
        self._span_ms = seconds * 1000
        self._rng = rng
        self._plain = plain
        self._last_due_ms = 0
        self._all_came = asyncio.Event()
        self._view = DemoView(self.tally, messages)

    async def run(self, stop: asyncio.Event) -> bool:
        """Run the demo; False if it was stopped before the end."""
        broker = Broker(self._config)
        await broker.start()
        try:
            settle()
            return await self._with_broker(f"127.0.0.1:{broker.namesrv_port}", stop)
        finally:
            await broker.stop()

    async def _with_broker(self, namesrv: str, stop: asyncio.Event) -> bool:
        async with Producer(namesrv) as producer:
            await producer.send(TOPIC, b"makes the topic")
            async with Consumer(namesrv, "demo", TOPIC, start_from="first") as consumer:
                with nullcontext() if self._plain else live_view(self._view):
                    work = asyncio.ensure_future(self._work(producer, consumer))
                    stopped = asyncio.ensure_future(stop.wait())
                    await asyncio.wait({work, stopped}, return_when=asyncio.FIRST_COMPLETED)
                    for task in (work, stopped):
                        task.cancel()
                    await asyncio.gather(work, stopped, return_exceptions=True)
        if stop.is_set():
            return False
        work.result()
        return True

    async def _work(self, producer: Producer, consumer: Consumer) -> None:
        background = [asyncio.ensure_future(self._receive(consumer))]
        if self._plain:
            background.append(asyncio.ensure_future(self._print_lines()))
        try:
            await self._send_all(producer)
            left_ms = self._last_due_ms + GRACE_MS - now_ms()
            try:
                async with asyncio.timeout(left_ms / 1000):
                    await self._all_came.wait()
                await asyncio.sleep(REPEAT_WAIT_MS / 1000)  # time for a repeated message to arrive
            except TimeoutError:
                pass  # the verdict names the missing messages
            if background[0].done():
                background[0].result()
        finally:
            for task in background:
                task.cancel()
            await asyncio.gather(*background, return_exceptions=True)

    async def _send_all(self, producer: Producer) -> None:
        started_ms = now_ms()
        dues = [started_ms + self._rng.randint(FIRST_DUE_MS, self._span_ms) for _ in range(self._messages)]
        self._last_due_ms = max(dues)
        for at in range(0, len(dues), SENDS_AT_ONCE):
            await asyncio.gather(*(self._send(producer, due_ms) for due_ms in dues[at : at + SENDS_AT_ONCE]))
        self._view.all_sent = True
        self._look_for_end()

    async def _send(self, producer: Producer, due_ms: int) -> None:
        result = await producer.send(TOPIC, f"due at {due_ms}", at=due_ms)
        self.tally.sent(result.message_id, due_ms)

    async def _receive(self, consumer: Consumer) -> None:
        async for message in consumer:
            if message.due_ms is not None:
                first = self.tally.came(message.message_id, message.due_ms, message.store_ms, message.received_ms)
                if first:
                    self._view.came(message.due_ms, message.store_ms, message.received_ms)
                self._look_for_end()
            await message.ack()

    def _look_for_end(self) -> None:
        if self._view.all_sent and len(self.tally.seen) >= self.tally.sent_count and self.tally.pending == 0:
            self._all_came.set()

    async def _print_lines(self) -> None:
        while True:
            await asyncio.sleep(1)
            say(self._view.line())


@contextmanager
def _collected_warnings() -> Iterator[None]:
    """Collect warnings, which would garble the view, and print the first 20 at the end."""
    records: list[logging.LogRecord] = []

    class Collector(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            records.append(record)

    root = logging.getLogger()
    collector = Collector(logging.WARNING)
    root.addHandler(collector)
    try:
        yield
    finally:
        root.removeHandler(collector)
        for record in records[:20]:
            click.echo(printable(f"{record.levelname} {record.name}: {record.getMessage()}"), err=True)
