"""The layout of records, entries, frames and rows: every offset and size on the disk, once, by name.

A file that reads or writes one of these bytes takes the number from here. ``docs/disk-format.md`` shows the same tables
to a reader, and ``tests/store/test_layout.py`` compares them row by row. It stands in `remoting` since the client, the
store, the plug-in and the bench all need it. A module for each kind of file, and all names are here, too. Two forms of
the same thing:

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

from typing import Final

from remoting.layout.checkpoint import (
    CHECKPOINT,
    CHECKPOINT_SECTION,
    DELAY_SECTION,
    DONE_SET,
)
from remoting.layout.delay_store import (
    COLUMN_PAGE_ROW,
    COLUMN_ROW_BYTES,
    FILE_HEADER,
    FILE_HEADER_BYTES,
    FRAME,
    FRAME_BYTES,
    FRAME_COUNT_AT,
    FRAME_CRC_AT,
    FRAME_DURABLE_AT,
    FRAME_KIND_AT,
    FRAME_LENGTH_AT,
    FRAME_POSITION_AT,
    FRAME_ROW,
    FRAME_ROW_BYTES,
    ID_PAGE_ROW,
    ID_ROW_BYTES,
    MANIFEST,
    MANIFEST_RUN,
    MANIFEST_SEGMENT,
    MESSAGE_ROW,
    MESSAGE_ROW_BYTES,
    MESSAGE_ROW_PROVEN,
    PAGE_HEAD,
    PAGE_HEAD_BYTES,
    PAGE_PROVEN_AT,
    PLACE_PAGE_ROW,
    PLACE_ROW_BYTES,
    RUN_TRAILER,
    RUN_TRAILER_BYTES,
)
from remoting.layout.indexes import (
    INDEX_FILE,
    INDEX_FILE_BYTES,
    INDEX_FILE_ENTRIES,
    INDEX_FILE_ENTRIES_AT,
    INDEX_FILE_ENTRY,
    INDEX_FILE_ENTRY_BYTES,
    INDEX_FILE_HEADER_BYTES,
    INDEX_FILE_SLOTS,
    KEY_BLOCK,
    KEY_BLOCK_BYTES,
    KEY_BLOCK_PROVEN_AT,
    KEY_COLUMNS,
    KEY_ENTRY_BYTES,
    KEY_POSITIONS_AT,
    KEY_TIMES_AT,
    QUEUE_ENTRY,
    QUEUE_ENTRY_BYTES,
    QUEUE_SIZE_AT,
)
from remoting.layout.pops import POP_TABLES
from remoting.layout.record import (
    BLANK,
    BLANK_BYTES,
    BODY_AT,
    BODY_AT_MAX,
    BODY_BYTES_AT,
    BODY_BYTES_BACK,
    BORN_HOST_AT,
    BORN_HOST_V6,
    FLAG_AT,
    HOST_BYTES,
    HOST_BYTES_V6,
    HOST_MORE_V6,
    HOSTS_V6,
    MAGIC_AT,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    OFFSET_AT,
    PREPARED_BACK,
    PREPARED_OFFSET_AT,
    PROPERTIES_LENGTH_BYTES,
    QUEUE_ID_AT,
    QUEUE_OFFSET_AT,
    RECORD,
    RECORD_BORN_V6,
    RECORD_BOTH_V6,
    RECORD_BYTES_MIN,
    RECORD_STORE_V6,
    RECORDS,
    SIZE_AT,
    STORE_HOST_AT,
    STORE_HOST_V6,
    STORE_MS_AT,
    STORE_MS_AT_V6,
    SYS_FLAG_AT,
    SYS_FLAG_LOW_AT,
    TOPIC_LENGTH_BYTES,
    TOPIC_LENGTH_BYTES_V2,
    batch_head,
)

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
    "MAGIC_BLANK", "MAGIC_V1", "MAGIC_V2", "MANIFEST", "MANIFEST_RUN", "MANIFEST_SEGMENT", "MESSAGE_ROW",
    "MESSAGE_ROW_BYTES", "MESSAGE_ROW_PROVEN", "OFFSET_AT", "PAGE_HEAD", "PAGE_HEAD_BYTES", "PAGE_PROVEN_AT",
    "PLACE_PAGE_ROW", "PLACE_ROW_BYTES", "PREPARED_BACK", "PREPARED_OFFSET_AT", "PROPERTIES_LENGTH_BYTES",
    "QUEUE_ENTRY", "QUEUE_ENTRY_BYTES", "QUEUE_ID_AT", "QUEUE_OFFSET_AT", "QUEUE_SIZE_AT", "RECORD", "RECORDS",
    "RECORD_BORN_V6", "RECORD_BOTH_V6", "RECORD_BYTES_MIN", "RECORD_STORE_V6", "RUN_TRAILER", "RUN_TRAILER_BYTES",
    "SIZE_AT", "STORE_HOST_AT", "STORE_HOST_V6", "STORE_MS_AT", "STORE_MS_AT_V6", "SYS_FLAG_AT", "SYS_FLAG_LOW_AT",
    "TABLES", "TOPIC_LENGTH_BYTES", "TOPIC_LENGTH_BYTES_V2", "batch_head",
]
# fmt: on

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
    "message row": MESSAGE_ROW,
    **POP_TABLES,
}
"""By the names that ``docs/disk-format.md`` gives them."""
