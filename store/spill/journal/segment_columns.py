"""The content of an index: the records of a closed journal segment in key order, and in the order of their ids.

It is made from the segment in memory when the index is written, and from the segment's file when a page of the index
is damaged. Both must give the same pages. So all records count, delivered or not, except the holes of a repair.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from remoting.messages.checksum import crc32
from store.disk.errors import StoreError
from store.disk.file import File
from store.spill.journal.replay import read_segment
from store.spill.journal.segment import JournalSegment
from store.spill.rows.format import ID_DTYPE, ColumnPage, IdRows
from store.spill.rows.manifest import DataEntry
from store.spill.rows.model import DUE_MAX

__all__ = ["SegmentColumns"]


class SegmentColumns:
    """A complete segment in key order. ``order`` maps each ordinal of the index to its ordinal in the segment."""

    __slots__ = ("_segment", "order")

    def __init__(self, segment: JournalSegment) -> None:
        self._segment = segment
        # Holes are due at DUE_MAX, so they are sorted behind all records and are cut off here.
        self.order: NDArray[np.int32] = segment.order[: segment.position((DUE_MAX, 0), False)]

    @classmethod
    def read(cls, entry: DataEntry, file: File, store_id: bytes) -> SegmentColumns | None:
        """Read a segment's file; None if not all of it can be read."""
        segment = JournalSegment(entry.no, entry.base, entry.size, file)
        try:
            read_segment(segment, store_id)
        except StoreError:
            return None
        segment.set_order(segment.sort(segment.count))
        return cls(segment)

    def __len__(self) -> int:
        return len(self.order)

    def page(self, first: int, count: int) -> ColumnPage:
        """The records from ordinal ``first`` of the index on, at most ``count`` of them."""
        segment = self._segment
        picked = self.order[first : first + count]
        page = ColumnPage(
            first,
            segment.dues[picked],
            segment.ids[picked],
            segment.sizes[picked],
            segment.versions[picked],
            segment.crcs[picked],
            0,
        )
        page.starts = segment.at[picked].astype(np.int64)
        return page

    def by_id(self) -> NDArray[np.int64]:
        """The ordinals of the index, sorted by (delay id, version)."""
        segment, order = self._segment, self.order
        if segment.ids_ascend:
            # Then `order` is a permutation, and its inverse lists the index's ordinals by id: no second sort.
            ranks = np.empty(len(order), np.int64)
            ranks[order] = np.arange(len(order))
            return ranks
        return np.lexsort((segment.versions[order], segment.ids[order]))

    def id_rows(self, ordinals: NDArray[np.int64]) -> IdRows:
        """Rows of an id page for these ordinals of the index."""
        segment, picked = self._segment, self.order[ordinals]
        rows = np.empty(len(ordinals), ID_DTYPE)
        rows["id"] = segment.ids[picked]
        rows["due"] = segment.dues[picked]
        rows["ordinal"] = ordinals
        rows["version"] = segment.versions[picked]
        return rows

    def mend_places(self, page: ColumnPage, data: File) -> bool:
        """Correct the places of records that a repair has moved within the segment; returns whether there were any."""
        moved = 0
        spots = zip(page.starts.tolist(), page.sizes.tolist(), page.crcs.tolist(), strict=True)
        for index, (start, size, crc) in enumerate(spots):
            if crc32(data.pread(size, start)) == crc:
                continue
            wanted = (page.ids.item(index), page.versions.item(index), size, crc)
            segment = self._segment
            for ordinal in np.flatnonzero(segment.ids[: segment.count] == wanted[0]).tolist():
                columns = (segment.ids, segment.versions, segment.sizes, segment.crcs)
                if tuple(column.item(ordinal) for column in columns) == wanted:
                    page.starts[index] = segment.at.item(ordinal)
                    moved += 1
        return moved > 0

    @property
    def data_bytes(self) -> int:
        """Bytes of all records."""
        return int(self._segment.sizes[self.order].sum(dtype=np.int64))
