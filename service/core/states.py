"""The states of an instance with regard to one shard, and their legal transitions: one table, which is executed.

==============  =================================================================================================
FOLLOWER        another instance owns the shard, or none does: nothing is sent
TAKING_OVER     the own takeover record is to be appended, and was not yet seen in the shard's queue
READING_BACK    the record was seen: the instance waits until the previous owner must have stopped
OWNING          it delivers, as long as it has read the queue to its end within the last 2 s; an error ends that
RELEASING       it gives the shard up: it waits for deliveries under way and begins no new one
FENCED          it has read a later takeover by another instance: it never delivers again under this takeover
==============  =================================================================================================
"""

from __future__ import annotations

from enum import Enum

__all__ = ["MOVES", "IllegalStateError", "MaySend", "OwnerState", "moved"]


class OwnerState(Enum):
    """The state of an instance with regard to a shard."""

    FOLLOWER = "follower"
    TAKING_OVER = "taking over"
    READING_BACK = "reading back"
    OWNING = "owning"
    RELEASING = "releasing"
    FENCED = "fenced"


class MaySend(Enum):
    """The answer to: may this entry be delivered now?"""

    GO = "go"
    ALREADY = "it was delivered, or is not to be"
    NOT_DUE = "it is not due"
    NOT_OWNER = "this instance may not deliver now"
    DOUBT = "whether it was delivered is not known yet"


class IllegalStateError(Exception):
    """A transition that is not in the table: a bug."""


MOVES: dict[OwnerState, frozenset[OwnerState]] = {
    OwnerState.FOLLOWER: frozenset({OwnerState.TAKING_OVER}),
    OwnerState.TAKING_OVER: frozenset({OwnerState.READING_BACK, OwnerState.FOLLOWER}),
    OwnerState.READING_BACK: frozenset({OwnerState.OWNING, OwnerState.FENCED, OwnerState.FOLLOWER}),
    OwnerState.OWNING: frozenset({OwnerState.RELEASING, OwnerState.FENCED, OwnerState.FOLLOWER}),
    OwnerState.RELEASING: frozenset({OwnerState.FENCED, OwnerState.FOLLOWER}),
    OwnerState.FENCED: frozenset({OwnerState.FOLLOWER}),
}


def moved(old: OwnerState, new: OwnerState) -> OwnerState:
    """Return the new state. Raises IllegalStateError if the table does not have the transition.

    >>> moved(OwnerState.FOLLOWER, OwnerState.TAKING_OVER).value
    'taking over'
    """
    if new not in MOVES[old]:
        raise IllegalStateError(f"{old.value} -> {new.value}")
    return new
