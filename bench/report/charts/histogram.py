"""An exact histogram of whole milliseconds: which values were seen, and how often each.

Percentiles are those of `bench.lateness.results.result`: nearest rank, exact, always a value that occurred. Sums of
histograms have exact percentiles, too, and no count is rounded.

>>> histogram = Histogram.of({0: 98, 7: 1, 900: 1})
>>> histogram.percentile("p50"), histogram.percentile("p99"), histogram.percentile("max")
(0, 7, 900)
>>> histogram.at_most(10)
99
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from bench.lateness.results.result import percentiles

__all__ = ["EMPTY", "Histogram", "Integers", "merged"]

Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Histogram:
    """Values in rising order, each once, with a count above zero; milliseconds, negative ones allowed."""

    values: Integers
    counts: Integers

    @classmethod
    def of(cls, counts: Mapping[int, int]) -> Histogram:
        """Make one from {value: count}."""
        return cls.from_columns(
            np.fromiter(counts.keys(), np.int64, len(counts)), np.fromiter(counts.values(), np.int64, len(counts))
        )

    @classmethod
    def from_columns(cls, values: Integers, counts: Integers) -> Histogram:
        """Make one from two columns in any order; counts of one value are added, zeros dropped.

        Raises ValueError for a negative count.
        """
        values = np.asarray(values, np.int64)
        counts = np.asarray(counts, np.int64)
        if counts.size and int(counts.min()) < 0:
            raise ValueError(f"a count is negative: {int(counts.min())}")
        if values.size and (counts > 0).all() and (values[1:] > values[:-1]).all():
            return cls(values, counts)  # already in order, as in tables: a month has a cell for each minute
        distinct, where = np.unique(values, return_inverse=True)
        sums = np.zeros(distinct.size, np.int64)
        np.add.at(sums, where, counts)
        kept = sums > 0
        return cls(distinct[kept], sums[kept])

    @property
    def total(self) -> int:
        """The number of counted values."""
        return int(self.counts.sum())

    @property
    def largest(self) -> int:
        """The largest value; raises ValueError when there is none."""
        if not self.values.size:
            raise ValueError("an empty histogram has no largest value")
        return int(self.values[-1])

    def percentile(self, name: str) -> int:
        """Return a percentile by its name ("p50" to "p99.99", "max"); raises ValueError when nothing was counted."""
        found = self.percentiles()[name]
        if found is None:
            raise ValueError("an empty histogram has no percentile")
        return found

    def percentiles(self) -> dict[str, int | None]:
        """Return all of them by name; None each when nothing was counted."""
        return percentiles(self.values, self.counts)

    def at_most(self, value: int) -> int:
        """The number of values at or below ``value``."""
        return int(self.counts[: np.searchsorted(self.values, value, side="right")].sum())

    def later_than(self) -> Integers:
        """For each value, how many are larger: the counts behind a CCDF."""
        later: Integers = self.total - np.cumsum(self.counts)
        return later

    def __bool__(self) -> bool:
        return bool(self.values.size)


EMPTY = Histogram(np.zeros(0, np.int64), np.zeros(0, np.int64))


def merged(parts: Iterable[Histogram]) -> Histogram:
    """Return the sum of histograms, exact."""
    found = [part for part in parts if part]
    if not found:
        return EMPTY
    if len(found) == 1:
        return found[0]
    return Histogram.from_columns(
        np.concatenate([part.values for part in found]), np.concatenate([part.counts for part in found])
    )
