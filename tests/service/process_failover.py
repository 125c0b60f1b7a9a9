"""How long the shards of an instance that is killed deliver nothing; a measurement, as a program.

A broker with four shards, two instances, a steady load of messages due a second later. One instance after the other is
killed with SIGKILL, and a new one is started. For each kill: the time to the first and to the last of its shards'
next messages in the log of their target::

    python -m tests.service.process_failover FOLDER --kills 10
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import threading
from collections import defaultdict
from pathlib import Path

from remoting.messages.properties import get_property
from tests.service.process_cluster import ENTRY, NUMBER, Copies, RealCluster, now_ms
from tests.support.wait import let_pass, pause
from timewheel_client import Producer

__all__ = ["main"]

TARGET = "orders"
RATE = 50
DUE_IN_MS = 1000
CALM_S = 14
GAP_MS = 1500
"""A shard that is silent for longer was the killed instance's: 12 messages a second are due in each."""


class Load:
    """Sends in a thread of its own until told to stop."""

    def __init__(self, namesrv: str) -> None:
        self._namesrv = namesrv
        self._stop = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._work()), daemon=True)
        self.count = 0

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End."""
        self._stop.set()
        self._thread.join(60)

    async def _work(self) -> None:
        async with Producer(self._namesrv) as producer:
            while not self._stop.is_set():
                due = str(now_ms() + DUE_IN_MS)
                properties = {"TW_TOPIC": TARGET, "TW_DELIVER_MS": due, NUMBER: str(self.count)}
                await producer.send(ENTRY, b"x" * 100, properties=properties)
                self.count += 1
                await pause(1 / RATE)


def silences(copies: Copies, kills: list[int]) -> list[list[int]]:
    """For each kill, ascending, how long each of its shards was silent after it, ms."""
    stored: dict[str, list[int]] = defaultdict(list)
    for message in copies.messages:
        name = get_property(message.properties, "TW_DELAY_ID") or ""
        stored[name.rpartition("/")[0]].append(message.store_ms)
    found = []
    for kill in kills:
        nexts = [min((at - kill for at in times if at > kill), default=0) for times in stored.values()]
        found.append(sorted(gap for gap in nexts if gap > GAP_MS))
    return found


def main(arguments: list[str] | None = None) -> int:
    """Run it and print the figures; 1 if a message is lost, early or there twice."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--ours", action="store_true", help="beside a broker of ours")
    options = parser.parse_args(arguments)
    cluster = RealCluster(options.folder, ours=options.ours)
    try:
        cluster.topics(4, TARGET)
        for _ in range(2):
            cluster.service()
        cluster.wait_owned(4, 240)
        load = Load(cluster.namesrv)
        load.start()
        kills: list[int] = []
        for _ in range(options.kills):
            let_pass(CALM_S)
            first = next(child for child in cluster.services if child.running())
            kills.append(now_ms())
            first.kill()
            cluster.service()
        let_pass(CALM_S)
        load.stop()
        copies = cluster.wait_delivered(load.count, 120, TARGET)
        rows = [row for row in silences(copies, kills) if row]
        for name, at in (("first", 0), ("last", -1)):
            column = sorted(row[at] for row in rows)
            print(f"{name} shard: {column}, median {statistics.median(column):.0f} ms")
        verdict = copies.verdict(range(load.count))
        late = copies.late()
        print(f"{load.count} messages, {verdict}; late p50 {late[len(late) // 2]} ms, max {late[-1]} ms")
        return 1 if any(verdict.values()) else 0
    finally:
        cluster.stop()


if __name__ == "__main__":
    sys.exit(main())
