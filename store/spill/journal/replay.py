"""Reading the journal back: which frames are there, where the journal ends, and what was cancelled or moved.

One pass over each segment collects the rows of its frames; the columns are then made of all rows at once. Records
above the last checkpoint's claim are checked against their CRCs. Those below it were synced, and every record is
checked again when it is read for delivery.

=============================  ==================================================================
met at the next frame's place  meaning
=============================  ==================================================================
a frame                        of this place, of an epoch not older than the one before: go on
END frame                      closed: go on in the next segment
anything else, below a claim   `StoreCorruptError`: it had been durable
anything else                  the end. Everything behind it, in this segment and the next ones, is cut
=============================  ==================================================================
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from remoting.layout import (
    FILE_HEADER_BYTES,
    FRAME_BYTES,
    FRAME_DURABLE_AT,
    FRAME_KIND_AT,
    FRAME_POSITION_AT,
    FRAME_ROW_BYTES,
)
from store.disk.errors import StoreCorruptError
from store.spill.journal.journal import records_are_whole
from store.spill.journal.segment import JournalSegment
from store.spill.rows.format import (
    CANCEL,
    END,
    FRAME_MAGIC,
    JOURNAL_MAGIC,
    MOVE,
    ROW_DTYPE,
    Frame,
    frame_count,
    frame_seed,
    read_file_header,
    read_frame,
)
from store.spill.rows.source import Longs

__all__ = ["Replayed", "cut_behind", "read_segment", "replay", "write_again"]

_WINDOW = 1 << 20
_ALL_DURABLE = 1 << 63
_MAGIC_BYTES = FRAME_MAGIC.to_bytes(4, "little")


class Replayed:
    """The result of `replay`.

    =================  ================================================================================
    ``last``           index of the segment in which the journal ends
    ``tail``           that segment; None if it is closed
    ``epoch``          epoch of the last frame
    ``frames``         how many frames were read
    ``synced``         highest journal position that a frame calls durable
    ``dirt``           (segment, position, size) of what is not zero behind the end
    ``kill_ids``       delay ids that were cancelled or moved behind the checkpoint's position
    ``kill_versions``  for each of them the highest version that is no longer live
    =================  ================================================================================
    """

    __slots__ = ("dirt", "epoch", "frames", "kill_ids", "kill_versions", "last", "synced", "tail")

    def __init__(self) -> None:
        self.last = 0
        self.tail: JournalSegment | None = None
        self.epoch = 0
        self.frames = 0
        self.synced = 0
        self.dirt: list[tuple[JournalSegment, int, int]] = []
        self.kill_ids: list[Longs] = []
        self.kill_versions: list[Longs] = []


class _Window:
    """A file read front to back through one buffer."""

    __slots__ = ("data", "segment", "start")

    def __init__(self, segment: JournalSegment) -> None:
        self.segment = segment
        self.start = 0
        self.data = b""

    def at(self, position: int, size: int) -> int:
        """Load ``size`` bytes (or all up to the segment's end) into ``data``; returns the index of ``position``."""
        index = position - self.start
        if index < 0 or index + size > len(self.data):
            self.start = position
            self.data = self.segment.file.pread(min(max(size, _WINDOW), self.segment.size - position), position)
            index = 0
        return index


def replay(segments: list[JournalSegment], store_id: bytes, claim: int, durable: int = 0) -> Replayed:
    """Fill the segments from their files.

    ``claim`` is the durable journal position of the checkpoint: the done-sets have every cancel and move below it.
    ``durable`` is a position that is known to be durable from elsewhere. It says nothing about the done-sets, so
    cancels and moves between the two are still answered.

    Raises StoreCorruptError, with file and offset, if something is missing that was durable.
    """
    seed = frame_seed(store_id)
    result = Replayed()
    for segment in segments:
        head = segment.file.pread(FILE_HEADER_BYTES, 0)
        base, size = read_file_header(head, JOURNAL_MAGIC, store_id, segment.no, segment.file.path)
        if (base, size) != (segment.base, segment.size) or segment.file.size() < size:
            raise StoreCorruptError(
                f"{segment.file.path} at 0: base {base} and size {size} there contradict the manifest or the file"
            )
    for index, segment in enumerate(segments):
        result.last = index
        _walk(segment, seed, claim, max(claim, durable), result)
        if not segment.closed:
            break
    last = segments[result.last]
    result.tail = None if last.closed else last
    behind = segments[result.last :] if not last.closed else segments[result.last + 1 :]
    result.dirt = [(segment, position, size) for segment in behind for position, size in _not_zero(segment)]
    end = last.base + last.end
    claim = max(claim, durable)
    # A whole frame behind the break may claim more than those before it: then durable bytes are missing.
    for segment, position, size in result.dirt:
        claim = max(claim, _claim_in(segment, position, size, seed))
    if claim > end:
        raise StoreCorruptError(
            f"{last.file.path} at {last.end}: the journal breaks off, but it was durable up to journal position "
            f"{claim}, {claim - end} bytes further"
        )
    return result


def read_segment(segment: JournalSegment, store_id: bytes) -> None:
    """Fill a closed, durable segment from its file alone. Raises StoreCorruptError if its end mark is not reached."""
    _walk(segment, frame_seed(store_id), _ALL_DURABLE, _ALL_DURABLE, Replayed())
    if not segment.closed:
        raise StoreCorruptError(f"{segment.file.path} at {segment.end}: no frame, and no end mark before it")


def _walk(segment: JournalSegment, seed: int, claim: int, durable: int, result: Replayed) -> None:
    window = _Window(segment)
    position = FILE_HEADER_BYTES
    rows: list[bytes] = []
    counts: list[int] = []
    starts: list[int] = []
    while True:
        found = _next_frame(window, position, seed, durable, result.epoch, segment.appended)
        if found is None:
            break
        frame, packed = found
        result.epoch = frame.epoch
        result.frames += 1
        result.synced = max(result.synced, frame.synced)
        position += frame.length
        if frame.kind == END:
            segment.closed = True
            break
        if frame.kind in (CANCEL, MOVE) and frame.offset >= claim:
            table = np.frombuffer(packed, ROW_DTYPE)
            # A cancel ends its version too; a move carries the new version, which stays live, and ends those below.
            # A copy: a view of the column would keep the whole frame in memory.
            result.kill_ids.append(table["id"].copy())
            result.kill_versions.append(table["version"].astype(np.int64) - (frame.kind == MOVE))
        if frame.kind != CANCEL:
            rows.append(packed)
            counts.append(frame.count)
            starts.append(position - frame.length + FRAME_BYTES + frame.count * FRAME_ROW_BYTES)
            segment.appended += frame.count
    segment.end = position
    if rows:
        table = np.frombuffer(b"".join(rows), ROW_DTYPE)
        segment.load(0, table, _positions(table, counts, starts))


def _positions(table: NDArray[np.void], counts: list[int], starts: list[int]) -> Longs:
    """File position of each record, from the position of each frame's first record."""
    before = np.cumsum(table["size"], dtype=np.int64) - table["size"]
    lengths = np.array(counts, np.int64)
    firsts = np.cumsum(lengths) - lengths
    positions: Longs = before + np.repeat(np.array(starts, np.int64) - before[firsts], lengths)
    return positions


def _next_frame(
    window: _Window, position: int, seed: int, durable: int, epoch: int, ordinal: int
) -> tuple[Frame, bytes] | None:
    segment = window.segment
    if position + FRAME_BYTES > segment.size:
        return None
    index = window.at(position, FRAME_BYTES)
    count = frame_count(window.data, index)
    need = FRAME_BYTES + count * FRAME_ROW_BYTES
    if window.data[index : index + FRAME_KIND_AT] != _MAGIC_BYTES or position + need > segment.size:
        return None
    index = window.at(position, need)
    frame = read_frame(window.data, index, segment.base + position, seed)
    if frame is None or frame.epoch < epoch or frame.first_ordinal != ordinal or (not count and frame.kind != END):
        return None
    if position + frame.length > segment.size:
        return None
    packed = window.data[index + FRAME_BYTES : index + need]
    if segment.base + position >= durable and frame.kind not in (CANCEL, END):
        index = window.at(position, frame.length)
        if not records_are_whole(window.data, index, frame.count, frame.length):
            return None
    return frame, packed


def _not_zero(segment: JournalSegment) -> list[tuple[int, int]]:
    """The portions behind a segment's end that are not all zero: (position, size)."""
    zeros = bytes(_WINDOW)
    found: list[tuple[int, int]] = []
    for position in range(segment.end, segment.size, _WINDOW):
        data = segment.file.pread(min(_WINDOW, segment.size - position), position)
        if data != zeros[: len(data)]:
            found.append((position, len(data)))
    return found


def _claim_in(segment: JournalSegment, position: int, size: int, seed: int) -> int:
    """The highest durable position that any whole frame beginning in this portion claims."""
    claim = 0
    # The magic may begin in this portion and end in the next one.
    data = segment.file.pread(min(size + len(_MAGIC_BYTES) - 1, segment.size - position), position)
    at = data.find(_MAGIC_BYTES)
    while at >= 0:
        head = data[at : at + FRAME_BYTES]
        if len(head) < FRAME_BYTES:
            head = segment.file.pread(FRAME_BYTES, position + at)
        need = FRAME_BYTES + frame_count(head) * FRAME_ROW_BYTES
        # The position is compared first: a body may be full of the magic, and each match would cost a read.
        if (
            int.from_bytes(head[FRAME_POSITION_AT:FRAME_DURABLE_AT], "little") == segment.base + position + at
            and position + at + need <= segment.size
        ):
            rows = segment.file.pread(need, position + at)
            frame = read_frame(rows, 0, segment.base + position + at, seed)
            if frame is not None:
                claim = max(claim, frame.synced)
        at = data.find(_MAGIC_BYTES, at + 1)
    return claim


def cut_behind(result: Replayed) -> None:
    """Zero everything behind the journal's end and sync: nothing there may look like a frame after a later crash.

    Where the next frame will begin, zeros are written even if it reads as zeros. These may be zeros over a frame whose
    write failed, in the page cache only: the process was killed before their sync, or that sync failed.
    """
    changed: dict[int, JournalSegment] = {}
    for segment, position, size in result.dirt:
        segment.file.zero(position, size)
        changed[segment.no] = segment
    tail = result.tail
    if tail is not None and tail.end + FRAME_BYTES <= tail.size:
        tail.file.clear(tail.end, FRAME_BYTES, unsure=FRAME_BYTES)
        changed[tail.no] = tail
    for segment in changed.values():
        segment.file.sync()


def write_again(segments: list[JournalSegment], durable: int) -> None:
    """Write everything above the durable position again and sync it: from here on it counts as durable.

    After a kill it may be in the page cache only. A sync alone is not enough: if a sync failed before the kill, the
    kernel has marked its pages clean. `replay` has checked all of it against its checksums.
    """
    for segment in segments:
        position = max(durable - segment.base, FILE_HEADER_BYTES)
        if position >= segment.end:
            continue
        while position < segment.end:
            data = segment.file.pread(min(_WINDOW, segment.end - position), position)
            segment.file.pwrite(data, position)
            position += len(data)
        segment.file.sync()
