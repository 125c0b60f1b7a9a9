"""Recovery's key ranges against a plain set of keys."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from broker_plugin.rules.ranges import KEY_MAX, RANGES_MAX, KeyRange, KeyRanges


def test_a_range_is_open_below_and_cut_by_due_time_above() -> None:
    found = KeyRange((10, 5), 12)
    assert (10, 5) not in found
    assert (10, 6) in found
    assert (11, KEY_MAX) in found
    assert (12, 0) not in found


def test_newest_and_oldest_take_turns() -> None:
    ranges = KeyRanges()
    assert ranges.next() is None
    ranges.add((0, KEY_MAX), 10)
    ranges.add((20, KEY_MAX), 30)
    turns = [ranges.next() for _ in range(4)]
    assert [found.until_ms for found in turns if found] == [30, 10, 30, 10]


def test_a_tail_stays_apart_from_the_backlog_before_it() -> None:
    ranges = KeyRanges()
    ranges.add((-1, 0), 100)
    ranges.add((99, KEY_MAX), 101)  # touches
    ranges.add((98, KEY_MAX), 105)  # overlaps both
    assert [(found.after, found.until_ms) for found in ranges] == [
        ((-1, 0), 100),
        ((99, KEY_MAX), 101),
        ((100, KEY_MAX), 105),
    ]
    assert ranges.first_ms() == -1


def test_keys_behind_a_cursor_that_are_given_back_are_owned_again() -> None:
    ranges = KeyRanges()
    ranges.add((-1, 0), 200)
    only = ranges.next()
    assert only is not None
    only.after = (100, 5)
    assert (100, 3) not in ranges
    ranges.add((99, KEY_MAX), 300)
    assert (100, 3) in ranges
    assert (299, 0) in ranges
    assert ranges.check() == []


def test_there_are_never_many() -> None:
    ranges = KeyRanges()
    for due in range(0, 10_000, 10):
        ranges.add((due, KEY_MAX), due + 3)
        assert ranges.check() == []
    assert len(ranges) == RANGES_MAX
    assert all((due + 1, 7) in ranges for due in range(0, 10_000, 10))


small = st.integers(0, 12)
keys = st.tuples(small, st.sampled_from([0, 1, 2, KEY_MAX]))


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("add"), keys, small),
            st.tuples(st.just("cut"), keys, small),
            st.tuples(st.just("read"), keys, small),
        ),
        max_size=12,
    )
)
def test_against_a_set(actions: list[tuple[str, tuple[int, int], int]]) -> None:
    ranges = KeyRanges()
    model: set[tuple[int, int]] = set()
    every = [(due, number) for due in range(15) for number in (0, 1, 2, 3)]
    for what, key, bound in actions:
        if what == "add":
            ranges.add(key, bound)
            model |= {k for k in every if key < k and k[0] < bound}
        elif what == "cut":
            ranges.cut(bound)
            model = {k for k in model if k[0] < bound}
        else:
            found = ranges.next()
            if found is not None:
                if key > found.last:
                    ranges.remove(found)
                    model -= {k for k in every if k in found}
                elif key > found.after and key < found.last:
                    model -= {k for k in every if k in found and k <= key}
                    found.after = key
        assert ranges.check() == []
        assert {k for k in every if k in ranges} == model


def test_a_backlog_is_not_joined_with_the_tails_of_hot_seconds() -> None:
    """They would wait for all of it."""
    ranges = KeyRanges()
    ranges.add((-1, 0), 1_000)
    for number in range(2 * RANGES_MAX):
        ranges.add((999 + 20 * number, KEY_MAX), 1_000 + 20 * (number + 1))
    assert ranges.check() == [] and len(ranges) == RANGES_MAX
    first, *_, last = ranges
    assert (first.after, first.until_ms) == ((-1, 0), 1_000)
    assert last.until_ms == 1_000 + 20 * 2 * RANGES_MAX
