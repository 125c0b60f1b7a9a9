"""Rows of cancelled messages and of delay keys: read while old files go, and written again after a failed sync."""

from __future__ import annotations

from pathlib import Path

import pytest

from remoting.layout import MESSAGE_ROW_BYTES
from store.disk.errors import SyncFailedError
from store.disk.files import Files
from store.spill.state.message_rows import FILES_MAX, ROWS_A_FILE, MessageRow, MessageRows
from tests.support.simdisk import SimDisk

ROWS = 12
DAY_MS = 86_400_000
ROOT = Path("/delay")
DOCS = Path(__file__).parents[2] / "docs"


def opened(disk: SimDisk, folder: str) -> MessageRows:
    return MessageRows(disk, ROOT / folder, b"s" * 16, DAY_MS)


def add(rows: MessageRows, *ids: int) -> None:
    rows.add([MessageRow(delay_id, 1_000, 500, 7, 1, 9) for delay_id in ids])


def sync_fails(disk: SimDisk, rows: MessageRows) -> None:
    disk.fail_at("sync", {1}, SyncFailedError("input/output error"))
    with pytest.raises(SyncFailedError):
        rows.sync()
    disk.fault = None


def drop_pages(disk: SimDisk, folder: str, first: int, count: int) -> None:
    """Have rows of the file read as they were before their write that no sync has carried to the medium."""
    file = disk.open(ROOT / folder / "0000000001")
    file.pwrite(bytes(count * MESSAGE_ROW_BYTES), first * MESSAGE_ROW_BYTES)


def ids_after_a_power_cut(disk: SimDisk, folder: str) -> list[int]:
    disk.power_cut(0.0)
    return [row.delay_id for row in opened(disk, folder).each()]


@pytest.mark.parametrize("folder", ["keys", "cancelled"])
def test_rows_whose_pages_a_failed_sync_lost_are_written_again_before_they_are_called_durable(folder: str) -> None:
    disk = SimDisk()
    rows = opened(disk, folder)
    add(rows, 1)
    rows.sync()
    add(rows, 2, 3)
    sync_fails(disk, rows)
    assert rows.synced == 1
    drop_pages(disk, folder, 1, 2)
    add(rows, 4)
    sync_fails(disk, rows)
    assert rows.synced == 1
    drop_pages(disk, folder, 1, 3)
    rows.sync()
    assert rows.synced == rows.written == 4
    add(rows, 5)
    assert ids_after_a_power_cut(disk, folder) == [1, 2, 3, 4]


def test_rows_whose_pages_a_failed_sync_lost_are_found_until_they_are_written_again() -> None:
    disk = SimDisk()
    rows = opened(disk, "cancelled")
    add(rows, 1)
    rows.sync()
    add(rows, 2, 3)
    sync_fails(disk, rows)
    drop_pages(disk, "cancelled", 1, 2)
    add(rows, 4)
    assert [row.delay_id for row in rows.each()] == [1, 2, 3, 4]
    assert rows.find(3) == MessageRow(3, 1_000, 500, 7, 1, 9)


@pytest.mark.parametrize("folder", ["keys", "cancelled"])
def test_rows_that_a_start_has_found_are_written_again_although_their_pages_are_gone_since(folder: str) -> None:
    disk = SimDisk()
    rows = opened(disk, folder)
    add(rows, 1, 2)
    sync_fails(disk, rows)
    disk.kill()
    again = opened(disk, folder)
    assert [row.delay_id for row in again.each()] == [1, 2]
    drop_pages(disk, folder, 0, 2)
    again.sync()
    assert ids_after_a_power_cut(disk, folder) == [1, 2]


def test_a_look_that_is_under_way_still_reads_a_file_that_has_become_old(tmp_path: Path) -> None:
    rows = MessageRows(Files(), tmp_path / "rows", b"s" * 16, DAY_MS, rows_a_file=4)
    for number in range(ROWS):
        rows.add([MessageRow(number + 1, 1_000 + number, 500, 0, 1, 0)])
    look = rows.each()
    first = next(look)
    while rows.expire(2 * DAY_MS):
        pass
    assert [first.delay_id, *(row.delay_id for row in look)] == list(range(1, ROWS + 1))
    assert [row.delay_id for row in rows.each()] == list(range(ROWS - 3, ROWS + 1))
    rows.close()


def test_beyond_so_many_files_the_oldest_is_forgotten_although_its_messages_are_not_due() -> None:
    rows = MessageRows(SimDisk(), ROOT, b"s" * 16, DAY_MS, rows_a_file=4, files_max=3)
    add(rows, *range(1, 13))
    assert not rows.expire(0)
    assert [row.delay_id for row in rows.each()] == list(range(1, 13))
    add(rows, 13)
    assert rows.expire(0)
    assert not rows.expire(0)
    assert [rows.find(delay_id) is not None for delay_id in range(1, 14)] == [False] * 4 + [True] * 9


@pytest.mark.parametrize("page", ["pending", "configuration", "disk-format"])
def test_the_documents_say_how_many_cancels_are_remembered(page: str) -> None:
    text = (DOCS / f"{page}.md").read_text("utf-8")
    assert f"{FILES_MAX * ROWS_A_FILE:,}" in text
