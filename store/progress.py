"""How far the derived data is durable: the reason why a restart reads only the tail of the CommitLog.

ConsumeQueues and the key index are derived from the log. Every few seconds (see `store.keeper`) their new entries are
written and synced, and then this file says: every record below ``position`` is in them, and the queues have these
lengths. A restart takes the lengths from here, forgets whatever stands behind them, and derives the rest again from
``position`` on. Lost or damaged, the file costs time, nothing else.

``last_*`` describe the record that ends at ``position``. It was durable: if it is not there any more, the log has been
damaged or replaced, and that is an error, not a tail that was torn. (An Apache broker that ran in between does not
matter: it only appends, and what it has expired lies below the log's begin.)

The file, big-endian, replaced as a whole::

    0   4  magic "TWPR"         16  8  position              then for each queue:
    4   2  format version (1)   24  8  last record: offset     2+n  topic (UTF-8)
    6   2  1: stopped cleanly   32  8  last record: store ms   4    queue id
    8   4  number of queues     40  4  last record: size       8    number of entries
    12  4  CRC-32 with these 4 bytes zero
"""

from __future__ import annotations

from pathlib import Path
from struct import Struct
from struct import error as struct_error
from zlib import crc32

from remoting.message import store_ms_at
from store.errors import StoreCorruptError, StoreFormatError
from store.files import Files
from store.log_reader import LogReader

__all__ = ["Progress"]

_MAGIC = b"TWPR"
_VERSION = 1
_HEAD = Struct(">4sHHIIqqqi")
_NAME = Struct(">H")
_QUEUE = Struct(">iq")
_LONG = Struct(">q")


class Progress:
    """What the file says; ``counts`` maps (topic, queue id) to a number of entries."""

    __slots__ = ("clean", "counts", "last_ms", "last_offset", "last_size", "position")

    def __init__(
        self,
        position: int,
        counts: dict[tuple[str, int], int],
        last: tuple[int, int, int] = (-1, 0, 0),
        clean: bool = False,
    ) -> None:
        """``last`` is (offset, size, store ms) of the record that ends at ``position``."""
        self.position = position
        self.counts = counts
        self.last_offset, self.last_size, self.last_ms = last
        self.clean = clean

    def write(self, files: Files, path: Path) -> None:
        """Replace the file, durably."""
        parts = [b""]
        for (topic, queue_id), count in self.counts.items():
            name = topic.encode()
            parts += (_NAME.pack(len(name)), name, _QUEUE.pack(queue_id, count))
        fields = (self.position, self.last_offset, self.last_ms, self.last_size)
        parts[0] = _HEAD.pack(_MAGIC, _VERSION, self.clean, len(self.counts), 0, *fields)
        crc = crc32(b"".join(parts))
        parts[0] = _HEAD.pack(_MAGIC, _VERSION, self.clean, len(self.counts), crc, *fields)
        files.replace_file(path, b"".join(parts))

    @classmethod
    def read(cls, files: Files, path: Path) -> Progress | None:
        """Read the file; None if it is missing or damaged. Raises `StoreFormatError` for a newer version."""
        if not files.exists(path):
            return None
        data = files.read_replaced(path)
        if len(data) < _HEAD.size or data[:4] != _MAGIC:
            return None
        _, version, clean, number, crc, position, last_offset, last_ms, last_size = _HEAD.unpack_from(data)
        if version != _VERSION:
            raise StoreFormatError(f"{path} has format version {version}, this program knows {_VERSION}")
        if crc32(data[:12] + bytes(4) + data[16:]) != crc:
            return None
        counts: dict[tuple[str, int], int] = {}
        at = _HEAD.size
        try:
            for _ in range(number):
                (length,) = _NAME.unpack_from(data, at)
                topic = data[at + 2 : at + 2 + length].decode()
                at += 2 + length
                queue_id, count = _QUEUE.unpack_from(data, at)
                counts[topic, queue_id] = count
                at += _QUEUE.size
        except (struct_error, UnicodeDecodeError):
            return None
        return cls(position, counts, (last_offset, last_size, last_ms), bool(clean))

    def fits(self, log: LogReader) -> bool:
        """Whether a restart can begin at ``position``: False if the log begins behind it.

        Raises `StoreCorruptError` if the log does not have the last record below ``position`` any more.
        """
        if self.position < log.begin:
            return False
        if self.last_offset < log.begin:
            return self.last_offset < 0 or self.position == log.begin
        record = log.raw_record(self.last_offset, self.last_size)
        if record is None or _LONG.unpack_from(record, store_ms_at(record)) != (self.last_ms,):
            raise StoreCorruptError(
                f"{log.directory}: the record of {self.last_size} bytes at {self.last_offset} was durable, "
                "and is missing or damaged: the log has been cut off or replaced. Nothing was changed: restore it. "
                "If parts of it are gone for good, remove timewheel/progress to go on with what is there"
            )
        return True
