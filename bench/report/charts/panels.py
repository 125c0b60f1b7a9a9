"""Percentiles by time, messages in the same second, delay, or millisecond of the second. A panel for each source.

Colour, dash and marker show the percentile. All panels share one axis of lateness: lower is better.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bench.report.charts.canvas import INK, Chart, Size, new_figure, quiet_axes, style_of
from bench.report.charts.histogram import Histogram
from bench.report.charts.scales import lateness_scale

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["LINES", "Grouped", "Panels", "panels_chart"]

Grouped = Mapping[str, Mapping[int, Histogram]]
"""Source to key (a minute, a class of delay...) to lateness."""

LINES = ("p50", "p90", "p99", "max")


@dataclass(frozen=True, slots=True)
class Panels:
    """How the x axis is made.

    ``place`` brings a key to its place on the axis; ``dress`` sets scale, ticks and label, given all places;
    ``straight`` asks for a linear axis of lateness; ``marks`` says whether single points are marked.
    """

    place: Callable[[int], float]
    dress: Callable[[Axes, Sequence[int], Size], None]
    straight: bool = False
    marks: bool = True
    lines: tuple[str, ...] = LINES
    limit_ms: int | None = None
    """Where a line is drawn: the limit of the target."""


def panels_chart(key: str, title: str, says: str, data: Grouped, how: Panels) -> Chart | None:
    """Return the chart, or None when no source has anything to show."""
    found = {source: {k: h for k, h in sorted(groups.items()) if h} for source, groups in data.items()}
    found = {source: groups for source, groups in found.items() if groups}
    if not found:
        return None
    return Chart(key, title, says, lambda size: _draw(size, found, how))


def _draw(size: Size, data: Grouped, how: Panels) -> Figure:
    across = min(size.panels, len(data))
    down = -(-len(data) // across)
    figure = new_figure(size, 0.35 + (2.6 if across > 1 or size.panels == 1 else 2.9) * down)
    grid = figure.subplots(down, across, squeeze=False, sharey=True)
    shown = [h.percentile(line) for groups in data.values() for h in groups.values() for line in how.lines]
    low, high = min(0, *shown), max(*shown, how.limit_ms or 0)
    for number, axes in enumerate(grid.flat):
        if number >= len(data):
            axes.set_visible(False)
    for axes, (source, groups) in zip(grid.flat, data.items(), strict=False):
        _panel(axes, source, groups, how, size)
        if how.straight:
            axes.set_ylim(min(0, low) - 0.03 * (high - low) - 0.5, high * 1.05 + 1)
        else:
            lateness_scale(axes, "y", low, high, 8)
    for row in grid:
        row[0].set_ylabel("lateness in ms" if how.straight else "lateness")
    handles, names = grid.flat[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside upper left", ncols=len(names) if size.panels > 1 else 3)
    return figure


def _panel(axes: Axes, source: str, groups: Mapping[int, Histogram], how: Panels, size: Size) -> None:
    quiet_axes(axes)
    places = [how.place(key) for key in groups]
    bounds = [{line: h.percentile(line) for line in how.lines} for h in groups.values()]
    few = len(places) <= (60 if size.panels == 1 else 80)
    for number, line in enumerate(how.lines):
        style = style_of(number)
        if not (how.marks and few):
            style["marker"] = "" if len(places) > 1 else style["marker"]
        # Later lines are thinner, so that all lines are seen where they coincide.
        style |= {"linewidth": 2.6 - 0.55 * number, "markersize": 5.6 - 0.9 * number}
        axes.plot(places, [found[line] for found in bounds], label=line, **style)
    if how.limit_ms is not None:
        axes.axhline(how.limit_ms, color=INK, linewidth=1.1, linestyle=(0, (4, 2)), label="limit", zorder=1.5)
    axes.set_title(size.short(source))
    how.dress(axes, list(groups), size)
