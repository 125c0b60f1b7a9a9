"""What an Apache broker leaves in a store directory, written here byte by byte as its source says."""

from __future__ import annotations

from pathlib import Path
from struct import pack

import pytest

from remoting.layout import INDEX_FILE_BYTES as FILE_BYTES
from remoting.layout import INDEX_FILE_SLOTS as SLOTS
from remoting.messages.message import java_hash
from store.derived.apache_index import ApacheIndex
from store.disk.apache_files import ApacheCheckpoint, check_timer, read_timer_check
from store.disk.errors import StoreFormatError
from store.disk.files import Files


class IndexWriter:
    """Writes an index file as Apache does."""

    def __init__(self, path: Path, begin_ms: int) -> None:
        self.file = Files().open(path, create=True, size=FILE_BYTES)
        self.begin_ms = begin_ms
        self.count = 1

    def add(self, key: str, offset: int, ms: int) -> None:
        wanted = abs(java_hash(key))
        slot = 40 + wanted % SLOTS * 4
        before = int.from_bytes(self.file.pread(4, slot), "big")
        seconds = (ms - self.begin_ms) // 1000
        self.file.pwrite(pack(">iqii", wanted, offset, seconds, before), 40 + SLOTS * 4 + self.count * 20)
        self.file.pwrite(self.count.to_bytes(4, "big"), slot)
        self.count += 1
        self.file.pwrite(pack(">qqqqii", self.begin_ms, ms, 0, offset, 1, self.count), 0)


def test_keys_in_apaches_index(tmp_path: Path) -> None:
    assert abs(java_hash("TopicTest#KEY0")) == 1656969517
    first = IndexWriter(tmp_path / "20200101000000000", 1_000_000)
    second = IndexWriter(tmp_path / "20200102000000000", 2_000_000)
    for n in range(20):
        first.add(f"T#k{n % 4}", n * 100, 1_000_000 + n * 1000)
        second.add(f"T#k{n % 4}", 10_000 + n * 100, 2_000_000 + n * 1000)
    (tmp_path / "20200103000000000").write_bytes(b"too short")
    (tmp_path / "rubbish").write_bytes(b"")
    index = ApacheIndex(Files(), tmp_path)
    assert index.find("T", "k1", 0, 1 << 60, 99) == [
        *range(11_700, 10_000, -400),
        *range(1_700, 0, -400),
    ]
    assert index.find("T", "k1", 0, 1 << 60, 2) == [11_700, 11_300]
    assert index.find("T", "k1", 1_005_000, 1_009_000, 9) == [900, 500]
    assert index.find("T", "nothing", 0, 1 << 60, 9) == []
    index.drop_before(1_900)
    assert len(index.find("T", "k1", 0, 1 << 60, 99)) == 10
    index.drop_before(1_901)
    assert len(index.find("T", "k1", 0, 1 << 60, 99)) == 5
    assert not (tmp_path / "20200101000000000").exists()


def test_a_chain_that_bites_its_tail_ends(tmp_path: Path) -> None:
    writer = IndexWriter(tmp_path / "20200101000000000", 0)
    writer.add("T#a", 5, 0)
    wanted = abs(java_hash("T#a"))
    writer.file.pwrite(pack(">iqii", wanted, 5, 0, 1), 40 + SLOTS * 4 + 20)
    assert ApacheIndex(Files(), tmp_path).find("T", "a", 0, 1 << 60, 99) == [5]


def test_the_checkpoint_file(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    assert ApacheCheckpoint.read(Files(), path).scan_from_ms() == -3000
    written = ApacheCheckpoint(10_000, 9_000, 8_000)
    written.write(Files(), path)
    assert path.stat().st_size == 4096
    assert path.read_bytes()[:40] == pack(">qqqqq", 10_000, 9_000, 8_000, 0, 0)
    assert ApacheCheckpoint.read(Files(), path).scan_from_ms() == 6_000
    path.write_bytes(b"short")
    assert ApacheCheckpoint.read(Files(), path).physic_ms == 0


def test_what_apaches_timer_still_holds(tmp_path: Path) -> None:
    files = Files()

    def check(count: int) -> None:
        check_timer(files, tmp_path, 1000, count)

    check(0)
    assert read_timer_check(files, tmp_path) is None
    with pytest.raises(StoreFormatError, match="up to 3 messages"):
        check(3)
    (tmp_path / "config").mkdir()
    known = tmp_path / "config" / "timercheck"
    known.write_bytes(pack(">qqqq", 50_000, 0, 3, 3) + bytes(4064))
    check(3)
    with pytest.raises(StoreFormatError, match="up to 1 messages"):
        check(4)
    slot = ">qqqii"
    wheel = [
        pack(slot, 49, 0, 0, 7, 0),
        pack(slot, 50, 0, 0, 2, 0),
        pack(slot, 0, 0, 0, 0, 0),
        pack(slot, 51, 0, 0, 1, 0),
    ]
    (tmp_path / "timerwheel").write_bytes(b"".join(wheel))
    with pytest.raises(StoreFormatError, match="up to 3 messages"):
        check(3)
    known.write_bytes(pack(">qqqq", 52_000, 0, 3, 3) + bytes(4064))
    check(3)
    known.write_bytes(b"x")
    with pytest.raises(StoreFormatError):
        check(3)


def _unit(enqueued_ms: int, due_ms: int, magic: int = 1) -> bytes:
    return pack(">iqiqiqiiq", 52, -1, magic, enqueued_ms, due_ms - enqueued_ms, 0, 364, 0, 0)


def test_what_is_only_in_the_log_of_apaches_timer_is_pending_too(tmp_path: Path) -> None:
    """The wheel is written each second, not at the end: a broker that is stopped within it leaves the wheel behind."""
    files = Files()
    (tmp_path / "config").mkdir()
    (tmp_path / "timerlog").mkdir()

    def found(last_read_ms: int, flushed: int, wheel: list[bytes], *logs: bytes) -> int:
        (tmp_path / "config" / "timercheck").write_bytes(pack(">qqqq", last_read_ms, flushed, 9, 9) + bytes(4064))
        (tmp_path / "timerwheel").write_bytes(b"".join(wheel))
        base = 0
        for log in logs:
            (tmp_path / "timerlog" / f"{base:020d}").write_bytes(log)
            base += len(log)
        try:
            check_timer(files, tmp_path, 1000, 9)
        except StoreFormatError as error:
            return int(str(error).split("up to ")[1].split(" ")[0])
        return 0

    rest = bytes(520)
    empty = pack(">qqqii", 0, -1, -1, 0, 0)
    assert found(50_000, 0, [empty], _unit(40_000, 60_000) * 5 + rest) == 5
    assert found(50_000, 0, [], _unit(40_000, 60_000) * 5 + rest) == 5
    assert found(61_000, 0, [empty], _unit(40_000, 60_000) * 5 + rest) == 0, "all of them were delivered"
    held = pack(">qqqii", 60, 0, 104, 3, 0)
    assert found(50_000, 0, [empty, held], _unit(40_000, 60_000) * 5 + rest) == 5, "three in the wheel, two only here"
    assert found(50_000, 0, [held], _unit(40_000, 60_000) * 3 + _unit(40_000, 61_000) + rest) == 4
    assert found(50_000, 0, [empty], _unit(40_000, 60_000) + _unit(0, 60_000, magic=16) + _unit(0, 60_000)) == 1
    end = pack(">iqi", 52, 0, -875286124) + bytes(36)
    full = _unit(40_000, 60_000) * 2 + end
    assert found(50_000, 3 * 52, [empty], full, full, full + rest) == 6
    assert found(50_000, 7 * 52, [empty], full, full, full + rest) == 4, "older files are in the wheel, or delivered"


def _slot(second: int, last: int, num: int) -> bytes:
    return pack(">qqqii", second, 0, last, num, 0)


@pytest.mark.parametrize("num", [0, -1])
def test_a_slot_that_points_at_messages_holds_some_whatever_it_counts(tmp_path: Path, num: int) -> None:
    """A recovery of Apache's points a slot at its messages and leaves the number; two recalls of one message count
    another one down, too. Those far back in the log were found nowhere: the store was opened, and they were lost."""
    (tmp_path / "config").mkdir()
    (tmp_path / "timerlog").mkdir()
    (tmp_path / "config" / "timercheck").write_bytes(pack(">qqqq", 50_000, 7 * 52, 9, 9) + bytes(4064))
    (tmp_path / "timerwheel").write_bytes(_slot(60, 0, num) + bytes(32))
    for at in range(4):
        (tmp_path / "timerlog" / f"{at * 104:020d}").write_bytes(_unit(0, 60_000 if at == 0 else 1_000) * 2)
    with pytest.raises(StoreFormatError, match="up to 1 messages"):
        check_timer(Files(), tmp_path, 1000, 9)
    (tmp_path / "timerwheel").write_bytes(_slot(49, 0, num) + bytes(32))
    check_timer(Files(), tmp_path, 1000, 9)


@pytest.mark.parametrize("beside", [None, b"", _slot(40, 52, 1)])
def test_a_wheel_that_is_written_as_a_snapshot(tmp_path: Path, beside: bytes | None) -> None:
    """``timerWheelSnapshotFlush``, an option of 5.5: the file's name ends with the position in the log."""
    (tmp_path / "config").mkdir()
    (tmp_path / "timerlog").mkdir()
    (tmp_path / "config" / "timercheck").write_bytes(pack(">qqqq", 50_000, 7 * 52, 9, 9) + bytes(4064))
    (tmp_path / "timerwheel.104").write_bytes(_slot(60, 0, 5))
    (tmp_path / "timerwheel.312").write_bytes(_slot(60, 52, 2) + bytes(32))
    (tmp_path / "timerwheel.416.tmp").write_bytes(b"x")
    if beside is not None:
        (tmp_path / "timerwheel").write_bytes(beside)
    for at in range(4):
        (tmp_path / "timerlog" / f"{at * 104:020d}").write_bytes(_unit(0, 60_000 if at == 0 else 1_000) * 2)
    with pytest.raises(StoreFormatError, match="up to 2 messages"):
        check_timer(Files(), tmp_path, 1000, 9)
    (tmp_path / "timerlog" / f"{3 * 104:020d}").write_bytes(_unit(0, 61_000) * 2)
    with pytest.raises(StoreFormatError, match="up to 4 messages"):
        check_timer(Files(), tmp_path, 1000, 9)
    (tmp_path / "config" / "timercheck").write_bytes(pack(">qqqq", 62_000, 7 * 52, 9, 9) + bytes(4064))
    check_timer(Files(), tmp_path, 1000, 9)


def test_without_a_wheel_the_whole_log_is_read(tmp_path: Path) -> None:
    (tmp_path / "config").mkdir()
    (tmp_path / "timerlog").mkdir()
    (tmp_path / "config" / "timercheck").write_bytes(pack(">qqqq", 50_000, 7 * 52, 9, 9) + bytes(4064))
    for at in range(4):
        (tmp_path / "timerlog" / f"{at * 104:020d}").write_bytes(_unit(0, 60_000 if at == 0 else 1_000) * 2)
    with pytest.raises(StoreFormatError, match="up to 2 messages"):
        check_timer(Files(), tmp_path, 1000, 9)


@pytest.mark.parametrize(("name", "data"), [("000021.sst", b""), ("000004.log", b"x")])
def test_messages_may_be_pending_in_a_rocksdb(tmp_path: Path, name: str, data: bytes) -> None:
    """``timerRocksDBEnable``, an option of 5.5: what is there is nowhere in the wheel, and counts as taken in."""
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "timercheck").write_bytes(pack(">qqqq", 50_000, 0, 9, 9) + bytes(4064))
    rocks = tmp_path / "rocksdbstore"
    rocks.mkdir()
    for empty in ("000004.log", "LOCK"):
        (rocks / empty).write_bytes(b"")
    for other in ("CURRENT", "IDENTITY", "MANIFEST-000005", "OPTIONS-000009"):
        (rocks / other).write_bytes(b"x")
    check_timer(Files(), tmp_path, 1000, 9)
    (rocks / name).write_bytes(data)
    with pytest.raises(StoreFormatError, match="timerRocksDBEnable"):
        check_timer(Files(), tmp_path, 1000, 9)
    check_timer(Files(), tmp_path, 1000, 0)
