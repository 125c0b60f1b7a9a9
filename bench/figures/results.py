"""The results of a run as one JSON document; docs/benchmarks.md says what each part means.

``Figure`` is one metric of one system in one case, with the raw value of every repeat; ``Curve`` is a line of points.
`document` puts them together with machine, versions and configurations.
"""

from __future__ import annotations

import dataclasses
import datetime
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.figures.stats import median, ratio

__all__ = [
    "OURS",
    "SCHEMA",
    "Curve",
    "Figure",
    "Section",
    "SystemNote",
    "document",
    "joined",
    "ratios",
    "read",
    "sections_of",
    "write",
]

SCHEMA = "timewheel-bench/1"
OURS = "timewheel"

Case = dict[str, str | int]


@dataclasses.dataclass(slots=True)
class Figure:
    """One metric of one system in one case.

    ``values`` holds one raw value a repeat. ``better`` is "higher", "lower", or "" where neither is.
    """

    system: str
    case: Case
    metric: str
    unit: str
    better: str
    values: list[float] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(slots=True)
class Curve:
    """Points of one system in one case; ``kind`` "ccdf": x is a lateness in ``unit``, y the share of messages later."""

    system: str
    case: Case
    kind: str
    unit: str
    x: list[float]
    y: list[float]


@dataclasses.dataclass(slots=True)
class SystemNote:
    """One system of the run; ``left_out`` says in one line why it is missing, or is empty."""

    name: str
    title: str
    version: str = ""
    configuration: dict[str, str] = dataclasses.field(default_factory=dict)
    left_out: str = ""


@dataclasses.dataclass(slots=True)
class Section:
    """What one workload found. ``failures`` are early or lost messages of ours: they make the command fail."""

    workload: str
    title: str
    figures: list[Figure] = dataclasses.field(default_factory=list)
    curves: list[Curve] = dataclasses.field(default_factory=list)
    notes: list[str] = dataclasses.field(default_factory=list)
    failures: list[str] = dataclasses.field(default_factory=list)

    def add(self, system: str, case: Case, metric: str, unit: str, better: str, value: float) -> None:
        """Add one repeat's value to its figure."""
        for figure in self.figures:
            if (figure.system, figure.case, figure.metric) == (system, case, metric):
                figure.values.append(value)
                return
        self.figures.append(Figure(system, dict(case), metric, unit, better, [value]))

    def note(self, text: str) -> None:
        """Add a line for the reader, once."""
        if text not in self.notes:
            self.notes.append(text)


def ratios(section: Section, figure: Figure) -> dict[str, float]:
    """Say for each peer with the same metric in the same case how many times better ours is (above 1: better)."""
    if figure.system != OURS or not figure.better:
        return {}
    found = {}
    for other in section.figures:
        if other.system == OURS or (other.case, other.metric) != (figure.case, figure.metric):
            continue
        value = ratio(median(figure.values), median(other.values), figure.better)
        if value is not None:
            found[other.system] = round(value, 3)
    return found


def document(
    command: str, quick: bool, machine: dict[str, Any], systems: list[SystemNote], sections: list[Section]
) -> dict[str, Any]:
    """Put a run together as JSON values."""
    return {
        "schema": SCHEMA,
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": command,
        "quick": quick,
        "machine": machine,
        "systems": [dataclasses.asdict(system) for system in systems],
        "sections": [_section(section) for section in sections],
    }


def _section(section: Section) -> dict[str, Any]:
    figures = [
        {
            **dataclasses.asdict(figure),
            "median": median(figure.values),
            "min": min(figure.values),
            "max": max(figure.values),
            "ratios": ratios(section, figure),
        }
        for figure in section.figures
    ]
    return {**dataclasses.asdict(section), "figures": figures}


def sections_of(content: dict[str, Any]) -> list[Section]:
    """Read the sections of a document again."""
    names = {field.name for field in dataclasses.fields(Figure)}
    return [
        Section(
            workload=section["workload"],
            title=section["title"],
            figures=[Figure(**{k: v for k, v in figure.items() if k in names}) for figure in section["figures"]],
            curves=[Curve(**curve) for curve in section["curves"]],
            notes=section["notes"],
            failures=section["failures"],
        )
        for section in content["sections"]
    ]


def joined(contents: Sequence[dict[str, Any]]) -> list[Section]:
    """Put the turns of several runs together, as if one run had made them: each figure has the values of all.

    Raises ValueError where they are not of one machine, or a system is there in two versions or configurations.
    """
    _check_alike(contents)
    found: dict[str, Section] = {}
    for content in contents:
        for section in sections_of(content):
            whole = found.setdefault(section.workload, Section(section.workload, section.title))
            for figure in section.figures:
                for value in figure.values:
                    whole.add(figure.system, figure.case, figure.metric, figure.unit, figure.better, value)
            whole.curves += section.curves
            whole.failures += section.failures
            for line in section.notes:
                whole.note(line)
    return list(found.values())


def _check_alike(contents: Sequence[dict[str, Any]]) -> None:
    first = contents[0]
    seen: dict[str, dict[str, Any]] = {}
    for content in contents:
        for name in ("cpu", "cores"):
            mine, other = first["machine"].get(name), content["machine"].get(name)
            if mine != other:
                raise ValueError(f"the results are of two machines ({name}: {mine!r} and {other!r}): compare on one")
        for system in content["systems"]:
            known = seen.setdefault(system["name"], system)
            for name in ("version", "configuration"):
                if known[name] != system[name]:
                    text = f"{system['title']} is there with {name} {known[name]!r} and {system[name]!r}"
                    raise ValueError(f"{text}: results of one {name} can be put together")


def write(content: dict[str, Any], folder: Path) -> Path:
    """Write ``results.json`` into a folder, making it first."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "results.json"
    path.write_text(json.dumps(content, indent=1) + "\n")
    return path


def read(path: Path) -> dict[str, Any]:
    """Read a document; ValueError if it is of another kind or a later schema."""
    content = json.loads(path.read_text())
    if not isinstance(content, dict) or content.get("schema") != SCHEMA:
        found = content.get("schema") if isinstance(content, dict) else type(content).__name__
        raise ValueError(f"{path}: schema {found!r}, this version reads {SCHEMA!r}: run the benchmark again")
    return content
