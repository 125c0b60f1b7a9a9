"""The columns of the data sources; ``docs/lateness.md`` describes them for people.

`RECORD_SCHEMA` is the public one. `DELAY_SCHEMA` has only what the computation needs: a row for each record about a
delay, and notes, which are rows of other stages with a ``text`` instead of an id: names of topics, statistics of a
task, gaps. Notes travel with the rest, so one reading of a log is enough. `PACKED_SCHEMA` has many rows in one
(`bench.lateness.logs.packing`), `MESSAGE_SCHEMA` a row for each message, `FINE_SCHEMA` the sums
(`bench.lateness.counting.settle`): the sums of a table are one value (`bench.lateness.counting.sums`), counts and notes
are rows.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

__all__ = [
    "DELAY_SCHEMA",
    "FINE_SCHEMA",
    "GAP",
    "KNOWN",
    "MESSAGE_SCHEMA",
    "PACKED_SCHEMA",
    "RECORD_SCHEMA",
    "STATISTICS",
    "TOPIC_NAME",
    "arrow_schema",
    "make_batch",
]

TOPIC_NAME, STATISTICS, GAP = 10, 11, 12
"""Stages of notes."""
KNOWN = 20
"""Stage of packed rows that are no rows of a log, but hashes of messages that earlier runs have counted."""

RECORD_SCHEMA = (
    "file string, offset bigint, size int, topic string, queue_id int, queue_offset bigint, sys_flag int, "
    "born_ms bigint, store_ms bigint, reconsume_times int, body_bytes int, stage string, "
    "kind string, level int, due_ms bigint, requested_ms bigint, id_hi bigint, id_lo bigint, damage string"
)

DELAY_SCHEMA = (
    "source int, stage int, kind int, level int, id_hi bigint, id_lo bigint, topic_id bigint, due_ms bigint, "
    "requested_ms bigint, offset bigint, store_ms bigint, text string"
)

PACKED_SCHEMA = "part int, packed binary, source int, stage int, topic_id bigint, text string"

MESSAGE_SCHEMA = (
    "source int, stage int, state string, offset bigint, store_ms bigint, due_ms bigint, kind int, level int, "
    "topic_id bigint, text string, requested_ms bigint, lateness_ms bigint, censored boolean, repeats bigint, "
    "id_hi bigint, id_lo bigint, place bigint"
)

FINE_SCHEMA = (
    "source int, table string, bucket int, packed binary, key bigint, topic_id bigint, lateness_ms bigint, "
    "censored boolean, text string, count bigint, repeated bigint"
)

_TYPES = {
    "string": pa.string(),
    "bigint": pa.int64(),
    "int": pa.int32(),
    "boolean": pa.bool_(),
    "binary": pa.binary(),
}


def arrow_schema(ddl: str) -> pa.Schema:
    """The Arrow schema of one of these texts.

    >>> arrow_schema("level int, text string").names
    ['level', 'text']
    """
    pairs = (column.split() for column in ddl.split(","))
    return pa.schema([(name, _TYPES[kind]) for name, kind in pairs])


def make_batch(schema: pa.Schema, values: dict[str, Any], count: int) -> pa.RecordBatch:
    """A batch with these columns; all others are null."""
    arrays = []
    for column in schema:
        value = values.get(column.name)
        if value is None:
            arrays.append(pa.nulls(count, column.type))
        else:
            arrays.append((value if isinstance(value, pa.Array) else pa.array(value)).cast(column.type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
