"""A consumer as a process of its own: it writes down what it receives, and where from, and may die at any moment.

One line a message, before it is acknowledged: ``unique key  queue  queue offset  store_ms  received_ms``. It ends at
the end of its standard input.

Run as a program::

    python -m tests.support.fault_consumer 127.0.0.1:9876 received --group g --topic storm
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from dataclasses import dataclass
from pathlib import Path

from timewheel_client import Consumer

__all__ = ["Received", "main", "read_received"]


@dataclass(slots=True)
class Received:
    """One message that reached the consumer."""

    key: str
    queue: int
    queue_offset: int
    store_ms: int
    received_ms: int


def read_received(path: Path) -> list[Received]:
    """Read what a consumer wrote down; a last line that was cut off by its death does not count."""
    text = path.read_text("ascii")
    rows = [line.split() for line in text[: text.rfind("\n") + 1].splitlines()]
    return [Received(row[0], *map(int, row[1:])) for row in rows]


async def _consume(options: argparse.Namespace) -> None:
    loop = asyncio.get_running_loop()
    closing: list[asyncio.Task[None]] = []
    with open(options.file, "a", encoding="ascii", buffering=1) as file:
        async with Consumer(options.namesrv, options.group, options.topic, start_from="first") as consumer:
            print("started", flush=True)

            def end() -> None:
                loop.remove_reader(sys.stdin.fileno())
                closing.append(loop.create_task(consumer.close()))

            loop.add_reader(sys.stdin.fileno(), end)
            async for message in consumer:
                fields = (message.message_id, message.queue.queue_id, message.queue_offset)
                file.write(" ".join(map(str, (*fields, message.store_ms, message.received_ms))) + "\n")
                await message.ack()
            await asyncio.gather(*closing)


def main(arguments: list[str] | None = None) -> int:
    """Consume until the standard input ends."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.fault_consumer")
    parser.add_argument("namesrv")
    parser.add_argument("file")
    parser.add_argument("--group", default="storm-group")
    parser.add_argument("--topic", default="storm")
    asyncio.run(_consume(parser.parse_args(arguments)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
