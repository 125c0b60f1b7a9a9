"""Own records in the entry queue of which nobody knows whether they were stored: rolls and verdicts without an answer.

Such a record stands in the queue, or nowhere. Which of both is known once the broker is calm (`service.core.calm`) and
all of the queue has been read: what was stored has been seen by then, and has done what it does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from service.core.calm import Calm
from service.core.progress import TargetQueue
from service.core.shard import Shard
from service.link.clock import mono_ms
from service.link.cluster import ClusterLink

__all__ = ["Unsure", "WritingOwner"]


class WritingOwner(Protocol):
    """Who writes records of the service into the entry queue of its shard."""

    queue: TargetQueue
    shard: Shard
    cluster: ClusterLink
    calm: Calm


class Unsure:
    """What got no answer; for one event loop."""

    def __init__(self, owner: WritingOwner) -> None:
        self._owner = owner
        self._failed: list[Callable[[], object]] = []

    def add(self, failed: Callable[[], object]) -> None:
        """A record got no answer; ``failed`` is called once it is certain that it was not stored, or has been read."""
        self._failed.append(failed)
        self._owner.calm.disturbed(self._owner.queue[1], mono_ms())

    async def settle(self) -> None:
        """Find out, if that is possible now. Raises ClientError."""
        owner = self._owner
        if not self._failed or not owner.calm.is_calm(owner.queue[1], mono_ms()):
            return
        known = list(self._failed)
        end = await owner.cluster.end(owner.queue)
        if owner.shard.read_to >= end:
            del self._failed[: len(known)]
            for failed in known:
                failed()
