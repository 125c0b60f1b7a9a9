"""The delay store (``STORE/timewheel/delay``) as rows: messages that a broker of ours has accepted and not finished.

The store's own decoders read it. Nothing in it is changed and no lock is taken, so a broker may run on the store. If
the broker removes a file meanwhile, `SpillMovedError` is raised, and the reading has to be planned again. Rows are
those of `DELAY_SCHEMA`:

=============  ==================================================================================================
``stage``      4 waiting here; 5 accepted, but finished here or moved to another file; 3 cancelled (a frame says so)
``offset``     version of the record: only the highest of an id counts
``topic_id``,  only of waiting records that are due at or before ``as_of_ms``; only the records of these are read
requested_ms
=============  ==================================================================================================
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from bench.lateness.logs.delays import CANCELLED, LIVE, SEEN, TIMED, topic_id
from bench.lateness.logs.schemas import DELAY_SCHEMA, GAP, TOPIC_NAME, arrow_schema
from bench.lateness.logs.spill_files import Look, Rows, SpillFile, read_spill_file
from bench.lateness.logs.storage import Storage
from store.disk.delay_id import DELAY_ID_BASE

__all__ = ["spill_rows"]


def spill_rows(storage: Storage, file: SpillFile, number: int, as_of_ms: int) -> Iterator[pa.RecordBatch]:
    """Yield the rows of one file of source ``number``'s delay store, and at the end the names of its topics.

    Raises `SpillMovedError` if the broker has removed the file since it was planned, StoreError or StorageError if the
    file cannot be read.
    """
    topics: dict[bytes, int] = {}
    for rows in read_spill_file(storage, file, Look(as_of_ms)):
        if rows.damage is None:
            yield _batch(rows, number, topics)
        else:
            yield _note(number, GAP, json.dumps(rows.damage))
    for name, topic in topics.items():
        yield _note(number, TOPIC_NAME, name.decode("utf-8", "replace"), topic)


_SCHEMA = arrow_schema(DELAY_SCHEMA)


def _batch(rows: Rows, number: int, topics: dict[bytes, int]) -> pa.RecordBatch:
    count = len(rows.ids)
    stage = np.full(count, CANCELLED, np.int32)
    if not rows.cancels:
        stage = np.where(rows.live, LIVE, SEEN).astype(np.int32)
    codes = np.zeros(count, np.int64)
    requested = np.zeros(count, np.int64)
    for index, (topic, born_ms) in rows.overdue.items():
        if topic not in topics:
            topics[topic] = topic_id(topic)
        codes[index] = topics[topic]
        requested[index] = rows.dues[index] - born_ms
    known = codes != 0
    columns: dict[str, Any] = {
        "source": pa.array(np.full(count, number, np.int32)),
        "stage": pa.array(stage),
        "kind": pa.array(np.full(count, TIMED, np.int32)),
        "level": pa.array(np.zeros(count, np.int32)),
        "id_hi": pa.array(np.zeros(count, np.int64)),
        "id_lo": pa.array(rows.ids - DELAY_ID_BASE),
        "topic_id": pa.array(codes, mask=~known),
        "due_ms": pa.array(rows.dues, mask=np.full(count, rows.cancels)),
        "requested_ms": pa.array(requested, mask=~known),
        "offset": pa.array(rows.versions),
    }
    arrays = [columns.get(column.name, pa.nulls(count, column.type)) for column in _SCHEMA]
    return pa.RecordBatch.from_arrays(arrays, schema=_SCHEMA)


def _note(number: int, stage: int, text: str, topic: int = 0) -> pa.RecordBatch:
    values = {"source": number, "stage": stage, "text": text, "topic_id": topic, "id_hi": 0, "id_lo": 0}
    arrays = [pa.array([values.get(column.name)], column.type) for column in _SCHEMA]
    return pa.RecordBatch.from_arrays(arrays, schema=_SCHEMA)
