"""Open files by path: never the descriptor of a file that is gone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from store.derived.consume_queue import ConsumeQueue
from store.disk.errors import StoreError
from store.disk.file import File
from store.disk.file_cache import FileCache
from store.disk.files import Files


class Between(Files):
    """Lets something happen just after a file was opened, or just before one is removed."""

    def __init__(self) -> None:
        super().__init__()
        self.opened: Callable[[], None] = lambda: None
        self.removing: Callable[[], None] = lambda: None

    def open(self, path: Path, *, create: bool = False, size: int | None = None) -> File:
        file = super().open(path, create=create, size=size)
        act, self.opened = self.opened, lambda: None
        act()
        return file

    def remove(self, path: Path) -> None:
        act, self.removing = self.removing, lambda: None
        act()
        super().remove(path)


def test_a_file_that_was_removed_while_it_was_opened_is_not_kept(tmp_path: Path) -> None:
    files = Between()
    cache = FileCache(files)
    path = tmp_path / "f"
    files.replace_file(path, b"old")
    files.opened = lambda: cache.remove(path)
    assert cache.get(path, 3).pread(3, 0) == b"old", "whoever reads it may go on"
    files.replace_file(path, b"new")
    assert cache.get(path, 3).pread(3, 0) == b"new"


def test_a_file_that_is_opened_just_before_it_is_gone_is_not_kept(tmp_path: Path) -> None:
    files = Between()
    cache = FileCache(files)
    path = tmp_path / "f"
    files.replace_file(path, b"old")
    files.removing = lambda: (cache.get(path, 3), None)[1]
    cache.remove(path)
    with pytest.raises(StoreError):
        cache.get(path, 3)
    files.replace_file(path, b"new")
    assert cache.get(path, 3).pread(3, 0) == b"new"


def test_a_queue_that_is_made_again_writes_into_its_own_file(tmp_path: Path) -> None:
    """A consumer reads the old one while its topic is deleted: entries of the new one went into a nameless file."""
    files = Between()
    cache = FileCache(files)
    old = ConsumeQueue(cache, tmp_path / "T" / "0", "T", 0, 200)
    old.add(0, 100, 0)
    old.flush(1)
    old.settle()
    cache.clear()
    files.removing = lambda: (old.entry(0), None)[1]
    old.remove()
    new = ConsumeQueue(cache, tmp_path / "T" / "0", "T", 0, 200)
    new.add(500, 7, 9)
    new.flush(1)
    new.settle()
    assert new.entry(0) == (500, 7, 9)
    cache.clear()  # a restart
    assert ConsumeQueue(FileCache(Files()), tmp_path / "T" / "0", "T", 0, 200).load(1)
    again = ConsumeQueue(FileCache(Files()), tmp_path / "T" / "0", "T", 0, 200)
    again.load(1)
    assert again.entry(0) == (500, 7, 9)
