"""A bulk cancel of very many messages in a real cluster, and the instances that own their shards killed in its midst.

Messages for two topics wait; all of one topic are cancelled: a command for each, a hundred in a send. When half of the
commands are stored, and each time a further part of the verdicts is told, an instance is killed with SIGKILL, and
another one is started. In the end each command has one
verdict that counts. Told ``done``: never delivered. Told ``too_late``: delivered once. The other topic has all of its
messages once::

    python -m tests.service.process_bulk FOLDER --count 100000 --kills 3
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from remoting.messages.message import StoredMessage
from remoting.messages.properties import get_property
from service.core.progress import TargetQueue
from service.link.cluster import ClusterLink
from service.running.entries import REJECTED_TOPIC
from tests.service.process_cluster import ENTRY, NUMBER, RealCluster, now_ms
from tests.support.wait import happens, pause
from timewheel_client import BatchMessage, ClientError, Producer
from timewheel_client.values.client_values import SendResult

__all__ = ["KEPT", "TARGET", "Bulk", "main"]

TARGET, KEPT = "orders", "bills"
IN_A_SEND = 100
SENDS_AT_ONCE = 4
SPREAD_MS = 5_000
"""Over how long messages are due."""
PATIENCE_S = 240


@dataclass
class Told:
    """What the entry queues say: the entry of each command, and the verdicts that count."""

    about: dict[tuple[str, int], str] = field(default_factory=dict)
    verdicts: dict[tuple[str, int], list[str]] = field(default_factory=lambda: defaultdict(list))
    takeover: dict[str, int] = field(default_factory=dict)
    void: int = 0

    def read(self, shard: str, message: StoredMessage) -> None:
        """Take over one record of a queue, in its order."""
        text, at = message.properties, message.queue_offset
        kind = get_property(text, "TW_KIND")
        if kind == "takeover":
            self.takeover[shard] = at
        elif kind == "cancel":
            self.about[shard, at] = f"{shard}/{get_property(text, 'TW_ABOUT')}"
        elif kind == "verdict":
            if get_property(text, "TW_GENERATION") == str(self.takeover.get(shard)):
                about = int(get_property(text, "TW_ABOUT") or -1)
                self.verdicts[shard, about].append(get_property(text, "TW_VERDICT") or "")
            else:
                self.void += 1

    def by_entry(self) -> dict[str, list[str]]:
        """Entry to the verdicts on it."""
        return {entry: self.verdicts.get(command, []) for command, entry in self.about.items()}


class Bulk:
    """Runs it. The cluster has its topics, and no instance.

    Args:
        cluster: The cluster.
        count: Messages that are cancelled; a tenth as many are not.
        kills: How often an instance is killed.
        due_s: When the first message is due, from the begin of the sends.
    """

    def __init__(self, cluster: RealCluster, count: int, kills: int, due_s: float, instances: int = 2) -> None:
        self.cluster = cluster
        self.count = count
        self.at_command = count // 2 if kills else count + 1
        self.at_verdicts = [int(count * (1 - 0.5 ** (at + 2))) for at in range(kills - 1)]
        self.due_s = due_s
        self.told = Told()
        self.names: dict[str, int] = {}
        """Entry to its number, of those that are cancelled."""
        self.kept: list[int] = []
        self.killed = 0
        self.copies: Counter[str] = Counter()
        self.kept_copies: Counter[int] = Counter()
        self.rejected = 0
        self._read: dict[TargetQueue, int] = {}
        for _ in range(instances):
            cluster.service()
        cluster.wait_owned(4 * len(cluster.brokers), PATIENCE_S)

    def run(self) -> dict[str, int]:
        """Send, cancel, kill, wait; the verdict."""
        due_ms = now_ms() + int(self.due_s * 1000)
        asyncio.run(self._send(due_ms))
        _say(f"{len(self.names)} and {len(self.kept)} wait")
        asyncio.run(self._cancel())
        _say(f"each command has a verdict, {self.told.void} verdicts were void")
        happens(lambda: now_ms() > due_ms + SPREAD_MS, self.due_s + 10)
        happens(self._is_complete, PATIENCE_S)
        return self.verdict()

    def verdict(self) -> dict[str, int]:
        """What is not as it should be: all 0."""
        told = self.told.by_entry()
        return {
            "without one verdict": sum(1 for entry in self.names if len(told.get(entry, ())) != 1),
            "undead": sum(1 for entry, verdicts in told.items() if "done" in verdicts and self.copies[entry]),
            "wrong": sum(1 for entry, verdicts in told.items() if "too_late" in verdicts and not self.copies[entry]),
            "odd": sum(1 for verdicts in told.values() if not {"done", "too_late"}.issuperset(verdicts)),
            "twice": sum(1 for count in (*self.copies.values(), *self.kept_copies.values()) if count > 1),
            "lost": sum(1 for number in self.kept if not self.kept_copies[number]),
            "rejected": self.rejected,
        }

    async def _send(self, due_ms: int) -> None:
        numbers = iter(range(self.count + self.count // 10))
        async with Producer(self.cluster.namesrv) as producer:
            while some := list(islice(numbers, IN_A_SEND * 16)):
                parts = [some[at : at + IN_A_SEND] for at in range(0, len(some), IN_A_SEND)]
                for part, sent in zip(
                    parts, await asyncio.gather(*(self._sent(producer, p, due_ms) for p in parts)), strict=True
                ):
                    for number, result in zip(part, sent, strict=True):
                        if number < self.count:
                            self.names[_name(result)] = number
                        else:
                            self.kept.append(number)

    async def _sent(self, producer: Producer, part: Sequence[int], due_ms: int) -> list[SendResult]:
        messages = [
            BatchMessage(
                b"x" * 100,
                properties={
                    "TW_TOPIC": TARGET if number < self.count else KEPT,
                    "TW_DELIVER_MS": str(due_ms + number * 7919 % SPREAD_MS),
                    NUMBER: str(number),
                },
            )
            for number in part
        ]
        return await producer.send_batch(ENTRY, messages)

    # ------------------------------------------------------------------------------------------------ the cancels

    async def _cancel(self) -> None:
        watching = asyncio.ensure_future(self._watch())
        async with Producer(self.cluster.namesrv) as producer:
            queues = {f"{queue.broker_name}/{queue.queue_id}": queue for queue in await producer.queues(ENTRY)}
            by_shard: dict[str, list[int]] = defaultdict(list)
            for name in self.names:
                shard, _, offset = name.rpartition("/")
                by_shard[shard].append(int(offset))
            sends = [(queues[shard], part) for shard, offsets in by_shard.items() for part in _parts(offsets)]
            for at in range(0, len(sends), SENDS_AT_ONCE):
                if at * IN_A_SEND >= self.at_command:
                    self.at_command = self.count + 1
                    self._kill()
                await asyncio.gather(
                    *(
                        producer.send_batch(
                            ENTRY,
                            [
                                BatchMessage(b"-", properties={"TW_KIND": "cancel", "TW_ABOUT": str(offset)})
                                for offset in part
                            ],
                            queue=queue,
                        )
                        for queue, part in sends[at : at + SENDS_AT_ONCE]
                    )
                )
        _say("all commands are stored")
        await watching

    async def _watch(self) -> None:
        """Read on in the entry queues until each command has a verdict, and kill at each step."""
        link = ClusterLink(self.cluster.namesrv, "READER")
        until = time.monotonic() + PATIENCE_S
        await link.core.start()
        try:
            while len(self.told.verdicts) < self.count and time.monotonic() < until:
                try:
                    read = await self._read_on(link, ENTRY, self._entry)
                except ClientError as error:
                    _say(f"reading: {error}")
                    read = 0
                if self.at_verdicts and len(self.told.verdicts) >= self.at_verdicts[0]:
                    self.at_verdicts.pop(0)
                    self._kill()
                if not read:
                    await pause(0.05)
        finally:
            await link.core.close()

    def _kill(self) -> None:
        """Kill the oldest instance that runs, which owns most, and start another."""
        alive = [child for child in self.cluster.services if child.running()]
        alive[0].kill()
        self.killed += 1
        self.cluster.service()
        _say(f"{len(self.told.verdicts)} verdicts, {len(self.told.about)} commands: an instance was killed")

    def _entry(self, queue: TargetQueue, message: StoredMessage) -> None:
        self.told.read(f"{queue[1]}/{queue[2]}", message)

    # ------------------------------------------------------------------------------------------------ the ledger

    def _is_complete(self) -> bool:
        asyncio.run(self._look())
        return not any(self.verdict().values())

    async def _look(self) -> None:
        link = ClusterLink(self.cluster.namesrv, "READER")
        await link.core.start()
        try:
            for topic in (ENTRY, TARGET, KEPT, REJECTED_TOPIC):
                await self._read_on(link, topic, self._entry if topic == ENTRY else self._delivered)
        finally:
            await link.core.close()

    def _delivered(self, queue: TargetQueue, message: StoredMessage) -> None:
        if queue[0] == TARGET:
            self.copies[get_property(message.properties, "TW_DELAY_ID") or ""] += 1
        elif queue[0] == KEPT:
            self.kept_copies[int(get_property(message.properties, NUMBER) or -1)] += 1
        else:
            self.rejected += 1

    async def _read_on(self, link: ClusterLink, topic: str, take: object) -> int:
        """Read a topic from where the last look has ended; how many messages there were."""
        assert callable(take)
        count = 0
        for queue in (await link.core.route(topic)).read_queues:
            where = (topic, queue.broker_name, queue.queue_id)
            end = await link.end(where)
            while self._read.get(where, 0) < end:
                pull = await link.pull(where, self._read.get(where, 0), wait=False)
                for message in pull.messages:
                    take(where, message)
                count += len(pull.messages)
                self._read[where] = pull.next_offset
        return count


def _parts(offsets: list[int]) -> Iterator[list[int]]:
    for at in range(0, len(offsets), IN_A_SEND):
        yield offsets[at : at + IN_A_SEND]


def _name(sent: SendResult) -> str:
    return f"{sent.queue.broker_name}/{sent.queue.queue_id}/{sent.queue_offset}"


def _say(text: str) -> None:
    print(time.strftime("%H:%M:%S", time.gmtime()), text, flush=True)


def main(arguments: list[str] | None = None) -> int:
    """Run it; 1 if the ledger does not agree."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--due", type=float, default=75, help="seconds until the first message is due")
    parser.add_argument("--ours", action="store_true", help="beside a broker of ours")
    options = parser.parse_args(arguments)
    cluster = RealCluster(options.folder, ours=options.ours)
    try:
        cluster.topics(4, TARGET, KEPT)
        bulk = Bulk(cluster, options.count, options.kills, options.due)
        verdict = bulk.run()
        told = Counter(verdict for verdicts in bulk.told.verdicts.values() for verdict in verdicts)
        print(f"{options.count} cancelled, {len(bulk.kept)} not; {bulk.killed} killed; {dict(told)}; {verdict}")
        return 1 if any(verdict.values()) else 0
    finally:
        cluster.stop()


if __name__ == "__main__":
    sys.exit(main())
