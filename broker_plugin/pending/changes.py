"""Cancel and move: one message, looked up and changed under the delivery lock, with a definite answer.

A delivery holds the same lock, so no command meets a message half way: one of the two comes first, and the other sees
its result. A change is journalled and takes effect in memory within one hold of the lock. It is answered when the
journal is synced, whatever the flush mode. That a message was delivered is answered when the CommitLog is synced, if
its flush mode waits for that (`DurableTarget`): else a power cut makes the message pending again. The calling thread
waits for that outside the lock, so a slow disk makes a command slow but no delivery late. If that sync fails, the
caller gets the error and must ask again; the message stays as the journal has it.

A delivery that a failing disk refused may have left its records behind the log's end, and after a crash they would
count as delivered. Before a change the target makes sure that they are gone (`SettlingTarget`), or the change fails.

Where a message went that is no longer pending is looked up in this order: the CommitLog (delivered, when and where),
the rows of cancelled messages (`store.spill.state.message_rows`), the delay store's own files. Only what is found
proves anything: a delivery that is not found may be damaged, expired, or behind a damaged block of the key index.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from broker_plugin.pending.cancelled import topic_crc
from broker_plugin.pending.ended import cancelled, delivered, fits, not_found, unknown
from broker_plugin.pending.looking import shown
from broker_plugin.pending.records import restamped, sent_delay_ms
from broker_plugin.rules.properties import DUE_MAX_MS
from broker_plugin.rules.states import Move, State, after
from remoting.layout import FRAME_ROW_BYTES
from remoting.messages.message import RecordError, record_fields
from remoting.pending_rules import past_fault
from store.disk.errors import StoreError
from store.disk.flusher import Flusher
from store.disk.ticket import Ticket
from store.put.pending_api import PendingAnswer, PendingName, PendingOrder, PendingVerb, PendingVerdict
from store.put.plugin_api import DeliveryTarget, DurableTarget, LookupTarget, SettlingTarget
from store.spill.rows.model import Columns, RecordCorruptError

if TYPE_CHECKING:
    from threading import RLock

    from broker_plugin.pending.cancelled import CancelledRows
    from broker_plugin.pending.delay_keys import DelayKeys
    from broker_plugin.pending.looking import Slice
    from broker_plugin.pending.parts import Delivery, Overdue
    from broker_plugin.rules.stats import Stats
    from store.spill.rows.model import Found
    from store.spill.spill_store import SpillStore

__all__ = ["ChangeWatcher", "Changes"]

_V = PendingVerdict


class ChangeWatcher(Protocol):
    """Is told of every cancel and move. Called under the delivery lock."""

    def cancelled(self, delay_id: int, due_ms: int, topic: str, text: str, record_bytes: int) -> None:
        """Note that a message was cancelled."""
        ...

    def moved(self, delay_id: int, due_ms: int, topic: str, grown: int) -> None:
        """Note that a message leaves its place in the order, and by how many bytes its record grew."""
        ...


class Changes:
    """Changes single messages. Any thread; takes the delivery lock itself."""

    def __init__(
        self,
        spill: SpillStore,
        sweeper: Delivery,
        recovery: Overdue,
        flusher: Flusher,
        target: DeliveryTarget,
        lock: RLock,
        stats: Stats,
        past: CancelledRows,
    ) -> None:
        self._spill = spill
        self._sweeper = sweeper
        self._recovery = recovery
        self._flusher = flusher
        self._lock = lock
        self._stats = stats
        self._past = past
        self._settle = target.settle if isinstance(target, SettlingTarget) else _is_settled
        self._lookup = target if isinstance(target, LookupTarget) else None
        self._delivery_ticket: Callable[[], Ticket | None] = (
            target.delivery_ticket if isinstance(target, DurableTarget) else _no_ticket
        )
        self.watchers: list[ChangeWatcher] = []
        self.counts_topics = False
        """True if messages are counted by topic: a cancel must then know the topic, so it must read the record."""
        self.frame_rows = max(1, spill.append_bytes_max // FRAME_ROW_BYTES)
        """Most messages that one frame of the journal cancels."""
        self.keys: DelayKeys | None = None
        self.settle_owed: Callable[[], object] = lambda: None
        """Writes changes that were answered but could not be written yet; raises StoreError while that fails."""

    # ------------------------------------------------------------------------------------------------ the changes

    def cancel(
        self, name: PendingName, version: int | None, now_ms: int, later: list[Ticket] | None = None
    ) -> PendingAnswer:
        """Cancel a pending message; durable when it returns. Raises StoreError: ask again.

        With ``later``, the ticket is appended to it, and the caller waits for it (`wait`) before it answers.
        """
        with self._lock:
            found = self._find(name.offset)
            done = None if found is None or found.done else self._cancel(name, found, version, now_ms)
        if done is None:
            return self._not_pending(name, found, PendingVerb.CANCEL, later)
        answer = self._durable(*done, later)
        if later is None and answer.verdict is _V.DONE:
            self._past.sync()
        return answer

    def still_wait(self, found: Slice) -> bool:
        """True if all messages of a slice still wait where they were read. Valid under this hold of the lock.

        What is owed is put back first: `cancel_slice` must find nothing that moves a message. Raises StoreError.
        """
        self.settle_owed()
        return self._spill.all_wait(found.refs)

    def past_rows(self, found: Slice, now_ms: int) -> bytes:
        """Encode the rows of cancelled messages for a slice. Needs no lock."""
        return self._past.encoded(found, now_ms)

    def cancel_slice(self, found: Slice, rows: bytes) -> Ticket:
        """Cancel a slice for which `still_wait` is true under this hold of the lock; ``rows`` are its `past_rows`.

        Returns the ticket that makes it durable. Raises StoreError: nothing is cancelled.
        """
        after(State.SPILLED, Move.CANCEL)
        self._settle()
        with self._past.noted(rows, found.ids, found.dues):
            ticket = self._spill.cancel_many(Columns(found.dues, found.ids, found.refs), found.versions)
        if self.watchers or self._recovery.failed_count:
            for due_ms, delay_id, record, size in zip(found.dues, found.ids, found.records, found.sizes, strict=True):
                self._gone(delay_id, due_ms, record, size)
        self._stats.cancelled += len(found.ids)
        return ticket

    def wait(self, ticket: Ticket) -> None:
        """Wait until changes are durable. Raises StoreError."""
        self._flusher.wait(ticket)
        self._past.sync()

    def wait_of(self, tickets: Sequence[Ticket], count: int) -> None:
        """`wait` for ``count`` changes of one call. Raises StoreError, whose text says that they were made."""
        # The last position of a file covers those before.
        last = dict(wait for ticket in tickets for wait in ticket.waits)
        try:
            self.wait(Ticket(*last.items()))
        except StoreError as error:
            if not count:
                raise
            raise StoreError(
                f"{count} messages were changed, but a crash may undo that: {error}; look at them before asking again"
            ) from error

    def move(self, order: PendingOrder, now_ms: int, later: list[Ticket] | None = None) -> PendingAnswer:
        """Give a pending message another due time; durable when it returns. Raises StoreError: ask again.

        With ``later``, the ticket is appended to it, and the caller waits for it before it answers.
        """
        name = order.name
        with self._lock:
            found = self._find(name.offset)
            moved = None if found is None or found.done else self._move(order, found, now_ms)
        if moved is None:
            return self._not_pending(name, found, order.verb, later)
        return self._durable(*moved, later)

    def cancelled_by_key(self, topic: str, key: str) -> int:
        """The delay id of the last message with a key that was cancelled; 0 if none is known. Reads files."""
        return self._past.find_key(topic, key)

    def past(self, name: PendingName, later: list[Ticket] | None = None) -> PendingAnswer:
        """The answer for a message that is not pending; `PendingVerdict.CANCELLED` if it was cancelled.

        Raises StoreError.
        """
        with self._lock:
            found = self._find(name.offset)
        return self._not_pending(name, found, PendingVerb.MOVE, later)

    # ------------------------------------------------------------------------------------------------ parts of it

    def _durable(self, answer: PendingAnswer, ticket: Ticket | None, later: list[Ticket] | None) -> PendingAnswer:
        if ticket is not None and later is not None:
            later.append(ticket)
        elif ticket is not None:
            self._flusher.wait(ticket)
        return answer

    def _cancel(
        self, name: PendingName, found: Found, version: int | None, now_ms: int
    ) -> tuple[PendingAnswer, Ticket | None] | None:
        """Cancel a pending message under the delivery lock; returns the answer, and what it must wait for."""
        record, refusal = self._meant(name, found, version)
        if refusal is not None:
            return refusal, self._as_it_is(refusal)
        after(self._waiting(found), Move.CANCEL)
        self._settle()
        rows = self._past.row(found, record, now_ms)
        with self._past.noted(rows, (found.delay_id,), (found.due_ms,)):
            ticket = self._spill.cancel(name.offset)
        if ticket is None:
            after(State.CANCELLED, Move.CANCEL)
            return None
        self._gone(found.delay_id, found.due_ms, record, len(record))
        self._stats.cancelled += 1
        answer = PendingAnswer(
            verdict=_V.DONE, offset=name.offset, version=found.version, due_ms=found.due_ms, when_ms=now_ms
        )
        return answer, ticket

    def _move(self, order: PendingOrder, found: Found, now_ms: int) -> tuple[PendingAnswer, Ticket | None]:
        """Move a pending message under the delivery lock; returns the answer, and what it must wait for."""
        record, refusal = self._meant(order.name, found, order.version, needed=True)
        if refusal is None:
            due_ms = _new_due(order, found, record, now_ms)
            refusal = _settled_already(order, found, due_ms, now_ms)
        if refusal is not None:
            return refusal, self._as_it_is(refusal)
        after(self._waiting(found), Move.MOVE)
        self._settle()
        fresh = restamped(record, found, due_ms)
        topic, _, text = record_fields(record)
        if self.keys is not None:  # before the move, because it may fail: a moved message must be offered
            self.keys.moved(topic, text, found.delay_id, due_ms, now_ms)
        block = self._spill.move(found, fresh, due_ms)
        for watcher in self.watchers:
            watcher.moved(found.delay_id, found.due_ms, topic, len(fresh) - len(record))
        self._no_longer_failed(found.due_ms, record)
        self._sweeper.offer(block, due_ms)
        self._stats.moved += 1
        version, detail = found.version + 1, f"due at {due_ms}"
        answer = PendingAnswer(verdict=_V.DONE, detail=detail, offset=found.delay_id, version=version, due_ms=due_ms)
        return answer, block.ticket

    def _as_it_is(self, refusal: PendingAnswer) -> Ticket | None:
        """What an answer must wait for that says how a message waits, and changes nothing.

        "It is due then", "it has version 2": that holds only once the send or the move that made it so is durable,
        whoever asked for it, and once no refused move can count after a crash. Raises StoreError.
        """
        if refusal.verdict is _V.UNKNOWN:  # by a name that does not fit: a message keeps its topic and keys
            return None
        self._spill.settle()
        journal = self._spill.journal
        return Ticket((journal, journal.written))

    def _find(self, offset: int) -> Found | None:
        self.settle_owed()
        self._sweeper.publish_all()
        return self._spill.find(offset)

    def _waiting(self, found: Found) -> State:
        """The state of a pending message by its key; failed ones count as armed."""
        return State.SPILLED if found.due_ms >= self._sweeper.frontier_ms else State.ARMED

    def _meant(
        self, name: PendingName, found: Found, version: int | None, needed: bool = False
    ) -> tuple[bytes, PendingAnswer | None]:
        """Read a pending record; with the refusal if name or version do not fit it. Empty if it cannot be read."""
        try:
            record = self._spill.read((found.ref,))[0]
            topic, _, text = record_fields(record)
        except (StoreError, RecordError) as error:
            # Then neither the name can be compared nor the topic be counted: no answer is better than a wrong one.
            counted = self.counts_topics and not isinstance(error, RecordCorruptError)
            if needed or counted or name.topic or name.unique_key:
                raise StoreError(f"pending message {found.delay_id:#x} cannot be read: {error}") from error
            record, topic, text = b"", "", ""
        if not fits(name, topic, text):
            return record, not_found()
        if version is not None and version != found.version:
            return record, PendingAnswer(
                verdict=_V.CHANGED,
                detail=f"it has version {found.version}, not {version}; it is due at {found.due_ms}",
                offset=found.delay_id,
                version=found.version,
                due_ms=found.due_ms,
            )
        return record, None

    def _gone(self, delay_id: int, due_ms: int, record: bytes, size: int) -> None:
        if record and self.watchers:
            topic, _, text = record_fields(record)
            for watcher in self.watchers:
                watcher.cancelled(delay_id, due_ms, topic, text, size)
        self._no_longer_failed(due_ms, record)

    def _no_longer_failed(self, due_ms: int, record: bytes) -> None:
        if self._recovery.failed_count and record:
            self._recovery.removed(record_fields(record)[0], due_ms)

    # ------------------------------------------------------------------------------------------------ what was

    def _not_pending(
        self, name: PendingName, found: Found | None, verb: PendingVerb, later: list[Ticket] | None = None
    ) -> PendingAnswer:
        """The answer for a message that is not pending. Needs no lock: it will not become pending again."""
        # The answer may report an earlier cancel, which must be durable by then: wait for the whole journal.
        journal = self._spill.journal
        ticket = Ticket((journal, journal.written))
        if later is None:
            self._flusher.wait(ticket)
        else:
            later.append(ticket)
        lookup = self._lookup
        record = None if lookup is None else lookup.find_delivered(name.offset)
        if record is not None:
            answer = delivered(name, record)
            return answer if answer.verdict is _V.UNKNOWN else self._durable(answer, self._delivery_ticket(), later)
        past = self._past
        if (row := past.find(name.offset)) is not None:
            if later is None:
                past.sync()  # the row may be that of a cancel under way, or of one that a kill has cut short
            if name.topic and row.topic_crc != topic_crc(name.topic):
                return not_found()
            return cancelled(verb, name.offset, row.version, row.due_ms, row.at_ms)
        if found is None or ((name.topic or name.unique_key) and not self._is_named(name, found)):
            return not_found()
        return unknown("it was delivered or cancelled: neither its delivery nor the row of its cancel can be read")

    def _is_named(self, name: PendingName, found: Found) -> bool:
        """True if a name fits a done message whose record can still be read."""
        try:
            with self._lock:
                topic, _, text = record_fields(self._spill.read((found.ref,))[0])
        except (StoreError, RecordError):
            return False
        return fits(name, topic, text)


def _is_settled() -> None:
    """Nothing to settle: this target leaves nothing of a refused put."""


def _no_ticket() -> None:
    """Nothing to wait for: this target does not say when a delivery is durable."""


def _new_due(order: PendingOrder, found: Found, record: bytes, now_ms: int) -> int:
    """The due time that an order requests, epoch ms, not before now; 0 if the sent delay is unknown (restart)."""
    if order.verb is PendingVerb.NOW:
        return now_ms
    if order.verb is PendingVerb.RESTART:
        delay_ms = sent_delay_ms(record, found)
        return now_ms + delay_ms if delay_ms else 0
    wanted_ms = found.due_ms + order.by_ms if order.by_ms is not None else order.due_ms or 0
    return max(wanted_ms, now_ms)


def _settled_already(order: PendingOrder, found: Found, due_ms: int, now_ms: int) -> PendingAnswer | None:
    """The answer to an order that changes nothing, because it is fulfilled already or impossible; else None."""
    verdict, detail = _V.ALREADY, f"it is due at {found.due_ms}"
    past = "" if order.by_ms is None else past_fault("due", found.due_ms + order.by_ms, now_ms)
    if past:
        verdict, detail = _V.REFUSED, past
    elif not due_ms:
        verdict, detail = _V.REFUSED, "the delay that it was sent with is not known any more: move it to a time"
    elif due_ms > DUE_MAX_MS:
        verdict, detail = _V.REFUSED, f"due time {shown(due_ms)} lies beyond the year 9999"
    elif found.due_ms != due_ms and not (order.verb is PendingVerb.NOW and found.due_ms <= due_ms):
        return None
    return PendingAnswer(
        verdict=verdict, detail=detail, offset=found.delay_id, version=found.version, due_ms=found.due_ms
    )
