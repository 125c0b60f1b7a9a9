"""The gate: every message that a client sends passes here, most of them within a fraction of a microsecond.

A delayed message gets a delay id and becomes its finished CommitLog record at once. So all limits are checked
while the sender still waits for an answer, and a delivery has nothing left to compute. The records of one turn of
the network loop are appended to the spill journal as one frame by one write.

Network loop only.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from broker_plugin.aside import GateAside, parts_of
from broker_plugin.figures.tally import Accepted
from broker_plugin.pending.delay_keys import FirstStays, Free, Taken, UnderWay, unsettled
from broker_plugin.pending.keyed_turn import KeyedTurn
from broker_plugin.pending.limits import PendingLimits
from broker_plugin.rules.properties import (
    ABSOLUTE,
    DUE_MAX_MS,
    PRECEDENCE,
    TRANSACTION_TYPE,
    TimerError,
    delay_level,
    disarmed,
    has_start_time_only,
    is_half,
    plain_start_ms,
    read_due,
    read_dues,
    stamped,
    stamped_texts,
    without_timers,
)
from broker_plugin.rules.stats import Stats
from remoting.layout import FRAME_ROW_BYTES
from remoting.messages.message import (
    MAX_PROPERTIES_BYTES,
    Message,
    MessageError,
    RecordRows,
    UniformBatch,
    encode_record,
)
from remoting.messages.properties import DELAY, DELAY_KEY, OWN_PROPERTIES, TRAN_MSG, remove_properties
from store.disk.errors import StoreError, StoreFullError
from store.disk.ticket import Ticket
from store.put.plugin_api import Held, HeldBatch, OneByOne, PutStatus, Refused

if TYPE_CHECKING:
    from broker_plugin.sweeper import Sweeper
    from store.spill.rows.block import Block
    from store.spill.spill_store import SpillStore

__all__ = ["Gate"]

ROOM_FOR_MOVES_BYTES: Final = 16
"""Property bytes kept free, so that a later move (a version, a longer due time) always fits."""
STAMP_BYTES_MAX: Final = 64
"""An upper bound of the bytes that `stamped_texts` appends."""
REST_BYTES_MAX: Final = 384
"""An upper bound of the bytes of a record besides body and properties."""
_DECISIVE: Final = frozenset((DELAY, DELAY_KEY, TRAN_MSG, *OWN_PROPERTIES))
_ONE_BY_ONE: Final = OneByOne()


class Gate:
    """Decides about each message, and journals what is held once a turn.

    Args:
        spill: where held messages go.
        sweeper: is offered every block, in the order of the journal.
        store_host: the broker's address, as records hold it.
        max_delay_ms: longest delay; None: no limit.
        max_body_bytes: longest body.
        max_record_bytes: longest record that will be accepted when it is due.
        stats: counts.
    """

    def __init__(
        self,
        spill: SpillStore,
        sweeper: Sweeper,
        store_host: bytes,
        stats: Stats,
        *,
        max_delay_ms: int | None,
        max_body_bytes: int,
        max_record_bytes: int,
        disk_refusal: Callable[[], str] = lambda: "",
    ) -> None:
        self._spill = spill
        self._sweeper = sweeper
        self._store_host = store_host
        self._stats = stats
        self._max_delay_ms = max_delay_ms
        self._most_ahead_ms = DUE_MAX_MS if max_delay_ms is None else max_delay_ms
        self._max_body_bytes = max_body_bytes
        self.frame_bytes = spill.append_bytes_max
        """Most bytes of one frame of the journal, as `aside.parts_of` counts them."""
        self._max_record_bytes = min(max_record_bytes, self.frame_bytes - FRAME_ROW_BYTES) - ROOM_FOR_MOVES_BYTES
        self._disk_refusal = disk_refusal
        self.entries: list[tuple[int, int, bytes]] = []
        """The messages that this turn holds: due time, delay id, record."""
        self._blocks: list[Block] = []  # of the last turn
        self.limits: PendingLimits | None = None
        self.keyed: KeyedTurn | None = None
        """This turn's messages with a delay key; None if delay keys are off."""
        self.asides: list[GateAside] = []
        """Large batches that are a part of this turn."""
        self._withdrawn = False  # whether messages of this turn were cancelled in the journal
        self._next_id = spill.next_id
        self._topics: list[str] = []  # of the entries, unless some of them were taken back
        self.tally: Accepted | None = None
        """Counts by topic; None without metrics."""

    def before_put(self, message: Message, now_ms: int) -> Held | Refused | None:
        """Check one message: hold it, refuse it, or let it pass (perhaps with fewer properties)."""
        text = message.properties
        # `may_be_timed` and the test for our own names, written out: every message pays for these lines.
        if "__STARTD" in text or "TIMER_DEL" in text:
            return self._timed(message, text, now_ms)
        if "__TW_" in text:
            message.properties = remove_properties(text, OWN_PROPERTIES)
        return None

    def before_put_batch(self, batch: UniformBatch, now_ms: int) -> HeldBatch | OneByOne | None:
        """Check a batch: hold all of it, let it pass, or ask for its messages one by one."""
        names = batch.names
        timers = [name for name in names if name in PRECEDENCE]
        if not _DECISIVE.isdisjoint(names) or (timers and self.limits is not None):
            return _ONE_BY_ONE
        if not timers:
            return None
        if len(timers) > 1 or timers[0] not in ABSOLUTE or batch.message.sys_flag & TRANSACTION_TYPE:
            return _ONE_BY_ONE
        body_bytes, text_bytes = batch.body_max, batch.text_max + STAMP_BYTES_MAX
        if (
            body_bytes > self._max_body_bytes
            or text_bytes > MAX_PROPERTIES_BYTES - ROOM_FOR_MOVES_BYTES
            or body_bytes + text_bytes + REST_BYTES_MAX > self._max_record_bytes
        ):
            return _ONE_BY_ONE
        dues = read_dues(batch.values(timers[0]) or [], now_ms, self._max_delay_ms)
        return _ONE_BY_ONE if dues is None else self._hold_batch(batch, dues, now_ms)

    def _hold_batch(self, batch: UniformBatch, dues: list[int], now_ms: int) -> HeldBatch | OneByOne:
        try:  # what all messages have in common must fit a record before ids are given out
            RecordRows(batch.message, self._store_host, [], [], [])
        except MessageError:
            return _ONE_BY_ONE
        try:
            delay_ids = self._spill.next_ids(len(dues))
        except StoreError:
            return _ONE_BY_ONE  # then each message is refused with the reason
        texts = stamped_texts(batch.texts, delay_ids, dues)
        rows = RecordRows(batch.message, self._store_host, batch.flags, batch.bodies, texts)
        self.entries += zip(dues, delay_ids, rows.records(now_ms), strict=True)
        if self.tally is not None:
            self._topics += [batch.message.topic] * len(dues)
        return HeldBatch(delay_ids, min(dues))

    def _timed(self, message: Message, text: str, now_ms: int) -> Held | Refused | None:
        due_ms = plain_start_ms(text)
        if 0 < due_ms - now_ms <= self._most_ahead_ms and not message.sys_flag & TRANSACTION_TYPE:
            if DELAY_KEY in text:
                return self._hold_keyed(message, text, due_ms, now_ms)
            return self._hold(message, text, due_ms, now_ms)
        return self._unusual(message, text, now_ms)

    def _unusual(self, message: Message, text: str, now_ms: int) -> Held | Refused | None:
        """Decide about a message with any names and values in its properties: the slow and complete way."""
        half = is_half(text, message.sys_flag)
        try:
            if not half and delay_level(text) > 0:
                message.properties = without_timers(text)
                return None
            due_ms = read_due(text, now_ms, self._max_delay_ms)
        except TimerError as error:
            return self._refused(PutStatus.WHEEL_TIMER_MSG_ILLEGAL, str(error))
        if due_ms is None:  # the names only occur in a value or within a longer name
            message.properties = remove_properties(text, OWN_PROPERTIES)
            return None
        if half:
            return self._refused(
                PutStatus.WHEEL_TIMER_MSG_ILLEGAL,
                f"a transaction's half message cannot be delayed: it is due at {due_ms} by its timer property",
            )
        if due_ms <= now_ms:
            text = disarmed(text, now_ms)
            second = self._keyed(message, text, now_ms, now_ms, held=False)
            if second is not None:
                return second
            message.properties = text
            message.due_ms = due_ms  # the append checks it again: the clock may be set back before that
            return None
        text = text if has_start_time_only(text) else disarmed(text, due_ms)
        return self._hold_keyed(message, text, due_ms, now_ms)

    def _hold(self, message: Message, text: str, due_ms: int, now_ms: int) -> Held | Refused:
        if len(message.body) > self._max_body_bytes:
            return self._refused(
                PutStatus.MESSAGE_ILLEGAL,
                f"the body has {len(message.body)} bytes, at most {self._max_body_bytes} are possible",
            )
        try:
            delay_id = self._next_id()
        except StoreError as error:
            return self._refused(PutStatus.SERVICE_NOT_AVAILABLE, str(error))
        record = self._record(message, text, due_ms, now_ms, delay_id)
        if isinstance(record, Refused):
            return record
        if self.limits is not None:
            why_not = self.limits.refusal(message.topic, len(record))
            if why_not:
                return self._refused(PutStatus.SERVICE_NOT_AVAILABLE, why_not)
            self.limits.hold(message.topic, len(record))
        self.entries.append((due_ms, delay_id, record))
        if self.tally is not None:
            self._topics.append(message.topic)
        return Held(delay_id, due_ms)

    def _record(self, message: Message, text: str, due_ms: int, now_ms: int, delay_id: int) -> bytes | Refused:
        """Make the finished record, or refuse what does not fit it."""
        message.prepared_offset = 0  # it will be delivered without an op message, so it must not name a half message
        message.properties = text = stamped(text, delay_id, due_ms)
        if len(text) > MAX_PROPERTIES_BYTES // 4:
            size = len(text.encode("utf-8", "surrogatepass"))
            if size > MAX_PROPERTIES_BYTES - ROOM_FOR_MOVES_BYTES:
                return self._refused(
                    PutStatus.PROPERTIES_SIZE_EXCEEDED,
                    f"the properties have {size} bytes with those of the delay, "
                    f"at most {MAX_PROPERTIES_BYTES - ROOM_FOR_MOVES_BYTES} are possible",
                )
        try:
            record = encode_record(message, self._store_host, now_ms)
        except MessageError as error:
            return self._refused(PutStatus.MESSAGE_ILLEGAL, str(error))
        if len(record) > self._max_record_bytes:
            remark = f"the record has {len(record)} bytes, at most {self._max_record_bytes} are possible"
            return self._refused(PutStatus.MESSAGE_ILLEGAL, remark)
        return record

    def _hold_keyed(self, message: Message, text: str, due_ms: int, now_ms: int) -> Held | Refused:
        """Hold a message that may have a delay key."""
        second = self._keyed(message, text, due_ms, now_ms, held=True)
        return self._hold(message, text, due_ms, now_ms) if second is None else second

    def _keyed(self, message: Message, text: str, due_ms: int, now_ms: int, *, held: bool) -> Held | Refused | None:
        """Decide about a message by its delay key; None if it has none, or if its key is free and it is not ``held``.

        A message that is due already also counts as a second send while the first one with its key is pending.
        """
        keyed = self.keyed
        if keyed is None or DELAY_KEY not in text:
            return None
        decision = keyed.keys.admit(message.topic, text, now_ms, held=held)
        if isinstance(decision, Free):
            if not held or not decision.hash:
                return None
            one = self._hold(message, text, due_ms, now_ms)
            if isinstance(one, Held):
                keyed.keys.took(decision.hash, one.offset, due_ms, now_ms)
            return one
        decide = partial(self._decided, keyed, message, (text, due_ms, now_ms))
        return unsettled(decision, decide) if isinstance(decision, UnderWay) else decide(decision)

    def _decided(
        self, keyed: KeyedTurn, message: Message, at: tuple[str, int, int], decision: Taken | FirstStays | Refused
    ) -> Held | Refused:
        """Carry out the decision about the second message of a key; ``at``: its properties, its due time, now."""
        if isinstance(decision, Refused):
            self._stats.refused += 1
            return decision
        if isinstance(decision, FirstStays):
            return keyed.keep(decision)
        record = self._record(message, *at, decision.found.delay_id)
        return record if isinstance(record, Refused) else keyed.replace(decision, record, *at[1:])

    def _refused(self, status: PutStatus, remark: str) -> Refused:
        self._stats.refused += 1
        return Refused(status, remark)

    def take_back(self, held: Held) -> None:
        """Forget a message that was held in this turn, or in the one just journalled (then under the delivery lock)."""
        entries = self.entries
        if self.keyed is not None and self.keyed.take_back(held):
            return
        for at in range(len(entries) - 1, -1, -1):
            if entries[at][1] == held.offset:
                if self.limits is not None:
                    self.limits.let_go(entries[at][2])
                del entries[at]
                return
        for block in self._blocks:
            if held.offset in block.ids:
                self._sweeper.publish_all()  # what was accepted before it first
                self._withdrawn = True
                self._spill.withdraw(block, held.offset)
                if self.limits is not None:
                    self.limits.withdrawn(held.offset)
                if self.tally is not None:
                    self.tally.withdrawn(held.offset)

    def taken_back(self) -> Ticket | None:
        """A ticket that is done when all cancels that `take_back` wrote since the last call are durable; None: none."""
        if not self._withdrawn and (self.keyed is None or not self.keyed.has_put_back):
            return None
        self._withdrawn = False
        ticket = self._spill.withdrawn()
        return ticket if self.keyed is None else self.keyed.taken_back(ticket)

    def commit_turn(self) -> Ticket | None:
        """Journal what was held since the last call. Raises StoreError, and then none of it is pending."""
        entries, asides = self.entries, self.asides
        keyed = None if self.keyed is None or self.keyed.is_idle else self.keyed
        if not entries and not asides and keyed is None:
            return None
        topics, self._topics = self._topics, []
        self.entries, self.asides = [], []
        ticket: Ticket | None = None
        self._blocks = []
        try:
            refusal = self._disk_refusal()
            if refusal:
                raise StoreFullError(refusal)
            if keyed is not None:
                ticket = keyed.begin()
            self._blocks = self._append(entries, asides)
            if keyed is not None:
                ticket = self._commit_keyed(keyed, ticket)
        except StoreError:
            if keyed is not None:
                keyed.failed()
            if self.limits is not None:
                self.limits.turn_over(False)
            for aside in asides:
                aside.keyed = aside.limited = None
            raise
        more = [] if keyed is None else keyed.accepted
        if self.limits is not None:
            self.limits.turn_over(True)
            self.limits.committed(entries, more)
        for block in self._blocks:
            ticket = block.ticket.joined(ticket)
            if keyed is None:
                self._sweeper.offer(block, min(block.dues))
        self._stats.accepted += len(entries) + len(more) + sum(map(len, asides))
        if self.tally is not None:
            frames = [frame.entries() for aside in asides for frame in aside.frames]
            self.tally.add_turn(topics, entries, more, *frames)
        return ticket

    def _commit_keyed(self, keyed: KeyedTurn, ticket: Ticket | None) -> Ticket:
        """Offer the turn's blocks and journal its replacements. Raises StoreError, and then none of it is pending."""
        # One hold of the lock: what is refused because a replacement fails must not have been delivered by then.
        with self._spill.lock:
            for block in self._blocks:
                self._sweeper.offer(block, min(block.dues))
            try:
                return keyed.commit(ticket)
            except StoreError:
                self.take_out(self._blocks)
                raise

    def _append(self, entries: list[tuple[int, int, bytes]], asides: list[GateAside]) -> list[Block]:
        """Append as one frame, or as several if one would be too large; all or nothing."""
        blocks: list[Block] = []
        try:
            # Large batches first. What their connections sent after them is among the entries of this turn; what they
            # sent before them was journalled by an earlier turn. So the order of each connection is kept.
            for aside in asides:
                for frame in aside.frames:
                    block = self._spill.append_columns(frame.dues, frame.ids, frame.records, bytes(frame.rows))
                    blocks.append(block)
                    aside.blocks.append(block)
            if entries:
                dues, ids, records = zip(*entries, strict=True)
                if sum(map(len, records)) + len(entries) * FRAME_ROW_BYTES <= self.frame_bytes:
                    blocks.append(self._spill.append_columns(dues, ids, records, None))
                else:
                    for part, _ in parts_of(entries, self.frame_bytes):
                        blocks.append(self._spill.append(part))
        except StoreError:
            self.take_out(blocks)
            raise
        return blocks

    def take_out(self, blocks: list[Block]) -> None:
        """Cancel the blocks of a failed turn that were written already: their senders get a refusal."""
        with self._spill.lock:
            self._sweeper.publish_all()  # those that were offered are published nowhere else
            for block in blocks:
                self._withdrawn = True
                self._spill.withdraw_block(block)
