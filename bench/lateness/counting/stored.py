"""Hashes that stay in a file until a task needs some of them.

Ids of Apache's messages are 16 bytes each, and all of them are known for ever: a night with 100,000,000 finished
messages adds 1.6 GB. So nobody reads all of them at once. The file is sorted by source and hash, and Parquet keeps the
smallest and largest hash of each 262,144 rows; a task reads only the groups of rows that may have its own::

    hashes of the file   -9…, …, -7… │ -7…, …, -4… │ -4…, …, -1…      groups of rows
    those of part 2                       └── -6.0 … -5.5 ──┘           one group is read, and cut to these
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pyarrow.parquet as pq

from bench.lateness.counting.grouping import Longs

__all__ = ["ALL_HASHES", "BY_HASH", "Hashes", "StoredHashes", "loaded"]

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
        """Read them. Raises OSError if the file cannot be read."""
        with pq.ParquetFile(self.path) as file:
            groups = [n for n in range(file.num_row_groups) if self._may_have(file.metadata.row_group(n))]
            found = [self._of(file.read_row_group(group)) for group in groups]
        if not found:
            return np.empty(0, np.int64), np.empty(0, np.int64)
        high, low = (np.concatenate(column) for column in zip(*found, strict=True))
        return high, low

    def _may_have(self, group: pq.RowGroupMetaData) -> bool:
        source, _, first = (group.column(number).statistics for number in range(3))
        if source is None or first is None or not source.has_min_max or not first.has_min_max:
            return True
        return bool(source.min <= self.source <= source.max and first.min < self.high and self.low <= first.max)

    def _of(self, table: pq.Table) -> Hashes:
        source, number, high, low = (column.to_numpy() for column in table.columns)
        mine = (source == self.source) & (number == BY_HASH) & (high >= self.low) & (high < self.high)
        return high[mine], low[mine]


def loaded(portion: Hashes | StoredHashes) -> Hashes:
    """Hashes in memory; those of a file are read."""
    return portion.load() if isinstance(portion, StoredHashes) else portion
