"""Lateness of deliveries: a histogram in a few dozen integers, counted by the batch.

Lateness is *store time minus due time*, whole ms, both read or checked inside the append lock. A batch has one store
time, so its histogram is a few binary searches over its sorted due times, not a loop over its messages.

>>> lateness = LatenessCounts()
>>> lateness.add(1_000, [990, 999, 1_000, 1_000])
>>> lateness.count, lateness.sum_ms, lateness.max_ms, lateness.within([0, 1, 20])
(4, 11, 10, [2, 1, 1, 0])
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

__all__ = ["BOUNDS_MS", "LatenessCounts"]

BOUNDS_MS = (
    *(0, 1, 2, 3, 4, 5, 7, 10, 15, 20, 30, 50, 100, 200, 250, 500),
    *(1_000, 2_500, 5_000, 10_000, 30_000, 60_000, 300_000, 1_800_000, 3_600_000, 7_200_000),
)
"""Upper bounds of the histogram's classes, inclusive; one more class holds what lies above."""


class LatenessCounts:
    """Lateness of deliveries, ms: count, sum, maximum and a histogram over `BOUNDS_MS`.

    One thread adds at a time. Any thread may read; it may then see a batch that is only partly counted.
    """

    __slots__ = ("classes", "count", "early", "max_ms", "sum_ms")

    def __init__(self) -> None:
        self.classes = [0] * (len(BOUNDS_MS) + 1)
        self.count = 0
        self.sum_ms = 0
        self.max_ms = 0
        self.early = 0
        """Number of messages stored before they were due. That breaks a promise, so they are counted apart."""

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
        if dues[-1] > store_ms:
            self.early += sum(due_ms > store_ms for due_ms in dues)
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
        """Upper bound (ms) of the class in which ``share`` (0 to 1) of all deliveries is reached; 0 without any."""
        wanted = share * self.count
        seen = 0
        for bound, count in zip((*BOUNDS_MS, self.max_ms), self.classes, strict=True):
            seen += count
            if seen >= wanted and seen:
                return min(bound, self.max_ms)
        return 0

    def within(self, bounds_ms: Sequence[int]) -> list[int]:
        """The histogram over fewer bounds: ascending, all of them in `BOUNDS_MS`. The last class holds what lies above.

        Raises ValueError for a bound that is not in `BOUNDS_MS`.
        """
        classes = list(self.classes)
        found, begin = [], 0
        for bound in bounds_ms:
            end = BOUNDS_MS.index(bound) + 1
            found.append(sum(classes[begin:end]))
            begin = end
        return [*found, sum(classes[begin:])]
