"""Pending messages as JSON documents of the API. Broker and service use the same fields (``openapi.json``)."""

from __future__ import annotations

import base64
from typing import Any

from store.put.pending_api import Forecast, PendingAnswer, PendingCount, PendingRow, PendingVerdict

__all__ = [
    "BODY_SHOWN_BYTES",
    "BODY_SHOWN_MAX",
    "STATUS",
    "USUAL_BARS",
    "USUAL_ROWS",
    "content_document",
    "count_document",
    "forecast_document",
    "row_document",
]

BODY_SHOWN_BYTES = 64 << 10
"""Bytes of a message's body that are shown, unless the request asks for more."""
BODY_SHOWN_MAX = 4 << 20
USUAL_ROWS = 100
USUAL_BARS = 60
STATUS = {
    PendingVerdict.DONE: 200,
    PendingVerdict.ALREADY: 200,
    PendingVerdict.TOO_LATE: 409,
    PendingVerdict.CANCELLED: 409,
    PendingVerdict.CHANGED: 409,
    PendingVerdict.UNKNOWN: 404,
    PendingVerdict.REFUSED: 400,
}
"""HTTP status for each verdict."""


def count_document(found: PendingCount) -> dict[str, Any]:
    """A count."""
    return {
        "count": found.count,
        "bytes": found.bytes,
        "bytes_exact": found.bytes_exact,
        "first_due_ms": found.first_due_ms,
        "last_due_ms": found.last_due_ms,
        "next": found.next or None,
        "unread": found.unread,
        "remark": found.remark or None,
    }


def forecast_document(found: Forecast) -> dict[str, Any]:
    """A forecast."""
    return {
        "from_ms": found.from_ms,
        "to_ms": found.to_ms,
        "step_ms": found.step_ms,
        "bars": [[bar.from_ms, bar.count] for bar in found.bars],
        "total": found.total,
        "overdue": found.overdue,
        "later": found.later,
        "exact": found.exact,
        "unread": found.unread,
    }


def row_document(row: PendingRow, name: str) -> dict[str, Any]:
    """One message of a list, under the name that the API gives it."""
    return {
        "id": name,
        "offset": str(row.offset),
        "topic": row.topic,
        "queue_id": row.queue_id,
        "due_ms": row.due_ms,
        "accepted_ms": row.accepted_ms,
        "version": row.version,
        "size": row.size,
        "tag": row.tag,
        "key": row.key,
        "unique_key": row.unique_key,
        "failed": row.failed,
    }


def content_document(answer: PendingAnswer, shown: int) -> dict[str, Any]:
    """Properties of a message, and the first ``shown`` bytes of its body."""
    return {
        "properties": dict(answer.properties),
        "body_bytes": len(answer.body),
        "body_base64": base64.b64encode(answer.body[:shown]).decode(),
    }
