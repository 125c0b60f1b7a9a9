"""Merges sources in key order: a cursor over files that do not change, with little work per record.

Every source gives one batch of live records in key order (a page of a run, some hundred records of a segment), and says
whether there may be more behind it. A cursor keeps one batch of each source in a heap by first key, and a sorted buffer
of merged records that were not requested yet. A *round* moves some thousand records from the batches to the buffer: all
records at or below the bound.

    bound = smallest key at which a batch ends      A: 3 5 9 …more       B: 4 6 …more       C: 8 12
    round 1: bound 6 -> buffer 3 4 5 6              A: 9 …               B: (next batch)    C: not looked at

So disjoint sources, however many, cost one batch after the other. Sources that overlap cost one vectorised sort a
round. The next scan begins where the last one ended, without another read of a file.

Records may become done while they are in the buffer: the caller filters these out (`Cursor.keep`).
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heapify, heappop, heappush

import numpy as np
from numpy.typing import NDArray

from store.spill.rows.model import DUE_MAX, LAST_KEY, Key
from store.spill.rows.source import Fetch, Longs, SourceBatch

__all__ = ["Cursor", "first_of"]

ROUND_RECORDS = 4096
BATCH_RECORDS = 512
QUOTA_MIN = 16
_EMPTY = np.empty(0, np.int64)
_Entry = tuple[int, int, int, Fetch, SourceBatch]  # due, id, number, …: numbers differ, so functions are never compared
Merged = tuple[Longs, Longs, Longs]
"""Due times, delay ids and refs, in key order."""


class Cursor:
    """Live records of some sources behind a key, in key order; ``after`` is the key up to which they were taken."""

    __slots__ = ("_dues", "_heap", "_ids", "_refs", "after")

    def __init__(self, fetches: Iterable[Fetch], after: Key) -> None:
        self.after = after
        self._dues = self._ids = self._refs = _EMPTY
        self._heap: list[_Entry] = []
        for number, fetch in enumerate(fetches):
            # Without an end: later scans go on with the same batches.
            batch = fetch(after, DUE_MAX, BATCH_RECORDS)
            if batch is not None:
                self._heap.append((batch.dues.item(0), batch.ids.item(0), number, fetch, batch))
        heapify(self._heap)

    def reaches(self, after: Key) -> bool:
        """True if it can continue behind ``after``: nothing between would have to be skipped outside of the buffer."""
        if after < self.after:
            return False
        if not self._heap or after < self._heap[0][:2]:
            return True
        return len(self._dues) > 0 and after <= (self._dues.item(-1), self._ids.item(-1))

    def skip_to(self, after: Key) -> None:
        """Continue behind ``after``, for which `reaches` must be true."""
        self._drop(_upto(self._dues, self._ids, after))
        self.after = after

    def peek(self, until_ms: int, limit: int) -> Merged:
        """The next records with due < ``until_ms``, at most ``limit``; they stay until `advance`."""
        while len(self._dues) < limit and self._heap and self._heap[0][0] < until_ms:
            self._round()
        count = min(limit, int(self._dues.searchsorted(until_ms, "left")))
        return self._dues[:count], self._ids[:count], self._refs[:count]

    def keep(self, live: NDArray[np.bool_]) -> None:
        """Forget those of the next ``len(live)`` records that are not live."""
        count = len(live)
        self._dues = np.concatenate((self._dues[:count][live], self._dues[count:]))
        self._ids = np.concatenate((self._ids[:count][live], self._ids[count:]))
        self._refs = np.concatenate((self._refs[:count][live], self._refs[count:]))

    def advance(self, count: int) -> None:
        """Take the next ``count`` records, which `peek` has answered."""
        if count:
            self.after = (self._dues.item(count - 1), self._ids.item(count - 1))
            self._drop(count)

    def _drop(self, count: int) -> None:
        if count:
            self._dues, self._ids, self._refs = self._dues[count:], self._ids[count:], self._refs[count:]

    def _round(self) -> None:
        """Move everything up to the bound from the batches to the buffer."""
        heap = self._heap
        # Each source has its share of a round, so that the buffer grows by some thousand records at most.
        quota = max(QUOTA_MIN, ROUND_RECORDS // len(heap))
        bound = LAST_KEY
        parts: list[SourceBatch] = []
        opened: list[_Entry] = []
        # Each batch that is opened may lower the bound. One that begins above it has nothing for this round.
        while heap and heap[0][:2] <= bound:
            entry = heappop(heap)
            opened.append(entry)
            batch = entry[4]
            if batch.more or len(batch) > quota:
                at = min(quota, len(batch)) - 1
                bound = min(bound, (batch.dues.item(at), batch.ids.item(at)))
        for _, _, number, fetch, batch in opened:
            cut = _upto(batch.dues, batch.ids, bound)
            parts.append(SourceBatch(batch.dues[:cut], batch.ids[:cut], batch.refs[:cut], False))
            rest: SourceBatch | None = None
            if cut < len(batch):
                rest = SourceBatch(batch.dues[cut:], batch.ids[cut:], batch.refs[cut:], batch.more)
            elif batch.more:
                rest = fetch((batch.dues.item(-1), batch.ids.item(-1)), DUE_MAX, BATCH_RECORDS)
            if rest is not None:
                heappush(heap, (rest.dues.item(0), rest.ids.item(0), number, fetch, rest))
        dues, ids, refs = _sorted(parts)
        if len(self._dues):
            dues = np.concatenate((self._dues, dues))
            ids = np.concatenate((self._ids, ids))
            refs = np.concatenate((self._refs, refs))
        self._dues, self._ids, self._refs = dues, ids, refs


def first_of(cursor: Merged, others: list[SourceBatch], limit: int) -> Merged:
    """The first ``limit`` records of a cursor and of other batches.

    Each of them must hold its first ``limit`` records, or all that it has: else a record in between could be missing.
    """
    if not others:
        return cursor
    dues, ids, refs = _sorted([SourceBatch(*cursor, False), *others])
    return dues[:limit], ids[:limit], refs[:limit]


def _sorted(parts: list[SourceBatch]) -> Merged:
    if len(parts) == 1:
        return parts[0].dues, parts[0].ids, parts[0].refs
    dues = np.concatenate([part.dues for part in parts])
    ids = np.concatenate([part.ids for part in parts])
    refs = np.concatenate([part.refs for part in parts])
    order = np.lexsort((ids, dues))
    return dues[order], ids[order], refs[order]


def _upto(dues: Longs, ids: Longs, bound: Key) -> int:
    """Count the records with a key <= ``bound``; the records are in key order."""
    count = len(dues)
    if not count or (dues.item(-1), ids.item(-1)) <= bound:
        return count
    low = int(dues.searchsorted(bound[0], "left"))
    high = int(dues.searchsorted(bound[0], "right"))
    return low if low == high else low + int(ids[low:high].searchsorted(bound[1], "right"))
