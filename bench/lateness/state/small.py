"""The small part of a state, beside the sums: counts, maxima, the latest hundred, notes.

Each of these can be added up, is a maximum, or is kept once. So the rows of a run and the kept ones can be condensed to
as few rows as one run has, however many runs there were.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from bench.lateness.counting.latest import LATE_MOST, LATE_ROWS, in_order
from bench.lateness.counting.settle import COUNT_ROWS, LATEST_ROWS, NOTE_ROWS
from bench.lateness.logs.schemas import FINE_SCHEMA, GAP, STATISTICS, TOPIC_NAME, arrow_schema

__all__ = ["condensed", "notes_by_end", "places_of"]

_FINE = arrow_schema(FINE_SCHEMA)
_DIGITS = 20

Row = dict[str, Any]


def _row(source: int, table: str, **values: Any) -> Row:
    return {"source": source, "table": table, **values}


def _only(table: pa.Table, name: str) -> list[Row]:
    rows: list[Row] = table.filter(pc.equal(table["table"], name)).to_pylist()
    return rows


def notes_by_end(table: pa.Table, ends: Sequence[int]) -> tuple[pa.Table, pa.Table]:
    """Split notes into those of closed segments, with the names of topics, and all others."""
    rows = table.to_pylist()
    first = [row["key"] == TOPIC_NAME or 0 <= _position(row) < ends[row["source"]] for row in rows]
    kept = pa.array(first, pa.bool_())
    return table.filter(kept), table.filter(pc.invert(kept))


def _position(row: Row) -> int:
    """The CommitLog position of a note; below zero if it has none."""
    value = json.loads(row["text"])
    if row["key"] == STATISTICS:
        return int(value["position"])
    name = str(value["file"]).rpartition("/")[2]
    return int(name) + int(value["offset"]) if len(name) == _DIGITS and name.isdigit() else -1


def condensed(table: pa.Table) -> pa.Table:
    """Condense a table with rows of counts, maxima, the latest messages and notes."""
    rows = [*_counts(_only(table, COUNT_ROWS)), *_maxima(_only(table, LATEST_ROWS)), *_late(_only(table, LATE_ROWS))]
    rows += _notes(_only(table, NOTE_ROWS))
    none = dict.fromkeys(_FINE.names)
    return pa.Table.from_pylist([none | row for row in rows], schema=_FINE)


def _counts(rows: list[Row]) -> Iterable[Row]:
    found: dict[tuple[int, str, int], list[int]] = {}
    for row in rows:
        sums = found.setdefault((row["source"], row["text"], row["key"]), [0, 0])
        sums[0] += row["count"]
        sums[1] += row["repeated"] or 0
    for (source, text, key), (count, repeated) in sorted(found.items()):
        yield _row(source, COUNT_ROWS, text=text, key=key, count=count, repeated=repeated)


def _maxima(rows: list[Row]) -> Iterable[Row]:
    found: dict[tuple[int, bool], int] = {}
    for row in rows:
        place = row["source"], row["censored"]
        found[place] = max(row["lateness_ms"], found.get(place, row["lateness_ms"]))
    for (source, censored), late in sorted(found.items()):
        yield _row(source, LATEST_ROWS, censored=censored, lateness_ms=late, count=1)


def _late(rows: list[Row]) -> Iterable[Row]:
    found: dict[int, list[str]] = {}
    for row in rows:
        found.setdefault(row["source"], []).extend(row["text"].splitlines())
    for source, lines in sorted(found.items()):
        text = "\n".join(sorted(lines, key=in_order)[:LATE_MOST])
        yield _row(source, LATE_ROWS, text=text, count=1)


def places_of(table: pa.Table) -> list[tuple[int, int]]:
    """Source and place in the log of each of the latest messages."""
    late = _only(table, LATE_ROWS)
    return [(row["source"], int(line.split(" ")[4])) for row in late for line in row["text"].splitlines()]


def _notes(rows: list[Row]) -> Iterable[Row]:
    seen: dict[int, list[Row]] = {}
    told: set[tuple[int, str]] = set()
    for row in rows:
        if row["key"] == STATISTICS:
            seen.setdefault(row["source"], []).append(json.loads(row["text"]))
        elif row["key"] == GAP or (row["source"], row["text"]) not in told:
            told.add((row["source"], row["text"]))
            yield row
    for source, parts in sorted(seen.items()):
        yield _row(source, NOTE_ROWS, key=STATISTICS, topic_id=0, count=1, text=json.dumps(_one(parts)))


def _one(parts: list[Row]) -> Row:
    """Join the statistics of several tasks, in the order of the log."""
    parts = sorted(parts, key=lambda part: int(part["position"]))
    steps = sum(part["steps_back"] for part in parts)
    return {
        "position": parts[0]["position"],
        "records": sum(part["records"] for part in parts),
        "bytes": sum(part["bytes"] for part in parts),
        "first_ms": parts[0]["first_ms"],
        "last_ms": parts[-1]["last_ms"],
        "min_ms": min(part["min_ms"] for part in parts),
        "max_ms": max(part["max_ms"] for part in parts),
        "steps_back": steps + sum(after["first_ms"] < before["last_ms"] for before, after in pairwise(parts)),
        "hosts": sorted({host for part in parts for host in part["hosts"]}),
    }
