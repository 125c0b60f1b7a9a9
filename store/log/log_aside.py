"""Puts aside the bytes behind the end of a log before they are zeroed, so that nothing is simply lost."""

from __future__ import annotations

from pathlib import Path

from store.disk.errors import StoreError
from store.disk.files import Files
from store.disk.segments import Segment

__all__ = ["keep_behind", "put_away"]

CUT_BYTES_MAX = 32 << 20
"""Recovery looks so far behind the end for bytes to put aside; hardly ever are more unsynced."""
CUT_BYTES_AT_ONCE = 1 << 20


def keep_behind(files: Files, segment: Segment, start: int, aside: Path) -> Path | None:
    """Copy the bytes of a segment from ``start`` on, which will be zeroed, to ``aside``; return the copy's path.

    They are from a write that a crash has torn, or from another program. None if there are none, or if there is no room
    for the copy: a start must not fail because of bytes that were promised to nobody.
    """
    parts: list[bytes] = []
    for at in range(start, min(segment.size, start + CUT_BYTES_MAX), CUT_BYTES_AT_ONCE):
        data = segment.file.pread(min(CUT_BYTES_AT_ONCE, segment.size - at), at)
        if data.count(0) != len(data):
            parts += [bytes(at - start - sum(map(len, parts))), data]
    if not parts:
        return None
    try:
        files.makedirs(aside)
        path = files.free_name(aside / f"{segment.path.name}@{start}")
        files.replace_file(path, b"".join(parts).rstrip(bytes(1)))
    except StoreError:
        return None
    return path


def put_away(files: Files, segment: Segment, aside: Path | None) -> None:
    """Take a segment behind the end out of its directory; one that holds something goes to ``aside``, if that is
    given. Raises StoreError.
    """
    empty = not any(segment.file.pread(4096, 0))
    segment.release()
    if empty or aside is None:
        files.remove(segment.path)
        return
    files.makedirs(aside)
    files.rename(segment.path, files.free_name(aside / segment.path.name))
    files.sync_dir(aside)
