"""Counts and forecasts of pending messages: of a range, in spans of equal length over a range, and sums by topic."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

from broker_plugin.pending.looking import CALL_NS, READ_MAX, Cursor, Looker, Walk, cursor_of
from broker_plugin.rules.properties import DUE_MAX_MS
from broker_plugin.rules.ranges import KEY_MAX
from remoting.messages.message import RecordError, record_topic
from store.disk.errors import StoreError
from store.put.pending_api import Forecast, ForecastBar, PendingCount, PendingError, PendingQuery
from store.put.pending_cursor import cursor_text
from store.put.pending_topics import TOPICS_AT_ONCE, TopicSum, TopicSums
from store.spill.state.outlook import as_bounds

if TYPE_CHECKING:
    from broker_plugin.pending.parts import Delivery
    from store.spill.spill_store import SpillStore

__all__ = ["Foresight"]

TOPIC_MAX = 200_000
"""Most messages that are read for the forecast of one topic."""


class Foresight:
    """Makes counts and forecasts. Any thread."""

    def __init__(self, spill: SpillStore, sweeper: Delivery, looker: Looker) -> None:
        self._spill = spill
        self._sweeper = sweeper
        self._looker = looker

    def of_all(self, from_ms: int, to_ms: int, bars: int) -> Forecast:
        """A forecast of all messages, from the indexes."""
        step_ms = -(-(to_ms - from_ms) // bars)
        bounds = [min(from_ms + number * step_ms, to_ms) for number in range(bars + 1)]
        below, total, exact = self._below(bounds)
        counts = [high - low for low, high in pairwise(below)]
        return _made(from_ms, to_ms, step_ms, counts, total, below[0], total - below[-1], exact)

    def of_topic(self, topic: str, from_ms: int, to_ms: int, bars: int) -> Forecast:
        """A forecast of one topic, by reading all messages due in the range; others are not counted.

        What cannot be read is in ``unread``, whatever its topic. Raises PendingError if one call cannot read them all.
        """
        step_ms = -(-(to_ms - from_ms) // bars)
        counts = [0] * bars
        query = PendingQuery(topic=topic, due_from_ms=from_ms, due_to_ms=to_ms)
        walk = Walk(query, cursor_of(query, ""))
        has_time = self._looker.time_left()
        while walk.cursor is not None:
            if walk.looked_at and not has_time():
                raise PendingError(
                    f"only {walk.looked_at} of the messages due from {from_ms} to {to_ms} could be looked at within "
                    f"{CALL_NS / 1e9:g} s: take a shorter range"
                )
            found = self._looker.slice(query, walk.cursor)
            walk.took(found)
            for due_ms in found.dues:
                counts[(due_ms - from_ms) // step_ms] += 1
            if walk.looked_at > TOPIC_MAX:
                raise PendingError(
                    f"more than {TOPIC_MAX} messages are due from {from_ms} to {to_ms}: too many to read for one "
                    "topic; take a shorter range"
                )
        made = _made(from_ms, to_ms, step_ms, counts, sum(counts), 0, 0, True)
        return replace(made, unread=self._looker.unread_of(walk).count)

    def counted(self, query: PendingQuery, cursor: Cursor | None) -> PendingCount:
        """Count matching messages by reading them; ends early after many of them. Raises StoreError."""
        walk = Walk(query, cursor)
        count = size = 0
        first: int | None = None
        last: int | None = None
        has_time = self._looker.time_left()
        while walk.cursor is not None and walk.looked_at < READ_MAX and has_time():
            try:
                found = self._looker.slice(query, walk.cursor, complete=True)
            except StoreError:
                if not count:
                    raise
                break
            walk.took(found)
            count += len(found.ids)
            size += sum(found.sizes)
            if found.dues:
                first, last = found.dues[0] if first is None else first, found.dues[-1]
        unread = self._looker.unread_of(walk)
        return PendingCount(
            count=count,
            bytes=size,
            first_due_ms=first,
            last_due_ms=last,
            next=cursor_text(walk.cursor),
            unread=unread.count,
            remark=unread.remark,
        )

    def by_topic(self, query: PendingQuery, cursor: Cursor | None) -> TopicSums:
        """Add matching messages up by topic; ends early as a count does, or when it has met many topics."""
        sums: dict[str, list[int]] = {}  # messages, bytes, first and last due time
        walk = Walk(query, cursor)
        has_time = self._looker.time_left()
        while walk.cursor is not None and walk.looked_at < READ_MAX and len(sums) < TOPICS_AT_ONCE and has_time():
            found = self._looker.slice(query, walk.cursor)
            walk.took(found)
            for due_ms, id_, record, size in zip(found.dues, found.ids, found.records, found.sizes, strict=True):
                try:
                    topic = query.topic or record_topic(record)
                except RecordError:
                    walk.pass_over((due_ms, id_))  # unreadable, so that no listing shows it either
                    continue
                row = sums.setdefault(topic, [0, 0, due_ms, due_ms])
                row[0] += 1
                row[1] += size
                row[3] = due_ms  # in due order
        ordered = sorted(sums.items(), key=lambda item: (-item[1][0], item[0]))
        rows = tuple(
            TopicSum(topic=topic, count=count, bytes=size, first_due_ms=first_ms, last_due_ms=last_ms)
            for topic, (count, size, first_ms, last_ms) in ordered
        )
        return TopicSums(rows=rows, next=cursor_text(walk.cursor), unread=self._looker.unread_of(walk).count)

    def between(self, from_ms: int | None, to_ms: int | None) -> PendingCount:
        """Count a range of due times; bytes are estimated from the average of all."""
        until_ms = DUE_MAX_MS + 1 if to_ms is None else to_ms
        (low, high), total, _ = self._below([from_ms or 0, until_ms])
        count = max(0, high - low)
        size = self._spill.pending_bytes * count // max(total, count, 1)
        first_ms, last_ms = self.ends(from_ms, until_ms)
        return PendingCount(count=count, bytes=size, bytes_exact=False, first_due_ms=first_ms, last_due_ms=last_ms)

    def ends(self, from_ms: int | None = None, until_ms: int = DUE_MAX_MS + 1) -> tuple[int | None, int | None]:
        """The first and the last due time within a range, epoch ms; None, None if nothing is due in it."""
        begin: Cursor = (-1 if from_ms is None else from_ms - 1, KEY_MAX)
        query = PendingQuery(due_from_ms=from_ms, due_to_ms=until_ms)
        first = self._looker.slice(query, begin, 1, records=False)
        if not first.dues:
            return None, None
        last_ms = self._spill.outlook.last_due(until_ms)  # deliveries and moves may have come in between
        return first.dues[0], max(first.dues[0], last_ms or 0)

    def _below(self, bounds: list[int]) -> tuple[list[int], int, bool]:
        """Number of messages due before each of these times, number of all, and whether both are exact."""
        with self._spill.lock:
            self._sweeper.publish_all()
        below, exact = self._spill.outlook.counts_below(as_bounds((*bounds, DUE_MAX_MS + 1)))
        *counts, total = below.tolist()
        return counts, total, exact


def _made(
    from_ms: int, to_ms: int, step_ms: int, counts: list[int], total: int, overdue: int, later: int, exact: bool
) -> Forecast:
    bars = tuple(
        ForecastBar(from_ms=from_ms + number * step_ms, count=count) for number, count in enumerate(counts) if count > 0
    )
    return Forecast(
        from_ms=from_ms,
        to_ms=to_ms,
        step_ms=step_ms,
        bars=bars,
        total=total,
        overdue=overdue,
        later=max(0, later),
        exact=exact,
    )
