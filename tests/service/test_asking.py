"""Questions about entries are read as the broker reads them: no condition is passed over."""

from __future__ import annotations

import json
from typing import Any, cast

import pytest

from service.running.asking import answer_to
from store.put.pending_api import PendingControl, PendingCount, PendingQuery

EVERY = {
    "topic": "T",
    "tag": "t",
    "keyPrefix": "order-",
    "dueFromMs": "1",
    "dueToMs": "2",
    "acceptedFromMs": "3",
    "acceptedToMs": "4",
    "properties": "A\x01b\x02",
}


class _Asked:
    """Keeps what is asked."""

    def __init__(self) -> None:
        self.queries: list[PendingQuery] = []

    def count(self, query: PendingQuery, _after: str) -> PendingCount:
        self.queries.append(query)
        return PendingCount(count=7, bytes=0, first_due_ms=None, last_due_ms=None, next="")


def _ask(asked: _Asked, **fields: str) -> dict[str, Any]:
    body = json.dumps({"what": "count", **fields}).encode()
    return answer_to(body, cast(PendingControl, asked), "shard", 5)


@pytest.mark.parametrize("name", EVERY)
def test_each_condition_counts(name: str) -> None:
    asked = _Asked()
    assert _ask(asked, **{name: EVERY[name]})["count"] == 7
    assert not asked.queries[0].is_empty


@pytest.mark.parametrize("text", ["x", "1" * 5000, "1.5", "--1", "-", "٣"])
def test_what_is_no_number_is_refused_with_its_name(text: str) -> None:
    asked = _Asked()
    assert "dueFromMs" in _ask(asked, dueFromMs=text)["error"]
    assert asked.queries == []
