"""`Notes`: what has happened to `InFlight` since the journal last wrote, as rows to be written.

Acknowledgements of one batch are one row, however many came; of a queue that is popped in order the last state counts.
The caller holds the lock of `InFlight`.
"""

from __future__ import annotations

from store.pop.order_block import OrderBlock
from store.pop.rows import batch_row, block_row, gone_row, next_row, queue_row, taken_row

__all__ = ["Notes"]


class Notes:
    """Rows that are not written yet."""

    def __init__(self) -> None:
        self._rows: list[bytes] = []
        self._taken: dict[int, int] = {}
        self._blocks: dict[int, OrderBlock] = {}
        self.listing = False
        """True if a listing (`store.pop.listing`) is under way: a batch that becomes another object is noted, too."""

    def __bool__(self) -> bool:
        return bool(self._rows or self._taken or self._blocks)

    def opened(self, ref: int, group: str, topic: str, queue_id: int, next_offset: int) -> None:
        """A queue is popped from now on, under a reference of its own."""
        self._rows.append(queue_row(ref, group, topic, queue_id, next_offset))

    def gone(self, ref: int) -> None:
        """A queue is forgotten."""
        self._blocks.pop(ref, None)
        self._rows.append(gone_row(ref))

    def added(self, ref: int, number: int, start: int, bits: int, pop_ms: int, due_ms: int, next_offset: int) -> None:
        """Messages were handed out; ``next_offset`` as in `store.pop.rows.batch_row`."""
        self._rows.append(batch_row(ref, number, start, bits, pop_ms, due_ms, next_offset))

    def moved(self, ref: int, next_offset: int) -> None:
        """Note a queue's new next offset."""
        self._rows.append(next_row(ref, next_offset))

    def taken(self, number: int, bits: int) -> None:
        """Note messages of a batch that are done with."""
        self._taken[number] = self._taken.get(number, 0) | bits

    def blocked(self, ref: int, block: OrderBlock) -> None:
        """Note the messages of a queue that are now handed out in order."""
        self._blocks[ref] = block

    def take(self) -> list[bytes]:
        """Take all rows, in an order in which they can be read again."""
        # In this order, because a row may rely on earlier ones only: batches come before what was taken of them.
        rows = self._rows
        rows += [taken_row(number, bits) for number, bits in self._taken.items()]
        rows += [block_row(ref, block) for ref, block in self._blocks.items()]
        self._rows, self._taken, self._blocks = [], {}, {}
        return rows
