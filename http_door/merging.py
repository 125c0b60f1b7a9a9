"""Merges the answers of several shards: sums, and lists in one order.

Different shards use the same offsets. So a place in the common order is due time, offset and shard (name or number).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

from store.put.pending_cursor import cursor_place, cursor_text

__all__ = [
    "Document",
    "first_of",
    "joined_remarks",
    "last_of",
    "merged_forecasts",
    "merged_pages",
    "named_remark",
    "summed_counts",
    "summed_topics",
]

Document = Mapping[str, Any]
_Shard = TypeVar("_Shard", bound=int | str)


def merged_pages(
    pages: Mapping[_Shard, Document], begun: Mapping[_Shard, str], limit: int
) -> tuple[list[tuple[_Shard, Document]], dict[_Shard, str | None]]:
    """Merge lists: returns at most ``limit`` rows with their shards, and where each shard continues.

    A shard that has not looked at all of its messages may have more of them after its cursor. So no row after the first
    of these cursors is shown.
    """
    places: list[Any] = [(*cursor_place(page["next"]), shard) for shard, page in pages.items() if page["next"]]
    behind = min(places, default=None)
    found: list[Any] = []
    for shard, page in pages.items():
        found += [(row["due_ms"], int(row["offset"]), shard, row) for row in page["messages"]]
    rows = sorted(found, key=lambda row: row[:3])
    taken = [row for row in rows if behind is None or row[:3] <= behind][:limit]
    counts: Counter[_Shard] = Counter(row[2] for row in taken)
    cursors: dict[_Shard, str | None] = {}
    for index, page in pages.items():
        count = counts[index]
        if count == len(page["messages"]):
            cursors[index] = page["next"]
        else:
            last = page["messages"][count - 1] if count else None
            cursors[index] = begun[index] if last is None else cursor_text((last["due_ms"], int(last["offset"])))
    return [(index, row) for _, _, index, row in taken], cursors


def first_of(values: Iterable[Any]) -> Any:
    """The least of the values that are not None; None if all are."""
    return min((value for value in values if value is not None), default=None)


def last_of(values: Iterable[Any]) -> Any:
    """The greatest of the values that are not None; None if all are."""
    return max((value for value in values if value is not None), default=None)


def summed_counts(found: Sequence[Document]) -> dict[str, Any]:
    """Add up counts. The caller adds the cursor."""
    return {
        "count": sum(one["count"] for one in found),
        "bytes": sum(one["bytes"] for one in found),
        "bytes_exact": all(one["bytes_exact"] for one in found),
        "first_due_ms": first_of(one["first_due_ms"] for one in found if one["count"]),
        "last_due_ms": last_of(one["last_due_ms"] for one in found if one["count"]),
        "unread": sum(one["unread"] for one in found),
        "remark": joined_remarks(one["remark"] for one in found),
    }


def joined_remarks(remarks: Iterable[str | None]) -> str | None:
    """One text of several remarks; None if there is none.

    >>> joined_remarks([None, "a", "b"]), joined_remarks([None])
    ('a; b', None)
    """
    return "; ".join(remark for remark in remarks if remark) or None


def named_remark(name: str, document: Document) -> str | None:
    """The ``remark`` of an answer with the name of the shard that gave it.

    >>> named_remark("b-1", {"remark": "a"}), named_remark("b-1", {"remark": None})
    ('b-1: a', None)
    """
    return f"{name}: {document['remark']}" if document["remark"] else None


def summed_topics(found: Iterable[Document]) -> list[Document]:
    """Add up rows by topic, largest first.

    >>> row = {"topic": "T", "count": 2, "bytes": 7, "first_due_ms": 5, "last_due_ms": 6}
    >>> summed_topics([row, {**row, "first_due_ms": 3}])
    [{'topic': 'T', 'count': 4, 'bytes': 14, 'first_due_ms': 3, 'last_due_ms': 6}]
    """
    sums: dict[str, dict[str, Any]] = {}
    for row in found:
        known = sums.get(row["topic"])
        if known is None:
            sums[row["topic"]] = dict(row)
            continue
        known["count"] += row["count"]
        known["bytes"] += row["bytes"]
        known["first_due_ms"] = min(known["first_due_ms"], row["first_due_ms"])
        known["last_due_ms"] = max(known["last_due_ms"], row["last_due_ms"])
    return sorted(sums.values(), key=lambda row: (-row["count"], row["topic"]))


def merged_forecasts(found: Sequence[Document]) -> dict[str, Any]:
    """Add up forecasts of the same range."""
    bars: Counter[int] = Counter()
    for one in found:
        bars.update(dict(one["bars"]))
    return {
        **{name: found[0][name] for name in ("from_ms", "to_ms", "step_ms")},
        "bars": [[from_ms, count] for from_ms, count in sorted(bars.items())],
        **{name: sum(one[name] for one in found) for name in ("total", "overdue", "later", "unread")},
        "exact": all(one["exact"] for one in found),
    }
