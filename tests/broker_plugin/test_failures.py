"""Failed groups: counted, bounded, backed off."""

from __future__ import annotations

from broker_plugin.failures import ANY_TOPIC, BACKOFF_MAX_MS, GROUPS_MAX, Failures, backoff_ms

GONE = "TOPIC_NOT_EXIST"


def test_one_group_for_a_reason_and_a_topic() -> None:
    failures = Failures()
    for due in (50, 10, 70):
        failures.add(GONE, "A", due, 1000)
    failures.add(GONE, "B", 60, 1000)
    failures.add("MESSAGE_ILLEGAL", "A", 60, 1000)
    assert len(failures) == 3
    assert failures.count == 5
    assert failures.is_failed("A", 30)
    assert not failures.is_failed("A", 71)
    assert not failures.is_failed("B", 59)
    assert failures.next_ms() == 1100


def test_back_off_doubles_to_a_minute() -> None:
    failures = Failures()
    failures.add(GONE, "A", 5, 0)
    now = 0
    waits = []
    for _ in range(12):
        wake = failures.next_ms()
        assert wake is not None
        assert failures.take_due(wake - 1) is None
        waits.append(wake - now)
        now = wake
        group = failures.take_due(now)
        assert group is not None
        assert failures.count == 0
        failures.put_back(group, now)
    assert waits == [100, 200, 400, 800, 1600, 3200, 6400, 12800, 25600, 51200, 60_000, 60_000]
    assert backoff_ms(10**9) == BACKOFF_MAX_MS


def test_what_fails_again_in_a_retry_keeps_its_back_off() -> None:
    failures = Failures()
    failures.add("UNKNOWN_ERROR", "A", 5, 0)
    failures.add("UNKNOWN_ERROR", "A", 9, 0)
    group = failures.take_due(100)
    assert group is not None
    failures.add("UNKNOWN_ERROR", "A", 9, 100)  # one of the two, again
    failures.went_on(group, 150)
    assert failures.count == 1
    assert failures.next_ms() == 150 + 200
    assert not failures.is_failed("A", 5)


def test_a_retry_that_succeeds_leaves_nothing() -> None:
    failures = Failures()
    failures.add(GONE, "A", 5, 0)
    group = failures.take_due(100)
    assert group is not None
    failures.went_on(group, 150)
    assert len(failures) == 0
    assert failures.next_ms() is None


def test_what_failed_meanwhile_joins_a_group_that_is_put_back() -> None:
    failures = Failures()
    failures.add(GONE, "A", 50, 0)
    group = failures.take_due(100)
    assert group is not None
    failures.add(GONE, "A", 40, 110)
    failures.put_back(group, 120)
    assert len(failures) == 1
    assert failures.count == 2
    assert failures.is_failed("A", 40)
    assert failures.is_failed("A", 50)


def test_changed_topics_are_tried_at_once_other_faults_are_not() -> None:
    failures = Failures()
    failures.add(GONE, "A", 5, 0)
    failures.add("NO_PERMISSION", "B", 5, 0)
    failures.add("MESSAGE_ILLEGAL", "C", 5, 0)
    failures.topics_changed(10)
    first, second = failures.take_due(10), failures.take_due(10)
    assert first is not None
    assert second is not None
    assert {first.topic, second.topic} == {"A", "B"}
    assert failures.take_due(10) is None
    failures.put_back(first, 10)
    assert failures.next_ms() == 100  # C's; A's back-off began anew
    assert first.next_ms == 110


def test_memory_is_bounded_by_the_number_of_groups() -> None:
    failures = Failures()
    for number in range(GROUPS_MAX + 50):
        failures.add(GONE, f"T{number}", number, 0)
    assert len(failures) == GROUPS_MAX + 1
    assert failures.count == GROUPS_MAX + 50
    assert failures.is_failed(f"T{GROUPS_MAX + 20}", GROUPS_MAX + 20)
    last = next(group for group in failures.groups if group.topic == ANY_TOPIC)
    assert last.count == 50
    assert last.takes("anything")


def test_a_cancelled_message_is_counted_out() -> None:
    failures = Failures()
    failures.add(GONE, "A", 5, 0)
    failures.removed("B", 5)
    assert failures.count == 1
    failures.removed("A", 5)
    failures.removed("A", 5)
    assert failures.count == 0


def test_a_clock_that_goes_back_does_not_stop_retries() -> None:
    failures = Failures()
    failures.add(GONE, "A", 5, 10_000_000)
    failures.clock_went_back(0)
    assert failures.next_ms() == BACKOFF_MAX_MS
