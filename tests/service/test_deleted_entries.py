"""The cluster deletes entries that wait (a full disk, or nobody rolled them): who has read them can deliver them."""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from remoting.messages.message import Message, StoredMessage, decode_record, encode_record
from service.core.done_entries import DoneEntries
from service.core.lines import LineKind
from service.core.progress import Picture, ProgressRecord, TargetQueue
from service.core.states import OwnerState
from service.link.cluster import ClusterLink, Fate, Pull, Sent
from service.running import owner as running
from service.running.entries import own_record
from service.running.instance_counts import InstanceCounts
from service.running.owner import Owner
from service.running.takeover import TakeoverError
from store.disk.errors import StoreFullError
from tests.support.wait import until

QUEUE = ("TIMEWHEEL", "broker-e", 0)
PROGRESS = ("TIMEWHEEL_PROGRESS", "broker-e", 0)
FAR_MS = 1 << 42
COUNT = 5


class Queues:
    """A cluster of queues in memory, which lose what is below their begin."""

    topic = "TIMEWHEEL"

    def __init__(self) -> None:
        self.logs: dict[TargetQueue, list[StoredMessage]] = defaultdict(list)
        self.begins: dict[TargetQueue, int] = defaultdict(int)
        self.news = asyncio.Event()
        self.targets = SimpleNamespace(watch=lambda _: lambda: None, learn=lambda _: None)
        self.core = SimpleNamespace(refresh_soon=lambda _: None, client_id="me")

    async def begin(self, queue: TargetQueue) -> int:
        return self.begins[queue]

    async def end(self, queue: TargetQueue) -> int:
        return len(self.logs[queue])

    async def pull(self, queue: TargetQueue, offset: int, *, wait: bool) -> Pull:
        if wait and offset >= len(self.logs[queue]):
            self.news.clear()
            await self.news.wait()
        begin = max(offset, self.begins[queue])
        found = self.logs[queue][begin : begin + 32]
        return Pull(found, begin + len(found))

    async def send(self, queue: TargetQueue, properties: str, body: bytes) -> Sent:
        log = self.logs[queue]
        made = Message(queue[0], queue[2], 0, 0, 1, bytes(8), 0, 0, body, properties)
        log.append(decode_record(encode_record(made, bytes(8), 1)))
        log[-1].queue_offset = len(log) - 1
        self.news.set()
        return Sent(Fate.STORED, at=len(log) - 1)


async def served() -> Queues:
    """An owner has taken over, there are entries, none is done, and it has released the shard."""
    queues = Queues()
    await queues.send(QUEUE, *own_record(LineKind.TAKEOVER, TW_OWNER="other#1"))
    for _ in range(COUNT):
        await queues.send(QUEUE, f"TW_TOPIC\x01orders\x02TW_DELIVER_MS\x01{FAR_MS}\x02", b"body")
    await queues.send(QUEUE, *own_record(LineKind.RELEASE, TW_GENERATION=0))
    progress = ProgressRecord("broker-e/0", 0, 0, 1, -1, {}, done=DoneEntries(1), takeovers={0: 0})
    await queues.send(PROGRESS, "", progress.encode())
    return queues


def owner_of(queues: Queues, folder: Path) -> Owner:
    return Owner(cast(ClusterLink, queues), QUEUE, "me#1", folder / "cache", 1 << 40, InstanceCounts())


async def followed(owner: Owner, end: int) -> asyncio.Task[None]:
    task = asyncio.ensure_future(owner.run())
    await until(lambda: task.done() or (owner.shard.read_from == end and owner.is_filled))
    return task


async def owned(owner: Owner, task: asyncio.Task[None]) -> tuple[int, int]:
    """How many wait once it owns the shard, and how many are lost."""
    owner.promote(lambda _: False)
    await until(lambda: task.done() or owner.shard.state is OwnerState.OWNING)
    if task.done():
        task.result()
    assert owner.cache is not None
    found = owner.cache.pending_count, owner.tally.expired
    owner.leave()
    await task
    return found


def test_a_standby_keeps_what_it_has_read(tmp_path: Path) -> None:
    """It read the queue anew instead, also when the owner left regularly: all of this was lost."""

    async def story() -> None:
        queues = await served()
        owner = owner_of(queues, tmp_path)
        task = await followed(owner, COUNT + 2)
        queues.begins[QUEUE] = COUNT + 2
        assert await owned(owner, task) == (COUNT, 0)

    asyncio.run(story())


def test_what_was_deleted_before_it_was_read_is_counted_at_the_takeover(tmp_path: Path) -> None:
    """A follower counts nothing: the owner may have it."""

    async def story() -> None:
        queues = await served()
        queues.begins[QUEUE] = 3
        owner = owner_of(queues, tmp_path)
        task = await followed(owner, COUNT + 2)
        assert owner.tally.expired == 0
        assert await owned(owner, task) == (COUNT - 2, 2)

    asyncio.run(story())


def test_a_standby_that_has_missed_something_begins_anew(tmp_path: Path) -> None:
    async def story() -> None:
        queues = await served()
        owner = owner_of(queues, tmp_path)
        task = await followed(owner, COUNT + 2)
        queues.logs[QUEUE] += queues.logs[QUEUE][:3]  # deleted before a pull came to it
        queues.begins[QUEUE] = COUNT + 5
        queues.news.set()
        await until(lambda: owner.shard.read_from == COUNT + 5)
        with pytest.raises(TakeoverError, match="not followed"):
            await owned(owner, task)

    asyncio.run(story())


def test_what_a_standby_cannot_drop_at_once_it_drops_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its disk was full when it read that these are done: it listed and counted them as long as it followed."""
    monkeypatch.setattr(running, "FOLLOW_EVERY_MS", 10)

    async def story() -> None:
        queues = await served()
        owner = owner_of(queues, tmp_path)
        task = await followed(owner, COUNT + 2)
        cache = owner.cache
        assert cache is not None
        drop, tries = cache.drop, [0]

        def full_at_first(offsets: Sequence[int]) -> None:
            tries[0] += 1
            if tries[0] == 1:
                raise StoreFullError("no room")
            drop(offsets)

        monkeypatch.setattr(cache, "drop", full_at_first)
        news = ProgressRecord("broker-e/0", 0, 1, 1, -1, {}, added=(1, 2))
        await queues.send(PROGRESS, "", news.encode())
        await until(lambda: tries[0] > 0)
        await until(lambda: cache.pending_count == COUNT - 2, 5)
        owner.leave()
        await task

    asyncio.run(story())


def test_a_standby_that_has_missed_a_verdict_begins_anew(tmp_path: Path) -> None:
    """Nothing waits that it has not read. But it gave the command a second verdict: ``unknown``, or moved once more."""

    async def story() -> None:
        queues = await served()
        await queues.send(QUEUE, "TW_KIND\x01move\x02TW_ABOUT\x013\x02TW_BY_MS\x0160000\x02", b"-")
        owner = owner_of(queues, tmp_path)
        task = await followed(owner, COUNT + 3)
        assert list(owner.shard.commands.asked) == [COUNT + 2]
        log = queues.logs[QUEUE]
        log.append(log[0])  # the verdict: deleted before a pull came to it
        await queues.send(QUEUE, *own_record(LineKind.RELEASE, TW_GENERATION=0))
        done = DoneEntries(COUNT + 4)
        snapshot = ProgressRecord("broker-e/0", 0, 1, COUNT + 4, -1, {}, done=done, takeovers={0: 0})
        await queues.send(PROGRESS, "", snapshot.encode())
        owner.shard.follow(Picture.of([snapshot]))
        queues.begins[QUEUE] = COUNT + 4
        queues.news.set()
        await until(lambda: owner.shard.read_from == COUNT + 5)
        with pytest.raises(TakeoverError, match="not followed"):
            await owned(owner, task)

    asyncio.run(story())


def test_a_cache_that_cannot_start_ends_the_ownership(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No more threads: the shard was owned, renewed its lease, and delivered nothing; nobody was told."""
    start = threading.Thread.start
    refused: list[str] = []

    def no_more(thread: threading.Thread) -> None:
        if thread.name == "delay-recovery":
            refused.append(thread.name)
            raise RuntimeError("can't start new thread")
        start(thread)

    async def story() -> None:
        queues = await served()
        owner = owner_of(queues, tmp_path)
        task = await followed(owner, COUNT + 2)
        monkeypatch.setattr(threading.Thread, "start", no_more)
        owner.promote(lambda _: False)
        await until(lambda: bool(refused), 5)
        await until(task.done, 5)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            task.result()
        assert not (tmp_path / "cache").exists()
        alive = [thread.name for thread in threading.enumerate()]
        assert not [name for name in alive if name == "flusher" or name.startswith("delay-")], alive

    asyncio.run(story())
