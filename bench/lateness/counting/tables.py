"""Splits the table with all results of a run, as an engine returns it, into histograms, counts and notes.

Here the numbers of sources and topics are replaced by names, which are known by now.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from bench.lateness.counting.cells import MINUTE_S
from bench.lateness.counting.grouping import rank
from bench.lateness.counting.latest import LATE_ROWS
from bench.lateness.counting.settle import COUNT_ROWS, LATEST_ROWS, NOTE_ROWS
from bench.lateness.counting.sums import HOT_ROWS, SUM_COLUMNS, decode
from bench.lateness.logs.packing import NONE
from bench.lateness.logs.schemas import TOPIC_NAME
from bench.lateness.results.result import CELL, CELLS, GROUPS, KIND_LEVEL, KIND_TIMED, MINUTE, TOPIC

__all__ = ["Parts", "take_apart"]

_LEVEL = 2


@dataclass(slots=True)
class Parts:
    """The results of one run.

    ``cell_s``: seconds of a cell of `CELL`; ``late``: the latest messages of each part; ``tables``: histograms by name;
    ``hot``: the limit of a hot second by source name; ``latest``: the exact largest lateness by (source name, whether
    the message still waits); ``counts`` and ``notes``: rows as dictionaries.
    """

    tables: dict[str, pa.Table]
    counts: list[dict[str, Any]]
    notes: list[dict[str, Any]]
    hot: dict[str, int]
    latest: dict[tuple[str, bool], int]
    cell_s: int = MINUTE_S
    late: list[dict[str, Any]] = field(default_factory=list)

    @property
    def topics(self) -> dict[int, str]:
        """Number to name of each topic in the notes; of two names with one number, the first in order."""
        named = [(row["topic_id"], row["text"]) for row in self.notes if row["stage"] == TOPIC_NAME]
        return dict(sorted(named, reverse=True))


def take_apart(
    whole: pa.Table, names: Sequence[str], wanted: Sequence[str] = (), topics: Mapping[int, str] | None = None
) -> Parts:
    """Split the result of `bench.lateness.counting.merging.finish`.

    ``names`` are those of the sources. ``wanted`` are the histograms to return; empty: all. ``topics``: names by number
    from another result of the same logs; None: they are among the notes.
    """
    by_table = {name: whole.filter(pc.equal(whole["table"], name)) for name in pc.unique(whole["table"]).to_pylist()}
    none = whole.slice(0, 0)
    notes = by_table.get(NOTE_ROWS, none).select(["source", "key", "topic_id", "text"])
    states = by_table.get(COUNT_ROWS, none).select(["source", "text", "key", "count", "repeated"])
    parts = Parts(
        {},
        states.rename_columns(["source", "state", "early", "count", "repeated"]).to_pylist(),
        notes.rename_columns(["source", "stage", "topic_id", "text"]).to_pylist(),
        {names[row["source"]]: row["key"] for row in by_table.get(HOT_ROWS, none).to_pylist()},
        {},
    )
    for row in by_table.get(LATEST_ROWS, none).to_pylist():
        place = names[row["source"]], row["censored"]
        parts.latest[place] = max(row["lateness_ms"], parts.latest.get(place, row["lateness_ms"]))
    parts.cell_s = min((row["count"] for row in by_table.get(HOT_ROWS, none).to_pylist()), default=MINUTE_S)
    parts.late = by_table.get(LATE_ROWS, none).to_pylist()
    known = parts.topics if topics is None else topics
    for name in GROUPS:
        if not wanted or name == TOPIC or name in wanted:
            parts.tables[name] = _histogram(name, by_table.get(name, none), names, known)
    if CELL in by_table and (not wanted or MINUTE in wanted):
        parts.tables[CELL] = _histogram(CELL, by_table[CELL], names, known)
    return parts


def _histogram(name: str, rows: pa.Table, names: Sequence[str], topics: Mapping[int, str]) -> pa.Table:
    parts = [
        {"source": np.full(len(sums["count"]), source)} | sums
        for source, sums in zip(rows["source"].to_pylist(), map(decode, rows["packed"].to_pylist()), strict=True)
    ]
    found = {
        column: np.concatenate([part[column] for part in parts]) if parts else np.empty(0, np.int64)
        for column in ("source", *SUM_COLUMNS)
    }
    columns: dict[str, Any] = {"source": _named(found["source"], dict(enumerate(names)))}
    if name == TOPIC:
        columns["topic"] = _named(found["topic_id"], topics)
        columns["kind"] = _named(found["kind"], {0: KIND_TIMED, 1: KIND_TIMED, _LEVEL: KIND_LEVEL})
        columns["level"] = pa.array(found["level"], pa.int32())
    else:
        (key,) = CELLS[name] if name in CELLS else GROUPS[name]
        narrow = key in ("ms_in_second", "after_hot_s")
        columns[key] = pa.array(found["key"], pa.int32() if narrow else pa.int64(), mask=found["key"] == NONE)
    columns |= {"lateness_ms": pa.array(found["lateness_ms"]), "count": pa.array(found["count"])}
    table = pa.table({**columns, "censored": pa.array(found["censored"].astype(np.bool_))})
    if name != TOPIC:
        return table  # each group occurs once; only two topics may have the same name
    groups = [column for column in table.column_names if column != "count"]
    added = table.group_by(groups).aggregate([("count", "sum")])
    return added.rename_columns([*groups, "count"]).select(table.column_names)


def _named(numbers: NDArray[np.int64], names: Mapping[int, str]) -> pa.Array:
    """The name of each number; empty if it has none."""
    if not len(numbers):
        return pa.array([], pa.string())
    ranked = rank(numbers)
    texts = pa.array([names.get(number, "") for number in ranked.levels.tolist()], pa.string())
    return texts.take(pa.array(np.zeros(len(numbers), np.int64) if ranked.ranks is None else ranked.ranks))
