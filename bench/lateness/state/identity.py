"""Tells whether a counted segment has changed since: its size, its first record, its end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from zlib import crc32

from bench.lateness.logs.planning import LogPlan, whole_end
from bench.lateness.logs.records import LogSegment
from bench.lateness.logs.storage import Storage
from remoting.layout import BLANK_BYTES

__all__ = ["Identity", "changed", "identity_of"]

_LOOK_BYTES = 4 << 10


@dataclass(frozen=True, slots=True)
class Identity:
    """The properties of a segment that a cut, a repair or another broker would change; checksums are CRC-32."""

    base: int
    size: int
    first: int
    """Checksum of its first 4 KiB."""
    end: int
    """Where its last whole record ends, in the file."""
    last: int
    """Checksum of the last 4 KiB before that and of the blank behind it, which ends a full segment."""


def identity_of(storage: Storage, segment: LogSegment) -> Identity:
    """Read the identity of a closed segment. Raises OSError or StorageError."""
    file = storage.open(segment.path)
    try:
        end = whole_end(file, segment, 0)
    finally:
        file.close()
    return Identity(segment.base, segment.size, *_checked(storage, segment.path, segment.size, end))


def _checked(storage: Storage, path: str, size: int, end: int) -> tuple[int, int, int]:
    begin = max(0, end - _LOOK_BYTES)
    first = storage.peek(path, 0, min(_LOOK_BYTES, size))
    return crc32(first), end, crc32(storage.peek(path, begin, min(end + BLANK_BYTES, size) - begin))


def changed(storage: Storage, plan: LogPlan, known: Mapping[int, Identity]) -> str:
    """Describe the first counted segment that has changed; empty if none has. Raises OSError or StorageError."""
    for segment in plan.segments:
        old = known.get(segment.base)
        if old is None:
            continue
        if segment.size != old.size:
            return f"{segment.path} has {segment.size:,} bytes, and had {old.size:,} when it was counted"
        first, _, last = _checked(storage, segment.path, segment.size, old.end)
        if first != old.first:
            return f"{segment.path} begins with another record than when it was counted"
        if last != old.last:
            return f"{segment.path} has another last record than when it was counted"
    return ""
