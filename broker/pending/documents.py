"""Answers about pending messages as JSON, the same on the wire and behind every other door.

Times are epoch ms, ids are message ids (text), bodies are base64. A reader must take fields that it does not know.
"""

from __future__ import annotations

from base64 import b64encode
from typing import Any

from broker.pending.names import name_text
from store.put.pending_api import Forecast, PendingAnswer, PendingBulk, PendingCount, PendingPage, PendingRow
from store.put.pending_cursor import cursor_text

__all__ = ["answer_document", "bulk_document", "count_document", "forecast_document", "page_document", "row_document"]

ANSWERS_SHOWN = 1000
"""Answers of a bulk change that are written out one by one; more are counted only."""


def row_document(row: PendingRow, store_host: bytes) -> dict[str, Any]:
    """One message of a listing."""
    return {
        "id": name_text(row.offset, store_host),
        "topic": row.topic,
        "due_ms": row.due_ms,
        "accepted_ms": row.accepted_ms,
        "version": row.version,
        "queue_id": row.queue_id,
        "size": row.size,
        "tag": row.tag,
        "key": row.key,
        "unique_key": row.unique_key,
        "failed": row.failed,
    }


def answer_document(answer: PendingAnswer, store_host: bytes) -> dict[str, Any]:
    """The result of a command or a query; fields without a meaning for this verdict are left out."""
    document: dict[str, Any] = {"verdict": answer.verdict.value}
    if answer.offset:
        document |= {
            "id": name_text(answer.offset, store_host),
            "version": answer.version,
            "due_ms": answer.due_ms,
        }
    for name, value in (("detail", answer.detail), ("when_ms", answer.when_ms), ("where", answer.where)):
        if value:
            document[name] = value
    if answer.row is not None:
        document["message"] = {
            **row_document(answer.row, store_host),
            "properties": dict(answer.properties),
            "body": b64encode(answer.body).decode(),
        }
    return document


def page_document(page: PendingPage, store_host: bytes) -> dict[str, Any]:
    """Rows, each with the cursor behind it, and the cursor of the next page."""
    return {
        "messages": [
            {**row_document(row, store_host), "after": cursor_text((row.due_ms, row.offset))} for row in page.rows
        ],
        "next": page.next,
    }


def count_document(count: PendingCount) -> dict[str, Any]:
    """Make the answer to a count: the matches so far, and where to continue counting."""
    return {
        "count": count.count,
        "bytes": count.bytes,
        "bytes_exact": count.bytes_exact,
        "first_due_ms": count.first_due_ms,
        "last_due_ms": count.last_due_ms,
        "next": count.next,
        "unread": count.unread,
        "remark": count.remark,
    }


def bulk_document(bulk: PendingBulk, store_host: bytes) -> dict[str, Any]:
    """The result of one call of a bulk change."""
    return {
        "dry_run": bulk.dry_run,
        "verdicts": {verdict.value: count for verdict, count in bulk.verdicts.items()},
        "answers": [answer_document(answer, store_host) for answer in bulk.answers[:ANSWERS_SHOWN]],
        "looked_at": bulk.looked_at,
        "next": bulk.next,
        "unread": bulk.unread,
        "remark": bulk.remark,
    }


def forecast_document(forecast: Forecast) -> dict[str, Any]:
    """Make the answer to a forecast: messages by due time. Empty bars are left out."""
    return {
        "from_ms": forecast.from_ms,
        "to_ms": forecast.to_ms,
        "step_ms": forecast.step_ms,
        "bars": [{"from_ms": bar.from_ms, "count": bar.count} for bar in forecast.bars],
        "total": forecast.total,
        "overdue": forecast.overdue,
        "later": forecast.later,
        "exact": forecast.exact,
        "unread": forecast.unread,
    }
