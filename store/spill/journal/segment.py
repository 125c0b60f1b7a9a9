"""One journal segment in memory: a few dozen bytes for each record, found by key without a disk read.

The columns (due, id, file position, size, version, CRC) stand in accept order, so an ordinal is an index.
Finding by key needs an order:

==========  =====================================================================================
sorted      ordinals below ``ordered``: one index array, made by the spiller beside the work (numpy sorts
            without the interpreter lock) and swapped in under the delivery lock
tail        the rest, some thousands in a busy segment: one vectorised comparison over all of it
==========  =====================================================================================

A record is visible from `publish` on. Blocks may be published in any order (a move is published before sends
that still wait for their sync), so ordinals in between are holes: due `DUE_MAX`, which no scan reaches.

``upper`` says which records are still this segment's: those with a key below it. The others live in runs.
"""

from __future__ import annotations

from mmap import mmap

import numpy as np
from numpy.typing import NDArray

from remoting.layout import FILE_HEADER_BYTES, FRAME_ROW_BYTES
from store.disk.files import File
from store.spill.rows.done_set import DoneSet
from store.spill.rows.format import ROW, ROW_DTYPE
from store.spill.rows.model import DUE_MAX, LAST_KEY, Key
from store.spill.rows.page_cache import RunPageCache
from store.spill.rows.source import Fetch, Places, Source, SourceBatch

__all__ = ["JournalSegment"]

Longs = NDArray[np.int64]
_EMPTY = np.empty(0, np.int64)
_RECORD_BYTES_GUESS = 160
_COLUMN_BYTES = 32
_SMALL_BYTES = 20 * FRAME_ROW_BYTES


class JournalSegment(Source):
    """A journal file and the columns of its records. The caller holds the delivery lock.

    ``end`` (where the next frame goes), ``appended`` and ``closed`` belong to the journal and its lock.
    """

    __slots__ = (
        "_gap",
        "_holes",
        "appended",
        "at",
        "base",
        "closed",
        "closed_ms",
        "crcs",
        "dues",
        "end",
        "id_max",
        "id_min",
        "ids",
        "ids_ascend",
        "order",
        "ordered",
        "size",
        "sizes",
        "solid",
        "upper",
        "versions",
    )

    def __init__(self, no: int, base: int, size: int, file: File, capacity: int | None = None) -> None:
        super().__init__(no, file, DoneSet())
        self.base = base
        self.size = size
        self.end = FILE_HEADER_BYTES
        self.appended = 0
        self.closed = False
        self.closed_ms: int | None = None
        self.solid = 0  # ordinals below are all published
        self._holes: dict[int, int] = {}  # published behind a hole: first ordinal -> end
        self.upper: Key = LAST_KEY
        self.order: NDArray[np.int32] = np.empty(0, np.int32)
        self.ordered = 0
        self.ids_ascend = True
        self.id_min = DUE_MAX
        self.id_max = 0
        self._gap: tuple[Key, int] = ((DUE_MAX, DUE_MAX), 0)
        self._allocate(max(16, size // _RECORD_BYTES_GUESS) if capacity is None else capacity)

    def _allocate(self, capacity: int) -> None:
        # Anonymous pages: what was never written costs nothing, so the columns are made at full size at once, and
        # all of it goes back to the system with the segment (malloc would keep it, in pieces).
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
        """The same, without numpy's cost for each call: a few records one by one."""
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
        """Make room for ordinals ``first … end - 1``; what is skipped is a hole."""
        self._reserve(end)
        if first > self.count:
            self.dues[self.count : first] = DUE_MAX
            self.ids[self.count : first] = 0
            self.ids_ascend = False

    def _close_up(self, first: int, end: int, size: int) -> None:
        """Count what was put into the columns."""
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

    @property
    def complete(self) -> bool:
        """Closed, and everything in it published (or abandoned)."""
        return self.closed and self.solid == self.appended

    @property
    def settled(self) -> bool:
        """Complete and sorted: nothing of it changes any more but its done bits and ``upper``."""
        return self.complete and self.ordered == self.count

    @property
    def is_scattered(self) -> bool:
        """An ordinal is a place in the order of acceptance, which is the file's."""
        return False

    @property
    def writes_ahead(self) -> int:
        """Into a run, and into the CommitLog."""
        return 2

    @property
    def journal_end(self) -> int:
        """A moved message must not be durable in a run before the move itself is: the old copy would be back."""
        return self.base + self.end

    @property
    def unsorted_bytes(self) -> int:
        """Up to the last frame."""
        return self.end

    def owns(self, ordinal: int) -> bool:
        """Whether the record still lives here (and was published)."""
        if ordinal >= self.count:
            return False
        due = self.dues.item(ordinal)
        upper = self.upper
        return due < upper[0] or (due == upper[0] and self.ids.item(ordinal) < upper[1])

    def owns_all(self, ordinals: Longs) -> bool:
        """Whether all of these records live here (and were published)."""
        return int(ordinals.max()) < self.count and bool(self.owned_mask(ordinals).all())

    def owned_mask(self, ordinals: Longs) -> NDArray[np.bool_]:
        """For each ordinal, whether the record still lives here."""
        due, id_ = self.upper
        dues = self.dues[ordinals]
        mask: NDArray[np.bool_] = ((dues < due) | ((dues == due) & (self.ids[ordinals] < id_))) & (dues != DUE_MAX)
        return mask

    def done_elsewhere(self) -> Longs:
        """Those whose key is not below ``upper``."""
        ordinals = self.done.ordinals(0, self.count)
        return ordinals[~self.owned_mask(ordinals)]

    def recount(self) -> None:
        """Count the live records again (after recovery, or when ``upper`` has changed)."""
        everything = np.arange(self.count, dtype=np.int64)
        self.live = int(np.count_nonzero(self.live_mask(everything)))

    def lower_upper(self, upper: Key) -> None:
        """Give away every record with key >= ``upper``.

        Counted over what is left, which is little as a rule: this happens under the delivery lock.
        """
        if upper < self.upper:
            self.upper = upper
            if self.ordered == self.count:
                left = self.order[: self.position(upper, False)].astype(np.int64)
                self.live = len(left) - int(np.count_nonzero(self.done.mask(left)))
            else:
                self.recount()

    def sort(self, count: int) -> NDArray[np.int32]:
        """Compute the key order of the first ``count`` (all published) ordinals; needs no lock."""
        return np.lexsort((self.ids[:count], self.dues[:count])).astype(np.int32)

    def set_order(self, order: NDArray[np.int32]) -> None:
        """Use an order computed by `sort`."""
        self.order = order
        self.ordered = len(order)
        self._gap = ((DUE_MAX, DUE_MAX), 0)

    def position(self, key: Key, after: bool) -> int:
        """Where in the order the first key >= ``key`` stands (> ``key`` with ``after``)."""
        due, id_ = key
        if after:
            id_ += 1
        order, due_of, id_of = self.order.item, self.dues.item, self.ids.item
        low, high = 0, self.ordered
        while low < high:
            middle = (low + high) >> 1
            ordinal = order(middle)
            found = due_of(ordinal)
            if found < due or (found == due and id_of(ordinal) < id_):
                low = middle + 1
            else:
                high = middle
        return low

    def fetch_sorted(self, after: Key, until_ms: int, want: int) -> SourceBatch | None:
        """Live records with after < key and due < until in the sorted part, at most ``want`` of them."""
        if not self.live or not self.ordered:
            return None
        gap_from, gap_until = self._gap
        if gap_from <= after and until_ms <= gap_until:
            return None
        low = self.position(after, True)
        stop = min((until_ms, 0), self.upper)
        high = self.position(stop, False)
        start = low
        found: list[Longs] = []
        got = 0
        while low < high and got < want:
            ordinals = self.order[low : min(high, low + want)].astype(np.int64)
            low += len(ordinals)
            ordinals = ordinals[~self.done.mask(ordinals)]
            if len(ordinals):
                found.append(ordinals)
                got += len(ordinals)
        if not got:
            self._remember_gap(after, start, high)
            return None
        picked = found[0] if len(found) == 1 else np.concatenate(found)
        if got > want:
            end = want
            while end < got and self._are_versions(picked.item(end - 1), picked.item(end)):
                end += 1
            picked = picked[:end]
        if len(picked) == got:
            # Who goes on behind the last key would never see another version with that very key.
            last, versions = picked.item(-1), []
            while low < high and self._are_versions(last, (ordinal := self.order.item(low))):
                low += 1
                if ordinal not in self.done:
                    versions.append(ordinal)
            if versions:
                picked = np.concatenate((picked, np.array(versions, np.int64)))
        more = low < high or len(picked) < got
        return SourceBatch(self.dues[picked], self.ids[picked], picked + (self.no << 32), more)

    def _are_versions(self, one: int, other: int) -> bool:
        """Whether two records are of one message, moved and due at the same time: they have the same key."""
        return self.ids.item(one) == self.ids.item(other) and self.dues.item(one) == self.dues.item(other)

    def _remember_gap(self, after: Key, start: int, high: int) -> None:
        """Nothing live between ``after`` and the next record of the order: it need not be looked at again."""
        if high < self.ordered:
            until = int(self.dues[self.order[high]])
        else:
            until = DUE_MAX
        if (until, 0) > self.upper:
            until = DUE_MAX
        if start <= high:
            self._gap = (after, until)

    def fetch_tail(self, after: Key, until_ms: int, want: int) -> SourceBatch | None:
        """Live records with after < key and due < until in the unsorted rest, at most ``want`` of them."""
        first, end = self.ordered, self.count
        if first == end or not self.live:
            return None
        dues = self.dues[first:end]
        near = np.flatnonzero((dues >= after[0]) & (dues < min(until_ms, DUE_MAX)))
        if not len(near):
            return None
        ordinals = near + first
        dues = self.dues[ordinals]
        ids = self.ids[ordinals]
        keep = ((dues != after[0]) | (ids > after[1])) & self.owned_mask(ordinals) & ~self.done.mask(ordinals)
        ordinals, dues, ids = ordinals[keep], dues[keep], ids[keep]
        if not len(ordinals):
            return None
        more = len(ordinals) > want
        if len(ordinals) > 4 * want:
            smallest = dues <= np.partition(dues, want)[want]
            ordinals, dues, ids = ordinals[smallest], dues[smallest], ids[smallest]
        order = np.lexsort((ids, dues))[:want]
        return SourceBatch(dues[order], ids[order], ordinals[order] + (self.no << 32), more)

    def fetchers(self) -> list[Fetch]:
        """The parts that a scan asks."""
        return [self.fetch_sorted, self.fetch_tail]

    def lookup(self, id_: int) -> list[tuple[int, int, int]]:
        """Every owned record of an id: (ordinal, due, version)."""
        if not self.id_min <= id_ <= self.id_max:
            return []
        ids = self.ids[: self.count]
        if self.ids_ascend:
            at = int(ids.searchsorted(id_))
            ordinals = [at] if at < self.count and ids.item(at) == id_ else []
        else:
            ordinals = np.flatnonzero(ids == id_).tolist()
        return [(o, self.dues.item(o), self.versions.item(o)) for o in ordinals if self.owns(o)]

    def lookup_many(self, ids: Longs) -> tuple[Longs, Longs, Longs]:
        """For sorted, unique ids: every owned record of them as (ordinals, index of the id, versions)."""
        if not len(ids) or ids[-1] < self.id_min or ids[0] > self.id_max:
            return _EMPTY, _EMPTY, _EMPTY
        own = self.ids[: self.count]
        if self.ids_ascend:
            ordinals = np.minimum(own.searchsorted(ids), self.count - 1)
            index = np.flatnonzero(own[ordinals] == ids)
            ordinals = ordinals[index]
            mask = self.owned_mask(ordinals)
            return ordinals[mask], index[mask], self.versions[ordinals[mask]].astype(np.int64)
        index = np.minimum(ids.searchsorted(own), len(ids) - 1)
        ordinals = np.flatnonzero(ids[index] == own)
        ordinals = ordinals[self.owned_mask(ordinals)]
        return ordinals, index[ordinals], self.versions[ordinals].astype(np.int64)

    def identities(self, ordinals: Longs) -> tuple[Longs, Longs]:
        """Delay ids and versions of records, owned or not."""
        return self.ids[ordinals], self.versions[ordinals].astype(np.int64)

    def places(self, ordinals: Longs) -> Places:
        """File positions, sizes and CRCs of records."""
        return self.at[ordinals].tolist(), self.sizes[ordinals].tolist(), self.crcs[ordinals].tolist()

    def twin(self, cache: RunPageCache) -> JournalSegment:  # noqa: ARG002 (all of it is in memory)
        """The same records with the done-set of the last durable checkpoint: what a relocation copies from.

        Its ``live`` is not counted yet (`recount`): that takes milliseconds, and needs no lock.
        """
        other = JournalSegment(self.no, self.base, self.size, self.file, 1)
        other.dues = self.dues
        other.ids = self.ids
        other.at = self.at
        other.sizes = self.sizes
        other.versions = self.versions
        other.crcs = self.crcs
        other.count = self.count
        other.solid = self.solid
        other.end = self.end
        other.appended = self.appended
        other.closed = self.closed
        other.data_bytes = self.data_bytes
        other.upper = self.upper
        other.order = self.order
        other.ordered = self.ordered
        other.ids_ascend = self.ids_ascend
        other.id_min = self.id_min
        other.id_max = self.id_max
        if self.saved is not None:
            other.done = DoneSet.decode(self.saved)[0]
        return other
