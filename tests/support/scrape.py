"""A scrape as values: the families of an exposition, with types, labels and numbers; and Apache's recorded one."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

__all__ = ["COMMON", "RECORDED", "Scraped", "parse", "recorded"]

RECORDED = Path(__file__).parent / "apache_metrics.txt"
COMMON = {"cluster", "node_type", "node_id", "otel_scope_name"}
"""Labels that every series has."""
_SUFFIX = re.compile("_(bucket|count|sum)$")


@dataclass(slots=True)
class Scraped:
    """One family: ``labels`` are the names that its series have, without `COMMON`; ``bounds`` those of a histogram."""

    kind: str
    labels: set[str] = field(default_factory=set)
    bounds: list[str] = field(default_factory=list)
    values: dict[tuple[str, tuple[tuple[str, str], ...]], float] = field(default_factory=dict)

    def total(self, part: str = "", **labels: str) -> float:
        """Add up series whose labels include these; ``part`` is ``count`` or ``sum`` of a histogram."""
        return sum(
            value
            for (name, own), value in self.values.items()
            if labels.items() <= dict(own).items() and (name.endswith(f"_{part}") if part else True)
        )


def parse(text: str) -> dict[str, Scraped]:
    """Read an exposition."""
    found: dict[str, Scraped] = {}
    for family in text_string_to_metric_families(text):
        name = f"{family.name}_total" if family.type == "counter" else family.name
        scraped = found[name] = Scraped(family.type)
        for sample in family.samples:
            labels = dict(sample.labels)
            bound = labels.pop("le", None)
            if bound is not None and bound not in scraped.bounds:
                scraped.bounds.append(bound)
            scraped.labels |= labels.keys() - COMMON
            if bound is None:
                own = {label: value for label, value in labels.items() if label not in COMMON}
                scraped.values[sample.name, tuple(sorted(own.items()))] = sample.value
    return found


def recorded() -> dict[str, Scraped]:
    """Read what Apache's broker has exposed."""
    found = {}
    for line in RECORDED.read_text().splitlines():
        match = re.fullmatch(r"(\w+) (\w+)\{(.*)\}(?: le (.*))?", line)
        if match is not None and match[1] != "target_info":
            labels = {part.partition("=")[0].strip() for part in match[3].split(",") if part}
            found[match[1]] = Scraped(match[2], labels, match[4].split() if match[4] else [])
    return found
