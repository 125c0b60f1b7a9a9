"""The one door to the disk, on a real directory."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from store.disk.errors import StoreError, StoreFullError, StoreLockedError, SyncFailedError
from store.disk.file import HOT_BYTES_MAX, File
from store.disk.files import Files


@pytest.fixture
def files() -> Files:
    return Files()


def test_write_and_read_back(files: Files, tmp_path: Path) -> None:
    file = files.open(tmp_path / "a", create=True, size=100)
    assert file.size() == 100
    file.pwrite(b"hello", 10)
    file.pwritev([b"ab", bytearray(b"cd"), memoryview(b"ef")], 20)
    assert file.pread(6, 20) == b"abcdef"
    assert file.pread(5, 10) == b"hello"
    assert file.pread(50, 90) == bytes(10)
    assert file.pread_hot(5, 10) in (b"hello", None)
    data = bytearray(b"-" * 30)
    assert file.pread_into(memoryview(data)[:26], 10) == 26
    assert data == file.pread(26, 10) + b"----"
    assert file.pread_into(memoryview(data), 90) == 10
    assert file.pread_hot(50, 90) in (bytes(10), None)
    file.zero(8, 4)
    assert file.pread(7, 8) == b"\0\0\0\0llo"
    file.sync()
    file.close()
    file.close()
    assert files.open(tmp_path / "a", size=50).size() == 100


def test_hot_reads_of_any_size_are_what_plain_reads_are(files: Files, tmp_path: Path) -> None:
    file = files.open(tmp_path / "a", create=True)
    file.pwrite(os.urandom(3 << 20), 0)
    for size in (1, 1_200, 64 << 10, (64 << 10) + 1, HOT_BYTES_MAX, HOT_BYTES_MAX + 1):
        for offset in (0, 4_095, 1 << 20):
            assert file.pread_hot(size, offset) in (file.pread(size, offset), None)
    assert file.pread_hot(1_200, 0) == file.pread(1_200, 0)  # written and read just now
    assert file.pread_hot(10, 4 << 20) == b""


def test_many_hot_reads_into_one(files: Files, tmp_path: Path) -> None:
    file = files.open(tmp_path / "a", create=True)
    file.pwrite(os.urandom(2 << 20), 0)
    spans = [(at * 7_919 % (2 << 20), 1 + at * 31 % 1_200) for at in range(600)]
    for part in ([], spans[:1], spans, [(5, 0), (9, 4)], [(0, HOT_BYTES_MAX)]):
        assert file.gather_hot(part) == b"".join(file.pread(n, offset) for offset, n in part)
    assert file.gather_hot([(0, HOT_BYTES_MAX), (0, 1)]) == file.pread(HOT_BYTES_MAX, 0) + file.pread(1, 0)
    assert file.gather_hot([(0, 10), ((2 << 20) - 5, 10)]) is None
    assert file.gather_hot([(0, 10), (3 << 20, 10)]) is None
    file.close()
    with pytest.raises(StoreError, match=f"cannot read 30 bytes at 7 of {tmp_path / 'a'}: Bad file descriptor"):
        file.gather_hot([(7, 10), (40, 20)])


def test_hot_reads_by_many_threads_do_not_mix(files: Files, tmp_path: Path) -> None:
    file = files.open(tmp_path / "a", create=True)
    for number in range(8):
        file.pwrite(bytes([number]) * 1000, number * 1000)

    def read(number: int) -> bool:
        return all(file.pread_hot(1000, number * 1000) in (bytes([number]) * 1000, None) for _ in range(2000))

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(read, range(8)))


def test_a_hot_read_that_fails_names_file_place_and_cause(files: Files, tmp_path: Path) -> None:
    file = files.open(tmp_path / "a", create=True)
    file.close()
    with pytest.raises(StoreError, match=f"cannot read 5 bytes at 10 of {tmp_path / 'a'}: Bad file descriptor"):
        file.pread_hot(5, 10)


def test_a_file_system_that_cannot_tell_what_is_hot_is_read_plainly(files: Files) -> None:
    shm = Path("/dev/shm")
    if not shm.is_dir():
        pytest.skip("no tmpfs at /dev/shm")
    path = shm / f"timewheel-test-{os.getpid()}"
    try:
        file = files.open(path, create=True)
        file.pwrite(b"hello", 0)
        assert file.gather_hot([(1, 2), (0, 5)]) == b"elhello"
        assert [file.pread_hot(5, 0), file.pread_hot(5, 0)] == [b"hello", b"hello"]
        assert file.gather_hot([(1, 2), (0, 5)]) == b"elhello"
    finally:
        path.unlink(missing_ok=True)


def test_many_buffers_at_once(files: Files, tmp_path: Path) -> None:
    file = files.open(tmp_path / "a", create=True)
    parts = [bytes([i % 251]) * 3 for i in range(3000)]
    file.pwritev(parts, 5)
    assert file.pread(10000, 5) == b"".join(parts)


def test_punch_reads_as_zeros_and_keeps_the_size(files: Files, tmp_path: Path) -> None:
    file = files.open(tmp_path / "a", create=True)
    file.pwrite(b"x" * 20000, 0)
    if file.punch(100, 10000):
        assert file.pread(20000, 0) == b"x" * 100 + bytes(10000) + b"x" * 9900
    assert file.punch(0, 0)
    assert file.size() == 20000


def test_short_writes_are_continued(files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = files.open(tmp_path / "a", create=True)
    whole = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: whole(fd, memoryview(data)[:3], at))
    monkeypatch.setattr(os, "pwritev", lambda fd, parts, at: whole(fd, memoryview(parts[0])[:1], at))
    file.pwrite(b"0123456789", 0)
    file.pwritev([b"ab", b"cd"], 10)
    assert file.pread(20, 0) == b"0123456789abcd"


@pytest.mark.parametrize(
    ("number", "advice"),
    [(errno.ENOSPC, "make room on this disk"), (errno.EDQUOT, "quota"), (errno.EFBIG, "LimitFSIZE")],
)
def test_a_full_disk_has_its_own_error(
    files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, advice: str
) -> None:
    file = files.open(tmp_path / "a", create=True)

    def fail(*_: object) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "pwrite", fail)
    with pytest.raises(StoreFullError, match=r"cannot write 3 bytes at 7 of .*/a: .*errno .*" + advice):
        file.pwrite(b"abc", 7)
    monkeypatch.setattr(os, "fdatasync", fail)
    with pytest.raises(SyncFailedError, match=r"cannot sync .*/a"):
        file.sync()


def test_missing_things_are_store_errors(files: Files, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"cannot open .*nothing"):
        files.open(tmp_path / "nothing")
    with pytest.raises(StoreError, match=r"cannot stat"):
        files.mtime_ms(tmp_path / "nothing")
    assert files.listdir(tmp_path / "nothing") == []
    files.remove(tmp_path / "nothing")


def test_directories_and_names(files: Files, tmp_path: Path) -> None:
    deep = tmp_path / "a" / "b" / "c"
    files.makedirs(deep)
    files.makedirs(deep)
    files.replace_file(deep / "f", b"one")
    files.replace_file(deep / "f", b"two")
    assert files.read_file(deep / "f") == b"two"
    assert files.listdir(deep) == ["f"]
    assert files.file_size(deep / "f") == 3
    assert files.move_aside(deep / "f").name == "f.aside"
    files.replace_file(deep / "f", b"three")
    assert files.move_aside(deep / "f").name == "f.aside.1"
    files.rename(deep / "f.aside", deep / "g")
    os.utime(deep / "g", ns=(1_700_000_000_123_000_000,) * 2)
    assert files.mtime_ms(deep / "g") == 1_700_000_000_123
    files.remove(deep / "g")
    files.remove(deep / "f.aside.1")
    files.remove(deep)
    assert not files.exists(deep)
    free, total = files.free_bytes(tmp_path)
    assert 0 < free <= total


def test_a_dropped_file_closes_itself(files: Files, tmp_path: Path) -> None:
    file: File | None = files.open(tmp_path / "a", create=True)
    assert file is not None
    fd = file._fd
    file = None
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


def test_the_lock_keeps_out_this_process_and_others(files: Files, tmp_path: Path) -> None:
    path = tmp_path / "lock"
    release = files.lock(path)
    with pytest.raises(StoreLockedError, match="already open in this process"):
        files.lock(path)
    child = (
        "import sys, pathlib\n"
        "from store.disk.files import Files\n"
        "from store.disk.errors import StoreLockedError\n"
        "try: Files().lock(pathlib.Path(sys.argv[1]))\n"
        "except StoreLockedError as e: print(e)\n"
    )
    where = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}

    def other() -> str:
        run = subprocess.run(
            [sys.executable, "-c", child, str(path)], capture_output=True, text=True, env=where, check=True
        )
        return run.stdout

    assert "another process" in other()
    release()
    release()
    assert other() == ""
    files.lock(path)()


class Recorded(Files):
    """Remembers what was synced."""

    def __init__(self) -> None:
        super().__init__()
        self.synced: list[Path] = []

    def sync_dir(self, path: Path) -> None:
        self.synced.append(path)
        super().sync_dir(path)


def test_a_directory_that_a_killed_process_has_left_is_durable_before_it_is_built_on(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    files = Recorded()
    files.makedirs(tmp_path / "a" / "b" / "c")
    assert files.synced == [tmp_path / "a", tmp_path / "a" / "b"]
    files = Recorded()
    files.makedirs(tmp_path / "a" / "b" / "c")
    assert files.synced == [tmp_path / "a" / "b"]
    files.makedirs(tmp_path / "a" / "b" / "c")
    assert files.synced == [tmp_path / "a" / "b"], "once is enough"


def test_a_directory_whose_sync_failed_is_synced_the_next_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = Recorded()

    def broken(_: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", broken)
        for _ in range(2):
            with pytest.raises(SyncFailedError):
                files.makedirs(tmp_path / "a")
    files.makedirs(tmp_path / "a")
    assert files.synced[-1] == tmp_path


def test_a_directory_that_was_removed_and_made_again_is_synced_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = Recorded()
    files.makedirs(tmp_path / "a")
    files.remove(tmp_path / "a")

    def broken(_: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", broken)
        with pytest.raises(SyncFailedError):
            files.makedirs(tmp_path / "a")
    files.synced.clear()
    files.makedirs(tmp_path / "a")
    assert files.synced == [tmp_path]


def test_without_holes_zeros_are_written_wherever_they_may_not_be_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What reads as zeros may do so in the page cache only; a hole is one on the disk, too, and stays one."""
    files = Files()
    file = files.open(tmp_path / "f", create=True, size=1 << 20)
    file.pwrite(bytes(4096) + b"x" * 4096, 0)
    file.sync()
    written: list[tuple[int, int]] = []

    def pwrite(fd: int, data: bytes, offset: int) -> int:
        written.append((offset, len(data)))
        return real(fd, data, offset)

    real = os.pwrite
    monkeypatch.setattr(File, "punch", lambda *_: False)
    monkeypatch.setattr(os, "pwrite", pwrite)
    file.clear(0, 1 << 20)
    assert written == [(0, 1 << 20)], "one look at a megabyte has found something"
    written.clear()
    file.clear(0, 1 << 20)
    assert written == []
    monkeypatch.setattr(os, "pwrite", real)
    sparse = files.open(tmp_path / "sparse", create=True, size=1 << 20)
    sparse.pwrite(bytes(4096), 8192)
    sparse.sync()
    monkeypatch.setattr(os, "pwrite", pwrite)
    sparse.clear(4096, (1 << 20) - 4096, 1 << 20)
    assert sum(n for _, n in written) in (4096, (1 << 20) - 4096), "all of it where holes cannot be told"
    assert any(at <= 8192 and at + n >= 12288 for at, n in written)
    file.close()
    sparse.close()
