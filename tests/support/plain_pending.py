"""Pending messages in a list: `PendingControl` in the plainest way, for tests of what is built on it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from remoting.pending_rules import past_fault
from store.put.pending_api import (
    Forecast,
    ForecastBar,
    PendingAnswer,
    PendingBulk,
    PendingCount,
    PendingError,
    PendingFigures,
    PendingName,
    PendingOrder,
    PendingPage,
    PendingQuery,
    PendingRow,
    PendingTopic,
    PendingVerb,
    PendingVerdict,
)
from store.put.pending_topics import TopicSum, TopicSums

__all__ = ["PlainPending", "row"]

FIRST = 1 << 62


def row(number: int, due_ms: int, topic: str = "T", **more: object) -> PendingRow:
    """Make one message."""
    values: dict[str, object] = {"version": 0, "accepted_ms": 0, "queue_id": 0, "size": 100, **more}
    return PendingRow(offset=FIRST + number, due_ms=due_ms, topic=topic, **values)  # type: ignore[arg-type]


class PlainPending:
    """See `store.put.pending_api.PendingControl`; ``rows`` are what is pending, ``gone`` the verdict of what is not."""

    def __init__(self, rows: Sequence[PendingRow] = ()) -> None:
        self.rows = sorted(rows, key=lambda found: (found.due_ms, found.offset))
        self.gone: dict[int, PendingVerdict] = {}
        self.orders: list[PendingOrder] = []
        self.verdicts: dict[tuple[PendingVerb, PendingVerdict], int] = {}
        self.failed = 0
        self.error: Exception | None = None
        self.looked_max = 1 << 30
        """A page ends after so many rows that it has looked at, also if it is not full."""
        self.unread = 0
        """So many more may match and are passed over by counts and changes by a query."""

    def _matching(self, query: PendingQuery, rows: Sequence[PendingRow] | None = None) -> list[PendingRow]:
        return [
            found
            for found in (self.rows if rows is None else rows)
            if (not query.topic or found.topic == query.topic)
            and (not query.tag or found.tag == query.tag)
            and found.key.startswith(query.key_prefix)
            and (query.due_from_ms is None or found.due_ms >= query.due_from_ms)
            and (query.due_to_ms is None or found.due_ms < query.due_to_ms)
        ]

    def _find(self, name: PendingName) -> PendingRow | None:
        for found in self.rows:
            if found.offset == name.offset or (name.key and (found.topic, found.key) == (name.topic, name.key)):
                return None if name.topic and found.topic != name.topic else found
        return None

    def get(self, name: PendingName) -> PendingAnswer:
        found = self._find(name)
        if found is None:
            return PendingAnswer(verdict=self.gone.get(name.offset, PendingVerdict.UNKNOWN))
        return PendingAnswer(
            verdict=PendingVerdict.DONE,
            offset=found.offset,
            version=found.version,
            due_ms=found.due_ms,
            row=found,
            properties=(("KEYS", "k1"), ("<b>", "</script>")),
            body=b"body \xff\0" * 10,
        )

    def page(self, query: PendingQuery, limit: int, after: str = "") -> PendingPage:
        if self.error is not None:
            raise self.error
        if after and not after.isdigit():
            raise PendingError(f"after={after!r} is no cursor")
        begin = int(after or 0)
        found: list[PendingRow] = []
        at = begin
        while at < min(len(self.rows), begin + self.looked_max) and len(found) < limit:
            found += self._matching(query, self.rows[at : at + 1])
            at += 1
        more = bool(self._matching(query, self.rows[at:])) or begin + self.looked_max <= at < len(self.rows)
        return PendingPage(rows=tuple(found), next=str(at) if more else "")

    def count(self, query: PendingQuery, after: str = "") -> PendingCount:
        assert not after
        dues = [found.due_ms for found in self._matching(query)]
        first, last = (min(dues), max(dues)) if dues else (None, None)
        found = PendingCount(count=len(dues), bytes=100 * len(dues), first_due_ms=first, last_due_ms=last)
        return replace(found, unread=self.unread, remark=self._remark)

    @property
    def _remark(self) -> str:
        return f"{self.unread} in run 7" if self.unread else ""

    def by_topic(self, query: PendingQuery, after: str = "") -> TopicSums:
        assert not after
        dues: dict[str, list[int]] = {}
        for found in self._matching(query):
            dues.setdefault(found.topic, []).append(found.due_ms)
        return TopicSums(
            rows=tuple(
                TopicSum(topic=topic, count=len(of), bytes=100 * len(of), first_due_ms=min(of), last_due_ms=max(of))
                for topic, of in sorted(dues.items(), key=lambda item: -len(item[1]))
            )
        )

    def accepted_ms(self, offset: int) -> int:
        return next((found.accepted_ms for found in self.rows if found.offset == offset), 0)

    def last_due(self) -> int | None:
        return max((found.due_ms for found in self._matching(PendingQuery())), default=None)

    def forecast(self, from_ms: int, to_ms: int, bars: int, topic: str = "") -> Forecast:
        if to_ms <= from_ms:
            raise PendingError(f"a forecast from {from_ms} to {to_ms} has no length")
        step_ms = -(-(to_ms - from_ms) // bars)
        counts: dict[int, int] = {}
        within = self._matching(PendingQuery(topic=topic, due_from_ms=from_ms, due_to_ms=to_ms))
        for found in within:
            begin = from_ms + (found.due_ms - from_ms) // step_ms * step_ms
            counts[begin] = counts.get(begin, 0) + 1
        every = within if topic else self.rows
        return Forecast(
            from_ms=from_ms,
            to_ms=to_ms,
            step_ms=step_ms,
            bars=tuple(ForecastBar(from_ms=at_ms, count=count) for at_ms, count in sorted(counts.items())),
            total=len(every),
            overdue=sum(found.due_ms < from_ms for found in every),
            later=sum(found.due_ms >= to_ms for found in every),
        )

    def change(self, order: PendingOrder, now_ms: int) -> PendingAnswer:
        fault = "" if order.due_ms is None else past_fault("due", order.due_ms, now_ms)
        if fault:
            raise PendingError(fault)
        self.orders.append(order)
        found = self._find(order.name)
        if found is None:
            verdict = self.gone.get(order.name.offset, PendingVerdict.UNKNOWN)
        elif order.version not in (None, found.version):
            verdict = PendingVerdict.CHANGED
        else:
            verdict = PendingVerdict.DONE
            self.rows.remove(found)
            if order.verb is PendingVerb.CANCEL:
                self.gone[found.offset] = PendingVerdict.ALREADY
            else:
                due_ms = order.due_ms if order.due_ms is not None else found.due_ms + (order.by_ms or 0)
                due_ms = now_ms if order.verb is PendingVerb.NOW else max(due_ms, now_ms)
                self.rows.append(row(found.offset - FIRST, due_ms, found.topic, version=found.version + 1))
        self.verdicts[order.verb, verdict] = self.verdicts.get((order.verb, verdict), 0) + 1
        return PendingAnswer(verdict=verdict, offset=order.name.offset, due_ms=0 if found is None else found.due_ms)

    def change_many(self, orders: Sequence[PendingOrder], now_ms: int, *, dry_run: bool = False) -> list[PendingAnswer]:
        if dry_run:
            return [self.get(order.name) for order in orders]
        return [self.change(order, now_ms) for order in orders]

    def change_matching(
        self,
        query: PendingQuery,
        verb: PendingVerb,
        now_ms: int,
        *,
        limit: int = 1000,
        dry_run: bool = True,
        after: str = "",
        due_ms: int | None = None,
        by_ms: int | None = None,
    ) -> PendingBulk:
        assert not after
        if query.width_fault:
            raise PendingError(query.width_fault)
        found = self._matching(query)[:limit]
        if dry_run:
            return PendingBulk(verdicts={PendingVerdict.DONE: len(found)}, looked_at=len(found), dry_run=True)
        orders = [
            PendingOrder(verb=verb, name=PendingName(offset=one.offset), due_ms=due_ms, by_ms=by_ms) for one in found
        ]
        answers = self.change_many(orders, now_ms)
        return PendingBulk(
            verdicts={PendingVerdict.DONE: len(answers)},
            answers=tuple(answers),
            looked_at=len(answers),
            unread=self.unread,
            remark=self._remark,
        )

    def figures(self) -> PendingFigures:
        return PendingFigures(
            count=len(self.rows),
            bytes=100 * len(self.rows),
            armed=0,
            failed=self.failed,
            journal_bytes=0,
            runs=0,
            next_due_ms=None,
            verdicts=dict(self.verdicts),
        )

    def topics(self) -> Sequence[PendingTopic]:
        counts: dict[str, int] = {}
        for found in self.rows:
            counts[found.topic] = counts.get(found.topic, 0) + 1
        ordered = sorted(counts.items(), key=lambda item: -item[1])
        return [
            PendingTopic(topic=topic, count=count, bytes=100 * count, bytes_exact=False) for topic, count in ordered
        ]
