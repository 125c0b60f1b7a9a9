"""The checksums of a ConsumeQueue's files: an entry has none of its own.

Each file has one CRC-32 over its flushed entries. It is carried on from flush to flush, saved in
``timewheel/progress``, and compared when the queue is opened again.
"""

from __future__ import annotations

from pathlib import Path

from remoting.layout import QUEUE_ENTRY_BYTES
from remoting.messages.checksum import crc32
from store.derived.queue_entries import PRE_BLANK
from store.disk.file_cache import FileCache
from store.disk.segments import segment_name

__all__ = ["QueueSums", "has_files"]


class QueueSums:
    """A file's start to the CRC-32 of its entries, for all entries that were flushed. Used by the flusher only."""

    __slots__ = ("_file_bytes", "_sums", "summed")

    def __init__(self, file_bytes: int) -> None:
        self._file_bytes = file_bytes
        self.summed = 0  # entries below this number are covered
        self._sums: dict[int, int] = {}

    def start_at(self, number: int) -> None:
        """Begin with an entry's number; sums of entries before it are forgotten."""
        self.summed = number
        self._sums = {}

    def take(self, sums: tuple[tuple[int, int], ...], first_start: int) -> None:
        """Take saved checksums of the files from ``first_start`` on."""
        self._sums = {start: crc for start, crc in sums if start >= first_start}

    def set(self, start: int, data: bytes) -> None:
        """Know only one file, with these entries."""
        self._sums = {start: crc32(data)}

    def forget(self, start: int) -> None:
        """Forget a file that was removed."""
        self._sums.pop(start, None)

    def all(self) -> tuple[tuple[int, int], ...]:
        """(Start, CRC-32) of each file, in order."""
        return tuple(sorted(self._sums.items()))

    def add(self, data: bytes, first: int, upto: int) -> None:
        """Carry the checksums on up to entry ``upto``; ``data`` begins with entry ``first``."""
        while self.summed < upto:
            position = self.summed * QUEUE_ENTRY_BYTES
            start = position - position % self._file_bytes
            end = min(upto * QUEUE_ENTRY_BYTES, start + self._file_bytes)
            begin = position - first * QUEUE_ENTRY_BYTES
            before = self._sums.get(start)
            if before is None:
                before = crc32(PRE_BLANK * ((position - start) // QUEUE_ENTRY_BYTES))
            self._sums[start] = crc32(data[begin : begin + end - position], before)
            self.summed = end // QUEUE_ENTRY_BYTES

    def summed_bytes(self, start: int) -> int | None:
        """Number of bytes of a file that its checksum covers; None if it has none."""
        if start not in self._sums:
            return None
        return min(self._file_bytes, self.summed * QUEUE_ENTRY_BYTES - start)

    def agree(self, start: int, data: bytes) -> bool:
        """True if these are the bytes that a file's checksum covers."""
        return len(data) == self.summed_bytes(start) and crc32(data) == self._sums[start]


def has_files(
    cache: FileCache,
    directory: Path,
    file_bytes: int,
    count: int,
    sums: tuple[tuple[int, int], ...],
    expired: bool,
) -> bool:
    """True if all files with checksums exist with their full size, except expired ones. Raises StoreError.

    Removes files of another size behind the first ``count`` entries.
    """
    files = cache.files
    names = files.listdir(directory)
    torn = [name for name in names if files.file_size(directory / name) != file_bytes]
    if any(name < segment_name(count * QUEUE_ENTRY_BYTES) for name in torn):
        return False
    for name in torn:
        cache.remove(directory / name)
    if torn:
        files.sync_dir(directory)
    if not sums:
        return True
    whole = set(names).difference(torn)
    found = [start for start, _ in sums if segment_name(start) in whole]
    first = found[0] if found and expired else sums[0][0]
    return bool(found) and found == [start for start, _ in sums if start >= first]
