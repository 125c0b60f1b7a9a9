"""How much of the error budget is used, how fast it burns, and in which intervals.

A target of 99.9 % within 1 s lets one message of a thousand miss it: that is the budget. The burn rate of a window is
the share that missed the target in it, divided by the share that may miss it. At a rate of 1 the budget of the run
lasts as long as the run, at 10 a tenth of that. Short windows show sudden outages, long ones a slow loss. A message
that has waited longer than the limit has missed it; one that has waited less is not counted yet.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from bench.figures.text import count, lateness_text, limit_text, name_text, percent, short_ms, utc
from bench.lateness.counting.cells import MINUTE_S, cell_widths, last_minute
from bench.report.charts.histogram import Histogram, Integers
from bench.report.pieces.page import Cell, Html, Tile, joined, note, table, tiles
from bench.report.pieces.tables import Timeline

__all__ = ["Cells", "Interval", "budget_section", "cells_of", "worst_intervals"]

_WINDOWS_MS = (
    10_000, 60_000, 300_000, 1_800_000, 3_600_000, 21_600_000, 86_400_000, 259_200_000, 2_592_000_000,
)  # fmt: skip
_WINDOWS_MOST = 6
_INTERVALS_MOST = 10


@dataclass(frozen=True, slots=True)
class Cells:
    """One source over time: starts of its cells in rising order (epoch ms), and for each cell the number of messages
    that were judged, of those that missed the limit, and its length (ms)."""

    starts: Integers
    judged: Integers
    missed: Integers
    widths: Integers

    @property
    def ends(self) -> Integers:
        """Where each cell ends."""
        return self.starts + self.widths

    @property
    def end(self) -> int:
        """Where the last cell ends."""
        return int(self.ends[-1])

    def window(self, length_ms: int) -> tuple[tuple[int, int], tuple[int, int, int]]:
        """(judged, missed) of the last window of this length, and (judged, missed, end) of the worst one."""
        judged, missed = (np.concatenate([[0], np.cumsum(column)]) for column in (self.judged, self.missed))
        ends = np.arange(1, len(self.starts) + 1)
        begins = np.searchsorted(self.starts, self.ends - length_ms)
        due, late = judged[ends] - judged[begins], missed[ends] - missed[begins]
        worst = int(np.argmax(late / np.maximum(due, 1)))
        last = int(due[-1]), int(late[-1])
        return last, (int(due[worst]), int(late[worst]), int(self.ends[worst]))


@dataclass(frozen=True, slots=True)
class Interval:
    """Neighbouring cells that all missed the target, of one source."""

    source: str
    begin_ms: int
    end_ms: int
    judged: int
    missed: int
    all: Histogram
    overdue: int


def cells_of(line: Timeline, limit_ms: int, width_ms: int, last_ms: int | None = None) -> Cells:
    """Judge the cells of a source by a limit; ``last_ms``: where a table by minute ends (its old cells are longer)."""
    fresh = np.ones(len(line.starts), np.bool_)
    np.not_equal(line.starts[1:], line.starts[:-1], out=fresh[1:])
    begins = np.flatnonzero(fresh)
    late = line.lateness > limit_ms
    judged, missed = (
        np.add.reduceat(np.where(which, line.counts, 0), begins) if len(begins) else line.counts[:0]
        for which in (late | ~line.overdue, late)
    )
    starts = line.starts[begins]
    minutes = width_ms == MINUTE_S * 1_000
    widths = cell_widths(starts, last_ms) if minutes else np.full(len(starts), width_ms, np.int64)
    return Cells(starts, judged, missed, widths)


def worst_intervals(
    lines: Mapping[str, Timeline],
    share: float,
    limit_ms: int,
    width_ms: int,
    most: int | None = None,
    last_ms: int | None = None,
) -> tuple[list[Interval], int]:
    """The runs of neighbouring cells that missed the target, those with the most missed messages first.

    Returns at most ``most`` of them, and the number of all.
    """
    places = []
    for source, line in lines.items():
        judged = cells_of(line, limit_ms, width_ms, last_ms)
        bad = np.flatnonzero(judged.missed > judged.judged * (1 - share) + 1e-9)
        if not bad.size:
            continue
        fresh = np.ones(len(bad), np.bool_)
        np.greater(judged.starts[bad[1:]], judged.ends[bad[:-1]], out=fresh[1:])
        first = np.flatnonzero(fresh)
        begins = judged.starts[bad[first]]
        ends = judged.ends[bad[np.append(first[1:], len(bad)) - 1]]
        sums = (np.add.reduceat(column[bad], first) for column in (judged.missed, judged.judged))
        missed, due = (column.tolist() for column in sums)
        places += list(zip(missed, begins.tolist(), [source] * len(first), ends.tolist(), due, strict=True))
    places.sort(key=lambda one: (-one[0], *one[1:3]))
    found = []
    for missed_count, begin, source, end, due_count in places[:most]:
        curve = lines[source].curve(begin, end)
        found.append(Interval(source, begin, end, due_count, missed_count, curve.all, curve.overdue.total))
    return found, len(places)


def budget_section(summary: Mapping[str, Any], lines: Mapping[str, Timeline], width_ms: int) -> Html:
    """Return the budget, the burn rates of windows, and the worst intervals."""
    share, limit_ms = summary["target"]["share"], summary["target"]["limit_ms"]
    lasts = [last_minute(line.starts, summary["as_of_ms"]) for line in lines.values()]
    last_ms = max((last for last in lasts if last is not None), default=None)
    judged = {source: cells_of(line, limit_ms, width_ms, last_ms) for source, line in lines.items() if len(line.starts)}
    due = sum(int(one.judged.sum()) for one in judged.values())
    if not due:
        return note("Nothing was due: no budget was used.", "soft")
    missed = sum(int(one.missed.sum()) for one in judged.values())
    words = f"{share * 100:g}\u00a0% within {limit_text(limit_ms)}"
    return joined([
        _budget(share, due, missed),
        note(f"Target: {words}. The budget is what may miss it. At a burn rate of 1 it lasts as long as this run, "
             "at 10 a tenth of that.", "soft"),
        _burn(judged, 1 - share),
        _intervals(
            *worst_intervals(lines, share, limit_ms, width_ms, _INTERVALS_MOST, last_ms), width_ms, len(lines) > 1
        ),
        *([note("More than 32 days before the last message the cells of time are hours, more than 1,500 days before "
                "it days.", "soft")] if any((one.widths > width_ms).any() for one in judged.values()) else []),
    ])  # fmt: skip


def _budget(share: float, due: int, missed: int) -> Html:
    # Rounded before it is cut: 1 - 0.999 is a little less than 0.001.
    allowed = int(round((1 - share) * due, 6))
    left = allowed - missed
    used = f"{missed / allowed * 100:,.0f}\u00a0%" if allowed else ("0\u00a0%" if not missed else "all, and more")
    return tiles([
        Tile("were due", count(due)),
        Tile("may miss", count(allowed)),
        Tile("missed", count(missed), "bad" if left < 0 else ""),
        Tile("budget used", used, "bad" if left < 0 else "good"),
        Tile("left" if left >= 0 else "beyond it", count(abs(left)), "bad" if left < 0 else ""),
    ])  # fmt: skip


def _burn(judged: Mapping[str, Cells], may: float) -> Html:
    span = max(one.end - int(one.starts[0]) for one in judged.values())
    width = max(int(one.widths.max()) for one in judged.values())
    windows = [length for length in _WINDOWS_MS if width <= length < span][-_WINDOWS_MOST:]
    rows: list[list[str | Cell]] = []
    for source, one in judged.items():
        for length in (*windows, span):
            (due, late), (worst_due, worst_late, end) = one.window(length)
            if length == span:  # a window of the run's length that ends before the run is a shorter one
                worst_due, worst_late, end = due, late, one.end
            rows.append([
                *([name_text(source)] if len(judged) > 1 else []),
                Cell("the whole run" if length == span else short_ms(length), length),
                f"{count(late)} of {count(due)}",
                _rate(late, due, may),
                _rate(worst_late, worst_due, may),
                utc(end),
            ])  # fmt: skip
    heads = ("window", "missed in its last one", "burn rate", "worst burn rate", "end of the worst")
    first = ("source",) if len(judged) > 1 else ()
    return table("How fast the budget burns", (*first, *heads), rows, sorts=True)


def _rate(missed: int, due: int, may: float) -> Cell:
    if not due:
        return Cell("-", 0)
    if may < 1e-12:
        return Cell("0" if not missed else "no budget", float(missed))
    rate = missed / due / may
    return Cell(f"{rate:,.0f}" if rate >= 10 else f"{rate:.2g}", rate)


def _intervals(found: list[Interval], count_of_all: int, width_ms: int, several: bool) -> Html:
    unit = {1_000: "second", 60_000: "minute"}.get(width_ms, f"interval of {short_ms(width_ms)}")
    if not found:
        return note(f"No {unit} missed the target by itself.")
    rows: list[list[str | Cell]] = [
        [
            Cell(utc(one.begin_ms), one.begin_ms),
            Cell(short_ms(one.end_ms - one.begin_ms), one.end_ms - one.begin_ms),
            *([name_text(one.source)] if several else []),
            f"{count(one.missed)}",
            percent(one.missed, one.judged),
            Cell(lateness_text(one.all.percentile("p99")), one.all.percentile("p99")),
            Cell(lateness_text(one.all.largest), one.all.largest),
            count(one.overdue),
        ]
        for one in found
    ]
    heads = ["due from", "for", *(["source"] if several else []), "missed", "of those due", "p99", "latest", "overdue"]
    more = count_of_all - len(rows)
    caption = f"The worst intervals: each {unit} of them missed the target"
    return table(f"{caption}; {count(more)} more with fewer messages" if more > 0 else caption, heads, rows, sorts=True)
