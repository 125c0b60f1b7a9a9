"""The layout of the journal of pops, which only `store.pop` reads and writes; see `remoting.layout`."""

from __future__ import annotations

from typing import Final

from remoting.layout.table import Table

__all__ = [
    "POP_BATCH",
    "POP_BLOCK",
    "POP_BLOCKED",
    "POP_FRAME",
    "POP_FRAME_BYTES",
    "POP_FRAME_CRC_AT",
    "POP_GONE",
    "POP_NEXT",
    "POP_QUEUE",
    "POP_TABLES",
    "POP_TAKEN",
]

POP_FRAME_CRC_AT: Final = 32
POP_FRAME_BYTES: Final = 36
POP_FRAME: Final = Table(
    "<",
    POP_FRAME_BYTES,
    ("magic", 0, "I"),
    ("length", 4, "I"),
    ("count", 8, "I"),
    ("flags", 12, "I"),
    ("position", 16, "Q"),
    ("log_position", 24, "Q"),
    ("crc", POP_FRAME_CRC_AT, "I"),
)
_KIND: Final = ("kind", 0, "B")
_REF: Final = ("ref", 1, "I")
POP_QUEUE: Final = Table(
    "<", 21, _KIND, _REF, ("next", 5, "q"), ("queue_id", 13, "I"), ("group_bytes", 17, "H"), ("topic_bytes", 19, "H")
)
POP_BATCH: Final = Table(
    "<",
    47,
    _KIND,
    _REF,
    ("next", 5, "q"),
    ("id", 13, "Q"),
    ("start", 21, "q"),
    ("pop_ms", 29, "q"),
    ("due_ms", 37, "q"),
    ("bits_bytes", 45, "H"),
)
POP_TAKEN: Final = Table("<", 11, _KIND, ("id", 1, "Q"), ("bits_bytes", 9, "H"))
POP_NEXT: Final = Table("<", 13, _KIND, _REF, ("next", 5, "q"))
POP_GONE: Final = Table("<", 5, _KIND, _REF)
POP_BLOCK: Final = Table("<", 19, _KIND, _REF, ("pop_ms", 5, "q"), ("attempt_bytes", 13, "H"), ("count", 15, "I"))
POP_BLOCKED: Final = Table("<", 20, ("offset", 0, "q"), ("visible_ms", 8, "q"), ("times", 16, "I"))

POP_TABLES: Final = {
    "pop frame": POP_FRAME,
    "pop queue": POP_QUEUE,
    "pop batch": POP_BATCH,
    "pop taken": POP_TAKEN,
    "pop next": POP_NEXT,
    "pop gone": POP_GONE,
    "pop block": POP_BLOCK,
    "pop blocked": POP_BLOCKED,
}
"""Every table by the name that ``docs/disk-format.md`` gives it."""
