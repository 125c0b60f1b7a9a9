"""A run: an immutable file of records sorted by key, read page by page, with next to nothing in memory.

::

    header | column pages | records, in key order, without gaps | id pages | trailer
             due, id, size, version, CRC                          (id, due, ordinal, version), sorted by id

Every column page holds the same number of records, so an ordinal gives its page. A key is found by bisecting column
pages with pread (a million records: 12 reads, and the next scan starts where the last one ended), an id by bisecting id
pages. One cache, limited in bytes, has the pages of all runs.

``first … end - 1`` are the ordinals that live here. Below ``first`` are records that the frontier had reached
before the run took over (their journal segment keeps them: "born done"); from ``end`` on they were merged into
another run. Nothing below the durable done prefix is ever read again: that part of the file may be a hole.

An *index* is a run without the records: they stay in the journal segment that they were accepted into (``data``),
and each row says where. It has all records of the segment; ``first`` and ``end`` say which are its own.

`store.spill.runs.run_pages` reads the pages, and rebuilds damaged ones.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from remoting.layout import FILE_HEADER_BYTES
from store.disk.errors import StoreCorruptError
from store.disk.file import File
from store.spill.rows.done_set import DoneSet
from store.spill.rows.format import ColumnPage
from store.spill.rows.model import DUE_MAX, Key
from store.spill.rows.page_cache import RunPageCache
from store.spill.rows.run_shape import RunShape
from store.spill.rows.source import Fetch, Longs, SourceBatch
from store.spill.runs.run_pages import RunPages

__all__ = ["Run"]

_EMPTY = np.empty(0, np.int64)


class Run(RunPages):
    """One run, open for reading. The caller holds the delivery lock, or owns a twin."""

    __slots__ = ("_gap", "_hint", "end", "first", "first_dues", "indexed_ms", "pinned_ms", "punched")

    def __init__(
        self, no: int, file: File, shape: RunShape, store_id: bytes, cache: RunPageCache, first: int = 0, end: int = -1
    ) -> None:
        super().__init__(no, file, shape, store_id, cache, first)
        self.first = first
        self.end = shape.count if end < 0 else end
        self.live = self.end - first
        self.pinned_ms: int | None = None  # since when only a rest is left here
        self.indexed_ms: int | None = None  # of an index: when it was last considered for copying
        self.punched = 0  # ordinals below lie in a hole; 0 after a restart: punching a hole again does no harm
        self.first_dues: Longs | None = None  # due time of each page's first record, for forecasts; None: not known yet
        self._hint = 0
        self._gap: tuple[Key, int] = ((DUE_MAX, DUE_MAX), 0)

    @property
    def settled(self) -> bool:
        """True: a run never changes."""
        return True

    @property
    def is_scattered(self) -> bool:
        """True for an index: its records stand in the order in which they were accepted."""
        return self.segment is not None

    @property
    def writes_ahead(self) -> int:
        """2 for an index, whose records are still to be copied; else 1."""
        return 2 if self.segment is not None else 1

    @property
    def journal_end(self) -> int:
        """0: all records of a run were durable when it was written."""
        return 0

    @property
    def unsorted_bytes(self) -> int:
        """The size of an index's segment; 0 for other runs."""
        return 0 if self.segment is None else self.segment.size

    @property
    def saved_prefix(self) -> int:
        """Number of leading records that are done according to the last durable checkpoint."""
        # The first field of an encoded done-set is its prefix: no need to decode all of it.
        return 0 if self.saved is None else int.from_bytes(self.saved[:4], "little")

    @property
    def hides(self) -> bool:
        """True if a column page could not be read. Scans miss its records, so the run must not be copied or merged."""
        # A copy, because another thread may note damage meanwhile.
        return any(number >= 0 for number in list(self.damage))

    @property
    def draining(self) -> bool:
        """True if part of it has been taken over by another run already."""
        return self.end < self.shape.count

    def position(self, key: Key, after: bool) -> int:
        """The first ordinal with a key >= ``key`` (> ``key`` with ``after``).

        Records below the done prefix are not looked at: their pages may be holes.
        """
        if after:
            key = (key[0], key[1] + 1)
        low = max(self.first, min(self.done.prefix, self.end - 1)) // self.rows_per_page
        high = (self.shape.count - 1) // self.rows_per_page
        # A scan goes on in the page in which it ended, or in the next one: both are tried before bisecting.
        for near in (max(low, self._hint), max(low, self._hint + 1)):
            if near <= high:
                page = self.try_page(near)
                if page is None:
                    break
                if (near == low or _key(page, 0) < key) and key <= _key(page, len(page) - 1):
                    self._hint = near
                    return page.first + _find(page, key)
        # The last page that begins below the key: the answer is in it, or is the first of the next one.
        floor = low
        while low < high:
            middle = (low + high + 1) >> 1
            probe, page = middle, self.try_page(middle)
            while page is None and probe < high:  # an unreadable page has no key: ask the next readable one
                probe += 1
                page = self.try_page(probe)
            if page is not None and _key(page, 0) < key:
                low = probe
            else:
                high = middle - 1
        self._hint = low
        page = self.try_page(low)
        if page is None:
            return max(low, floor) * self.rows_per_page
        return page.first + _find(page, key)

    def fetch_sorted(self, after: Key, until_ms: int, want: int) -> SourceBatch | None:
        """Live records with after < key and due < until: one page's worth, at most ``want`` of them."""
        if not self.live or until_ms <= self.shape.due_min or after[0] > self.shape.due_max:
            return None
        gap_from, gap_until = self._gap
        if gap_from <= after and until_ms <= gap_until:
            return None
        ordinal = max(self.position(after, True), self.first)
        while True:
            ordinal = self.done.next_clear(ordinal)
            if ordinal >= self.end:
                self._gap = (after, DUE_MAX)
                return None
            number = ordinal // self.rows_per_page
            page = self.try_page(number)
            if page is None:
                ordinal = (number + 1) * self.rows_per_page
                continue
            start = ordinal - page.first
            stop = min(len(page), self.end - page.first)
            high = int(page.dues[:stop].searchsorted(until_ms, "left"))
            if start >= high:
                self._gap = (after, int(page.dues[start]))
                return None
            self._hint = number
            live = ~self.done.range_mask(ordinal, page.first + high)
            picked = np.flatnonzero(live) + start
            taken = min(want, len(picked))
            while taken < len(picked) and _key(page, picked.item(taken)) == _key(page, picked.item(taken - 1)):
                taken += 1  # the next scan begins behind the last key: another version with that key would be missed
            more = (high == stop and page.first + stop < self.end) or len(picked) > taken
            last = _key(page, picked.item(taken - 1))
            dues, ids, ordinals = page.dues[picked[:taken]], page.ids[picked[:taken]], picked[:taken] + page.first
            if more and taken == len(picked):
                versions = self._versions_of(last, page.first + stop)
                if versions:
                    dues = np.concatenate((dues, np.full(len(versions), last[0], np.int64)))
                    ids = np.concatenate((ids, np.full(len(versions), last[1], np.int64)))
                    ordinals = np.concatenate((ordinals, np.array(versions, np.int64)))
            return SourceBatch(dues, ids, ordinals + (self.no << 32), more)

    def _versions_of(self, key: Key, ordinal: int) -> list[int]:
        """Live ordinals with this key from ``ordinal`` on, the first of a page: further versions of a message."""
        found: list[int] = []
        while ordinal < self.end:
            page = self.try_page(ordinal // self.rows_per_page)
            if page is None or _key(page, ordinal - page.first) != key:
                break
            if ordinal not in self.done:
                found.append(ordinal)
            ordinal += 1
        return found

    def fetchers(self) -> list[Fetch]:
        """The parts that a scan asks."""
        return [self.fetch_sorted]

    def owns(self, ordinal: int) -> bool:
        """True if the record lives here."""
        return self.first <= ordinal < self.end

    def owns_all(self, ordinals: Longs) -> bool:
        """True if all of these records live here."""
        return self.first <= int(ordinals.min()) and int(ordinals.max()) < self.end

    def owned_mask(self, ordinals: Longs) -> NDArray[np.bool_]:
        """For each ordinal, whether the record lives here."""
        mask: NDArray[np.bool_] = (ordinals >= self.first) & (ordinals < self.end)
        return mask

    def done_elsewhere(self) -> Longs:
        """Ordinals of done records in the part that another run has taken over."""
        return self.done.ordinals(self.end, self.count)

    def restore(self, done: DoneSet) -> None:
        """Take the done-set of the durable checkpoint; `recount` afterwards."""
        super().restore(done)
        self.done.add_range(0, self.first)

    def recount(self) -> None:
        """Count the live records again (after recovery, or when ``first`` or ``end`` have changed)."""
        self.live = self.end - self.first - self.done.count_range(self.first, self.end)

    def set_first(self, first: int) -> None:
        """Leave the records below ordinal ``first`` to the sources they were copied from."""
        self.first = first
        self.done.add_range(0, first)
        self.recount()

    def set_end(self, end: int) -> None:
        """Give away every record from ordinal ``end`` on."""
        if end < self.end:
            self.end = max(end, self.first)
            self.recount()

    def _id_page_below(self, id_: int) -> int:
        """The last id page that begins below ``id_`` (or page 0): rows of ``id_`` begin in it or in the next one."""
        low, high = 0, self.shape.id_pages - 1
        while low < high:
            middle = (low + high + 1) >> 1
            if int(self.id_rows(middle)["id"][0]) < id_:
                low = middle
            else:
                high = middle - 1
        return low

    def lookup(self, id_: int) -> list[tuple[int, int, int]]:
        """Every owned record of an id: (ordinal, due, version)."""
        if not self.shape.id_min <= id_ <= self.shape.id_max:
            return []
        found: list[tuple[int, int, int]] = []
        try:
            number = self._id_page_below(id_)
            while number < self.shape.id_pages:
                rows = self.id_rows(number)
                low = int(rows["id"].searchsorted(id_, "left"))
                high = int(rows["id"].searchsorted(id_, "right"))
                found += [(o, due, v) for _, due, o, v in rows[low:high].tolist() if self.owns(o)]
                if high < len(rows):
                    break
                number += 1
        except StoreCorruptError as error:
            self.damage[-1] = str(error)
            ordinals, _, versions = self._search_columns(np.array([id_], np.int64))
            found = [
                (o, self.page(o // self.rows_per_page).dues.item(o % self.rows_per_page), v)
                for o, v in zip(ordinals.tolist(), versions.tolist(), strict=True)
            ]
        return found

    def lookup_many(self, ids: Longs) -> tuple[Longs, Longs, Longs]:
        """For sorted, unique ids: every owned record of them as (ordinals, index of the id, versions)."""
        start = int(ids.searchsorted(self.shape.id_min, "left"))
        stop = int(ids.searchsorted(self.shape.id_max, "right"))
        if start >= stop:
            return _EMPTY, _EMPTY, _EMPTY
        try:
            return self._search_ids(ids, start, stop)
        except StoreCorruptError as error:
            self.damage[-1] = str(error)
            return self._search_columns(ids)

    def _search_ids(self, ids: Longs, start: int, stop: int) -> tuple[Longs, Longs, Longs]:
        """Look ``ids[start:stop]`` up in the id pages: ranges of pages are halved until they are single pages."""
        parts: list[tuple[Longs, Longs, Longs]] = []
        ranges = [(0, self.shape.id_pages, start, stop)]
        while ranges:
            low, high, start, stop = ranges.pop()
            if start >= stop:
                continue
            if high - low > 1:
                middle = (low + high) >> 1
                head = int(self.id_rows(middle)["id"][0])
                # Rows of the id at the boundary may be in both halves, so it goes into both.
                left = int(ids[start:stop].searchsorted(head, "right")) + start
                right = int(ids[start:stop].searchsorted(head, "left")) + start
                ranges += ((middle, high, right, stop), (low, middle, start, left))
                continue
            rows = self.id_rows(low)
            own = rows["id"].astype(np.int64)
            parts.append(self._matches(ids, own, rows["ordinal"].astype(np.int64), rows["version"].astype(np.int64)))
        return _joined(parts)

    def _search_columns(self, ids: Longs) -> tuple[Longs, Longs, Longs]:
        """`_search_ids` without the id pages, because one is damaged: goes through all column pages."""
        parts: list[tuple[Longs, Longs, Longs]] = []
        for number in range(min(self.done.prefix, self.end) // self.rows_per_page, self.shape.pages):
            page = self.try_page(number)
            if page is not None:
                ordinals = np.arange(page.first, page.first + len(page), dtype=np.int64)
                parts.append(self._matches(ids, page.ids, ordinals, page.versions.astype(np.int64)))
        return _joined(parts)

    def _matches(self, ids: Longs, own: Longs, ordinals: Longs, versions: Longs) -> tuple[Longs, Longs, Longs]:
        # Behind the last id any index will do: the comparison below decides.
        index = np.minimum(ids.searchsorted(own), len(ids) - 1)
        known = (ids[index] == own) & (ordinals >= self.first) & (ordinals < self.end)
        return ordinals[known], index[known], versions[known]

    def punchable(self) -> tuple[int, list[tuple[int, int]]]:
        """The holes that the durable done prefix allows: (all ordinals below this one, [(file position, bytes)]).

        One delivered page is kept: if the page behind it is damaged, it tells where the records of that begin.
        """
        target = min(self.saved_prefix, self.end)
        if target <= self.punched or target >= self.shape.count or self.is_index:
            return self.punched, []
        old, new = self.punched // self.rows_per_page, target // self.rows_per_page - 1
        if new <= old:
            return self.punched, []
        if self._in_hole(new):
            return (new + 1) * self.rows_per_page, []  # of an older version, which kept no page
        size = self.shape.page_bytes
        spots = [(FILE_HEADER_BYTES + old * size, (new - old) * size)]
        # Page `old` is the first one that is not in a hole yet, so it can still be read.
        begin = self.shape.data_at if old == 0 else int(self.page(old).starts[0])
        stop = int(self.page(new).starts[0])
        if stop > begin:
            spots.append((begin, stop - begin))
        return new * self.rows_per_page, spots

    def twin(self, cache: RunPageCache) -> Run:
        """The same run with the done-set of the last durable checkpoint, and a cache of its own."""
        other = Run(self.no, self.file, self.shape, self.store_id, cache, self.first, self.end)
        other.segment, other.data = self.segment, self.data
        if self.saved is not None:
            other.done = DoneSet.decode(self.saved)[0]
            other.done.add_range(0, self.first)
            other.recount()
        return other


def _key(page: ColumnPage, index: int) -> Key:
    return page.dues.item(index), page.ids.item(index)


def _find(page: ColumnPage, key: Key) -> int:
    """Index of the first record with a key >= ``key`` within a page, or its length."""
    due, id_ = key
    low = int(page.dues.searchsorted(due, "left"))
    high = int(page.dues.searchsorted(due, "right"))
    return low + int(page.ids[low:high].searchsorted(id_, "left"))


def _joined(parts: list[tuple[Longs, Longs, Longs]]) -> tuple[Longs, Longs, Longs]:
    if not parts:
        return _EMPTY, _EMPTY, _EMPTY
    columns = [np.concatenate([part[n] for part in parts]) for n in range(3)]
    return columns[0], columns[1], columns[2]
