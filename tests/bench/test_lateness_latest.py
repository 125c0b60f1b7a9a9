"""The latest hundred messages: the same whatever the parts, against a plain sort; and what their records say."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.lateness.counting.latest import LATE_MOST, late_rows, latest_messages
from bench.lateness.engines.local_engine import LocalEngine
from bench.lateness.logs.packing import NONE
from bench.lateness.logs.sources import LogSource
from bench.lateness.pipeline import Job, find_sources, run_job
from bench.log_maker import FIRST_DUE_MS, make_log


def columns(messages: list[tuple[int, int, int, int]]) -> dict[str, Any]:
    late, due, high, low = (np.array(column, np.int64) for column in zip(*messages, strict=True))
    none = np.full(len(late), NONE)
    return {"lateness_ms": late, "due_ms": due, "id_hi": high, "id_lo": low, "place": none, "topic_id": none}


@pytest.mark.parametrize("seed", range(20))
def test_the_same_hundred_whatever_the_parts(seed: int) -> None:
    rng = random.Random(seed)
    span = rng.choice([1, 3, 1_000])
    messages = [
        (rng.randrange(-2, span + 1), rng.randrange(5), rng.randrange(-(2**63), 2**63), rng.randrange(-(2**63), 2**63))
        for _ in range(rng.choice([1, 99, 100, 101, 3_000]))
    ]
    unsigned = 1 << 64
    expected = sorted((-late, due, high, low % unsigned) for late, due, high, low in messages if late > 0)[:LATE_MOST]
    for parts in (1, 2, 7):
        rows: list[dict[str, Any]] = []
        for part in range(parts):
            some = messages[part::parts]
            if some:
                rows += late_rows(0, columns(some), np.zeros(len(some), np.bool_)).to_pylist()
        found = latest_messages(rows, [LogSource("a", "/none", "timewheel")], [], {})
        assert [(-one["lateness_ms"], one["due_ms"]) for one in found] == [one[:2] for one in expected]
        ids = [f"{high + 2**63:016x}{low:016x}" for *_, high, low in expected]
        lines = [line.split(" ") for row in rows for line in row["text"].splitlines()]
        lines.sort(key=lambda line: (-int(line[0]), int(line[1]), line[5]))
        assert [line[5] for line in lines[:LATE_MOST]] == ids


def test_records_are_read_by_their_place(tmp_path: Path) -> None:
    late = np.zeros(300, np.int64)
    late[[7, 200]] = [5_000, 70_000]
    make_log(tmp_path / "log", late, record_bytes=300, segment_bytes=1 << 20, per_second=500)
    job = Job(find_sources([str(tmp_path / "log")]), tmp_path / "out")
    summary = run_job(LocalEngine(1), job, lambda _: None)
    assert [(one["lateness_ms"], one["due_ms"]) for one in summary["latest"]] == [
        (70_000, FIRST_DUE_MS + 400), (5_000, FIRST_DUE_MS + 14),
    ]  # fmt: skip
    assert {one["topic"] for one in summary["latest"]} != {""}
    assert all(one["offset"] % 300 == 0 and one["delay_id"] and not one["overdue"] for one in summary["latest"])
