"""The deliveries that a measuring consumer saw, one row each, kept as arrays, and figures computed from them.

A row is (number, due µs, stored µs, received µs), all epoch microseconds; stored is -1 where a system does not say when
it delivered a message.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt

__all__ = ["NO_STAMP", "Arrivals", "Verdict", "join"]

NO_STAMP = -1
Int64s = npt.NDArray[np.int64]


@dataclasses.dataclass(frozen=True, slots=True)
class Verdict:
    """Counts over all deliveries; latenesses of first deliveries in milliseconds, sorted (empty without stamps)."""

    delivered: int
    early: int
    repeated: int
    broker_ms: npt.NDArray[np.float64]
    consumer_ms: npt.NDArray[np.float64]


@dataclasses.dataclass(frozen=True, slots=True)
class Arrivals:
    """Rows of deliveries, in the order in which they were received."""

    rows: Int64s

    @property
    def numbers(self) -> Int64s:
        """The numbers of the messages."""
        return self.rows[:, 0]

    def where(self, chosen: npt.NDArray[np.bool_]) -> Arrivals:
        """Return only these rows."""
        return Arrivals(self.rows[chosen])

    def due_between(self, first_ms: float, last_ms: float) -> Arrivals:
        """Return the rows that were due in [first_ms, last_ms)."""
        due = self.rows[:, 1]
        return self.where((due >= int(first_ms * 1000)) & (due < int(last_ms * 1000)))

    def judge(self) -> Verdict:
        """Count early and repeated deliveries, and measure how late each message first came."""
        _, first = np.unique(self.rows[:, 0], return_index=True)
        rows = self.rows[first]
        stamped = self.rows[:, 2] != NO_STAMP
        early = (self.rows[:, 3] < self.rows[:, 1]) | (stamped & (self.rows[:, 2] < self.rows[:, 1]))
        with_stamp = rows[rows[:, 2] != NO_STAMP]
        return Verdict(
            delivered=len(first),
            early=int(early.sum()),
            repeated=len(self.rows) - len(first),
            broker_ms=np.sort((with_stamp[:, 2] - with_stamp[:, 1]) / 1000),
            consumer_ms=np.sort((rows[:, 3] - rows[:, 1]) / 1000),
        )


def join(parts: list[Int64s]) -> Arrivals:
    """Join the rows of several receptions."""
    return Arrivals(np.concatenate(parts) if parts else np.empty((0, 4), np.int64))
