"""The supervisor's state machine: fake processes, and time as an argument."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from broker.shards.keeper import BACK_OFF_MAX_MS, GOOD_MS, ShardKeeper, ShardState


class FakeProcess:
    """Ends when a test says so."""

    def __init__(self) -> None:
        self.status: int | None = None
        self.told = 0

    def poll(self) -> int | None:
        return self.status

    def terminate(self) -> None:
        self.told += 1


class World:
    """A keeper, and the processes that it has started."""

    def __init__(self, count: int = 2) -> None:
        self.started: list[tuple[int, FakeProcess]] = []
        self.deaths: list[tuple[int, int]] = []
        self.refuse = False
        self.keeper = ShardKeeper(range(count), self.launch, lambda index, status: self.deaths.append((index, status)))

    def launch(self, index: int) -> FakeProcess:
        if self.refuse:
            raise OSError("no more processes")
        process = FakeProcess()
        self.started.append((index, process))
        return process

    def newest(self, index: int) -> FakeProcess:
        return [process for known, process in self.started if known == index][-1]

    def starts(self, index: int) -> int:
        return sum(known == index for known, _ in self.started)

    def serve(self, now_ms: int) -> None:
        self.keeper.step(now_ms)
        for index in self.keeper.in_state(ShardState.STARTING):
            self.keeper.ready(index, now_ms)


def test_all_are_started_at_once() -> None:
    world = World(3)
    world.keeper.step(0)
    assert [index for index, _ in world.started] == [0, 1, 2]
    assert world.keeper.in_state(ShardState.STARTING) == [0, 1, 2]
    world.keeper.ready(1, 5)
    assert world.keeper.in_state(ShardState.SERVING) == [1]


def test_one_that_dies_is_started_again_and_the_others_go_on() -> None:
    world = World()
    world.serve(0)
    world.newest(1).status = -9
    world.keeper.step(100)
    assert world.deaths == [(1, -9)]
    assert (world.starts(0), world.starts(1)) == (1, 2)
    assert world.keeper.state(0) is ShardState.SERVING
    assert world.keeper.restart_count == 1


def test_pauses_double_up_to_the_longest() -> None:
    world = World(1)
    world.keeper.step(0)
    now, pauses = 0, []
    for _ in range(9):
        world.newest(0).status = 1
        before = world.starts(0)
        died = now
        while world.starts(0) == before:
            world.keeper.step(now)
            now += 500
        pauses.append(now - 500 - died)
    assert pauses == [0, 1_000, 2_000, 4_000, 8_000, 16_000, *[BACK_OFF_MAX_MS] * 3]


def test_a_shard_that_was_healthy_is_started_at_once_again() -> None:
    world = World(1)
    now = 0
    for _ in range(3):
        world.serve(now)
        world.newest(0).status = 1
        world.keeper.step(now)
        now += 60_000
    world.serve(now)
    now += GOOD_MS
    world.newest(0).status = 1
    before = world.starts(0)
    world.keeper.step(now)
    assert world.starts(0) == before + 1


def test_a_process_that_cannot_be_made_is_tried_again() -> None:
    world = World(1)
    world.refuse = True
    world.keeper.step(0)
    assert world.keeper.state(0) is ShardState.DOWN
    world.refuse = False
    world.keeper.step(0)
    assert world.keeper.state(0) is ShardState.STARTING


def test_the_end_is_told_to_all_at_the_same_time_and_nobody_comes_back() -> None:
    world = World()
    world.serve(0)
    world.newest(0).status = -9
    world.keeper.step(1)
    world.newest(0).status = 1
    world.keeper.step(2)  # down, waiting for its next start
    world.keeper.end_all()
    assert world.newest(1).told == 1
    assert not world.keeper.ended
    world.newest(1).status = 0
    world.keeper.step(10**9)
    assert world.keeper.ended
    assert (world.starts(0), world.starts(1)) == (2, 1)


def test_how_long_a_shard_is_down_counts_from_its_death() -> None:
    world = World(1)
    world.serve(0)
    assert world.keeper.down_ms(0, 500) == 0
    world.newest(0).status = 1
    world.keeper.step(1_000)
    world.keeper.step(4_000)
    world.newest(0).status = 1
    world.keeper.step(5_000)
    assert world.keeper.down_ms(0, 7_000) == 6_000


@given(st.lists(st.tuples(st.sampled_from(["die", "ready", "wait"]), st.integers(0, 2), st.integers(0, 90_000))))
def test_no_shard_ever_has_two_processes_and_each_comes_back(story: list[tuple[str, int, int]]) -> None:
    world = World(3)
    now = 0
    for what, index, ms in story:
        now += ms
        world.keeper.step(now)
        if what == "die" and world.keeper.state(index) in (ShardState.STARTING, ShardState.SERVING):
            world.newest(index).status = 1
        if what == "ready":
            world.keeper.ready(index, now)
        for shard in range(3):
            assert sum(process.status is None for known, process in world.started if known == shard) <= 1
    world.keeper.step(now)
    world.keeper.step(now + BACK_OFF_MAX_MS)
    assert not world.keeper.in_state(ShardState.DOWN)
