"""A log of any size: parts by the memory of a task, notes in every part, Java's settings, and the figures on paper."""

from __future__ import annotations

import doctest
import importlib
import time
import tracemalloc
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from bench import lateness_on_paper
from bench.lateness.counting.settle import Choice, settle, settle_and_add_up
from bench.lateness.engines.job import Job
from bench.lateness.engines.session import _SHORT_RUN, _settings, is_brief
from bench.lateness.logs.packing import COLUMNS, ROW_BYTES, SETTLE_BYTES_A_ROW, pack, parts_for, unpack
from bench.lateness.logs.reading import Settings, batch_tasks, read_task
from bench.lateness.logs.schemas import DELAY_SCHEMA, PACKED_SCHEMA, TOPIC_NAME, arrow_schema, make_batch
from bench.lateness.logs.spill_files import SpillFile
from bench.lateness_on_paper import READ_US, SETTLE_US, estimate
from bench.log_maker import make_log, spread_lateness

pytestmark = pytest.mark.spark

RECORDS = 200_000
YARD_US = 0.13
"""What `yardstick` says on the machine of the paper's figures: these count for a machine as fast as that one."""
LOG_BYTES_A_ROW = 128


def test_the_examples_run() -> None:
    for name in ("logs.packing", "engines.job", "engines.session", "checking"):
        assert doctest.testmod(importlib.import_module(f"bench.lateness.{name}")).failed == 0
    assert doctest.testmod(lateness_on_paper).failed == 0


@pytest.mark.parametrize("task_bytes", [256 << 20, 1 << 30, 16 << 30])
@pytest.mark.parametrize("log_bytes", [0, 1 << 30, 1 << 38, 30 * 10**12, 10**15])
def test_no_part_is_larger_than_the_memory_of_a_task(log_bytes: int, task_bytes: int) -> None:
    rows = log_bytes // LOG_BYTES_A_ROW // parts_for(log_bytes, task_bytes)
    assert rows * SETTLE_BYTES_A_ROW <= task_bytes


@pytest.mark.parametrize("where", ["run", "segment", "kept"])
def test_what_waits_makes_parts_like_what_is_in_the_log(where: str) -> None:
    """Ten million messages that wait beside a small log: in runs, in the journal, or kept by earlier runs."""
    rows = 10_000_000
    run = SpillFile("run", 1, b"", 0, rows * 40, (0, rows), b"shape", b"")
    segment = SpillFile("segment", 2, b"", 0, rows * LOG_BYTES_A_ROW, (0, 0), None, b"")
    files = [one for one in (run, segment) if one.path == where]
    job = Job([], Path("out"), delay_stores=[files], open_rows=range(rows) if where == "kept" else None)
    assert rows // job.parts * SETTLE_BYTES_A_ROW <= job.task_bytes


def rows_of(count: int) -> pa.RecordBatch:
    numbers = np.arange(count)
    values = {name: np.zeros(count, np.int64) for name in COLUMNS} | {"id_lo": numbers, "stage": np.full(count, 2)}
    return make_batch(arrow_schema(DELAY_SCHEMA), values, count)


def test_there_may_be_more_parts_than_fit_into_two_bytes() -> None:
    (packed,) = pack([rows_of(100_000)], 200_000)
    parts = packed["part"].to_pylist()
    assert max(parts) > 1 << 16
    assert len(set(parts)) == len(parts)
    rows = unpack(packed["packed"].to_pylist())
    assert sorted(rows["id_lo"].tolist()) == list(range(100_000))


def note(text: str, stage: int = TOPIC_NAME) -> pa.RecordBatch:
    values: dict[str, Any] = {"source": [0], "stage": [stage], "topic_id": [7], "text": [text], "id_hi": [0]}
    return make_batch(arrow_schema(DELAY_SCHEMA), values, 1)


def test_notes_go_to_every_part_and_a_topic_is_named_once() -> None:
    notes = [note(f"Topic{number}") for number in range(200)]
    packed = list(pack(notes * 3, 8))
    parts = [part for batch in packed for part in batch["part"].to_pylist()]
    assert {part: parts.count(part) > 30 for part in range(8)} == dict.fromkeys(range(8), True)
    mine = [batch for batch in packed if batch["part"][0].as_py() == 3]
    told = [text for batch in settle(mine, Choice(0)) for text in batch["text"].to_pylist()]
    assert sorted(told) == sorted({batch["text"][0].as_py() for batch in mine})
    twice = list(settle(pack([note("gap", 12)] * 2, 1), Choice(0)))
    assert sum(map(len, twice)) == 2, "only the names of topics are told once"


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("scale") / "log"
    make_log(folder, spread_lateness(RECORDS), segment_bytes=1 << 27)
    return folder


def read(log: Path) -> list[pa.RecordBatch]:
    settings = Settings.of({"path": str(log), "rows": "delays", "parts": "1"})
    return [batch for task in batch_tasks(settings) for batch in pack(read_task(settings, task), 1)]


@pytest.mark.alone
def test_a_row_takes_no_more_memory_than_the_paper_says(log: Path) -> None:
    packed = [batch["packed"][0].as_py() for batch in read(log) if batch["text"].null_count]
    assert sum(map(len, packed)) == RECORDS * ROW_BYTES
    none: dict[str, Any] = dict.fromkeys(arrow_schema(PACKED_SCHEMA).names)
    tracemalloc.start()
    given = (pa.RecordBatch.from_pylist([none | {"packed": data}], arrow_schema(PACKED_SCHEMA)) for data in packed)
    list(settle_and_add_up(given, Choice(1 << 60)))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    a_row = peak / RECORDS + ROW_BYTES  # what Arrow holds is not traced
    print(f"{a_row:.0f} bytes a row")
    assert SETTLE_BYTES_A_ROW / 4 < a_row <= SETTLE_BYTES_A_ROW


def yardstick() -> float:
    """What ordering and checking a number takes on this machine now, us of processor time."""
    numbers = np.random.default_rng(1).integers(0, 1 << 62, RECORDS)
    spent = []
    for _ in range(5):
        began = time.process_time()
        checked = numbers[np.argsort(numbers, kind="stable")].tobytes()
        for _ in range(20):
            zlib.crc32(checked)
        for number in numbers[: RECORDS // 4].tolist():
            number >> 1
        spent.append(time.process_time() - began)
    return min(spent) * 1e6 / RECORDS


@pytest.mark.alone
def test_a_record_takes_no_more_time_than_the_paper_says(log: Path) -> None:
    spent = []
    for _ in range(2):
        began = time.process_time()
        rows = read(log)
        between = time.process_time()
        list(settle_and_add_up(rows, Choice(1 << 60)))
        spent.append((between - began, time.process_time() - between))
    reading, settling = (min(values) * 1e6 / RECORDS for values in zip(*spent, strict=True))
    pace = yardstick() / YARD_US
    print(f"{reading:.2f} us reading, {settling:.2f} us settling; {pace:.2f} times the time of the paper's machine")
    assert reading <= READ_US * pace
    assert settling <= SETTLE_US * pace


def test_ten_to_the_eleventh_on_paper() -> None:
    found = estimate(10**11)
    assert found.task_bytes <= 4 << 30
    assert found.piece_bytes > 1_000
    assert found.splits < 30_000 * 2
    assert found.total_s < 3 * 3_600
    before = 10**11 // 2_000 * SETTLE_BYTES_A_ROW
    assert before > 8 * (4 << 30), "with 2,000 parts a task would need tens of gigabytes"


def test_java_compiles_and_collects_in_earnest_where_the_run_is_long_or_elsewhere(tmp_path: Path) -> None:
    for master, size, follows, brief in (
        ("local[2]", 1 << 20, False, True),
        ("local", 1 << 20, False, True),
        ("local[*]", 1 << 40, False, False),
        ("local[2]", 1 << 20, True, False),
        ("local-cluster[2,1,1024]", 1 << 20, False, False),
        ("spark://there:7077", 1 << 20, False, False),
    ):
        assert is_brief(master, size, follows) is brief
        java = _settings(tmp_path, master, "1g", 2, brief)["spark.driver.extraJavaOptions"]
        assert all((flag in java) is brief for flag in _SHORT_RUN)
