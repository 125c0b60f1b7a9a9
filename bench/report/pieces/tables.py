"""Makes histograms by source and group from the tables of a result folder.

A table is a pyarrow table as `bench.lateness.results.result` reads it, or anything with ``column_names`` and
``column(name)`` whose columns have ``to_numpy()``.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from bench.lateness.counting.buckets import EXACT_MS
from bench.lateness.results.result import RECEIVED
from bench.report.charts.ccdf import DrawnCurve
from bench.report.charts.histogram import EMPTY, Histogram, Integers, merged

__all__ = ["Groups", "Timeline", "at_most", "by_group", "by_source", "delivered_only", "largest_of", "timelines"]

Groups = dict[str, dict[Any, DrawnCurve]]
"""Source to key of the group (a value, or a tuple of values) to lateness of delivered and of overdue messages."""


@dataclass(frozen=True, slots=True, eq=False)
class Timeline:
    """One source over time, as columns: objects for the half a million minutes of a year would be slow.

    In rising order of ``starts`` (of cells, epoch ms): lateness (ms), number of messages, whether they are overdue.
    """

    starts: Integers
    lateness: Integers
    counts: Integers
    overdue: npt.NDArray[np.bool_]

    def curve(self, begin_ms: int, end_ms: int) -> DrawnCurve:
        """The lateness of messages due from one moment to before another."""
        rows = np.arange(*np.searchsorted(self.starts, (begin_ms, end_ms)))
        late = self.overdue[rows]
        return DrawnCurve(_of(self.lateness, self.counts, rows[~late]), _of(self.lateness, self.counts, rows[late]))


@dataclass(frozen=True, slots=True, eq=False)
class _Column:
    values: Integers

    def to_numpy(self) -> Integers:
        """The values."""
        return self.values


@dataclass(frozen=True, slots=True, eq=False)
class _Capped:
    """A table, with another column of lateness."""

    table: Any
    lateness: _Column

    @property
    def column_names(self) -> list[str]:
        """The names of the columns."""
        return list(self.table.column_names)

    def column(self, name: str) -> Any:
        """The column with this name."""
        return self.lateness if name == "lateness_ms" else self.table.column(name)


def at_most(table: Any, most: Mapping[str, int | None]) -> Any:
    """A table with no lateness above the exact largest one of its source (ms): a class has its highest value."""
    limits = {source: largest for source, largest in most.items() if largest is not None and largest >= EXACT_MS}
    if not limits:
        return table
    lateness = table.column("lateness_ms").to_numpy()
    names = np.asarray(table.column("source").to_numpy()) if len(most) > 1 else None
    for source, largest in limits.items():
        capped = np.minimum(lateness, largest)
        lateness = capped if names is None else np.where(names == source, capped, lateness)
    return _Capped(table, _Column(lateness))


def largest_of(summary: Mapping[str, Any], table: str) -> dict[str, int | None]:
    """The exact largest lateness of each source (ms), of the broker or of consumers: which the table's name says."""
    parts = {s["name"]: s.get("end_to_end") or {} if table.endswith(RECEIVED) else s for s in summary["sources"]}
    return {name: part.get("percentiles", {}).get("max") for name, part in parts.items()}


def timelines(table: Any, column: str, sources: Sequence[str]) -> dict[str, Timeline]:
    """The rows of each source, by a column of times."""
    names = np.asarray(table.column("source").to_numpy())
    found = {}
    for source in sources:
        mine = np.flatnonzero(names == source)
        starts = table.column(column).to_numpy()[mine].astype(np.int64)
        order = np.argsort(starts, kind="stable")
        rows = mine[order]
        lateness, counts, late = (table.column(name).to_numpy()[rows] for name in ("lateness_ms", "count", "censored"))
        found[source] = Timeline(
            starts[order], lateness.astype(np.int64), counts.astype(np.int64), late.astype(np.bool_)
        )
    return found


def _codes(column: Any, width: int = 1) -> tuple[Integers, list[Any]]:
    """Number the different values of a column, or their multiples of ``width``; return the numbers and the values."""
    if isinstance(column, pa.ChunkedArray) and pa.types.is_string(column.type):
        encoded = column.combine_chunks().dictionary_encode(null_encoding="encode")
        return encoded.indices.to_numpy().astype(np.int64), encoded.dictionary.to_pylist()
    values = column.to_numpy()
    values = values if width == 1 else values // width * width
    if values.dtype == object:
        numbers: dict[Any, int] = {}
        codes = np.fromiter((numbers.setdefault(value, len(numbers)) for value in values), np.int64, values.size)
        return codes, list(numbers)
    distinct, codes = np.unique(values, return_inverse=True)
    return codes.astype(np.int64), distinct.tolist()


def by_group(table: Any, columns: Sequence[str], sources: Sequence[str], width: int = 1) -> Groups:
    """Return the curve of every group of every named source; a source without rows has an empty dict.

    Keys are plain values for one column, tuples for several, in rising order. A ``width`` above 1 rounds the values of
    a column down to its multiples. Raises KeyError for a source in the table that is not named, because its rows would
    be left out silently.
    """
    found: Groups = {source: {} for source in sources}
    if not len(table.column("count")):
        return found
    parts = [_codes(table.column("source")), *(_codes(table.column(name), width) for name in columns)]
    group = np.zeros(len(parts[0][0]), np.int64)
    for codes, values in parts:
        group = group * len(values) + codes
    lateness = table.column("lateness_ms").to_numpy().astype(np.int64)
    counts = table.column("count").to_numpy().astype(np.int64)
    censored = table.column("censored").to_numpy().astype(bool)
    order = np.argsort(group, kind="stable")
    edges = np.flatnonzero(np.diff(group[order])) + 1
    for rows in np.split(order, edges):
        names = [values[int(codes[rows[0]])] for codes, values in parts]
        key: Hashable = names[1] if len(names) == 2 else tuple(names[1:])
        late = censored[rows]
        found[names[0]][key] = DrawnCurve(_of(lateness, counts, rows[~late]), _of(lateness, counts, rows[late]))
    return {source: dict(sorted(groups.items())) for source, groups in found.items()}


def _of(lateness: Integers, counts: Integers, rows: Integers) -> Histogram:
    return Histogram.from_columns(lateness[rows], counts[rows]) if rows.size else EMPTY


def by_source(groups: Groups) -> dict[str, DrawnCurve]:
    """Return the sum over all groups of each source."""
    return {
        source: DrawnCurve(merged(c.delivered for c in found.values()), merged(c.overdue for c in found.values()))
        for source, found in groups.items()
    }


def delivered_only(groups: Groups) -> dict[str, dict[int, Histogram]]:
    """Return the lateness of delivered messages by group, without groups in which nothing was delivered."""
    return {
        source: {key: curve.delivered for key, curve in found.items() if curve.delivered}
        for source, found in groups.items()
    }
