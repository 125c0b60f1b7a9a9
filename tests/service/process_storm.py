"""A real cluster with instances of the delay service, under a steady load and every fault; and the ledger of it.

Apache's name server and two brokers, three instances. Stopped, killed and restarted at random: instances, brokers, the
name server; with ``--cuts`` the connections to the brokers are cut, too. Some messages are cancelled, shortly before
they are due. At the end all acknowledged messages must stand in the target topic once, cancelled ones never, none
early. As a program, for as long as one likes::

    python -m tests.service.process_storm FOLDER --minutes 10 --rate 2000 --seed 5
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from remoting.messages.properties import get_property
from service.link.cluster import ClusterLink
from service.running.entries import DUE, REJECTED_TOPIC
from tests.service.process_cluster import ENTRY, NUMBER, RealCluster, continued, now_ms, stopped
from tests.support.wait import happens, let_pass, pause
from timewheel_client import ClientError, Producer, ServiceClient

__all__ = ["Storm", "main"]

TARGET = "orders"
DELAY_MS = (500, 15_000)
CALM_S = 600
INSTANCES = 3


@dataclass
class Ledger:
    """What was acknowledged, what was cancelled, and what stands in the target topic."""

    sent: dict[int, int] = field(default_factory=dict)
    verdicts: dict[int, str] = field(default_factory=dict)
    copies: Counter[int] = field(default_factory=Counter)
    early: int = 0
    rejected: int = 0
    late: list[int] = field(default_factory=list)

    def verdict(self) -> dict[str, int]:
        """Lost, early, twice, rejected; cancelled and delivered; told ``too_late`` and not delivered."""
        gone = {number for number, verdict in self.verdicts.items() if verdict in ("done", "already")}
        return {
            "lost": sum(1 for number in self.sent if number not in gone and not self.copies[number]),
            "early": self.early,
            "twice": sum(1 for count in self.copies.values() if count > 1),
            "rejected": self.rejected,
            "undead": sum(1 for number in gone if self.copies[number]),
            "wrong": sum(1 for number, text in self.verdicts.items() if text == "too_late" and not self.copies[number]),
        }

    def late_ms(self, share: float) -> int:
        """A percentile of the lateness in the log."""
        rows = sorted(self.late)
        return rows[min(len(rows) - 1, int(share * len(rows)))] if rows else 0


class Storm:
    """Runs it.

    Args:
        cluster: With its topics, and without instances.
        seed: Of the plan of faults.
        rate: Messages a second.
    """

    def __init__(self, cluster: RealCluster, seed: int, rate: int) -> None:
        self.cluster = cluster
        self.random = random.Random(seed)
        self.rate = rate
        self.ledger = Ledger()
        self.faults: Counter[str] = Counter()
        self._stop = threading.Event()
        self._read: dict[tuple[str, str, int], int] = {}
        self.failed_sends = 0

    def run(self, seconds: float, pause_s: float = 6.0) -> dict[str, int]:
        """Load and faults for so long, then calm until all is there; the verdict."""
        for _ in range(INSTANCES):
            self.cluster.service()
        self.cluster.wait_owned(self.shards, 120)
        sender = threading.Thread(target=lambda: asyncio.run(self._load()), daemon=True)
        sender.start()
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            let_pass(pause_s * self.random.uniform(0.3, 1.2))
            self._fault()
        self._stop.set()
        sender.join(60)
        happens(self._is_complete, CALM_S)
        let_pass(5)
        asyncio.run(self._look())
        return self.ledger.verdict()

    @property
    def shards(self) -> int:
        """How many there are."""
        return 4 * len(self.cluster.brokers)

    # ------------------------------------------------------------------------------------------------ faults

    def _fault(self) -> None:
        """One fault, said with its time (UTC, as the instances' logs have it) and how long it took."""
        before, begin = Counter(self.faults), time.monotonic()
        at = time.strftime("%H:%M:%S", time.gmtime())
        self._one_fault()
        what = ", ".join(self.faults - before)
        print(f"{at} {what}, {time.monotonic() - begin:.1f} s", flush=True)

    def _one_fault(self) -> None:
        draw, cluster = self.random, self.cluster
        if cluster.wires and draw.random() < 0.5:
            self._cut()
            return
        alive = [child for child in cluster.services if child.running()]
        while len(alive) < INSTANCES:  # as a supervisor does: one that finds no name server at its start ends
            alive.append(cluster.service())
            self.faults["instance started again"] += 1
        luck = draw.random() * (0.80 if cluster.names is None else 1)
        if luck < 0.60:
            draw.choice(alive).kill()
            cluster.service()
            self.faults["instance killed"] += 1
        elif luck < 0.80:
            child = draw.choice(alive)
            stopped(child)
            let_pass(draw.choice((1.5, 4, 10, 30)))
            continued(child)
            self.faults["instance stopped"] += 1
        elif luck < 0.92:
            broker = draw.choice(cluster.brokers)
            port = broker.port
            broker.kill()
            let_pass(draw.uniform(0, 5))
            broker.start(port)
            self.faults["broker killed"] += 1
        else:
            cluster.restart_names()
            self.faults["name server killed"] += 1

    def _cut(self) -> None:
        """Cut one broker off: its connections are reset, or silent in one or both directions."""
        draw = self.random
        wire = draw.choice(self.cluster.wires)
        kind = draw.choice(("cut", "silent", "half open", "deaf"))
        if kind == "cut":
            wire.cut()
        else:
            wire.block(draw.choice((0.5, 2, 6)), to_server=kind != "half open", to_client=kind != "deaf")
        self.faults[f"connections {kind}"] += 1

    # ------------------------------------------------------------------------------------------------ load

    async def _load(self) -> None:
        draw = random.Random(1)
        number, begin = 0, time.monotonic()
        tasks: set[asyncio.Task[None]] = set()
        async with (
            Producer(self.cluster.namesrv, attempts=1) as producer,
            ServiceClient(self.cluster.namesrv) as commands,
        ):
            while not self._stop.is_set():
                behind = int((time.monotonic() - begin) * self.rate) - number
                for _ in range(min(behind, 200) if len(tasks) < 2000 else 0):
                    due_ms = now_ms() + draw.randrange(*DELAY_MS)
                    cancel = draw.random() < 5 / self.rate
                    work = self._one(producer, commands, number, due_ms, draw.uniform(0, 1.2) if cancel else None)
                    task = asyncio.ensure_future(work)
                    tasks.add(task)
                    task.add_done_callback(tasks.discard)
                    number += 1
                if len(tasks) >= 2000:  # a broker is away: what was not sent is not made up for
                    begin = time.monotonic() - number / self.rate
                await pause(0.01)
            await asyncio.gather(*tasks)

    async def _one(
        self, producer: Producer, commands: ServiceClient, number: int, due_ms: int, cancel: float | None
    ) -> None:
        properties = {"TW_TOPIC": TARGET, "TW_DELIVER_MS": str(due_ms), NUMBER: str(number)}
        try:
            sent = await producer.send(ENTRY, b"x" * 100, properties=properties)
        except ClientError:
            self.failed_sends += 1
            return
        self.ledger.sent[number] = due_ms
        if cancel is not None:
            await pause(max(0.0, (due_ms - now_ms()) / 1000 * cancel))
            name = f"{sent.queue.broker_name}/{sent.queue.queue_id}/{sent.queue_offset}"
            try:
                self.ledger.verdicts[number] = (await commands.cancel(name)).verdict
            except ClientError:
                self.ledger.sent.pop(number)  # whether it was cancelled is not known

    # ------------------------------------------------------------------------------------------------ ledger

    def _is_complete(self) -> bool:
        asyncio.run(self._look())
        return not self.ledger.verdict()["lost"]

    async def _look(self) -> None:
        """Read on where the last look has ended."""
        ledger = self.ledger
        link = ClusterLink(self.cluster.namesrv, "READER")
        try:
            await link.core.start()
            for topic in (TARGET, REJECTED_TOPIC):
                route = await link.core.route(topic)
                for queue in route.read_queues:
                    where = (topic, queue.broker_name, queue.queue_id)
                    end = await link.end(where)
                    while self._read.get(where, 0) < end:
                        pull = await link.pull(where, self._read.get(where, 0), wait=False)
                        for message in pull.messages:
                            due_ms = int(get_property(message.properties, DUE) or 0)
                            ledger.copies[int(get_property(message.properties, NUMBER) or -1)] += 1
                            ledger.early += message.store_ms < due_ms
                            ledger.rejected += topic == REJECTED_TOPIC
                            ledger.late.append(message.store_ms - due_ms)
                        self._read[where] = pull.next_offset
        except ClientError as error:
            print(f"looking: {error}", flush=True)
        finally:
            await link.core.close()


def main(arguments: list[str] | None = None) -> int:
    """Run it; 1 if the ledger does not agree."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--rate", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--brokers", type=int, default=2)
    parser.add_argument("--ours", action="store_true", help="beside a broker of ours, which is not killed")
    parser.add_argument("--cuts", action="store_true", help="half of the faults: connections to brokers are cut")
    options = parser.parse_args(arguments)
    cluster = RealCluster(options.folder, brokers=options.brokers, ours=options.ours, wires=options.cuts)
    try:
        cluster.topics(4, TARGET)
        storm = Storm(cluster, options.seed, options.rate)
        verdict = storm.run(options.minutes * 60)
        ledger = storm.ledger
        print(f"{len(ledger.sent)} acknowledged, {storm.failed_sends} not; {dict(storm.faults)}")
        print(f"commands: {dict(Counter(ledger.verdicts.values()))}; {verdict}")
        print(f"late: p50 {ledger.late_ms(0.5)} p99 {ledger.late_ms(0.99)} max {ledger.late_ms(1)} ms")
        return 1 if any(verdict.values()) else 0
    finally:
        cluster.stop()


if __name__ == "__main__":
    sys.exit(main())
