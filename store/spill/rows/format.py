"""The bytes of the spill store's files, and nothing else: pure functions from values to bytes and back.

All integers are little-endian (the columns are used in place by numpy); RocketMQ's own records, which stand in
these files unchanged, are big-endian. ``docs/disk-format.md`` draws the same bytes.

=================  ==============================================================================================
file header        64 bytes at the start of every journal segment and run
frame              one append to the journal: header, one row for each record, the records
column page        a run's records in key order as columns: due, id, size, version, CRC
place page         the same of an index, with the position of each record in its segment
id page            a run's ids in order, each with due, ordinal and version
run trailer        the last 128 bytes of a run
=================  ==============================================================================================

Checksums are CRC-32. Those of frames and pages begin with a seed made of the store id (of pages also the file number).
So a page of another file, or a body that a sender made to look like a frame, never counts. The CRC of a frame covers
its header and rows, and each row has the CRC of its record. By this chain of checksums a frame is valid as a whole or
not at all. The CRC of a record goes with it into a run, and is checked when the record is delivered.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import repeat
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from remoting.layout import (
    COLUMN_PAGE_ROW,
    COLUMN_ROW_BYTES,
    FILE_HEADER,
    FILE_HEADER_BYTES,
    FRAME,
    FRAME_BYTES,
    FRAME_COUNT_AT,
    FRAME_CRC_AT,
    FRAME_POSITION_AT,
    FRAME_ROW,
    FRAME_ROW_BYTES,
    ID_PAGE_ROW,
    ID_ROW_BYTES,
    PAGE_HEAD,
    PAGE_HEAD_BYTES,
    PAGE_PROVEN_AT,
    PLACE_PAGE_ROW,
    PLACE_ROW_BYTES,
)
from remoting.layout.table import LITTLE_INT, LITTLE_LONG
from remoting.messages.checksum import crc32
from store.disk.errors import StoreCorruptError, StoreFormatError

__all__ = [
    "ACCEPT",
    "CANCEL",
    "END",
    "ID_DTYPE",
    "INDEX_MAGIC",
    "JOURNAL_MAGIC",
    "MOVE",
    "PAGE_BYTES_MAX",
    "ROW",
    "ROW_DTYPE",
    "RUN_MAGIC",
    "VERSION",
    "ColumnPage",
    "Frame",
    "column_page",
    "encode_frame",
    "encode_rows",
    "file_header",
    "frame_count",
    "frame_seed",
    "id_page",
    "page_seed",
    "place_page",
    "read_column_page",
    "read_file_header",
    "read_frame",
    "read_id_page",
    "read_place_page",
]

VERSION = 1
JOURNAL_MAGIC = 0x534A5754  # "TWJS"
RUN_MAGIC = 0x53525754  # "TWRS"
INDEX_MAGIC = 0x53585754  # "TWXS"
FRAME_MAGIC = 0x464A5754  # "TWJF"
_COLUMN_MAGIC = 0x43525754  # "TWRC"
_ID_MAGIC = 0x49525754  # "TWRI"
_PLACE_MAGIC = 0x43585754  # "TWXC"

_HEADER = FILE_HEADER.struct()
_FRAME = FRAME.struct("magic", "more_zeros")
ROW = FRAME_ROW.struct()
ROW_DTYPE = np.dtype(FRAME_ROW.columns())

ACCEPT, CANCEL, MOVE, END = 1, 2, 3, 9
"""Kinds of frame; END closes a segment."""
_KINDS = frozenset((ACCEPT, CANCEL, MOVE, END))

PAGE_BYTES_MAX = 1 << 20
_PAGE_HEAD = PAGE_HEAD.struct()
_DUE, _ID, _SIZE, _VERSION, _CRC = (
    (np.dtype(kind), COLUMN_PAGE_ROW.at(name)) for name, kind in COLUMN_PAGE_ROW.columns()
)
_PLACE = (np.dtype(PLACE_PAGE_ROW.columns()[-1][1]), PLACE_PAGE_ROW.at("place"))
"""Type of a column, and where it begins in a page with one row."""
ID_DTYPE = np.dtype(ID_PAGE_ROW.columns())


Longs = NDArray[np.int64]
Words = NDArray[np.uint32]
IdRows = NDArray[np.void]


def file_header(magic: int, store_id: bytes, number: int, first: int, second: int) -> bytes:
    """Make a file header; segments keep (base, size) in the last two, runs and indexes (reserved pages, page bytes)."""
    head = _HEADER.pack(magic, VERSION, store_id, number, first, second, 0)
    return head[: -LITTLE_INT.size] + LITTLE_INT.pack(crc32(head[: -LITTLE_INT.size]))


def read_file_header(data: bytes, magic: int, store_id: bytes, number: int, path: Path) -> tuple[int, int]:
    """Check a file header and answer its last two fields.

    Raises StoreCorruptError if it is damaged, StoreFormatError if another version or another store wrote it.
    """
    if len(data) < FILE_HEADER_BYTES:
        raise StoreCorruptError(f"{path} at {len(data)}: cut off in its header of {FILE_HEADER_BYTES} bytes")
    found, version, owner, no, first, second, crc = _HEADER.unpack_from(data)
    if found != magic:
        raise StoreCorruptError(f"{path} at 0: magic {found:#010x}, not {magic:#010x}")
    if version != VERSION:
        raise StoreFormatError(f"{path} at 4: it has format version {version}; this software reads {VERSION}")
    if crc32(data[: FILE_HEADER_BYTES - LITTLE_INT.size]) != crc:
        raise StoreCorruptError(f"{path} at 0: the header's checksum is wrong")
    if owner != store_id:
        raise StoreFormatError(f"{path} at 8: it belongs to store {owner.hex()}, not to {store_id.hex()}")
    if no != number:
        raise StoreCorruptError(f"{path} at 0: it says it is file {no}, not {number}")
    return first, second


def frame_seed(store_id: bytes) -> int:
    """Start value of the checksums of a store's frames."""
    return crc32(store_id)


def page_seed(store_id: bytes, number: int) -> int:
    """Start value of the checksums of a run's pages."""
    return crc32(LITTLE_LONG.pack(number), crc32(store_id))


class Frame:
    """The header of one frame. ``length`` counts the whole frame, in bytes; ``offset`` is its journal position."""

    __slots__ = ("count", "epoch", "first_ordinal", "kind", "length", "offset", "synced")

    def __init__(
        self, kind: int, length: int, count: int, offset: int, synced: int, epoch: int, first_ordinal: int
    ) -> None:
        self.kind = kind
        self.length = length
        self.count = count
        self.offset = offset
        self.synced = synced
        self.epoch = epoch
        self.first_ordinal = first_ordinal


def encode_rows(dues: Iterable[int], ids: Iterable[int], versions: Iterable[int], records: Sequence[bytes]) -> bytes:
    """Make the rows of a frame. A cancel has rows without records (``records`` is empty): size and CRC are 0."""
    sizes, crcs = (map(len, records), map(crc32, records)) if records else (repeat(0), repeat(0))
    return b"".join(map(ROW.pack, dues, ids, sizes, versions, crcs))


def encode_frame(
    kind: int,
    rows: bytes,
    records: Sequence[bytes],
    offset: int,
    synced: int,
    epoch: int,
    first_ordinal: int,
    seed: int,
) -> bytes:
    """Make a frame of rows, as `encode_rows` makes them, and their records."""
    length = FRAME_BYTES + len(rows) + sum(map(len, records))
    count = len(rows) // FRAME_ROW_BYTES
    head = _FRAME.pack(FRAME_MAGIC, kind, 0, length, count, offset, synced, epoch, first_ordinal, 0)
    return b"".join((head, LITTLE_INT.pack(crc32(rows, crc32(head, seed))), rows, *records))


def read_frame(data: bytes, at: int, offset: int, seed: int) -> Frame | None:
    """Read the frame at ``data[at:]`` that belongs at journal position ``offset``; None if there is none.

    ``data`` must reach to the end of its rows, else the answer is None. The caller checks the CRCs of the records.
    """
    if len(data) - at < FRAME_BYTES:
        return None
    magic, kind, _, length, count, where, synced, epoch, first_ordinal, _ = _FRAME.unpack_from(data, at)
    if magic != FRAME_MAGIC or where != offset or kind not in _KINDS:
        return None
    rows_end = at + FRAME_BYTES + count * FRAME_ROW_BYTES
    if rows_end > len(data) or length < rows_end - at:
        return None
    head = data[at : at + FRAME_CRC_AT]
    if (
        crc32(data[at + FRAME_BYTES : rows_end], crc32(head, seed))
        != LITTLE_INT.unpack_from(data, at + FRAME_CRC_AT)[0]
    ):
        return None
    return Frame(kind, length, count, where, synced, epoch, first_ordinal)


def frame_count(head: bytes, at: int = 0) -> int:
    """Number of rows that a frame's header claims, before its checksum is compared; 0 if the header is cut off."""
    return int.from_bytes(head[at + FRAME_COUNT_AT : at + FRAME_POSITION_AT], "little")


class ColumnPage:
    """Some consecutive records of a run: columns, and where each record's bytes start in the file."""

    __slots__ = ("crcs", "dues", "first", "ids", "sizes", "starts", "versions")

    def __init__(
        self, first: int, dues: Longs, ids: Longs, sizes: Words, versions: Words, crcs: Words, position: int
    ) -> None:
        self.first = first
        self.dues = dues
        self.ids = ids
        self.sizes = sizes
        self.versions = versions
        self.crcs = crcs
        ends = np.cumsum(sizes, dtype=np.int64)
        ends += position
        self.starts: Longs = ends - sizes

    def __len__(self) -> int:
        return len(self.dues)


def _page(magic: int, seed: int, number: int, count: int, first: int, position: int, body: bytes, size: int) -> bytes:
    rest = _PAGE_HEAD.pack(magic, 0, number, count, first, position)[PAGE_PROVEN_AT:] + body
    rest += bytes(size - PAGE_PROVEN_AT - len(rest))
    return LITTLE_INT.pack(magic) + LITTLE_INT.pack(crc32(rest, seed)) + rest


def _read_page(data: bytes, magic: int, seed: int, number: int, row: int, path: Path, at: int) -> tuple[int, int, int]:
    if len(data) >= PAGE_HEAD_BYTES:
        found, crc, no, count, first, position = _PAGE_HEAD.unpack_from(data)
        fits = found == magic and no == number and 0 < count <= (len(data) - PAGE_HEAD_BYTES) // row
        # No file is so large, and the int64 sums in `ColumnPage` would overflow.
        fits = fits and not position >> 62
        if fits and crc32(memoryview(data)[PAGE_PROVEN_AT:], seed) == crc:
            return count, first, position
    raise StoreCorruptError(f"{path} at {at}: page {number} is not what was written (magic, number or checksum)")


def column_page(page: ColumnPage, number: int, page_bytes: int, seed: int) -> bytes:
    """Encode a column page."""
    columns = (page.dues, page.ids, page.sizes, page.versions, page.crcs)
    body = b"".join([column.tobytes() for column in columns])
    return _page(_COLUMN_MAGIC, seed, number, len(page), page.first, int(page.starts[0]), body, page_bytes)


def read_column_page(data: bytes, number: int, seed: int, path: Path, at: int) -> ColumnPage:
    """Decode a column page. Raises StoreCorruptError if it is not page ``number`` of this run."""
    n, first, position = _read_page(data, _COLUMN_MAGIC, seed, number, COLUMN_ROW_BYTES, path, at)
    return _columns(data, n, first, position)


def _columns(data: bytes, n: int, first: int, position: int) -> ColumnPage:
    where = PAGE_HEAD_BYTES
    return ColumnPage(
        first,
        np.frombuffer(data, _DUE[0], n, where + _DUE[1] * n),
        np.frombuffer(data, _ID[0], n, where + _ID[1] * n),
        np.frombuffer(data, _SIZE[0], n, where + _SIZE[1] * n),
        np.frombuffer(data, _VERSION[0], n, where + _VERSION[1] * n),
        np.frombuffer(data, _CRC[0], n, where + _CRC[1] * n),
        position,
    )


def place_page(page: ColumnPage, number: int, page_bytes: int, seed: int) -> bytes:
    """Encode a page of an index: a column page that says where each record stands."""
    # 32 bits are enough: a segment has less than 4 GiB (`SpillOptions`).
    places = page.starts.astype(np.uint32)
    columns = (page.dues, page.ids, page.sizes, page.versions, page.crcs, places)
    body = b"".join([column.tobytes() for column in columns])
    return _page(_PLACE_MAGIC, seed, number, len(page), page.first, 0, body, page_bytes)


def read_place_page(data: bytes, number: int, seed: int, path: Path, at: int) -> ColumnPage:
    """Decode a page of an index. Raises StoreCorruptError if it is not page ``number`` of this index."""
    n, first, _ = _read_page(data, _PLACE_MAGIC, seed, number, PLACE_ROW_BYTES, path, at)
    page = _columns(data, n, first, 0)
    page.starts = np.frombuffer(data, _PLACE[0], n, PAGE_HEAD_BYTES + _PLACE[1] * n).astype(np.int64)
    return page


def id_page(rows: IdRows, number: int, page_bytes: int, seed: int) -> bytes:
    """Encode an id page from rows of `ID_DTYPE`, sorted by (id, version)."""
    return _page(_ID_MAGIC, seed, number, len(rows), 0, 0, rows.tobytes(), page_bytes)


def read_id_page(data: bytes, number: int, seed: int, path: Path, at: int) -> IdRows:
    """Decode an id page. Raises StoreCorruptError if it is not page ``number`` of this run."""
    n, _, _ = _read_page(data, _ID_MAGIC, seed, number, ID_ROW_BYTES, path, at)
    return np.frombuffer(data, ID_DTYPE, n, PAGE_HEAD_BYTES)
