"""The figures at the top of the page, in one answer: pending entries, owner, follower and lateness of each shard."""

from __future__ import annotations

from typing import Any

from http_door.merging import first_of, last_of
from service.door.coverage import ShardSight, Sighting, coverage_document
from service.door.view import InstanceView, ShardCare
from store.disk.errors import StoreError
from store.put.lateness import BOUNDS_MS
from store.put.pending_api import PendingControl, PendingQuery

__all__ = ["FOLLOWS_MS", "overview"]

FOLLOWS_MS = 10_000
"""In a shard that is followed, messages count as delivered until they are overdue by more than this."""
_SUMS = ("count", "bytes", "failed", "refused", "overdue", "beyond_roll")
_NOTHING: dict[str, Any] = {
    "count": None,
    "bytes": None,
    "failed": None,
    "overdue": None,
    "next_due_ms": None,
    "last_due_ms": None,
    "oldest_overdue_ms": None,
    "beyond_roll": None,
}


def overview(view: InstanceView, now_ms: int) -> dict[str, Any]:
    """Make the overview, in a worker thread. ``now_ms``: epoch ms. Sums are None if no shard is known here.

    Raises NotReadyError.
    """
    sights = view.sights()
    care = view.care()
    roll_ms = now_ms + view.roll_after_ms
    told: list[ShardSight] = []
    rows: list[dict[str, Any]] = []
    for sight in sights:
        figures = _NOTHING
        if sight.control is not None:
            try:
                late_ms = now_ms - (FOLLOWS_MS if sight.sighting is Sighting.FOLLOWED else 0)
                figures = _figures(sight.control, now_ms, late_ms, roll_ms)
            except StoreError:
                sight = sight.without("it was given up while it was asked")
        told.append(sight)
        rows.append(_row(sight, care.get(sight.name, ShardCare()), figures))
    known = [row for row in rows if row["count"] is not None]
    tally = view.tally
    return {
        "now_ms": now_ms,
        "instance": view.name,
        "topic": view.topic,
        "roll_after_ms": view.roll_after_ms,
        "not_ready": list(view.why_not_ready()),
        "pending": {
            **{name: sum(row[name] for row in known) if known else None for name in _SUMS},
            "next_due_ms": first_of(row["next_due_ms"] for row in known),
            "last_due_ms": last_of(row["last_due_ms"] for row in known),
            "oldest_overdue_ms": first_of(row["oldest_overdue_ms"] for row in known),
        },
        "lateness": {"bounds_ms": list(BOUNDS_MS), "since_start": list(tally.lateness.classes)},
        "delivered": tally.delivered,
        "rejected": tally.rejected,
        "rolled": tally.rolled,
        "commands": [
            {"op": op, "verdict": verdict, "count": count}
            for (op, verdict), count in sorted(dict(tally.verdicts).items())
        ],
        "whole": coverage_document(told)["whole"],
        "shards": rows,
    }


def _figures(control: PendingControl, now_ms: int, late_ms: int, roll_ms: int) -> dict[str, Any]:
    """Figures of one shard, from its indexes and at most two messages. Overdue: due before ``late_ms``."""
    figures = control.figures()
    due = control.page(PendingQuery(due_to_ms=late_ms), 1).rows
    ahead = control.page(PendingQuery(due_from_ms=now_ms), 1).rows
    return {
        "count": figures.count,
        "bytes": figures.bytes,
        "failed": figures.failed,
        "overdue": control.count(PendingQuery(due_to_ms=late_ms)).count if due else 0,
        "next_due_ms": ahead[0].due_ms if ahead else None,
        "last_due_ms": control.last_due(),
        "oldest_overdue_ms": due[0].due_ms if due else None,
        "beyond_roll": control.count(PendingQuery(due_from_ms=roll_ms)).count,
    }


def _row(sight: ShardSight, care: ShardCare, figures: dict[str, Any]) -> dict[str, Any]:
    (told,) = coverage_document([sight])["shards"]
    refused = None if figures["count"] is None else care.refused
    return {**told, "standby": care.standby or None, "doubts": care.doubts, **figures, "refused": refused}
