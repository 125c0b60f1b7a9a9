"""Rebuilding a damaged column page from the records that it leads to.

A page has due time, delay id, size, version and checksum of each record. All of it stands in the record too: a finished
CommitLog record has its own size, and delay id, version and due time among its properties. Only the position of the
page's first record must be known: the end of the last record of the page before. If that page is in a hole, the records
are counted back from the page behind.

A damaged record is kept as an unreadable one as long as its size fields hold. If they do not, the page cannot be
rebuilt.
"""

from __future__ import annotations

from collections import deque

import numpy as np

from remoting.layout import OFFSET_AT, RECORD_BYTES_MIN
from remoting.layout.table import INT, LONG
from remoting.messages.checksum import crc32
from remoting.messages.message import RecordError, record_fields
from remoting.messages.properties import TW_DUE, TW_ID, get_property
from store.disk.delay_id import parse_id_text
from store.disk.file import File
from store.log.log_scan import valid_size
from store.spill.rows.format import ColumnPage
from store.spill.rows.model import DUE_MAX

__all__ = ["Row", "place_before", "rebuilt_page", "row_of"]

_READ_BYTES = 1 << 20

Row = tuple[int, int, int, int, int]
"""Due time (epoch ms), delay id, size in bytes, version, CRC: the row of a record in a page or a frame."""


def row_of(data: bytes, at: int, check_crc: bool = True) -> Row | None:
    """The row of the finished record at ``data[at:]``; None if there is none.

    Without ``check_crc`` a record with a damaged body is accepted. Its row then has a CRC that does not match, so every
    later read reports the damage.
    """
    if len(data) - at < RECORD_BYTES_MIN:
        return None
    size = int(INT.unpack_from(data, at)[0])
    if not RECORD_BYTES_MIN <= size <= len(data) - at:
        return None
    record = data[at : at + size]
    position = int(LONG.unpack_from(record, OFFSET_AT)[0])
    whole = valid_size(record, 0, position) == size
    if not whole and (check_crc or valid_size(record, 0, position, False) != size):
        return None
    try:
        properties = record_fields(record)[2]
        delay_id, version = parse_id_text(get_property(properties, TW_ID) or "")
        due_ms = int(get_property(properties, TW_DUE) or "")
    except (RecordError, ValueError):
        return None
    if not 0 <= due_ms < DUE_MAX:
        return None
    crc = crc32(record)
    return due_ms, delay_id, size, version, crc if whole else crc ^ 1


def place_before(file: File, begin: int, end: int, count: int) -> int | None:
    """Where the first of the last ``count`` records before position ``end`` begins; None if that cannot be told.

    The records stand in ``file`` from ``begin`` on; any part in front of these may be a hole.
    """
    places: deque[int] = deque(maxlen=count)
    at: int | None = begin
    while at is not None and at < end:
        size = int.from_bytes(file.pread(INT.size, at), "big", signed=True)
        if RECORD_BYTES_MIN <= size <= end - at:
            places.append(at)
            at += size
        else:
            places.clear()
            at = _behind_zeros(file, at, end)
    return places[0] if at == end and len(places) == count else None


def _behind_zeros(file: File, begin: int, end: int) -> int | None:
    """Where the record begins that has nothing but zeros between ``begin`` and itself; None if there is none."""
    for offset, size in file.blocks(begin, end - begin):
        for at in range(offset, offset + size, _READ_BYTES):
            data = file.pread(min(_READ_BYTES, offset + size - at), at)
            rest = len(data.lstrip(b"\0"))
            if rest:
                found = at + len(data) - rest
                # The first bytes of a record are its size, and may be zeros, too.
                return next((n for n in range(max(begin, found - 3), found + 1) if _is_record(file, n, end)), None)
    return None


def _is_record(file: File, at: int, end: int) -> bool:
    size = int.from_bytes(file.pread(INT.size, at), "big", signed=True)
    return RECORD_BYTES_MIN <= size <= end - at and row_of(file.pread(size, at), 0, check_crc=False) is not None


def rebuilt_page(file: File, first: int, count: int, position: int, end: int) -> ColumnPage | None:
    """Rebuild a page of ``count`` records, of which ``first`` is the first ordinal; None if that is not possible.

    The records stand in ``file`` from ``position`` on; the last one ends at or before ``end``.
    """
    rows: list[Row] = []
    at = position
    data, start = b"", at
    while len(rows) < count:
        size = int.from_bytes(file.pread(INT.size, at), "big", signed=True)
        if not RECORD_BYTES_MIN <= size <= end - at:
            return None
        if at + size > start + len(data):
            start = at
            data = file.pread(max(size, min(_READ_BYTES, end - at)), at)
        row = row_of(data, at - start, check_crc=False)
        if row is None:
            return None
        rows.append(row)
        at += size
    dues, ids, sizes, versions, crcs = zip(*rows, strict=True)
    if list(zip(dues, ids, strict=True)) != sorted(zip(dues, ids, strict=True)):
        return None
    return ColumnPage(
        first,
        np.array(dues, np.int64),
        np.array(ids, np.int64),
        np.array(sizes, np.uint32),
        np.array(versions, np.uint32),
        np.array(crcs, np.uint32),
        position,
    )
