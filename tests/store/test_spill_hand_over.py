"""Files that change hands while a checkpoint is being written, or while the manifest cannot be."""

from __future__ import annotations

import pytest

from store.disk.errors import StoreError, StoreFullError, SyncFailedError
from store.spill.rows.manifest import RunEntry
from store.spill.rows.model import Key, SpillOptions
from store.spill.runs.run import Run
from store.spill.spill_store import SpillStore
from tests.store.spill_world import FOREVER, ROOT, STORE_ID, tiny_options
from tests.support.simdisk import SimDisk


class Bench:
    """A spill store and the checkpoint beside it, which can be stopped half way."""

    def __init__(self, **options: int) -> None:
        self.disk = SimDisk()
        self.options: SpillOptions = tiny_options(**options)
        self.section: bytes | None = None
        self.now_ms = 0
        self.old: list[SpillStore] = []
        self.store = self._open()

    def _open(self) -> SpillStore:
        return SpillStore.open(self.disk, ROOT, STORE_ID, self.options, self.section)

    def accept(self, *dues: int, size: int = 200) -> None:
        for due in dues:
            block = self.store.append([(due, self.store.next_id(), b"%d" % due + bytes(size))])
            with self.store.lock:
                self.store.publish(block)

    def snapshot(self) -> bytes:
        with self.store.lock:
            return self.store.snapshot()

    def finish(self, section: bytes) -> None:
        self.store.journal.sync()
        self.section = section
        self.store.durable()

    def step(self) -> bool:
        return self.store.spill_step(self.now_ms)

    def settle(self) -> None:
        for _ in range(3):
            while self.step():
                pass
            self.finish(self.snapshot())
        while self.step():
            pass

    def deliver(self, until_ms: int) -> list[int]:
        with self.store.lock:
            found = self.store.scan((-1, 0), until_ms, 10_000)
            self.store.mark_done(found.refs)
        return found.dues

    def dues(self) -> list[int]:
        with self.store.lock:
            return self.store.scan((-1, 0), FOREVER, 10_000).dues

    def crash(self) -> None:
        self.disk.kill()
        self.old.append(self.store)
        self.store = self._open()


def test_a_run_that_a_checkpoint_finishes_is_not_merged_meanwhile() -> None:
    """The merge would copy what is delivered (not durably so yet), and the run that says so would go."""
    bench = Bench(runs_max=1, merge_width=2, near_ms=1_000)
    for step in range(2):
        bench.accept(*(100_000 + 10_000 * step + n for n in range(6)))
        bench.settle()
        bench.now_ms += 10_000
    bench.store._housekeeping._merge_again_ms = FOREVER
    bench.accept(*(150_000 + n for n in range(6)))
    bench.settle()
    assert bench.store.run_count >= 2
    first = min(bench.store._state.runs, key=lambda run: run.shape.due_min)
    delivered = bench.deliver(first.shape.due_max + 1)
    pending = bench.dues()
    assert not first.live
    section = bench.snapshot()
    bench.store._housekeeping._merge_again_ms = 0
    bench.step()
    bench.step()  # a merge is under way, if one begins at all
    bench.finish(section)
    for _ in range(1000):
        if not bench.step():
            break
    assert delivered
    assert bench.dues() == pending
    bench.crash()
    assert bench.dues() == pending
    assert bench.store.check() == []


@pytest.mark.parametrize("undone", [True, False])
def test_a_switch_that_fails_leaves_everything_with_its_owner(undone: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The frontier overtakes a relocation, and then the manifest cannot be written: perhaps not even put back."""
    bench = Bench(near_ms=1_000)
    for n in range(8):
        bench.accept(100_000 + 10_000 * n)
    pending = bench.dues()
    directory = bench.store._state.directory
    switch, calls = directory.switch, 0

    def overtaken(run: RunEntry, uppers: dict[int, Key], ends: dict[int, int]) -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            switch(run, uppers, ends)
            with bench.store.lock:
                bench.store.frontier_ms = 165_001  # far beyond what was noted when the copy began
        else:
            full = StoreFullError("cannot rename: No space left on device")
            bench.disk.fail_at("rename", {1} if undone else {1, 2}, full, "manifest")
            switch(run, uppers, ends)

    monkeypatch.setattr(directory, "switch", overtaken)
    while bench.step() or calls < 2:
        pass
    assert (calls, bench.store.run_count) == (2, 0)
    bench.disk.fault = None
    monkeypatch.undo()
    bench.finish(bench.snapshot())
    assert bench.store.check() == []
    bench.now_ms += 5_000
    bench.settle()
    assert bench.store.run_count > 0
    assert bench.store.check() == []
    bench.crash()
    assert bench.dues() == pending
    assert bench.store.check() == []


def test_a_switch_whose_next_read_fails_is_taken_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the run that the manifest names would have all of it, when its source is delivered, finished and gone."""
    bench = Bench(near_ms=1_000)
    for n in range(8):
        bench.accept(100_000 + 10_000 * n)
    directory = bench.store._state.directory
    switch, position = directory.switch, Run.position

    def overtaken(run: RunEntry, uppers: dict[int, Key], ends: dict[int, int]) -> None:
        switch(run, uppers, ends)
        with bench.store.lock:
            bench.store.frontier_ms = 165_001
        monkeypatch.setattr(Run, "position", unreadable)

    def unreadable(_run: Run, _key: Key, _above: bool) -> int:
        monkeypatch.setattr(Run, "position", position)
        monkeypatch.setattr(directory, "switch", switch)
        raise StoreError("cannot read: Input/output error")

    monkeypatch.setattr(directory, "switch", overtaken)
    for _ in range(1000):
        if bench.store._housekeeping.trouble:
            break
        bench.step()
    assert "cannot read" in bench.store._housekeeping.trouble
    assert bench.store.run_count == 0
    assert len(bench.deliver(FOREVER)) == 8
    bench.now_ms += 5_000
    bench.settle()
    bench.crash()
    assert bench.dues() == []
    assert bench.store.check() == []


def test_nothing_is_accepted_while_the_journal_cannot_be_synced() -> None:
    """Under ASYNC_FLUSH a power cut may cost one flush interval, not all since the disk began to fail."""
    bench = Bench()
    bench.accept(100_000, size=20)
    bench.disk.fail_at("sync", {1, 2}, SyncFailedError("cannot sync: Input/output error"))
    with pytest.raises(SyncFailedError):
        bench.store.journal.sync()
    with pytest.raises(StoreError):
        bench.accept(110_000, size=20)
    with pytest.raises(SyncFailedError):
        bench.store.journal.sync()
    with pytest.raises(StoreError):
        bench.accept(120_000, size=20)
    bench.store.journal.sync()
    bench.accept(130_000, size=20)
    assert bench.dues() == [100_000, 130_000]
    bench.store.journal.sync()
    bench.disk.power_cut(0)
    bench.old.append(bench.store)
    bench.store = bench._open()
    assert bench.dues() == [100_000, 130_000]
