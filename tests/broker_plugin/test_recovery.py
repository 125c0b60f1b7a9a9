"""Recovery in virtual time: outages, failures for ever, fairness, bounded work in each step."""

from __future__ import annotations

import pytest

from broker_plugin.delivery import BATCH_BYTES
from broker_plugin.recovery import PROBE
from broker_plugin.threads.pace import BATCH_MAX
from tests.support.delay_rig import START_MS, Rig

NOW = START_MS


def overdue(rig: Rig, count: int, **how: str) -> None:
    """Messages that came due while the broker was down."""
    for number in range(count):
        rig.send(b"%d" % number, at_ms=NOW + 1 + number // 2, commit=number % 500 == 499, **how)  # type: ignore[arg-type]
    rig.gate.commit_turn()
    rig.clock.now_ms = NOW + 100_000
    rig.crash()


def test_what_came_due_while_down_goes_out_in_due_order() -> None:
    rig = Rig()
    overdue(rig, 2000)
    rig.run(rig.clock.now_ms)
    assert rig.target.bodies == [b"%d" % number for number in range(2000)]
    assert rig.stats.overdue.count == 2000
    assert rig.stats.on_time.count == 0
    assert len(rig.ranges) == 0
    assert max(rig.target.batches) <= BATCH_MAX


def test_a_backlog_does_not_delay_what_is_on_time() -> None:
    rig = Rig()
    overdue(rig, 5000)
    rig.recovery.pace.busy = True
    for number in range(6):
        rig.send(b"now", at_ms=rig.clock.now_ms + 1 + number)
    for _ in range(8):
        rig.sweep()
        rig.recovery.step(rig.clock.now_ms)  # one batch a millisecond, at most
        rig.clock.now_ms += 1
    on_time = [now - put.due_ms for now, put in rig.target.log if b"now" in put.record]
    assert on_time == [0] * 6
    assert 6 < len(rig.target.log) < 5000


def test_the_tail_of_a_hot_second_does_not_wait_for_the_backlog_of_the_night() -> None:
    rig = Rig(hand_max=16)
    overdue(rig, 6000)
    for number in range(600):
        rig.send(b"hot %d" % number, at_ms=rig.clock.now_ms + 5, commit=number == 599)
    rig.clock.now_ms += 5
    rig.sweep()
    for _ in range(4):
        rig.recovery.step(rig.clock.now_ms)
    hot = sum(1 for body in rig.target.bodies if body.startswith(b"hot"))
    assert hot == 600
    assert len(rig.target.log) < 6000
    rig.recover()
    assert len(rig.target.log) == 6600


def test_a_message_accepted_late_into_a_range_is_found_by_the_cursor_or_armed_behind_it() -> None:
    rig = Rig()
    overdue(rig, 3000)
    rig.recovery.step(rig.clock.now_ms)  # the cursor is somewhere now
    with rig.lock:
        found = rig.ranges.next()
    assert found is not None
    # Two blocks that the sweeper was slow to publish: one due before the cursor, one behind it.
    behind, before = found.after[0] - 5, found.after[0] + 50
    for due in (behind, before):
        rig.clock.now_ms = NOW
        rig.send(b"late %d" % due, at_ms=due)
    rig.clock.now_ms = NOW + 100_000
    rig.sweep()
    assert [body for body in rig.target.bodies if body.startswith(b"late")] == [b"late %d" % behind]
    rig.recover()
    assert [body for body in rig.target.bodies if body.startswith(b"late")] == [
        b"late %d" % behind,
        b"late %d" % before,
    ]
    assert len(rig.target.log) == 3002


def test_a_missing_topic_is_kept_for_ever_counted_listed_and_tried_when_it_comes_back() -> None:
    rig = Rig()
    rig.target.missing.add("gone")
    for number in range(500):
        rig.send(b"%d" % number, at_ms=NOW + 50 + number % 7, topic="gone")
    rig.send(b"fine", at_ms=NOW + 60)
    rig.run(NOW + 100)
    assert rig.target.bodies == [b"fine"]
    assert rig.recovery.failed_count == 500
    attempts = rig.target.attempts
    rig.run(NOW + 600_000)
    assert rig.recovery.failed_count == 500
    tries = rig.target.attempts - attempts
    assert tries <= PROBE * 25  # a few speak for all, once a minute
    rows = rig.commands.list_pending(None, 1000, rig.clock.now_ms)
    assert len(rows) == 500
    assert all(row.failed and row.topic == "gone" for row in rows)
    # It comes back.
    rig.target.missing.clear()
    rig.recovery.topics_changed()
    rig.recover()
    assert rig.recovery.failed_count == 0
    assert len(rig.target.log) == 501
    assert rig.commands.list_pending(None, 1000, rig.clock.now_ms) == []


def test_it_is_tried_again_without_being_told() -> None:
    rig = Rig()
    rig.target.missing.add("gone")
    rig.send(at_ms=NOW + 50, topic="gone")
    rig.run(NOW + 10_000)
    rig.target.missing.clear()
    rig.run(NOW + 80_000)
    assert len(rig.target.log) == 1


def test_a_failing_topic_does_not_hold_another() -> None:
    rig = Rig()
    rig.target.missing |= {"a", "b"}
    for number in range(300):
        rig.send(b"%d" % number, at_ms=NOW + 50 + number, topic="ab"[number % 2])
    rig.run(NOW + 1000)
    rig.target.missing.remove("b")
    rig.run(NOW + 100_000)
    assert len(rig.target.log) == 150
    assert rig.recovery.failed_count == 150


def test_one_poisoned_message_does_not_hold_the_others_of_its_topic() -> None:
    rig = Rig()
    rig.target.illegal |= {b"poison", b"for a while"}
    rig.send(b"poison", at_ms=NOW + 50)
    for _ in range(600):
        rig.send(b"for a while", at_ms=NOW + 51)
    rig.run(NOW + 1000)
    assert rig.recovery.failed_count == 601
    rig.target.illegal.remove(b"for a while")
    rig.run(NOW + 100_000)
    assert rig.recovery.failed_count == 1
    assert len(rig.target.log) == 600


def test_a_retry_jumps_over_what_the_ranges_own() -> None:
    rig = Rig()
    rig.target.missing.add("gone")
    rig.send(at_ms=NOW + 1, topic="gone")
    for number in range(4000):
        rig.send(b"%d" % number, at_ms=NOW + 2 + number, commit=number % 500 == 499)
    rig.send(at_ms=NOW + 4002, topic="gone")
    rig.clock.now_ms = NOW + 5000
    rig.crash()
    rig.recovery.step(rig.clock.now_ms)  # the first fails
    rig.clock.now_ms += 200
    with rig.lock:
        rig.failures.add("TOPIC_NOT_EXIST", "gone", NOW + 4002, rig.clock.now_ms)  # as the sweeper would
    before = rig.spill.reads
    rig.recovery._turn = 7
    rig.recovery.step(rig.clock.now_ms)
    assert rig.spill.reads - before <= PROBE
    rig.run(rig.clock.now_ms + 1000)
    assert len(rig.target.log) == 4000
    assert rig.recovery.failed_count >= 2


def test_retries_go_on_while_a_long_backlog_is_worked_off() -> None:
    rig = Rig()
    rig.target.missing.add("gone")
    rig.send(at_ms=NOW + 1, topic="gone")
    overdue(rig, 20_000)
    rig.recovery.pace.busy = True
    rig.recovery.step(rig.clock.now_ms)
    rig.target.missing.clear()
    rig.clock.now_ms += 150
    for _ in range(10):
        rig.recovery.step(rig.clock.now_ms)
    assert sum(1 for _, put in rig.target.log if put.topic == "gone") == 1
    assert len(rig.target.log) < 20_000


def test_while_the_store_refuses_everything_it_stops_too() -> None:
    rig = Rig()
    overdue(rig, 3000)
    rig.target.refuses = True
    rig.run(rig.clock.now_ms + 60_000)
    assert rig.target.attempts <= BATCH_MAX * 70
    rig.target.refuses = False
    rig.run(rig.clock.now_ms + 2000)
    assert rig.target.bodies == [b"%d" % number for number in range(3000)]


def test_topics_that_change_during_a_retry_are_tried_at_once_again() -> None:
    rig = Rig()
    rig.target.missing.add("gone")
    for number in range(PROBE + 5):
        rig.send(b"%d" % number, at_ms=NOW + 50, topic="gone")
        rig.send(b"other", at_ms=NOW + 50, topic="b")
    rig.target.missing.add("b")
    rig.run(NOW + 60)
    rig.clock.now_ms = NOW + 200
    rig.target.missing.discard("b")
    rig.recovery.topics_changed()
    rig.recovery.step(rig.clock.now_ms)
    rig.target.missing.clear()
    rig.recovery.topics_changed()
    rig.recover()
    assert rig.recovery.failed_count == 0
    assert len(rig.target.log) == 2 * PROBE + 10


@pytest.mark.parametrize("back_ms", [10, 5_000])
def test_a_clock_set_back_makes_it_wait_not_spin(back_ms: int) -> None:
    rig = Rig()
    overdue(rig, 100)
    rig.clock.now_ms = NOW + 1 + 40 - back_ms
    wake = rig.recovery.step(rig.clock.now_ms)
    steps = 0
    while rig.clock.now_ms < NOW + 100_000 and len(rig.target.log) < 100:
        wake = min(rig.recovery.step(rig.clock.now_ms), rig.clock.now_ms + 250)
        rig.clock.now_ms = max(wake, rig.clock.now_ms)
        rig.check()
        steps += 1
    assert steps < 250
    assert rig.target.bodies == [b"%d" % number for number in range(100)]


def test_a_disk_that_fills_up_in_a_batch_of_recovery_loses_nothing_and_repeats_nothing() -> None:
    rig = Rig()
    overdue(rig, 100)
    rig.target.room = 37
    rig.run(rig.clock.now_ms + 5000)
    assert len(rig.target.log) == 37
    rig.target.room = 20
    rig.run(rig.clock.now_ms + 5000)
    rig.target.room = None
    rig.run(rig.clock.now_ms + 5000)
    assert rig.target.bodies == [b"%d" % number for number in range(100)]


def test_large_records_are_read_a_few_at_a_time() -> None:
    rig = Rig()
    for number in range(40):
        rig.send(b"%03d" % number + bytes(100_000), at_ms=NOW + 1 + number // 20)
    rig.clock.now_ms = NOW + 1
    rig.sweep()
    assert [body[:3] for body in rig.target.bodies] == [b"%03d" % number for number in range(20)]
    rig.clock.now_ms = NOW + 60_000
    rig.crash()
    rig.run(rig.clock.now_ms)
    assert [body[:3] for body in rig.target.bodies] == [b"%03d" % number for number in range(40)]
    assert rig.spill.read_max <= BATCH_BYTES // 100_000


def test_bad_records_in_a_range_are_passed_and_kept() -> None:
    rig = Rig()
    overdue(rig, 50)
    for ref in (3, 17):
        rig.spill.entries[ref].bad = True
    rig.run(rig.clock.now_ms + 1000)
    assert len(rig.target.log) == 48
    assert rig.recovery.failed_count == 2
    assert rig.spill.pending_count == 2
    for ref in (3, 17):
        rig.spill.entries[ref].bad = False
    rig.run(rig.clock.now_ms + 200_000)
    assert len(rig.target.log) == 50
    assert rig.recovery.failed_count == 0


@pytest.mark.parametrize("others_bad", [False, True])
def test_what_cannot_be_read_when_its_topic_is_tried_again_is_not_forgotten(others_bad: bool) -> None:
    rig = Rig()
    rig.target.missing.add("gone")
    overdue(rig, 40, topic="gone")
    if others_bad:  # a group of unreadable ones in the same due times
        rig.send(b"other", at_ms=rig.clock.now_ms + 1)
        rig.gate.commit_turn()
        rig.spill.entries[-1].bad = True
    rig.run(rig.clock.now_ms + 1000)
    assert rig.recovery.failed_count == 40 + others_bad
    for entry in rig.spill.entries:
        entry.bad = True
    rig.target.missing.clear()
    rig.recovery.topics_changed()
    rig.run(rig.clock.now_ms + 1000)
    assert not rig.target.log
    for entry in rig.spill.entries:
        entry.bad = False
    rig.run(rig.clock.now_ms + 200_000)
    assert len(rig.target.log) == 40 + others_bad
    assert rig.recovery.failed_count == 0 and rig.spill.pending_count == 0
