"""Making a damaged column page again from the records that it leads to.

A page says of each record: due time, delay id, size, version, checksum. All of it stands in the record too: a finished
CommitLog record knows its own size, and carries delay id, version and due time among its properties. Only where the
first record of the page stands has to be known: behind the last one of the page before it.

A record that is damaged itself is kept as an unreadable one as long as its sizes hold; if even these do not, the page
cannot be made again.
"""

from __future__ import annotations

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

__all__ = ["Row", "rebuilt_page", "row_of"]

Row = tuple[int, int, int, int, int]
"""Due time, delay id, size, version, CRC: what a page or a frame says of a record."""


def row_of(data: bytes, at: int, check_crc: bool = True) -> Row | None:
    """The row of the finished record that stands there; None if none does.

    Without ``check_crc`` a damaged body will do: the row's CRC is then one that the record does not have.
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


def rebuilt_page(file: File, first: int, count: int, position: int, end: int) -> ColumnPage | None:
    """The page of ``count`` records from ordinal ``first`` on, which stand from ``position`` on, before ``end``."""
    rows: list[Row] = []
    at = position
    data, start = b"", at
    while len(rows) < count:
        size = int.from_bytes(file.pread(INT.size, at), "big", signed=True)
        if not RECORD_BYTES_MIN <= size <= end - at:
            return None
        if at + size > start + len(data):
            start = at
            data = file.pread(max(size, min(1 << 20, end - at)), at)
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
