"""The most recently used pages of runs, kept in memory."""

from __future__ import annotations

from collections import OrderedDict

from store.spill.rows.format import ColumnPage, IdRows

__all__ = ["RunPageCache"]


class RunPageCache:
    """The most recently used column and id pages, up to a number of bytes. The caller holds a lock."""

    __slots__ = ("_bytes", "_bytes_max", "_pages")

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._pages: OrderedDict[tuple[int, int], tuple[ColumnPage | IdRows, int]] = OrderedDict()

    def get(self, no: int, page: int) -> ColumnPage | IdRows | None:
        """A page of run ``no``, or None. Id pages have negative numbers: -1 is the first one."""
        found = self._pages.get((no, page))
        if found is None:
            return None
        self._pages.move_to_end((no, page))
        return found[0]

    def put(self, no: int, page: int, value: ColumnPage | IdRows, size: int) -> None:
        """Keep a page that takes ``size`` bytes; the least recently used ones go."""
        self._pages[no, page] = (value, size)
        self._bytes += size
        while self._bytes > self._bytes_max and len(self._pages) > 1:
            self._bytes -= self._pages.popitem(last=False)[1][1]
