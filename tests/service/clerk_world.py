"""One owner's commands and rolls with a pause at every await, all from one seed; the entry queue is the judge.

The simulated cluster (`tests.service.cluster_world`) looks at an entry and decides about it in one step. The service's
`Clerk` and `Roller` ask the cache in between, which waits for deliveries, and connections. Meanwhile verdicts and rolls
are read. Here both are real, with a real `Shard`; queue and cache are in memory, and nothing is delivered.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from remoting.codes import FLAG_RESPONSE
from remoting.command import RemotingCommand
from remoting.messages.message import Message, StoredMessage, decode_record, encode_record
from remoting.messages.properties import get_property
from service.core.calm import Calm
from service.core.lines import COMMANDS, Line, LineKind
from service.core.progress import TargetQueue
from service.link.cluster import ClusterLink, Pull
from service.link.log import Teller
from service.running import obeying, roller, unsure
from service.running.cache import CachedEntry, ShardCache
from service.running.entries import Waiting, due_of, line_of, moved_record, own_record, waiting_of
from service.running.instance_counts import InstanceCounts
from service.running.obeying import Clerk
from service.running.roller import Roller
from store.disk.errors import StoreError, StoreFullError
from tests.service.target_world import owned_shard
from timewheel_client.values.errors import BrokerError, ClientError

__all__ = ["ClerkWorld", "Told", "judged"]

NAME = "broker-e/0"
HOST = bytes(8)
NOW = 1_700_000_000_000
FAR = NOW + 10**9
ENTRIES, COMMANDS_GIVEN, TURNS_MAX = 10, 100, 200_000


class _Cache:
    """What waits, by offset. A call fails if ``trouble`` has an error for it; then a part of it may have been done."""

    def __init__(self, trouble: Callable[[], StoreError | None]) -> None:
        self.records: dict[int, bytes] = {}
        self._trouble = trouble

    def _try(self) -> None:
        error = self._trouble()
        if error is not None:
            raise error

    def add(self, waiting: Sequence[Waiting]) -> None:
        self.records |= {one.offset: one.record for one in waiting}

    def take(self, offsets: Sequence[int]) -> list[bytes | None]:
        self._try()
        return [self.records.get(offset) for offset in offsets]

    def look(self, offsets: Sequence[int]) -> list[CachedEntry | None]:
        self._try()
        found = [(at, self.records.get(at)) for at in offsets]
        return [record and CachedEntry(at, due_of(decode_record(record).properties)) for at, record in found]  # type: ignore[misc]

    def move(self, offset: int, due_ms: int) -> None:
        self._try()
        if offset in self.records:
            self.records[offset] = moved_record(self.records[offset], due_ms)

    def drop(self, offsets: Sequence[int]) -> None:
        for offset in offsets:
            self._try()
            self.records.pop(offset, None)


class ClerkWorld:
    """Owner, cluster and entry queue in one. If it is harsh, a quarter of everything fails."""

    def __init__(self, seed: int, patch: pytest.MonkeyPatch, harsh: bool = False) -> None:
        self.random = random.Random(seed)
        self.unanswered, self.no_connection = (0.3, 0.1) if harsh else (0.06, 0.02)
        self.harsh = harsh
        self.queue: TargetQueue = ("TIMEWHEEL", "broker-e", 0)
        self.name, self.calm, self.tally = NAME, Calm(0), InstanceCounts()
        self.tell = Teller(logging.getLogger(__name__), NAME)
        self.cluster = cast(ClusterLink, self)
        self.store = _Cache(self._trouble)
        self.cache: ShardCache | None = cast(ShardCache, self.store)
        self.log: list[StoredMessage] = []
        self.backlog: list[Waiting] = []
        self._now_ms = 0
        self._sends: set[asyncio.Task[None]] = set()
        self.append(*own_record(LineKind.TAKEOVER, TW_OWNER="me"))
        self.shard = owned_shard(NAME)
        self.clerk = Clerk(self)
        self.roller = Roller(self, 0, 1000)
        for module in (obeying, unsure):
            patch.setattr(module, "mono_ms", lambda: self._now_ms)
        for module in (obeying, roller):
            patch.setattr(module, "wall_ms", lambda: NOW)
        patch.setattr(asyncio, "to_thread", self._to_thread)

    def _trouble(self) -> StoreError | None:
        if not self.harsh or self.random.random() < 0.8:
            return None
        return self.random.choice((StoreError, StoreFullError))("no luck")

    @property
    def is_filled(self) -> bool:
        """See `Employer`."""
        return not self.backlog

    def append(self, text: str, body: bytes = b"-") -> int:
        """A broker stores a record; its offset."""
        message = Message("TIMEWHEEL", 0, 0, 0, 1, HOST, 0, 0, body, text)
        stored = decode_record(encode_record(message, HOST, NOW))
        stored.queue_offset = len(self.log)
        self.log.append(stored)
        return stored.queue_offset

    # ------------------------------------------------------------------------------------------------ the cluster

    async def nap(self, most: int = 12) -> None:
        """Let others go on for some turns of the loop."""
        for _ in range(self.random.choice((0, 1, self.random.randrange(most)))):
            await asyncio.sleep(0)

    async def _to_thread(self, work: Callable[..., Any], *args: Any) -> Any:
        await self.nap(40)
        found = work(*args)
        await self.nap(40)
        return found

    async def connection(self, *_: str) -> None:
        """There mostly is one."""
        await self.nap()
        if self.random.random() < self.no_connection:
            raise ClientError("no connection")

    async def end(self, _: TargetQueue) -> int:
        """The end of the queue."""
        await self.nap()
        return len(self.log)

    async def end_before(self, *_: object) -> int:
        """What stands before that is old enough to be rolled."""
        await self.nap()
        return max(0, len(self.log) - self.random.randrange(5, 60))

    async def pull(self, _: TargetQueue, offset: int, *, wait: bool) -> Pull:
        """The next records."""
        await self.nap()
        if self.harsh and self.random.random() < 0.2:
            raise self.random.choice((ClientError("no answer"), BrokerError(1, "no luck", "host:1")))
        found = self.log[offset : offset + 16]
        assert not wait
        return Pull(found, offset + len(found))

    def send_now(self, _connection: None, _queue: TargetQueue, text: str, body: bytes, **_: Any) -> Any:
        """The record is stored some turns later, the answer comes some turns after that; each may be lost."""
        reply: asyncio.Future[RemotingCommand] = asyncio.get_running_loop().create_future()
        fate = self.random.random()

        async def send() -> None:
            await self.nap()
            at = self.append(text, body) if fate > self.unanswered / 2 else -1
            await self.nap()
            if fate < self.unanswered:
                reply.set_exception(ClientError("no answer"))
            else:
                reply.set_result(RemotingCommand(0, 1, FLAG_RESPONSE, ext={"queueOffset": str(at)}))

        task = asyncio.ensure_future(send())
        self._sends.add(task)
        task.add_done_callback(self._sends.discard)
        return reply

    # ------------------------------------------------------------------------------------------------ the owner

    async def read(self) -> None:
        """As `Owner` reads; the disk of the cache takes some of it later."""
        try:
            pull = await self.pull(self.queue, self.shard.read_from, wait=False)
        except ClientError:
            return
        lines = [line_of(message) for message in pull.messages]
        waiting = self.shard.read(lines, pull.next_offset, 0)
        for line, message in zip(lines, pull.messages, strict=True):
            if line.kind in COMMANDS or line.kind in (LineKind.VERDICT, LineKind.ROLL):
                self.clerk.saw(message, line)
        for line in waiting:
            if line.kind is LineKind.ROLL:
                self.shard.commands.gone.append(line.about)
            self.backlog.append(waiting_of(self.log[line.offset], NAME))
        while self.random.random() < 0.2:
            await self.nap()
        self.store.add(self.backlog)
        self.backlog = []

    async def obey(self) -> None:
        """One step of the clerk."""
        self.clerk.saw(self.log[0], Line(0))
        with suppress(ClientError, StoreError):
            await self.clerk.step()

    async def roll(self) -> None:
        """One step of the roller, some time after the last one."""
        for _ in range(20):
            await self.nap(40)
        with suppress(ClientError, StoreError):
            await self.roller.step()

    async def probe(self) -> None:
        """Brokers are asked whether they have worked off what was sent to them."""
        for name in self.calm.probes():
            asked_ms = self._now_ms
            await self.nap(80)
            self.calm.answered(name, asked_ms, self._now_ms)

    async def give(self) -> None:
        """Senders send entries, and commands on entries, rolls and whatever else has an offset."""
        draw = self.random
        for number in range(ENTRIES + COMMANDS_GIVEN):
            if number < ENTRIES:
                self.append(f"TW_TOPIC\x01orders\x02TW_DELIVER_MS\x01{FAR + number}\x02")
                continue
            entries = [at for at, one in enumerate(self.log) if line_of(one).kind in (LineKind.ENTRY, LineKind.ROLL)]
            about = draw.choice(entries[-30:]) if draw.random() < 0.9 else draw.randrange(len(self.log) + 2)
            kind = draw.choice(("cancel", "get", *["move"] * 5))
            times = f"TW_DELIVER_MS\x01{FAR + draw.randrange(10**6)}", f"TW_BY_MS\x01{draw.randrange(1, 99)}"
            self.append(f"TW_KIND\x01{kind}\x02TW_ABOUT\x01{about}\x02{draw.choice(times)}\x02")
            await self.nap(60)

    async def story(self) -> Told:
        """Commands and rolls, until each command has its verdict and everything was read."""
        works: list[Callable[[], Awaitable[None]]] = [self.read, self.obey, self.roll, self.probe]

        async def again(work: Callable[[], Awaitable[None]]) -> None:
            while True:
                await work()
                await asyncio.sleep(0)

        tasks = [asyncio.ensure_future(again(work)) for work in works]
        giving = asyncio.ensure_future(self.give())
        try:
            for _ in range(TURNS_MAX * (5 if self.harsh else 1)):
                await asyncio.sleep(0)
                self._now_ms += 1
                for task in tasks:
                    if task.done():
                        task.result()
                if giving.done() and self.shard.read_to >= len(self.log) and not self._is_busy():
                    break
            tasks[2].cancel()
            while self._sends:
                await asyncio.sleep(0)
        finally:
            for task in (*tasks, giving):
                task.cancel()
            self.clerk.close()
            await asyncio.gather(*tasks, giving, return_exceptions=True)
        return judged(self.log)

    def _is_busy(self) -> bool:
        table = self.shard.commands
        return bool(table.asked or table.changing or self._sends)


@dataclass
class Told:
    """What a queue says: faults, and how much happened in it."""

    faults: list[str] = field(default_factory=list)
    rolls: int = 0
    changes: int = 0


def judged(log: Sequence[StoredMessage]) -> Told:
    """Read a queue of one ownership to its end: every roll and every verdict must be true where it stands.

    What changes nothing (``already``, ``pending``) must have been true at some time since its command. Its verdict may
    overtake one that was decided later.
    """
    told = Told()
    origin: dict[int, int] = {}
    place: dict[int, int] = {}
    dues: dict[int, list[tuple[int, int]]] = {}  # of each entry: when it is due, and from which offset on that is so
    cancelled: dict[int, int] = {}  # entries, and where
    verdicts: dict[int, list[str]] = {}
    for line in map(line_of, log):
        if line.kind is LineKind.ENTRY:
            origin[line.offset] = place[line.offset] = line.offset
            due_ms = int(get_property(log[line.offset].properties, "TW_DELIVER_MS") or 0)
            dues[line.offset] = [(due_ms, line.offset)]
        elif line.kind in COMMANDS:
            verdicts[line.offset] = []
        elif line.kind is LineKind.ROLL:
            entry = origin[line.offset] = line.entry
            told.rolls += 1
            if place[entry] != line.about or entry in cancelled or line.due_ms != dues[entry][-1][0]:
                told.faults.append(f"{line}: cancelled {entry in cancelled}, due {dues[entry]}, at {place[entry]}")
            place[entry] = line.offset
        elif line.kind is LineKind.VERDICT:
            command = line_of(log[line.about])
            entry = origin.get(command.about, -1) if command.about < command.offset else -1
            verdicts[line.about].append(line.verdict)
            waited = entry >= 0 and cancelled.get(entry, line.offset) > command.offset
            later = [due_ms for due_ms, since in dues.get(entry, ()) if since > command.offset]
            since_then = [*[due_ms for due_ms, since in dues.get(entry, ()) if since < command.offset][-1:], *later]
            truth = {
                "done": entry >= 0 and entry not in cancelled and place[entry] == line.entry,
                "already": waited and line.due_ms in since_then,
                "cancelled": entry in cancelled,
                "pending": waited,
                "unknown": entry < 0,
            }
            if line.verdict == "already" and command.kind is LineKind.CANCEL:
                truth["already"] = entry in cancelled
            if not truth.get(line.verdict, False):
                told.faults.append(f"{line} on {command}, whose entry is {entry}")
            elif line.verdict == "done":
                told.changes += 1
                wanted_ms = dues[entry][-1][0] + command.by_ms if command.by_ms else command.due_ms
                if command.kind is LineKind.CANCEL:
                    cancelled[entry] = line.offset
                elif line.due_ms != wanted_ms:
                    told.faults.append(f"{line} on {command}: {wanted_ms} was asked for")
                else:
                    dues[entry].append((line.due_ms, line.offset))
    told.faults += [f"command {at} has the verdicts {found}" for at, found in verdicts.items() if len(found) != 1]
    return told
