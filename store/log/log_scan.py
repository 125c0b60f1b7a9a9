"""Walks CommitLog bytes record by record, and believes none of them.

A record counts only if it is whole, its magic is known, its parts add up to its size, the body's CRC is right, and its
PHYSICALOFFSET equals its position. Apache's scanner does not check the last one. We do, because a log that was cut
keeps its old bytes behind the cut, and after another crash a scan may reach them. An old record has valid CRCs, but its
position is wrong unless the scan reaches it exactly where it was written. So the bytes behind the end are zeroed before
the first append.

The body's CRC does not cover topic and properties. Our records also have a sum of these (`remoting.messages.proof`),
and count only if it is right. Records without a sum, Apache's and those of older versions, are judged as Apache does:
by the checks above. The committed message of a transaction has no room for the sum; the op message behind it in the
same write has it (`store.log.log_proof`).

What a scan meets where the next record should start:

============  ============================================================================
a record      goes on behind it
a blank       (magic `MAGIC_BLANK`) this segment is full, goes on at the start of the next one
all else      (zeros, a torn write) the end of the log
============  ============================================================================
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from remoting.layout import (
    BLANK,
    BLANK_BYTES,
    BODY_AT,
    BODY_AT_MAX,
    HOST_MORE_V6,
    HOSTS_V6,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    PREPARED_BACK,
    PROPERTIES_LENGTH_BYTES,
    RECORD,
    RECORD_BYTES_MIN,
    TOPIC_LENGTH_BYTES,
    TOPIC_LENGTH_BYTES_V2,
)
from remoting.layout.table import INT
from remoting.messages.checksum import crc32
from remoting.messages.proof import is_proof, is_vouched_for
from store.log.log_proof import is_proven

__all__ = ["Stop", "blank_record", "valid_size", "walk"]

_HEAD = RECORD.struct("size", "sys_flag")
_BLANK = BLANK.struct()
_unpack_head = _HEAD.unpack_from
_unpack_proof = RECORD.struct("prepared_offset", "body_bytes").unpack_from
_READ_BYTES = 4 << 20
_NEXT_BYTES = 4 << 10


def blank_record(bytes_left: int) -> bytes:
    """Make the end of a segment: ``bytes_left`` counts these 8 bytes too."""
    return _BLANK.pack(bytes_left, MAGIC_BLANK)


def valid_size(buffer: bytes | bytearray | memoryview, at: int, offset: int, check_crc: bool = True) -> int:
    """Size of the record that starts at ``at`` and belongs at CommitLog position ``offset``.

    0 if there is none, -1 if there is a blank. A record that is cut off by the end of the buffer is none.
    """
    left = len(buffer) - at
    if left < BLANK_BYTES:
        return 0
    # A blank may be shorter than any record.
    if left < RECORD_BYTES_MIN:
        return -1 if _BLANK.unpack_from(buffer, at)[1] == MAGIC_BLANK else 0
    size, magic, crc, _, _, _, position, sys_flag = _unpack_head(buffer, at)
    if magic == MAGIC_BLANK:
        return -1
    if magic == MAGIC_V1:
        wide = TOPIC_LENGTH_BYTES
    elif magic == MAGIC_V2:
        wide = TOPIC_LENGTH_BYTES_V2
    else:
        return 0
    if position != offset or size < RECORD_BYTES_MIN or size > left:
        return 0
    end = at + size
    body_at = at + BODY_AT
    if sys_flag & HOSTS_V6:
        body_at = at + (BODY_AT_MAX if sys_flag & HOSTS_V6 == HOSTS_V6 else BODY_AT + HOST_MORE_V6)
        # The head is longer here than that of the shortest record, with which the size was compared.
        if body_at > end:
            return 0
    proof, body_bytes = _unpack_proof(buffer, body_at - PREPARED_BACK)
    topic_at = body_at + body_bytes
    if body_bytes < 0 or topic_at + wide + PROPERTIES_LENGTH_BYTES > end:
        return 0
    topic_bytes = buffer[topic_at] if wide == TOPIC_LENGTH_BYTES else buffer[topic_at] << 8 | buffer[topic_at + 1]
    properties_at = topic_at + wide + topic_bytes + PROPERTIES_LENGTH_BYTES
    if properties_at > end:
        return 0
    properties_bytes = buffer[properties_at - 2] << 8 | buffer[properties_at - 1]
    if properties_at + properties_bytes != end:
        return 0
    if check_crc:
        view = memoryview(buffer)
        if crc32(view[body_at:topic_at]) & 0x7FFFFFFF != crc:
            return 0
        if is_proof(proof) and crc32(view[topic_at:end]) != proof & 0xFFFFFFFF:
            return 0
    return int(size)


class Stop:
    """Why and where a walk through one segment ended: ``position`` in the segment, ``blank`` if it was full."""

    __slots__ = ("blank", "position")

    def __init__(self) -> None:
        self.position = 0
        self.blank = False


def walk(
    read: Callable[[int, int], bytes],
    base: int,
    begin: int,
    limit: int,
    stop: Stop,
    *,
    segment_bytes: int = 0,
    check_crc: bool = True,
    read_bytes: int = _READ_BYTES,
    at_end: Callable[[bytes], bool] | None = None,
) -> Iterator[tuple[int, bytes]]:
    """Yield (CommitLog offset, record) of one segment from position ``begin`` up to ``limit``.

    ``read(n, position)`` gives bytes of the segment, ``base`` is the segment's first CommitLog offset. ``stop`` is
    filled when the walk ends; a blank counts only if it reaches to the end of ``segment_bytes``. Never holds more
    than one read (or two records) in memory.

    ``at_end`` is asked about the last record if its proof should stand behind it and does not: False if it does not
    count. Without it, it counts.
    """
    buffer = read(min(read_bytes, limit - begin), begin)
    at = 0  # in the buffer
    start = begin  # of the buffer, in the segment
    while True:
        size = valid_size(buffer, at, base + start + at, check_crc)
        if size > 0:
            if check_crc and is_vouched_for(buffer, at):
                behind = _behind(read, base, start + at + size, limit)
                if not is_proven(buffer[at : at + size], behind, at_end):
                    # The record counts as none, and the walk ends in front of it.
                    size = 0
                    break
            yield base + start + at, buffer[at : at + size]
            at += size
            continue
        place = start + at
        if size == 0 and start + len(buffer) < limit and (more := _wants(buffer, at, base + place, limit - place)):
            start = place
            at = 0
            buffer = read(min(max(read_bytes, more), limit - start), start)
            # Only where the file ends, fewer bytes are read.
            if len(buffer) >= more:
                continue
        break
    stop.position = start + at
    stop.blank = size < 0 and INT.unpack_from(buffer, at)[0] == segment_bytes - stop.position


def _behind(read: Callable[[int, int], bytes], base: int, place: int, limit: int) -> bytes | None:
    """The whole record that starts at a place of the segment; empty for a blank, None if neither stands there."""
    buffer = read(min(_NEXT_BYTES, limit - place), place)
    size = valid_size(buffer, 0, base + place)
    if size == 0 and (more := _wants(buffer, 0, base + place, limit - place)):
        buffer = read(more, place)
        size = valid_size(buffer, 0, base + place)
    return None if size == 0 else buffer[: max(size, 0)]


def _wants(buffer: bytes, at: int, offset: int, room: int) -> int:
    """Return the bytes needed to judge a record that the buffer may have cut off; 0 if it can be judged already."""
    left = len(buffer) - at
    if left < RECORD_BYTES_MIN:
        return min(RECORD_BYTES_MIN, room) if min(RECORD_BYTES_MIN, room) > left else 0
    size, magic, _, _, _, _, position, _ = _unpack_head(buffer, at)
    # Garbage may claim any size: more is read only for a head that belongs here.
    if magic not in (MAGIC_V1, MAGIC_V2) or position != offset or not left < size <= room:
        return 0
    return int(size)
