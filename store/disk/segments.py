"""Fixed-size files that form one endless byte range, named by the offset of their first byte (20 digits).

CommitLog and ConsumeQueue both consist of such files, as in Apache RocketMQ's MappedFileQueue. Every file has its full
size from the start (sparse, zero-filled), however much has been written to it. A file of another size means another
configuration, which would make every offset in it wrong. Only the last file may be empty, if its creation was
interrupted.
"""

from __future__ import annotations

from pathlib import Path

from store.disk.errors import StoreFormatError
from store.disk.file import File
from store.disk.files import Files

__all__ = ["NOTHING_NEEDED", "Segment", "list_segments", "segment_name"]

NOTHING_NEEDED = 1 << 62
"""Behind every position of a CommitLog: the lowest position that is still needed, if none is."""


def segment_name(start: int) -> str:
    """File name of the segment that starts at an offset."""
    return f"{start:020d}"


class Segment:
    """One file of the range: ``start`` is the offset of its first byte, ``size`` its bytes."""

    __slots__ = ("_file", "_files", "path", "size", "start")

    def __init__(self, files: Files, directory: Path, start: int, size: int, file: File | None = None) -> None:
        self._files = files
        self._file = file
        self.path = directory / segment_name(start)
        self.start = start
        self.size = size

    @property
    def end(self) -> int:
        """Offset behind the last byte."""
        return self.start + self.size

    @property
    def file(self) -> File:
        """The open file, opened on first use and kept."""
        file = self._file
        if file is None:
            file = self._file = self._files.open(self.path, size=self.size)
        return file

    def release(self) -> None:
        """Drop the open file; it is closed after running reads."""
        self._file = None

    def create(self) -> None:
        """Create the file, empty, with its full size; durable except for its name in the directory."""
        self._file = self._files.open(self.path, create=True, size=self.size)
        self._file.sync()

    def __repr__(self) -> str:
        return f"Segment({str(self.path)!r}, {self.size})"


def list_segments(files: Files, directory: Path, size: int, what: str, key: str) -> list[Segment]:
    """Find the segments of a directory, in order; an empty last file is removed.

    ``what`` names them in errors, ``key`` the configuration key that sets their size. Raises `StoreFormatError`
    for a file of another size and for a name that is no offset.
    """
    found: list[tuple[int, Path]] = []
    for name in files.listdir(directory):
        path = directory / name
        if files.is_dir(path):
            continue
        if not (len(name) == 20 and name.isascii() and name.isdigit()):
            raise StoreFormatError(f"{path} at 0: not a {what} file (its name should be an offset of 20 digits)")
        found.append((int(name), path))
    segments: list[Segment] = []
    for number, (start, path) in enumerate(found):
        bytes_found = files.file_size(path)
        last = number == len(found) - 1
        if last and bytes_found == 0:
            files.remove(path)
            files.sync_dir(directory)
            continue
        if start % size or bytes_found != size:
            raise StoreFormatError(
                f"{path} at {min(bytes_found, size)}: {what} file of {bytes_found} bytes at offset {start}, but {key} "
                f"is {size}; set {key} to the value that the store was written with, unless the file was cut off"
            )
        segments.append(Segment(files, directory, start, size))
    return segments
