"""The layout of the delay store's files: header, frames, pages, runs, manifest, message rows; see `remoting.layout`."""

from __future__ import annotations

from typing import Final

from remoting.layout.table import Table

# fmt: off
__all__ = [
    "COLUMN_PAGE_ROW", "COLUMN_ROW_BYTES", "FILE_HEADER", "FILE_HEADER_BYTES", "FRAME", "FRAME_BYTES",
    "FRAME_COUNT_AT", "FRAME_CRC_AT", "FRAME_DURABLE_AT", "FRAME_KIND_AT", "FRAME_LENGTH_AT", "FRAME_POSITION_AT",
    "FRAME_ROW", "FRAME_ROW_BYTES", "ID_PAGE_ROW", "ID_ROW_BYTES", "MANIFEST", "MANIFEST_RUN", "MANIFEST_SEGMENT",
    "MESSAGE_ROW", "MESSAGE_ROW_BYTES", "MESSAGE_ROW_PROVEN", "PAGE_HEAD", "PAGE_HEAD_BYTES", "PAGE_PROVEN_AT",
    "PLACE_PAGE_ROW", "PLACE_ROW_BYTES", "RUN_TRAILER", "RUN_TRAILER_BYTES",
]
# fmt: on

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
"""The page's CRC covers everything from here to the end of the page."""
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

MESSAGE_ROW_BYTES: Final = 44
MESSAGE_ROW: Final = Table(
    "<",
    MESSAGE_ROW_BYTES,
    ("id", 0, "q"),
    ("due", 8, "q"),
    ("at", 16, "q"),
    ("key", 24, "Q"),
    ("version", 32, "I"),
    ("topic", 36, "I"),
    ("crc", 40, "I"),
)
"""In the folders ``cancelled`` and ``keys``."""
MESSAGE_ROW_PROVEN: Final = Table("<", MESSAGE_ROW_BYTES, ("proven", 0, "40s"), ("crc", 40, "I"))
"""The same row, with the bytes that its CRC covers as one string."""

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
