"""Message store, spill store and plug-in together, on a disk that breaks: once, never early, never lost.

The same world twice: driven by Hypothesis (which shrinks what it finds), and by seeds (which go on longer).
"""

from __future__ import annotations

import random

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from store.disk.errors import SyncFailedError
from tests.support.delay_world import DelayWorld
from tests.support.examples import examples

delays = st.one_of(st.integers(1, 12), st.sampled_from([5, 40, 900, 1001, 3000, 10_000, 60_000]))


class DelayWorldMachine(RuleBasedStateMachine):
    flush_sync = False

    def __init__(self) -> None:
        super().__init__()
        self.world = DelayWorld(1, flush_sync=self.flush_sync)

    @rule(delay_ms=st.lists(delays, min_size=1, max_size=8), topic=st.sampled_from("TTU"))
    def send(self, delay_ms: list[int], topic: str) -> None:
        self.world.send([self.world.clock.now_ms + delay for delay in delay_ms], topic)

    @rule(delay_ms=st.sampled_from([5, 900, 20_000]), count=st.integers(5, 20))
    def send_crowd(self, delay_ms: int, count: int) -> None:
        self.world.send([self.world.clock.now_ms + delay_ms] * count, "T")

    @rule(part=st.sampled_from(DelayWorld.PARTS))
    def step(self, part: str) -> None:
        with self.world.machine():
            self.world.step(part)

    @rule(ms=st.sampled_from([0, 1, 7, 50, 600, 1500, 4000]))
    def run_for(self, ms: int) -> None:
        self.world.run(ms)
        self.world.verify()

    @rule(ms=st.sampled_from([-4000, -30, -1, 10, 1500]))
    def set_clock(self, ms: int) -> None:
        self.world.clock.now_ms += ms

    @rule()
    def restart(self) -> None:
        self.world.stop_and_start()
        self.world.verify()

    @rule()
    def kill(self) -> None:
        self.world.kill()
        self.world.verify()

    @rule()
    def power_cut(self) -> None:
        self.world.power_cut()
        self.world.verify()

    @rule(operation_no=st.integers(1, 25))
    def power_will_fail(self, operation_no: int) -> None:
        self.world.fail_power_at(operation_no)

    @rule(operation_no=st.integers(1, 6))
    def sync_will_fail(self, operation_no: int) -> None:
        self.world.disk.fail_at("sync", {operation_no}, SyncFailedError("cannot sync: a broken disk"), "timewheel")

    @rule(operation_no=st.integers(1, 6))
    def disk_will_be_full(self, operation_no: int) -> None:
        self.world.disk.fail_at("pwrite", {operation_no, operation_no + 1}, self.world.disk.full())

    @rule(topic=st.sampled_from("TU"))
    def topic_comes_or_goes(self, topic: str) -> None:
        self.world.missing ^= {topic}
        self.world.plugin.topics_changed()

    @precondition(lambda self: self.world.fates)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        self.world.cancel(data.draw(st.sampled_from(sorted(self.world.fates))))

    @precondition(lambda self: self.world.fates)
    @rule(data=st.data(), delay_ms=st.one_of(delays, st.just(0)))
    def move(self, data: st.DataObject, delay_ms: int) -> None:
        offset = data.draw(st.sampled_from(sorted(self.world.fates)))
        self.world.move(offset, self.world.clock.now_ms + delay_ms)

    def teardown(self) -> None:
        self.world.finish()


class SyncWorldMachine(DelayWorldMachine):
    flush_sync = True


some = settings(
    max_examples=examples(40),
    stateful_step_count=30,
    deadline=None,
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
)
DelayWorldMachine.TestCase.settings = some
SyncWorldMachine.TestCase.settings = some
TestAsyncFlush = DelayWorldMachine.TestCase
TestSyncFlush = SyncWorldMachine.TestCase


@pytest.mark.parametrize("seed", range(6))
def test_a_long_and_bad_day(seed: int) -> None:
    chance = random.Random(seed)
    world = DelayWorld(seed, flush_sync=bool(seed % 2))
    for _ in range(60):
        what = chance.random()
        now = world.clock.now_ms
        if what < 0.45:
            spread = chance.choice([1, 3, 2000, 20_000])
            count = chance.randrange(1, 20)
            world.send([now + 1 + chance.randrange(spread) for _ in range(count)], chance.choice("TTU"))
        elif what < 0.75:
            world.run(chance.choice([1, 20, 700, 3000]))
        elif what < 0.80 and world.fates:
            world.cancel(chance.choice(list(world.fates)))
        elif what < 0.85 and world.fates:
            world.move(chance.choice(list(world.fates)), now + chance.choice([0, 10, 5000]))
        elif what < 0.90:
            world.fail_power_at(chance.randrange(1, 60))
        elif what < 0.93:
            world.power_cut()
        elif what < 0.95:
            world.kill()
        elif what < 0.97:
            world.stop_and_start()
        else:
            world.missing ^= {"U"}
            world.plugin.topics_changed()
        world.verify()
    world.finish()
