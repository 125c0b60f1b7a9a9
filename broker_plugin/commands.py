"""Cancel, move, send now, list, view: commands on messages that wait.

All of them look at the message under the delivery lock, so none ever meets one half way, and each answer is
definite. A cancel or a move changes the message and its journal in one go, and answers when the journal is
synced (whatever the flush mode): what was answered survives a power cut. If that sync fails, the caller gets the
error and must ask again; the message stays as the journal has it, which is cancelled or moved.

A delivery that a failing disk refused may have left its records behind the log's end, and a crash would have them
count as delivered. Before a cancel or a move the target makes sure that they are gone (`SettlingTarget`); if it
cannot, the command fails and changes nothing.

The syncs run in the calling thread, outside the lock: a slow disk makes a command slow, never a delivery late.
A host calls these from a thread of its own, not from its network loop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker_plugin.properties import DUE_MAX_MS, delivered_as
from broker_plugin.ranges import KEY_MAX, Key
from broker_plugin.states import Move, State, after, answer
from broker_plugin.stats import Stats
from remoting.layout import OFFSET_AT, SYS_FLAG_AT
from remoting.layout_table import LONG
from remoting.messages.message import Message, RecordError, decode_record, encode_record, record_fields
from store.disk.errors import StoreError
from store.disk.flusher import Flusher, Ticket
from store.put.plugin_api import (
    CommandOutcome,
    CommandResult,
    DeliveryTarget,
    LookupTarget,
    PendingMessage,
    SettlingTarget,
)

if TYPE_CHECKING:
    from threading import RLock

    from broker_plugin.recovery import OverdueRecovery
    from broker_plugin.sweeper import Sweeper
    from store.spill.rows.model import Found
    from store.spill.spill_store import SpillStore

__all__ = ["LIST_MAX", "Commands"]

LIST_MAX = 1000
"""Most rows of one listing."""
_READ_AT_ONCE = 32
_SCAN_UNTIL_MS = DUE_MAX_MS + 1


class Commands:
    """What can be asked of pending messages. Any thread."""

    def __init__(
        self,
        spill: SpillStore,
        sweeper: Sweeper,
        recovery: OverdueRecovery,
        flusher: Flusher,
        target: DeliveryTarget,
        lock: RLock,
        stats: Stats,
    ) -> None:
        self._spill = spill
        self._sweeper = sweeper
        self._recovery = recovery
        self._flusher = flusher
        self._lock = lock
        self._stats = stats
        self._settle = target.settle if isinstance(target, SettlingTarget) else _is_settled
        self._lookup = target if isinstance(target, LookupTarget) else None

    def cancel(self, offset: int) -> CommandResult:
        """Take a pending message out; durable when it returns. Raises StoreError: ask again."""
        with self._lock:
            found = self._find(offset)
            if found is not None and not found.done:
                after(self._waiting(found), Move.CANCEL)
                self._settle()
                self._no_longer_failed(found)
                ticket = self._spill.cancel(offset)
                if ticket is None:
                    after(State.CANCELLED, Move.CANCEL)
                self._stats.cancelled += 1
            else:
                ticket = None
        if ticket is None:
            return self._not_pending(offset, found)
        self._flusher.wait(ticket)
        return CommandResult(answer(State.ACCEPTED))

    def move(self, offset: int, due_ms: int, now_ms: int) -> CommandResult:
        """Give a pending message another due time; durable when it returns. Raises StoreError: ask again.

        A time not after now means now. ValueError for a time beyond the year 9999.
        """
        if not -DUE_MAX_MS <= due_ms <= DUE_MAX_MS:
            raise ValueError(f"due time {due_ms} lies beyond the year 9999")
        due_ms = max(due_ms, now_ms)
        with self._lock:
            found = self._find(offset)
            if found is not None and not found.done:
                after(self._waiting(found), Move.MOVE)
                self._settle()
                record = _restamped(self._spill.read((found.ref,))[0], found, due_ms)
                self._no_longer_failed(found)
                block = self._spill.move(found, record, due_ms)
                self._sweeper.offer(block, due_ms)
                self._stats.moved += 1
            else:
                block = None
        if block is None:
            return self._not_pending(offset, found)
        self._flusher.wait(block.ticket)
        return CommandResult(answer(State.ACCEPTED), f"due at {due_ms}")

    def list_pending(self, after: Key | None, limit: int, now_ms: int) -> list[PendingMessage]:
        """List pending messages in (due, offset) order; at most `LIST_MAX`."""
        rows: list[PendingMessage] = []
        cursor = (-1, KEY_MAX) if after is None else after
        limit = min(limit, LIST_MAX)
        while len(rows) < limit:
            # The lock is let go of in between: a listing delays nobody.
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
        """Read a pending message in its stored form, its virtual offset in the place of the position."""
        with self._lock:
            self._sweeper.publish_all()
            found = self._spill.find(offset)
            if found is None or found.done:
                return None
            record = self._spill.read((found.ref,))[0]
        return b"".join((record[:OFFSET_AT], LONG.pack(offset), record[SYS_FLAG_AT:]))

    # ------------------------------------------------------------------------------------------------ parts of it

    def _find(self, offset: int) -> Found | None:
        self._sweeper.publish_all()
        return self._spill.find(offset)

    def _waiting(self, found: Found) -> State:
        """What a message that is pending is in, as its key says; failed ones lie among the armed."""
        return State.SPILLED if found.due_ms >= self._sweeper.frontier_ms else State.ARMED

    def _not_pending(self, offset: int, found: Found | None) -> CommandResult:
        """Say what became of a message that is not pending; needs no lock, it stays what it is."""
        # An earlier cancel that this answer may tell of must be durable: wait for the whole journal.
        journal = self._spill.journal
        self._flusher.wait(Ticket((journal, journal.written)))
        lookup = self._lookup
        if lookup is not None and lookup.find_delivered(offset) is not None:
            state = State.DELIVERED
        elif found is None:
            state = State.OFFERED
        elif lookup is not None and found.due_ms < lookup.earliest_store_time():
            return CommandResult(
                CommandOutcome.UNKNOWN, "it was delivered or cancelled; the CommitLog goes back no further than that"
            )
        else:
            state = State.CANCELLED
        return CommandResult(answer(state), _DETAILS[state])

    def _no_longer_failed(self, found: Found) -> None:
        if not self._recovery.failed_count:
            return
        try:
            topic, _, _ = record_fields(self._spill.read((found.ref,))[0])
        except (StoreError, RecordError):
            return
        self._recovery.removed(topic, found.due_ms)

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


_DETAILS = {
    State.DELIVERED: "it was delivered",
    State.CANCELLED: "it was cancelled",
    State.OFFERED: "no message is or was pending under this id, or it is long gone",
}


def _is_settled() -> None:
    """Nothing to settle: what this target refuses is gone."""


def _restamped(record: bytes, found: Found, due_ms: int) -> bytes:
    """Make the record of a moved message: the same in everything but version and due time."""
    stored = decode_record(record)
    message: Message = stored.message()
    message.properties = delivered_as(stored.properties, found.delay_id, due_ms, found.version + 1)
    return encode_record(message, stored.store_host)
