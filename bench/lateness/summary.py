"""Makes ``summary.json`` from sums: counts, percentiles and shares, in total and for each source."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bench.figures.text import lateness_text
from bench.lateness.counting.cells import MINUTE_S
from bench.lateness.logs.schemas import GAP, STATISTICS
from bench.lateness.logs.sources import NO_LEVELS
from bench.lateness.logs.storage import without_login
from bench.lateness.results.result import (
    COUNTS,
    DEFINITIONS,
    RECEIVED,
    TOPIC,
    VERSION,
    Lateness,
    share_within,
)

if TYPE_CHECKING:
    from bench.lateness.engines.job import Job, Receipts

__all__ = ["DAMAGED_LISTED_MAX", "Seen", "make_summary", "verdict"]

DAMAGED_LISTED_MAX = 100


@dataclass(slots=True)
class Seen:
    """The results beside the histograms: counts by state, notes; the limit of a hot second by source name; the exact
    largest lateness by (source name, whether the message still waits)."""

    counts: list[dict[str, Any]]
    notes: list[dict[str, Any]]
    hot: dict[str, int]
    latest: Mapping[tuple[str, bool], int] = field(default_factory=dict)
    latest_received: Mapping[tuple[str, bool], int] = field(default_factory=dict)
    cell_s: int = MINUTE_S
    late: list[dict[str, Any]] = field(default_factory=list)


def make_summary(
    job: Job, as_of_ms: int, seen: Seen, tables: dict[str, pa.Table], received: Receipts | None
) -> dict[str, Any]:
    """Make the summary of one run."""
    parts = [_source(job, number, seen, tables, received) for number in range(len(job.sources))]
    total: dict[str, Any] = {name: sum(part[name] for part in parts) for name in COUNTS}
    total |= _figures(tables[TOPIC], seen.latest)
    total["end_to_end"] = None
    if received is not None:
        repeated = sum(received.repeated.values())
        total["end_to_end"] = _end_to_end(tables[TOPIC + RECEIVED], repeated, seen.latest_received)
        total["end_to_end"] |= {"unmatched": received.unmatched, "ambiguous": received.ambiguous}
    return {
        "version": VERSION,
        "made_ms": time.time_ns() // 1_000_000,
        "as_of_ms": as_of_ms,
        "since_ms": job.since_ms,
        "until_ms": job.until_ms,
        "cell_ms": seen.cell_s * 1_000,
        "sources": parts,
        "total": total,
        "latest": seen.late,
        "target": job.target.judge(_share_of_target(job, tables[TOPIC])),
        "expectations": [expectation.judge(total) for expectation in job.expectations],
        "definitions": dict(DEFINITIONS),
        "run": dict(job.about),
    }


def _source(
    job: Job, number: int, seen: Seen, tables: dict[str, pa.Table], received: Receipts | None
) -> dict[str, Any]:
    source = job.sources[number]
    value: dict[str, Any] = {"name": source.name, "paths": [without_login(source.path)], "kind": source.kind}
    notes = [json.loads(row["text"]) | {"stage": row["stage"]} for row in seen.notes if row["source"] == number]
    value |= _of_log(_only(notes, STATISTICS))
    value |= _of_gaps(_only(notes, GAP))
    value["hot_from"] = seen.hot.get(source.name, 0)
    value |= _counts([row for row in seen.counts if row["source"] == number])
    value["not_known"] = [text for text in source.not_known if text != NO_LEVELS or value["overdue"]]
    value |= _figures(_of_source(tables[TOPIC], source.name), _of_name(seen.latest, source.name))
    value["end_to_end"] = None
    if received is not None:
        table = _of_source(tables[TOPIC + RECEIVED], source.name)
        latest = _of_name(seen.latest_received, source.name)
        value["end_to_end"] = _end_to_end(table, received.repeated[number], latest)
    return value


def _only(notes: list[dict[str, Any]], stage: int) -> list[dict[str, Any]]:
    return [{key: value for key, value in note.items() if key != "stage"} for note in notes if note["stage"] == stage]


def _of_log(statistics: list[dict[str, Any]]) -> dict[str, Any]:
    """Join the statistics of the tasks, in the order of the log."""
    parts = sorted(statistics, key=lambda part: int(part["position"]))
    steps = sum(part["steps_back"] for part in parts)
    steps += sum(after["first_ms"] < before["last_ms"] for before, after in pairwise(parts))
    return {
        "records": sum(part["records"] for part in parts),
        "bytes": sum(part["bytes"] for part in parts),
        "first_store_ms": min((part["min_ms"] for part in parts), default=None),
        "last_store_ms": max((part["max_ms"] for part in parts), default=None),
        "clock_steps_back": steps,
    }


def _of_gaps(gaps: list[dict[str, Any]]) -> dict[str, Any]:
    gaps = [gap | {"file": without_login(gap["file"])} for gap in gaps]
    torn = [gap for gap in gaps if gap["torn"]]
    damaged = sorted((gap for gap in gaps if not gap["torn"]), key=lambda gap: (gap["file"], gap["offset"]))
    plain = [{key: gap[key] for key in ("file", "offset", "bytes", "why")} for gap in damaged[:DAMAGED_LISTED_MAX]]
    tail = {key: torn[0][key] for key in ("file", "offset", "bytes", "why")} if torn else None
    return {
        "damaged": plain,
        "damaged_count": len(damaged),
        "damaged_bytes": sum(gap["bytes"] for gap in damaged),
        "torn_tail": tail,
    }


def _counts(rows: list[dict[str, Any]]) -> dict[str, int]:
    by_state: dict[str, int] = {}
    early = repeated = 0
    for row in rows:
        by_state[row["state"]] = by_state.get(row["state"], 0) + row["count"]
        if row["state"] != "outside":
            repeated += row["repeated"] or 0
        if row["early"] and row["state"] == "delivered":
            early += row["count"]
    unknown = by_state.get("unknown", 0) + by_state.get("undated", 0)
    found = {name: by_state.get(name, 0) for name in ("delivered", "pending", "overdue", "lost", "cancelled")}
    found |= {"sent": sum(found.values()) + unknown, "repeated": repeated, "early": early, "unknown": unknown}
    return {name: found[name] for name in COUNTS}


def _of_source(table: pa.Table, name: str) -> pa.Table:
    return table.filter(pc.equal(table["source"], name))


def _of_name(latest: Mapping[tuple[str, bool], int], name: str) -> dict[tuple[str, bool], int]:
    return {key: value for key, value in latest.items() if key[0] == name}


def _columns(table: pa.Table) -> tuple[Any, Any]:
    return np.asarray(table["lateness_ms"], np.int64), np.asarray(table["count"], np.int64)


def _figures(table: pa.Table, latest: Mapping[tuple[str, bool], int]) -> dict[str, Any]:
    values, counts = _columns(table.filter(pc.invert(table["censored"])))
    waiting, waiting_counts = _columns(table.filter(table["censored"]))
    latest_ms, waited_ms = (
        max((ms for (_, waits), ms in latest.items() if waits is kind), default=None) for kind in (False, True)
    )
    return Lateness(values, counts, waiting, waiting_counts, latest_ms, waited_ms).figures()


def _share_of_target(job: Job, table: pa.Table) -> float | None:
    delivered, waits = table.filter(pc.invert(table["censored"])), table.filter(table["censored"])
    shares = share_within(*_columns(delivered), [job.target.limit_ms], _columns(waits))
    return shares[str(job.target.limit_ms)]


def _end_to_end(table: pa.Table, repeated: int, latest: Mapping[tuple[str, bool], int]) -> dict[str, Any]:
    values, counts = _columns(table)
    early = int(counts[values < 0].sum())
    return {"received": int(counts.sum()), "repeated": repeated, "early": early, **_figures(table, latest)}


def verdict(summary: dict[str, Any]) -> str:
    """One line for the terminal.

    >>> figures = {"p50": 3, "p99": 3_565_000, "p99.9": 3_565_000, "max": 3_565_000}
    >>> total = dict.fromkeys(COUNTS, 0) | {"sent": 2, "delivered": 1, "overdue": 1, "percentiles": figures}
    >>> verdict({"total": total | {"at_least": ["p99", "p99.9", "max"]}})
    '2 sent; 1 delivered; 1 overdue; 0 early; lateness p50 3 ms, p99 at least 59 min, p99.9 at least 59 min, max at least 59 min'
    """  # noqa: E501
    total = summary["total"]
    figures, bounds = total["percentiles"], total.get("at_least", ())
    late = ", ".join(f"{name} {_ms(figures[name], name in bounds)}" for name in ("p50", "p99", "p99.9", "max"))
    parts = [f"{total[name]:,} {name}" for name in COUNTS if total[name] or name in ("sent", "delivered", "early")]
    return f"{'; '.join(parts)}; lateness {late}"


def _ms(value: int | None, at_least: bool) -> str:
    if value is None:
        return "-"
    return f"{'at least ' if at_least else ''}{lateness_text(value)}"
