"""`DueTail`: who goes first when more comes due at one moment than can be copied in it.

The times of 100,000 popped messages may end in one millisecond. They are copied in slices; what comes due after them
must not wait for the last of them. So what does not fit into a slice becomes a tail: whatever is due later than the
tail passes it, and the tail takes the rest of each slice, a quarter at least. Of messages that come due later, those
with a due time at or before the tail's join its end. This is the rule that delayed messages follow (``broker_plugin``).

=================  ==========================  =====================
due                chosen, a slice being 2     tail
=================  ==========================  =====================
a10 b10 c10 d10    a10 b10                     c10 d10, up to 10
e11                e11 c10                     d10
f11 g11 h11        f11 g11 d10                 h11, up to 11
=================  ==========================  =====================

What has joined the tail at one moment stands there as it was popped, queue by queue in turn: so the messages of a slice
are neighbours in the log, and are read together (``broker.pop.copier``).

Nothing in the tail is claimed: its handles still acknowledge it.

What passes the tail is copied first, in a put of its own (`DueTail.passing`). It does not wait for the tail's part of
the slice.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from operator import attrgetter

from store.pop.pop_queue import Batch

__all__ = ["DueTail"]

_NAME = attrgetter("name")


class DueTail:
    """The tail. Pure; the caller holds the lock of `InFlight`."""

    __slots__ = ("_tail", "_to_ms", "passing")

    def __init__(self) -> None:
        self._tail: deque[Batch] = deque()
        self._to_ms = 0
        self.passing = 0
        """How many of the batches chosen last, the first ones, were never in the tail."""

    def __bool__(self) -> bool:
        return bool(self._tail)

    def choose(self, due: Iterable[Batch], count_max: int) -> list[Batch]:
        """Choose some ``count_max`` messages to copy now, from those just due, in order, and from the tail.

        A batch is not divided, so there may be one batch more, and a quarter more for the tail.
        """
        tail, chosen, count = self._tail, [], 0
        behind: list[Batch] = []
        for batch in due:
            if ((tail or behind) and batch.due_ms <= self._to_ms) or count >= count_max:
                self._to_ms = max(self._to_ms, batch.due_ms) if tail or behind else batch.due_ms
                behind.append(batch)
            else:
                chosen.append(batch)
                count += batch.waiting.bit_count()
        self.passing = len(chosen)
        behind.sort(key=_NAME)
        tail += behind
        room = max(count_max - count, count_max // 4)
        while tail and room > 0:
            batch = tail.popleft()
            if batch.waiting and not batch.queue.gone:
                chosen.append(batch)
                room -= batch.waiting.bit_count()
        return chosen
