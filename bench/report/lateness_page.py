"""The page of ``timewheel lateness``: how late every message was, from a result folder, in a fixed order.

All figures come from `bench.lateness.results.result.Result`; those of its summary are not computed again. If the page
leaves something out, a sentence says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.figures.text import count, milliseconds, utc
from bench.lateness.results.compare import differences, in_words
from bench.lateness.results.result import (
    AFTER_HOT,
    CELL,
    DUE_IN_SECOND,
    MINUTE,
    MS_IN_SECOND,
    RECEIVED,
    REQUESTED,
    TOPIC,
    Result,
)
from bench.report.charts.bars import rows_chart
from bench.report.charts.ccdf import DrawnCurve, ccdf_chart
from bench.report.charts.heatmap import MINUTE_MS, column_width, heatmap_chart
from bench.report.pieces import groupings
from bench.report.pieces.baseline import baseline_section, read_baseline
from bench.report.pieces.budget import budget_section
from bench.report.pieces.latest import latest_section
from bench.report.pieces.page import Html, PageSection, details, document, figure, joined, note, table, terms
from bench.report.pieces.run import about_run
from bench.report.pieces.tables import (
    Groups,
    Timeline,
    at_most,
    by_group,
    by_source,
    delivered_only,
    largest_of,
    timelines,
)
from bench.report.pieces.verdict import compared, headline, headline_tiles, verdict_section

__all__ = ["NAME", "render", "write"]

NAME = "report.html"
_DRAWN_CELLS = 1_500
"""A little more than a day of minutes. (A picture has at most 120 columns.)"""


def write(result: Result, path: Path) -> None:
    """Write the page through a temporary file, so that a reader never sees half a page. Raises OSError."""
    half = path.with_name(path.name + ".new")
    text = render(result)
    try:
        half.write_text(text, encoding="utf-8")
        half.replace(path)
    except BaseException:
        half.unlink(missing_ok=True)
        raise


def render(result: Result) -> str:
    """Return the page as one HTML text that needs no network."""
    summary = result.summary
    sources = result.source_names
    tables = {name: at_most(table, largest_of(summary, name)) for name, table in result.histograms.items()}

    def grouped(name: str, column: str) -> Groups:
        return by_group(tables[name], (column,), sources) if name in tables else {}

    target = summary["target"]
    name, column = (CELL, "cell_ms") if CELL in tables else (MINUTE, "minute_ms")
    cell_ms = summary.get("cell_ms", MINUTE_MS) if CELL in tables else MINUTE_MS
    lines = timelines(tables[name], column, sources) if name in tables else {}
    drawn_ms = _drawn_width(lines, cell_ms)
    cells = by_group(tables[name], (column,), sources, drawn_ms) if name in tables else {}
    topics = by_group(tables[TOPIC], ("topic", "kind", "level"), sources)
    curves = by_source(topics)
    baseline = read_baseline(result)
    received = by_source(by_group(tables[TOPIC + RECEIVED], ("topic",), sources)) if result.has_received else {}
    sections = [
        PageSection("verdict", "Verdict", verdict_section(summary, curves, received)),
        *([PageSection("baseline", "Against the baseline", baseline_section(result, baseline))] if baseline else []),
        PageSection("budget", "Target, error budget, worst intervals", budget_section(summary, lines, cell_ms)),
        *([PageSection("latest", "The latest messages", latest_section(summary))] if "latest" in summary else []),
        PageSection("ccdf", "How many were later than x", _ccdf(
            curves, received, (target["share"], target["limit_ms"]))),
        PageSection("heatmap", "Wall time and lateness", _heatmaps(cells, drawn_ms)),
        PageSection("over-time", "Percentiles and overdue messages over time", groupings.over_time(
            cells, drawn_ms, target["limit_ms"])),
        PageSection("crowds", "Crowded seconds, and the ten after a hot one", groupings.crowds(
            delivered_only(grouped(DUE_IN_SECOND, "due_in_second_from")),
            delivered_only(grouped(AFTER_HOT, "after_hot_s")),
            {s["name"]: s["hot_from"] for s in summary["sources"]},
        )),
        PageSection("requested", "By requested delay", groupings.requested(
            delivered_only(grouped(REQUESTED, "requested_from_ms")))),
        PageSection("within-second", "By millisecond within the second", groupings.ms_in_second(
            delivered_only(grouped(MS_IN_SECOND, "ms_in_second")))),
        PageSection("topics", "By topic and level", groupings.topics(topics)),
        *([PageSection("sources", "Sources side by side", _sources(summary, curves))] if len(sources) > 1 else []),
        PageSection("run", "This run, and its files", about_run(result)),
        PageSection("definitions", "Definitions", _definitions(summary)),
        PageSection("damage", "Damaged regions", _damage(summary)),
    ]  # fmt: skip
    sections = [_counted(section, tables) for section in sections]
    lead = joined([
        headline(summary),
        headline_tiles(summary),
        note(f"{_list(sources)}. Read {utc(summary['as_of_ms'])}, page made {utc(summary['made_ms'])}.", "soft"),
        *([note(" ".join(_against(baseline, summary)))] if isinstance(baseline, Result) else []),
        *(note(f"Not known of {s['name']}: {text}.") for s in summary["sources"] for text in s["not_known"]),
    ])  # fmt: skip
    return document("How late was every message", lead, sections)


def _drawn_width(lines: Mapping[str, Timeline], cell_ms: int) -> int:
    """The length of the cells that pictures are drawn from; there are at most `_DRAWN_CELLS`."""
    ends = [(int(line.starts[0]), int(line.starts[-1])) for line in lines.values() if len(line.starts)]
    if not ends:
        return cell_ms
    return column_width(max(last for _, last in ends) - min(first for first, _ in ends), _DRAWN_CELLS, cell_ms)


def _against(baseline: Result, summary: Mapping[str, Any]) -> list[str]:
    return ["Against the baseline:", *in_words(differences(baseline.summary, summary), brief=True)]


_NEEDS = {
    "budget": MINUTE,
    "heatmap": MINUTE,
    "over-time": MINUTE,
    "crowds": DUE_IN_SECOND,
    "requested": REQUESTED,
    "within-second": MS_IN_SECOND,
}


def _counted(section: PageSection, tables: Mapping[str, Any]) -> PageSection:
    """Replace a section by a sentence that says so if --by left out its grouping."""
    needs = _NEEDS.get(section.key, TOPIC)
    if needs in tables or (needs == MINUTE and CELL in tables):
        return section
    return PageSection(section.key, section.heading, note(f"Not counted: --by left {needs} out.", "soft"))


def _list(names: list[str]) -> str:
    return ("Source: " if len(names) == 1 else "Sources: ") + (", ".join(names) or "none")


def _ccdf(curves: Mapping[str, DrawnCurve], received: Mapping[str, DrawnCurve], target: tuple[float, int]) -> Html:
    overdue = sum(curve.overdue.total for curve in curves.values())
    caption = "Read: at the height “1 in 100”, the curve stands at the lateness that one message in a hundred exceeds."
    if overdue:
        caption += (
            f" {count(overdue)} overdue messages are in the curves with the lateness they have reached so far (open "
            "triangles): from there on, read “at least”. The verdict's percentiles count them in the same way."
        )
    parts = [
        figure(
            ccdf_chart("ccdf-broker", "Broker lateness", curves, target),
            caption,
            "Nothing was delivered or is overdue.",
        )
    ]
    if received:
        chart = ccdf_chart("ccdf-received", "End-to-end lateness", received, target)
        parts += [Html("<h3>End to end, at the consumers</h3>"), figure(chart, "", "No receipt was recorded.")]
    return joined(parts)


def _heatmaps(cells: Groups, cell_ms: int) -> Html:
    parts = [
        figure(
            heatmap_chart(
                f"heatmap-{number}", source, {start: curve.delivered for start, curve in groups.items()}, cell_ms
            ),
            "",
            f"{source}: nothing was delivered.",
        )
        for number, (source, groups) in enumerate(cells.items())
    ]
    return joined([note("Across: when a message was due (UTC). Upwards: how late it was delivered."), *parts])


def _sources(summary: Mapping[str, Any], curves: Mapping[str, DrawnCurve]) -> Html:
    rows = [(name, curve.delivered) for name, curve in curves.items()]
    says = "; ".join(f"{name}: p99 {milliseconds(h.percentile('p99'))}" for name, h in rows if h)
    chart = rows_chart("side-by-side", "Sources side by side", f"Lateness of each source. {says}.", rows)
    return joined([
        figure(chart, "Further left is better.", "Nothing was delivered."),
        compared(summary["sources"]),
    ])  # fmt: skip


def _definitions(summary: Mapping[str, Any]) -> Html:
    return joined([
        note("Nothing is trimmed: every delayed message of the logs is in the counts, every delivered one in every "
             "picture, every overdue one in the curves and counts of overdue messages. If there are more minutes or "
             "topics than fit, pictures merge them; none is left out."),
        terms(summary["definitions"].items()),
    ])  # fmt: skip


def _damage(summary: Mapping[str, Any]) -> Html:
    parts = []
    for source in summary["sources"]:
        name, found, torn = source["name"], source["damaged"], source["torn_tail"]
        if not source["damaged_count"]:
            parts.append(note(f"{name}: no damaged region inside the log."))
        else:
            more = source["damaged_count"] - len(found)
            caption = f"{name}: {count(source['damaged_count'])} regions, {count(source['damaged_bytes'])} bytes"
            caption += f"; {count(more)} of them are not listed" if more else ""
            rows = [(d["file"], count(d["offset"]), count(d["bytes"]), d["why"]) for d in found]
            listed = table(caption, ("file", "offset", "bytes", "why"), rows, words=(0, 3))
            parts.append(listed if len(rows) <= 20 else details(caption, listed))
        if torn:
            where = f"in {torn['file']} at offset {count(torn['offset'])}"
            parts.append(note(f"{name}: behind the last whole record, {where}, there are {count(torn['bytes'])} bytes "
                              f"that are no record ({torn['why']})."))  # fmt: skip
    return joined(parts or [note("No source was read.")])
