"""The state table as production executes it: what it allows happens; what it does not allow is noticed, at no loss."""

from __future__ import annotations

import doctest
from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker_plugin.rules import states
from broker_plugin.rules.states import MOVE_OF, MOVES, Claim, IllegalMoveError, Move, State, after
from store.put.plugin_api import CommandOutcome, PutRecord, PutResult, PutStatus
from tests.support.delay_rig import START_MS, FakeTarget, Rig

NOW = START_MS
OUT_OF_DELIVERING = [move for state, move in MOVES if state is State.DELIVERING]


def test_examples() -> None:
    outcome = doctest.testmod(states)
    assert outcome.attempted and not outcome.failed


@given(st.sampled_from(State), st.lists(st.tuples(st.booleans(), st.sampled_from(Move), st.integers(0, 4))))
def test_a_claim_follows_the_table(state: State, actions: list[tuple[bool, Move, int]]) -> None:
    if (state, Move.CLAIM) not in MOVES:
        with pytest.raises(IllegalMoveError, match=f"{state.value} cannot take the move 'claim'"):
            Claim(state)
        return
    claim, delivering = Claim(state), 0
    for adds, move, count in actions:
        if adds:
            claim.add(count)
            delivering += count
        elif (State.DELIVERING, move) in MOVES and count <= delivering:
            assert claim.take(move, count) is after(State.DELIVERING, move)
            delivering -= count
        else:
            with pytest.raises(IllegalMoveError):
                claim.take(move, count)
        assert claim.count == delivering
    if delivering:
        with pytest.raises(IllegalMoveError, match=f"{delivering} are still delivering"):
            claim.end()
    else:
        claim.end()


class Scripted(FakeTarget):
    """Answers as it was told to, message by message, and then with PUT_OK."""

    def __init__(self, rig: Rig) -> None:
        super().__init__(rig.clock)
        self.script: list[PutStatus] = []

    def put_batch(self, records: Sequence[PutRecord]) -> list[PutResult]:
        results = []
        for put in records:
            status = self.script.pop(0) if self.script else PutStatus.PUT_OK
            results.append(super().put_batch([put])[0] if MOVE_OF.get(status) is Move.PUT_OK else PutResult(status))
        return results


def sent(rig: Rig, count: int) -> None:
    for number in range(count):
        rig.send(b"%d" % number, at_ms=NOW + 10)


@settings(max_examples=60)
@given(st.lists(st.sampled_from(PutStatus), min_size=1, max_size=12))
def test_what_becomes_of_each_is_what_the_table_says(statuses: list[PutStatus]) -> None:
    rig = Rig()
    rig.target = rig.deliverer._target = target = Scripted(rig)
    sent(rig, len(statuses))
    rig.clock.now_ms = NOW + 10
    target.script = list(statuses)
    rig.sweeper.step(rig.clock.now_ms)
    ends = Counter(after(State.DELIVERING, MOVE_OF.get(status, Move.PUT_FAILED)) for status in statuses)
    assert len(target.log) == ends[State.DELIVERED]
    assert rig.sweeper.armed_count == ends[State.ARMED]
    assert rig.recovery.failed_count == ends[State.FAILED]
    assert rig.spill.pending_count == ends[State.ARMED] + ends[State.FAILED]
    rig.run(NOW + 3_000)
    assert sorted(target.bodies) == sorted(b"%d" % number for number in range(len(statuses)))


def test_a_second_owner_is_noticed_and_nobody_else_suffers() -> None:
    """Planted: somebody else delivers one of the messages between claim and put, outside the lock."""
    rig = Rig()
    sent(rig, 3)
    rig.clock.now_ms = NOW + 10
    honest = rig.target.put_batch

    def with_a_rival(records: Sequence[PutRecord]) -> list[PutResult]:
        rig.target.put_batch = honest  # type: ignore[method-assign]
        rig.spill.mark_done([1])
        return honest(records)

    rig.target.put_batch = with_a_rival  # type: ignore[method-assign]
    with pytest.raises(IllegalMoveError, match="delivered cannot take the move 'put ok'"):
        rig.sweeper.step(rig.clock.now_ms)
    rig.send(b"later", at_ms=NOW + 50)
    rig.run(NOW + 1000)
    assert sorted(rig.target.bodies) == [b"0", b"1", b"2", b"later"]
    assert rig.spill.pending_count == 0
    rig.check()


def test_results_that_are_missing_leave_their_messages_pending() -> None:
    """Planted: a target that answers for fewer than it was given. Whether it took the others is not known."""
    rig = Rig()
    sent(rig, 3)
    rig.clock.now_ms = NOW + 10
    honest = rig.target.put_batch
    rig.target.put_batch = lambda records: honest(records)[:2]  # type: ignore[method-assign]
    rig.sweeper.step(rig.clock.now_ms)
    assert rig.deliverer.uncertain == 3
    assert "3 were put, 2 have a result" in rig.warnings[-1]


def test_a_claim_that_is_not_legal_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: a table without the way from the wheel to the log. Who mends it finds every message where it was."""
    rig = Rig()
    sent(rig, 3)
    rig.clock.now_ms = NOW + 10
    with monkeypatch.context() as planted:
        planted.delitem(MOVES, (State.ARMED, Move.CLAIM))
        for _ in range(3):
            with pytest.raises(IllegalMoveError, match="armed cannot take the move 'claim'"):
                rig.sweeper.step(rig.clock.now_ms)
        assert (rig.sweeper.armed_count, rig.spill.pending_count, rig.target.log) == (3, 3, [])
    rig.run(NOW + 20)
    assert rig.target.bodies == [b"0", b"1", b"2"]


@pytest.mark.parametrize("move", [Move.CANCEL, Move.MOVE])
def test_a_command_that_is_not_legal_changes_nothing(move: Move, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig()
    offset = rig.send(b"x", at_ms=NOW + 10)
    rig.sweeper.step(NOW)
    assert offset is not None

    def ask() -> CommandOutcome:
        if move is Move.CANCEL:
            return rig.commands.cancel(offset).outcome
        return rig.commands.move(offset, NOW + 30, NOW).outcome

    with monkeypatch.context() as planted:
        planted.delitem(MOVES, (State.ARMED, move))
        with pytest.raises(IllegalMoveError, match=f"armed cannot take the move '{move.value}'"):
            ask()
        assert rig.spill.pending_count == 1
    assert ask() is CommandOutcome.DONE
