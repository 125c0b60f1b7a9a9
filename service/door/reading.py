"""Queries on the pending entries of all shards that an instance owns or follows. Each answer says what it covers.

The answer of each shard is bounded (`store.put.pending_api.PendingControl`). A list takes a few rows of each shard, and
shows those before the first place that was not looked at. A count ends after `COUNT_MS`. Both continue at the cursor
``next``. It names every shard that the first answer covered, with its place; a dot stands for a finished shard::

    broker-a%2F0=1700000000000-4000000000000005;broker-a%2F1=.

A shard that the instance got meanwhile is not in the cursor, and is reported as missing. If a shard of the cursor is
gone, the list ends with an error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any
from urllib.parse import quote, unquote

from http_door.merging import merged_forecasts, merged_pages, named_remark, summed_counts, summed_topics
from http_door.shapes import count_document, forecast_document, row_document
from http_door.work import BusyError, NotReadyError
from service.door.coverage import ShardSight, coverage_document, covered, known_shard
from store.disk.delay_id import SEQUENCE_MAX
from store.disk.errors import StoreError
from store.put.pending_api import PendingAnswer, PendingError, PendingName, PendingQuery, PendingRow, PendingVerdict
from store.put.pending_cursor import cursor_place
from store.put.pending_topics import TopicControl

__all__ = [
    "COUNT_MS",
    "READ_MS",
    "by_topic",
    "counted",
    "cursor_of_shards",
    "cursors_of_shards",
    "forecast",
    "listed",
    "looked_up",
    "row_of",
]

COUNT_MS = 3_000
"""A count of many shards begins with no further one after that."""
READ_MS = 11_000
"""A list or a forecast of many shards asks no further one after that: one takes 8 s at most, and HTTP waits 20 s."""
_ROWS_MIN = 16
_CURSOR_CHARS_MAX = 32 << 10
_THROUGH = "."
_GIVEN_UP = "it was given up while it was asked"
_LATE = "it has come to this instance since the first answer: ask anew to have it among them"
Cursors = Mapping[str, str | None]


def cursor_of_shards(cursors: Cursors) -> str | None:
    """Write a cursor from the cursor of each shard, None for a finished one; None if all are finished.

    >>> cursor_of_shards({"b/0": "5-4000000000000005", "b/1": None}), cursor_of_shards({"b/0": None})
    ('b%2F0=5-4000000000000005;b%2F1=.', None)
    """
    if all(cursor is None for cursor in cursors.values()):
        return None
    rows = sorted(cursors.items())
    return ";".join(f"{quote(name, safe='')}={_THROUGH if cursor is None else cursor}" for name, cursor in rows)


def cursors_of_shards(text: str, sights: Sequence[ShardSight]) -> dict[str, str | None]:
    """Read the cursor of each shard. Without a cursor all covered shards begin. Raises PendingError.

    >>> cursors_of_shards("b%2F0=5-4000000000000005;b%2F1=.", [])
    Traceback (most recent call last):
        ...
    store.put.pending_values.PendingError: the cursor is of b/0, which this instance does not own or follow: begin again
    """
    there = [sight.name for sight in covered(sights)]
    if not text:
        return dict.fromkeys(there, "")
    found: dict[str, str | None] = {}
    for part in text[:_CURSOR_CHARS_MAX].split(";"):
        name, equals, cursor = part.partition("=")
        name = unquote(name)
        if not equals or name in found or len(text) > _CURSOR_CHARS_MAX:
            raise PendingError(f"{text!r:.80} is no cursor: pass on `next` of an earlier answer as it is")
        if cursor not in ("", _THROUGH):
            cursor_place(cursor)
        found[name] = None if cursor == _THROUGH else cursor
    for name in found:
        if name not in there:
            raise PendingError(f"the cursor is of {name:.80}, which this instance does not own or follow: begin again")
    return found


class _Reading:
    """An answer in the making: the shards that are asked, and those that turned out to be gone."""

    def __init__(
        self, sights: Sequence[ShardSight], mono_ms: Callable[[], int], after: str = "", within_ms: int = READ_MS
    ) -> None:
        self._mono_ms, self._until_ms, self._goes_on = mono_ms, mono_ms() + within_ms, bool(after)
        self._within_ms = within_ms
        self.cursors = cursors_of_shards(after, sights)
        self.sights = [
            sight.without(_LATE) if sight.control is not None and sight.name not in self.cursors else sight
            for sight in sights
        ]
        if not covered(self.sights):
            owners = ", ".join(sorted({sight.owner for sight in sights if sight.owner})) or "nobody yet"
            raise NotReadyError(f"this instance owns and follows no shard; they are of {owners}: ask there")

    def each(self, ask: Callable[[ShardSight], Any]) -> dict[str, Any]:
        """Ask every shard that is not finished. One that is gone meanwhile is left out and reported as missing.

        Raises NotReadyError if all are gone, PendingError if a shard of the given cursor is, BusyError if it takes too
        long.
        """
        found: dict[str, Any] = {}
        for place, sight in enumerate(self.sights):
            if sight.control is None or self.cursors.get(sight.name) is None:
                continue
            if found and self._mono_ms() >= self._until_ms:
                raise BusyError(
                    f"{len(found)} shards are asked after {self._within_ms // 1000} s, and that is not all: take a "
                    "shorter range, or filters of due times"
                )
            try:
                found[sight.name] = ask(sight)
            except StoreError:
                if self._goes_on:
                    raise PendingError(f"the cursor is of {sight.name:.80}, and {_GIVEN_UP}: begin again") from None
                self.sights[place] = sight.without(_GIVEN_UP)
                self.cursors.pop(sight.name)
        if not covered(self.sights):
            raise NotReadyError("all shards were given up while they were asked: ask again")
        return found

    @property
    def coverage(self) -> dict[str, Any]:
        """The part of the answer about the shards that it covers."""
        return coverage_document(self.sights)


def counted(
    sights: Sequence[ShardSight], query: PendingQuery, after: str, mono_ms: Callable[[], int]
) -> dict[str, Any]:
    """Count the matching entries. Raises PendingError, NotReadyError."""
    done: list[dict[str, Any]] = []

    def count(control: TopicControl, cursor: str, name: str) -> str:
        found = control.count(query, cursor)
        document = count_document(found)
        done.append({**document, "remark": named_remark(name, document)})
        return found.next

    rest = _summed(sights, after, mono_ms, count)
    return {**summed_counts(done), **rest}


def by_topic(
    sights: Sequence[ShardSight], query: PendingQuery, after: str, mono_ms: Callable[[], int]
) -> dict[str, Any]:
    """Count the matching entries by topic. Raises PendingError, NotReadyError."""
    done: list[dict[str, Any]] = []
    unread = 0

    def add(control: TopicControl, cursor: str, _name: str) -> str:
        nonlocal unread
        found = control.by_topic(query, cursor)
        done.extend(map(asdict, found.rows))
        unread += found.unread
        return found.next

    rest = _summed(sights, after, mono_ms, add)
    return {"topics": summed_topics(done), "unread": unread, "known": rest["next"] is None, **rest}


def _summed(
    sights: Sequence[ShardSight], after: str, mono_ms: Callable[[], int], add: Callable[[TopicControl, str, str], str]
) -> dict[str, Any]:
    """Ask one shard after the other until the time is over; says where each goes on, and which they are."""
    reading = _Reading(sights, mono_ms, after)
    until_ms = mono_ms() + COUNT_MS
    asked = 0

    def ask(sight: ShardSight) -> str | None:
        nonlocal asked
        cursor = reading.cursors[sight.name] or ""
        if asked and mono_ms() >= until_ms:
            return cursor
        assert sight.control is not None
        following = add(sight.control, cursor, sight.name)
        asked += 1
        return following or None

    places = reading.each(ask)
    return {"next": cursor_of_shards({**reading.cursors, **places}), **reading.coverage}


def listed(
    sights: Sequence[ShardSight],
    query: PendingQuery,
    limit: int,
    after: str,
    mono_ms: Callable[[], int],
    within_ms: int = READ_MS,
) -> dict[str, Any]:
    """List the matching entries of all shards in due order. Raises PendingError, NotReadyError, BusyError."""
    reading = _Reading(sights, mono_ms, after, within_ms)
    asked = sum(cursor is not None for cursor in reading.cursors.values())
    share = min(limit, max(_ROWS_MIN, -(-2 * limit // max(1, asked))))
    rows_of: dict[tuple[str, str], PendingRow] = {}

    def page(sight: ShardSight) -> dict[str, Any]:
        assert sight.control is not None
        found = sight.control.page(query, share, reading.cursors[sight.name] or "")
        for row in found.rows:
            rows_of[sight.name, str(row.offset)] = row
        messages = [{"due_ms": row.due_ms, "offset": str(row.offset)} for row in found.rows]
        return {"messages": messages, "next": found.next or None}

    pages = reading.each(page)
    begun = {name: reading.cursors[name] or "" for name in pages}
    rows, places = merged_pages(pages, begun, limit)
    cursors = {**reading.cursors, **places}
    return {
        "messages": [row_of(rows_of[shard, row["offset"]], shard) for shard, row in rows],
        "next": cursor_of_shards(cursors),
        **reading.coverage,
    }


def row_of(row: PendingRow, shard: str) -> dict[str, Any]:
    """One row of a list, with the name of its entry."""
    entry = row.offset & SEQUENCE_MAX
    return {**row_document(row, f"{shard}/{entry}"), "offset": str(entry), "shard": shard}


def forecast(
    sights: Sequence[ShardSight], from_ms: int, to_ms: int, bars: int, topic: str, mono_ms: Callable[[], int]
) -> dict[str, Any]:
    """Count the entries that come due in each part of a range. Raises PendingError, NotReadyError, BusyError."""
    reading = _Reading(sights, mono_ms)

    def ask(sight: ShardSight) -> dict[str, Any]:
        assert sight.control is not None
        return forecast_document(sight.control.forecast(from_ms, to_ms, bars, topic))

    found = list(reading.each(ask).values())
    return {**merged_forecasts(found), **reading.coverage}


def looked_up(sights: Sequence[ShardSight], shard: str, entry: int) -> PendingAnswer | None:
    """An entry that waits: row, properties and body; None if this instance does not know it."""
    sight = known_shard(covered(sights), shard)
    if sight is None or sight.control is None or entry > SEQUENCE_MAX:
        return None
    try:
        answer = sight.control.get(PendingName(offset=sight.first + entry))
    except StoreError:
        return None
    return answer if answer.verdict is PendingVerdict.DONE and answer.row is not None else None
