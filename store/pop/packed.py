"""`Packed`: batches of one queue as rows of columns, without an object for each.

The problem
    A consumer that pops one message at a time makes a batch of each. As an object, with its numbers, an entry by
    handle, another one in a heap, and a timer, it takes some 510 bytes: half a gigabyte for a million.

The idea
    A queue is popped in the order of its offsets. So a batch goes to the end of five columns, 40 bytes, and is found
    again by a binary search. Some `PACKED_MAX` rows stand together and have one timer: that of the earliest of them, or
    earlier. When it fires, those that are due leave as `store.pop.pop_queue.Batch`, and the timer is set again.

    A row without messages is dead; its due time is `NEVER_MS`, so the earliest is `min` of a column. When more than
    three quarters of the rows are dead, these are removed. So a message that is held for hours does not keep the rows
    of its neighbours.

    ===========================  ====================================================================================
    rows, here                   popped in order of offsets, each behind the last offset of the one before
    objects, with a timer each   due, claimed or copied; of a changed time; of more than 63 offsets (a filter); what
                                 a start finds out of order
    ===========================  ====================================================================================

Pure; the caller holds the lock of `InFlight`, which sets the timer.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator
from itertools import compress, pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from store.pop.notes import Notes

__all__ = ["NEVER_MS", "PACKED_MAX", "ROW_BITS_MAX", "Packed", "Row"]

PACKED_MAX = 128
"""Rows of one group: they share a timer, and one step may have to search all of them."""
NEVER_MS = (1 << 63) - 1
"""The due time of a dead row."""
ROW_BITS_MAX = 63
"""Offsets that one row can be about."""
_FEW = 8
_LOWEST_OF_NONE = 1 << 63

Row = tuple[int, int, int, int, int]
"""A batch: its name, start, bits, pop time and due time."""


class Packed:
    """Some rows of one queue, in the order of their offsets, none of which is in two of them.

    ==============  ==================================================================================================
    ``first``       no start is lower
    ``last``        the highest offset that was ever added
    ``live``        rows that are not dead
    ``timer``       in the wheel, due at ``armed_ms``: not later than any row; -1 and `NEVER_MS` without one
    ==============  ==================================================================================================
    """

    __slots__ = (
        "_dues", "_head", "_names", "_near", "_pops", "_starts", "_waiting", "armed_ms", "first", "last", "live",
        "timer",
    )  # fmt: skip

    def __init__(self, first: int) -> None:
        self.first = first
        self.last = first - 1
        self.live = 0
        self.timer = -1
        self.armed_ms = NEVER_MS
        self._head = 0  # rows before it are dead
        self._near = 0  # where the next acknowledgement is looked for first
        self._starts = array("q")
        self._waiting = array("q")
        self._pops = array("q")
        self._dues = array("q")
        self._names = array("Q")

    def __len__(self) -> int:
        """Count the rows, dead ones among them."""
        return len(self._starts)

    def takes(self, start: int, waiting: int, due_ms: int) -> bool:
        """True if a batch can be a row here, unless there are too many."""
        return start > self.last and waiting.bit_length() <= ROW_BITS_MAX and 0 <= due_ms < NEVER_MS

    def add(self, name: int, start: int, waiting: int, pop_ms: int, due_ms: int) -> None:
        """Add a batch that `takes` has said yes to."""
        self._starts.append(start)
        self._waiting.append(waiting)
        self._pops.append(pop_ms)
        self._dues.append(due_ms)
        self._names.append(name)
        self.last = start + waiting.bit_length() - 1
        self.live += 1

    def take(self, start: int, pop_ms: int, bits: int, notes: Notes | None) -> int:
        """Take messages that are done with out of the row of a handle; how many, or -1 if there is no such row."""
        starts, column = self._starts, self._waiting
        index = self._near
        if index >= len(starts) or starts[index] != start:
            index = bisect_left(starts, start)
            if index >= len(starts) or starts[index] != start:
                return -1
            self._near = index
        if self._pops[index] != pop_ms:
            return -1
        waiting = column[index]
        taken = waiting & bits
        if not taken:
            return 0 if waiting else -1
        if notes is not None:
            notes.taken(self._names[index], taken)
        if taken == waiting:
            column[index], self._dues[index] = 0, NEVER_MS
            self._near = index + 1
            self.live = live = self.live - 1
            if not live:
                self.clear()
            elif live * 4 < len(starts):
                self._tidy()
        else:
            column[index] = waiting ^ taken
        return taken.bit_count()

    def take_due(self, now_ms: int) -> list[Row]:
        """Take out the rows whose time has come."""
        waiting, dues = self._waiting, self._dues
        rows = [row for row in self.rows() if row[4] <= now_ms]
        if len(rows) == self.live:
            self.clear()
        elif rows:
            for index, due_ms in enumerate(dues):
                if due_ms <= now_ms:
                    waiting[index], dues[index] = 0, NEVER_MS
            self.live -= len(rows)
            if self.live * 4 < len(dues):
                self._tidy()
        return rows

    def take_last(self, count: int) -> int:
        """Take rows off the end, which are not looked for any more; how many messages they had."""
        gone = self._waiting[-count:]
        for column in (self._starts, self._waiting, self._pops, self._dues, self._names):
            del column[-count:]
        self._head = min(self._head, len(self._starts))
        # Lists: mypyc makes plain loops of them, but of generators objects that are resumed for each element.
        self.live -= sum([1 for bits in gone if bits])
        return sum([bits.bit_count() for bits in gone])

    def _tidy(self) -> None:
        """Let dead rows go, which are more than three quarters of all."""
        waiting = self._waiting
        if len(waiting) >= _FEW:
            self._starts = array("q", compress(self._starts, waiting))
            self._pops = array("q", compress(self._pops, waiting))
            self._dues = array("q", compress(self._dues, waiting))
            self._names = array("Q", compress(self._names, waiting))
            self._waiting = array("q", compress(waiting, waiting))
            self._head = 0

    def clear(self) -> None:
        """Let all rows go; the timer stays."""
        for column in (self._starts, self._waiting, self._pops, self._dues, self._names):
            del column[:]
        self.live = self._head = 0

    def earliest_ms(self) -> int:
        """The earliest due time; `NEVER_MS` if no row is live."""
        return min(self._dues, default=NEVER_MS)

    def lowest(self) -> int:
        """The lowest message that is not acknowledged; beyond any if there is none."""
        if not self.live:
            return _LOWEST_OF_NONE
        head = self._head
        bits = self._waiting[head]
        while not bits:
            self._head = head = head + 1
            bits = self._waiting[head]
        return self._starts[head] + (bits & -bits).bit_length() - 1

    def rows(self) -> Iterator[Row]:
        """List the rows that are not dead."""
        for row in zip(self._names, self._starts, self._waiting, self._pops, self._dues, strict=True):
            if row[2]:
                yield row

    def check(self) -> list[str]:
        """Say everything that is wrong; empty when nothing is."""
        rows = [*self.rows()]
        wrong = []
        if len(rows) != self.live or any(self._waiting[: self._head]):
            wrong.append(f"{self.live} rows are counted from {self._head} on, {len(rows)} are live")
        if any(later[1] < row[1] + row[2].bit_length() for row, later in pairwise(rows)):
            wrong.append("rows are not in order")
        if rows and not (self.first <= rows[0][1] and rows[-1][1] + rows[-1][2].bit_length() - 1 <= self.last):
            wrong.append(f"rows from {rows[0][1]} on stand between {self.first} and {self.last}")
        if min([row[4] for row in rows], default=NEVER_MS) != self.earliest_ms():
            wrong.append(f"the earliest row is due at {self.earliest_ms()}")
        if self.live and self.armed_ms > self.earliest_ms():
            wrong.append(f"the timer is due at {self.armed_ms}, a row at {self.earliest_ms()}")
        return wrong
