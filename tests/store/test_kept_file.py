"""`KeptFile`: one of file and version before is whole at any moment, whatever fails, dies or reads meanwhile."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from broker.tables.json_files import JsonFile
from store.disk.errors import StoreCorruptError, StoreError
from store.disk.files import Files
from store.levels.delay_offsets import DelayOffsets
from tests.support.simdisk import PowerCut, SimDisk

PATH = Path("/store/config/a.json")
BAK = PATH.with_name("a.json.bak")


def test_an_unreadable_file_is_kept_by_the_next_write_and_reading_changes_nothing(tmp_path: Path) -> None:
    file = JsonFile(Files(), tmp_path / "a.json")
    for number in (1, 2):
        file.save({"n": number})
    file.path.write_bytes(b"{")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert file.load() == {"n": 1}
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    for number in (3, 4):
        file.save({"n": number})
        assert (tmp_path / "a.json.aside").read_bytes() == b"{"
        assert json.loads(file.path.read_bytes()) == {"n": number}
        assert json.loads((tmp_path / "a.json.bak").read_bytes()) == {"n": 1 if number == 3 else 3}


class Filmed(Files):
    """Keeps what the directory holds before and after each change of a name."""

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self._directory = directory
        self.frames: list[dict[str, bytes]] = []

    def shoot(self) -> None:
        frame = {path.name: path.read_bytes() for path in self._directory.iterdir()}
        if frame not in self.frames[-1:]:
            self.frames.append(frame)

    def rename(self, source: Path, target: Path) -> None:
        self.shoot()
        super().rename(source, target)
        self.shoot()

    def remove(self, path: Path) -> None:
        self.shoot()
        super().remove(path)
        self.shoot()


class Overtaken(Files):
    """Another process makes its next changes before one look of this one."""

    def __init__(self, at_look: int, then: Callable[[], object]) -> None:
        super().__init__()
        self._looks_left = at_look
        self._then = then

    def _look(self) -> None:
        self._looks_left -= 1
        if self._looks_left == 0:
            self._then()

    def exists(self, path: Path) -> bool:
        self._look()
        return super().exists(path)

    def read_file(self, path: Path) -> bytes:
        self._look()
        return super().read_file(path)


def test_a_command_that_reads_while_the_broker_writes_sees_a_whole_version_and_changes_nothing(tmp_path: Path) -> None:
    written, read = tmp_path / "written", tmp_path / "read"
    written.mkdir()
    read.mkdir()
    film = Filmed(written)
    file = JsonFile(film, written / "a.json")
    for number in range(4):
        file.save({"n": number})
    film.shoot()
    frames = [frame for frame in film.frames if "a.json" in frame or "a.json.bak" in frame]

    def show(frame: dict[str, bytes]) -> None:
        for path in read.iterdir():
            path.unlink()
        for name, data in frame.items():
            (read / name).write_bytes(data)

    for first, second in itertools.combinations_with_replacement(frames, 2):
        for look in range(1, 6):
            show(first)
            document = JsonFile(Overtaken(look, lambda frame=second: show(frame)), read / "a.json").load()
            assert document is not None
            newest = max(json.loads(first[name])["n"] for name in first if not name.endswith(".tmp"))
            assert document["n"] >= newest, "a version older than one that could be read before"
            now = {path.name: path.read_bytes() for path in read.iterdir()}
            assert now in (first, second)


def _disk(seed: int, main: bytes, bak: bytes) -> SimDisk:
    disk = SimDisk(seed)
    disk.makedirs(PATH.parent)
    for path, data in ((PATH, main), (BAK, bak)):
        disk.replace_file(path, data)
    return disk


def _levels(disk: SimDisk) -> tuple[Callable[[], int | None], Callable[[int], None]]:
    offsets = DelayOffsets(disk, PATH)
    return (lambda: offsets.offsets.get(1)), (lambda number: offsets.write({1: number}, 0))


def _tables(disk: SimDisk) -> tuple[Callable[[], int | None], Callable[[int], None]]:
    file = JsonFile(disk, PATH)
    return (lambda: (file.load() or {}).get("n")), (lambda number: file.save({"n": number}))


KINDS = {
    "levels": (_levels, b'{"offsetTable":{1:%d}}'),
    "tables": (_tables, b'{"n":%d}'),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("broken", [b"", b"{", b"\0" * 9, b'[{"offsetTable":{1:2}}]'])
@pytest.mark.parametrize("fails_at", range(14))
def test_no_failure_and_no_power_cut_takes_both_versions(kind: str, broken: bytes, fails_at: int) -> None:
    """The file is damaged. One write fails at any call, the power fails in any call of the next one."""
    made, text = KINDS[kind]
    for cut_at in range(1, 16):
        disk = _disk(cut_at, broken, text % 1)
        read, write = made(disk)
        assert read() == 1
        disk.fail_at("all", {fails_at}, StoreError("it fails"))
        for number in (2, 3):
            try:
                write(number)
            except StoreError:
                disk.fault = None
            except PowerCut:
                break
            disk.fail_at("all", {cut_at}, PowerCut())
        disk.fault = None
        disk.power_cut(0.5)
        assert made(disk)[0]() in (1, 2, 3), (fails_at, cut_at)


def test_a_good_file_that_someone_put_back_becomes_the_version_before(tmp_path: Path) -> None:
    file = JsonFile(Files(), tmp_path / "a.json")
    for number in (1, 2):
        file.save({"n": number})
    file.path.write_bytes(b"{")
    assert file.load() == {"n": 1}
    file.path.write_bytes(b'{"n":9}')
    assert file.load() == {"n": 9}
    file.save({"n": 10})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.json", "a.json.bak"]
    assert json.loads(file.bak.read_bytes()) == {"n": 9}


def test_a_file_that_cannot_be_read_can_still_be_replaced() -> None:
    disk = SimDisk(1)
    file = JsonFile(disk, PATH)
    for number in (1, 2):
        file.save({"n": number})

    def fails(path: Path) -> None:
        raise StoreError(f"cannot read {path}: Input/output error")

    disk.read_fault = fails
    file.save({"n": 3})
    disk.read_fault = None
    assert file.load() == {"n": 3}
    assert json.loads(disk.read_file(BAK)) == {"n": 1}


def test_a_failing_disk_is_not_filled_with_copies_of_an_unreadable_file() -> None:
    disk = _disk(1, b"{", b'{"n":1}')
    file = JsonFile(disk, PATH)
    assert file.load() == {"n": 1}
    for _ in range(5):
        disk.fail_at("rename", {1 if disk.exists(PATH.with_name("a.json.aside")) else 2}, StoreError("it fails"))
        with pytest.raises(StoreError, match="it fails"):
            file.save({"n": 2})
        disk.fault = None
        file = JsonFile(disk, PATH)  # after a restart
        assert file.load() == {"n": 1}
    file.save({"n": 2})
    assert disk.listdir(PATH.parent) == ["a.json", "a.json.aside", "a.json.bak"]


def test_a_version_whose_name_could_not_be_synced_becomes_the_version_before() -> None:
    disk = _disk(1, b"{", b'{"n":1}')
    file = JsonFile(disk, PATH)
    assert file.load() == {"n": 1}
    disk.fail_at("sync_dir", {2}, StoreError("it fails"))  # the first is that of the aside
    with pytest.raises(StoreError, match="it fails"):
        file.save({"n": 2})
    disk.fault = None
    file.save({"n": 3})
    assert json.loads(disk.read_file(BAK)) == {"n": 2}
    assert disk.listdir(PATH.parent) == ["a.json", "a.json.aside", "a.json.bak"]


@pytest.mark.parametrize("damage", [b"{", b"\0" * 9, b'{"offsetTable":{"1":"x"}}'])
def test_without_a_good_version_the_error_names_all_and_says_what_to_do(tmp_path: Path, damage: bytes) -> None:
    path = tmp_path / "delayOffset.json"
    path.write_bytes(damage)
    path.with_name("delayOffset.json.bak").write_bytes(b" ")
    with pytest.raises(StoreCorruptError, match=r"json at 0: .*bak is empty\. .*to have every level message"):
        DelayOffsets(Files(), path)
