from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from remoting.allocation import allocate_evenly


def test_the_first_members_get_one_more() -> None:
    assert allocate_evenly("a", ["a", "b"], [0, 1, 2, 3, 4]) == [0, 1, 2]
    assert allocate_evenly("b", ["a", "b"], [0, 1, 2, 3, 4]) == [3, 4]


def test_more_members_than_queues() -> None:
    shares = [allocate_evenly(me, ["a", "b", "c"], [0, 1]) for me in "abc"]
    assert shares == [[0], [1], []]


def test_a_stranger_gets_nothing() -> None:
    assert allocate_evenly("x", ["a", "b"], [0, 1]) == []


@given(st.integers(1, 9), st.integers(0, 30))
def test_every_queue_has_one_reader_and_shares_are_even(members: int, queues: int) -> None:
    names = [f"m{number}" for number in range(members)]
    shares = [allocate_evenly(name, names, range(queues)) for name in names]
    assert [queue for share in shares for queue in share] == list(range(queues))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1
