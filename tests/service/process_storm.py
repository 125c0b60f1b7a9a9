"""A real cluster with instances of the delay service, under a steady load and every fault; and the ledger of it.

Apache's name server and two brokers, three instances. Stopped, killed and restarted at random: instances, brokers, the
name server; with ``--cuts`` the connections to the brokers are cut, too: half of the faults, or the share that is
given. Some messages are cancelled, shortly before
they are due. At the end all acknowledged messages must stand in the target topic once, cancelled ones never, none
early. With ``--stock``, stock clients send and read, too, and a consumer must have been given all that is in the topic
(`storm_stock`, `storm_ledger`). As a program, for as long as one likes::

    python -m tests.service.process_storm FOLDER --minutes 10 --rate 2000 --seed 5 --stock 75 --cuts 0.25

Each fault is said with the count of all so far: a run that is cut short still has its figures.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import threading
import time
from collections import Counter
from pathlib import Path

from service.link.cluster import ClusterLink
from service.running.entries import REJECTED_TOPIC
from tests.service.process_cluster import ENTRY, NUMBER, RealCluster, continued, now_ms, stopped
from tests.service.storm_ledger import NUMBERS_EACH, Ledger
from tests.service.storm_stock import SENDERS, Stock
from tests.support.ports import free_ports_around
from tests.support.processes import Child
from tests.support.wait import happens, let_pass, pause
from timewheel_client import ClientError, Producer, ServiceClient

__all__ = ["Storm", "main"]

TARGET = "orders"
DELAY_MS = (500, 15_000)
CALM_S = 600
INSTANCES = 3
PAUSE_S = 6.0
CUTS = 0.5


class Storm:
    """Runs it.

    Args:
        cluster: With its topics, and without instances.
        seed: Of the plan of faults.
        rate: Messages a second, of our own client.
        stock: Messages a second of each stock client; 0 for none.
        command_s: Of the stock clients: `Stock`.
        longest_ms: The longest delay.
        cuts: Share of the faults that are cuts, 0 to 1, of a cluster with wires.
    """

    def __init__(
        self,
        cluster: RealCluster,
        seed: int,
        rate: int,
        stock: int = 0,
        command_s: int = 20,
        longest_ms: int = DELAY_MS[1],
        cuts: float = CUTS,
    ) -> None:
        self.cluster = cluster
        self.cuts = cuts
        self.longest_ms = longest_ms
        self.random = random.Random(seed)
        self.rate = rate
        self.ledger = Ledger(by_entry=stock > 0)
        self._doors: dict[str, Child | None] = {}
        self.stock: Stock | None = None
        if stock:
            self._doors = {f"127.0.0.1:{free_ports_around(1, 2)}": None for _ in range(INSTANCES)}
            self.stock = Stock(
                cluster.folder / "stock",
                cluster.namesrv,
                list(self._doors),
                TARGET,
                stock,
                longest_ms,
                self.ledger,
                command_s,
            )
        self.faults: Counter[str] = Counter()
        self._stop = threading.Event()
        self._read: dict[tuple[str, str, int], int] = {}
        self.failed_sends = 0

    def run(self, seconds: float, pause_s: float = PAUSE_S) -> dict[str, int]:
        """Load and faults for so long, then calm until all is there; the verdict."""
        for _ in range(INSTANCES):
            self._instance()
        self.cluster.wait_owned(self.shards, 120)
        if self.stock is not None:
            self.stock.start()
        sender = threading.Thread(target=lambda: asyncio.run(self._load()), daemon=True)
        sender.start()
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            let_pass(pause_s * self.random.uniform(0.3, 1.2))
            self._fault()
        self._stop.set()
        sender.join(60)
        if self.stock is not None:
            self.stock.stop_sending(120)
            assert not self.stock.broken, self.stock.broken
        happens(self._is_complete, CALM_S)
        let_pass(5)
        asyncio.run(self._look())
        return self.ledger.verdict()

    @property
    def shards(self) -> int:
        """How many there are."""
        return 4 * len(self.cluster.brokers)

    def _instance(self) -> Child:
        """Start an instance; with stock clients it listens where none does that runs."""
        front = next((at for at, child in self._doors.items() if child is None or not child.running()), None)
        child = self.cluster.service(*(("--listen", front) if front else ()))
        if front:
            self._doors[front] = child
        return child

    # ------------------------------------------------------------------------------------------------ faults

    def _fault(self) -> None:
        """One fault, said with its time (UTC, as the instances' logs have it), how long it took, and all so far."""
        before, begin = Counter(self.faults), time.monotonic()
        at = time.strftime("%H:%M:%S", time.gmtime())
        self._one_fault()
        what = ", ".join(self.faults - before)
        so_far = ", ".join(f"{name} {count}" for name, count in sorted(self.faults.items()))
        sends = f"{len(self.ledger.sent)} acknowledged, {self.failed_sends} not"
        print(f"{at} {what}, {time.monotonic() - begin:.1f} s; so far {so_far}; {sends}", flush=True)

    def _one_fault(self) -> None:
        draw, cluster = self.random, self.cluster
        if cluster.wires and draw.random() < self.cuts:
            self._cut()
            return
        alive = [child for child in cluster.services if child.running()]
        while len(alive) < INSTANCES:  # as a supervisor does: one that finds no name server at its start ends
            alive.append(self._instance())
            self.faults["instance started again"] += 1
        luck = draw.random() * (0.80 if cluster.names is None else 1)
        if luck < 0.60:
            draw.choice(alive).kill()
            self._instance()
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
                    due_ms = now_ms() + draw.randrange(DELAY_MS[0], self.longest_ms)
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
        self.ledger.planned(number, due_ms)
        properties = {"TW_TOPIC": TARGET, "TW_DELIVER_MS": str(due_ms), NUMBER: str(number)}
        try:
            sent = await producer.send(ENTRY, b"x" * 100, properties=properties)
        except ClientError:
            self.failed_sends += 1
            return
        self.ledger.acknowledged(number)
        if cancel is not None:
            await pause(max(0.0, (due_ms - now_ms()) / 1000 * cancel))
            name = f"{sent.queue.broker_name}/{sent.queue.queue_id}/{sent.queue_offset}"
            try:
                self.ledger.verdicts[number] = (await commands.cancel(name)).verdict
            except ClientError:
                self.ledger.not_known(number)

    # ------------------------------------------------------------------------------------------------ ledger

    def _is_complete(self) -> bool:
        asyncio.run(self._look())
        return not any(self.ledger.missing().values())

    async def _look(self) -> None:
        """Read on where the last look has ended: the entry topic first, so that each copy's entry is known."""
        ledger = self.ledger
        link = ClusterLink(self.cluster.namesrv, "READER")
        try:
            await link.core.start()
            for topic in (*[ENTRY] * ledger.by_entry, TARGET, REJECTED_TOPIC):
                route = await link.core.route(topic)
                for queue in route.read_queues:
                    where = (topic, queue.broker_name, queue.queue_id)
                    end = await link.end(where)
                    while self._read.get(where, 0) < end:
                        pull = await link.pull(where, self._read.get(where, 0), wait=False)
                        for message in pull.messages:
                            if topic == ENTRY:
                                ledger.entry(f"{queue.broker_name}/{queue.queue_id}", message)
                            else:
                                ledger.copy(message)
                        self._read[where] = pull.next_offset
        except ClientError as error:
            print(f"looking: {error}", flush=True)
        finally:
            await link.core.close()

    def told(self) -> str:
        """The figures, in some lines."""
        ledger = self.ledger
        rows = [
            f"{len(ledger.sent)} acknowledged, {self.failed_sends} not; {dict(self.faults)}",
            f"commands: {dict(Counter(ledger.verdicts.values()))}; {ledger.verdict()}",
            f"late: p50 {ledger.late_ms(0.5)} p99 {ledger.late_ms(0.99)} max {ledger.late_ms(1)} ms",
        ]
        if self.stock is not None:
            sent = Counter(SENDERS[number // NUMBERS_EACH] for number in ledger.sent)
            twice = {SENDERS[number]: count for number, count in ledger.sent_twice().items()}
            given = {name: sum(names.values()) for name, names in ledger.received.items()}
            rows += [
                f"acknowledged: {dict(sent)}; failed: {dict(self.stock.failed)}; {len(ledger.entries)} entries; sent "
                f"twice by the client's own retry: {twice}; last errors: {self.stock.errors}",
                f"given to consumers: {given}, of them again: {ledger.given_again()}",
            ]
        return "\n".join(rows)

    def close(self) -> None:
        """End the stock clients."""
        if self.stock is not None:
            self.stock.close()


def share(text: str) -> float:
    """A share of a whole, 0 to 1; ValueError for another number."""
    value = float(text)
    if not 0 <= value <= 1:
        raise ValueError(text)
    return value


def main(arguments: list[str] | None = None) -> int:
    """Run it; 1 if the ledger does not agree."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--rate", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--brokers", type=int, default=2)
    parser.add_argument("--ours", action="store_true", help="beside a broker of ours, which is not killed")
    parser.add_argument(
        "--cuts",
        type=share,
        nargs="?",
        const=CUTS,
        default=0,
        help=f"cut connections to brokers, too: the share of the faults, {CUTS} if none is given",
    )
    parser.add_argument("--stock", type=int, default=0, help="messages a second of each stock client (Java, Go)")
    parser.add_argument("--pause", type=float, default=PAUSE_S, help="seconds between faults: 0.3 to 1.2 times this")
    options = parser.parse_args(arguments)
    cluster = RealCluster(options.folder, brokers=options.brokers, ours=options.ours, wires=options.cuts > 0)
    storm = None
    try:
        cluster.topics(4, TARGET)
        storm = Storm(cluster, options.seed, options.rate, options.stock, cuts=options.cuts)
        verdict = storm.run(options.minutes * 60, options.pause)
        print(storm.told())
        return 1 if any(verdict.values()) else 0
    finally:
        if storm is not None:
            storm.close()
        cluster.stop()


if __name__ == "__main__":
    sys.exit(main())
