"""The time of a turn and the rest after it, without a network loop."""

import pytest

from broker.net import clock
from broker.net.clock import TurnPace


@pytest.fixture
def rests(monkeypatch):
    slept: list[float] = []
    monkeypatch.setattr(clock, "rest", slept.append)
    return slept


def test_a_loop_that_nobody_waits_for_has_its_whole_time(rests):
    pace = TurnPace()
    assert not pace.ended(0.5, 16)
    pace.yields = lambda: False
    assert not pace.ended(0.5, 16)
    assert (pace.slice_s(16), pace.hold_s, pace.read_slice_s(8), pace.read_slice_s(9)) == (0.005, 0.0, 0.01, 0.001)
    assert rests == [] and pace.rest_count == 0


def test_while_others_are_late_turns_are_short_and_rests_as_long_as_they(rests):
    pace = TurnPace()
    pace.yields = lambda: True
    assert pace.ended(0.001, 16)
    assert (pace.slice_s(16), pace.hold_s, pace.read_slice_s(1)) == (0.003, 0.003, 0.001)
    assert pace.ended(0.5, 16)
    assert rests == [0.001, 0.003] and pace.rest_count == 2
    pace.yields = lambda: False
    assert not pace.ended(0.001, 16)
    assert (pace.slice_s(16), pace.hold_s) == (0.005, 0.0)


@pytest.mark.parametrize("is_late", [False, True])
def test_a_turn_of_very_many_is_longer_so_that_it_is_not_all_overhead(is_late):
    pace = TurnPace()
    pace.is_late = is_late
    expected = [0.003, 0.004, 0.02] if is_late else [0.008, 0.02, 0.02]
    assert [pace.slice_s(count) for count in (400, 1_000, 50_000)] == pytest.approx(expected)


def test_the_rest_after_a_long_turn_of_very_many_is_as_long_as_it(rests):
    pace = TurnPace()
    pace.yields = lambda: True
    assert pace.ended(0.004, 1_000) and pace.ended(0.5, 1_000)
    assert rests == pytest.approx([0.004, 0.004])


def test_no_rest_after_a_turn_in_which_a_consumer_was_behind(rests):
    owing = 0
    pace = TurnPace()
    pace.yields, pace.owing = lambda: True, lambda: owing
    owing = 5
    assert not pace.ended(0.001, 16)
    assert pace.is_late and pace.hold_s, "the turn stays short, and its lock is kept"
    assert pace.ended(0.001, 16), "nobody more was behind in this turn"
    pace.yields = lambda: False
    owing = 6
    assert not pace.ended(0.001, 16)
    pace.yields = lambda: True
    assert pace.ended(0.001, 16), "that was in an earlier turn"
    assert rests == [0.001, 0.001]
