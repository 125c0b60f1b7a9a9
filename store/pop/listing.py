"""`Listing`: all that is in flight as rows of the journal, some at a time, while pops and acks change it.

A row says what there is at the moment in which it is made. A batch that becomes an object meanwhile is not missed: the
rows of a queue are listed first, and its objects are looked up when that is done. It may be listed twice.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from store.pop.pop_queue import Batch, PopQueue, QueueRows
from store.pop.rows import batch_row, block_row, queue_row

__all__ = ["Listing"]


class Listing:
    """One listing; false when all is listed. Changes that were made after it began may or may not be in it.

    Args:
        queues: What is listed.
    """

    __slots__ = ("_batches", "_packed", "_queue", "_todo")

    def __init__(self, queues: Iterable[PopQueue]) -> None:
        self._todo = deque(queues)
        self._queue: PopQueue | None = None  # the one that is listed now: its objects are still to come
        self._packed: list[QueueRows] = []
        self._batches: list[Batch] = []

    def __bool__(self) -> bool:
        return bool(self._todo or self._queue is not None or self._batches)

    def rows(self, count: int) -> list[bytes]:
        """Make some ``count`` rows more. The caller holds the lock of `InFlight`."""
        rows: list[bytes] = []
        while self and len(rows) < count:
            if self._packed:
                packed = self._packed.pop()
                ref = packed.queue.ref
                rows += [batch_row(ref, *row, -1) for row in packed.rows()]
            elif self._queue is not None:
                self._batches = [batch for _, _, batch in self._queue.heap if batch.waiting]
                self._queue = None
            elif self._batches:
                one = self._batches.pop()
                # Acks may have come since the batches were looked up.
                if one.waiting:
                    rows.append(batch_row(one.queue.ref, one.name, one.start, one.waiting, one.pop_ms, one.due_ms, -1))
            else:
                queue = self._todo.popleft()
                if not queue.gone:
                    rows.append(queue_row(queue.ref, queue.group, queue.topic, queue.queue_id, queue.next))
                    if queue.block is not None:
                        rows.append(block_row(queue.ref, queue.block))
                    # A copy, because rows of the queue become objects meanwhile.
                    self._queue, self._packed = queue, queue.packed[:]
        return rows
