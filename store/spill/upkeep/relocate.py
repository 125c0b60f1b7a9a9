"""Moves records from some files into a new run, in the background, so that no crash can lose or repeat one.

This spills a closed segment, merges runs, and frees a file that a few undelivered records pin.

======  ==============================================================  =====================================
step    what                                                            a crash after it
======  ==============================================================  =====================================
copy    live records with key >= split, in key order, to ``N.tmp``      ``N.tmp`` is removed
name    sync, rename, sync the directory                                ``N`` is unlisted: moved aside
list    one manifest: the run owns key >= switch, the sources the rest  the run owns; what the checkpoint says is
                                                                        done in a source counts for the run
switch  in memory, under the delivery lock, with what was done since    the same
save    a checkpoint that knows the run is durable                      sources that are finished may go
======  ==============================================================  =====================================

The copy reads *twins* (the same files, with the done-sets of the last durable checkpoint), so it needs no lock. Only
records that are *durably* done may be left out. A message that was delivered, moved or cancelled a moment ago comes
back if the power fails before that is on disk, and then it must be in the run that the manifest names. Records that
became done after that checkpoint are found by comparing done-sets, and are marked in the new run by id.

If a large part of a segment's records leaves it, they are not copied at once. Instead of the copy, an *index* is made
(`store.spill.runs.index_writer`): a run that leads to the segment's file. All other steps are the same.

A segment is copied or indexed only when all of it is durable. Otherwise a moved message could be in a run while its
move, which ends the older copy, is lost with the end of the journal.

Callers may hold refs of records below the frontier only. Normally ``split`` is well ahead of it. If the frontier has
come too near meanwhile, the switch is made at a later key, and the sources keep the records below it. If records below
the frontier are moved on purpose, their refs are kept as *ghosts* (ref -> id, version): a caller that still uses one is
forwarded to the record's present place.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from store.disk.errors import StoreCorruptError, StoreError
from store.spill.journal.segment import JournalSegment
from store.spill.journal.segment_columns import SegmentColumns
from store.spill.rows.done_set import DoneSet
from store.spill.rows.manifest import DataEntry, RunEntry
from store.spill.rows.merge import Cursor
from store.spill.rows.model import DUE_MAX, FIRST_KEY, Key
from store.spill.rows.page_cache import RunPageCache
from store.spill.rows.source import Fetch, Longs, Source
from store.spill.runs.index_writer import IndexWriter
from store.spill.runs.run import Run
from store.spill.runs.run_writer import Buffer, RunWriter
from store.spill.state.ghosts import Ghosts

if TYPE_CHECKING:
    from store.spill.state.spill_state import SpillState

__all__ = ["index", "relocate"]

SLICE_RECORDS = 128
SLICE_BYTES = 256 << 10
LOADED_MAX = 80 << 20
"""A journal segment up to this size is read into memory while it is copied: one read a portion, not one a record."""
LOAD_BYTES = 1 << 20
GHOST_MARGIN_MS = 60_000
"""Refs of copied records are noted if they are due up to this long after the frontier at the start."""
GHOSTS_AT_ONCE = 4096
SWITCH_MARGIN_MS = 5_000
CATCH_UP_AT_ONCE = 64
_CACHE_BYTES = 2 << 20
_ORDINAL = (1 << 32) - 1


class _Copy:
    """One relocation under way."""

    def __init__(self, state: SpillState, segments: Sequence[JournalSegment], runs: Sequence[Run], split: Key) -> None:
        self.state = state
        self.split = split
        self.segments, self.runs = segments, runs
        self.originals: dict[int, Source] = {source.no: source for source in (*segments, *runs)}
        cache = RunPageCache(_CACHE_BYTES)
        with state.lock:
            self.segment_twins = {segment.no: segment.twin(cache) for segment in segments}
            self.run_twins = {run.no: run.twin(cache) for run in runs}
            self.ghosts_below_ms = state.frontier_ms + GHOST_MARGIN_MS
        self.twins: dict[int, Source] = {**self.segment_twins, **self.run_twins}
        for twin in self.twins.values():
            twin.recount()
        self.bases: dict[int, DoneSet] = {no: twin.done for no, twin in self.twins.items()}
        self.before = ({segment.no: segment.upper for segment in segments}, {run.no: run.end for run in runs})
        self.ghosts: list[tuple[Longs, Longs, Longs, Longs]] = []
        self.run: Run | None = None
        self.loaded: memoryview | None = None

    def load(self) -> Generator[None]:
        """Read the segment into memory, if it is the only source: its records are needed in another order than stored.

        One read for each record would cost as much as the rest of the copy. Each read also releases the interpreter
        lock, and under load getting it back takes long.
        """
        (twin,) = self.twins.values() if len(self.twins) == 1 else (None,)
        if twin is None or not 0 < twin.unsorted_bytes <= LOADED_MAX:
            return
        end = twin.unsorted_bytes
        # Not a bytearray: that fills 64 MiB with zeros at once, and keeps the interpreter for 25 ms.
        data = np.empty(end, np.uint8).data
        for at in range(0, end, LOAD_BYTES):
            part = data[at : at + LOAD_BYTES]
            got = twin.data.pread_into(part, at)
            part[got:] = bytes(len(part) - got)  # behind the end of a damaged file are zeros, not what memory had
            yield
        self.loaded = data

    def write(self, writer: RunWriter) -> Generator[None]:
        """Copy every live record with key >= split."""
        yield from self.load()
        fetches: list[Fetch] = [twin.fetch_sorted for twin in self.twins.values()]
        cursor = Cursor(fetches, (self.split[0], self.split[1] - 1))
        while True:
            dues, ids, refs = cursor.peek(DUE_MAX, SLICE_RECORDS)
            if not len(refs):
                # Up to 80 MiB, not needed for the sync that follows.
                self.loaded = None
                self._refuse_hidden()
                return
            cursor.advance(self._write_some(writer, dues, ids, refs))
            yield

    def _refuse_hidden(self) -> None:
        """Raise StoreCorruptError if a page could not be read: its records were not copied, so they must stay."""
        for run in self.runs:
            twin = self.run_twins[run.no]
            if twin.hides:
                run.damage.update(twin.damage)
                raise StoreCorruptError("; ".join(twin.damage.values()))

    def _write_some(self, writer: RunWriter, dues: Longs, ids: Longs, refs: Longs) -> int:
        """Copy the first of these records, as many as one slice takes; returns how many."""
        count = len(refs)
        starts, sizes, crcs, versions = (np.empty(count, np.int64) for _ in range(4))
        numbers = refs >> 32
        for no in np.unique(numbers).tolist():
            where = np.flatnonzero(numbers == no)
            ordinals = refs[where] & _ORDINAL
            # `places` and `identities` need ascending ordinals.
            order = np.argsort(ordinals)
            where, ordinals = where[order], ordinals[order]
            twin = self.twins[no]
            starts[where], sizes[where], crcs[where] = twin.places(ordinals)
            versions[where] = twin.identities(ordinals)[1]
        ends = np.cumsum(sizes)
        taken = max(1, int(ends.searchsorted(SLICE_BYTES, "right")))
        spots = zip(starts[:taken].tolist(), sizes[:taken].tolist(), strict=True)
        records: list[Buffer]
        if (loaded := self.loaded) is not None:
            records = [loaded[start : start + size] for start, size in spots]
        else:
            files = [self.twins[no].data for no in numbers[:taken].tolist()]
            records = [file.pread(size, start) for file, (start, size) in zip(files, spots, strict=True)]
        writer.add(dues[:taken], ids[:taken], versions[:taken], crcs[:taken], records)
        if dues.item(0) < self.ghosts_below_ms:
            self.ghosts.append((refs[:taken], ids[:taken], versions[:taken], dues[:taken]))
        return taken

    def hand_to(self, run: Run) -> Generator[None]:
        """Let a run that is written take over: mark what is done meanwhile, then switch."""
        # Nobody else sees this twin, so `_catch_up` marks records in it without the lock.
        private = run.twin(RunPageCache(_CACHE_BYTES))
        yield from self._catch_up(private)
        run.done, run.live = private.done, private.live
        yield from self._switch(run)

    def _catch_up(self, run: Run) -> Generator[None]:
        """Mark in the new run what became done in the sources since the copy, until few records are missing.

        `_hand_over` marks these few under the lock, which is therefore held only for a moment.
        """
        # Not for ever: if deliveries are faster than this, `_hand_over` marks what is left under the lock.
        for _ in range(100):
            with self.state.lock:
                news = {no: source.done.since(self.bases[no], source.count) for no, source in self.originals.items()}
                missing = sum(map(len, news.values()))
                if missing <= CATCH_UP_AT_ONCE:
                    return
                self.bases = {no: source.done.copy() for no, source in self.originals.items()}
            for no, ordinals in news.items():
                for start in range(0, len(ordinals), 4096):
                    self._mark_in(run, no, ordinals[start : start + 4096])
                    yield

    def _mark_in(self, run: Run, no: int, ordinals: Longs) -> None:
        if not len(ordinals):
            return
        # From the twin, whose page cache belongs to this thread.
        ids, versions = self.twins[no].identities(ordinals)
        order = np.lexsort((versions, ids))
        ids, versions = ids[order], versions[order]
        last = np.ones(len(ids), np.bool_)
        last[:-1] = ids[1:] != ids[:-1]
        # Only the highest version of an id can have been live: if it is done, all versions up to it are.
        ids, versions = ids[last], versions[last]
        found, index, found_versions = run.lookup_many(ids)
        run.mark_many(found[found_versions <= versions[index]])

    def _switch(self, run: Run) -> Generator[None]:
        """List the run in the manifest, then hand over in memory."""
        state = self.state
        at = self.split
        while True:
            try:
                first = min(run.position(at, False), run.end) if at > self.split else run.first
                uppers = {no: min(upper, at) for no, upper in self.before[0].items()}
                ends = {no: min(end, self._end_of(no, at)) for no, end in self.before[1].items()}
                entry = RunEntry(run.no, first, run.end, run.shape, run.segment)
                state.directory.switch(entry, uppers, ends)
                with state.lock:
                    frontier_ms = state.frontier_ms
                    if frontier_ms <= max(at[0], self.ghosts_below_ms):
                        self._hand_over(run, at, first, ends, frontier_ms)
                        return
                # The frontier has come too far meanwhile: records that it has reached stay in their sources.
                at = max(at, (frontier_ms + SWITCH_MARGIN_MS, 0))
            except StoreError:
                # Also after a failed read: the manifest may name the run since the last time round. Its sources would
                # then be forgotten when they are finished, and what was delivered from them would be pending again.
                with contextlib.suppress(StoreError):
                    state.directory.switch_back(run.no, *self.before)
                raise
            yield

    def _end_of(self, no: int, key: Key) -> int:
        twin = self.run_twins[no]
        # Durably done records at the front were not copied: they stay where they are, and may lie in a hole.
        return max(twin.position(key, False) if key > FIRST_KEY else twin.first, twin.done.prefix)

    def _hand_over(self, run: Run, at: Key, first: int, ends: dict[int, int], frontier_ms: int) -> None:
        for no, source in self.originals.items():
            self._mark_in(run, no, source.done.since(self.bases[no], source.count))
        for segment in self.segments:
            segment.lower_upper(at)
        for older in self.runs:
            older.set_end(ends[older.no])
        if first:
            run.set_first(first)
        self.state.add_run(run)
        self.state.unsaved = True
        if frontier_ms > at[0] and self.ghosts:
            refs, ids, versions, dues = (np.concatenate([part[n] for part in self.ghosts]) for n in range(4))
            reached = (dues < frontier_ms) & (dues >= at[0])
            self.state.add_ghosts(Ghosts(refs[reached], ids[reached], versions[reached]))

    def done_from_the_first(self) -> None:
        """Compare with empty done-sets: an index has every record of the segment, also those that were done before."""
        self.bases = {no: DoneSet() for no in self.bases}

    def note_ghosts(self, columns: SegmentColumns, first: int, end: int) -> Generator[None]:
        """Note the refs of those records of an index that may come below the frontier before the switch."""
        (no,) = self.twins
        for start in range(first, end, GHOSTS_AT_ONCE):
            page = columns.page(start, min(GHOSTS_AT_ONCE, end - start))
            near = int(page.dues.searchsorted(self.ghosts_below_ms, "left"))
            refs = columns.order[start : start + near].astype(np.int64) + (no << 32)
            self.ghosts.append((refs, page.ids[:near], page.versions[:near].astype(np.int64), page.dues[:near]))
            if near < len(page):
                return
            yield


def index(state: SpillState, segment: JournalSegment, split: Key) -> Generator[None]:
    """Give all records with key >= ``split`` of a segment to an index of it; one slice a step.

    The segment must be complete and sorted. Raises StoreError: nothing has changed, try again later.
    """
    copy = _Copy(state, [segment], [], split)
    twin = copy.segment_twins[segment.no]
    columns = SegmentColumns(twin)
    first, end = (min(twin.position(key, False), len(columns)) for key in (split, twin.upper))
    if first >= end:
        return
    copy.done_from_the_first()
    directory = state.directory
    no = directory.take_no()
    writer = IndexWriter(directory.files, directory.runs_path, no, directory.store_id, state.options.page_bytes)
    try:
        yield from writer.write(columns)
        assert writer.file is not None and writer.shape is not None
        run = Run(no, writer.file, writer.shape, directory.store_id, state.cache, first, end)
        run.first_dues = writer.first_dues
        run.lead_to(DataEntry(segment.no, segment.base, segment.size), segment.file)
        yield from copy.note_ghosts(columns, first, end)
        yield from copy.hand_to(run)
    # GeneratorExit: the store is closed while this is under way.
    except (StoreError, GeneratorExit):
        writer.discard()
        directory.discard_run(no)
        raise


def relocate(state: SpillState, segments: Sequence[JournalSegment], runs: Sequence[Run], split: Key) -> Generator[None]:
    """Move every live record with key >= ``split`` out of these files into a new run; one slice a step.

    Segments must be complete and sorted. Raises StoreError: nothing has changed, try again later.
    """
    copy = _Copy(state, segments, runs, split)
    live = sum(twin.live for twin in copy.twins.values())
    directory = state.directory
    no = directory.take_no()
    page_bytes = state.options.page_bytes
    writer = RunWriter(directory.files, directory.runs_path, no, directory.store_id, live, page_bytes)
    try:
        yield from copy.write(writer)
        if not writer.count:
            writer.discard()
            return
        yield from writer.finish()
        assert writer.file is not None and writer.shape is not None
        run = Run(no, writer.file, writer.shape, directory.store_id, state.cache)
        run.first_dues = writer.first_dues
        state.handing_over += 1
        try:
            yield from copy.hand_to(run)
        finally:
            state.handing_over -= 1
    # GeneratorExit: the store is closed while this is under way.
    except (StoreError, GeneratorExit):
        writer.discard()
        directory.discard_run(no)
        raise
