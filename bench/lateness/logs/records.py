"""Finds CommitLog records in bytes: their starts, their fixed fields, and damaged regions.

A split of a segment is a byte range; it owns the records that *start* in it. Only a record itself says where it ends.
So one walk from size to size finds the starts (a tenth of a microsecond each). NumPy reads and checks all other fields
of thousands of records at once.

========================  ==========================================================================================
begin of a split          the first place at or behind it with a whole record: magic, its own position
                          (PHYSICALOFFSET), parts that add up to its size, and the CRC of its body
end of a split            a record that reaches over it is read to its end
other bytes               a gap: from here to the next whole record, even in another split. The split that owns the
                          record before the gap reports it, so each gap is reported once and in one piece
blank                     (magic 0xCBD43194, its size reaches to the end of the file) the segment is full
zeros to the end          in the last segment: the end of the log; the file has its full size from the start
========================  ==========================================================================================

A sender may put a record into a body, made for exactly the position at which it will be stored. A split that begins
inside that body takes it for a real record. The sender would have to know that position beforehand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from zlib import crc32

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from bench.lateness.logs.lean import read_lean
from bench.lateness.logs.storage import LogMovedError
from remoting.layout import (
    BLANK_BYTES,
    BODY_AT,
    BORN_HOST_V6,
    HOSTS_V6,
    MAGIC_AT,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    PROPERTIES_LENGTH_BYTES,
    RECORD,
    RECORD_BYTES_MIN,
    RECORDS,
    STORE_HOST_V6,
    TOPIC_LENGTH_BYTES,
    TOPIC_LENGTH_BYTES_V2,
)

__all__ = ["Gap", "Heads", "LogSegment", "SplitReader", "read_heads", "store_hosts"]

CHUNK_BYTES = 2 << 20
FIND_BYTES = 1 << 20

_MAGIC_START = (MAGIC_V1 >> 8).to_bytes(3, "big")
_WORDS = RECORD.struct("size", "magic")
_POSITION = RECORD.picked("position")
_TAIL_BYTES_MIN = RECORD_BYTES_MIN - BODY_AT
_HOSTS_MAX = 64
"""A broker has one address, a few in its life. Of a log that has more, only so many are read."""

Longs = NDArray[np.int64]
Read = Callable[[int, int], bytes]
"""``read(position, count)``: bytes of a segment's file; fewer only at its end."""


_LAYOUTS = {hosts: np.dtype(table.columns()) for hosts, table in RECORDS.items()}
_NAMES = ("queue_id", "queue_offset", "sys_flag", "born_ms", "store_ms", "reconsume_times", "body_bytes", "crc")


@dataclass(slots=True)
class Heads:
    """Fixed fields of records, one array element a record; ``starts`` and ``…_at`` are indices of the buffer.

    ``places`` are positions in the segment. ``left_out`` bytes of the body are not in the buffer: none of it or all.
    """

    starts: Longs
    places: Longs
    sizes: Longs
    left_out: Longs
    queue_id: Longs
    queue_offset: Longs
    sys_flag: Longs
    born_ms: Longs
    store_ms: Longs
    reconsume_times: Longs
    body_bytes: Longs
    crc: Longs
    body_at: Longs
    topic_at: Longs
    topic_bytes: Longs
    properties_at: Longs

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def ends(self) -> Longs:
        """Where each record (and its properties) ends in the buffer."""
        return self.starts + self.sizes - self.left_out

    def first(self, count: int) -> Heads:
        """The first ``count`` records."""
        return Heads(*(getattr(self, name)[:count] for name in Heads.__slots__))


def read_heads(
    data: bytes, starts: Longs, places: Longs, base: int, left_out: Longs | None = None
) -> tuple[Heads, int]:
    """Read the fields of the records at ``starts``; return them, and how many records before the first unsound one.

    ``places`` are their positions in the segment, ``base`` is the segment's CommitLog position. By their sizes, all
    records must lie within ``data``, except the bytes of bodies that are ``left_out``.
    """
    # A window begins at each byte; those at ``starts``, seen as structs, give the fixed fields without a loop.
    raw = np.frombuffer(data, np.uint8)
    count = len(starts)
    rows = sliding_window_view(raw, BODY_AT)[starts].view(_LAYOUTS[0]).reshape(count)
    columns = {name: rows[name].astype(np.int64) for name in _NAMES}
    sizes, magic, position = (rows[name].astype(np.int64) for name in ("size", "magic", "position"))
    head_bytes = np.full(count, BODY_AT, np.int64)
    hosts = columns["sys_flag"] & HOSTS_V6
    for bits in (BORN_HOST_V6, STORE_HOST_V6, HOSTS_V6):
        some = np.flatnonzero((hosts == bits) & (sizes >= _LAYOUTS[bits].itemsize + _TAIL_BYTES_MIN))
        if len(some):
            layout = _LAYOUTS[bits]
            wide = sliding_window_view(raw, layout.itemsize)[starts[some]].view(layout).reshape(len(some))
            head_bytes[some] = layout.itemsize
            for name in _NAMES:
                columns[name][some] = wide[name]
    last = len(raw) - 1
    left_out = np.zeros(count, np.int64) if left_out is None else left_out
    body_at = starts + head_bytes
    topic_at = body_at + columns["body_bytes"] - left_out
    wide_topic = magic == MAGIC_V2
    topic_bytes = raw[np.clip(topic_at, 0, last)].astype(np.int64)
    topic_bytes[wide_topic] = _two_bytes(raw, topic_at[wide_topic])
    topic_at += np.where(wide_topic, TOPIC_LENGTH_BYTES_V2, TOPIC_LENGTH_BYTES)
    properties_at = topic_at + topic_bytes + PROPERTIES_LENGTH_BYTES
    ends = starts + sizes - left_out
    sound = (position == base + places) & (columns["body_bytes"] >= 0) & (properties_at <= ends)
    sound &= properties_at + _two_bytes(raw, properties_at - PROPERTIES_LENGTH_BYTES) == ends
    sound &= (hosts == 0) | (head_bytes > BODY_AT)
    # No CRC covers topic and properties. If their last byte is zero, the write of the record was cut off there.
    sound &= (raw[np.clip(ends - 1, 0, last)] != 0) | (properties_at == ends)
    sound &= raw[np.clip(properties_at - PROPERTIES_LENGTH_BYTES - 1, 0, last)] != 0
    heads = Heads(
        starts=starts,
        places=places,
        sizes=sizes,
        left_out=left_out,
        body_at=body_at,
        topic_at=topic_at,
        topic_bytes=topic_bytes,
        properties_at=properties_at,
        **columns,
    )
    return heads, count if sound.all() else int(np.argmin(sound))


def store_hosts(data: bytes, heads: Heads) -> set[bytes]:
    """The different store hosts of records: 8 bytes (IPv4 and port) or 20 (IPv6 and port); usually one or two."""
    raw = np.frombuffer(data, np.uint8)
    found: set[bytes] = set()
    bits = heads.sys_flag & HOSTS_V6
    for kind, layout in _LAYOUTS.items():
        some = heads.starts[bits == kind]
        at, size = layout.fields["store_host"][1], layout.fields["store_host"][0].itemsize  # type: ignore[index]
        while len(some):
            host = data[int(some[0]) + at : int(some[0]) + at + size]
            found.add(host)
            other = np.zeros(len(some), np.bool_)
            for column, byte in enumerate(host):
                other |= raw[some + (at + column)] != byte
            some = some[other]
            if len(found) >= _HOSTS_MAX:
                return found
    return found


def _two_bytes(raw: NDArray[np.uint8], at: Longs) -> Longs:
    place = np.clip(at, 0, len(raw) - 2)
    return raw[place].astype(np.int64) << 8 | raw[place + 1]


def _walk(data: bytes, stop: int) -> tuple[list[int], int, int]:
    """Follow sizes from 0 to the first start at or behind ``stop``: (starts, next place, size of a cut-off record).

    The size is -1 if there is no record at the next place, 0 if the walk reached ``stop`` or the end of the bytes.
    """
    starts: list[int] = []
    append, words = starts.append, _WORDS.unpack_from
    at, length = 0, len(data)
    stop = min(stop, length - _WORDS.size + 1)
    while at < stop:
        size, magic = words(data, at)
        if (magic != MAGIC_V1 and magic != MAGIC_V2) or size < RECORD_BYTES_MIN:
            return starts, at, -1
        after = at + size
        if after > length:
            return starts, at, size
        append(at)
        at = after
    return starts, at, 0


@dataclass(frozen=True, slots=True)
class LogSegment:
    """One file of a CommitLog at the time when a reading was planned.

    ``base``: CommitLog position of its first byte; ``size``: bytes of the file; ``end``: position in the file behind
    its last byte that is not zero; ``last``: whether all later segments have only zeros.
    """

    path: str
    base: int
    size: int
    end: int
    last: bool


@dataclass(frozen=True, slots=True)
class Gap:
    """A region of a segment's file without records, and why; ``torn``: it is at the end of the log, not inside."""

    offset: int
    size: int
    why: str
    torn: bool


class SplitReader:
    """Reads the records that start in ``[begin, stop)`` of a segment; adds the gaps that it finds to ``gaps``.

    With ``begin_is_record``, and at the segment's start, a record must begin at ``begin``. Otherwise the first one
    behind it is searched for. Bodies of ``lean_bytes`` or more on average are not read; 0 and ``check_crc`` read all.
    """

    def __init__(
        self,
        read: Read,
        segment: LogSegment,
        begin: int,
        stop: int,
        *,
        check_crc: bool = False,
        chunk_bytes: int = CHUNK_BYTES,
        begin_is_record: bool = False,
        lean_bytes: int = 0,
    ) -> None:
        self.gaps: list[Gap] = []
        self._source = read
        self._segment = segment
        self._begin = begin
        self._stop = min(stop, segment.end)
        self._check_crc = check_crc
        self._chunk_bytes = chunk_bytes
        self._aligned = begin == 0 or begin_is_record
        self._lean_bytes = 0 if check_crc else lean_bytes

    def _read(self, position: int, count: int) -> bytes:
        data = self._source(position, count)
        if len(data) < count and position + len(data) < self._segment.size:
            raise LogMovedError.shorter(self._segment.path, self._segment.size, position + len(data))
        return data

    def chunks(self) -> Iterator[tuple[bytes, Heads]]:
        """Yield (bytes, records in them), in order.

        Raises LogMovedError if the file has become shorter than the segment was.
        """
        segment = self._segment
        position: int | None = self._begin
        if not self._aligned:
            position = self._find(self._begin, self._stop)
        want = self._chunk_bytes
        lean = False
        while position is not None and position < self._stop:
            chunk = read_lean(self._read, segment.size, position, self._stop) if lean else None
            if chunk is not None and chunk.starts:
                data, after, broken = chunk.data, chunk.after, False
                starts = np.array(chunk.starts, np.int64)
                found = read_heads(data, starts, np.array(chunk.places), segment.base, np.array(chunk.left_out))
            else:
                data = self._read(position, min(want, segment.size - position))
                walked, at, cut = _walk(data, self._stop - position)
                after, broken = position + at, cut < 0
                if not walked:
                    if cut > 0:
                        broken = not self._fits(data, position, cut)
                        want = cut
                    elif not cut and len(data) < RECORD_BYTES_MIN:
                        break
                    position = self._next(after) if broken else after
                    continue
                starts = np.array(walked, np.int64)
                found = read_heads(data, starts, starts + position, segment.base)
            want = self._chunk_bytes
            heads, sound = found
            if self._check_crc:
                sound = _first_wrong_crc(data, heads, sound)
            if sound < len(heads):
                after, broken = int(heads.places[sound]), True
                heads = heads.first(sound)
            if len(heads):
                lean = self._lean_bytes > 0 and float(heads.body_bytes.mean()) >= self._lean_bytes
                yield data, heads
            position = self._next(after) if broken else after
            if position is None:
                return
        if position is not None and position >= self._stop:
            self._look_behind(position)

    def _fits(self, data: bytes, position: int, size: int) -> bool:
        """Whether a record that is cut off by the end of the bytes may be real: it fits, and has its own position."""
        if position + size > self._segment.size or len(data) < _POSITION.size:
            return False
        return bool(_POSITION.unpack_from(data)[0] == self._segment.base + position)

    def _next(self, position: int) -> int | None:
        """Note the gap that begins here, if there is one; return where this split continues, None if it ends."""
        segment = self._segment
        head = self._read(position, min(BLANK_BYTES, segment.size - position))
        if len(head) < BLANK_BYTES:
            return None
        left, magic = _WORDS.unpack(head)
        if magic == MAGIC_BLANK and position + left == segment.size:
            return None
        if position >= segment.end:
            if not segment.last:
                self.gaps.append(Gap(position, segment.size - position, "zeros where the segment should go on", False))
            return None
        found = self._find(position + 1, segment.end)
        if found is None:
            why = "no whole record" if segment.last else "no record up to the end of the segment"
            self.gaps.append(Gap(position, self._records_end(position) - position, why, segment.last))
            return None
        self.gaps.append(Gap(position, found - position, "bytes that are no record", False))
        return found if found < self._stop else None

    def _records_end(self, position: int) -> int:
        """Where the records of the segment end: before its blank, if that is whole and behind ``position``."""
        segment = self._segment
        at = segment.end - _WORDS.size
        if at > position and _WORDS.unpack(self._read(at, _WORDS.size)) == (segment.size - at, MAGIC_BLANK):
            return at
        return segment.end

    def _look_behind(self, position: int) -> None:
        """Note the gap, if there is one, behind the record that reaches over the end of this split."""
        if not self._is_record(position):
            self._next(position)

    def _find(self, begin: int, limit: int) -> int | None:
        """The first place in [begin, limit) with a whole record."""
        at = begin
        while at < limit:
            data = self._read(at, min(FIND_BYTES, self._segment.size - at))
            hit = data.find(_MAGIC_START, MAGIC_AT)
            while hit >= 0:
                start = at + hit - MAGIC_AT
                if start >= limit:
                    return None
                if self._is_record(start):
                    return start
                hit = data.find(_MAGIC_START, hit + 1)
            if len(data) < 8:
                return None
            at += max(1, len(data) - 7)
            if at + 7 >= self._segment.size:
                return None
        return None

    def _is_record(self, position: int) -> bool:
        room = self._segment.size - position
        if room < RECORD_BYTES_MIN:
            return False
        size, magic = _WORDS.unpack(self._read(position, _WORDS.size))
        if magic not in (MAGIC_V1, MAGIC_V2) or not RECORD_BYTES_MIN <= size <= room:
            return False
        head = self._read(position, _POSITION.size)
        if not self._fits(head, position, size):
            return False
        data = self._read(position, size)
        heads, sound = read_heads(data, np.zeros(1, np.int64), np.full(1, position), self._segment.base)
        return _first_wrong_crc(data, heads, sound) == 1


def _first_wrong_crc(data: bytes, heads: Heads, count: int) -> int:
    """How many of the first ``count`` records come before one whose body has another CRC-32 (top bit cleared)."""
    view = memoryview(data)
    rows = zip(heads.body_at.tolist(), heads.body_bytes.tolist(), heads.crc.tolist(), strict=True)
    for index, (at, size, crc) in enumerate(rows):
        if index >= count:
            break
        if crc32(view[at : at + size]) & 0x7FFFFFFF != crc:
            return index
    return count
