"""A run with ``--state`` that is killed leaves the old state or the new one."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.bench.test_lateness_state import AS_OF_MS, assert_same, days, prefix, run
from tests.support.lateness_world import LEVELS
from tests.support.wait import happens

pytestmark = [pytest.mark.spark, pytest.mark.process, pytest.mark.filterwarnings("ignore")]

CODE = "from bench.lateness import command; command._draw = lambda *_: None; command.lateness_command()"
"""The command without its pictures, which take longer than the rest."""


def test_killed_at_any_moment_and_run_again(tmp_path: Path) -> None:
    full = days(tmp_path / "full", 8, 2_000)
    run(full, tmp_path / "beside", None)
    words = [str(full), "--out", str(tmp_path / "out"), "--state", str(tmp_path / "state"), "--name", "store"]
    words += ["--as-of", str(AS_OF_MS), "--levels", LEVELS, "--split-mb", "1"]
    rng = random.Random(7)
    killed = 0
    for day in (2, 4, 6, 8):
        prefix(full, tmp_path / "store", day, 1 << 30)
        process = subprocess.Popen(
            [sys.executable, "-c", CODE, str(tmp_path / "store"), *words[1:]],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        begun = (tmp_path / "state").exists()
        happens((tmp_path / "state" / "lock").exists, 60)
        try:
            process.wait(timeout=rng.random() * (1.5 if begun else 0.5))
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            killed += 1
        process.wait()
    assert killed
    run(full, tmp_path / "out", tmp_path / "state")
    assert_same(tmp_path / "out", tmp_path / "beside")


def test_nights_are_measured_and_find_what_one_run_finds(tmp_path: Path) -> None:
    """In a process of its own: it waits for all of its children, of which this one may have others."""
    words = [sys.executable, "-m", "bench.lateness_nights", str(tmp_path), "--days", "2", "--records", "500"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert [line.split("|")[1:3] for line in done.stdout.splitlines()[2:]] == [
        [" 1 ", " 500 "],
        [" 2 ", " 1,000 "],
        [" without a state ", " 1,000 "],
    ]
