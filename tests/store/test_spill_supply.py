"""The journal runs out of prepared segments at the moment in which one is being listed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from store.disk.errors import StoreError, SyncFailedError
from store.disk.files import Files
from store.spill.rows.model import SpillOptions
from store.spill.runs.run_writer import run_name
from store.spill.spill_store import SpillStore
from store.spill.state.directory import SpillDirectory
from tests.support.simdisk import SimDisk

STORE_ID = bytes(range(16))
SEGMENT_BYTES = 2_000


class MeddlingFiles(Files):
    """Calls something, once, while the manifest is being written."""

    def __init__(self) -> None:
        super().__init__()
        self.meanwhile: Callable[[], None] | None = None

    def replace_file(self, path: Path, data: bytes) -> None:
        super().replace_file(path, data)
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            meanwhile()


def test_segments_are_written_in_the_order_in_which_they_are_listed(tmp_path: Path) -> None:
    files = MeddlingFiles()
    options = SpillOptions(segment_bytes=SEGMENT_BYTES, reserve_bytes=0)
    store = SpillStore.open(files, tmp_path, STORE_ID, options, None)
    records: list[bytes] = []
    positions: list[int] = []

    def append() -> None:
        record = b"%04d" % len(records) * 150
        records.append(record)
        with store.lock:
            store.publish(store.append([(10_000 + len(records), store.next_id(), record)]))
        positions.append(store.journal.written)

    append()
    append()  # more than a quarter is used: housekeeping prepares the next segment
    loop = threading.Thread(target=lambda: [append() for _ in range(5)])

    def meanwhile() -> None:
        loop.start()
        loop.join(0.2)  # it rolls, has nothing to roll into, and makes a segment itself, or waits for ours

    files.meanwhile = meanwhile
    for _ in range(40):
        store.spill_step(1_000)
    loop.join()
    for _ in range(5):
        append()
    assert positions == sorted(positions)
    assert store.check() == []

    again = SpillStore.open(Files(), tmp_path, STORE_ID, options, None)
    with again.lock:
        columns = again.scan((-1, 0), 1 << 60, 100)
        assert again.read(columns.refs) == records
    assert again.check() == []
    again.close()
    store.close()


def test_a_file_stays_while_a_power_cut_could_bring_back_a_manifest_that_names_it() -> None:
    disk = SimDisk()
    directory = SpillDirectory(disk, Path("/spill"), STORE_ID)
    directory.load()
    path = directory.runs_path / run_name(5)
    disk.open(path, create=True)
    disk.fail_at("sync_dir", {1}, SyncFailedError("cannot sync directory"))
    directory.discard_run(5)
    assert disk.exists(path)
    directory.discard_run(5)
    assert not disk.exists(path)


def test_a_segment_that_cannot_be_listed_nor_removed_says_why_it_was_not_listed() -> None:
    disk = SimDisk()
    directory = SpillDirectory(disk, Path("/spill"), STORE_ID)
    directory.load()

    def fails(name: str, _path: Path) -> None:
        if name in ("sync_dir", "remove"):
            raise StoreError(f"{name} failed")

    disk.fault = fails
    with pytest.raises(StoreError, match="sync_dir failed"):
        directory.make_segment(SEGMENT_BYTES)
    disk.fault = None
    again = SpillDirectory(disk, Path("/spill"), STORE_ID)
    again.load()
    assert again.open_segments() == []


def test_pending_counts_what_is_accepted_and_not_published_yet() -> None:
    disk = SimDisk()
    store = SpillStore.open(
        disk, Path("/spill"), STORE_ID, SpillOptions(segment_bytes=SEGMENT_BYTES, reserve_bytes=0), None
    )
    first = store.append([(10_000 + n, store.next_id(), b"record") for n in range(3)])
    assert store.pending_count == 3
    with store.lock:
        columns = store.publish(first)
        assert store.pending_count == 3
        found = store.find(columns.ids[0])
        assert found is not None
        moved = store.move(found, b"record", 20_000)
        assert store.pending_count == 3
        store.publish(moved)
        store.mark_done(columns.refs[1:2])
    assert store.pending_count == 2
    second = store.append([(10_000, store.next_id(), b"record")])
    with store.lock:
        store.withdraw(second, second.ids[0])
    assert store.pending_count == 2


def test_what_a_failed_append_left_is_gone_after_a_clean_end() -> None:
    disk = SimDisk()
    options = SpillOptions(segment_bytes=SEGMENT_BYTES, reserve_bytes=0)
    store = SpillStore.open(disk, Path("/spill"), STORE_ID, options, None)
    disk.fail_at("pwrite", {1}, StoreError("cannot write: Input/output error (errno 5)"))
    disk.rng = Whole()
    with pytest.raises(StoreError):
        store.append([(10_000, store.next_id(), b"refused")])
    disk.fault = None
    store.close()
    assert SpillStore.open(disk, Path("/spill"), STORE_ID, options, None).pending_count == 0


def test_a_clean_end_while_a_segment_is_prepared_that_cannot_be_removed() -> None:
    """It stays until the next start, which removes it."""
    disk = SimDisk()
    options = SpillOptions(segment_bytes=SEGMENT_BYTES, reserve_bytes=0)
    store = SpillStore.open(disk, Path("/spill"), STORE_ID, options, None)
    with store.lock:
        store.publish(store.append([(10_000, store.next_id(), bytes(SEGMENT_BYTES // 2))]))
    store.spill_step(1_000)
    (temporary,) = [name for name in disk.listdir(Path("/spill/journal")) if name.endswith(".tmp")]
    disk.fail_at("remove", {1}, StoreError("cannot remove: Input/output error (errno 5)"))
    store.close()
    disk.fault = None
    assert temporary in disk.listdir(Path("/spill/journal"))
    again = SpillStore.open(disk, Path("/spill"), STORE_ID, options, None)
    assert temporary not in disk.listdir(Path("/spill/journal"))
    assert again.pending_count == 1


class Whole(Random):
    """Lets all of a write through that fails."""

    def randint(self, _low: int, high: int) -> int:
        return high
