"""Finds the hundred latest messages and reads their records.

Each part of a log gives its own hundred; the hundred of the whole log are among these. Parts pass on only numbers. When
the hundred are known, their records are read: from the log by position, from the delay store by id (all of its journal,
only the beginning of its runs). Equally late messages are ordered by due time, then by id. So every engine finds the
same messages, with any number of parts.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from bench.lateness.counting.grouping import Longs
from bench.lateness.logs.packing import NONE, Columns
from bench.lateness.logs.planning import LogPlan
from bench.lateness.logs.records import LogSegment
from bench.lateness.logs.schemas import FINE_SCHEMA, arrow_schema, make_batch
from bench.lateness.logs.sources import LogSource
from bench.lateness.logs.spill_files import Look, SpillFile, read_spill_file
from bench.lateness.logs.storage import StorageError, storage_for
from remoting.errors import RecordError
from remoting.layout import RECORD
from remoting.messages.properties import get_property
from remoting.messages.record import record_fields
from store.disk.delay_id import DELAY_ID_BASE
from store.disk.errors import StoreError

__all__ = ["LATE_MOST", "LATE_ROWS", "in_order", "late_rows", "latest_messages", "said_of"]

LATE_ROWS = "late"
"""A table of `FINE_SCHEMA` beside the histograms."""
LATE_MOST = 100
_LETTERS_MOST = 200
"""Longer keys and topics are cut."""
_RECORD_MOST = 16 << 20
_PEEK_BYTES = 4 << 10
_PLACE = RECORD.picked("size", "position")
_FINE = arrow_schema(FINE_SCHEMA)
_SIGN = 1 << 63

Said = tuple[str | None, str | None, str | None]
"""Topic, key and message id, as far as they can be read."""


def late_rows(source: int, found: Columns, waiting: Any) -> pa.RecordBatch:
    """The latest messages of one part and source: one row, with a line for each message that was late at all."""
    late = found["lateness_ms"]
    kept = _first(-late, np.flatnonzero(late > 0), LATE_MOST)
    kept = _of_last(kept, -late, found["due_ms"])
    high, low = (found[name][kept].astype(np.int64) for name in ("id_hi", "id_lo"))
    order = np.lexsort([low.view(np.uint64), high, found["due_ms"][kept], -late[kept]])[:LATE_MOST]
    kept, high, low = kept[order], high[order], low[order]
    columns = (late, found["due_ms"], found["topic_id"], waiting.astype(np.int8), found["place"])
    numbers = zip(*(column[kept].tolist() for column in columns), high.tolist(), low.tolist(), strict=True)
    lines = [" ".join((*map(str, one[:5]), f"{one[5] + _SIGN:016x}{one[6] % (2 * _SIGN):016x}")) for one in numbers]
    values = {"source": [source], "table": [LATE_ROWS], "text": ["\n".join(lines)], "count": [1]}
    return make_batch(_FINE, values, 1)


def _first(values: Longs, places: Longs, most: int) -> Longs:
    """The ``most`` of ``places`` with the smallest values, and all whose value equals the last of these."""
    if len(places) <= most:
        return places
    some = values[places]
    kept: Longs = places[some <= np.partition(some, most - 1)[most - 1]]
    return kept


def _of_last(kept: Longs, values: Longs, dues: Longs) -> Longs:
    """Reduce ``kept``, which may be far more than `LATE_MOST`: of its largest value, keep only those due first."""
    if len(kept) <= LATE_MOST:
        return kept
    last = values[kept] == values[kept].max()
    sure = kept[~last]
    return np.concatenate([sure, _first(dues, kept[last], LATE_MOST - len(sure))])


def in_order(line: str) -> tuple[int, int, str]:
    """The sort key for the lines of one source, which puts the latest first."""
    late, due, _, _, _, digits = line.split(" ")
    return -int(late), int(due), digits


def said_of(source: LogSource, plan: LogPlan, place: int) -> Said:
    """Topic, key and message id of the record at a position of the CommitLog; None for what cannot be read."""
    topic, key, unique = _said(_record(source, plan, place))
    return _cut(topic), _cut(key), _cut(unique)


def latest_messages(
    rows: Iterable[Mapping[str, Any]],
    sources: Sequence[LogSource],
    plans: Sequence[LogPlan],
    topics: Mapping[int, str],
    said: Mapping[tuple[int, int], Sequence[str | None]] | None = None,
    delay_stores: Sequence[Sequence[SpillFile]] = (),
) -> list[dict[str, Any]]:
    """The latest messages of all parts, with topic, key and id from their records, in the form of ``summary.json``.

    ``said``: what earlier runs have read from records, by source number and place; ``delay_stores``: files by source.
    """
    lines = [(row["source"], *line.split(" ")) for row in rows for line in row["text"].splitlines()]
    parts = [(number, *map(int, numbers), digits) for number, *numbers, digits in lines]
    parts.sort(key=lambda one: (-one[1], one[0], one[2], one[6]))
    found = []
    wanted = [
        {int(digits[16:], 16): due for number, _, due, _, _, place, digits in parts[:LATE_MOST]
         if number == source and place == NONE and int(digits[:16], 16) == _SIGN}
        for source in range(len(sources))
    ]  # fmt: skip
    waiting = [_said_waiting(*one) for one in zip(sources, delay_stores or [[]] * len(sources), wanted, strict=True)]
    for number, late, due, named, waits, place, digits in parts[:LATE_MOST]:
        mine = int(digits[:16], 16) == _SIGN
        if place == NONE:
            topic, key, unique = waiting[number].get(int(digits[16:], 16)) or (None, None, None)
        else:
            topic, key, unique = (said or {}).get((number, place)) or said_of(sources[number], plans[number], place)
        topic = topic or topics.get(named, "")
        found.append({
            "source": sources[number].name,
            "topic": _cut(topic),
            "key": _cut(key),
            "message_id": _cut(unique),
            "delay_id": f"{int(digits[16:], 16):x}" if mine else None,
            "due_ms": due,
            "lateness_ms": late,
            "overdue": bool(waits),
            "offset": None if place == NONE else place,
        })  # fmt: skip
    return found


def _said_waiting(source: LogSource, files: Sequence[SpillFile], dues: Mapping[int, int]) -> dict[int, Said]:
    """What the records of waiting messages say, by delay id (without its leading bit), for the ids of ``dues``."""
    found: dict[int, Said] = {}
    if not dues:
        return found
    look = Look(max(dues.values()), _said, np.array(sorted(dues), np.int64) + DELAY_ID_BASE)
    storage = storage_for(source.path, source.storage)
    for file in files:
        try:
            for rows in read_spill_file(storage, file, look):
                found |= {int(rows.ids[index]) - DELAY_ID_BASE: said for index, said in rows.overdue.items()}
        except (StorageError, StoreError, OSError):
            continue  # a live broker has moved or finished what was in it
        if len(found) == len(dues):
            break
    return found


def _cut(words: str | None) -> str | None:
    return words if words is None or len(words) <= _LETTERS_MOST else words[:_LETTERS_MOST] + "…"


def _record(source: LogSource, plan: LogPlan, position: int) -> bytes | None:
    """The record at a position of the CommitLog; None if it cannot be read, because the log was cut, for example."""
    segment = next((one for one in plan.segments if one.base <= position < one.base + one.size), None)
    if segment is None:
        return None
    try:
        return _read(source, segment, position - segment.base)
    except (StorageError, OSError):
        return None


def _read(source: LogSource, segment: LogSegment, at: int) -> bytes | None:
    """Bytes of a record: mostly one small request, and no megabytes are read ahead."""
    storage = storage_for(source.path, source.storage)
    data = storage.peek(segment.path, at, min(_PEEK_BYTES, segment.size - at))
    if len(data) < _PLACE.size:
        return None
    size, place = _PLACE.unpack_from(data)
    if not 0 < size <= _RECORD_MOST or place != segment.base + at:
        return None  # a record has its own position in it, so this is another record, or none
    if size > len(data):
        data += storage.peek(segment.path, at + len(data), min(size, segment.size - at) - len(data))
    return data[:size]


def _said(record: bytes | None) -> Said:
    """Topic, key and message id in a record; None each if it is not readable."""
    if record is None:
        return None, None, None
    try:
        topic, _, properties = record_fields(record)
    except (RecordError, ValueError, IndexError, struct.error):
        return None, None, None
    name, key, unique = (get_property(properties, one) or None for one in ("REAL_TOPIC", "KEYS", "UNIQ_KEY"))
    return name or topic, key, unique
