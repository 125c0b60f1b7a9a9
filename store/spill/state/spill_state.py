"""The spill store in memory: all sources, and the operations that go over all of them.

Every call is made under the delivery lock. The ref of a relocated record is *forwarded* to its present place: by the
columns of its old file while that exists, else by the ghosts that the relocation has left.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from store.disk.errors import StoreError
from store.disk.slab import Slab
from store.spill.journal.segment import JournalSegment
from store.spill.rows.merge import Cursor, first_of
from store.spill.rows.model import Columns, Found, Key, SpillOptions
from store.spill.rows.page_cache import RunPageCache
from store.spill.rows.source import Fetch, Longs, Source
from store.spill.runs.run import Run
from store.spill.state.directory import SpillDirectory
from store.spill.state.ghosts import Ghosts
from store.spill.state.reading import FEW, by_file, fitting, gathered, outlined, slab_rows

__all__ = ["SpillState"]

ORDINAL = (1 << 32) - 1
CURSORS = 4
"""Cursors kept: the sweeper's, recovery's two, and a listing's."""
PRUNE_AT_ONCE = 1024

_Group = tuple[int, list[int], list[int]]


class SpillState:
    """Sources by file number, the page cache, the frontier and the ghosts."""

    def __init__(
        self,
        directory: SpillDirectory,
        options: SpillOptions,
        lock: threading.RLock,
        cache: RunPageCache,
    ) -> None:
        self.directory = directory
        self.options = options
        self.lock = lock
        self.cache = cache
        self.frontier_ms = -1
        self.handing_over = 0  # copies that are taking over from their sources
        # Replaced as a whole, never changed in place: figures and the spiller iterate over it without the lock.
        self.sources: dict[int, Source] = {}
        self._segments: dict[int, JournalSegment] = {}
        self._runs: dict[int, Run] = {}
        self.ghosts: list[Ghosts] = []
        self.unsaved = False
        self._settled: list[Fetch] = []  # of sources that do not change: cursors go over them
        self._open: list[Fetch] = []  # of segments that still grow, or are not sorted yet
        self._cursors: list[Cursor] = []  # most recently used last

    def add_segment(self, segment: JournalSegment) -> None:
        """Have scans see a journal segment."""
        self._segments = {**self._segments, segment.no: segment}
        self._add(segment)

    def add_run(self, run: Run) -> None:
        """Have scans see a run."""
        self._runs = {**self._runs, run.no: run}
        self._add(run)

    def _add(self, source: Source) -> None:
        self.sources = {**self.sources, source.no: source}
        self.refresh()

    def refresh(self) -> None:
        """Divide the sources again into those that no longer change and the others; all cursors start anew."""
        self._settled, self._open, self._cursors = [], [], []
        for source in self.sources.values():
            if source.settled:
                self._settled += source.fetchers()
            else:
                self._open += source.fetchers()

    def drop(self, nos: Iterable[int]) -> None:
        """Forget sources in which nothing is live."""
        gone = set(nos)
        self.sources = {no: source for no, source in self.sources.items() if no not in gone}
        self._segments = {no: segment for no, segment in self._segments.items() if no not in gone}
        self._runs = {no: run for no, run in self._runs.items() if no not in gone}
        self.refresh()

    def add_ghosts(self, ghosts: Ghosts) -> None:
        """Remember the old refs of relocated records that somebody may still use."""
        if len(ghosts.refs):
            self.ghosts.append(ghosts)

    def prune_ghosts(self) -> Iterator[None]:
        """Forget ghosts whose records are done, in slices; takes the lock for about a thousand of them at a time."""
        for number in range(len(self.ghosts)):
            ghosts = self.ghosts[number]
            alive = np.zeros(len(ghosts.refs), np.bool_)
            for start in range(0, len(alive), PRUNE_AT_ONCE):
                part = slice(start, start + PRUNE_AT_ONCE)
                with self.lock:
                    alive[part] = self._are_pending(ghosts.ids[part], ghosts.versions[part])
                yield
            if not alive.all():
                with self.lock:
                    self.ghosts[number] = ghosts.keep(alive)
        with self.lock:
            self.ghosts = [ghosts for ghosts in self.ghosts if len(ghosts.refs)]

    def _are_pending(self, ids: Longs, versions: Longs) -> list[bool]:
        """For each of these, whether that version of that id is live somewhere."""
        unique = np.unique(ids)
        live: set[tuple[int, int]] = set()
        for source in self.sources.values():
            ordinals, index, found = source.lookup_many(unique)
            here = ~source.done.mask(ordinals)
            live.update(zip(unique[index[here]].tolist(), found[here].tolist(), strict=True))
        return [pair in live for pair in zip(ids.tolist(), versions.tolist(), strict=True)]

    @property
    def runs(self) -> list[Run]:
        """All runs."""
        return list(self._runs.values())

    @property
    def segments(self) -> list[JournalSegment]:
        """All journal segments with records."""
        return list(self._segments.values())

    def segment(self, no: int) -> JournalSegment | None:
        """A journal segment by its file number, if scans see it."""
        return self._segments.get(no)

    def scan(self, after: Key, until_ms: int, limit: int) -> Columns:
        """Live records with key > ``after`` and due < ``until_ms``: the first ``limit`` of them."""
        cursor = self._cursor(after)
        try:
            return self._scan_by(cursor, after, until_ms, limit)
        except BaseException:
            # A read failed while the cursor was taking records out of its heap: some may be in neither heap nor buffer.
            self._cursors.remove(cursor)
            raise

    def _scan_by(self, cursor: Cursor, after: Key, until_ms: int, limit: int) -> Columns:
        merged = cursor.peek(until_ms, limit)
        live = self._are_live(merged[2])
        while not live.all():  # some became done since they came into the buffer: drop them, and fill up again
            cursor.keep(live)
            merged = cursor.peek(until_ms, limit)
            live = self._are_live(merged[2])
        others = [batch for fetch in self._open if (batch := fetch(after, until_ms, limit)) is not None]
        dues, ids, refs = (part.tolist() for part in first_of(merged, others, limit))
        if not others:
            cursor.advance(len(refs))
        elif refs:
            # Not all of these were the cursor's, so it continues behind the last key.
            cursor.skip_to((dues[-1], ids[-1]))
        return Columns(dues, ids, refs)

    def _cursor(self, after: Key) -> Cursor:
        """A cursor that stands at ``after``: one of the last few, or a new one."""
        for number, cursor in enumerate(self._cursors):
            if cursor.reaches(after):
                self._cursors.append(self._cursors.pop(number))
                cursor.skip_to(after)
                return cursor
        cursor = Cursor(self._settled, after)
        self._cursors = [*self._cursors[1 - CURSORS :], cursor]
        return cursor

    def _are_live(self, refs: Longs) -> NDArray[np.bool_]:
        sources = self.sources
        if len(refs) < FEW:
            return np.array([ref & ORDINAL not in sources[ref >> 32].done for ref in refs.tolist()], np.bool_)
        live = np.empty(len(refs), np.bool_)
        for no, places in by_file(refs):
            live[places] = ~sources[no].done.mask(refs[places] & ORDINAL)
        return live

    def find(self, delay_id: int) -> Found | None:
        """The highest version of an id."""
        best: tuple[int, int, Source, int] | None = None
        for source in self.sources.values():
            for ordinal, due, version in source.lookup(delay_id):
                if best is None or version > best[0]:
                    best = (version, due, source, ordinal)
        if best is None:
            return None
        version, due, source, ordinal = best
        return Found(delay_id, source.no << 32 | ordinal, due, version, ordinal in source.done)

    def versions(self, refs: Sequence[int]) -> list[int]:
        """Versions of records that are where their refs say."""
        column = np.array(refs, np.int64)
        versions = np.empty(len(refs), np.int64)
        for no, places in by_file(column):
            ordinals = column[places] & ORDINAL
            order = np.argsort(ordinals)
            found = np.empty(len(ordinals), np.int64)
            found[order] = self.sources[no].identities(ordinals[order])[1]
            versions[places] = found
        return versions.tolist()

    def _forward(self, ref: int) -> tuple[Source, int] | None:
        """The present place of a relocated ref's record; None if it is done, or if no such record is known."""
        source = self.sources.get(ref >> 32)
        if source is not None and ref & ORDINAL < source.count:
            ids, versions = source.identities(np.array([ref & ORDINAL], np.int64))
            known: tuple[int, int] | None = (ids.item(0), versions.item(0))
        else:
            known = next((found for ghosts in self.ghosts if (found := ghosts.get(ref)) is not None), None)
        if known is None:
            return None
        for other in self.sources.values():
            for ordinal, _, version in other.lookup(known[0]):
                if version == known[1] and ordinal not in other.done:
                    return other, ordinal
        return None

    def home(self, ref: int) -> int:
        """The ref of the place where the record lives now; -1 if it is done, or if no such record is known."""
        source = self.sources.get(ref >> 32)
        ordinal = ref & ORDINAL
        if source is not None and source.owns(ordinal):
            return -1 if ordinal in source.done else ref
        moved = self._forward(ref)
        return -1 if moved is None else moved[0].no << 32 | moved[1]

    def mark_done(self, refs: Sequence[int]) -> int:
        """Mark records done, wherever they live now; returns how many were not done before."""
        sources = self.sources
        rest = refs
        fresh = 0
        if len(refs) >= FEW:
            rest = []
            column = np.array(refs, np.int64)
            for no, places in by_file(column):
                source = sources.get(no)
                ordinals = column[places] & ORDINAL
                if source is None or not source.owns_all(ordinals):
                    rest += column[places].tolist()
                elif marked := source.mark_many(ordinals):
                    fresh += marked
                    # A file without a live record: the next checkpoint may let it go.
                    self.unsaved = self.unsaved or not source.live
        for ref in rest:
            source = sources.get(ref >> 32)
            ordinal = ref & ORDINAL
            if source is None or not source.owns(ordinal):
                moved = self._forward(ref)
                if moved is None:
                    continue
                source, ordinal = moved
            if source.mark(ordinal):
                fresh += 1
                self.unsaved = self.unsaved or not source.live
        return fresh

    def mark_versions(self, ids: Longs, versions: Longs, skip: frozenset[int] = frozenset()) -> int:
        """Mark every record of these ids done whose version is at or below the one given; returns how many were live.

        ``ids`` and ``versions`` are int64 arrays of equal length. Files whose numbers are in ``skip`` are left alone.
        """
        if not len(ids):
            return 0
        order = np.lexsort((versions, ids))  # then only the last row of each id is kept: its highest version
        ids, versions = ids[order], versions[order]
        last = np.ones(len(ids), np.bool_)
        last[:-1] = ids[1:] != ids[:-1]
        ids, versions = ids[last], versions[last]
        fresh = 0
        for source in self.sources.values():
            if source.no not in skip:
                ordinals, index, found = source.lookup_many(ids)
                fresh += source.mark_many(ordinals[found <= versions[index]])
        if fresh:
            self.unsaved = True
        return fresh

    def read(self, refs: Sequence[int], max_bytes: int | None = None) -> Slab:
        """Read records, in the order asked; neighbours in one read, each checked against its CRC.

        With ``max_bytes`` as many of the first ones as fit, but at least one. Raises StoreError, RecordCorruptError.
        """
        wanted = [
            (self.sources[no], ordinals, indices, self.sources[no].places(np.array(ordinals, np.int64)))
            for no, ordinals, indices in (self._located_many(refs) if len(refs) >= FEW else self._located(refs))
        ]
        count = len(refs) if max_bytes is None else fitting(wanted, len(refs), max_bytes)
        starts, sizes = [0] * count, [0] * count
        parts: list[bytes] = []
        before = 0
        for source, ordinals, indices, places in wanted:
            if count < len(refs):
                kept = [n for n, index in enumerate(indices) if index < count]
                ordinals, indices, places = slab_rows(kept, ordinals, indices, places)
            if source.is_scattered:
                # `gathered` reads neighbours together, so it needs ascending file positions.
                by_place = sorted(range(len(ordinals)), key=places[0].__getitem__)
                ordinals, indices, places = slab_rows(by_place, ordinals, indices, places)
            data, begins = gathered(source, ordinals, places)
            for index, begin, size in zip(indices, begins, places[1], strict=True):
                starts[index] = before + begin
                sizes[index] = size
            parts.append(data)
            before += len(data)
        return Slab(parts[0] if len(parts) == 1 else b"".join(parts), starts, sizes)

    def read_outlines(self, refs: Sequence[int], max_bytes: int) -> tuple[list[bytes], list[int]]:
        """Read records without the bodies of large ones, and their sizes: see `store.spill.state.reading.outlined`."""
        wanted = [
            (self.sources[no], ordinals, indices, self.sources[no].places(np.array(ordinals, np.int64)))
            for no, ordinals, indices in (self._located_many(refs) if len(refs) >= FEW else self._located(refs))
        ]
        return outlined(wanted, len(refs), max_bytes)

    def _located(self, refs: Sequence[int]) -> list[_Group]:
        """The places of records: for each file their ordinals, ascending, and their indices in ``refs``."""
        groups: dict[int, list[tuple[int, int]]] = {}
        for index, ref in enumerate(refs):
            source = self.sources.get(ref >> 32)
            ordinal = ref & ORDINAL
            if source is None or not source.owns(ordinal):
                moved = self._forward(ref)
                if moved is None:
                    raise StoreError(f"record {ref:#x} is not pending any more")
                source, ordinal = moved
            group = groups.get(source.no)
            if group is None:
                groups[source.no] = [(ordinal, index)]
            else:
                group.append((ordinal, index))
        return [
            (no, [ordinal for ordinal, _ in sorted(group)], [index for _, index in sorted(group)])
            for no, group in groups.items()
        ]

    def _located_many(self, refs: Sequence[int]) -> list[_Group]:
        """`_located` for many refs by NumPy; falls back to it if a record is not where its ref says."""
        column = np.array(refs, np.int64)
        groups: list[_Group] = []
        for no, places in by_file(column):
            source = self.sources.get(no)
            ordinals = column[places] & ORDINAL
            if source is None or not source.owns_all(ordinals):
                return self._located(refs)
            indices = np.arange(len(refs))[places]
            if not bool((ordinals[1:] > ordinals[:-1]).all()):
                order = np.argsort(ordinals, kind="stable")
                ordinals, indices = ordinals[order], indices[order]
            groups.append((no, ordinals.tolist(), indices.tolist()))
        return groups

    @property
    def pending_count(self) -> int:
        """Live records."""
        return sum(source.live for source in self.sources.values())

    @property
    def pending_bytes(self) -> int:
        """Bytes of live records, estimated."""
        return sum(source.live_bytes for source in self.sources.values())

    @property
    def promised_bytes(self) -> int:
        """Disk space that pending records will still take: once for the CommitLog, once more for a copy in a run."""
        return sum(source.live_bytes * source.writes_ahead for source in self.sources.values())
