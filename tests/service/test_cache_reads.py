"""A cache whose disk cannot be read any more is given up after a minute: what waits stands in the cluster."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from service.running import cache as caching
from service.running.cache import UNREAD_MS, ShardCache
from store.disk.errors import StoreError
from store.disk.file import File
from store.put.plugin_api import DeliveryTarget, Put, PutResult, PutStatus
from tests.service.test_roller import HOUR, NOW, waiting

COUNT = 100
STEPS_MAX = 10_000


class Rig:
    """A cache whose entries are in a run, and a disk with bad sectors; the threads are the test."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(caching, "SEGMENT_BYTES", 1 << 12)
        self.now_ms = NOW
        self.delivered = 0
        target = SimpleNamespace(scan=lambda _: (), put_batch=lambda puts: self.put(puts))
        self.cache = ShardCache(folder, cast(DeliveryTarget, target), lambda: self.now_ms, lambda _: None)
        self.bad = ""
        read = File.pread

        def pread(file: File, n: int, offset: int) -> bytes:
            if self.bad and self.bad in file.path.name:
                raise StoreError(f"cannot read {n} bytes at {offset} of {file.path}: Input/output error (errno 5)")
            return read(file, n, offset)

        monkeypatch.setattr(File, "pread", pread)
        self.spill = self.cache.plugin.spill
        for at in range(1, COUNT + 1):
            self.cache.add([waiting(at, "orders", NOW + HOUR)])
        self.cache.plugin.sweeper.publish_all()
        for step in range(STEPS_MAX):
            self.spill.spill_step(NOW + step)
            if self.spill.run_count:
                break

    def put(self, puts: list[Put]) -> list[PutResult]:
        self.delivered += len(puts)
        return [PutResult(PutStatus.PUT_OK, store_ms=self.now_ms) for _ in puts]

    def break_runs(self) -> None:
        """From now on no page of a run can be read."""
        (run,) = self.spill._state.runs[:1]
        self.bad = run.path.name
        self.spill._state.cache._pages.clear()

    def works(self, ms: int) -> None:
        """The threads work for so long; the owner looks at the cache each second."""
        until_ms = self.now_ms + ms
        while self.now_ms < until_ms:
            self.now_ms += 1000
            self.cache.plugin.sweeper.step(self.now_ms)
            self.cache.plugin.recovery.step(self.now_ms)
            self.cache.need_whole(self.now_ms)


@pytest.fixture
def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    found = Rig(tmp_path / "c", monkeypatch)
    yield found
    found.bad = ""
    found.cache.close()


def test_a_whole_cache_is_kept(rig: Rig) -> None:
    assert rig.spill.run_count
    rig.now_ms = NOW + HOUR
    rig.works(2 * UNREAD_MS)
    assert rig.delivered == COUNT


def test_a_cache_in_which_nothing_can_be_looked_for_is_given_up(rig: Rig) -> None:
    """A bad sector under one page of a run stopped all deliveries of the shard until the instance was restarted."""
    rig.break_runs()
    for call in (rig.cache.look, rig.cache.drop, rig.cache.take):
        with pytest.raises(StoreError, match="errno 5"):
            call([1])
    rig.now_ms = NOW + HOUR
    with pytest.raises(StoreError, match="a new one"):
        rig.works(2 * UNREAD_MS)
    assert rig.now_ms - (NOW + HOUR) >= UNREAD_MS


def test_a_disk_that_comes_back_in_time_costs_nothing(rig: Rig) -> None:
    rig.break_runs()
    rig.now_ms = NOW + HOUR
    rig.works(UNREAD_MS // 2)
    rig.bad = ""
    rig.works(2 * UNREAD_MS)
    assert rig.delivered == COUNT


def test_a_look_while_they_are_tried_again_begins_no_new_minute(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A retry takes them out of the table of failures. An owner that reads all the time looks at every such moment."""
    rig.now_ms = NOW + HOUR

    def unreadable(*_: object) -> object:
        rig.cache.need_whole(rig.now_ms)
        raise StoreError("cannot read (errno 5)")

    monkeypatch.setattr(rig.spill, "read_slab", unreadable)
    monkeypatch.setattr(rig.spill, "read", unreadable)
    with pytest.raises(StoreError, match="a new one"):
        rig.works(10 * UNREAD_MS)


def test_entries_of_which_the_cache_has_lost_track_are_read_again(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bug in the target: they counted as done there, and the shard waited for them."""
    rig.now_ms = NOW + HOUR

    def bug(_puts: list[Put]) -> list[PutResult]:
        raise ValueError("a bug")

    monkeypatch.setattr(rig, "put", bug)
    with pytest.raises(StoreError, match="a new one"):
        rig.works(2 * UNREAD_MS)
    assert rig.delivered == 0


@pytest.mark.parametrize("which", [0, 1])
def test_a_sweeper_or_a_recovery_that_only_fails_ends_the_cache(rig: Rig, which: int) -> None:
    """The thread goes on after each error, and nothing was delivered any more; the page showed an owned shard."""
    worker = rig.cache.plugin._workers[which]
    with pytest.raises(StoreError, match="a new one"):
        for second in range(2 * UNREAD_MS // 1000):
            worker.error_count += 1
            rig.cache.need_whole(NOW + 1000 * second)
    assert worker.error_count > UNREAD_MS // 1000


def test_a_spiller_that_fails_is_no_reason(rig: Rig) -> None:
    """As on a full disk: what is in the cache is delivered."""
    for second in range(2 * UNREAD_MS // 1000):
        rig.cache.plugin._workers[2].error_count += 1
        rig.cache.need_whole(NOW + 1000 * second)


def test_a_thread_of_the_cache_that_has_ended_ends_it(rig: Rig) -> None:
    rig.cache._flusher.failure = ValueError("a bug")
    with pytest.raises(StoreError, match="a thread of the cache has ended: ValueError"):
        rig.works(1000)
