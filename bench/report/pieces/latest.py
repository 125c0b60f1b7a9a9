"""The latest messages as a table, in which one is found by topic, key or id."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bench.figures.text import lateness_text, name_text, utc
from bench.report.pieces.page import Cell, Html, note, table

__all__ = ["latest_section"]

_LETTERS = 60


def latest_section(summary: Mapping[str, Any]) -> Html:
    """Return the table of the latest messages, or a sentence if none was late."""
    if not summary["latest"]:
        return note("No message was late, not by a millisecond.", "soft")
    several = len(summary["sources"]) > 1
    rows: list[list[str | Cell]] = [
        [
            Cell(f"{'at least ' if one['overdue'] else ''}{lateness_text(one['lateness_ms'])}", one["lateness_ms"]),
            Cell(utc(one["due_ms"]), one["due_ms"]),
            *(_name(one[column]) for column in ("topic", "key", "message_id", "delay_id")),
            *([_name(one["source"])] if several else []),
        ]
        for one in summary["latest"]
    ]
    heads = ("late by", "due", "topic", "key", "message id", "delay id", *(["source"] if several else []))
    return table("", heads, rows, words=tuple(range(2, len(heads))), sorts=True)


def _name(words: str | None) -> str:
    return name_text(words, _LETTERS) if words else "-"
