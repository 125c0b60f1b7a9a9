"""Planted bugs of what is popped; `tests.simulation.planted` has all others, and what they are for."""

from __future__ import annotations

from typing import Any

from broker.pop.answers import Answers
from broker.pop.copier import Copier
from broker.pop.recovery import Recovering
from broker.pop.reviver import Reviver
from remoting.command import encode_command
from store.pop.in_flight import InFlight
from store.pop.journal import PopJournal
from store.pop.notes import Notes
from tests.simulation.kinds import Kind
from tests.simulation.plant import Plant, swap

__all__ = ["PLANTED_POPS"]

_claim = InFlight.claim
_copy = Copier._copy
_together = Copier.together
_record = InFlight.record


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
}
