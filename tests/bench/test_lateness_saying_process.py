"""What a run says when it ends, and how it ends before its time."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from bench.figures.text import limit_text
from bench.lateness.engines.local_engine import LocalEngine
from bench.lateness.engines.slots import Slots
from bench.lateness.logs.reading import Settings, batch_tasks, read_task
from bench.lateness.pipeline import Job, find_sources, look_around
from bench.lateness.reading_progress import ReadingProgress, progress_for, watched
from bench.log_maker import make_log
from tests.support.wait import wait_until

pytestmark = pytest.mark.spark

CODE = "from bench.lateness.command import lateness_command; lateness_command()"
NO_PICTURES = "from bench.lateness import command; command._draw = lambda *_: None; command.lateness_command()"
"""The command without its pictures, which take longer than the rest."""


def run(*words: object, code: str = CODE) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code, *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)


def test_a_missed_target_is_said_and_changes_no_status(tmp_path: Path) -> None:
    make_log(tmp_path / "store", np.array([0, 0, 0, 70_000]), segment_bytes=1 << 20)
    done = run(tmp_path / "store", "--out", tmp_path / "out", "--quiet", "--target", "99.9% within 1m")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[1:] == ["target missed: 99.9 % within 1 min is wanted, 75 % came in time"]
    page = (tmp_path / "out" / "report.html").read_text()
    assert "within 1 s" in page
    assert "within 1,000 ms" not in page
    met = run(tmp_path / "store", "--out", tmp_path / "out", "--quiet", "--target", "75% within 1m", code=NO_PICTURES)
    assert "target" not in met.stdout


@pytest.mark.parametrize("number", [999, 1_500, 61_000])
def test_limits_without_a_whole_unit(number: int) -> None:
    assert limit_text(number) == ("61 s" if number == 61_000 else f"{number:,} ms")


def left_behind(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if path.name.startswith(("timewheel-spark-", "blockmgr", "spark-"))]


@pytest.mark.process
@pytest.mark.parametrize(("said", "whole_group"), [("starting Spark", False), ("reading", True)])
def test_sigterm_in_the_middle_of_spark_leaves_nothing(tmp_path: Path, said: str, whole_group: bool) -> None:
    """A service manager signals the whole group, Java too: whatever Java is asked then raises."""
    make_log(tmp_path / "store", np.zeros(400_000, np.int64), segment_bytes=64 << 20)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    words = ["--out", str(tmp_path / "out"), "--engine", "spark", "--split-mb", "1"]
    with open(tmp_path / "said", "wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-c", CODE, str(tmp_path / "store"), *words],
            stdout=file,
            stderr=file,
            env=os.environ | {"TMPDIR": str(scratch)},
            start_new_session=True,
        )
    try:
        wait_until(lambda: said in (tmp_path / "said").read_text(), 120, said)
        if said == "starting Spark":
            wait_until(lambda: left_behind(scratch), 120, "Spark's folder")
        (os.killpg if whole_group else os.kill)(process.pid, signal.SIGTERM)
        assert process.wait(120) == 128 + signal.SIGTERM
    finally:
        process.kill()
        process.wait()
    text = (tmp_path / "said").read_text()
    assert "Traceback" not in text, text
    assert "Error" not in text, text
    assert left_behind(scratch) == []
    assert [path.name for path in (tmp_path / "out").iterdir()] == []


class Tracker:
    """What Spark says of its stages: first one that reads, then one that adds up."""

    def __init__(self) -> None:
        self.steps: list[dict[int, tuple[int, int]]] = [{3: (8, 0)}, {3: (8, 4)}, {4: (2, 1)}]

    def getActiveStageIds(self) -> list[int]:  # noqa: N802
        return list(self.steps[0])

    def getStageInfo(self, number: int) -> Any:  # noqa: N802
        tasks, done = self.steps[0][number]
        if len(self.steps) > 1:
            self.steps.pop(0)
        return type("Info", (), {"numTasks": tasks, "numCompletedTasks": done})


def test_sparks_tasks_are_told_as_bytes_then_as_tasks() -> None:
    said: list[str] = []
    progress = ReadingProgress(said.append, every_s=0.02)
    with progress.telling(80_000_000), watched(Tracker(), progress):
        wait_until(lambda: any("adding up" in line for line in said), 10, "the second stage")
    kinds = list(dict.fromkeys(line.partition(" %")[0] for line in said))
    assert kinds == ["0.0 of 80.0 MB, 0", "40.0 of 80.0 MB, 50", "read; adding up: 1 of 2 tasks"]


class Slow:
    """A log of a storage that gives nothing until it is let."""

    skips = False

    def __init__(self, path: str, let: threading.Event, asked: threading.Event) -> None:
        self._file = open(path, "rb")  # noqa: SIM115 - `close` closes it
        self._let, self._asked = let, asked

    def read(self, position: int, count: int) -> bytes:
        self._asked.set()
        assert self._let.wait(60)
        self._file.seek(position)
        return self._file.read(count)

    def data_end(self, size: int) -> int:
        return size

    def close(self) -> None:
        self._file.close()


@pytest.mark.parametrize("share_bytes", [1 << 20, 1 << 30])
def test_a_source_that_gives_nothing_is_told_from_the_first_second_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, share_bytes: int
) -> None:
    """Within one share, too: the first chunks of a share of 32 MB are told before the share is read."""
    make_log(tmp_path / "store", np.zeros(20_000, np.int64), segment_bytes=64 << 20)
    let, asked = threading.Event(), threading.Event()
    job = Job(find_sources([str(tmp_path / "store")]), tmp_path / "out", split_bytes=share_bytes)
    look_around(job, None)
    monkeypatch.setattr(
        "bench.lateness.logs.reading.storage_for",
        lambda *_: SimpleNamespace(open=lambda path, _: Slow(path, let, asked), is_folder=lambda _: True),
    )
    said: list[str] = []
    progress = ReadingProgress(said.append, every_s=0.01)
    engine = LocalEngine(1, progress.counting)
    with progress.telling(job.bytes_to_read):
        assert said == ["0.0 of 6.0 MB, 0 %"]
        work = threading.Thread(target=engine.sums, args=(job,))
        work.start()
        assert asked.wait(60)
        lines = len(said)
        wait_until(lambda: len(said) > lines + 3, 60, "lines while nothing comes")
        assert {line.partition(" %")[0] for line in said} == {"0.0 of 6.0 MB, 0"}
        let.set()
        work.join()
        wait_until(lambda: said[-1] == "read; adding up", 60, "the end of the reading")


def test_chunks_of_a_share_are_told_one_by_one(tmp_path: Path) -> None:
    make_log(tmp_path / "store", np.zeros(20_000, np.int64), segment_bytes=64 << 20)
    settings = Settings.of({"path": str(tmp_path / "store"), "rows": "delays"})
    (task,) = batch_tasks(settings)
    told: list[int] = []
    list(read_task(settings, task, told.append))
    assert len(told) > 2
    assert told == sorted(set(told))
    assert told[-1] == 6_000_000


def test_slots_add_up_over_processes(tmp_path: Path) -> None:
    slots = Slots(str(tmp_path / "read"))
    assert slots.sum() == 0
    slots.make(3)
    slots.of(0).put(7)
    slots.of(2).put(1 << 40)
    slots.of(0).put(8)
    assert slots.sum() == 8 + (1 << 40)


class Terminal(io.StringIO):
    """A terminal that has nothing but a carriage return."""

    def isatty(self) -> bool:
        return True

    def shown(self) -> list[str]:
        lines = []
        for line in self.getvalue().split("\n"):
            shown = ""
            for part in line.split("\r"):
                shown = part + shown[len(part) :]
            lines.append(shown.rstrip())
        return lines


def test_a_line_covers_the_progress_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    from bench.lateness import command

    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    progress = progress_for(False)
    progress._tell("1,234.5 of 2,345.6 MB, 52 %, 56.7 MB/s, 20 s left")
    command._say("joining what consumers saw")
    progress._tell("1.3 of 1.6 MB")
    assert terminal.shown() == ["joining what consumers saw", "1.3 of 1.6 MB"]


@pytest.mark.process
def test_off_a_terminal_the_first_lines_come_at_once(tmp_path: Path) -> None:
    make_log(tmp_path / "store", np.zeros(20_000, np.int64), segment_bytes=64 << 20)
    done = run(tmp_path / "store", "--out", tmp_path / "out", code=NO_PICTURES)
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines()[:2] == ["0.0 of 6.0 MB, 0 %", "reading 6 MB of 1 log"]
    assert run(tmp_path / "store", "--out", tmp_path / "out", "--quiet").stderr == ""


@pytest.mark.process
def test_without_a_standard_error_a_run_goes_on(tmp_path: Path) -> None:
    make_log(tmp_path / "store", np.zeros(20, np.int64), segment_bytes=1 << 20)
    words = [sys.executable, "-c", CODE, str(tmp_path / "store"), "--out", str(tmp_path / "out")]
    done = subprocess.run(["sh", "-c", '"$@" 2>&-', "sh", *words], stdout=subprocess.PIPE, timeout=600, check=False)
    assert done.returncode == 0
    assert done.stdout.startswith(b"20 sent; 20 delivered; ")
    assert (tmp_path / "out" / "report.html").exists()
