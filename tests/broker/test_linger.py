"""Looking for more before the loop sleeps: how long, and how often when it is in vain."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from broker.net.linger import LINGER_S, SKIP_MAX, Linger

LOOK_S = LINGER_S / 10


class World:
    """Looks take a tenth of the time there is; a request comes at the next ``due_s``."""

    def __init__(self) -> None:
        self.now_s = 1_000.0
        self.due_s = 0.0
        self.looks = 0
        self.linger = Linger(lambda: self.now_s)
        self.linger.served([(7, 1)])
        self.fd = 7

    def look(self) -> list[tuple[int, int]]:
        self.now_s += LOOK_S
        self.looks += 1
        return [(self.fd, 1)] if self.now_s >= self.due_s else []

    def find(self, after_s: float, fd: int = 7) -> list[tuple[int, int]]:
        self.fd = fd
        self.due_s = self.now_s + after_s
        self.looks = 0
        return self.linger.find(self.look)


def test_who_answers_at_once_is_always_found() -> None:
    world = World()
    assert all(world.find(0.25 * LINGER_S) == [(7, 1)] for _ in range(100))
    assert world.looks == 3


def test_only_who_was_served_alone_twice_is_waited_for() -> None:
    linger = Linger(lambda: 0.0)
    turns = [[(1, 1)], [(1, 1)], [(2, 1)], [(1, 1)], [(1, 1), (2, 1)], [(1, 1)], [(1, 1)], [(1, 1)]]
    assert [linger.served(ready) for ready in turns] == [False, True, False, False, False, False, True, True]


def test_to_find_somebody_else_is_in_vain() -> None:
    world = World()
    found = [world.find(0.0, fd=8) for _ in range(100)]
    assert [at for at, ready in enumerate(found) if ready] == [0, 2, 6, 14, 30, 62]


def test_what_is_in_vain_gets_rare_and_begins_anew_with_the_first_that_comes() -> None:
    world = World()
    tried = []
    for _ in range(400):
        assert world.find(1.0) == []
        tried.append(world.looks > 0)
    gaps, gap = [], 0
    for yes in tried:
        if yes:
            gaps.append(gap)
            gap = 0
        else:
            gap += 1
    assert gaps[:9] == [0, 1, 3, 7, 15, 31, 63, 64, 64]
    while not world.find(0.25 * LINGER_S):
        pass
    assert world.find(1.0) == []
    assert world.looks >= 10
    assert world.find(0.0) == []  # one is left out after one in vain
    assert world.looks == 0
    assert world.find(0.0) == [(7, 1)]


@given(st.lists(st.floats(0.0, 3 * LINGER_S), max_size=300))
def test_never_longer_than_it_says_and_never_left_out_for_good(delays_s: list[float]) -> None:
    world = World()
    left_out = 0
    for delay_s in delays_s:
        before_s = world.now_s
        found = world.find(delay_s)
        assert world.now_s - before_s <= LINGER_S + 2 * LOOK_S
        left_out = 0 if world.looks else left_out + 1
        assert left_out <= SKIP_MAX
        assert not found or world.looks
