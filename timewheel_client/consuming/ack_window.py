"""The pulled but unacknowledged messages of a queue: turns acknowledgements in any order into one offset.

A group keeps a single offset for a queue: every message below it is done. Messages are acknowledged in any order, so
that offset may only move up to the lowest open one::

    pulled   7 8 9 10      next pull at 11
    acked      8   10
    committed  7                       (a restart now repeats 7, 8, 9 and 10)
    acked    7 8   10   -> committed 9
    acked    7 8 9 10   -> committed 11

Messages that the broker filtered out count as done. Open offsets are kept in a queue, in order, and in a set. An
acknowledgement removes the offset from the set; then the front of the queue is dropped while it is not in the set. This
takes constant time for each message, in any order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

__all__ = ["AckWindow"]


class AckWindow:
    """The open messages of one queue, between ``committed`` and ``next_offset``.

    >>> window = AckWindow(7)
    >>> window.pulled([7, 8, 9], next_offset=10)
    >>> window.ack(8), window.committed, window.ack(7), window.committed
    (True, 7, True, 9)
    """

    __slots__ = ("_open", "_order", "next_offset")

    def __init__(self, offset: int) -> None:
        self.next_offset = offset
        self._order: deque[int] = deque()
        self._open: set[int] = set()

    def pulled(self, offsets: Iterable[int], next_offset: int) -> None:
        """Add the offsets of one pull, rising from `next_offset` on, and the offset of the next pull.

        Raises ValueError if they do not rise, and changes nothing then.
        """
        new = list(offsets)
        at = self.next_offset
        for offset in new:
            if offset < at:
                raise ValueError(f"offset {offset} after {at}: offsets of a pull must rise")
            at = offset + 1
        if next_offset < at:
            raise ValueError(f"next offset {next_offset} lies before the end of the pull, {at}")
        self._order.extend(new)
        self._open.update(new)
        self.next_offset = next_offset

    def ack(self, offset: int) -> bool:
        """Mark one as done; False if it is not open (done before, or never pulled here)."""
        if offset not in self._open:
            return False
        self._open.remove(offset)
        while self._order and self._order[0] not in self._open:
            self._order.popleft()
        return True

    @property
    def committed(self) -> int:
        """The offset below which every message is done."""
        return self._order[0] if self._order else self.next_offset

    @property
    def open_count(self) -> int:
        """Number of messages that are pulled and not acknowledged."""
        return len(self._open)

    @property
    def span(self) -> int:
        """Distance between the lowest open message and the next pull."""
        return self.next_offset - self.committed

    def check(self) -> list[str]:
        """Return a sentence for each contradiction in the structure."""
        wrong = []
        order = list(self._order)
        if order != sorted(set(order)):
            wrong.append(f"offsets do not rise: {order}")
        if not self._open <= set(order):
            wrong.append(f"open but not in order: {sorted(self._open - set(order))}")
        if order and (order[0] not in self._open or order[-1] >= self.next_offset):
            wrong.append(f"window {order[0]}..{order[-1]} has a closed front or reaches beyond {self.next_offset}")
        return wrong
