"""SIGTERM ends a run wherever it falls: Python leaves out what is raised while an object is removed.

Ctrl-C ends a run that follows with its last result, whatever process it reaches.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Callable
from functools import partial
from multiprocessing import active_children
from pathlib import Path

import pytest

from bench.lateness.engines.ending import TERMINATED, ends_on_sigterm, held, terminated
from bench.lateness.engines.local_engine import _pool
from bench.log_maker import make_log, spread_lateness
from tests.support.lateness_world import LEVELS, GrowingLog
from tests.support.process_group import group_ends
from tests.support.wait import wait_until


class _Thing:
    """Something to refer to weakly."""


class _Signals:
    """Signals this process while it is removed."""

    def __del__(self) -> None:
        os.kill(os.getpid(), signal.SIGTERM)


def _by_a_weak_reference() -> None:
    thing = _Thing()
    reference = weakref.ref(thing, lambda _: os.kill(os.getpid(), signal.SIGTERM))
    del thing
    assert reference() is None


def _by_a_removed_object() -> None:
    thing = _Signals()
    del thing


def _twice() -> None:
    _by_a_weak_reference()
    _by_a_removed_object()


@pytest.mark.parametrize("signals", [_by_a_weak_reference, _by_a_removed_object, _twice])
def test_a_signal_that_falls_where_nothing_can_be_raised(
    signals: Callable[[], None], capfd: pytest.CaptureFixture[str]
) -> None:
    hook, handler = sys.unraisablehook, signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as ended, ends_on_sigterm():
        signals()
        wait_until(lambda: False, 20, "the end of the run")
    assert ended.value.code == TERMINATED
    assert terminated()
    assert (sys.unraisablehook, signal.getsignal(signal.SIGTERM)) == (hook, handler)
    assert capfd.readouterr().err == ""
    with held():
        pass  # what comes behind a run that the signal has ended is not ended by it once more


@pytest.mark.process
def test_what_ends_a_run_does_not_wait_for_its_processes() -> None:
    """Ctrl-C does not reach them, and a task of a large log takes minutes."""
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt), _pool(2) as run:
        run(partial(select.select, [], [], []), [100, 100, 100])
        wait_until(lambda: len(active_children()) == 2, 60, "processes at work")
        raise KeyboardInterrupt
    assert time.monotonic() - began < 60
    assert not active_children()


@pytest.mark.process
def test_ctrl_c_reaches_the_processes_of_a_run_that_follows(tmp_path: Path) -> None:
    """It ends with the result that they were at work on."""
    make_log(tmp_path / "store", spread_lateness(200_000), segment_bytes=8 << 20)
    several = "from bench.lateness.engines.local_engine import LocalEngine; from functools import partial"
    code = f"{several}; from bench.lateness import command; command._draw = lambda *_: None"
    code += "; command.LocalEngine = partial(LocalEngine, processes=2, alone_bytes_max=0); command.lateness_command()"
    words = [str(tmp_path / "store"), "--out", str(tmp_path / "out"), "--state", str(tmp_path / "state"), "--follow"]
    said = tmp_path / "said"
    with open(said, "w") as file:
        command = [sys.executable, "-c", code, *words, "--split-mb", "1"]
        process = subprocess.Popen(command, stdout=file, stderr=file, start_new_session=True)
    try:
        reads = lambda: list((tmp_path / "out").glob(".rows-*/1")) or process.poll() is not None  # noqa: E731
        wait_until(reads, 120, "a process that reads")
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(120) == 0, said.read_text()
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    assert "200,000 sent; 200,000 delivered" in said.read_text()
    assert "Traceback" not in said.read_text()


def slow_python(folder: Path) -> Path:
    """A Python whose first process for a stream takes longer to start than Spark waits, as on a busy machine."""
    script = folder / "python"
    started = folder / "started"
    late = f"if ! [ -e {started} ]; then touch {started}; sleep 11; fi"
    script.write_text(f'#!/bin/sh\ncase "$*" in *streaming_source_runner*) {late};; esac\nexec {sys.executable} "$@"\n')
    script.chmod(0o755)
    return script


@pytest.mark.spark
@pytest.mark.process
def test_the_command_ends_on_ctrl_c_with_its_last_result_and_leaves_nothing(tmp_path: Path) -> None:
    GrowingLog(tmp_path / "store", 40)
    scratch = Path(tempfile.mkdtemp(dir=tmp_path))
    code = "from bench.lateness.command import lateness_command; lateness_command()"
    arguments = [str(tmp_path / "store"), "--out", str(tmp_path / "out"), "--follow", "--refresh", "0.5"]
    told = tmp_path / "stderr"
    with open(told, "w") as file:
        process = subprocess.Popen(
            [sys.executable, "-c", code, *arguments, "--levels", LEVELS],
            stdout=subprocess.PIPE,
            stderr=file,
            text=True,
            env={**os.environ, "TMPDIR": str(scratch), "PYSPARK_PYTHON": str(slow_python(tmp_path))},
            start_new_session=True,
        )
    try:
        first = lambda: " sent; " in told.read_text() or process.poll() is not None  # noqa: E731
        wait_until(first, 240, "the first result")
        assert process.poll() is None, told.read_text()
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does: Java and Python's workers get it, too
        stdout, _ = process.communicate(timeout=240)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    assert process.returncode == 0, told.read_text()
    assert " sent; " in stdout
    assert (tmp_path / "out" / "summary.json").exists()
    assert (tmp_path / "started").exists()
    assert not list(scratch.glob("timewheel-spark-*"))
    assert group_ends(process.pid, 30)  # Java takes a moment to go
