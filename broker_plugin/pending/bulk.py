"""Changing many messages by a query: a slice under one hold of the lock, in one frame of the journal.

A cancel takes a slice as a whole: its rows are one CANCEL frame, its records are marked at once. So each slice is
changed or not, as one; what is answered is durable, and what a crash interrupts is either cancelled or still matches.

A move writes its records anew, one by one. A message that is moved to a later time may come to lie before the cursor
once more, within the same query; so a bulk move to later times (an interval above 0, restart) is done in one call, and
refused if more match than one call may change.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker_plugin.pending.changes import Changes
from broker_plugin.pending.looking import Cursor, Looker
from store.disk.flusher import Ticket
from store.put.pending_api import (
    BULK_MAX,
    PendingAnswer,
    PendingError,
    PendingName,
    PendingOrder,
    PendingQuery,
    PendingVerb,
    PendingVerdict,
)

if TYPE_CHECKING:
    from threading import RLock


__all__ = ["Bulk"]

_V = PendingVerdict


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
    ) -> tuple[list[PendingAnswer], int, Cursor | None]:
        """Change what matches; answers, how many were looked at, and where to go on. Raises PendingError."""
        if verb is PendingVerb.CANCEL:
            return self._cancel(query, cursor, limit, now_ms)
        later = verb is PendingVerb.RESTART or (by_ms is not None and by_ms > 0)
        wanted, looked_at, cursor = self._gather(query, cursor, BULK_MAX + 1 if later else limit)
        if later and (len(wanted) > limit or cursor is not None):
            raise PendingError(
                f"more than {min(limit, len(wanted))} messages match, or {LOOKED_AT_MAX} had to be looked at: moving "
                "them to later times would meet some of them twice; narrow the query, by its due range for one"
            )
        tickets: list[Ticket] = []
        answers = [
            self._changes.move(
                PendingOrder(verb=verb, name=PendingName(offset=offset), due_ms=due_ms, by_ms=by_ms), now_ms, tickets
            )
            for offset in wanted
        ]
        if tickets:
            self._changes.wait(tickets[-1])
        return answers, looked_at, cursor

    def _gather(self, query: PendingQuery, cursor: Cursor | None, limit: int) -> tuple[list[int], int, Cursor | None]:
        wanted: list[int] = []
        looked_at = 0
        while cursor is not None and len(wanted) < limit and looked_at < LOOKED_AT_MAX:
            found = self._looker.slice(query, cursor, limit - len(wanted), records=False)
            wanted += found.ids
            looked_at += found.looked_at
            cursor = found.next
        return wanted, looked_at, cursor

    def _cancel(
        self, query: PendingQuery, cursor: Cursor | None, limit: int, now_ms: int
    ) -> tuple[list[PendingAnswer], int, Cursor | None]:
        answers: list[PendingAnswer] = []
        looked_at = 0
        last: Ticket | None = None
        while cursor is not None and len(answers) < limit and looked_at < LOOKED_AT_MAX:
            versions: list[int] = []
            with self._lock:
                found = self._looker.slice_locked(query, cursor, min(self._changes.frame_rows, limit - len(answers)))
                if found.ids:
                    last, versions = self._changes.cancel_slice(found, now_ms)
            self._looker.pause()
            answers += [
                PendingAnswer(verdict=_V.DONE, offset=delay_id, version=version, due_ms=due_ms, when_ms=now_ms)
                for delay_id, version, due_ms in zip(found.ids, versions, found.dues, strict=True)
            ]
            looked_at += found.looked_at
            cursor = found.next
        if last is not None:
            self._changes.wait(last)
        return answers, looked_at, cursor


LOOKED_AT_MAX = 100_000
"""Messages that one call looks at, at most."""
