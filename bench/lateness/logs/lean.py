"""Reads records without their bodies, if these are large: nothing that is counted is in a body.

One read takes the topic and properties behind a body, and the head of the next record: a few hundred bytes in place of
a body of 64 KiB. This pays in a local file, where skipping bytes is free. In an object store a request costs more than
the bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from remoting.layout import BODY_AT, HOSTS_V6, MAGIC_V1, MAGIC_V2, RECORD, RECORD_BYTES_MIN, RECORDS

__all__ = ["LEAN_BODY_BYTES", "LeanChunk", "read_lean"]

LEAN_BODY_BYTES = 16 << 10
"""Bodies of this size on average, or larger, are skipped."""
_RECORDS_MOST = 1024
_BYTES_MOST = 1 << 20
_TAIL_BYTES_MIN = RECORD_BYTES_MIN - BODY_AT
_TAIL_BYTES_MOST = 2 + 2 * 0x7FFF + 2
_MAGICS = (MAGIC_V1, MAGIC_V2)
_WORDS = RECORD.struct("size", "magic")
_SYS_FLAG = RECORD.picked("sys_flag")
_HEAD_BYTES = {hosts: table.struct().size for hosts, table in RECORDS.items()}
_BODY_BYTES = {hosts: table.picked("body_bytes") for hosts, table in RECORDS.items()}
_HEAD_BYTES_MOST = max(_HEAD_BYTES.values())


@dataclass(slots=True)
class LeanChunk:
    """Records one behind the other in ``data``, each without its body.

    ``starts``: where each begins in ``data``; ``places``: where it begins in the segment; ``left_out``: size of its
    body; ``after``: the place in the segment behind the last one.
    """

    after: int
    data: bytes = b""
    starts: list[int] = field(default_factory=list)
    places: list[int] = field(default_factory=list)
    left_out: list[int] = field(default_factory=list)


def read_lean(read: Callable[[int, int], bytes], size: int, begin: int, stop: int) -> LeanChunk:
    """Read the records that start in ``[begin, stop)``, as many as a chunk holds; ``size`` is that of the segment.

    The chunk ends before bytes that cannot be a record; the caller looks at these.
    """
    chunk = LeanChunk(begin)
    parts: list[bytes] = []
    at, place = 0, begin
    head = read(place, min(_HEAD_BYTES_MOST, size - place))
    while place < stop and len(parts) < 2 * _RECORDS_MOST and at < _BYTES_MOST and len(head) >= BODY_AT:
        record_bytes, magic = _WORDS.unpack_from(head)
        hosts = _SYS_FLAG.unpack_from(head)[0] & HOSTS_V6
        head_bytes = _HEAD_BYTES[hosts]
        if magic not in _MAGICS or place + record_bytes > size or len(head) < head_bytes:
            break
        body_bytes = _BODY_BYTES[hosts].unpack_from(head)[0]
        tail_bytes = record_bytes - head_bytes - body_bytes
        if body_bytes < 0 or not _TAIL_BYTES_MIN <= tail_bytes <= _TAIL_BYTES_MOST:
            break
        behind = place + record_bytes
        more = read(behind - tail_bytes, min(tail_bytes + _HEAD_BYTES_MOST, size - behind + tail_bytes))
        if len(more) < tail_bytes:
            break
        parts += head[:head_bytes], more[:tail_bytes]
        chunk.starts.append(at)
        chunk.places.append(place)
        chunk.left_out.append(body_bytes)
        head = more[tail_bytes:]
        at += head_bytes + tail_bytes
        place = behind
    chunk.data, chunk.after = b"".join(parts), place
    return chunk
