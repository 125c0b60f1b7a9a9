"""Sections as tables for people: medians with their range, how many times better ours is; also in Markdown."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from bench.figures.results import OURS, Case, Figure, Section, ratios
from bench.figures.stats import median
from remoting.printable import printable

__all__ = ["case_text", "constants", "markdown", "number", "print_section", "rows"]


def number(value: float) -> str:
    """Write a figure with as many digits as it deserves: 12,345 or 12.3 or 0.123."""
    size = abs(value)
    if size >= 100 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.1f}" if size >= 10 else f"{value:.2f}"


def case_text(case: Case, constant: Collection[str] = ()) -> str:
    """Write a case in one line, without what is ``constant``: "timed 16x1"."""
    return " ".join(_value(key, value) for key, value in case.items() if key not in constant)


def _value(key: str, value: str | int) -> str:
    if key == "body_bytes":
        return f"{value} B"
    return f"{value:,} {key}" if isinstance(value, int) else value


def constants(section: Section) -> Case:
    """The parts of a case that are the same in all of a section's figures, so that they need to be said only once."""
    cases = [figure.case for figure in section.figures]
    if len({case_text(case) for case in cases}) < 2:
        return {}
    return {key: value for key, value in cases[0].items() if all(case.get(key) == value for case in cases)}


def _title(section: Section) -> str:
    common = case_text(constants(section))
    return f"{section.title} ({common})" if common else section.title


def _cell(figure: Figure | None, better: float | None) -> str:
    """Write median, range, and how many times better ours is."""
    if figure is None:
        return "-"
    values = figure.values
    text = number(median(values))
    if len(values) > 1:
        text += f" ({number(min(values))}-{number(max(values))})"
    return text if better is None else f"{text} {number(better)}x"


def rows(section: Section, details: bool = False) -> tuple[list[str], list[list[str]]]:
    """Lay a section out: the column titles, and a row for each metric of each case.

    Without ``details`` metrics are left out that are neither good nor bad (processor time, replies).
    """
    systems = sorted({f.system for f in section.figures}, key=lambda name: (name != OURS, _first(section, name)))
    keys: dict[tuple[str, str, str], dict[str, Figure]] = {}
    common = constants(section)
    for figure in section.figures:
        if not figure.better and not details:
            continue
        keys.setdefault((case_text(figure.case, common), figure.metric, figure.unit), {})[figure.system] = figure
    titles = ["case", "metric", *systems]
    table = []
    for (case, metric, unit), found in keys.items():
        known = ratios(section, found[OURS]) if OURS in found else {}
        cells = [_cell(found.get(name), known.get(name)) for name in systems]
        table.append([case, f"{metric} [{unit}]" if unit else metric, *cells])
    return titles, table


def _first(section: Section, system: str) -> int:
    return next(at for at, figure in enumerate(section.figures) if figure.system == system)


def print_section(console: Console, section: Section, details: bool = False) -> None:
    """Print a section's table, and its notes and failures below."""
    titles, lines = rows(section, details)
    table = Table(title=_title(section), title_justify="left", title_style="bold")
    for at, title in enumerate(titles):
        table.add_column(title, justify="left" if at < 2 else "right", no_wrap=False)
    for line in lines:
        table.add_row(*(escape(printable(cell)) for cell in line))
    console.print(table)
    if any(name != OURS for name in titles[2:]):
        console.print(
            "  3x: ours is three times better; in brackets the range of the repeats", style="dim", highlight=False
        )
    for note in section.notes:
        console.print(f"  {printable(note)}", style="dim", highlight=False, markup=False)
    for failure in section.failures:
        console.print(f"  FAILED: {printable(failure)}", style="bold red", highlight=False, markup=False)


def markdown(machine: dict[str, Any], sections: Iterable[Section]) -> str:
    """Write all tables in Markdown, for docs/benchmarks.md."""
    lines = [
        f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_bytes'] / 2**30:.0f} GiB, "
        f"{machine['filesystem']}, {machine['kernel']}, Python {machine['python']}. "
        "Medians, in brackets the range of the repeats; 3x: ours is three times better.",
        "",
    ]
    for section in sections:
        titles, table = rows(section)
        lines += [f"### {_title(section)}", "", "| " + " | ".join(titles) + " |", "|" + "---|" * len(titles)]
        lines += ["| " + " | ".join(row) + " |" for row in table]
        lines += ["", *(f"- {text}" for text in (*section.notes, *section.failures)), ""]
    return "\n".join(lines)
