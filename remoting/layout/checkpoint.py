"""The layout of the delivery checkpoint and of the delay store's section in it; see `remoting.layout`."""

from __future__ import annotations

from typing import Final

from remoting.layout.table import Table

# fmt: off
__all__ = [
    "CHECKPOINT", "CHECKPOINT_SECTION", "DELAY_SECTION", "DONE_SET",
]
# fmt: on

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
