"""The table of request codes in docs/compatibility.md, read for the tests."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

__all__ = ["BY", "DOCUMENT", "Row", "read_table"]

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "compatibility.md"
BY = ("broker", "name server", "client", "controller", "container", "nobody")
"""Who answers a code in Apache RocketMQ."""


@dataclass(frozen=True, slots=True)
class Row:
    """One line: the code, its name, who answers it in Apache RocketMQ, whether it is served here, how it differs."""

    code: int
    name: str
    by: str
    here: str
    note: str


def read_table() -> list[Row]:
    """Read all lines, in their order."""
    section = DOCUMENT.read_text(encoding="utf-8").split("## Request codes", 1)[1].split("\n## ", 1)[0]
    lines = re.findall(r"^\| (\d+) \| (\w+) \| ([\w ]+) \| (\w+) \|(.*)\|$", section, re.MULTILINE)
    return [Row(int(code), name, by, here, note.strip()) for code, name, by, here, note in lines]
