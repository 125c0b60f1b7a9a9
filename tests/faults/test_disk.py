"""A disk that is full for a while, and one whose syncs fail for a while."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.fault_ledger import Verdict
from tests.support.fault_storm import Storm, check_store
from tests.support.wait import let_pass, wait_until

pytestmark = pytest.mark.process

DISK_BYTES = 96 << 20
LOAD = {"rate": 1_000, "due_to_ms": 3_000, "levels": 0}
ENOUGH = 20
"""Messages that something is said of; on an idle machine they are hundreds."""


class SmallDisk:
    """A tmpfs of some megabytes, with a ballast file that fills it to the last ``free`` bytes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.ballast = path / "ballast"

    def leave(self, free_bytes: int) -> None:
        """Have so many bytes free (about)."""
        stat = os.statvfs(self.path)
        missing = stat.f_bavail * stat.f_frsize - free_bytes
        size = self.ballast.stat().st_size if self.ballast.exists() else 0
        with open(self.ballast, "ab") as file:
            if missing < 0:
                file.truncate(max(0, size + missing))
            elif missing:
                os.posix_fallocate(file.fileno(), size, missing)

    def leave_all(self) -> None:
        """Have all of it free but what is used."""
        self.ballast.unlink(missing_ok=True)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[SmallDisk | None]:
    """A small file system of its own, or None where none may be mounted."""
    path = tmp_path / "disk"
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(path)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        yield None
        return
    try:
        yield SmallDisk(path)
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)


class _Full:
    """Fills the disk of a storm, and frees it: a real one, or by an injected limit."""

    def __init__(self, storm: Storm, disk: SmallDisk | None) -> None:
        self._storm = storm
        self._disk = disk

    def begin(self, free_bytes: int) -> None:
        """Have so many bytes free; by an injected limit: none."""
        if self._disk is not None:
            self._disk.leave(free_bytes)
        else:
            self._storm.broker.control["full"] = 1

    def end(self) -> None:
        """Have room again."""
        if self._disk is not None:
            self._disk.leave_all()
        else:
            self._storm.broker.control["full"] = 0


def test_refused_in_time_and_what_is_pending_goes_out(tmp_path: Path, small_disk: SmallDisk | None) -> None:
    settings = {"timewheelReserveBytes": str(16 << 20), "cleanFileForciblyEnable": "false"}
    store = small_disk.path / "store" if small_disk else None
    with Storm(tmp_path / "run", seed=9, settings=settings, store=store, load_options=LOAD) as storm:
        storm.start()
        storm.begin_load()
        full = _Full(storm, small_disk)
        storm.wait_acknowledged(1_000)
        full.begin(8 << 20)
        storm.wait_fates("R", ENOUGH)  # the disk is looked at every second
        from_ms = int(time.time() * 1000)
        let_pass(1)
        to_ms = int(time.time() * 1000)
        if small_disk:
            wait_until(
                lambda: storm.broker.info()["timewheelPending"] == "0", 60, "room was held back for what is pending"
            )
        room_ms = int(time.time() * 1000)
        full.end()
        verdict = _ends_well(storm)
    stored = [stored_ms for due_ms, stored_ms in verdict.due_and_store_ms if from_ms <= due_ms < to_ms]
    assert len(stored) > ENOUGH
    if small_disk:
        waited = sum(stored_ms >= room_ms for stored_ms in stored)
        assert waited <= len(stored) // 20, "what is pending waits for the disk although room was held back"
    assert not [entry for entry in verdict.entries if entry.fate == "A" and from_ms <= entry.sent_ms < to_ms]


def test_full_to_the_last_byte_and_killed_then(tmp_path: Path, small_disk: SmallDisk | None) -> None:
    settings = {
        "timewheelReserveBytes": "0",
        "diskSpaceWarningLevelRatio": "100",
        "cleanFileForciblyEnable": "false",
    }
    store = small_disk.path / "store" if small_disk else None
    with Storm(tmp_path / "run", seed=9, settings=settings, store=store, load_options=LOAD) as storm:
        storm.start()
        storm.begin_load()
        full = _Full(storm, small_disk)
        for kill in (False, True):
            storm.wait_acknowledged()
            full.begin(512 << 10)
            storm.wait_fates("RS", ENOUGH)
            if kill:
                storm.down()
                storm.broker.spawn()
                if not storm.broker.wait_ready():
                    assert "No space left" in storm.broker.child.tail(1)
            full.end()
            if not storm.broker.child.running():
                storm.start()
        _ends_well(storm)


def _ends_well(storm: Storm) -> Verdict:
    """It takes messages again, delivers all of them, and nothing is wrong with the store."""
    storm.wait_acknowledged()
    storm.end_load()
    storm.settle()
    verdict = storm.judge()
    assert storm.broker.stop() == 0
    status, text = check_store(storm.broker)
    assert not verdict.wrong, str(verdict)
    assert status == 0, text
    assert storm.sent["R"] + storm.sent["S"] >= ENOUGH
    return verdict


def test_syncs_fail_for_a_while(tmp_path: Path) -> None:
    with Storm(tmp_path, seed=10, flush="SYNC_FLUSH", load_options=LOAD) as storm:
        storm.start()
        storm.begin_load()
        for kill in (False, True):
            storm.wait_acknowledged()
            storm.broker.control["bad_sync"] = 1
            storm.wait_fates("RS", ENOUGH)
            if kill:
                storm.down()
            storm.broker.control["bad_sync"] = 0
            if kill:
                storm.start()
        _ends_well(storm)
