"""This run beside an earlier one: differences in words, in numbers, and both curves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bench.figures.text import utc
from bench.lateness.results.compare import differences, in_words
from bench.lateness.results.result import TOPIC, Result, ResultError, read_result
from bench.report.charts.ccdf import DrawnCurve, ccdf_chart
from bench.report.charts.histogram import merged
from bench.report.pieces.page import Html, bullets, figure, joined, note, table
from bench.report.pieces.tables import at_most, by_group, by_source, largest_of

__all__ = ["baseline_section", "read_baseline"]


def read_baseline(result: Result) -> Result | str | None:
    """The baseline of a result; a text that says why if it cannot be read any more; None without a baseline."""
    folder = (result.summary.get("run") or {}).get("baseline")
    if not folder:
        return None
    try:
        return read_result(Path(folder))
    except (ResultError, OSError, ValueError) as error:
        return str(error)


def baseline_section(result: Result, baseline: Result | str) -> Html:
    """Return the section."""
    if isinstance(baseline, str):
        return note(f"The baseline cannot be read any more: {baseline}")
    before, now = baseline.summary, result.summary
    found = differences(before, now)
    names = f"baseline ({utc(before['as_of_ms'])})", f"this run ({utc(now['as_of_ms'])})"
    curves = {names[1]: _whole(result), names[0]: _whole(baseline)}
    target = now["target"]
    return joined([
        bullets(in_words(found)),
        table("", ("", *names, "difference"), [(one.name, one.before, one.now, one.words) for one in found]),
        figure(
            ccdf_chart("ccdf-baseline", "Both runs", curves, (target["share"], target["limit_ms"])),
            "All sources of each run together. Further left and lower is better.",
            "Nothing was due in either run.",
        ),
        note(f"The baseline is {baseline.folder}: {', '.join(baseline.source_names)}.", "soft"),
    ])  # fmt: skip


def _whole(result: Result) -> DrawnCurve:
    table_: Any = at_most(result.histograms[TOPIC], largest_of(result.summary, TOPIC))
    curves = by_source(by_group(table_, ("topic",), result.source_names)).values()
    return DrawnCurve(merged(one.delivered for one in curves), merged(one.overdue for one in curves))
