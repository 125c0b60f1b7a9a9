"""Entries of a ConsumeQueue as bytes."""

from __future__ import annotations

from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from remoting.layout import QUEUE_ENTRY

__all__ = ["ENTRY", "ENTRY_COLUMNS", "PRE_BLANK", "PRE_BLANK_SIZE", "pack_entries", "pack_rows"]

ENTRY = QUEUE_ENTRY.struct()
PRE_BLANK_SIZE = 0x7FFFFFFF
PRE_BLANK = ENTRY.pack(0, PRE_BLANK_SIZE, 0)
ENTRY_COLUMNS = np.dtype(QUEUE_ENTRY.columns())
_Longs = NDArray[np.int64]


def pack_rows(offset: int, sizes: list[int], tags_codes: list[int]) -> bytes:
    """The bytes of entries, of records that stand one behind the other."""
    # `accumulate` makes the positions and `map` packs them, both in C: no line of Python runs for a single record.
    return b"".join(map(ENTRY.pack, accumulate(sizes, initial=offset), sizes, tags_codes))


def pack_entries(offsets: _Longs, sizes: _Longs, tags_codes: _Longs) -> bytes:
    """The bytes of entries, one behind the other."""
    entries = np.empty(len(offsets), ENTRY_COLUMNS)
    entries["position"], entries["size"], entries["tags_code"] = offsets, sizes, tags_codes
    return entries.tobytes()
