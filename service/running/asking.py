"""Queries on the entries of a shard: list, count, topics, forecast. The fields are those of docs/pending.md."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from store.disk.delay_id import SEQUENCE_MAX
from store.disk.errors import StoreError
from store.put.pending_api import PAGE_MAX, PendingControl, PendingError, PendingRow
from store.put.pending_cursor import cursor_text
from store.put.pending_fields import number_of, query_of
from store.put.pending_topics import TopicControl

__all__ = ["QUESTION_BYTES_MAX", "answer_to"]

QUESTION_BYTES_MAX = 64 << 10
"""Longest body of a query. Those that wait for their answer are kept in memory, by standbys, too."""


def answer_to(body: bytes, control: TopicControl, shard: str, now_ms: int) -> dict[str, Any]:
    """The answer to a query as a JSON document. Raises nothing: it has ``error`` if the query cannot be answered."""
    if len(body) > QUESTION_BYTES_MAX:
        return {"error": f"a question has at most {QUESTION_BYTES_MAX} bytes"}
    try:
        fields = {str(name): str(value) for name, value in json.loads(body).items()}
        work: dict[str, Callable[[], dict[str, Any]]] = {
            "list": lambda: _page(control, fields, shard),
            "count": lambda: _count(control, fields),
            "topics": lambda: _topics(control, fields),
            "forecast": lambda: _forecast(control, fields, now_ms),
        }
        what = fields.get("what", "")
        if what not in work:
            raise PendingError(f"what = {what!r:.40}: there are {', '.join(work)}")
        return work[what]()
    except (ValueError, AttributeError, RecursionError) as error:
        return {"error": f"not a question in JSON: {error!s:.200}"}
    except PendingError as error:
        return {"error": str(error)}
    except StoreError as error:
        return {"error": f"{error}; ask again"}


def _page(control: PendingControl, fields: Mapping[str, str], shard: str) -> dict[str, Any]:
    page = control.page(query_of(fields), number_of(fields, "limit", PAGE_MAX) or 0, fields.get("after", ""))
    return {"messages": [_row(row, shard) for row in page.rows], "next": page.next}


def _row(row: PendingRow, shard: str) -> dict[str, Any]:
    return {
        "id": f"{shard}/{row.offset & SEQUENCE_MAX}",
        "topic": row.topic,
        "due_ms": row.due_ms,
        "accepted_ms": row.accepted_ms,
        "version": row.version,
        "size": row.size,
        "tag": row.tag,
        "unique_key": row.unique_key,
        "failed": row.failed,
        "after": cursor_text((row.due_ms, row.offset)),
    }


def _count(control: PendingControl, fields: Mapping[str, str]) -> dict[str, Any]:
    count = control.count(query_of(fields), fields.get("after", ""))
    return {
        "count": count.count,
        "bytes": count.bytes,
        "next": count.next,
        "unread": count.unread,
        "remark": count.remark,
    }


def _topics(control: TopicControl, fields: Mapping[str, str]) -> dict[str, Any]:
    found = control.by_topic(query_of(fields), fields.get("after", ""))
    return {"topics": [asdict(row) for row in found.rows], "next": found.next, "unread": found.unread}


def _forecast(control: PendingControl, fields: Mapping[str, str], now_ms: int) -> dict[str, Any]:
    from_ms = number_of(fields, "fromMs", now_ms) or 0
    to_ms = number_of(fields, "toMs", from_ms + 3_600_000) or 0
    found = control.forecast(from_ms, to_ms, number_of(fields, "bars", 60) or 0, fields.get("topic", ""))
    return {
        "step_ms": found.step_ms,
        "bars": [{"from_ms": bar.from_ms, "count": bar.count} for bar in found.bars],
        "total": found.total,
        "overdue": found.overdue,
        "later": found.later,
        "exact": found.exact,
        "unread": found.unread,
    }
