"""The CommitLog: every message of the broker, one behind the other, byte for byte as Apache RocketMQ writes it.

Appending
    Records come finished, in puts (`store.put.put.Put`). Each put writes its records into one buffer, with queue
    offset, position and store time. The buffer is written by one pwrite of up to `CHUNK_BYTES`, or of one put that is
    larger. A put never crosses segments: if it does not fit with 8 more bytes, it goes to the next segment, and a
    blank record fills this one. The caller holds the append lock.

Visible, durable
    ``end`` is where the next record goes; everything below it can be read. Everything below ``synced`` survives a
    power cut. `sync`, called by the flusher, brings ``synced`` up to ``end``.

A write fails (a full disk)
    Nothing of the buffer counts, and ``end`` stays. But torn bytes stand behind the end. A shorter record written over
    their beginning could leave a whole old record at exactly the right place, so they are zeroed and synced before the
    next append. Clearing may fail too. A crash then brings back whole records of the buffer, which recovery cannot
    tell from stored ones. For a refused send that is allowed, because its sender was promised nothing. A caller that
    decides about such a message, as a cancel does, calls `settle` first.

A sync fails
    Nothing can be appended until the same bytes are written and synced again: `store.log.synced_log`.

Recovery
    `recover` walks from an offset, believes only whole records (see `store.log.log_scan`), and cuts the log behind the
    last one: the rest of the file is zeroed and synced, and later files are moved away. After an unclean end it also
    writes again all bytes that it has read: if the last run ended because a sync failed, these are right in the page
    cache, but not on the disk.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from remoting.layout import BLANK_BYTES
from remoting.layout.table import INT
from remoting.messages.proof import proof_field
from store.disk.errors import StoreCorruptError, StoreError, SyncFailedError
from store.disk.files import Files
from store.disk.segments import Segment, segment_name
from store.log.log_aside import keep_behind, put_away
from store.log.log_proof import has_zeros, is_delivery, is_half, is_made_of
from store.log.log_scan import Stop, blank_record, walk
from store.log.recent import RecentBytes
from store.log.synced_log import KEPT_BYTES_MAX, SyncedLog
from store.put.put import Put

__all__ = ["CHUNK_BYTES", "KEPT_BYTES_MAX", "CommitLog"]

CHUNK_BYTES: Final = 256 << 10
REWRITE_BYTES_MAX = 256 << 20
"""No run ends with more unsynced bytes than this."""


class CommitLog(SyncedLog):
    """The log of one store. `append` under the caller's lock; everything else from any thread."""

    name = "CommitLog"

    def __init__(self, files: Files, directory: Path, segment_bytes: int, aside: Path | None = None) -> None:
        """Open the directory; nothing can be read or appended before `recover`.

        Segments behind the end that are not empty are moved to ``aside`` (default: they are removed).
        """
        files.makedirs(directory)
        super().__init__(files, directory, segment_bytes)
        self._aside = aside
        self._tail: Segment | None = None
        self._ahead: Segment | None = None
        self._ahead_lock = threading.Lock()
        self._recent = RecentBytes()
        self._torn_end = 0
        self.cut_aside: Path | None = None
        """The file in which recovery kept the bytes behind the end; None if there were none."""

    # ------------------------------------------------------------------------------------------ appending

    def append(self, puts: Sequence[Put], store_ms: int) -> tuple[list[int], StoreError | None]:
        """Append puts that have their queue offsets; returns the CommitLog offset of each, and an error or None.

        Each put is written whole into one segment, or not at all; small puts in a row share a write. There are offsets
        for the first puts, normally for all; the rest was not appended, and the error says why. The caller holds the
        append lock.
        """
        offsets: list[int] = []
        done = 0  # puts that are written, not only gathered
        try:
            self._ready()
            segment = self._tail or self._next_segment()
            position = self._end
            room = segment.end - BLANK_BYTES  # no record may end behind this
            buffer = bytearray()
            add = offsets.append
            for put in puts:
                size = put.data_bytes
                at = len(buffer)
                if at + size > CHUNK_BYTES or position + at + size > room:
                    if at:
                        self._write(segment, buffer, position)
                        position += at
                        done = len(offsets)
                        # A new one: `_write` keeps the old one until it is durable.
                        buffer = bytearray()
                        at = 0
                    if position + size > room:
                        segment = self._roll(segment, size)
                        position = segment.start
                        room = segment.end - BLANK_BYTES
                joined = put.joined_to(buffer, position + at, store_ms)
                if joined is not buffer:  # the put's own bytes, not copied: nothing may be added to them
                    self._write(segment, joined, position)
                    add(position)
                    done = len(offsets)
                    position += size
                else:
                    add(position + at)
            if buffer:
                self._write(segment, buffer, position)
        except StoreError as error:
            with contextlib.suppress(StoreError):
                self._clear_torn()  # at once, if possible: a crash must not bring back what is refused here
            return offsets[:done], error
        return offsets, None

    def _ready(self) -> None:
        """Raise StoreError after a failed sync, or if torn bytes behind the end cannot be cleared."""
        if self._sync_failed:
            raise SyncFailedError(f"{self.directory}: a sync failed; nothing is accepted until one succeeds")
        self._clear_torn()

    @property
    def is_torn(self) -> bool:
        """True if bytes of a failed write may stand behind the end, which would count after a crash."""
        return self._torn_end > self._end

    def settle(self) -> None:
        """Make sure that refused puts stay refused after a crash. Raises StoreError: try again.

        The caller holds the append lock.
        """
        self._clear_torn()

    def _clear_torn(self) -> None:
        if self._torn_end > self._end:
            segment = self._tail
            if segment is not None and segment.start < self._torn_end:
                at = self._end - segment.start
                n = min(self._torn_end, segment.end) - self._end
                # One lock for the zeros and their sync. If a sync of the flusher failed in between, the kernel would
                # drop the zeros, and our sync would succeed without them.
                with self._sync_lock:
                    # Zeros are written even over what reads as zeros: a failed sync may have kept them from the disk.
                    if not segment.file.punch(at, n):
                        segment.file.zero(at, n)
                    self._sync_file(segment)
            self._torn_end = 0

    def _write(self, segment: Segment, buffer: bytearray, offset: int) -> None:
        end = offset + len(buffer)
        # Kept before it is written: a sync may fail right after the write, and then these bytes must be written again.
        keep = self._kept_in - self._kept_out < KEPT_BYTES_MAX
        if keep:
            self._kept.append((end, segment, buffer))
            self._kept_in += len(buffer)
        else:
            self._unkept_end = end
        try:
            segment.file.pwrite(buffer, offset - segment.start)
        except StoreError:
            self._torn_end = max(self._torn_end, end)
            if keep:
                self._kept.pop()
                self._kept_in -= len(buffer)
            raise
        self._recent.put(buffer, offset)
        self._end = end

    def read_recent(self, positions: Sequence[tuple[int, int]]) -> bytes | None:
        """Join the bytes of (offset, size) pairs if all of them were appended a moment ago; else None."""
        return None if not positions or min(positions)[0] < self._begin else self._recent.gather(positions)

    def _roll(self, segment: Segment, needed: int) -> Segment:
        """Close a full segment with a blank and continue in the next one."""
        if needed > self.record_bytes_max:
            raise StoreError(f"{needed} bytes do not fit into a segment of {self.segment_bytes}")
        following = self._next_segment(segment)
        left = segment.end - self._end
        if left:
            # After the next segment was created: a log must not end with a blank that leads nowhere.
            self._write(segment, bytearray(blank_record(left)), self._end)
        self._end = following.start
        self._tail = following
        return following

    def _next_segment(self, segment: Segment | None = None) -> Segment:
        start = self._end if segment is None else segment.end
        with self._ahead_lock:
            following = self._ahead or self._segments.get(start)
            if following is None or following.start != start:
                following = Segment(self._files, self.directory, start, self.segment_bytes)
                following.create()
                self._directory_dirty = True
            self._ahead = None
            # Under the lock: else `allocate_ahead` could make this segment again, and `close` remove it.
            self._segments[start] = following
        if segment is None:
            self._tail = following
        return following

    def make_first(self) -> None:
        """Make a new log's first segment, durably: from now on a start with another segment size is refused.

        Delayed messages are accepted only if they fit a segment, so its size must be fixed before the first of them.
        The caller holds the append lock. Raises StoreError.
        """
        if not self._segments:
            self._next_segment()
            self._files.sync_dir(self.directory)

    def allocate_ahead(self) -> bool:
        """Make the next segment before it is needed, when the present one is three quarters full. For the flusher."""
        tail = self._tail
        if tail is None or self._ahead is not None or tail.end - self._end > self.segment_bytes // 4:
            return False
        with self._ahead_lock:
            if self._ahead is None and tail.end not in self._segments:
                ahead = Segment(self._files, self.directory, tail.end, self.segment_bytes)
                ahead.create()
                self._files.sync_dir(self.directory)
                self._ahead = ahead
        return True

    # ------------------------------------------------------------------------------------------ life

    def recover(
        self, from_offset: int, at_least: int = 0, clean: bool = False, ours: bool = False
    ) -> Iterator[tuple[int, bytes]]:
        """Find the end by walking from a record's offset, yielding (offset, record); then cut the log there.

        ``at_least`` was durable once: an end below it raises `StoreCorruptError`, and nothing is cut. ``clean``: the
        log was closed properly. ``ours``: it was not, and a Timewheel broker wrote it last, not Apache's. Then a
        committed message whose op message is missing must be proven (`store.log.log_proof`). The log can be used when
        the iterator is exhausted.
        """
        offset = max(from_offset, self._begin)
        if offset > self._begin and offset - offset % self.segment_bytes not in self._segments:
            raise StoreCorruptError(
                f"{self.directory / segment_name(offset - offset % self.segment_bytes)} at 0: it is missing; "
                f"{max(offset, at_least)} bytes of the log were durable before"
            )
        while (segment := self._segments.get(offset - offset % self.segment_bytes)) is not None:
            stop = Stop()
            yield from walk(
                segment.file.pread,
                segment.start,
                offset - segment.start,
                segment.size,
                stop,
                segment_bytes=segment.size,
                at_end=self._is_made_of_its_half if ours and not clean else None,
            )
            offset = segment.start + stop.position
            if not stop.blank or segment.end not in self._segments:
                break
            offset = segment.end
        if offset < at_least:
            start = offset - offset % self.segment_bytes
            raise StoreCorruptError(
                f"{self.directory / segment_name(start)} at {offset - start}: the log's last valid record ends at "
                f"{offset}, but {at_least} was durable before; the log has been cut off or damaged. Nothing was "
                "changed: restore it if you can"
            )
        self._check_gaps(offset)
        if not clean:
            segment_of_end = self._segments.get(offset - offset % self.segment_bytes)
            if segment_of_end is not None and self._aside is not None:
                self.cut_aside = keep_behind(self._files, segment_of_end, offset - segment_of_end.start, self._aside)
            self._write_again(max(min(from_offset, offset), offset - REWRITE_BYTES_MAX), offset)
        self._cut(offset, from_offset, clean)

    def _is_made_of_its_half(self, record: bytes) -> bool:
        """True if the half message that a record names is in the log and proves it."""
        if is_delivery(record):
            return True
        offset = proof_field(record)
        if offset == 0 and not has_zeros(record):
            return True  # perhaps a record of an older version, which names no half message
        segment = self._segments.get(offset - offset % self.segment_bytes)
        if segment is None:
            return offset == 0
        place = offset - segment.start
        size = int.from_bytes(segment.file.pread(INT.size, place), "big", signed=True)
        half = self.raw_record(offset, size)
        if half is None or (offset == 0 and not is_half(half)):
            return offset == 0
        return is_made_of(record, half)

    def _write_again(self, start: int, end: int) -> None:
        """Write bytes again as they are read: the kernel then has dirty pages, and the next sync writes them."""
        while start < end:
            segment = self._segments.get(start - start % self.segment_bytes)
            if segment is None:
                break
            data = segment.file.pread(min(1 << 20, end - start, segment.end - start), start - segment.start)
            segment.file.pwrite(data, start - segment.start)
            start += len(data)

    def _check_gaps(self, end: int) -> None:
        expected = self._begin
        for start in sorted(self._segments):
            if start != expected and start <= end:
                raise StoreCorruptError(
                    f"{self.directory / segment_name(expected)} at 0: it is missing, {segment_name(start)} is there"
                )
            expected = start + self.segment_bytes

    def _cut(self, end: int, scanned_from: int, clean: bool) -> None:
        """Make ``end`` the end: nothing behind it may be read again, not even after another crash.

        If the log was not closed properly, zeros behind it may be those of an earlier start whose sync failed.
        """
        for start in sorted(self._segments, reverse=True):
            if start > end:
                put_away(self._files, self._segments.pop(start), self._aside)
        self._tail = self._segments.get(end - end % self.segment_bytes)
        if self._tail is not None:
            unsure = 0 if clean else REWRITE_BYTES_MAX
            self._tail.file.clear(end - self._tail.start, self._tail.end - end, unsure)
        self._end = end
        for segment in self._between(min(scanned_from, end), end + 1):
            segment.file.sync()
        self._files.sync_dir(self.directory)
        self._synced = end

    def remove_oldest(self) -> Segment | None:
        """Remove the oldest segment and return it; None if it is the present one, or not durable. Raises StoreError."""
        segments = self.segments()
        if len(segments) < 2 or segments[0].end > self._end or segments[0].end > self._synced:
            return None
        oldest = segments[0]
        # First: readers take the segment for gone before its file is.
        self._begin = oldest.end
        del self._segments[oldest.start]
        oldest.release()
        self._files.remove(oldest.path)
        self._files.sync_dir(self.directory)
        return oldest

    def check(self, from_offset: int = 0) -> list[str]:
        """Walk the records with their CRCs and say what is wrong; empty when nothing is."""
        wrong = super().check(from_offset)
        if not self._begin <= self._synced <= self._end:
            wrong.append(f"CommitLog: begin {self._begin}, synced {self._synced}, end {self._end} out of order")
        return wrong

    def close(self) -> None:
        """Sync, and remove a segment that was made ahead but not used.

        Also raises StoreError if torn bytes behind the end cannot be cleared. They may look like a record, and after a
        clean end the next start would take them for durable.
        """
        try:
            self.sync()
            self._clear_torn()
        finally:
            with self._ahead_lock:
                ahead, self._ahead = self._ahead, None
            if ahead is not None:
                ahead.release()
                self._files.remove(ahead.path)
                self._files.sync_dir(self.directory)
            for segment in self._segments.values():
                segment.release()
