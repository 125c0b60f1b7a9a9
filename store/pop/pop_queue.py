"""`Batch` and `PopQueue`: what one pop got, and one queue as one group pops it; `store.pop.in_flight` has the rules.

Most batches are rows, `QueueRows` (`store.pop.packed` says how). Those that are not are a `Batch` each.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from heapq import heapify, heappop, heappush, heapreplace
from itertools import pairwise
from operator import attrgetter

from store.pop.order_block import OrderBlock
from store.pop.packed import PACKED_MAX, Packed, Row

__all__ = ["Batch", "PopQueue", "QueueRows", "numbers_of"]

_FIRST = attrgetter("first")
_HEAP_MIN = 64


def numbers_of(start: int, bits: int) -> Iterator[int]:
    """List the numbers of the set bits; the lowest bit stands for ``start``.

    >>> [*numbers_of(7, 0b101)]
    [7, 9]
    """
    while bits:
        low = bits & -bits
        yield start + low.bit_length() - 1
        bits ^= low


class Batch:
    """The messages that one pop got from one queue, or one of them whose time was changed. ``waiting`` are bits from
    ``start``.

    ``number`` is unique. ``name`` is its name in the journal and in copies; the rest of a divided batch keeps it.
    """

    __slots__ = ("claimed", "due_ms", "name", "number", "pop_ms", "queue", "start", "timer", "tries", "waiting")

    def __init__(
        self, queue: PopQueue, start: int, waiting: int, pop_ms: int, due_ms: int, number: int, name: int
    ) -> None:
        self.queue = queue
        self.start = start
        self.waiting = waiting
        self.pop_ms = pop_ms
        self.due_ms = due_ms
        self.number = number
        self.name = name
        self.timer = -1
        self.claimed = False
        self.tries = 0

    def lowest(self) -> int:
        """The lowest message that is not acknowledged; there must be one."""
        return self.start + (self.waiting & -self.waiting).bit_length() - 1

    def offsets(self) -> Iterator[int]:
        """List the messages that are not acknowledged."""
        return numbers_of(self.start, self.waiting)


class QueueRows(Packed):
    """Some rows of a queue."""

    __slots__ = ("queue",)

    def __init__(self, queue: PopQueue, first: int) -> None:
        super().__init__(first)
        self.queue = queue


class PopQueue:
    """One queue as one group pops it. ``next`` is offered next; ``gone``: its topic or its group was deleted.

    ``packed`` has most batches, in order; ``batches`` the others by handle, and ``heap`` by their lowest message. At
    ``heap_max`` entries it loses those of batches that are done with.
    """

    __slots__ = (
        "batches", "block", "busy", "count", "gone", "group", "heap", "heap_max", "next", "packed", "published",
        "queue_id", "ref", "topic",
    )  # fmt: skip

    def __init__(self, group: str, topic: str, queue_id: int, begin: int, ref: int = 0) -> None:
        self.group = group
        self.topic = topic
        self.queue_id = queue_id
        self.ref = ref
        self.next = begin
        self.published = begin
        self.packed: list[QueueRows] = []
        self.batches: dict[tuple[int, int], Batch] = {}
        self.heap: list[tuple[int, int, Batch]] = []
        self.heap_max = _HEAP_MIN
        self.block: OrderBlock | None = None
        self.count = 0
        self.busy = False
        self.gone = False

    def packed_for(self, start: int, waiting: int, due_ms: int) -> QueueRows | None:
        """Rows that a batch can be added to; None if it can be no row."""
        packed = self.packed
        if packed:
            last = packed[-1]
            if not last.takes(start, waiting, due_ms):
                return None
            if len(last) < PACKED_MAX:
                return last
        new = QueueRows(self, start)
        if not new.takes(start, waiting, due_ms):
            return None
        packed.append(new)
        return new

    def packed_at(self, start: int) -> int:
        """Index in ``packed`` of the only one that may have a row beginning there; -1 if there is none."""
        return bisect_right(self.packed, start, key=_FIRST) - 1

    def hold_back(self, batch: Batch) -> None:
        """Let the offset not pass a batch before all of its messages are done with. The caller holds the lock.

        `committed` only removes what is done with from the top. Below one message that is held for long, as many
        others may come and go as there is time for.
        """
        heap = self.heap
        if len(heap) >= self.heap_max:
            heap = self.heap = [entry for entry in heap if entry[2].waiting]
            heapify(heap)
            self.heap_max = max(_HEAP_MIN, 2 * len(heap))
        heappush(heap, (batch.lowest(), batch.number, batch))

    def committed(self) -> int:
        """The first message that is not done with. The caller holds the lock, or no reviver runs."""
        heap = self.heap
        lowest = self.next
        if self.packed:
            low = self.packed[0].lowest()
            if low < lowest:
                lowest = low
        while heap:
            key, number, batch = heap[0]
            if not batch.waiting:
                heappop(heap)
                continue
            first = batch.lowest()
            if first == key:
                lowest = min(lowest, key)
                break
            heapreplace(heap, (first, number, batch))
        if self.block is not None and self.block.waiting:
            lowest = min(lowest, self.block.waiting[0])
        return lowest

    def in_flight(self) -> list[int]:
        """List the messages in flight, those whose copies are not durable yet among them."""
        return [offset for _, start, bits, _, _ in self.rows() for offset in numbers_of(start, bits)]

    def rows(self) -> Iterator[Row]:
        """List all batches with messages in flight, those whose copies are not durable yet with the name they had."""
        for packed in self.packed:
            yield from packed.rows()
        for _, _, batch in self.heap:
            if batch.waiting:
                yield batch.name, batch.start, batch.waiting, max(batch.pop_ms, ~batch.pop_ms), batch.due_ms

    def check(self) -> list[str]:
        """Say everything that is wrong; empty when nothing is."""
        wrong = []
        offsets = self.in_flight()
        name = f"{self.group}/{self.topic}-{self.queue_id}"
        if len(set(offsets)) != len(offsets):
            wrong.append(f"{name}: a message is in flight twice")
        if len(offsets) != self.count:
            wrong.append(f"{name}: {self.count} messages are counted, {len(offsets)} are in flight")
        if self.gone:
            return wrong
        if any(offset >= self.next for offset in offsets):
            wrong.append(f"{name}: a message is in flight that was not offered yet")
        live = {id(batch) for _, _, batch in self.heap if batch.waiting and batch.pop_ms >= 0}
        if live != {id(batch) for batch in self.batches.values()}:
            wrong.append(f"{name}: batches by handle are not those of the heap")
        wrong += [f"{name}: {sentence}" for packed in self.packed for sentence in packed.check()]
        if any(later.first <= one.last for one, later in pairwise(self.packed)):
            wrong.append(f"{name}: packed rows are not in order")
        if not all(packed.live for packed in self.packed[:-1]):
            wrong.append(f"{name}: there are packed rows of nothing")
        waiting = [] if self.block is None else self.block.waiting
        if self.committed() != min([self.next, *offsets, *waiting]):
            wrong.append(f"{name}: committed is {self.committed()}")
        return wrong
