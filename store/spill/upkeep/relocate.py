"""Moving records from some files into a new run, beside the work, in slices, so that no crash can lose or repeat one.

Used for all three: spilling a closed segment, merging runs, and freeing a file that a few undelivered records pin.

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
what is *durably* done may be left out: a message that was delivered, moved or cancelled a moment ago comes back
if the power fails before that is on disk, and then it must be in the run that the manifest names. What was done
since that checkpoint is found by comparing done-sets, and looked up in the new run by id.

A segment that most records are to leave is not copied at once: an *index* of it is written in the place of the copy
(`store.spill.runs.index_writer`), a run that leads to the segment's file. All the rest is the same.

A segment is copied or indexed only when all of it is durable, or a moved message could be in a run while its move,
which does away with the older copy, is lost with the journal's end.

Which record may be known by its old ref? Only one that has come below the frontier. Normally ``split`` is well ahead of
it. If the frontier has come nearer than that meanwhile, the switch is made at a later key: the sources keep what
lies below. If records below the frontier are moved on purpose, their refs are kept as *ghosts* (ref -> id,
version), and a caller that still uses one is forwarded to where the record is now.
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
"""A journal segment up to this size is read into memory while it is copied: one read of a portion, not of a record."""
LOAD_BYTES = 1 << 20
GHOST_MARGIN_MS = 60_000
"""How far behind the frontier (as it is at the start) refs of copied records are noted."""
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
        """Read the segment, if it is one alone: its records are wanted in another order than they lie in.

        A read for each record would cost as much as all the rest of the copy; and each of them lets go of the
        interpreter, which under load means to wait for it.
        """
        (twin,) = self.twins.values() if len(self.twins) == 1 else (None,)
        if twin is None or not 0 < twin.unsorted_bytes <= LOADED_MAX:
            return
        end = twin.unsorted_bytes
        data = memoryview(bytearray(end))
        for at in range(0, end, LOAD_BYTES):
            twin.data.pread_into(data[at : at + LOAD_BYTES], at)
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
                self.loaded = None
                self._refuse_hidden()
                return
            cursor.advance(self._write_some(writer, dues, ids, refs))
            yield

    def _refuse_hidden(self) -> None:
        """Raise if a page could not be read: its records were not copied, and must not be given away."""
        for run in self.runs:
            twin = self.run_twins[run.no]
            if twin.hides:
                run.damage.update(twin.damage)
                raise StoreCorruptError("; ".join(twin.damage.values()))

    def _write_some(self, writer: RunWriter, dues: Longs, ids: Longs, refs: Longs) -> int:
        """Copy a slice's worth of these; answers how many that is."""
        count = len(refs)
        starts, sizes, crcs, versions = (np.empty(count, np.int64) for _ in range(4))
        numbers = refs >> 32
        for no in np.unique(numbers).tolist():
            where = np.flatnonzero(numbers == no)
            ordinals = refs[where] & _ORDINAL
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
        """Have a run that is written take over."""
        private = run.twin(RunPageCache(_CACHE_BYTES))
        yield from self._catch_up(private)
        run.done, run.live = private.done, private.live
        yield from self._switch(run)

    def _catch_up(self, run: Run) -> Generator[None]:
        """Mark in the new run what was done in the sources since they were copied, until little is missing."""
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
        ids, versions = self.twins[no].identities(ordinals)
        order = np.lexsort((versions, ids))
        ids, versions = ids[order], versions[order]
        last = np.ones(len(ids), np.bool_)
        last[:-1] = ids[1:] != ids[:-1]
        # Of several versions of an id only the highest can have been live; all up to it are done.
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
                # The frontier has gone too far meanwhile: what it has reached stays where it is.
                at = max(at, (frontier_ms + SWITCH_MARGIN_MS, 0))
            except StoreError:
                # Also when a read failed: the manifest may name the run since the last time round, and then its sources
                # would be forgotten once they are finished, and what was delivered from them would be back.
                with contextlib.suppress(StoreError):
                    state.directory.switch_back(run.no, *self.before)
                raise
            yield

    def _end_of(self, no: int, key: Key) -> int:
        twin = self.run_twins[no]
        # What is durably done at the front was not copied: it stays where it is (and may lie in a hole).
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
        """Have all that is done count as done since: an index has every record."""
        self.bases = {no: DoneSet() for no in self.bases}

    def note_ghosts(self, columns: SegmentColumns, first: int, end: int) -> Generator[None]:
        """Note the refs of an index's own records that may come below the frontier before the switch."""
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
    """Give every record with key >= ``split`` of a segment to an index of it; one slice for each step.

    The segment must be complete and sorted. StoreError: nothing has changed, try again later.
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
    except (StoreError, GeneratorExit):
        writer.discard()
        directory.discard_run(no)
        raise


def relocate(state: SpillState, segments: Sequence[JournalSegment], runs: Sequence[Run], split: Key) -> Generator[None]:
    """Move every live record with key >= ``split`` out of these files into a new run; one slice for each step.

    Segments must be complete and sorted. StoreError: nothing has changed, try again later.
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
        yield from copy.hand_to(run)
    except (StoreError, GeneratorExit):
        writer.discard()
        directory.discard_run(no)
        raise
