"""Damage next to a hole: the delivered front of a run is gone, what is pending behind it must be found all the same."""

from __future__ import annotations

import numpy as np
import pytest

from remoting.layout import FILE_HEADER_BYTES
from remoting.messages.properties import TW_DUE, TW_ID
from remoting.messages.record import Message, encode_record
from store.disk.aside import AsideDir
from store.disk.delay_id import delay_id, id_text
from store.disk.errors import StoreCorruptError
from store.spill.rows.page_cache import RunPageCache
from store.spill.runs.run import Run
from store.spill.upkeep.repair import repair_spill
from tests.store.spill_world import ROOT as STORE
from tests.store.spill_world import STORE_ID as OWNER
from tests.store.test_spill_run import PAGE, ROOT, STORE_ID, Row, walk, written
from tests.store.test_spill_store import Rig
from tests.support.simdisk import SimDisk

ROWS = 4
COUNT = 38
DONE = 18


def _record(due_ms: int, id_: int, size: int = 0) -> bytes:
    """A finished record; ``size``: that of the whole."""
    properties = f"{TW_ID}\1{id_text(id_)}\2{TW_DUE}\1{due_ms}\2"
    least = len(encode_record(Message("T", properties=properties), bytes(8)))
    return encode_record(Message("T", body=b"b" * max(0, size - least), properties=properties), bytes(8))


def _rows(size: int) -> list[Row]:
    ids = [delay_id(1, n) for n in range(COUNT)]
    return [(1_000 + n, id_, 0, _record(1_000 + n, id_, size)) for n, id_ in enumerate(ids)]


def _punch(run: Run, pages: int, share: float = 1) -> None:
    """Make a hole of the first pages, and of the last ``share`` of their records: file systems begin at the end."""
    stop = int(run.page(pages).starts[0])
    begin = stop - int((stop - run.shape.data_at) * share)
    assert run.file.punch(FILE_HEADER_BYTES, pages * run.shape.page_bytes)
    assert run.file.punch(begin, stop - begin)


def _damage(run: Run, page: int) -> None:
    at = FILE_HEADER_BYTES + page * run.shape.page_bytes + 50
    (byte,) = run.file.pread(1, at)
    run.file.pwrite(bytes([byte ^ 16]), at)


def _again(disk: SimDisk, run: Run) -> Run:
    again = Run(7, disk.open(ROOT / "0000000007"), run.shape, STORE_ID, RunPageCache(4 * PAGE))
    again.restore(run.done.copy())
    again.recount()
    return again


def _punched(size: int, how: str) -> tuple[SimDisk, Run]:
    """A run with a delivered front, punched as it is now, or as older versions did: also the last delivered page.

    Killed: the process or the machine went down before all of the records were given back.
    """
    disk = SimDisk()
    run = written(disk, _rows(size))
    run.done.add_range(0, DONE)
    run.restore(run.done)
    if how == "now":
        run.punched, spots = run.punchable()
        assert run.punched
        assert all(run.file.punch(position, size) for position, size in spots)
    else:
        _punch(run, DONE // ROWS, {"older": 1, "killed": 0.4, "killed earlier": 0}[how])
    return disk, run


@pytest.mark.parametrize("broken", [[4], [4, 5], [4, 5, 6, 7, 8, 9], [4, 6], [3, 4], [9]])
@pytest.mark.parametrize("how", ["now", "older", "killed", "killed earlier"])
@pytest.mark.parametrize("size", [0, 0x100, 0x10000])
def test_a_damaged_page_behind_a_hole_hides_no_message(size: int, how: str, broken: list[int]) -> None:
    disk, run = _punched(size, how)
    for page in broken:
        if page >= DONE // ROWS or how == "now":
            _damage(run, page)
    again = _again(disk, run)
    assert [ref & 0xFF for _, _, ref in walk(again)] == list(range(DONE, COUNT))
    starts, sizes, _ = again.places(np.arange(DONE, COUNT, dtype=np.int64))
    assert [again.file.pread(s, a) for a, s in zip(starts, sizes, strict=True)] == [r[3] for r in _rows(size)[DONE:]]
    assert set(again.rebuilt) >= {page for page in broken if page >= DONE // ROWS}
    assert (again.damage, again.hides) == ({}, False)


def test_records_behind_a_hole_that_cannot_be_told_apart_stay_hidden() -> None:
    """The size of a record is gone, too: nothing says where the next one begins, and only this page is given up."""
    disk, run = _punched(0, "older")
    run.file.pwrite(bytes(4), int(run.page(4).starts[2]))
    _damage(run, 4)
    again = _again(disk, run)
    assert [ref & 0xFF for _, _, ref in walk(again)] == list(range(20, COUNT))
    assert (list(again.damage), again.hides) == ([4], True)


def test_one_delivered_page_is_kept_in_front_of_pending_ones() -> None:
    """It says where the records of the next one begin, also if a record there has become unreadable."""
    disk, run = _punched(0, "now")
    assert run.punched == 3 * ROWS
    assert run.file.pread(PAGE, FILE_HEADER_BYTES + 2 * PAGE) == bytes(PAGE)
    assert _again(disk, run).page(3).first == 12
    assert run.punchable() == (12, [])
    run.done.add_range(DONE, 24)
    run.saved = run.done.encode()
    target, spots = run.punchable()
    assert (target, spots[0]) == (20, (FILE_HEADER_BYTES + 3 * PAGE, 2 * PAGE))


@pytest.mark.parametrize("further", [0, 1, 3, 5, 9])
def test_a_hole_of_an_older_version_is_made_larger_from_where_it_ends(further: int) -> None:
    for punched in (0, 16):  # after a restart, and without one
        disk, run = _punched(0, "older")
        again = _again(disk, run)
        again.punched = punched
        again.done.add_range(DONE, DONE + further)
        again.restore(again.done)
        target, spots = again.punchable()
        assert spots or further < 6
        assert target == (16 if further < 6 else 20)
        assert all(again.file.pread(size, at) == bytes(size) for at, size in spots) == (target == 16)
        assert all(again.file.punch(at, size) for at, size in spots)
        again = _again(disk, again)
        assert [ref & 0xFF for _, _, ref in walk(again)] == list(range(DONE + further, COUNT))
        assert again.damage == {}


def _delivered(until_ms: int, **options: int) -> tuple[Rig, Run]:
    """A store with two runs; what is due before ``until_ms`` has been delivered from the first one."""
    rig = Rig(segment_bytes=14_000, **options)
    for first in (100_000, 200_000):
        entries = [(due_ms, rig.store.next_id()) for due_ms in range(first, first + 60)]
        block = rig.store.append([(due_ms, id_, _record(due_ms, id_)) for due_ms, id_ in entries])
        with rig.store.lock:
            rig.store.publish(block)
    rig.settle(0)
    rig.settle(10_000)
    runs = [source for source in rig.sources() if isinstance(source, Run) and not source.is_index]
    (run,) = [run for run in runs if run.shape.due_min == 100_000]
    assert (run.first, run.count) == (0, 60)
    _deliver(rig, until_ms)
    return rig, run


def _deliver(rig: Rig, until_ms: int) -> None:
    with rig.store.lock:
        rig.store.frontier_ms = until_ms
        rig.store.mark_done(rig.store.scan((-1, 0), until_ms, 1_000).refs)
    rig.checkpoint()


def test_a_hole_grows_page_by_page_up_to_the_page_that_is_kept() -> None:
    """Rounds that find nothing to give back must not count as a hole: the next one would leave pages out."""
    rig, run = _delivered(100_010)
    size, rows = run.shape.page_bytes, run.rows_per_page
    for until_ms in range(100_010, 100_050, rows):
        _deliver(rig, until_ms)
        rig.settle()
        hole = run.saved_prefix // rows - 1
        assert run.punched // rows == hole
        assert run.file.pread(hole * size, FILE_HEADER_BYTES) == bytes(hole * size)
        start = int(run.page(hole).starts[0])
        assert not any(run.file.pread(start - run.shape.data_at, run.shape.data_at))
    rig.restart()
    rig.check()
    assert rig.dues()[0] == until_ms


def _world(pages: int) -> tuple[Rig, Run]:
    """A store with a run whose first pages are holes; the first page behind them is damaged."""
    rig, run = _delivered(100_001 + pages * 3, punch_bytes=1 << 30)
    assert run.rows_per_page == 3
    _punch(run, pages)
    _damage(run, pages)
    return rig, run


def test_check_speaks_of_the_damaged_page_and_not_of_the_hole() -> None:
    rig, run = _world(5)
    expected = list(range(100_000 + 5 * run.rows_per_page + 1, 100_060)) + list(range(200_000, 200_060))
    rig.restart()
    assert rig.dues() == expected
    (line,) = rig.store.check()
    assert "page 5 is not what was written" in line
    assert line.endswith("it was made again from its records")
    assert not any(source.hides for source in rig.sources() if isinstance(source, Run))


def test_the_repair_makes_the_page_behind_the_hole_again() -> None:
    rig, run = _world(5)
    expected = list(range(100_000 + 5 * run.rows_per_page + 1, 100_060)) + list(range(200_000, 200_060))
    rig.store.close()
    aside = AsideDir(rig.disk, STORE.parent)
    repair_spill(rig.disk, STORE, OWNER, rig.section, aside)
    (line,) = aside.report
    assert line.endswith("page 5 was made again from its records")
    rig.open()
    rig.check()
    assert rig.dues() == expected


def test_a_read_in_a_hole_costs_the_same_however_long_the_hole_is() -> None:
    """Whoever asks for a message that was delivered long ago holds the delivery lock meanwhile."""
    disk, run = _punched(0x100, "older")
    again = _again(disk, run)
    reads = []
    for page in range(DONE // ROWS):
        before = disk.reads
        with pytest.raises(StoreCorruptError):
            again.page(page)
        reads.append(disk.reads - before)
    assert reads == [2] * (DONE // ROWS)
    assert not again.damage
