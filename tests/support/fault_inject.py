"""The real broker with faults on command: it dies inside a chosen disk call, its disk is full, its clock is set.

A program around `broker.cli`: the process, the sockets, the threads and the files are real; only the doors
`store.disk.files` and `time` are opened a little. What is to happen stands in a small control file that the test writes
while the broker runs (`Control`)::

    0   die_in      i64  disk calls until it dies by SIGKILL inside one (0: never); counted down by the broker
    8   clock_ms    i64  added to the wall clock
    16  full        i64  1: no write finds room (a part of it is written, then ENOSPC), and nothing is free
    24  bad_sync    i64  1: every sync fails with EIO
    32  calls       i64  disk calls so far, counted by the broker
    40  die_where   i64  what ``die_in`` counts: 0 every call, 1 calls that change names (and punch and truncate),
                         2 calls on runs, manifests and checkpoints

Run as a program::

    python -m tests.support.fault_inject CONTROL broker --store DIR ...
"""

from __future__ import annotations

import errno
import mmap
import os
import random
import re
import signal
import struct
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

__all__ = ["Control", "main"]

_SIZE = 64
_NAMING = frozenset(("rename", "remove", "sync_dir", "punch", "truncate"))
_RARE = re.compile(r"/runs/|/runs$|manifest|checkpoint")
_LONG = struct.Struct("<q")
_FIELDS = {"die_in": 0, "clock_ms": 8, "full": 16, "bad_sync": 24, "calls": 32, "die_where": 40}


class Control:
    """The control file, shared with the broker; fields read and write through."""

    def __init__(self, path: Path) -> None:
        if not path.exists():
            path.write_bytes(bytes(_SIZE))
        with open(path, "r+b") as file:
            self._map = mmap.mmap(file.fileno(), _SIZE)

    def __getitem__(self, name: str) -> int:
        """Read a field."""
        return int(_LONG.unpack_from(self._map, _FIELDS[name])[0])

    def __setitem__(self, name: str, value: int) -> None:
        """Write a field."""
        _LONG.pack_into(self._map, _FIELDS[name], value)


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
    signal.pause()


def _set_clock(control: Control) -> None:
    real_ns, real = time.time_ns, time.time
    time.time_ns = lambda: real_ns() + control["clock_ms"] * 1_000_000
    time.time = lambda: real() + control["clock_ms"] / 1000


class _BrokenDisk:
    """Puts faults round the calls that write to the disk, as the control file orders them.

    The store is imported here, not at the top of the file: nothing of it may be loaded before the clock is set.
    """

    def __init__(self, control: Control) -> None:
        from store.disk import files
        from store.disk.errors import StoreFullError, SyncFailedError
        from store.disk.file import File

        self._control = control
        self._rng = random.Random()
        self._full_error, self._sync_error = StoreFullError, SyncFailedError
        self._wrap(File, "pwrite", self._torn)
        self._wrap(File, "pwritev", self._torn_many)
        self._wrap(File, "sync", self._unsynced)
        self._wrap(File, "truncate")
        self._wrap(File, "punch")
        self._wrap(File, "allocate", self._no_room)
        self._wrap(files.Files, "remove")
        self._wrap(files.Files, "rename")
        self._wrap(files.Files, "sync_dir", self._unsynced)
        self._limit_space(files.Files)

    def _wrap(self, owner: type, name: str, fault: Callable[..., None] | None = None) -> None:
        real = getattr(owner, name)

        def call(target: Any, *args: Any, **kwargs: Any) -> Any:
            dying = self._count(target.path if hasattr(target, "path") else args[0], name)
            if dying and self._rng.random() < 0.5:
                _die()
            if fault is not None:
                fault(target, dying, *args)
            result = real(target, *args, **kwargs)
            if dying:
                _die()
            return result

        setattr(owner, name, call)

    def _count(self, path: Path, name: str) -> bool:
        """Count one call; whether it is the one to die in."""
        control = self._control
        control["calls"] += 1
        where = control["die_where"]
        if (where == 1 and name not in _NAMING) or (where == 2 and not _RARE.search(str(path))):
            return False
        left = control["die_in"]
        if left > 0:
            control["die_in"] = left - 1
        return left == 1

    def _torn(self, file: Any, dying: bool, data: Any, offset: int) -> None:
        if dying or self._control["full"]:
            view = memoryview(data).cast("B")
            os.pwrite(file._fd, view[: self._rng.randrange(len(view) + 1)], offset)
            if dying:
                _die()
            raise self._full_error(f"cannot write {file.path}: injected (errno {errno.ENOSPC})")

    def _torn_many(self, file: Any, dying: bool, buffers: Any, offset: int) -> None:
        self._torn(file, dying, b"".join(buffers), offset)

    def _unsynced(self, who: Any, dying: bool, *_: object) -> None:
        if self._control["bad_sync"] and not dying:
            raise self._sync_error(f"cannot sync {who}: injected (errno {errno.EIO})")

    def _no_room(self, file: Any, dying: bool, *_: object) -> None:
        if self._control["full"] and not dying:
            raise self._full_error(f"no room for {file}: injected (errno {errno.ENOSPC})")

    def _limit_space(self, owner: Any) -> None:
        real = owner.free_bytes

        def free_bytes(target: Any, path: Path) -> tuple[int, int]:
            left, total = real(target, path)
            return (0 if self._control["full"] else left), total

        owner.free_bytes = free_bytes


def main(arguments: list[str]) -> None:
    """Run the command line of the broker with faults."""
    control = Control(Path(arguments[0]))
    _set_clock(control)
    _BrokenDisk(control)
    from broker.cli import main as timewheel

    timewheel(arguments[1:])


if __name__ == "__main__":
    main(sys.argv[1:])
