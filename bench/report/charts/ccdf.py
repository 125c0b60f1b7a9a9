"""How many messages were later than x: one falling curve for each source, both axes logarithmic.

Overdue messages are in the curve with their lateness so far; triangles mark them. From the first of these on, the curve
means "at least". Without them, a broker would look better the more it withholds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from bench.figures.text import count, limit_text, milliseconds, short_ms
from bench.report.charts.canvas import INK, SERIES, Chart, Size, new_figure, quiet_axes, style_of
from bench.report.charts.histogram import EMPTY, Histogram, merged
from bench.report.charts.scales import bent, lateness_scale, set_ticks

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["DrawnCurve", "ccdf_chart", "shares_axis", "steps"]

_COLUMNS = 600


@dataclass(frozen=True, slots=True)
class DrawnCurve:
    """The data of one curve: lateness of delivered messages, and of overdue ones so far, in ms."""

    delivered: Histogram
    overdue: Histogram = EMPTY

    @property
    def all(self) -> Histogram:
        """Both together; the overdue ones count as late as they are so far."""
        return merged((self.delivered, self.overdue))


def ccdf_chart(
    key: str, title: str, curves: Mapping[str, DrawnCurve], target: tuple[float, int] | None = None
) -> Chart | None:
    """Return the chart, or None when no curve holds anything; ``target`` (share, limit in ms) is drawn as a corner."""
    found = {name: curve for name, curve in curves.items() if curve.all}
    if not found:
        return None
    says = "; ".join(
        f"{name}: of {count(all_.total)}, one in 100 later than {milliseconds(all_.percentile('p99'))}, "
        f"latest {milliseconds(all_.largest)}"
        for name, all_ in ((name, curve.all) for name, curve in found.items())
    )
    return Chart(
        key, title, f"Share of messages later than a given time. {says}.", lambda size: _draw(size, found, target)
    )


def steps(histogram: Histogram, low: float) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return x and y of a CCDF as steps-post takes them: y is the share of values above x, ending at 0.

    Of the points in one 600th of the axis only the first and the last are kept, which changes no pixel.
    """
    total = histogram.total
    x = np.concatenate([[low], histogram.values.astype(np.float64)])
    y = np.concatenate([[1.0], histogram.later_than() / total])
    if x.size <= 2 * _COLUMNS:
        return x, y
    places = np.array([bent(value) for value in (x[0], x[-1])])
    size = np.where(np.abs(x) > 1, np.sign(x) * (1 + np.log10(np.maximum(np.abs(x), 1))), x)
    column = np.floor((size - places[0]) / (places[1] - places[0]) * _COLUMNS)
    edge = np.flatnonzero(np.diff(column)) if column.size else np.zeros(0, np.int64)
    kept = np.unique(np.concatenate([[0], edge, edge + 1, [x.size - 1]]))
    return x[kept], y[kept]


def _draw(size: Size, curves: Mapping[str, DrawnCurve], target: tuple[float, int] | None) -> Figure:
    figure = new_figure(size, 3.9 if size.panels > 1 else 3.6)
    axes = figure.add_subplot()
    quiet_axes(axes)
    everything = {name: curve.all for name, curve in curves.items()}
    low = min(0, *(int(all_.values[0]) for all_ in everything.values()))
    high = max(all_.largest for all_ in everything.values())
    high = max(high, target[1]) if target else high
    lateness_scale(axes, "x", low, high, 10 if size.panels > 1 else 6)
    foot = 0.5 / max(all_.total for all_ in everything.values())
    left = axes.get_xlim()[0]
    for number, (name, curve) in enumerate(curves.items()):
        _curve(axes, number, size.short(name), curve, left, foot)
    shares_axis(axes, foot)
    if target:
        _corner(axes, target, foot)
    if left < -1:
        axes.axvline(0, color=INK, linewidth=0.6)
        axes.text(-0.5, foot * 1.3, "early ", ha="right", va="bottom", fontsize=7)
    axes.set_xlabel("later than")
    axes.set_ylabel("share of messages")
    figure.legend(loc="outside upper left", ncols=1 if size.panels == 1 else 2)
    return figure


def _curve(axes: Axes, number: int, name: str, curve: DrawnCurve, left: float, foot: float) -> None:
    all_ = curve.all
    x, y = steps(all_, left)
    y = np.maximum(y, foot)
    label = f"{name}: {count(all_.total)}, latest {short_ms(all_.largest)}"
    style = style_of(number)
    marker = style.pop("marker")
    axes.plot(x, y, drawstyle="steps-post", label=label, marker=marker, markevery=_markers(x), **style)
    if curve.overdue:
        at = curve.overdue.values
        at = at[np.unique(np.linspace(0, at.size - 1, min(at.size, 25)).astype(np.int64))]
        above = np.array([(all_.total - all_.at_most(int(value) - 1)) / all_.total for value in at])
        axes.plot(
            at, np.maximum(above, foot), linestyle="none", marker=">", markerfacecolor="none", markersize=6,
            color=SERIES[number % len(SERIES)], label=f"{name}: {count(curve.overdue.total)} overdue so far",
        )  # fmt: skip


def _corner(axes: Axes, target: tuple[float, int], foot: float) -> None:
    """The target: a curve that meets it passes left of and below the corner."""
    share, limit_ms = target
    may, right = max(1 - share, foot), axes.get_xlim()[1]
    axes.plot(
        [limit_ms, limit_ms, right], [1.6, may, may], color=INK, linewidth=1.1, linestyle=(0, (4, 2)),
        label=f"target: {share * 100:g} % within {limit_text(limit_ms)}",
    )  # fmt: skip


def _markers(x: npt.NDArray[np.float64]) -> list[int]:
    """Some eight places spread over the axis, the last point among them."""
    places = np.array([bent(float(value)) for value in x])
    wanted = np.linspace(places[0], places[-1], 9)[1:]
    return [int(n) for n in np.unique(np.clip(np.searchsorted(places, wanted), 0, x.size - 1))]


def shares_axis(axes: Axes, foot: float) -> None:
    """Make the y axis one of shares down to ``foot``: all, 1 in 10, 1 in 100 and so on."""
    axes.set_yscale("log")
    axes.set_ylim(foot, 1.6)
    powers = list(range(int(np.floor(-np.log10(foot))) + 1))
    step = max(1, -(-len(powers) // 9))
    shown = powers[::step]
    names = {0: "all", 1: "1 in 10", 2: "1 in 100"}
    small = [step * 10.0**-p for p in powers[1:] for step in range(2, 10)] if len(powers) <= 10 else []
    set_ticks(axes, "y", [10.0**-p for p in shown], [names.get(p, f"1 in {_power(p)}") for p in shown], small)


def _power(power: int) -> str:
    units = ("", "k", "M", "G", "T", "P", "E")
    return f"{10 ** (power % 3)}{units[power // 3]}"
