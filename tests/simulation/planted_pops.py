"""Planted bugs of what is popped; `tests.simulation.planted` has all others, and what they are for."""

from __future__ import annotations

from typing import Any

from broker.pop.acks import AckProcessor
from broker.pop.answers import Answers
from broker.pop.copier import Copier
from broker.pop.recovery import Recovering
from broker.pop.reviver import Reviver
from remoting.command import encode_command
from store.pop.in_flight import InFlight
from store.pop.journal import PopJournal
from store.pop.notes import Notes
from store.pop.order_block import OrderBlock
from store.pop.pop_queue import Batch
from tests.simulation.kinds import Kind
from tests.simulation.plant import Plant, swap

__all__ = ["PLANTED_POPS"]

_claim = InFlight.claim
_copy = Copier._copy
_together = Copier.together
_record = InFlight.record
_change = InFlight.change
_ack_batch = AckProcessor.ack_batch


def _send_at_once(_self: Any, channel: Any, _command: Any, reply: Any) -> None:
    channel.send_at_once(encode_command(reply))


def _settle_what_is_put(self: Any) -> list[Any]:
    moved = []
    while self._unsynced:
        batch = self._unsynced.popleft()[2]
        self._in_flight.settle(batch)
        moved.append(batch.queue)
    return moved


def _claim_early(self: Any, now_ms: int, batches_max: int) -> Any:
    return _claim(self, now_ms + 1000, batches_max)


def _copy_at_any_time(_self: Any, *args: Any) -> Any:
    put = _copy(*args)
    if put is not None:
        put.due_ms = 0
    return put


def _copies_at_any_time(self: Any, *args: Any) -> Any:
    found = _together(self, *args)
    for put, _ in found or ():
        put.due_ms = 0
    return found


def _next_stays(self: Any, queue: Any, start: int, offsets: Any, pop_ms: int, invisible_ms: int, end: int) -> None:
    """What was offered is offered to the next one, too, now and then."""
    _record(self, queue, start, offsets, pop_ms, invisible_ms, end)
    if len(offsets) == 2:
        queue.next = start


def _written_later(self: Any, flags: int = 0, more: Any = None) -> None:
    """The journal says that it has written what it keeps back."""
    del flags, more
    with self._in_flight.lock:
        self._notes.take()


def _due_as_before(self: Any, queue: Any, start: int, pop_ms: int, offset: int, more_ms: int, now_ms: int) -> Any:
    """A change answers the new time, and what it was asked for comes at the old one."""
    dues = [row[4] for row in queue.rows() if (row[1], row[3]) == (start, pop_ms)]
    batch = _change(self, queue, start, pop_ms, offset, more_ms, now_ms)
    if batch is None or not dues:
        return batch
    told = Batch(queue, offset, 0, batch.pop_ms, batch.due_ms, 0, 0)
    batch.due_ms = dues[0]
    self._wheel.cancel(batch.timer)
    batch.timer = self._wheel.insert(batch.due_ms, batch)
    return told


def _only_looked_at(_self: Any, queue: Any, start: int, pop_ms: int, offset: int) -> bool:
    """A change finds the message that it is about, and leaves it to the handle of before."""
    batch, bit = queue.batches.get((start, pop_ms)), 1 << max(0, offset - start)
    if batch is not None:
        return not batch.claimed and bool(batch.waiting & bit)
    return any((row[1], row[3]) == (start, pop_ms) and row[2] & bit for row in queue.rows())


def _batch_is_one(self: Any, channel: Any, command: Any, now_ms: int) -> Any:
    """Of an acknowledgement of several messages the first bit of each entry counts."""
    ack = self._ack
    self._ack = lambda queue, handle, bits, at_ms: ack(queue, handle, bits & -bits, at_ms)
    try:
        return _ack_batch(self, channel, command, now_ms)
    finally:
        del self._ack


def _not_noted(_self: Any, queue: Any, offset: int, pop_ms: int) -> bool:
    """What is acknowledged in order is not journalled."""
    return queue.block is not None and queue.block.ack(offset, pop_ms)


def _visible_as_before(self: Any, offset: int, pop_ms: int, _visible_ms: int) -> bool:
    """A change of what was popped in order answers the new time, and keeps the old one."""
    return pop_ms == self.pop_ms and offset in self.visible_ms


def _first_alone(self: Any) -> Any:
    """A queue that is popped in order is free when the first message is, whatever the others are."""
    return min(self.visible_ms.values(), default=0)


_AGAIN = (Kind.REPEATED, Kind.HELD)

PLANTED_POPS: dict[str, Plant] = {
    "an answer about pops does not wait for the journal": Plant(
        swap((Answers, "send", _send_at_once)), *_AGAIN, fond="pop", first=14
    ),
    "the journal of pops writes nothing": Plant(swap((PopJournal, "commit", _written_later)), *_AGAIN, fond="pop"),
    "the journal of pops has no acknowledgements": Plant(swap((Notes, "taken", lambda *_: None)), *_AGAIN, fond="pop"),
    "the scan for copies of popped messages is left out": Plant(
        swap((Recovering, "_drop_copies", lambda *_: 0)),
        Kind.REPEATED,
        fond="pop",
        first=4,
    ),
    "the offset passes a copy that is not durable": Plant(
        swap((Reviver, "_settle_synced", _settle_what_is_put)),
        Kind.LOST,
        fond="pop",
        first=4,
    ),
    "a popped message comes again too soon": Plant(
        swap(
            (InFlight, "claim", _claim_early),
            (Copier, "_copy", _copy_at_any_time),
            (Copier, "together", _copies_at_any_time),
        ),
        Kind.EARLY,
        fond="pop",
    ),
    "a message is handed out twice": Plant(
        swap((InFlight, "record", _next_stays)), Kind.HELD, Kind.REPEATED, fond="pop"
    ),
    "a change of the invisible time keeps the due time": Plant(
        swap((InFlight, "change", _due_as_before)), Kind.EARLY, fond="pop"
    ),
    "a change leaves the message to the handle of before, too": Plant(
        swap((InFlight, "_take_one", _only_looked_at)), *_AGAIN, fond="pop"
    ),
    "an acknowledgement of many takes one": Plant(
        swap((AckProcessor, "ack_batch", _batch_is_one)), Kind.REPEATED, fond="pop in order", first=7
    ),
    "what is popped in order is not journalled": Plant(
        swap((Notes, "blocked", lambda *_: None)), Kind.LOST, fond="pop in order", first=6
    ),
    "an acknowledgement in order is not journalled": Plant(
        swap((InFlight, "ack_in_order", _not_noted)), Kind.REPEATED, fond="pop in order"
    ),
    "a queue that is popped in order is not blocked": Plant(
        swap((OrderBlock, "blocks", lambda *_: False)), Kind.HELD, Kind.BLOCKED, fond="pop in order"
    ),
    "a queue that is popped in order waits for its first message": Plant(
        swap((OrderBlock, "free_ms", _first_alone)), Kind.HELD, Kind.BLOCKED, fond="pop in order", first=27
    ),
    "a change in order keeps the due time": Plant(
        swap((OrderBlock, "change", _visible_as_before)), Kind.HELD, Kind.BLOCKED, fond="pop in order", first=38
    ),
}
