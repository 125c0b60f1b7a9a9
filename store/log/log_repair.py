"""Mending a CommitLog: whatever is no record is covered, so that every whole record behind it is reached again.

A scan of the log stops at the first place that is no record, and nothing behind it would be read. So a damaged span is
covered by *fillers*: records of the format itself, as long as the span, of the type "rolled back", which no broker
(Apache's neither) puts into a queue. A span that reaches to the end of its segment is covered by the format's blank.
Nothing moves: every whole record stays at its position, with its number in its queue.

============================================  ===========================================================
what is found                                 what is done
============================================  ===========================================================
a span that is no record, records behind it   fillers up to the first whole record
the same, none behind it in the segment       a blank, if a later segment holds records
a file that is cut off, or missing            the same, in a file of full size
the log ends before what was durable          fillers and blanks up to there: no position is given twice
============================================  ===========================================================

What is covered is put aside first. A record counts as whole by the rules of `store.log.log_scan`. A sender may put the
bytes of a record into a body. So what looks like a record, but lies within one that a ConsumeQueue names, is body and
is covered with it (`store.derived.known_places`).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from remoting.layout import (
    BLANK_BYTES,
    MAGIC_AT,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    PROPERTIES_LENGTH_BYTES,
    RECORD,
    RECORD_BYTES_MIN,
)
from remoting.layout.table import INT, LONG
from remoting.messages.checksum import crc32
from remoting.messages.message import store_ms_at
from store.disk.aside import AsideDir
from store.disk.errors import StoreFormatError
from store.disk.files import Files
from store.disk.segments import Segment, segment_name
from store.log.log_scan import Stop, blank_record, valid_size, walk

__all__ = ["FILLER_TOPIC", "filler_records", "next_record", "repair_log"]

FILLER_TOPIC = b"TBW102"
_FILLER_MAX = 1 << 20
_ROLLED_BACK = 12
_HEAD = RECORD.picked(*(field.name for field in RECORD.fields if not field.name.endswith("_host")))
_MAGICS = tuple(magic.to_bytes(4, "big") for magic in (MAGIC_V1, MAGIC_V2))
_BLANK = MAGIC_BLANK.to_bytes(4, "big")
_WINDOW = 1 << 20
_OVERLAP = 8 << 20
"""Longer than any record."""


def filler_records(position: int, size: int, store_ms: int) -> bytes:
    """Records that nobody sees, ``size`` bytes in all (at least 92), for this CommitLog position.

    >>> data = filler_records(6000, 100, 0)
    >>> len(data), valid_size(data, 0, 6000)
    (100, 100)
    """
    parts = []
    while size:
        # What is left must have room for another filler.
        part = size if size <= _FILLER_MAX else min(_FILLER_MAX, size - 2 * RECORD_BYTES_MIN)
        topic = FILLER_TOPIC[: part - RECORD_BYTES_MIN]
        body = bytes(part - RECORD_BYTES_MIN - len(topic))
        head = _HEAD.pack(
            part, MAGIC_V1, crc32(body) & 0x7FFFFFFF, 0, 0, 0, position, _ROLLED_BACK, 0, store_ms, 0, 0, len(body)
        )
        parts.append(head + body + bytes((len(topic),)) + topic + bytes(PROPERTIES_LENGTH_BYTES))
        position += part
        size -= part
    return b"".join(parts)


def _nowhere(_position: int) -> bool:
    return False


def next_record(segment: Segment, position: int, limit: int, is_inside: Callable[[int], bool] = _nowhere) -> int:
    """Position in a segment of the first whole record (or the blank) from ``position`` on; -1 without one.

    Only bytes below ``limit`` are looked at for its beginning. ``is_inside`` says of a CommitLog position whether it
    lies within a record: what begins there is a part of its body.
    """
    while position < limit:
        data = segment.file.pread(min(_WINDOW, limit - position) + BLANK_BYTES, position)
        found = sorted(at - MAGIC_AT for magic in (*_MAGICS, _BLANK) for at in _all_of(data, magic) if at >= MAGIC_AT)
        for at in found:
            place = position + at
            if place >= limit:
                break
            if _is_record(segment, place) and not is_inside(segment.start + place):
                return place
        if len(data) <= BLANK_BYTES:
            break
        position += min(_WINDOW, limit - position)
    return -1


def _all_of(data: bytes, wanted: bytes) -> list[int]:
    found = []
    at = data.find(wanted)
    while at >= 0:
        found.append(at)
        at = data.find(wanted, at + 1)
    return found


def _is_record(segment: Segment, place: int) -> bool:
    head = segment.file.pread(BLANK_BYTES, place)
    size = int(INT.unpack_from(head)[0])
    if head[MAGIC_AT:] == _BLANK:
        return size == segment.size - place
    if not RECORD_BYTES_MIN <= size <= min(_OVERLAP, segment.size - place):
        return False
    return valid_size(segment.file.pread(size, place), 0, segment.start + place) > 0


class _Log:
    """The segments of one log under repair."""

    def __init__(
        self, files: Files, directory: Path, segment_bytes: int, aside: AsideDir, is_inside: Callable[[int], bool]
    ) -> None:
        self.is_inside = is_inside
        self.files = files
        self.directory = directory
        self.bytes = segment_bytes
        self.aside = aside
        self.last_ms = 0
        self.changed = False
        self.segments: dict[int, Segment] = {}
        names = [name for name in files.listdir(directory) if len(name) == 20 and name.isdigit()]
        sizes = {files.file_size(directory / name) for name in names}
        if len(names) > 1 and len(sizes) == 1 and sizes != {segment_bytes}:
            raise StoreFormatError(
                f"{directory}: all files have {sizes.pop()} bytes, but mappedFileSizeCommitLog is {segment_bytes}; "
                "set it to what the store was written with (-c or --set)"
            )
        for name in names:
            self._take(int(name))

    def _take(self, start: int) -> None:
        path = self.directory / segment_name(start)
        size = self.files.file_size(path)
        if start % self.bytes:
            self.aside.say(f"{path}: no segment can begin there, moved to {self.aside.move(path)}")
            return
        if size != self.bytes:
            self.changed = True
            self.aside.say(f"{path}: it has {size} bytes, not {self.bytes}: it is brought to its full size")
            file = self.files.open(path)
            if size > self.bytes:
                self.aside.keep(path, self.bytes, file.pread(size - self.bytes, self.bytes))
            file.truncate(self.bytes)
            file.sync()
            file.close()
        self.segments[start] = Segment(self.files, self.directory, start, self.bytes)

    def segment(self, start: int) -> Segment:
        """The segment that begins there, made if it is missing."""
        found = self.segments.get(start)
        if found is None:
            self.changed = True
            found = self.segments[start] = Segment(self.files, self.directory, start, self.bytes)
            found.create()
            self.files.sync_dir(self.directory)
            self.aside.say(f"{found.path} was missing: its messages are lost")
        return found

    def cover(self, segment: Segment, position: int, end: int) -> None:
        """Put fillers over [position, end) of a segment, or a blank if that is its end."""
        size = end - position
        if size <= 0:
            return
        self.changed = True
        at = position
        while at < end:
            data = segment.file.pread(min(16 << 20, end - at), at)
            kept = self.aside.keep(segment.path, at, data)
            at += len(data)
        if end == segment.size:
            data = blank_record(size)
        elif size > RECORD_BYTES_MIN:
            data = filler_records(segment.start + position, size, self.last_ms)
        else:
            return
        segment.file.pwrite(data, position)
        segment.file.sync()
        self.aside.say(
            f"{segment.path} at {position}: {size} bytes were no whole records; filler covers them, a copy is {kept}"
        )

    def mend(self, segment: Segment, more: bool) -> int:
        """Mend one segment; answers where its records end, its size if the log goes on behind it (``more``)."""
        position = 0
        while True:
            stop = Stop()
            for _, record in walk(
                segment.file.pread, segment.start, position, segment.size, stop, segment_bytes=segment.size
            ):
                self.last_ms = LONG.unpack_from(record, store_ms_at(record))[0]
            if stop.blank:
                return segment.size
            found = next_record(segment, stop.position, segment.size - BLANK_BYTES + 1, self.is_inside)
            if found < 0:
                if more:
                    self.cover(segment, stop.position, segment.size)
                    return segment.size
                return stop.position
            if found - stop.position <= RECORD_BYTES_MIN and found > stop.position:
                # Not even a record fits in there, so what was found there is none of its log.
                self.cover(segment, stop.position, segment.size)
                return segment.size
            if found == stop.position:
                return segment.size  # a blank that the walk did not like is none that the search finds
            self.cover(segment, stop.position, found)
            position = found


def repair_log(
    files: Files,
    directory: Path,
    segment_bytes: int,
    durable: int,
    aside: AsideDir,
    is_inside: Callable[[int], bool] = _nowhere,
) -> tuple[int, bool]:
    """Repair the log; return (its end, whether anything was changed).

    ``durable`` is a position that it had reached; ``is_inside`` says of a position whether it lies within a record.

    Raises StoreFormatError if all segments have another size.
    """
    log = _Log(files, directory, segment_bytes, aside, is_inside)
    if not log.segments and not durable:
        return 0, log.changed
    begin = min(log.segments, default=durable - durable % segment_bytes)
    last = max((start for start, segment in log.segments.items() if _holds(segment)), default=begin)
    start, end = begin, begin
    while start <= max(last, durable):
        segment = log.segment(start)
        more = start < last or durable >= segment.end
        end = start + log.mend(segment, more)
        if not more and end < durable:
            aside.say(f"{segment.path} at {end - start}: the log ends there, but was durable up to offset {durable}")
            log.cover(segment, end - start, durable - start)
            end = durable
        start += segment_bytes
    return end, log.changed


def _holds(segment: Segment) -> bool:
    """True if a segment holds a whole record or a blank."""
    return next_record(segment, 0, segment.size - BLANK_BYTES + 1) >= 0
