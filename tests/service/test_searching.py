"""What a search for deliveries in doubt may say of those that were lost meanwhile: nothing."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from remoting.messages.message import StoredMessage
from service.core.calm import Calm
from service.core.lines import Line
from service.core.progress import TargetQueue
from service.link.cluster import Pull
from service.running.searching import Searcher, Searching
from tests.service.target_world import owned_shard

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
