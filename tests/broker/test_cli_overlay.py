from __future__ import annotations

import gc
import tempfile
from pathlib import Path

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from broker.cli.overlay import OverlayFiles
from store.disk.errors import StoreError
from store.disk.files import Files

SIZES = st.integers(0, 40)


class OverlayMachine(RuleBasedStateMachine):
    """An overlay over one file, against a byte array that had the same done to it."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = tempfile.TemporaryDirectory()
        self.path = Path(self.directory.name) / "file"
        self.original = bytes(range(1, 31))
        self.path.write_bytes(self.original)
        self.file = OverlayFiles().open(self.path)
        self.model = bytearray(self.original)

    def teardown(self) -> None:
        assert self.path.read_bytes() == self.original
        self.directory.cleanup()

    def put(self, data: bytes, offset: int) -> None:
        if data and len(self.model) < offset + len(data):
            self.model.extend(bytes(offset + len(data) - len(self.model)))
        self.model[offset : offset + len(data)] = data

    @rule(offset=SIZES, data=st.binary(max_size=20))
    def write(self, offset: int, data: bytes) -> None:
        self.file.pwritev([data[:3], data[3:]], offset)
        self.put(data, offset)

    @rule(offset=SIZES, count=SIZES)
    def zero(self, offset: int, count: int) -> None:
        self.file.zero(offset, count)
        self.put(bytes(count), offset)

    @rule(size=SIZES)
    def truncate(self, size: int) -> None:
        self.file.truncate(size)
        self.model = self.model[:size] + bytearray(max(0, size - len(self.model)))

    @rule(offset=SIZES, count=SIZES)
    def punch(self, offset: int, count: int) -> None:
        assert self.file.punch(offset, count)
        end = min(offset + count, len(self.model))
        if offset < end:
            self.model[offset:end] = bytes(end - offset)

    @rule(offset=SIZES, count=SIZES)
    def read_a_part(self, offset: int, count: int) -> None:
        assert self.file.pread(count, offset) == bytes(self.model[offset : offset + count])

    @invariant()
    def reads_as_the_model(self) -> None:
        assert self.file.size() == len(self.model)
        assert self.file.pread(1000, 0) == bytes(self.model)


TestOverlay = OverlayMachine.TestCase


def snapshot(root: Path) -> dict[str, bytes | None]:
    return {str(path): path.read_bytes() if path.is_file() else None for path in sorted(root.rglob("*"))}


def test_names_change_in_the_overlay_only(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    for name in ("a", "b", "d/x"):
        (tmp_path / name).write_bytes(name.encode())
    before = snapshot(tmp_path)
    files = OverlayFiles()
    files.remove(tmp_path / "a")
    files.rename(tmp_path / "b", tmp_path / "c")
    files.makedirs(tmp_path / "e" / "f")
    files.open(tmp_path / "e" / "new", create=True, size=5).pwrite(b"hi", 0)
    files.replace_file(tmp_path / "config", b"{}")
    files.rename(tmp_path / "d", tmp_path / "moved")
    assert files.listdir(tmp_path) == ["c", "config", "e", "moved"]
    assert files.listdir(tmp_path / "e") == ["f", "new"]
    assert files.listdir(tmp_path / "moved") == ["x"]
    assert files.read_file(tmp_path / "c") == b"b"
    assert files.read_file(tmp_path / "moved" / "x") == b"d/x"
    assert files.read_file(tmp_path / "e" / "new") == b"hi\0\0\0"
    assert files.file_size(tmp_path / "config") == 2
    assert not files.exists(tmp_path / "a")
    assert files.is_dir(tmp_path / "e" / "f")
    assert not files.is_dir(tmp_path / "d")
    assert files.move_aside(tmp_path / "c").name == "c.aside"
    assert files.mtime_ms(tmp_path / "config") == 0  # made here
    with pytest.raises(StoreError, match="No such file"):
        files.open(tmp_path / "a")
    files.open(tmp_path / "a", create=True)
    assert files.exists(tmp_path / "a")
    assert snapshot(tmp_path) == before


def test_the_lock_is_real(tmp_path: Path) -> None:
    release = OverlayFiles().lock(tmp_path / "lock")
    with pytest.raises(StoreError, match="locked"):
        Files().lock(tmp_path / "lock")
    release()
    Files().lock(tmp_path / "lock")()


def test_to_ask_for_sizes_opens_nothing(tmp_path: Path) -> None:
    """A store may have more files than a process may have open."""
    for number in range(20):
        (tmp_path / str(number)).write_bytes(bytes(number))
    files = OverlayFiles()
    gc.collect()  # what other tests have left open must not be closed between the two counts
    before = len(list(Path("/proc/self/fd").iterdir()))
    assert [files.file_size(tmp_path / str(number)) for number in range(20)] == list(range(20))
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    files.open(tmp_path / "3").truncate(33)
    assert files.file_size(tmp_path / "3") == 33
