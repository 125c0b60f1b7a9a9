"""Packs sums for the way between tasks: the sums of one table and part are one row of bytes.

In an outage a part has nearly as many sums as messages, because each message has a lateness and a millisecond of its
own. As a row of a table, each sum would be an object to Spark and eleven values of Arrow. So the sums of one table and
source travel as one value: the columns of `SUM_COLUMNS` one after the other. A column has the distances from its
smallest value, in as few bytes as the largest distance needs; it takes none if all are equal::

    rows | smallest, width | smallest, width | … | distances × rows | distances × rows | …

>>> data = encode({name: np.arange(3) for name in SUM_COLUMNS})
>>> len(data), decode(data)["lateness_ms"].tolist()
(92, [0, 1, 2])
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from struct import Struct

import numpy as np
import pyarrow as pa

from bench.lateness.counting.grouping import Longs, Ranked, constant, group, is_constant
from bench.lateness.logs.packing import NONE
from bench.lateness.logs.schemas import FINE_SCHEMA, arrow_schema, make_batch

__all__ = ["HOT_AT_LEAST", "HOT_ROWS", "HOT_TIMES_MEAN", "SUM_COLUMNS", "decode", "encode", "sum_rows", "sums_by"]

HOT_ROWS = "hot"
"""A table of the results, beside histograms and the tables in `bench.lateness.counting.settle`."""
HOT_TIMES_MEAN = 5
HOT_AT_LEAST = 100
SUM_COLUMNS = ("key", "topic_id", "kind", "level", "lateness_ms", "censored", "count")
"""The group of a sum, and its number of messages; `bench.lateness.logs.packing.NONE` stands for null."""

_ROWS, _COLUMN = Struct("<q"), Struct("<qB")
_WIDTHS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
_FINE = arrow_schema(FINE_SCHEMA)
_MIX = 7_919


def encode(columns: Mapping[str, Longs]) -> bytes:
    """Write sums; there is at least one."""
    first = columns[SUM_COLUMNS[0]]
    heads, bodies = [_ROWS.pack(len(first))], []
    for name in SUM_COLUMNS:
        values = columns[name]
        lowest = highest = int(values[0])
        if not is_constant(values):
            lowest, highest = int(values.min()), int(values.max())
        width = 0
        if highest > lowest:
            width = next(size for size in _WIDTHS if highest - lowest < 1 << (8 * size))
            # Distances of more than 63 bits wrap around, and back again in `decode`.
            bodies.append((values - lowest).astype(_WIDTHS[width]).tobytes())
        heads.append(_COLUMN.pack(lowest, width))
    return b"".join((*heads, *bodies))


def decode(data: bytes) -> dict[str, Longs]:
    """Read sums back; a column whose values are all equal is `constant`."""
    (rows,) = _ROWS.unpack_from(data)
    at = _ROWS.size + _COLUMN.size * len(SUM_COLUMNS)
    columns: dict[str, Longs] = {}
    for place, name in enumerate(SUM_COLUMNS):
        lowest, width = _COLUMN.unpack_from(data, _ROWS.size + place * _COLUMN.size)
        if width:
            columns[name] = np.frombuffer(data, _WIDTHS[width], rows, at).astype(np.int64) + lowest
            at += rows * width
        else:
            columns[name] = constant(lowest, rows)
    return columns


def sum_rows(source: int, table: str, sums: Mapping[str, Longs], bucket: int = 0) -> pa.RecordBatch:
    """A row of `FINE_SCHEMA` with these sums; columns that they do not have are null."""
    none = constant(NONE, len(sums["count"]))
    packed = encode({name: sums.get(name, none) for name in SUM_COLUMNS})
    return make_batch(_FINE, {"source": [source], "table": [table], "bucket": [bucket], "packed": [packed]}, 1)


def sums_by(
    source: int, table: str, columns: Mapping[str, Ranked], rows: int, buckets: int, weights: Longs | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield the sums of one table by ``columns``, a row for each bucket; equal groups of all parts go to one bucket."""
    values, (count,) = group(list(columns.values()), rows, (weights,))
    sums = dict(zip(columns, values, strict=True)) | {"count": count}
    if buckets == 1:
        yield sum_rows(source, table, sums)
        return
    bucket = sums["key" if "key" in sums else "topic_id"].copy()
    if "lateness_ms" in sums:
        bucket += sums["lateness_ms"] * _MIX
    bucket %= buckets
    for number in np.unique(bucket).tolist():
        mine = bucket == number
        yield sum_rows(source, table, {name: column[mine] for name, column in sums.items()}, number)
