"""The deliveries of one owner: those under way, and how far each target queue is accounted for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable

from service.core.done_entries import DoneEntries
from service.core.progress import Doubt, TargetQueue
from service.core.states import IllegalStateError

__all__ = ["Deliveries"]


class Deliveries:
    """The part of `service.core.shard.Shard` that keeps account of deliveries. Not thread-safe.

    ``done``: entries that need nothing any more; ``doubts``: deliveries of earlier owners of which that is not known;
    ``lost``: own deliveries of which it is not known.
    """

    def __init__(self) -> None:
        self.done = DoneEntries()
        self.doubts: list[Doubt] = []
        self._fresh: list[int] = []  # done since the last record
        self._has_searched = False  # since the last record
        self.lost: dict[int, TargetQueue] = {}  # own deliveries whose outcome is unknown: entry to target queue
        self.tails: dict[TargetQueue, int] = {}
        self._named: frozenset[TargetQueue] = frozenset()  # those of the last saved progress
        self._in_flight: dict[int, TargetQueue] = {}
        self._open: Counter[TargetQueue] = Counter()  # number of deliveries to a queue that are under way or lost
        self._top: dict[TargetQueue, int] = {}  # the offset after the last acknowledged delivery

    def aim(self, queue: TargetQueue, end: int) -> None:
        """Note the end of a target queue that was not used so far. It may be used once this is saved (`is_named`)."""
        # Never raised here: the present end may be behind deliveries that nobody has read there.
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
            self._finish(offset)
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
        # `_open` still counts it, so that the tail does not rise beyond a delivery that may be there.
        self.lost[offset] = self._in_flight.pop(offset)

    def _raise_tail(self, queue: TargetQueue) -> None:
        """Raise the tail of a target queue to its last acknowledged delivery, unless one is under way or lost."""
        top = self._top.get(queue)
        if top is not None and not self._open[queue]:
            self.tails[queue] = max(self.tails.get(queue, 0), top)

    def _finish(self, offset: int) -> None:
        if self.done.add(offset):
            self._fresh.append(offset)

    # ------------------------------------------------------------------------------------------------ searching

    def scans(self) -> dict[TargetQueue, int]:
        """Target queues that must be read to decide about deliveries in doubt, with the offset to begin at."""
        wanted: dict[TargetQueue, int] = {}
        for doubt in self.doubts:
            for queue, at in doubt.tails.items():
                wanted[queue] = min(at, wanted.get(queue, at))
        for queue in self.lost.values():
            wanted[queue] = min(self.tails.get(queue, 0), wanted.get(queue, 1 << 62))
        return wanted

    def searched(self, queue: TargetQueue, delivered: Iterable[int], until: int) -> None:
        """Note that a target queue was read from the offset in `scans` to this one, and which entries that part has.

        The next owner need not read it again.
        """
        for offset in delivered:
            self._finish(offset)
        for doubt in self.doubts:
            if queue in doubt.tails:
                doubt.tails[queue] = max(until, doubt.tails[queue])
        self._has_searched = bool(self.doubts)

    def scanned(self, queue: TargetQueue, delivered: Iterable[int], lost: Iterable[int]) -> None:
        """Note that a target queue was read from the offset in `scans` to its end, and which entries it contains.

        ``lost``: deliveries that were lost before the reading began. Those that were not found were not stored.
        """
        self._has_searched = bool(self.doubts)
        for offset in delivered:
            self._finish(offset)
        for doubt in self.doubts:
            doubt.tails.pop(queue, None)
        self.doubts = [doubt for doubt in self.doubts if doubt.tails]
        for offset in lost:
            if self.lost.pop(offset, None) is not None:
                self._open[queue] -= 1
