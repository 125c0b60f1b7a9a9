"""Following a log that grows: what is counted at the end is what one reading counts, also after a stop in between."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from bench.lateness.logs.storage import LogMovedError, StorageError
from tests.support.lateness_world import LEVELS, START_MS, GrowingLog

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("ignore")]

AS_OF_MS = START_MS + 40_000
COUNTED = ("records", "bytes", "sent", "delivered", "pending", "overdue", "repeated", "early", "lost", "cancelled")


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


def rounds_that_fail(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, fails: Callable[[int], None]
) -> tuple[Any, list[int]]:
    """`follow` whose steps do nothing but fail, told their number; and what they have done."""
    from bench.lateness import follow as following

    GrowingLog(tmp_path / "store", 20)
    taken: list[int] = []

    def take(*_: object) -> bool:
        taken.append(1)
        fails(len(taken))
        return True

    monkeypatch.setattr(following, "_take", take)
    monkeypatch.setattr(following, "_rows", lambda *_: None)
    monkeypatch.setattr(following, "run_job", lambda *_: {"rows": len(taken)})
    return partial(following.follow, None, make(tmp_path / "store", tmp_path / "out"), 0.0), taken


DELETED = LogMovedError("a segment is deleted")
SLOW = RuntimeError(
    "[STREAM_FAILED] Query … terminated with exception: Python worker failed to connect back. SQLSTATE: XXKST"
)


@pytest.mark.parametrize(
    ("error", "failures", "ends"), [(DELETED, 2, 2), (DELETED, 3, 0), (SLOW, 9, 2), (SLOW, 10, 0), (OSError(), 1, 0)]
)
def test_a_round_whose_error_may_pass_is_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, failures: int, ends: int
) -> None:
    """A segment is deleted by retention while the stream reads, or Python starts slowly; but not for ever."""
    from bench.lateness.command import _tries

    def fails(number: int) -> None:
        if number % (failures + 1):
            raise error

    told: list[Any] = []
    run, taken = rounds_that_fail(monkeypatch, tmp_path, fails)
    with nullcontext() if ends else pytest.raises(type(error)):
        run(2, told.append, threading.Event(), _tries)
    assert len(taken) == (2 * (failures + 1) if ends else failures)
    assert len(told) == ends


@pytest.mark.parametrize("ours", [True, False])
def test_a_round_that_fails_once_the_signal_came(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ours: bool) -> None:
    """What ended Java, or a process of Python's, may be the signal. An error of ours is an error."""
    from bench.lateness.command import _tries

    stop = threading.Event()

    def fails(number: int) -> None:
        if number == 2:
            stop.set()
            raise StorageError("no space") if ours else RuntimeError("Python worker exited unexpectedly")

    told: list[Any] = []
    run, _ = rounds_that_fail(monkeypatch, tmp_path, fails)
    with pytest.raises(StorageError) if ours else nullcontext():
        assert run(None, told.append, stop, _tries) == {"rows": 1}
    assert told == [{"rows": 1}]
