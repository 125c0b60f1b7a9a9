"""The lateness histogram against counting one by one."""

from __future__ import annotations

from bisect import bisect_left

from hypothesis import given
from hypothesis import strategies as st

from broker_plugin.rules.stats import Rate
from store.put.lateness import BOUNDS_MS, LatenessCounts


@given(st.lists(st.lists(st.integers(0, 4_000_000), max_size=20), max_size=5))
def test_against_counting_one_by_one(batches: list[list[int]]) -> None:
    lateness = LatenessCounts()
    classes = [0] * (len(BOUNDS_MS) + 1)
    every: list[int] = []
    for batch in batches:
        lates = sorted(batch, reverse=True)
        lateness.add(10_000_000, [10_000_000 - late for late in lates])
        for late in lates:
            classes[bisect_left(BOUNDS_MS, late)] += 1
        every += lates
    assert lateness.classes == classes
    assert lateness.count == len(every)
    assert lateness.sum_ms == sum(every)
    assert lateness.max_ms == max(every, default=0)
    for share in (0.5, 0.99, 1.0):
        if every:
            exact = sorted(every)[max(0, -int(-share * len(every) // 1) - 1)]
            assert exact <= lateness.percentile_ms(share) <= max(every)


def test_nothing_yet() -> None:
    assert LatenessCounts().percentile_ms(0.99) == 0


def test_a_rate_is_measured_over_at_least_a_second() -> None:
    rate = Rate()
    assert rate.look(5, 100) == 0
    assert rate.look(500_000_005, 600) == 0
    assert rate.look(2_000_000_005, 1100) == 500
    assert rate.look(2_100_000_005, 9999) == 500
