"""Packs rows for Spark's shuffle, thousands in one, so that one task gets all rows of a message at a low cost.

The state of a message is known only where all rows of its id are together, so every row has to travel. Row by row, this
would be most of the cost of a run: Spark makes an object of each row, hashes it, writes and reads it, and passes it to
Python again. So a task that reads a log packs its rows by part. For each task and part Spark moves a single row of some
hundred kilobytes::

    part 17: | source × n | stage × n | … | store_ms × n |      n = bytes / `ROW_BYTES`, columns one after the other

10,000,000 records in splits of 32 MB and 23 parts are 2,100 packed rows. One task settles a part
(`bench.lateness.counting.settle`). Parts are chosen by a hash of the id, so no second and no topic makes one of them
large. Ids that are hashes themselves go to parts by their order: a part has a range of them, so a task needs only that
range of the millions of hashes that are known.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from zlib import crc32

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from bench.lateness.logs.delays import NO_DUE
from bench.lateness.logs.schemas import KNOWN, PACKED_SCHEMA, arrow_schema

__all__ = [
    "COLUMNS",
    "LOG_BYTES_A_ROW",
    "NONE",
    "ROW_BYTES",
    "SETTLE_BYTES_A_ROW",
    "TASK_BYTES",
    "Columns",
    "first_hash",
    "pack",
    "pack_hashes",
    "parts_for",
    "unpack",
    "unpack_hashes",
]

NONE = NO_DUE
"""Stands for null in a column of whole numbers."""
COLUMNS: Mapping[str, type[np.signedinteger]] = {
    "source": np.int32,
    "stage": np.int8,
    "kind": np.int8,
    "level": np.int32,
    "id_hi": np.int64,
    "id_lo": np.int64,
    "topic_id": np.int64,
    "due_ms": np.int64,
    "requested_ms": np.int64,
    "offset": np.int64,
    "store_ms": np.int64,
}
ROW_BYTES = sum(np.dtype(kind).itemsize for kind in COLUMNS.values())
_ROWS_AT_ONCE = 1 << 18
_PART_BYTES = 128 << 20
_PARTS_WANTED = 2_000
"""Enough parts for any cluster. Larger logs have larger parts instead, as far as the memory of a task allows."""
LOG_BYTES_A_ROW = 128
"""A record about a delay is hardly smaller: head, topic, marks."""
SETTLE_BYTES_A_ROW = 700
"""The most memory for settling, the rows themselves included (`tests/bench/test_lateness_scale.py`)."""
TASK_BYTES = 1 << 30
"""The memory of a task if no option sets it."""
_MIX_HIGH, _MIX = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9)
_HASH_BITS, _BITS_LEFT = 32, 31
"""The first half of a hash is below zero; of the 63 bits behind its sign so many choose the part."""

Columns = dict[str, NDArray[np.signedinteger]]
"""Rows by column, all arrays of one length."""

_SCHEMA = arrow_schema(PACKED_SCHEMA)


def parts_for(log_bytes: int, task_bytes: int = TASK_BYTES) -> int:
    """The number of parts for a log of this size: a task with ``task_bytes`` of memory holds one part.

    A part has 128 MB of log. Logs with more than 2,000 such parts get larger parts, up to the memory of a task, because
    each further part makes the pieces that cross the shuffle smaller.

    >>> parts_for(0), parts_for(3 << 30), parts_for(300 << 30), parts_for(30 << 40), parts_for(30 << 40, 4 << 30)
    (2, 24, 2000, 168000, 42000)
    """
    rows_most = log_bytes // LOG_BYTES_A_ROW
    for_memory = -(-rows_most * SETTLE_BYTES_A_ROW // task_bytes)
    return max(2, min(_PARTS_WANTED, log_bytes // _PART_BYTES), for_memory)


def pack(batches: Iterable[pa.RecordBatch], parts: int) -> Iterator[pa.RecordBatch]:
    """Pack batches of `DELAY_SCHEMA` into those of `PACKED_SCHEMA`; notes stay rows, in a part by their text."""
    held: list[Columns] = []
    count = 0
    for batch in batches:
        text = batch.column("text")
        rows = batch
        if text.null_count < len(text):
            yield _notes(batch.filter(pc.is_valid(text)), parts)
            rows = batch.filter(pc.is_null(text))
        if len(rows):
            held.append({name: _numbers(rows.column(name)).astype(kind) for name, kind in COLUMNS.items()})
            count += len(rows)
        if count >= _ROWS_AT_ONCE:
            yield _packed(held, parts)
            held, count = [], 0
    if held:
        yield _packed(held, parts)


def _numbers(column: pa.Array) -> NDArray[np.signedinteger]:
    if not column.null_count:
        return column.to_numpy()  # type: ignore[no-any-return]
    return column.cast(pa.int64()).fill_null(NONE).to_numpy()  # type: ignore[no-any-return]


def _joined(held: list[Columns]) -> Columns:
    return {name: np.concatenate([columns[name] for columns in held]) for name in COLUMNS}


def _part_of(rows: Columns, parts: int) -> NDArray[np.uint32]:
    source, high, low = (rows[name].astype(np.uint64) for name in ("source", "id_hi", "id_lo"))
    mixed = low ^ (high + source) * _MIX_HIGH
    part = (mixed * _MIX >> np.uint64(33)) % np.uint64(parts)
    hashed = rows["id_hi"] < 0
    if hashed.any():
        part = np.where(hashed, _part_of_hash(high, parts), part)
    return part.astype(np.uint32)


def _part_of_hash(high: NDArray[np.uint64], parts: int) -> NDArray[np.uint64]:
    ordered = high << np.uint64(1) >> np.uint64(1 + _BITS_LEFT)
    return ordered * np.uint64(parts) >> np.uint64(_HASH_BITS)


def first_hash(part: int, parts: int) -> int:
    """The smallest first half of a hash that belongs to a part or to one after it; 0 behind the last part.

    >>> first_hash(0, 3) == -(1 << 63), first_hash(3, 3)
    (True, 0)
    """
    return (-(-(part << _HASH_BITS) // parts) << _BITS_LEFT) - (1 << 63)


def pack_hashes(source: int, high: NDArray[np.int64], low: NDArray[np.int64], parts: int) -> pa.RecordBatch:
    """Both halves of known hashes, in ascending order, as rows of stage `KNOWN`: one for each part that has some."""
    part = _part_of_hash(high.astype(np.uint64), parts).astype(np.int32)
    numbers, begins = np.unique(part, return_index=True)
    bounds = pairwise([*begins.tolist(), len(part)])
    packed = [high[begin:end].tobytes() + low[begin:end].tobytes() for begin, end in bounds]
    marks = {"source": source, "stage": KNOWN}
    values = {name: pa.array(np.full(len(numbers), value, np.int32)) for name, value in marks.items()}
    values |= {"part": pa.array(numbers), "packed": pa.array(packed, pa.binary())}
    return _batch(values, len(numbers))


def unpack_hashes(data: bytes) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Read both halves of packed hashes back."""
    high, low = np.frombuffer(data, np.int64).reshape(2, -1)
    return high, low


def _packed(held: list[Columns], parts: int) -> pa.RecordBatch:
    rows = _joined(held)
    part = _part_of(rows, parts)
    order = np.argsort(part, kind="stable")
    ordered = [rows[name][order] for name in COLUMNS]
    ends = np.cumsum(np.bincount(part, minlength=parts))
    numbers, packed, begin = [], [], 0
    for number, end in enumerate(ends.tolist()):
        if end > begin:
            numbers.append(number)
            packed.append(b"".join(column[begin:end].tobytes() for column in ordered))
        begin = end
    return _batch({"part": pa.array(numbers, pa.int32()), "packed": pa.array(packed, pa.binary())}, len(numbers))


def _notes(rows: pa.RecordBatch, parts: int) -> pa.RecordBatch:
    """Notes go to a part by a hash of their text: many tasks have the same note, and equal notes meet in one part."""
    values = {name: rows.column(name) for name in ("source", "stage", "topic_id", "text")}
    numbers = [crc32(text.encode()) % parts for text in values["text"].to_pylist()]
    return _batch({"part": pa.array(numbers, pa.int32()), **values}, len(rows))


def _batch(values: Mapping[str, pa.Array], count: int) -> pa.RecordBatch:
    arrays = [values[column.name] if column.name in values else pa.nulls(count, column.type) for column in _SCHEMA]
    return pa.RecordBatch.from_arrays(arrays, schema=_SCHEMA)


def unpack(packed: Iterable[bytes]) -> Columns:
    """Read packed rows back."""
    held: list[Columns] = []
    for data in packed:
        count, at = len(data) // ROW_BYTES, 0
        columns: Columns = {}
        for name, kind in COLUMNS.items():
            columns[name] = np.frombuffer(data, kind, count, at)
            at += columns[name].nbytes
        held.append(columns)
    return _joined(held) if held else {name: np.empty(0, kind) for name, kind in COLUMNS.items()}
