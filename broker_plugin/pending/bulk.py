"""Changing many messages by a query: a slice at a time, in one frame of the journal.

A cancel takes a slice as a whole: its rows are one CANCEL frame, and its records are marked at once. So a slice is
changed completely or not at all. Answered changes are durable; after a crash a message is cancelled or still matches.

A slice takes the delivery lock twice, for a millisecond or less: to read it, and to cancel what matched. In between,
while the messages are compared with the query, deliveries get the lock. So the second hold first checks that all of
them still wait where they were read. If one does not, the slice is read and cancelled again within one hold. A message
that is delivered or moved meanwhile is therefore never cancelled as well.

A move writes its records anew, one by one. A message that is moved to a later time may lie ahead of the cursor again,
within the same query. So a bulk move to later times (an interval above 0, restart) is done in one call, and refused if
more messages match than one call may change.

If the disk fails in between, the answer has what was done, and its cursor goes on at the failure. The error is raised
only if nothing was done, so that a repeated call never changes a message twice. That includes a message that cannot be
read now: it may match. A move to later times cannot go on: each message that was not moved gets the error as its
answer. The same holds when the time of a call is over (`looking.CALL_NS`).

A damaged record is never read again, so nobody waits for it: it matches no query that has to read it, and a move by
due times alone answers REFUSED for it. The same is true of the hidden rows of a run. The answer counts what was passed
over (`PendingBulk.unread`), so a change that came to the end does not say that nothing is left.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, overload

from broker_plugin.pending.changes import Changes
from broker_plugin.pending.looking import CALL_NS, READ_MAX, Cursor, Looker, Slice, Walk
from remoting.messages.message import RecordError
from store.disk.errors import StoreError
from store.disk.ticket import Ticket
from store.put.pending_api import (
    BULK_MAX,
    PendingAnswer,
    PendingBulk,
    PendingError,
    PendingName,
    PendingOrder,
    PendingQuery,
    PendingVerb,
    PendingVerdict,
)
from store.put.pending_cursor import cursor_text
from store.spill.rows.model import RecordCorruptError

if TYPE_CHECKING:
    from threading import RLock


__all__ = ["Bulk", "DoneAnswers", "OutOfTimeError"]

_V = PendingVerdict
_MOVES_AT_ONCE = 8
"""The thread pauses after this many moves: if it took the lock again at once each time, nobody else would get it."""


class OutOfTimeError(StoreError):
    """The time of a call is over; the text asks to repeat the request."""

    def __init__(self) -> None:
        super().__init__(f"its turn did not come within {CALL_NS / 1e9:g} s: ask for it again")


class Bulk:
    """Changes by query. Any thread."""

    def __init__(self, lock: RLock, changes: Changes, looker: Looker) -> None:
        self._lock = lock
        self._changes = changes
        self._looker = looker

    def run(
        self,
        query: PendingQuery,
        cursor: Cursor | None,
        verb: PendingVerb,
        limit: int,
        now_ms: int,
        due_ms: int | None,
        by_ms: int | None,
    ) -> PendingBulk:
        """Change matching messages; the arguments are checked already. Raises PendingError, StoreError."""
        walk = Walk(query, cursor)
        if verb is PendingVerb.CANCEL:
            done = self._cancel(walk, limit, now_ms)
            return self._told(walk, {_V.DONE: len(done)} if done else {}, done)
        moved = tuple(self._move(walk, verb, limit, now_ms, due_ms, by_ms))
        return self._told(walk, dict(Counter(answer.verdict for answer in moved)), moved)

    def dry(self, query: PendingQuery, cursor: Cursor | None, limit: int, past_ms: int) -> PendingBulk:
        """The answers that a change would give; messages due before ``past_ms`` would be refused. Raises StoreError."""
        walk = Walk(query, cursor)
        answers: list[PendingAnswer] = []
        has_time = self._looker.time_left()
        while walk.cursor is not None and len(answers) < limit and walk.looked_at < READ_MAX and has_time():
            try:
                found = self._looker.slice(query, walk.cursor, limit - len(answers), records=False, complete=True)
            except StoreError:
                if not answers:
                    raise
                break
            walk.took(found)
            answers += [
                PendingAnswer(
                    verdict=_V.REFUSED if due_ms < past_ms else _V.DONE,
                    detail=f"would be {'in the past: refused' if due_ms < past_ms else 'changed'}",
                    offset=delay_id,
                    due_ms=due_ms,
                )
                for delay_id, due_ms in zip(found.ids, found.dues, strict=True)
            ]
        return self._told(walk, dict(Counter(answer.verdict for answer in answers)), tuple(answers), dry_run=True)

    def _told(
        self,
        walk: Walk,
        verdicts: dict[PendingVerdict, int],
        answers: Sequence[PendingAnswer],
        *,
        dry_run: bool = False,
    ) -> PendingBulk:
        unread = self._looker.unread_of(walk)
        return PendingBulk(
            verdicts=verdicts,
            answers=answers,
            looked_at=walk.looked_at,
            next=cursor_text(walk.cursor),
            dry_run=dry_run,
            unread=unread.count,
            remark=unread.remark,
        )

    def _move(
        self, walk: Walk, verb: PendingVerb, limit: int, now_ms: int, due_ms: int | None, by_ms: int | None
    ) -> list[PendingAnswer]:
        later = verb is PendingVerb.RESTART or (by_ms is not None and by_ms > 0)
        wanted = self._gather(walk, BULK_MAX + 1 if later else limit, later)
        if later and (len(wanted) > limit or walk.cursor is not None):
            raise PendingError(
                f"more than {min(limit, len(wanted))} messages match, or only {walk.looked_at} could be looked at: "
                "several calls that move to later times would move some twice. Narrow the query, or its due range"
            )
        tickets: list[Ticket] = []
        answers: list[PendingAnswer] = []
        moved = 0
        has_time = self._looker.time_left()
        for place, (wanted_ms, offset) in enumerate(wanted):
            order = PendingOrder(verb=verb, name=PendingName(offset=offset), due_ms=due_ms, by_ms=by_ms)
            try:
                if answers and not has_time():
                    raise OutOfTimeError
                answers.append(self._changes.move(order, now_ms, tickets))
                moved += answers[-1].verdict is _V.DONE
            except StoreError as error:
                if isinstance(error.__cause__, (RecordCorruptError, RecordError)):  # it never will be read
                    answers.append(_failed(offset, wanted_ms, error))
                    continue
                if not moved and not (answers and isinstance(error, OutOfTimeError)):
                    raise
                if later:
                    answers.append(_failed(offset, wanted_ms, error))
                else:
                    walk.cursor = wanted[place - 1]
                    break
            if place % _MOVES_AT_ONCE == 0:
                self._looker.pause()
        if tickets:
            self._changes.wait_of(tickets, moved)
        return answers

    def _gather(self, walk: Walk, limit: int, whole: bool) -> list[Cursor]:
        """Find what is to be moved. Raises StoreError; with ``whole`` also if some were found before the failure."""
        wanted: list[Cursor] = []
        has_time = self._looker.time_left()
        self._changes.settle_owed()
        while walk.cursor is not None and len(wanted) < limit and walk.looked_at < LOOKED_AT_MAX and has_time():
            try:
                found = self._looker.slice(walk.query, walk.cursor, limit - len(wanted), records=False, complete=True)
            except StoreError:
                if whole or not wanted:
                    raise
                break
            wanted += zip(found.dues, found.ids, strict=True)
            walk.took(found)
        return wanted

    def _cancel(self, walk: Walk, limit: int, now_ms: int) -> Sequence[PendingAnswer]:
        done = DoneAnswers(now_ms)
        last: Ticket | None = None
        has_time = self._looker.time_left()
        while walk.cursor is not None and len(done) < limit and walk.looked_at < LOOKED_AT_MAX and has_time():
            most = min(self._changes.frame_rows, limit - len(done))
            try:
                found, ticket = self._cancel_next(walk.query, walk.cursor, most, now_ms)
            except StoreError:
                if last is None:
                    raise
                break
            self._looker.pause()
            last = ticket or last
            done.add(found.ids, found.versions, found.dues)
            walk.took(found)
        if last is not None:
            # The last ticket covers the others: all of them are positions of one journal.
            self._changes.wait_of((last,), len(done))
        return done

    def _cancel_next(self, query: PendingQuery, cursor: Cursor, most: int, now_ms: int) -> tuple[Slice, Ticket | None]:
        changes, looker = self._changes, self._looker
        with self._lock:
            changes.settle_owed()  # what a refused message has replaced for now may be what is asked for
            seen = looker.look(query, cursor, most, versions=True, complete=True)
        found = looker.matching(query, seen, most)
        if not found.ids:
            return found, None
        rows = changes.past_rows(found, now_ms)
        with self._lock:
            begin_ns = looker.worked_ns()
            if not changes.still_wait(found):
                seen = looker.look(query, cursor, most, versions=True, complete=True)
                found = looker.matching(query, seen, most)
                if not found.ids:
                    return found, None
                rows = changes.past_rows(found, now_ms)
            ticket = changes.cancel_slice(found, rows)
            looker.worked(len(found.ids), begin_ns)
        return found, ticket


def _failed(offset: int, due_ms: int, error: StoreError) -> PendingAnswer:
    return PendingAnswer(verdict=_V.REFUSED, detail=f"{error}; it is due as before", offset=offset, due_ms=due_ms)


class DoneAnswers(Sequence[PendingAnswer]):
    """Answers for messages that were all cancelled at one time; each is made only when it is read."""

    __slots__ = ("_dues", "_ids", "_versions", "_when_ms")

    def __init__(self, when_ms: int) -> None:
        self._when_ms = when_ms
        self._ids: list[int] = []
        self._versions: list[int] = []
        self._dues: list[int] = []

    def add(self, ids: Sequence[int], versions: Sequence[int], dues: Sequence[int]) -> None:
        """Add cancelled messages: three columns of equal length."""
        self._ids += ids
        self._versions += versions
        self._dues += dues

    def __len__(self) -> int:
        return len(self._ids)

    @overload
    def __getitem__(self, place: int) -> PendingAnswer: ...

    @overload
    def __getitem__(self, place: slice) -> Sequence[PendingAnswer]: ...

    def __getitem__(self, place: int | slice) -> PendingAnswer | Sequence[PendingAnswer]:
        if isinstance(place, slice):
            return [self[number] for number in range(*place.indices(len(self)))]
        return PendingAnswer(
            verdict=_V.DONE,
            offset=self._ids[place],
            version=self._versions[place],
            due_ms=self._dues[place],
            when_ms=self._when_ms,
        )


LOOKED_AT_MAX = 100_000
"""Most messages that one call looks at."""
