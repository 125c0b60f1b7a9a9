"""What can be wrong with a disk for a while, as functions that `SimDisk` asks before each call.

A failure seldom comes alone: the write that fails and the clearing of what it has left behind, the sync that fails and
the one that is to make up for it. So `fails` takes several stretches of calls, and `fails_and_then` one failure at the
heels of another, of the same file.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from store.disk.errors import StoreError, SyncFailedError
from tests.support.simdisk import PowerCut, SimDisk

__all__ = ["Fault", "ReadFault", "fails", "fails_and_then", "killed_behind", "power_fails_at", "reads_fail"]

Fault = Callable[[str, Path], None]
ReadFault = Callable[[Path], None]

WRITES = ("pwrite", "truncate", "punch")
SYNCS = ("sync", "sync_dir")
KINDS = {
    "full": ("pwrite", "create", "mkdir", "truncate"),
    "write": WRITES,
    "sync": SYNCS,
    "any": ("pwrite", "create", "mkdir", "truncate", "rename", "remove", "sync", "sync_dir", "punch"),
}


def power_fails_at(number: int) -> Fault:
    """The power fails at a call, counted from 1."""
    left = number

    def fault(_operation: str, _path: Path) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            raise PowerCut

    return fault


def killed_behind(operation: str, number: int) -> Fault:
    """Everything ends at the call behind the so-many-th (from 1) of one kind: before what was to make it durable."""
    left = number

    def fault(name: str, _path: Path) -> None:
        nonlocal left
        if not left:
            raise PowerCut
        left -= name == operation

    return fault


def reads_fail(where: str, first: int, count: int) -> ReadFault:
    """Some reads in a row fail, of the files whose path has these letters."""
    seen = 0

    def fault(path: Path) -> None:
        nonlocal seen
        if where in str(path):
            seen += 1
            if first < seen <= first + count:
                raise StoreError(f"cannot read {path}: Input/output error (errno 5)")

    return fault


def fails(kind: str, where: str, stretches: Sequence[tuple[int, int]]) -> Fault:
    """Some calls fail: the disk is full, it cannot write, it cannot sync, it can do nothing.

    ``stretches`` are (so many calls go well, then so many fail), one behind the other.
    """
    wanted = KINDS[kind]
    left = [count for stretch in stretches for count in stretch]

    def fault(operation: str, path: Path) -> None:
        if operation not in wanted or where not in str(path):
            return
        while left and not left[0]:
            left.pop(0)
        if not left:
            return
        left[0] -= 1
        if len(left) % 2 == 0:  # a stretch in which all goes well is followed by one that fails
            return
        raise error_of(kind, operation, path)

    return fault


def fails_and_then(kind: str, where: str, after: int, then: int, count: int) -> Fault:
    """One call fails, and then ``count`` calls of any kind of the same file, but for ``then`` in between."""
    wanted = KINDS[kind]
    broken: list[Path] = []
    passed = 0

    def fault(operation: str, path: Path) -> None:
        nonlocal after, passed
        if not broken:
            if operation not in wanted or where not in str(path):
                return
            after -= 1
            if after < 0:
                broken.append(path)
                raise error_of(kind, operation, path)
            return
        if path == broken[0] and operation in (*WRITES, *SYNCS):
            passed += 1
            if then < passed <= then + count:
                raise error_of("any", operation, path)

    return fault


def error_of(kind: str, operation: str, path: Path) -> StoreError:
    """The error that a call fails with."""
    if operation in SYNCS:
        return SyncFailedError(f"cannot sync {path}: Input/output error (errno 5)")
    if kind == "full":
        return SimDisk().full()
    return StoreError(f"cannot {operation} {path}: Input/output error (errno 5)")
