"""A search for deliveries in doubt: what it says of those that were lost meanwhile, and leaves to the next owner."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from remoting.messages.message import Message, StoredMessage, decode_record, encode_record
from service.core.calm import Calm
from service.core.lines import Line
from service.core.progress import Doubt, TargetQueue, read_record
from service.link.cluster import Pull
from service.running import searching
from service.running.searching import Searcher, Searching
from tests.service.target_world import owned_shard
from timewheel_client.values.errors import ClientError

TARGET: TargetQueue = ("orders", "broker-a", 0)


class Owner:
    """Owner and cluster in one. The target queue stays empty, as the broker may still store what was lost."""

    def __init__(self) -> None:
        self.name, self.calm, self.queue = "broker-e/0", Calm(0), ("TIMEWHEEL", "broker-e", 0)
        self.cluster = self
        shard = self.shard = owned_shard(self.name)
        shard.read([Line(at) for at in (1, 2)], 3, 0)
        shard.aim(TARGET, 0)
        assert shard.record() is not None
        shard.saved()
        for offset in (1, 2):
            shard.sending([offset], TARGET)

    async def end(self, _: TargetQueue) -> int:
        return 0

    async def begin(self, _: TargetQueue) -> int:
        return 0

    async def pull(self, *_: Any, **__: Any) -> Pull:
        found: list[StoredMessage] = []
        return Pull(found, 0)

    def try_again(self) -> None:
        """Failed deliveries may work now."""


def test_a_delivery_that_is_lost_after_the_look_at_the_broker_stays_in_doubt() -> None:
    """Its broker is not calm with regard to it: the message may be stored after the search, and would come twice."""

    async def work() -> None:
        owner = Owner()
        owner.shard.lose(1)
        searcher = Searcher(cast(Searching, owner))
        await searcher.step()
        owner.shard.lose(2)  # in the same turn of the loop, before the search has begun
        owner.calm.disturbed(TARGET[1], 1 << 60)
        await asyncio.gather(*searcher.tasks())
        assert list(owner.shard.lost) == [2]

    asyncio.run(work())


def delivered(entry: int) -> StoredMessage:
    text = f"TW_DELAY_ID\x01broker-e/0/{entry}\x02"
    return decode_record(encode_record(Message("orders", 0, 0, 0, 1, bytes(8), 0, 0, b"x", text), bytes(8), 1))


class Long(Owner):
    """A target queue of ten deliveries, of the entries 10 to 19. The pull of the seventh fails once."""

    def __init__(self) -> None:
        super().__init__()
        self.pulled: list[int] = []
        self.log = [delivered(entry) for entry in range(10, 20)]
        self.shard.read([Line(at) for at in range(3, 20)], 20, 0)
        self.shard.doubts = [Doubt(20, 1 << 60, {TARGET: 2}), Doubt(20, 1 << 60, {TARGET: 5})]
        self.tell = self
        self.warnings: list[str] = []

    def warning(self, text: str, **_: Any) -> None:
        self.warnings.append(text)

    async def end(self, _: TargetQueue) -> int:
        return len(self.log)

    async def pull(self, _: TargetQueue, offset: int, **__: Any) -> Pull:
        self.pulled.append(offset)
        if offset == 6 and not self.warnings:
            raise ClientError("away")
        return Pull(self.log[offset : offset + 1], offset + 1)


def test_a_search_that_is_interrupted_is_continued_by_the_next_owner(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under steady kills no owner lived long enough for the whole search: what was overdue waited for half an hour."""
    monkeypatch.setattr(searching, "SAVED_EVERY", 2)
    monkeypatch.setattr(searching, "PAUSE_MS", 0)

    async def work() -> None:
        owner = Long()
        assert not owner.shard.is_changed
        searcher = Searcher(cast(Searching, owner))
        await searcher._scan(TARGET, owner.shard.scans()[TARGET], [])
        assert owner.pulled[0] == 2 and owner.warnings and owner.shard.is_changed
        assert {at for at in range(10, 20) if at in owner.shard.done} == {12, 13, 14, 15}, "what was found is done"
        record = owner.shard.record()
        assert record is not None and not owner.shard.is_changed
        owner.shard.saved()
        told = read_record(record.encode())
        assert [doubt.tails for doubt in told.doubts] == [{TARGET: 6}] * 2 and set(told.added) == {12, 13, 14, 15}
        owner.pulled.clear()
        await searcher._scan(TARGET, owner.shard.scans()[TARGET], [])
        assert owner.pulled[0] == 6 and not owner.shard.doubts
        assert {at for at in range(10, 20) if at in owner.shard.done} == set(range(12, 20))

    asyncio.run(work())


@pytest.mark.parametrize("strange", [20, 1 << 40])
def test_what_names_an_entry_that_was_not_read_is_no_delivery_of_it(strange: int) -> None:
    """It has come from another cluster. It ended the search, or an entry that was sent later."""

    async def work() -> None:
        owner = Long()
        owner.warnings.append("no pull fails")
        owner.log[4] = delivered(strange)
        await Searcher(cast(Searching, owner))._scan(TARGET, 0, [])
        assert {at for at in range(3, 20) if at in owner.shard.done} == set(range(10, 20)) - {14}
        assert strange not in owner.shard.done and not owner.shard.doubts and owner.shard.is_changed

    asyncio.run(work())


def test_the_end_of_a_search_that_found_nothing_is_saved() -> None:
    """The next owner would search that queue again."""
    shard = Owner().shard
    shard.doubts = [Doubt(3, 1 << 60, {TARGET: 4})]
    assert not shard.is_changed
    shard.scanned(TARGET, [], [])
    assert shard.is_changed and not shard.scans()


def test_what_was_lost_is_looked_for_from_the_begin_although_a_part_was_searched() -> None:
    shard = Owner().shard
    shard.doubts = [Doubt(3, 1 << 60, {TARGET: 4})]
    shard.lose(1)
    assert shard.scans() == {TARGET: 0}
    shard.searched(TARGET, [2], 7)
    assert shard.doubts[0].tails == {TARGET: 7} and shard.scans() == {TARGET: 0} and 2 in shard.done
    shard.searched(TARGET, [], 5)
    assert shard.doubts[0].tails == {TARGET: 7}, "a tail never falls"
    shard.scanned(TARGET, [], [1])
    assert not shard.scans() and 1 not in shard.done
