"""A forecast: counts the messages due before each of some times, without reading the messages.

A run is sorted by due time, so "how many of its records are due before t" is an ordinal. The due time of the first
record of every page is kept in memory, from the first question on for runs that were there at open (8 bytes for 291
records: 275 KB for 10,000,000). So a time lies within one page, and that page, after its checksum was compared, gives
the exact ordinal. If times and runs would need too many reads, the ordinal is interpolated between the first due times
of two pages: then at most one page of records is counted in a neighbouring bar. Records that are done or live in
another file are subtracted by the done-set.

A journal segment is counted by its columns in memory.

The delivery lock is held only to copy what changes (bounds and done-set of one file at a time, microseconds), not
during reads. So the answer is not that of a single moment, which a forecast does not need.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from remoting.layout import FILE_HEADER_BYTES, PAGE_HEAD_BYTES
from store.disk.errors import StoreCorruptError, StoreError
from store.disk.file import File
from store.spill.journal.segment import JournalSegment
from store.spill.rows.model import DUE_MAX
from store.spill.rows.page_cache import RunPageCache
from store.spill.rows.source import Longs
from store.spill.runs.run import Run
from store.spill.state.hidden import frozen_run, hidden_keys

if TYPE_CHECKING:
    from store.spill.state.spill_state import SpillState

__all__ = ["Outlook", "as_bounds"]

_T = TypeVar("_T")

EXACT_READS_MAX = 1024
"""Most pages read for one answer; if it would take more, bars are interpolated."""
TRIES = 3
_DUE = np.dtype("<i8")
_CACHE_BYTES = 1 << 20


class Outlook:
    """Counts pending messages by due time. Any thread."""

    def __init__(self, state: SpillState) -> None:
        self._state = state

    def counts_below(self, bounds: Longs) -> tuple[Longs, bool]:
        """Count the pending messages due before each of some times; also say whether all counts are exact.

        ``bounds`` is an int64 array of ascending times (epoch ms); the counts have its shape. A time within a page that
        can be neither read nor made again is interpolated. Raises StoreError if a file cannot be read, or was removed
        during each of `TRIES` tries.
        """
        return self._tried(lambda lenient: self._counts(bounds, lenient))

    def last_due(self, before_ms: int = DUE_MAX) -> int | None:
        """The latest due time (epoch ms) of a pending message that is due before ``before_ms``; None if there is none.

        Reads one page or a few. Raises StoreError.
        """
        return self._tried(lambda lenient: self._last_due(np.array([before_ms], np.int64), lenient))

    def _tried(self, count: Callable[[bool], _T]) -> _T:
        """Try several times; the last time leniently: what is unreadable then is damaged."""
        for _ in range(TRIES - 1):
            # Files that are removed meanwhile: not there, closed (ValueError), or their bytes are a hole.
            with suppress(StoreError, ValueError, OSError):
                return count(False)
        return count(True)

    def _last_due(self, before: Longs, lenient: bool) -> int | None:
        sources = [source for source in dict(self._state.sources).values() if source.live]
        runs = sorted((source for source in sources if isinstance(source, Run)), key=lambda run: -run.shape.due_max)
        last: int | None = None
        for segment in sources:
            if isinstance(segment, JournalSegment):
                dues = self._live_dues(segment)
                if len(dues := dues[dues < before[0]]):
                    last = max(int(dues.max()), last or 0)
        for run in runs:
            if last is not None and run.shape.due_max <= last:
                break
            with self._state.lock:
                first, end, done = run.first, run.end, run.done.copy()
            # Nothing below the prefix is live, and its pages may be holes.
            first = max(first, done.prefix)
            if first < end and run.shape.due_max >= before[0]:
                end = min(end, self._ordinals(run, before, first, True, lenient)[0].item(0))
            if first < end <= done.top:
                live = np.flatnonzero(~done.range_mask(first, end))
                end = first + int(live[-1]) + 1 if len(live) else first
            if end > first:
                last = max(self._due_of(run, end - 1, before.item(0), lenient), last or 0)
        return last

    def _due_of(self, run: Run, ordinal: int, before_ms: int, lenient: bool) -> int:
        """When a record is due; leniently: if its page is damaged, the last one on it that is due before a time."""
        number = ordinal // run.rows_per_page
        try:
            page = run.twin(RunPageCache(_CACHE_BYTES)).page(number)
            return page.dues.item(ordinal - page.first)
        except StoreCorruptError:
            if not lenient:
                raise
        with self._state.lock:
            twin = frozen_run(run)
        dues = [due_ms for due_ms, _ in hidden_keys(twin, [number])[0] if due_ms < before_ms]
        return dues[-1] if dues else self._first_dues(run).item(number)

    def _counts(self, bounds: Longs, lenient: bool) -> tuple[Longs, bool]:
        sources = dict(self._state.sources)
        runs = [source for source in sources.values() if isinstance(source, Run) and source.live]
        reads = sum(np.count_nonzero((bounds > run.shape.due_min) & (bounds <= run.shape.due_max)) for run in runs)
        exact = bool(reads <= EXACT_READS_MAX)
        total = np.zeros(len(bounds), np.int64)
        for run in runs:
            counts, is_exact = self._of_run(run, bounds, exact, lenient)
            total += counts
            exact = exact and is_exact
        for source in sources.values():
            if isinstance(source, JournalSegment) and source.live:
                total += self._of_segment(source, bounds)
        return total, exact

    def _of_segment(self, segment: JournalSegment, bounds: Longs) -> Longs:
        dues = self._live_dues(segment)
        # "right", because what is due at a bound is not below it.
        below = np.bincount(bounds.searchsorted(dues, "right"), minlength=len(bounds) + 1)
        counts: Longs = np.cumsum(below[: len(bounds)])
        return counts

    def _live_dues(self, segment: JournalSegment) -> Longs:
        with self._state.lock:
            count, upper, done = segment.count, segment.upper, segment.done.copy()
            # A segment that grows replaces its columns: these are the ones that `count` belongs to.
            columns, names = segment.dues, segment.ids
        dues = columns[:count]
        live = ~done.mask(np.arange(count, dtype=np.int64)) & (dues != DUE_MAX)
        live &= (dues < upper[0]) | ((dues == upper[0]) & (names[:count] < upper[1]))
        result: Longs = dues[live]
        return result

    def _of_run(self, run: Run, bounds: Longs, exact: bool, lenient: bool) -> tuple[Longs, bool]:
        with self._state.lock:
            first, end, done = run.first, run.end, run.done.copy()
        first = max(first, done.prefix)
        if first >= end:
            return np.zeros(len(bounds), np.int64), True
        ordinals, exact = self._ordinals(run, bounds, first, exact, lenient)
        ordinals = np.clip(ordinals, first, end)
        counts: Longs = ordinals - first
        if done.top > first:
            gone = np.concatenate(([0], np.cumsum(done.range_mask(first, end), dtype=np.int64)))
            counts -= gone[ordinals - first]
        return counts, exact

    def _ordinals(self, run: Run, bounds: Longs, first: int, exact: bool, lenient: bool) -> tuple[Longs, bool]:
        """For each time, the first ordinal due at or after it, searched from ``first`` on; and whether all are exact.

        A time is interpolated if not ``exact``, or, leniently, if its page is damaged.
        """
        rows = run.rows_per_page
        page = first // rows
        firsts = self._first_dues(run)[page:]
        inside = firsts.searchsorted(bounds, "left") - 1  # the page in which each time lies; -1: before all of them
        ordinals = np.where(bounds > run.shape.due_max, run.shape.count, (page + np.maximum(inside, 0)) * rows)
        is_guessed = (inside >= 0) & (bounds <= run.shape.due_max)
        if exact:
            is_guessed[:] = False
            twin = run.twin(RunPageCache(_CACHE_BYTES))
            for at in np.flatnonzero((bounds > run.shape.due_min) & (bounds <= run.shape.due_max)).tolist():
                try:
                    ordinals[at] = _ordinal(twin, bounds.item(at), page + max(int(inside[at]), 0), page)
                except StoreCorruptError:
                    if not lenient:
                        raise
                    exact = False
                    is_guessed[at] = inside[at] >= 0
        if len(wanted := np.flatnonzero(is_guessed)):
            lows = firsts[inside[wanted]]
            highs = np.append(firsts[1:], run.shape.due_max)[inside[wanted]]
            share = (bounds[wanted] - lows) / np.maximum(highs - lows, 1)
            ordinals[wanted] += np.minimum(share * rows, rows).astype(np.int64)
        result: Longs = np.minimum(ordinals, run.shape.count)
        return result, exact

    def _first_dues(self, run: Run) -> Longs:
        """The due time of each page's first record; for a page in a hole, the smallest due time of the run."""
        if run.first_dues is None:
            size = run.shape.page_bytes
            at = FILE_HEADER_BYTES + PAGE_HEAD_BYTES
            firsts = np.frombuffer(_heads(run.file, range(at, at + run.shape.pages * size, size)), _DUE)
            run.first_dues = _in_order(run, np.clip(firsts, run.shape.due_min, run.shape.due_max))
        return run.first_dues


def _in_order(run: Run, firsts: Longs) -> Longs:
    """Re-read, with checksums, the pages whose first due times are out of order: one of each pair is damaged.

    A wrong due time that is still in order moves an interpolated bar by one page at most.
    """
    twin, read = run.twin(RunPageCache(_CACHE_BYTES)), set[int]()
    while True:
        falls = np.flatnonzero(firsts[:-1] > firsts[1:]).tolist()
        numbers = sorted({number for at in falls for number in (at, at + 1)} - read)
        if not numbers:
            result: Longs = np.maximum.accumulate(firsts)
            return result
        read.update(numbers)
        for number in numbers:
            try:
                firsts[number] = twin.page(number).dues[0]
            except StoreCorruptError:  # it cannot be rebuilt either
                firsts[number] = firsts[number - 1] if number else run.shape.due_min


def _ordinal(twin: Run, due_ms: int, number: int, lowest: int) -> int:
    """The first ordinal that is due at or after a time: in page ``number``, or in one near it."""
    page = twin.page(number)
    while page.dues[0] >= due_ms and number > lowest:
        number -= 1
        page = twin.page(number)
    while page.dues[-1] < due_ms and number + 1 < twin.shape.pages:
        following = twin.page(number + 1)
        if following.dues[0] >= due_ms:
            break
        number, page = number + 1, following
    return page.first + int(page.dues.searchsorted(due_ms, "left"))


def _heads(file: File, places: Sequence[int]) -> bytes:
    """The eight bytes at each of these file positions, joined."""
    return b"".join([file.pread(_DUE.itemsize, place) for place in places])


def as_bounds(times_ms: Sequence[int]) -> Longs:
    """Ascending times (epoch ms) as the array that `Outlook.counts_below` takes."""
    return np.array(times_ms, np.int64)
