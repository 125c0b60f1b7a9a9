"""The table of legal moves, exhaustively: every state times every move is either in it or refused."""

from __future__ import annotations

from itertools import product

import pytest

from broker_plugin.rules.states import ANSWERS, MOVES, PENDING, IllegalMoveError, Move, State, after, answer
from store.put.plugin_api import CommandOutcome

ON_DISK = {State.ACCEPTED, State.SPILLED}
WAITING = {State.ACCEPTED, State.SPILLED, State.ARMED, State.FAILED}

FINAL = {State.PASSED, State.REFUSED, State.DELIVERED, State.CANCELLED, State.MOVED}
"""No way out."""


def expected(state: State, move: Move) -> State | None:
    """The rules in another form than the table: by move, not by state."""
    match move:
        case Move.PASS | Move.REFUSE | Move.ACCEPT:
            results = {Move.PASS: State.PASSED, Move.REFUSE: State.REFUSED, Move.ACCEPT: State.ACCEPTED}
            return results[move] if state is State.OFFERED else None
        case Move.ARM:
            return State.ARMED if state in ON_DISK else None
        case Move.SPILL:
            return State.SPILLED if state in (State.ACCEPTED, State.ARMED) else None
        case Move.CLAIM:
            return State.DELIVERING if state in (State.ARMED, State.SPILLED, State.FAILED) else None
        case Move.PUT_OK:
            return State.DELIVERED if state is State.DELIVERING else None
        case Move.NOT_DUE | Move.STORE_REFUSES:
            return State.ARMED if state is State.DELIVERING else None
        case Move.PUT_FAILED:
            return State.FAILED if state is State.DELIVERING else None
        case Move.CANCEL:
            return State.CANCELLED if state in WAITING else None
        case Move.MOVE:
            return State.MOVED if state in WAITING else None
        case Move.RESTORE:
            return State.DELIVERED if state in ON_DISK else None


@pytest.mark.parametrize(("state", "move"), list(product(State, Move)), ids=lambda found: found.value)
def test_every_state_times_every_move(state: State, move: Move) -> None:
    wanted = expected(state, move)
    if wanted is None:
        assert (state, move) not in MOVES
        with pytest.raises(IllegalMoveError, match=state.value):
            after(state, move)
    else:
        assert after(state, move) is wanted


def test_every_state_is_offered_pending_or_final() -> None:
    assert {State.OFFERED} | PENDING | FINAL == set(State)
    assert not PENDING & FINAL


def test_what_is_final_stays() -> None:
    assert not [move for (state, move) in MOVES if state in FINAL]


def test_pending_never_vanishes() -> None:
    """Out of what is pending there are three ways: delivered, cancelled, or superseded by its own later version."""
    ends = {target for (state, _), target in MOVES.items() if state in PENDING and target not in PENDING}
    assert ends == {State.DELIVERED, State.CANCELLED, State.MOVED}


def test_delivered_only_by_one_claim_or_because_the_log_has_it() -> None:
    ways = {(state, move) for (state, move), target in MOVES.items() if target is State.DELIVERED}
    assert {way for way in ways if way[1] is not Move.RESTORE} == {(State.DELIVERING, Move.PUT_OK)}


def test_everything_pending_can_be_reached_and_delivered() -> None:
    reached = {State.OFFERED}
    while more := {target for (state, _), target in MOVES.items() if state in reached} - reached:
        reached |= more
    assert reached == set(State)
    for start in PENDING:
        found = {start}
        while more := {target for (state, _), target in MOVES.items() if state in found} - found:
            found |= more
        assert State.DELIVERED in found


def test_commands_answer_done_exactly_where_the_table_lets_them() -> None:
    for state in State:
        can = (state, Move.CANCEL) in MOVES
        assert can == ((state, Move.MOVE) in MOVES)
        if state in ANSWERS:
            assert (answer(state) is CommandOutcome.DONE) == can
        else:
            assert not can
            with pytest.raises(IllegalMoveError):
                answer(state)
    assert set(State) - set(ANSWERS) == {State.DELIVERING, State.MOVED}
