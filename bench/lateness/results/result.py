"""The result folder of ``timewheel lateness``: names, units, a reader without Spark, and exact percentiles.

::

    DIR/summary.json              the counts, in total and per source; percentiles, expectations, definitions
    DIR/histograms/NAME.parquet   counts per class of lateness (`bench.lateness.counting.buckets`), one table a grouping
    DIR/histograms/NAME_received.parquet   the same for end-to-end lateness, with --received

A histogram has the columns ``source``, those of its grouping (`GROUPS`), ``lateness_ms``, ``count`` and ``censored``.
Each message is in each histogram once, so histograms of several runs are merged by adding counts. ``docs/lateness.md``
describes the files column by column.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = [
    "AFTER_HOT",
    "AFTER_HOT_MAX_S",
    "CELL",
    "CELLS",
    "COUNTS",
    "DEFINITIONS",
    "DUE_IN_SECOND",
    "GROUPS",
    "HISTOGRAMS",
    "KIND_LEVEL",
    "KIND_TIMED",
    "MINUTE",
    "MS_IN_SECOND",
    "NOT_AFTER_HOT",
    "QUANTILES",
    "RECEIVED",
    "REQUESTED",
    "SUMMARY",
    "TOPIC",
    "VERSION",
    "WITHIN_MS",
    "Lateness",
    "Result",
    "ResultError",
    "percentiles",
    "read_result",
    "share_within",
]

VERSION = 2
SUMMARY = "summary.json"
HISTOGRAMS = "histograms"
RECEIVED = "_received"
"""The ending of the names of end-to-end tables."""

TOPIC = "topic"
REQUESTED = "requested"
MINUTE = "minute"
CELL = "cell"
DUE_IN_SECOND = "due_in_second"
MS_IN_SECOND = "ms_in_second"
AFTER_HOT = "after_hot"

GROUPS: Mapping[str, tuple[str, ...]] = {
    TOPIC: ("topic", "kind", "level"),
    REQUESTED: ("requested_from_ms",),
    MINUTE: ("minute_ms",),
    DUE_IN_SECOND: ("due_in_second_from",),
    MS_IN_SECOND: ("ms_in_second",),
    AFTER_HOT: ("after_hot_s",),
}
"""Histogram name to its group columns; in each table ``source`` is before and the counts are behind them."""
CELLS: Mapping[str, tuple[str, ...]] = {CELL: ("cell_ms",)}
"""The same by cells of time (`bench.lateness.counting.cells`); long runs have no such table."""

KIND_TIMED = "timed"
KIND_LEVEL = "level"

AFTER_HOT_MAX_S = 10
NOT_AFTER_HOT = -1
"""``after_hot_s`` of messages due neither in a hot second nor in the ten seconds after one."""

QUANTILES: Mapping[str, float] = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p99.9": 0.999, "p99.99": 0.9999}
WITHIN_MS = (1, 10, 100, 1000)
COUNTS = ("sent", "delivered", "pending", "overdue", "lost", "repeated", "early", "cancelled", "unknown")

DEFINITIONS: Mapping[str, str] = {
    "lateness": "time of storage in the CommitLog minus due time, whole milliseconds, sign kept",
    "end_to_end": "time of receipt at a consumer minus due time, whole milliseconds, sign kept",
    "due": "timed: the due time that the message carries; fixed level: stored in the level's queue plus its delay",
    "sent": "delayed messages that were accepted, each delay id once",
    "delivered": "messages with at least one delivery in the CommitLog; the first one counts",
    "pending": "accepted, not delivered, not cancelled, due after the moment of the reading",
    "overdue": "accepted, not delivered, not cancelled, due at or before that moment; right-censored in the histograms",
    "lost": "accepted, but not delivered, pending, overdue, cancelled or unknown",
    "percentiles": "over delivered and overdue messages; an overdue one counts with its lateness so far: 'at least'",
    "repeated": "deliveries beyond the first of their delay id; in no histogram",
    "early": "first deliveries with a lateness below zero",
    "cancelled": "accepted, then cancelled before delivery",
    "unknown": "finished, but no record tells how (retention cut the log, journal freed); or due time not recorded",
}


class ResultError(Exception):
    """A folder is no result, or one of another version; the text says what to do."""


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a run: ``summary`` as read from JSON, ``histograms`` as pyarrow tables by name."""

    folder: Path
    summary: dict[str, Any]
    histograms: dict[str, Any]

    @property
    def source_names(self) -> list[str]:
        """Names of the sources, in the order in which they were given."""
        return [source["name"] for source in self.summary["sources"]]

    @property
    def has_received(self) -> bool:
        """Whether the result has end-to-end lateness."""
        return TOPIC + RECEIVED in self.histograms


def read_result(folder: Path) -> Result:
    """Read a result folder, without Spark. Raises ResultError if it is none or is damaged, OSError if unreadable."""
    import pyarrow.parquet as pq

    path = folder / SUMMARY
    try:
        summary = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ResultError(f"{folder} is no result of `timewheel lateness`: it has no {SUMMARY}") from error
    except ValueError as error:
        raise ResultError(f"{path} is not JSON: {error}") from error
    version = summary.get("version") if isinstance(summary, dict) else None
    if version != VERSION:
        raise ResultError(
            f"{path} has version {version}; this software reads {VERSION}: run `timewheel lateness` again"
        )
    tables: dict[str, Any] = {}
    for name in (*GROUPS, *CELLS, *(name + RECEIVED for name in (*GROUPS, *CELLS))):
        file = folder / HISTOGRAMS / f"{name}.parquet"
        if file.exists():
            try:
                tables[name] = pq.read_table(file)
            except ValueError as error:  # pyarrow's ArrowInvalid is one
                raise ResultError(f"{file} is damaged: {error}") from error
        elif name == TOPIC:
            raise ResultError(f"{folder} is no whole result: {file.name} is missing")
    return Result(folder, summary, tables)


def _sorted(values: ArrayLike, counts: ArrayLike) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    at = np.asarray(values, np.int64)
    order = np.argsort(at, kind="stable")
    return at[order], np.cumsum(np.asarray(counts, np.int64)[order])


def percentiles(
    values: ArrayLike, counts: ArrayLike, quantiles: Mapping[str, float] = QUANTILES
) -> dict[str, int | None]:
    """Percentiles of a histogram, and its ``max``; all None if it is empty.

    The q-quantile is the smallest value with at least the share q of all counts at or below it (nearest rank).

    >>> percentiles([0, 1, 7], [50, 49, 1])
    {'p50': 0, 'p90': 1, 'p99': 1, 'p99.9': 7, 'p99.99': 7, 'max': 7}
    """
    ordered, running = _sorted(values, counts)
    total = int(running[-1]) if len(running) else 0
    if not total:
        return dict.fromkeys((*quantiles, "max"))
    found: dict[str, int | None] = {}
    for name, quantile in quantiles.items():
        rank = max(1, _rank(total, quantile))
        found[name] = int(ordered[running.searchsorted(rank)])
    found["max"] = int(ordered[running.searchsorted(total)])
    return found


def _rank(total: int, quantile: float) -> int:
    """The nearest rank, rounded up. Computed in millionths: in floats, 0.9999 of 10,000 may become 10,000."""
    millionths = round(quantile * 1_000_000)
    return -(-total * millionths // 1_000_000)


def share_within(
    values: ArrayLike, counts: ArrayLike, limits_ms: Iterable[int] = WITHIN_MS, waiting: Sequence[ArrayLike] = ((), ())
) -> dict[str, float | None]:
    """For each limit the share of counts with a value at or below it (early ones too); None if there are none.

    ``waiting`` are values and counts of messages that are not delivered yet. One that has waited longer than a limit
    has missed it; one that has waited less is not counted yet.

    >>> share_within([-1, 5, 2000], [1, 2, 1], (10, 1000))
    {'10': 0.75, '1000': 0.75}
    >>> share_within([5], [1], (10, 1000), ([100], [1]))
    {'10': 0.5, '1000': 1.0}
    """
    at, number, so_far, waits = (np.asarray(column, np.int64) for column in (values, counts, *waiting))
    delivered = int(number.sum())
    shares: dict[str, float | None] = {}
    for limit in limits_ms:
        total = delivered + int(waits[so_far > limit].sum())
        shares[str(limit)] = int(number[at <= limit].sum()) / total if total else None
    return shares


@dataclass(frozen=True, slots=True)
class Lateness:
    """The lateness of some messages: values (ms) and counts of delivered ones, and of those that still wait.

    A message that waits counts with its lateness so far, although it will be later. So a figure that such a message
    decides is a lower bound. Without them, a broker would look better the more it withholds.

    >>> late = Lateness([1, 2], [90, 5], [60_000], [5], latest_ms=2, waited_ms=60_000)
    >>> late.figures()["percentiles"]["p99"], late.figures()["at_least"]
    (60000, ['p99', 'p99.9', 'p99.99', 'max'])
    """

    values: ArrayLike
    counts: ArrayLike
    waiting: ArrayLike = ()
    waiting_counts: ArrayLike = ()
    latest_ms: int | None = None
    """The exact largest lateness of delivered messages, which the classes of a histogram may have rounded."""
    waited_ms: int | None = None
    """The same of messages that still wait."""

    def figures(self) -> dict[str, Any]:
        """Return ``percentiles``, ``at_least`` (the names of those that are lower bounds) and ``within``."""
        values, counts = np.asarray(self.values, np.int64), np.asarray(self.counts, np.int64)
        so_far, waits = np.asarray(self.waiting, np.int64), np.asarray(self.waiting_counts, np.int64)
        most = [ms for ms in (self.latest_ms, self.waited_ms) if ms is not None]
        both = np.concatenate([counts, waits])
        found = percentiles(np.concatenate([values, so_far]), both)
        # If no waiting message ever came, a figure would stay the same only if deliveries alone decide it.
        never = percentiles(np.concatenate([values, np.full(len(so_far), np.iinfo(np.int64).max)]), both)
        bounds = [name for name, value in found.items() if value != never[name]]
        if most and found["max"] is not None:
            found = {name: value if value is None else min(value, max(most)) for name, value in found.items()}
            found["max"] = max(most)
        within = share_within(values, counts, waiting=(so_far, waits))
        return {"percentiles": found, "at_least": bounds, "within": within}
