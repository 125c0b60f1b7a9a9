"""The newest bytes of the CommitLog in memory, for consumers that keep up.

The problem
    The messages of one queue lie scattered in the log, so a pull of 32 messages was 32 reads. Each costs two or three
    microseconds and releases the interpreter's lock, which a delivering thread does not give back at once.

The idea
    A ring of a fixed number of bytes. The byte at log offset ``o`` is at ``o % size``, so a read is one copy and a few
    comparisons. The ring has the same bytes as the disk, because the log below its end never changes.

Threads: `put` is called under the append lock, `gather` by any thread. `put` moves the ring's beginning up *before* it
overwrites anything. `gather` compares with the beginning again *after* it has copied. So it never returns bytes that
were overwritten meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence
from mmap import mmap

__all__ = ["RECENT_BYTES", "RecentBytes", "adjacent_runs"]

RECENT_BYTES = 8 << 20


class RecentBytes:
    """The last ``size`` bytes that were put, at consecutive log offsets."""

    __slots__ = ("_from", "_ring", "_size", "_to")

    def __init__(self, size: int = RECENT_BYTES) -> None:
        self._size = size
        self._ring = memoryview(mmap(-1, size))  # anonymous memory: pages that were never touched cost nothing
        self._from = 0
        self._to = 0

    def put(self, data: bytearray, offset: int) -> None:
        """Take the bytes that follow the last ones; bytes at a greater offset empty the ring first."""
        size, end = self._size, offset + len(data)
        if len(data) > size:
            self._from = self._to = end
            return
        # `_from` before the copy, `_to` after it: see "Threads" at the top.
        self._from = max(self._from, end - size) if offset == self._to else offset
        at = offset % size
        head = min(len(data), size - at)
        view = memoryview(data)  # a slice of the bytes themselves would be a copy
        self._ring[at : at + head] = view[:head]
        if head < len(data):
            self._ring[: len(data) - head] = view[head:]
        self._to = end

    def gather(self, positions: Sequence[tuple[int, int]]) -> bytes | None:
        """Join the bytes at (log offset, size) pairs; None if any of them are not in the ring."""
        ring, size = self._ring, self._size
        begin, end = self._from, self._to
        lowest = end
        parts: list[memoryview] = []
        for offset, count in positions:
            if offset < begin or offset + count > end:
                return None
            at = offset % size
            if at + count <= size:
                parts.append(ring[at : at + count])
            else:
                parts.append(ring[at:])
                parts.append(ring[: at + count - size])
            if offset < lowest:
                lowest = offset
        data = b"".join(parts)
        return data if lowest >= self._from else None  # overwritten during the copy?


def adjacent_runs(positions: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Join (offset, size) pairs that lie side by side into as few as possible.

    >>> adjacent_runs([(0, 10), (10, 5), (20, 5)])
    [(0, 15), (20, 5)]
    """
    runs: list[tuple[int, int]] = []
    start = end = -1
    for offset, size in positions:
        if offset == end:
            end += size
            continue
        if start >= 0:
            runs.append((start, end - start))
        start, end = offset, offset + size
    if start >= 0:
        runs.append((start, end - start))
    return runs
