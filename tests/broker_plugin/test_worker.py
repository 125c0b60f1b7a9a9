"""The thin shell: alarms, steps of the clock, threads that go on after errors and end at once."""

from __future__ import annotations

import threading

import pytest

from broker_plugin.delivery import BLOCK_MIN
from broker_plugin.threads.clock import Alarm, Clock, StepWatch
from broker_plugin.threads.pace import BATCH_MAX, BATCH_MIN, BUSY_YIELD_S, LONG_SLICE_NS, YIELD_S, Pace
from broker_plugin.threads.worker import Worker
from store.disk.errors import StoreClosedError


def test_a_ring_is_kept_until_somebody_waits() -> None:
    alarm = Alarm()
    assert not alarm.wait(0)
    alarm.ring()
    alarm.ring()
    assert alarm.wait(10)
    assert not alarm.wait(0.001)


def test_a_ring_ends_a_wait() -> None:
    alarm = Alarm()
    rung: list[bool] = []
    thread = threading.Thread(target=lambda: rung.append(alarm.wait(30)))
    thread.start()
    alarm.ring()
    thread.join(10)
    assert rung == [True]


def test_the_clocks_agree_with_each_other() -> None:
    clock = Clock()
    now = clock.now_ms()
    assert now > 1_600_000_000_000
    assert 0.9 < clock.seconds_until(now + 1000) <= 1.001
    assert clock.seconds_until(now - 5) < 0
    assert clock.monotonic_ns() <= clock.monotonic_ns()
    begin = clock.worked_ns()
    assert not Alarm().wait(0.03)
    assert clock.worked_ns() - begin < 25_000_000  # it waited, and that is no work
    moved = Clock(lambda: 5000)
    assert moved.now_ms() == 5000
    assert moved.seconds_until(5250) == 0.25
    assert moved.monotonic_ns() == moved.worked_ns() == 5_000_000_000


def test_steps_of_the_wall_clock_are_told_from_time_that_passes() -> None:
    watch = StepWatch()
    ms = 1_000_000
    assert watch.look(10_000, 0) == 0
    assert watch.look(10_250, 250 * ms) == 0
    assert watch.look(10_549, 500 * ms) == 0  # 49 ms: no step yet
    assert watch.look(3_610_799, 750 * ms) == 3_600_000
    assert watch.look(3_611_049, 1000 * ms) == 0
    assert watch.look(3_610_000, 1250 * ms) == -1299
    assert (watch.forward_count, watch.backward_count, watch.last_step_ms) == (1, 1, -1299)


def test_recovery_works_in_longer_slices() -> None:
    short, long = Pace(), Pace(slice_ns=LONG_SLICE_NS)
    for pace in (short, long):
        pace.paused(900_000)
        for _ in range(99):
            pace.worked(256, 256, 256 * 5_000)
    assert short.batch == BATCH_MIN and long.batch == pytest.approx(400, abs=1)


def test_who_is_behind_always_takes_enough_for_a_block() -> None:
    assert BATCH_MIN >= BLOCK_MIN


def test_batches_shrink_while_somebody_wants_the_interpreter() -> None:
    pace = Pace()
    assert pace.batch == BATCH_MAX
    assert pace.pause_s == YIELD_S
    pace.paused(500_000)
    assert pace.busy
    assert pace.pause_s == BUSY_YIELD_S
    for _ in range(50):
        pace.worked(BATCH_MAX, BATCH_MAX, BATCH_MAX * 1_250)
    assert 390 <= pace.batch <= 410  # half a millisecond at 1.25 µs each
    for _ in range(50):
        pace.worked(BATCH_MAX, BATCH_MAX, BATCH_MAX * 500_000)
    assert pace.batch == BATCH_MIN
    pace.paused(350_000)
    assert not pace.busy
    assert pace.batch == BATCH_MAX


def test_a_batch_asks_for_as_many_as_fitted_the_last_time() -> None:
    pace = Pace()
    pace.worked(512, 3, 1000)
    assert pace.batch == 4
    pace.worked(4, 4, 1000)
    assert pace.batch == 8
    for _ in range(10):
        pace.worked(8, 8, 0)
    assert pace.batch == BATCH_MAX
    pace.worked(BATCH_MAX, BATCH_MAX - 1, 0)
    assert pace.batch == BATCH_MAX, "an eighth more than fitted is more than is allowed"


def worker(step: object, warnings: list[str]) -> Worker:
    return Worker("test", step, Clock(), Pace(), warnings.append)  # type: ignore[arg-type]


def test_a_thread_is_called_again_when_it_is_rung_and_ends_when_it_is_told() -> None:
    calls: list[int] = []
    called = threading.Semaphore(0)

    def step(now_ms: int) -> int:
        calls.append(now_ms)
        called.release()
        return now_ms + 3_600_000

    shell = worker(step, [])
    shell.start()
    shell.start()  # once is enough
    assert called.acquire(timeout=10)
    shell.ring()
    assert called.acquire(timeout=10)
    shell.stop()
    shell.stop()
    assert len(calls) >= 2
    assert threading.active_count() < 50


def test_a_step_that_wants_more_is_called_again_at_once() -> None:
    enough = threading.Event()
    count = 0

    def step(now_ms: int) -> int:
        nonlocal count
        count += 1
        if count == 20:
            enough.set()
        return now_ms if count < 20 else now_ms + 1000

    shell = worker(step, [])
    shell.start()
    assert enough.wait(10)
    shell.stop()


def test_an_error_is_told_and_survived_and_a_closed_store_ends_it() -> None:
    warnings: list[str] = []
    done = threading.Event()
    count = 0

    def step(_now_ms: int) -> int:
        nonlocal count
        count += 1
        if count == 1:
            raise ValueError("a bug")
        done.set()
        raise StoreClosedError("closed")

    shell = worker(step, warnings)
    shell.start()
    assert done.wait(10)
    shell.stop()
    assert warnings == ["test, error 1: ValueError: a bug"]
    assert shell.error_count == 1
