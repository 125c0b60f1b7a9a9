"""The simulated disk and the overlay of ``check`` do what a real directory does, errors included.

What they allow and a real disk refuses hides faults from every test that runs on them.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from broker.cli.overlay import OverlayFiles
from store.disk.errors import StoreError, SyncFailedError
from store.disk.file import File
from store.disk.files import Files
from tests.support.simdisk import PowerCut, SimDisk

NAMES = ("a", "b", "d", "d/a", "d/b", "d/e", "d/e/a")
PATHS = st.sampled_from(NAMES)
SIZES = st.integers(0, 40)


class DisksMachine(RuleBasedStateMachine):
    """The same done to a real directory and to another disk, which has to answer the same."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = tempfile.TemporaryDirectory()
        self.real = (Files(), Path(self.directory.name))
        self.other = self.made()
        self.handles: list[tuple[File, File]] = []

    def made(self) -> tuple[Files, Path]:
        """The other disk, and a directory on it."""
        raise NotImplementedError

    def teardown(self) -> None:
        for pair in self.handles:
            for file in pair:
                file.close()
        self.directory.cleanup()

    def both(self, step: Callable[[Files, Path], object]) -> tuple[object, object]:
        """Do a step on both; the answers must be the same, but for what is a file."""
        answers = []
        for files, root in (self.real, self.other):
            try:
                answers.append(step(files, root))
            except StoreError as error:
                answers.append(type(error))
        real, other = answers
        assert real == other or (isinstance(real, File) and isinstance(other, File))
        return real, other

    def pair(self, at: int) -> tuple[File, File] | tuple[()]:
        """One file as opened on both; nothing while none was opened."""
        return self.handles[at % len(self.handles)] if self.handles else ()

    @rule(name=PATHS)
    def makedirs(self, name: str) -> None:
        self.both(lambda files, root: files.makedirs(root / name))

    @rule(name=PATHS, create=st.booleans(), size=st.none() | SIZES)
    def open(self, name: str, create: bool, size: int | None) -> None:
        real, other = self.both(lambda files, root: files.open(root / name, create=create, size=size))
        if isinstance(real, File) and isinstance(other, File):
            self.handles.append((real, other))

    @rule(name=PATHS)
    def remove(self, name: str) -> None:
        self.both(lambda files, root: files.remove(root / name))

    @rule(name=PATHS, to=PATHS)
    def rename_a_file(self, name: str, to: str) -> None:
        files, root = self.real
        if not files.is_dir(root / name):
            self.both(lambda files, root: files.rename(root / name, root / to))

    @rule(name=PATHS, data=st.binary(max_size=5))
    def replace_file(self, name: str, data: bytes) -> None:
        files, root = self.real
        if not files.is_dir(root / name):  # else a NAME.tmp stays, which is no name of ours
            self.both(lambda files, root: files.replace_file(root / name, data))

    @rule(name=PATHS)
    def read_file(self, name: str) -> None:
        self.both(lambda files, root: files.read_file(root / name))

    @rule(name=PATHS)
    def move_aside(self, name: str) -> None:
        files, root = self.real
        if not files.is_dir(root / name) and not files.exists(root / f"{name}.aside"):
            self.both(lambda files, root: files.move_aside(root / name).relative_to(root))

    @rule(name=PATHS)
    def sync_dir(self, name: str) -> None:
        self.both(lambda files, root: files.sync_dir(root / name))

    @rule(name=PATHS)
    def look(self, name: str) -> None:
        self.both(lambda files, root: files.exists(root / name))
        self.both(lambda files, root: files.is_dir(root / name))
        if not self.real[0].is_dir(self.real[1] / name):
            self.both(lambda files, root: files.file_size(root / name))
            self.both(lambda files, root: files.listdir(root / name))

    @rule(name=PATHS, time_ms=st.integers(0, 1 << 40))
    def time_of_change(self, name: str, time_ms: int) -> None:
        files, root = self.real
        if not files.exists(root / name):
            self.both(lambda files, root: files.mtime_ms(root / name))
        else:
            os.utime(root / name, ns=(time_ms * 1_000_000,) * 2)
            assert files.mtime_ms(root / name) == time_ms

    @rule(at=st.integers(0), offset=SIZES, data=st.binary(max_size=20))
    def write(self, at: int, offset: int, data: bytes) -> None:
        for file in self.pair(at):
            file.pwritev([data[:3], data[3:]], offset)

    @rule(at=st.integers(0), offset=SIZES, n=SIZES)
    def zero_or_punch(self, at: int, offset: int, n: int) -> None:
        for file in self.pair(at):
            if offset % 2:
                file.zero(offset, n)
            else:
                file.clear(offset, n)

    @rule(at=st.integers(0), n=SIZES)
    def truncate(self, at: int, n: int) -> None:
        for file in self.pair(at):
            file.truncate(n)

    @rule(at=st.integers(0), offset=SIZES, n=SIZES)
    def read(self, at: int, offset: int, n: int) -> None:
        if pair := self.pair(at):
            real, other = pair
            assert real.pread(n, offset) == other.pread(n, offset)
            hot = other.pread_hot(n, offset)
            assert hot is None or hot == real.pread(n, offset)
            buffers = [bytearray(n), bytearray(n)]
            assert real.pread_into(memoryview(buffers[0]), offset) == other.pread_into(memoryview(buffers[1]), offset)
            assert buffers[0] == buffers[1]
            for file in pair if n else ():
                hot_into = bytearray(n)
                assert not file.pread_hot_into(memoryview(hot_into), offset) or hot_into == real.pread(n, offset)

    @invariant()
    def all_names_and_contents_agree(self) -> None:
        self.both(lambda files, root: files.listdir(root))
        for real, other in self.handles:
            assert real.size() == other.size()


class SimDiskMachine(DisksMachine):
    def made(self) -> tuple[Files, Path]:
        disk = SimDisk()
        disk.makedirs(Path("/store"))
        return disk, Path("/store")


class OverlayMachine(DisksMachine):
    """Some names are below the overlay from the beginning, and stay as they are there."""

    def made(self) -> tuple[Files, Path]:
        self.below = tempfile.TemporaryDirectory()
        for root in (self.real[1], Path(self.below.name)):
            (root / "d" / "e").mkdir(parents=True)
            (root / "b").write_bytes(b"below")
            (root / "d" / "e" / "a").write_bytes(bytes(range(30)))
        return OverlayFiles(), Path(self.below.name)

    def teardown(self) -> None:
        super().teardown()
        root = Path(self.below.name)
        assert sorted(path.relative_to(root).as_posix() for path in root.rglob("*")) == ["b", "d", "d/e", "d/e/a"]
        assert ((root / "b").read_bytes(), (root / "d/e/a").read_bytes()) == (b"below", bytes(range(30)))
        self.below.cleanup()


TestSimDisk = SimDiskMachine.TestCase
TestOverlay = OverlayMachine.TestCase


def test_a_directory_is_durable_when_its_parent_was_synced() -> None:
    """The power fails before the sync that `makedirs` makes of the parent, and behind it."""
    for number, stays in ((2, False), (3, True)):
        disk = SimDisk(1)
        disk.makedirs(Path("/store"))
        disk.fail_at("all", {number}, PowerCut())
        with pytest.raises(PowerCut):
            disk.makedirs(Path("/store/d"))
            disk.makedirs(Path("/store/d/e"))
        found = {disk.crashed(Random(seed), 1.0).exists(Path("/store/d")) for seed in range(20)}
        assert found == ({True} if stays else {True, False})


def test_a_failed_sync_may_have_carried_a_part() -> None:
    found = set()
    for seed in range(40):
        disk = SimDisk(seed)
        disk.makedirs(Path("/store"))
        file = disk.open(Path("/store/f"), create=True)
        disk.sync_dir(Path("/store"))
        file.pwrite(b"x" * 2048, 0)
        disk.fail_at("sync", {1}, SyncFailedError("cannot sync"))
        with pytest.raises(SyncFailedError):
            file.sync()
        file.sync()
        assert file.pread(2048, 0) == b"x" * 2048
        disk.power_cut(1.0)
        found.add(disk.read_file(Path("/store/f")).count(b"x"))
    assert {0, 2048} <= found
    assert len(found) > 2


def test_the_simulated_disk_does_not_pretend_to_rename_directories() -> None:
    disk = SimDisk()
    disk.makedirs(Path("/store/d"))
    with pytest.raises(NotImplementedError):
        disk.rename(Path("/store/d"), Path("/store/e"))
