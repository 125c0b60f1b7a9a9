"""The spill store's background work, as three lanes of jobs that are walked one slice at a time.

==========  ===========================================================================================
supply      prepare the next segment
urgent      sort what was accepted; remove finished files; spill closed segments
patient     merge runs; copy out of indexed segments; free files pinned by a few records; give delivered prefixes
            back to the file system
==========  ===========================================================================================

While all lanes are busy, supply and urgent get three of eight slices each and patient two, so none waits until
another has finished. The patient lane rests when the caller says so, but not while a run takes over from its sources:
the longer that takes, the more has to be marked under the delivery lock.

When is a closed segment spilled?

- Records due later than ``near_ms`` from now go to a run at once. If they are a large part of the segment, they go to
  an index of it; they are copied out of the segment when little comes in, or ``near_ms`` later.
- The others stay where they are: most will be delivered within ``near_ms``, straight from the journal.
- After ``near_ms`` whatever is still there (failed deliveries, a backlog) goes to a run, so that no segment is pinned.
- If the closed segments hold more than ``near_bytes`` or ``near_records``, the oldest is spilled sooner.

A job that fails (a full disk) has changed nothing; it is tried again after a pause.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING

from store.disk.errors import StoreError
from store.spill.journal.segment import JournalSegment
from store.spill.rows.model import FIRST_KEY, Key
from store.spill.rows.source import Source
from store.spill.runs.run import Run
from store.spill.runs.run_writer import run_name
from store.spill.upkeep.relocate import index, relocate

if TYPE_CHECKING:
    from store.spill.journal.journal import Journal
    from store.spill.state.spill_state import SpillState
    from store.spill.upkeep.room import Room

__all__ = ["Housekeeping"]

RETRY_MS = 1_000
LOOK_EVERY_MS = 1_000
QUIET_BYTES = 1 << 20
"""If less than this was written to the journal within `LOOK_EVERY_MS`, there is time for copies."""
FRONTIER_MARGIN_MS = 2_000
TAIL_MAX = 8_192
"""A segment is sorted again when this many records are unsorted (or a quarter of the sorted ones, if that is more)."""

INDEX_SHARE = 4
"""A segment is indexed if at least one in this many of its records leaves it; if fewer leave, they are copied."""
_PATIENT = 2
_LANES = ((0, 1, 2), (1, 0, 2), (0, 1, 2), (2, 1, 0), (1, 0, 2), (0, 1, 2), (1, 0, 2), (2, 1, 0))
"""The order in which the lanes are asked, turn by turn."""
INDEX_BYTES_A_ROW = 60
"""Bytes of a record in an index, including what its pages leave empty."""

_Job = Generator[None]


class Housekeeping:
    """The three lanes. `step` runs one slice; one thread at a time."""

    def __init__(self, state: SpillState, journal: Journal, room: Room) -> None:
        self.trouble = ""
        """Why the last job failed; empty after one that succeeded."""
        self.removable: set[int] = set()
        """Numbers of files that are finished according to a durable checkpoint."""
        self._state = state
        self._journal = journal
        self._room = room
        self._now_ms = 0
        self._lanes: list[_Job | None] = [None, None, None]
        self._choices = (self._supply, self._urgent, self._patient)
        self._retry_ms = [0, 0, 0]
        self._turn = 0
        self._look_ms: int | None = None
        self._looked_at = journal.written
        self._quiet = True
        self._merge_again_ms = 0
        self._can_punch = True
        self._busy: set[int] = set()

    @property
    def busy(self) -> set[int]:
        """Numbers of files that a job reads. They do not count as finished before it ends."""
        return self._busy

    def step(self, now_ms: int, patient: bool = True) -> bool:
        """Run one slice, without ``patient`` none of the patient lane; True if there is more to do now."""
        if now_ms < self._now_ms:
            self._clock_went_back(now_ms)
        self._now_ms = now_ms
        if self._look_ms is None or now_ms - self._look_ms >= LOOK_EVERY_MS:
            self._look_ms = now_ms
            self._room.measure()
            written = self._journal.written
            self._quiet = written - self._looked_at < QUIET_BYTES
            self._looked_at = written
        self._turn += 1
        patient = patient or (self._state.handing_over > 0 and self._lanes[_PATIENT] is not None)
        lanes = _LANES[self._turn & 7]
        return any(self._advance(lane) for lane in lanes if patient or lane != _PATIENT)  # stops at the first with work

    def _clock_went_back(self, now_ms: int) -> None:
        self._retry_ms = [0, 0, 0]
        self._merge_again_ms = 0
        self._look_ms = None
        for run in self._state.runs:
            run.pinned_ms = None if run.pinned_ms is None else min(run.pinned_ms, now_ms)
            run.indexed_ms = None if run.indexed_ms is None else min(run.indexed_ms, now_ms)
        # A copy, because an append may add a segment meanwhile.
        for segment in list(self._journal.segments):
            segment.closed_ms = None if segment.closed_ms is None else min(segment.closed_ms, now_ms)

    def _advance(self, lane: int) -> bool:
        job = self._lanes[lane]
        if job is None:
            if self._now_ms < self._retry_ms[lane]:
                return False
            job = self._lanes[lane] = self._choices[lane]()
            if job is None:
                return False
        try:
            next(job)
        except StopIteration:
            self._lanes[lane] = None
            self.trouble = ""
        except StoreError as error:
            self._lanes[lane] = None
            self.trouble = str(error)
            self._retry_ms[lane] = self._now_ms + RETRY_MS
            return False
        return True

    def close(self) -> None:
        """Give up the jobs under way; they have had no effect yet."""
        for job in self._lanes:
            if job is not None:
                job.close()
        self._lanes = [None, None, None]

    # ------------------------------------------------------------------------------------------------ urgent

    def _supply(self) -> _Job | None:
        journal = self._journal
        # From a quarter on: the zeros are written in slices, long before the segment is needed.
        if not journal.spare_count and journal.active_used * 4 >= journal.active.size:
            return self._prepare()
        return None

    def _urgent(self) -> _Job | None:
        unsorted = self._unsorted()
        if unsorted is not None:
            return self._sort(unsorted)
        if self.removable:
            return self._remove(set(self.removable))
        chosen = self._segment_to_spill()
        if chosen is not None:
            return self._relocating([chosen[0]], [], chosen[1])
        return None

    def _prepare(self) -> _Job:
        size = self._state.options.segment_bytes
        for finish in self._state.directory.prepare_segment(size):
            if finish is not None:
                self._journal.add_spare(finish)
            yield

    def _unsorted(self) -> JournalSegment | None:
        for segment in self._state.segments:
            tail = segment.solid - segment.ordered
            if tail >= max(TAIL_MAX, segment.ordered >> 2) or (tail and segment.complete):
                return segment
        return None

    def _sort(self, segment: JournalSegment) -> _Job:
        # Without the lock: below `solid` all records are published, and their keys never change.
        order = segment.sort(segment.solid)
        with self._state.lock:
            segment.set_order(order)
            if segment.settled:
                self._state.refresh()
        yield

    def _remove(self, nos: set[int]) -> _Job:
        state = self._state
        # Manifest, memory, files: in this order no crash leaves a listed file missing.
        state.directory.forget(nos)
        with state.lock:
            gone = [run for run in state.runs if run.no in nos]
            state.drop(nos)
        segments = {segment.no for segment in self._journal.drop(nos)}
        segments |= {run.segment.no for run in gone if run.segment is not None}
        segments -= state.directory.segments_in_use()
        paths = [run.path for run in gone]
        paths += [state.directory.journal_path / run_name(no) for no in sorted(segments)]
        self.removable -= nos
        yield
        for path in paths:
            state.directory.remove(path)
            yield
        state.directory.removed()
        yield
        yield from state.prune_ghosts()

    def _segment_to_spill(self) -> tuple[JournalSegment, Key] | None:
        options, now_ms = self._state.options, self._now_ms
        complete = [s for s in self._state.segments if s.settled and s.no not in self._busy]
        for segment in complete:
            if segment.closed_ms is None:
                segment.closed_ms = now_ms
                self._state.unsaved = True
                split = (now_ms + options.near_ms, 0)
                if self._has_from(segment, split):
                    return segment, split
        waiting = [segment for segment in complete if segment.live]
        for segment in waiting:
            if now_ms - (segment.closed_ms or 0) >= options.near_ms:
                return segment, FIRST_KEY
        used = sum(segment.size for segment in waiting)
        records = sum(segment.count for segment in waiting)
        if used > options.near_bytes or records > options.near_records:
            near = (max(self._state.frontier_ms, now_ms) + FRONTIER_MARGIN_MS, 0)
            for segment in waiting:
                if self._has_from(segment, near):
                    return segment, near
            if used > 2 * options.near_bytes or records > 2 * options.near_records:
                return waiting[0], FIRST_KEY
        return None

    def _has_from(self, segment: JournalSegment, split: Key) -> bool:
        """True if a segment has a live record with a key >= ``split``."""
        with self._state.lock:
            return segment.fetch_sorted((split[0], split[1] - 1), 1 << 62, 1) is not None

    def _relocating(self, segments: Sequence[JournalSegment], runs: Sequence[Run], split: Key) -> _Job:
        with self._state.lock:
            # A finished file must not be copied. Its done bits may not be durable yet, so its records would be copied
            # as live. A checkpoint under way may let the file go and does not know the new run: after a crash
            # everything that was delivered from it would be pending again.
            segments = [segment for segment in segments if segment.live]
            runs = [run for run in runs if run.live]
            sources: list[Source] = [*segments, *runs]
            nos = {source.no for source in sources}
            self._busy |= nos
        try:
            indexed = self._to_index(segments, split)
            if indexed is None:
                self._room.check_copy(sum(source.live_bytes for source in sources))
            else:
                self._room.check_copy(indexed.count * INDEX_BYTES_A_ROW)
            if self._journal.synced < max((source.journal_end for source in sources), default=0):
                self._journal.sync()
                yield
            if indexed is None:
                yield from relocate(self._state, segments, runs, split)
            else:
                yield from index(self._state, indexed, split)
        finally:
            with self._state.lock:
                self._busy -= nos

    def _to_index(self, segments: Sequence[JournalSegment], split: Key) -> JournalSegment | None:
        """The segment, if it is worth an index and there are not too many indexes yet."""
        if not segments or sum(run.is_index for run in self._state.runs) >= self._state.options.runs_max:
            return None
        (segment,) = segments
        with self._state.lock:
            leaving = segment.position(segment.upper, False) - segment.position(split, False)
        return segment if leaving * INDEX_SHARE >= segment.count else None

    # ------------------------------------------------------------------------------------------------ patient

    def _patient(self) -> _Job | None:
        options = self._state.options
        runs = [run for run in self._state.runs if run.no not in self._busy and not run.hides]
        if self._can_punch:
            for run in runs:
                if self._reclaimable(run) >= options.punch_bytes:
                    return self._punch(run)
        pinned = self._pinned(runs)
        if pinned:
            return self._relocating([], pinned, FIRST_KEY)
        indexed = self._indexed(runs)
        if indexed is not None:
            return self._relocating([], [indexed[0]], indexed[1])
        whole = [run for run in runs if not run.draining and not run.is_index]
        if len(whole) > options.runs_max and self._now_ms >= self._merge_again_ms:
            self._merge_again_ms = self._now_ms + RETRY_MS
            whole.sort(key=lambda run: run.shape.data_bytes * run.live // run.count)
            split = (max(self._state.frontier_ms, self._now_ms) + options.near_ms, 0)
            return self._relocating([], whole[: options.merge_width], split)
        return None

    def _pinned(self, runs: list[Run]) -> list[Run]:
        """Runs of which only a rest is left, and for so long that its file should be freed."""
        found = []
        for run in runs:
            if run.draining and run.live and not run.damage:
                if run.pinned_ms is None:
                    run.pinned_ms = self._now_ms
                elif self._now_ms - run.pinned_ms >= 2 * self._state.options.near_ms:
                    found.append(run)
        return found[: self._state.options.merge_width]

    def _indexed(self, runs: list[Run]) -> tuple[Run, Key] | None:
        """An index whose records should be copied out of its segment now, and from which key on."""
        near_ms = self._state.options.near_ms
        wait_ms = min(LOOK_EVERY_MS, near_ms) if self._quiet else near_ms
        split_ms = max(self._state.frontier_ms, self._now_ms) + near_ms
        for run in runs:
            if not run.is_index or run.draining or not run.live:
                continue
            if run.indexed_ms is None:
                run.indexed_ms = self._now_ms
            elif self._now_ms - run.indexed_ms >= wait_ms:
                run.indexed_ms = self._now_ms  # so that an index without anything to copy is not tried all the time
                if run.shape.due_max >= split_ms:
                    return run, (split_ms, 0)
                if run.shape.due_max < self._now_ms - near_ms:
                    return run, FIRST_KEY
        return None

    @staticmethod
    def _reclaimable(run: Run) -> int:
        """Bytes of the durable done prefix that are not a hole yet, estimated."""
        if run.is_index:
            return 0
        # One page is kept (`Run.punchable`).
        done = min(run.saved_prefix, run.end) - run.rows_per_page - run.punched
        return run.shape.data_bytes * done // run.count if done > 0 else 0

    def _punch(self, run: Run) -> _Job:
        state = self._state
        directory = state.directory
        with state.lock:
            target, spots = run.punchable()
        # An older checkpoint would lead scans into the hole: the manifest must refuse it from now on. Not before the
        # look at the run: a checkpoint that comes between the two may allow a larger hole.
        if not directory.manifest.relied or directory.manifest.relied_on < directory.checkpoint_no:
            state.directory.forget(set())
            yield
        for position, size in spots:
            if not run.file.punch(position, size):
                self._can_punch = False
                return
            yield
        # One more at least: a run of which nothing can be punched would be chosen again at once.
        run.punched = max(target, run.punched + 1)
