"""The spill store keeps all pending messages on disk, in key order. It is the heart of delayed delivery.

Problem
    Any number of messages, due at any time, must survive a crash at any byte. They must be found in due order when they
    come due, can be cancelled and moved, and may cost neither memory nor restart time while they wait.

Idea
    All pending messages are one sequence, ordered by key = (due ms, delay id), kept in *sources*: journal segments
    (accept order, a few dozen bytes of columns in memory) and runs (sorted files, nothing in memory). An *index* is a
    run without records: it leads to those that still stand in their segment. A message lives in exactly one source; key
    bounds in the manifest say in which. The sweeper's *frontier* moves through the keys: messages behind it are armed,
    delivered or recovery's, those ahead of it are only here, and `scan` finds them.

    ::

        accept ──► journal segment ──(due soon)──────────────────────────► scan ──► wheel ──► CommitLog ──► done bit
                        │ full                                              ▲                                  │
                        └─(due later than 30 s)─► index ─► run ─┐           │                                  ▼
                                                           run ─┼─(> 256)─► run                    checkpoint, then
                                                           run ─┘                                  files may go

Exactly once, by three rules
    1. *Accepted* is a whole frame in the journal; the reply waits for its sync if the flush mode says so.
    2. *Done* is a bit in memory, made under the delivery lock together with the append to the CommitLog. It becomes
       durable with the checkpoint (P, done-sets); after a crash the CommitLog behind P says which bits are missing
       (`restore_delivered_many`), the journal behind its position in the checkpoint says what was cancelled or moved.
    3. *Moved between files* is one replacement of the manifest (`store.spill.upkeep.relocate`).

Costs a message (1 KiB messages, 16 a frame; ``python -m bench.spill_bench``): appending 1.0 µs beside the write itself,
publishing 0.5, scanning 1.5 and reading 1.5 with a few runs (5 and 8 with 190 that overlap). In the background: 4 µs
for the copy to a run, a tenth of that for the index before it. Memory: 32 bytes for each record in a journal segment;
for one in a run or an index only its done bit, if order is broken; and a whole segment while it is copied. 10,000,000
pending over a year, half of them cancelled, add 30 MB to the interpreter's 30. A restart with them reads the first
message after 75 ms.

Worked example: three messages due at 10:00:05 (a), 10:45 (b) and 10:00:20 (c) are accepted at 10:00:00 into segment 1,
which is then full. Closed: a and c are due within 30 s and stay; b goes to run 3, the manifest says "segment 1 owns
keys below (10:00:30, 0), run 3 owns all of its records". At 10:00:04 the frontier passes a: scan answers it, the wheel
fires it at 10:00:05, its bit is set. At 10:00:20 the same for c: segment 1 has nothing live, the next checkpoint says
so, the segment is taken out of the manifest and removed. At 10:45 run 3 goes the same way.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from remoting.layout import FRAME_BYTES, FRAME_ROW_BYTES
from store.disk.delay_id import SEQUENCE_MAX, delay_id
from store.disk.errors import StoreError, StoreFullError
from store.disk.files import Files
from store.disk.ticket import Syncable, Ticket
from store.spill.journal.journal import Journal
from store.spill.rows.block import Block
from store.spill.rows.format import ACCEPT, CANCEL, MOVE
from store.spill.rows.model import Columns, Found, SpillOptions
from store.spill.rows.page_cache import RunPageCache
from store.spill.spill_view import SpillView
from store.spill.state.debts import Debts
from store.spill.state.directory import SpillDirectory
from store.spill.state.outlook import Outlook
from store.spill.state.spill_state import SpillState
from store.spill.upkeep.housekeeping import Housekeeping
from store.spill.upkeep.opening import decode_section, open_sources, records_behind
from store.spill.upkeep.room import Room
from store.spill.upkeep.section import SpillSection

__all__ = ["SpillStore"]

DUE_LIMIT = 1 << 62
SETTLE_EVERY_MS = 1000
"""Pause between two tries to clear what a failed write has left, if nothing is sent meanwhile."""


class SpillStore(SpillView):
    """Pending messages: accepted, found by key, cancelled, moved, marked done, and forgotten when it is safe.

    =====================  =========================================================================
    network loop only      `next_id`, `next_ids`, `append`
    under ``lock``         `publish`, `withdraw`, `withdraw_block`, `scan`, `read`, `read_slab`, `mark_done`, `is_done`,
                           `home`, `find`, `cancel`, `move`, `restore_delivered_many`, `snapshot`;
                           setting ``frontier_ms``
    one thread, no lock    `spill_step` (it takes ``lock`` itself, for microseconds)
    any thread             the figures, ``journal``, ``in_doubt``, `settle`, `durable`, `check`
    =====================  =========================================================================
    """

    def __init__(self, state: SpillState, journal: Journal, room: Room, epoch: int) -> None:
        """Use `open`."""
        super().__init__(state, journal)
        self.epoch = epoch
        self.lock = state.lock
        self._room = room
        self._housekeeping = Housekeeping(state, journal, room)
        self._section = SpillSection(state, journal, self._housekeeping)
        self._stepping = threading.Lock()
        self.outlook = Outlook(state)
        """Counts of pending messages by due time."""
        self._saved_end = 0  # where the journal stood at the last checkpoint before this start
        self._sequence = 0
        self._closed = False
        self._debts = Debts(journal, state.lock, self.append_bytes_max)  # refused messages whose cancel is not written
        self._settle_ms = 0
        self.withheld: frozenset[int] = frozenset()  # further ids that must not be delivered: set by the plug-in
        # Records of blocks, each counted by one thread (or under the lock) only.
        self._appended = 0
        self._moved = 0
        self._published = 0

    @classmethod
    def open(
        cls,
        files: Files,
        directory: Path,
        store_id: bytes,
        options: SpillOptions,
        section: bytes | None,
        lock: threading.RLock | None = None,
    ) -> SpillStore:
        """Read manifest, checkpoint section and journal; the new epoch is durable on return.

        ``lock`` is the delivery lock. Raises StoreCorruptError, StoreFormatError.
        """
        place = SpillDirectory(files, directory, store_id)
        state = SpillState(place, options, lock or threading.RLock(), RunPageCache(options.cache_bytes))
        segments, epoch = open_sources(place, state, section)
        journal = Journal(store_id, epoch, segments, options.segment_bytes, place.make_segment)
        room = Room(lambda: files.free_bytes(directory)[0], lambda: state.promised_bytes, options.reserve_bytes)
        store = cls(state, journal, room, epoch)
        store._saved_end = 0 if section is None else decode_section(section)[0]
        return store

    # ------------------------------------------------------------------------------------------------ accepting

    @property
    def journal(self) -> Syncable:
        """The journal, as the flusher syncs it."""
        return self._journal

    @property
    def append_bytes_max(self) -> int:
        """Most bytes that one `append` takes: the sum of all records, plus 28 bytes for each."""
        return self._journal.frame_bytes_max - FRAME_BYTES

    def next_id(self) -> int:
        """Give the next delay id (a virtual offset). Raises StoreFullError when the epoch has no more."""
        sequence = self._sequence
        if sequence > SEQUENCE_MAX:
            raise self._used_up()
        self._sequence = sequence + 1
        return delay_id(self.epoch, sequence)

    def next_ids(self, count: int) -> range:
        """Give the next ``count`` delay ids, in a row. Raises StoreFullError when the epoch has fewer left."""
        sequence = self._sequence
        if sequence + count - 1 > SEQUENCE_MAX:
            raise self._used_up()
        self._sequence = sequence + count
        first = delay_id(self.epoch, sequence)
        return range(first, first + count)

    def _used_up(self) -> StoreFullError:
        return StoreFullError(
            f"epoch {self.epoch} has given out {self._sequence} of {SEQUENCE_MAX + 1} delay ids: restart the broker, "
            "which begins a new epoch"
        )

    def append(self, entries: Sequence[tuple[int, int, bytes]]) -> Block:
        """Write ``(due_ms, delay_id, record)`` of one turn as one frame; all or nothing.

        Raises StoreFullError when there is no room (nothing is pending then), StoreError for other failures.
        """
        dues, ids, records = zip(*entries, strict=True)
        return self.append_columns(dues, ids, records, None)

    def append_columns(
        self, dues: Sequence[int], ids: Sequence[int], records: Sequence[bytes], rows: bytes | None
    ) -> Block:
        """`append` as columns; ``rows`` are their `encode_rows`, or None. Also raises StoreError for a bad due time."""
        if not min(dues) >= 0 or not max(dues) < DUE_LIMIT:
            raise StoreError(f"due times from {min(dues)} to {max(dues)}: 0 to {DUE_LIMIT - 1} ms are possible")
        if self._debts.rows:
            self.settle()
        self._room.take(FRAME_BYTES + len(dues) * FRAME_ROW_BYTES + sum(map(len, records)))
        block = self._journal.append(ACCEPT, dues, ids, (0,) * len(dues), records, rows)
        self._appended += len(dues)
        return block

    def publish(self, block: Block) -> Columns:
        """Make a block visible to `scan`, `find` and `read`; returns its columns, in accept order.

        The caller arms what is below its frontier. Nothing here depends on the order of blocks, but scans find what is
        published. Every block must be published or withdrawn, or its segment can never be spilled.

        Raises StoreError for a block that was published before.
        """
        if block.published:
            raise StoreError("a block was published twice")
        block.published = True
        if block.dues:
            segment = self._state.segment(block.segment_no)
            if segment is None:
                segment = self._journal.segment(block.segment_no)
                self._state.add_segment(segment)
            segment.publish(block.first_ordinal, block.at, block.columns)
            self._published += len(block.dues)
        return Columns(block.dues, block.ids, block.refs)

    def withdraw(self, block: Block, delay_id: int) -> None:
        """Cancel one record of a block, published or not, because its sender is told that it was refused."""
        if not block.published:
            self.publish(block)
        place = block.ids.index(delay_id)
        self._revoke(block.refs[place], (block.dues[place], delay_id, 0))

    def revoke(self, found: Found) -> None:
        """`withdraw` for a message that was moved since, so that it has another version."""
        self._revoke(found.ref, (found.due_ms, found.delay_id, found.version))

    def _revoke(self, ref: int, row: tuple[int, int, int]) -> None:
        try:
            self.cancel(row[1])
        except StoreError:  # the cancel cannot be written now: it is owed
            self._state.mark_done((ref,))
            self._debts.owe((row,))

    def withdraw_block(self, block: Block) -> None:
        """Cancel all records of a block that was just appended, by one frame. The caller holds the lock.

        They are done at once. If the frame cannot be written now, it is written before any other (see `settle`).
        """
        if not block.published:
            self.publish(block)
        self._state.mark_done(block.refs)
        self._debts.owe((due_ms, delay_id, 0) for due_ms, delay_id in zip(block.dues, block.ids, strict=True))
        with contextlib.suppress(StoreError):
            self.settle()

    def settle(self) -> None:
        """Write the owed cancels of `withdraw`, and clear what a failed write has left. Any thread.

        Every write to the journal does this first. Raises StoreError: it has to be tried again.
        """
        self._debts.settle()

    def withdrawn(self) -> Ticket:
        """A ticket that is done when no crash can bring back the messages withdrawn so far.

        Its sync also writes the cancels that are still owed; while that fails, the ticket fails.
        """
        ticket = Ticket((self._journal, self._journal.written))
        return ticket.joined(Ticket((self._debts, self._debts.written))) if self._debts.rows else ticket

    @property
    def in_doubt(self) -> frozenset[int]:
        """Delay ids whose refused cancel or move may count after a crash, and ``withheld``: nobody delivers them."""
        return self._journal.in_doubt | self.withheld

    # ------------------------------------------------------------------------------------------------ the frontier

    @property
    def frontier_ms(self) -> int:
        """The frontier, epoch ms: refs of records due before it may be in use.

        If such a record is relocated, its old ref is forwarded. The sweeper sets the frontier under ``lock``, *before*
        it arms anything below it.
        """
        return self._state.frontier_ms

    @frontier_ms.setter
    def frontier_ms(self, due_ms: int) -> None:
        """Set the frontier, epoch ms. Call it under ``lock``."""
        self._state.frontier_ms = due_ms

    # ------------------------------------------------------------------------------------------------ changing

    def mark_done(self, refs: Sequence[int]) -> int:
        """Mark delivered or cancelled records: no `scan` finds them again. Returns how many were not done before."""
        return self._state.mark_done(refs)

    def cancel(self, delay_id: int) -> Ticket | None:
        """Journal a cancel and mark the message done at once; wait for the ticket before you answer.

        Returns None if nothing is pending under that id; `find` says why. Raises StoreError: nothing has changed.
        """
        found = self._state.find(delay_id)
        if found is None or found.done:
            return None
        if self._debts.rows:
            self.settle()
        block = self._journal.append(CANCEL, (found.due_ms,), (delay_id,), (found.version,), ())
        self._state.mark_done((found.ref,))
        return block.ticket

    def cancel_many(self, columns: Columns, versions: Sequence[int]) -> Ticket:
        """`cancel` by one frame for records that were scanned, with their `versions`, under this hold of the lock."""
        if self._debts.rows:
            self.settle()
        block = self._journal.append(CANCEL, columns.dues, columns.ids, versions, ())
        self._state.mark_done(columns.refs)
        return block.ticket

    def move(self, found: Found, record: bytes, due_ms: int) -> Block:
        """Journal a new copy under the same id, one version higher; the old one is done at once.

        `publish` makes the new copy visible. Raises StoreError: nothing has changed.
        """
        if not 0 <= due_ms < DUE_LIMIT:
            raise StoreError(f"due time {due_ms}: 0 to {DUE_LIMIT - 1} ms are possible")
        if self._state.home(found.ref) < 0:
            raise StoreError(f"message {found.delay_id:#x} version {found.version} is not pending any more")
        if self._debts.rows:
            self.settle()
        self._room.take(FRAME_BYTES + FRAME_ROW_BYTES + len(record))
        block = self._journal.append(MOVE, (due_ms,), (found.delay_id,), (found.version + 1,), (record,))
        self._state.mark_done((found.ref,))
        self._moved += 1
        return block

    def before_switch(self, call: Callable[[], object]) -> None:
        """Set what is called before records leave the journal (`records_unsaved`). If it raises, they stay there."""
        self._state.directory.before_switch = call

    def records_unsaved(self) -> Iterator[tuple[int, int, bytes]]:
        """At open: (due, delay id, record) of each pending message that was journalled after the last checkpoint."""
        return records_behind(self._state, self._saved_end)

    def restore_delivered_many(self, ids: Sequence[int], versions: Sequence[int]) -> int:
        """At open: mark messages done that recovery found in the CommitLog. Returns how many of them were pending."""
        return self._state.mark_versions(np.array(ids, np.int64), np.array(versions, np.int64))

    # ------------------------------------------------------------------------------------------------ checkpoint

    @property
    def unsaved(self) -> bool:
        """True if a checkpoint would let files go (or make a relocation final): worth a `touch`."""
        return self._state.unsaved

    def snapshot(self) -> bytes:
        """Make the checkpoint section: see `SpillSection.snapshot`."""
        return self._section.snapshot()

    def durable(self) -> None:
        """Note that the checkpoint with the last snapshot is durable: finished files may go. Raises StoreError."""
        self._section.durable()

    # ------------------------------------------------------------------------------------------------ background

    def spill_step(self, now_ms: int, *, patient: bool = True) -> bool:
        """Do one slice of background work (about half a millisecond); True if there is more to do now.

        Without ``patient`` no merge, no copy out of an indexed segment and no hole is made: they can wait.
        """
        if self._closed or not self._stepping.acquire(blocking=False):
            return False
        try:
            # The upper bound of the pause is for a clock that was set back.
            if (self._debts.rows or self._journal.is_torn) and not 0 < self._settle_ms - now_ms <= SETTLE_EVERY_MS:
                self._settle_ms = now_ms + SETTLE_EVERY_MS
                with contextlib.suppress(StoreError):
                    self.settle()
            return self._housekeeping.step(now_ms, patient)
        finally:
            self._stepping.release()

    # ------------------------------------------------------------------------------------------------ figures

    @property
    def pending_count(self) -> int:
        """Records neither delivered nor cancelled, those included that are accepted and not yet published."""
        return self._state.pending_count + self._appended - self._published + self._moved

    @property
    def trouble(self) -> str:
        """Why the background work makes no progress (a full disk); empty if it does."""
        return self._housekeeping.trouble

    def close(self) -> None:
        """Sync the journal and give the files back; nothing is spilled. Raises StoreError if owed cancels remain."""
        if self._closed:
            return
        self._closed = True
        with self._stepping:
            self._housekeeping.close()
        try:
            self.settle()
        finally:
            try:
                if self._journal.synced < self._journal.written:
                    self._journal.sync()
            finally:
                self._journal.close()
