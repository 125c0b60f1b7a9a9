"""The reading side of a CommitLog: by offset, hot or cold, one record, or all of them in order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from remoting.layout import BLANK_BYTES, RECORD_BYTES_MIN
from remoting.layout.table import INT, LONG
from remoting.messages.message import store_ms_at
from store.disk.errors import StoreCorruptError, StoreError
from store.disk.files import Files
from store.disk.segments import Segment, list_segments
from store.log.chunks import Chunks
from store.log.log_scan import Stop, valid_size, walk

__all__ = ["LogReader"]


class LogReader:
    """Segments of CommitLog bytes between ``begin`` and ``end``. Any thread; what is below ``end`` never changes."""

    def __init__(self, files: Files, directory: Path, segment_bytes: int) -> None:
        """Find the segments; ``end`` is not known yet. Raises `StoreFormatError` for files of another size."""
        self._files = files
        self.directory = directory
        self.segment_bytes = segment_bytes
        found = list_segments(files, directory, segment_bytes, "CommitLog", "mappedFileSizeCommitLog")
        self._segments: dict[int, Segment] = {segment.start: segment for segment in found}
        self._begin = found[0].start if found else 0
        self._end = self._begin
        self._chunks = Chunks()

    @property
    def begin(self) -> int:
        """The lowest offset that is still there."""
        return self._begin

    @property
    def end(self) -> int:
        """The offset behind the last record."""
        return self._end

    @property
    def record_bytes_max(self) -> int:
        """The largest record that fits into a segment."""
        return self.segment_bytes - BLANK_BYTES

    def segments(self) -> list[Segment]:
        """The segments in order, the one allocated ahead not among them."""
        return [segment for _, segment in sorted(self._segments.items())]

    def segment_of(self, offset: int) -> Segment | None:
        """The segment that holds an offset; None if it is not in the log."""
        if not self._begin <= offset < self._end:
            return None
        return self._segments.get(offset - offset % self.segment_bytes)

    def read(self, offset: int, size: int) -> bytes:
        """Read bytes of one segment; empty if they are not (or no longer) in the log. May wait for the disk."""
        segment = self.segment_of(offset)
        if segment is None or size <= 0 or offset + size > min(self._end, segment.end):
            return b""
        try:
            return segment.file.pread(size, offset - segment.start)
        except StoreError:
            if self.segment_of(offset) is None:
                return b""  # retention was faster
            raise

    def read_hot(self, offset: int, size: int) -> bytes | None:
        """Read as `read` does if all of it is in memory; None if that would wait for the disk."""
        segment = self.segment_of(offset)
        if segment is None or size <= 0 or offset + size > min(self._end, segment.end):
            return b""
        try:
            return segment.file.pread_hot(size, offset - segment.start)
        except StoreError:
            if self.segment_of(offset) is None:
                return b""
            raise

    def gather_hot(self, spans: Sequence[tuple[int, int]]) -> bytes | None:
        """Read many (offset, bytes) into one, as `read_hot` does; None unless all are in the log and in memory."""
        parts: list[bytes] = []
        first = 0
        while first < len(spans):
            segment = self.segment_of(spans[first][0])
            if segment is None:
                return None
            start, end = segment.start, min(self._end, segment.end)
            own: list[tuple[int, int]] = []
            for offset, size in spans[first:]:
                if not start <= offset < end:
                    break
                if size <= 0 or offset + size > end:
                    return None
                own.append((offset - start, size))
            try:
                data = self._chunks.gather(segment, end - start, own)
                if data is None:
                    data = segment.file.gather_hot(own)
            except StoreError:
                if self.segment_of(start) is None:
                    return None
                raise
            if data is None:
                return None
            parts.append(data)
            first += len(own)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def read_record(self, offset: int, size: int = 0) -> bytes | None:
        """Read the record that starts at an offset; None unless there is a whole and valid one.

        ``size`` is its supposed size. If that is right, one call reads the record, without releasing the interpreter
        lock if all of it is in the page cache.
        """
        if size >= RECORD_BYTES_MIN:
            record = self.read_hot(offset, size)
            if record is None:
                record = self.read(offset, size)
            if self._is_record(record, offset, size):
                return record
        head = self.read(offset, INT.size)
        if len(head) < INT.size:
            return None
        (size,) = INT.unpack(head)
        if size < RECORD_BYTES_MIN or size > self.record_bytes_max:
            return None
        record = self.read(offset, size)
        return record if self._is_record(record, offset, size) else None

    def _is_record(self, data: bytes, offset: int, size: int) -> bool:
        return len(data) == size and valid_size(data, 0, offset) == size

    def raw_record(self, offset: int, size: int) -> bytes | None:
        """Read a record of a known size before the log's end is known; None unless it is whole and valid."""
        segment = self._segments.get(offset - offset % self.segment_bytes)
        if segment is None or not RECORD_BYTES_MIN <= size <= self.record_bytes_max:
            return None
        record = segment.file.pread(size, offset - segment.start)
        return record if self._is_record(record, offset, size) else None

    def scan(self, from_offset: int, check_crc: bool = False) -> Iterator[tuple[int, bytes]]:
        """Yield (offset, record) from a record's offset (or the oldest) to the end as it is when reached.

        Raises StoreCorruptError where a record is damaged and the log goes on.
        """
        offset = max(from_offset, self._begin)
        while (segment := self.segment_of(offset)) is not None:
            stop = Stop()
            limit = min(self._end, segment.end) - segment.start
            yield from walk(
                segment.file.pread,
                segment.start,
                offset - segment.start,
                limit,
                stop,
                segment_bytes=segment.size,
                check_crc=check_crc,
            )
            reached = segment.start + stop.position
            if stop.blank:
                offset = segment.end
            elif reached < segment.start + limit:
                raise StoreCorruptError(
                    f"{segment.path}: no valid record at {stop.position} (offset {reached}), "
                    f"but the log goes on to {self._end}"
                )
            else:
                offset = reached

    def first_store_ms(self, segment: Segment) -> int | None:
        """Store time of a segment's first record, epoch ms; None if it has no valid one."""
        # Little is read at a time, because only the first record is wanted.
        record = walk(segment.file.pread, segment.start, 0, segment.size, Stop(), read_bytes=64 << 10)
        for _, first in record:
            return int(LONG.unpack_from(first, store_ms_at(first))[0])
        return None

    def check(self, from_offset: int = 0) -> list[str]:
        """Walk the records with their CRCs and say what is wrong; empty when nothing is."""
        wrong: list[str] = []
        try:
            for _ in self.scan(from_offset, check_crc=True):
                pass
        except StoreError as error:
            wrong.append(str(error))
        return wrong
