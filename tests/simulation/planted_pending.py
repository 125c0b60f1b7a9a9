"""Planted bugs of delay keys, limits and changes of what is pending; `tests.simulation.planted` has all others."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

from broker_plugin.pending import changes
from broker_plugin.pending.cancelled import CancelledRows
from broker_plugin.pending.delay_keys import DelayKeys, FirstStays, Free
from broker_plugin.pending.keyed_turn import KeyedTurn
from broker_plugin.pending.limits import PendingLimits
from broker_plugin.pending.looking import Looker
from broker_plugin.pending.records import accepted_ms, fresh_copy
from broker_plugin.rules.ranges import KEY_MAX
from store.disk.ticket import Ticket
from store.spill.spill_store import SpillStore
from store.spill.state.message_rows import MessageRows
from tests.simulation.kinds import Kind
from tests.simulation.plant import Plant, swap

__all__ = ["PLANTED_PENDING"]

_admit = DelayKeys.admit
_matching = Looker.matching
_cancel_many = SpillStore.cancel_many


def _both_stay(self: Any, one: Any) -> Any:
    """A replacement is accepted beside what it replaces."""
    offset = one.held.offset = self._spill.next_id()
    return self._spill.append([(one.due_ms, offset, fresh_copy(one.record, offset, one.due_ms))])


def _first_only_leaves(self: Any, one: Any) -> Any:
    """What is to be replaced is cancelled, and then the new one accepted: two frames, and nothing said in between."""
    self._spill.cancel(one.held.offset)
    return _both_stay(self, one)


def _keep_whatever_it_was(self: Any, topic: str, text: str, now_ms: int, **more: Any) -> Any:
    """Whoever had the key last keeps it, delivered or not."""
    decision = _admit(self, topic, text, now_ms, **more)
    if isinstance(decision, Free) and decision.hash:
        known = self._table.get(decision.hash)
        if known is not None and "keep" in text:
            return FirstStays(*known)
    return decision


def _first_one_is_forgotten(self: Any, topic: str, text: str, now_ms: int, **more: Any) -> Any:
    """A key is free for whoever says that the first one is to stay."""
    decision = _admit(self, topic, text, now_ms, **more)
    return Free(1) if isinstance(decision, FirstStays) else decision


def _delay_until_due(record: bytes, found: Any) -> int:
    """The delay is taken from when it is due now, not from when it was due first."""
    return int(max(1, found.due_ms - accepted_ms(record)))


def _not_journalled(self: Any, columns: Any, _versions: Any) -> Any:
    """A bulk cancel marks what it cancels, and writes nothing."""
    self._state.mark_done(columns.refs)
    return Ticket((self._journal, self._journal.written))


def _cursor_skips(self: Any, query: Any, seen: Any, limit: int = 256) -> Any:
    """A cursor goes on behind the last millisecond that was looked at, whatever else is due in it."""
    found = _matching(self, query, seen, limit)
    if found.next is not None:
        found.next = (found.next[0], KEY_MAX)
    return found


def _deliveries_stay(self: Any, puts: Any, sizes: Any = None) -> None:
    """What is delivered counts as pending until the next start."""
    del self, puts, sizes


_WRONG = (Kind.COMMAND, Kind.ANSWER)


def _plant(
    *wrong: tuple[Any, str, Callable[..., Any]],
    kinds: tuple[Kind, ...],
    share: float = 0.005,
    first: int | None = None,
    fond: str = "pending",
) -> Plant:
    return Plant(swap(*wrong), *kinds, share=share, fond=fond, first=first)


PLANTED_PENDING: dict[str, Plant] = {
    "what is replaced stays": _plant((KeyedTurn, "_put", _both_stay), kinds=(Kind.COMMAND, Kind.ANSWER, Kind.TWICE)),
    "a delay key that was delivered is kept": _plant((DelayKeys, "admit", _keep_whatever_it_was), kinds=(Kind.ANSWER,)),
    "whoever is kept out is taken": _plant(
        (DelayKeys, "admit", _first_one_is_forgotten), kinds=(Kind.ANSWER,), first=2
    ),
    "delay keys are forgotten at a restart": _plant(
        (DelayKeys, "load", lambda *_: None), kinds=(Kind.ANSWER,), first=2
    ),
    "rows of delay keys are not synced": _plant(
        (MessageRows, "sync", lambda _: None), kinds=_WRONG, share=0, fond="pending and crash"
    ),
    "a restart forgets the delay of a moved message": _plant(
        (changes, "sent_delay_ms", _delay_until_due), kinds=(Kind.COMMAND,), share=0, first=21
    ),
    "a bulk cancel is not journalled": _plant((SpillStore, "cancel_many", _not_journalled), kinds=(Kind.COMMAND,)),
    "a bulk cancel's cursor passes what is due in the same millisecond": _plant(
        (Looker, "matching", _cursor_skips),
        kinds=(Kind.COMMAND,),
        share=0,
        first=21,
    ),
    "that a message was cancelled is not written down": _plant(
        (CancelledRows, "noted", lambda *_: nullcontext()),
        (MessageRows, "find", lambda *_: None),
        kinds=(Kind.COMMAND,),
    ),
    "a refused large batch leaves its replacements": _plant(
        (KeyedTurn, "cut", lambda *_: None),
        kinds=(Kind.BATCH, Kind.REFUSED),
        share=0,
        first=69,
    ),
    "limits do not count what is there at a start": _plant(
        (PendingLimits, "load", lambda _: None), kinds=(Kind.ANSWER,), share=0, fond="pending and crash", first=4
    ),
    "limits do not hear of cancels": _plant(
        (PendingLimits, "cancelled", lambda *_: None),
        kinds=(Kind.ANSWER,),
        share=0,
        first=47,
    ),
    "limits do not hear of deliveries": _plant(
        (PendingLimits, "put", _deliveries_stay),
        (PendingLimits, "put_queues", _deliveries_stay),
        kinds=(Kind.ANSWER,),
        share=0,
        first=5,
    ),
}
