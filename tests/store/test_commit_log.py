"""The CommitLog: golden bytes, every truncation, torn and failed writes, failed syncs, tiny segments."""

from __future__ import annotations

import random
from pathlib import Path
from struct import unpack_from

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from remoting.messages.message import MAGIC_BLANK, Message, decode_record, encode_host, encode_record
from store.disk.errors import StoreCorruptError, StoreError, StoreFormatError, StoreFullError, SyncFailedError
from store.disk.files import Files
from store.log.commit_log import CommitLog
from tests.support.examples import examples
from tests.support.raw_puts import append
from tests.support.simdisk import PowerCut, SimDisk

HOST = encode_host("127.0.0.1", 10911)
ROOT = Path("/store/commitlog")


def record(body: bytes = b"hello", topic: str = "T", properties: str = "", born: str = "10.0.0.1") -> bytes:
    return encode_record(
        Message(topic, 1, body=body, properties=properties, born_ms=7, born_host=encode_host(born, 9)), HOST
    )


def opened(files: Files, segment_bytes: int = 1000, at: Path = ROOT, start: int = 0, at_least: int = 0) -> CommitLog:
    log = CommitLog(files, at, segment_bytes, at.parent / "aside")
    for _ in log.recover(start, at_least):
        pass
    return log


def bodies(log: CommitLog) -> list[bytes]:
    return [decode_record(r).body for _, r in log.scan(0, check_crc=True)]


def test_golden_bytes(tmp_path: Path) -> None:
    log = opened(Files(), 300, tmp_path)
    one, two = record(b"one"), record(b"two", born="::1")
    offsets, error = append(log, [one, two, one], [5, 6, 7], 1_700_000_000_123)
    assert error is None
    assert offsets == [0, 95, 300]  # 202 bytes, then a blank of 98
    raw = (tmp_path / f"{0:020d}").read_bytes()
    assert len(raw) == 300
    assert raw[:20] == one[:20]
    assert unpack_from(">qq", raw, 20) == (5, 0)
    assert unpack_from(">q", raw, 56) == (1_700_000_000_123,)
    assert raw[64:95] == one[64:]
    assert unpack_from(">qq", raw, 95 + 20) == (6, 95)
    assert unpack_from(">q", raw, 95 + 68) == (1_700_000_000_123,)
    assert unpack_from(">iI", raw, 202) == (98, MAGIC_BLANK)
    assert raw[210:] == bytes(90)
    assert (tmp_path / f"{300:020d}").stat().st_size == 300
    stored = decode_record(log.read_record(300) or b"")
    assert (stored.offset, stored.queue_offset, stored.store_ms, stored.body) == (300, 7, 1_700_000_000_123, b"one")
    log.close()
    again = opened(Files(), 300, tmp_path)
    assert (again.begin, again.end, again.synced) == (0, 395, 395)
    assert bodies(again) == [b"one", b"two", b"one"]
    assert again.check() == []


def test_a_record_needs_eight_bytes_behind_it() -> None:
    log = opened(SimDisk(), 95 * 2 + 8)
    assert append(log, [record(b"one")] * 3, [0, 1, 2], 1)[0] == [0, 95, 198]
    tight = opened(SimDisk(), 95 * 2 + 7)
    assert append(tight, [record(b"one")] * 3, [0, 1, 2], 1)[0] == [0, 197, 394]


def test_a_whole_batch_stays_in_one_segment() -> None:
    log = opened(SimDisk(), 400)
    append(log, [record(b"one")], [0], 1)
    assert append(log, [record(b"two")] * 4, [0] * 4, 1, whole=True) == ([400, 495, 590, 685], None)
    offsets, error = append(log, [record(b"two")] * 5, [0] * 5, 1, whole=True)
    assert offsets == []
    assert isinstance(error, StoreError)
    offsets, error = append(log, [record(b"x" * 500)], [0], 1)
    assert (offsets, str(error)) == ([], "592 bytes do not fit into a segment of 400")
    assert append(log, [record(b"three")], [9], 1)[1] is None


def test_truncation_at_every_byte_keeps_what_is_whole(tmp_path: Path) -> None:
    written = [record(b"%d" % n, properties=f"K\x01{n}\x02") for n in range(5)]
    log = opened(Files(), 1000, tmp_path / "log")
    offsets, _ = append(log, written, range(5), 1)
    end = log.end
    log.close()
    path = tmp_path / "log" / f"{0:020d}"
    whole = path.read_bytes()
    ends = [*offsets[1:], end]
    for cut in range(end + 1):
        path.write_bytes(whole[:cut] + bytes(1000 - cut))
        again = opened(Files(), 1000, tmp_path / "log")
        assert again.end == max([0, *(e for e in ends if e <= cut)])
        assert again.check() == []
        assert not any(path.read_bytes()[again.end :])
        again.close()


def test_a_flipped_bit_ends_the_log_unless_it_was_durable() -> None:
    disk = SimDisk()
    log = opened(disk)
    offsets, _ = append(log, [record(b"abc"), record(b"def")], [0, 1], 1)
    log.sync()
    file = disk.open(ROOT / f"{0:020d}")
    for position in (offsets[1] + 5, offsets[1] + 30, offsets[1] + 84 + 4):  # magic, position, body
        before = file.pread(1, position)
        file.pwrite(bytes([before[0] ^ 1]), position)
        with pytest.raises(StoreCorruptError, match=f"ends at {offsets[1]}, but {log.end} was durable"):
            opened(disk, at_least=log.end)
        file.pwrite(before, position)
    assert opened(disk, at_least=log.end).end == log.end


def test_stale_bytes_behind_the_end_are_never_read_again() -> None:
    disk = SimDisk()
    log = opened(disk)
    append(log, [record(b"old-1"), record(b"old-2"), record(b"old-3")], [0, 1, 2], 1)
    log.sync()
    file = disk.open(ROOT / f"{0:020d}")
    file.pwrite(b"\xff", 4)  # the first one is torn, the others are whole
    again = opened(disk)
    assert again.end == 0
    assert append(again, [record(b"new-1")], [0], 2)[0] == [0]  # ends where old-2 began
    disk.power_cut(1.0)
    assert bodies(opened(disk)) == [b"new-1"]


def test_a_record_at_another_place_is_none() -> None:
    disk = SimDisk()
    log = opened(disk)
    append(log, [record(b"abc")], [0], 1)
    file = disk.open(ROOT / f"{0:020d}")
    file.pwrite(file.pread(log.end, 0), log.end)  # a copy, with the position of the first
    assert opened(disk).end == log.end


def test_later_segments_are_put_aside() -> None:
    disk = SimDisk()
    log = opened(disk, 300)
    append(log, [record(b"abc")] * 7, range(7), 1)
    disk.open(ROOT / f"{300:020d}").pwrite(b"\0\0\0\0", 0)
    again = opened(disk, 300)
    assert again.end == 300
    assert disk.listdir(ROOT) == [f"{0:020d}", f"{300:020d}"]
    assert disk.listdir(ROOT.parent / "aside") == [f"{300:020d}@0", f"{600:020d}"]
    kept = disk.read_file(ROOT.parent / "aside" / f"{300:020d}@0")
    assert kept[:4] == bytes(4)
    assert kept[4:8] == record(b"abc")[4:8], "what stood behind the end is kept, too"
    assert again.cut_aside == ROOT.parent / "aside" / f"{300:020d}@0"


def fill(disk: SimDisk, body: bytes) -> None:
    """Append to a log until it has three segments, and close it."""
    log = opened(disk, 300)
    while log.end < 700:
        append(log, [record(body)], [0], 1)
    log.close()


def test_what_was_put_aside_before_is_kept() -> None:
    disk = SimDisk()
    for body in (b"abc", b"xyz"):
        fill(disk, body)
        disk.open(ROOT / f"{300:020d}").pwrite(bytes(300), 0)
    opened(disk, 300)
    aside = ROOT.parent / "aside"
    kept = [disk.read_file(aside / name) for name in disk.listdir(aside)]
    assert disk.listdir(aside) == [f"{600:020d}", f"{600:020d}.1"]
    assert (b"abc" in kept[0], b"xyz" in kept[1]) == (True, True)


def test_the_log_tells_where_a_second_torn_end_was_put() -> None:
    disk = SimDisk()
    for body in (b"abc", b"xyz"):
        fill(disk, body)
        disk.open(ROOT / f"{300:020d}").pwrite(b"\0\0\0\0", 0)
        again = opened(disk, 300)
        assert again.cut_aside is not None
        assert body in disk.read_file(again.cut_aside)
        again.close()


@pytest.mark.parametrize("can_punch", [True, False])
def test_a_failed_write_changes_nothing_and_leaves_nothing(can_punch: bool) -> None:
    for number in range(1, 5):
        for seed in range(10):
            disk = SimDisk(seed)
            disk.can_punch = can_punch
            log = opened(disk, 300)
            kept = [b"kept"]
            append(log, [record(b"kept")], [0], 1)
            disk.fail_at("pwrite", {number}, disk.full())
            offsets, error = append(log, [record(b"lost%d" % n) for n in range(4)], range(1, 5), 1)
            kept += [b"lost%d" % n for n in range(len(offsets))]
            assert (error is None) == (len(offsets) == 4)
            assert error is None or isinstance(error, StoreFullError)
            assert bodies(log) == kept
            disk.fault = None
            assert append(log, [record(b"next")], [9], 1)[1] is None
            kept.append(b"next")
            assert bodies(log) == kept
            log.sync()
            assert bodies(log) == kept
            disk.power_cut()
            assert bodies(opened(disk, 300)) == kept


def test_after_a_failed_sync_the_same_bytes_are_written_again() -> None:
    for number in range(1, 3):
        disk = SimDisk(number)
        log = opened(disk, 300)
        append(log, [record(b"%d" % n) for n in range(6)], range(6), 1)
        disk.fail_at("sync", {number}, SyncFailedError("no"))
        with pytest.raises(SyncFailedError):
            log.sync()
        assert log.failed
        assert log.synced == 0
        assert isinstance(append(log, [record()], [6], 1)[1], SyncFailedError)
        disk.fail_at("sync", {1}, SyncFailedError("no"))
        with pytest.raises(SyncFailedError):
            log.sync()
        disk.fault = None
        log.sync()
        assert not log.failed
        assert log.synced == log.end
        disk.power_cut(0.0)
        assert bodies(opened(disk, 300)) == [b"%d" % n for n in range(6)]


def test_what_was_read_before_a_failed_sync_was_made_up_for_is_read_again() -> None:
    """A file system may forget pages that it could not write. What it reads then is not what was written."""
    disk = SimDisk()
    log = opened(disk, 3 << 20)
    written = [record(b"%04d" % n * 1_250) for n in range(300)]
    offsets, _ = append(log, written, range(300), 1)
    spans = [(offsets[n], len(written[n])) for n in range(0, 160, 8)]
    right = log.gather_hot(spans)
    disk.fail_at("sync", {1}, SyncFailedError("no"))
    with pytest.raises(SyncFailedError):
        log.sync()
    disk.fault = None
    disk.open(ROOT / f"{0:020d}").pwrite(bytes(log.end), 0)
    for _ in range(2):
        assert log.gather_hot(spans) == bytes(sum(n for _, n in spans))
    log.sync()
    assert [log.gather_hot(spans) for _ in range(3)] == [right] * 3


def test_with_too_much_unsynced_it_stays_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("store.log.commit_log.KEPT_BYTES_MAX", 300)
    disk = SimDisk()
    log = opened(disk, 1000)
    for n in range(5):
        append(log, [record(b"x" * 50)], [n], 1)
    log.sync()
    for n in range(5):
        append(log, [record(b"x" * 50)], [n], 1)
    disk.fail_at("sync", {1}, SyncFailedError("no"))
    with pytest.raises(SyncFailedError):
        log.sync()
    disk.fault = None
    with pytest.raises(SyncFailedError, match="has to be restarted"):
        log.sync()
    assert isinstance(append(log, [record()], [6], 1)[1], SyncFailedError)


def test_a_failed_directory_sync_is_made_up_for() -> None:
    disk = SimDisk()
    log = opened(disk, 300)
    append(log, [record(b"%d" % n) for n in range(6)], range(6), 1)
    disk.fail_at("sync_dir", {1}, SyncFailedError("no"))
    with pytest.raises(SyncFailedError):
        log.sync()
    log.sync()
    disk.power_cut(0.0)
    assert len(bodies(opened(disk, 300))) == 6


def test_segments_are_made_ahead_and_removed_when_unused() -> None:
    disk = SimDisk()
    log = opened(disk, 400)
    assert not log.allocate_ahead()
    append(log, [record(b"abc")], [0], 1)
    assert not log.allocate_ahead()
    append(log, [record(b"abc")] * 3, [1, 2, 3], 1)
    assert log.allocate_ahead()
    assert not log.allocate_ahead()
    assert disk.listdir(ROOT) == [f"{0:020d}", f"{400:020d}"]
    assert len(log.segments()) == 1
    creations = disk.counts["create"]
    assert append(log, [record(b"abc")], [4], 1)[0] == [400]
    assert disk.counts["create"] == creations
    append(log, [record(b"abc")] * 3, [1, 2, 3], 1)
    log.allocate_ahead()
    assert len(disk.listdir(ROOT)) == 3
    log.close()
    assert len(disk.listdir(ROOT)) == 2


def test_reading_hot_and_cold_and_out_of_range() -> None:
    disk = SimDisk()
    log = opened(disk, 400)
    (first, *_), _ = append(log, [record(b"abc")] * 5, range(5), 1)
    whole = log.read(first, 95)
    assert log.read_hot(first, 95) == whole
    disk.cold = True
    assert log.read_hot(first, 95) is None
    assert log.read_hot(log.end, 95) == b""
    assert log.read(log.end - 95, 96) == b""
    assert log.read(-5, 10) == b""
    assert log.read_record(first) == whole
    assert log.read_record(first + 1) is None
    assert log.read_record(log.end) is None


@pytest.mark.parametrize("cold", [False, True])
def test_a_wrong_word_on_a_size_costs_a_read_and_changes_nothing(cold: bool) -> None:
    disk = SimDisk()
    log = opened(disk, 400)
    append(log, [record(b"one"), record(b"three")], [0, 1], 1)
    disk.cold = cold
    for offset in (0, 95, 1, 96, 192, 400, -1):
        wanted = log.read_record(offset)
        assert (wanted is not None) is (offset in (0, 95))
        for size in (0, 50, 94, 95, 97, 192, 400, 1 << 31, -1):
            assert log.read_record(offset, size) == wanted
    disk.reads = 0
    log.read_record(0, 95)
    assert disk.reads == 1
    log.read_record(0, 96)
    assert disk.reads == 4


def test_oldest_segments_can_go_but_never_the_last() -> None:
    disk = SimDisk()
    log = opened(disk, 300)
    append(log, [record(b"%d" % n) for n in range(6)], range(6), 5)
    assert log.remove_oldest() is None  # not durable yet
    log.sync()
    assert [log.first_store_ms(s) for s in log.segments()] == [5, 5]
    oldest = log.remove_oldest()
    assert oldest is not None
    assert oldest.start == 0
    assert log.begin == 300
    assert log.read(0, 95) == b""
    assert bodies(log) == [b"3", b"4", b"5"]
    assert log.remove_oldest() is None
    log.close()
    assert bodies(opened(disk, 300)) == [b"3", b"4", b"5"]


def test_wrong_directories_are_refused(tmp_path: Path) -> None:
    log = opened(Files(), 1000, tmp_path)
    append(log, [record()] * 30, range(30), 1)
    log.close()
    with pytest.raises(StoreFormatError, match=r"CommitLog file of 1000 bytes at offset 0, but mapped.* is 2000"):
        CommitLog(Files(), tmp_path, 2000)
    with pytest.raises(StoreFormatError, match="is 500"):
        CommitLog(Files(), tmp_path, 500)
    (tmp_path / f"{1000:020d}").unlink()
    with pytest.raises(StoreCorruptError, match=f"{1000:020d} at 0: it is missing"):
        opened(Files(), 1000, tmp_path, start=1000)
    with pytest.raises(StoreCorruptError, match="ends at"):
        opened(Files(), 1000, tmp_path, at_least=1500)
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(StoreFormatError, match=r"notes.txt at 0: not a CommitLog file"):
        CommitLog(Files(), tmp_path, 1000)


def test_an_interrupted_birth_of_the_last_file_is_mended(tmp_path: Path) -> None:
    log = opened(Files(), 1000, tmp_path)
    append(log, [record()], [0], 1)
    log.close()
    (tmp_path / f"{1000:020d}").touch()
    again = opened(Files(), 1000, tmp_path)
    assert len(bodies(again)) == 1
    assert not (tmp_path / f"{1000:020d}").exists()


def test_records_larger_than_a_read_are_scanned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("store.log.log_scan._READ_BYTES", 150)
    monkeypatch.setattr("store.log.log_scan.walk.__kwdefaults__", {**(walk_defaults()), "read_bytes": 150})
    log = opened(SimDisk(), 5000)
    sizes = [1, 300, 20, 149, 58, 59, 60, 700]
    append(log, [record(b"x" * n) for n in sizes], range(8), 1)
    assert [len(b) for b in bodies(log)] == sizes
    assert log.check() == []


def walk_defaults() -> dict[str, object]:
    from store.log.log_scan import walk

    return dict(walk.__kwdefaults__ or {})


class LogMachine(RuleBasedStateMachine):
    """Appends, syncs, faults, kills and power cuts against a list: what was synced stays, in order, once."""

    def __init__(self) -> None:
        super().__init__()
        self.disk = SimDisk(1)
        self.log = opened(self.disk, 350)
        self.model: list[bytes] = []  # all that was appended and not lost
        self.refused: set[bytes] = set()  # a crash may bring back what was written of these
        self.durable = 0  # how many of them may not be lost
        self.number = 0
        self.cut = 0  # bytes that were durable

    def new(self, size: int) -> tuple[bytes, bytes]:
        self.number += 1
        body = b"%d:" % self.number + b"x" * size
        return body, record(body)

    @rule(sizes=st.lists(st.integers(0, 120), min_size=1, max_size=6), whole=st.booleans())
    def append(self, sizes: list[int], whole: bool) -> None:
        made = [self.new(size) for size in sizes]
        offsets, error = append(self.log, [r for _, r in made], range(len(made)), self.number, whole)
        self.model += [body for body, _ in made[: len(offsets)]]
        self.refused.update(body for body, _ in made[len(offsets) :])
        assert error is not None or len(offsets) == len(made)
        if whole and len(offsets) == len(made):
            assert len({offset // 350 for offset in offsets}) == 1

    @rule()
    def sync(self) -> None:
        try:
            self.log.sync()
        except StoreError:
            return
        self.durable = len(self.model)
        self.cut = self.log.synced
        assert self.log.synced == self.log.end

    @rule()
    def ahead(self) -> None:
        try:
            self.log.allocate_ahead()
        except StoreError:
            pass

    @rule(operation=st.sampled_from(["pwrite", "sync", "sync_dir", "create", "punch", "all"]), number=st.integers(1, 6))
    def break_something(self, operation: str, number: int) -> None:
        error = SyncFailedError("no") if operation.startswith("sync") else self.disk.full()
        self.disk.fail_at(operation, {number, number + 1}, error)

    @rule()
    def mend(self) -> None:
        self.disk.fault = None

    @rule(seed=st.integers(0, 1000), keep=st.sampled_from([0.0, 0.5, 0.95, 1.0]))
    def power_cut(self, seed: int, keep: float) -> None:
        self.disk.rng = random.Random(seed)
        self.disk.power_cut(keep)
        self.reopen()

    @rule()
    def kill(self) -> None:
        self.disk.kill()
        self.reopen()

    @rule(number=st.integers(1, 12), seed=st.integers(0, 1000))
    def power_cut_while_opening(self, number: int, seed: int) -> None:
        self.disk.rng = random.Random(seed)
        self.disk.power_cut()
        self.disk.fail_at("all", {number}, PowerCut())
        try:
            self.log = opened(self.disk, 350, at_least=self.cut)
        except PowerCut:
            self.disk.power_cut()
        self.disk.fault = None
        self.reopen()

    def reopen(self) -> None:
        self.log = opened(self.disk, 350, at_least=self.cut)
        found = bodies(self.log)
        assert len(found) >= self.durable
        assert found[: len(self.model)] == self.model[: len(found)]
        assert self.refused.issuperset(found[len(self.model) :])
        self.model = found
        self.durable = len(found)
        self.cut = self.log.synced

    @invariant()
    def same(self) -> None:
        assert bodies(self.log) == self.model
        assert self.log.check() == []


LogMachine.TestCase.settings = settings(max_examples=examples(100), stateful_step_count=30, deadline=None)
TestLogMachine = LogMachine.TestCase


@pytest.mark.pure
def test_the_segment_in_use_is_never_made_a_second_time_ahead() -> None:
    """The housekeeper waits for the lock just while an append goes on into the next segment."""
    disk = SimDisk()
    log = opened(disk, 400)
    append(log, [record(b"1")] * 4, [0, 1, 2, 3], 1)
    assert log.end < 400 < log.end + len(record(b"1"))

    class Busy:
        """Whoever waits gets the lock in the moment in which it is given back."""

        waiting = True

        def __enter__(self) -> None:
            pass

        def __exit__(self, *_: object) -> None:
            if self.waiting:
                self.waiting = False
                log.allocate_ahead()

    log._ahead_lock = Busy()  # type: ignore[assignment]
    assert append(log, [record(b"2")], [4], 1) == ([400], None)
    log.close()
    assert bodies(opened(disk, 400)) == [b"1"] * 4 + [b"2"]


def test_what_a_failed_write_left_is_gone_before_a_clean_end() -> None:
    """Otherwise it would be read as a record, and taken to be on the disk, where it is not."""
    disk = SimDisk(3)
    log = opened(disk)
    append(log, [record(b"good")], [0], 1)
    whole = record(b"refused")

    def partly(operation: str, _path: Path) -> None:
        if operation in ("pwrite", "punch"):
            raise StoreError("cannot write: Input/output error (errno 5)")

    disk.rng.randint = lambda _low, high: high  # type: ignore[method-assign]  # all of it gets through, and yet it fails
    disk.fault = partly
    assert append(log, [whole], [1], 1)[0] == []
    disk.fault = None
    assert disk.open(ROOT / f"{0:020d}").pread(len(whole), log.end)[64:] == whole[64:]
    log.close()
    assert bodies(opened(disk)) == [b"good"]

    log = opened(disk)
    disk.fault = partly
    assert append(log, [whole], [1], 1)[0] == []
    with pytest.raises(StoreError):
        log.close()  # so `abort` stays, and the next start trusts nothing
