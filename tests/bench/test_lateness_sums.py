"""Sums: rows that are alike become one, travel as bytes, and stay few however late the messages are."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import numpy as np
import pytest

from bench.lateness.counting.grouping import constant, group, rank
from bench.lateness.counting.merging import added_up, grouped
from bench.lateness.counting.sums import SUM_COLUMNS, decode, encode

pytestmark = pytest.mark.spark  # it needs pyarrow, and starts nothing

LEAST, MOST = -(1 << 63), (1 << 63) - 1


@pytest.mark.parametrize("seed", range(20))
def test_rows_that_are_alike_become_one(seed: int) -> None:
    """Few values and many, near together and at both ends of 64 bits: an array, a sort, and what fits in no number."""
    rng = random.Random(seed)
    rows = rng.choice([1, 2, 50, 3_000])
    kinds: list[Any] = [
        lambda: 7,
        lambda: rng.randrange(3),
        lambda: rng.randrange(-100_000, 100_000),
        lambda: rng.choice([LEAST, LEAST + 1, -1, 0, MOST - 1, MOST]),
        lambda: rng.randrange(LEAST, MOST),
    ]
    columns = [[make() for _ in range(rows)] for make in rng.choices(kinds, k=rng.choice([1, 3, 7]))]
    weights = [rng.randrange(1_000) for _ in range(rows)]
    counts: Counter[tuple[int, ...]] = Counter()
    sums: Counter[tuple[int, ...]] = Counter()
    for row, weight in zip(zip(*columns, strict=True), weights, strict=True):
        counts[row] += 1
        sums[row] += weight
    ranked = [rank(np.array(column, np.int64)) for column in columns]
    for given in ([None, np.array(weights, np.int64)], [None]):
        values, found = group(ranked, rows, given)
        groups = list(zip(*(column.tolist() for column in values), strict=True))
        assert groups == sorted(counts)
        assert dict(zip(groups, found[0].tolist(), strict=True)) == counts
        if len(given) > 1:
            assert dict(zip(groups, found[1].tolist(), strict=True)) == sums


@pytest.mark.parametrize("far", [0, 1, 255, 256, 65_535, 65_536, (1 << 32) - 1, 1 << 32, MOST, MOST - LEAST])
def test_sums_come_out_of_their_bytes_as_they_went_in(far: int) -> None:
    least = LEAST if far > MOST else 5 if far < MOST - 5 else 0
    columns = {name: np.array([least, least, least + far], np.int64) for name in SUM_COLUMNS}
    assert {name: column.tolist() for name, column in decode(encode(columns)).items()} == {
        name: column.tolist() for name, column in columns.items()
    }


def parts_of(lateness_ms: np.ndarray[Any, Any], parts: int) -> list[Any]:
    """The sums of deliveries with these latenesses, due one a millisecond, part by part."""
    from bench.lateness.counting.settle import Choice, settle_and_add_up
    from bench.lateness.logs.delays import DELIVERED
    from bench.lateness.logs.packing import pack
    from bench.lateness.logs.schemas import DELAY_SCHEMA, arrow_schema, make_batch

    count = len(lateness_ms)
    numbers = np.arange(count)
    due_ms = 1_700_000_000_000 + numbers
    plain = {"source": 0, "stage": DELIVERED, "kind": 1, "level": 0, "id_hi": 0, "topic_id": 9, "requested_ms": 1_000}
    values = {name: np.full(count, value) for name, value in plain.items()}
    values |= {"id_lo": numbers, "offset": numbers, "due_ms": due_ms, "store_ms": due_ms + lateness_ms}
    batch = make_batch(arrow_schema(DELAY_SCHEMA), values, count)
    packed = list(pack([batch], parts))
    choice = Choice(int(due_ms[-1]) + 10_000_000)
    found = []
    for part in range(parts):
        rows = [b.slice(row, 1) for b in packed for row in range(len(b)) if b["part"][row].as_py() == part]
        found += list(settle_and_add_up(rows, choice))
    return found


@pytest.mark.parametrize("buckets", [1, 5])
def test_what_a_second_decides_is_the_same_in_one_part_and_in_many(buckets: int) -> None:
    import pyarrow as pa

    from bench.lateness.counting.merging import finish, marks_of, merge, spread
    from bench.lateness.counting.tables import take_apart

    late = np.random.default_rng(4).integers(-5, 3_600_000, 12_000)
    whole = take_apart(finish(pa.Table.from_batches(parts_of(late, 1))), ["a"])
    parts = parts_of(late, 7)
    merged = pa.Table.from_batches(merge(parts))
    marks = marks_of(merged)
    spread_out = pa.Table.from_batches(merge(spread(parts, marks, buckets)))
    for name, tables in (
        ("finish", finish(pa.Table.from_batches(parts))),
        ("steps", pa.concat_tables([merged, spread_out])),
    ):
        found = take_apart(tables, ["a"])
        for table, rows in whole.tables.items():
            keys = [(column, "ascending") for column in rows.column_names]
            assert found.tables[table].sort_by(keys).equals(rows.sort_by(keys)), (name, table)
    by_second = whole.tables["due_in_second"].to_pylist()
    assert sum(row["count"] for row in by_second) == 12_000
    assert {row["due_in_second_from"] for row in by_second} == {1_000}


def test_ids_that_come_once_need_no_order(monkeypatch: pytest.MonkeyPatch) -> None:
    import pyarrow as pa

    from bench.lateness.counting.merging import finish
    from bench.lateness.counting.tables import take_apart

    late = np.random.default_rng(6).integers(-5, 3_600_000, 5_000)
    at_once = take_apart(finish(pa.Table.from_batches(parts_of(late, 3))), ["a"])
    monkeypatch.setattr("bench.lateness.counting.settle._SPAN_MOST", 0)
    in_order = take_apart(finish(pa.Table.from_batches(parts_of(late, 3))), ["a"])
    assert at_once == in_order


def test_minutes_are_added_up_from_messages_as_from_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    late = np.random.default_rng(8).integers(-5, 3_600_000, 70_000)
    found = []
    for times in (0, 1 << 40):
        monkeypatch.setattr("bench.lateness.counting.settle._TIMES_FEWER", times)
        found.append(parts_of(late, 2))
    assert found[0] == found[1]


def test_equal_values_of_a_column_are_not_copied() -> None:
    """An outage has millions of sums; three of their seven columns mostly have one value."""
    rng = np.random.default_rng(3)
    rows, none = 5_000, np.full(5_000, 7)
    parts = []
    for _ in range(2):
        sums = dict.fromkeys(SUM_COLUMNS, none) | {"lateness_ms": np.sort(rng.permutation(rows * 9)[:rows])}
        parts.append(decode(encode(sums)))
    for found in (parts[0], grouped(parts)):
        assert {name for name, column in found.items() if column.strides != (0,)} <= {"lateness_ms", "count"}
    apart = grouped([parts[0], parts[1] | {"key": constant(8, rows)}])
    assert apart["key"].tolist() == [7] * rows + [8] * rows


def test_an_outage_makes_no_row_for_each_message() -> None:
    """20,000 messages, each with a lateness of its own: a few rows leave the parts, of a few bytes a message."""
    count = 20_000
    ordinary = parts_of(np.zeros(count, np.int64), 2)
    outage = parts_of(np.random.default_rng(5).permutation(3_600_000)[:count], 2)
    assert sum(map(len, outage)) == sum(map(len, ordinary)) < 30
    assert sum(batch.nbytes for batch in outage) < 32 * count


def some_sums(rng: np.random.Generator, rows: int, keys: tuple[int, int]) -> dict[str, Any]:
    columns = {name: rank(rng.integers(-3, 4, rows)) for name in SUM_COLUMNS[1:-1]}
    values, (count,) = group([rank(rng.integers(*keys, rows)), *columns.values()], rows)
    return dict(zip(SUM_COLUMNS[:-1], values, strict=True)) | {"count": count}


@pytest.mark.parametrize("seed", range(40))
def test_a_night_beside_a_year_is_added_up_as_all_is(seed: int) -> None:
    rng = np.random.default_rng(seed)
    year = some_sums(rng, int(rng.integers(1, 5_000)), (0, 400))
    nights = [
        some_sums(rng, int(rng.integers(1, 40)), [(395, 410), (0, 400), (-9, -2)][int(rng.integers(3))])
        for _ in range(int(rng.integers(1, 4)))
    ]
    parts = [*nights, year]
    rng.shuffle(parts)
    expected = grouped(list(parts))
    found = added_up(parts)
    assert {name: column.tolist() for name, column in found.items()} == {
        name: column.tolist() for name, column in expected.items()
    }


def test_a_year_is_left_as_it_is_but_for_a_nights_minutes(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(2)
    year, night = some_sums(rng, 9_000, (0, 9_000)), some_sums(rng, 50, (8_990, 9_010))
    rows: list[int] = []

    def noted(columns: Any, count: int, weights: Any) -> Any:
        rows.append(count)
        return group(columns, count, weights)

    monkeypatch.setattr("bench.lateness.counting.merging.group", noted)
    added_up([year, night])
    assert sum(rows) < 100
