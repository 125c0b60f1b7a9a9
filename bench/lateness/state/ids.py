"""The ids of finished messages in files: each run writes the file of ranges anew, and adds a file of hashes.

Our ids are few ranges. Apache's are 16 bytes for each message that ever was, in no order. So a run writes only the
hashes of messages that it finished. Two files become one once the older is less than twice as large as what came after
it. So each id is written as often as the logarithm of the number of runs::

    night        1     2      3      4       5
    files, MB    5     5+5→10 10, 5  20      20, 5

Files of more than 256 MB are not joined, so the memory that joining takes is bounded. A night with more than that
writes several files at once.

A run still looks into all files: a delivery that comes years later is a repeat, and its id may be in any of them. But
it does not read them into memory as a whole (`bench.lateness.counting.stored`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bench.lateness.counting.counted import FinishedIds, in_hash_order
from bench.lateness.counting.grouping import Longs
from bench.lateness.counting.stored import BY_HASH, Hashes, StoredHashes, loaded

__all__ = [
    "IDS",
    "Fresh",
    "finished_from",
    "fresh_hashes",
    "hashes_bytes",
    "hashes_count",
    "hashes_in_files",
    "hashes_of",
    "ranges_table",
]

IDS = pa.schema([("source", pa.int32()), ("id_hi", pa.int64()), ("begin", pa.int64()), ("end", pa.int64())])
_GROUP_ROWS = 1 << 16
"""A task reads whole groups of rows, of 1 MB."""
_Row = tuple[int, int, Longs, Longs]
"""Source, first number, and two columns."""


def _rows_of(table: pa.Table) -> Iterator[_Row]:
    """Yield the rows of each source and first number, which are neighbours in a table."""
    source, high, begin, end = (np.asarray(table[name], np.int64) for name in IDS.names)
    fresh = np.ones(len(source), np.bool_)
    fresh[1:] = (source[1:] != source[:-1]) | (high[1:] != high[:-1])
    for start, stop in pairwise([*np.flatnonzero(fresh).tolist(), len(source)]):
        yield int(source[start]), int(high[start]), begin[start:stop], end[start:stop]


def _table_of(rows: Iterable[_Row]) -> pa.Table:
    columns: list[list[Longs]] = [[np.empty(0, np.int64)] for _ in IDS.names]
    for source, high, one, other in rows:
        for column, values in zip(
            columns, (np.full(len(one), source), np.full(len(one), high), one, other), strict=True
        ):
            column.append(values)
    return pa.table({name: np.concatenate(parts) for name, parts in zip(IDS.names, columns, strict=True)}).cast(IDS)


def ranges_table(finished: Sequence[FinishedIds]) -> pa.Table:
    """The ranges of all sources."""
    return _table_of(
        (source, number, begins, ends)
        for source, ids in enumerate(finished)
        for number, (begins, ends) in sorted(ids.ranges.items())
    )


def hashes_of(table: pa.Table) -> dict[int, Hashes]:
    """The hashes in a table, by source."""
    return {source: (one, other) for source, high, one, other in _rows_of(table) if high == BY_HASH}


def finished_from(table: pa.Table | None, paths: Iterable[str], sources: int) -> list[FinishedIds]:
    """The ids of each source: those of the file of ranges, and the hashes in the files at ``paths``, not read yet.

    Raises OSError if a file cannot be read.
    """
    rows: list[list[tuple[int, Longs, Longs]]] = [[] for _ in range(sources)]
    for source, high, one, other in _rows_of(table) if table is not None else ():
        rows[source].append((high, one, other))
    found = [FinishedIds.of(some) for some in rows]
    sizes = [(path, pq.read_metadata(path).num_rows) for path in paths]
    return [
        FinishedIds(ids.ranges, (*ids.hashed, *(StoredHashes(path, source, count) for path, count in sizes)))
        for source, ids in enumerate(found)
    ]


Fresh = Mapping[int, Sequence[Hashes]]
"""Hashes by source, in portions of which each begins behind the end of the one before it."""


def fresh_hashes(finished: Sequence[FinishedIds], before: Sequence[FinishedIds]) -> Fresh:
    """The hashes that were added to those of ``before``, by source."""
    found = {}
    for source, (ids, old) in enumerate(zip(finished, before, strict=True)):
        portions = [loaded(portion) for portion in ids.hashed[len(old.hashed) :]]
        if portions:
            apart = all(one[0][-1] < other[0][0] for one, other in pairwise(portions))
            found[source] = portions if apart else [_together(portions)]
    return found


def hashes_count(fresh: Fresh) -> int:
    """How many hashes these are."""
    return sum(len(high) for portions in fresh.values() for high, _ in portions)


def hashes_in_files(fresh: Fresh, rows: int) -> Iterator[dict[int, Hashes]]:
    """Yield them by source, at most so many for a file; a file of one source has a range of them."""
    held: dict[int, list[Hashes]] = {}
    left = rows
    for source, portions in sorted(fresh.items()):
        for high, low in portions:
            at = 0
            while at < len(high):
                some = slice(at, at + left)
                held.setdefault(source, []).append((high[some], low[some]))
                taken = len(high[some])
                at, left = at + taken, left - taken
                if not left:
                    yield {number: _joined(parts) for number, parts in held.items()}
                    held, left = {}, rows
    if held:
        yield {number: _joined(parts) for number, parts in held.items()}


def _joined(portions: Sequence[Hashes]) -> Hashes:
    if len(portions) == 1:
        return portions[0]
    high, low = (np.concatenate(column) for column in zip(*portions, strict=True))
    return high, low


def _together(portions: Sequence[Hashes]) -> Hashes:
    return portions[0] if len(portions) == 1 else in_hash_order(*_joined(portions))


def hashes_bytes(*portions: dict[int, Hashes]) -> pa.Buffer:
    """A file with the hashes of one or several portions, by source; empty if there are none.

    Hashes are not compressed: they would not become smaller, and it takes time.
    """
    sources = sorted({source for portion in portions for source in portion})
    if not sources:
        return pa.py_buffer(b"")
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, IDS, compression="none", use_dictionary=["source", "id_hi"]) as writer:
        for source in sources:
            high, low = _together([one[source] for one in portions if source in one])
            for at in range(0, len(high), _GROUP_ROWS):
                some = slice(at, at + _GROUP_ROWS)
                writer.write_table(_table_of([(source, BY_HASH, high[some], low[some])]))
    return sink.getvalue()
