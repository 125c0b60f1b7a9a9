"""The older and smaller interface to pending messages, by virtual offset alone: for RECALL and a plug-in's host.

`broker_plugin.pending` does the work; the answers are `store.put.plugin_api.CommandOutcome`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker_plugin.pending.changes import Changes
from broker_plugin.rules.properties import DUE_MAX_MS
from broker_plugin.rules.ranges import KEY_MAX, Key
from broker_plugin.rules.states import State, answer
from remoting.layout import QUEUE_OFFSET_AT, SYS_FLAG_AT
from remoting.layout.table import LONG
from remoting.messages.message import RecordError, record_fields
from store.disk.errors import StoreError
from store.put.pending_api import PendingAnswer, PendingName, PendingOrder, PendingVerb, PendingVerdict
from store.put.plugin_api import CommandOutcome, CommandResult, PendingMessage

if TYPE_CHECKING:
    from threading import RLock

    from broker_plugin.pending.parts import Delivery, Overdue
    from store.spill.spill_store import SpillStore

__all__ = ["LIST_MAX", "Commands"]

LIST_MAX = 1000
"""Most rows of one listing."""
_READ_AT_ONCE = 32
_SCAN_UNTIL_MS = DUE_MAX_MS + 1
_OUTCOMES = {
    PendingVerdict.DONE: answer(State.ACCEPTED),
    PendingVerdict.ALREADY: answer(State.ACCEPTED),
    PendingVerdict.TOO_LATE: answer(State.DELIVERED),
    PendingVerdict.CANCELLED: answer(State.CANCELLED),
    PendingVerdict.UNKNOWN: answer(State.OFFERED),
}


class Commands:
    """Cancels, moves, lists and reads pending messages by virtual offset. Any thread."""

    def __init__(self, spill: SpillStore, sweeper: Delivery, recovery: Overdue, lock: RLock, changes: Changes) -> None:
        self._spill = spill
        self._sweeper = sweeper
        self._recovery = recovery
        self._lock = lock
        self._changes = changes

    def cancel(self, offset: int, now_ms: int = 0) -> CommandResult:
        """Cancel a pending message; durable when it returns. Raises StoreError: ask again."""
        found = self._changes.cancel(PendingName(offset=offset), None, now_ms)
        if found.verdict is PendingVerdict.ALREADY:
            return CommandResult(CommandOutcome.ALREADY_CANCELLED, found.detail)
        return _result(found)

    def move(self, offset: int, due_ms: int, now_ms: int) -> CommandResult:
        """Give a pending message another due time (epoch ms); durable when it returns. A time before now means now.

        Raises StoreError: ask again; ValueError for a time beyond the year 9999.
        """
        if not -DUE_MAX_MS <= due_ms <= DUE_MAX_MS:
            raise ValueError(f"due time {due_ms} lies beyond the year 9999")
        order = PendingOrder(verb=PendingVerb.MOVE, name=PendingName(offset=offset), due_ms=max(due_ms, now_ms))
        return _result(self._changes.move(order, now_ms))

    def list_pending(self, after: Key | None, limit: int, now_ms: int) -> list[PendingMessage]:
        """List pending messages in (due, offset) order behind the key ``after``; at most `LIST_MAX`."""
        rows: list[PendingMessage] = []
        cursor = (-1, KEY_MAX) if after is None else after
        limit = min(limit, LIST_MAX)
        while len(rows) < limit:
            # The lock is released after each portion, so that a listing delays no delivery.
            with self._lock:
                self._sweeper.publish_all()
                wanted = min(_READ_AT_ONCE, limit - len(rows))
                columns = self._spill.scan(cursor, _SCAN_UNTIL_MS, wanted)
                for due_ms, delay_id, ref in zip(columns.dues, columns.ids, columns.refs, strict=True):
                    rows.append(self._row(due_ms, delay_id, ref, now_ms))
            if len(columns.refs) < wanted:
                break
            cursor = (columns.dues[-1], columns.ids[-1])
        return rows

    def view(self, offset: int) -> bytes | None:
        """Read the record of a pending message, with its virtual offset as position; None if it is not pending."""
        with self._lock:
            self._sweeper.publish_all()
            found = self._spill.find(offset)
            if found is None or found.done:
                return None
            record = self._spill.read((found.ref,))[0]
        return b"".join((record[:QUEUE_OFFSET_AT], bytes(LONG.size), LONG.pack(offset), record[SYS_FLAG_AT:]))

    def _row(self, due_ms: int, delay_id: int, ref: int, now_ms: int) -> PendingMessage:
        found = self._spill.find(delay_id)
        version = 0 if found is None else found.version
        try:
            record = self._spill.read((ref,))[0]
            topic, queue_id, _ = record_fields(record)
        except (StoreError, RecordError):
            return PendingMessage(delay_id, version, due_ms, "", 0, 0, True)
        failed = due_ms <= now_ms and self._recovery.is_failed(topic, due_ms)
        return PendingMessage(delay_id, version, due_ms, topic, queue_id, len(record), failed)


def _result(found: PendingAnswer) -> CommandResult:
    return CommandResult(_OUTCOMES[found.verdict], found.detail)
