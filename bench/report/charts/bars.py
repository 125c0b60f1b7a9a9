"""Bars and rows: shares within a limit on an axis of nines, percentiles of named groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bench.figures.text import limit_text, percent
from bench.report.charts.canvas import INK, PAPER, SERIES, Chart, Size, new_figure, quiet_axes, style_of
from bench.report.charts.histogram import Histogram
from bench.report.charts.panels import LINES
from bench.report.charts.scales import lateness_scale, nines, nines_scale

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Limit", "rows_chart", "within_chart"]


@dataclass(frozen=True, slots=True)
class Limit:
    """A limit (ms): ``within`` of ``whole`` messages were within it."""

    limit_ms: int
    within: int
    whole: int


def within_chart(key: str, title: str, limits: Mapping[str, Sequence[Limit]], target: float) -> Chart | None:
    """Return shares within limits for each source against a target line (a share between 0 and 1), or None."""
    found = {source: [limit for limit in some if limit.whole] for source, some in limits.items()}
    found = {source: some for source, some in found.items() if some}
    if not found:
        return None
    says = "; ".join(
        f"{source}: " + ", ".join(f"{percent(x.within, x.whole)} within {limit_text(x.limit_ms)}" for x in some)
        for source, some in found.items()
    )
    return Chart(key, title, f"Share of messages within a limit. {says}.", lambda size: _within(size, found, target))


def _within(size: Size, limits: Mapping[str, Sequence[Limit]], target: float) -> Figure:
    bars = max(len(some) for some in limits.values())
    figure = new_figure(size, 0.8 + bars * (0.12 + 0.19 * len(limits)))
    axes = figure.add_subplot()
    quiet_axes(axes, grid="x")
    top = 3
    for some in limits.values():
        for limit in some:
            missing = limit.whole - limit.within
            top = max(top, min(6 if size.panels > 1 else 5, int(nines(missing / limit.whole)) + 1 if missing else 3))
    nines_scale(axes, top)
    thick = 0.8 / len(limits)
    for number, (source, some) in enumerate(limits.items()):
        for row, limit in enumerate(some):
            missing = limit.whole - limit.within
            long = min(nines(missing / limit.whole), top + 0.7) if missing else top + 1
            place = row + (number - (len(limits) - 1) / 2) * thick
            axes.barh(
                place, long, thick * 0.86, color=SERIES[number % len(SERIES)],
                label=size.short(source) if row == 0 else None,
                hatch=("", "////", "....", "xxxx")[number % 4], edgecolor=INK, linewidth=0.4,
            )  # fmt: skip
            axes.annotate(
                percent(limit.within, limit.whole), (max(0.0, long), place), (3, 0), textcoords="offset points",
                va="center", fontsize=7, annotation_clip=False,
                bbox={"facecolor": PAPER, "edgecolor": "none", "pad": 0.8},
            )  # fmt: skip
    axes.axvline(
        nines(1 - target),
        color=INK,
        linewidth=1.1,
        linestyle=(0, (4, 2)),
        zorder=2.5,
        label=f"target {target * 100:g} %",
    )
    axes.set_xlim(0, top + 1)
    names = next(iter(limits.values()))
    axes.set_yticks(range(len(names)), [f"within {limit_text(limit.limit_ms)}" for limit in names])
    axes.invert_yaxis()
    figure.legend(loc="outside upper left", ncols=3 if size.panels > 1 else 1)
    return figure


def rows_chart(key: str, title: str, says: str, rows: Sequence[tuple[str, Histogram]]) -> Chart | None:
    """Return a row for each group with its p50, p90, p99 and largest lateness on one axis; None when all are empty."""
    found = [(name, histogram) for name, histogram in rows if histogram]
    if not found:
        return None
    return Chart(key, title, says, lambda size: _rows(size, found))


def _rows(size: Size, rows: Sequence[tuple[str, Histogram]]) -> Figure:
    wide = size.panels > 1
    figure = new_figure(size, 0.75 + (0.26 if wide else 0.4) * len(rows))
    axes = figure.add_subplot()
    quiet_axes(axes)
    low = min(0, *(h.percentile("p50") for _, h in rows))
    high = max(h.largest for _, h in rows)
    lateness_scale(axes, "x", low, high, 10 if wide else 6)
    for place, (_, histogram) in enumerate(rows):
        axes.plot([histogram.percentile("p50"), histogram.largest], [place, place], color=INK, linewidth=0.6, zorder=1)
    for number, line in reversed(list(enumerate(LINES))):
        style = style_of(number)
        axes.plot(
            [h.percentile(line) for _, h in rows], range(len(rows)), color=style["color"], marker=style["marker"],
            linestyle="none", label=line, markersize=5.5 - 0.3 * number,
        )  # fmt: skip
    names = [size.short(name) if wide else _on_two_lines(size, name) for name, _ in rows]
    axes.set_yticks(range(len(rows)), names)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlabel("lateness")
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles[::-1], labels[::-1], loc="outside upper left", ncols=len(LINES))
    return figure


def _on_two_lines(size: Size, name: str) -> str:
    head, _, tail = name.partition(", ")
    return f"{size.short(head)}\n{size.short(tail)}" if tail else size.short(name)
