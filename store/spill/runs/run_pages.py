"""The pages of a run's file: read, checked, cached, and rebuilt when they are damaged.

A damaged column page is rebuilt from its records in memory (`store.spill.runs.rebuild`) and noted in ``rebuilt``. If
that fails, its records, and only these, are hidden from scans. The page is noted in ``damage``, and the run is kept.
A page in a hole is no damage: nobody needs what was there.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from remoting.layout import FILE_HEADER_BYTES
from store.disk.errors import StoreCorruptError
from store.disk.file import File
from store.spill.journal.segment_columns import SegmentColumns
from store.spill.rows.done_set import DoneSet
from store.spill.rows.format import ColumnPage, IdRows, page_seed, read_column_page, read_id_page, read_place_page
from store.spill.rows.manifest import DataEntry
from store.spill.rows.page_cache import RunPageCache
from store.spill.rows.run_shape import RunShape
from store.spill.rows.source import Longs, Places, Source
from store.spill.runs.rebuild import place_before, rebuilt_page

__all__ = ["RunPages"]

_EMPTY = np.empty(0, np.int64)


class RunPages(Source):
    """A run's file with its pages. The caller holds the delivery lock, or owns a twin."""

    __slots__ = ("_cache", "_columns", "_seed", "damage", "rebuilt", "rows_per_page", "segment", "shape", "store_id")

    def __init__(
        self, no: int, file: File, shape: RunShape, store_id: bytes, cache: RunPageCache, first: int = 0
    ) -> None:
        super().__init__(no, file, DoneSet(first), shape.count, shape.data_bytes)
        self.segment: DataEntry | None = None  # of an index: the segment that ``data`` is
        self.shape = shape
        self.damage: dict[int, str] = {}
        """Number of an unreadable column page to a description of the damage; -1: of the id pages."""
        self.rebuilt: dict[int, str] = {}
        self.store_id = store_id
        self.rows_per_page = shape.rows_per_page
        self._seed = page_seed(store_id, no)
        self._cache = cache
        self._columns: SegmentColumns | None = None  # of an index with damage: the segment, read again

    def lead_to(self, segment: DataEntry, data: File) -> None:
        """Give an index the segment with its records, and the open file of that."""
        self.segment = segment
        self.data = data

    @property
    def is_index(self) -> bool:
        """True if the records are in a journal segment."""
        return self.segment is not None

    @property
    def path(self) -> Path:
        """The path of the file."""
        return self.file.path

    def page(self, number: int) -> ColumnPage:
        """Column page ``number``, read and checked. Raises StoreCorruptError if it is damaged and cannot be rebuilt."""
        found = self._cache.get(self.no, number)
        if found is None:
            try:
                found = self._read_page(number)
            except StoreCorruptError as error:
                again = self._rebuild(number)
                if again is None:
                    raise
                found = again
                self.rebuilt[number] = str(error)
            # `ColumnPage` adds the position of each record: 8 bytes.
            self._cache.put(self.no, number, found, self.shape.page_bytes + 8 * len(found))
        assert isinstance(found, ColumnPage)
        return found

    def _read_page(self, number: int) -> ColumnPage:
        size = self.shape.page_bytes
        at = FILE_HEADER_BYTES + number * size
        read = read_place_page if self.is_index else read_column_page
        page = read(self.file.pread(size, at), number, self._seed, self.path, at)
        self._check_place(page, number, at)
        return page

    def _rebuild(self, number: int) -> ColumnPage | None:
        """Rebuild a damaged column page from its records; None if that is not possible, or if it is a hole."""
        if self.damage.get(number) or self._in_hole(number):
            return None
        first = number * self.rows_per_page
        if self.segment is not None:
            if self._columns is None:
                self._columns = SegmentColumns.read(self.segment, self.data, self.store_id)
            if self._columns is None or len(self._columns) != self.shape.count:
                return None
            return self._columns.page(first, self.rows_per_page)
        for before_it in range(self._damaged_from(number), number):
            self.try_page(before_it)  # from the front: from the back, each page would recurse into the one before it
        position = self._begin(number)
        if position is None:
            return None
        count = min(self.rows_per_page, self.shape.count - first)
        return rebuilt_page(self.file, first, count, position, self.shape.data_at + self.shape.data_bytes)

    def _begin(self, number: int) -> int | None:
        """Where the records of page ``number`` begin, as other pages tell it; None if they do not."""
        if not number:
            return self.shape.data_at
        if self._in_hole(number - 1):
            return self._begin_behind_hole(number)
        before = self.try_page(number - 1)
        return None if before is None else before.starts.item(-1) + before.sizes.item(-1)

    def _begin_behind_hole(self, number: int) -> int | None:
        """`_begin` of a page that has a hole before it: counted back from the next page that can be read."""
        shape = self.shape
        after, end = number + 1, shape.data_at + shape.data_bytes
        while after < shape.pages:
            try:
                end = self._read_page(after).starts.item(0)
                break
            except StoreCorruptError:
                after += 1
        count = min(after * self.rows_per_page, shape.count) - number * self.rows_per_page
        return place_before(self.file, shape.data_at, end, count)

    def _in_hole(self, number: int) -> bool:
        """True if column page ``number`` lies in a hole: all of it is done, and it reads as zeros."""
        size = self.shape.page_bytes
        done = (number + 1) * self.rows_per_page <= self.done.prefix and not self.is_index
        return done and self.file.pread(size, FILE_HEADER_BYTES + number * size) == bytes(size)

    def _damaged_from(self, number: int) -> int:
        """The first page of the unbroken row of unreadable pages, none in a hole, that ends before page ``number``."""
        while number and self._cache.get(self.no, number - 1) is None and number - 1 not in self.damage:
            try:
                self._read_page(number - 1)
            except StoreCorruptError:
                if self._in_hole(number - 1):
                    break
                number -= 1
            else:
                break
        return number

    def _check_place(self, page: ColumnPage, number: int, at: int) -> None:
        """Check that a page has the ordinals that belong to it, and positions where records stand."""
        shape = self.shape
        first = number * self.rows_per_page
        begin, end = page.starts.item(0), page.starts.item(-1) + page.sizes.item(-1)
        if (page.first, len(page)) != (first, min(self.rows_per_page, shape.count - first)):
            raise StoreCorruptError(f"{self.path} at {at}: page {number} says {len(page)} records from {page.first} on")
        low, high = shape.data_at, shape.id_at
        if self.segment is not None:
            begin, end = page.starts.min().item(), (page.starts + page.sizes).max().item()
            low, high = FILE_HEADER_BYTES, self.segment.size
        if begin < low or end > high:
            raise StoreCorruptError(f"{self.path} at {at}: page {number} has its records at {begin} to {end}")

    def id_rows(self, number: int) -> IdRows:
        """Id page ``number``, read and checked. Raises StoreCorruptError if it is damaged."""
        found = self._cache.get(self.no, -1 - number)
        if found is None:
            size = self.shape.page_bytes
            at = self.shape.id_at + number * size
            found = read_id_page(self.file.pread(size, at), number, self._seed, self.path, at)
            self._cache.put(self.no, -1 - number, found, size)
        assert not isinstance(found, ColumnPage)
        return found

    def try_page(self, number: int) -> ColumnPage | None:
        """Column page ``number``; None if `page` fails, which is noted in ``damage`` unless the page is in a hole."""
        if number in self.damage:
            return None
        try:
            return self.page(number)
        except StoreCorruptError as error:
            if not self._in_hole(number):
                self.damage[number] = str(error)
            return None

    def identities(self, ordinals: Longs) -> tuple[Longs, Longs]:
        """Delay ids and versions of records, owned or not; ``ordinals`` ascend."""
        ids, versions = [_EMPTY], [_EMPTY]
        for page, inside in self._by_page(ordinals):
            ids.append(page.ids[inside])
            versions.append(page.versions[inside].astype(np.int64))
        return np.concatenate(ids), np.concatenate(versions)

    def places(self, ordinals: Longs) -> Places:
        """File positions, sizes and CRCs of records; ``ordinals`` ascend."""
        starts: list[int] = []
        sizes: list[int] = []
        crcs: list[int] = []
        for page, inside in self._by_page(ordinals):
            starts += page.starts[inside].tolist()
            sizes += page.sizes[inside].tolist()
            crcs += page.crcs[inside].tolist()
        return starts, sizes, crcs

    def _by_page(self, ordinals: Longs) -> list[tuple[ColumnPage, Longs]]:
        numbers = ordinals // self.rows_per_page
        cuts = np.flatnonzero(numbers[1:] != numbers[:-1]) + 1
        found = []
        for part in np.split(ordinals, cuts) if len(ordinals) else []:
            page = self.page(int(part[0]) // self.rows_per_page)
            found.append((page, part - page.first))
        return found
