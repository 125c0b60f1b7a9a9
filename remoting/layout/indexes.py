"""The layout of the indexes of records: ConsumeQueue entries, blocks of the key index, Apache's index files.

See `remoting.layout`.
"""

from __future__ import annotations

from typing import Final

from remoting.layout.table import Table

# fmt: off
__all__ = [
    "INDEX_FILE", "INDEX_FILE_BYTES", "INDEX_FILE_ENTRIES", "INDEX_FILE_ENTRIES_AT", "INDEX_FILE_ENTRY",
    "INDEX_FILE_ENTRY_BYTES", "INDEX_FILE_HEADER_BYTES", "INDEX_FILE_SLOTS", "KEY_BLOCK", "KEY_BLOCK_BYTES",
    "KEY_BLOCK_PROVEN_AT", "KEY_COLUMNS", "KEY_ENTRY_BYTES", "KEY_POSITIONS_AT", "KEY_TIMES_AT", "QUEUE_ENTRY",
    "QUEUE_ENTRY_BYTES", "QUEUE_SIZE_AT",
]
# fmt: on

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
"""The block's CRC covers everything from here to the end of the block."""
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
