"""The pieces of a report: exact counting, figures as text, axes, SVG that stands in a page."""

from __future__ import annotations

import itertools
import re
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.figures import text
from bench.lateness.results.result import percentiles
from bench.report.charts import canvas
from bench.report.charts.bars import rows_chart
from bench.report.charts.ccdf import DrawnCurve, ccdf_chart, steps
from bench.report.charts.heatmap import MINUTE_MS, coarser, row_edges
from bench.report.charts.histogram import EMPTY, Histogram, merged
from bench.report.charts.rates import rates_of
from bench.report.charts.scales import bent, lateness_ticks, spread
from bench.report.charts.systems import given_ccdf_chart, numbers_chart, spread_chart
from tests.bench.report_world import Table

COUNTS = st.dictionaries(st.integers(-(10**6), 10**10), st.integers(0, 10**12), max_size=30)


@given(COUNTS, COUNTS)
def test_merging_is_adding_counts(one: dict[int, int], other: dict[int, int]) -> None:
    both = merged((Histogram.of(one), Histogram.of(other)))
    expected = Counter(one) + Counter(other)
    assert dict(zip(both.values.tolist(), both.counts.tolist(), strict=True)) == dict(expected)
    assert both.values.tolist() == sorted(expected)
    assert both.total == sum(expected.values())
    assert both.percentiles() == percentiles(list(expected), list(expected.values()))


def test_counts_of_one_value_are_added_and_negative_ones_refused() -> None:
    histogram = Histogram.from_columns(np.array([5, 5, -1]), np.array([2, 3, 1]))
    assert (histogram.values.tolist(), histogram.counts.tolist()) == ([-1, 5], [1, 5])
    assert (histogram.at_most(4), histogram.at_most(5), histogram.largest) == (1, 6, 5)
    assert histogram.later_than().tolist() == [5, 0]
    with pytest.raises(ValueError, match="negative: -2"):
        Histogram.from_columns(np.array([1]), np.array([-2]))
    assert not EMPTY
    with pytest.raises(ValueError, match="no percentile"):
        EMPTY.percentile("p50")
    with pytest.raises(ValueError, match="no largest"):
        _ = EMPTY.largest


@given(st.integers(0, 10**13), st.integers(1, 10**13))
def test_a_share_is_all_only_when_it_is_all(part: int, whole: int) -> None:
    part = min(part, whole)
    shown = text.percent(part, whole)
    assert (shown == "100\u00a0%") == (part == whole)
    assert (shown == "0\u00a0%") == (part == 0)
    if "<" not in shown:
        assert float(shown.removesuffix("\u00a0%")) <= 100 * part / whole + 1e-9


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0, "0"), (7, "7 ms"), (-3, "-3 ms"), (999, "999 ms"), (1_119, "1.12 s"), (90_000, "1.5 min"),
     (200_000, "3.3 min"), (86_400_000 * 3, "3 d"), (31_557_600_000 * 250, "250 y")],
)  # fmt: skip
def test_spans_are_short(value: int, shown: str) -> None:
    assert text.short_ms(value).replace("\u00a0", " ") == shown


def test_exact_figures_are_never_shortened() -> None:
    assert text.milliseconds(1_234_567).replace("\u00a0", " ") == "1,234,567 ms (21 min)"
    assert text.milliseconds(-5).replace("\u00a0", " ") == "-5 ms"
    assert text.count(10**13) == "10,000,000,000,000"


def test_moments_beyond_the_calendar_are_numbers() -> None:
    assert text.utc(1_760_000_000_000) == "2025-10-09 08:53:20 UTC"
    assert text.utc(10**18) == f"{10**18} ms"
    assert text.utc(None) == "-"


@given(st.integers(-(10**13), 10**13), st.integers(0, 10**13))
def test_every_value_lies_in_one_row_of_the_heatmap(low: int, width: int) -> None:
    high = low + width
    edges = row_edges(low, high)
    assert edges == sorted(set(edges))
    assert edges[0] <= low
    assert high <= edges[-1]
    assert all(edge != round(edge) for edge in edges)
    assert len(edges) < 100


@given(st.dictionaries(st.integers(0, 10**7), st.integers(1, 100), min_size=1, max_size=50), st.integers(10, 120))
def test_wider_columns_leave_nothing_out(minutes: dict[int, int], at_most: int) -> None:
    cells = {minute * MINUTE_MS: Histogram.of({minute % 7: number}) for minute, number in minutes.items()}
    width, columns = coarser(cells, at_most)
    assert len(columns) <= at_most
    assert sum(h.total for h in columns.values()) == sum(minutes.values())
    assert all(start % width == 0 for start in columns)


@given(st.integers(-(10**12), 0), st.integers(10, 10**14), st.integers(2, 12))
def test_ticks_of_lateness_have_room_and_a_zero(low: int, high: int, at_most: int) -> None:
    ticks = lateness_ticks(low, high, at_most)
    assert 0 in ticks
    gap = (bent(high) - bent(low)) / at_most
    places = [bent(tick) for tick in ticks]
    assert all(b - a >= gap * 0.999 for a, b in itertools.pairwise(places))


def test_spread_keeps_what_is_first() -> None:
    assert spread([1, 2, 3, 4], 2, [2]) == [2, 4]


@given(st.dictionaries(st.integers(-100, 10**6), st.integers(1, 1000), min_size=1, max_size=40))
def test_the_ccdf_says_the_share_that_is_later(counts: dict[int, int]) -> None:
    histogram = Histogram.of(counts)
    x, y = steps(histogram, -200.0)
    for value in counts:
        later = sum(n for other, n in counts.items() if other > value) / histogram.total
        assert y[np.flatnonzero(x == value)[-1]] == pytest.approx(later)
    assert y[-1] == 0


def test_a_long_ccdf_is_thinned_and_keeps_its_ends() -> None:
    histogram = Histogram.from_columns(np.arange(100_000), np.ones(100_000, np.int64))
    x, y = steps(histogram, -1.0)
    assert len(x) < 2_000
    assert (x[0], x[-1], y[-1]) == (-1.0, 99_999, 0)
    assert np.all(np.diff(x) > 0)
    assert np.allclose(y[1:], (99_999 - x[1:]) / 100_000)


def test_svg_is_inline_named_and_themed() -> None:
    chart = ccdf_chart(
        "one", 'A <title> & "more"', {"a <b>": DrawnCurve(Histogram.of({0: 10, 5: 2}), Histogram.of({900: 1}))}
    )
    assert chart is not None
    drawn = canvas.drawn(chart)
    assert drawn == canvas.drawn(chart)
    assert drawn.count("<svg") == 2
    assert drawn.count('role="img"') == 2
    assert "A &lt;title&gt; &amp;" in drawn
    assert "a &lt;b&gt;: 13" in drawn
    assert "<script" not in drawn
    assert "<?xml" not in drawn
    ids = re.findall(r'\bid="([^"]+)"', drawn)
    assert len(ids) == len(set(ids))
    targets = re.findall(r'(?:href="#|url\(#)([^")]+)', drawn)
    assert targets
    assert set(targets) <= set(ids)
    assert "var(--series-0)" in drawn
    assert not re.search(r"#0[1-4]0[1-4]0[1-8]", drawn), "a stand-in colour was left"


def test_charts_of_nothing_are_none() -> None:
    assert ccdf_chart("x", "x", {"a": DrawnCurve(EMPTY)}) is None
    assert rows_chart("x", "x", "", [("a", EMPTY)]) is None
    assert spread_chart("x", "x", "ms", {"case": {"a": []}}, {}, True) is None
    assert numbers_chart("x", "x", "pending", "s", {"a": {10: []}}, {}) is None
    assert given_ccdf_chart("x", "x", [("a", [], [])], {}) is None


def test_bars_and_curves_say_medians_and_ranges() -> None:
    palette = {f"system {n}": n for n in range(9)}
    cases = {"1x1": {name: [90.0 + n, 100.0 + n, 120.0] for name, n in palette.items()}, "16x1": {"system 1": [7.0]}}
    chart = spread_chart("s", "Sends", "1/s", cases, palette, True)
    assert chart is not None
    assert "system 0 100 (90 to 120) 1/s" in chart.says
    assert "16x1: system 1 7 (7 to 7) 1/s. More is better." in chart.says
    assert not re.search(r"#0[1-4]0[1-4]0[1-8]", canvas.drawn(chart)), "a stand-in colour was left"
    curve = numbers_chart("n", "Start", "pending", "s", {"a": {1000: [0.5, 0.7], 10: [0.1]}}, palette)
    assert curve is not None
    assert "a: 0.1 s at 10, 0.6 s at 1,000" in curve.says
    assert canvas.drawn(curve)


def test_table_stands_for_a_pyarrow_table() -> None:
    pyarrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed: extra spark")
    from bench.report.pieces.tables import by_group

    columns = {
        "source": np.array(["a", "b", "a"], object),
        "minute_ms": np.array([60_000, 0, 60_000]),
        "lateness_ms": np.array([3, -1, 9]),
        "count": np.array([5, 1, 2]),
        "censored": np.array([False, False, True]),
    }
    real = by_group(pyarrow.table(columns), ("minute_ms",), ("a", "b", "c"))
    ours = by_group(Table(columns), ("minute_ms",), ("a", "b", "c"))
    for found in (real, ours):
        assert list(found) == ["a", "b", "c"]
        assert found["c"] == {}
        assert (found["a"][60_000].delivered.total, found["a"][60_000].overdue.values.tolist()) == (5, [9])
        assert found["b"][0].delivered.values.tolist() == [-1]
    with pytest.raises(KeyError, match="b"):
        by_group(Table(columns), ("minute_ms",), ("a",))


@given(st.dictionaries(st.integers(0, 400), st.dictionaries(st.integers(-5_000, 90_000), st.integers(1, 9))))
def test_rates_leave_no_message_out(cells: dict[int, dict[int, int]]) -> None:
    """Whatever the width of a column: as many are due, and as many delivered, as there are messages."""
    curves = {
        second * 1_000: DrawnCurve(Histogram.of(late), Histogram.of({7: second % 3})) for second, late in cells.items()
    }
    starts, due, came = rates_of(curves, 1_000)
    assert len(starts) <= 122
    width_s = (starts[1] - starts[0]) / 1_000 if len(starts) > 1 else 1
    delivered = sum(sum(late.values()) for late in cells.values())
    assert sum(came) * width_s == pytest.approx(delivered)
    assert sum(due) * width_s == pytest.approx(delivered + sum(second % 3 for second in cells))
