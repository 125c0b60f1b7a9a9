"""Who goes first when more is due than fits into a slice."""

from __future__ import annotations

import random

from store.pop.due_tail import DueTail
from store.pop.pop_queue import Batch, PopQueue

QUEUE = PopQueue("G", "T", 0, 0)


def batch(number: int, due_ms: int, count: int = 1) -> Batch:
    return Batch(QUEUE, number * 32, (1 << count) - 1, 0, due_ms, number, number)


def named(batches: list[Batch]) -> list[int]:
    return [one.number for one in batches]


def test_what_is_due_later_passes_the_tail_of_a_hot_moment() -> None:
    tail = DueTail()
    assert named(tail.choose([batch(n, 10) for n in range(5)], 2)) == [0, 1]
    assert tail
    assert tail.passing == 2
    assert named(tail.choose([batch(5, 11)], 2)) == [5, 2]
    assert tail.passing == 1
    assert named(tail.choose([batch(6, 10), batch(7, 12)], 2)) == [7, 3]
    assert tail.passing == 1
    assert named(tail.choose([], 8)) == [4, 6]
    assert tail.passing == 0
    assert not tail


def test_the_tail_gets_a_quarter_however_much_is_due() -> None:
    tail = DueTail()
    tail.choose([batch(n, 10) for n in range(50)], 8)
    for turn in range(20):
        chosen = tail.choose([batch(100 + turn * 8 + n, 20 + turn) for n in range(8)], 8)
        assert len(chosen) == 10
        assert sum(one.due_ms == 10 for one in chosen) == 2


def test_an_empty_tail_keeps_no_time_of_the_one_before() -> None:
    tail = DueTail()
    tail.choose([batch(0, 1_000_000), batch(1, 1_000_000)], 1)
    assert named(tail.choose([], 1)) == [1]
    tail.choose([batch(2, 10), batch(3, 10)], 1)  # the clock was set back
    assert named(tail.choose([batch(4, 11)], 1)) == [4]


def test_what_was_acknowledged_or_is_gone_meanwhile_is_left_out() -> None:
    tail = DueTail()
    rest = [batch(n, 10) for n in range(4)]
    tail.choose(rest, 1)
    rest[1].waiting = 0
    assert named(tail.choose([], 8)) == [2, 3]


def test_what_joins_the_tail_at_one_moment_goes_as_it_was_popped() -> None:
    """Due in one moment they came queue by queue, and a slice read pieces of all of the log."""
    tail = DueTail()
    due = [batch(n, 10) for n in (0, 3, 6, 1, 4, 7)] + [batch(n, 11) for n in (2, 5)]
    assert named(tail.choose(due, 2)) == [0, 3]
    assert named(tail.choose([batch(9, 11), batch(8, 11)], 3)) == [1, 2, 4]
    assert named(tail.choose([], 9)) == [5, 6, 7, 8, 9]


def test_every_batch_comes_once_and_those_of_one_moment_in_order() -> None:
    for seed in range(50):
        dice = random.Random(seed)
        tail, came, number, made = DueTail(), [], 0, 0
        for due_ms in range(1, 60):
            due = [batch(number + n, due_ms, dice.randint(1, 32)) for n in range(dice.choice((0, 0, 1, 3, 40)))]
            number += len(due)
            made += len(due)
            came += tail.choose(due, 64)
        while tail:
            came += tail.choose([], 64)
        assert sorted(named(came)) == list(range(made))
        for due_ms in range(1, 60):
            numbers = [one.number for one in came if one.due_ms == due_ms]
            assert numbers == sorted(numbers)
