"""Whatever a start refuses is said with the file, the offset in it and the command that helps."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from struct import pack_into
from zlib import crc32

import pytest

import store.disk.files as store_files
from store.disk.checkpoint import DeliveryCheckpoint
from store.disk.errors import StoreCorruptError, StoreFormatError
from store.disk.files import Files
from store.disk.identity import store_identity
from tests.support.damage_world import Life, Machine

Spoil = Callable[[Path], tuple[Path, int]]
"""Damages a store; answers the file and the offset that the refusal has to name."""


@pytest.fixture(scope="module")
def life(tmp_path_factory: pytest.TempPathFactory) -> Life:
    return Life(tmp_path_factory.mktemp("life"), 0)


@pytest.fixture(autouse=True)
def no_syncs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_files.os, "fdatasync", lambda _: None)
    monkeypatch.setattr(store_files.os, "fsync", lambda _: None)


def _first(folder: Path) -> Path:
    return min(path for path in folder.iterdir() if path.name.isdecimal())


def _replaced(name: str, before: bytes, after: bytes) -> Spoil:
    """Put some bytes in the place of others; named is where they begin."""

    def spoil(store: Path) -> tuple[Path, int]:
        path = store / name
        data = path.read_bytes()
        assert before in data
        path.write_bytes(data.replace(before, after, 1))
        return path, data.index(before)

    return spoil


def _version(name: str, crc_at: int) -> Spoil:
    """Another format version (at 4), with the right checksum over it."""

    def spoil(store: Path) -> tuple[Path, int]:
        path = store / name
        data = bytearray(path.read_bytes())
        pack_into(">H", data, 4, 99)
        pack_into(">I", data, crc_at, 0)
        pack_into(">I", data, crc_at, crc32(data))
        path.write_bytes(data)
        return path, 4

    return spoil


def _cut(folder: str, size: int) -> Spoil:
    """The first file of a folder, or a file with its copy, is cut off."""

    def spoil(store: Path) -> tuple[Path, int]:
        path = store / folder
        if path.is_dir():
            path = _first(path)
        copy = path.with_name(f"{path.name}.copy")
        if copy.exists():
            copy.unlink()
        path.write_bytes(path.read_bytes()[:size])
        return path, size

    return spoil


def _gone(folder: str, number: int = 0) -> Spoil:
    def spoil(store: Path) -> tuple[Path, int]:
        path = store / folder
        if path.is_dir():
            path = sorted(found for found in path.iterdir() if found.name.isdecimal())[number]
        copy = path.with_name(f"{path.name}.copy")
        if copy.exists():
            copy.unlink()
        path.unlink()
        return path, 0

    return spoil


def _torn_queue(store: Path) -> tuple[Path, int]:
    """The making of a queue's file was cut off, and nothing says which size it should have."""
    (store / "timewheel" / "progress").unlink()
    return _cut("consumequeue/T/0", 40)(store)


def _section(name: str, content: bytes) -> Spoil:
    """A section of the checkpoint that its owner cannot read, under a right checksum."""

    def spoil(store: Path) -> tuple[Path, int]:
        mine = store / "timewheel"
        files = Files()
        checkpoint = DeliveryCheckpoint.open(files, mine / "checkpoint", store_identity(files, mine / "store"))
        checkpoint.replace_section(name, content, checkpoint.position_of(name))
        return mine / "checkpoint", (mine / "checkpoint").read_bytes().rindex(content)

    return spoil


SPOILED: dict[str, Spoil] = {
    "identity of another version": _replaced("timewheel/store", b"format=1", b"format=0"),
    "identity without a version": _replaced("timewheel/store", b"format=1", b"format=x"),
    "identity is missing": _gone("timewheel/store"),
    "checkpoint of another version": _version("timewheel/checkpoint", 12),
    "no checkpoint": _cut("timewheel/checkpoint", 0),
    "manifest is cut off": _cut("timewheel/delay/manifest", 20),
    "manifest is missing": _gone("timewheel/delay/manifest"),
    "journal is cut off": _cut("timewheel/delay/journal", 30),
    "journal segment is missing": _gone("timewheel/delay/journal"),
    "run is cut off": _cut("timewheel/delay/runs", 300),
    "run is missing": _gone("timewheel/delay/runs"),
    "segment is missing": _gone("commitlog", 1),
    "segment is cut off": _cut("commitlog", 4000),
    "progress of another version": _version("timewheel/progress", 12),
    "queue file is cut off": _torn_queue,
    "the delay store's section": _section("delay", b"\x00\x02never"),
    "the levels' section": _section("levels", b'{"pending": 0}'),
    "the transactions' section": _section("transactions", b"\x00\x07never"),
    "topics with one that is none": _replaced("config/topics.json", b'"T":{', b'"T":[],"V":{'),
}


@pytest.mark.parametrize("what", SPOILED)
def test_a_refusal_names_file_offset_and_command(what: str, life: Life, tmp_path: Path) -> None:
    store = life.copy("clean", tmp_path / "it")
    path, at = SPOILED[what](store)
    with pytest.raises((StoreCorruptError, StoreFormatError)) as refused:
        Machine(store, life.end_ms)
    text = str(refused.value)
    assert re.match(rf"{re.escape(str(path))} at {at}: ", text) or f" {path} at {at}: " in text, text
    assert f"timewheel check {store}" in text
    assert "--repair" in text
