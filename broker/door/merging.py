"""Merges the answers of several shards: sums, lists in one order, and cursors that contain one cursor of each shard.

Different shards use the same offsets, so a place in the common order is due time, offset and shard number. The merged
cursor names the shards that are not finished, each with its own cursor: ``0=1700000000000-4000000000000005;1=``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from http_door.merging import Document, first_of, last_of, merged_forecasts, merged_pages, summed_counts
from store.put.pending_api import PendingError
from store.put.pending_cursor import cursor_place

__all__ = [
    "cursor_of_all",
    "cursors_of_each",
    "merged_counts",
    "merged_forecasts",
    "merged_overviews",
    "merged_pages",
    "merged_topics",
]

_CHARS_MAX = 8192


def cursors_of_each(text: str, indexes: Iterable[int]) -> dict[int, str]:
    """Read the cursor of each unfinished shard. Without a cursor all begin. Raises PendingError.

    >>> cursors_of_each("", [0, 1]), cursors_of_each("1=5-4000000000000005", [0, 1])
    ({0: '', 1: ''}, {1: '5-4000000000000005'})
    """
    if not text:
        return dict.fromkeys(indexes, "")
    found: dict[int, str] = {}
    for part in text[:_CHARS_MAX].split(";"):
        index, equals, cursor = part.partition("=")
        if not equals or not index.isascii() or not index.isdecimal() or len(index) > 3 or len(text) > _CHARS_MAX:
            raise PendingError(f"{text!r:.80} is no cursor: pass on `next` of an earlier answer as it is")
        if cursor:
            cursor_place(cursor)
        found[int(index)] = cursor
    missing = sorted(found.keys() - set(indexes))
    if missing:
        raise PendingError(f"the cursor is of shards that are gone ({missing}): begin again")
    return found


def cursor_of_all(cursors: Mapping[int, str | None]) -> str | None:
    """Write a cursor from the cursor of each shard, None for a finished one; None if all are finished.

    >>> cursor_of_all({0: None, 1: ""}), cursor_of_all({0: None})
    ('1=', None)
    """
    return ";".join(f"{index}={text}" for index, text in sorted(cursors.items()) if text is not None) or None


def merged_counts(counts: Mapping[int, Document]) -> dict[str, Any]:
    """Add up counts."""
    return {
        **summed_counts(list(counts.values())),
        "next": cursor_of_all({i: one["next"] for i, one in counts.items()}),
    }


def merged_topics(found: Sequence[Document], limit: int) -> dict[str, Any]:
    """Add up pending messages by topic, largest first. There is no total while a shard still counts."""
    all_known = all(one["known"] for one in found)
    rows: dict[str, dict[str, Any]] = {}
    for one in found:
        for row in one["topics"]:
            known = rows.setdefault(row["topic"], {**row, "count": 0, "bytes": 0, "known": all_known})
            known["count"] += row["count"]
            known["bytes"] = None if row["bytes"] is None or known["bytes"] is None else known["bytes"] + row["bytes"]
            known["bytes_exact"] = known["bytes_exact"] and row["bytes_exact"]
            known["known"] = known["known"] and row["known"]
    ordered = sorted(rows.values(), key=lambda row: -row["count"])
    more = max(0, len(ordered) - limit) + sum(one["more"] for one in found)
    return {"topics": ordered[:limit], "more": more, "known": all_known}


def merged_overviews(found: Sequence[Document], not_ready: Sequence[str]) -> dict[str, Any]:
    """Add up overviews. ``not_ready`` is added to the reasons of the shards."""
    pending = [one["pending"] for one in found]
    minutes: dict[int, list[int]] = {}
    commands: Counter[tuple[str, str]] = Counter()
    for one in found:
        for cell in one["lateness"]["minutes"]:
            known = minutes.get(cell["from_ms"])
            counts = cell["counts"]
            minutes[cell["from_ms"]] = counts if known is None else [a + b for a, b in zip(known, counts, strict=True)]
        commands.update({(row["op"], row["verdict"]): row["count"] for row in one["commands"]})
    return {
        "now_ms": found[0]["now_ms"],
        "broker": ", ".join(one["broker"] for one in found),
        "cluster": found[0]["cluster"],
        "not_ready": [*not_ready, *(f"{one['broker']}: {reason}" for one in found for reason in one["not_ready"])],
        "pending": {
            **{name: sum(one[name] for one in pending) for name in ("count", "bytes", "armed", "failed", "levels")},
            "next_due_ms": first_of(one["next_due_ms"] for one in pending),
            "last_due_ms": last_of(one["last_due_ms"] for one in pending),
            "oldest_overdue_ms": first_of(one["oldest_overdue_ms"] for one in pending),
        },
        "lateness": {
            "bounds_ms": found[0]["lateness"]["bounds_ms"],
            "since_start": [
                sum(counts) for counts in zip(*(one["lateness"]["since_start"] for one in found), strict=True)
            ],
            "minutes": [{"from_ms": at_ms, "counts": counts} for at_ms, counts in sorted(minutes.items())],
        },
        "commands": [
            {"op": op, "verdict": verdict, "count": count} for (op, verdict), count in sorted(commands.items())
        ],
        "shards": [{"broker": one["broker"], "count": one["pending"]["count"]} for one in found],
    }
