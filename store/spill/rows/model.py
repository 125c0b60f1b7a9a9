"""The nouns that the parts of the spill store share: keys, ids, refs, options, and the values that its calls return.

===============  =====================================================================================
key              ``(due_ms, delay_id)``: the order in which everything is kept and found
delay id         the message's number and virtual offset, see `store.disk.delay_id`
version          0 as accepted, one more with every move; only the highest version of an id is live
ref              ``file_no << 32 | ordinal``: where a record lives now. File numbers are never reused
===============  =====================================================================================
"""

from __future__ import annotations

from store.disk.errors import StoreCorruptError, StoreFormatError
from store.spill.rows.format import PAGE_BYTES_MAX

__all__ = [
    "FIRST_KEY",
    "LAST_KEY",
    "Columns",
    "Found",
    "Key",
    "RecordCorruptError",
    "SpillOptions",
]

Key = tuple[int, int]

DUE_MAX = (1 << 63) - 1
FIRST_KEY: Key = (-1, 0)
"""A key before every record's."""
LAST_KEY: Key = (DUE_MAX, DUE_MAX)
"""A key behind every record's."""


class RecordCorruptError(StoreCorruptError):
    """One pending record cannot be read back as it was written; ``ref`` says which. The others are fine."""

    def __init__(self, text: str, ref: int) -> None:
        super().__init__(text)
        self.ref = ref


class SpillOptions:
    """Sizes of the spill store; the defaults are for a broker, tests make everything tiny.

    ===================  ===========  ====================================================================
    ``segment_bytes``    64 MiB       size of a journal segment, zero-filled ahead
    ``page_bytes``       8 KiB        size of a run's column and id pages (291 records a page)
    ``near_ms``          30 s         messages due sooner than this are not worth a run
    ``near_bytes``       256 MiB      size of all closed segments; beyond it the oldest is spilled at once
    ``near_records``     500,000      records in closed segments; beyond it the oldest is spilled at once
    ``runs_max``         256          more runs than this are merged, the smallest first
    ``merge_width``      32           runs merged at once
    ``punch_bytes``      4 MiB        smallest delivered prefix worth giving back to the file system
    ``reserve_bytes``    256 MiB      room never given to new messages: deliveries, checkpoints, cancels
    ``cache_bytes``      8 MiB        column and id pages of runs that are kept in memory
    ===================  ===========  ====================================================================

    Raises StoreFormatError for a size out of range.
    """

    __slots__ = (
        "cache_bytes",
        "merge_width",
        "near_bytes",
        "near_ms",
        "near_records",
        "page_bytes",
        "punch_bytes",
        "reserve_bytes",
        "runs_max",
        "segment_bytes",
    )

    def __init__(
        self,
        *,
        segment_bytes: int = 64 << 20,
        page_bytes: int = 8 << 10,
        near_ms: int = 30_000,
        near_bytes: int = 256 << 20,
        near_records: int = 500_000,
        runs_max: int = 256,
        merge_width: int = 32,
        punch_bytes: int = 4 << 20,
        reserve_bytes: int = 256 << 20,
        cache_bytes: int = 8 << 20,
    ) -> None:
        if not 256 <= segment_bytes < 1 << 32:
            raise StoreFormatError(f"spill segment of {segment_bytes} bytes: 256 bytes to 4 GiB are possible")
        if not 64 <= page_bytes <= PAGE_BYTES_MAX:
            raise StoreFormatError(f"spill page of {page_bytes} bytes: 64 bytes to 1 MiB are possible")
        if merge_width < 2 or runs_max < 1:
            raise StoreFormatError(f"cannot merge {merge_width} runs above {runs_max}: at least 2 above 1")
        self.segment_bytes = segment_bytes
        self.page_bytes = page_bytes
        self.near_ms = near_ms
        self.near_bytes = near_bytes
        self.near_records = near_records
        self.runs_max = runs_max
        self.merge_width = merge_width
        self.punch_bytes = punch_bytes
        self.reserve_bytes = reserve_bytes
        self.cache_bytes = cache_bytes


class Columns:
    """Live records in key order, as three lists of equal length."""

    __slots__ = ("dues", "ids", "refs")

    def __init__(self, dues: list[int], ids: list[int], refs: list[int]) -> None:
        self.dues = dues
        self.ids = ids
        self.refs = refs

    def __len__(self) -> int:
        return len(self.refs)

    def __repr__(self) -> str:
        return f"Columns({len(self.refs)} records)"


class Found:
    """The highest version of a delay id: where it is, when it is due, and whether it is done already."""

    __slots__ = ("delay_id", "done", "due_ms", "ref", "version")

    def __init__(self, delay_id: int, ref: int, due_ms: int, version: int, done: bool) -> None:
        self.delay_id = delay_id
        self.ref = ref
        self.due_ms = due_ms
        self.version = version
        self.done = done

    def __repr__(self) -> str:
        return (
            f"Found(delay_id={self.delay_id:#x}, ref={self.ref:#x}, due_ms={self.due_ms}, "
            f"version={self.version}, done={self.done})"
        )
