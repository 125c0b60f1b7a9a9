"""The broker ends and comes back with messages pending that are due before, during and after the downtime."""

from __future__ import annotations

import time
from itertools import pairwise
from pathlib import Path

import pytest

from tests.support.fault_storm import Storm, check_store
from tests.support.wait import let_pass

pytestmark = pytest.mark.process

SETTLED_MS = 1_500
"""How long after a start lateness is not held against it: what is overdue goes out first."""


def test_sigterm_under_load_ends_at_once_and_cleanly(tmp_path: Path) -> None:
    load = {"rate": 2_000, "due_to_ms": 3_000, "levels": 0}
    with Storm(tmp_path, seed=3, flush="SYNC_FLUSH", load_options=load) as storm:
        storm.start()
        storm.begin_load()
        took: list[float] = []
        for _ in range(3):
            let_pass(1)
            begin = time.monotonic()
            assert storm.broker.stop() == 0, storm.broker.child.tail()
            took.append(time.monotonic() - begin)
            storm.note_down()
            assert not (storm.broker.store / "abort").exists()
            status, text = check_store(storm.broker)
            assert status == 0, text
            storm.start()
        storm.end_load()
        storm.settle()
        verdict = storm.judge()
    assert not verdict.wrong, str(verdict)
    # As a rule it takes a tenth of a start. To wait for what is pending would take 3 s, and grow with nothing.
    assert sorted(took)[1] < max(storm.start_ms) / 1000, f"seconds to end: {took}, ms to start: {storm.start_ms}"


def test_due_before_during_and_after_two_downtimes(tmp_path: Path) -> None:
    with Storm(tmp_path, seed=4, load_options={"rate": 1_000, "due_to_ms": 30_000, "levels": 0}) as storm:
        storm.start()
        storm.begin_load()
        storm.wait_acknowledged(1_500)
        storm.end_load()
        assert storm.broker.stop() == 0, storm.broker.child.tail()
        storm.note_down()
        let_pass(1)
        storm.start()
        let_pass(SETTLED_MS / 1000 + 1)
        storm.down()
        let_pass(1)
        storm.start()
        storm.settle()
        verdict = storm.judge()
        up = storm.started
    assert not verdict.wrong, str(verdict)
    for (_, down_ms), (up_ms, next_down_ms) in pairwise(up):
        during = [stored for due, stored in verdict.due_and_store_ms if down_ms < due < up_ms]
        assert len(during) > 20
        after = [
            (due, stored)
            for due, stored in verdict.due_and_store_ms
            if up_ms + SETTLED_MS <= due and not 0 < next_down_ms <= stored
        ]
        assert len(after) > 10
        first_ms = min(stored for _, stored in after)
        assert sum(stored > first_ms for stored in during) <= len(during) // 20, "what was due meanwhile takes too long"
        # A clock that is behind by the downtime would make all of them late by as much.
        late = sum(stored - due > (up_ms - down_ms) // 2 for due, stored in after)
        assert late <= len(after) // 2, "late although nothing is in the way"
