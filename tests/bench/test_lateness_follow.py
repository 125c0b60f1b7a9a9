"""Following a log that grows: what is counted at the end is what one reading counts, also after a stop in between."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.support.lateness_world import LEVELS, START_MS, make_world, write_world
from tests.support.process_group import group_ends

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("ignore")]

AS_OF_MS = START_MS + 40_000
COUNTED = ("records", "bytes", "sent", "delivered", "pending", "overdue", "repeated", "early", "lost", "cancelled")


class GrowingLog:
    """The whole log of a world, of which as many records as are shown are there; the rest is zeros."""

    def __init__(self, folder: Path, messages: int) -> None:
        rng = random.Random(11)
        self._log = write_world(make_world(rng, messages), folder, rng)
        self._whole = {path: path.read_bytes() for path in sorted(self._log.folder.iterdir())}
        self.records = len(self._log.places)

    def show(self, records: int, torn_bytes: int = 0) -> None:
        """The first records, and of the next one ``torn_bytes``: a broker may be writing it."""
        end = sum(self._log.places[records - 1]) + torn_bytes
        for path, data in self._whole.items():
            base = int(path.name)
            if base >= end:
                path.unlink(missing_ok=True)
            else:
                path.write_bytes(data[: end - base].ljust(len(data), b"\0"))


def make(store: Path, out: Path) -> Any:
    from bench.lateness.pipeline import Job, find_sources

    return lambda: Job(find_sources([str(store)], levels=LEVELS), out, as_of_ms=AS_OF_MS, split_bytes=3_000)


def same(followed: dict[str, Any], out: Path, whole: dict[str, Any], whole_out: Path) -> None:
    from bench.lateness.results.result import read_result

    (one,), (other,) = followed["sources"], whole["sources"]
    assert {name: one[name] for name in COUNTED} == {name: other[name] for name in COUNTED}
    assert one["percentiles"] == other["percentiles"]
    tables, expected = read_result(out).histograms, read_result(whole_out).histograms
    assert {n: t.to_pylist() for n, t in tables.items()} == {n: t.to_pylist() for n, t in expected.items()}


def test_a_log_that_grows_is_counted_as_one_reading_counts_it(spark: Any, tmp_path: Path) -> None:
    from bench.lateness.engines.spark_engine import SparkEngine
    from bench.lateness.follow import follow
    from bench.lateness.pipeline import run_job

    store, out = tmp_path / "store", tmp_path / "out"
    log = GrowingLog(store, 150)
    shown = [log.records // 4, log.records // 2, log.records]
    log.show(shown.pop(0), torn_bytes=60)
    told = []

    def grow(summary: dict[str, Any]) -> None:
        told.append(summary["sources"][0]["records"])
        if len(told) == 1:
            log.show(shown.pop(0))

    follow(spark, make(store, out), 0.0, 2, grow, threading.Event())
    assert told == [log.records // 4, log.records // 2]
    log.show(shown.pop(0))
    # Started anew, as after a crash: it goes on from the checkpoint, and has every row once.
    last = follow(spark, make(store, out), 0.0, 1, grow, threading.Event())
    assert last is not None
    whole = run_job(SparkEngine(spark), make(store, tmp_path / "whole")(), lambda _: None)
    same(last, out, whole, tmp_path / "whole")
    assert not spark.streams.active


def test_a_stop_before_the_first_result_leaves_no_stream(spark: Any, tmp_path: Path) -> None:
    from bench.lateness.follow import follow

    GrowingLog(tmp_path / "store", 20)
    stop = threading.Event()
    stop.set()
    assert follow(spark, make(tmp_path / "store", tmp_path / "out"), 0.0, None, lambda _: None, stop) is None
    assert not spark.streams.active


@pytest.mark.parametrize("failures", [0, 1, 2, 3])
def test_a_round_in_which_a_segment_is_deleted_is_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failures: int
) -> None:
    """By retention, while the stream reads; but not for ever."""
    from bench.lateness import follow as following
    from bench.lateness.logs.storage import LogMovedError

    GrowingLog(tmp_path / "store", 20)
    taken: list[int] = []

    def take(*_: object) -> bool:
        taken.append(1)
        if len(taken) % 4 and len(taken) % 4 <= failures:
            raise LogMovedError("a segment is deleted")
        return True

    monkeypatch.setattr(following, "_take", take)
    monkeypatch.setattr(following, "_rows", lambda *_: None)
    monkeypatch.setattr(following, "run_job", lambda *_: {"rows": len(taken)})
    told: list[Any] = []
    words: Any = (None, make(tmp_path / "store", tmp_path / "out"), 0.0, 2, told.append, threading.Event())
    moved = lambda error: isinstance(error, LogMovedError)  # noqa: E731
    if failures == 3:
        with pytest.raises(LogMovedError):
            following.follow(*words, moved)
        assert len(taken) == 3
        return
    following.follow(*words, moved)
    assert len(told) == 2


@pytest.mark.process
def test_the_command_ends_on_ctrl_c_with_its_last_result_and_leaves_nothing(tmp_path: Path) -> None:
    GrowingLog(tmp_path / "store", 40)
    scratch = Path(tempfile.mkdtemp(dir=tmp_path))
    code = "from bench.lateness.command import lateness_command; lateness_command()"
    arguments = [str(tmp_path / "store"), "--out", str(tmp_path / "out"), "--follow", "--refresh", "0.5"]
    process = subprocess.Popen(
        [sys.executable, "-c", code, *arguments, "--levels", LEVELS],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(scratch)},
        start_new_session=True,
    )
    try:
        assert process.stderr is not None
        for line in process.stderr:
            if " sent; " in line:
                break
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does: Java and Python's workers get it, too
        stdout, stderr = process.communicate(timeout=240)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    assert process.returncode == 0, stderr
    assert " sent; " in stdout
    assert (tmp_path / "out" / "summary.json").exists()
    assert not list(scratch.glob("timewheel-spark-*"))
    assert group_ends(process.pid, 30)  # Java takes a moment to go
