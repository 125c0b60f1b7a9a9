"""The journal: all or nothing at every byte, failed writes and syncs, roll-over, and what counts as corruption."""

from __future__ import annotations

from pathlib import Path

import pytest

from store.disk.errors import (
    StoreClosedError,
    StoreCorruptError,
    StoreDoubtError,
    StoreError,
    StoreFullError,
    SyncFailedError,
)
from store.spill.journal.journal import Journal
from store.spill.rows.block import Block
from store.spill.spill_store import SpillStore
from tests.store.spill_world import FOREVER, ROOT, STORE_ID, tiny_options
from tests.support.simdisk import SimDisk, SimInode

Entry = tuple[int, int, bytes]


def opened(disk: SimDisk, section: bytes | None = None, **options: int) -> SpillStore:
    return SpillStore.open(disk, ROOT, STORE_ID, tiny_options(**options), section)


def accepted(store: SpillStore, *dues: int, size: int = 20) -> Block:
    entries = [(due, store.next_id(), bytes([65 + n]) * size) for n, due in enumerate(dues)]
    block = store.append(entries)
    with store.lock:
        store.publish(block)
    return block


def pending(store: SpillStore) -> list[Entry]:
    with store.lock:
        columns = store.scan((-1, 0), FOREVER, 1000)
        return list(zip(columns.dues, columns.ids, store.read(columns.refs), strict=True))


def segment_paths(disk: SimDisk) -> list[Path]:
    return [ROOT / "journal" / name for name in disk.listdir(ROOT / "journal")]


def patch(disk: SimDisk, path: Path, offset: int, data: bytes) -> None:
    file = disk.open(path)
    file.pwrite(data, offset)
    file.sync()


def test_restart_goes_on_in_the_same_segment() -> None:
    disk = SimDisk()
    store = opened(disk)
    accepted(store, 5, 3)
    before = pending(store)
    store.close()
    again = opened(disk)
    assert pending(again) == before
    accepted(again, 4)
    again.close()
    assert len(segment_paths(disk)) == 1
    third = opened(disk)
    assert [due for due, _, _ in pending(third)] == [3, 4, 5]
    assert len({id_ for _, id_, _ in pending(third)}) == 3
    assert third.check() == []


def test_truncation_at_every_byte_of_the_tail() -> None:
    """Whatever part of the last frame reached the disk: the frames before it are there, it is there whole or not."""
    disk = SimDisk()
    store = opened(disk)
    accepted(store, 10, 11)
    first = pending(store)
    store.journal.sync()
    start = store.journal.written
    accepted(store, 12, 13)
    both = pending(store)
    end = store.journal.written
    path = segment_paths(disk)[0]
    whole = disk.read_file(path)
    for cut in range(start, end + 1):
        torn = SimDisk()
        torn.makedirs(ROOT / "journal")
        torn.makedirs(ROOT / "runs")
        torn.replace_file(ROOT / "manifest", disk.read_file(ROOT / "manifest"))
        torn.replace_file(path, whole[:cut] + bytes(len(whole) - cut))
        again = opened(torn)
        assert pending(again) == (both if cut == end or not any(whole[cut:end]) else first), cut
        accepted(again, 14)
        again.close()
        assert len(pending(opened(torn))) in (3, 5)


def test_every_flipped_bit_of_a_frame_is_noticed() -> None:
    disk = SimDisk()
    store = opened(disk)
    accepted(store, 10, size=3)
    path = segment_paths(disk)[0]
    whole = disk.read_file(path)
    for at in range(64, store.journal.written):
        disk.replace_file(path, whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1 :])
        assert pending(opened(disk)) == []


def test_loss_below_the_durable_position_is_corruption() -> None:
    """A frame says how far the journal was durable when it was written: a hole below that is no torn tail."""
    disk = SimDisk()
    store = opened(disk)
    accepted(store, 10)
    middle = store.journal.written
    accepted(store, 11)
    store.journal.sync()
    accepted(store, 12)
    path = segment_paths(disk)[0]
    patch(disk, path, middle + 60, b"?")
    with pytest.raises(StoreCorruptError, match=f"{path.name} at {middle}: the journal breaks off"):
        opened(disk)


def test_loss_below_the_checkpoint_is_corruption() -> None:
    disk = SimDisk()
    store = opened(disk)
    accepted(store, 10)
    with store.lock:
        section = store.snapshot()
    store.journal.sync()
    store.durable()
    path = segment_paths(disk)[0]
    patch(disk, path, 64, bytes(10))
    with pytest.raises(StoreCorruptError, match="the journal breaks off"):
        opened(disk, section)
    assert pending(opened(disk)) == []  # without a checkpoint it is only a torn tail


def test_loss_in_a_closed_segment_is_corruption() -> None:
    disk = SimDisk()
    store = opened(disk)
    for due in range(20):
        accepted(store, due)
        store.journal.sync()
    paths = segment_paths(disk)
    assert len(paths) > 2
    patch(disk, paths[0], 64 + 48 + 3, b"?")
    with pytest.raises(StoreCorruptError, match=paths[0].name):
        opened(disk)


def test_unsynced_end_of_a_closed_segment_takes_the_next_one_with_it() -> None:
    disk = SimDisk()
    store = opened(disk)
    accepted(store, 1)
    store.journal.sync()
    kept = pending(store)
    for due in range(2, 15):
        accepted(store, due)
    paths = segment_paths(disk)
    assert len(paths) >= 2
    patch(disk, paths[0], store.journal.synced, bytes(60))  # the first unsynced frame never reached the disk
    again = opened(disk)
    assert pending(again) == kept
    for due in range(2, 30):
        accepted(again, due)
    assert len(pending(again)) == 29
    assert again.check() == []
    assert len(pending(opened(disk))) == 29


def test_old_frames_behind_the_end_never_come_back() -> None:
    disk = SimDisk()
    store = opened(disk)
    accepted(store, 1, size=10)
    first = store.journal.written
    accepted(store, 2, size=10)
    accepted(store, 3, size=10)
    path = segment_paths(disk)[0]
    patch(disk, path, first, bytes(20))  # the second is torn, the third is whole behind it
    again = opened(disk)
    assert [due for due, _, _ in pending(again)] == [1]
    accepted(again, 4, size=10)  # ends exactly where the third began
    again.close()
    assert [due for due, _, _ in pending(opened(disk))] == [1, 4]


def test_a_body_that_looks_like_a_frame_is_a_body() -> None:
    disk = SimDisk()
    store = opened(disk, segment_bytes=4096)
    accepted(store, 1)
    path = segment_paths(disk)[0]
    frame = disk.read_file(path)[64 : store.journal.written]
    block = store.append([(2, store.next_id(), frame * 3)])
    with store.lock:
        store.publish(block)
    patch(disk, path, block.at - 10, b"??????????")  # its frame is torn, its body is whole
    again = opened(disk, segment_bytes=4096)
    assert [due for due, _, _ in pending(again)] == [1]


def test_a_failed_write_leaves_nothing_visible() -> None:
    disk = SimDisk()
    store = opened(disk)
    accepted(store, 1)
    for number in range(4):
        disk.fail_at("pwrite", {1}, StoreFullError("no space left on device"))
        with pytest.raises(StoreFullError):
            accepted(store, 100 + number, size=60)
    disk.fault = None
    accepted(store, 2, size=5)
    assert [due for due, _, _ in pending(store)] == [1, 2]
    assert store.check() == []
    store.close()
    assert [due for due, _, _ in pending(opened(disk))] == [1, 2]


class Failing:
    """The journal's writes fail after all of it got through; ``clears``: so do zeros over what that has left."""

    def __init__(self, disk: SimDisk, clears: str = "") -> None:
        self.disk = disk
        self.clears = clears
        self.writes = 0
        self.wrote: list[tuple[SimInode, bytes, int]] = []
        disk.fault = self

    def __call__(self, operation: str, path: Path) -> None:
        if path.parent.name != "journal" or "sync_dir" in operation:
            return
        if operation == "pwrite":
            self.writes += 1
            if self.writes == 1 or (self.clears == "pwrite"):
                doing = self.disk.doing
                assert doing is not None
                inode, data, offset = doing
                if any(data):  # a frame: the whole of it stands there, and the call says that it failed
                    inode.write(bytes(data), offset)
                    self.wrote.append((inode, bytes(data), offset))
                raise StoreError(f"cannot write {path}: Input/output error (errno 5)")
        if operation == self.clears == "sync":
            raise SyncFailedError(f"cannot sync {path}: Input/output error (errno 5)")


def change(store: SpillStore, what: str) -> None:
    """Accept a message due at 30, cancel the one due at 10, or move it to 20."""
    if what == "accept":
        accepted(store, 30)
        return
    with store.lock:
        id_ = store.scan((-1, 0), FOREVER, 1).ids[0]
        found = store.find(id_)
        assert found is not None
        if what == "cancel":
            store.cancel(id_)
        else:
            store.publish(store.move(found, b"moved", 20))


@pytest.mark.parametrize("what", ["accept", "cancel", "move"])
@pytest.mark.parametrize("keep", [None, 0.0, 1.0])
def test_what_a_failed_write_has_left_is_gone_before_it_is_answered(what: str, keep: float | None) -> None:
    """All of the frame is there, the call says that it failed, and the process or the machine ends at once."""
    disk = SimDisk()
    store = opened(disk)
    accepted(store, 10)
    store.journal.sync()
    Failing(disk)
    with pytest.raises(StoreError, match="cannot write"):
        change(store, what)
    disk.fault = None
    after = disk.crashed(disk.rng, keep)
    assert [due for due, _, _ in pending(opened(after))] == [10]
    assert not store.in_doubt


@pytest.mark.parametrize("what", ["accept", "cancel", "move"])
@pytest.mark.parametrize("clears", ["pwrite", "sync"])
def test_nothing_is_appended_while_what_a_failed_write_has_left_cannot_be_cleared(what: str, clears: str) -> None:
    disk = SimDisk()
    store = opened(disk)
    accepted(store, 10)
    store.journal.sync()
    ids = {id_ for _, id_, _ in pending(store)}
    Failing(disk, clears)
    with pytest.raises(StoreDoubtError, match="is not known"):
        change(store, what)
    assert store.in_doubt == (frozenset() if what == "accept" else ids)
    for again in ("accept", "cancel", "move"):
        with pytest.raises(StoreError):
            change(store, again)
    assert store.in_doubt == (frozenset() if what == "accept" else ids)
    store.spill_step(1000)  # it cannot do it either
    assert store.journal.is_torn if isinstance(store.journal, Journal) else False
    disk.fault = None
    store.spill_step(3000)
    assert not store.in_doubt
    after = disk.crashed(disk.rng, 1.0)
    assert [due for due, _, _ in pending(opened(after))] == [10]
    change(store, "accept")
    assert [due for due, _, _ in pending(store)] == [10, 30]
    store.journal.sync()
    assert [due for due, _, _ in pending(opened(disk.crashed(disk.rng, 0.0)))] == [10, 30]


def test_a_failed_sync_of_the_clearing_does_not_lose_what_stands_before_it() -> None:
    disk = SimDisk()
    store = opened(disk)
    accepted(store, 10)  # not synced
    Failing(disk, "sync")
    with pytest.raises(StoreDoubtError):
        accepted(store, 30)
    disk.fault = None
    accepted_again = False
    for _ in range(3):
        try:
            accepted(store, 40)
            accepted_again = True
            break
        except StoreError:
            store.journal.sync()
    assert accepted_again
    store.journal.sync()
    disk.power_cut(0.0)
    assert [due for due, _, _ in pending(opened(disk))] == [10, 40]


@pytest.mark.parametrize("what", ["accept", "cancel", "move"])
@pytest.mark.parametrize("can_punch", [True, False])
def test_zeros_that_only_the_page_cache_has_do_not_end_the_journal(what: str, can_punch: bool) -> None:
    """A frame whose write failed is on the medium; the sync of the zeros over it failed, and marked them clean.

    A start delivers what waits, which writes nothing to the journal. After a power cut the frame must not count.
    """
    disk = SimDisk()
    disk.can_punch = can_punch
    store = opened(disk)
    accepted(store, 10)
    store.journal.sync()
    failing = Failing(disk, "sync")
    with pytest.raises(StoreDoubtError):
        change(store, what)
    ((inode, frame, offset),) = failing.wrote
    disk.kill()
    assert not any(inode.seen[offset:])
    inode.taken += len(inode.pending)
    inode.pending.clear()
    inode.medium[offset : offset + len(frame)] = frame
    assert [due for due, _, _ in pending(opened(disk))] == [10]
    disk.power_cut(0.0)
    assert [due for due, _, _ in pending(opened(disk))] == [10]


def test_zeros_of_a_failed_sync_are_no_proof_on_a_full_disk() -> None:
    """Zeros cannot be written and nothing can be punched: what reads as zeros may still be a frame on the medium."""
    disk = SimDisk()
    disk.can_punch = False
    store = opened(disk)
    accepted(store, 10)
    store.journal.sync()
    Failing(disk, "sync")
    with pytest.raises(StoreDoubtError):
        change(store, "move")
    disk.fail_at("pwrite", set(range(1, 100)), StoreFullError("no space left on device"), match="journal")
    store.spill_step(1000)
    assert store.in_doubt
    disk.fault = None
    store.spill_step(3000)
    assert not store.in_doubt


def test_a_withdrawal_that_could_not_be_written_is_written_before_anything_else() -> None:
    """Its sender was told that it was refused: a crash must not bring it back once anything else was answered."""
    disk = SimDisk()
    store = opened(disk)
    block = accepted(store, 10, 11)
    Failing(disk)
    with store.lock:
        store.withdraw(block, block.ids[0])
    disk.fault = None
    assert [due for due, _, _ in pending(store)] == [11]
    accepted(store, 12)
    assert [due for due, _, _ in pending(opened(disk.crashed(disk.rng, None)))] == [11, 12]


def test_a_withdrawal_is_written_in_the_background_and_at_the_end() -> None:
    for close in (False, True):
        disk = SimDisk()
        store = opened(disk)
        block = accepted(store, 10, 11)
        Failing(disk)
        with store.lock:
            store.withdraw(block, block.ids[1])
        disk.fault = None
        if close:
            store.close()
        else:
            store.spill_step(5_000)
        assert [due for due, _, _ in pending(opened(disk.crashed(disk.rng, None)))] == [10]


def test_after_a_failed_sync_the_same_bytes_are_written_again() -> None:
    disk = SimDisk()
    store = opened(disk)
    accepted(store, 1)
    store.journal.sync()
    accepted(store, 2, 3)
    durable = store.journal.synced
    disk.fail_at("sync", {1}, SyncFailedError("input/output error"))
    with pytest.raises(SyncFailedError):
        store.journal.sync()
    assert store.journal.synced == durable
    with pytest.raises(SyncFailedError, match="nothing is accepted"):
        accepted(store, 4)
    store.journal.sync()
    accepted(store, 4)
    store.journal.sync()
    assert store.journal.synced == store.journal.written
    disk.power_cut(0.0)
    assert [due for due, _, _ in pending(opened(disk))] == [1, 2, 3, 4]


def test_after_a_failed_sync_lost_bytes_are_not_called_durable() -> None:
    disk = SimDisk()
    store = opened(disk)
    block = accepted(store, 1)
    disk.fail_at("sync", {1}, SyncFailedError("input/output error"))
    with pytest.raises(SyncFailedError):
        store.journal.sync()
    disk.fault = None
    path = segment_paths(disk)[0]
    disk.open(path).pwrite(b"?", block.at + 1)  # the page was dropped, and read back as it had been
    for _ in range(2):
        with pytest.raises(SyncFailedError, match="cannot be written again"):
            store.journal.sync()
    assert not block.ticket.is_done()


def test_a_kill_after_a_failed_sync_does_not_make_it_durable() -> None:
    """The next process finds the bytes in the page cache, but the kernel will never write them by itself."""
    disk = SimDisk()
    store = opened(disk)
    accepted(store, 1)
    disk.fail_at("sync", {1}, SyncFailedError("input/output error"))
    with pytest.raises(SyncFailedError):
        store.journal.sync()
    disk.kill()
    again = opened(disk)
    assert [due for due, _, _ in pending(again)] == [1]
    disk.power_cut(0.0)
    assert [due for due, _, _ in pending(opened(disk))] == [1]


def test_what_does_not_fit_a_segment_is_refused() -> None:
    store = opened(SimDisk())
    limit = store.append_bytes_max
    block = store.append([(1, store.next_id(), bytes(limit - 28))])
    assert len(block) == 1
    with pytest.raises(StoreError, match="do not fit a journal segment"):
        store.append([(1, store.next_id(), bytes(limit - 27))])
    accepted(store, 5)


@pytest.mark.parametrize("spare", [False, True])
def test_a_message_that_was_accepted_when_segments_were_larger_can_be_moved(spare: bool) -> None:
    disk = SimDisk()
    store = opened(disk, segment_bytes=4000)
    block = accepted(store, 50, size=3000)
    accepted(store, 51, size=500)
    store.close()
    store = opened(disk)
    while spare and not store._journal.spare_count:
        assert store.spill_step(0)
    assert store.append_bytes_max < 3000
    with store.lock:
        found = store.find(block.ids[0])
        assert found is not None
        store.publish(store.move(found, bytes(3010), 60))
    accepted(store, 52)
    disk.kill()
    again = opened(disk)
    assert [(due, len(record)) for due, _, record in pending(again)] == [(51, 500), (52, 20), (60, 3010)]
    assert again.check() == []


def test_no_room_for_a_segment_that_was_not_prepared() -> None:
    disk = SimDisk()
    store = opened(disk)
    accepted(store, 1, 2, 3, size=150)
    disk.fail_at("all", set(range(1, 5)), StoreFullError("no space left on device"), match="journal")
    with pytest.raises(StoreFullError):
        accepted(store, 4, size=150)
    disk.fault = None
    accepted(store, 5, size=150)
    assert [due for due, _, _ in pending(store)] == [1, 2, 3, 5]
    store.close()
    assert [due for due, _, _ in pending(opened(disk))] == [1, 2, 3, 5]


def test_a_segment_is_prepared_ahead() -> None:
    disk = SimDisk()
    store = opened(disk)
    accepted(store, 1, 2, size=100)
    assert len(segment_paths(disk)) == 1
    while store.spill_step(0):
        pass
    assert len(segment_paths(disk)) == 2
    creations = disk.counts["create"]
    for due in range(4):
        accepted(store, due, size=100)
    assert disk.counts["create"] == creations
    assert store.journal_bytes == 2 * 700


def test_closed_is_closed() -> None:
    store = opened(SimDisk())
    accepted(store, 1)
    store.close()
    store.close()
    with pytest.raises(StoreClosedError):
        accepted(store, 2)
    with pytest.raises(StoreClosedError):
        store.journal.sync()
    assert not store.spill_step(0)


def test_due_times_that_nobody_could_find_are_refused() -> None:
    store = opened(SimDisk())
    for due in (-1, 1 << 62):
        with pytest.raises(StoreError, match="are possible"):
            store.append([(due, store.next_id(), b"x")])


def test_a_torn_end_that_cannot_be_read_is_not_cut() -> None:
    """What a start takes out is kept aside first; if that cannot be read now, the start has to be tried again."""
    disk = SimDisk()
    store = opened(disk)
    accepted(store, 10)
    end = store.journal.written
    accepted(store, 11)
    path = segment_paths(disk)[0]
    patch(disk, path, end + 70, b"?")
    torn = disk.read_file(path)
    left = 0

    def fault(read: Path) -> None:
        nonlocal left
        left -= read == path
        if not left and read == path:
            raise StoreError(f"cannot read {read}: Input/output error (errno 5)")

    disk.read_fault = fault
    for failing in range(1, 20):
        left = failing
        try:
            opened(disk)
        except StoreError:
            assert disk.read_file(path) == torn or any("aside" in name for name in disk.listdir(path.parent))
    assert left > 0, "all reads of a start have failed once"
    assert any("aside" in name for name in disk.listdir(path.parent))
