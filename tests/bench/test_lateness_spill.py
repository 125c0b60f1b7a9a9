"""What waits in a delay store, as it lies on disk: journal and runs, and messages that were cancelled and moved."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from remoting.messages.message import Message, encode_record
from store.disk.checkpoint import DeliveryCheckpoint
from store.disk.files import Files
from store.spill.spill_store import SpillStore
from tests.store.spill_world import STORE_ID, tiny_options
from tests.support.lateness_world import HOST

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
        while store.spill_step(NOW_MS):
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


def test_messages_whose_records_are_damaged_wait_all_the_same(tmp_path: Path) -> None:
    """`fill` makes none that can be read. Due times and ids stand elsewhere, with checksums."""
    from bench.lateness.engines.local_engine import LocalEngine
    from bench.lateness.pipeline import Job, find_sources, run_job

    (tmp_path / "store" / "commitlog").mkdir(parents=True)
    cancelled, _ = fill(tmp_path / "store" / "timewheel" / "delay")
    job = Job(find_sources([str(tmp_path / "store")]), tmp_path / "out", as_of_ms=NOW_MS + 3_600_000)
    summary = run_job(LocalEngine(), job, lambda _: None)
    assert (summary["total"]["overdue"], len(summary["latest"])) == (2 * EACH - cancelled,) * 2


def test_a_damaged_checkpoint_is_one_line(tmp_path: Path) -> None:
    """Wherever the damage is: its done-sets say which messages have ended, so other figures would come of it."""
    from bench.lateness.logs.spill_files import plan_spill
    from bench.lateness.logs.storage import StorageError, storage_for

    fill(tmp_path / "timewheel" / "delay")
    place = tmp_path / "timewheel" / "checkpoint"
    DeliveryCheckpoint(Files(), place, STORE_ID).replace_section("levels", bytes(20), 0)
    assert plan_spill(str(tmp_path), storage_for(str(tmp_path)))
    whole = place.read_bytes()
    cuts = [whole[:size] for size in range(len(whole))]
    flips = [bytes([*whole[:at], whole[at] ^ 1, *whole[at + 1 :]]) for at in range(len(whole))]
    for data in (*cuts, *flips, whole * 2):
        place.write_bytes(data)
        with pytest.raises(StorageError, match="checkpoint is damaged"):
            plan_spill(str(tmp_path), storage_for(str(tmp_path)))


class Copied(bytes):
    """Bytes that count how many of them were copied out."""

    copied = 0

    def __getitem__(self, place: Any) -> Any:
        found = super().__getitem__(place)
        if isinstance(found, bytes):
            Copied.copied += len(found)
        return found


def test_each_record_that_waits_is_copied_once() -> None:
    """Not with all that lies behind it: a broker that has stopped has a journal full of messages that are overdue."""
    from bench.lateness.logs.spill_files import Look, Rows, _read_overdue

    records = [
        encode_record(Message("Orders", born_ms=NOW_MS + number, body=bytes(number % 50)), HOST)
        for number in range(500)
    ]
    sizes = np.array([len(record) for record in records])
    rows = Rows(np.full(500, NOW_MS), np.arange(500), np.zeros(500, np.int64), np.ones(500, np.bool_))
    Copied.copied = 0
    _read_overdue(rows, np.cumsum(sizes) - sizes, Copied(b"".join(records)), Look(NOW_MS))
    assert rows.overdue == {number: (b"Orders", NOW_MS + number) for number in range(500)}
    assert Copied.copied == sizes.sum()


def test_the_latest_that_wait_are_named_by_their_keys(tmp_path: Path) -> None:
    """In the journal and in runs; cancelled ones and those that are due later are not among them."""
    from bench.lateness.engines.local_engine import LocalEngine
    from bench.lateness.pipeline import Job, find_sources, run_job

    root = tmp_path / "store"
    (root / "commitlog").mkdir(parents=True)
    (root / "timewheel").mkdir()
    store = SpillStore.open(Files(), root / "timewheel" / "delay", STORE_ID, tiny_options(segment_bytes=2_000), None)
    keys: dict[int, str] = {}
    for turn in range(3):
        entries = []
        for number in range(20):
            id_ = store.next_id()
            keys[id_ - (1 << 62)] = f"key-{turn}-{number}"
            text = f"KEYS\x01key-{turn}-{number}\x02UNIQ_KEY\x01U{turn}{number}\x02"
            record = encode_record(Message("Orders", born_ms=NOW_MS, properties=text), HOST)
            entries.append((NOW_MS + 5_000 + 40_000 * (turn == 0) + 100 * turn + number, id_, record))
        for at in range(0, 20, 2):
            block = store.append(entries[at : at + 2])
            with store.lock:
                store.publish(block)
        store.journal.sync()
        while turn < 2 and store.spill_step(NOW_MS):
            pass
    assert store.run_count > 0
    store.close()
    job = Job(find_sources([str(root)]), tmp_path / "out", as_of_ms=NOW_MS + 45_010)
    found = run_job(LocalEngine(1), job, lambda _: None)
    assert found["total"]["overdue"] == 51
    named = {int(one["delay_id"], 16): (one["topic"], one["key"], one["message_id"]) for one in found["latest"]}
    assert named == {id_: ("Orders", key, "U" + key[4:].replace("-", "")) for id_, key in keys.items() if id_ in named}
    assert len(named) == 50, "all but the one that is due now"


def told_bytes(root: Path, as_of_ms: int) -> int:
    from bench.lateness.engines.job import look_at_logs
    from bench.lateness.pipeline import Job, find_sources

    job = Job(find_sources([str(root)]), root / "out", as_of_ms=as_of_ms)
    look_at_logs(job)
    return job.bytes_to_read


def waiting_store(root: Path, segment_bytes: int, records: int) -> tuple[SpillStore, int]:
    """A delay store with messages that are due in a minute, one after the other; and the size of their records."""
    (root / "commitlog").mkdir()
    (root / "timewheel").mkdir()
    options = tiny_options(segment_bytes=segment_bytes)
    store = SpillStore.open(Files(), root / "timewheel" / "delay", STORE_ID, options, None)
    record = encode_record(Message("Orders", born_ms=NOW_MS, body=bytes(300)), HOST)
    for number in range(records):
        block = store.append([(NOW_MS + 60_000 + number, store.next_id(), record)])
        with store.lock:
            store.publish(block)
    store.journal.sync()
    return store, len(record)


def test_a_segment_is_read_up_to_its_zeros(tmp_path: Path) -> None:
    """It has its full size from the start, so the size of its file would make a wrong total in the progress."""
    store, record_bytes = waiting_store(tmp_path, 1 << 20, 10)
    assert sum(path.stat().st_size for path in (tmp_path / "timewheel" / "delay" / "journal").iterdir()) >= 1 << 20
    found = told_bytes(tmp_path, NOW_MS)
    assert 10 * record_bytes < found < 10 * (record_bytes + 200)
    with store.lock:
        section = store.snapshot()
    store.close()
    DeliveryCheckpoint(Files(), tmp_path / "timewheel" / "checkpoint", STORE_ID).replace_section("delay", section, 0)
    assert told_bytes(tmp_path, NOW_MS) == found, "from the position in the checkpoint on"


def test_of_a_run_the_records_are_read_only_if_they_are_overdue(tmp_path: Path) -> None:
    store, record_bytes = waiting_store(tmp_path, 2_000, 40)
    while store.spill_step(NOW_MS):
        pass
    assert store.run_count > 0
    store.close()
    before, half, all_ = (told_bytes(tmp_path, NOW_MS + ms) for ms in (59_999, 60_019, 60_039))
    assert all_ - before > 30 * record_bytes
    assert half - before == pytest.approx((all_ - before) / 2, rel=0.2)
