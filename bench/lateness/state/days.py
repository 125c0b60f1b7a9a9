"""Keeps sums by second in a file for each day of due times, so that a run adds up only the days that it touches.

The tables by second need two figures of each second: how many messages were due in it, and how long it came after a hot
second. The first depends on that second alone. The other depends on the ten seconds before, and on one number for each
source: the limit from which a second is hot. So a day's part of these tables stays right as long as

- no message is counted that was due in it, or in the ten seconds before it, and
- the limit stays between the same two neighbours among the counts of its seconds::

      messages due in a second    1 … 80    212        900        of the day, and of the ten seconds before it
      limit                                    ├────────┤         above 212, up to 900: the same seconds are hot

The pairs (sums by second and lateness) of such a day are not read. The parts of other days are added up from their
pairs. If all messages were due within 2.5 hours, a result has cells shorter than a minute. Then all days, at most two,
are added up.

Cost: some 40 ms of processor time for a day of 100,000 pairs that is touched, 0.1 ms for another day.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bench.lateness.counting.cells import MINUTE_S, cell_seconds
from bench.lateness.counting.grouping import Longs
from bench.lateness.counting.merging import added_up, hot_limit, limit_rows, marks_by, merge, spread_one
from bench.lateness.counting.settle import PAIR_ROWS
from bench.lateness.counting.sums import decode, sum_rows
from bench.lateness.logs.schemas import FINE_SCHEMA, arrow_schema, make_batch
from bench.lateness.results.result import AFTER_HOT_MAX_S

__all__ = ["DAY_S", "Added", "Place", "Settled", "Shape", "add_up_days", "settled_from", "settled_table"]

DAY_S = 86_400
_SHAPE_ROWS = "shape"
_NO_LIMIT = (1 << 63) - 1
_FINE = arrow_schema(FINE_SCHEMA)

Place = tuple[int, int]
"""Number of a source, and days since 1970 (UTC)."""
Tail = list[tuple[int, int]]
"""Seconds, in ascending order, and how many messages were due in each."""
Sums = dict[str, Longs]
"""Pairs of one source, by column of `bench.lateness.counting.sums.SUM_COLUMNS`, in the order of their seconds."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A day: the number of seconds with due messages, the number of messages, the first and last of these seconds, and
    the counts of the last ten seconds of the day."""

    seconds: int
    due: int
    first: int
    last: int
    tail: Tail


@dataclass(frozen=True, slots=True)
class Settled:
    """A day's part of the tables by second, for one source (``rows``). It is right while the seconds before the day
    have the counts ``before``, and the limit of a hot second is above ``above`` and at most ``upto``."""

    shape: Shape
    before: Tail
    above: int
    upto: int
    rows: list[pa.RecordBatch]

    def holds(self, limit: int, before: Tail) -> bool:
        """Whether the part is right for this limit and these seconds before."""
        return self.above < limit <= self.upto and self.before == before


@dataclass(frozen=True, slots=True)
class Added:
    """``rows`` are for the result; ``settled`` and ``files`` (pairs by day, of changed days) are for the next run."""

    rows: pa.Table
    settled: dict[Place, Settled]
    files: dict[int, pa.Table]


class _Pairs:
    """The pairs of days: those that were kept, and new ones."""

    def __init__(self, load: Callable[[int], pa.Table], known: Iterable[Place], day_s: int) -> None:
        self._load, self._known, self._day_s = load, {day for _, day in known}, day_s
        self._days: dict[int, dict[int, Sums]] = {}

    def day(self, day: int) -> dict[int, Sums]:
        """The pairs of a day, by source."""
        if day not in self._days:
            table = self._load(day) if day in self._known else _FINE.empty_table()
            self._days[day] = {source: sums for (source, _), sums in by_place(table, self._day_s).items()}
        return self._days[day]

    def kept(self, place: Place) -> Sums | None:
        """The pairs of a day of one source; None if there are none."""
        return self.day(place[1]).get(place[0])

    def add(self, place: Place, sums: Sums) -> None:
        """Add pairs."""
        self.day(place[1])[place[0]] = _together(self.kept(place), sums)


def by_place(table: pa.Table, day_s: int = DAY_S) -> dict[Place, Sums]:
    """The pairs of a table of `FINE_SCHEMA`, by source and day."""
    found: dict[Place, Sums] = {}
    pairs = table.filter(pc.equal(table["table"], PAIR_ROWS))
    several = len(pairs) > pc.count_distinct(pairs["source"]).as_py()
    for batch in merge(pairs.to_batches(), pairs=True) if several else pairs.to_batches():
        for source, packed in zip(batch["source"].to_pylist(), batch["packed"].to_pylist(), strict=True):
            sums = decode(packed)
            days = sums["key"] // day_s
            starts = np.flatnonzero(np.diff(days, prepend=days[0] - 1))
            for start, end in zip(starts.tolist(), [*starts[1:].tolist(), len(days)], strict=True):
                found[source, int(days[start])] = {name: column[start:end] for name, column in sums.items()}
    return found


def _together(*parts: Sums | None) -> Sums:
    return added_up([part for part in parts if part is not None])


def add_up_days(
    known: Mapping[Place, Settled], load: Callable[[int], pa.Table], fresh: pa.Table, rest: pa.Table, day_s: int = DAY_S
) -> Added:
    """Add up the kept pairs and ``fresh`` for the state; these and ``rest`` for the result.

    ``fresh`` and ``rest`` are tables of `FINE_SCHEMA`; only their pairs are used. ``load`` reads the kept pairs of a
    day; its errors are passed on.
    """
    new, more = by_place(fresh, day_s), by_place(rest, day_s)
    pairs = _Pairs(load, known, day_s)
    for place, sums in new.items():
        pairs.add(place, sums)
    kept = {place: one.shape for place, one in known.items()}
    kept |= {place: _shape(_together(pairs.kept(place)), day_s) for place in new}
    whole = kept | {place: _shape(_together(pairs.kept(place), sums), day_s) for place, sums in more.items()}
    limits, cell_s = _limits(whole)
    settled: dict[Place, Settled] = {}
    rows: list[pa.RecordBatch] = []
    for place, shape in sorted(whole.items(), key=lambda one: one[0]):
        limit, before, now = limits[place[0]], _before(kept, place), _before(whole, place)
        if place in kept:
            old = known.get(place)
            if old is None or place in new or not old.holds(limit, before):
                old = _settle(place, _together(pairs.kept(place)), kept[place], limit, before)
            settled[place] = old
        if place in more or now != before or cell_s < MINUTE_S:
            both = _together(pairs.kept(place), more.get(place))
            rows += _settle(place, both, shape, limit, now, cell_s).rows
        else:
            rows += settled[place].rows
    by_second = pa.Table.from_batches(merge(rows), _FINE)
    files = {day: _table(pairs.day(day)) for day in {day for _, day in new}}
    return Added(pa.concat_tables([by_second, limit_rows(limits, cell_s)]), settled, files)


def _table(sums: Mapping[int, Sums]) -> pa.Table:
    return pa.Table.from_batches([sum_rows(source, PAIR_ROWS, one) for source, one in sorted(sums.items())], _FINE)


def _seconds(sums: Sums) -> tuple[Longs, Longs]:
    """The different seconds, and the number of messages due in each."""
    starts = np.flatnonzero(np.diff(sums["key"], prepend=sums["key"][0] - 1))
    return sums["key"][starts], np.add.reduceat(sums["count"], starts)


def _shape(sums: Sums, day_s: int) -> Shape:
    seconds, due = _seconds(sums)
    first, last = int(seconds[0]), int(seconds[-1])
    near = np.searchsorted(seconds, (first // day_s + 1) * day_s - AFTER_HOT_MAX_S)
    tail = list(zip(seconds[near:].tolist(), due[near:].tolist(), strict=True))
    return Shape(len(seconds), int(due.sum()), first, last, tail)


def _before(shapes: Mapping[Place, Shape], place: Place) -> Tail:
    shape = shapes.get((place[0], place[1] - 1))
    return shape.tail if shape else []


def _limits(shapes: Mapping[Place, Shape]) -> tuple[dict[int, int], int]:
    """The number of messages that makes a second hot, by source; the length of the cells of time."""
    found: dict[int, list[int]] = {}
    for (source, _), shape in sorted(shapes.items(), key=lambda one: one[0]):
        sums = found.setdefault(source, [0, 0])
        sums[0] += shape.due
        sums[1] += shape.seconds
    ends = [(shape.first, shape.last) for shape in shapes.values()]
    cell_s = cell_seconds(min(first for first, _ in ends), max(last for _, last in ends)) if ends else MINUTE_S
    return {source: hot_limit(*sums) for source, sums in found.items()}, cell_s


def _settle(place: Place, sums: Sums, shape: Shape, limit: int, before: Tail, cell_s: int = MINUTE_S) -> Settled:
    seconds, due = _seconds(sums)
    hot = np.array([second for second, count in before if count >= limit], np.int64)
    marks = marks_by(seconds, due, limit, cell_s, hot)
    counts = np.concatenate([due, np.array([count for _, count in before], np.int64)])
    below, above = counts[counts < limit], counts[counts >= limit]
    return Settled(
        shape,
        before,
        int(below.max()) if len(below) else 0,
        int(above.min()) if len(above) else _NO_LIMIT,
        list(spread_one(place[0], sums, marks)),
    )


def settled_table(settled: Mapping[Place, Settled]) -> pa.Table:
    """The parts of days as rows of `FINE_SCHEMA`; ``key`` is the day."""
    batches = []
    place = _FINE.names.index("key")
    for (source, day), one in sorted(settled.items(), key=lambda item: item[0]):
        text = json.dumps([asdict(one.shape), one.before, one.above, one.upto], separators=(",", ":"))
        values: dict[str, Any] = {"source": [source], "table": [_SHAPE_ROWS], "key": [day], "text": [text]}
        batches.append(make_batch(_FINE, values, 1))
        batches += [row.set_column(place, "key", pa.array([day] * len(row), pa.int64())) for row in one.rows]
    return pa.Table.from_batches(batches, _FINE)


def settled_from(table: pa.Table) -> dict[Place, Settled]:
    """Read the parts of days back."""
    found: dict[Place, Settled] = {}
    for row, (source, name, day, text) in enumerate(
        zip(*(table[column].to_pylist() for column in ("source", "table", "key", "text")), strict=True)
    ):
        if name == _SHAPE_ROWS:
            shape, before, above, upto = json.loads(text)
            shape["tail"] = [(second, count) for second, count in shape["tail"]]
            before = [(second, count) for second, count in before]
            found[source, day] = Settled(Shape(**shape), before, above, upto, [])
        else:
            found[source, day].rows.extend(table.slice(row, 1).to_batches())
    return found
