"""The shape of a sorted run: how many pages and rows it has, and where they stand."""

from __future__ import annotations

from typing import ClassVar

from remoting.layout import (
    COLUMN_ROW_BYTES,
    FILE_HEADER_BYTES,
    ID_ROW_BYTES,
    PAGE_HEAD_BYTES,
    PLACE_ROW_BYTES,
    RUN_TRAILER,
    RUN_TRAILER_BYTES,
)
from remoting.layout.table import LITTLE_INT
from remoting.messages.checksum import crc32
from store.spill.rows.format import PAGE_BYTES_MAX, VERSION

__all__ = ["RunShape", "run_trailer"]

_TRAILER_MAGIC = 0x54525754  # "TWRT"
_TRAILER_HEAD = RUN_TRAILER.struct("magic", "file_no")


class RunShape:
    """The layout of a run; the manifest keeps it, the run's trailer repeats it.

    ==============  ================================================================================
    ``count``       records
    ``page_bytes``  size of column and id pages
    ``pages``       column pages in use (they start behind the header)
    ``id_pages``    id pages
    ``data_at``     file position of the first record; the records stand in key order, without gaps (0: an index)
    ``data_bytes``  bytes of all records
    ``id_at``       file position of the first id page
    ``file_bytes``  size of the file, trailer included
    ``due_min`` …   smallest and largest due time and delay id
    ==============  ================================================================================
    """

    __slots__ = (
        "count",
        "data_at",
        "data_bytes",
        "due_max",
        "due_min",
        "file_bytes",
        "id_at",
        "id_max",
        "id_min",
        "id_pages",
        "page_bytes",
        "pages",
    )

    PACKED: ClassVar = RUN_TRAILER.struct("count", "id_max")

    def __init__(
        self,
        count: int,
        page_bytes: int,
        pages: int,
        id_pages: int,
        data_at: int,
        data_bytes: int,
        id_at: int,
        file_bytes: int,
        due_min: int,
        due_max: int,
        id_min: int,
        id_max: int,
    ) -> None:
        self.count = count
        self.page_bytes = page_bytes
        self.pages = pages
        self.id_pages = id_pages
        self.data_at = data_at
        self.data_bytes = data_bytes
        self.id_at = id_at
        self.file_bytes = file_bytes
        self.due_min = due_min
        self.due_max = due_max
        self.id_min = id_min
        self.id_max = id_max

    def pack(self) -> bytes:
        """The twelve numbers as bytes, in the order of the constructor."""
        return self.PACKED.pack(
            self.count,
            self.page_bytes,
            self.pages,
            self.id_pages,
            self.data_at,
            self.data_bytes,
            self.id_at,
            self.file_bytes,
            self.due_min,
            self.due_max,
            self.id_min,
            self.id_max,
        )

    @property
    def is_index(self) -> bool:
        """True if the records stand in a journal segment (then ``data_at`` is 0), and only the pages here."""
        return self.data_at == 0

    @property
    def rows_per_page(self) -> int:
        """Records of a full column page."""
        return (self.page_bytes - PAGE_HEAD_BYTES) // (PLACE_ROW_BYTES if self.is_index else COLUMN_ROW_BYTES)

    @property
    def fits(self) -> bool:
        """True if the numbers are those of one file: its parts lie one behind the other and have room for ``count``."""
        if not PAGE_HEAD_BYTES + COLUMN_ROW_BYTES <= self.page_bytes <= PAGE_BYTES_MAX or not self.rows_per_page:
            return False
        pages_end = FILE_HEADER_BYTES + self.pages * self.page_bytes
        behind = self.id_at == pages_end
        if not self.is_index:
            behind = pages_end <= self.data_at and self.data_at + self.data_bytes == self.id_at
        return (
            behind
            and self.pages == -(-self.count // self.rows_per_page)
            and self.id_pages == -(-self.count // ((self.page_bytes - PAGE_HEAD_BYTES) // ID_ROW_BYTES))
            and self.id_at + self.id_pages * self.page_bytes + RUN_TRAILER_BYTES == self.file_bytes
        )

    @classmethod
    def unpack(cls, data: bytes, at: int = 0) -> RunShape:
        """Read the twelve numbers back from ``data[at:]``."""
        return cls(*cls.PACKED.unpack_from(data, at))


def run_trailer(shape: RunShape, store_id: bytes, number: int) -> bytes:
    """Make the last `RUN_TRAILER_BYTES` of a run."""
    packed = shape.pack()
    head = _TRAILER_HEAD.pack(_TRAILER_MAGIC, VERSION, store_id, number) + packed
    head += bytes(RUN_TRAILER_BYTES - LITTLE_INT.size - len(head))
    return head + LITTLE_INT.pack(crc32(head))
