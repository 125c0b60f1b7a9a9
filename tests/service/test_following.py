"""What a follower asks of the brokers: little, because it need not know at once what its owner knows at once."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, cast

from service.core.progress import TargetQueue
from service.core.states import OwnerState
from service.link.cluster import Pull
from tests.service.test_deleted_entries import COUNT, FAR_MS, QUEUE, Queues, followed, owner_of, served
from tests.support.wait import until

MORE = 100


class Counted(Queues):
    """Counts the pulls of the entry queue."""

    pulls = 0

    async def pull(self, queue: TargetQueue, offset: int, *, wait: bool) -> Pull:
        self.pulls += queue == QUEUE
        return await super().pull(queue, offset, wait=wait)


async def more(queues: Queues) -> None:
    for _ in range(MORE):
        await queues.send(QUEUE, f"TW_TOPIC\x01orders\x02TW_DELIVER_MS\x01{FAR_MS}\x02", b"body")
        for _ in range(10):  # turns of the loop, in which an owner's pull returns with this message
            await asyncio.sleep(0)


async def counted() -> Counted:
    queues, plain = Counted(), await served()
    queues.logs = plain.logs
    return queues


def test_a_follower_pulls_now_and_then_and_an_owner_at_once(tmp_path: Path) -> None:
    async def work() -> None:
        queues = await counted()
        owner = owner_of(queues, tmp_path)
        task = await followed(owner, COUNT + 2)
        queues.pulls = 0
        await more(queues)
        await until(lambda: owner.shard.read_from == COUNT + 2 + MORE)
        assert queues.pulls <= MORE / 5, "each message was pulled alone"
        owner.promote(lambda _: False)
        await until(lambda: owner.shard.state is OwnerState.OWNING)
        queues.pulls = 0
        await more(queues)
        await until(lambda: owner.is_filled and owner.shard.read_from == COUNT + 3 + 2 * MORE)
        assert queues.pulls >= MORE / 2, "an owner waits for more, and what is due at once is late"
        owner.leave()
        await task

    asyncio.run(work())


def test_a_follower_that_is_promoted_does_not_wait(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("service.running.owner.FOLLOW_READ_MS", 1 << 30)

    async def work() -> None:
        queues = await counted()
        owner = owner_of(queues, tmp_path)
        task = await followed(owner, COUNT + 2)
        await more(queues)
        owner.promote(lambda _: False)
        await until(lambda: owner.shard.state is OwnerState.OWNING)
        assert owner.cache is not None and owner.cache.pending_count == COUNT + MORE
        owner.leave()
        await task

    asyncio.run(work())


def test_an_owner_that_is_cancelled_leaves_no_task(tmp_path: Path) -> None:
    """The wait for its leave stayed, and asyncio logged that it was destroyed."""

    async def work() -> None:
        owner = owner_of(await counted(), tmp_path)
        task = await followed(owner, COUNT + 2)
        owner.promote(lambda _: False)
        await until(lambda: owner.shard.state is OwnerState.OWNING)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        others: set[asyncio.Task[Any]] = asyncio.all_tasks() - {cast("asyncio.Task[Any]", asyncio.current_task())}
        assert not others

    asyncio.run(work())
