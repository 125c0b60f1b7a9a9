"""The command's own part, without Spark: what is called wrongly, what is missing, what an expectation decides."""

from __future__ import annotations

import errno
import json
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from bench.log_maker import FIRST_DUE_MS, make_log

pytestmark = pytest.mark.spark  # it imports PySpark, and starts nothing


def call(*arguments: object) -> Result:
    from bench.lateness import command

    return CliRunner().invoke(command.lateness_command, [str(argument) for argument in arguments])


@pytest.fixture(autouse=True)
def words_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages are made, but nothing is drawn: the pictures take longer than the rest, and nobody looks at them here."""
    pytest.importorskip("matplotlib", reason="matplotlib is not installed: extra bench")
    monkeypatch.setattr("bench.report.pieces.page.drawn", lambda chart: f"<div>{chart.key}</div>")


@pytest.fixture
def store(tmp_path: Path) -> Path:
    make_log(tmp_path / "store", np.zeros(3, np.int64), segment_bytes=1 << 20)
    return tmp_path / "store"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--out", "x"], "Missing argument 'SOURCE...'"),
        (["STORE"], "Missing option '--out'"),
        (["STORE", "--out", "x", "--expect", "p99 <= soon"], "soon"),
        (["STORE", "--out", "x", "--by", "topic,colour"], "no grouping colour; there are topic"),
        (["STORE", "--out", "x", "--levels", "1s 5x"], "delay levels '1s 5x'"),
        (["STORE", "--out", "x", "--levels", ""], "--levels '': a value is expected"),
        (["STORE", "--out", "x", "--levels", " "], "delay levels ' '"),
        (["STORE", "--out", "x", "--levels", "1s -5s"], "delay levels '1s -5s'"),
        (["STORE", "--out", "x", "--levels", "9" * 90 + "s"], "numbers with s, m, h or d are expected"),
        (["STORE", "--out", "x", "--by", ","], "',' names no grouping; there are topic"),
        (["STORE", "--out", "x", "--name", " "], "a source has an empty name"),
        (["", "--out", "x"], "SOURCE '': a path is expected"),
        (["s3://", "--out", "x"], "s3://: a path is expected behind ://"),
        (["STORE", "--out", "x", "--rounds", "2"], "--rounds says how --follow goes on"),
        (["STORE", "--out", "x", "--refresh", "5"], "--refresh says how --follow goes on"),
        (["STORE", "--out", "x", "--follow", "--refresh", "nan"], "--refresh nan: a number of seconds"),
        (["STORE", "--out", "x", "--follow", "--refresh", "inf"], "is not in the range"),
        (["STORE", "--out", "x", "--expect", "lost <= " + "9" * 400], "the limit is too large"),
        (["STORE", "--out", "x", "--expect", "within.10 >= 200%"], "a share is from 0 to 1"),
        (["STORE", "--out", "x", "--target", "99% within 0.1ms"], "the time is whole milliseconds"),
        (["STORE", "--out", "x", "--target", "99% within " + "9" * 400 + "s"], "at most 100 years"),
        (["STORE", "--out", "x", "--target", "0.00000000000001% within 1s"], "the share is above 0"),
        (["STORE", "--out", "x", "--spark", "=x"], "KEY=VALUE is expected"),
        (["STORE", "--out", "x", "--spark", "spark.master=yarn"], "give it as --master"),
        (["STORE", "--out", "x", "--spark", "spark.executor.memory=1m"], "spark.executor.memory 1m: Spark needs"),
        (["STORE", "--out", "x", "--memory", "9" * 400 + "g"], "a number with m or g is expected"),
        (["STORE", "--out", "x", "--executor-memory", "999999t"], "more than 64t is no machine's"),
        (["STORE", "--out", "x", "--executor-cores", "9" * 90], "is not in the range"),
        (["STORE", "--out", "x", "--split-mb", "9" * 90], "is not in the range"),
        (["STORE", "--out", "x", "--master", "local[0]"], "local[N], spark://HOST:PORT"),
        (["STORE", "--out", "x", "--master", "spark://host:port"], "local[N], spark://HOST:PORT"),
        (["STORE", "--out", "x", "--master", "local-cluster[2,1]"], "local[N], spark://HOST:PORT"),
        (["STORE", "--out", "x", "--master", "local-cluster[0,1,1024]"], "at least one worker with one core"),
        (["STORE", "--out", "x", "--master", "local-cluster[2, 0, 1024]"], "at least one worker with one core"),
        (["STORE", "--out", "x", "--master", "local-cluster[2,1,512]"], "has 512 MiB, and an executor takes 1g"),
        (
            ["STORE", "--out", "x", "--master", "local-cluster[2,1,1024]", "--executor-memory", "2g"],
            "has 1024 MiB, and an executor takes 2g",
        ),
        (
            ["STORE", "--out", "x", "--master", "local-cluster[2,1,1024]", "--executor-cores", "2"],
            "has 1 cores, and an executor takes 2",
        ),
        (["STORE", "--out", "x", "--baseline", "STORE/commitlog/00000000000000000000"], "cannot be read"),
        (["STORE", "--out", "x", "--storage", "{secret"], "Error: --storage is no JSON object: give one"),
        (["s3://x/y", "--out", "x", "--storage", "[1]"], "Error: --storage is no JSON object: give one"),
        (["STORE", "--out", "x", "--spark", "spark.executor.cores"], "KEY=VALUE is expected"),
        (["STORE", "--out", "x", "--name", "a", "--name", "b"], "2 names for 1 sources"),
        (["STORE", "--out", "x", "--baseline", "STORE"], "is no result of `timewheel lateness`"),
        (["STORE", "--out", "OUT", "--baseline", "OUT"], "is --out too, and would be replaced"),
        (["STORE", "--out", "x", "--target", "fast"], "as in '99.9% within 10ms'"),
        (["STORE", "--out", "x", "--rounds", "0"], "0 is not in the range x>=1"),
        (["STORE", "--out", "OUT", "--engine", "local", "--follow"], "--engine local has no --follow"),
        (["STORE", "--out", "OUT", "--engine", "local", "--memory", "3g"], "--engine local has no --memory"),
        (["STORE", "--out", "OUT", "--engine", "local", "--spark", "a=b"], "--engine local has no --spark:"),
    ],
)
def test_called_wrongly(store: Path, arguments: list[str], said: str) -> None:
    places = {"STORE": store, "OUT": store.parent / "out"}
    head = f"STORE{os.sep}"
    words = [str(store / word.removeprefix(head)) if word.startswith(head) else word for word in arguments]
    result = call(*[places.get(word, word) for word in words])
    assert result.exit_code == 2
    assert said in result.output
    assert not Path("x").exists()


def test_what_is_no_store(tmp_path: Path) -> None:
    result = call(tmp_path / "none", "--out", tmp_path / "out")
    assert (result.exit_code, result.output) == (1, f"Error: {tmp_path / 'none'}: there is no such folder\n")
    result = call(tmp_path, "--out", tmp_path / "out")
    assert result.exit_code == 1
    assert "is no store" in result.output
    assert not (tmp_path / "out").exists()


def test_hdfs_without_hadoops_native_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HADOOP_HOME", "ARROW_LIBHDFS_DIR", "CLASSPATH"):
        monkeypatch.delenv(name, raising=False)
    result = call("hdfs://127.0.0.1:1/logs", "--out", tmp_path)
    assert (result.exit_code, len(result.output.splitlines())) == (1, 1), result.output
    assert "give webhdfs://HOST:PORT/" in result.output
    assert "pip install hdfs-native" in result.output


def test_a_uri_whose_library_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "s3fs"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "s3fs", None)
    result = call("s3://logs/broker-a", "--out", tmp_path / "out")
    assert (result.exit_code, len(result.output.splitlines())) == (1, 1)
    assert result.output.startswith("Error: s3://logs/broker-a: ")
    assert "pip install s3fs" in result.output


def test_without_java(store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    result = call(store, "--out", tmp_path / "out", "--quiet", "--engine", "spark")
    assert result.exit_code == 1
    assert result.output.startswith(
        "Error: the lateness report runs on Spark, which needs Java 17 or 21; none was found"
    )
    assert len(result.output.splitlines()) == 1


@pytest.mark.parametrize(
    ("holds", "status", "word", "found"),
    [(True, 0, "holds", "7"), (False, 1, "FAILS", "7"), (False, 1, "FAILS", "at least 7")],
)
def test_an_expectation_decides_the_exit_status(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, holds: bool, status: int, word: str, found: str
) -> None:
    from bench.lateness import command

    @contextmanager
    def no_spark(*_: object, **__: object) -> Iterator[None]:
        yield None

    def judged(_: object, job: Any, *__: object) -> dict[str, Any]:
        figures = dict.fromkeys(("p50", "p99", "p99.9", "max"), 7)
        counts = {"sent": 3, "delivered": 3, "pending": 0, "overdue": 0, "lost": 0}
        counts |= {"repeated": 0, "early": 0, "cancelled": 0, "unknown": 0}
        total = {"percentiles": figures, "within": {}, "end_to_end": None, **counts}
        total["at_least"] = [] if found == "7" else ["p99"]
        judgements = [expectation.judge(total) for expectation in job.expectations]
        summary = {"total": total, "expectations": judgements, "target": {"holds": True}}
        return summary | {"sources": [{"damaged_count": 0, "not_known": []}]}

    monkeypatch.setattr(command, "spark_session", no_spark)
    monkeypatch.setattr(command, "run_job", judged)
    monkeypatch.setattr(command, "_draw", lambda *_: None)
    text = "p99 <= 7ms" if holds else "p99 < 7ms"
    result = call(store, "--out", tmp_path / "out", "--quiet", "--expect", text)
    assert result.exit_code == status
    assert result.output.splitlines() == [
        f"3 sent; 3 delivered; 0 early; lateness p50 7 ms, p99 {found} ms, p99.9 7 ms, max 7 ms",
        f"{word}: {text} (found {found})",
    ]


def test_a_disk_that_fails_is_one_line(store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever read of the log fails, that of the look around or of the counting; never called a full disk."""
    from bench.lateness import command

    monkeypatch.setattr(command, "_draw", lambda *_: None)
    pread, segment = os.pread, store / "commitlog" / ("0" * 20)
    passed, ended = 0, False
    while not ended:
        left = [passed]

        def fails(fd: int, count: int, position: int, left: list[int] = left) -> bytes:
            left[0] -= 1
            if left[0] < 0:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            return pread(fd, count, position)

        with monkeypatch.context() as patch:
            patch.setattr(os, "pread", fails)
            result = call(store, "--out", tmp_path / "out", "--quiet", "--by", "topic")
        ended = left[0] >= 0
        if not ended:
            assert (result.exit_code, len(result.output.splitlines())) == (1, 1), result.output
            assert result.output.startswith(f"Error: {segment} at ")
            assert result.output.endswith(": Input/output error\n")
        passed += 1
    assert result.exit_code == 0
    assert passed > 3


def test_one_run_at_a_time_in_a_folder(store: Path, tmp_path: Path) -> None:
    from bench.lateness.places import alone_in

    (tmp_path / "out").mkdir()
    with alone_in(tmp_path / "out"):
        result = call(store, "--out", tmp_path / "out", "--engine", "local")
    assert (result.exit_code, len(result.output.splitlines())) == (1, 1), result.output
    assert "another run is at work there" in result.output
    assert list((tmp_path / "out").iterdir()) == []
    with alone_in(tmp_path / "out"):
        pass


def test_a_segment_that_retention_deletes_meanwhile_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store may be live: the reading starts again, with what is there now."""
    from bench.lateness import command

    make_log(tmp_path / "store", np.zeros(9_000, np.int64), segment_bytes=1 << 20)
    oldest, *others = sorted((tmp_path / "store" / "commitlog").iterdir())
    assert len(others) > 1
    look_around = command.look_around

    def look_and_delete(*arguments: Any) -> None:
        look_around(*arguments)
        oldest.unlink(missing_ok=True)

    monkeypatch.setattr(command, "look_around", look_and_delete)
    result = call(tmp_path / "store", "--out", tmp_path / "out", "--quiet")
    assert result.exit_code == 0, result.output
    (source,) = json.loads((tmp_path / "out" / "summary.json").read_text())["sources"]
    assert 0 < source["records"] < 9_000
    assert source["damaged_count"] == 0


def test_a_damaged_baseline(store: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert call(store, "--out", out, "--quiet").exit_code == 0
    (out / "histograms" / "topic.parquet").write_bytes(b"x")
    result = call(store, "--out", tmp_path / "other", "--baseline", out)
    assert result.exit_code == 2
    assert f"Error: --baseline: {out / 'histograms' / 'topic.parquet'} is damaged: " in result.output
    assert call(store, "--out", out, "--quiet").exit_code == 0
    (out / "summary.json").write_text('{"version": 2}')
    result = call(store, "--out", tmp_path / "other", "--baseline", out)
    assert result.exit_code == 2
    assert f"Error: --baseline: {out}: its summary has no total: run" in result.output


def test_receipts_that_are_none(store: Path, tmp_path: Path) -> None:
    """A line with a number that no clock has is passed over like a torn one; a table of something else is said so."""
    seen = tmp_path / "seen.jsonl"
    seen.write_text(json.dumps({"offset_message_id": "A", "store_ms": 1 << 80, "received_ms": 1}))
    result = call(store, "--out", tmp_path / "out", "--received", seen, "--quiet")
    assert result.exit_code == 0
    assert result.output.splitlines()[1:] == [
        f"no receipt in {seen}: a file of `timewheel consume --record` is expected"
    ]
    seen.write_text(json.dumps({"offset_message_id": "A" * 32, "store_ms": 1, "received_ms": 1}))
    result = call(store, "--out", tmp_path / "out", "--received", seen, "--quiet")
    assert result.output.splitlines()[1:] == ["none of 1 receipts leads to a delivery in these logs"]
    other = tmp_path / "out" / "histograms" / "topic.parquet"
    result = call(store, "--out", tmp_path / "two", "--received", other, "--quiet")
    assert result.exit_code == 2
    assert f"Error: --received {other}: no receipts of `consume --record`" in result.output


def test_receipts_of_copies_of_one_log(store: Path, tmp_path: Path) -> None:
    """Nobody can know which copy they are of, and the words say so with their number: terminal, page and JSON."""
    copy = tmp_path / "copy"
    shutil.copytree(store, copy)
    seen = tmp_path / "seen.jsonl"
    due_ms = FIRST_DUE_MS
    lines = [
        {"offset_message_id": f"7F00000100002A9F{place:016X}", "store_ms": due_ms, "received_ms": due_ms + 5}
        for place in (0, 0, 8)
    ]
    seen.write_text("\n".join(map(json.dumps, lines)))
    one = call(store, "--out", tmp_path / "out", "--received", seen, "--quiet")
    assert one.output.splitlines()[1:] == []
    result = call(store, copy, "--out", tmp_path / "out", "--received", seen, "--quiet")
    words = "2 of 3 receipts lead to deliveries in several of these logs, as with copies of one log, and count for none"
    other = "1 of 3 receipts leads to no delivery in these logs"
    assert result.output.splitlines()[1:] == [words, other]
    page = (tmp_path / "out" / "report.html").read_text()
    assert words in page
    assert other in page
    end = json.loads((tmp_path / "out" / "summary.json").read_text())["total"]["end_to_end"]
    assert (end["received"], end["unmatched"], end["ambiguous"]) == (0, 3, 2)


def test_a_figure_that_nothing_was_found_for(store: Path, tmp_path: Path) -> None:
    result = call(store, "--out", tmp_path / "out", "--expect", "e2e.p99 <= 10ms", "--quiet")
    assert result.exit_code == 1
    assert "FAILS: e2e.p99 <= 10ms (found nothing)" in result.output
