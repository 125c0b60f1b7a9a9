"""What the plug-in counts, and how late it was: a histogram in a few dozen integers.

Lateness is *store time minus due time*, whole ms, read inside the append lock. A batch is in due order and has
one store time, so its histogram is a few binary searches, not a loop over its messages.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence

from store.put.pending_api import PendingVerb, PendingVerdict

__all__ = ["BOUNDS_MS", "LatenessCounts", "Rate", "Stats"]

BOUNDS_MS = (0, 1, 2, 3, 4, 5, 7, 10, 15, 20, 30, 50, 100, 200, 500, 1000, 5000, 60_000, 3_600_000)
"""Upper bounds of the histogram's classes, inclusive; one more class holds what lies above."""


class LatenessCounts:
    """How late deliveries were, ms: count, sum, maximum and a histogram over `BOUNDS_MS`."""

    __slots__ = ("classes", "count", "max_ms", "sum_ms")

    def __init__(self) -> None:
        self.classes = [0] * (len(BOUNDS_MS) + 1)
        self.count = 0
        self.sum_ms = 0
        self.max_ms = 0

    def add(self, store_ms: int, dues: Sequence[int]) -> None:
        """Count a batch that was stored at ``store_ms``; ``dues`` in ascending order."""
        count = len(dues)
        if not count:
            return
        latest = store_ms - dues[0]
        self.count += count
        self.sum_ms += store_ms * count - sum(dues)
        if latest > self.max_ms:
            self.max_ms = latest
        place = bisect_left(BOUNDS_MS, store_ms - dues[-1])
        end = count
        while end:
            if place == len(BOUNDS_MS) or latest <= BOUNDS_MS[place]:
                self.classes[place] += end
                return
            # What is due before (store time - bound) is later than this class.
            begin = bisect_left(dues, store_ms - BOUNDS_MS[place], 0, end)
            self.classes[place] += end - begin
            end = begin
            place += 1

    def percentile_ms(self, share: float) -> int:
        """Upper bound of the class in which this share of the deliveries is reached; 0 without any."""
        wanted = share * self.count
        seen = 0
        for bound, count in zip((*BOUNDS_MS, self.max_ms), self.classes, strict=True):
            seen += count
            if seen >= wanted and seen:
                return min(bound, self.max_ms)
        return 0


class Rate:
    """How fast a counter grows, per second, between two looks that are at least a second apart."""

    __slots__ = ("_count", "_ns", "per_second")

    def __init__(self) -> None:
        self._ns: int | None = None
        self._count = 0
        self.per_second = 0.0

    def look(self, monotonic_ns: int, count: int) -> float:
        """Compare with the last look that counted; answers the rate."""
        if self._ns is None:
            self._ns, self._count = monotonic_ns, count
        elif (elapsed := monotonic_ns - self._ns) >= 1_000_000_000:
            self.per_second = (count - self._count) * 1e9 / elapsed
            self._ns, self._count = monotonic_ns, count
        return self.per_second


class Stats:
    """Counters of one plug-in since its start; each is written by one thread or under the delivery lock."""

    __slots__ = (
        "accepted",
        "cancelled",
        "delivered",
        "handed_over",
        "moved",
        "on_time",
        "overdue",
        "refused",
        "restored",
        "stalls",
        "troubles",
        "unreadable",
        "verdicts",
    )

    def __init__(self) -> None:
        self.verdicts: Counter[tuple[PendingVerb, PendingVerdict]] = Counter()
        """Answers to changes of pending messages."""
        self.accepted = 0
        self.refused = 0
        self.delivered = 0
        self.cancelled = 0
        self.moved = 0
        self.restored = 0
        """Found delivered in the CommitLog at open."""
        self.handed_over = 0
        """How often the sweeper handed the tail of a hot second to recovery."""
        self.stalls = 0
        """How often the store began to refuse everything."""
        self.troubles = 0
        """Errors of the disk while looking for what is due."""
        self.unreadable = 0
        """Records that could not be read back, at each try."""
        self.on_time = LatenessCounts()
        """Of what the sweeper delivered."""
        self.overdue = LatenessCounts()
        """Of what recovery delivered."""
