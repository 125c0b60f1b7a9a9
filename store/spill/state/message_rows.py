"""Rows of cancelled messages and of messages with a delay key, kept until some time after these were due.

A cancelled message leaves the delay store with the last file that had it. Senders that repeat a cancel, and people who
look for a message, ask later whether and when it was cancelled. So each cancel adds one row (folder ``cancelled``).
Each message with a delay key adds one too (folder ``keys``): from these a start learns which keys are taken, without
reading messages. A file is removed when all of its rows are old; the oldest one also if there are more than
``files_max``.

==========  =====  ====================================================================
row         bytes  (little-endian; files ``NNNNNNNNNN`` of up to 65,536 rows)
==========  =====  ====================================================================
id          8      delay id
due         8      when it is, or would have been, due, epoch ms
at          8      when the row was written, epoch ms; -1: the row before it is void
key         8      hash of topic and delay key, 0 if it has none
version     4
topic       4      CRC-32-sized hash of the topic, 0 if it could not be read
crc         4      CRC-32 of the row's other bytes, begun with that of the store id
==========  =====  ====================================================================

Rows are hints: the delay store and the CommitLog are asked first whether a message is pending or was delivered. So a
row may be written before the journal's frame, a damaged one is skipped, and one without its message does no harm.

A failed sync may have lost any page that was written since the last good one, and the kernel has marked these pages
clean: what is read there may be what stood there before. So rows are kept in memory until a sync covers them. After one
that failed they are read from there, and written again before the next one. At open the rows of the last file are kept
so, too. All rows that are not durable are in the last file, so these are at most 2.9 MB.

Cost: 44 bytes a row. A lookup reads the files whose range of ids includes it (3 MB each); else only these ranges are
kept in memory. Any thread.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from remoting.layout import MESSAGE_ROW, MESSAGE_ROW_BYTES, MESSAGE_ROW_PROVEN
from remoting.layout.table import LITTLE_INT
from remoting.messages.checksum import crc32
from store.disk.errors import StoreError
from store.disk.file import File
from store.disk.files import Files

__all__ = ["MessageRow", "MessageRows", "decoded_rows"]

_ROW = MESSAGE_ROW.struct()
_DTYPE = np.dtype(MESSAGE_ROW.columns())
_PROVEN = MESSAGE_ROW.struct(last="topic")
_PROVEN_AND_CRC = MESSAGE_ROW_PROVEN.struct()
ROWS_A_FILE = 65_536
FILES_MAX = 64
"""From more files than this the oldest is removed, even if its rows are not old yet: 185 MB are enough for cancels."""
_DUE_MAX_MS = 1 << 62
TRUE_ROWS = 256
"""After so many true rows `MessageRows.void_tail` looks no further: as many as one write has, or more."""
VOID = -1
"""``at`` of a row that revokes the row before it with the same id."""


class MessageRow(NamedTuple):
    """One row, its fields as in the table at the top; times in epoch ms."""

    delay_id: int
    due_ms: int
    at_ms: int
    key_hash: int
    version: int
    topic_crc: int


def decoded_rows(data: bytes) -> list[MessageRow]:
    """Read rows that `MessageRows.encoded_columns` has made just now: their checksums are not compared."""
    return [MessageRow(*fields[:-1]) for fields in _ROW.iter_unpack(data)]


class _Part:
    """One file, with the range of its ids and its last due time (epoch ms; -1 without rows)."""

    __slots__ = ("count", "file", "id_max", "id_min", "last_due_ms", "path")

    def __init__(self, path: Path, file: File, count: int) -> None:
        self.path = path
        self.file = file
        self.count = count
        self.id_min, self.id_max, self.last_due_ms = 1 << 62, 0, -1

    def took(self, ids: Sequence[int], dues: Sequence[int]) -> None:
        """Widen the ranges by the ids and due times (epoch ms) of rows that were appended."""
        self.id_min = min(self.id_min, *ids)
        self.id_max = max(self.id_max, *ids)
        self.last_due_ms = max(self.last_due_ms, *dues)

    def rows(self, last: bytes | bytearray = b"") -> NDArray[np.void]:
        """All rows of the file, read from the disk, but for the ``last``: a structured array of shape ``(count,)``."""
        data = self.file.pread(self.count * MESSAGE_ROW_BYTES - len(last), 0) + last
        return np.frombuffer(data, _DTYPE, len(data) // MESSAGE_ROW_BYTES)


class MessageRows:
    """The rows of one folder; a `store.disk.ticket.Syncable`.

    Args:
        files: the disk.
        directory: has these files and no others.
        store_id: seeds the checksums, so that a row of another store never counts.
        keep_ms: how long a row is kept after its due time.
        rows_a_file: a file with so many rows is full.
        files_max: with more files the oldest one goes, see `FILES_MAX`.
    """

    def __init__(
        self,
        files: Files,
        directory: Path,
        store_id: bytes,
        keep_ms: int,
        *,
        rows_a_file: int = ROWS_A_FILE,
        files_max: int = FILES_MAX,
    ) -> None:
        self._files = files
        self._directory = directory
        self._seed = crc32(store_id)
        self.keep_ms = keep_ms
        self._rows_a_file = rows_a_file
        self.files_max = files_max
        self.name = f"rows of {directory.name} messages"
        self._lock = threading.Lock()
        self._written = self._synced = 0
        self._doubtful = False
        """True if ``_unsynced`` may be in the page cache only, and marked clean there, or not even there. So after a
        failed sync; at open because the process before may have been killed before its sync, or after one that failed.
        """
        self._unsynced = bytearray()
        """The rows at the end of the last file that may not be durable."""
        self._torn = False
        """True if rows of a write that failed may stand behind those of the last file."""
        self._doubtful_names = False
        """True if the process before may have been killed between creating a file and syncing the directory."""
        self._parts: list[_Part] = []
        if files.is_dir(directory):
            for name in sorted(name for name in files.listdir(directory) if name.isdecimal()):
                last = self._open(directory / name)
            if self._parts:
                self._unsynced += last.tobytes()
            self._doubtful = bool(self._unsynced)
            self._doubtful_names = bool(self._parts)

    def _open(self, path: Path) -> NDArray[np.void]:
        """Add a file; returns its rows."""
        file = self._files.open(path)
        part = _Part(path, file, file.size() // MESSAGE_ROW_BYTES)
        rows = part.rows()
        if part.count:
            # Rows are not proven here: a damaged due time must not keep the file for ever.
            known = rows[rows["due"] < _DUE_MAX_MS]
            if len(known):
                part.took((int(known["id"].min()), int(known["id"].max())), (int(known["due"].max()),))
        self._parts.append(part)
        return rows

    @property
    def written(self) -> int:
        """Rows written since the start."""
        return self._written

    @property
    def synced(self) -> int:
        """Number of rows of `written` that are durable."""
        return self._synced

    def add(self, rows: Sequence[MessageRow]) -> None:
        """Write rows; `sync` makes them durable. Raises StoreError."""
        if rows:
            ids, dues = [row.delay_id for row in rows], [row.due_ms for row in rows]
            self.add_encoded(b"".join(map(self._encoded, rows)), ids, dues)

    def void(self, ids: Sequence[int], dues: Sequence[int]) -> None:
        """Revoke the newest row of each of these ids: what it says has not happened. Raises StoreError."""
        self.add([MessageRow(delay_id, due_ms, VOID, 0, 0, 0) for delay_id, due_ms in zip(ids, dues, strict=True)])

    def void_tail(self, is_true: Callable[[int], bool]) -> None:
        """Void the newest rows that are not true, until `TRUE_ROWS` in a row are. Raises StoreError.

        Rows are written before the change that they speak of. A crash in between leaves untrue rows at the end. Among
        them may be true ones: a message of a slice that was refused may have been changed alone on a full disk, which
        took no further row.
        """
        known: set[int] = set()
        wrong: list[MessageRow] = []
        true_count = 0
        for row in self._newest_first():
            if row.delay_id in known:
                continue
            known.add(row.delay_id)
            if row.at_ms != VOID:
                if not is_true(row.delay_id):
                    wrong.append(row)
                    true_count = 0
                    continue
                true_count += 1
                if true_count == TRUE_ROWS:
                    break
        self.void([row.delay_id for row in wrong], [row.due_ms for row in wrong])

    def _newest_first(self) -> Iterator[MessageRow]:
        for part in reversed(self._parts):
            rows = self._rows(part) if part.count else ()
            for end in range(len(rows), 0, -256):
                for *fields, crc in rows[max(0, end - 256) : end].tolist()[::-1]:  # type: ignore[union-attr]
                    if self._sum(tuple(fields)) == crc:
                        yield MessageRow(*fields)

    def encoded_columns(
        self,
        ids: Sequence[int],
        dues: Sequence[int],
        at_ms: int,
        keys: Sequence[int],
        versions: Sequence[int],
        topics: Sequence[int],
    ) -> bytes:
        """Encode rows of many messages with one time, for `add_encoded`: a fifth of the cost of single rows."""
        rows = np.zeros(len(ids), _DTYPE)
        rows["id"], rows["due"], rows["at"], rows["key"] = ids, dues, at_ms, keys
        rows["version"], rows["topic"] = versions, topics
        seed = self._seed
        rows["crc"] = [crc32(proven, seed) for proven, _ in _PROVEN_AND_CRC.iter_unpack(rows.tobytes())]
        return rows.tobytes()

    def add_encoded(self, data: bytes, ids: Sequence[int], dues: Sequence[int]) -> None:
        """Write rows that `encoded_columns` has made; ``ids`` and ``dues`` as there. Raises StoreError."""
        with self._lock:
            start = 0
            while start < len(ids):
                part = self._room()
                end = min(len(ids), start + self._rows_a_file - part.count)
                piece = data[start * MESSAGE_ROW_BYTES : end * MESSAGE_ROW_BYTES]
                self._write(part, piece)
                self._unsynced += piece
                part.count += end - start
                part.took(ids[start:end], dues[start:end])
                self._written += end - start
                start = end

    def _write(self, part: _Part, data: bytes) -> None:
        """Write rows behind those of a file; what a failed write has left there is cut off before."""
        self._clear(part)
        try:
            part.file.pwrite(data, part.count * MESSAGE_ROW_BYTES)
        except StoreError:
            self._torn = True
            with suppress(StoreError):
                self._clear(part)
            raise

    def _clear(self, part: _Part) -> None:
        if self._torn:
            part.file.truncate(part.count * MESSAGE_ROW_BYTES)
            self._torn = False

    def _room(self) -> _Part:
        if self._parts and self._parts[-1].count < self._rows_a_file:
            return self._parts[-1]
        if self._parts and not self._is_durable:
            # From now on `_sync` only sees the new file, so the one before must be durable.
            self._sync()
        if not self._parts:
            self._files.makedirs(self._directory)
        number = int(self._parts[-1].path.name) + 1 if self._parts else 1
        path = self._directory / f"{number:010d}"
        part = _Part(path, self._files.open(path, create=True), 0)
        self._files.sync_dir(self._directory)
        self._parts.append(part)
        return part

    def _encoded(self, row: MessageRow) -> bytes:
        proven = _PROVEN.pack(*row)
        return proven + LITTLE_INT.pack(crc32(proven, self._seed))

    def _sum(self, fields: tuple[int, ...]) -> int:
        return crc32(_PROVEN.pack(*fields), self._seed)

    @property
    def _is_durable(self) -> bool:
        return self._synced == self._written and not self._doubtful and not self._doubtful_names

    def sync(self) -> None:
        """Make all rows durable, also those that were found at open. Raises SyncFailedError."""
        with self._lock:
            if not self._is_durable:
                self._sync()

    def _sync(self) -> None:
        part = self._parts[-1]
        if self._doubtful_names:
            self._files.sync_dir(self._directory)
            self._doubtful_names = False
        if self._doubtful:  # a second sync would succeed without writing: the kernel has marked the pages clean
            # From memory: what can be read now is not what was written if the kernel has dropped the pages meanwhile.
            part.file.pwrite(bytes(self._unsynced), part.count * MESSAGE_ROW_BYTES - len(self._unsynced))
        # Before the sync: if it fails, the rows are written again before the next one.
        self._doubtful = True
        part.file.sync()
        self._doubtful = False
        self._unsynced.clear()
        self._synced = self._written

    def _rows(self, part: _Part) -> NDArray[np.void]:
        with self._lock:
            if self._doubtful and part in self._parts[-1:]:
                return part.rows(self._unsynced)
        return part.rows()

    def each(self) -> Iterator[MessageRow]:
        """Read every row, oldest first."""
        with self._lock:
            parts = [part for part in self._parts if part.count]
        for part in parts:
            for *fields, crc in self._rows(part).tolist():
                if self._sum(tuple(fields)) == crc:
                    yield MessageRow(*fields)

    def find(self, delay_id: int) -> MessageRow | None:
        """The newest row of a delay id; None if there is none or it is void. Reads files."""
        row = self._newest("id", delay_id, lambda part: part.id_min <= delay_id <= part.id_max)
        return None if row is None or row.at_ms == VOID else row

    def find_key(self, key_hash: int) -> MessageRow | None:
        """The newest row with this hash of topic and delay key; None if there is none. Reads files."""
        return self._newest("key", key_hash, lambda _: True) if key_hash else None

    def _newest(self, column: str, value: int, may_have: Callable[[_Part], bool]) -> MessageRow | None:
        with self._lock:
            parts = [part for part in reversed(self._parts) if part.count]
        for part in parts:
            if not may_have(part):
                continue
            rows = self._rows(part)
            for at in np.flatnonzero(rows[column] == value)[::-1].tolist():
                *fields, crc = rows[at].item()
                if self._sum(tuple(fields)) == crc:
                    return MessageRow(*fields)
        return None

    def expire(self, now_ms: int, is_wanted: Callable[[Sequence[int]], bool] = lambda _: False) -> bool:
        """Remove one file: of old rows only, or the oldest of too many. True if one went; the newest always stays.

        ``is_wanted`` is called with the ids of such a file; if it returns True, the file stays.
        """
        for part in self._parts[:-1]:
            if part.last_due_ms + self.keep_ms < now_ms or len(self._parts) > self.files_max:
                if is_wanted(part.rows()["id"].tolist()):
                    continue
                with self._lock:
                    self._parts.remove(part)
                    self._files.remove(part.path)
                    return True  # not closed: a look may be reading it; the last one that does closes it
        return False

    def close(self) -> None:
        """Sync, and give the files back. Raises SyncFailedError."""
        self.sync()
        with self._lock:
            for part in self._parts:
                part.file.close()
            self._parts = []
