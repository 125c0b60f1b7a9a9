"""The journal of pops: after any end it says what was there at some commit, and after a kill at the last one."""

from itertools import pairwise
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remoting.layout import FILE_HEADER_BYTES
from remoting.layout.pops import POP_FRAME_BYTES
from remoting.messages.checksum import crc32
from store.disk.errors import StoreError, StoreFormatError, StoreFullError, SyncFailedError
from store.pop.in_flight import InFlight
from store.pop.journal import PopJournal, file_name
from store.pop.order_block import OrderBlock
from store.pop.pop_queue import numbers_of
from store.pop.replay import read_journal
from store.pop.rows import VERSION, file_header
from tests.simulation.faults import fails
from tests.support.simdisk import SimDisk

STORE_ID = bytes(range(16))
PLACE = Path("/store/timewheel/pop")
NAMES = ("G", "группа-" + "g" * 200), ("T", "%RETRY%G_" + "t" * 250)
State = dict[tuple[str, str, int], tuple]


class Rig:
    """An `InFlight` with its journal on a disk that breaks."""

    def __init__(self, disk: SimDisk, numbers: list[int] | None = None, tail_bytes: int = 300) -> None:
        self.disk = disk
        self.in_flight = InFlight(0)
        self.log_position = 0
        self.journal = PopJournal(disk, PLACE, STORE_ID, self.in_flight, lambda: self.log_position)
        self.journal.tail_bytes = tail_bytes
        if numbers is not None:
            self.journal.begin(numbers)

    def state(self) -> State:
        """What is in flight, as the journal should say it."""
        found: State = {}
        for queue in self.in_flight.queues():
            live = {}
            for name, start, bits, pop_ms, due_ms in queue.rows():
                live[name] = live.get(name, (0,))[0] | bits, start, pop_ms, due_ms
            found[queue.group, queue.topic, queue.queue_id] = queue.next, live, block_of(queue.block)
        return found


def block_of(block: OrderBlock | None) -> tuple | None:
    if block is None or not block.waiting:
        return None
    return block.waiting[:], dict(block.visible_ms), dict(block.counts), block.pop_ms, block.attempt_id


def said(disk: SimDisk) -> State:
    """What the files say."""
    state = read_journal(disk, PLACE, STORE_ID)
    return {
        (q.group, q.topic, q.queue_id): (
            q.next,
            {n: (b.bits, b.start, b.pop_ms, b.due_ms) for n, b in q.batches.items()},
            block_of(q.block),
        )
        for q in state.queues.values()
    }


def pop_each(rig: Rig, count: int, invisible_ms: int) -> None:
    """So many pops of one message each, of one queue."""
    queue = rig.in_flight.open("G", "T", 0, 0)
    for offset in range(count):
        rig.in_flight.record(queue, offset, (offset,), 7, invisible_ms, offset + 1)


class Doer:
    """Draws what happens."""

    def __init__(self, rig: Rig, rng: Random) -> None:
        self.rig, self.rng, self.now_ms = rig, rng, 1_000

    def something(self) -> None:
        rig, rng, flight = self.rig, self.rng, self.rig.in_flight
        self.now_ms += rng.choice((0, 1, 50))
        key = rng.choice(NAMES[0]), rng.choice(NAMES[1]), rng.randrange(2)
        queue = flight.find(*key) or flight.open(*key, rng.choice((0, 7, 1 << 40)))
        assert queue is not None
        claimed = {one.name for _, _, one in queue.heap if one.claimed}
        live = [row for row in queue.rows() if row[0] not in claimed]
        what = rng.choice(("pop", "pop", "ack", "ack", "change", "order", "revive", "skip", "forget", "log"))
        if what == "pop":
            span = rng.randint(1, 40)
            offsets = sorted(rng.sample(range(queue.next, queue.next + span), rng.randint(0, min(span, 32))))
            flight.record(queue, queue.next, offsets, self.now_ms, rng.choice((1, 60_000)), queue.next + span)
        elif what == "ack" and live:
            _, start, _, pop_ms, _ = rng.choice(live)
            flight.ack(queue, start, pop_ms, rng.getrandbits(40))
        elif what == "change" and live:
            _, start, bits, pop_ms, _ = rng.choice(live)
            flight.change(queue, start, pop_ms, rng.choice([*numbers_of(start, bits)]), 10, self.now_ms)
        elif what == "order":
            block = queue.block if queue.block is not None and queue.block.waiting else None
            if block is None:
                block = OrderBlock(range(queue.next, queue.next + 3))
                first, name = block.waiting[:2], rng.choice(("", "попытка" * 90))
                flight.block(queue, block, first, name, self.now_ms, self.now_ms + 9, queue.next + 3)
            elif rng.random() < 0.7:
                flight.ack_in_order(queue, block.waiting[0], block.pop_ms)
            else:
                flight.unblock(queue, block.waiting[: rng.randint(1, 3)], self.now_ms, rng.choice((1, 60_000)))
        elif what == "revive":
            for batch in flight.claim(self.now_ms, 2)[0]:
                rest = flight.copied(batch, rng.getrandbits(40) & batch.waiting)
                flight.put_back(batch, self.now_ms + 5)
                if rng.random() < 0.5:
                    flight.settle(rest)
        elif what == "skip":
            flight.skip(queue, queue.next + 1) if rng.random() < 0.7 else flight.restart(queue, 3)
        elif what == "forget":
            if rng.random() < 0.3:
                flight.forget_topic(key[1]) if rng.random() < 0.5 else flight.forget_group(key[0])
        else:
            rig.log_position += 10

    def turn(self) -> None:
        for _ in range(self.rng.randint(1, 4)):
            self.something()
        self.rig.journal.commit()


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 1 << 32))
def test_a_kill_at_any_moment_finds_the_last_commit(seed):
    rng = Random(seed)
    rig = Rig(SimDisk(seed))
    doer = Doer(rig, rng)
    committed: State = {}
    for _ in range(rng.randint(1, 60)):
        before = committed
        dying = rng.random() < 0.1
        if dying:  # in the middle of a write
            crashed: list[SimDisk] = []
            rig.disk.fault = lambda *_, found=crashed: found.append(rig.disk.crashed(rng, None, True))
        doer.turn()
        committed = rig.state()
        for _ in range(rng.choice((0, 0, 1, 3))):
            rig.journal.step(doer.now_ms)
        assert rig.state() == committed
        if dying:
            rig.disk.fault = None
            for disk in crashed:
                assert said(disk) in (before, committed)
        assert said(rig.disk.crashed(rng, None)) == committed
        assert rig.in_flight.check() == []
    assert len(rig.disk.listdir(PLACE)) <= 2


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 1 << 32))
def test_a_power_cut_finds_one_commit_not_older_than_the_last_sync(seed):
    rng = Random(seed)
    rig = Rig(SimDisk(seed))
    doer = Doer(rig, rng)
    commits: list[State] = [{}]
    synced = 0
    for _ in range(rng.randint(1, 50)):
        doer.turn()
        commits.append(rig.state())
        if rng.random() < 0.2:
            try:
                if rng.random() < 0.3:
                    rig.disk.fail_at("sync", {1}, SyncFailedError("a test"))
                rig.journal.sync()
                assert rig.journal.synced == rig.journal.written
                synced = len(commits) - 1
            except SyncFailedError:
                assert rig.journal.synced < rig.journal.written
            rig.disk.fault = None
        for _ in range(rng.choice((0, 0, 1, 3))):
            rig.journal.step(doer.now_ms)
    assert said(rig.disk.crashed(rng, rng.choice((0.0, 0.3, 0.7, 1.0)))) in commits[synced:]


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 1 << 32))
def test_what_cannot_be_written_is_written_with_the_next(seed):
    rng = Random(seed)
    rig = Rig(SimDisk(seed))
    doer = Doer(rig, rng)
    for _ in range(20):
        rig.disk.fail_at(rng.choice(("pwrite", "create", "all")), {1}, StoreFullError("no room"))
        failed = False
        try:
            doer.turn()
        except StoreError:
            failed = True
        rig.disk.fault = None
        assert bool(rig.journal.failure) == rig.journal.pending <= failed
        if failed and rng.random() < 0.5:
            rig.journal.commit()
            assert said(rig.disk.crashed(rng, None)) == rig.state()
        try:
            rig.disk.fail_at("all", {rng.randint(1, 3)}, StoreFullError("no room"))
            rig.journal.step(doer.now_ms)
        except StoreError:
            pass
        rig.disk.fault = None
    for _ in range(20):
        rig.journal.step(doer.now_ms)
    assert said(rig.disk.crashed(rng, None)) == rig.state()
    assert rig.journal.failure == ""


def test_a_file_that_is_cut_or_changed_anywhere_says_less_and_nothing_wrong():
    rng = Random(3)
    rig = Rig(SimDisk(1), tail_bytes=1 << 30)
    doer = Doer(rig, rng)
    commits: list[State] = [{}]
    for _ in range(12):
        doer.turn()
        commits.append(rig.state())
    path = PLACE / file_name(1)
    whole = rig.disk.read_file(path)
    inode = rig.disk._seen[path]
    for at in range(len(whole)):
        inode.seen[:] = whole[:at]
        assert said(rig.disk) in commits
    for at in range(FILE_HEADER_BYTES, len(whole)):
        inode.seen[:] = whole
        inode.seen[at] ^= 1 << at % 8
        state = read_journal(rig.disk, PLACE, STORE_ID)
        assert said(rig.disk) in commits[:-1]
        assert len(state.damage) == 1
    inode.seen[:] = whole
    assert said(rig.disk) == commits[-1]


def test_another_stores_and_a_later_versions_file():
    rig = Rig(SimDisk())
    Doer(rig, Random(5)).turn()
    other = read_journal(rig.disk, PLACE, bytes(16))
    assert (other.queues, other.numbers) == ({}, [1])
    assert "none of 0000000001" in other.damage[0]
    newer = bytearray(file_header(STORE_ID, 1, 0, 0))
    newer[4:8] = (VERSION + 1).to_bytes(4, "little")
    newer[60:64] = crc32(bytes(newer[:60])).to_bytes(4, "little")
    rig.disk._seen[PLACE / file_name(1)].seen[:64] = newer
    with pytest.raises(StoreFormatError, match=r"0000000001 at 64: it has format version 2, this program knows 1"):
        read_journal(rig.disk, PLACE, STORE_ID)


def test_its_size_follows_what_is_in_flight_not_what_happened():
    rig = Rig(SimDisk(), tail_bytes=2_000)
    queue = rig.in_flight.open("G", "T", 0, 0)
    for number in range(3_000):
        rig.in_flight.record(queue, number, (number,), number, 60_000, number + 1)
        rig.in_flight.ack(queue, number, number, 1)
        rig.journal.commit()
        while rig.journal.step(number) == number:
            pass
        assert sum(rig.disk.file_size(PLACE / name) for name in rig.disk.listdir(PLACE)) < 2_400
    assert said(rig.disk) == rig.state()


def test_a_start_begins_a_new_file_and_an_end_says_so():
    rig = Rig(SimDisk())
    queue = rig.in_flight.open("G", "T", 0, 0)
    rig.in_flight.record(queue, 0, (0, 2, 5), 7, 60_000, 6)
    rig.log_position = 77
    rig.journal.close(77)
    state = read_journal(rig.disk, PLACE, STORE_ID)
    assert (state.closed, state.log_position, state.numbers, state.highest) == (True, 77, [1], 1)
    again = Rig(rig.disk)
    again.in_flight.restored(again.in_flight.open("G", "T", 0, 6), 1, 0, 0b100101, 7, 60_007)
    again.in_flight.number = 1
    again.journal.begin(state.numbers)
    assert rig.disk.listdir(PLACE) == [file_name(2)]
    assert said(rig.disk) == said(rig.disk.crashed(Random(1), 0.0)) == again.state()
    assert not read_journal(rig.disk, PLACE, STORE_ID).closed
    again.journal.close(78)
    assert not read_journal(rig.disk, PLACE, STORE_ID).closed, "the log has grown behind what is known"


def test_what_is_copied_while_the_next_file_is_begun_is_in_it_until_the_copies_are_durable(monkeypatch):
    """A power cut may take the copies; the file before is gone by then."""
    monkeypatch.setattr("store.pop.journal._SLICE_ROWS", 1)
    rig = Rig(SimDisk(1))
    pop_each(rig, 6, 1)
    rig.journal.commit()
    batches, _ = rig.in_flight.claim(100, 64)
    for _ in range(3):
        rig.journal.step(100)
    copies = [rig.in_flight.copied(batch, 1) for batch in batches]
    while rig.journal.step(100) == 100:
        pass
    assert len(rig.disk.listdir(PLACE)) == 1
    assert said(rig.disk.crashed(Random(1), 0.0)) == rig.state()
    for copy in copies:
        rig.in_flight.settle(copy)
    rig.journal.commit()
    assert said(rig.disk) == rig.state() == {("G", "T", 0): (6, {}, None)}


def test_files_whose_sync_fails_are_few_and_made_ever_less_often():
    rig = Rig(SimDisk(3), tail_bytes=1 << 20)
    doer = Doer(rig, Random(3))
    doer.turn()
    rig.journal.sync()
    durable = rig.state()
    doer.turn()
    rig.disk.fault = fails("sync", "pop", [(0, 1 << 30)])
    with pytest.raises(SyncFailedError):
        rig.journal.sync()
    made, now_ms = [], 0
    for now_ms in range(0, 20_000, 100):  # as the flusher asks again after a failure
        before = rig.journal.written
        try:
            rig.journal.step(now_ms)
        except SyncFailedError:
            made.append(now_ms)
        assert len(rig.disk.listdir(PLACE)) <= 3
        assert said(rig.disk.crashed(Random(1), None)) == rig.state()
        assert said(rig.disk.crashed(Random(1), 0.0)) in (durable, rig.state())
        assert now_ms in made or rig.journal.written - before < 300
    assert 20 <= len(made) <= 25, made
    rig.disk.fault = None
    for later_ms in range(now_ms, now_ms + 2_000, 100):
        rig.journal.step(later_ms)
    assert len(rig.disk.listdir(PLACE)) == 1
    assert said(rig.disk.crashed(Random(1), 0.0)) == rig.state()


def test_a_clock_that_was_set_back_does_not_keep_a_journal_from_being_made_anew():
    rig = Rig(SimDisk(3), tail_bytes=1 << 20)
    Doer(rig, Random(3)).turn()
    hour_ms = 3_600_000
    rig.disk.fault = fails("sync", "pop", [(0, 2)])
    for step in (rig.journal.sync, lambda: rig.journal.step(hour_ms)):
        with pytest.raises(SyncFailedError):
            step()
    for now_ms in range(0, 1_500, 100):
        rig.journal.step(now_ms)
    rig.journal.sync()
    assert said(rig.disk.crashed(Random(1), 0.0)) == rig.state()


def test_a_file_whose_sync_failed_while_it_was_filled_is_not_trusted(monkeypatch):
    """The next sync of it would succeed, without what the kernel forgot."""
    monkeypatch.setattr("store.pop.journal._SLICE_ROWS", 1)
    rig = Rig(SimDisk(1))
    pop_each(rig, 9, 60_000)
    rig.journal.commit()
    rig.journal.sync()
    assert rig.journal.step(0) == 0, "the next one is being filled"
    rig.disk.fault = fails("sync", file_name(2), [(0, 1)])
    with pytest.raises(SyncFailedError):
        rig.journal.sync()
    with pytest.raises(SyncFailedError, match="0000000002: a sync has failed"):
        while rig.journal.step(0) == 0:
            pass
    assert file_name(1) in rig.disk.listdir(PLACE)
    now_ms = 200
    while rig.journal.step(now_ms) == now_ms:
        pass
    assert rig.disk.listdir(PLACE) == [file_name(3)]
    assert said(rig.disk.crashed(Random(1), 0.0)) == rig.state()


def test_tries_to_end_a_file_on_a_full_disk_keep_nothing():
    rig = Rig(SimDisk(1))
    queue = rig.in_flight.open("G", "T", 0, 0)
    for offset in range(9):
        rig.in_flight.record(queue, offset, (offset,), 7, 60_000, offset + 1)
        rig.journal.commit()
    assert rig.journal.step(0) in (0, 1_000)
    rig.in_flight.record(queue, 9, (9,), 7, 60_000, 10)
    rig.disk.fault = fails("full", "pop", [(0, 1 << 30)])
    for _ in range(100):
        with pytest.raises(StoreFullError):
            rig.journal._finish()
    assert len(rig.journal._left) <= 4


def test_without_pops_there_is_no_file():
    rig = Rig(SimDisk())
    rig.journal.begin([])
    rig.journal.step(1)
    rig.journal.sync()
    rig.journal.close(0)
    assert not rig.disk.exists(PLACE)


def test_a_pop_takes_a_row_and_an_acknowledgement_less():
    rig = Rig(SimDisk(), tail_bytes=1 << 30)
    queue = rig.in_flight.open("G", "T", 0, 0)
    rig.journal.commit()
    sizes = [rig.journal.file_bytes]
    rig.in_flight.record(queue, 0, range(32), 7, 60_000, 32)
    rig.journal.commit()
    sizes.append(rig.journal.file_bytes)
    for place in range(16):
        rig.in_flight.ack(queue, 0, 7, 1 << place)
    rig.journal.commit()
    sizes.append(rig.journal.file_bytes)
    assert [after - before - POP_FRAME_BYTES for before, after in pairwise(sizes)] == [51, 13]


def test_what_a_thread_has_taken_to_write_it_is_pending_until_it_is_written() -> None:
    """Otherwise an acknowledgement is answered, the write fails or the process dies, and the message comes again."""
    rig = Rig(SimDisk(1))
    queue = rig.in_flight.open("G", "T", 0, 0)
    assert queue is not None
    seen: list[bool] = []

    def look() -> int:
        seen.append(rig.journal.pending)
        return 0

    rig.journal._settled_to = look
    assert rig.journal.pending
    rig.journal.commit()
    assert (seen, rig.journal.pending) == ([True], False)
