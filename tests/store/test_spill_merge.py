"""The merging cursor against a sorted list."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from store.spill.rows import merge
from store.spill.rows.merge import Cursor, first_of
from store.spill.rows.model import Key
from store.spill.rows.source import Fetch, SourceBatch


def listed(source: int, sorted_keys: list[Key]) -> Fetch:
    """A source that is a sorted list; its refs say (source, index)."""

    def fetch(after: Key, until_ms: int, want: int) -> SourceBatch | None:
        found = [(k, source << 32 | n) for n, k in enumerate(sorted_keys) if k > after and k[0] < until_ms]
        if not found:
            return None
        part = found[: min(want, 3)]
        columns = ([k[0] for k, _ in part], [k[1] for k, _ in part], [ref for _, ref in part])
        dues, ids, refs = (np.array(column, np.int64) for column in columns)
        return SourceBatch(dues, ids, refs, len(found) > len(part))

    return fetch


@pytest.fixture(autouse=True)
def tiny_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merge, "ROUND_RECORDS", 6)
    monkeypatch.setattr(merge, "QUOTA_MIN", 2)


@settings(max_examples=300, deadline=None)
@given(
    st.dictionaries(st.tuples(st.integers(0, 12), st.integers(0, 9)), st.integers(0, 5), max_size=80),
    st.tuples(st.integers(-1, 12), st.integers(0, 9)),
    st.lists(st.tuples(st.integers(0, 14), st.integers(1, 9), st.integers(0, 9)), max_size=20),
)
def test_cursor_is_a_sorted_list(source_of: dict[Key, int], after: Key, steps: list[tuple[int, int, int]]) -> None:
    sources = [sorted(key for key, source in source_of.items() if source == n) for n in range(6)]
    refs_of = {key: n << 32 | index for n, part in enumerate(sources) for index, key in enumerate(part)}
    cursor = Cursor([listed(n, part) for n, part in enumerate(sources)], after)
    left = [key for key in sorted(source_of) if key > after]
    for until_ms, limit, taken in steps:
        dues, ids, refs = cursor.peek(until_ms, limit)
        got = list(zip(dues.tolist(), ids.tolist(), strict=True))
        assert got == [key for key in left if key[0] < until_ms][:limit]
        assert refs.tolist() == [refs_of[key] for key in got]
        if taken == 9:
            cursor.keep(np.array([n % 2 == 0 for n in range(len(got))], np.bool_))
            left = [key for key in left if key not in got[1::2]]
            continue
        count = min(taken, len(got))
        cursor.advance(count)
        if count:
            left = [key for key in left if key > got[count - 1]]
            assert cursor.after == got[count - 1]
            assert cursor.reaches(cursor.after)


def test_a_cursor_is_used_again_only_within_its_reach() -> None:
    cursor = Cursor([listed(0, [(n, 0) for n in range(20)])], (-1, 0))
    cursor.peek(5, 100)
    cursor.advance(5)
    assert not cursor.reaches((3, 0))
    assert cursor.reaches((4, 9))
    assert not cursor.reaches((15, 0))
    cursor.skip_to((4, 9))
    assert cursor.peek(100, 1)[0].tolist() == [5]


def test_first_of_mixes_batches_in() -> None:
    merged = Cursor([listed(0, [(1, 0), (4, 0)])], (-1, 0)).peek(100, 2)
    other = listed(1, [(2, 0), (3, 0)])((-1, 0), 100, 2)
    assert other is not None
    assert first_of(merged, [other], 3)[0].tolist() == [1, 2, 3]
    assert first_of(merged, [], 3) is merged
