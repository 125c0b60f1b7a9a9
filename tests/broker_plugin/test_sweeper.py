"""The sweeper in virtual time: punctual, in order, never early, bounded, and woken only when it matters."""

from __future__ import annotations

import random

import pytest

from broker_plugin.hand import CROWD_SHARE
from broker_plugin.rules.ranges import KEY_MAX
from broker_plugin.rules.states import State
from broker_plugin.sweeper import CROWDS_MAX, HAND_MAX, SCAN_MAX
from remoting.messages.message import decode_record
from store.disk.errors import StoreError
from tests.support.delay_rig import START_MS, Rig

NOW = START_MS


def test_every_message_goes_out_in_its_millisecond() -> None:
    rig = Rig()
    chance = random.Random(1)
    dues = [NOW + chance.randrange(1, 5000) for _ in range(300)]
    for number, due in enumerate(dues):
        rig.send(b"%d" % number, at_ms=due)
    rig.run(NOW + 6000)
    assert rig.target.late_ms == [0] * 300
    assert rig.target.bodies == [b"%d" % at for at in sorted(range(300), key=lambda at: dues[at])]
    assert rig.stats.delivered == 300
    assert rig.checkpoint.touched == 300
    assert rig.stats.on_time.count == 300
    assert rig.stats.handed_over == 0


def test_messages_sent_while_it_runs_are_punctual_too() -> None:
    rig = Rig()
    chance = random.Random(2)
    for _ in range(200):
        rig.run(rig.clock.now_ms + chance.randrange(0, 40))
        rig.send(at_ms=rig.clock.now_ms + chance.choice([1, 2, 30, 999, 1000, 1001, 5000]))
        rig.run(rig.clock.now_ms)
    rig.run(rig.clock.now_ms + 6000)
    assert rig.target.late_ms == [0] * 200


def test_far_messages_are_not_armed() -> None:
    rig = Rig()
    for day in range(1, 50):
        rig.send(at_ms=NOW + day * 86_400_000)
    rig.sweep()
    assert rig.sweeper.armed_count == 0
    assert rig.spill.reads == 0
    rig.send(at_ms=NOW + 900)
    rig.sweep()
    assert rig.sweeper.armed_count == 1


def test_it_sleeps_until_the_next_due_millisecond_and_never_longer_than_a_quarter_second() -> None:
    rig = Rig()
    assert rig.sweep() == NOW + 250
    rig.send(at_ms=NOW + 100)
    wakes = []
    while not rig.target.log:
        wakes.append(rig.sweep())
        rig.clock.now_ms = wakes[-1]
    assert len(wakes) <= 3
    assert rig.target.late_ms == [0]


def test_the_loop_wakes_it_only_for_what_is_due_before_its_next_wake() -> None:
    rig = Rig()
    wake = rig.sweep()
    rig.send(at_ms=wake + 1)
    rig.send(at_ms=wake)
    assert rig.rung == 0
    rig.send(at_ms=wake - 1)
    assert rig.rung == 1
    # While it is awake nobody rings: it looks into its inbox before it sleeps.
    rig.sweeper.wake_ms = NOW
    rig.send(at_ms=NOW + 1)
    assert rig.rung == 1


@pytest.mark.pure
def test_a_block_that_comes_while_it_decides_to_sleep_is_not_overslept() -> None:
    rig = Rig()
    inner = rig.sweeper._next_wake

    def late_block(now_ms: int) -> int:
        wake = inner(now_ms)
        rig.sweeper._next_wake = inner  # type: ignore[method-assign]
        rig.send(at_ms=NOW + 3)
        return wake

    rig.sweeper._next_wake = late_block  # type: ignore[method-assign]
    assert rig.sweeper.step(NOW) == NOW
    assert rig.sweeper.step(NOW) <= NOW + 3


def test_it_is_late_by_what_is_due_not_by_what_it_wanted_to_look_at() -> None:
    rig = Rig()
    late_ms = rig.sweeper.late_ms
    assert late_ms(NOW + 10**6) == 0, "before its first step nothing is known"
    rig.send(at_ms=NOW + 10**9)
    assert rig.sweep() <= NOW + 250
    assert late_ms(NOW + 300) < 0, "it was wanted for a look ahead, and nothing is due"
    rig.clock.now_ms = NOW + 300
    rig.send(at_ms=NOW + 310)
    rig.sweep()
    assert [late_ms(NOW + ms) for ms in (309, 310, 317)] == [-1, 0, 7]
    rig.clock.now_ms = NOW + 317
    rig.sweep()
    assert rig.target.late_ms == [7]
    assert late_ms(NOW + 400) < 0, "what was delivered late is delivered"


def test_while_the_store_refuses_everything_it_is_not_late() -> None:
    rig = Rig()
    rig.send(at_ms=NOW + 10)
    rig.sweep()
    rig.target.refuses = True
    for ms in (10, 11):
        rig.clock.now_ms = NOW + ms
        rig.sweeper.step(NOW + ms)
    assert rig.sweeper.late_ms(NOW + 50) <= 0, "it waits on purpose"


def test_many_far_blocks_are_published_without_waiting() -> None:
    rig = Rig()
    rig.sweep()
    for _ in range(300):
        rig.send(at_ms=NOW + 10**9)
    assert rig.rung > 0


def test_equal_due_times_go_in_the_order_of_acceptance() -> None:
    rig = Rig()
    for number in range(40):
        rig.send(b"%d" % number, at_ms=NOW + 2000, commit=number % 3 == 0)
        if number == 20:
            rig.run(NOW + 1500)  # the frontier has passed it: the later ones are armed when they come
    rig.gate.commit_turn()
    rig.run(NOW + 3000)
    assert rig.target.bodies == [b"%d" % number for number in range(40)]


def test_a_hot_second_is_streamed_and_its_tail_handed_over() -> None:
    rig = Rig(armed_max=64, hand_max=16)
    for number in range(2000):
        rig.send(b"%d" % number, at_ms=NOW + 2000, commit=number % 100 == 99)
    rig.send(b"after", at_ms=NOW + 2001)
    rig.run(NOW + 1999)
    assert rig.sweeper.armed_count <= 64 + SCAN_MAX
    rig.clock.now_ms = NOW + 2000
    rig.sweep()
    assert rig.stats.handed_over == 1
    assert len(rig.target.log) == 16 // CROWD_SHARE  # the first of it, then nobody waits for the rest
    rig.clock.now_ms = NOW + 2001
    rig.sweep()
    assert rig.target.bodies[-1] == b"after"
    assert rig.target.late_ms[-1] == 0
    rig.recover()
    assert len(rig.target.log) == 2001
    # One topic, one queue: the tail is still in order of acceptance.
    tail = [body for body in rig.target.bodies if body != b"after"]
    assert tail == [b"%d" % number for number in range(2000)]


def test_who_is_due_behind_a_crowd_is_on_time_however_late_the_sweeper_looks_up() -> None:
    rig = Rig(armed_max=64, hand_max=16)
    for number in range(2000):
        rig.send(b"%d" % number, at_ms=NOW + 2000, commit=number % 100 == 99)
    for number in range(1, 10):
        rig.send(b"behind", at_ms=NOW + 2000 + number)
    rig.run(NOW + 1999)
    rig.clock.now_ms = NOW + 2015
    while rig.sweeper.step(rig.clock.now_ms) <= rig.clock.now_ms:
        pass
    assert rig.target.bodies.count(b"behind") == 9
    assert len(rig.target.log) < 16 + 9
    rig.recover()
    assert [body for body in rig.target.bodies if body != b"behind"] == [b"%d" % number for number in range(2000)]


def test_several_crowds_are_each_handed_over_and_many_of_them_as_one_range() -> None:
    rig = Rig(armed_max=64, hand_max=16)
    for crowd in range(12):
        for number in range(40):
            rig.send(b"%d %d" % (crowd, number), at_ms=NOW + 2000 + crowd, commit=number % 8 == 7)
    rig.send(b"behind", at_ms=NOW + 2012)
    rig.run(NOW + 1999)
    rig.clock.now_ms = NOW + 2012
    rig.sweep()
    assert rig.sweeper.frontier_ms > NOW + 2012 or rig.stats.handed_over > CROWDS_MAX
    rig.sweep()
    rig.recover()
    assert sorted(rig.target.bodies) == sorted(
        [b"%d %d" % (crowd, number) for crowd in range(12) for number in range(40)] + [b"behind"]
    )


def test_one_that_is_accepted_late_beside_a_crowd_is_not_forgotten() -> None:
    rig = Rig(armed_max=64, hand_max=16)
    for number in range(200):
        rig.send(b"%d" % number, at_ms=NOW + 2000, commit=number % 20 == 19)
    rig.run(NOW + 1990)
    for number in range(8):  # below the frontier, published when the crowd is due
        rig.send(b"late", at_ms=NOW + 2000 - number, commit=number == 7)
    rig.clock.now_ms = NOW + 2000
    rig.send(b"later", at_ms=NOW + 2001)
    rig.sweep()
    rig.clock.now_ms = NOW + 2001
    rig.sweep()
    rig.recover()
    assert len(rig.target.log) == 209


def test_a_hot_second_that_is_sent_in_its_last_second_is_not_armed_singly() -> None:
    rig = Rig(armed_max=64, hand_max=16)
    rig.sweep()
    for number in range(3000):
        rig.send(b"%d" % number, at_ms=NOW + 500, commit=number % 50 == 49)
        if number % 50 == 49:
            rig.sweep()
            assert rig.sweeper.armed_count <= 64 + SCAN_MAX
    rig.send(b"soon", at_ms=NOW + 400)
    rig.run(NOW + 400)
    assert rig.target.bodies == [b"soon"]
    assert rig.target.late_ms == [0]
    rig.run(NOW + 500)
    rig.recover()
    assert len(rig.target.log) == 3001
    assert rig.target.late_ms == [0] * 3001


def test_a_stall_of_the_process_is_a_backlog_and_what_comes_next_is_on_time() -> None:
    rig = Rig(hand_max=64)
    rig.sweep()
    for number in range(5000):
        rig.send(at_ms=NOW + 1 + number, commit=number % 500 == 499)
    rig.clock.now_ms = NOW + 4000  # nobody ran for four seconds
    steps = 0
    while rig.sweeper.step(rig.clock.now_ms) <= rig.clock.now_ms:
        steps += 1
    assert steps < 20
    assert rig.stats.handed_over == 1
    assert len(rig.target.log) <= 64
    rig.run(NOW + 6000)
    assert len(rig.target.log) == 5000
    on_time = [late for late in rig.target.late_ms if late == 0]
    assert len(on_time) >= 1000


def test_the_store_refuses_everything_order_survives() -> None:
    rig = Rig()
    for number in range(10):
        rig.send(b"%d" % number, at_ms=NOW + 100 + number // 3)
    rig.target.refuses = True
    rig.run(NOW + 30_000)
    attempts = rig.target.attempts
    assert attempts < 10 * 45  # it backs off to a second
    assert rig.stats.stalls == 1
    assert len(rig.warnings) == 1
    assert rig.sweeper.armed_count <= 10
    rig.target.refuses = False
    rig.run(NOW + 32_000)
    assert rig.target.bodies == [b"%d" % number for number in range(10)]


def test_during_an_outage_memory_does_not_grow_with_what_comes_due() -> None:
    rig = Rig(armed_max=64, hand_max=16)
    rig.target.refuses = True
    for number in range(2000):
        rig.send(at_ms=NOW + 10 * number + 10, commit=number % 100 == 99)
    rig.run(NOW + 21_000)
    assert rig.sweeper.armed_count <= 64 + SCAN_MAX + 16
    rig.target.refuses = False
    rig.run(NOW + 23_000)
    assert len(rig.target.log) == 2000


def test_a_disk_that_fills_up_in_a_batch_loses_nothing_and_repeats_nothing() -> None:
    rig = Rig()
    for number in range(100):
        rig.send(b"%d" % number, at_ms=NOW + 50)
    rig.target.room = 37
    rig.run(NOW + 5000)
    assert len(rig.target.log) == 37
    rig.target.room = None
    rig.run(NOW + 8000)
    assert rig.target.bodies == [b"%d" % number for number in range(100)]


def test_a_failed_message_does_not_hold_the_others() -> None:
    rig = Rig()
    rig.target.missing.add("gone")
    for number in range(6):
        rig.send(b"%d" % number, at_ms=NOW + 50, topic="gone" if number % 2 else "T")
    rig.run(NOW + 60)
    assert rig.target.bodies == [b"0", b"2", b"4"]
    assert rig.recovery.failed_count == 3
    assert rig.spill.pending_count == 3


def test_a_record_that_cannot_be_read_does_not_hold_the_others() -> None:
    rig = Rig()
    for number in range(5):
        rig.send(b"%d" % number, at_ms=NOW + 50)
    rig.spill.entries[2].bad = True
    rig.run(NOW + 60)
    assert rig.target.bodies == [b"0", b"1", b"3", b"4"]
    assert rig.recovery.failed_count == 1
    assert rig.stats.unreadable == 1
    assert "cannot be read" in rig.warnings[0]
    rig.run(NOW + 200_000)
    assert rig.spill.pending_count == 1  # kept for ever
    rig.spill.entries[2].bad = False
    rig.run(NOW + 300_000)
    assert rig.target.bodies[-1] == b"2"


def test_a_target_that_breaks_its_word_is_not_asked_twice() -> None:
    rig = Rig()
    rig.send(at_ms=NOW + 50)

    def broken(_: object) -> list[object]:
        raise RuntimeError("a bug")

    rig.target.put_batch = broken  # type: ignore[method-assign, assignment]
    saved: list[bool] = []
    rig.deliverer.lose_track = lambda: saved.extend(entry.done for entry in rig.spill.entries)
    rig.run(NOW + 10_000)
    assert rig.deliverer.uncertain == 1
    assert saved == [False]
    del rig.target.put_batch
    rig.run(NOW + 20_000)
    assert rig.target.log == []  # twice would be worse than late
    rig.spill.entries[0].done = False  # as the last checkpoint has it
    rig.crash()
    rig.run(NOW + 20_000)
    assert len(rig.target.log) == 1


def test_it_is_late_for_what_is_in_hand_though_scans_fail() -> None:
    rig = Rig(batch_max=4)
    for _ in range(9):
        rig.send(at_ms=NOW + 50)
    rig.sweep()

    def broken(*_: object) -> object:
        raise StoreError("cannot read: Input/output error (errno 5)")

    rig.spill.scan = broken  # type: ignore[method-assign, assignment]
    rig.clock.now_ms = NOW + 1500
    rig.sweeper.step(NOW + 1500)
    assert len(rig.target.log) == 4
    assert rig.sweeper.late_ms(NOW + 1501) == 1451


def test_a_scan_that_fails_does_not_hold_back_what_is_armed() -> None:
    rig = Rig()
    rig.send(b"armed", at_ms=NOW + 500)
    rig.send(b"later", at_ms=NOW + 1700)
    rig.sweep()
    scan = rig.spill.scan

    def broken(*_: object) -> object:
        raise StoreError("cannot read: Input/output error (errno 5)")

    rig.spill.scan = broken  # type: ignore[method-assign, assignment]
    rig.run(NOW + 1500)
    assert rig.target.bodies == [b"armed"]
    assert rig.target.late_ms == [0]
    assert 5 < rig.stats.troubles < 40
    assert len(rig.warnings) <= 6
    rig.spill.scan = scan  # type: ignore[method-assign]
    rig.run(NOW + 2000)
    assert rig.target.bodies == [b"armed", b"later"]
    assert rig.target.late_ms == [0, 0]


def test_what_was_accepted_under_an_old_address_is_delivered_under_the_present_one() -> None:
    rig = Rig()
    rig.send(at_ms=NOW + 5)
    other = bytes((10, 0, 0, 1, 0, 0, 42, 159))
    rig.deliverer._rehost = other
    rig.run(NOW + 5)
    stored = decode_record(rig.target.log[0][1].record)
    assert stored.store_host == other
    assert (stored.body, stored.topic, stored.born_host) == (b"x", "T", bytes(8))


# ---------------------------------------------------------------------------------------------------- the clock


@pytest.mark.parametrize("step_ms", [1, 5, 20, 21, 300, 600_000])
def test_a_clock_that_is_set_back_releases_nothing_early_and_nothing_twice(step_ms: int) -> None:
    rig = Rig()
    for number in range(100):
        rig.send(b"%d" % number, at_ms=NOW + 10 * number + 5)
    rig.run(NOW + 500)
    rig.clock.now_ms -= step_ms
    rig.send(b"soon", at_ms=rig.clock.now_ms + 3)
    rig.run(NOW + 2000)
    assert sorted(rig.target.bodies) == sorted([b"soon", *(b"%d" % number for number in range(100))])
    assert max(rig.target.late_ms) <= 20
    if step_ms > 20:
        assert rig.target.late_ms == [0] * 101


def test_a_clock_set_back_an_hour_does_not_arm_the_next_hour() -> None:
    rig = Rig(armed_max=64)
    rig.run(NOW + 100)
    rig.clock.now_ms -= 3_600_000
    rig.sweep()
    for minute in range(60):
        for _ in range(5):
            rig.send(at_ms=rig.clock.now_ms + 10_000 + minute * 60_000, commit=False)
    rig.gate.commit_turn()
    rig.sweep()
    assert rig.sweeper.armed_count == 0


def test_what_is_in_hand_when_the_clock_goes_back_a_little_is_not_found_a_second_time() -> None:
    """Kept in hand by an outage, left there, and armed again by a scan that begins before it."""
    rig = Rig(armed_max=4)
    rig.send(b"in hand", at_ms=NOW + 41)
    rig.target.refuses = True
    rig.run(NOW + 41)
    assert rig.sweeper.armed_count == 1
    rig.clock.now_ms = NOW + 21
    for number in range(6):
        rig.send(b"%d" % number, at_ms=NOW + 26, commit=False)
    rig.gate.commit_turn()
    rig.sweep()  # too many are armed: the later half is forgotten, and the frontier goes back
    assert rig.sweeper.armed_count == 0
    rig.target.refuses = False
    rig.run(NOW + 2_000)
    assert rig.target.bodies == [b"0", b"1", b"2", b"3", b"4", b"5", b"in hand"]
    assert rig.stats.delivered == 7


def test_a_record_that_is_asked_for_twice_in_a_batch_is_delivered_once() -> None:
    rig = Rig()
    for body in (b"one", b"two"):
        rig.send(body, at_ms=NOW + 10)
    rig.sweep()
    rig.clock.now_ms = NOW + 10
    with rig.lock:
        one, two = rig.spill.scan((0, 0), NOW + 11, 10).refs
        outcome = rig.deliverer.deliver(
            [NOW + 10] * 5, [one, two, one, two, two], NOW + 10, rig.stats.on_time, state=State.ARMED
        )
    assert (outcome.looked_at, outcome.delivered, list(outcome.kept)) == (5, 2, [])
    assert rig.target.bodies == [b"one", b"two"]


def test_a_clock_set_back_gives_up_ranges_that_are_no_longer_overdue() -> None:
    rig = Rig(hand_max=16)
    for number in range(200):
        rig.send(b"%d" % number, at_ms=NOW + 1000)
    rig.clock.now_ms = NOW + 1000
    rig.sweep()
    assert len(rig.ranges) >= 1
    rig.clock.now_ms = NOW + 500
    rig.run(NOW + 2000)
    assert len(rig.target.log) == 200
    assert rig.target.late_ms == [0] * 200


@pytest.mark.parametrize("step_ms", [30, 5_000, 86_400_000])
def test_a_clock_that_is_set_forward_makes_everything_between_due(step_ms: int) -> None:
    rig = Rig()
    for number in range(100):
        rig.send(b"%d" % number, at_ms=NOW + 1 + number * 20)
    rig.run(NOW + 100)
    rig.clock.now_ms += step_ms
    rig.run(max(NOW + 3000, rig.clock.now_ms))
    assert rig.target.bodies == [b"%d" % number for number in range(100)]


def test_it_may_be_told_the_time_with_jitter() -> None:
    rig = Rig()
    chance = random.Random(3)
    for number in range(200):
        rig.send(b"%d" % number, at_ms=NOW + 5 * number + 5)
    base = NOW
    while len(rig.target.log) < 200 and base < NOW + 5000:
        base += 1
        rig.clock.now_ms = base + chance.randrange(-3, 4)
        rig.sweeper.step(rig.clock.now_ms)
        rig.recovery.step(rig.clock.now_ms)
        rig.check()
    assert sorted(rig.target.bodies) == sorted(b"%d" % number for number in range(200))
    assert max(rig.target.late_ms) < 30


def test_the_spill_store_knows_the_frontier_before_anything_below_it_is_armed() -> None:
    rig = Rig()
    rig.send(at_ms=NOW + 500)
    rig.sweep()
    assert rig.spill.frontier_ms == rig.sweeper.frontier_ms > NOW + 500
    with rig.lock:
        rig.spill.frontier_ms -= 1
        assert rig.sweeper.check() != []


def test_check_sees_a_hand_out_of_order() -> None:
    rig = Rig()
    with rig.lock:
        rig.sweeper._hand._dues = [2, 1]
        rig.sweeper._hand._refs = [0]
        assert len(rig.sweeper.check()) == 2
        rig.sweeper._hand._dues = [1] * (HAND_MAX + 1)
        assert any("at most" in problem for problem in rig.sweeper.check())
    assert KEY_MAX > 0
