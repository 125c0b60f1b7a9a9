"""The sweeper's hand: the due messages that are delivered next, a short list in due order.

Two parallel columns: due times (epoch ms, ascending) and refs of records in the spill store. Everything except
`Hand.first` is called under the delivery lock.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right

__all__ = ["CROWD_SHARE", "Hand"]

CROWD_SHARE = 8
"""When one millisecond fills half of the hand, 1 / `CROWD_SHARE` of a full hand is kept; recovery gets the rest."""


class Hand:
    """At most ``most`` messages in due order; within one millisecond, in the order in which they were added."""

    __slots__ = ("_dues", "_refs", "most")

    def __init__(self, most: int) -> None:
        self.most = most
        self._dues: list[int] = []
        self._refs: list[int] = []

    def __len__(self) -> int:
        return len(self._dues)

    @property
    def room(self) -> int:
        """Number of messages that still fit."""
        return self.most - len(self._dues)

    @property
    def first(self) -> list[int]:
        """A list with the earliest due time; empty if nothing is in hand. Any thread."""
        return self._dues[:1]  # a slice: between a test for emptiness and `[0]` the sweeper may empty it

    def add(self, dues: list[int], refs: list[int]) -> None:
        """Add messages, in any order."""
        if not dues:
            return
        in_order = not self._dues or self._dues[-1] <= dues[0]
        self._dues += dues
        self._refs += refs
        if not in_order or any(map(int.__gt__, dues, dues[1:])):
            # A stable sort: messages of one millisecond keep the order in which they were added.
            order = sorted(range(len(self._dues)), key=self._dues.__getitem__)
            self._dues = [self._dues[at] for at in order]
            self._refs = [self._refs[at] for at in order]

    def due_by(self, now_ms: int) -> int:
        """Number of messages that are due at ``now_ms``."""
        return bisect_right(self._dues, now_ms)

    def take(self, count: int) -> tuple[list[int], list[int]]:
        """Take out the first ``count``; returns due times and refs."""
        dues, refs = self._dues[:count], self._refs[:count]
        del self._dues[:count], self._refs[:count]
        return dues, refs

    def put_back(self, dues: list[int], refs: list[int]) -> None:
        """Put messages that were just taken back to the front."""
        self._dues[:0] = dues
        self._refs[:0] = refs

    def drop_from(self, bound_ms: int) -> None:
        """Forget messages that are due at or after ``bound_ms``."""
        count = bisect_left(self._dues, bound_ms)
        del self._dues[count:], self._refs[count:]

    def drop_crowd(self) -> int | None:
        """Forget most of the last millisecond if it fills half of a full hand; return that millisecond, else None."""
        crowd_ms = self._dues[-1]
        begin = bisect_left(self._dues, crowd_ms)
        if len(self._dues) - begin < self.most // 2:
            return None
        keep = begin + self.most // CROWD_SHARE
        del self._dues[keep:], self._refs[keep:]
        return crowd_ms

    def check(self) -> list[str]:
        """Say what is wrong; empty when nothing is."""
        problems = []
        if len(self._dues) != len(self._refs):
            problems.append(f"hand: {len(self._dues)} due times, {len(self._refs)} records")
        if any(map(int.__gt__, self._dues, self._dues[1:])):
            problems.append("hand: not in due order")
        if len(self._dues) > self.most:
            problems.append(f"hand: {len(self._dues)} records, at most {self.most} are allowed")
        return problems
