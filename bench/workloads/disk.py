"""Our journal compared with the bare disk: an append, an append with a sync, and one sync for a group.

Everything runs in one process with the store's own classes. The bare lines write the same bytes with system calls.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from bench.figures.results import Case, Section
from bench.running.session import Session
from store.disk.files import Files
from store.spill.rows.model import SpillOptions
from store.spill.spill_store import SpillStore

__all__ = ["run"]

_RECORD_BYTES = 1_204  # a body of 1 KiB with its properties
_HOUR_MS = 3_600_000
_NOW_MS = 1_700_000_000_000
_STORE_ID = bytes(range(16))


def run(session: Session) -> Section:
    """Measure appends of groups of several sizes, with and without sync."""
    section = Section("disk", "The bare disk and the spill journal: µs a message")
    section.note(
        "a group is what one turn of the network loop has read: one write, and with sync one sync, for all of it"
    )
    for group in (1, 16, 100):
        for synced in (False, True):
            case: Case = {"group": f"{group} a write", "sync": "synced" if synced else "not synced"}
            count = max(group, (2_000 if session.quick else 10_000) // (10 if synced else 1))
            for _ in range(session.repeats):
                for name, part in (("timewheel", _journal), ("bare disk", _bare)):
                    session.say(f"disk, groups of {group}, {case['sync']}: {name}")
                    place = Path(tempfile.mkdtemp(prefix="disk-", dir=session.folder))
                    try:
                        value = part(place, count, group, synced)
                    finally:
                        shutil.rmtree(place, ignore_errors=True)
                    section.add(name, case, "append", "µs a message", "lower", round(value, 2))
    return section


def _timed(turns: int, group: int, step: Callable[[int], object]) -> float:
    started = time.perf_counter()
    for turn in range(turns):
        step(turn)
    return (time.perf_counter() - started) / (turns * group) * 1e6


def _bare(place: Path, count: int, group: int, synced: bool) -> float:
    """Write a group's bytes at the end of a file that has its room already, as a journal does."""
    data = os.urandom(_RECORD_BYTES * group)
    turns = count // group
    fd = os.open(place / "bare", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        os.posix_fallocate(fd, 0, len(data) * turns)
        os.fsync(fd)

        def step(turn: int) -> None:
            os.pwrite(fd, data, turn * len(data))
            if synced:
                os.fdatasync(fd)

        return _timed(turns, group, step)
    finally:
        os.close(fd)


def _journal(place: Path, count: int, group: int, synced: bool) -> float:
    """Append and publish a group to a spill store."""
    store = SpillStore.open(Files(), place / "spill", _STORE_ID, SpillOptions(), None)
    record = os.urandom(_RECORD_BYTES - 8)
    try:

        def step(turn: int) -> None:
            entries = []
            for number in range(group):
                id_ = store.next_id()
                due_ms = _NOW_MS + (turn * group + number) * 7919 % _HOUR_MS
                entries.append((due_ms, id_, record + id_.to_bytes(8, "little")))
            block = store.append(entries)
            with store.lock:
                store.publish(block)
            if synced:
                store.journal.sync()

        return _timed(count // group, group, step)
    finally:
        store.close()
