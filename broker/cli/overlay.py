"""Opens and recovers a store without changing a byte of its files: writes go to memory.

Looking at a damaged store must not repair it. But recovery writes: it cuts torn tails, zeroes the space behind the end,
and moves unlisted files aside. So `OverlayFiles` reads the real files and keeps all changes in memory:

- A file is its content on the disk up to ``_base_end``, covered by patches. Patches are sorted spans that do not
  overlap. A patch holds its bytes or, for zeros, only their number (a recovery zeroes gigabytes).
- Names that were made, removed or renamed are kept in tables, which are asked before the directory.

Only the lock is real, so that no broker runs meanwhile. Nothing is synced. Memory holds what was written: the tail that
a recovery touches, and ConsumeQueues if they are missing.
"""

from __future__ import annotations

import errno
import os
from bisect import bisect_left
from collections.abc import Sequence
from pathlib import Path

from store.disk.errors import StoreError
from store.disk.file import File
from store.disk.files import Files

__all__ = ["OverlayFile", "OverlayFiles"]


class _Content:
    """The content of a file, shared by all its open `OverlayFile`."""

    __slots__ = ("_base", "_base_end", "_patches", "_starts", "size")

    def __init__(self, base: File | None) -> None:
        self._base = base
        self.size = self._base_end = base.size() if base else 0
        self._starts: list[int] = []
        self._patches: list[bytes | int] = []  # bytes, or a number of zeros

    def write(self, start: int, patch: bytes | int) -> None:
        """Cover [start, start + length) with bytes, or with a number of zeros."""
        length = patch if isinstance(patch, int) else len(patch)
        if not length:
            return
        self._cut(start, start + length)
        at = bisect_left(self._starts, start)
        self._starts.insert(at, start)
        self._patches.insert(at, patch)
        self.size = max(self.size, start + length)

    def truncate(self, size: int) -> None:
        """Forget what lies behind ``size``."""
        if size < self.size:
            self._cut(size, self.size)
            self._base_end = min(self._base_end, size)
        self.size = size

    def read(self, n: int, offset: int) -> bytes:
        """Read up to ``n`` bytes; fewer only at the end."""
        end = min(offset + n, self.size)
        if end <= offset:
            return b""
        parts: list[bytes] = []
        at = offset
        index = max(0, bisect_left(self._starts, offset + 1) - 1)
        while at < end:
            if index < len(self._starts) and self._end(index) <= at:
                index += 1
                continue
            start = self._starts[index] if index < len(self._starts) else end
            if at < start:
                upto = min(start, end)
                parts.append(self._read_base(at, upto))
            else:
                upto = min(self._end(index), end)
                patch = self._patches[index]
                parts.append(bytes(upto - at) if isinstance(patch, int) else patch[at - start : upto - start])
            at = upto
        return b"".join(parts)

    def _end(self, index: int) -> int:
        patch = self._patches[index]
        return self._starts[index] + (patch if isinstance(patch, int) else len(patch))

    def _read_base(self, begin: int, end: int) -> bytes:
        upto = min(end, self._base_end)
        data = self._base.pread(upto - begin, begin) if self._base and upto > begin else b""
        return data + bytes(end - begin - len(data))

    def _cut(self, begin: int, end: int) -> None:
        """Remove the parts of patches that lie in [begin, end)."""
        index = max(0, bisect_left(self._starts, begin + 1) - 1)
        while index < len(self._starts) and self._starts[index] < end:
            start, stop, patch = self._starts[index], self._end(index), self._patches[index]
            if stop <= begin:
                index += 1
                continue
            del self._starts[index], self._patches[index]
            for left, right in ((start, begin), (end, stop)):
                if left < right:
                    kept = right - left if isinstance(patch, int) else patch[left - start : right - start]
                    self._starts.insert(index, left)
                    self._patches.insert(index, kept)
                    index += 1


class OverlayFile(File):
    """One open file of an `OverlayFiles`."""

    __slots__ = ("_content",)

    def __init__(self, path: Path, content: _Content) -> None:
        super().__init__(path, -1)
        self._tells_hot = False  # a check may wait for the disk: hot reads are plain ones
        self._content = content

    def pwrite(self, data: bytes | bytearray | memoryview, offset: int) -> None:
        """Write into the overlay."""
        self._content.write(offset, bytes(data))

    def pwritev(self, buffers: Sequence[bytes | bytearray | memoryview], offset: int) -> None:
        """Write into the overlay."""
        self._content.write(offset, b"".join(buffers))

    def pread(self, n: int, offset: int) -> bytes:
        """Read bytes: those written here, else those on the disk."""
        return self._content.read(n, offset)

    def pread_into(self, buffer: memoryview, offset: int) -> int:
        """Read into a buffer; returns the number of bytes, fewer than its length only at the end."""
        data = self._content.read(len(buffer), offset)
        buffer[: len(data)] = data
        return len(data)

    def sync(self) -> None:
        """Nothing to make durable."""

    def size(self) -> int:
        """Size in bytes."""
        return self._content.size

    def truncate(self, n: int) -> None:
        """Set the size."""
        self._content.truncate(n)

    def zero(self, offset: int, n: int) -> None:
        """Cover with zeros."""
        self._content.write(offset, n)

    def punch(self, offset: int, n: int) -> bool:
        """Cover with zeros; the size is kept."""
        self._content.write(offset, max(0, min(n, self._content.size - offset)))
        return True

    def allocate(self, offset: int, n: int) -> bool:
        """Nothing to reserve."""
        del offset, n
        return True


class OverlayFiles(Files):
    """The file system as it would be after all changes made here. On the disk only the lock file changes."""

    def __init__(self) -> None:
        self._contents: dict[Path, _Content] = {}
        self._gone: set[Path] = set()
        self._directories: set[Path] = set()

    def open(self, path: Path, *, create: bool = False, size: int | None = None) -> File:
        """Open a file; a new one exists here only. Raises StoreError."""
        content = self._contents.get(path)
        if content is None:
            if self.is_dir(path):
                raise _error("open", path, errno.EISDIR)
            if self.exists(path):
                content = _Content(_open_read_only(path))
            elif create and self.is_dir(path.parent):
                content = _Content(None)
            else:
                raise _error("open", path, errno.ENOENT)
            self._contents[path] = content
            self._gone.discard(path)
        if size is not None and content.size < size:
            content.truncate(size)
        return OverlayFile(path, content)

    def open_to_read(self, path: Path) -> File:
        """Open a file, as `open` does. Raises StoreError."""
        return self.open(path)

    def listdir(self, path: Path) -> list[str]:
        """Names as they would be. Raises StoreError."""
        if self._in_a_file(path):
            raise _error("list", path, errno.ENOTDIR)
        below = super().listdir(path) if path.is_dir() else ()
        names = {name for name in below if path / name not in self._gone}
        names |= {other.name for other in (*self._contents, *self._directories) if other.parent == path}
        return sorted(names)

    def exists(self, path: Path) -> bool:
        """True if the name would exist."""
        if path in self._contents or path in self._directories:
            return True
        return path not in self._gone and path.exists()

    def is_dir(self, path: Path) -> bool:
        """True if the name would be a directory."""
        return path in self._directories or (path not in self._gone and path not in self._contents and path.is_dir())

    def _in_a_file(self, path: Path) -> bool:
        """True if the nearest of the path and its parents that would exist is a file."""
        while not self.exists(path):
            path = path.parent
        return not self.is_dir(path)

    def makedirs(self, path: Path) -> None:
        """Make directories here only. Raises StoreError."""
        if self._in_a_file(path):
            raise _error("make directory", path, errno.EEXIST)
        while not self.is_dir(path):
            self._directories.add(path)
            self._gone.discard(path)
            path = path.parent

    def remove(self, path: Path) -> None:
        """Remove a name here only. Raises StoreError."""
        if self._in_a_file(path.parent):
            raise _error("remove", path, errno.ENOTDIR)
        if self.is_dir(path) and self.listdir(path):
            raise _error("remove", path, errno.ENOTEMPTY)
        self._contents.pop(path, None)
        self._directories.discard(path)
        self._gone.add(path)

    def rename(self, source: Path, target: Path) -> None:
        """Rename here only; a directory is renamed with its content. Raises StoreError."""
        if not self.exists(source):
            raise _error("rename", source, errno.ENOENT)
        if not self.is_dir(target.parent):
            raise _error(f"rename {source} to", target, errno.ENOENT)
        if source == target:
            return
        if self.is_dir(source):
            self.makedirs(target)
            for name in self.listdir(source):
                self.rename(source / name, target / name)
            self.remove(source)
            return
        if self.is_dir(target):
            raise _error(f"rename {source} to", target, errno.EISDIR)
        self.open(source)
        self._contents[target] = self._contents.pop(source)
        self._gone.discard(target)
        self.remove(source)

    def sync_dir(self, path: Path) -> None:
        """Do nothing: nothing needs to be durable. Raises StoreError if there is no such directory."""
        if not self.is_dir(path):
            raise _error("open directory", path, errno.ENOENT)

    def mtime_ms(self, path: Path) -> int:
        """Time of the last change, epoch ms; 0 for a file that was made here. Raises StoreError."""
        if not self.exists(path):
            raise _error("stat", path, errno.ENOENT)
        return super().mtime_ms(path) if path.exists() else 0

    def file_size(self, path: Path) -> int:
        """Size of a file in bytes. Raises StoreError."""
        if path not in self._contents and self.exists(path):
            return super().file_size(path)  # without opening it: there may be more files than descriptors
        return self.open(path).size()


def _error(what: str, path: Path, code: int) -> StoreError:
    return StoreError(f"cannot {what} {path}: {os.strerror(code)} (errno {code})")


def _open_read_only(path: Path) -> File:
    try:
        return File(path, os.open(path, os.O_RDONLY | os.O_CLOEXEC))
    except OSError as cause:
        raise _error("open", path, cause.errno or errno.EIO) from cause
