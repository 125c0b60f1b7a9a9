"""Charts that set systems beside each other: medians with their spread, curves over a number, given CCDFs.

A system has the same colour, dash, marker and hatch on the whole page (`Palette`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING

from bench.figures.text import short_count
from bench.report.charts.canvas import FAINT, INK, PAPER, Chart, Size, new_figure, quiet_axes, style_of
from bench.report.charts.ccdf import shares_axis
from bench.report.charts.scales import lateness_scale, set_ticks

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["Palette", "Raw", "given_ccdf_chart", "numbers_chart", "spread_chart"]

Palette = Mapping[str, int]
"""System to the number of its style."""

Raw = Mapping[str, Sequence[float]]
"""System to the figures of its repeats."""

_HATCHES = ("", "////", "....", "xxxx", "\\\\\\\\", "----", "++++")
_SPREAD = 30.0


def _said(raw: Raw, unit: str) -> str:
    return ", ".join(f"{system} {median(v):,.6g} ({min(v):,.6g} to {max(v):,.6g}) {unit}" for system, v in raw.items())


def spread_chart(
    key: str, title: str, unit: str, cases: Mapping[str, Raw], palette: Palette, more_is_better: bool
) -> Chart | None:
    """Return a group of rows for each case, a row for each system: median, smallest to largest, every figure.

    Bars on a linear axis, or points on a logarithmic one where figures lie further apart than bars can show; then
    figures of 0 stand at the foot of the axis.
    """
    found = {case: {s: list(v) for s, v in raw.items() if v} for case, raw in cases.items()}
    found = {case: raw for case, raw in found.items() if raw}
    if not found:
        return None
    says = "; ".join(f"{case}: {_said(raw, unit)}" for case, raw in found.items())
    better = "More" if more_is_better else "Less"
    return Chart(key, title, f"{says}. {better} is better.",
                 lambda size: _spread(size, title, unit, found, palette, f"{better.lower()} is better"))  # fmt: skip


def _spread(size: Size, title: str, unit: str, cases: Mapping[str, Raw], palette: Palette, better: str) -> Figure:
    rows = [(case, system, values) for case, raw in cases.items() for system, values in raw.items()]
    gaps = len(cases) - 1
    named = not any(cases)
    figure = new_figure(size, 0.8 + 0.2 * len(rows) + 0.18 * gaps + (0.0 if named else 0.16 * len(cases)))
    axes = figure.add_subplot()
    quiet_axes(axes, grid="x")
    middles = [median(values) for _, _, values in rows if median(values) > 0]
    most = max(max(values) for _, _, values in rows) or 1.0
    log = better.startswith("less") and bool(middles) and max(middles) / min(middles) > _SPREAD
    place, last, ticks, names = 0.0, None, [], []
    foot = min(middles) / 3 if log else 0.0
    for case, system, values in rows:
        if case != last and not named:
            place += 0.9
            axes.annotate(
                case, (0, place), xycoords=("axes fraction", "data"), xytext=(2, 0), textcoords="offset points",
                va="center", fontweight="bold", fontsize=7.5,
            )  # fmt: skip
        place += 1
        last = case
        _row(axes, place, values, palette.get(system, 0), log, foot)
        ticks.append(place)
        names.append(size.short(system))
    axes.set_yticks(ticks, names)
    axes.set_ylim(place + 0.7, (0.3 if named else 0.4))
    _figures_axis(axes, most, foot, log, size)
    axes.set_xlabel(f"{title}, {unit} ({better})")
    return figure


def _row(axes: Axes, place: float, values: Sequence[float], number: int, log: bool, foot: float) -> None:
    style = style_of(number)
    middle = median(values)
    low, high = max(min(values), foot), max(max(values), foot)
    if log:
        axes.plot([foot, max(middle, foot)], [place, place], color=FAINT, linewidth=0.8, zorder=1)
        axes.plot([max(middle, foot)], [place], color=style["color"], marker=style["marker"], markersize=6)
    else:
        hatch = _HATCHES[number % len(_HATCHES)]
        axes.barh(place, middle, 0.72, color=style["color"], hatch=hatch, edgecolor=INK, linewidth=0.4)
    if len(values) > 1:
        axes.plot([low, high], [place, place], color=INK, linewidth=1.1, marker="|", markersize=7, zorder=3)
    axes.annotate(
        _figure(middle), (high, place), (5, 0), textcoords="offset points", va="center", fontsize=7,
        annotation_clip=False, bbox={"facecolor": PAPER, "edgecolor": "none", "pad": 0.6},
    )  # fmt: skip


def _figures_axis(axes: Axes, most: float, foot: float, log: bool, size: Size) -> None:
    wide = size.panels > 1
    if log:
        axes.set_xscale("log")
        axes.set_xlim(foot, most * (4 if wide else 12))
        tens = [10.0**n for n in range(-9, 16) if foot <= 10.0**n <= most * 1.5]
        step = -(-len(tens) // (8 if wide else 4)) or 1
        set_ticks(axes, "x", tens[::step], [short_count(ten) for ten in tens[::step]])
        return
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axes.set_xlim(0, most * (1.16 if wide else 1.34))
    axes.xaxis.set_major_locator(MaxNLocator(6 if wide else 4))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: short_count(value)))


def _figure(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 or value == round(value) else f"{value:.3g}"


def numbers_chart(
    key: str, title: str, across: str, unit: str, lines: Mapping[str, Mapping[int, Sequence[float]]], palette: Palette
) -> Chart | None:
    """Return a curve for each system of medians over a number (how many are pending), with lines from min to max."""
    found = {s: {n: list(v) for n, v in sorted(points.items()) if v} for s, points in lines.items()}
    found = {system: points for system, points in found.items() if points}
    if not found:
        return None
    says = "; ".join(
        f"{system}: " + ", ".join(f"{median(v):,.6g} {unit} at {n:,}" for n, v in points.items())
        for system, points in found.items()
    )
    return Chart(
        key, title, f"{title} by {across}. {says}.", lambda size: _numbers(size, title, across, unit, found, palette)
    )


def _numbers(
    size: Size, title: str, across: str, unit: str, lines: Mapping[str, Mapping[int, list[float]]], palette: Palette
) -> Figure:
    wide = size.panels > 1
    figure = new_figure(size, 2.9)
    axes = figure.add_subplot()
    quiet_axes(axes)
    every = [value for points in lines.values() for values in points.values() for value in values]
    above = [value for value in every if value > 0]
    log = bool(above) and len(above) == len(every) and max(above) / min(above) > _SPREAD
    for system, points in lines.items():
        middles = [median(values) for values in points.values()]
        style = style_of(palette.get(system, 0))
        axes.plot(list(points), middles, label=size.short(system), **style)
        for number, values in points.items():
            axes.plot([number, number], [min(values), max(values)], color=style["color"], linewidth=0.9)
    axes.set_xscale("log")
    if log:
        axes.set_yscale("log")
        low, high = min(above) / 1.5, max(above) * 1.5
        axes.set_ylim(low, high)
        tens = [10.0**n for n in range(-9, 16) if low <= 10.0**n <= high]
        marks = tens if len(tens) > 1 else [step * 10.0**n for n in range(-9, 16) for step in (1, 2, 5)]
        inside = [mark for mark in marks if low <= mark <= high]
        set_ticks(axes, "y", inside, [short_count(mark) for mark in inside])
    else:
        axes.set_ylim(0, (max(every) or 1.0) * 1.12)
    numbers = sorted({number for points in lines.values() for number in points})
    axes.set_xlim(numbers[0] / 1.4, numbers[-1] * 1.4)
    set_ticks(axes, "x", numbers, [short_count(number) for number in numbers])
    axes.set_xlabel(across)
    axes.set_ylabel(f"{title}, {unit}" if len(title) < 30 else unit)
    figure.legend(loc="outside upper left", ncols=min(len(lines), 4 if wide else 2))
    return figure


def given_ccdf_chart(
    key: str, title: str, curves: Sequence[tuple[str, Sequence[float], Sequence[float]]], palette: Palette
) -> Chart | None:
    """Return CCDFs that are given as points: (system, lateness in ms, share later); repeats share a style."""
    found = [(system, list(x), list(y)) for system, x, y in curves if len(x)]
    if not found:
        return None
    latest: dict[str, float] = {}
    for system, x, _ in found:
        latest[system] = max(latest.get(system, 0.0), x[-1])
    says = "; ".join(f"{system}: latest {value:,.6g} ms" for system, value in latest.items())
    return Chart(key, title, f"Share of messages later than a given time. {says}.",
                 lambda size: _given_ccdf(size, found, palette))  # fmt: skip


def _given_ccdf(size: Size, curves: Sequence[tuple[str, list[float], list[float]]], palette: Palette) -> Figure:
    figure = new_figure(size, 3.5)
    axes = figure.add_subplot()
    quiet_axes(axes)
    lateness_scale(axes, "x", min(0.0, *(x[0] for _, x, _ in curves)), max(x[-1] for _, x, _ in curves),
                   10 if size.panels > 1 else 6)  # fmt: skip
    left = axes.get_xlim()[0]
    smallest = min((share for _, _, y in curves for share in y if share > 0), default=1.0)
    foot = smallest / 2
    named: set[str] = set()
    for system, x, y in curves:
        style = style_of(palette.get(system, 0))
        axes.plot(
            [left, *x], [1.0, *(max(share, foot) for share in y)], drawstyle="steps-post",
            label=None if system in named else size.short(system), markevery=max(1, len(x) // 8), **style,
        )  # fmt: skip
        named.add(system)
    shares_axis(axes, foot)
    axes.set_xlabel("later than")
    axes.set_ylabel("share of messages")
    figure.legend(loc="outside upper left", ncols=min(len(named), 4 if size.panels > 1 else 2))
    return figure
