"""Counts by topic against counting one by one."""

from __future__ import annotations

from bisect import bisect_left

from hypothesis import given
from hypothesis import strategies as st

from broker_plugin.figures.balance import TopicBalance
from broker_plugin.figures.tally import DELAYS_S, SIZES, Accepted
from store.put.measures import OTHER

NOW_MS = 1_800_000_000_000
EDGES = (1, 60_000, 60_001, 600_000, 600_001, 3_600_000, 259_200_000, 259_200_001)
BYTES = (1, 1024, 1025, 4096, 4097, 524_288, 524_289)
MESSAGES = st.tuples(st.sampled_from("ABCD"), st.sampled_from(EDGES), st.sampled_from(BYTES))


@given(st.lists(st.lists(MESSAGES, max_size=8), max_size=4))
def test_turns_of_any_topics_count_as_their_messages_one_by_one(turns: list[list[tuple[str, int, int]]]) -> None:
    balance = TopicBalance()
    balance.is_known = True
    accepted = Accepted(lambda: NOW_MS, 3, balance)
    named: list[str] = []
    expected: dict[str, list[tuple[int, int]]] = {}
    pending: dict[str, int] = {}
    for turn in turns:
        accepted.add([m[0] for m in turn], [(NOW_MS + delay, 0, bytes(size)) for _, delay, size in turn])
        for topic, delay_ms, size in turn:
            if topic not in named and len(named) < 3:
                named.append(topic)
            expected.setdefault(topic if topic in named else OTHER, []).append((delay_ms, size))
            pending[topic] = pending.get(topic, 0) + 1
    rows = dict(accepted.rows())
    assert set(rows) == set(expected)
    for topic, found in expected.items():
        row = rows[topic]
        assert (row.count, row.bytes) == (len(found), sum(size for _, size in found))
        assert row.delay_ms == sum(delay for delay, _ in found)
        for classes, bounds, values in (
            (row.sizes, SIZES, [size for _, size in found]),
            (row.delays, [bound * 1000 for bound in DELAYS_S], [delay for delay, _ in found]),
        ):
            one_by_one = [0] * (len(bounds) + 1)
            for value in values:
                one_by_one[bisect_left(bounds, value)] += 1
            assert classes == one_by_one
    assert dict(balance.rows()) == pending
