"""A heat map: time on the x axis, lateness on the y axis, messages per cell as one of seven shades, a decade each.

The shades are steps, so a cell can be read off the legend. Even a single message has a visible shade.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from bench.figures.text import count, short_count, short_ms, utc
from bench.report.charts.canvas import HEAT, Chart, Size, boxes, key_boxes, new_figure, quiet_axes
from bench.report.charts.histogram import Histogram, Integers, merged
from bench.report.charts.scales import lateness_scale, time_scale

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["MINUTE_MS", "coarser", "column_width", "heatmap_chart", "row_edges"]

MINUTE_MS = 60_000
_WIDTHS_MS = (
    *(1_000 * n for n in (1, 2, 5, 10, 20, 30)),
    *(
        MINUTE_MS * n
        for n in (1, 2, 5, 10, 15, 30, 60, 120, 180, 360, 720, 1_440, 2_880, 7_200, 14_400, 43_200, 144_000)
    ),
    525_600 * MINUTE_MS,
)


def column_width(span_ms: int, at_most: int, least_ms: int = MINUTE_MS) -> int:
    """Return the width in ms of at most ``at_most`` columns over a span; it is a multiple of ``least_ms``.

    >>> column_width(30 * 86_400_000, 1_500) // MINUTE_MS
    30
    """
    width = next((w for w in _WIDTHS_MS if w % least_ms == 0 and span_ms // w + 2 <= at_most), None)
    return width or -(-span_ms // (at_most - 2) // least_ms) * least_ms


def coarser(
    cells: Mapping[int, Histogram], at_most: int, least_ms: int = MINUTE_MS
) -> tuple[int, dict[int, Histogram]]:
    """Merge columns of ``least_ms`` (keyed by their start in ms) into at most ``at_most`` wider ones.

    Returns the width in ms and the columns by their start.
    """
    if not cells:
        return least_ms, {}
    width = column_width(max(cells) - min(cells), at_most, least_ms)
    parts: dict[int, list[Histogram]] = {}
    for start, histogram in cells.items():
        parts.setdefault(start // width * width, []).append(histogram)
    return width, {start: merged(found) for start, found in sorted(parts.items())}


def row_edges(low: int, high: int) -> list[float]:
    """Return the edges of the rows: one row for each of -1, 0 and 1 ms, three or so a decade beyond, both sides.

    Every whole number from ``low`` to ``high`` lies in exactly one row.
    """
    steps = [1]
    while steps[-1] <= max(abs(low), abs(high)):
        power = 10 ** (len(str(steps[-1])) - 1)
        steps.append({1: 2, 2: 5, 5: 10}[steps[-1] // power] * power)
    positive = [step - 0.5 for step in steps]
    edges = [-edge for edge in reversed(positive)] + positive
    first = max(0, int(np.searchsorted(edges, low, side="right")) - 1)
    last = int(np.searchsorted(edges, high, side="left"))
    return edges[first : last + 1]


def heatmap_chart(key: str, title: str, cells: Mapping[int, Histogram], least_ms: int = MINUTE_MS) -> Chart | None:
    """Return the chart of one source from {start of a cell in epoch ms: lateness}; None when it is empty.

    ``least_ms`` is the length of a cell.
    """
    found = {start: histogram for start, histogram in cells.items() if histogram}
    if not found:
        return None
    everything = merged(found.values())
    says = (
        f"How many messages were how late, by due time, {utc(min(found))} to {utc(max(found))}: "
        f"{count(everything.total)} messages, from {count(int(everything.values[0]))} to "
        f"{count(everything.largest)} ms late."
    )
    return Chart(key, title, says, lambda size: _draw(size, title, found, least_ms))


def _draw(size: Size, title: str, cells: Mapping[int, Histogram], least_ms: int) -> Figure:
    width, columns = coarser(cells, 120 if size.panels > 1 else 60, least_ms)
    low = min(int(h.values[0]) for h in columns.values())
    high = max(h.largest for h in columns.values())
    edges = row_edges(low, high)
    shades = {start: _shades(histogram, edges) for start, histogram in columns.items()}
    figure = new_figure(size, 3.0)
    axes = figure.add_subplot()
    quiet_axes(axes)
    lateness_scale(axes, "y", min(low, edges[0] / 1.6), edges[-1] / 1.6, 8)
    time_scale(axes, min(columns), max(columns) + width, 7 if size.panels > 1 else 3)
    _cells(axes, shades, edges, width)
    axes.set_ylabel("lateness")
    axes.set_title(size.short(title))
    _legend(figure, max(int(s.max()) for s in shades.values()), width, 7 if size.panels > 1 else 3)
    return figure


def _shades(histogram: Histogram, edges: list[float]) -> Integers:
    """For each row, 0 for no message, else 1 for 1-9, 2 for 10-99 and so on, 7 at most."""
    rows = np.searchsorted(np.asarray(edges), histogram.values, side="right") - 1
    sums = np.zeros(len(edges) - 1, np.int64)
    np.add.at(sums, rows, histogram.counts)
    return np.array([min(len(str(int(n))), len(HEAT)) if n else 0 for n in sums], np.int64)


def _cells(axes: Axes, shades: Mapping[int, Integers], edges: list[float], width: int) -> None:
    starts = sorted(shades)
    found: dict[int, list[tuple[float, float, float, float]]] = {}
    for row in range(len(edges) - 1):
        run: tuple[int, int, int] | None = None
        for start in starts:
            shade = int(shades[start][row])
            if run is not None and run[2] == shade and run[1] == start:
                run = (run[0], start + width, shade)
                continue
            if run is not None and run[2]:
                found.setdefault(run[2], []).append((run[0], edges[row], run[1], edges[row + 1]))
            run = (start, start + width, shade)
        if run is not None and run[2]:
            found.setdefault(run[2], []).append((run[0], edges[row], run[1], edges[row + 1]))
    for shade, corners in found.items():
        boxes(axes, corners, HEAT[shade - 1])


def _legend(figure: Figure, most: int, width: int, columns: int) -> None:
    names = []
    for shade in range(1, most + 1):
        low = short_count(10.0 ** (shade - 1))
        last = shade == len(HEAT)
        names.append((HEAT[shade - 1], f"{low} or more" if last else f"{low} to {_below(shade)}"))
    span = {1_000: "a second", MINUTE_MS: "a minute"}.get(width, short_ms(width))
    key_boxes(figure, names, f"messages due in {span}", columns)


def _below(shade: int) -> str:
    """The largest count of a shade: 9, 99, 999, then "<10k" and so on."""
    return str(10**shade - 1) if shade < 4 else f"<{short_count(10.0**shade)}"
