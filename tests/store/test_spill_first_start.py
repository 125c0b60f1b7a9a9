"""A directory's very first opening, broken off at each of its disk operations."""

from __future__ import annotations

from pathlib import Path

import pytest

from store.spill.rows.model import SpillOptions
from store.spill.spill_store import SpillStore
from tests.support.simdisk import PowerCut, SimDisk

ROOT = Path("/store/timewheel/delay")
STORE_ID = bytes(range(16))
OPTIONS = SpillOptions(segment_bytes=2_000, reserve_bytes=0)


def _open_but_break_off(disk: SimDisk, number: int) -> bool:
    """Open with the power gone from an operation on; whether it came so far."""
    count = 0

    def fault(_operation: str, _path: Path) -> None:
        nonlocal count
        count += 1
        if count >= number:
            raise PowerCut

    disk.fault = fault
    try:
        SpillStore.open(disk, ROOT, STORE_ID, OPTIONS, None)
    except PowerCut:
        return True
    finally:
        disk.fault = None
    return False


@pytest.mark.parametrize("keep", [None, 0.0, 0.5, 1.0])
def test_a_first_start_that_was_broken_off_can_be_repeated(keep: float | None) -> None:
    number = 1
    while True:
        disk = SimDisk(number)
        broken = _open_but_break_off(disk, number)
        if keep is None:
            disk.kill()
        else:
            disk.power_cut(keep)
        store = SpillStore.open(disk, ROOT, STORE_ID, OPTIONS, None)
        assert store.check() == []
        store.close()
        if not broken:
            break
        number += 1
    assert number > 10


def test_what_a_killed_start_left_outlives_a_power_cut_during_the_next() -> None:
    """A file whose process was killed before it had synced the name is there for the next one: it must stay."""
    killed_at, more = 0, True
    while more:
        killed_at += 1
        found = SimDisk(killed_at)
        more = _open_but_break_off(found, killed_at)
        found.kill()
        number, broken = 0, True
        while broken:
            number += 1
            disk = found.copy()
            disk.rng.seed(number)
            broken = _open_but_break_off(disk, number)
            disk.power_cut(0.0)
            SpillStore.open(disk, ROOT, STORE_ID, OPTIONS, None).close()
    assert killed_at > 10
