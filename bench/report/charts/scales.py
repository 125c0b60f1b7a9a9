"""Axes that people can read: lateness from "2 s early" over 0 to days, times of day in UTC, counts, shares in nines.

Lateness axes are linear between -1 and 1 ms and logarithmic beyond, on both sides. So 0 and early messages, which a
logarithm cannot show, have a place.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Literal

from bench.figures.text import short_count, short_ms, utc_from_ms
from bench.report.charts.canvas import INK

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.lines import Line2D

__all__ = [
    "bent",
    "between_ticks",
    "count_scale",
    "lateness_scale",
    "lateness_ticks",
    "nines",
    "nines_scale",
    "set_ticks",
    "spread",
    "time_scale",
]

Which = Literal["x", "y"]

_DAY_MS = 86_400_000
_YEAR_MS = 31_557_600_000
_MARKS_MS = (
    1, 10, 100, 1_000, 10_000, 60_000, 600_000, 3_600_000, 36_000_000, _DAY_MS, 10 * _DAY_MS, 100 * _DAY_MS,
    _YEAR_MS, 10 * _YEAR_MS, 100 * _YEAR_MS, 1_000 * _YEAR_MS, 10_000 * _YEAR_MS, 10**6 * _YEAR_MS, 10**8 * _YEAR_MS,
)  # fmt: skip
_BETWEEN_MS = (
    2, 5, 20, 50, 200, 500, 2_000, 5_000, 20_000, 30_000, 120_000, 300_000, 1_200_000, 1_800_000, 7_200_000, 18_000_000,
    2 * _DAY_MS, 5 * _DAY_MS, 20 * _DAY_MS, 50 * _DAY_MS,
)  # fmt: skip
"""Values between the marks, named if there is room."""
_DECADES_TICKED = 10
"""With more decades, small ticks would be a grey bar."""
_DECADES_IN_NINE = 5
"""Up to so many decades each has all its small ticks, 2 to 9; with more, 2 and 5, which can be told apart."""
_TIME_STEPS_MS = (
    1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 30_000, 60_000, 120_000, 300_000, 600_000,
    1_200_000, 1_800_000, 3_600_000, 7_200_000, 10_800_000, 21_600_000, 43_200_000, _DAY_MS, 2 * _DAY_MS, 5 * _DAY_MS,
    10 * _DAY_MS, 20 * _DAY_MS, 50 * _DAY_MS, 100 * _DAY_MS, 200 * _DAY_MS,
)  # fmt: skip


def bent(value: float) -> float:
    """The place of a lateness on its axis: itself within one millisecond, 1 + log10 beyond."""
    return math.copysign(1 + math.log10(abs(value)), value) if abs(value) > 1 else value


def _straight(place: float) -> float:
    return math.copysign(10 ** (abs(place) - 1), place) if abs(place) > 1 else place


def spread(marks: Iterable[float], gap: float, first: Sequence[float] = ()) -> list[float]:
    """Return the marks (places on an axis) that are at least ``gap`` apart; those of ``first`` win over others."""
    kept = sorted(first)
    for mark in sorted(marks):
        if all(abs(mark - other) >= gap for other in kept):
            kept.append(mark)
    return sorted(kept)


def lateness_ticks(low_ms: float, high_ms: float, at_most: int) -> list[float]:
    """Return values for the named ticks of a lateness axis, 0 among them when it is on the axis.

    Powers of ten come first, then values between them if there is room.
    """
    low, high = bent(low_ms), bent(high_ms)
    marks, between = (
        [place for mark in some for sign in (1, -1) if low <= (place := bent(sign * mark)) <= high]
        for some in (_MARKS_MS, _BETWEEN_MS)
    )
    zero = [0.0] if low <= 0 <= high else []
    gap = (high - low) / max(1, at_most)
    return [_straight(place) for place in spread(between, gap, spread(marks, gap, zero))]


def between_ticks(low_ms: float, high_ms: float) -> list[float]:
    """Return values for the small ticks between decades, on both sides: 2, 3, … 9 times each power of ten, or only 2
    and 5 times where decades are many."""
    top = math.ceil(math.log10(max(abs(low_ms), abs(high_ms), 10)))
    sizes = _small_ticks(top)
    return [value for size in sizes for value in (-size, size) if low_ms <= value <= high_ms]


def set_ticks(
    axes: Axes, which: Which, values: Sequence[float], names: Sequence[str], between: Sequence[float] = ()
) -> None:
    """Put named ticks on an axis, small ones without names at ``between`` (within its ends), and no others.

    All small ones are one line of markers: as ticks of matplotlib each would be five artists, and they would take most
    of the time of a page.
    """
    from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator

    axis = axes.xaxis if which == "x" else axes.yaxis
    axis.set_major_locator(FixedLocator(list(values)))
    axis.set_major_formatter(FixedFormatter(list(names)))
    axis.set_minor_locator(NullLocator())
    if between:
        axes.add_artist(_ticks_line(axes, which, between))


def _ticks_line(axes: Axes, which: Which, places: Sequence[float]) -> Line2D:
    from matplotlib.lines import Line2D as NewLine
    from matplotlib.markers import TICKDOWN, TICKLEFT

    at_edge = [0.0] * len(places)
    along = which == "x"
    line = NewLine(
        places if along else at_edge,
        at_edge if along else places,
        transform=axes.get_xaxis_transform() if along else axes.get_yaxis_transform(),
        linestyle="none",
        marker=TICKDOWN if along else TICKLEFT,
        markersize=2,
        markeredgewidth=0.4,
        color=INK,
        clip_on=False,
    )
    line.set_in_layout(False)
    return line


def lateness_scale(axes: Axes, which: Which, low_ms: float, high_ms: float, at_most: int = 9) -> None:
    """Make an axis one of lateness that holds both ends; shows at least -0.5 to 10 ms."""
    low = min(-0.5, low_ms * 1.6 if low_ms < 0 else low_ms)
    high = max(10.0, high_ms * 1.6)
    if which == "x":
        axes.set_xscale("symlog", linthresh=1, linscale=1)
        axes.set_xlim(low, high)
    else:
        axes.set_yscale("symlog", linthresh=1, linscale=1)
        axes.set_ylim(low, high)
    ticks = lateness_ticks(low, high, at_most)
    set_ticks(axes, which, ticks, [short_ms(tick) for tick in ticks], between_ticks(low, high))


def count_scale(axes: Axes, which: Which, high: int) -> None:
    """Give an axis a logarithmic scale for counts from 1 on; a count of 0 is drawn at its foot."""
    top = max(1, math.ceil(math.log10(max(1, high))))
    step = max(1, math.ceil(top / 5))
    values = [float(10**power) for power in range(0, top + 1, step)]
    if which == "x":
        axes.set_xscale("log")
    else:
        axes.set_yscale("log")
    names = [short_count(value) for value in values]
    set_ticks(axes, which, values, names, [value for value in _small_ticks(top) if value <= high])


def _small_ticks(decades: int) -> list[float]:
    if decades > _DECADES_TICKED:
        return []
    steps: Iterable[int] = range(2, 10) if decades <= _DECADES_IN_NINE else (2, 5)
    return [float(step * 10**power) for power in range(decades) for step in steps]


def time_scale(axes: Axes, low_ms: int, high_ms: int, at_most: int) -> None:
    """Make the x axis one of epoch milliseconds, ticks at whole units of UTC, the date at the first of a day."""
    span = max(1, high_ms - low_ms)
    step = next((s for s in _TIME_STEPS_MS if span / s <= at_most), None)
    if step is None:
        step = math.ceil(span / at_most / _YEAR_MS) * 365 * _DAY_MS
    ticks = list(range(-(-low_ms // step) * step, high_ms + 1, step))
    if len(ticks) < 2:
        ticks = [low_ms, high_ms] if high_ms > low_ms else [low_ms]
        step = min(step, 1_000)
    names, day = [], ""
    for tick in ticks:
        moment = utc_from_ms(tick)
        if moment is None:
            names.append(f"{tick} ms")
            continue
        date = f"{moment:%Y-%m-%d}"
        if step >= _DAY_MS:
            names.append(date)
            continue
        clock = f"{moment:%H:%M}" if step >= 60_000 else f"{moment:%H:%M:%S}"
        if step < 1_000:
            clock = f"{moment:%H:%M:%S}.{moment.microsecond // 1_000:03d}"
        names.append(clock if date == day else f"{clock}\n{date}")
        day = date
    axes.set_xlim(low_ms, high_ms if high_ms > low_ms else low_ms + 1)
    set_ticks(axes, "x", [float(tick) for tick in ticks], names)


def nines(share_missing: float) -> float:
    """The place of a share on an axis of nines: 0 for nothing, 1 for 90 %, 2 for 99 %, and so on."""
    return -math.log10(share_missing)


def nines_scale(axes: Axes, top: int) -> None:
    """Make the x axis one of nines, in percent, up to ``top`` nines, with 100 behind them."""
    names = ["0", "90", "99"] + [f"99.{'9' * (n - 2)}" for n in range(3, top + 1)]
    axes.set_xlim(0, top + 1)
    axes.set_xlabel("percent of messages")
    set_ticks(axes, "x", [*range(top + 1), top + 1.0], [*names[: top + 1], "100"])
