"""The latest hundred messages: the same whatever the parts, against a plain sort; and what their records say."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.lateness.counting.latest import LATE_MOST, late_rows, latest_messages, said_of
from bench.lateness.engines.local_engine import LocalEngine
from bench.lateness.logs import planning
from bench.lateness.logs.packing import NONE
from bench.lateness.logs.planning import plan_log
from bench.lateness.logs.sources import LogSource
from bench.lateness.pipeline import Job, find_sources, run_job
from bench.log_maker import FIRST_DUE_MS, make_log
from remoting.messages.message import Message
from tests.support.lateness_world import Log


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


class Asked:
    """A storage over a network, as far as this is concerned: what it was asked for."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.asked: list[tuple[int, int]] = []

    def peek(self, path: str, position: int, count: int) -> bytes:
        del path
        self.asked.append((position, count))
        return self.data[position : position + count]

    def open(self, path: str) -> Any:
        raise AssertionError(f"{path} is read ahead of by the megabyte")


def test_a_record_costs_one_small_request_wherever_it_lies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(3)
    log = Log(tmp_path, 1 << 16)
    for number, size in enumerate((10, 9_000, 300, 4_096)):
        log.append(Message(f"T{number}", 0, body=rng.randbytes(size), properties=f"KEYS\x01k{number}\x02"), number)
    log.close()
    storage = Asked((tmp_path / "commitlog" / f"{0:020d}").read_bytes())
    monkeypatch.setattr("bench.lateness.counting.latest.storage_for", lambda *_: storage)
    source, plan = LogSource("a", "s3://logs/a", "timewheel"), plan_log(str(tmp_path))
    found = [said_of(source, plan, place) for place, _ in log.places]
    assert found == [(f"T{number}", f"k{number}", None) for number in range(4)]
    assert len(storage.asked) == 4 + 2
    assert max(count for _, count in storage.asked) < 9_000
    assert all(position + count <= 1 << 16 for position, count in storage.asked)
    assert said_of(source, plan, log.places[0][0] + 1) == (None, None, None)


@pytest.mark.parametrize("zeros", [0, 1, 70_000, 3 << 20, 30 << 20])
def test_the_end_of_a_zero_filled_segment_far_away(zeros: int) -> None:
    """Zeros behind the data are read once, in requests that grow; a full segment costs one small request."""

    class Remote(Asked):
        def open(self, path: str) -> Any:
            del path
            return type("File", (), {"data_end": lambda _, size: size, "close": lambda _: None})()

    storage = Remote(b"record" + bytes(zeros))
    assert planning._not_zero_end(storage, "x", 6 + zeros) == 6  # type: ignore[arg-type]
    assert sum(count for _, count in storage.asked) <= 6 + zeros
    assert len(storage.asked) <= 12
