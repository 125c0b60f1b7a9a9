"""The deliveries of one owner: those under way, and how far each target queue is accounted for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from service.core.progress import TargetQueue
from service.core.states import IllegalStateError

__all__ = ["Deliveries"]


class Deliveries:
    """The part of `service.core.shard.Shard` that keeps account of deliveries. Not thread-safe."""

    def __init__(self) -> None:
        self.lost: dict[int, TargetQueue] = {}  # own deliveries whose outcome is unknown: entry to target queue
        self.tails: dict[TargetQueue, int] = {}
        self._named: frozenset[TargetQueue] = frozenset()  # those of the last saved progress
        self._in_flight: dict[int, TargetQueue] = {}
        self._open: Counter[TargetQueue] = Counter()  # number of deliveries to a queue that are under way or lost
        self._top: dict[TargetQueue, int] = {}  # the offset after the last acknowledged delivery

    def aim(self, queue: TargetQueue, end: int) -> None:
        """Note the end of a target queue that was not used so far. It may be used once this is saved (`is_named`)."""
        self.tails.setdefault(queue, end)

    def is_named(self, queue: TargetQueue) -> bool:
        """True if the saved progress names a target queue, so that the next owner will search it."""
        return queue in self._named

    def sending(self, offsets: Collection[int], queue: TargetQueue) -> None:
        """Note that entries are written to a connection now. Raises IllegalStateError if their queue is not named."""
        if queue not in self._named:
            raise IllegalStateError(f"a delivery to {queue}, which the progress does not name")
        self._in_flight.update(dict.fromkeys(offsets, queue))
        self._open[queue] += len(offsets)

    def acknowledged(self, offsets: Collection[int], queue: TargetQueue, at: int) -> None:
        """Note that the target has stored the entries of one request, the first one at this offset of its queue."""
        for offset in offsets:
            if self._in_flight.pop(offset, None) is not None:
                self._open[queue] -= 1
        self._top[queue] = max(self._top.get(queue, 0), at + 1)
        self._raise_tail(queue)

    def refused(self, offset: int) -> None:
        """Note that the target has certainly not stored an entry."""
        queue = self._in_flight.pop(offset, None)
        if queue is not None:
            self._open[queue] -= 1
            self._raise_tail(queue)

    def lose(self, offset: int) -> None:
        """Note that it is unknown whether the target has stored an entry: its queue must be read (`scans`)."""
        self.lost[offset] = self._in_flight.pop(offset)

    def _raise_tail(self, queue: TargetQueue) -> None:
        """Raise the tail of a target queue to its last acknowledged delivery, unless one is under way or lost."""
        top = self._top.get(queue)
        if top is not None and not self._open[queue]:
            self.tails[queue] = max(self.tails.get(queue, 0), top)
