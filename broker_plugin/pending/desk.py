"""The desk: shows and changes pending messages (`store.put.pending_api.PendingControl`).

Queries and bulk changes go over the delay store in key order, some dozens of messages at a time. The delivery lock is
released after each slice, so nobody waits for more than one. A call looks at a bounded number of messages and ends with
a cursor. The cursor is a key (due time and delay id), so it is valid in any process that has the store, also after a
restart.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from broker_plugin.pending.bulk import Bulk, OutOfTimeError
from broker_plugin.pending.changes import Changes
from broker_plugin.pending.delay_keys import DelayKeys
from broker_plugin.pending.ended import not_found
from broker_plugin.pending.foresight import Foresight
from broker_plugin.pending.looking import (
    SLICE_BYTES,
    Looker,
    checked,
    cursor_of,
    limited,
    shown,
)
from broker_plugin.pending.records import accepted_ms
from broker_plugin.rules.properties import DUE_MAX_MS
from remoting.messages.message import RecordError, decode_record
from remoting.messages.properties import parse_properties
from remoting.pending_rules import PAST_MS, past_fault, time_fault
from store.disk.errors import StoreError
from store.put.pending_api import (
    BULK_MAX,
    FORECAST_BARS_MAX,
    PAGE_MAX,
    Forecast,
    PendingAnswer,
    PendingBulk,
    PendingCount,
    PendingError,
    PendingFigures,
    PendingName,
    PendingOrder,
    PendingPage,
    PendingQuery,
    PendingTopic,
    PendingVerb,
    PendingVerdict,
)
from store.put.pending_cursor import cursor_text
from store.put.pending_topics import TopicSums

if TYPE_CHECKING:
    from threading import RLock

    from broker_plugin.figures.balance import TopicBalance
    from broker_plugin.pending.parts import Delivery, Overdue
    from broker_plugin.rules.stats import Stats
    from store.disk.ticket import Ticket
    from store.spill.rows.model import Found
    from store.spill.spill_store import SpillStore

__all__ = ["PendingDesk"]

_V = PendingVerdict
_NOBODY = 1
"""An offset that no message has."""
LISTED_OF_MAX = 2_500
"""Most messages that one page of a listing looks at: 50 microseconds each with ten million pending."""


class PendingDesk:
    """Queries and changes of pending messages. Any thread except the network loop's."""

    def __init__(
        self,
        spill: SpillStore,
        sweeper: Delivery,
        recovery: Overdue,
        lock: RLock,
        stats: Stats,
        changes: Changes,
        keys: DelayKeys | None = None,
    ) -> None:
        self._spill = spill
        self._sweeper = sweeper
        self._recovery = recovery
        self._lock = lock
        self._stats = stats
        self._changes = changes
        self._keys = keys
        self.balance: TopicBalance | None = None
        """Pending messages by topic, if they are counted."""
        self._looker = Looker(spill, sweeper, recovery, lock)
        self._foresight = Foresight(spill, sweeper, self._looker)
        self._bulk = Bulk(lock, changes, self._looker)

    def pause_by(
        self,
        pause: Callable[[], object],
        worked_ns: Callable[[], int] = lambda: 0,
        passed_ns: Callable[[], int] = lambda: 0,
    ) -> None:
        """Make queries and bulk changes pause after each slice, so that deliveries get the lock and the interpreter.

        ``worked_ns`` (processor time of the calling thread) makes slices so small that each takes 2 ms at most;
        ``passed_ns`` (a monotonic clock) ends a call in time.
        """
        self._looker.pause, self._looker.worked_ns, self._looker.passed_ns = pause, worked_ns, passed_ns

    # ------------------------------------------------------------------------------------------------ looking

    def get(self, name: PendingName) -> PendingAnswer:
        """Look one message up. Raises StoreError, PendingError for a name without offset and key."""
        name = self._named(name)
        with self._lock:
            found = self._find(name)
            record = b"" if found is None else self._spill.read((found.ref,))[0]
        if found is None:
            return self._changes.past(name)
        try:
            stored = decode_record(record)
        except RecordError as error:
            raise StoreError(f"pending message {name.offset:#x} cannot be read: {error}") from error
        answer = self._seen(name, found, record, len(record))
        if answer.row is None:
            return answer
        return replace(answer, properties=tuple(parse_properties(stored.properties).items()), body=stored.body)

    def _find(self, name: PendingName) -> Found | None:
        self._sweeper.publish_all()
        found = self._spill.find(name.offset)
        return None if found is None or found.done else found

    def _seen(self, name: PendingName, found: Found, record: bytes, size: int) -> PendingAnswer:
        row = self._looker.row(record, size, found.delay_id, found.due_ms)
        if (name.topic and name.topic != row.topic) or (name.unique_key and name.unique_key != row.unique_key):
            return not_found()
        return PendingAnswer(
            verdict=_V.DONE, offset=found.delay_id, version=found.version, due_ms=found.due_ms, row=row
        )

    def _glance(self, name: PendingName, tickets: list[Ticket]) -> PendingAnswer:
        """Look up one of many messages, without its body. The caller waits for ``tickets``. Raises StoreError."""
        name = self._named(name)
        with self._lock:
            found = self._find(name)
            texts, sizes = ([b""], [0]) if found is None else self._spill.read_outlines((found.ref,), SLICE_BYTES)
        if found is None:
            return self._changes.past(name, tickets)
        try:
            return self._seen(name, found, texts[0], sizes[0])
        except RecordError as error:
            raise StoreError(f"pending message {name.offset:#x} cannot be read: {error}") from error

    def page(self, query: PendingQuery, limit: int, after: str = "") -> PendingPage:
        """List matching messages in (due, offset) order. Raises PendingError."""
        checked(query)
        limit = limited(limit, PAGE_MAX)
        cursor = cursor_of(query, after)
        rows, cursor = self._looker.rows(query, cursor, limit, LISTED_OF_MAX)
        return PendingPage(rows=tuple(rows), next=cursor_text(cursor))

    def count(self, query: PendingQuery, after: str = "") -> PendingCount:
        """Count matching messages. Raises PendingError, StoreError."""
        checked(query)
        if query.is_empty:
            first_ms = last_ms = None
            with suppress(StoreError):  # the count itself needs no disk
                first_ms, last_ms = self._foresight.ends()
            return PendingCount(
                count=self._spill.pending_count,
                bytes=self._spill.pending_bytes,
                bytes_exact=False,
                first_due_ms=first_ms,
                last_due_ms=last_ms,
            )
        if not after and query.is_of_due:
            return self._foresight.between(query.due_from_ms, query.due_to_ms)
        return self._foresight.counted(query, cursor_of(query, after))

    def by_topic(self, query: PendingQuery, after: str = "") -> TopicSums:
        """Add matching messages up by topic. Raises PendingError."""
        checked(query)
        return self._foresight.by_topic(query, cursor_of(query, after))

    def forecast(self, from_ms: int, to_ms: int, bars: int, topic: str = "") -> Forecast:
        """Count the messages that come due in each of ``bars`` spans of a range, epoch ms. Raises PendingError."""
        if not 0 <= from_ms < to_ms <= DUE_MAX_MS + 1:
            raise PendingError(
                f"a forecast goes from an earlier ms to a later one, found {shown(from_ms)} and {shown(to_ms)}"
            )
        fault = time_fault("from", from_ms) or time_fault("to", to_ms)
        if fault:
            raise PendingError(fault)
        if not 1 <= bars <= FORECAST_BARS_MAX:
            raise PendingError(f"a forecast has 1 to {FORECAST_BARS_MAX} bars, found {shown(bars)}")
        if topic:
            return self._foresight.of_topic(topic, from_ms, to_ms, bars)
        return self._foresight.of_all(from_ms, to_ms, bars)

    def accepted_ms(self, offset: int) -> int:
        """Time at which a message was accepted, epoch ms; 0 if the delay store no longer has it."""
        with self._lock:
            found = self._spill.find(offset)
            try:
                return 0 if found is None else accepted_ms(self._spill.read((found.ref,))[0])
            except StoreError:
                return 0

    def last_due(self) -> int | None:
        """The latest due time of all pending messages, from the indexes; None if nothing is pending."""
        with self._lock:
            self._sweeper.publish_all()
        return self._spill.outlook.last_due()

    # ------------------------------------------------------------------------------------------------ changing

    def change(self, order: PendingOrder, now_ms: int, later: list[Ticket] | None = None) -> PendingAnswer:
        """Make one change. With ``later``, the ticket is appended to it, and the caller waits. Raises PendingError."""
        _check_order(order.verb, order.due_ms, order.by_ms, now_ms)
        name = self._named(order.name)
        if order.verb is PendingVerb.CANCEL:
            answer = self._changes.cancel(name, order.version, now_ms, later)
        else:
            given = PendingOrder(
                verb=order.verb, name=name, due_ms=order.due_ms, by_ms=order.by_ms, version=order.version
            )
            answer = self._changes.move(given, now_ms, later)
        self._stats.verdicts[order.verb, answer.verdict] += 1
        return answer

    def change_many(self, orders: Sequence[PendingOrder], now_ms: int, *, dry_run: bool = False) -> list[PendingAnswer]:
        """Make several changes. Raises PendingError, StoreError."""
        if len(orders) > BULK_MAX:
            raise PendingError(f"{len(orders)} changes at once: at most {BULK_MAX} are possible")
        for order in orders:
            _check_order(order.verb, order.due_ms, order.by_ms, now_ms)
        answers: list[PendingAnswer] = []
        tickets: list[Ticket] = []
        changed = 0
        has_time = self._looker.time_left()
        for order in orders:
            try:
                if answers and not has_time():
                    raise OutOfTimeError
                answer = self._glance(order.name, tickets) if dry_run else self.change(order, now_ms, tickets)
                changed += answer.verdict is _V.DONE and not dry_run
            except StoreError as error:
                if not changed and not dry_run and not isinstance(error, OutOfTimeError):
                    raise  # nothing was changed: the caller may ask again
                answer = PendingAnswer(verdict=_V.REFUSED, detail=f"{error}; it is as before")
            answers.append(answer)
            self._looker.pause()
        if tickets:
            self._changes.wait_of(tickets, changed)
        return answers

    def change_matching(
        self,
        query: PendingQuery,
        verb: PendingVerb,
        now_ms: int,
        *,
        limit: int = BULK_MAX,
        dry_run: bool = True,
        after: str = "",
        due_ms: int | None = None,
        by_ms: int | None = None,
    ) -> PendingBulk:
        """Change matching messages. Raises PendingError, StoreError."""
        checked(query)
        if query.width_fault:
            raise PendingError(query.width_fault)
        _check_order(verb, due_ms, by_ms, now_ms)
        limit = limited(limit, BULK_MAX)
        cursor = cursor_of(query, after)
        if dry_run:
            return self._bulk.dry(query, cursor, limit, now_ms - PAST_MS - by_ms if by_ms is not None else 0)
        bulk = self._bulk.run(query, cursor, verb, limit, now_ms, due_ms, by_ms)
        for verdict, count in bulk.verdicts.items():
            self._stats.verdicts[verb, verdict] += count
        return bulk

    def _named(self, name: PendingName) -> PendingName:
        """Find the offset of a name."""
        if name.offset:
            return name
        if not name.key or not name.topic:
            raise PendingError("a message is named by its offset, or by topic and delay key")
        offset = 0 if self._keys is None else self._keys.offset_of(name.topic, name.key)
        if not offset:
            offset = self._changes.cancelled_by_key(name.topic, name.key)
            if offset and self._keys is not None:  # a later message may have taken the key, and left the table
                offset = self._keys.written_of(name.topic, name.key) or offset
        return PendingName(offset=offset or _NOBODY, topic=name.topic)

    # ------------------------------------------------------------------------------------------------ figures

    def figures(self) -> PendingFigures:
        """Figures for dashboards."""
        spill, sweeper = self._spill, self._sweeper
        return PendingFigures(
            count=spill.pending_count,
            bytes=spill.pending_bytes,
            armed=sweeper.armed_count,
            failed=self._recovery.failed_count,
            journal_bytes=spill.journal_bytes,
            runs=spill.run_count,
            next_due_ms=sweeper.next_due_ms,
            verdicts=dict(self._stats.verdicts),
            topics_known=self.balance is None or self.balance.is_known,
        )

    def topics(self) -> Sequence[PendingTopic]:
        """Pending messages by topic, if they are counted; bytes are estimated from the average of all."""
        if self.balance is None:
            return ()
        spill = self._spill
        average = spill.pending_bytes / max(1, spill.pending_count)
        return [
            PendingTopic(topic=topic, count=count, bytes=round(average * count), bytes_exact=False)
            for topic, count in self.balance.rows()
        ]


def _check_order(verb: PendingVerb, due_ms: int | None, by_ms: int | None, now_ms: int) -> None:
    """Refuse bad times with PendingError: in the past, beyond the year 9999, or for a verb that takes none."""
    if verb is not PendingVerb.MOVE:
        if due_ms is not None or by_ms is not None:
            raise PendingError(f"{verb.value} takes no time: only move does")
        return
    if (due_ms is None) == (by_ms is None):
        raise PendingError("move takes a time (epoch ms) or an interval (ms), one of the two")
    for name, value in (("time", due_ms), ("interval", by_ms)):
        if value is not None and not -DUE_MAX_MS <= value <= DUE_MAX_MS:
            raise PendingError(f"move with a {name} of {shown(value)} ms leads beyond the year 9999")
    if due_ms is not None:
        fault = time_fault("due", due_ms) or past_fault("due", due_ms, now_ms)
        if fault:
            raise PendingError(fault)
