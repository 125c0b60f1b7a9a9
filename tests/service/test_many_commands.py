"""Very many commands at once, as of a bulk change: nobody waits for what cannot be decided, nothing piles up."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import pytest

from broker_plugin.rules.properties import DUE_MAX_MS
from remoting.codes import FLAG_RESPONSE
from remoting.command import RemotingCommand
from remoting.messages.message import Message, decode_record, encode_record
from remoting.messages.properties import get_property
from service.core import commands
from service.core.backfill import Backfill
from service.core.calm import Calm
from service.core.commands import CommandTable
from service.core.done_entries import DoneEntries
from service.core.lines import Line, LineKind
from service.core.progress import Picture, ProgressRecord, TargetQueue, read_record
from service.core.shard import Shard
from service.link.cluster import ClusterLink, Pull
from service.running import obeying
from service.running.cache import UNREAD_MS, CachedEntry, LostEntries, ShardCache
from service.running.instance_counts import InstanceCounts
from service.running.obeying import AT_ONCE, Clerk
from service.running.takeover import TakeoverError
from store.disk.errors import StoreError, StoreFullError
from timewheel_client.values.errors import BrokerError

NAME = "broker-e/0"
QUEUE = ("orders", "broker-a", 0)
FAR_MS = 1 << 50
SKEWED_MS = 100_000
"""Later than everything that may be in doubt at time 0."""


def picture(cancelled: Sequence[int], forgot: int = 0, low: int = 0) -> Picture:
    done = DoneEntries(low)
    for offset in cancelled:
        done.add(offset)
    record = ProgressRecord(NAME, 0, 0, low, -1, {}, done=done, cancelled=cancelled, forgot=forgot)
    return Picture.of([read_record(record.encode())])


# ------------------------------------------------------------------------------------------------ what is known


def test_a_progress_that_is_read_again_forgets_nothing_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """A chain may have more than are known: its snapshot has as many, and its changes some more."""
    monkeypatch.setattr(commands, "CANCELLED_MAX", 100)
    chain = list(range(1000, 1150))
    table = CommandTable()
    for _ in range(3):
        table.learn(chain, 5)
        assert (list(table.cancelled), table.forgot) == (chain[-100:], 1050)


def test_both_parts_of_the_list_are_joined_in_the_order_of_the_verdicts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "CANCELLED_MAX", 6)
    table = CommandTable()
    table.learn([7, 3, 9], 0)
    for offset in (4, 1):
        table.cancel(offset)  # their verdicts were read, and the owner's progress does not have them yet
    table.learn([3, 9, 4], 0)
    assert list(table.cancelled) == [7, 3, 9, 4, 1]
    table.learn([4, 1, 8, 2], 0)
    assert (list(table.cancelled), table.forgot) == ([3, 9, 4, 1, 8, 2], 8)
    table.learn([], 0)
    assert list(table.cancelled) == [3, 9, 4, 1, 8, 2]


def test_a_follower_collects_nothing_for_ever() -> None:
    """It reads what others write, for months, and writes no progress."""
    shard = Shard(NAME)
    shard.load(Picture(), 0)
    entries = [Line(at, LineKind.ENTRY, FAR_MS) for at in range(1, 51)]
    shard.read([Line(0, LineKind.TAKEOVER, owner="other"), *entries], 51, 0)
    rolls = [Line(50 + at, LineKind.ROLL, FAR_MS, generation=0, about=at, entry=at) for at in range(1, 51)]
    shard.read(rolls, 101, 0)
    assert shard.is_changed and shard.commands.place_of(7) == 57
    shard.follow(picture([], low=60))
    assert not shard.is_changed and not shard.commands.fresh
    assert shard.commands.place_of(7) == 57, "its roll is done, and half of the rolls are not"
    shard.follow(picture([], low=101))
    assert shard.commands.place_of(7) == 7


@pytest.mark.parametrize("count", [4000])
def test_a_damaged_record_behind_many_commands_is_no_hang(count: int) -> None:
    """Each may be the one whose verdict cannot be read. Every verdict went through all of them before."""

    def seconds(commands_: int) -> float:
        table, done = CommandTable(), DoneEntries()
        for at in range(commands_):
            table.read(Line(commands_ + at, LineKind.CANCEL, about=at), done)
        table.ask_again()
        begin = time.process_time()
        for at in range(commands_):
            assert table.may_change(at)
            table.saw_verdict(
                Line(3 * commands_ + at, LineKind.VERDICT, about=commands_ + at, entry=at, verdict="done"), done
            )
            assert not table.may_change(at)
        assert not table.asked
        return time.process_time() - begin

    small = seconds(count // 8)
    assert seconds(count) < 30 * small + 0.05, "64 times as long, if each looks at all others"


# ------------------------------------------------------------------------------------------------ the clerk


_NOW_MS = [0]


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time is told."""
    monkeypatch.setattr(obeying, "mono_ms", lambda: _NOW_MS[0])


class _Cache:
    """What waits: entry to due time."""

    def __init__(self, due_ms: dict[int, int]) -> None:
        self.due_ms = due_ms
        self.dropped: list[int] = []
        self.full = False
        self.lost: set[int] = set()
        self.moved: dict[int, int] = {}

    def look(self, offsets: Sequence[int]) -> list[CachedEntry | None]:
        if self.lost.intersection(offsets):
            raise StoreError("damaged")
        return [CachedEntry(at, self.due_ms[at]) if at in self.due_ms else None for at in offsets]

    def drop(self, offsets: Sequence[int]) -> None:
        if self.full:
            raise StoreFullError("the disk is full")
        if self.lost.intersection(offsets):
            raise StoreError("damaged")
        self.dropped += offsets

    def move(self, offset: int, due_ms: int) -> None:
        if offset in self.lost:
            raise StoreError("damaged")
        self.moved[offset] = due_ms


class _Office:
    """The owner of a shard, and its cluster: a verdict is stored at once, and read when the test says so."""

    def __init__(self, entries: dict[int, int], doubts: bool) -> None:
        self.name, self.tally, self.calm = NAME, InstanceCounts(), Calm()
        self.queue: TargetQueue = ("TIMEWHEEL", "broker-e", 0)
        self.cluster = cast(ClusterLink, self)
        self.is_filled = True
        self.store = _Cache(entries)
        self.cache = cast(ShardCache, self.store)
        self.verdicts: list[Line] = []
        self.read_to = 0
        shard = self.shard = Shard(NAME)
        shard.take_over("me")
        before = Picture(generation=0, takeovers={0: 0}, tails={QUEUE: 0}) if doubts else Picture()
        shard.load(before, 0)
        lines = [Line(0, LineKind.TAKEOVER, owner="other"), *(Line(at, LineKind.ENTRY) for at in sorted(entries))]
        end = max(entries) + 1
        shard.read([*lines, Line(end, LineKind.TAKEOVER, owner="me")], end + 1, 0)
        shard.settle(before, 0)
        assert shard.record() is not None
        shard.saved()
        self.clerk = Clerk(self)

    def ask(self, *abouts: int) -> list[int]:
        """Cancels are read; their offsets."""
        first = self.shard.read_to
        lines = [Line(first + at, LineKind.CANCEL, about=about) for at, about in enumerate(abouts)]
        self.shard.read(lines, first + len(lines), 0)
        self.clerk.saw(cast(Any, None), lines[-1])
        return [line.offset for line in lines]

    def read_verdicts(self) -> None:
        first = self.shard.read_to
        lines = self.verdicts[self.read_to :]
        self.read_to = len(self.verdicts)
        moved = [
            Line(first + at, LineKind.VERDICT, 0, "", line.generation, line.about, line.entry, line.verdict)
            for at, line in enumerate(lines)
        ]
        self.shard.read(moved, first + len(moved), 0)
        if moved:
            self.clerk.saw(cast(Any, None), moved[-1])

    async def step(self) -> None:
        """One step, a second later: what could not be decided may be looked at again."""
        _NOW_MS[0] += 1000
        self.clerk.saw(cast(Any, None), Line(0))
        await self.clerk.step()

    async def pull(self, _queue: object, offset: int, *, wait: bool) -> Pull:
        assert not wait
        message = Message("TIMEWHEEL", 0, 0, 0, 1, bytes(8), 0, 0, b"body", "TW_TOPIC\x01orders\x02")
        stored = decode_record(encode_record(message, bytes(8), 1))
        stored.queue_offset = offset
        return Pull([stored], offset + 1)

    async def connection(self, topic: str, broker: str) -> None:
        """There is one."""

    def send_now(self, _connection: None, _queue: object, text: str, _body: bytes) -> asyncio.Future[RemotingCommand]:
        number = {name: int(get_property(text, f"TW_{name}") or -1) for name in ("GENERATION", "ABOUT", "ENTRY")}
        verdict = get_property(text, "TW_VERDICT") or ""
        self.verdicts.append(
            Line(-1, LineKind.VERDICT, 0, "", number["GENERATION"], number["ABOUT"], number["ENTRY"], verdict)
        )
        reply: asyncio.Future[RemotingCommand] = asyncio.get_running_loop().create_future()
        reply.set_result(RemotingCommand(0, 1, FLAG_RESPONSE, ext={"queueOffset": "7"}))
        return reply

    def answered(self) -> dict[int, str]:
        """Command to verdict."""
        return {line.about: line.verdict for line in self.verdicts}


def test_commands_that_cannot_be_decided_keep_no_other_waiting() -> None:
    """A bulk cancel begins with what is overdue; whether that was delivered is not known while its broker is away."""

    async def work() -> None:
        overdue = dict.fromkeys(range(1, AT_ONCE + 101), 1)
        last = AT_ONCE + 101
        office = _Office({**overdue, last: SKEWED_MS}, doubts=True)
        office.ask(*overdue)
        (far,) = office.ask(last)
        for _ in range(4):
            await office.step()
        assert office.answered() == {far: "done"}
        office.shard.scanned(QUEUE, [3], [])
        for _ in range(8):
            await office.step()
            office.read_verdicts()
        told = office.answered()
        assert len(told) == AT_ONCE + 101
        assert [verdict for verdict in told.values() if verdict != "done"] == ["too_late"]

    asyncio.run(work())


def test_two_commands_on_one_entry_are_decided_in_their_order() -> None:
    async def work() -> None:
        office = _Office({1: 1, 2: SKEWED_MS}, doubts=True)
        first = office.ask(*[1] * (AT_ONCE + 2))
        later = office.ask(2, 2)
        for _ in range(3):
            await office.step()
            office.read_verdicts()
        assert office.answered() == {later[0]: "done", later[1]: "already"}
        office.shard.scanned(QUEUE, [], [])
        for _ in range(8):
            await office.step()
            office.read_verdicts()
        told = office.answered()
        assert [told[at] for at in first] == ["done", *["already"] * (AT_ONCE + 1)]

    asyncio.run(work())


def test_a_command_is_no_entry_even_while_it_waits_for_its_verdict() -> None:
    """It was answered ``done``, and what was "cancelled" then, a command, got no verdict from the next owner."""

    async def work() -> None:
        office = _Office({1: 1}, doubts=True)
        (first,) = office.ask(1)
        (second,) = office.ask(first)
        await office.step()
        office.read_verdicts()
        assert office.answered() == {second: "unknown"}
        assert first not in office.shard.done and first in office.shard.commands.asked

    asyncio.run(work())


def test_a_command_means_nothing_that_is_stored_after_it() -> None:
    async def work() -> None:
        office = _Office({1: FAR_MS}, doubts=False)
        (command,) = office.ask(office.shard.read_to + 1)
        roll = office.shard.roll(1, FAR_MS)
        assert roll is not None
        office.shard.read([replace(roll, offset=command + 1)], command + 2, 0)
        office.store.due_ms[command + 1] = office.store.due_ms.pop(1)
        await office.step()
        assert office.answered() == {command: "unknown"}

    asyncio.run(work())


def test_what_is_cancelled_leaves_the_list_although_the_disk_is_full_for_a_while() -> None:
    async def work() -> None:
        office = _Office({1: FAR_MS, 2: FAR_MS}, doubts=False)
        office.ask(1, 2)
        await office.step()
        office.read_verdicts()
        office.store.full = True
        with pytest.raises(StoreError):
            await office.step()
        assert not office.store.dropped
        office.store.full = False
        await office.step()
        await office.step()
        assert office.store.dropped == [1, 2]

    asyncio.run(work())


def test_what_is_rolled_while_the_cache_is_asked_is_not_too_late() -> None:
    """The cache answers when a delivery lets go of its lock. A roll that is read meanwhile names the entry anew."""

    async def work() -> None:
        office = _Office({1: FAR_MS, 2: FAR_MS}, doubts=False)
        (command,) = office.ask(1)
        shard, look = office.shard, office.store.look
        roll = shard.roll(1, FAR_MS)
        assert roll is not None

        def slowly(offsets: Sequence[int]) -> list[CachedEntry | None]:
            found = look(offsets)
            if 1 not in shard.done:
                office.store.due_ms[shard.read_to] = office.store.due_ms.pop(1)
                shard.read([replace(roll, offset=shard.read_to)], shard.read_to + 1, 0)
            return found

        office.store.look = slowly  # type: ignore[method-assign]
        await office.step()
        await office.step()
        assert office.answered() == {command: "done"}
        assert [line.entry for line in office.verdicts] == [command + 1], "the roll"

    asyncio.run(work())


def test_a_move_of_what_is_not_in_the_cache_yet_waits() -> None:
    """A roll was read while commands were looked at, and the disk took it only later."""

    async def work() -> None:
        office = _Office({1: DUE_MAX_MS - 1}, doubts=False)
        end = office.shard.read_to
        move = Line(end, LineKind.MOVE, due_ms=DUE_MAX_MS, about=1)
        office.shard.read([move], end + 1, 0)
        due_ms = office.store.due_ms.pop(1)

        def full(offsets: Sequence[int]) -> list[CachedEntry | None]:
            office.is_filled = False
            return [None for _ in offsets]

        look, office.store.look = office.store.look, full  # type: ignore[method-assign]
        await office.step()
        assert not office.verdicts
        office.store.look, office.store.due_ms[1] = look, due_ms  # type: ignore[method-assign]
        office.is_filled = True
        await office.step()
        assert office.answered() == {end: "done"}

    asyncio.run(work())


def test_a_moved_entry_that_is_not_in_the_cache_yet_stays_moved() -> None:
    """Both were read while others were dropped, and the disk was full: it was delivered at its first time."""

    async def work() -> None:
        office = _Office({1: FAR_MS}, doubts=False)
        office.shard.commands.gone.append(9)

        def meanwhile(_: Sequence[int]) -> None:
            office.shard.commands.changing[1] = FAR_MS + 1
            office.is_filled = False

        drop, office.store.drop = office.store.drop, meanwhile  # type: ignore[method-assign]
        await office.step()
        assert office.shard.commands.changing == {1: FAR_MS + 1} and not office.store.moved
        office.is_filled, office.store.drop = True, drop  # type: ignore[method-assign]
        await office.step()
        assert not office.shard.commands.changing and office.store.moved == {1: FAR_MS + 1}

    asyncio.run(work())


def test_a_moved_entry_that_is_not_read_yet_stays_moved() -> None:
    """It is in the part of the queue that is read after the takeover."""

    async def work() -> None:
        office = _Office({1: FAR_MS}, doubts=False)
        office.shard.backfill = Backfill(1, 2)
        office.shard.commands.changing[1] = FAR_MS + 1
        await office.step()
        assert office.shard.commands.changing == {1: FAR_MS + 1} and not office.store.moved
        office.shard.backfilled([Line(1)], 2)
        await office.step()
        assert not office.shard.commands.changing and office.store.moved == {1: FAR_MS + 1}

    asyncio.run(work())


def test_a_move_of_what_comes_into_the_cache_after_its_answer_waits() -> None:
    """The disk took a roll again between the answer and the verdict: ``unknown``, for a message that waited."""

    async def work() -> None:
        office = _Office({1: DUE_MAX_MS - 1}, doubts=False)
        shard, pull, look = office.shard, office.pull, office.store.look
        end = shard.read_to
        about_nothing, move = Line(end, LineKind.CANCEL, about=0), Line(end + 1, LineKind.MOVE, DUE_MAX_MS, about=1)
        shard.read([about_nothing, move], end + 2, 0)
        roll = shard.roll(1, DUE_MAX_MS - 1)
        assert roll is not None

        async def meanwhile(queue: object, offset: int, *, wait: bool) -> Pull:
            if 1 not in shard.done:
                shard.read([replace(roll, offset=end + 2)], end + 3, 0)
                office.is_filled = False
            return await pull(queue, offset, wait=wait)

        def before_it_is_there(offsets: Sequence[int]) -> list[CachedEntry | None]:
            found = look(offsets)
            office.store.due_ms[end + 2] = DUE_MAX_MS - 1
            office.is_filled = True
            return found

        del office.store.due_ms[1]
        office.pull = meanwhile  # type: ignore[method-assign]
        office.store.look = before_it_is_there  # type: ignore[method-assign]
        await office.step()
        await office.step()
        assert office.answered()[move.offset] == "done"

    asyncio.run(work())


def test_a_moved_entry_that_the_cache_has_lost_stops_no_other_command() -> None:
    """Its disk cannot read the record: each step failed there, before anything was decided."""

    async def work() -> None:
        office = _Office(dict.fromkeys((1, 2, 3), FAR_MS), doubts=False)
        office.shard.commands.changing |= {1: FAR_MS + 1, 2: FAR_MS + 1}
        office.store.lost = {1}
        with pytest.raises(StoreError, match="damaged"):
            await office.step()
        assert office.store.moved == {2: FAR_MS + 1} and list(office.shard.commands.changing) == [1]
        (command,) = office.ask(3)
        with pytest.raises(StoreError, match="damaged"):
            await office.step()
        assert office.answered() == {command: "done"}
        _NOW_MS[0] += UNREAD_MS
        with pytest.raises(TakeoverError, match="entry 1 cannot be read back"):
            await office.step()

    asyncio.run(work())


def test_a_move_of_what_the_cache_has_lost_is_not_answered_unknown() -> None:
    """A page of its index had rotted, so that it found nothing there. The message waits, and came at its old time."""

    async def work() -> None:
        office = _Office({1: FAR_MS, 2: FAR_MS, 3: FAR_MS}, doubts=False)
        del office.store.due_ms[1]
        first = office.shard.read_to
        move, cancel, other = (
            Line(first, LineKind.MOVE, DUE_MAX_MS, about=1),
            Line(first + 1, LineKind.CANCEL, about=1),
            Line(first + 2, LineKind.MOVE, DUE_MAX_MS, about=2),
        )
        office.shard.read([move, cancel, other], first + 3, 0)
        with pytest.raises(StoreError, match="not in the cache"):
            await office.step()
        assert office.answered() == {other.offset: "done"}
        assert not office.shard._held.keys() - {2}
        _NOW_MS[0] += UNREAD_MS
        with pytest.raises(TakeoverError, match="entry 1 cannot be read back"):
            await office.step()
        assert office.answered() == {other.offset: "done"}

    asyncio.run(work())


def test_a_move_of_a_record_that_nobody_can_read_is_unknown() -> None:
    async def work() -> None:
        office = _Office({1: FAR_MS, 3: FAR_MS}, doubts=False)  # a broker's answer goes on behind 2
        first = office.shard.read_to
        office.shard.read([Line(first, LineKind.MOVE, DUE_MAX_MS, about=2)], first + 1, 0)
        await office.step()
        assert office.answered() == {first: "unknown"}

    asyncio.run(work())


def test_a_command_whose_entry_the_broker_does_not_find_stops_no_other_command() -> None:
    """Each step began with it, and ended there: an error for one old offset, and no command got a verdict any more."""

    async def work() -> None:
        office = _Office(dict.fromkeys(range(1, 9), FAR_MS), doubts=False)
        for offset in range(1, 6):
            office.shard.acknowledged([offset], QUEUE, offset)
        pull = office.pull

        async def refused(queue: object, offset: int, *, wait: bool) -> Pull:
            if offset < broken:
                raise BrokerError(1, "the file of that offset cannot be read", "host:1")
            return await pull(queue, offset, wait=wait)

        office.pull = refused  # type: ignore[method-assign]
        broken = 3
        asked = office.ask(1, 2, 8)
        with pytest.raises(BrokerError):
            await office.step()
        assert office.answered() == {asked[2]: "done"}
        broken = 9
        many = office.ask(1, 2, 3, 4, 5, 7)
        with pytest.raises(BrokerError):
            await office.step()
        assert office.answered() == {asked[2]: "done"}, "a broker that is away is not asked for each of them"
        broken = 0
        await office.step()
        assert list(office.answered()) == [asked[2], *asked[:2], *many]

    asyncio.run(work())


def test_commands_on_what_was_delivered_let_the_loop_go_on() -> None:
    """Each goes through all rolls of the shard. Together they kept all shards of an instance from renewing leases."""

    async def work() -> None:
        count = AT_ONCE
        office = _Office(dict.fromkeys(range(1, count + 1), FAR_MS), doubts=False)
        for offset in range(1, count + 1):
            office.shard.acknowledged([offset], QUEUE, offset)
        office.ask(*range(1, count + 1))
        turns = [0]

        async def others() -> None:
            while True:
                turns[0] += 1
                await asyncio.sleep(0)

        other = asyncio.ensure_future(others())
        await office.step()
        other.cancel()
        assert list(office.answered().values()) == ["too_late"] * count
        assert turns[0] >= 2 * count

    asyncio.run(work())


def test_an_entry_that_the_cache_cannot_look_up_stops_no_other_command() -> None:
    """Its disk cannot read a page of the index: all commands were looked at again and again, and none was decided."""

    async def work() -> None:
        office = _Office(dict.fromkeys((1, 2, 3), FAR_MS), doubts=False)
        bad, good = office.ask(1, 2)
        office.store.lost = {1}
        with pytest.raises(StoreError, match="damaged"):
            await office.step()
        assert office.answered() == {good: "done"} and bad in office.shard.commands.asked
        office.store.lost = set()
        await office.step()
        assert office.answered() == {good: "done", bad: "done"}
        (third,) = office.ask(3)
        office.store.lost = {3}
        with pytest.raises(StoreError, match="damaged"):
            await office.step()
        _NOW_MS[0] += UNREAD_MS
        with pytest.raises(TakeoverError, match="entry 3 cannot be read back"):
            await office.step()
        assert third in office.shard.commands.asked

    asyncio.run(work())


def test_an_entry_that_the_cache_cannot_drop_stops_no_command() -> None:
    """It was cancelled or rolled, and has to be found before it can be dropped."""

    async def work() -> None:
        office = _Office(dict.fromkeys((1, 2, 3), FAR_MS), doubts=False)
        office.shard.commands.gone += [1, 2]
        office.store.lost = {1}
        (command,) = office.ask(3)
        with pytest.raises(StoreError, match="damaged"):
            await office.step()
        assert office.store.dropped == [2] and office.shard.commands.gone == [1]
        assert office.answered() == {command: "done"}
        _NOW_MS[0] += UNREAD_MS
        with pytest.raises(TakeoverError, match="entry 1 cannot be read back"):
            await office.step()

    asyncio.run(work())


def test_a_full_disk_stops_no_command_and_ends_no_ownership() -> None:
    async def work() -> None:
        office = _Office(dict.fromkeys((1, 2), FAR_MS), doubts=False)
        office.shard.commands.gone.append(1)
        office.store.full = True
        for _ in range(2):
            with pytest.raises(StoreFullError):
                await office.step()
            _NOW_MS[0] += 2 * UNREAD_MS
        (command,) = office.ask(2)
        with pytest.raises(StoreFullError):
            await office.step()
        assert office.answered() == {command: "done"}

    asyncio.run(work())


def test_a_full_disk_ends_no_ownership() -> None:
    lost = LostEntries()
    for now_ms in (0, 10 * UNREAD_MS):
        lost.failed(1, StoreFullError("full"), now_ms)
    lost.failed(1, StoreError("damaged"), 0)
    lost.was_read(1)
    lost.failed(1, StoreError("damaged"), UNREAD_MS)
    with pytest.raises(TakeoverError):
        lost.failed(1, StoreError("damaged"), 2 * UNREAD_MS)
