"""The life of a delayed message: one table of legal moves.

::

                      pass
    OFFERED ──────────────► (ordinary message, not ours)
       │ ├──── refuse ────► REFUSED
       │ accept
       ▼
    ACCEPTED ◄────── publish makes it visible ──────►  below the frontier: ARMED, else SPILLED
       │
       ▼                arm (its second comes near)
    SPILLED ─────────────────────────────► ARMED ──── claim ────► DELIVERING ── put ok ──► DELIVERED
       ▲                                     │ ▲                      │  │
       └───── hand over / window shrinks ────┘ └────── not due ───────┘  │ put failed
                                                                         ▼
    any of ACCEPTED, SPILLED, ARMED, FAILED:                          FAILED ── claim ──► DELIVERING
        cancel ──► CANCELLED          move ──► MOVED (a new version of it is ACCEPTED)

Nothing expires: a message that is overdue is delivered, however late.

Where the states are in the code: `broker_plugin.hook` offers, accepts and refuses; `store.spill` *is* ACCEPTED and
SPILLED (a record that is not done); the sweeper's wheel is ARMED; DELIVERING lasts as long as the delivery
lock is held, so no other thread ever meets it; the done-sets of the spill store are DELIVERED, CANCELLED and MOVED;
`broker_plugin.failures` is FAILED. There is no object with a state field for each message: ten million pending
messages must cost almost no memory. All these places agree on this table, and the tests hold them to it.

The table is executed: by a `Claim` for deliveries, once for all messages that go the same way, and by each command. An
illegal move raises `IllegalMoveError` (docs/decisions/0024-the-state-table-is-executed.md says where, and who catches
it).

"Once" is in this table: DELIVERED, CANCELLED and MOVED have no way out, and the only way into DELIVERED is
through one claim at a time.
"""

from __future__ import annotations

from enum import Enum

from store.put.plugin_api import CommandOutcome, PutStatus

__all__ = [
    "ANSWERS",
    "MOVES",
    "MOVE_OF",
    "PENDING",
    "Claim",
    "IllegalMoveError",
    "Move",
    "State",
    "after",
    "answer",
]


class State(Enum):
    """State of a delayed message."""

    OFFERED = "offered"
    """In a send, not yet checked."""
    PASSED = "passed"
    """Not ours: ordinary, or for the level scheduler."""
    REFUSED = "refused"
    """Nothing was stored; the sender was told why."""
    ACCEPTED = "accepted"
    """In the journal; the sweeper has not published it yet."""
    SPILLED = "spilled"
    """Due beyond the frontier, or in a range of recovery: on disk only, found by its key."""
    ARMED = "armed"
    """Due before the frontier: in the wheel, or at a cursor of recovery."""
    DELIVERING = "delivering"
    """Claimed for one append, under the delivery lock."""
    DELIVERED = "delivered"
    """In the CommitLog under its own topic."""
    FAILED = "failed"
    """Overdue because the append was refused; retried without limit."""
    CANCELLED = "cancelled"
    """Cancelled by a command."""
    MOVED = "moved"
    """Superseded by a later version of itself with another due time."""

    __hash__ = object.__hash__  # Enum's own is a slow Python function, and each delivery looks the table up


class Move(Enum):
    """Event in the life of a delayed message."""

    PASS = "pass"
    REFUSE = "refuse"
    ACCEPT = "accept"
    ARM = "arm"
    SPILL = "spill"
    CLAIM = "claim"
    PUT_OK = "put ok"
    NOT_DUE = "not due"
    """The clock, read inside the append lock, was before the due time."""
    STORE_REFUSES = "store refuses"
    """The store accepts nothing now (disk full, shutting down): not this message's fault."""
    PUT_FAILED = "put failed"
    CANCEL = "cancel"
    MOVE = "move"
    RESTORE = "restore"
    """At open: the id was found in the CommitLog."""

    __hash__ = object.__hash__


class IllegalMoveError(Exception):
    """A move that the table does not have: a bug, never a condition to handle."""


MOVES: dict[tuple[State, Move], State] = {
    (State.OFFERED, Move.PASS): State.PASSED,
    (State.OFFERED, Move.REFUSE): State.REFUSED,
    (State.OFFERED, Move.ACCEPT): State.ACCEPTED,
    #
    (State.ACCEPTED, Move.ARM): State.ARMED,
    (State.ACCEPTED, Move.SPILL): State.SPILLED,
    (State.ACCEPTED, Move.CANCEL): State.CANCELLED,
    (State.ACCEPTED, Move.MOVE): State.MOVED,
    (State.ACCEPTED, Move.RESTORE): State.DELIVERED,
    #
    (State.SPILLED, Move.ARM): State.ARMED,
    (State.SPILLED, Move.CLAIM): State.DELIVERING,  # by recovery, which reads its ranges by cursor
    (State.SPILLED, Move.CANCEL): State.CANCELLED,
    (State.SPILLED, Move.MOVE): State.MOVED,
    (State.SPILLED, Move.RESTORE): State.DELIVERED,
    #
    (State.ARMED, Move.CLAIM): State.DELIVERING,
    (State.ARMED, Move.SPILL): State.SPILLED,
    (State.ARMED, Move.CANCEL): State.CANCELLED,
    (State.ARMED, Move.MOVE): State.MOVED,
    #
    (State.DELIVERING, Move.PUT_OK): State.DELIVERED,
    (State.DELIVERING, Move.NOT_DUE): State.ARMED,
    (State.DELIVERING, Move.STORE_REFUSES): State.ARMED,
    (State.DELIVERING, Move.PUT_FAILED): State.FAILED,
    #
    (State.FAILED, Move.CLAIM): State.DELIVERING,
    (State.FAILED, Move.CANCEL): State.CANCELLED,
    (State.FAILED, Move.MOVE): State.MOVED,
}
"""Every legal move; any other is a bug."""

MOVE_OF: dict[PutStatus, Move] = {
    PutStatus.PUT_OK: Move.PUT_OK,
    PutStatus.FLUSH_DISK_TIMEOUT: Move.PUT_OK,
    PutStatus.NOT_DUE: Move.NOT_DUE,
    PutStatus.SERVICE_NOT_AVAILABLE: Move.STORE_REFUSES,
    PutStatus.OS_PAGE_CACHE_BUSY: Move.STORE_REFUSES,
    PutStatus.CREATE_MAPPED_FILE_FAILED: Move.STORE_REFUSES,
}
"""Event for each result of an append; other results are `Move.PUT_FAILED`."""

PENDING = frozenset({State.ACCEPTED, State.SPILLED, State.ARMED, State.DELIVERING, State.FAILED})
"""Accepted, and neither delivered nor cancelled nor superseded: `pending_count` counts these."""

ANSWERS: dict[State, CommandOutcome] = {
    State.OFFERED: CommandOutcome.UNKNOWN,
    State.PASSED: CommandOutcome.UNKNOWN,
    State.REFUSED: CommandOutcome.UNKNOWN,
    State.ACCEPTED: CommandOutcome.DONE,
    State.SPILLED: CommandOutcome.DONE,
    State.ARMED: CommandOutcome.DONE,
    State.FAILED: CommandOutcome.DONE,
    State.DELIVERED: CommandOutcome.ALREADY_DELIVERED,
    State.CANCELLED: CommandOutcome.ALREADY_CANCELLED,
}
"""The answer of cancel, move and send-now for a message in this state. DELIVERING is missing because a
command waits for the delivery lock; MOVED is missing because a command finds the latest version."""


def after(state: State, move: Move) -> State:
    """The state to which a move leads. Raises `IllegalMoveError` if the table does not have it."""
    try:
        return MOVES[state, move]
    except KeyError:
        raise IllegalMoveError(f"a message that is {state.value} cannot take the move '{move.value}'") from None


def answer(state: State) -> CommandOutcome:
    """The answer of a command on a message in this state. Raises `IllegalMoveError` if no command can meet it."""
    try:
        return ANSWERS[state]
    except KeyError:
        raise IllegalMoveError(f"no command ever meets a message that is {state.value}") from None


class Claim:
    """Messages that one owner has claimed for one append: each leaves DELIVERING once, by a move of the table.

    >>> claim = Claim(State.ARMED)
    >>> claim.add(3)
    >>> claim.take(Move.PUT_OK, 2), claim.take(Move.NOT_DUE), claim.count
    (<State.DELIVERED: 'delivered'>, <State.ARMED: 'armed'>, 0)
    >>> claim.take(Move.PUT_FAILED)
    Traceback (most recent call last):
        ...
    broker_plugin.rules.states.IllegalMoveError: 1 cannot take the move 'put failed': 0 are delivering
    """

    __slots__ = ("_state", "count")

    def __init__(self, state: State) -> None:
        """``state`` is that of the messages. Raises `IllegalMoveError` if they may not be claimed in it."""
        self._state = after(state, Move.CLAIM)
        self.count = 0
        """Messages that are being delivered."""

    def add(self, count: int) -> None:
        """Claim ``count`` messages."""
        self.count += count

    def take(self, move: Move, count: int = 1) -> State:
        """Let ``count`` of them take a move; returns the state to which it leads.

        Raises IllegalMoveError: none has moved.
        """
        target = after(self._state, move)
        if count > self.count:
            raise IllegalMoveError(f"{count} cannot take the move '{move.value}': {self.count} are delivering")
        self.count -= count
        return target

    def end(self) -> None:
        """Raise `IllegalMoveError` if a message has not left DELIVERING: nobody would look at it again."""
        if self.count:
            raise IllegalMoveError(f"{self.count} are still delivering, and their delivery has ended")
