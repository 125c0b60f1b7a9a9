"""One journal segment in memory: a few dozen bytes for each record, found by key without a disk read.

The columns (due, id, file position, size, version, CRC) stand in accept order, so an ordinal is an index.
Finding by key needs an order:

==========  =====================================================================================
sorted      ordinals below ``ordered``: one index array, made by the spiller in the background (NumPy sorts
            without the interpreter lock) and swapped in under the delivery lock
tail        the rest, some thousands in a busy segment: one vectorised comparison over all of it
==========  =====================================================================================

How records get into the columns stands in `store.spill.journal.segment_rows`.

``upper`` says which records are still this segment's: those with a key below it. The others live in runs.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from remoting.layout import FILE_HEADER_BYTES
from store.disk.file import File
from store.spill.journal.segment_rows import SegmentRows
from store.spill.rows.done_set import DoneSet
from store.spill.rows.model import DUE_MAX, LAST_KEY, Key
from store.spill.rows.page_cache import RunPageCache
from store.spill.rows.source import Fetch, Longs, SourceBatch

__all__ = ["JournalSegment"]

_EMPTY = np.empty(0, np.int64)
_RECORD_BYTES_GUESS = 160


class JournalSegment(SegmentRows):
    """A journal file and the columns of its records. The caller holds the delivery lock.

    ``end`` (where the next frame goes), ``appended`` and ``closed`` belong to the journal and its lock.
    """

    __slots__ = ("_gap", "appended", "base", "closed", "closed_ms", "end", "order", "ordered", "size", "upper")

    def __init__(self, no: int, base: int, size: int, file: File, capacity: int | None = None) -> None:
        super().__init__(no, file, max(16, size // _RECORD_BYTES_GUESS) if capacity is None else capacity)
        self.base = base
        self.size = size
        self.end = FILE_HEADER_BYTES
        self.appended = 0
        self.closed = False
        self.closed_ms: int | None = None
        self.upper: Key = LAST_KEY
        self.order: NDArray[np.int32] = np.empty(0, np.int32)
        self.ordered = 0
        self._gap: tuple[Key, int] = ((DUE_MAX, DUE_MAX), 0)

    @property
    def complete(self) -> bool:
        """True if it is closed and all its records are published (or withdrawn)."""
        return self.closed and self.solid == self.appended

    @property
    def settled(self) -> bool:
        """True if it is complete and sorted: only its done bits and ``upper`` still change."""
        return self.complete and self.ordered == self.count

    @property
    def is_scattered(self) -> bool:
        """False: ordinals count in the order of acceptance, which is that of the file."""
        return False

    @property
    def writes_ahead(self) -> int:
        """2: into a run, and into the CommitLog."""
        return 2

    @property
    def journal_end(self) -> int:
        """The end of this segment: a move must be durable before its record is in a run.

        Otherwise a power cut could lose the move, and both the old record and its copy in the run would be live.
        """
        return self.base + self.end

    @property
    def unsorted_bytes(self) -> int:
        """Up to the end of the last frame."""
        return self.end

    def owns(self, ordinal: int) -> bool:
        """True if the record still lives here (and was published); a hole, too, which no ref names."""
        if ordinal >= self.count:
            return False
        due = self.dues.item(ordinal)
        upper = self.upper
        return due < upper[0] or (due == upper[0] and self.ids.item(ordinal) < upper[1])

    def owns_all(self, ordinals: Longs) -> bool:
        """True if all of these records live here (and were published)."""
        return int(ordinals.max()) < self.count and bool(self.owned_mask(ordinals).all())

    def owned_mask(self, ordinals: Longs) -> NDArray[np.bool_]:
        """For each ordinal, whether the record still lives here."""
        due, id_ = self.upper
        dues = self.dues[ordinals]
        # A hole has the key (DUE_MAX, 0), which is below `LAST_KEY`: the bound alone would let it count.
        mask: NDArray[np.bool_] = ((dues < due) | ((dues == due) & (self.ids[ordinals] < id_))) & (dues != DUE_MAX)
        return mask

    def done_elsewhere(self) -> Longs:
        """Ordinals of done records whose key is not below ``upper``."""
        ordinals = self.done.ordinals(0, self.count)
        return ordinals[~self.owned_mask(ordinals)]

    def recount(self) -> None:
        """Count the live records again (after recovery, or when ``upper`` has changed)."""
        everything = np.arange(self.count, dtype=np.int64)
        self.live = int(np.count_nonzero(self.live_mask(everything)))

    def lower_upper(self, upper: Key) -> None:
        """Give away every record with key >= ``upper``.

        This runs under the delivery lock, so ``live`` is counted over the records that are left: usually few.
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
        """Find the place in the order of the first key >= ``key`` (> ``key`` with ``after``)."""
        due, id_ = key
        if after:
            id_ += 1
        # By hand: `searchsorted` knows no composite keys. `item` gives plain integers instead of NumPy's slower ones.
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
            end = want  # extended so that it does not end between two versions with one key, see below
            while end < got and self._are_versions(picked.item(end - 1), picked.item(end)):
                end += 1
            picked = picked[:end]
        if len(picked) == got:
            # The next scan begins behind the last key: another version with the same key would never be found.
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
        """True if two records have the same key: one message, moved to the due time that it had."""
        return self.ids.item(one) == self.ids.item(other) and self.dues.item(one) == self.dues.item(other)

    def _remember_gap(self, after: Key, start: int, high: int) -> None:
        """Remember that nothing is live between ``after`` and the next record of the order.

        That stays true: records in the sorted part only ever become done. Later scans of this range cost nothing.
        """
        if high < self.ordered:
            until = int(self.dues[self.order[high]])
        else:
            until = DUE_MAX
        # From `upper` on nothing is owned, and `upper` only decreases: the gap has no end.
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
            # Few of many are wanted: one partition is cheaper than sorting all. `<=` keeps all that are due together.
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
            # Ascending ids occur once each (a move would repeat one), so one search finds all.
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
            # Behind the last id any index will do: the comparison below decides.
            ordinals = np.minimum(own.searchsorted(ids), self.count - 1)
            index = np.flatnonzero(own[ordinals] == ids)
            ordinals = ordinals[index]
            mask = self.owned_mask(ordinals)
            return ordinals[mask], index[mask], self.versions[ordinals[mask]].astype(np.int64)
        index = np.minimum(ids.searchsorted(own), len(ids) - 1)
        ordinals = np.flatnonzero(ids[index] == own)
        ordinals = ordinals[self.owned_mask(ordinals)]
        return ordinals, index[ordinals], self.versions[ordinals].astype(np.int64)

    def twin(self, cache: RunPageCache) -> JournalSegment:  # noqa: ARG002 (all of it is in memory)
        """The same records with the done-set of the last durable checkpoint: a relocation copies from this twin.

        The columns are shared, not copied. ``live`` is not counted yet: `recount` takes milliseconds and needs no lock.
        """
        # Room for one record: the columns made here are replaced by the shared ones.
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
