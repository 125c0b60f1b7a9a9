"""The columns of a journal segment's records, in accept order, and how records get into them.

A record is visible from `SegmentRows.publish` on. Blocks may be published in any order: a move is published before
sends that still wait for their sync. Ordinals in between are holes until then, due at `DUE_MAX`: no scan reaches them.
"""

from __future__ import annotations

from mmap import mmap

import numpy as np
from numpy.typing import NDArray

from remoting.layout import FRAME_ROW_BYTES
from store.disk.file import File
from store.spill.rows.done_set import DoneSet
from store.spill.rows.format import ROW, ROW_DTYPE
from store.spill.rows.model import DUE_MAX
from store.spill.rows.source import Longs, Places, Source

__all__ = ["SegmentRows"]

_COLUMN_BYTES = 32
_SMALL_BYTES = 20 * FRAME_ROW_BYTES


class SegmentRows(Source):
    """Due, id, file position, size, version and CRC of each record. The caller holds the delivery lock."""

    __slots__ = ("_holes", "at", "crcs", "dues", "id_max", "id_min", "ids", "ids_ascend", "sizes", "solid", "versions")

    def __init__(self, no: int, file: File, capacity: int) -> None:
        super().__init__(no, file, DoneSet())
        self.solid = 0  # ordinals below are all published
        self._holes: dict[int, int] = {}  # published behind a hole: first ordinal -> end
        self.ids_ascend = True
        self.id_min = DUE_MAX
        self.id_max = 0
        self._allocate(capacity)

    def _allocate(self, capacity: int) -> None:
        # Anonymous pages: memory that was never written costs nothing, so the columns get their full size at once.
        # All of it goes back to the system with the segment; malloc would keep it as fragments.
        pages = mmap(-1, capacity * _COLUMN_BYTES)
        self.dues: Longs = np.frombuffer(pages, np.int64, capacity, 0)
        self.ids: Longs = np.frombuffer(pages, np.int64, capacity, 8 * capacity)
        self.at = np.frombuffer(pages, np.uint32, capacity, 16 * capacity)
        self.sizes = np.frombuffer(pages, np.uint32, capacity, 20 * capacity)
        self.versions = np.frombuffer(pages, np.uint32, capacity, 24 * capacity)
        self.crcs = np.frombuffer(pages, np.uint32, capacity, 28 * capacity)

    def _reserve(self, count: int) -> None:
        if count <= len(self.dues):
            return
        dues, ids = self.dues, self.ids
        words = (self.at, self.sizes, self.versions, self.crcs)
        self._allocate(max(count, 2 * len(dues)))
        used = self.count
        self.dues[:used] = dues[:used]
        self.ids[:used] = ids[:used]
        for target, source in zip((self.at, self.sizes, self.versions, self.crcs), words, strict=True):
            target[:used] = source[:used]

    def publish(self, first: int, at: int, rows: bytes) -> None:
        """Put the rows of a frame (or of many, in accept order) into the columns, from ordinal ``first`` on."""
        if len(rows) <= _SMALL_BYTES:
            self._publish_few(first, at, rows)
            return
        table = np.frombuffer(rows, ROW_DTYPE)
        sizes = table["size"]
        starts = np.cumsum(sizes, dtype=np.int64)
        starts += at
        starts -= sizes
        self.load(first, table, starts)

    def _publish_few(self, first: int, at: int, rows: bytes) -> None:
        """`publish` for a few records: one by one, because NumPy's cost per call would exceed that of the records."""
        end = first + len(rows) // FRAME_ROW_BYTES
        self._open_up(first, end)
        dues, ids, starts = self.dues, self.ids, self.at
        sizes, versions, crcs = self.sizes, self.versions, self.crcs
        ordinal, total, last, low = first, 0, self.id_max, self.id_min
        for due, id_, size, version, crc in ROW.iter_unpack(rows):
            dues[ordinal] = due
            ids[ordinal] = id_
            starts[ordinal] = at + total
            sizes[ordinal] = size
            versions[ordinal] = version
            crcs[ordinal] = crc
            if id_ > last:
                last = id_
            else:
                self.ids_ascend = False
            if id_ < low:
                low = id_
            ordinal += 1
            total += size
        self.id_min, self.id_max = low, last
        self._close_up(first, end, total)

    def _open_up(self, first: int, end: int) -> None:
        """Make room for ordinals ``first … end - 1``; ordinals that are skipped become holes."""
        self._reserve(end)
        if first > self.count:
            self.dues[self.count : first] = DUE_MAX
            self.ids[self.count : first] = 0
            # Holes have id 0: a binary search over the ids would go astray.
            self.ids_ascend = False

    def _close_up(self, first: int, end: int, size: int) -> None:
        """Update the counters after records were put into the columns."""
        self.data_bytes += size
        self.count = max(self.count, end)
        self.live += end - first
        if first == self.solid:
            self.solid = end
            while self._holes and self.solid in self._holes:
                self.solid = self._holes.pop(self.solid)
        else:
            self._holes[first] = end

    def load(self, first: int, table: NDArray[np.void], starts: Longs) -> None:
        """Put rows with their file positions into the columns, from ordinal ``first`` on."""
        end = first + len(table)
        self._open_up(first, end)
        ids = table["id"]
        low, high = int(ids.min()), int(ids.max())
        if low <= self.id_max or (len(ids) > 1 and not bool((ids[1:] > ids[:-1]).all())):
            self.ids_ascend = False
        self.id_min = min(self.id_min, low)
        self.id_max = max(self.id_max, high)
        self.dues[first:end] = table["due"]
        self.ids[first:end] = ids
        self.at[first:end] = starts
        self.sizes[first:end] = table["size"]
        self.versions[first:end] = table["version"]
        self.crcs[first:end] = table["crc"]
        self._close_up(first, end, int(table["size"].sum(dtype=np.int64)))

    def identities(self, ordinals: Longs) -> tuple[Longs, Longs]:
        """Delay ids and versions of records, owned or not."""
        return self.ids[ordinals], self.versions[ordinals].astype(np.int64)

    def places(self, ordinals: Longs) -> Places:
        """File positions, sizes and CRCs of records."""
        return self.at[ordinals].tolist(), self.sizes[ordinals].tolist(), self.crcs[ordinals].tolist()
