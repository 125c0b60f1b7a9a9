"""The manifest: which files there are, and which records each of them owns. One small file, replaced atomically.

One or two numbers a file define ownership:

- A journal segment owns the records with a key below its ``upper``; the others were written into runs.
- A run owns the ordinals ``first … end - 1``. Records below ``first`` stay in the sources that it was copied from,
  because the frontier had reached them. Records from ``end`` on were merged into another run.

So one replacement of this file moves any number of records from some files to another, and a crash before or
after it finds each record in exactly one place. ``upper`` and ``end`` only ever decrease.

It cannot be derived from the files, so a second one, ``manifest.copy``, is written after each. ``generation`` counts
the writes: a manifest whose generation is below that of its copy is an old one that somebody put back. ``relied_on`` is
the number of the checkpoint section that allowed the removal of files; older sections lack what was in these files.

::

    0   magic "TWMF" u32 | version u32 | store id 16 | epoch u32 | next file number u32
    32  segments u32 | runs u32 | flags u32 (1: a checkpoint was relied on) | CRC u32 over all but itself
    48  generation u64 | relied on u64                                                       (from version 2 on)
    64  segments: number u64 | base u64 | size u64 | upper due i64 | upper id i64            (40 bytes each)
    …   runs: number u64 | first u32 | end u32 | shape (80 bytes, see `RunShape`)            (96 bytes each)
        and, of the segment that an index leads to: number u64 | base u64 | size u64         (from version 3 on)
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from remoting.layout import MANIFEST, MANIFEST_RUN, MANIFEST_SEGMENT
from remoting.layout.table import LITTLE_INT
from remoting.messages.checksum import crc32
from store.disk.errors import StoreCorruptError, StoreError, StoreFormatError
from store.disk.files import Files
from store.spill.rows.model import Key
from store.spill.rows.run_shape import RunShape

__all__ = ["DataEntry", "Manifest", "RunEntry", "SegmentEntry", "read_manifest"]

_MAGIC = 0x464D5754  # "TWMF"
_VERSION = 3
_HEAD = MANIFEST.struct("magic", "flags")
_HEAD_BYTES = MANIFEST.at("generation")  # with the CRC
_COUNTERS = MANIFEST.struct("generation", "relied_on")
_SEGMENT = MANIFEST_SEGMENT.struct()
_RUN = MANIFEST_RUN.struct("file_no", "end")
_DATA = MANIFEST_RUN.struct("data_no", "data_size")
_NO_DATA = (0, 0, 0)
_RELIED = 1


class SegmentEntry:
    """One journal segment: its file number, journal position and size; it owns the records with a key < ``upper``."""

    __slots__ = ("base", "no", "size", "upper")

    def __init__(self, no: int, base: int, size: int, upper: Key) -> None:
        self.no = no
        self.base = base
        self.size = size
        self.upper = upper


class DataEntry(NamedTuple):
    """The journal segment in which the records of an index stand; it may be listed as a segment as well."""

    no: int
    base: int
    size: int


class RunEntry:
    """One run: its file number, the ordinals that it owns, its shape; of an index also where its records stand."""

    __slots__ = ("data", "end", "first", "no", "shape")

    def __init__(self, no: int, first: int, end: int, shape: RunShape, data: DataEntry | None = None) -> None:
        self.no = no
        self.first = first
        self.end = end
        self.shape = shape
        self.data = data


class Manifest:
    """The content of the manifest, as values; segments in journal order."""

    __slots__ = ("epoch", "generation", "next_no", "relied", "relied_on", "runs", "segments", "store_id")

    def __init__(self, store_id: bytes) -> None:
        self.store_id = store_id
        self.epoch = 0
        self.next_no = 1
        self.relied = False
        self.relied_on = 0
        self.generation = 0
        self.segments: list[SegmentEntry] = []
        self.runs: list[RunEntry] = []

    def encode(self) -> bytes:
        """The bytes of the file."""
        head = _HEAD.pack(
            _MAGIC,
            _VERSION,
            self.store_id,
            self.epoch,
            self.next_no,
            len(self.segments),
            len(self.runs),
            _RELIED if self.relied else 0,
        )
        parts = [_COUNTERS.pack(self.generation, self.relied_on)]
        parts += [_SEGMENT.pack(s.no, s.base, s.size, *s.upper) for s in self.segments]
        for r in self.runs:
            parts.append(_RUN.pack(r.no, r.first, r.end) + r.shape.pack() + _DATA.pack(*(r.data or _NO_DATA)))
        body = b"".join(parts)
        return head + LITTLE_INT.pack(crc32(body, crc32(head))) + body

    @classmethod
    def decode(cls, data: bytes, store_id: bytes, path: Path) -> Manifest:
        """Decode a file. Raises StoreCorruptError; StoreFormatError if another version or another store wrote it."""
        if len(data) < _HEAD_BYTES:
            raise StoreCorruptError(f"{path} at {len(data)}: cut off there, at least {_HEAD_BYTES} bytes are needed")
        magic, version, owner, epoch, next_no, segments, runs, flags = _HEAD.unpack_from(data)
        if magic != _MAGIC:
            raise StoreCorruptError(f"{path} at 0: magic {magic:#010x}, not {_MAGIC:#010x}")
        if not 1 <= version <= _VERSION:
            raise StoreFormatError(f"{path} at 4: it has format version {version}; this software reads {_VERSION}")
        counters = _COUNTERS.size if version > 1 else 0
        run_bytes = _RUN.size + RunShape.PACKED.size + (_DATA.size if version > 2 else 0)
        size = _HEAD_BYTES + counters + segments * _SEGMENT.size + runs * run_bytes
        crc = LITTLE_INT.unpack_from(data, _HEAD.size)[0]
        if len(data) != size or crc32(data[_HEAD_BYTES:], crc32(data[: _HEAD.size])) != crc:
            raise StoreCorruptError(f"{path} at 0: {len(data)} bytes that are not a whole manifest (checksum)")
        if owner != store_id:
            raise StoreFormatError(
                f"{path} at 8: it belongs to store {owner.hex()}, not to {store_id.hex()}: "
                "put the directory back where it came from"
            )
        manifest = cls(store_id)
        manifest.epoch, manifest.next_no, manifest.relied = epoch, next_no, bool(flags & _RELIED)
        at = _HEAD_BYTES
        if counters:
            manifest.generation, manifest.relied_on = _COUNTERS.unpack_from(data, at)
            at += counters
        for _ in range(segments):
            no, base, size, due, id_ = _SEGMENT.unpack_from(data, at)
            manifest.segments.append(SegmentEntry(no, base, size, (due, id_)))
            at += _SEGMENT.size
        for _ in range(runs):
            no, first, end = _RUN.unpack_from(data, at)
            shape = RunShape.unpack(data, at + _RUN.size)
            place = _DATA.unpack_from(data, at + run_bytes - _DATA.size) if version > 2 else _NO_DATA
            segment = DataEntry(*place) if place[0] else None
            if not shape.fits or not first <= end <= shape.count or shape.is_index != (segment is not None):
                raise StoreCorruptError(f"{path} at {at}: the entry of run {no} contradicts itself")
            manifest.runs.append(RunEntry(no, first, end, shape, segment))
            at += run_bytes
        return manifest


def read_manifest(files: Files, path: Path, store_id: bytes) -> tuple[Manifest | None, str]:
    """Read the manifest, or its copy if that one is newer or the manifest is unusable.

    Returns it, and why the copy was taken (empty if it was not); None if there is neither file. If there are files
    but none can be used, raises the error of `Manifest.decode`.
    """
    spare = path.with_name(f"{path.name}.copy")
    manifest = copy = None
    problem: StoreError | None = None
    if files.exists(path):
        try:
            manifest = Manifest.decode(files.read_replaced(path), store_id, path)
        except (StoreCorruptError, StoreFormatError) as error:
            problem = error
    if files.exists(spare):
        try:
            copy = Manifest.decode(files.read_replaced(spare), store_id, spare)
        except (StoreCorruptError, StoreFormatError) as error:
            problem = problem or (error if manifest is None else None)
    if copy is not None and manifest is None:
        return copy, str(problem) if problem else f"{path} is missing"
    if copy is not None and manifest is not None and copy.generation > manifest.generation:
        return copy, f"{path} is an older one (write {manifest.generation}, its copy is {copy.generation})"
    if manifest is None and problem is not None:
        raise problem
    return manifest, ""
