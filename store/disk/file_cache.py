"""Open files by path, the least recently used ones closed: thousands of queues, a few hundred descriptors."""

from __future__ import annotations

import threading
from collections import OrderedDict
from pathlib import Path

from store.disk.file import File
from store.disk.files import Files

__all__ = ["FileCache"]


class FileCache:
    """At most ``limit`` open files. Any thread; a file that is dropped during a read is closed after the read."""

    def __init__(self, files: Files, limit: int = 400) -> None:
        self.files = files
        self._limit = limit
        self._lock = threading.Lock()
        self._open: OrderedDict[Path, File] = OrderedDict()
        self._removals = 0

    def get(self, path: Path, size: int, create: bool = False) -> File:
        """Return the open file of a path, or open it with this size."""
        with self._lock:
            file = self._open.get(path)
            if file is not None:
                self._open.move_to_end(path)
                return file
            removals = self._removals
        file = self.files.open(path, create=create, size=size)
        with self._lock:
            # Another thread was quicker: all readers use its file.
            if path in self._open:
                return self._open[path]
            if removals != self._removals:
                return file  # the path was removed meanwhile, so this may be the old file: do not cache it
            self._open[path] = file
            if len(self._open) > self._limit:
                self._open.popitem(last=False)
        return file

    def remove(self, path: Path) -> None:
        """Remove a file from disk and cache: later callers for this path never get the old descriptor.

        The cache entry is dropped last, because another thread may open the file just before it is removed. Raises
        StoreError.
        """
        try:
            self.files.remove(path)
        finally:
            with self._lock:
                self._removals += 1
                self._open.pop(path, None)

    def clear(self) -> None:
        """Drop all files."""
        with self._lock:
            self._open.clear()
