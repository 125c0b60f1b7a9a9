"""What became of own records without an answer is known once the queue was read up to its end of that time."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from service.core.calm import Calm
from service.core.lines import Line
from service.core.progress import TargetQueue
from service.link.cluster import ClusterLink
from service.running import unsure
from service.running.unsure import Unsure
from tests.service.target_world import owned_shard


class Owner:
    """Owner and cluster in one. Senders write all the time: whenever it is asked, the queue has more than was read."""

    def __init__(self) -> None:
        self.queue: TargetQueue = ("TIMEWHEEL", "broker-e", 0)
        self.cluster = cast(ClusterLink, self)
        self.calm = Calm(0)
        self.shard = owned_shard("broker-e/0")
        self.length = 1

    async def end(self, _: TargetQueue) -> int:
        self.length += 10
        return self.length

    def read(self) -> None:
        """Read what was there at the last look; more has come since."""
        self.shard.read([Line(at) for at in range(self.shard.read_to, self.length)], self.length, 0)


def test_a_queue_that_is_written_to_all_the_time_settles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rolled entries stayed held, so that they were late, and commands got no verdict, for as long as senders sent."""
    monkeypatch.setattr(unsure, "mono_ms", lambda: 5)

    async def story() -> None:
        owner = Owner()
        unsettled, failed = Unsure(owner), []
        unsettled.add(lambda: failed.append(1))
        await unsettled.settle()
        assert not failed, "the broker may still store it"
        owner.calm.answered("broker-e", 5, 5)
        for _ in range(3):
            await unsettled.settle()
            owner.read()
        assert failed == [1]

    asyncio.run(story())


def test_what_is_not_read_up_to_that_end_stays_unsure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unsure, "mono_ms", lambda: 5)

    async def story() -> None:
        owner = Owner()
        unsettled, failed = Unsure(owner), []
        unsettled.add(lambda: failed.append(1))
        owner.calm.answered("broker-e", 5, 5)
        for _ in range(3):
            await unsettled.settle()
        end = owner.length
        assert not failed
        unsettled.add(lambda: failed.append(2))
        owner.shard.read([Line(at) for at in range(owner.shard.read_to, end)], end, 0)
        await unsettled.settle()
        assert failed == [1], "the second was sent later, and the broker is not calm"

    asyncio.run(story())
