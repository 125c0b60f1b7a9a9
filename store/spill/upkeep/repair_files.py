"""The common part of repairing a journal and a run: a file of full size with a correct header."""

from __future__ import annotations

from pathlib import Path

from remoting.layout import FILE_HEADER_BYTES
from store.disk.aside import AsideDir
from store.disk.errors import StoreCorruptError, StoreFormatError
from store.disk.file import File
from store.disk.files import Files
from store.spill.rows.format import file_header, read_file_header

__all__ = ["full_size", "mend_header"]


def full_size(files: Files, path: Path, size: int, aside: AsideDir) -> File:
    """Open a file and bring it to ``size`` bytes; bytes behind that are put aside. Raises StoreError."""
    exists = files.exists(path)
    file = files.open(path, create=True)
    found = file.size()
    if not exists:
        aside.say(f"{path} is missing: what it held is lost")
        file.truncate(size)
        file.sync()
        files.sync_dir(path.parent)
    elif found != size:
        aside.say(f"{path} has {found} bytes, not {size}: it is brought to its size")
        if found > size:
            aside.keep(path, size, file.pread(found - size, size))
        file.truncate(size)
        file.sync()
    return file


def mend_header(file: File, magic: int, store_id: bytes, no: int, fields: tuple[int, int], aside: AsideDir) -> None:
    """Write a file's header again if it is wrong; the old one is put aside. Raises StoreError."""
    data = file.pread(FILE_HEADER_BYTES, 0)
    try:
        if read_file_header(data, magic, store_id, no, file.path) == fields:
            return
    except (StoreCorruptError, StoreFormatError):
        pass
    aside.keep(file.path, 0, data)
    file.pwrite(file_header(magic, store_id, no, *fields), 0)
    file.sync()
    aside.say(f"{file.path} at 0: its header was made again")
