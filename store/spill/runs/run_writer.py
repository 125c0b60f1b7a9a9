"""Writing a run: records come in key order; columns and ids are laid out beside them, in bounded memory.

The number of records is known beforehand only as an upper bound: some are cancelled while the run is written. So room
for that many column pages is left at the front, and pages that are not used stay a hole.

The id index is sorted after the records are written: from the column pages, in portions of `SORT_ROWS`. If there are
several portions, each goes to a scratch file once it is sorted, and all are merged into pages. So a run of 10,000,000
records needs 6 MB, not 240.

The file is written as ``NUMBER.tmp``, synced, renamed, and its directory synced: a name without ``.tmp`` is a whole
run. It belongs to the store only when the manifest names it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from remoting.layout import COLUMN_ROW_BYTES, FILE_HEADER_BYTES, ID_ROW_BYTES, PAGE_HEAD_BYTES, RUN_TRAILER_BYTES
from remoting.messages.checksum import crc32
from store.disk.errors import StoreCorruptError
from store.disk.file import File
from store.disk.files import Files
from store.spill.rows.format import (
    ID_DTYPE,
    RUN_MAGIC,
    ColumnPage,
    IdRows,
    column_page,
    file_header,
    id_page,
    page_seed,
    read_column_page,
)
from store.spill.rows.run_shape import RunShape, run_trailer
from store.spill.rows.source import Longs

__all__ = ["Buffer", "RunFile", "RunWriter", "run_name"]

Buffer = bytes | memoryview
WRITE_BYTES = 256 << 10
SYNC_BYTES = 4 << 20
SORT_ROWS = 1 << 16
_NOTHING = np.empty(0, ID_DTYPE)


def run_name(number: int) -> str:
    """File name of a run (or a journal segment) by its number."""
    return f"{number:010d}"


class RunFile:
    """The file of a run or an index while it is written: under a temporary name until it is whole and durable."""

    def __init__(self, files: Files, directory: Path, no: int, store_id: bytes, page_bytes: int) -> None:
        self.no = no
        self.path = directory / run_name(no)
        self.shape: RunShape | None = None
        self.file: File | None = None
        self._first_dues: list[int] = []
        self._files = files
        self._store_id = store_id
        self._seed = page_seed(store_id, no)
        self._page_bytes = page_bytes
        self._temporary = self.path.with_name(self.path.name + ".tmp")
        files.remove(self._temporary)
        self._out = files.open(self._temporary, create=True)

    @property
    def first_dues(self) -> Longs:
        """The due time of the first record of each column page that was written."""
        return np.array(self._first_dues, np.int64)

    def _write_trailer(self, shape: RunShape) -> None:
        trailer = run_trailer(shape, self._store_id, self.no)
        self._out.pwrite(trailer, shape.file_bytes - RUN_TRAILER_BYTES)

    def _seal(self, shape: RunShape) -> Iterator[None]:
        """Make it durable and give it its name; afterwards `shape` and `file` are set."""
        # Sync, rename, sync the directory: in this order a name without `.tmp` always is a whole file.
        yield
        self._out.sync()
        yield
        self._out.close()
        self._files.rename(self._temporary, self.path)
        self._files.sync_dir(self.path.parent)
        # Opened anew, so that errors name the final path.
        self.file = self._files.open(self.path)
        self.shape = shape

    def discard(self) -> None:
        """Remove the temporary file. One that has its final name already is left to the caller."""
        self._out.close()
        self._files.remove(self._temporary)


class RunWriter(RunFile):
    """Writes one run. Call `add` in key order, then walk `finish`, or `discard`."""

    def __init__(
        self, files: Files, directory: Path, no: int, store_id: bytes, count_max: int, page_bytes: int
    ) -> None:
        super().__init__(files, directory, no, store_id, page_bytes)
        self.count = 0
        self._rows = (page_bytes - PAGE_HEAD_BYTES) // COLUMN_ROW_BYTES
        reserved = -(-count_max // self._rows)
        self._data_at = FILE_HEADER_BYTES + reserved * page_bytes
        self._position = self._data_at  # of the next record
        self._flushed = self._data_at
        self._synced = self._data_at
        self._buffer: list[Buffer] = []
        self._columns: list[tuple[Longs, Longs, Longs, Longs, Longs]] = []  # due, id, size, version, CRC
        self._waiting = 0  # records in them
        self._page_start = self._data_at
        self._pages = 0
        self._due_min = 0
        self._due_max = 0
        self._id_min = (1 << 63) - 1
        self._id_max = 0
        self._scratch_path = self.path.with_name(self.path.name + ".ids.tmp")
        self._out.pwrite(file_header(RUN_MAGIC, store_id, no, reserved, page_bytes), 0)

    def add(
        self,
        dues: Longs,
        ids: Longs,
        versions: Longs,
        crcs: Longs,
        records: Sequence[Buffer],
    ) -> None:
        """Append records in key order; the CRCs are taken as given, so a damaged record is still found by its CRC.

        The first four are int64 arrays with one element for each of ``records``; ``crcs`` likewise.
        """
        if not self.count:
            self._due_min = dues.item(0)
        self._due_max = dues.item(-1)
        self._id_min = min(self._id_min, int(ids.min()))
        self._id_max = max(self._id_max, int(ids.max()))
        sizes = np.fromiter(map(len, records), np.int64, len(records))
        self._columns.append((dues, ids, sizes, versions, crcs))
        self._waiting += len(records)
        self._buffer += records
        self._position += int(sizes.sum())
        self.count += len(records)
        if self._position - self._flushed >= WRITE_BYTES:
            self._flush()
        if self._waiting >= self._rows:
            self._emit_pages(self._waiting // self._rows)

    def _flush(self) -> None:
        if self._buffer:
            self._out.pwrite(b"".join(self._buffer), self._flushed)
            self._buffer.clear()
            self._flushed = self._position
            if self._flushed - self._synced >= SYNC_BYTES:
                self._out.sync()  # in portions, so that a sync of the journal never waits for all of it
                self._synced = self._flushed

    def _emit_pages(self, count: int) -> None:
        """Write ``count`` column pages of the waiting records; the last one may be short."""
        dues, ids, sizes, versions, crcs = map(np.concatenate, zip(*self._columns, strict=True))
        rows = self._rows
        for at in range(0, count * rows, rows):
            part = slice(at, at + rows)
            page = ColumnPage(
                self._pages * rows,
                dues[part],
                ids[part],
                sizes[part].astype(np.uint32),
                versions[part].astype(np.uint32),
                crcs[part].astype(np.uint32),
                self._page_start,
            )
            data = column_page(page, self._pages, self._page_bytes, self._seed)
            self._out.pwrite(data, FILE_HEADER_BYTES + self._pages * self._page_bytes)
            self._first_dues.append(dues.item(at))
            self._page_start += int(sizes[part].sum())
            self._pages += 1
        rest = slice(count * rows, None)
        self._columns = [(dues[rest], ids[rest], sizes[rest], versions[rest], crcs[rest])]
        self._waiting = len(dues[rest])

    def finish(self) -> Iterator[None]:
        """Write the rest, sync, and give the file its name; afterwards `shape` and `file` are set."""
        self._flush()
        if self._waiting:
            self._emit_pages(1)
        yield
        id_pages = 0
        id_at = self._position
        pages = (self._page_bytes - PAGE_HEAD_BYTES) // ID_ROW_BYTES
        waiting = np.empty(0, ID_DTYPE)
        for rows in self._sorted_ids():
            waiting = np.concatenate((waiting, rows)) if len(waiting) else rows
            whole = len(waiting) // pages * pages
            for start in range(0, whole, pages):
                self._put_id_page(waiting[start : start + pages], id_pages, id_at)
                id_pages += 1
                if id_pages & 15 == 0:
                    yield
            waiting = waiting[whole:]
            yield
        if len(waiting):
            self._put_id_page(waiting, id_pages, id_at)
            id_pages += 1
        trailer_at = id_at + id_pages * self._page_bytes
        shape = RunShape(
            self.count,
            self._page_bytes,
            self._pages,
            id_pages,
            self._data_at,
            self._position - self._data_at,
            id_at,
            trailer_at + RUN_TRAILER_BYTES,
            self._due_min,
            self._due_max,
            self._id_min,
            self._id_max,
        )
        self._write_trailer(shape)
        self._files.remove(self._scratch_path)
        yield from self._seal(shape)

    def _put_id_page(self, rows: IdRows, number: int, id_at: int) -> None:
        data = id_page(rows, number, self._page_bytes, self._seed)
        self._out.pwrite(data, id_at + number * self._page_bytes)

    def _id_portions(self) -> Iterator[IdRows]:
        """The ids with their due, ordinal and version in portions, each sorted by (id, version).

        An empty portion is a pause.
        """
        per_portion = max(1, SORT_ROWS // self._rows)
        for first in range(0, self._pages, per_portion):
            last = min(self._pages, first + per_portion)
            at = FILE_HEADER_BYTES + first * self._page_bytes
            data = self._out.pread((last - first) * self._page_bytes, at)
            portion = np.empty(min((last - first) * self._rows, self.count - first * self._rows), ID_DTYPE)
            filled = 0
            for number in range(first, last):
                if number & 15 == 15:
                    yield _NOTHING
                begin = (number - first) * self._page_bytes
                body = data[begin : begin + self._page_bytes]
                page = read_column_page(body, number, self._seed, self._temporary, at + begin)
                rows = portion[filled : filled + len(page)]
                rows["id"] = page.ids
                rows["due"] = page.dues
                rows["ordinal"] = np.arange(page.first, page.first + len(page))
                rows["version"] = page.versions
                filled += len(page)
            yield portion[np.lexsort((portion["version"], portion["id"]))]

    def _sorted_ids(self) -> Iterator[IdRows]:
        """All ids in order, in parts; an empty part is a pause."""
        if self._pages <= max(1, SORT_ROWS // self._rows):
            yield from self._id_portions()
            return
        scratch = self._files.open(self._scratch_path, create=True)
        try:
            scratch.truncate(0)
            ends: list[int] = []
            sums: list[int] = []
            at = 0
            for portion in self._id_portions():
                if not len(portion):
                    yield portion
                    continue
                data = portion.tobytes()
                scratch.pwrite(data, at)
                at += len(data)
                ends.append(at)
                sums.append(crc32(data))
                yield portion[:0]
            yield from _merge_portions(scratch, ends, sums)
        finally:
            scratch.close()

    def discard(self) -> None:
        """Remove the temporary files. A run that has its final name already is left to the caller."""
        self._buffer.clear()
        super().discard()
        self._files.remove(self._scratch_path)


class _Portion:
    """One sorted portion of a scratch file, read once from front to back; the checksum is compared at its end."""

    def __init__(self, scratch: File, at: int, end: int, crc: int) -> None:
        self.rows: IdRows = _NOTHING
        self._scratch = scratch
        self._at = at
        self._end = end
        self._wanted_crc = crc
        self._crc = 0

    @property
    def more(self) -> bool:
        """True if bytes of the portion have not been read yet."""
        return self._at < self._end

    def read(self, size: int) -> None:
        """Append the next rows to ``rows``, at most ``size`` bytes. Raises StoreCorruptError if they have changed."""
        data = self._scratch.pread(min(size, self._end - self._at), self._at)
        self._crc = crc32(data, self._crc)
        self._at += len(data)
        if not data or len(data) % ID_ROW_BYTES or (not self.more and self._crc != self._wanted_crc):
            raise StoreCorruptError(
                f"{self._scratch.path} at {self._at}: the sorted ids are not what was written; the run is given up"
            )
        rows = np.frombuffer(data, ID_DTYPE)
        self.rows = np.concatenate((self.rows, rows)) if len(self.rows) else rows


def _merge_portions(scratch: File, ends: list[int], sums: list[int]) -> Iterator[IdRows]:
    """Merge sorted portions of a scratch file. Ids below the smallest last id that was read are complete.

    The file is never synced: it does not outlive this call. The checksums find a page that was lost meanwhile.
    """
    size = max(1, SORT_ROWS // len(ends)) * ID_ROW_BYTES
    portions = [_Portion(scratch, *entry) for entry in zip([0, *ends[:-1]], ends, sums, strict=True)]
    while True:
        for portion in portions:
            if not len(portion.rows) and portion.more:
                portion.read(size)
        unread = [int(portion.rows["id"][-1]) for portion in portions if portion.more]
        taken: list[IdRows] = []
        for portion in portions:
            # Versions of the bound's own id may follow in another portion: strictly below is safe.
            rows = portion.rows
            cut = int(rows["id"].searchsorted(min(unread), "left")) if unread else len(rows)
            taken.append(rows[:cut])
            portion.rows = rows[cut:]
        merged = np.concatenate(taken)
        if len(merged):
            yield merged[np.lexsort((merged["version"], merged["id"]))]
        elif not unread:
            return
        else:
            for portion in portions:
                if portion.more:  # its rows are of one id only: read on
                    portion.read(size)
