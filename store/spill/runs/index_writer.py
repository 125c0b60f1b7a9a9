"""Writing an index: a run over a closed journal segment whose records stay where they are.

Copying a record into a run costs microseconds; writing down where it stands costs a tenth of that. So the columns of a
flood of messages leave memory as quickly as it comes in, and a start need not read its segments again. The copy, which
puts records that are due together side by side, can wait until there is time for it.

::

    header | pages: due, id, size, version, CRC, position in the segment | id pages | trailer

Everything comes from the columns of the segment, which is complete and sorted: no file is read.
"""

from __future__ import annotations

from collections.abc import Iterator

from remoting.layout import FILE_HEADER_BYTES, ID_ROW_BYTES, PAGE_HEAD_BYTES, PLACE_ROW_BYTES, RUN_TRAILER_BYTES
from store.spill.journal.segment_columns import SegmentColumns
from store.spill.rows.format import INDEX_MAGIC, file_header, id_page, place_page
from store.spill.rows.run_shape import RunShape
from store.spill.runs.run_writer import RunFile

__all__ = ["IndexWriter"]

SLICE_PAGES = 16


class IndexWriter(RunFile):
    """Writes one index: walk `write`, or `discard`."""

    def write(self, columns: SegmentColumns) -> Iterator[None]:
        """Write all of it, sync, and give the file its name; afterwards `shape` and `file` are set."""
        size, count = self._page_bytes, len(columns)
        pages = -(-count // ((size - PAGE_HEAD_BYTES) // PLACE_ROW_BYTES))
        self._out.pwrite(file_header(INDEX_MAGIC, self._store_id, self.no, pages, size), 0)
        yield from self._write_pages(columns, pages)
        id_at = FILE_HEADER_BYTES + pages * size
        id_pages = -(-count // ((size - PAGE_HEAD_BYTES) // ID_ROW_BYTES))
        yield from self._write_ids(columns, id_pages, id_at)
        first, last = columns.page(0, 1), columns.page(count - 1, 1)
        by_id = columns.by_id()
        shape = RunShape(
            count,
            size,
            pages,
            id_pages,
            0,
            columns.data_bytes,
            id_at,
            id_at + id_pages * size + RUN_TRAILER_BYTES,
            first.dues.item(0),
            last.dues.item(0),
            int(columns.id_rows(by_id[:1])["id"][0]),
            int(columns.id_rows(by_id[-1:])["id"][0]),
        )
        self._write_trailer(shape)
        yield from self._seal(shape)

    def _write_pages(self, columns: SegmentColumns, pages: int) -> Iterator[None]:
        size = self._page_bytes
        rows = (size - PAGE_HEAD_BYTES) // PLACE_ROW_BYTES
        for first in range(0, pages, SLICE_PAGES):
            numbers = range(first, min(pages, first + SLICE_PAGES))
            pages_of_it = [columns.page(n * rows, rows) for n in numbers]
            self._first_dues += [page.dues.item(0) for page in pages_of_it]
            parts = [place_page(page, n, size, self._seed) for n, page in zip(numbers, pages_of_it, strict=True)]
            self._out.pwrite(b"".join(parts), FILE_HEADER_BYTES + first * size)
            yield

    def _write_ids(self, columns: SegmentColumns, pages: int, id_at: int) -> Iterator[None]:
        size = self._page_bytes
        rows = (size - PAGE_HEAD_BYTES) // ID_ROW_BYTES
        by_id = columns.by_id()
        yield
        for first in range(0, pages, SLICE_PAGES):
            numbers = range(first, min(pages, first + SLICE_PAGES))
            picked = [columns.id_rows(by_id[n * rows : (n + 1) * rows]) for n in numbers]
            parts = [id_page(part, n, size, self._seed) for n, part in zip(numbers, picked, strict=True)]
            self._out.pwrite(b"".join(parts), id_at + first * size)
            yield
