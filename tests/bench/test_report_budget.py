"""Error budget, burn rates and worst intervals, by a plain count over single messages."""

from __future__ import annotations

import random

import numpy as np
import pytest

from bench.lateness.results.target import Target
from bench.report.charts.ccdf import DrawnCurve
from bench.report.charts.histogram import EMPTY, Histogram
from bench.report.pieces.budget import Interval, budget_section, cells_of, worst_intervals
from bench.report.pieces.tables import Timeline


def curve(delivered: dict[int, int], overdue: dict[int, int] | None = None) -> DrawnCurve:
    return DrawnCurve(Histogram.of(delivered), Histogram.of(overdue) if overdue else EMPTY)


def line_of(cells: dict[int, DrawnCurve]) -> Timeline:
    """The cells as rows of a table."""
    rows = [
        (start, late, times, waits)
        for start, one in sorted(cells.items())
        for part, waits in ((one.delivered, False), (one.overdue, True))
        for late, times in zip(part.values.tolist(), part.counts.tolist(), strict=True)
    ]
    columns = list(zip(*rows, strict=True)) or [()] * 4
    starts, late, times = (np.array(column, np.int64) for column in columns[:3])
    return Timeline(starts, late, times, np.array(columns[3], np.bool_))


def worst(cells: dict[str, dict[int, DrawnCurve]], share: float, limit_ms: int) -> list[Interval]:
    lines = {source: line_of(found) for source, found in cells.items()}
    found, number = worst_intervals(lines, share, limit_ms, 1_000)
    assert len(found) == number
    assert worst_intervals(lines, share, limit_ms, 1_000, 1)[1] == number
    return found


@pytest.mark.parametrize("seed", range(30))
def test_windows_against_a_plain_count(seed: int) -> None:
    rng = random.Random(seed)
    width, limit = rng.choice([1_000, 10_000, 60_000]), rng.choice([0, 5, 1_000])
    cells = {}
    for _ in range(rng.randrange(1, 40)):
        late = {rng.randrange(-3, 2_000): rng.randrange(1, 9) for _ in range(rng.randrange(4))}
        waits = {rng.randrange(2_000): rng.randrange(1, 9) for _ in range(rng.randrange(3))}
        if late or waits:
            cells[rng.randrange(60) * width] = curve(late, waits)
    if not cells:
        return
    judged = cells_of(line_of(cells), limit, width)

    def plain(begin: int, end: int) -> tuple[int, int]:
        due = missed = 0
        for start, one in cells.items():
            if begin <= start < end:
                delivered = list(zip(one.delivered.values, one.delivered.counts, strict=True))
                waiting = [n for late, n in zip(one.overdue.values, one.overdue.counts, strict=True) if late > limit]
                due += sum(n for _, n in delivered) + sum(waiting)
                missed += sum(n for late, n in delivered if late > limit) + sum(waiting)
        return due, missed

    for length in (width, 3 * width, 7 * width):
        last, (due, missed, end) = judged.window(length)
        assert last == plain(judged.end - length, judged.end)
        assert (due, missed) == plain(end - length, end)
        shares = [late / max(due, 1) for due, late in (plain(s + width - length, s + width) for s in cells)]
        assert missed / max(due, 1) == max(shares)


def test_neighbouring_cells_are_one_interval_and_the_worst_comes_first() -> None:
    good, bad = curve({1: 100}), curve({1: 90, 5_000: 10})
    cells = {"a": {0: bad, 1_000: bad, 2_000: good, 3_000: bad, 9_000: curve({}, {60_000: 100})}, "b": {0: good}}
    found = worst(cells, 0.95, 1_000)
    places = [(one.source, one.begin_ms, one.end_ms, one.judged, one.missed, one.overdue) for one in found]
    assert places == [("a", 9_000, 10_000, 100, 100, 100), ("a", 0, 2_000, 200, 20, 0), ("a", 3_000, 4_000, 100, 10, 0)]
    assert worst(cells, 0.5, 100_000) == []


def test_a_cell_that_misses_exactly_what_it_may_is_not_bad() -> None:
    assert worst({"a": {0: curve({0: 999, 2_000: 1})}}, 0.999, 1_000) == []
    assert worst({"a": {0: curve({0: 998, 2_000: 2})}}, 0.999, 1_000) != []


@pytest.mark.parametrize(
    ("share", "cells", "says"),
    [
        (1.0, {0: curve({0: 5})}, "were due</dt><dd>5"),
        (1.0, {0: curve({2_000: 1})}, "all, and more"),
        (0.999, {0: curve({0: 1_000})}, "may miss</dt><dd>1<"),
        (0.999, {0: curve({0: 999})}, "may miss</dt><dd>0<"),
        (0.5, {}, "Nothing was due"),
        (0.5, {0: curve({}, {5: 3})}, "Nothing was due"),
    ],
)
def test_budgets_at_their_limits(share: float, cells: dict[int, DrawnCurve], says: str) -> None:
    summary = {"target": Target(share, 1_000).judge(None), "as_of_ms": 1_000_000}
    text = budget_section(summary, {"a": line_of(cells)}, 1_000)
    assert says in text
    assert "nan" not in text
