"""A real cluster of processes for the delay service: name server, brokers, instances of the service; and its ledger."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from remoting.codes import RequestCode
from remoting.messages.message import StoredMessage, join_batch
from remoting.messages.properties import format_properties, get_property
from service.core.progress import TargetQueue
from service.link.cluster import ClusterLink, Fate, fate_of
from service.link.progress_log import progress_topic
from service.running.entries import DUE, REJECTED_TOPIC
from tests.support.apache import TIMER_OFTEN, VERSION, ApacheBroker, ApacheNameServer
from tests.support.cut_wire import CutWire
from tests.support.ours import ROOT, OurBroker
from tests.support.processes import Child
from tests.support.wait import happens, wait_until
from timewheel_client import ClientConnection, Producer
from timewheel_client.net.credentials import Credentials

ENTRY = "TIMEWHEEL"
NUMBER = "number"
WIRE_HOST = "127.0.0.2"
PATIENCE_MS = 60_000
"""What a broker that has just started may take to answer, on a machine that does much else."""


async def make_topic(
    address: str,
    topic: str,
    queues: int,
    perm: int = 6,
    credentials: Credentials | None = None,
    attributes: str = "",
) -> None:
    """What mqadmin's updateTopic asks of a broker. ``attributes``: like ``+queue.type=BatchCQ``."""
    connection = await ClientConnection.open(address, credentials=credentials, timeout_ms=PATIENCE_MS)
    ext = {
        "topic": topic,
        "defaultTopic": "TBW102",
        "readQueueNums": str(queues),
        "writeQueueNums": str(queues),
        "perm": str(perm),
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": "0",
        "order": "false",
    }
    if attributes:
        ext["attributes"] = attributes
    try:
        reply = await connection.request(RequestCode.UPDATE_AND_CREATE_TOPIC, ext, timeout_ms=PATIENCE_MS)
        assert reply.code == 0, reply.remark
    finally:
        await connection.close()


@dataclass
class Copies:
    """What stands in the target topics: number to (store time, due time) of each copy."""

    found: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    messages: list[StoredMessage] = field(default_factory=list)

    def verdict(self, sent: Sequence[int]) -> dict[str, int]:
        return {
            "lost": sum(1 for number in sent if number not in self.found),
            "early": sum(1 for rows in self.found.values() for stored, due in rows if stored < due),
            "twice": sum(1 for rows in self.found.values() if len(rows) > 1),
        }

    def late(self) -> list[int]:
        """How late each was, ms, ascending."""
        return sorted(rows[0][0] - rows[0][1] for rows in self.found.values())


class RealCluster:
    """Name server, brokers ``broker-0`` …, and instances of the service.

    With ``wires``, everybody reaches each broker by a relay that can be cut. ``version`` is Apache's, whose processes
    speak TLS only with ``tls``.
    """

    def __init__(
        self,
        folder: Path,
        brokers: int = 1,
        *,
        ours: bool = False,
        settings: Mapping[str, str] | None = None,
        wires: bool = False,
        version: str = VERSION,
        tls: bool = False,
    ) -> None:
        self.folder = folder
        if wires:
            settings = {**(settings or {}), "brokerIP1": WIRE_HOST, "bindAddress": "127.0.0.1"}
        self.names: ApacheNameServer | None = None
        self.brokers: list[ApacheBroker | OurBroker] = []
        if ours:
            broker = OurBroker(folder / "broker", dict(settings or {})).start()
            self.namesrv = broker.namesrv
            self.brokers.append(broker)
        else:
            self.names = ApacheNameServer(folder / "names", version, tls=tls)
            self.namesrv = self.names.address
            for number in range(brokers):
                name = {**TIMER_OFTEN, **(settings or {}), "brokerName": f"broker-{number}"}
                home = folder / f"b{number}"
                self.brokers.append(ApacheBroker(home, self.namesrv, name, "512m", version, tls=tls).start())
        self.wires = [
            CutWire(f"{WIRE_HOST}:{broker.port}", f"127.0.0.1:{broker.port}") for broker in self.brokers if wires
        ]
        self.services: list[Child] = []
        self._count = 0

    def topics(self, queues: int = 4, *targets: str, credentials: Credentials | None = None) -> None:
        async def make() -> None:
            for broker in self.brokers:
                for topic in (ENTRY, progress_topic(ENTRY), REJECTED_TOPIC, *targets):
                    await make_topic(broker.address, topic, queues, credentials=credentials)

        asyncio.run(make())

    def service(self, *more: str) -> Child:
        """Start one more instance."""
        self._count += 1
        home = self.folder / f"s{self._count}"
        command = [sys.executable, "-m", "broker.cli", "service", "--namesrv-addr", self.namesrv, "--store", str(home)]
        child = Child([*command, *more], ROOT, self.folder / f"s{self._count}.log", {"PYTHONDONTWRITEBYTECODE": ""})
        self.services.append(child)
        return child

    def owned(self, child: Child) -> int:
        """How many shards an instance has come to own so far."""
        return child.log.read_text(errors="replace").count(": owning after")

    def wait_owned(self, count: int, within_s: float = 60) -> None:
        wait_until(
            lambda: sum(map(self.owned, self.services)) >= count,
            within_s,
            f"{count} takeovers:\n" + "\n".join(child.tail() for child in self.services),
        )

    def send(
        self,
        numbers: Sequence[int],
        topic: str,
        due_ms: Sequence[int],
        body: bytes = b"x" * 100,
        entry: str = ENTRY,
    ) -> None:
        async def work() -> None:
            async with Producer(self.namesrv) as producer:
                for at in range(0, len(numbers), 64):
                    await asyncio.gather(
                        *(
                            producer.send(
                                entry,
                                body,
                                properties={"TW_TOPIC": topic, "TW_DELIVER_MS": str(due), NUMBER: str(number)},
                            )
                            for number, due in zip(numbers[at : at + 64], due_ms[at : at + 64], strict=True)
                        )
                    )

        asyncio.run(work())

    def send_batch(self, *rows: tuple[bytes, Mapping[str, str]]) -> None:
        """Send one batch to the entry topic: body and properties of each message."""

        async def work() -> None:
            link = ClusterLink(self.namesrv, "SENDER")
            await link.core.start()
            try:
                (first, *_) = (await link.core.route(ENTRY)).write_queues
                queue = (ENTRY, first.broker_name, first.queue_id)
                connection = await link.connection(*queue[:2])
                body = join_batch((0, body, format_properties(properties)) for body, properties in rows)
                sent = await fate_of(link.send_now(connection, queue, "", body, batch=True))
                assert sent.fate is Fate.STORED, sent
            finally:
                await link.core.close()

        asyncio.run(work())

    def read(self, *topics: str) -> Copies:
        """Read all queues of some topics from their begin to their end."""
        return asyncio.run(read_all(self.namesrv, topics))

    def wait_delivered(self, count: int, within_s: float, *topics: str) -> Copies:
        copies, seen = Copies(), Copies()
        ends: dict[TargetQueue, int] = {}

        def all_there() -> bool:
            nonlocal copies
            asyncio.run(read_more(self.namesrv, topics, seen, ends))
            if len(seen.found) >= count:
                copies = self.read(*topics)
            return len(copies.found) >= count

        assert happens(all_there, within_s), f"{count} messages in {topics}, {len(seen.found)} are there\n" + "\n".join(
            child.tail() for child in self.services
        )
        return copies

    def restart_names(self) -> None:
        """Kill Apache's name server and start it again at its address."""
        if self.names is not None:
            self.names.stop()
            self.names.start_again()

    def stop(self) -> None:
        for child in self.services:
            child.kill()
        for wire in self.wires:
            wire.close()
        for broker in self.brokers:
            broker.kill()
        if self.names is not None:
            self.names.stop()


async def read_all(namesrv: str, topics: Sequence[str], credentials: Credentials | None = None) -> Copies:
    copies = Copies()
    await read_more(namesrv, topics, copies, {}, credentials)
    return copies


async def read_more(
    namesrv: str,
    topics: Sequence[str],
    copies: Copies,
    ends: dict[TargetQueue, int],
    credentials: Credentials | None = None,
) -> None:
    """Add to copies what has come since; ``ends``: up to where each queue has been read."""
    found: list[StoredMessage] = []
    cluster = ClusterLink(namesrv, "READER", credentials)  # a group of its own
    await cluster.core.start()
    try:
        for topic in topics:
            route = await cluster.core.route(topic)
            for queue in route.read_queues:
                where = (topic, queue.broker_name, queue.queue_id)
                end = await cluster.end(where)
                offset = ends[where] if where in ends else await cluster.begin(where)
                while offset < end:
                    pull = await cluster.pull(where, offset, wait=False)
                    found += pull.messages
                    offset = pull.next_offset
                ends[where] = offset
    finally:
        await cluster.core.close()
    copies.messages += found
    for message in found:
        number = int(get_property(message.properties, NUMBER) or -1)
        due = int(get_property(message.properties, DUE) or 0)
        copies.found.setdefault(number, []).append((message.store_ms, due))


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def stopped(child: Child) -> None:
    os.killpg(child.process.pid, signal.SIGSTOP)


def continued(child: Child) -> None:
    os.killpg(child.process.pid, signal.SIGCONT)
