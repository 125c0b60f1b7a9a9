"""Restores popped queues and messages in flight from the journal of pops at a start, checked against the store.

===========================================  =========================================================================
the topic or group of a queue is gone        the queue is forgotten
the queue ends earlier (a power cut)         its next pop begins at that end, because its offsets are given again
the group has come further without pops      its next pop begins there; messages in flight stay
a copy of a message is in the log            the message is done, once the log is synced: one copy over any crash
the stored offset was set back while the     its next pop begins there; messages in flight are forgotten
broker was stopped
another broker has used the store meanwhile  the journal is not used; a new one begins, at the stored offsets
===========================================  =========================================================================

In the last case the journal is wrong without being damaged: an earlier version, or Apache's broker, does not write it.
They leave a trace: the log does not end where a clean stop says, or the file ``abort`` is not that of this version.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import TYPE_CHECKING

from broker.pop.handle import NORMAL, retry_flag, retry_topic
from broker.pop.retry_record import mark_text
from remoting.errors import RecordError
from remoting.messages.message import decode_record
from remoting.messages.properties import TW_POP, get_property
from store.pop.in_flight import InFlight
from store.pop.order_block import OrderBlock
from store.pop.replay import PopState, SavedQueue

if TYPE_CHECKING:
    from broker.tables.groups import SubscriptionGroups
    from broker.tables.offsets import ConsumerOffsets
    from broker.tables.topics import Topics
    from store.message_store import MessageStore

__all__ = ["Recovering"]

_MARK = TW_POP.encode() + b"\x01"


class Recovering:
    """One start: what it is done with.

    Args:
        store: The opened store.
        topics, groups, offsets: The broker's tables.
        in_flight: What is filled.
        warn: Told what does not count, and why.
    """

    def __init__(
        self,
        store: MessageStore,
        topics: Topics,
        groups: SubscriptionGroups,
        offsets: ConsumerOffsets,
        in_flight: InFlight,
        warn: Callable[[str], None],
    ) -> None:
        self._store = store
        self._topics = topics
        self._groups = groups
        self._offsets = offsets
        self._in_flight = in_flight
        self._warn = warn

    def run(self, state: PopState) -> bool:
        """Fill `InFlight` with what counts; whether all of it did. Raises StoreError."""
        why = self._stale(state) if state.numbers else ""
        if why:
            self._warn(f"the journal of pops is not used, groups continue at their stored offsets: {why}")
            state.queues.clear()
        for text in state.damage:
            self._warn(f"the journal of pops: {text}; pops and acknowledgements that it lacks are lost")
        self._in_flight.ref = max(state.queues, default=0)
        self._in_flight.number = state.highest
        if self._drop_copies(state):
            self._store.commit_log.sync()
        for saved in state.queues.values():
            if self._topics.get(saved.topic) is not None and saved.group in self._groups.table:
                self._restore(saved)
        return not why and not state.damage

    def _stale(self, state: PopState) -> str:
        """Why a journal is not of the broker that had the store last; empty if it is."""
        store = self._store
        if store.was_clean:
            if not state.closed:
                return "the store was closed cleanly, the journal was not"
            if state.log_position != store.commit_log.end:
                return f"it was closed at CommitLog offset {state.log_position}, the log ends at {store.commit_log.end}"
            return ""
        return "" if store.knew_pops else "since then a broker that does not know this journal has used the store"

    def _drop_copies(self, state: PopState) -> int:
        """Remove messages whose copies are in the log; return how many."""
        log, found = self._store.commit_log, 0
        if state.log_position >= log.end:
            return 0
        marks = {}
        for queue in state.queues.values():
            plain = retry_flag(queue.topic) == NORMAL
            topic = retry_topic(queue.topic, queue.group) if plain else queue.topic
            for batch in queue.batches.values():
                offsets = (batch.start + place for place in range(batch.bits.bit_length()) if batch.bits >> place & 1)
                marks.update({(topic, mark_text(batch.number, offset)): (batch, offset) for offset in offsets})
        if not marks:
            return 0
        for _, record in self._store.scan(max(state.log_position, log.begin)):
            if _MARK not in record:
                continue
            try:
                stored = decode_record(record, check_crc=False)
            except RecordError:
                continue
            known = marks.pop((stored.topic, get_property(stored.properties, TW_POP) or ""), None)
            if known is not None:
                batch, offset = known
                batch.bits &= ~(1 << (offset - batch.start))
                found += 1
        return found

    def _restore(self, saved: SavedQueue) -> None:
        in_flight, store = self._in_flight, self._store
        key = saved.group, saved.topic, saved.queue_id
        end, stored = store.max_offset(saved.topic, saved.queue_id), self._offsets.get(*key)
        if store.was_clean and 0 <= stored < saved.committed():
            in_flight.open(*key, stored)
            return
        queue = in_flight.open(*key, max(min(saved.next, end), stored))
        if queue is None:
            return
        for batch in sorted(saved.batches.values(), key=attrgetter("start")):  # in order they can be packed
            bits, there = batch.bits, max(0, end - batch.start)
            if there < bits.bit_length():
                bits &= (1 << there) - 1
            if bits:
                in_flight.restored(queue, batch.number, batch.start, bits, batch.pop_ms, batch.due_ms)
        if saved.block is not None:
            block = _cut(saved.block, end)
            if block.waiting:
                in_flight.restored_block(queue, block)
        queue.published = stored


def _cut(block: OrderBlock, end: int) -> OrderBlock:
    """Without what is not in the queue any more."""
    for offset in [offset for offset in block.waiting if offset >= end]:
        block.forget(offset)
    return block
