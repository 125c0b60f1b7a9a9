"""The line with the figures of all shards."""

from __future__ import annotations

from broker.shards.summary import summary


def name(index: int) -> str:
    return f"b-{index}"


def test_sums_and_parts() -> None:
    before = {0: {"put": 1_000, "got": 0}, 1: {"put": 5, "got": 5}}
    now = {0: {"put": 7_000, "got": 60, "pending": 2, "levels": 1}, 1: {"put": 65, "got": 65, "pending": 0}}
    line = summary(before, now, 60_000, name)
    assert line == "together: 101 put and 2 got a second, 3 pending (b-0: 100, 1, 3; b-1: 1, 1, 0)"


def test_one_that_was_started_again_counts_from_0() -> None:
    line = summary({0: {"put": 1_000_000, "got": 9}}, {0: {"put": 600, "got": 0, "pending": 1}}, 60_000, name)
    assert line == "together: 10 put and 0 got a second, 1 pending (b-0: 10, 0, 1)"


def test_nothing_is_said_when_nothing_happens() -> None:
    state = {0: {"put": 10, "got": 10, "pending": 5}}
    assert summary(state, state, 60_000, name) == ""
    assert summary({}, {}, 60_000, name) == ""
