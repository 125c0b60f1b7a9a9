"""Chunks of the log that scattered reads share, kept in memory for a moment.

The messages of one queue are not side by side in the log: those of other queues are between them. So 32 messages of one
of eight queues are 32 reads of a microsecond or two each. Readers of the other seven queues read the same stretch of
the log again. A `Chunks` therefore reads the stretch once, as a whole, and serves the other reads from memory.

A chunk is read only when it is requested for the second time in a row (in its slot), because most stretches are never
read again; it is read at once for so many spans that single reads would take as long. Bytes below the log's end never
change, so a chunk is never out of date. The exception: after a failed sync, a read may give old bytes until they are
written again. Then a new `Chunks` is made (`store.log.synced_log`).

Each chunk has one slot. Reads that belong together are joined at the end, so no two of their chunks may have the same.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

from store.disk.errors import StoreError
from store.disk.segments import Segment

__all__ = ["CHUNK_BYTES", "Chunks"]

CHUNK_BYTES = 1 << 20
"""Bytes of a chunk; a multiple of it begins each, counted from the begin of its segment."""
_SLOTS = 4
_SPANS_MIN = 8
_SPARSE = 12
"""Spans that are spread over more than so many times their own bytes are read one by one."""
_MANY = 64
"""Spans for each chunk from which on single reads take as long as reading the chunks."""
_REACH_MAX = (_SLOTS - 1) * CHUNK_BYTES
"""The most bytes from the first to the last span: they are in no more chunks than there are slots."""


class _Slot:
    """Room for one chunk: the position of the chunk in it, and of the one that was last requested and not read."""

    __slots__ = ("asked", "memory", "position")

    def __init__(self) -> None:
        self.position = self.asked = -1
        self.memory: memoryview | None = None


class Chunks:
    """Some chunks of a log. Any thread; while one gathers, the others have to read for themselves."""

    def __init__(self) -> None:
        self._slots = [_Slot() for _ in range(_SLOTS)]
        self._lock = threading.Lock()

    def gather(self, segment: Segment, limit: int, spans: Sequence[tuple[int, int]]) -> bytes | None:
        """Join the bytes at (offset, bytes) pairs of a segment; None where single reads are better.

        Offsets are those in the file. ``limit`` is the offset behind the last byte that is part of the log.
        """
        if len(spans) < _SPANS_MIN:
            return None
        begin = min(spans)[0]
        # A list: mypyc makes a plain loop of it, but of a generator an object that is resumed for each element.
        reach = max([offset + n for offset, n in spans]) - begin
        if reach > _REACH_MAX:
            return None
        count = (begin + reach - 1) // CHUNK_BYTES - begin // CHUNK_BYTES + 1
        many = len(spans) >= _MANY * count
        if not many and reach > _SPARSE * sum([n for _, n in spans]):
            return None
        # Nobody waits: where the system does not tell what is in memory, another thread may be reading from the disk.
        if not self._lock.acquire(blocking=False):
            return None
        try:
            return self._joined(segment, limit, spans, many)
        finally:
            self._lock.release()

    def _joined(self, segment: Segment, limit: int, spans: Sequence[tuple[int, int]], at_once: bool) -> bytes | None:
        parts: list[memoryview] = []
        begin = end = 0
        chunk: memoryview | None = None
        for offset, n in spans:
            while n:
                if not begin <= offset < end:
                    begin = offset - offset % CHUNK_BYTES
                    chunk = self._chunk(segment, begin, limit, at_once)
                    if chunk is None:
                        return None
                    end = begin + len(chunk)
                assert chunk is not None
                part = chunk[offset - begin : offset - begin + n]
                parts.append(part)
                offset += len(part)
                n -= len(part)
        return b"".join(parts)

    def _chunk(self, segment: Segment, begin: int, limit: int, at_once: bool) -> memoryview | None:
        """Return a chunk; None if it is not to be read, or not in memory."""
        size = min(CHUNK_BYTES, segment.size - begin)
        if begin + size > limit:
            return None  # it is still being written
        position = segment.start + begin
        slot = self._slots[position // CHUNK_BYTES % _SLOTS]
        if slot.position != position:
            if slot.asked != position and not at_once:
                slot.asked = position
                return None
            # Neither counts before the read has succeeded.
            slot.asked = slot.position = -1
            if slot.memory is None:
                slot.memory = memoryview(bytearray(CHUNK_BYTES))
            try:
                if not segment.file.pread_hot_into(slot.memory[:size], begin):
                    return None
            except StoreError:
                return None  # perhaps of bytes that nobody has asked for: single reads will tell
            slot.position = position
        assert slot.memory is not None
        return slot.memory[:size]
