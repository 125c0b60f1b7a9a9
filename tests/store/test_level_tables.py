"""The file that says which table of levels held where in the log."""

from __future__ import annotations

from pathlib import Path

import pytest

from remoting.messages.checksum import crc32
from store.disk.errors import StoreFormatError
from store.levels.level_tables import LevelTables
from tests.support.simdisk import SimDisk

PATH = Path("/store/timewheel/levels")
OLD, NEW = (1_000, 5_000), (1_000, 60_000)


def opened(disk: SimDisk, table: tuple[int, ...], said: list[str] | None = None) -> LevelTables:
    disk.makedirs(PATH.parent)
    return LevelTables(disk, PATH, table, [].append if said is None else said.append)


def test_each_stretch_of_the_log_keeps_its_table() -> None:
    disk = SimDisk()
    opened(disk, OLD).begin(0, 0)
    tables = opened(disk, NEW)
    assert tables.at(10) == OLD, "what stands in the log before this start"
    tables.begin(0, 500)
    assert [tables.at(offset) for offset in (0, 499, 500, 501)] == [OLD, OLD, NEW, NEW]
    disk.power_cut(0.0)
    again = opened(disk, NEW)
    again.begin(0, 900)
    assert [again.at(offset) for offset in (0, 499, 500, 900)] == [OLD, OLD, NEW, NEW]
    again = opened(disk, OLD)
    again.begin(500, 900)
    assert [again.at(offset) for offset in (500, 899, 900)] == [NEW, NEW, OLD], "what has expired is forgotten"
    assert disk.read_file(PATH).splitlines()[1] == b'{"format":1,"tables":[[500,[1000,60000]],[900,[1000,5000]]]}'


def test_tables_behind_an_end_that_was_cut_back_are_forgotten() -> None:
    disk = SimDisk()
    opened(disk, OLD).begin(0, 0)
    opened(disk, NEW).begin(0, 500)
    tables = opened(disk, (7,))
    tables.begin(0, 300)
    assert [tables.at(offset) for offset in (0, 299, 300, 500)] == [OLD, OLD, (7,), (7,)]


def test_a_start_that_changes_nothing_writes_nothing() -> None:
    disk = SimDisk()
    opened(disk, OLD).begin(0, 0)
    before = disk.counts["all"]
    tables = opened(disk, OLD)
    tables.begin(0, 900)
    assert disk.counts["all"] - before <= 1, "the sync of the directory when it is read"
    assert tables.at(900) == OLD


@pytest.mark.parametrize("cut", range(0, 45, 3))
def test_what_cannot_be_read_is_kept_aside(cut: int) -> None:
    disk = SimDisk()
    opened(disk, OLD).begin(0, 0)
    data = disk.read_file(PATH)
    disk.replace_file(PATH, data[:cut] + data[cut + 1 :])
    said: list[str] = []
    tables = opened(disk, NEW, said)
    assert tables.at(0) == NEW
    assert "damaged" in said[0]
    assert disk.exists(PATH.with_name("levels.aside"))


def test_another_format_is_refused() -> None:
    disk = SimDisk()
    opened(disk, OLD)
    text = b'{"format":2,"tables":[]}'
    disk.replace_file(PATH, b"%08x\n%s\n" % (crc32(text), text))
    with pytest.raises(StoreFormatError, match="another format"):
        opened(disk, OLD)
