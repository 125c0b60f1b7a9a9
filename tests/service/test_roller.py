"""Which entries are rolled, and that those that wait for something do not keep others from it."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from broker_plugin.failures import ANY_TOPIC, UNREADABLE
from remoting.codes import ResponseCode
from remoting.command import RemotingCommand
from remoting.messages.message import Message, decode_record, encode_record
from remoting.messages.properties import get_property
from service.core.calm import Calm
from service.core.lines import Line, LineKind
from service.core.progress import TargetQueue
from service.link.cluster import ClusterLink
from service.link.log import Teller
from service.running import cache as caching
from service.running import roller
from service.running.cache import UNREAD_MS, CachedEntry, ShardCache
from service.running.entries import REJECTED_TOPIC, Waiting, due_of, moved_record, waiting_of
from service.running.instance_counts import InstanceCounts
from service.running.roller import Roller
from service.running.takeover import TakeoverError
from store.disk.errors import StoreError
from store.put.plugin_api import DeliveryTarget
from tests.service.target_world import owned_shard

NAME = "broker-e/0"
HOST = bytes(8)
NOW = 1_700_000_000_000
HOUR = 3_600_000
FAR = NOW + 1_000 * HOUR


def waiting(offset: int, topic: str, due_ms: int) -> Waiting:
    """An entry as the cache gets it."""
    text = f"TW_TOPIC\x01{topic}\x02TW_DELIVER_MS\x01{due_ms}\x02"
    stored = decode_record(encode_record(Message("TIMEWHEEL", 0, 0, 0, 1, HOST, 0, 0, b"x", text), HOST, 1))
    stored.queue_offset = offset
    return waiting_of(stored, NAME)


class RollWorld:
    """Owner, cluster and cache in one; all entries were stored long ago."""

    def __init__(self, *dues: int, topic: str = "orders") -> None:
        self.queue: TargetQueue = ("TIMEWHEEL", "broker-e", 0)
        self.cluster = cast(ClusterLink, self)
        self.cache: ShardCache | None = cast(ShardCache, self)
        self.calm, self.tally = Calm(), InstanceCounts()
        self.tell = Teller(logging.getLogger(__name__), NAME)
        self.refuses = False
        self.records = {at: waiting(at, topic, due_ms).record for at, due_ms in enumerate(dues, 1)}
        self.rolled: list[int] = []
        self.dues: dict[int, int] = {}
        self.unreadable: set[int] = set()
        self.end = len(dues) + 1
        self.shard = owned_shard(NAME)
        self.shard.read([Line(at) for at in self.records], self.end, 0)
        self.roller = Roller(self, 24 * HOUR, HOUR // 6)

    async def end_before(self, queue: TargetQueue, store_ms: int) -> int:
        assert queue == self.queue and store_ms == roller.wall_ms() - 24 * HOUR
        return len(self.records) + 1  # the rolls are new

    async def connection(self, *_: str) -> RollWorld:
        return self

    def take(self, offsets: list[int]) -> list[bytes | None]:
        if self.unreadable.intersection(offsets):
            raise StoreError("damaged")
        return [self.records[offset] for offset in offsets]

    def look(self, offsets: list[int]) -> list[CachedEntry | None]:
        return [CachedEntry(at, due_of(decode_record(self.records[at]).properties)) for at in offsets]

    def send_now(self, _connection: object, _queue: TargetQueue, text: str, _body: bytes, **_: Any) -> Any:
        about = int(get_property(text, "TW_ABOUT") or "")
        if self.refuses:
            refused: asyncio.Future[RemotingCommand] = asyncio.get_running_loop().create_future()
            refused.set_result(RemotingCommand(ResponseCode.MESSAGE_ILLEGAL, 0, remark="the message is too large"))
            return refused
        self.rolled.append(about)
        self.dues[about] = int(get_property(text, "TW_DELIVER_MS") or "")
        roll = Line(self.end, LineKind.ROLL, generation=self.shard.generation, about=about, entry=about)
        self.end += 1
        assert [line.offset for line in self.shard.read([roll], self.end, 0)] == [roll.offset]
        reply: asyncio.Future[RemotingCommand] = asyncio.get_running_loop().create_future()
        reply.set_result(RemotingCommand(0, 0, ext={"queueOffset": str(roll.offset)}))
        return reply


@pytest.fixture(autouse=True)
def _clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roller, "wall_ms", lambda: NOW)


def test_what_is_long_overdue_is_rolled_too() -> None:
    """It waits for its topic, or for the right to write it. The cluster deletes it after three days like any other."""
    dues = (FAR, NOW + HOUR, NOW + HOUR // 7, NOW, NOW - HOUR // 7, NOW - HOUR // 2, NOW - 50 * HOUR)

    async def story() -> None:
        world = RollWorld(*dues)
        assert await world.roller.step() == 2
        assert world.rolled == [1, 2], "an owner that has just begun delivers what is overdue"
        world = RollWorld(*dues)
        world.roller._since_ms = NOW - HOUR
        assert await world.roller.step() == 4
        assert world.rolled == [1, 2, 6, 7]
        assert await world.roller.step() == 0, "each of them is new now"

    asyncio.run(story())


@pytest.mark.parametrize("due_ms", [NOW, NOW - HOUR])
def test_what_waits_does_not_keep_later_entries_from_being_rolled(monkeypatch: pytest.MonkeyPatch, due_ms: int) -> None:
    """A step looks at some thousand entries, always the oldest ones: those behind them were never rolled."""
    monkeypatch.setattr(roller, "AT_ONCE", 2)
    monkeypatch.setattr(roller, "CHUNKS_MAX", 3)

    async def story() -> None:
        world = RollWorld(*[due_ms] * 15, *[FAR] * 5)
        world.roller._since_ms = NOW - 2 * HOUR
        for _ in range(5):
            await world.roller.step()
        assert sorted(world.rolled)[-5:] == [*range(16, 21)]

    asyncio.run(story())


def test_an_entry_that_cannot_be_read_back_keeps_no_other_from_being_rolled(monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk of the cache has lost a record. What stood behind it was not rolled, and the cluster deleted it."""

    async def story() -> None:
        world = RollWorld(*[FAR] * 200)
        world.unreadable = {3}
        await world.roller.step()
        assert sorted(world.rolled) == [1, 2, *range(4, 201)]
        world.unreadable.clear()
        await world.roller.step()
        assert world.rolled[-1] == 3
        world = RollWorld(*[FAR] * 200)
        world.unreadable = {3}
        await world.roller.step()
        assert await world.roller.step() == 0
        monkeypatch.setattr(roller, "mono_ms", lambda: 1 << 60)
        with pytest.raises(TakeoverError, match="entry 3 cannot be read back"):
            await world.roller.step()  # ends the ownership: the queue has it

    asyncio.run(story())


def test_a_roll_that_is_refused_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """Brokers of 4.9 count properties as part of the largest message, so the roll of such an entry is too large."""

    async def story() -> None:
        world = RollWorld(FAR)
        world.refuses = True
        assert await world.roller.step() == 0
        assert "delete them: refused (MESSAGE_ILLEGAL: the message is too large)" in caplog.text
        assert world.shard.roll(1, FAR) is not None, "it is held no longer"

    asyncio.run(story())


def test_why_an_entry_was_rejected_is_not_lost_by_a_roll() -> None:
    async def story() -> None:
        world = RollWorld(NOW - HOUR, topic="no topic")
        assert decode_record(world.records[1]).topic == REJECTED_TOPIC
        world.roller._since_ms = NOW - 2 * HOUR
        assert await world.roller.step() == 0
        world = RollWorld(FAR, topic=REJECTED_TOPIC)
        assert await world.roller.step() == 1, "its sender wants it there"

    asyncio.run(story())


class MovedMeanwhile(RollWorld):
    """While the roller reads its entries, which waits for the delivery lock, entry 1 is moved to a later time."""

    def take(self, offsets: list[int]) -> list[bytes | None]:
        taken = super().take(offsets)
        table, end = self.shard.commands, self.end
        command = Line(end, LineKind.MOVE, due_ms=FAR + HOUR, about=1)
        self.shard.read([command], end + 1, 0)
        assert self.shard.decide(end, 1, FAR) is not None
        verdict = Line(
            end + 1,
            LineKind.VERDICT,
            generation=self.shard.generation,
            about=end,
            entry=1,
            due_ms=FAR + HOUR,
            verdict="done",
        )
        self.end = end + 2
        self.shard.read([verdict], self.end, 0)
        self.records[1] = moved_record(self.records[1], table.changing.pop(1))
        return taken


def test_what_is_moved_while_it_is_read_is_not_rolled_with_its_old_time() -> None:
    """The roll stands behind the verdict in the queue: whoever read both delivered the message at the old time."""

    async def story() -> None:
        world = MovedMeanwhile(FAR, FAR)
        await world.roller.step()
        assert world.rolled == [2]
        assert world.shard.roll(1, FAR + HOUR) is not None, "it is held no longer"
        world.shard.roll_failed(1)
        world.take = RollWorld.take.__get__(world)  # type: ignore[method-assign]
        await world.roller.step()
        assert world.rolled == [2, 1] and world.dues[1] == FAR + HOUR

    asyncio.run(story())


def test_what_is_changed_or_rolled_no_longer_counts_as_refused(tmp_path: Path) -> None:
    nobody = SimpleNamespace(scan=lambda _: ())
    cache = ShardCache(tmp_path / "c", cast(DeliveryTarget, nobody), lambda: NOW, print)
    try:
        cache.add([waiting(at, "closed", NOW - at) for at in range(1, 6)])
        for at in range(1, 6):
            cache.plugin.failures.add("NO_PERMISSION", "closed", NOW - at, 0)
        cache.drop([1, 2])
        assert cache.refused_count == 3
        cache.drop([1, 2, 9])
        assert cache.refused_count == 3
        cache.move(3, FAR)
        assert (cache.refused_count, cache.pending_count) == (2, 3)
    finally:
        cache.close()


def test_a_cache_that_cannot_read_what_is_due_is_given_up(tmp_path: Path) -> None:
    """Retries find the same bad sector. The message waited until another instance took over."""
    cache = ShardCache(tmp_path / "c", cast(DeliveryTarget, SimpleNamespace(scan=lambda _: ())), lambda: NOW, print)
    try:
        cache.add([waiting(1, "orders", NOW)])
        for now_ms in (0, UNREAD_MS):
            cache.need_whole(now_ms)
        cache.plugin.failures.add(UNREADABLE, ANY_TOPIC, NOW, 0)
        cache.need_whole(UNREAD_MS)
        cache.plugin.failures.take_due(1 << 60)  # the retry succeeds
        cache.need_whole(2 * UNREAD_MS)
        cache.plugin.failures.add(UNREADABLE, ANY_TOPIC, NOW, 0)
        for now_ms in (3 * UNREAD_MS, 4 * UNREAD_MS - 1):
            cache.need_whole(now_ms)
        with pytest.raises(StoreError, match="a new one"):
            cache.need_whole(4 * UNREAD_MS)
    finally:
        cache.close()


def test_large_entries_are_rolled_a_few_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 4 MiB each, a shard that began to roll needed half a gigabyte at once, and all shards begin together."""
    monkeypatch.setattr(caching, "TAKEN_BYTES", 1000)

    async def story() -> None:
        world = RollWorld(*[FAR] * 20)
        target = SimpleNamespace(scan=lambda _: (), put_batch=lambda _: [])
        cache = ShardCache(tmp_path / "c", cast(DeliveryTarget, target), lambda: NOW, lambda _: None)
        try:
            cache.add([waiting(at, "orders", FAR) for at in world.records])
            size = len(world.records[1])
            assert [len(cache.take([*range(1, 21)])), len(cache.take([1, 99])), cache.take([99])] == [
                -(-1000 // size),
                2,
                [None],
            ]
            monkeypatch.setattr(caching, "TAKEN_BYTES", 1)
            assert len(cache.take([1, 2])) == 1
            monkeypatch.setattr(caching, "TAKEN_BYTES", 1000)
            world.cache = cache
            assert await world.roller.step() == 20 and world.rolled == [*range(1, 21)]
        finally:
            world.cache = None
            await asyncio.to_thread(cache.close)

    asyncio.run(story())
