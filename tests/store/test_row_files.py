"""Rows of cancelled messages are read while old files go."""

from __future__ import annotations

from pathlib import Path

from store.disk.files import Files
from store.spill.state.message_rows import MessageRow, MessageRows

ROWS = 12
DAY_MS = 86_400_000


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
