"""The table by minute: its old cells become hours and days, in a state and without one, and the page knows of it."""

from __future__ import annotations

import doctest
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bench.lateness.counting import cells
from bench.lateness.counting.minutes import coarser, last_minute_of
from bench.lateness.counting.sums import decode, sum_rows
from bench.lateness.logs.schemas import FINE_SCHEMA, arrow_schema
from bench.lateness.results.result import MINUTE, TOPIC
from bench.lateness.results.target import Target
from bench.log_maker import FIRST_DUE_MS, spread_lateness
from bench.report.pieces.budget import budget_section, cells_of, worst_intervals
from tests.bench.test_lateness_state import assert_same, hours, prefix, run
from tests.bench.test_report_budget import curve, line_of

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("ignore")]

MINUTE_MS, HOUR_MS, DAY_MS = 60_000, 3_600_000, 86_400_000
BEGIN_MS = 1_700_006_400_000 // DAY_MS * DAY_MS


def sums(keys: list[int], source: int = 0, lateness: list[int] | None = None) -> pa.Table:
    """Sums by minute, one message each, and a row of another table."""
    columns = {
        "key": np.array(keys, np.int64),
        "lateness_ms": np.array(lateness or [0] * len(keys), np.int64),
        "censored": np.zeros(len(keys), np.int64),
        "count": np.ones(len(keys), np.int64),
    }
    rows = [sum_rows(source, MINUTE, columns), sum_rows(source, TOPIC, columns)]
    return pa.Table.from_batches(rows, arrow_schema(FINE_SCHEMA))


def minutes(table: pa.Table) -> dict[int, list[tuple[int, int, int]]]:
    """What a table has by minute: (start, lateness, messages) of each source."""
    found: dict[int, list[tuple[int, int, int]]] = {}
    for row in table.to_pylist():
        if row["table"] == MINUTE:
            one = decode(row["packed"])
            found.setdefault(row["source"], []).extend(
                zip(one["key"].tolist(), one["lateness_ms"].tolist(), one["count"].tolist(), strict=True)
            )
    return found


def test_the_examples_run() -> None:
    assert doctest.testmod(cells).failed == 0


def test_years_of_minutes_are_bounded() -> None:
    keys = list(range(BEGIN_MS, BEGIN_MS + 2_000 * DAY_MS, 30 * MINUTE_MS))
    table = sums(keys)
    last_ms = last_minute_of(table, keys[-1] + HOUR_MS)
    assert last_ms == keys[-1]
    found = minutes(coarser(table, last_ms))[0]
    assert len(found) == 33 * 48 + 1_468 * 24 + 499
    assert sum(count for *_, count in found) == len(keys)
    assert found == sorted(found)
    assert coarser(coarser(table, last_ms), last_ms).equals(coarser(table, last_ms))
    assert len(coarser(table, last_ms)) == len(table), "other tables stay"


def test_coarser_in_steps_is_coarser_at_once() -> None:
    rng = np.random.default_rng(1)
    keys = np.sort(rng.integers(0, 40 * 1_440, 3_000)) * MINUTE_MS + BEGIN_MS
    late = rng.integers(0, 3, 3_000).tolist()
    first, second = sums(keys.tolist(), 0, late), sums(keys[::2].tolist(), 1, late[::2])
    table = pa.concat_tables([first, second])
    once = coarser(table, BEGIN_MS + 60 * DAY_MS)
    steps = table
    for days in range(30, 61):
        steps = coarser(steps, BEGIN_MS + days * DAY_MS)
    assert {source: sorted(some) for source, some in minutes(once).items()} == {
        source: sorted(some) for source, some in minutes(steps).items()
    }


def test_a_message_due_in_a_thousand_years_makes_nothing_coarser() -> None:
    table = sums([BEGIN_MS, BEGIN_MS + MINUTE_MS, BEGIN_MS + 365_000 * DAY_MS])
    last_ms = last_minute_of(table, BEGIN_MS + HOUR_MS)
    assert last_ms == BEGIN_MS + MINUTE_MS
    assert coarser(table, last_ms).equals(table)
    assert last_minute_of(sums([BEGIN_MS]), BEGIN_MS - 1) is None


def test_a_state_has_what_one_run_finds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Days of 1,000 s, of which two keep their minutes; late deliveries come to cells that are longer by then."""
    monkeypatch.setattr("bench.lateness.state.state.DAY_S", 1_000)
    for name, value in {"_HOUR_MS": 300_000, "_DAY_MS": 600_000, "_MINUTE_DAYS": 2, "_HOUR_DAYS": 8}.items():
        monkeypatch.setattr(cells, name, value)
    full, as_of_ms = hours(tmp_path / "full")
    for segments in range(1, 13):
        prefix(full, tmp_path / "store", segments, 200_000 if segments < 12 else 1 << 30)
        run(tmp_path / "store", tmp_path / "out", tmp_path / "state", as_of_ms=as_of_ms)
        run(tmp_path / "store", tmp_path / "beside", None, as_of_ms=as_of_ms)
        assert_same(tmp_path / "out", tmp_path / "beside")
    starts = Counter(pq.read_table(tmp_path / "out" / "histograms" / "minute.parquet")["minute_ms"].to_pylist())
    last = max(starts)
    assert sum(starts.values()) > len(starts)
    ages = {last // 600_000 - start // 600_000 for start in starts if start % 300_000}
    assert max(ages) == 2, "minutes of two days, and before them none"
    assert {start % 600_000 for start in starts if last // 600_000 - start // 600_000 > 8} == {0}
    kept = pa.concat_tables(
        [pq.read_table(path).cast(arrow_schema(FINE_SCHEMA)) for path in (tmp_path / "state").glob("*-sums.parquet")]
    )
    assert sum(map(len, minutes(kept).values())) < 2 * sum(starts.values())


@pytest.mark.parametrize("received", [False, True])
def test_both_engines_make_the_same_hours(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, received: bool
) -> None:
    from tests.bench.test_lateness_spark import run as run_both

    for name, value in {"_HOUR_MS": 300_000, "_DAY_MS": 600_000, "_MINUTE_DAYS": 2, "_HOUR_DAYS": 8}.items():
        monkeypatch.setattr(cells, name, value)
    full, as_of_ms = hours(tmp_path / "full")
    more: dict[str, Any] = {}
    if received:
        line = '{"offset_message_id": "7F00000100002A9F%016X", "store_ms": %d, "received_ms": %d}\n'
        late = spread_lateness(12_000, seed=6)
        late[::700] = 2_500_000
        late[1::900] += 9_000
        stored = int((FIRST_DUE_MS + np.arange(12_000) * 1_000 + late).min())
        (tmp_path / "seen").write_text(line % (0, stored, stored + 5))
        more["received"] = [str(tmp_path / "seen")]
    _, tables = run_both(spark, tmp_path / "out", [full], large=True, as_of_ms=as_of_ms, **more)
    assert {row["minute_ms"] % 300_000 for row in tables[MINUTE]} > {0}
    assert any(row["minute_ms"] % 300_000 == 0 for row in tables[MINUTE])
    if received:
        assert {row["minute_ms"] % 600_000 for row in tables["minute_received"]} == {0}


def test_the_page_judges_an_hour_as_an_hour() -> None:
    bad, good = curve({5_000: 10}), curve({0: 10})
    old = {BEGIN_MS + hour * HOUR_MS: bad if hour in (1, 2, 5) else good for hour in range(24)}
    now = BEGIN_MS + 40 * DAY_MS
    fresh = {now + minute * MINUTE_MS: bad if minute in (1, 2) else good for minute in range(10)}
    line = line_of(old | fresh)
    last_ms = max(fresh)
    found, _ = worst_intervals({"a": line}, 0.9, 1_000, MINUTE_MS, None, last_ms)
    places = [(one.begin_ms - BEGIN_MS, one.end_ms - one.begin_ms) for one in found]
    assert sorted(places) == sorted(
        [(HOUR_MS, 2 * HOUR_MS), (5 * HOUR_MS, HOUR_MS), (40 * DAY_MS + MINUTE_MS, 120_000)]
    )
    judged = cells_of(line, 1_000, MINUTE_MS, last_ms)
    assert judged.window(2 * HOUR_MS)[1] == (20, 20, BEGIN_MS + 3 * HOUR_MS)
    text = budget_section({"target": Target(0.9, 1_000).judge(None), "as_of_ms": last_ms + 1}, {"a": line}, MINUTE_MS)
    assert "cells of time are hours" in text
    assert "30\u00a0min" not in text, "a window shorter than a cell says nothing of it"
    same = budget_section(
        {"target": Target(0.9, 1_000).judge(None), "as_of_ms": last_ms + 1}, {"a": line_of(fresh)}, MINUTE_MS
    )
    assert "cells of time are hours" not in same
