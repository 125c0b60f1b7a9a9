"""A record that cannot be read, in each state of an owner; and what its instance does then."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from service.core.lease import Timing
from service.core.lines import Line, LineKind
from service.core.progress import Picture, TargetQueue
from service.core.shard import Shard
from service.core.states import OwnerState
from service.link.clock import mono_ms
from service.link.cluster import Sent
from service.running.service import RETRY_MS, DelayService
from tests.service.test_backfilling import QUEUE, READ, Slow, ended, served, service_of
from tests.service.test_bounded_takeover import owner_that_read, successor
from tests.support.wait import until
from timewheel_client.values.errors import ClientError


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new owner waits less for the last one."""
    monkeypatch.setattr("service.core.shard.Timing", lambda: Timing(1000, 50, 50))


def in_state(state: OwnerState) -> tuple[Shard, int]:
    """A shard that has not read everything, in this state, and the next offset of its queue."""
    _, record = owner_that_read([])
    picture = Picture.of([record])
    if state in (OwnerState.FOLLOWER, OwnerState.TAKING_OVER):
        shard = Shard("broker-a/3")
        shard.load(picture, 0)
        if state is OwnerState.TAKING_OVER:
            shard.take_over("me")
        return shard, 2
    shard = successor(picture, [])
    if state is not OwnerState.READING_BACK:
        shard.settle(picture, 0)
        assert shard.record() is not None
        shard.saved()
    if state is OwnerState.RELEASING:
        shard.release()
    assert shard.state is state
    return shard, 3


BEFORE = [OwnerState.FOLLOWER, OwnerState.TAKING_OVER]


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("fate", ["damaged", "missing"])
@pytest.mark.parametrize("state", [*BEFORE, OwnerState.READING_BACK, OwnerState.OWNING, OwnerState.RELEASING])
def test_in_each_state_what_cannot_be_read_has_everything_read(state: OwnerState, fate: str, whole: bool) -> None:
    shard, at = in_state(state)
    if whole:
        shard.backfilled([Line(0, due_ms=5), Line(1, LineKind.TAKEOVER, owner="before")], 2)
        assert shard.backfill.is_whole
    shard.read([Line(at, damaged=True)] * (fate == "damaged"), at + 1, 0)
    assert shard.needs_all and shard.state is (state if state in BEFORE else OwnerState.FENCED)
    assert shard.record() is None, "its progress would say that this was read"
    if state is OwnerState.TAKING_OVER:
        shard.read([Line(at + 1, LineKind.TAKEOVER, owner="me")], at + 2, 0)
        assert shard.needs_all and not shard.fence_is_over(10**6)


def test_who_is_not_sure_of_a_move_says_so_also_if_what_cannot_be_read_is_done() -> None:
    """It was rejected. The move is still to be decided again, and the progress does not name it."""
    lines = [Line(0, due_ms=5), Line(1, LineKind.TAKEOVER, owner="before"), Line(2, LineKind.MOVE, 7000, about=0)]
    shard = successor(Picture(), [*lines, Line(3, damaged=True)])
    shard.acknowledged([3], ("R", "broker-a", 0), 0)
    shard.settle(Picture(), 0)
    record = shard.record()
    assert 3 in shard.done and not shard.commands.is_sure and record is not None and record.read == -1


def test_a_later_command_is_not_settled_with_an_earlier_one() -> None:
    """Commands on one entry are decided in their order: the later one has no verdict yet."""
    lines = [Line(0, due_ms=5), Line(1, LineKind.TAKEOVER, owner="before")]
    lines += [Line(at, LineKind.MOVE, due_ms, about=0) for at, due_ms in ((2, 7000), (3, 9000))]
    verdict = Line(5, LineKind.VERDICT, 7000, generation=1, about=2, entry=0, verdict="done")
    shard = successor(Picture(), [*lines, Line(4, damaged=True), verdict])
    assert list(shard.commands.asked) == [3] and shard.commands.may_change(0)


def test_a_command_that_has_its_verdict_is_not_handed_over_by_the_backfill() -> None:
    """The verdict stands behind what the last owner had read, and is read first."""
    lines = [Line(0, due_ms=5), Line(1, LineKind.TAKEOVER, owner="before"), Line(2, LineKind.MOVE, 7000, about=0)]
    _, record = owner_that_read(lines[2:])
    verdict = Line(3, LineKind.VERDICT, 7000, generation=1, about=2, entry=0, verdict="done")
    shard = successor(Picture.of([record]), [verdict])
    shard.backfilled(lines, 3)
    assert shard.backfill.is_whole and not shard.commands.asked and shard.commands.changing == {0: 7000}


class Hurt(Slow):
    """Beside an owner's takeover record another one is stored, which cannot be read."""

    where = ""

    async def send(self, queue: TargetQueue, properties: str, body: bytes) -> Sent:
        is_takeover = queue == QUEUE and "takeover" in properties and "me#" in properties
        if is_takeover and self.where == "before":
            self.where, self.rotten = "", {(await super().send(queue, "", b"x")).at}
        sent = await super().send(queue, properties, body)
        if is_takeover and self.where == "behind":
            self.where, self.rotten = "", {(await super().send(queue, "", b"x")).at}
        return sent


async def hurt(where: str) -> Hurt:
    queues = Hurt()
    queues.__dict__.update((await served()).__dict__)
    queues.where = where
    return queues


async def owned_again(service: DelayService, queues: Slow) -> None:
    """The next owner reads everything, and the one after it need not."""
    queues.below.clear()
    queues.gate.set()
    assert not await ended(service) and queues.below[0] <= 1 and not service._owners[QUEUE].shard.backfill.until
    run = service._runs[QUEUE]
    service._owners[QUEUE].leave()
    await run
    assert not service._to_be_read


@pytest.mark.parametrize("where", ["before", "behind"])
def test_beside_the_own_record_of_a_takeover(tmp_path: Path, where: str) -> None:
    async def story() -> None:
        queues = await hurt(where)
        service = service_of(queues, tmp_path)
        if where == "behind":  # it ends as if another one had taken over, and pauses
            assert await ended(service) and service.tally.fenced == 1 and service.tally.failed == 0
            assert service._not_before[QUEUE] - mono_ms() > RETRY_MS / 2
        else:
            assert await ended(service) and service.tally.fenced == 0 and service.tally.failed == 1
            assert service._not_before[QUEUE] <= mono_ms()
        await owned_again(service, queues)

    asyncio.run(story())


@pytest.mark.parametrize("whole", [False, True])
def test_after_an_ownership_that_it_has_ended(tmp_path: Path, whole: bool) -> None:
    async def story() -> None:
        queues = await served()
        service = service_of(queues, tmp_path)
        if whole:
            queues.gate.set()
        assert not await ended(service)
        owner = service._owners[QUEUE]
        if whole:
            await until(lambda: owner.shard.backfill.is_whole)
        queues.rotten.add(len(queues.logs[QUEUE]))
        await queues.send(QUEUE, "", b"x")
        await until(lambda: QUEUE not in service._runs)
        assert service.tally.fenced == 1 and service._not_before[QUEUE] - mono_ms() > RETRY_MS / 2
        await owned_again(service, queues)

    asyncio.run(story())


def test_an_attempt_that_fails_otherwise_does_not_make_it_forget(tmp_path: Path) -> None:
    async def story() -> None:
        queues = await hurt("before")
        service = service_of(queues, tmp_path)
        assert await ended(service)
        begin = queues.begin

        async def away(_: TargetQueue) -> int:
            raise ClientError("no answer")

        queues.begin = away  # type: ignore[method-assign]
        assert await ended(service)
        queues.begin = begin  # type: ignore[method-assign]
        await owned_again(service, queues)

    asyncio.run(story())


def test_only_that_shard_is_read_whole(tmp_path: Path) -> None:
    async def story() -> None:
        queues = await hurt("before")
        service = service_of(queues, tmp_path)
        assert await ended(service)
        other = service._owner_of((QUEUE[0], QUEUE[1], QUEUE[2] + 1))
        assert service._owner_of(QUEUE).shard.reads_all and not other.shard.reads_all

    asyncio.run(story())


def test_who_is_told_to_own_the_shard_in_that_moment_does_not(tmp_path: Path) -> None:
    """The error of the reading task is not looked at if the follower is promoted in the same turn of the loop."""

    async def story() -> None:
        queues = await served()
        service = service_of(queues, tmp_path)
        service._stand_by({QUEUE})
        owner = service._standbys[QUEUE]
        await until(lambda: owner.shard.read_from == READ + 1)
        owner.shard.needs_all = True
        assert await ended(service) and service.tally.takeovers == 0 and service.tally.failed == 1
        await owned_again(service, queues)

    asyncio.run(story())
