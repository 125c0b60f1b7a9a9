"""The key index of an Apache broker, read only: finds messages from before the take-over by key.

``index/<17 digits>``, 420,000,040 bytes each, sparse: a header, 5,000,000 slots (number of the newest entry of one,
0 for none), 20,000,000 entries, which name the entry before; ``docs/disk-format.md`` shows their bytes.

The hash is Java's of ``topic#key`` without its sign; the slot is hash modulo 5,000,000. Entries are numbered from 1.
"""

from __future__ import annotations

from pathlib import Path

from remoting.layout import (
    INDEX_FILE,
    INDEX_FILE_BYTES,
    INDEX_FILE_ENTRIES,
    INDEX_FILE_ENTRIES_AT,
    INDEX_FILE_ENTRY,
    INDEX_FILE_ENTRY_BYTES,
    INDEX_FILE_HEADER_BYTES,
    INDEX_FILE_SLOTS,
)
from remoting.layout.table import INT
from remoting.messages.message import java_hash
from store.disk.errors import StoreError
from store.disk.file import File
from store.disk.files import Files

__all__ = ["ApacheIndex"]

_HEADER = INDEX_FILE.struct()
_ENTRY = INDEX_FILE_ENTRY.struct()
_CHAIN_MAX = 10_000
"""Entries of one slot that a look-up follows in one file; a damaged chain may be endless."""


class ApacheIndex:
    """The index files of a store directory. Any thread; the files are opened for each look-up."""

    def __init__(self, files: Files, directory: Path) -> None:
        self._files = files
        self._directory = directory
        names = (name for name in files.listdir(directory) if len(name) == 17 and name.isdigit())
        self._names = [name for name in names if files.file_size(directory / name) == INDEX_FILE_BYTES]

    def find(self, topic: str, key: str, begin_ms: int, end_ms: int, limit: int) -> list[int]:
        """Find CommitLog offsets that may hold this key, newest first; the caller compares the records."""
        found: list[int] = []
        if not self._names:
            return found
        value = java_hash(f"{topic}#{key}")
        # Java's abs of the lowest int is negative; Apache then takes 0.
        wanted = abs(value) if value != -(1 << 31) else 0
        for name in reversed(self._names):
            try:
                file = self._files.open(self._directory / name)
                found += self._find_in(file, wanted, begin_ms, end_ms, limit - len(found))
            except StoreError:
                continue  # removed meanwhile, or unreadable: skipped, because the index is derived data
            if len(found) >= limit:
                break
        return found

    @staticmethod
    def _find_in(file: File, wanted: int, begin_ms: int, end_ms: int, limit: int) -> list[int]:
        first_ms, last_ms, *_ = _HEADER.unpack(file.pread(INDEX_FILE_HEADER_BYTES, 0))
        found: list[int] = []
        if last_ms < begin_ms - 1000 or first_ms > end_ms:
            return found
        slot_at = INDEX_FILE_HEADER_BYTES + wanted % INDEX_FILE_SLOTS * INT.size
        number = int.from_bytes(file.pread(INT.size, slot_at), "big", signed=True)
        for _ in range(_CHAIN_MAX):
            if not 0 < number < INDEX_FILE_ENTRIES or len(found) >= limit:
                break
            entry_hash, offset, seconds, before = _ENTRY.unpack(
                file.pread(INDEX_FILE_ENTRY_BYTES, INDEX_FILE_ENTRIES_AT + number * INDEX_FILE_ENTRY_BYTES)
            )
            stored_ms = first_ms + seconds * 1000  # whole seconds: up to a second too early
            if entry_hash == wanted and stored_ms <= end_ms and stored_ms > begin_ms - 1000:
                found.append(offset)
            if before >= number:
                break
            number = before
        return found

    def drop_before(self, log_begin: int) -> None:
        """Remove files whose entries all lie below the CommitLog offset ``log_begin``."""
        for name in list(self._names):
            path = self._directory / name
            file = self._files.open(path)
            last_offset = _HEADER.unpack(file.pread(INDEX_FILE_HEADER_BYTES, 0))[3]
            if last_offset >= log_begin:
                break
            self._names.remove(name)
            self._files.remove(path)
