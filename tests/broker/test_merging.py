"""Lists of several shards in one order, whatever each shard has looked at when it answers."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.door.merging import cursor_of_all, cursors_of_each, merged_pages, merged_topics
from http_door.merging import merged_forecasts, named_remark, summed_counts
from http_door.shapes import count_document, forecast_document
from store.put.pending_api import Forecast, PendingCount, PendingError
from store.put.pending_cursor import cursor_place, cursor_text

Key = tuple[int, int]
KEYS = st.lists(st.tuples(st.integers(1, 6), st.integers(1, 4)), unique=True, max_size=8).map(sorted)


def _page(keys: list[Key], after: str, limit: int, looks: int) -> dict[str, Any]:
    """What a shard answers that looks at few messages, of which those with an even offset match."""
    begin = cursor_place(after) if after else (0, 0)
    left = [key for key in keys if key > begin]
    rows, last = [], None
    for key in left:
        if looks == 0 or len(rows) == limit:
            break
        looks -= 1
        last = key
        if key[1] % 2 == 0:
            rows.append({"due_ms": key[0], "offset": str(key[1])})
    more = (last is None and left) or (last is not None and last != left[-1])
    return {"messages": rows, "next": (cursor_text(last) if last else after or "0-0") if more else None}


@given(st.lists(KEYS, min_size=1, max_size=3), st.integers(1, 4), st.integers(1, 5))
def test_every_message_is_listed_once_and_in_order(shards: list[list[Key]], limit: int, looks: int) -> None:
    found: list[tuple[int, int, int]] = []
    after: str | None = ""
    calls = 0
    while after is not None:
        calls += 1
        assert calls < 200, "it comes to no end"
        begun = cursors_of_each(after, range(len(shards)))
        pages = {index: _page(shards[index], cursor, limit, looks) for index, cursor in begun.items()}
        rows, cursors = merged_pages(pages, begun, limit)
        assert len(rows) <= limit
        found += [(row["due_ms"], int(row["offset"]), index) for index, row in rows]
        after = cursor_of_all(cursors)
    assert found == sorted((*key, index) for index, keys in enumerate(shards) for key in keys if key[1] % 2 == 0)


@pytest.mark.parametrize("text", ["x", "0", "a=5-1", "0=5-x", "0=7;", "9=5-1", "0=" + "1" * 9000])
def test_what_is_no_cursor_is_refused(text: str) -> None:
    with pytest.raises(PendingError):
        cursors_of_each(text, [0, 1])


def test_counts_are_known_when_all_shards_have_counted() -> None:
    row = {"topic": "T", "count": 5, "bytes": 500, "bytes_exact": False, "known": True}
    ready = {"topics": [row], "more": 0, "known": True}
    counting = {"topics": [], "more": 0, "known": False}
    for shards, count, known in (([ready, ready], 10, True), ([ready, counting], 5, False), ([counting], 0, False)):
        found = merged_topics(shards, 10)
        assert found["known"] is known
        assert [(one["count"], one["known"]) for one in found["topics"]] == ([(count, known)] if count else [])


def test_what_could_not_be_read_is_added_up() -> None:
    counts = [PendingCount(count=1, bytes=5, unread=n, remark=f"run {n}" if n else "") for n in (0, 2, 3)]
    documents = [count_document(count) for count in counts]
    summed = summed_counts([{**one, "remark": named_remark(f"b-{n}", one)} for n, one in enumerate(documents)])
    assert (summed["count"], summed["unread"], summed["remark"]) == (3, 5, "b-1: run 2; b-2: run 3")
    assert summed_counts([count_document(counts[0])])["remark"] is None
    forecasts = [
        Forecast(from_ms=0, to_ms=9, step_ms=9, bars=(), total=0, overdue=0, later=0, unread=n) for n in (0, 2, 3)
    ]
    assert merged_forecasts(list(map(forecast_document, forecasts)))["unread"] == 5
