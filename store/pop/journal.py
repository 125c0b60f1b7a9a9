"""`PopJournal`: the journal of popped messages, so that a killed broker continues where it was.

The problem
    Messages in flight are only in memory. Without a journal, a broker that was killed would hand out again all messages
    that a group had acknowledged behind its oldest one in flight, and messages that another consumer still holds. And
    one file must not grow for ever.

The idea
    One append for each turn of the network loop: a *frame* of rows that say what has happened (`store.pop.notes`).
    Answers are sent after it (`broker.pop.answers`). They do not wait for a sync: a message whose rows are lost only
    comes twice.

    When a file has grown, the next one begins. New rows go there, and between them, in slices, the rows of all messages
    in flight. A row may be read twice, so the two kinds need not be told apart. When all rows are there a frame says so
    (`WHOLE`), the file is synced, and the files before it are removed. So there are at most two files, or three while
    syncs fail. The largest one has three times the rows of messages in flight, or a few MiB.

    ===========================  ===================================================================================
    the process is killed        all frames are there; the last one may be torn, and nobody was answered for it
    the power fails              the frames up to some point are there: as if the rest had not been acknowledged yet
    a sync fails                 what the kernel forgot is not trusted: the next file begins at once; if its sync fails,
                                 too, the one after it, after pauses that grow to a second
    a write fails                the rows are written with the next ones; requests that wait for them get an error
    ===========================  ===================================================================================

    Rows behind a gap would be wrong: `next` would pass the messages of a lost batch. So a file names the file before it
    and where that ended. If that file cannot be read up to there, the new one counts only if it is whole by itself.

``log_position`` of a frame: each copy of a message that came again below it is known to the journal as done with.
Above it the copies themselves say so (``__TW_POP``), and a start looks for them: one copy over any crash.

Threads: any. Locks, outer first: this journal's, the one of `InFlight`.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from remoting.layout import FILE_HEADER_BYTES
from store.disk.errors import StoreError, SyncFailedError
from store.disk.segments import NOTHING_NEEDED
from store.pop.listing import Listing
from store.pop.notes import Notes
from store.pop.rows import CLOSED, WHOLE, batch_row, encode_frame, file_header, seed_of

if TYPE_CHECKING:
    from store.disk.file import File
    from store.disk.files import Files
    from store.pop.in_flight import InFlight

__all__ = ["PopJournal", "file_name"]

TAIL_BYTES = 4 << 20
"""The next file begins when a file has grown by this, and by as much as its beginning took."""
MARK_BYTES = 4 << 20
"""A frame without rows is written when the log has grown by this, so that the next start has less to scan."""
_SLICE_ROWS = 256
_LOOK_MS = 1_000
_PAUSE_MS = 100
_PAUSE_MAX_MS = 1_000


def file_name(number: int) -> str:
    """The name of a file of the journal."""
    return f"{number:010d}"


class PopJournal:
    """The journal of one `InFlight`. `begin` it, `commit` at the end of each turn, `step` it as a chore, `close` it.

    Args:
        files: The door to the disk.
        directory: ``timewheel/pop``; made with the first frame.
        store_id: The store's.
        in_flight: What it is about; its ``notes`` are from now on taken by this.
        settled_to: The CommitLog position up to which all copies are done with; called with the lock of ``in_flight``.
    """

    name = "journal of pops"

    def __init__(
        self, files: Files, directory: Path, store_id: bytes, in_flight: InFlight, settled_to: Callable[[], int]
    ) -> None:
        self._files = files
        self._directory = directory
        self._store_id = store_id
        self._in_flight = in_flight
        self._notes = in_flight.notes = Notes()
        self._settled_to = settled_to
        self._writing = threading.Lock()
        self._syncing = threading.Lock()
        self._file: File | None = None
        self._number = 0
        self._seed = 0
        self._end = 0
        self._base = 0
        self._left: list[bytes] = []
        self._taken = False  # whether rows are in the hands of a thread that writes them
        self._before: list[tuple[int, File | None]] = []  # needed until the present file is whole
        self._listing: Listing | None = None  # what the present file has not got yet
        self._sync_failed = False
        self._distrusted = 0  # the file that was the present one when a sync failed
        self._pause_ms = 0  # after files whose own sync has failed
        self._again_ms = 0
        self._closed = False
        self._written_name = 0
        self.synced_name = 0
        """Of batches up to this name it is durable that they were handed out."""
        self.tail_bytes = TAIL_BYTES
        self.mark_bytes = MARK_BYTES
        self.written = 0
        """Bytes written since the start; never less."""
        self.synced = 0
        """Bytes of `written` that are durable."""
        self.log_position = 0
        """The CommitLog position of the last frame."""
        self.failure = ""
        """Why the last write failed, if it did."""

    @property
    def pending(self) -> bool:
        """True if something has happened that is not written yet. Any thread may ask, also while another one writes."""
        return bool(self._notes) or self._taken or bool(self._left)

    @property
    def file_bytes(self) -> int:
        """Size of the present file."""
        return self._end

    # ------------------------------------------------------------------------------------------------ writing

    def begin(self, numbers: list[int], aside: bool = False) -> None:
        """Write what there is into a new file, durably, and remove those of before, or put them aside. StoreError.

        Without files of before nothing is written: the first frame makes the first file.
        """
        self._number = max(numbers, default=0)
        if not numbers:
            return
        self._before = [(number, None) for number in numbers]
        self._make(0, 0)
        self._listing = Listing(self._in_flight.queues())
        while self._slice():
            pass
        self._finish(aside)

    def _make(self, before: int, before_end: int) -> None:
        """Begin the next file. The caller holds the lock, or nobody else is there."""
        number = self._number + 1
        self._files.makedirs(self._directory)
        file = self._files.open(self._directory / file_name(number), create=True)
        file.pwrite(file_header(self._store_id, number, before, before_end), 0)
        self._file, self._number, self._end = file, number, FILE_HEADER_BYTES
        self._seed = seed_of(self._store_id, number)
        self._base = 0
        self.written += FILE_HEADER_BYTES

    def commit(self, flags: int = 0, more: Callable[[], list[bytes]] | None = None) -> None:
        """Write what has happened as one frame. Raises StoreError; the rows are then kept for the next one.

        ``more`` makes further rows, with the lock of `InFlight`.
        """
        with self._writing:
            if self._closed:
                return
            self._taken = True  # first, so that a waiter does not find an empty list before the rows are written
            try:
                self._commit(flags, more)
            finally:
                self._taken = False

    def _commit(self, flags: int, more: Callable[[], list[bytes]] | None) -> None:
        with self._in_flight.lock:
            # Kept until the write has succeeded.
            self._left = rows = self._left + self._notes.take()
            name = self._in_flight.number
            if more is not None:
                rows += more()
            position = self._settled_to()
        try:
            if self._file is None:
                self._make(0, 0)
            assert self._file is not None
            if self._end == FILE_HEADER_BYTES and not self._before:
                flags |= WHOLE  # the first frame of the first file
            frame = encode_frame(rows, flags, self._end, position, self._seed)
            self._file.pwrite(frame, self._end)
        except StoreError as error:
            self.failure = str(error) if rows else ""
            raise
        self._left = []
        self._written_name = name
        self._end += len(frame)
        self.written += len(frame)
        self.log_position = position
        self.failure = ""

    # ------------------------------------------------------------------------------------------------ durability

    def sync(self) -> None:
        """Make durable what was written before. Raises `SyncFailedError`, from then on until a new file is whole."""
        with self._syncing:
            with self._writing:
                written, name, closed = self.written, self._written_name, self._closed
                files = [file for _, file in self._before if file is not None]
                if self._file is not None:
                    files.append(self._file)
            if closed or not files:
                return
            if self._sync_failed:
                raise SyncFailedError(f"{self._directory}: a sync has failed, a new file is being written")
            self._sync(files, written, name)

    def secure(self, name: int) -> None:
        """Have it durable that batches up to this name were handed out, before a copy of theirs is. Raises StoreError.

        A copy without its batch is made twice: a crash forgets the pop, hands the original out again, and finds a
        copy of nothing. What was popped half a second ago is durable already.
        """
        if name > self.synced_name:
            if name > self._written_name:
                self.commit()
            self.sync()

    def _sync(self, files: list[File], written: int, name: int) -> None:
        """Sync files, and note that it is durable up to what the caller had seen as written."""
        try:
            for file in files:
                file.sync()
            self._files.sync_dir(self._directory)
        except StoreError:
            self._sync_failed = True
            self._distrusted = self._number
            raise
        self.synced = max(self.synced, written)
        self.synced_name = max(self.synced_name, name)

    # ------------------------------------------------------------------------------------------------ the next file

    def step(self, now_ms: int) -> int | None:
        """Do a slice of the due work; return the time of the next step. Raises StoreError: ask again."""
        if self._closed:
            return None
        if self._listing is None:
            tail = self._end - self._base
            again_ms = self._again_ms = min(self._again_ms, now_ms + _PAUSE_MAX_MS)  # the clock may have been set back
            waits = self._sync_failed and now_ms < again_ms
            if self._file is None or waits or (tail <= max(self.tail_bytes, self._base) and not self._sync_failed):
                self._mark()
                return again_ms if waits else now_ms + _LOOK_MS
            self._roll()
        if self._slice():
            return now_ms
        try:
            self._finish()
        except StoreError:
            if self._listing is None:  # it is whole, but its sync has failed
                self._pause_ms = min(_PAUSE_MAX_MS, max(_PAUSE_MS, 2 * self._pause_ms))
                self._again_ms = now_ms + self._pause_ms
                self._forget_unsynced()
            raise
        self._pause_ms = self._again_ms = 0
        return now_ms + _LOOK_MS

    def _forget_unsynced(self) -> None:
        """Remove the files between the last durable one and the present one, which is whole.

        They are needed only to read a file that goes on with them. They would be as many as there are tries.
        """
        with self._syncing, self._writing:
            between, self._before = self._before[1:], self._before[:1]
        for number, old in between:
            if old is not None:
                old.close()
            with contextlib.suppress(StoreError):
                self._files.remove(self._directory / file_name(number))

    def _mark(self) -> None:
        behind = self._settled_to_now() - self.log_position
        if self.pending or (self._in_flight.count and behind > self.mark_bytes):
            self.commit()

    def _settled_to_now(self) -> int:
        with self._in_flight.lock:
            return self._settled_to()

    def pin(self) -> int:
        """The CommitLog position from which a start would look for copies."""
        return self.log_position if self._in_flight.count else NOTHING_NEEDED

    def _roll(self) -> None:
        with self._writing:
            before = self._number, self._file
            self._make(self._number, self._end)
            self._before.append(before)
        with self._in_flight.lock:
            self._listing = Listing(self._in_flight.queues())
            self._notes.listing = True

    def _slice(self) -> bool:
        """Write some of what there is; whether there is more."""
        if self._listing:
            self.commit(more=self._rows)
        return bool(self._listing)

    def _rows(self) -> list[bytes]:
        return [] if self._listing is None else self._listing.rows(_SLICE_ROWS)

    def _highest(self) -> list[bytes]:
        """A batch of nothing, in no queue, with the highest name: names are never given again, or marks would be."""
        row = batch_row(0, self._in_flight.number, 0, 0, 0, 0, -1)
        return [] if self._left and self._left[-1] == row else [row]  # the write before has failed

    def _finish(self, aside: bool = False) -> None:
        """Say that the present file is whole, and let those of before go."""
        self.commit(WHOLE, more=self._highest)
        with self._syncing:
            with self._writing:
                assert self._file is not None
                file, written, name = self._file, self.written, self._written_name
            self._listing = None
            self._notes.listing = False
            self._base = self._end
            if self._distrusted == self._number:  # the next sync would succeed without what the kernel forgot
                raise SyncFailedError(f"{self._directory / file_name(self._number)}: a sync has failed, once more")
            self._sync([file], written, name)
            self._sync_failed = False
            with self._writing:
                before, self._before = self._before, []
        for number, old in before:
            if old is not None:
                old.close()
            if aside:
                self._files.move_aside(self._directory / file_name(number))
            else:
                self._files.remove(self._directory / file_name(number))

    # ------------------------------------------------------------------------------------------------ the end

    def close(self, log_end: int) -> bool:
        """Write what is left, and that this was all unless copies wait to be durable; whether it was. StoreError."""
        with self._in_flight.lock:
            clean = self._settled_to() == log_end
        try:
            if self._file is not None or self.pending:
                self.commit(CLOSED if clean else 0)
                self.sync()
        finally:
            with self._syncing, self._writing:
                self._closed = True
                self.synced = self.written
                for file in (self._file, *(file for _, file in self._before)):
                    if file is not None:
                        file.close()
                self._file, self._before = None, []
        return clean
