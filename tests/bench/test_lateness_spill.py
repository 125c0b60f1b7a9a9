"""What waits in a delay store, as it lies on disk: journal and runs, and messages that were cancelled and moved."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from store.disk.files import Files
from store.spill.spill_store import SpillStore
from tests.store.spill_world import STORE_ID, tiny_options

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("ignore")]

NOW_MS = 1_700_000_000_000
EACH = 40


def fill(root: Path) -> tuple[int, int]:
    """A real store with 2 * EACH messages, some cancelled, some moved; answers the number of both."""
    store = SpillStore.open(Files(), root, STORE_ID, tiny_options(), None)
    cancelled = moved = 0
    for far in (False, True):
        first = store.next_id()
        ids = [first] + [store.next_id() for _ in range(EACH - 1)]
        dues = [NOW_MS + (50_000 if far else 5_000) + number for number in range(EACH)]
        entries = [(due, id_, b"record %d" % id_) for due, id_ in zip(dues, ids, strict=True)]
        for at in range(0, EACH, 4):
            block = store.append(entries[at : at + 4])
            with store.lock:
                store.publish(block)
        store.journal.sync()
        while store.spill_step(NOW_MS, NOW_MS):
            pass
        for id_ in ids[::8]:
            with store.lock:
                store.cancel(id_)
            cancelled += 1
        for id_ in ids[3::8]:
            with store.lock:
                found = store.find(id_)
                assert found is not None
                block = store.move(found, b"moved %d" % id_, NOW_MS + 90_000)
                store.publish(block)
            moved += 1
    store.journal.sync()
    assert store.run_count > 0
    assert store.pending_count == 2 * EACH - cancelled
    store.close()
    return cancelled, moved


def test_runs_cancelled_and_moved_messages(spark: Any, tmp_path: Path) -> None:
    from bench.lateness.engines.local_engine import LocalEngine
    from bench.lateness.engines.spark_engine import SparkEngine
    from bench.lateness.engines.spill_source import spill_plan_from_text, spill_plan_to_text
    from bench.lateness.logs.spill_files import plan_spill
    from bench.lateness.logs.storage import storage_for
    from bench.lateness.pipeline import Job, find_sources, run_job

    root = tmp_path / "store"
    (root / "commitlog").mkdir(parents=True)
    (root / "timewheel").mkdir()
    cancelled, moved = fill(root / "timewheel" / "delay")
    assert cancelled and moved
    plan = plan_spill(str(root), storage_for(str(root)))
    assert {file.shape is None for file in plan} == {True, False}
    assert spill_plan_from_text(spill_plan_to_text(plan)) == plan
    job = Job(find_sources([str(root)]), tmp_path / "out", as_of_ms=NOW_MS - 3_600_000)
    total = run_job(SparkEngine(spark), job, lambda _: None)["total"]
    beside = Job(find_sources([str(root)]), tmp_path / "beside", as_of_ms=NOW_MS - 3_600_000)
    assert run_job(LocalEngine(), beside, lambda _: None)["total"] == total
    figures = {
        name: total[name] for name in ("sent", "pending", "cancelled", "overdue", "delivered", "lost", "repeated")
    }
    assert figures == {
        "sent": 2 * EACH,
        "pending": 2 * EACH - cancelled,
        "cancelled": cancelled,
        "overdue": 0,
        "delivered": 0,
        "lost": 0,
        "repeated": 0,
    }
