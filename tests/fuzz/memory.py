"""A few files in memory, for a reader that is given millions of them. Nothing fails here; see `tests.support.simdisk`.

A negative range is an error, as in the real calls. A read of far more than there is fails as an AssertionError: the
real call takes the memory before it looks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from store.disk.errors import StoreError
from store.disk.file import File
from store.disk.files import Files

__all__ = ["MemoryFile", "MemoryFiles"]

READ_MAX = 8 << 20


class MemoryFile(File):
    """A file that is a bytearray."""

    __slots__ = ("data",)

    def __init__(self, path: Path, data: bytearray) -> None:
        super().__init__(path, -1)
        self._tells_hot = False
        self.data = data

    def pread(self, n: int, offset: int) -> bytes:
        """Read."""
        if n < 0 or not 0 <= offset < 1 << 63:
            raise StoreError(f"cannot read {n} bytes at {offset} of {self.path}: Invalid argument (errno 22)")
        assert n <= READ_MAX, f"{n} bytes asked for at {offset} of a file of {len(self.data)}"
        return bytes(self.data[offset : offset + n])

    def pwrite(self, data: bytes | bytearray | memoryview, offset: int) -> None:
        """Write."""
        assert 0 <= offset <= READ_MAX, f"{len(data)} bytes to write at {offset}"
        if len(self.data) < offset:
            self.data.extend(bytes(offset - len(self.data)))
        self.data[offset : offset + len(data)] = data

    def pwritev(self, buffers: Sequence[bytes | bytearray | memoryview], offset: int) -> None:
        """Write."""
        self.pwrite(b"".join(buffers), offset)

    def sync(self) -> None:
        """Nothing to do."""

    def size(self) -> int:
        """Size in bytes."""
        return len(self.data)

    def truncate(self, n: int) -> None:
        """Set the size."""
        assert 0 <= n <= READ_MAX, f"a file of {n} bytes"
        del self.data[n:]
        self.data.extend(bytes(n - len(self.data)))

    def zero(self, offset: int, n: int) -> None:
        """Write zeros."""
        assert 0 <= n <= READ_MAX, f"{n} zeros"
        self.pwrite(bytes(n), offset)

    def punch(self, offset: int, n: int) -> bool:
        """Write zeros within the size."""
        end = min(offset + n, len(self.data))
        if end > offset:
            self.data[offset:end] = bytes(end - offset)
        return True

    def allocate(self, offset: int, n: int) -> bool:  # noqa: ARG002
        """Reserve nothing."""
        return True

    def close(self) -> None:
        """Nothing to give back."""


class MemoryFiles(Files):
    """Files by path; a directory is there while something is in it."""

    def __init__(self, files: Mapping[Path, bytes] | None = None) -> None:
        self.files = {path: bytearray(data) for path, data in (files or {}).items()}

    def open(self, path: Path, *, create: bool = False, size: int | None = None) -> File:
        """Open."""
        data = self.files.get(path)
        if data is None:
            if not create:
                raise StoreError(f"cannot open {path}: No such file or directory (errno 2)")
            data = self.files[path] = bytearray()
        file = MemoryFile(path, data)
        if size is not None and len(data) < size:
            file.truncate(size)
        return file

    def listdir(self, path: Path) -> list[str]:
        """Names, sorted."""
        depth = len(path.parts)
        return sorted({found.parts[depth] for found in self.files if found.parts[:depth] == path.parts})

    def exists(self, path: Path) -> bool:
        """Whether it is there."""
        return path in self.files or self.is_dir(path)

    def is_dir(self, path: Path) -> bool:
        """Whether it is a directory."""
        return path not in self.files and any(path in found.parents for found in self.files)

    def makedirs(self, path: Path) -> None:
        """Nothing to do."""

    def remove(self, path: Path) -> None:
        """Remove."""
        self.files.pop(path, None)

    def rename(self, source: Path, target: Path) -> None:
        """Rename."""
        self.files[target] = self.files.pop(source)

    def sync_dir(self, path: Path) -> None:
        """Nothing to do."""

    def read_file(self, path: Path) -> bytes:
        """Read a whole file."""
        data = self.files.get(path)
        if data is None:
            raise StoreError(f"cannot open {path}: No such file or directory (errno 2)")
        return bytes(data)

    def replace_file(self, path: Path, data: bytes) -> None:
        """Write a whole file."""
        self.files[path] = bytearray(data)

    def file_size(self, path: Path) -> int:
        """Size in bytes."""
        return len(self.read_file(path))
