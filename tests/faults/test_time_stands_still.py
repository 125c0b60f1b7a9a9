"""The process is stopped for a while (``TIMEWHEEL_STOPPED_SECONDS``), or the wall clock is set under it."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from tests.support.fault_storm import Storm, check_store
from tests.support.wait import let_pass, wait_until

pytestmark = pytest.mark.process

HOUR_MS = 3_600_000
STOPPED_SECONDS = float(os.environ.get("TIMEWHEEL_STOPPED_SECONDS", "4"))


def test_stopped_and_continued(tmp_path: Path) -> None:
    """What was missed goes out before what comes due much later, and that does not wait: the stop leaves no trace."""
    stop_ms = int(STOPPED_SECONDS * 1000)
    load = {"rate": 300, "due_to_ms": 5_000 + stop_ms, "levels": 0}
    with Storm(tmp_path, seed=7, flush="SYNC_FLUSH", load_options=load) as storm:
        storm.start()
        storm.begin_load()
        storm.wait_acknowledged()
        storm.broker.child.process.send_signal(signal.SIGSTOP)
        stopped_ms = int(time.time() * 1000)
        let_pass(STOPPED_SECONDS)
        continued_ms = int(time.time() * 1000)
        storm.broker.child.process.send_signal(signal.SIGCONT)
        storm.wait_acknowledged()
        storm.end_load()
        storm.settle()
        verdict = storm.judge()
        assert storm.broker.stop() == 0
        status, text = check_store(storm.broker)
    assert not verdict.wrong, str(verdict)
    assert status == 0, text
    missed = [stored for due, stored in verdict.due_and_store_ms if stopped_ms < due < continued_ms]
    assert len(missed) > 100
    later = [(due, stored) for due, stored in verdict.due_and_store_ms if due > continued_ms + stop_ms]
    assert len(later) > 50
    first_ms = min(stored for _, stored in later)
    assert sum(stored > first_ms for stored in missed) <= len(missed) // 20, "what was missed takes too long"
    # A clock that is behind by the stop would make all of them late by as much.
    late = sum(stored - due > stop_ms // 2 for due, stored in later)
    assert late <= len(later) // 20, "late although nothing is in the way"


def test_a_clock_that_is_set_to_and_fro_and_kills(tmp_path: Path) -> None:
    load = {"rate": 1_000, "due_to_ms": 3_000}
    with Storm(tmp_path, seed=8, load_options=load) as storm:
        storm.start()
        storm.begin_load()
        for step_ms in (700, HOUR_MS, -2_500):
            storm.broker.control["clock_ms"] = step_ms
            storm.kill_after(0.8)
        # What was stored for a level in the hour ahead is due then, by the wall clock: it has to come there again.
        storm.broker.control["clock_ms"] = HOUR_MS
        wait_until(lambda: storm.broker.info()["timewheelClockStepsForward"] != "0", 60, "the broker sees the step")
        let_pass(2)
        storm.end_load()
        storm.settle()
        verdict = storm.judge()
        assert storm.broker.stop() == 0
        status, text = check_store(storm.broker)
    assert not verdict.wrong, str(verdict)
    assert status == 0, text
