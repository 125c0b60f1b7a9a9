"""Deleted topics and groups: their queues are gone at once, what was in flight goes by and by."""

from __future__ import annotations

import pytest

from store.pop.in_flight import InFlight, PopQueue
from store.pop.order_block import OrderBlock

BATCHES = 2_500


def filled(in_flight: InFlight, topic: str = "T", group: str = "G", batches: int = BATCHES) -> PopQueue:
    """A queue with as many batches of one message, due from 1,000 ms on."""
    queue = in_flight.open(group, topic, 0, 0)
    assert queue is not None
    for offset in range(batches):
        in_flight.record(queue, offset, (offset,), 0, 1_000 + offset % 7, offset + 1)
    return queue


@pytest.mark.parametrize("what", ["topic", "group"])
def test_what_was_in_flight_goes_some_at_a_time_and_never_comes_again(what: str) -> None:
    in_flight = InFlight(0)
    queue = filled(in_flight)
    in_flight.block(queue, OrderBlock([BATCHES]), [BATCHES], "", 0, 1_000)
    other = filled(in_flight, "U", "H", 2)
    if what == "topic":
        in_flight.forget_topic("T")
    else:
        in_flight.forget_group("G")
    assert queue.gone and in_flight.find("G", "T", 0) is None
    assert (in_flight.queue_count, in_flight.count) == (1, BATCHES + 2), "the deletion itself goes through none of them"
    assert in_flight.check() == []
    left = []
    while in_flight.next_due_ms() == 0:
        batches, _ = in_flight.claim(2_000, 64)
        assert all(batch.queue is other for batch in batches)
        assert in_flight.check() == []
        left.append(in_flight.count)
    assert left == [BATCHES - 1_000 + 2, BATCHES - 2_000 + 2, 2]
    assert in_flight.next_due_ms() is None, "no timer is left behind"


def test_a_topic_that_is_made_again_has_nothing_of_the_one_before() -> None:
    in_flight = InFlight(0)
    filled(in_flight)
    in_flight.forget_topic("T")
    queue = filled(in_flight, batches=3)
    for offset in range(3):
        assert in_flight.ack(queue, offset, 0, 1) == 1
    assert queue.committed() == 3
    for _ in range(3):
        assert in_flight.claim(2_000, 64) == ([], [])
    assert in_flight.count == 0 and in_flight.check() == []


def test_a_batch_that_is_being_copied_while_its_topic_goes_is_counted_out_once() -> None:
    in_flight = InFlight(0)
    filled(in_flight, batches=2)
    (first, second), _ = in_flight.claim(1_001, 64)
    in_flight.forget_topic("T")
    rest = in_flight.copied(first, 1)
    in_flight.put_back(second, 1_500)
    assert in_flight.check() == [] and in_flight.count == 2
    assert in_flight.claim(2_000, 64) == ([], [])
    in_flight.settle(rest)
    in_flight.settle(second)
    assert in_flight.count == 0 and in_flight.check() == []
    assert in_flight.next_due_ms() is None
