"""Reading a ConsumeQueue: from memory what is not durable yet, everything else from the files. No lock is needed."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from remoting.layout import QUEUE_ENTRY_BYTES
from store.derived.queue_entries import ENTRY, ENTRY_COLUMNS, PRE_BLANK_SIZE
from store.disk.errors import StoreError
from store.disk.file_cache import FileCache
from store.disk.segments import segment_name

__all__ = ["CHUNK_ENTRIES", "EntryReader"]

CHUNK_ENTRIES = 20_000
"""Entries that are read at a time where many are looked at."""


class EntryReader:
    """The read side of a queue's entries, for any thread. ``count`` is the number behind the last of them."""

    __slots__ = ("_cache", "_memory", "_min", "_min_begin", "_read_last", "_unmade", "count", "directory", "file_bytes")

    def __init__(self, cache: FileCache, directory: Path, file_bytes: int) -> None:
        self.directory = directory
        self.file_bytes = file_bytes
        self.count = 0
        # (number of the buffer's first entry, the buffer): one tuple, so that readers without a lock see both change
        # together
        self._memory = (0, bytearray())
        self._cache = cache
        self._read_last = (-1, directory)  # a file's start and path: to make a path takes longer than to read by it
        self._min = 0
        self._min_begin = -1  # the log's begin for which _min was computed
        self._unmade = True  # no file has been created for this queue yet

    def read(self, number: int, limit: int) -> bytes:
        """Read up to ``limit`` entries from a number on; fewer at the end of a file, none beyond the queue."""
        # The count first: entries below it are in this buffer or durable, whatever other threads do meanwhile.
        count = self.count
        first, buffer = self._memory
        limit = min(limit, count - number)
        if limit <= 0 or number < 0:
            return b""
        if number >= first:
            at = (number - first) * QUEUE_ENTRY_BYTES
            return bytes(buffer[at : at + limit * QUEUE_ENTRY_BYTES])
        position = number * QUEUE_ENTRY_BYTES
        start = position - position % self.file_bytes
        size = min(limit * QUEUE_ENTRY_BYTES, start + self.file_bytes - position, (first - number) * QUEUE_ENTRY_BYTES)
        last = self._read_last
        if last[0] != start:
            last = self._read_last = (start, self.directory / segment_name(start))
        path = last[1]
        try:
            file = self._cache.get(path, self.file_bytes)
            found = file.pread_hot(size, position - start)
            data = file.pread(size, position - start) if found is None else found
        except StoreError:
            if self._cache.files.exists(path):
                raise
            return b""  # retention has removed the file meanwhile
        return data if len(data) == size else data[: len(data) - len(data) % QUEUE_ENTRY_BYTES]

    def entry(self, number: int) -> tuple[int, int, int] | None:
        """Read one entry (CommitLog offset, size, tags code); None outside the queue."""
        data = self.read(number, 1)
        return ENTRY.unpack(data) if data else None

    def min_offset(self, log_begin: int) -> int:
        """The number of the first entry whose record is still in the log; ``count`` if there is none."""
        if self._min_begin != log_begin:
            # `_min` first: a reader that sees the new begin must not get the old minimum.
            self._min = self._find_min(log_begin)
            self._min_begin = log_begin
        return self._min

    def _find_min(self, log_begin: int) -> int:
        low, high = self._lowest(), self.count
        while low < high:
            middle = (low + high) // 2
            found = self.entry(middle)
            if found is not None and found[1] == PRE_BLANK_SIZE:
                found = self.entry(self._skip_blanks(middle, high))
            if found is not None and found[0] < log_begin:
                low = middle + 1
            else:
                high = middle
        return self._skip_blanks(low, self.count)

    def _skip_blanks(self, number: int, end: int) -> int:
        """The first number from here on that is no pre-blank, or ``end``."""
        while number < end:
            sizes = np.frombuffer(self.read(number, min(CHUNK_ENTRIES, end - number)), ENTRY_COLUMNS)["size"]
            real = sizes != PRE_BLANK_SIZE
            if real.any():
                return number + int(real.argmax())
            if not len(sizes):
                break
            number += len(sizes)
        return number

    def _lowest(self) -> int:
        """The number of the first entry that is still in a file, or in memory."""
        starts = self.file_starts()
        in_memory = self._memory[0]
        return min(starts[0] // QUEUE_ENTRY_BYTES, in_memory) if starts else in_memory

    def file_starts(self) -> list[int]:
        """List the starts of the files, in bytes of the endless range, ascending."""
        if self._unmade:
            return []
        return [int(name) for name in self._cache.files.listdir(self.directory) if name.isascii() and name.isdigit()]
