"""Open files by path, the least recently used ones closed: thousands of queues, a few hundred descriptors."""

from __future__ import annotations

import threading
from collections import OrderedDict
from pathlib import Path

from store.files import File, Files

__all__ = ["FileCache"]


class FileCache:
    """At most ``limit`` open files. Any thread; a file that falls out while somebody reads it closes afterwards."""

    def __init__(self, files: Files, limit: int = 400) -> None:
        self.files = files
        self._limit = limit
        self._lock = threading.Lock()
        self._open: OrderedDict[Path, File] = OrderedDict()

    def get(self, path: Path, size: int, create: bool = False) -> File:
        """Open a file of this size, or answer the one that is open already."""
        with self._lock:
            file = self._open.get(path)
            if file is not None:
                self._open.move_to_end(path)
                return file
        file = self.files.open(path, create=create, size=size)
        with self._lock:
            if path in self._open:
                return self._open[path]
            self._open[path] = file
            if len(self._open) > self._limit:
                self._open.popitem(last=False)
        return file

    def forget(self, path: Path) -> None:
        """Let go of a file that is about to be removed."""
        with self._lock:
            self._open.pop(path, None)

    def clear(self) -> None:
        """Let go of all."""
        with self._lock:
            self._open.clear()
