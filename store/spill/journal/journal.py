"""The journal: accepted, cancelled, moved, one after the other, in zero-filled segments.

One append is one frame and one write. A journal position is ``segment base + file position``. The base of a segment is
the previous base plus the previous size, so the unused bytes of a closed segment count in positions.

What a crash leaves, and how it is told apart
    Every frame says how far the journal was *known to be durable* when it was written (``synced``). Recovery
    takes the highest of these positions and the checkpoint's. Below it everything must be there, else it raises
    `StoreCorruptError`. Above it, the first bytes that are no frame are the torn end, which is cut. Older segments are
    synced before newer ones, so these positions are true across segments.

    Before the first append all bytes behind the end are zero, and each start has a new epoch. So an old frame that
    happens to be at the right place is recognized: its epoch is older than that of the frame before it.

A failed write
    leaves unknown bytes behind the end. After a crash a whole frame there would count, although its sender was
    told that it failed. So these bytes are zeroed and synced before the error is answered (`clear`). While that fails,
    nothing is appended, and a message that the frame would cancel or move is ``in_doubt``. Nobody delivers such a
    message: after a crash it could be delivered and moved, or delivered and cancelled.

A failed sync
    may have lost any page that was written since the last good sync, and the kernel has marked these pages clean. The
    next `sync` reads everything since then back, checks it frame by frame and record by record against the
    checksums, writes the same bytes again and syncs. If any of it is missing, the journal stays failed. Nothing is
    appended meanwhile: under ASYNC_FLUSH a power cut may cost one flush interval, not all since the disk began to fail.

Locks: ``_lock`` is held for one append (network loop, or a command that holds the delivery lock too); ``_sync_lock``
for one sync (flusher). Neither is ever held while the other's owner waits for the delivery lock. ``_supply``, inside
``_lock``, is held while a segment is listed in the manifest and added here. Both the spiller and an append do that.
Segments must be written in the order of the manifest: replay ends at the first one that was passed over.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import numpy as np

from remoting.layout import FILE_HEADER_BYTES, FRAME_BYTES, FRAME_ROW_BYTES
from remoting.messages.checksum import crc32
from store.disk.errors import StoreClosedError, StoreDoubtError, StoreError, StoreFullError, SyncFailedError
from store.spill.journal.segment import JournalSegment
from store.spill.rows.block import Block
from store.spill.rows.format import ACCEPT, END, MOVE, ROW_DTYPE, encode_frame, encode_rows, frame_seed, read_frame

__all__ = ["Journal", "records_are_whole"]


class _Left:
    """The bytes that a failed write may have left: ``at`` to ``end`` of a segment."""

    __slots__ = ("at", "end", "segment")

    def __init__(self, segment: JournalSegment, at: int, end: int) -> None:
        self.segment = segment
        self.at = at
        self.end = end


class Journal:
    """The open end of the journal, and its `Syncable`.

    ``provide`` makes a segment of so many bytes when none was prepared ahead (it also lists it in the manifest).
    """

    name = "spill journal"

    def __init__(
        self,
        store_id: bytes,
        epoch: int,
        segments: list[JournalSegment],
        segment_bytes: int,
        provide: Callable[[int], JournalSegment],
    ) -> None:
        self.segments = segments  # in journal order; the last ones may be prepared and empty
        self.epoch = epoch
        self.frame_bytes_max = segment_bytes - FILE_HEADER_BYTES - FRAME_BYTES
        """The largest frame of new messages. A move may have a larger one, and gets a segment that it fits: the message
        was accepted when segments were larger."""
        self.seed = frame_seed(store_id)
        self._provide = provide
        self._lock = threading.Lock()
        self._sync_lock = threading.Lock()
        self._supply = threading.Lock()
        # If all are closed, the first append moves on to a new segment.
        at = next((n for n, segment in enumerate(segments) if not segment.closed), len(segments) - 1)
        self.active = segments[at]
        self._spares = segments[at + 1 :]
        self._written = self.active.base + self.active.end
        # At a start `write_again` has made everything durable that was read.
        self._synced = self._written
        self._left: _Left | None = None  # set under _lock, taken away under _sync_lock
        self.in_doubt: frozenset[int] = frozenset()
        """Delay ids that a refused frame would cancel or move after a crash, because it could not be cleared."""
        self._dirty: list[JournalSegment] = []
        self._failed: SyncFailedError | None = None
        self._closed = False

    @property
    def written(self) -> int:
        """Journal position behind the last frame."""
        return self._written

    @property
    def synced(self) -> int:
        """Journal position below which everything is durable."""
        return self._synced

    @property
    def is_torn(self) -> bool:
        """True if a refused frame may stand behind the end because it could not be cleared (`clear`)."""
        return self._left is not None

    @property
    def spare_count(self) -> int:
        """Segments prepared and not yet in use."""
        return len(self._spares)

    @property
    def active_used(self) -> int:
        """Bytes used of the segment that is written to."""
        return self.active.end

    def add_spare(self, make: Callable[[], JournalSegment]) -> None:
        """List a prepared segment in the manifest and add it: ``make`` does the listing. Raises StoreError."""
        with self._supply:
            segment = make()
            self._spares.append(segment)
            self.segments.append(segment)

    def drop(self, nos: set[int]) -> list[JournalSegment]:
        """Remove the segments with these file numbers; returns them. Their files are the caller's to close."""
        with self._lock:
            gone = [segment for segment in self.segments if segment.no in nos]
            self.segments = [segment for segment in self.segments if segment.no not in nos]
            return gone

    def segment(self, no: int) -> JournalSegment:
        """The segment with this file number. Raises StoreError if it is gone."""
        for segment in reversed(self.segments):
            if segment.no == no:
                return segment
        raise StoreError(f"journal segment {no} is gone")

    def finished(self) -> list[JournalSegment]:
        """Closed segments in which nothing is live or still to be published."""
        return [segment for segment in self.segments if segment.complete and not segment.live]

    def append(
        self,
        kind: int,
        dues: Sequence[int],
        ids: Sequence[int],
        versions: Sequence[int],
        records: Sequence[bytes],
        rows: bytes | None = None,
    ) -> Block:
        """Write one frame, all or nothing; not synced yet.

        ``rows`` is the result of `encode_rows` for the other arguments, if the caller has it already.

        Raises StoreError: the frame does not count, not even after a crash. StoreDoubtError: it was refused, but a
        crash may bring it back; nothing else is appended until `clear` succeeds.
        """
        if rows is None:
            rows = encode_rows(dues, ids, versions, records)
        size = FRAME_BYTES + len(rows) + sum(map(len, records))
        # Outside of `_lock`: `clear` takes `_sync_lock`, and `sync` takes `_lock` inside that one.
        if self._left is not None:
            self.clear()
        try:
            with self._lock:
                segment = self._room_for(size, kind)
                at = segment.end
                first = segment.appended
                offset = segment.base + at
                frame = encode_frame(kind, rows, records, offset, self._synced, self.epoch, first, self.seed)
                self._write(segment, frame, at, () if kind == ACCEPT else ids)
                segment.end = at + size
                segment.appended = first + len(records)
                self._written = offset + size
        except StoreError as error:
            self._clear_after(error)
            raise
        data_at = at + FRAME_BYTES + len(rows)
        if not records:
            return Block(self, offset + size, segment.no, first, data_at, b"", (), ())
        return Block(self, offset + size, segment.no, first, data_at, rows, dues, ids)

    def _write(self, segment: JournalSegment, frame: bytes, at: int, changes: Sequence[int]) -> None:
        # Before the write: one that fails may have dirtied pages as well.
        if not self._dirty or self._dirty[-1] is not segment:
            self._dirty.append(segment)
        try:
            segment.file.pwrite(frame, at)
        except StoreError:
            self._left = _Left(segment, at, min(segment.size, at + len(frame)))
            self.in_doubt = frozenset(changes)
            raise

    def _clear_after(self, error: StoreError) -> None:
        """Clear at once what a failed write has left; StoreDoubtError if that is not possible."""
        if self._left is None:
            return
        try:
            self.clear()
        except StoreError as again:
            raise StoreDoubtError(
                f"{error}; the bytes that the failed write left in the journal cannot be cleared ({again}). Nothing "
                "is accepted until they are. Whether a start after a crash before that counts them is not known"
            ) from error

    def clear(self) -> None:
        """Zero what a failed write has left, and sync. Raises StoreError: it may still be there."""
        with self._sync_lock:
            left = self._left
            if left is None:
                return
            file = left.segment.file
            try:
                file.zero(left.at, left.end - left.at)
            except StoreFullError:
                file.clear(left.at, left.end - left.at, unsure=left.end - left.at)
            try:
                file.sync()
            except SyncFailedError as error:
                if self._synced < self._written:  # frames before it may be lost by this sync as well
                    self._failed = error
                raise
            # `_left` last: while it is set nothing is appended, so these ids cannot be those of a newer failure.
            self.in_doubt = frozenset()
            self._left = None

    def _room_for(self, size: int, kind: int) -> JournalSegment:
        if self._closed:
            raise StoreClosedError("the spill journal is closed")
        if self._failed is not None:
            raise SyncFailedError(f"nothing is accepted until a sync succeeds; the last one failed: {self._failed}")
        if self._left is not None:
            raise StoreError("nothing is accepted until what a failed write has left in the journal is cleared")
        segment = self.active
        while segment.closed or segment.end + size > segment.size - FRAME_BYTES:  # room is left for the end mark
            if size > self.frame_bytes_max and kind != MOVE:
                raise StoreError(
                    f"{size} bytes at once do not fit a journal segment: at most {self.frame_bytes_max} do"
                )
            self._roll(segment, max(size, self.frame_bytes_max))
            segment = self.active
        return segment

    def _roll(self, segment: JournalSegment, frame_bytes: int) -> None:
        """Write the end mark of a segment and continue in the next one."""
        if not self._spares:
            with self._supply:
                if not self._spares:  # none was prepared meanwhile
                    made = self._provide(FILE_HEADER_BYTES + FRAME_BYTES + frame_bytes)
                    self._spares.append(made)
                    self.segments.append(made)
        if not segment.closed:
            offset = segment.base + segment.end
            mark = encode_frame(END, b"", (), offset, self._synced, self.epoch, segment.appended, self.seed)
            self._write(segment, mark, segment.end, ())
            segment.end += len(mark)
            segment.closed = True
            self._written = offset + len(mark)
        self.active = self._spares.pop(0)

    def sync(self) -> None:
        """Make durable what was written when the call began.

        Raises StoreClosedError after `close`, SyncFailedError if a sync fails (see "A failed sync" at the top).
        """
        with self._sync_lock:
            with self._lock:
                if self._closed:
                    raise StoreClosedError("the spill journal is closed")
                target = self._written
                dirty = list(self._dirty)
            if self._failed is not None:
                self._write_again(dirty, target)
            try:
                # Without `_lock`, so that appends go on. Older segments first: a durable position covers them too.
                for segment in dirty:
                    segment.file.sync()
            except SyncFailedError as error:
                self._failed = error
                raise
            self._failed = None
            with self._lock:
                # Not `_written`: frames appended during the sync may not be durable.
                self._synced = target
                # The last one may have been written to meanwhile; those before it are closed and clean now.
                self._dirty = [s for s in self._dirty if s not in dirty or s is dirty[-1]]
                if self._written == target:
                    self._dirty.clear()

    def _write_again(self, segments: list[JournalSegment], target: int) -> None:
        """After a failed sync: read back what it covered, prove it, write it again."""
        for segment in segments:
            start = max(self._synced - segment.base, FILE_HEADER_BYTES)
            end = min(target - segment.base, segment.end)
            if start >= end:
                continue
            data = segment.file.pread(end - start, start)
            at = 0
            while at < end - start:
                length = self._proven(data, at, segment.base + start + at)
                if not length:
                    raise SyncFailedError(
                        f"{segment.file.path} at {start + at}: lost by a failed sync, it cannot be written again"
                    ) from self._failed
                at += length
            segment.file.pwrite(data, start)

    def _proven(self, data: bytes, at: int, offset: int) -> int:
        """Length of the frame at ``at`` if every byte of it is what was written, else 0."""
        frame = read_frame(data, at, offset, self.seed)
        if frame is None or at + frame.length > len(data):
            return 0
        return frame.length if records_are_whole(data, at, frame.count, frame.length) else 0

    def close(self) -> None:
        """Refuse everything from now on; the caller syncs before. Raises StoreError as `clear` does."""
        with self._lock:
            self._closed = True
        self.clear()


def records_are_whole(data: bytes, at: int, count: int, length: int) -> bool:
    """True if the records of a frame (header and rows proven already) have their sizes and CRCs."""
    rows = np.frombuffer(data, ROW_DTYPE, count, at + FRAME_BYTES)
    position = at + FRAME_BYTES + count * FRAME_ROW_BYTES
    for size, crc in zip(rows["size"].tolist(), rows["crc"].tolist(), strict=True):
        if crc32(data[position : position + size]) != crc:
            return False
        position += size
    return position <= at + length  # not ==: a frame that a repair has made may be longer than its records
