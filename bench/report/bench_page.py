"""The page of ``timewheel bench``: every section of a results document as pictures, tables and notes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.figures.results import OURS, Case, Figure, Section, sections_of
from bench.figures.table import case_text, constants, rows
from bench.report.charts.systems import Palette, given_ccdf_chart, numbers_chart, spread_chart
from bench.report.pieces.page import Html, PageSection, bullets, document, figure, joined, note, table

__all__ = ["NAME", "render", "write"]

NAME = "report.html"

_OVER = ("pending", "timers", "due at once")
"""Numeric parts of a case that are the x axis of curves."""


def write(content: Mapping[str, Any], path: Path) -> None:
    """Write the page of a results document, through a temporary file beside it. Raises OSError."""
    half = path.with_name(path.name + ".new")
    half.write_text(render(content), encoding="utf-8")
    half.replace(path)


def render(content: Mapping[str, Any]) -> str:
    """Return the page of a results document (`bench.figures.results.document`) as one HTML text without network."""
    measured = sections_of(dict(content))
    names = [OURS, *(s["name"] for s in content["systems"]), *(f.system for m in measured for f in m.figures)]
    palette: Palette = {name: number for number, name in enumerate(dict.fromkeys(names))}
    sections = [
        PageSection(f"w-{number}", section.title, _section(f"w{number}", section, palette))
        for number, section in enumerate(measured)
    ]
    sections.append(PageSection("machine", "Machine, versions, configurations", _about(content)))
    failures = [failure for section in measured for failure in section.failures]
    lead = [
        note(
            f"{content['command']}, {content['created']}" + (", quick: short runs" if content["quick"] else ""), "soft"
        )
    ]
    if failures:
        lead.append(note(f"FAILED: {'; '.join(failures)}", "verdict bad"))
    words = "Medians; lines and brackets give smallest and largest of the repeats. Ratios above 1: ours is better."
    lead.append(note(f"{words} Figures of one machine in one run; on others they differ, their ratios less."))
    return document("Timewheel beside its peers", joined(lead), sections)


def _section(key: str, section: Section, palette: Palette) -> Html:
    titles, lines = rows(section)
    parts = _pictures(key, section, palette)
    if lines:
        parts.append(table("", titles, lines, words=(1, len(titles) - 1)))
    else:
        parts.append(note("Nothing was measured.", "soft"))
    if section.failures:
        parts.append(note(f"FAILED: {'; '.join(section.failures)}", "bad"))
    if section.notes:
        parts.append(bullets(section.notes))
    return joined(parts)


def _pictures(key: str, section: Section, palette: Palette) -> list[Html]:
    if section.curves:
        return _ccdfs(key, section, palette)
    common = constants(section)
    by_metric: dict[tuple[str, str, str], list[Figure]] = {}
    for found in section.figures:
        if found.better and found.unit:
            by_metric.setdefault((found.metric, found.unit, found.better), []).append(found)
    over = next((name for name in _OVER if len({f.case[name] for f in section.figures if name in f.case}) > 1), None)
    parts = []
    for number, ((metric, unit, better), figures) in enumerate(by_metric.items()):
        if over is not None:
            parts += _over(f"{key}-m{number}", metric, unit, over, figures, palette)
            continue
        groups = _groups(figures, common)
        for at, (head, cases) in enumerate(groups.items()):
            name = f"{metric}: {head}" if head else metric
            chart = spread_chart(f"{key}-m{number}-{at}", name, unit, cases, palette, better == "higher")
            parts.append(figure(chart, name))
    return parts


def _groups(figures: list[Figure], common: Case) -> dict[str, dict[str, dict[str, list[float]]]]:
    """Divide many cases by the first part that differs, so that no picture is too long."""
    cases = {case_text(f.case, common) for f in figures}
    head = next((k for k in figures[0].case if k not in common), "") if len(cases) > 6 else ""
    found: dict[str, dict[str, dict[str, list[float]]]] = {}
    for one in figures:
        first = str(one.case.get(head, "")) if head else ""
        rest = case_text(one.case, {*common, head})
        found.setdefault(first, {}).setdefault(rest, {})[one.system] = one.values
    return found


def _over(key: str, metric: str, unit: str, over: str, figures: list[Figure], palette: Palette) -> list[Html]:
    lines: dict[str, dict[str, dict[int, list[float]]]] = {}
    for one in figures:
        text = str(one.case.get(over, "")).replace(",", "")
        if text.isdigit():
            rest = case_text({k: v for k, v in one.case.items() if k != over})
            lines.setdefault(rest, {}).setdefault(one.system, {})[int(text)] = one.values
    parts = []
    for at, (rest, systems) in enumerate(lines.items()):
        name = f"{metric} ({rest})" if len(lines) > 1 and rest else metric
        parts.append(
            figure(numbers_chart(f"{key}-{at}", name, over, unit, systems, palette), f"{name}; less is better.")
        )
    return parts


def _ccdfs(key: str, section: Section, palette: Palette) -> list[Html]:
    cases: dict[str, list[tuple[str, list[float], list[float]]]] = {}
    for curve in section.curves:
        if curve.kind == "ccdf":
            cases.setdefault(case_text(curve.case), []).append((curve.system, curve.x, curve.y))
    return [
        figure(given_ccdf_chart(f"{key}-c{number}", case, curves, palette), f"How many were later than x: {case}.")
        for number, (case, curves) in enumerate(cases.items())
    ]


def _about(content: Mapping[str, Any]) -> Html:
    machine = {**content["machine"], **content["machine"].get("limits", {})}
    machine.pop("limits", None)
    systems = [
        (s["title"], s["version"] or "-", s["left_out"] or ", ".join(f"{k}={v}" for k, v in s["configuration"].items()))
        for s in content["systems"]
    ]
    return joined([
        table("Machine, and the bare socket and disk", ("", ""), [(k, str(v)) for k, v in machine.items()]),
        table("Systems", ("system", "version", "configuration, or why it was left out"), systems, words=(2,)),
    ])  # fmt: skip
