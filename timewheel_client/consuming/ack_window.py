"""What of a queue has been pulled and not yet acknowledged: how acknowledgements in any order become one offset.

A group keeps a single number for a queue: everything below it is done. Messages are acknowledged in any order, so that
number may only move up to the lowest one that is still open::

    pulled   7 8 9 10      next pull at 11
    acked      8   10
    committed  7                       (a restart now repeats 7, 8, 9 and 10)
    acked    7 8   10   -> committed 9
    acked    7 8 9 10   -> committed 11

Messages that the broker filtered out count as done. The open ones stand in a queue in order of their offsets and in a
set; an acknowledgement takes it out of the set, and the front of the queue is dropped while it is not in the
set: constant time for each message, whatever the order.
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
        """Take over what one pull brought: rising offsets from `next_offset` on, and where the next pull begins.

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
        """The offset below which everything is done."""
        return self._order[0] if self._order else self.next_offset

    @property
    def open_count(self) -> int:
        """How many messages are pulled and not acknowledged."""
        return len(self._open)

    @property
    def span(self) -> int:
        """How far apart the lowest open message and the next pull are."""
        return self.next_offset - self.committed

    def check(self) -> list[str]:
        """Say what contradicts itself; empty when nothing does."""
        wrong = []
        order = list(self._order)
        if order != sorted(set(order)):
            wrong.append(f"offsets do not rise: {order}")
        if not self._open <= set(order):
            wrong.append(f"open but not in order: {sorted(self._open - set(order))}")
        if order and (order[0] not in self._open or order[-1] >= self.next_offset):
            wrong.append(f"window {order[0]}..{order[-1]} has a closed front or reaches beyond {self.next_offset}")
        return wrong
