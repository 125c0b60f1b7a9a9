"""The result folder: exact percentiles against sorting, shares against counting, folders that are none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.lateness.results.result import (
    GROUPS,
    HISTOGRAMS,
    QUANTILES,
    RECEIVED,
    SUMMARY,
    TOPIC,
    VERSION,
    ResultError,
    percentiles,
    read_result,
    share_within,
)

HISTOGRAM = st.lists(st.tuples(st.integers(-5, 5000), st.integers(1, 40)), max_size=40)


@given(HISTOGRAM)
def test_percentiles_are_the_nearest_rank(rows: list[tuple[int, int]]) -> None:
    every = sorted(value for value, count in rows for _ in range(count))
    found = percentiles([v for v, _ in rows], [c for _, c in rows])
    assert list(found) == [*QUANTILES, "max"]
    if not every:
        assert set(found.values()) == {None}
        return
    assert found["max"] == every[-1]
    for name, quantile in QUANTILES.items():
        millionths = round(quantile * 1_000_000)
        smallest = next(v for k, v in enumerate(every, 1) if k * 1_000_000 >= len(every) * millionths)
        assert found[name] == smallest


def test_a_rank_is_not_pushed_up_by_binary_fractions() -> None:
    assert percentiles([1, 2], [9_999, 1])["p99.99"] == 1
    assert percentiles([1, 2], [999, 1])["p99.9"] == 1


@given(HISTOGRAM, st.integers(0, 5000))
def test_share_within(rows: list[tuple[int, int]], limit: int) -> None:
    every = [value for value, count in rows for _ in range(count)]
    expected = sum(v <= limit for v in every) / len(every) if every else None
    assert share_within([v for v, _ in rows], [c for _, c in rows], [limit]) == {str(limit): expected}


def test_a_folder_that_is_no_result(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    with pytest.raises(ResultError, match="is no result of `timewheel lateness`"):
        read_result(tmp_path)
    (tmp_path / SUMMARY).write_text("{")
    with pytest.raises(ResultError, match="is not JSON"):
        read_result(tmp_path)
    (tmp_path / SUMMARY).write_text(json.dumps({"version": 9}))
    with pytest.raises(ResultError, match="version 9; this software reads 2"):
        read_result(tmp_path)
    (tmp_path / SUMMARY).write_text(json.dumps({"version": VERSION, "sources": []}))
    with pytest.raises(ResultError, match=r"topic\.parquet is missing"):
        read_result(tmp_path)


def test_a_result_is_read(tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    (tmp_path / HISTOGRAMS).mkdir()
    for name in (*GROUPS, TOPIC + RECEIVED):
        parquet.write_table(arrow.table({"count": [3]}), tmp_path / HISTOGRAMS / f"{name}.parquet")
    (tmp_path / SUMMARY).write_text(json.dumps({"version": VERSION, "sources": [{"name": "a"}, {"name": "b"}]}))
    result = read_result(tmp_path)
    assert result.source_names == ["a", "b"]
    assert result.has_received
    assert set(result.histograms) == {*GROUPS, TOPIC + RECEIVED}
    assert result.histograms[TOPIC].to_pydict() == {"count": [3]}
