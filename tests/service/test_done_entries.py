"""Looking for the few entries that wait among millions that are done, as the roller does in the event loop."""

from __future__ import annotations

import time

from hypothesis import given
from hypothesis import strategies as st

from service.core.done_entries import DoneEntries

COUNT = 16_000_000


def test_what_waits_among_millions_is_found_in_no_time() -> None:
    """One entry that waited for two days held up the event loop for seconds each minute: longer than leases last."""
    done = DoneEntries.unpack(7, b"")
    done._bits = bytearray(b"\xff") * (COUNT // 8)
    for offset in (7, 12_345_678, COUNT - 1):
        done._bits[offset >> 3] &= ~(1 << (offset & 7)) & 0xFF
    begin = time.process_time()
    assert [*done.pending(0, COUNT)] == [7, 12_345_678, COUNT - 1]
    assert time.process_time() - begin < 0.4


@given(
    st.integers(0, 40),
    st.sets(st.integers(0, 90)),
    st.integers(0, 100),
    st.integers(0, 140),
    st.lists(st.integers(0, 140), max_size=6),
)
def test_what_becomes_done_while_one_looks_is_passed_over(
    low: int, offsets: set[int], first: int, until: int, later: list[int]
) -> None:
    done = DoneEntries(low)
    for offset in offsets:
        done.add(offset)
    found = []
    for offset in done.pending(first, until):
        assert offset not in done
        found.append(offset)
        if later:
            done.add(later.pop())
    assert found == sorted(found)
    missed = {offset for offset in range(first, until) if offset not in done} - set(found)
    assert not missed
