"""The layout of records, entries, frames and rows: every offset and size on the disk, once, by name.

A file that reads or writes one of these bytes takes the number from here. ``docs/disk-format.md`` shows the same tables
to a reader, and ``tests/store/test_layout.py`` compares them row by row. It stands in `remoting` since the client, the
store, the plug-in and the bench all need it. Two forms of the same thing:

=============  ======================================================================================================
``…_AT``       offsets and sizes as plain numbers (``Final``: mypyc puts the number into the code). Hot paths use them
a `Table`      the fields of a thing in order. It refuses fields that leave a gap or overlap, so a number of the first
               kind that is wrong stops the import. `Table.struct` and `Table.columns` make `struct.Struct` objects and
               NumPy dtypes of it, once, when a module is loaded
=============  ======================================================================================================

>>> from remoting.layout import QUEUE_ENTRY, RECORD
>>> QUEUE_ENTRY.struct().format, RECORD.struct("queue_offset", "position").format
('>qiq', '>qq')
>>> RECORD.picked("queue_id", "body_bytes").format
'>12xi68xi'
>>> RECORD.at("store_ms"), RECORD_BOTH_V6.at("store_ms")
(56, 68)
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from remoting.layout_table import Table
from remoting.pop_layout import POP_TABLES

# fmt: off
__all__ = [
    "BLANK", "BLANK_BYTES", "BODY_AT", "BODY_AT_MAX", "BODY_BYTES_AT", "BODY_BYTES_BACK", "BORN_HOST_AT",
    "BORN_HOST_V6", "CHECKPOINT", "CHECKPOINT_SECTION", "COLUMN_PAGE_ROW", "COLUMN_ROW_BYTES", "DELAY_SECTION",
    "DONE_SET", "FILE_HEADER", "FILE_HEADER_BYTES", "FLAG_AT", "FRAME", "FRAME_BYTES", "FRAME_COUNT_AT",
    "FRAME_CRC_AT", "FRAME_DURABLE_AT", "FRAME_KIND_AT", "FRAME_LENGTH_AT", "FRAME_POSITION_AT", "FRAME_ROW",
    "FRAME_ROW_BYTES", "HOSTS_V6", "HOST_BYTES", "HOST_BYTES_V6", "HOST_MORE_V6", "ID_PAGE_ROW", "ID_ROW_BYTES",
    "INDEX_FILE", "INDEX_FILE_BYTES", "INDEX_FILE_ENTRIES", "INDEX_FILE_ENTRIES_AT", "INDEX_FILE_ENTRY",
    "INDEX_FILE_ENTRY_BYTES", "INDEX_FILE_HEADER_BYTES", "INDEX_FILE_SLOTS", "KEY_BLOCK", "KEY_BLOCK_BYTES",
    "KEY_BLOCK_PROVEN_AT", "KEY_COLUMNS", "KEY_ENTRY_BYTES", "KEY_POSITIONS_AT", "KEY_TIMES_AT", "MAGIC_AT",
    "MAGIC_BLANK", "MAGIC_V1", "MAGIC_V2", "MANIFEST", "MANIFEST_RUN", "MANIFEST_SEGMENT", "OFFSET_AT", "PAGE_HEAD",
    "PAGE_HEAD_BYTES", "PAGE_PROVEN_AT", "PLACE_PAGE_ROW", "PLACE_ROW_BYTES", "PREPARED_BACK", "PREPARED_OFFSET_AT",
    "QUEUE_ENTRY", "QUEUE_ENTRY_BYTES", "QUEUE_ID_AT", "QUEUE_OFFSET_AT", "QUEUE_SIZE_AT", "RECORD", "RECORDS",
    "RECORD_BORN_V6", "RECORD_BOTH_V6", "RECORD_BYTES_MIN", "RECORD_STORE_V6", "RUN_TRAILER", "RUN_TRAILER_BYTES",
    "SIZE_AT", "STORE_HOST_AT", "STORE_HOST_V6", "STORE_MS_AT", "STORE_MS_AT_V6", "SYS_FLAG_AT", "SYS_FLAG_LOW_AT",
    "TABLES", "batch_head",
]
# fmt: on

# ------------------------------------------------------------------------------- a record of the CommitLog

MAGIC_V1: Final = 0xDAA320A7
MAGIC_V2: Final = 0xDAA320AB
"""Of a record with a topic of more than 127 bytes: two bytes say how many."""
MAGIC_BLANK: Final = 0xCBD43194
"""Ends a segment: i32 bytes left in it, then this."""

SIZE_AT: Final = 0
MAGIC_AT: Final = 4
_CRC_AT: Final = 8
QUEUE_ID_AT: Final = 12
FLAG_AT: Final = 16
QUEUE_OFFSET_AT: Final = 20
OFFSET_AT: Final = 28
"""The record's own position in the CommitLog (PHYSICALOFFSET)."""
SYS_FLAG_AT: Final = 36
SYS_FLAG_LOW_AT: Final = 39
"""The lowest byte of sysflag: all its bits that anybody uses."""
_BORN_MS_AT: Final = 40
BORN_HOST_AT: Final = 48

# From here on where both hosts are IPv4; each IPv6 host moves what stands behind it.
STORE_MS_AT: Final = 56
STORE_MS_AT_V6: Final = 68
"""Behind an IPv6 born host."""
STORE_HOST_AT: Final = 64
_RECONSUME_TIMES_AT: Final = 72
PREPARED_OFFSET_AT: Final = 76
BODY_BYTES_AT: Final = 84
BODY_AT: Final = 88

BODY_AT_MAX: Final = 112
"""Where the body begins if both hosts are IPv6."""
PREPARED_BACK: Final = 12
"""How far before the body the prepared offset begins, whatever the hosts are; so the next one."""
BODY_BYTES_BACK: Final = 4
RECORD_BYTES_MIN: Final = 91
"""A V1 record without body, properties and topic name, between IPv4 hosts."""

BORN_HOST_V6: Final = 0x10
STORE_HOST_V6: Final = 0x20
HOSTS_V6: Final = 0x30
"""Bits of sysflag: the host is IPv6."""
HOST_BYTES: Final = 8
"""An IPv4 address and the port as i32."""
HOST_BYTES_V6: Final = 20
HOST_MORE_V6: Final = 12


def _record(born_host: int, store_host: int) -> Table:
    born, both = born_host - HOST_BYTES, born_host + store_host - 2 * HOST_BYTES
    return Table(
        ">",
        BODY_AT + both,
        ("size", SIZE_AT, "i"),
        ("magic", MAGIC_AT, "I"),
        ("crc", _CRC_AT, "I"),
        ("queue_id", QUEUE_ID_AT, "i"),
        ("flag", FLAG_AT, "i"),
        ("queue_offset", QUEUE_OFFSET_AT, "q"),
        ("position", OFFSET_AT, "q"),
        ("sys_flag", SYS_FLAG_AT, "i"),
        ("born_ms", _BORN_MS_AT, "q"),
        ("born_host", BORN_HOST_AT, f"{born_host}s"),
        ("store_ms", STORE_MS_AT + born, "q"),
        ("store_host", STORE_HOST_AT + born, f"{store_host}s"),
        ("reconsume_times", _RECONSUME_TIMES_AT + both, "i"),
        ("prepared_offset", PREPARED_OFFSET_AT + both, "q"),
        ("body_bytes", BODY_BYTES_AT + both, "i"),
    )


RECORD: Final = _record(HOST_BYTES, HOST_BYTES)
RECORD_BORN_V6: Final = _record(HOST_BYTES_V6, HOST_BYTES)
RECORD_STORE_V6: Final = _record(HOST_BYTES, HOST_BYTES_V6)
RECORD_BOTH_V6: Final = _record(HOST_BYTES_V6, HOST_BYTES_V6)
RECORDS: Final = {
    0: RECORD,
    BORN_HOST_V6: RECORD_BORN_V6,
    STORE_HOST_V6: RECORD_STORE_V6,
    HOSTS_V6: RECORD_BOTH_V6,
}
"""A record up to its body, by the bits of sysflag that say which hosts are IPv6."""


def batch_head(middle_bytes: int) -> Struct:
    """A record up to its body for a batch: size to position, all that the batch has in common as one field, the rest.

    >>> batch_head(44).format
    '>iIIiiqq44sqi'
    """
    return Struct(f">{RECORD.codes('size', 'position')}{middle_bytes}s{RECORD.codes('prepared_offset', 'body_bytes')}")


BLANK_BYTES: Final = 8
BLANK: Final = Table(">", BLANK_BYTES, ("bytes_left", 0, "i"), ("magic", 4, "I"))

# ------------------------------------------------------------------------------------ what leads to a record

QUEUE_ENTRY_BYTES: Final = 20
QUEUE_SIZE_AT: Final = 8
QUEUE_ENTRY: Final = Table(
    ">",
    QUEUE_ENTRY_BYTES,
    ("position", 0, "q"),
    ("size", QUEUE_SIZE_AT, "i"),
    ("tags_code", 12, "q"),
)

KEY_BLOCK_BYTES: Final = 48
KEY_BLOCK_PROVEN_AT: Final = 12
"""What the block's CRC covers begins here and ends with the block."""
KEY_BLOCK: Final = Table(
    ">",
    KEY_BLOCK_BYTES,
    ("magic", 0, "I"),
    ("count", 4, "I"),
    ("crc", 8, "I"),
    ("zeros", KEY_BLOCK_PROVEN_AT, "I"),
    ("from_position", 16, "q"),
    ("to_position", 24, "q"),
    ("first_ms", 32, "q"),
    ("last_ms", 40, "q"),
)
KEY_ENTRY_BYTES: Final = 20
KEY_POSITIONS_AT: Final = 4
KEY_TIMES_AT: Final = 12
KEY_COLUMNS: Final = Table(
    ">",
    KEY_ENTRY_BYTES,
    ("hash", 0, "I"),
    ("position", KEY_POSITIONS_AT, "q"),
    ("store_ms", KEY_TIMES_AT, "q"),
)
"""Of a block with n entries: n hashes, then n positions, then n times. A column begins at n times its offset here."""

INDEX_FILE_SLOTS: Final = 5_000_000
INDEX_FILE_ENTRIES: Final = 20_000_000
INDEX_FILE_HEADER_BYTES: Final = 40
INDEX_FILE: Final = Table(
    ">",
    INDEX_FILE_HEADER_BYTES,
    ("first_ms", 0, "q"),
    ("last_ms", 8, "q"),
    ("first_position", 16, "q"),
    ("last_position", 24, "q"),
    ("slots", 32, "i"),
    ("entries", 36, "i"),
)
INDEX_FILE_ENTRY_BYTES: Final = 20
INDEX_FILE_ENTRY: Final = Table(
    ">",
    INDEX_FILE_ENTRY_BYTES,
    ("hash", 0, "i"),
    ("position", 4, "q"),
    ("seconds", 12, "i"),
    ("before", 16, "i"),
)
INDEX_FILE_ENTRIES_AT: Final = INDEX_FILE_HEADER_BYTES + 4 * INDEX_FILE_SLOTS
INDEX_FILE_BYTES: Final = INDEX_FILE_ENTRIES_AT + INDEX_FILE_ENTRY_BYTES * INDEX_FILE_ENTRIES

# ------------------------------------------------------------------------------------------ the delay store

FILE_HEADER_BYTES: Final = 64
FILE_HEADER: Final = Table(
    "<",
    FILE_HEADER_BYTES,
    ("magic", 0, "I"),
    ("version", 4, "I"),
    ("store_id", 8, "16s"),
    ("file_no", 24, "Q"),
    ("a", 32, "Q"),
    ("b", 40, "Q"),
    ("zeros", 48, "12x"),
    ("crc", 60, "I"),
)

FRAME_KIND_AT: Final = 4
FRAME_LENGTH_AT: Final = 8
FRAME_COUNT_AT: Final = 12
FRAME_POSITION_AT: Final = 16
FRAME_DURABLE_AT: Final = 24
FRAME_CRC_AT: Final = 44
FRAME_BYTES: Final = 48
FRAME: Final = Table(
    "<",
    FRAME_BYTES,
    ("magic", 0, "I"),
    ("kind", FRAME_KIND_AT, "H"),
    ("zeros", 6, "H"),
    ("length", FRAME_LENGTH_AT, "I"),
    ("count", FRAME_COUNT_AT, "I"),
    ("position", FRAME_POSITION_AT, "Q"),
    ("durable", FRAME_DURABLE_AT, "Q"),
    ("epoch", 32, "I"),
    ("first_ordinal", 36, "I"),
    ("more_zeros", 40, "I"),
    ("crc", FRAME_CRC_AT, "I"),
)

FRAME_ROW_BYTES: Final = 28
FRAME_ROW: Final = Table(
    "<",
    FRAME_ROW_BYTES,
    ("due", 0, "q"),
    ("id", 8, "q"),
    ("size", 16, "I"),
    ("version", 20, "I"),
    ("crc", 24, "I"),
)

PAGE_HEAD_BYTES: Final = 32
PAGE_PROVEN_AT: Final = 8
"""What the page's CRC covers begins here and ends with the page."""
COLUMN_ROW_BYTES: Final = 28
PLACE_ROW_BYTES: Final = 32
ID_ROW_BYTES: Final = 24
PAGE_HEAD: Final = Table(
    "<",
    PAGE_HEAD_BYTES,
    ("magic", 0, "I"),
    ("crc", 4, "I"),
    ("number", PAGE_PROVEN_AT, "I"),
    ("count", 12, "I"),
    ("first_ordinal", 16, "Q"),
    ("position", 24, "Q"),
)
COLUMN_PAGE_ROW: Final = Table(
    "<", COLUMN_ROW_BYTES, ("due", 0, "q"), ("id", 8, "q"), ("size", 16, "I"), ("version", 20, "I"), ("crc", 24, "I")
)
"""Of a page with n rows: n due times, then n ids, and so on. A column begins at n times its offset here."""
PLACE_PAGE_ROW: Final = Table(
    "<",
    PLACE_ROW_BYTES,
    ("due", 0, "q"),
    ("id", 8, "q"),
    ("size", 16, "I"),
    ("version", 20, "I"),
    ("crc", 24, "I"),
    ("place", 28, "I"),
)
"""The same of an index: the last column says where each record stands in its segment."""
ID_PAGE_ROW: Final = Table(
    "<", ID_ROW_BYTES, ("id", 0, "q"), ("due", 8, "q"), ("ordinal", 16, "I"), ("version", 20, "I")
)

RUN_TRAILER_BYTES: Final = 128
RUN_TRAILER: Final = Table(
    "<",
    RUN_TRAILER_BYTES,
    ("magic", 0, "I"),
    ("version", 4, "I"),
    ("store_id", 8, "16s"),
    ("file_no", 24, "Q"),
    ("count", 32, "I"),
    ("page_bytes", 36, "I"),
    ("pages", 40, "I"),
    ("id_pages", 44, "I"),
    ("data_at", 48, "Q"),
    ("data_bytes", 56, "Q"),
    ("id_at", 64, "Q"),
    ("file_bytes", 72, "Q"),
    ("due_min", 80, "q"),
    ("due_max", 88, "q"),
    ("id_min", 96, "q"),
    ("id_max", 104, "q"),
    ("zeros", 112, "12x"),
    ("crc", 124, "I"),
)

MANIFEST: Final = Table(
    "<",
    64,
    ("magic", 0, "I"),
    ("version", 4, "I"),
    ("store_id", 8, "16s"),
    ("epoch", 24, "I"),
    ("next_no", 28, "I"),
    ("segments", 32, "I"),
    ("runs", 36, "I"),
    ("flags", 40, "I"),
    ("crc", 44, "I"),
    ("generation", 48, "Q"),
    ("relied_on", 56, "Q"),
)
MANIFEST_SEGMENT: Final = Table(
    "<", 40, ("file_no", 0, "Q"), ("base", 8, "Q"), ("size", 16, "Q"), ("upper_due", 24, "q"), ("upper_id", 32, "q")
)
MANIFEST_RUN: Final = Table(
    "<",
    120,
    ("file_no", 0, "Q"),
    ("first", 8, "I"),
    ("end", 12, "I"),
    ("shape", 16, "80s"),
    ("data_no", 96, "Q"),
    ("data_base", 104, "Q"),
    ("data_size", 112, "Q"),
)

# ------------------------------------------------------------------------------------------- the checkpoint

CHECKPOINT: Final = Table(
    ">",
    52,
    ("magic", 0, "4s"),
    ("version", 4, "H"),
    ("sections", 6, "H"),
    ("size", 8, "I"),
    ("crc", 12, "I"),
    ("zeros", 16, "i"),
    ("store_id", 20, "16s"),
    ("position", 36, "q"),
    ("number", 44, "q"),
)
CHECKPOINT_SECTION: Final = Table(">", 12, ("position", 0, "q"), ("data_bytes", 8, "I"))
"""Behind the section's name, of which two bytes say the size."""
DELAY_SECTION: Final = Table("<", 24, ("version", 0, "I"), ("files", 4, "I"), ("position", 8, "Q"), ("number", 16, "Q"))
DONE_SET: Final = Table("<", 12, ("prefix", 0, "I"), ("count", 4, "I"), ("pages", 8, "I"))

TABLES: Final = {
    "record": RECORD,
    "record, born host IPv6": RECORD_BORN_V6,
    "record, store host IPv6": RECORD_STORE_V6,
    "record, both hosts IPv6": RECORD_BOTH_V6,
    "blank": BLANK,
    "queue entry": QUEUE_ENTRY,
    "key block": KEY_BLOCK,
    "key columns": KEY_COLUMNS,
    "index file": INDEX_FILE,
    "index file entry": INDEX_FILE_ENTRY,
    "file header": FILE_HEADER,
    "frame": FRAME,
    "frame row": FRAME_ROW,
    "page head": PAGE_HEAD,
    "column page row": COLUMN_PAGE_ROW,
    "place page row": PLACE_PAGE_ROW,
    "id page row": ID_PAGE_ROW,
    "run trailer": RUN_TRAILER,
    "manifest": MANIFEST,
    "manifest segment": MANIFEST_SEGMENT,
    "manifest run": MANIFEST_RUN,
    "checkpoint": CHECKPOINT,
    "checkpoint section": CHECKPOINT_SECTION,
    "delay section": DELAY_SECTION,
    "done-set": DONE_SET,
    **POP_TABLES,
}
"""By the names that ``docs/disk-format.md`` gives them."""
