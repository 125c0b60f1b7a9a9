"""The done-set against a plain set of integers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from store.disk.errors import StoreCorruptError
from store.spill.rows.done_set import DoneSet

SPAN = 80

marks = st.one_of(
    st.tuples(st.just("one"), st.integers(0, SPAN - 1), st.just(0)),
    st.tuples(st.just("many"), st.integers(0, SPAN - 1), st.integers(1, 9)),
    st.tuples(st.just("range"), st.integers(0, SPAN - 1), st.integers(1, 20)),
    st.tuples(st.just("next"), st.just(0), st.just(0)),
)


def model_prefix(model: set[int]) -> int:
    prefix = 0
    while prefix in model:
        prefix += 1
    return prefix


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 12), st.lists(marks, max_size=60), st.integers(0, SPAN), st.integers(0, SPAN))
def test_done_set_is_a_set(born: int, steps: list[tuple[str, int, int]], first: int, end: int) -> None:
    done, model = DoneSet(born), set(range(born))
    earlier, before = done.copy(), set(model)
    for number, (kind, at, extra) in enumerate(steps):
        if kind == "one":
            assert done.add(at) == (at not in model)
            model.add(at)
        elif kind == "next":
            at = model_prefix(model)
            assert done.add(at)
            model.add(at)
        elif kind == "many":
            chosen = {(at + step * extra) % SPAN for step in range(70)}
            assert done.add_many(np.array(sorted(chosen), np.int64)) == len(chosen - model)
            model |= chosen
        else:
            assert done.add_range(at, at + extra) == len(set(range(at, at + extra)) - model)
            model |= set(range(at, at + extra))
        assert done.check() == []
        assert done.count == len(model)
        assert done.prefix == model_prefix(model)
        if number == len(steps) // 2:
            earlier, before = done.copy(), set(model)
    everything = np.arange(SPAN * 2, dtype=np.int64)
    assert [o for o in everything.tolist() if o in done] == sorted(model)
    assert np.flatnonzero(done.mask(everything)).tolist() == sorted(model)
    first, end = min(first, end), max(first, end)
    inside = sorted(o for o in model if first <= o < end)
    assert (np.flatnonzero(done.range_mask(first, end)) + first).tolist() == inside
    assert done.ordinals(first, end).tolist() == inside
    assert done.count_range(first, end) == len(inside)
    assert done.since(earlier, end).tolist() == sorted(o for o in model - before if o < end)
    assert done.next_clear(first) == next(o for o in range(first, SPAN * 3) if o not in model)
    encoded = b"..." + done.encode() + b"more"
    again, at = DoneSet.decode(encoded, 3)
    assert at == len(encoded) - 4
    assert again.check() == []
    assert again.prefix == done.prefix
    assert again.count == done.count
    assert np.flatnonzero(again.mask(everything)).tolist() == sorted(model)


def test_deliveries_in_order_cost_no_bitmap() -> None:
    done = DoneSet()
    for ordinal in range(100_000):
        done.add(ordinal)
    assert done.prefix == 100_000
    assert len(done.encode()) == 12


def test_half_of_ten_million_cancelled_fits_a_checkpoint() -> None:
    done = DoneSet()
    done.add_many(np.arange(1, 10_000_000, 2, dtype=np.int64))
    assert done.count == 5_000_000
    assert len(done.encode()) < 1_300_000
    done.add_range(0, 9_000_000)
    assert done.prefix == 9_000_000
    assert len(done.encode()) < 160_000


def test_one_mark_far_ahead_is_cheap_on_disk() -> None:
    done = DoneSet()
    done.add(9_999_999)
    assert len(done.encode()) < 4_000
    assert DoneSet.decode(done.encode())[0].ordinals(0, 10_000_000).tolist() == [9_999_999]


def test_golden_bytes() -> None:
    done = DoneSet(3)
    done.add(9)
    expected = b"\x03\0\0\0\x04\0\0\0\x01\0\0\0" + b"\x02" + b"\0\x02" + bytes(510)
    assert done.encode() == expected


def test_garbage_is_refused() -> None:
    data = DoneSet(3).encode()
    for cut in range(len(data)):
        with pytest.raises(StoreCorruptError):
            DoneSet.decode(data[:cut])
    with pytest.raises(StoreCorruptError):
        DoneSet.decode(b"\x03\0\0\0\x05\0\0\0\0\0\0\0")
