"""Hashes that stay in a file until a task needs some of them.

Ids of Apache's messages are 16 bytes each, and all of them are known for ever: a night with 100,000,000 finished
messages adds 1.6 GB. So nobody reads all of them at once. The file is sorted by source and hash, and Parquet keeps the
smallest and largest hash of each 65,536 rows; a task reads only the groups of rows that may have its own::

    hashes of the file   -9…, …, -7… │ -7…, …, -4… │ -4…, …, -1…      groups of rows
    those of part 2                       └── -6.0 … -5.5 ──┘           one group is read, and cut to these

A task that needs all of them, a range at a time, reads each group once (`HashesInOrder`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bench.lateness.counting.grouping import Longs
from bench.lateness.logs.storage import StorageError, error_line

__all__ = ["ALL_HASHES", "BY_HASH", "Hashes", "HashesInOrder", "StoredHashes", "loaded"]

Hashes = tuple[Longs, Longs]
"""Both halves of ids, in ascending order, each id once."""
BY_HASH = -1
"""Stands in a table of ids where the first number would be, if the id is a hash."""
ALL_HASHES = (-(1 << 63), 0)
"""Bounds of first halves: from, before."""


@dataclass(frozen=True)
class StoredHashes:
    """The hashes of one source in a local file, with first halves from ``low`` to before ``high``.

    ``rows``: how many ids the file has in all. The file must not change as long as this is used.
    """

    path: str
    source: int
    rows: int
    low: int = ALL_HASHES[0]
    high: int = ALL_HASHES[1]

    def between(self, low: int, high: int) -> StoredHashes:
        """Those within these bounds, too."""
        return replace(self, low=max(low, self.low), high=min(high, self.high))

    def load(self) -> Hashes:
        """Read them. Raises StorageError if the file cannot be read."""
        with self._file() as file:
            return _together([self._of(file.read_row_group(group)) for group in self._wanted(file)])

    def groups(self) -> list[int]:
        """The groups of rows that may have some of them. Raises StorageError if the file cannot be read."""
        with self._file() as file:
            return self._wanted(file)

    def read(self, group: int) -> Hashes:
        """Those in a group of rows. Raises StorageError if the file cannot be read."""
        with self._file() as file:
            return self._of(file.read_row_group(group))

    @contextmanager
    def _file(self) -> Iterator[pq.ParquetFile]:
        try:
            with pq.ParquetFile(self.path) as file:
                yield file
        except (OSError, pa.ArrowException) as error:
            raise StorageError(f"{self.path} of the state cannot be read: {error_line(error)}") from error

    def _wanted(self, file: pq.ParquetFile) -> list[int]:
        return [n for n in range(file.num_row_groups) if self._may_have(file.metadata.row_group(n))]

    def _may_have(self, group: pq.RowGroupMetaData) -> bool:
        source, _, first = (group.column(number).statistics for number in range(3))
        if source is None or first is None or not source.has_min_max or not first.has_min_max:
            return True
        return bool(source.min <= self.source <= source.max and first.min < self.high and self.low <= first.max)

    def _of(self, table: pq.Table) -> Hashes:
        source, number, high, low = (column.to_numpy() for column in table.columns)
        mine = (source == self.source) & (number == BY_HASH) & (high >= self.low) & (high < self.high)
        return high[mine], low[mine]


class HashesInOrder:
    """Stored hashes from the smallest on. A group of rows is in memory (1 MB) until all of it was given."""

    def __init__(self, stored: StoredHashes) -> None:
        """Look for the groups. Raises StorageError if the file cannot be read."""
        self._stored = stored
        self._groups = stored.groups()[::-1]
        self._rest = _together([])

    def below(self, high: int) -> Hashes:
        """Those with a first half below ``high`` that were not given before. Raises StorageError."""
        found = []
        while True:
            end = int(np.searchsorted(self._rest[0], high))
            found.append((self._rest[0][:end], self._rest[1][:end]))
            self._rest = self._rest[0][end:], self._rest[1][end:]
            if len(self._rest[0]) or not self._groups:
                return _together(found)
            self._rest = self._stored.read(self._groups.pop())


def _together(some: Sequence[Hashes]) -> Hashes:
    if not some:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    high, low = (np.concatenate(column) for column in zip(*some, strict=True))
    return high, low


def loaded(portion: Hashes | StoredHashes) -> Hashes:
    """Hashes in memory; those of a file are read."""
    return portion.load() if isinstance(portion, StoredHashes) else portion
