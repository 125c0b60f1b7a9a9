"""Indexes: far messages leave memory at once, and their segments without haste."""

from __future__ import annotations

import pytest

from remoting.layout import FRAME_BYTES
from remoting.messages.message import Message, encode_record
from remoting.messages.properties import TW_DUE, TW_ID
from store.disk.aside import AsideDir
from store.disk.delay_id import id_text
from store.disk.errors import StoreCorruptError
from store.spill.journal.segment import JournalSegment
from store.spill.journal.segment_columns import SegmentColumns
from store.spill.rows.manifest import DataEntry
from store.spill.runs.run import Run
from store.spill.upkeep import housekeeping, relocate
from store.spill.upkeep.repair import repair_spill
from tests.store.spill_world import ROOT, STORE_ID
from tests.store.test_spill_store import Rig

FAR_MS = 1_000_000
COUNT = 40


def far_rig(**options: int) -> tuple[Rig, list[int]]:
    """Forty messages in reverse due order, in some segments, of which all but the last are indexed."""
    rig = Rig(**options)
    ids = [rig.accept(FAR_MS - number, size=60)[0] for number in range(COUNT)]
    rig.settle(0)
    return rig, ids


def indexes(rig: Rig) -> list[Run]:
    return [source for source in rig.sources() if isinstance(source, Run) and source.is_index]


def records(rig: Rig) -> list[bytes]:
    with rig.store.lock:
        return rig.store.read(rig.store.scan((-1, 0), FAR_MS * 2, 1_000).refs)


EXPECTED = [b"%d" % due + bytes(60) for due in range(FAR_MS - COUNT + 1, FAR_MS + 1)]


def test_far_messages_leave_memory_and_the_journal_but_stay_where_they_are() -> None:
    rig, _ = far_rig()
    found = indexes(rig)
    assert len(found) >= 3
    assert not [s for s in rig.sources() if isinstance(s, JournalSegment) and s.closed], "nothing of them is in memory"
    listed = {entry.no for entry in rig.store._state.directory.manifest.segments}
    for run in found:
        assert run.segment is not None
        assert run.segment.no not in listed, "a start does not read it again"
        assert run.data.path == ROOT / "journal" / f"{run.segment.no:010d}"
        assert rig.disk.exists(run.data.path)
    assert records(rig) == EXPECTED
    rig.check()
    rig.restart()
    assert len(indexes(rig)) == len(found)
    assert rig.store.moved_aside == []
    assert records(rig) == EXPECTED
    rig.check()


@pytest.mark.parametrize("busy", [False, True])
def test_a_while_later_they_are_copied_and_the_segments_go(monkeypatch: pytest.MonkeyPatch, busy: bool) -> None:
    if busy:
        monkeypatch.setattr(housekeeping, "QUIET_BYTES", 0)
    rig, _ = far_rig()
    paths = [path for run in indexes(rig) for path in (run.path, run.data.path)]
    copied_at_ms = rig.options.near_ms if busy else housekeeping.LOOK_EVERY_MS
    rig.settle(copied_at_ms - 1)
    assert indexes(rig)
    rig.settle(copied_at_ms)
    assert not indexes(rig)
    assert not [path for path in paths if rig.disk.exists(path)]
    assert records(rig) == EXPECTED
    rig.check()


def test_what_was_cancelled_or_delivered_before_stays_so() -> None:
    rig = Rig()
    ids = [rig.accept(FAR_MS - number, size=60)[0] for number in range(COUNT)]
    with rig.store.lock:
        for id_ in ids[:6:2]:
            rig.store.cancel(id_)
    rig.settle(0)
    with rig.store.lock:
        rig.store.cancel(ids[3])
    rig.store.journal.sync()
    rig.restart()
    gone = {FAR_MS - number for number in (0, 2, 3, 4)}
    assert rig.dues() == [due for due in range(FAR_MS - COUNT + 1, FAR_MS + 1) if due not in gone]
    rig.check()


def test_files_go_when_all_is_done() -> None:
    rig, _ = far_rig()
    first = max(indexes(rig), key=lambda run: run.shape.due_max)
    with rig.store.lock:
        for ref in rig.store.scan((first.shape.due_min - 1, FAR_MS * 4), FAR_MS * 2, 1_000).refs:
            rig.store.mark_done([ref])
    rig.settle(0)
    assert not rig.disk.exists(first.path)
    assert not rig.disk.exists(first.data.path)
    rig.check()


def test_a_page_of_an_index_is_made_again_from_the_segment() -> None:
    rig, _ = far_rig()
    run = indexes(rig)[0]
    run.file.pwrite(b"????", 64 + 40)
    rig.restart()
    assert records(rig) == EXPECTED
    assert any("page 0 is not what was written" in text and "made again" in text for text in rig.store.check())


def test_an_index_with_damage_whose_segment_is_damaged_too_hides_only_one_page() -> None:
    rig, _ = far_rig()
    run = indexes(rig)[0]
    run.file.pwrite(b"????", 64 + 40)
    run.data.pwrite(b"????", 64 + 20)
    rig.restart()
    assert len(rig.dues()) == COUNT - run.rows_per_page
    assert rig.store.pending_count == COUNT


def test_a_segment_that_an_index_needs_is_missed_at_start() -> None:
    rig, _ = far_rig()
    rig.disk.remove(indexes(rig)[0].data.path)
    with pytest.raises(StoreCorruptError, match="is missing"):
        rig.restart()


def test_copies_wait_while_deliveries_are_late_and_new_segments_do_not() -> None:
    rig, _ = far_rig(runs_max=100)
    before = len(indexes(rig))
    for number in range(COUNT):
        rig.accept(2 * FAR_MS - number, size=60)
    rig.now_ms = housekeeping.LOOK_EVERY_MS
    while rig.store.spill_step(rig.now_ms, patient=False):
        pass
    assert len(indexes(rig)) > before, "segments that were closed meanwhile have left memory"
    assert not [run for run in rig.sources() if isinstance(run, Run) and not run.is_index]
    rig.settle(rig.now_ms)  # it notes since when the new ones are indexed
    rig.settle(2 * rig.now_ms)
    assert not indexes(rig)
    rig.check()


def test_a_copy_does_not_rest_while_it_takes_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is delivered meanwhile has to be marked anew under the delivery lock."""
    monkeypatch.setattr(relocate, "CATCH_UP_AT_ONCE", 0)
    rig, ids = far_rig(runs_max=100)
    state, now_ms = rig.store._state, housekeeping.LOOK_EVERY_MS
    while rig.store._housekeeping._lanes[2] is None:
        assert rig.store.spill_step(now_ms)
    with rig.store.lock:
        for delay_id in ids:
            rig.store.cancel(delay_id)
    while not state.handing_over:
        assert rig.store.spill_step(now_ms)
        assert len(state.runs) == len(indexes(rig))
    while rig.store.spill_step(now_ms, patient=False):
        pass
    assert not state.handing_over
    assert len(state.runs) == len(indexes(rig)) + 1
    rig.check()


def finished(delay_id: int, due_ms: int) -> bytes:
    """A record as the plug-in makes it."""
    message = Message("T", body=b"body", properties=f"{TW_ID}\x01{id_text(delay_id)}\x02{TW_DUE}\x01{due_ms}\x02")
    return encode_record(message, bytes(8))


def test_an_index_leads_to_records_that_a_repair_has_moved_in_their_segment() -> None:
    rig = Rig(segment_bytes=2_000)
    expected = {}
    for number in range(12):
        delay_id, due_ms = rig.store.next_id(), FAR_MS - 1 - number
        expected[due_ms] = finished(delay_id, due_ms)
        with rig.store.lock:
            rig.store.publish(rig.store.append([(due_ms, delay_id, expected[due_ms])]))
    rig.checkpoint()
    while rig.store.spill_step(0):
        pass
    (run,) = indexes(rig)
    assert rig.store._state.directory.manifest.segments[0].no == run.segment.no  # type: ignore[union-attr]
    rig.store.close()
    frame_bytes = FRAME_BYTES + 28 + len(expected[FAR_MS - 1])
    for number in (1, 2):
        run.data.pwrite(b"????", 64 + number * frame_bytes)
    aside = AsideDir(rig.disk, ROOT.parent)
    repair_spill(rig.disk, ROOT, STORE_ID, rig.section, aside)
    assert any("leads to where its records are now" in text for text in aside.report)
    rig.open()
    assert records(rig) == [expected[due_ms] for due_ms in sorted(expected)]
    rig.check()


def test_a_frame_that_a_repair_has_made_of_two_does_not_end_the_journal() -> None:
    rig = Rig(segment_bytes=4_000)
    expected = []
    for number in range(5):
        delay_id = rig.store.next_id()
        expected.append(finished(delay_id, FAR_MS + number))
        rig.store.append([(FAR_MS + number, delay_id, expected[-1])])
    rig.store.close()
    file = rig.disk.open(ROOT / "journal" / "0000000001")
    for number in (1, 2):
        file.pwrite(b"????", 64 + number * (FRAME_BYTES + 28 + len(expected[0])))
    repair_spill(rig.disk, ROOT, STORE_ID, rig.section, AsideDir(rig.disk, ROOT.parent))
    rig.open()
    assert rig.dues() == [FAR_MS + number for number in range(5)]
    with rig.store.lock:
        assert rig.store.read(rig.store.scan((-1, 0), FAR_MS * 2, 1_000).refs) == expected


def test_the_journal_does_not_end_within_a_segment_that_has_an_index() -> None:
    rig = Rig()
    for number in range(12):
        rig.accept(FAR_MS - number, size=60)
    while rig.store.spill_step(0):
        pass
    run = indexes(rig)[0]
    assert run.segment is not None
    assert run.segment.no == rig.store._state.directory.manifest.segments[0].no
    run.data.pwrite(b"????", 64 + 2 * (FRAME_BYTES + 28 + 67))
    rig.disk.kill()
    with pytest.raises(StoreCorruptError, match="breaks off"):
        rig.open()


def test_there_are_only_so_many_indexes() -> None:
    rig = Rig(runs_max=2)
    for number in range(COUNT):
        rig.accept(FAR_MS - number, size=60)
    rig.settle(0)
    assert len(indexes(rig)) == 2
    assert records(rig) == EXPECTED
    rig.check()


def test_few_of_many_are_copied() -> None:
    rig = Rig()
    rig.accept(FAR_MS, *range(1_000, 1_008), size=20)
    rig.accept(5_000, size=300)
    rig.settle(0)
    runs = [source for source in rig.sources() if isinstance(source, Run)]
    assert [(run.is_index, run.count) for run in runs] == [(False, 1)]


def test_the_same_comes_out_of_memory_and_of_the_file() -> None:
    rig = Rig()
    rig.accept(9_000, 7_000, 9_000, size=20)
    with rig.store.lock:
        found = rig.store.find(rig.accept(8_000, size=20)[0])
        assert found is not None
        rig.store.publish(rig.store.move(found, b"moved", 8_000))
    rig.accept(6_000, size=500)
    (segment,) = [s for s in rig.sources() if isinstance(s, JournalSegment) and s.closed]
    segment.set_order(segment.sort(segment.count))
    here = SegmentColumns(segment)
    directory = rig.store._state.directory
    entry = next(e for e in directory.manifest.segments if e.no == segment.no)
    there = SegmentColumns.read(DataEntry(entry.no, entry.base, entry.size), segment.file, directory.store_id)
    assert there is not None
    for first in range(len(here)):
        a, b = here.page(first, 2), there.page(first, 2)
        assert (a.dues.tolist(), a.ids.tolist(), a.starts.tolist()) == (
            b.dues.tolist(),
            b.ids.tolist(),
            b.starts.tolist(),
        )
    assert here.id_rows(here.by_id()).tolist() == there.id_rows(there.by_id()).tolist()
