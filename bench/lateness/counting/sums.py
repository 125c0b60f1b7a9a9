"""Sums of messages on their way between tasks: a table of some part of the log is one row of bytes.

In an outage the sums of a part are nearly as many as its messages: each has a lateness and a millisecond of its own.
As rows of a table each would be an object to Spark, and eleven values of Arrow here. So the sums of one table and
source travel as one value: the columns of `SUM_COLUMNS` one after the other, each as the distance from its smallest
value in as few bytes as the largest distance needs, none where all are equal::

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

from bench.lateness.counting.grouping import Longs, Ranked, group
from bench.lateness.logs.packing import NONE
from bench.lateness.logs.schemas import FINE_SCHEMA, arrow_schema, make_batch

__all__ = ["HOT_AT_LEAST", "HOT_ROWS", "HOT_TIMES_MEAN", "SUM_COLUMNS", "decode", "encode", "sum_rows", "sums_by"]

HOT_ROWS = "hot"
"""What a row of the results may belong to, beside histograms and the names in `bench.lateness.counting.settle`."""
HOT_TIMES_MEAN = 5
HOT_AT_LEAST = 100
SUM_COLUMNS = ("key", "topic_id", "kind", "level", "lateness_ms", "censored", "count")
"""The group of a sum, and how many messages it holds; `bench.lateness.logs.packing.NONE` stands for null."""

_ROWS, _COLUMN = Struct("<q"), Struct("<qB")
_WIDTHS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
_FINE = arrow_schema(FINE_SCHEMA)
_MIX = 7_919


def encode(columns: Mapping[str, Longs]) -> bytes:
    """Write sums, at least one."""
    first = columns[SUM_COLUMNS[0]]
    heads, bodies = [_ROWS.pack(len(first))], []
    for name in SUM_COLUMNS:
        values = columns[name]
        lowest, highest = int(values.min()), int(values.max())
        width = 0
        if highest > lowest:
            width = next(size for size in _WIDTHS if highest - lowest < 1 << (8 * size))
            # Distances beyond 63 bits wrap round, and back when they are read.
            bodies.append((values - lowest).astype(_WIDTHS[width]).tobytes())
        heads.append(_COLUMN.pack(lowest, width))
    return b"".join((*heads, *bodies))


def decode(data: bytes) -> dict[str, Longs]:
    """Read them back."""
    (rows,) = _ROWS.unpack_from(data)
    at = _ROWS.size + _COLUMN.size * len(SUM_COLUMNS)
    columns: dict[str, Longs] = {}
    for place, name in enumerate(SUM_COLUMNS):
        lowest, width = _COLUMN.unpack_from(data, _ROWS.size + place * _COLUMN.size)
        if width:
            columns[name] = np.frombuffer(data, _WIDTHS[width], rows, at).astype(np.int64) + lowest
            at += rows * width
        else:
            columns[name] = np.full(rows, lowest, np.int64)
    return columns


def sum_rows(source: int, table: str, sums: Mapping[str, Longs], bucket: int = 0) -> pa.RecordBatch:
    """A row of `FINE_SCHEMA` with these sums; of columns that are not among them every value is null."""
    none = np.full(len(sums["count"]), NONE)
    packed = encode({name: sums.get(name, none) for name in SUM_COLUMNS})
    return make_batch(_FINE, {"source": [source], "table": [table], "bucket": [bucket], "packed": [packed]}, 1)


def sums_by(
    source: int, table: str, columns: Mapping[str, Ranked], rows: int, buckets: int, weights: Longs | None = None
) -> Iterator[pa.RecordBatch]:
    """The sums of one table by ``columns``, a row for each bucket that they go to: groups that are alike go to one."""
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
