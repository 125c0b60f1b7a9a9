"""The key ranges that recovery owns: messages that were overdue at start, and the tails of hot seconds.

A key is ``(due_ms, delay id)``. A range is everything behind ``after`` that is due before ``until_ms``. Recovery reads
it by cursor and moves ``after`` up as it goes, so a range of ten million records is two numbers. Records in
it that are done cost nothing: the spill store's scan leaves them out.

The sweeper owns every other key below its frontier. If a message is accepted so late that its key lies in a range,
the cursor will reach it. If the cursor has passed its key, the sweeper owns it.

Ranges are disjoint and in order. If there are more than `RANGES_MAX`, the two nearest to each other become
one: recovery then only looks at some keys that are done, or that it may deliver just as well.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

__all__ = ["KEY_MAX", "RANGES_MAX", "Key", "KeyRange", "KeyRanges"]

Key = tuple[int, int]

KEY_MAX = (1 << 63) - 1
"""No delay id is larger."""
RANGES_MAX = 32


class KeyRange:
    """Keys behind ``after`` that are due before ``until_ms``; a cursor moves ``after``."""

    __slots__ = ("after", "until_ms")

    def __init__(self, after: Key, until_ms: int) -> None:
        self.after = after
        self.until_ms = until_ms

    @property
    def last(self) -> Key:
        """The largest key that could be in it."""
        return self.until_ms - 1, KEY_MAX

    def __contains__(self, key: Key) -> bool:
        return self.after < key and key[0] < self.until_ms

    def __repr__(self) -> str:
        return f"KeyRange({self.after}, {self.until_ms})"


class KeyRanges:
    """Disjoint key ranges in ascending order. Not thread-safe: it lives under the delivery lock."""

    __slots__ = ("_oldest_next", "_ranges")

    def __init__(self) -> None:
        self._ranges: list[KeyRange] = []
        self._oldest_next = False

    def __len__(self) -> int:
        return len(self._ranges)

    def __contains__(self, key: Key) -> bool:
        return any(key in found for found in self._ranges)

    def __iter__(self) -> Iterator[KeyRange]:
        return iter(self._ranges)

    def add(self, after: Key, until_ms: int) -> None:
        """Add everything behind ``after`` that is due before ``until_ms``, except what is owned already.

        A new range that begins inside an old one begins behind it instead, so that the tail of this second does not
        wait for the backlog of a night. Old ranges that begin inside the new one are joined to it.
        """
        kept: list[KeyRange] = []
        for old in self._ranges:
            if old.after <= after:
                after = max(after, old.last)
                kept.append(old)
        if (until_ms - 1, KEY_MAX) <= after:
            return
        new = KeyRange(after, until_ms)
        for old in self._ranges[len(kept) :]:
            if old.after < new.last:
                new.until_ms = max(new.until_ms, old.until_ms)
            else:
                kept.append(old)
        kept.append(new)
        kept.sort(key=lambda found: found.after)
        if len(kept) > RANGES_MAX:
            self._join_nearest(kept)
        self._ranges = kept

    def next(self) -> KeyRange | None:
        """Choose the range to read next: the newest and the oldest in turns.

        The newest may be the tail of a second that has just begun and may still be nearly on time. The oldest is late
        anyway, but must be finished too.
        """
        if not self._ranges:
            return None
        self._oldest_next = not self._oldest_next
        return self._ranges[-1 if self._oldest_next else 0]

    def remove(self, found: KeyRange) -> None:
        """Forget a range that has been read to its end."""
        self._ranges = [other for other in self._ranges if other is not found]

    def cut(self, bound_ms: int) -> None:
        """Give up everything that is due at or after ``bound_ms``, because the clock was set back."""
        for found in self._ranges:
            found.until_ms = min(found.until_ms, bound_ms)
        self._ranges = [found for found in self._ranges if found.after < found.last]

    def first_ms(self) -> int | None:
        """Nothing due before this time is owned; None if nothing is owned at all."""
        return self._ranges[0].after[0] if self._ranges else None

    def check(self) -> list[str]:
        """Say what is wrong; empty when nothing is."""
        problems = [f"range {found} is empty" for found in self._ranges if found.last <= found.after]
        problems += [
            f"ranges {left} and {right} overlap or are out of order"
            for left, right in pairwise(self._ranges)
            if left.last > right.after
        ]
        if len(self._ranges) > RANGES_MAX:
            problems.append(f"{len(self._ranges)} ranges, at most {RANGES_MAX} are allowed")
        return problems

    @staticmethod
    def _join_nearest(ranges: list[KeyRange]) -> None:
        gaps = [right.after[0] - left.until_ms for left, right in pairwise(ranges)]
        # The last of several: the first range may be the backlog of a night, and a tail must not wait for that.
        at = len(gaps) - 1 - gaps[::-1].index(min(gaps))
        ranges[at].until_ms = ranges.pop(at + 1).until_ms
