"""Deleted topics and groups, whose batches go by and by; and how many rows there are of what is in flight."""

from __future__ import annotations

import pytest

from store.pop.in_flight import InFlight, PopQueue
from store.pop.listing import Listing
from store.pop.order_block import OrderBlock
from store.pop.packed import PACKED_MAX
from store.pop.rows import BatchRow, read_rows

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


@pytest.mark.parametrize("which", [0, 1, 2])
def test_rows_that_are_all_acknowledged_leave_the_others_where_they_are(which: int) -> None:
    in_flight = InFlight(0)
    queue = filled(in_flight, batches=3 * PACKED_MAX)
    own = range(which * PACKED_MAX, (which + 1) * PACKED_MAX)
    for offset in own:
        assert in_flight.ack(queue, offset, 0, 1) == 1
    assert in_flight.check() == []
    for offset in range(3 * PACKED_MAX):
        assert in_flight.ack(queue, offset, 0, 1) == (offset not in own)
    assert in_flight.count == 0 and in_flight.check() == []


def test_what_one_holder_keeps_for_long_does_not_keep_the_rows_of_what_is_acknowledged() -> None:
    in_flight = InFlight(0)
    queue = in_flight.open("G", "T", 0, 0)
    assert queue is not None
    for offset in range(100 * PACKED_MAX):
        in_flight.record(queue, offset, (offset,), 0, 60_000, offset + 1)
        if offset % PACKED_MAX:
            in_flight.ack(queue, offset, 0, 1)
    assert in_flight.count == 100 and in_flight.check() == []
    assert sum(len(packed) for packed in queue.packed) < 10 * in_flight.count


def test_nothing_stands_for_a_queue_when_all_is_acknowledged_and_its_time_is_over() -> None:
    in_flight = InFlight(0)
    queue = filled(in_flight, batches=2)
    assert in_flight.ack(queue, 0, 0, 1) == in_flight.ack(queue, 1, 0, 1) == 1
    assert in_flight.claim(2_000, 64) == ([], [])
    assert queue.packed == [] and in_flight.next_due_ms() is None


def test_what_comes_due_while_it_is_listed_is_listed() -> None:
    in_flight = InFlight(0)
    queue = filled(in_flight, batches=3 * PACKED_MAX)
    listing = Listing([queue])
    rows = listing.rows(1) + listing.rows(1)
    in_flight.claim(2_000, 1)
    assert not queue.packed, "all are objects now"
    while listing:
        rows += listing.rows(5)
    starts = {row.start for row in read_rows(b"".join(rows)) if isinstance(row, BatchRow)}
    assert starts == set(range(3 * PACKED_MAX))


def test_a_changed_message_has_its_own_handle_beside_the_rest_of_its_batch() -> None:
    in_flight = InFlight(0)
    queue = in_flight.open("G", "T", 0, 0)
    assert queue is not None
    in_flight.record(queue, 0, (0, 1), 10, 60_000, 2)
    changed = in_flight.change(queue, 0, 10, 0, 5_000, 20)
    assert changed is not None and changed.pop_ms == 20
    assert in_flight.ack(queue, 0, 10, 0b1) == 0, "the handle of before names it no more"
    assert in_flight.ack(queue, 0, 20, 0b11) == 1
    assert queue.in_flight() == [1] and in_flight.check() == []
    assert in_flight.ack(queue, 0, 10, 0b11) == 1
    assert in_flight.count == 0 and in_flight.check() == []
