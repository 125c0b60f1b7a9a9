"""Messages due and messages delivered in each second, as background for lateness.

A table of lateness has the due time of messages only by the cell, and their lateness. So a delivery is drawn in the
cell of due time plus lateness; the true cell may be the one after it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from bench.figures.text import count, short_count
from bench.report.charts.canvas import Chart, Size, new_figure, quiet_axes, style_of
from bench.report.charts.ccdf import DrawnCurve
from bench.report.charts.heatmap import coarser
from bench.report.charts.histogram import Histogram

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["rates_chart", "rates_of"]

_COLUMNS_MOST = 120
Rates = tuple[list[int], list[float], list[float]]
"""Starts of columns (ms), messages due a second, messages delivered a second."""


def rates_of(cells: Mapping[int, DrawnCurve], least_ms: int) -> Rates:
    """Return the rates of one source, from its cells of ``least_ms`` by their start.

    >>> late = DrawnCurve(Histogram.of({0: 30, 2_500: 20}), Histogram.of({9_000: 10}))
    >>> rates_of({5_000: late}, 1_000)
    ([5000, 6000, 7000], [60.0, 0.0, 0.0], [30.0, 0.0, 20.0])
    """
    due: dict[int, int] = {}
    delivered: dict[int, int] = {}
    for start, curve in cells.items():
        due[start] = due.get(start, 0) + curve.delivered.total + curve.overdue.total
        places = (start + curve.delivered.values) // least_ms * least_ms
        for place, number in zip(places.tolist(), curve.delivered.counts.tolist(), strict=True):
            delivered[place] = delivered.get(place, 0) + number
    kinds = np.array([0, 1])
    both = {
        start: Histogram.from_columns(kinds, np.array([due.get(start, 0), delivered.get(start, 0)]))
        for start in {*due, *delivered}
    }
    width, found = coarser(both, _COLUMNS_MOST, least_ms)
    if not found:
        return [], [], []
    starts = list(range(min(found), max(found) + width, width))
    empty = Histogram.of({})
    seconds = width / 1_000
    first, second = (
        [float(one.counts[one.values == kind].sum()) / seconds for one in (found.get(start, empty) for start in starts)]
        for kind in (0, 1)
    )
    return starts, first, second


def rates_chart(
    cells: Mapping[str, Mapping[int, DrawnCurve]],
    least_ms: int,
    dress: Callable[[Axes, Sequence[int], Size], None],
) -> Chart | None:
    """Return a panel for each source, or None when nothing was due; ``dress`` makes the axis of time."""
    found = {source: rates_of(groups, least_ms) for source, groups in cells.items()}
    found = {source: rates for source, rates in found.items() if rates[0]}
    if not found:
        return None
    says = "; ".join(
        f"{source}: at most {count(round(max(due)))} due and {count(round(max(came)))} delivered a second"
        for source, (_, due, came) in found.items()
    )
    return Chart("rates", "Messages a second", f"{says}.", lambda size: _draw(size, found, dress))


def _draw(size: Size, rates: Mapping[str, Rates], dress: Callable[[Axes, Sequence[int], Size], None]) -> Figure:
    across = min(size.panels, len(rates))
    down = -(-len(rates) // across)
    figure = new_figure(size, 0.35 + 1.9 * down)
    grid = figure.subplots(down, across, squeeze=False, sharey=True)
    for number, axes in enumerate(grid.flat):
        if number >= len(rates):
            axes.set_visible(False)
    most = max(max(*due, *came) for _, due, came in rates.values())
    for axes, (source, (starts, due, came)) in zip(grid.flat, rates.items(), strict=False):
        quiet_axes(axes)
        for number, (name, values) in enumerate((("due", due), ("delivered", came))):
            style = style_of(number) | {"linewidth": 2.6 - 1.1 * number, "marker": "" if len(starts) > 1 else "o"}
            axes.step(np.asarray(starts), values, where="post", label=name, **style)
        axes.set_ylim(0, most * 1.08 or 1)
        axes.yaxis.set_major_formatter(lambda value, _: short_count(value))
        axes.set_title(size.short(source))
        dress(axes, starts, size)
    for row in grid:
        row[0].set_ylabel("messages a second")
    handles, names = grid.flat[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside upper left", ncols=2)
    return figure
