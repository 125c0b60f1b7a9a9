"""Percentiles in the text format of HdrHistogram's ``outputPercentileDistribution``, which its plotters read.

::

           Value     Percentile TotalCount 1/(1-Percentile)

           0.000 0.000000000000      98000           1.00
           7.000 0.990000000000      99000         100.00
         900.000 1.000000000000     100000
    #[Mean    =        9.xyz, StdDeviation   =       89.xyz]
    #[Max     =      900.000, Total count    =       100000]
    #[Buckets =            1, SubBuckets     =         2048]

Values are milliseconds. HdrHistogram has none below zero, so early messages count as 0. Overdue messages count with
their lateness so far, as in every percentile of a result. Each halving of the share above takes five lines, which is
HdrHistogram's default.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow.compute as pc
from numpy.typing import ArrayLike, NDArray

from bench.lateness.results.result import RECEIVED, TOPIC

__all__ = ["ENDING", "percentile_files", "percentile_text"]

ENDING = ".hgrm"

_TICKS = 5
_SUB_BUCKETS = 2048


def percentile_text(values: ArrayLike, counts: ArrayLike) -> str:
    """Write a histogram of lateness in ms and numbers of messages; an empty one has only head and foot.

    >>> print(percentile_text([1, 3], [1, 1]).splitlines()[2])
           1.000 0.500000000000          1           2.00
    """
    at, where = np.unique(np.maximum(np.asarray(values, np.int64), 0), return_inverse=True)
    number = np.zeros(len(at), np.int64)
    np.add.at(number, where, np.asarray(counts, np.int64))
    at, number = at[number > 0], number[number > 0]
    total = int(number.sum())
    lines = [f"{'Value':>12s} {'Percentile':>14s} {'TotalCount':>10s} {'1/(1-Percentile)':>14s}", ""]
    lines += _lines(at, np.cumsum(number), total)
    mean = float((at * (number / total)).sum()) if total else 0.0
    deviation = math.sqrt(float(((at - mean) ** 2 * (number / total)).sum())) if total else 0.0
    most = int(at[-1]) if total else 0
    lines += [
        f"#[Mean    = {mean:12.3f}, StdDeviation   = {deviation:12.3f}]",
        f"#[Max     = {float(most):12.3f}, Total count    = {total:12d}]",
        f"#[Buckets = {_buckets(most):12d}, SubBuckets     = {_SUB_BUCKETS:12d}]",
    ]
    return "\n".join(lines) + "\n"


def _lines(at: NDArray[np.int64], running: NDArray[np.int64], total: int) -> Iterator[str]:
    """Yield a line for each value at which one or more ticks are reached, with the share at or below it."""
    if not total:
        return
    shown, wanted = -1, 0.0
    while True:
        place = int(np.searchsorted(running, max(1, math.ceil(wanted * total))))
        share = int(running[place]) / total
        if place == len(at) - 1:
            yield f"{float(at[place]):12.3f} {1.0:2.12f} {total:10d}"
            return
        if place != shown:
            yield f"{float(at[place]):12.3f} {share:2.12f} {int(running[place]):10d} {1 / (1 - share):14.2f}"
        shown = place
        halvings = int(math.log2(1 / (1 - share))) + 1
        wanted = max(wanted, share) + 1 / (_TICKS * 2**halvings)


def _buckets(most: int) -> int:
    """The number of buckets that an HdrHistogram of three digits needs for this value."""
    needed, holds = 1, _SUB_BUCKETS
    while holds <= most:
        holds <<= 1
        needed += 1
    return needed


def percentile_files(tables: Mapping[str, Any], sources: Sequence[str]) -> dict[str, str]:
    """Return name and content of each file: all sources together, and if there are several, each alone (by number)."""
    files: dict[str, str] = {}
    for table, stem in ((TOPIC, "lateness"), (TOPIC + RECEIVED, "received")):
        if table not in tables:
            continue
        rows = tables[table]
        files[f"{stem}{ENDING}"] = percentile_text(rows["lateness_ms"], rows["count"])
        for number, name in enumerate(sources if len(sources) > 1 else (), 1):
            own = rows.filter(pc.equal(rows["source"], name))
            files[f"{stem}-{number}{ENDING}"] = percentile_text(own["lateness_ms"], own["count"])
    return files
