"""`PutColumns`: the common part of puts that keep many messages as NumPy columns.

Ten thousand records then cost a few NumPy calls in each layer: some milliseconds under the append lock.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from remoting.layout import OFFSET_AT, QUEUE_ENTRY_BYTES, QUEUE_OFFSET_AT
from store.derived.consume_queue import ConsumeQueue
from store.derived.consume_queues import ConsumeQueues
from store.derived.key_rows import Column, rows_of_columns
from store.derived.queue_entries import pack_entries
from store.put.put import Put

__all__ = ["Longs", "PutColumns", "unaligned"]

Longs = NDArray[np.int64]


class PutColumns(Put):
    """Records back to back, queue by queue, and the columns that the store needs of them, in the same order.

    ==============  ================================================================================
    ``queues``      list of (topic, queue id, count): the first rows belong to the first; no queue twice
    ``sizes``       int64 array, bytes of each record
    ``tags_codes``  int64 array, what goes to the ConsumeQueue
    ``hashes``      uint32 array, what the key index gets
    ``owners``      int64 array, the row that each hash belongs to
    ==============  ================================================================================
    """

    __slots__ = (
        "_begins",
        "_data",
        "_numbers",
        "_queues",
        "_starts",
        "_store_ms_at",
        "hashes",
        "owners",
        "queues",
        "sizes",
        "tags_codes",
    )

    def __init__(self) -> None:
        super().__init__(0)
        self._data = bytearray()
        self._store_ms_at = 0
        self._queues: list[ConsumeQueue] = []
        self.queues: list[tuple[str, int, int]] = []
        self.sizes: Longs = _NONE
        self._starts: Longs = _NONE
        self._numbers: Longs = _NONE
        self.tags_codes: Longs = _NONE
        self.hashes: Column = _NONE
        self.owners: Longs = _NONE

    def __len__(self) -> int:
        return len(self.sizes)

    @property
    def longest(self) -> int:
        """Bytes of the longest record."""
        return int(self.sizes.max())

    @property
    def last_bytes(self) -> int:
        """Bytes of the last record."""
        return int(self.sizes[-1])

    def where(self) -> list[tuple[str, int]]:
        """Topic and queue id of each queue."""
        return [(topic, queue_id) for topic, queue_id, _ in self.queues]

    def places(self, position: int) -> Longs:
        """CommitLog position of each record, if the first one stands at ``position``."""
        return self._starts + position

    def number(self, queues: ConsumeQueues) -> int:
        """Take the next queue offsets of its queues; returns how many."""
        self._queues = [queues.get(topic, queue_id) for topic, queue_id, _ in self.queues]
        numbers = np.arange(len(self.sizes))
        begin = 0
        for queue, (_, _, count) in zip(self._queues, self.queues, strict=True):
            numbers[begin : begin + count] += queue.next - begin  # `arange` has put `begin` there already
            queue.next += count
            begin += count
        self._numbers = numbers
        self.first = int(numbers[0])
        return begin

    def give_back(self) -> None:
        """Give the queue offsets back."""
        for queue, (_, _, count) in zip(self._queues, self.queues, strict=True):
            queue.next -= count

    def joined_to(self, buffer: bytearray, position: int, store_ms: int) -> bytearray:
        """Write the three numbers into the records and append them; if ``buffer`` is empty, returns the records."""
        data, starts = self._data, self._starts
        longs = unaligned(data, ">i8")
        longs[starts + QUEUE_OFFSET_AT] = self._numbers
        longs[starts + OFFSET_AT] = starts + position
        longs[starts + self._store_ms_at] = store_ms
        if not buffer:
            return data
        buffer += data
        return buffer

    def derive(self, position: int, store_ms: int, queues: ConsumeQueues, index_rows: list[bytes]) -> None:
        """Append its queue entries and its rows of the key index."""
        positions = self.places(position)
        entries = pack_entries(positions, self.sizes, self.tags_codes)
        begin = 0
        for queue, (_, _, count) in zip(self._queues, self.queues, strict=True):
            end = begin + count * QUEUE_ENTRY_BYTES
            queues.append(queue, entries[begin:end], count)
            begin = end
        index_rows.append(rows_of_columns(self.hashes, positions[self.owners], store_ms))


def unaligned(data: bytes | bytearray, kind: str) -> NDArray[Any]:
    """A view of ``data`` as numbers of type ``kind``: element n is the number that begins at byte n."""
    # The trick: an ndarray over the bytes with a stride of 1, so that element n is the integer that starts at byte n.
    # NumPy reads and writes unaligned elements, and the array copies nothing.
    dtype = np.dtype(kind)
    return np.ndarray((len(data) - dtype.itemsize + 1,), dtype, data, 0, (1,))


_NONE: Longs = np.empty(0, np.int64)
