"""The position up to which derived data is durable. With it, a restart reads only the tail of the CommitLog.

ConsumeQueues and the key index are derived from the log. Every few seconds (see `store.keeper`) their new entries are
written and synced, and then this file is written: all records below ``position`` are in them, and the queues have these
lengths. A restart takes the lengths from here, ignores everything behind them, and derives the rest again from
``position`` on. If the file is lost or damaged, that only costs time.

``last_*`` describe the record that ends at ``position``. It was durable. If it is no longer there, the log was damaged
or replaced: an error, not a torn tail. (An Apache broker may run in between: it only appends, and what it expires lies
below the log's begin.)

The file, big-endian, replaced as a whole::

    0   4  magic "TWPR"         16  8  position              then for each queue:
    4   2  format version (2)   24  8  last record: offset     2+n  topic (UTF-8)
    6   2  1: stopped cleanly   32  8  last record: store ms   4    queue id
    8   4  number of queues     40  4  last record: size       8    number of entries
    12  4  CRC-32 with these 4 bytes zero                      4    number of files
                                                               12n  their starts (8) and CRC-32s of their entries (4)
                                                          then 8    where the log began
                                                               8    size of a ConsumeQueue file

Version 1, which is read too, has neither files nor begin.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from struct import Struct
from struct import error as struct_error

from remoting.messages.checksum import crc32
from remoting.messages.message import store_ms_at
from store.disk.errors import StoreCorruptError, StoreFormatError
from store.disk.files import Files
from store.disk.segments import segment_name
from store.log.log_reader import LogReader

__all__ = ["Progress"]

_MAGIC = b"TWPR"
_VERSIONS = (1, 2)
_HEAD = Struct(">4sHHIIqqqi")
_NAME = Struct(">H")
_QUEUE = Struct(">iq")
_FILES = Struct(">I")
_FILE = Struct(">qI")
_ENDING = Struct(">qq")
_LONG = Struct(">q")


class Progress:
    """The content of the file; ``counts`` maps (topic, queue id) to a number of entries.

    ``sums`` maps (topic, queue id) to the `ConsumeQueue.sums` of its files: ((start, CRC-32), ...). ``begin`` is the
    log's begin at that time (-1: unknown): if that is unchanged, no file has expired since. ``file_bytes`` is the size
    of a ConsumeQueue file.
    """

    __slots__ = ("begin", "clean", "counts", "file_bytes", "last_ms", "last_offset", "last_size", "position", "sums")

    def __init__(
        self,
        position: int,
        counts: dict[tuple[str, int], int],
        last: tuple[int, int, int] = (-1, 0, 0),
        clean: bool = False,
        sums: Mapping[tuple[str, int], tuple[tuple[int, int], ...]] | None = None,
        begin: int = -1,
        file_bytes: int = 0,
    ) -> None:
        """``last`` is (offset, size, store ms) of the record that ends at ``position``."""
        self.position = position
        self.counts = counts
        self.last_offset, self.last_size, self.last_ms = last
        self.clean = clean
        self.sums = dict(sums or {})
        self.begin = begin
        self.file_bytes = file_bytes

    def write(self, files: Files, path: Path) -> None:
        """Replace the file, durably. Raises StoreError."""
        parts = [b""]
        for (topic, queue_id), count in self.counts.items():
            name = topic.encode()
            files_of = self.sums.get((topic, queue_id), ())
            parts += (_NAME.pack(len(name)), name, _QUEUE.pack(queue_id, count), _FILES.pack(len(files_of)))
            parts += [_FILE.pack(*pair) for pair in files_of]
        parts.append(_ENDING.pack(self.begin, self.file_bytes))
        fields = (self.position, self.last_offset, self.last_ms, self.last_size)
        parts[0] = _HEAD.pack(_MAGIC, _VERSIONS[-1], self.clean, len(self.counts), 0, *fields)
        crc = crc32(b"".join(parts))
        parts[0] = _HEAD.pack(_MAGIC, _VERSIONS[-1], self.clean, len(self.counts), crc, *fields)
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
        if crc32(data[:12] + bytes(4) + data[16:]) != crc:
            return None
        if version not in _VERSIONS:
            raise StoreFormatError(f"{path} at 4: it has format version {version}, this program knows {_VERSIONS[-1]}")
        counts: dict[tuple[str, int], int] = {}
        sums: dict[tuple[str, int], tuple[tuple[int, int], ...]] = {}
        at = _HEAD.size
        begin, file_bytes = -1, 0
        try:
            for _ in range(number):
                (length,) = _NAME.unpack_from(data, at)
                topic = data[at + 2 : at + 2 + length].decode()
                at += 2 + length
                queue_id, count = _QUEUE.unpack_from(data, at)
                counts[topic, queue_id] = count
                at += _QUEUE.size
                if version > 1:
                    (files_count,) = _FILES.unpack_from(data, at)
                    at += _FILES.size
                    end = at + files_count * _FILE.size
                    sums[topic, queue_id] = tuple(_FILE.iter_unpack(data[at:end]))
                    at = end
            if version > 1:
                begin, file_bytes = _ENDING.unpack_from(data, at)
        except (struct_error, UnicodeDecodeError):
            return None
        return cls(position, counts, (last_offset, last_size, last_ms), bool(clean), sums, begin, file_bytes)

    def fits(self, log: LogReader) -> bool:
        """True if a restart can begin at ``position``: False if the log begins behind it.

        Raises `StoreCorruptError` if the log does not have the last record below ``position`` any more.
        """
        if self.position < log.begin:
            return False
        if self.last_offset < log.begin:
            return self.last_offset < 0 or self.position == log.begin
        record = log.raw_record(self.last_offset, self.last_size)
        if record is None or _LONG.unpack_from(record, store_ms_at(record)) != (self.last_ms,):
            start = self.last_offset - self.last_offset % log.segment_bytes
            place = f"{log.directory / segment_name(start)} at {self.last_offset - start} (offset {self.last_offset})"
            raise StoreCorruptError(
                f"{place}: the record of {self.last_size} bytes there was durable, and is missing or damaged: the log "
                "has been cut off or replaced. Nothing was changed: restore it if you can"
            )
        return True
