"""The middle of the lateness page: lateness over time, by crowd, by requested delay, within the second, by topic."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from bench.figures.text import count, milliseconds, name_text, short_count, short_ms, utc
from bench.lateness.results.result import KIND_LEVEL, NOT_AFTER_HOT
from bench.report.charts.bars import rows_chart
from bench.report.charts.canvas import INK, Chart, Size, new_figure, quiet_axes
from bench.report.charts.ccdf import DrawnCurve
from bench.report.charts.heatmap import MINUTE_MS, coarser
from bench.report.charts.histogram import Histogram, merged
from bench.report.charts.panels import Grouped, Panels, panels_chart
from bench.report.charts.rates import rates_chart
from bench.report.charts.scales import bent, count_scale, set_ticks, spread, time_scale
from bench.report.pieces.page import Cell, Html, details, figure, joined, note, table
from bench.report.pieces.tables import Groups

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["MOST_ROWS", "crowds", "ms_in_second", "over_time", "requested", "topics"]

MOST_ROWS = 24
"""So many topics have a row each, those with the most messages; all others share one."""
_BIN_MS = 10


def _says(what: str, data: Grouped) -> str:
    parts = [
        f"{source}: p99 between {milliseconds(min(found))} and {milliseconds(max(found))}"
        for source, groups in data.items()
        if (found := [h.percentile("p99") for h in groups.values() if h])
    ]
    return f"Percentiles of lateness {what}. {'; '.join(parts)}."


def _listed(summary: str, head: str, data: Grouped, name: Mapping[int, str]) -> Html:
    """The figures behind a chart, closed at first."""
    rows: list[list[str | Cell]] = [
        [
            source,
            Cell(name[key], key),
            count(h.total),
            *("-" if v is None else f"{v:,}" for v in h.percentiles().values()),
        ]
        for source, groups in data.items()
        for key, h in groups.items()
    ]
    heads = ("source", head, "messages", "p50", "p90", "p99", "p99.9", "p99.99", "max")
    return details(f"{summary}: the figures, in ms", table("", heads, rows, sorts=True)) if rows else Html("")


def over_time(cells: Groups, least_ms: int, limit_ms: int) -> Html:
    """Draw percentiles by the cell of time in which messages were due, and how many of each are overdue.

    ``least_ms`` is the length of a cell, ``limit_ms`` that of the target.
    """
    columns: dict[str, dict[int, Histogram]] = {}
    overdue: dict[str, dict[int, int]] = {}
    width = 0
    for source, groups in cells.items():
        span, found = coarser({start: curve.delivered for start, curve in groups.items()}, 120, least_ms)
        columns[source] = {start: histogram for start, histogram in found.items() if histogram}
        late = {start: curve.overdue for start, curve in groups.items() if curve.overdue}
        overdue[source] = {start: h.total for start, h in coarser(late, 120, least_ms)[1].items()}
        width = max(width, span)
    how = Panels(place=float, dress=_dress_time, limit_ms=limit_ms)
    title = "Percentiles over time"
    unit = {1_000: "second", MINUTE_MS: "minute"}.get(width, short_ms(width))
    parts = [
        figure(
            panels_chart("time", title, _says("over time", columns), columns, how),
            f"By due time (UTC), a point for each {unit}. The dashed line is the limit of the target.",
            "Nothing was delivered.",
        ),
        figure(
            rates_chart(cells, least_ms, _dress_time),
            "Messages due and delivered per second. A delivery is drawn at its due time plus its lateness, exact to a "
            "cell of time. A message that was due and not delivered is overdue.",
            "Nothing was due.",
        ),
    ]
    total = sum(sum(numbers.values()) for numbers in overdue.values())
    chart = _overdue_chart(overdue) if total else None
    why = "No message is overdue."
    parts.append(figure(chart, f"{count(total)} messages are overdue: by the time at which they were due.", why))
    return joined(parts)


def _dress_time(axes: Axes, keys: Sequence[int], size: Size) -> None:
    time_scale(axes, min(keys), max(keys), 3 if size.panels > 1 else 4)
    if len(keys) > 1:
        margin = (max(keys) - min(keys)) * 0.03
        axes.set_xlim(min(keys) - margin, max(keys) + margin)
    else:
        axes.set_xlim(keys[0] - 60_000, keys[0] + 60_000)


def _overdue_chart(overdue: Mapping[str, Mapping[int, int]]) -> Chart:
    found = {source: dict(sorted(counts.items())) for source, counts in overdue.items() if counts}
    says = "; ".join(
        f"{source}: {count(sum(counts.values()))} overdue, due from {utc(min(counts))}"
        for source, counts in found.items()
    )
    return Chart("overdue", "Overdue messages", f"{says}.", lambda size: _draw_overdue(size, found))


def _draw_overdue(size: Size, overdue: Mapping[str, Mapping[int, int]]) -> Figure:
    across = min(size.panels, len(overdue))
    down = -(-len(overdue) // across)
    drawing = new_figure(size, 0.2 + 1.7 * down)
    grid = drawing.subplots(down, across, squeeze=False, sharey=True)
    most = max(n for counts in overdue.values() for n in counts.values())
    for number, axes in enumerate(grid.flat):
        if number >= len(overdue):
            axes.set_visible(False)
    for axes, (source, counts) in zip(grid.flat, overdue.items(), strict=False):
        quiet_axes(axes, grid="y")
        axes.vlines(list(counts), 0.5 if most > 50 else 0, list(counts.values()), color=INK, linewidth=2.2)
        axes.plot(list(counts), list(counts.values()), linestyle="none", marker="o", markersize=3, color=INK)
        if most > 50:
            count_scale(axes, "y", most)
        axes.set_ylim(*((0.5, most * 2.5) if most > 50 else (0, most * 1.15)))
        _dress_time(axes, list(counts), size)
        axes.set_title(f"{size.short(source)}: overdue")
    for row in grid:
        row[0].set_ylabel("messages")
    return drawing


def crowds(by_crowd: Grouped, after_hot: Grouped, hot_from: Mapping[str, int]) -> Html:
    """Draw lateness against how many were due in the same second, and in the ten seconds after a hot one."""
    sizes = sorted({key for groups in by_crowd.values() for key in groups})
    how = Panels(place=bent, dress=_dress_crowd)
    hot = {source: {k: h for k, h in groups.items() if k != NOT_AFTER_HOT} for source, groups in after_hot.items()}
    words = ", ".join(f"{source} {count(least)}" for source, least in hot_from.items())
    seconds = {key: "in it" if key == 0 else f"{key} s after" for groups in hot.values() for key in groups}
    after = Panels(place=float, dress=_dress_after)
    return joined([
        figure(
            panels_chart("crowd", "By crowd", _says("by the number due in the same second", by_crowd), by_crowd, how),
            "By the number of messages of the same source that were due in the same second.",
            "Nothing was delivered.",
        ),
        _listed("By the number due in the second", "due in it", by_crowd, {n: f"{count(n)} or more" for n in sizes}),
        note(f"Messages due in a second that make it hot, at least: {words}." if words else "No source was read."),
        figure(
            panels_chart("after-hot", "After a hot second", _says("in and after hot seconds", hot), hot, after),
            "In a hot second, and in each of the ten seconds after it.",
            "No second was hot: nothing to compare.",
        ),
        _listed("In and after hot seconds", "due", hot, seconds),
    ])  # fmt: skip


def _dress_crowd(axes: Axes, keys: Sequence[int], size: Size) -> None:
    _classes(axes, keys, [short_count(key) for key in keys], 8 if size.panels == 1 else 6)
    axes.set_xlabel("due in the same second")


def _dress_after(axes: Axes, keys: Sequence[int], size: Size) -> None:  # noqa: ARG001
    axes.set_xlim(-0.5, 10.5)
    set_ticks(axes, "x", [0, *range(2, 11, 2)], ["hot", *(f"+{n} s" for n in range(2, 11, 2))])


def _classes(axes: Axes, keys: Sequence[int], names: Sequence[str], at_most: int) -> None:
    """Tick the lower bounds of classes, as many as have room."""
    by_place = {bent(key): name for key, name in zip(keys, names, strict=True)}
    gap = max(0.05, (max(by_place) - min(by_place)) / at_most)
    tens = [place for place in by_place if place == round(place)]
    shown = spread(by_place, gap, spread(tens, gap))
    set_ticks(axes, "x", shown, [by_place[place] for place in shown])
    axes.set_xlim(min(by_place) - 0.2, max(by_place) + 0.2)


def requested(data: Grouped) -> Html:
    """Draw lateness by the delay that was asked for, by classes of it."""
    keys = sorted({key for groups in data.values() for key in groups})
    how = Panels(place=bent, dress=_dress_requested)
    return joined([
        figure(
            panels_chart("delay", "By requested delay", _says("by requested delay", data), data, how),
            "By the delay from birth to due time, or the delay of the level: lower bound of each class.",
            "Nothing was delivered.",
        ),
        _listed("By requested delay", "delay", data, {key: f"{short_ms(key)} or more" for key in keys}),
    ])  # fmt: skip


def _dress_requested(axes: Axes, keys: Sequence[int], size: Size) -> None:
    _classes(axes, keys, [short_ms(key) for key in keys], 6 if size.panels == 1 else 5)
    axes.set_xlabel("requested delay, at least")


def ms_in_second(data: Grouped) -> Html:
    """Draw lateness by the due time's millisecond within its second, ten milliseconds to a point."""
    bins: dict[str, dict[int, Histogram]] = {}
    for source, groups in data.items():
        parts: dict[int, list[Histogram]] = {}
        for millisecond, histogram in groups.items():
            parts.setdefault(millisecond // _BIN_MS * _BIN_MS, []).append(histogram)
        bins[source] = {start: merged(found) for start, found in sorted(parts.items())}
    how = Panels(place=lambda start: start + _BIN_MS / 2, dress=_dress_ms, straight=True, lines=("p50", "p90", "p99"))
    chart = panels_chart("ms", "Within the second", _says("by millisecond within the second", bins), bins, how)
    caption = (
        "By due time modulo 1,000 ms, ten milliseconds to a point. The axis of lateness is linear and ends at the "
        "largest p99. A broker that works in slots of a second shows a ramp: a message due early in a slot waits for "
        "the end of the slot."
    )
    return figure(chart, caption, "Nothing was delivered.")


def _dress_ms(axes: Axes, keys: Sequence[int], size: Size) -> None:  # noqa: ARG001
    axes.set_xlim(0, 1000)
    set_ticks(axes, "x", [0, 250, 500, 750, 1000], ["0", "250", "500", "750", "1,000"])
    axes.set_xlabel("ms within the second of the due time")


def topics(groups: Groups) -> Html:
    """Draw and list lateness by source, topic and level; beyond `MOST_ROWS`, topics with few messages share a row."""
    weight: Counter[tuple[str, str, int]] = Counter()
    for found in groups.values():
        for key, curve in found.items():
            weight[key] += curve.delivered.total + curve.overdue.total
    many = len(groups) > 1
    named = [
        ((name_text(topic), f"level {level}" if kind == KIND_LEVEL else kind, name_text(source)), found[key])
        for key, _ in weight.most_common()
        for topic, kind, level in (key,)
        for source, found in groups.items()
        if key in found
    ]
    shown = named[:MOST_ROWS]
    rest = named[MOST_ROWS:]
    if rest:
        together = DrawnCurve(merged(c.delivered for _, c in rest), merged(c.overdue for _, c in rest))
        shown.append(((f"{count(len(rest))} more, together", "", ""), together))
    rows = [(_row_name(name, many), curve.delivered) for name, curve in shown]
    says = "; ".join(f"{name}: p99 {milliseconds(h.percentile('p99'))}" for name, h in rows if h)
    chart = rows_chart("topic-rows", "By topic and level", f"Lateness by topic and level. {says}.", rows)
    heads = ("topic", "kind", *(["source"] if many else []), *_FIGURES)
    lines = [
        [*name[: 3 if many else 2], count(c.delivered.total), count(c.overdue.total),
         *("-" if v is None else f"{v:,}" for v in c.delivered.percentiles().values())]
        for name, c in shown
    ]  # fmt: skip
    caption = "Those with the most messages first."
    if rest:
        caption += f" {count(len(rest))} with fewer messages are one row together."
    parts = [figure(chart, caption, "Nothing was delivered.")]
    if lines:
        parts.append(table("Lateness in ms", heads, lines, words=(0,), sorts=True))
    return joined(parts)


_FIGURES = ("delivered", "overdue", "p50", "p90", "p99", "p99.9", "p99.99", "max")


def _row_name(name: tuple[str, str, str], many: bool) -> str:
    topic, kind, source = name
    return f"{topic}, {kind}{f' ({source})' if many else ''}" if kind else topic
