"""Own records of the entry queue that may or may not be stored: rolls and verdicts whose send got no answer.

Whether such a record was stored is known once the broker is calm (`service.core.calm`) and the queue was read up to the
end that it had then. If the record was stored, it was read by then, and has had its effect. A queue that is written to
all the time is never read to its present end, so that end is remembered.
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
    """The owner that writes records of the service into the entry queue of its shard."""

    queue: TargetQueue
    shard: Shard
    cluster: ClusterLink
    calm: Calm


class Unsure:
    """The records without an answer. For one event loop."""

    def __init__(self, owner: WritingOwner) -> None:
        self._owner = owner
        self._failed: list[Callable[[], object]] = []
        self._ended: list[tuple[int, list[Callable[[], object]]]] = []  # where the queue ended when all was there

    def add(self, failed: Callable[[], object]) -> None:
        """Add a record without an answer. ``failed`` is called once it certainly was not stored, or was read."""
        self._failed.append(failed)
        self._owner.calm.disturbed(self._owner.queue[1], mono_ms())

    async def settle(self) -> None:
        """Find out which were stored, if that is possible now. Raises ClientError."""
        owner = self._owner
        if self._failed and owner.calm.is_calm(owner.queue[1], mono_ms()):
            known = list(self._failed)
            end = await owner.cluster.end(owner.queue)
            del self._failed[: len(known)]
            self._ended.append((end, known))
        for end, known in [row for row in self._ended if owner.shard.read_to >= row[0]]:
            self._ended.remove((end, known))
            for failed in known:
                failed()
