"""The tables of delay levels, each with the part of the log that it applies to: ``timewheel/levels``.

A level message's record contains only its level. Its due time is in its ConsumeQueue entry, and entries are derived
again from the log after a crash. If ``messageDelayLevel`` has changed in between, today's table would give a message
sent with "level 3 = 1 h" the 10 s that level 3 means now: it would come early. So this file keeps the table of
each stretch of the log that may still be read, and a start with another table begins a new stretch at the log's end.

The file is two lines of text, replaced as a whole: the CRC-32 of the second one, in hexadecimal, and::

    {"format":1,"tables":[[0,[1000,5000]],[73400320,[1000,60000]]]}

From CommitLog offset 0 on level 2 was 5 s, from 73,400,320 on it is 60 s. If the file is missing (after Apache or an
older version had the store) or damaged, today's table applies to the whole log, as with Apache.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from remoting.errors import ProtocolError
from remoting.json_dialect import dumps, loads
from remoting.messages.checksum import crc32
from store.disk.errors import StoreFormatError
from store.disk.files import Files

__all__ = ["LevelTables"]

_FORMAT = 1

_Tables = list[tuple[int, tuple[int, ...]]]


class LevelTables:
    """The tables of a store. ``at`` may be called from any thread; `begin` once, when the log's end is known."""

    def __init__(self, files: Files, path: Path, current: tuple[int, ...], warn: Callable[[str], None]) -> None:
        """Read the file. ``current`` is today's table, delay (ms) of level 1 first. Raises StoreFormatError."""
        self._files = files
        self._path = path
        self._current = current
        self._tables: _Tables = [(0, current)]
        self._saved: _Tables = []
        if files.exists(path):
            self._read(warn)

    def _read(self, warn: Callable[[str], None]) -> None:
        data = self._files.read_replaced(self._path)
        try:
            tables = _decode(data)
        except (ProtocolError, ArithmeticError, LookupError, TypeError, ValueError) as error:
            kept = self._files.move_aside(self._path)
            warn(f"{self._path} is damaged ({error}) and kept as {kept.name}: all level messages use messageDelayLevel")
            return
        if tables is None:
            raise StoreFormatError(f"{self._path} at 9: it has another format than {_FORMAT}: {data[:80]!r}")
        self._tables = tables
        self._saved = list(tables)

    def at(self, offset: int) -> tuple[int, ...]:
        """The table by which the record at a CommitLog offset was accepted."""
        for start, table in reversed(self._tables):
            if start <= offset:
                return table
        return self._tables[0][1]

    def begin(self, log_begin: int, log_end: int) -> None:
        """Apply today's table from the log's end on; durable on return. Drops tables that no record needs any more."""
        tables = [entry for entry in self._tables if entry[0] < log_end]
        while len(tables) > 1 and tables[1][0] <= log_begin:
            del tables[0]
        if not tables or tables[-1][1] != self._current:
            tables.append((log_end, self._current))
        self._tables = tables
        if tables != self._saved:
            self._files.replace_file(self._path, _encode(tables))
            self._saved = list(tables)


def _encode(tables: _Tables) -> bytes:
    text = dumps({"format": _FORMAT, "tables": tables})
    return b"%08x\n%s\n" % (crc32(text), text)


def _decode(data: bytes) -> _Tables | None:
    """The tables; None if they have another format. Raises ValueError, KeyError or TypeError for invalid content."""
    checksum, text, rest = data.split(b"\n")
    if rest or len(checksum) != 8 or int(checksum, 16) != crc32(text):
        raise ValueError("checksum")
    value = loads(text)
    if value["format"] != _FORMAT:
        return None
    tables = [(int(start), tuple(map(int, table))) for start, table in value["tables"]]
    if not tables or not all(table for _, table in tables):
        raise ValueError("a table of levels is empty")
    return tables
