"""The spill store's promises one by one; `test_spill_model` has them all at once."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from store.disk.delay_id import SEQUENCE_MAX, delay_id
from store.disk.errors import StoreCorruptError, StoreError, StoreFormatError, StoreFullError
from store.spill.journal.segment import JournalSegment
from store.spill.rows.model import RecordCorruptError, SpillOptions
from store.spill.runs.run import Run
from store.spill.spill_store import SpillStore
from store.spill.state.removals import read_removals, write_removals
from tests.store.spill_world import FOREVER, ROOT, STORE_ID, tiny_options
from tests.support.simdisk import PowerCut, SimDisk


class Rig:
    """A store, the checkpoint beside it, and a clock."""

    def __init__(self, **options: int) -> None:
        self.disk = SimDisk()
        self.options = tiny_options(**options)
        self.section: bytes | None = None
        self.now_ms = 0
        self.open()

    def open(self) -> None:
        self.store = SpillStore.open(self.disk, ROOT, STORE_ID, self.options, self.section)

    def accept(self, *dues: int, size: int = 20) -> list[int]:
        entries = [(due, self.store.next_id(), b"%d" % due + bytes(size)) for due in dues]
        block = self.store.append(entries)
        with self.store.lock:
            self.store.publish(block)
        return [id_ for _, id_, _ in entries]

    def checkpoint(self) -> None:
        with self.store.lock:
            self.section = self.store.snapshot()
        self.store.journal.sync()
        self.store.durable()

    def settle(self, now_ms: int | None = None) -> None:
        """Run background work and checkpoints until nothing happens any more."""
        self.now_ms = self.now_ms if now_ms is None else now_ms
        for _ in range(3):
            while self.store.spill_step(self.now_ms):
                pass
            self.checkpoint()
        while self.store.spill_step(self.now_ms):
            pass

    def dues(self, after_ms: int = -1, until_ms: int = FOREVER, limit: int = 1000) -> list[int]:
        with self.store.lock:
            return self.store.scan((after_ms, FOREVER * 4), until_ms, limit).dues

    def restart(self) -> None:
        self.store.close()
        self.open()

    def sources(self) -> list[JournalSegment | Run]:
        return list(self.store._state.sources.values())

    def check(self) -> None:
        assert self.store.check() == []


def test_what_is_due_soon_stays_in_the_journal_the_rest_becomes_a_run() -> None:
    rig = Rig()
    rig.accept(1_000, 50_000, 2_000, 60_000, 70_000, 2_500, size=55)
    rig.accept(80_000, size=100)
    rig.settle(0)
    runs = [s for s in rig.sources() if isinstance(s, Run)]
    assert [(run.is_index, run.first, run.shape.due_max, run.live) for run in runs] == [(True, 3, 70_000, 3)]
    closed = next(s for s in rig.sources() if isinstance(s, JournalSegment) and s.closed)
    assert closed.upper == (3_000, 0)
    assert closed.live == 3
    assert rig.dues() == [1_000, 2_000, 2_500, 50_000, 60_000, 70_000, 80_000]
    rig.check()
    rig.restart()
    assert rig.dues() == [1_000, 2_000, 2_500, 50_000, 60_000, 70_000, 80_000]
    rig.check()


def test_a_short_delay_is_never_written_a_second_time() -> None:
    rig = Rig()
    for step in range(30):
        rig.accept(rig.now_ms + 100, rig.now_ms + 200, size=60)
        rig.settle(rig.now_ms + 300)
        with rig.store.lock:
            rig.store.frontier_ms = rig.now_ms
            columns = rig.store.scan((-1, 0), rig.now_ms, 100)
            assert len(columns) == 2, step
            rig.store.mark_done(columns.refs)
    rig.settle()
    assert rig.store.run_count == 0
    assert rig.store.journal_bytes <= 3 * 700
    rig.check()


def test_no_segment_is_pinned_by_what_fails() -> None:
    rig = Rig()
    (failing,) = rig.accept(10)
    with rig.store.lock:
        rig.store.frontier_ms = 100
        ref = rig.store.scan((-1, 0), 100, 10).refs[0]
    for due in range(500, 512):
        rig.accept(due, size=60)
    rig.settle(600)
    assert len([s for s in rig.sources() if isinstance(s, JournalSegment) and s.live]) >= 1
    rig.settle(10_000)
    assert not [s for s in rig.sources() if isinstance(s, JournalSegment) and s.closed]
    with rig.store.lock:
        # The old ref still leads to the record, wherever it is now.
        assert not rig.store.is_done(ref)
        assert rig.store.read([ref]) == [b"10" + bytes(20)]
        found = rig.store.find(failing)
        assert found is not None
        assert found.ref != ref
        rig.store.mark_done([ref])
        assert rig.store.is_done(ref)
        assert rig.store.is_done(found.ref)
        with pytest.raises(StoreError, match="not pending any more"):
            rig.store.read([ref])
        rig.store.mark_done(rig.store.scan((-1, 0), FOREVER, 100).refs)
    rig.settle(20_000)
    assert rig.store._state.ghosts == []
    rig.check()


def test_near_bytes_and_records_are_bounded() -> None:
    rig = Rig(near_ms=1_000_000, near_bytes=2_000, near_records=1_000)
    for due in range(5_000, 5_060):
        rig.accept(due, size=60)
        rig.settle(0)
    assert rig.store.journal_bytes <= 2_000 + 3 * 700
    assert rig.dues() == list(range(5_000, 5_060))
    rig.check()


def test_runs_are_merged_the_smallest_first() -> None:
    rig = Rig(runs_max=3)
    expected = []
    for step in range(40):
        due = 100_000 + step * 37 % 40
        expected.append(due)
        rig.accept(due, size=200)
        rig.settle(step * 2_000)
    assert rig.store.run_count <= 4
    assert rig.dues() == sorted(expected)
    rig.check()
    rig.restart()
    assert rig.dues() == sorted(expected)
    rig.check()


def test_cancel_and_move() -> None:
    rig = Rig()
    first, second, third = rig.accept(10_000, 20_000, 30_000, size=100)
    with rig.store.lock:
        ticket = rig.store.cancel(first)
        assert ticket is not None
        assert not ticket.is_done()
        assert rig.store.cancel(first) is None
        assert rig.store.cancel(12345) is None
        found = rig.store.find(second)
        assert found is not None
        block = rig.store.move(found, b"moved", 5_000)
        with pytest.raises(StoreError, match="not pending any more"):
            rig.store.move(found, b"again", 6_000)
        columns = rig.store.publish(block)
        assert (columns.dues, columns.ids) == ([5_000], [second])
        with pytest.raises(StoreError, match="published twice"):
            rig.store.publish(block)
    assert rig.dues() == [5_000, 30_000]
    assert rig.store.pending_count == 2
    for again in range(4):
        with rig.store.lock:
            found = rig.store.find(second)
            assert found is not None
            assert (found.due_ms, found.version, found.done) == (5_000, 1, False), again
            assert rig.store.read([found.ref]) == [b"moved"]
            cancelled = rig.store.find(first)
            assert cancelled is None or cancelled.done
            assert rig.store.find(third) is not None
        if again == 1:
            rig.accept(40_000, 50_000, size=200)
        if again >= 1:
            rig.settle(again * 10)
        rig.restart()
        rig.check()


@pytest.mark.parametrize("shape", range(30))
def test_a_message_moved_back_to_its_due_time_outlives_every_relocation(shape: int) -> None:
    """Two versions with one key, and a page or a portion ends between them."""
    rig = Rig(
        near_records=1, near_bytes=1, runs_max=2, merge_width=2, segment_bytes=4_000, page_bytes=96 + 24 * (shape % 6)
    )
    count = 8 + shape
    ids = rig.accept(*([100_000] * count), size=3)
    for at in range(shape % 4, count, 1 + shape % 3):
        for due_ms in (100_000,) if at % 2 else (90_000, 100_000):
            with rig.store.lock:
                found = rig.store.find(ids[at])
                assert found is not None
                rig.store.publish(rig.store.move(found, b"moved", due_ms))
    for step in range(6):  # no checkpoint: what was moved is not durably done
        while rig.store.spill_step(step * 2_000):
            pass
        assert len(rig.dues()) == count + 9 * step
        rig.accept(*([200_000 + step] * 9), size=30)
    rig.check()
    rig.restart()
    with rig.store.lock:
        assert set(ids) < set(rig.store.scan((-1, 0), FOREVER, 1000).ids)


def test_a_checkpoint_that_the_manifest_accepts_leads_to_no_hole() -> None:
    """A later checkpoint comes between the manifest that a hole needs and the hole."""
    rig = Rig(segment_bytes=8_000)
    rig.accept(*range(100_000, 100_060), size=60)
    rig.accept(*range(200_000, 200_060), size=60)
    rig.settle(0)
    rig.settle(10_000)
    (run,) = [source for source in rig.sources() if isinstance(source, Run) and source.shape.due_min == 100_000]
    assert not run.is_index

    def deliver(until_ms: int) -> None:
        with rig.store.lock:
            rig.store.frontier_ms = until_ms
            rig.store.mark_done(rig.store.scan((-1, 0), until_ms, 1_000).refs)
        rig.checkpoint()

    directory = rig.store._state.directory
    deliver(100_020)
    older = rig.section
    while not (directory.manifest.relied and directory.manifest.relied_on == directory.checkpoint_no):
        assert rig.store.spill_step(rig.now_ms)
    assert not run.punched
    deliver(100_040)
    while rig.store.spill_step(rig.now_ms) and not run.punched:
        pass
    assert run.punched
    rig.disk.kill()
    rig.section = older
    rig.open()
    assert [due_ms for due_ms in rig.dues() if due_ms < 200_000] == list(range(100_020, 100_060))
    rig.check()


def test_a_delivery_found_in_the_log_is_done_with_all_older_versions() -> None:
    rig = Rig()
    first, second = rig.accept(10_000, 20_000)
    with rig.store.lock:
        found = rig.store.find(first)
        assert found is not None
        rig.store.publish(rig.store.move(found, b"moved", 15_000))
    rig.store.journal.sync()
    rig.disk.kill()
    rig.open()
    with rig.store.lock:
        assert not rig.store.restore_delivered_many((first,), (0,))  # version 0 was done by the move already
        assert rig.store.restore_delivered_many((first,), (1,))
        assert not rig.store.restore_delivered_many((first,), (1,))
        assert rig.store.restore_delivered_many([second, 99, second], [0, 0, 0]) == 1
    assert rig.dues() == []


def test_a_published_block_may_overtake_one_that_waits_for_its_sync() -> None:
    rig = Rig()
    early = rig.store.append([(10, rig.store.next_id(), b"early"), (12, rig.store.next_id(), b"e2")])
    late = rig.store.append([(11, rig.store.next_id(), b"late")])
    with rig.store.lock:
        rig.store.publish(late)
        assert rig.dues() == [11]
        assert rig.store.find(early.ids[0]) is None
        rig.settle(0)
        rig.store.publish(early)
        assert rig.dues() == [10, 11, 12]
        assert rig.store.read(early.refs + late.refs) == [b"early", b"e2", b"late"]
    rig.check()


def test_a_withdrawn_block_pins_nothing() -> None:
    rig = Rig()
    block = rig.store.append([(10, rig.store.next_id(), bytes(300))])
    rig.accept(20, size=300)
    rig.accept(30, size=300)
    with rig.store.lock:
        rig.store.withdraw_block(block)
        rig.store.mark_done(rig.store.scan((-1, 0), 25, 9).refs)
    rig.settle(0)
    assert rig.dues() == [30]
    assert len(rig.disk.listdir(ROOT / "journal")) <= 2


def test_a_damaged_record_names_itself_and_stops_no_other() -> None:
    rig = Rig()
    block = rig.store.append([(10, rig.store.next_id(), b"a" * 50), (20, rig.store.next_id(), b"b" * 50)])
    with rig.store.lock:
        rig.store.publish(block)
    segment = rig.sources()[0]
    segment.file.pwrite(b"?", block.at + 7)
    with rig.store.lock:
        with pytest.raises(RecordCorruptError) as caught:
            rig.store.read(block.refs)
        assert caught.value.ref == block.refs[0]
        assert rig.store.read(block.refs[1:]) == [b"b" * 50]
    assert "checksum of a pending record" in rig.store.check()[0]
    rig.accept(30_000, size=500)
    rig.accept(30_000, size=300)
    rig.settle(10_000)
    rig.settle(20_000)  # spilled as it is, and still recognised
    with rig.store.lock:
        found = rig.store.find(block.ids[0])
        assert found is not None
        assert found.ref >> 32 != block.segment_no
        with pytest.raises(RecordCorruptError):
            rig.store.read([found.ref])
    assert "checksum of a pending record" in rig.store.check()[0]


def test_refused_in_time_with_room_held_back() -> None:
    rig = Rig(reserve_bytes=1_000)
    rig.disk.free = 4_000
    rig.store.spill_step(0)
    accepted = 0
    with pytest.raises(StoreFullError, match="no room for"):
        while True:
            (last,) = rig.accept(100_000 + accepted, size=100)
            accepted += 1
    assert 5 < accepted < 15
    with rig.store.lock:
        assert rig.store.cancel(last) is not None  # from the room that is held back
    rig.disk.free = 10_000
    rig.accept(5, size=100)
    assert rig.store.pending_count == accepted
    rig.check()


def test_a_full_disk_stops_the_background_work_only_for_a_while() -> None:
    rig = Rig()
    for due in range(100_000, 100_020):
        rig.accept(due, size=60)
    rig.disk.fail_at("all", set(range(1, 1000)), StoreFullError("no space left on device"), match="runs")
    rig.store.spill_step(0)
    for _ in range(200):
        rig.store.spill_step(0)
    assert "no space left" in rig.store.trouble
    assert rig.dues() == list(range(100_000, 100_020))
    rig.disk.fault = None
    rig.settle(5_000)
    assert rig.store.trouble == ""
    assert rig.store.run_count >= 1
    assert rig.dues() == list(range(100_000, 100_020))
    rig.check()


def test_unlisted_files_are_moved_aside_and_unfinished_ones_removed() -> None:
    rig = Rig()
    rig.accept(10)
    rig.store.close()
    for name in ("runs/0000000077", "journal/0000000078", "runs/0000000079.tmp"):
        rig.disk.open(ROOT / name, create=True)
    rig.open()
    assert [path.name for path in rig.store.moved_aside] == ["0000000078.aside", "0000000077.aside"]
    assert rig.disk.listdir(ROOT / "runs") == ["0000000077.aside"]
    for due in range(100_000, 100_040):
        rig.accept(due, size=60)
    rig.settle()
    assert min(int(name) for name in rig.disk.listdir(ROOT / "runs") if name.isdecimal()) > 78
    rig.restart()
    assert rig.store.moved_aside == []


def test_missing_foreign_and_newer_files_are_refused() -> None:
    rig = Rig()
    for due in range(100_000, 100_040):
        rig.accept(due, size=60)
    rig.settle()
    rig.store.close()
    run = ROOT / "runs" / rig.disk.listdir(ROOT / "runs")[0]
    content = rig.disk.read_file(run)
    rig.disk.remove(run)
    with pytest.raises(StoreCorruptError, match=f"{run} at 0: it is missing"):
        rig.open()
    rig.disk.replace_file(run, content[:-1])
    with pytest.raises(StoreCorruptError, match="bytes, not"):
        rig.open()
    rig.disk.replace_file(run, content[:4] + b"\x09" + content[5:])
    with pytest.raises(StoreFormatError, match="format version"):
        rig.open()
    rig.disk.replace_file(run, content)
    with pytest.raises(StoreFormatError, match="belongs to store"):
        SpillStore.open(rig.disk, ROOT, bytes(16), rig.options, rig.section)
    with pytest.raises(StoreCorruptError, match="bring the store's checkpoint file back"):
        SpillStore.open(rig.disk, ROOT, STORE_ID, rig.options, None)
    for broken in (b"", b"\x01", rig.section[:-1], rig.section + b"x"):  # type: ignore[index, operator]
        with pytest.raises(StoreCorruptError):
            SpillStore.open(rig.disk, ROOT, STORE_ID, rig.options, broken)
    for name in ("manifest", "manifest.copy"):
        rig.disk.remove(ROOT / name)
    with pytest.raises(StoreCorruptError, match="is missing, but"):
        rig.open()


@pytest.mark.parametrize("damage", ["missing", "older", "broken"])
def test_the_copy_of_the_manifest_takes_its_place(damage: str) -> None:
    rig = Rig()
    old = rig.disk.read_file(ROOT / "manifest")
    rig.accept(1)
    rig.restart()
    rig.accept(2)
    rig.store.close()
    if damage == "missing":
        rig.disk.remove(ROOT / "manifest")
    else:
        rig.disk.replace_file(ROOT / "manifest", old if damage == "older" else b"x" + old)
    rig.open()
    assert rig.store.pending_count == 2
    assert "its copy is used" in rig.store.notes[0]
    assert rig.disk.exists(ROOT / "manifest.aside") == (damage != "missing")
    assert rig.disk.read_file(ROOT / "manifest") == rig.disk.read_file(ROOT / "manifest.copy")
    rig.store.close()


def test_an_older_manifest_is_noticed() -> None:
    rig = Rig()
    old = rig.disk.read_file(ROOT / "manifest")
    rig.accept(1)
    rig.restart()
    rig.accept(2)
    rig.store.close()
    for name in ("manifest", "manifest.copy"):
        rig.disk.replace_file(ROOT / name, old)
    with pytest.raises(StoreCorruptError, match="older than the journal"):
        rig.open()


def test_a_checkpoint_that_outran_the_journal_is_refused() -> None:
    rig = Rig()
    rig.accept(1)
    with rig.store.lock:
        rig.store.snapshot()
    with pytest.raises(StoreError, match="durable only up to"):
        rig.store.durable()


def test_ids_are_never_given_twice() -> None:
    rig = Rig()
    seen = set(rig.accept(1, 2))
    for _ in range(3):
        rig.restart()
        more = set(rig.accept(1, 2, 3))
        assert not seen & more
        seen |= more
    rig.disk.power_cut(0.0)
    rig.open()
    assert not seen & set(rig.accept(1))


def test_a_hot_second_is_scanned_in_portions() -> None:
    rig = Rig(segment_bytes=4_000)
    ids = []
    for _ in range(60):
        ids += rig.accept(*[100_000] * 5)
        rig.settle(0)
    after = (-1, 0)
    found: list[int] = []
    while True:
        with rig.store.lock:
            columns = rig.store.scan(after, FOREVER, 7)
            if not len(columns):
                break
            found += columns.ids
            after = (columns.dues[-1], columns.ids[-1])
            rig.store.mark_done(columns.refs)
    assert found == ids
    rig.settle()
    assert rig.store.pending_count == 0
    assert rig.store.run_count == 0
    rig.check()


def test_a_moved_clock_pins_nothing_for_ever() -> None:
    rig = Rig()
    rig.accept(1_000_500, 1_000_600, size=200)
    rig.accept(1_000_700, size=300)
    rig.settle(1_000_000)
    rig.settle(500)  # far back
    rig.settle(4_000)
    assert rig.dues() == [1_000_500, 1_000_600, 1_000_700]
    assert not [s for s in rig.sources() if isinstance(s, JournalSegment) and s.closed]
    rig.check()


def test_damage_in_a_run_is_reported_not_skipped_in_silence() -> None:
    rig = Rig()
    for due in range(100_000, 100_040):
        rig.accept(due, size=60)
    rig.settle(0)
    rig.settle(rig.options.near_ms)
    run = next(s for s in rig.sources() if isinstance(s, Run) and not s.is_index)
    run.file.pwrite(b"????", 64 + 40)
    rig.restart()
    assert len(rig.dues()) == 40 - 3
    assert rig.store.pending_count == 40
    assert any("page 0 is not what was written" in text for text in rig.store.check())


def test_options_that_cannot_be() -> None:
    for wrong in ({"segment_bytes": 100}, {"page_bytes": 10}, {"merge_width": 1}, {"runs_max": 0}):
        with pytest.raises(StoreFormatError):
            SpillOptions(**wrong)


@pytest.mark.parametrize("failing", [1, *range(45, 125, 4)])
def test_a_scan_whose_read_failed_finds_everything_the_next_time(failing: int) -> None:
    """The cursor of the scan had taken batches in hand when the read for what comes behind them failed."""
    rig = Rig()
    dues = [FOREVER // 2 + number * 7 % 400 for number in range(400)]
    for start in range(0, 400, 8):
        rig.accept(*dues[start : start + 8])
    rig.settle(FOREVER // 2 - 100_000)
    rig.restart()
    reads = 0

    def fault(path: Path) -> None:
        nonlocal reads
        reads += 1
        if reads == failing:
            raise StoreError(f"cannot read {path}: Input/output error (errno 5)")

    rig.disk.read_fault = fault
    found: list[int] = []
    after = (-1, FOREVER * 4)
    while len(found) < 400:
        try:
            with rig.store.lock:
                columns = rig.store.scan(after, FOREVER, 30)
        except StoreError:
            continue
        assert columns.dues
        found += columns.dues
        after = (columns.dues[-1], columns.ids[-1])
    assert found == sorted(dues)


@pytest.mark.parametrize("power", [False, True])
def test_finished_files_are_removed_by_the_next_start_if_a_crash_was_faster(power: bool) -> None:
    """An unlisted file is moved aside; but these were forgotten because all of them was delivered."""
    removals = 0
    for crash in range(1, 60):
        rig = Rig()
        for due in (*range(1, 40), *range(1_000_000, 1_000_010)):
            rig.accept(due, size=60)
        with rig.store.lock:
            rig.store.mark_done(rig.store.scan((-1, 0), 500, 1000).refs)
        rig.checkpoint()
        manifest = rig.store._state.directory.manifest
        before = {segment.no for segment in manifest.segments} | {run.no for run in manifest.runs}
        left = crash

        def fault(operation: str, _: Path) -> None:
            nonlocal left, removals
            left -= 1
            if not left:
                removals += operation == "remove"
                raise PowerCut

        rig.disk.fault = fault
        with contextlib.suppress(PowerCut):
            rig.settle(60_000)
        gone = rig.store  # collecting its jobs would tidy up behind it
        if power:
            rig.disk.power_cut(0.5)
        else:
            rig.disk.kill()
        rig.open()
        del gone
        names = [*rig.disk.listdir(ROOT / "journal"), *rig.disk.listdir(ROOT / "runs")]
        aside = [name for name in names if name.endswith(".aside") and int(name.partition(".")[0]) in before]
        assert not aside, (crash, names)
        assert rig.dues() == list(range(1_000_000, 1_000_010))
    assert removals


def test_an_older_manifest_has_nothing_removed() -> None:
    disk = SimDisk()
    disk.makedirs(ROOT)
    path = ROOT / "removing"
    write_removals(disk, path, 7, {3, 12})
    assert read_removals(disk, path, 6) == set()
    assert read_removals(disk, path, 7) == read_removals(disk, path, 8) == {3, 12}
    data = disk.read_file(path)
    for at in range(len(data) - 1):
        disk.replace_file(path, data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        assert read_removals(disk, path, 8) == set(), at
    disk.replace_file(path, b"")
    assert read_removals(disk, path, 8) == set()
    assert read_removals(disk, ROOT / "none", 8) == set()


def test_an_epoch_has_so_many_ids_and_no_more() -> None:
    rig = Rig()
    rig.store._sequence = SEQUENCE_MAX - 1
    assert len(rig.store.next_ids(1)) == 1
    with pytest.raises(StoreFullError, match="restart the broker"):
        rig.store.next_ids(2)
    assert rig.store.next_id() == delay_id(rig.store.epoch, SEQUENCE_MAX)
    with pytest.raises(StoreFullError, match="restart the broker"):
        rig.store.next_id()
    with pytest.raises(StoreFullError, match="restart the broker"):
        rig.store.next_ids(1)
    rig.restart()
    rig.accept(1)
