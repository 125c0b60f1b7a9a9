"""The delivery checkpoint: the CommitLog position up to which all deliveries are recorded.

The problem
    A delayed message is delivered by an append to the CommitLog, and then marked as done elsewhere (in a done-set, or a
    level's offset). A crash between the two must neither repeat nor lose it. The append itself is the mark: a delivery
    carries its delay id (or its level and queue offset), so after a crash the log tells what was delivered. The
    checkpoint saves reading the whole log for that.

The rule
    ``(P, snapshots)``: every delivery below position P of the CommitLog is in the snapshots. Recovery loads the
    snapshots, scans the log from P, and marks what it finds; P may only move on after that.

    1. Under the delivery lock (`lock`) take P = end of the log, and a snapshot of each section. Claim, append and
       mark-done happen under the same lock, so no delivery is half in.
    2. Without the lock: sync everything below P.
    3. Replace the file, atomically and durably.
    4. Tell the owners that it is durable: only now may they remove files that the old checkpoint needed.

Sections
    Each owner (level scheduler, plug-in) has a section with a position of its own. An owner may not have registered in
    this run, because a plug-in is switched off or still recovering. Its section then stays as it was read, at the
    position that was read. There is one exception: if the log ended exactly at that position when it was opened,
    nothing was delivered since, and the position moves along. `position` is the lowest position of all sections: a scan
    begins there, and retention must keep the log from there.

The file (big-endian)::

    0   4  magic "TWCP"          20  16  store id                then for each section:
    4   2  format version (1)    36   8  position of the whole     2+n  name (UTF-8)
    6   2  number of sections    44   8  number of this write        8  position
    8   4  size of the file                                        4+n  data
    12  4  CRC-32 of the file with these 4 bytes zero
    16  4  reserved, 0
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from struct import error as struct_error

from remoting.layout import CHECKPOINT, CHECKPOINT_SECTION
from remoting.layout.table import UNSIGNED_SHORT
from remoting.messages.checksum import crc32
from store.disk.errors import StoreCorruptError, StoreFormatError
from store.disk.files import Files

__all__ = ["DeliveryCheckpoint"]

INTERVAL_MS = 1000
"""Longest time that a delivery waits for its checkpoint."""
LOG_BYTES_MAX = 64 << 20
"""Most bytes of log that a recovery should have to scan."""
TOUCHES_MAX = 100_000
"""Most deliveries and cancels between two checkpoints."""

_MAGIC = b"TWCP"
_VERSION = 1
_HEAD = CHECKPOINT.struct()
_CRC_AT = CHECKPOINT.at("crc")
_CRC_BYTES = CHECKPOINT.field("crc").size
_SECTION = CHECKPOINT_SECTION.struct()


class _Owner:
    __slots__ = ("durable", "snapshot", "sync")

    def __init__(
        self, snapshot: Callable[[], bytes], durable: Callable[[], None] | None, sync: Callable[[], None] | None
    ) -> None:
        self.snapshot = snapshot
        self.durable = durable
        self.sync = sync


class DeliveryCheckpoint:
    """The one checkpoint of a store, and the delivery lock under which it is taken.

    ==============  =================================================================================
    ``lock``        hold it for claim + append + mark-done as one, and for cancel, move and recovery
    ``position``    CommitLog offset: everything delivered below it is in the sections; durable
    ``sections``    name to bytes, as read when the file was opened; an owner recovers from its own
    ==============  =================================================================================

    Any thread. Taking it (`step`, `write`) is done by one thread at a time.
    """

    def __init__(self, files: Files, path: Path, store_id: bytes) -> None:
        """Make an empty checkpoint; `open` also reads the file. Raises ValueError."""
        if len(store_id) != 16:
            raise ValueError(f"a store id has 16 bytes: {store_id!r}")
        self.lock = threading.RLock()
        self.sections: dict[str, bytes] = {}
        self.writes = 0
        self._files = files
        self._path = path
        self._store_id = store_id
        self._positions: dict[str, int] = {}
        self._whole = 0
        self._whole_max = 1 << 62
        self._owners: dict[str, _Owner] = {}
        self._moving: frozenset[str] = frozenset()  # sections without an owner whose position moves along
        self._writing = threading.Lock()
        self._touches = 0
        self._last_ms: int | None = None

    @classmethod
    def open(cls, files: Files, path: Path, store_id: bytes) -> DeliveryCheckpoint:
        """Read the file if there is one.

        Raises `StoreFormatError` for another version or another store, `StoreCorruptError` for a damaged file.
        """
        checkpoint = cls(files, path, store_id)
        if files.exists(path):
            checkpoint._load(files.read_replaced(path))
        return checkpoint

    @property
    def position(self) -> int:
        """CommitLog offset from which a recovery has to scan, and below which retention may delete."""
        return min(self._positions.values(), default=self._whole)

    def position_of(self, name: str) -> int:
        """CommitLog offset up to which a section's durable data are complete."""
        return self._positions.get(name, self._whole)

    @contextmanager
    def reading(self, name: str) -> Iterator[bytes | None]:
        """Let an owner read its section (None: there is none); adds file and offset to its errors.

        Raises StoreCorruptError or StoreFormatError as the owner does.
        """
        try:
            yield self.sections.get(name)
        except (StoreCorruptError, StoreFormatError) as error:
            if str(self._path.parent) in str(error):
                raise  # about a file that the section speaks of
            raise type(error)(f"{self._path} at {self._offset_of(name)}: section {name!r}: {error}") from error

    def _offset_of(self, name: str) -> int:
        """Position of a section's content in the file."""
        at = _HEAD.size
        for found, data in self.sections.items():
            at += UNSIGNED_SHORT.size + len(found.encode()) + _SECTION.size
            if found == name:
                break
            at += len(data)
        return at

    def check_log_end(self, log_end: int) -> None:
        """Compare with the end of the recovered log, before anything is registered or written.

        Raises `StoreCorruptError` if the log ends before a position of the checkpoint: acknowledged deliveries are
        missing then, so it is not a torn tail that could be cut off.
        """
        highest = max(self._positions.values(), default=self._whole)
        if log_end < highest:
            raise StoreCorruptError(
                f"the CommitLog ends at {log_end}, but {self._path} says that it was durable up to {highest}: "
                f"the log was cut or replaced. Put the missing segments back; if they are gone for good, remove "
                f"{self._path}, and what was delivered lately may be delivered again"
            )
        self._moving = frozenset(name for name, position in self._positions.items() if position == log_end)

    def begin_at(self, log_end: int) -> None:
        """Start with a log written by other brokers: nothing below its end, which must be durable, is our delivery."""
        self._whole = log_end
        self._files.makedirs(self._path.parent)
        self._files.replace_file(self._path, self._encode(log_end, {}, {}))
        self.writes += 1

    def replace_section(self, name: str, data: bytes, position: int) -> None:
        """Replace the content of one section in the file; for a repair, when no owner has registered."""
        self.sections[name] = data
        self._positions[name] = position
        self._files.makedirs(self._path.parent)
        self._files.replace_file(self._path, self._encode(self._whole, self.sections, self._positions))
        self.writes += 1

    def register(
        self,
        name: str,
        snapshot: Callable[[], bytes],
        durable: Callable[[], None] | None = None,
        sync: Callable[[], None] | None = None,
    ) -> None:
        """Register the owner of a section after its recovery: from now on the section's position moves.

        ``snapshot`` is called under `lock`; then, without it, ``sync``, which must make durable what the snapshot
        builds on; and ``durable`` after a checkpoint with that snapshot is on disk.

        Raises ValueError if the section has an owner.
        """
        with self.lock:
            if name in self._owners:
                raise ValueError(f"section {name!r} has an owner already")
            self._owners[name] = _Owner(snapshot, durable, sync)
            if name not in self._positions:
                self._touches += 1  # so that the next checkpoint contains the section

    def unregister(self, name: str) -> None:
        """Unregister a section; it stays as last written, at the position that it had then.

        If it was never written, a recovery must scan from where its owner began, so the lowest position stays there.
        """
        with self.lock:
            if self._owners.pop(name, None) is not None and name not in self._positions:
                self._whole_max = min(self._whole_max, self._whole)
            self._moving -= {name}

    def touch(self, count: int = 1) -> None:
        """Count deliveries, cancels and other changes of a section since the last checkpoint."""
        self._touches += count

    def step(self, now_ms: int, log_end: Callable[[], int], sync: Callable[[], None]) -> bool:
        """Write a checkpoint if one is due; True if it was written.

        A checkpoint is due a second after a change, after 100,000 changes, or after 64 MiB of log. ``log_end`` is
        called under `lock`; ``sync`` must make everything below the position that it returned durable. Raises
        StoreError if the sync or the write failed: the old checkpoint is still valid then, and the next step tries
        again.
        """
        if not self._is_due(now_ms, log_end):
            return False
        self.write(log_end, sync)
        self._last_ms = now_ms
        return True

    def next_step_ms(self) -> int | None:
        """When the next `step` is due if nothing more happens; None if nothing has changed."""
        if not self._touches:
            return None
        return 0 if self._last_ms is None else self._last_ms + INTERVAL_MS

    def write(self, log_end: Callable[[], int], sync: Callable[[], None]) -> None:
        """Write a checkpoint now; see `step`."""
        with self._writing:
            with self.lock:
                touches, self._touches = self._touches, 0
                position = log_end()
                owners = dict(self._owners)
                moving = self._moving
                sections = dict(self.sections)
                positions = dict(self._positions)
                try:
                    for name, owner in owners.items():
                        sections[name] = owner.snapshot()
                        positions[name] = position
                except BaseException:
                    self._touches += touches
                    raise
            for name in moving:
                positions[name] = position
            try:
                # First the log, then what snapshots build on, then the file: it must never claim more than is durable.
                sync()
                for owner in owners.values():
                    if owner.sync is not None:
                        owner.sync()
                self._files.makedirs(self._path.parent)
                whole = min(position, self._whole_max)
                self._files.replace_file(self._path, self._encode(whole, sections, positions))
            except BaseException:
                self._touches += touches
                raise
            self.sections = sections
            self._positions = positions
            self._whole = whole
            self.writes += 1
        for owner in owners.values():
            if owner.durable is not None:
                owner.durable()

    def _is_due(self, now_ms: int, log_end: Callable[[], int]) -> bool:
        if self._touches:
            if self._last_ms is None or self._touches >= TOUCHES_MAX:
                return True
            # Negative: the clock was set back.
            if not 0 <= now_ms - self._last_ms < INTERVAL_MS:
                return True
        return bool(self._owners) and log_end() - self._whole >= LOG_BYTES_MAX

    def _encode(self, position: int, sections: dict[str, bytes], positions: dict[str, int]) -> bytes:
        parts = [b""]
        for name, data in sections.items():
            encoded = name.encode()
            parts += (UNSIGNED_SHORT.pack(len(encoded)), encoded, _SECTION.pack(positions[name], len(data)), data)
        size = _HEAD.size + sum(map(len, parts))
        fields = (self._store_id, position, self.writes + 1)
        parts[0] = _HEAD.pack(_MAGIC, _VERSION, len(sections), size, 0, 0, *fields)
        crc = crc32(b"".join(parts))
        parts[0] = _HEAD.pack(_MAGIC, _VERSION, len(sections), size, crc, 0, *fields)
        return b"".join(parts)

    def _load(self, data: bytes) -> None:
        if len(data) < _HEAD.size or not data.startswith(_MAGIC):
            raise StoreCorruptError(
                f"{self._path} at 0: no checkpoint, {len(data)} bytes that begin with {data[: len(_MAGIC)]!r}"
            )
        _, version, count, size, crc, _, store_id, self._whole, self.writes = _HEAD.unpack_from(data)
        if version != _VERSION:
            raise StoreFormatError(f"{self._path} at 4: it has format version {version}, this program knows {_VERSION}")
        zeroed = data[:_CRC_AT] + bytes(_CRC_BYTES) + data[_CRC_AT + _CRC_BYTES :]
        if size != len(data) or crc32(zeroed) != crc:
            raise StoreCorruptError(f"{self._path} at 0: CRC or size ({size}) of its {len(data)} bytes is wrong")
        if store_id != self._store_id:
            raise StoreFormatError(
                f"{self._path} at 20: it belongs to store {store_id.hex()}, not to this one ({self._store_id.hex()}): "
                "a file of another store was copied here. Put the right one back, or remove it to have the log scanned"
            )
        at = _HEAD.size
        try:
            for _ in range(count):
                (length,) = UNSIGNED_SHORT.unpack_from(data, at)
                name = data[at + 2 : at + 2 + length].decode()
                at += 2 + length
                self._positions[name], length = _SECTION.unpack_from(data, at)
                at += _SECTION.size
                self.sections[name] = data[at : at + length]
                at += length
        except (struct_error, UnicodeDecodeError) as error:
            raise StoreCorruptError(f"{self._path} at {at}: the section table is broken") from error
        if at != len(data):
            raise StoreCorruptError(f"{self._path} at {at}: the sections end there, the file at {len(data)}")
