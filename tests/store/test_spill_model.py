"""The spill store against the model of `spill_world`: any operations, any faults, a crash at any disk operation."""

from __future__ import annotations

import random

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from store.disk.errors import StoreError, StoreFullError, SyncFailedError
from store.spill.journal import replay
from store.spill.journal.journal import Journal
from store.spill.journal.segment import JournalSegment
from store.spill.rows import merge
from store.spill.runs import index_writer, run_writer
from store.spill.runs.run import Run
from store.spill.state import spill_state as state
from store.spill.upkeep import housekeeping, opening, relocate
from tests.store.spill_world import SpillWorld
from tests.support.examples import TIMES, examples, seeds
from tests.support.simdisk import PowerCut

STEPS = 120


class SpillMachine(RuleBasedStateMachine):
    """Shrinkable histories: Hypothesis picks the operations, a seed what they do."""

    @initialize(seed=st.integers(0, 1 << 20))
    def begin(self, seed: int) -> None:
        self.world = SpillWorld(seed)

    @rule(count=st.integers(1, 5), far=st.booleans())
    def accept(self, count: int, far: bool) -> None:
        self.world.attempt(lambda: self.world.accept(count, far=far))

    @rule()
    def publish(self) -> None:
        self.world.publish()

    @rule()
    def arm(self) -> None:
        self.world.arm()

    @rule()
    def deliver(self) -> None:
        self.world.deliver()

    @rule()
    def cancel(self) -> None:
        self.world.attempt(self.world.cancel)

    @rule()
    def move(self) -> None:
        self.world.attempt(self.world.move)

    @rule()
    def sync(self) -> None:
        self.world.attempt(self.world.sync)

    @rule()
    def checkpoint(self) -> None:
        self.world.attempt(self.world.take_checkpoint)

    @rule(slices=st.sampled_from((1, 4, 30, 200)))
    def spill(self, slices: int) -> None:
        self.world.attempt(lambda: self.world.spill(slices))

    @rule(step_ms=st.sampled_from((10, 500, 4_000, 30_000, 100_000, -2_000)))
    def pass_time(self, step_ms: int) -> None:
        self.world.pass_time(step_ms)

    @rule(number=st.sampled_from((1, 2, 3, 5, 8, 13, 30)))
    def power_cut_at(self, number: int) -> None:
        self.world.fault_at(number, None)

    @rule(number=st.sampled_from((1, 2, 3, 8)))
    def disk_full_at(self, number: int) -> None:
        self.world.fault_at(number, StoreFullError("no space left on device"))

    @rule(number=st.sampled_from((1, 2, 3)), span=st.integers(2, 6))
    def several_fail_from(self, number: int, span: int) -> None:
        self.world.fault_at(number, StoreError("input/output error"), span=span)

    @rule(number=st.sampled_from((1, 2, 3)))
    def sync_fails_at(self, number: int) -> None:
        self.world.fault_at(number, SyncFailedError("input/output error"))

    @rule(power=st.booleans())
    def crash(self, power: bool) -> None:
        self.world.disk.fault = None
        self.world.reopen(power)

    @rule()
    def restart(self) -> None:
        self.world.disk.fault = None
        self.world.stop_and_start()

    @invariant()
    def agrees(self) -> None:
        if hasattr(self, "world"):
            fault, self.world.disk.fault = self.world.disk.fault, None
            self.world.verify(deep=False)
            self.world.disk.fault = fault

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.disk.fault = None
            self.world.verify()


TestSpillMachine = SpillMachine.TestCase
TestSpillMachine.settings = settings(
    max_examples=examples(60), stateful_step_count=60, deadline=None, suppress_health_check=list(HealthCheck)
)


def play(world: SpillWorld, rng: random.Random, faults: bool) -> None:
    """One step of a random history, with much background work."""
    operations = (
        (5, lambda: world.accept(rng.randint(1, 4), far=rng.random() < 0.6)),
        (5, world.publish),
        (3, world.arm),
        (4, world.deliver),
        (2, world.cancel),
        (2, world.move),
        (2, world.sync),
        (2, world.take_checkpoint),
        (8, lambda: world.spill(rng.choice((1, 3, 20, 100)))),
        (2, lambda: world.pass_time(rng.choice((10, 500, 4_000, 30_000)))),
        (0.3, lambda: world.pass_time(-2_000)),
        (0.2, lambda: world.pass_time(100_000)),
    )
    if faults and world.disk.fault is None and rng.random() < 0.25:
        number = rng.choice((1, 2, 3, 5, 8, 13, 30))
        error = rng.choice((None, None, StoreFullError("no space left"), SyncFailedError("input/output error")))
        world.fault_at(number, error, span=rng.choice((1, 1, 2, 3, 5)))
    chosen = rng.choices(operations, [weight for weight, _ in operations])[0][1]
    if not world.attempt(chosen) and rng.random() < 0.3:
        world.disk.fault = None
        world.reopen(power=rng.random() < 0.3)  # before anything else: what was refused must not be there
    if rng.random() < 0.03:
        world.disk.fault = None
        rng.choice((world.stop_and_start, lambda: world.reopen(power=True), lambda: world.reopen(power=False)))()


@pytest.fixture
def tiny_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every inner portion so small that crashes fall between any two of them."""
    for module, name, value in (
        (relocate, "SLICE_RECORDS", 2),
        (relocate, "CATCH_UP_AT_ONCE", 0),
        (relocate, "GHOST_MARGIN_MS", 2_000),
        (relocate, "SWITCH_MARGIN_MS", 500),
        (relocate, "GHOSTS_AT_ONCE", 2),
        (index_writer, "SLICE_PAGES", 1),
        (run_writer, "SORT_ROWS", 6),
        (run_writer, "WRITE_BYTES", 60),
        (run_writer, "SYNC_BYTES", 120),
        (merge, "BATCH_RECORDS", 3),
        (merge, "ROUND_RECORDS", 8),
        (merge, "QUOTA_MIN", 2),
        (housekeeping, "TAIL_MAX", 3),
        (state, "PRUNE_AT_ONCE", 2),
        (state, "FEW", 2),
    ):
        monkeypatch.setattr(module, name, value)


@pytest.mark.parametrize("faults", [False, True])
@pytest.mark.parametrize("seed", seeds(10))
def test_long_histories(seed: int, faults: bool) -> None:
    live_through(seed, faults)


@pytest.mark.usefixtures("tiny_slices")
@pytest.mark.parametrize("seed", seeds(20, 100))
def test_long_histories_in_tiny_slices(seed: int) -> None:
    live_through(seed, True)


def live_through(seed: int, faults: bool) -> None:
    """A random history with a comparison now and then."""
    world, rng = SpillWorld(seed), random.Random(seed)
    with world.lived():
        for step in range(STEPS):
            play(world, rng, faults)
            if step % 20 == 19:
                fault, world.disk.fault = world.disk.fault, None
                world.verify()
                world.disk.fault = fault


def history(world: SpillWorld) -> None:
    """A fixed history that passes through a spill, a forced spill, a merge, punching and removal."""
    for _ in range(14):
        world.accept(3, far=True)
        world.publish_all()
        world.cancel()
        world.move()
        world.publish_all()
        world.arm()
        world.deliver()
        world.spill(12)
        world.pass_time(1_500)
        world.take_checkpoint()
    world.pass_time(60_000)
    for _ in range(8):
        world.arm()
        world.deliver()
        world.spill(60)
        world.take_checkpoint()


def test_power_cut_at_every_disk_operation() -> None:
    counted = SpillWorld(3)
    before = counted.disk.counts["all"]
    history(counted)
    total = counted.disk.counts["all"] - before
    assert total > 300
    for number in range(1, total + 1, max(1, round(5 / TIMES))):
        world = SpillWorld(3)
        world.fault_at(number, None)
        try:
            history(world)
        except PowerCut:
            world.reopen(power=True)
            world.verify()
            continue
        raise AssertionError(f"operation {number} of {total} was never reached")


@pytest.mark.parametrize(
    "planted",
    [
        "forget kills",
        "forget carried bits",
        "index what is done",
        "drop what is not durably done",
        # A native journal calls its own method directly, so the one planted in its place would never run.
        pytest.param("leave what a failed write has left", marks=pytest.mark.pure),
    ],
)
def test_planted_bugs_are_caught(planted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The model is worth something only if it notices."""
    if planted == "forget kills":
        monkeypatch.setattr(replay, "MOVE", 77)
    elif planted == "forget carried bits":
        monkeypatch.setattr(opening, "_carry_over", lambda *_: None)
    elif planted == "index what is done":
        monkeypatch.setattr(relocate._Copy, "done_from_the_first", lambda *_: None)
    elif planted == "leave what a failed write has left":
        monkeypatch.setattr(Journal, "_clear_after", lambda *_: None)
    else:
        for kind in (Run, JournalSegment):
            honest = kind.twin

            def careless(self: Run | JournalSegment, *args: object, honest: object = honest) -> object:
                self.saved = self.done.encode()
                return honest(self, *args)  # type: ignore[operator]

            monkeypatch.setattr(kind, "twin", careless)
    with pytest.raises(AssertionError):
        for seed in range(300):
            world, rng = SpillWorld(seed), random.Random(seed)
            with world.lived():
                for _ in range(STEPS):
                    play(world, rng, faults=True)
