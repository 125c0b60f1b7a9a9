"""Merges the sums of parts into sums of the whole, which tell the class of each second.

::

    sums of parts ──► merge ──► by topic, delay, millisecond, minute ──────────────────────────► the result
                        ├─────► due in each second ──► marks: its class, seconds since a hot one
    pairs of second and lateness, by part ───────────────┴──► spread ──► merge ──► due_in_second, after_hot

The class of a second is known when all parts have counted it. Until then the pairs wait, packed to a few bytes each;
then they are read a second time. So there is never a row for each second *and* lateness: an outage has as many of these
as messages. What one process holds is bounded: groups, and 10 bytes for each second with due messages (31,536,000 a
year).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from bench.lateness.counting.cells import MINUTE_S, cell_seconds
from bench.lateness.counting.grouping import Longs, Ranked, constant, group, is_constant, rank
from bench.lateness.counting.settle import BOUNDS, PAIR_ROWS, SECOND_ROWS
from bench.lateness.counting.sums import HOT_AT_LEAST, HOT_ROWS, HOT_TIMES_MEAN, SUM_COLUMNS, decode, sum_rows, sums_by
from bench.lateness.logs.schemas import FINE_SCHEMA, arrow_schema
from bench.lateness.results.result import AFTER_HOT, AFTER_HOT_MAX_S, CELL, DUE_IN_SECOND, NOT_AFTER_HOT

__all__ = [
    "Marks",
    "added_up",
    "finish",
    "grouped",
    "hot_limit",
    "hot_rows",
    "limit_rows",
    "marks_by",
    "marks_of",
    "merge",
    "spread",
    "spread_one",
]

_FINE = arrow_schema(FINE_SCHEMA)
_ROWS_AT_ONCE = 1 << 20
"""So many sums are held before equal groups are added up."""
_TIMES_LARGER = 4
"""A part that is so many times larger than the others together is not grouped again, except for their keys."""


@dataclass(frozen=True, slots=True)
class Marks:
    """The class of each second of one source, and how long it came after a hot one; arrays by second, ascending."""

    seconds: Longs
    due_class: Longs
    after_hot: NDArray[np.int8]
    hot_from: int
    cell_s: int
    """The length of the cells of time, for all sources."""


def merge(batches: Iterable[pa.RecordBatch], pairs: bool = False) -> Iterator[pa.RecordBatch]:
    """Add up the sums of equal groups. Rows without sums stay as they are; so do pairs, unless ``pairs`` is set."""
    held: dict[tuple[int, str, int], list[dict[str, Longs]]] = {}
    for batch in batches:
        summed = pc.is_valid(batch["packed"])
        if not pairs:
            summed = pc.and_(summed, pc.not_equal(batch["table"], PAIR_ROWS))
        others = batch.filter(pc.invert(summed))
        if len(others):
            # In Spark's schema some columns cannot have nulls; the rows that go back must have our schema.
            yield pa.RecordBatch.from_arrays(others.columns, schema=_FINE)
        some = batch.filter(summed)
        for row, packed in enumerate(some["packed"]):
            place = some["source"][row].as_py(), some["table"][row].as_py(), some["bucket"][row].as_py()
            parts = held.setdefault(place, [])
            parts.append(decode(packed.as_py()))
            if len(parts) > 1 and sum(len(part["count"]) for part in parts) > max(
                _ROWS_AT_ONCE, 2 * len(parts[0]["count"])
            ):
                held[place] = [added_up(parts)]
    for (source, table, bucket), parts in sorted(held.items()):
        yield sum_rows(source, table, added_up(parts), bucket=bucket)


def added_up(parts: list[dict[str, Longs]]) -> dict[str, Longs]:
    """Add up sums of one table and source, given as columns in ascending order; empties the list, to free memory."""
    if len(parts) == 1:
        return parts[0]
    found = _put_among(parts) or grouped(parts)
    parts.clear()
    return found


def grouped(parts: list[dict[str, Longs]]) -> dict[str, Longs]:
    """Make one of sums in any order, those of one key too; at least one row."""
    whole = {name: _joined([part[name] for part in parts]) for name in SUM_COLUMNS}
    names = SUM_COLUMNS[:-1]
    values, (counts,) = group([rank(whole[name]) for name in names], len(whole["count"]), [whole["count"]])
    return {**dict(zip(names, values, strict=True)), "count": counts}


def _joined(columns: list[Longs]) -> Longs:
    if all(map(is_constant, columns)) and len({int(column[0]) for column in columns}) == 1:
        return constant(int(columns[0][0]), sum(map(len, columns)))
    return np.concatenate(columns)


def _put_among(parts: list[dict[str, Longs]]) -> dict[str, Longs] | None:
    """`added_up` for one part that is by far the largest and others with few of its keys: a night's minutes and those
    of a year. Only rows with these keys are grouped; the others are copied. None if this does not pay."""
    most = max(parts, key=lambda part: len(part["count"]))
    others = [part for part in parts if part is not most]
    keys = most["key"]
    if _TIMES_LARGER * sum(len(part["count"]) for part in others) > len(keys) or (keys[1:] < keys[:-1]).any():
        return None
    touched = np.unique(np.concatenate([part["key"] for part in others]))
    steps = np.zeros(len(keys) + 1, np.int64)
    np.add.at(steps, np.searchsorted(keys, touched, side="left"), 1)
    np.add.at(steps, np.searchsorted(keys, touched, side="right"), -1)
    mine = np.cumsum(steps[:-1]) > 0
    if _TIMES_LARGER * np.count_nonzero(mine) > len(keys):
        return None
    some = grouped([*others, {name: column[mine] for name, column in most.items()}])
    kept = keys[~mine]
    places = np.searchsorted(kept, some["key"]) + np.arange(len(some["key"]))
    left = np.ones(len(kept) + len(places), np.bool_)
    left[places] = False
    found: dict[str, Longs] = {}
    for name in SUM_COLUMNS:
        found[name] = np.empty(len(left), np.int64)
        found[name][left] = most[name][~mine]
        found[name][places] = some[name]
    return found


def marks_of(merged: pa.Table) -> dict[int, Marks]:
    """The marks of each source, from merged sums."""
    found: dict[int, list[dict[str, Longs]]] = {}
    rows = merged.filter(pc.equal(merged["table"], SECOND_ROWS))
    for source, packed in zip(rows["source"].to_pylist(), rows["packed"].to_pylist(), strict=True):
        found.setdefault(source, []).append(decode(packed))
    dues = {source: added_up(parts) for source, parts in found.items()}
    ends = [(int(one["key"].min()), int(one["key"].max())) for one in dues.values()]
    cell_s = cell_seconds(min(first for first, _ in ends), max(last for _, last in ends)) if ends else MINUTE_S
    return {source: _marks(one, cell_s) for source, one in dues.items()}


def _marks(dues: Mapping[str, Longs], cell_s: int) -> Marks:
    seconds, due = dues["key"], dues["count"]
    return marks_by(seconds, due, hot_limit(int(due.sum()), len(due)), cell_s)


def hot_limit(due: int, seconds: int) -> int:
    """The number of messages that makes a second hot, if ``due`` messages were due in ``seconds`` different seconds."""
    return max(int(np.ceil(due / seconds * HOT_TIMES_MEAN)), HOT_AT_LEAST)


def marks_by(seconds: Longs, due: Longs, hot_from: int, cell_s: int, before: NDArray[np.int64] | None = None) -> Marks:
    """The marks of some seconds (ascending), from the number of messages due in each; ``before``: earlier hot seconds
    (ascending)."""
    hot = seconds[due >= hot_from]
    if before is not None:
        hot = np.concatenate([before, hot])
    last = np.searchsorted(hot, seconds, side="right") - 1
    since = seconds - hot[np.maximum(last, 0)] if len(hot) else np.full(len(seconds), AFTER_HOT_MAX_S + 1)
    near = (last >= 0) & (since <= AFTER_HOT_MAX_S)
    due_class = BOUNDS[np.searchsorted(BOUNDS, due, side="right") - 1]
    return Marks(seconds, due_class, np.where(near, since, NOT_AFTER_HOT).astype(np.int8), hot_from, cell_s)


def spread(batches: Iterable[pa.RecordBatch], marks: Mapping[int, Marks], buckets: int = 1) -> Iterator[pa.RecordBatch]:
    """Turn pairs of second and lateness into sums by the class of the second; other rows are ignored."""
    for batch in batches:
        pairs = batch.filter(pc.equal(batch["table"], PAIR_ROWS))
        for source, packed in zip(pairs["source"].to_pylist(), pairs["packed"].to_pylist(), strict=True):
            yield from spread_one(source, decode(packed), marks[source], buckets)


def spread_one(source: int, columns: Mapping[str, Longs], marks: Marks, buckets: int = 1) -> Iterator[pa.RecordBatch]:
    """`spread` for the pairs of one source, in the order of their seconds."""
    # Pairs are in the order of their seconds, so each second is looked up once, however many pairs it has.
    fresh = np.ones(len(columns["key"]), np.bool_)
    np.not_equal(columns["key"][1:], columns["key"][:-1], out=fresh[1:])
    starts = np.flatnonzero(fresh)
    places = np.searchsorted(marks.seconds, columns["key"][starts])
    times = np.diff(starts, append=len(fresh))
    late = {name: rank(columns[name]) for name in ("lateness_ms", "censored")}
    known: dict[str, NDArray[Any]] = {DUE_IN_SECOND: marks.due_class[places], AFTER_HOT: marks.after_hot[places]}
    if marks.cell_s < MINUTE_S:  # cells of a minute are the table by minute
        known[CELL] = columns["key"][starts] // marks.cell_s * marks.cell_s * 1_000
    for table, values in known.items():
        some = rank(values.astype(np.int64))
        if some.ranks is not None:
            some = Ranked(some.levels, np.repeat(some.ranks, times))
        yield from sums_by(source, table, {"key": some} | late, len(fresh), buckets, columns["count"])


def hot_rows(marks: Mapping[int, Marks]) -> pa.Table:
    """A row for each source: the number of messages that makes a second hot (key), the seconds of a cell (count)."""
    cell_s = next((some.cell_s for some in marks.values()), MINUTE_S)
    return limit_rows({source: some.hot_from for source, some in marks.items()}, cell_s)


def limit_rows(limits: Mapping[int, int], cell_s: int) -> pa.Table:
    """`hot_rows` from the limit of each source and the length of a cell."""
    values: dict[str, list[Any]] = {name: [None] * len(limits) for name in _FINE.names}
    values |= {"source": list(limits), "table": [HOT_ROWS] * len(limits)}
    values |= {"key": list(limits.values()), "count": [cell_s] * len(limits)}
    return pa.table(values, schema=_FINE)


def finish(parts: pa.Table) -> pa.Table:
    """All results of a run from the sums of its parts, if they fit into the memory of one process."""
    merged = pa.Table.from_batches(merge(parts.to_batches()), _FINE)
    marks = marks_of(merged)
    by_second = pa.Table.from_batches(merge(spread(merged.to_batches(), marks)), _FINE)
    return pa.concat_tables([merged, by_second, hot_rows(marks)])
