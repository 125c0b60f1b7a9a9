"""The key index that an Apache broker left behind, read only: how messages from before the take-over are found by key.

``index/<17 digits>``, 420,000,040 bytes each, sparse, big-endian::

    0         40            header: begin and end time @0 @8, begin and end CommitLog offset @16 @24, counts @32 @36
    40        5,000,000*4   slots: number of the newest entry of the slot, 0 for none
    20000040  20,000,000*20 entries: key hash i32, CommitLog offset i64, seconds after begin time i32, entry before i32

The hash is Java's of ``topic#key`` without its sign; the slot is hash modulo 5,000,000. Entries are numbered from 1.
"""

from __future__ import annotations

from pathlib import Path
from struct import Struct

from remoting.message import java_hash
from store.errors import StoreError
from store.files import File, Files

__all__ = ["ApacheIndex"]

SLOTS = 5_000_000
ENTRIES = 20_000_000
FILE_BYTES = 40 + SLOTS * 4 + ENTRIES * 20
_HEADER = Struct(">qqqqii")
_ENTRY = Struct(">iqii")
_CHAIN_MAX = 10_000
"""Entries of one slot that a look-up follows in one file; a damaged chain may be endless."""


class ApacheIndex:
    """The index files of a store directory. Any thread; the files are opened for each look-up."""

    def __init__(self, files: Files, directory: Path) -> None:
        self._files = files
        self._directory = directory
        names = (name for name in files.listdir(directory) if len(name) == 17 and name.isdigit())
        self._names = [name for name in names if files.file_size(directory / name) == FILE_BYTES]

    def find(self, topic: str, key: str, begin_ms: int, end_ms: int, limit: int) -> list[int]:
        """Find CommitLog offsets that may hold this key, newest first; the caller compares the records."""
        found: list[int] = []
        if not self._names:
            return found
        value = java_hash(f"{topic}#{key}")
        wanted = abs(value) if value != -(1 << 31) else 0
        for name in reversed(self._names):
            try:
                file = self._files.open(self._directory / name)
                found += self._find_in(file, wanted, begin_ms, end_ms, limit - len(found))
            except StoreError:
                continue  # removed meanwhile, or unreadable: derived data
            if len(found) >= limit:
                break
        return found

    @staticmethod
    def _find_in(file: File, wanted: int, begin_ms: int, end_ms: int, limit: int) -> list[int]:
        first_ms, last_ms, *_ = _HEADER.unpack(file.pread(40, 0))
        found: list[int] = []
        if last_ms < begin_ms - 1000 or first_ms > end_ms:
            return found
        number = int.from_bytes(file.pread(4, 40 + wanted % SLOTS * 4), "big", signed=True)
        for _ in range(_CHAIN_MAX):
            if not 0 < number < ENTRIES or len(found) >= limit:
                break
            entry_hash, offset, seconds, before = _ENTRY.unpack(file.pread(20, 40 + SLOTS * 4 + number * 20))
            stored_ms = first_ms + seconds * 1000  # whole seconds: up to a second too early
            if entry_hash == wanted and stored_ms <= end_ms and stored_ms > begin_ms - 1000:
                found.append(offset)
            if before >= number:
                break
            number = before
        return found

    def drop_before(self, log_begin: int) -> None:
        """Remove files that speak only of CommitLog offsets below ``log_begin``."""
        for name in list(self._names):
            path = self._directory / name
            file = self._files.open(path)
            last_offset = _HEADER.unpack(file.pread(40, 0))[3]
            if last_offset >= log_begin:
                break
            self._names.remove(name)
            self._files.remove(path)
