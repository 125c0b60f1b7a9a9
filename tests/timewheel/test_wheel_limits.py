"""The wheel at its limits: extreme times, worn-out numbers, huge slots, many cancels, long empty times."""

from __future__ import annotations

import gc
import random
from array import array

import pytest

from timewheel import TimingWheel
from timewheel.check import problems_of
from timewheel.levels import level_of, slot_of

NOW_MS = 1_700_000_000_000
END_OF_9999_MS = 253_402_300_799_999


def drain(wheel: TimingWheel, now_ms: int, limit: int = 100) -> list[int]:
    items: list[int] = []
    while True:
        dues, batch = wheel.advance(now_ms, limit)
        assert all(due_ms <= now_ms for due_ms in dues)
        if not batch:
            return items
        items += batch


def places(wheel: TimingWheel) -> int:
    """Count the timers that are held, cancelled ones included."""
    leaves = [*wheel._leaves.values(), *wheel._others.values()]
    return sum(len(leaf.items) for leaf in leaves) + len(wheel._late)


@pytest.mark.parametrize("due_ms", [NOW_MS, NOW_MS + 1, END_OF_9999_MS, 2**63 - 1])
def test_any_horizon(due_ms: int) -> None:
    wheel = TimingWheel(NOW_MS)
    wheel.insert(due_ms, 2**128 - 1)
    assert wheel.advance(due_ms - 1, 10) == ([], [])
    assert wheel.advance(due_ms, 10) == ([due_ms], [2**128 - 1])
    assert wheel.next_wake_ms() is None


def test_times_before_1970_are_in_the_past() -> None:
    for dues in ([-1], [-5, -1], [-5, 3]):
        wheel = TimingWheel(0)
        wheel.insert_many(dues, dues)
        assert drain(wheel, 3) == dues


def test_what_does_not_fit_is_refused_and_leaves_nothing_behind() -> None:
    wheel = TimingWheel(NOW_MS)
    for due_ms in (2**63, -(2**63) - 1, 2**70):
        with pytest.raises(OverflowError):
            wheel.insert(due_ms, 1)
        with pytest.raises(OverflowError):
            wheel.insert_many([NOW_MS, due_ms], [1, 2])
    with pytest.raises(TypeError):
        wheel.insert("soon", 1)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="1 due times for 2 items"):
        wheel.insert_many([NOW_MS], [1, 2])
    with pytest.raises(ValueError, match="slot_bits=0"):
        TimingWheel(NOW_MS, slot_bits=0)
    assert len(wheel) == 0
    assert problems_of(wheel) == []


def test_handles_that_never_were_are_refused() -> None:
    wheel = TimingWheel(NOW_MS)
    handle = wheel.insert(NOW_MS + 5, 1)
    for bad in (0, -1, handle + 1, handle + (1 << 32), handle ^ (1 << 31), 2**64, 2**80 + handle):
        assert not wheel.cancel(bad)
        assert wheel.move(bad, NOW_MS) == 0
    assert wheel.cancel(handle)


def test_a_worn_out_leaf_gives_way_to_a_new_one() -> None:
    wheel = TimingWheel(NOW_MS, slot_limit=40)
    first = wheel.insert(NOW_MS + 1, 1)
    leaf = wheel._leaves[first >> 32]
    leaf.kept = array("I", [0])
    leaf.base += 2**31  # as if so many timers had been cancelled and cleared away
    wheel._set_aside(leaf)
    handles = [first]
    for _ in range(10):
        more = wheel.insert_many([NOW_MS + 1] * 64, range(64))
        assert all(map(wheel.cancel, more[1:]))
        handles += more
        assert problems_of(wheel) == []
    assert len(set(handles)) == len(handles)
    assert all(handle & 0xFFFF_FFFF < 2**31 + 100 for handle in handles)
    assert len(wheel) == 11
    assert drain(wheel, NOW_MS + 1) == [1] + [0] * 10


def test_a_hot_millisecond_is_drained_in_order_in_bounded_batches() -> None:
    wheel = TimingWheel(NOW_MS)
    wheel.insert_many([NOW_MS + 90_000] * 20_000, range(20_000))
    fired: list[int] = []
    while wheel:
        _, items = wheel.advance(NOW_MS + 90_000, 256)
        assert 0 < len(items) <= 256
        fired += items
    assert fired == list(range(20_000))


def test_a_week_without_timers_is_a_few_steps() -> None:
    wheel = TimingWheel(NOW_MS)
    due_ms = NOW_MS + 7 * 86_400_000
    wheel.insert(due_ms, 1)
    wakes = 0
    while (wake_ms := wheel.next_wake_ms()) != due_ms:
        assert wake_ms is not None and NOW_MS < wake_ms < due_ms
        assert wheel.advance(wake_ms, 10) == ([], [])
        wakes += 1
    assert wakes < 8
    assert wheel.advance(due_ms, 10) == ([due_ms], [1])


def test_cancelled_timers_are_cleared_away_long_before_they_are_due() -> None:
    wheel = TimingWheel(NOW_MS)
    chance = random.Random(7)
    kept = [wheel.insert(NOW_MS + chance.randrange(10**9), 1) for _ in range(1000)]
    far = [NOW_MS + 10**9, NOW_MS + 10**13, 2**62]
    for turn in range(60):
        handles = wheel.insert_many([NOW_MS + chance.randrange(10**9) for _ in range(997)] + far, [2] * 1000)
        chance.shuffle(handles)
        assert all(map(wheel.cancel, handles))
        if turn % 20 == 0:
            assert problems_of(wheel) == []
    assert len(wheel) == len(kept)
    assert places(wheel) < 20_000  # of 61,000 that were inserted
    assert problems_of(wheel) == []


def test_handles_stay_good_while_their_timers_are_dealt_out_cleared_and_drained() -> None:
    wheel = TimingWheel(NOW_MS, slot_limit=64)
    dues = [NOW_MS + 5_000 + index * 37 % 4_096 for index in range(3_000)]
    handles = [wheel.insert(due_ms, index) for index, due_ms in enumerate(dues)]
    assert sum(leaf.dealt for leaf in wheel._others.values()) > 1
    expected = sorted(range(3_000), key=dues.__getitem__)
    cancelled = {index for index in range(3_000) if index % 11}
    assert all(wheel.cancel(handles[index]) for index in sorted(cancelled, key=str))
    assert problems_of(wheel) == []
    assert not any(wheel.cancel(handles[index]) for index in cancelled)
    fired: list[int] = []
    left = [index for index in expected if index not in cancelled]
    while wheel:
        fired += wheel.advance(NOW_MS + 10_000, 1)[1]
        assert not wheel.cancel(handles[fired[-1]])
        if len(left) > len(fired) and len(fired) % 3 == 0:
            assert wheel.cancel(handles[left.pop(len(fired))])
        assert problems_of(wheel) == []
    assert fired == left
    assert not any(map(wheel.cancel, handles))


def test_an_error_in_the_middle_files_none() -> None:
    wheel = TimingWheel(NOW_MS)
    for bad, error in ((2**63, OverflowError), (-(2**63) - 1, OverflowError), ("soon", TypeError), (1.5, TypeError)):
        dues = [NOW_MS + 7, NOW_MS - 3, NOW_MS + 10**6, bad, NOW_MS]
        for order in (dues, [NOW_MS - 1, NOW_MS, bad]):
            with pytest.raises(error):
                wheel.insert_many(order, range(len(order)))  # type: ignore[arg-type]
            assert len(wheel) == 0
            assert problems_of(wheel) == []
    assert drain(wheel, NOW_MS + 10**7) == []


@pytest.mark.parametrize("span_ms", [50, 4_000, 10**6, 10**9, 10**12])
def test_inserting_finds_its_level_at_any_density(span_ms: int) -> None:
    chance = random.Random(span_ms)
    wheel = TimingWheel(NOW_MS)
    dues = [NOW_MS + chance.randrange(span_ms) for _ in range(12_000)]
    for index, due_ms in enumerate(dues):
        wheel.insert(due_ms, index)
    assert problems_of(wheel) == []
    assert drain(wheel, NOW_MS + span_ms) == sorted(range(12_000), key=dues.__getitem__)
    assert problems_of(wheel) == []
    assert not wheel._near


def test_late_timers_that_are_cancelled_are_cleared_away_too() -> None:
    wheel = TimingWheel(NOW_MS)
    wheel.insert(NOW_MS + 1000, 1)
    for _ in range(30):
        for handle in wheel.insert_many([NOW_MS - 500] * 1000, [2] * 1000):
            wheel.cancel(handle)
    assert places(wheel) < 20_000
    assert problems_of(wheel) == []
    assert drain(wheel, NOW_MS + 1000) == [1]


def test_a_moved_timer_goes_behind_its_equals() -> None:
    wheel = TimingWheel(NOW_MS)
    first = wheel.insert(NOW_MS + 9, 1)
    wheel.insert(NOW_MS + 9, 2)
    wheel.move(first, NOW_MS + 9)
    assert drain(wheel, NOW_MS + 9) == [2, 1]


def test_a_clock_that_went_back_over_an_empty_wheel_sets_it_back() -> None:
    wheel = TimingWheel(NOW_MS)
    wheel.insert(NOW_MS + 10**10, 1)
    assert drain(wheel, NOW_MS + 10**10) == [1]
    assert drain(wheel, NOW_MS) == []
    assert wheel.now_ms == NOW_MS
    wheel.insert(NOW_MS + 5, 2)
    assert drain(wheel, NOW_MS + 4) == []
    assert drain(wheel, NOW_MS + 5) == [2]


@pytest.mark.parametrize("slot_bits", [1, 2, 6, 8])
def test_many_random_timers_at_every_size(slot_bits: int) -> None:
    chance = random.Random(slot_bits)
    wheel = TimingWheel(NOW_MS, slot_bits, levels=4, slot_limit=32)
    dues = [NOW_MS + int(2 ** (chance.random() * 24)) for _ in range(5_000)]
    handles = wheel.insert_many(dues, range(5_000))
    cancelled = set(chance.sample(range(5_000), 1_000))
    assert all(wheel.cancel(handles[index]) for index in cancelled)
    assert problems_of(wheel) == []
    expected = [index for index in sorted(range(5_000), key=dues.__getitem__) if index not in cancelled]
    assert drain(wheel, NOW_MS + 2**25) == expected
    assert problems_of(wheel) == []


def test_the_worked_example() -> None:
    wheel = TimingWheel(1000, slot_bits=6)
    wheel.insert_many([1010, 5000, 31_536_001_000], [1, 2, 3])
    assert [level_of(due_ms, 1000, 6, 7) for due_ms in (1010, 5000, 31_536_001_000)] == [0, 2, 5]
    assert [slot_of(1010, 0, 6), slot_of(5000, 2, 6), slot_of(31_536_001_000, 5, 6)] == [50, 1, 29]
    wakes = []
    for _ in range(3):
        wakes.append(wheel.next_wake_ms())
        wheel.advance(wakes[-1] or 0, 10)
    assert wakes == [1010, 4096, 5000]


@pytest.mark.parametrize("span_ms", [1, 1_000, 100_000])
def test_what_is_drained_leaves_no_garbage_for_the_collector(span_ms: int) -> None:
    rng = random.Random(span_ms)
    wheel = TimingWheel(NOW_MS)
    gc.collect()
    gc.disable()
    try:
        for start in range(NOW_MS, NOW_MS + 5 * span_ms, span_ms):
            wheel.insert_many([start + rng.randrange(span_ms) for _ in range(3_000)], list(range(3_000)))
            drain(wheel, start + span_ms)
        assert not wheel
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        assert [found for found in gc.garbage if type(found).__module__.startswith("timewheel.")] == []
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
