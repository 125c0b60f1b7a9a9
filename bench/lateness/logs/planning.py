"""Plans a reading: the segments of a CommitLog at one moment, and how they are split.

A live log grows while it is read. So a reading first fixes the end of the log: its last byte that is not zero (segments
are filled with zeros in advance). Records that start before the end are read, whole or not at all; later ones are not.
So all counts belong to that moment.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

from bench.lateness.logs.records import LogSegment, SplitReader
from bench.lateness.logs.storage import Storage, StorageError, StoredFile, storage_for

__all__ = [
    "LogPlan",
    "NoStoreError",
    "Split",
    "log_folder",
    "plan_from_json",
    "plan_log",
    "plan_to_json",
    "some_segments",
    "whole_end",
]

SPLIT_BYTES = 32 << 20
_LOOK_BYTES, _LOOK_BYTES_MOST = 64 << 10, 8 << 20
_NAME_DIGITS = 20


class NoStoreError(StorageError):
    """A path holds no CommitLog; the text says what was expected."""


@dataclass(frozen=True, slots=True)
class LogPlan:
    """A CommitLog at one moment: its folder, its segments in order, and path and size of each missing part."""

    folder: str
    segments: tuple[LogSegment, ...]
    missing: tuple[tuple[str, int], ...] = ()

    @property
    def end(self) -> int:
        """CommitLog position behind the last byte that is not zero."""
        return max((s.base + s.end for s in self.segments if s.end), default=0)

    @property
    def begin(self) -> int:
        """CommitLog position of the first byte of the log."""
        return min((s.base for s in self.segments), default=0)

    def splits(self, split_bytes: int = SPLIT_BYTES) -> Iterator[Split]:
        """Yield the byte ranges that tasks read."""
        for segment in self.segments:
            for begin in range(0, segment.end, split_bytes):
                yield Split(segment, begin, min(begin + split_bytes, segment.end))


@dataclass(frozen=True, slots=True)
class Split:
    """A part of a segment: the records that start in ``[begin, stop)``."""

    segment: LogSegment
    begin: int
    stop: int


def log_folder(storage: Storage, path: str) -> str:
    """The folder with the segments: the path itself, or ``commitlog`` in it. Raises NoStoreError if there is none."""
    path = path.rstrip("/") or "/"
    inner = f"{path}/commitlog"
    if storage.is_folder(inner):
        return inner
    if _names(storage.sizes(path)):
        return path
    if not storage.is_folder(path):
        raise NoStoreError(f"{path}: there is no such folder")
    raise NoStoreError(f"{path} is no store: neither a folder commitlog in it, nor segments (names of 20 digits)")


def _names(sizes: dict[str, int]) -> list[str]:
    return sorted(name for name in sizes if len(name) == _NAME_DIGITS and name.isdigit() and name.isascii())


def plan_log(path: str, options: str = "", counted_to: int = 0) -> LogPlan:
    """Plan the reading of a store or CommitLog folder as it is now. Raises StorageError.

    Segments below the CommitLog position ``counted_to`` are known to be full, so their ends are not searched for.
    """
    storage = storage_for(path, options)
    folder = log_folder(storage, path)
    sizes = storage.sizes(folder)
    names = _names(sizes)
    ends: dict[str, int] = {}
    for name in reversed(names):
        full = int(name) < counted_to and bool(ends)
        ends[name] = sizes[name] if full else _not_zero_end(storage, f"{folder}/{name}", sizes[name])
    used = [name for name in names if ends[name]]
    last = used[-1] if used else ""
    segments, missing = [], []
    expected = int(names[0]) if names else 0
    for name in names:
        if last and name > last:
            break
        base = int(name)
        if base > expected:
            missing.append((f"{folder}/{expected:020d}", base - expected))
        segments.append(LogSegment(f"{folder}/{name}", base, sizes[name], ends[name], name == last))
        expected = base + sizes[name]
    return LogPlan(folder, tuple(segments), tuple(missing))


def some_segments(storage: Storage, folder: str, most: int) -> list[LogSegment]:
    """A sample of the segments with data, the last one among them; other files are not opened. Raises StorageError."""
    sizes = storage.sizes(folder)
    names = _names(sizes)
    while names and not _not_zero_end(storage, f"{folder}/{names[-1]}", sizes[names[-1]]):
        names.pop()
    found = []
    for name in dict.fromkeys((*names[:: max(1, len(names) // most)], *names[-1:])):
        path, size = f"{folder}/{name}", sizes[name]
        found.append(LogSegment(path, int(name), size, _not_zero_end(storage, path, size), name == names[-1]))
    return found


def _not_zero_end(storage: Storage, path: str, size: int) -> int:
    """Position behind the last byte that is not zero; 0 if there is none.

    Reads backwards: first a few bytes, because most segments are full, then more at a time.
    """
    file = storage.open(path)
    try:
        at = file.data_end(size)
    finally:
        file.close()
    step = _LOOK_BYTES
    while at > 0:
        begin = max(0, at - step)
        found = len(storage.peek(path, begin, at - begin).rstrip(b"\0"))
        if found:
            return begin + found
        at, step = begin, min(step * 2, _LOOK_BYTES_MOST)
    return 0


def whole_end(file: StoredFile, segment: LogSegment, begin: int) -> int:
    """Position behind the last whole record at or behind ``begin`` (where a record starts); ``begin`` if there is none.

    Reads the last megabytes first, so the cost does not depend on how much was added to the log. Raises StorageError.
    """
    for back in (4 << 20, 64 << 20, segment.size):
        start = max(begin, segment.end - back)
        reader = SplitReader(file.read, segment, start, segment.end)
        if start == begin:
            reader = SplitReader(file.read, segment, begin, segment.end, begin_is_record=True)
        end = max((int(heads.places[-1] + heads.sizes[-1]) for _, heads in reader.chunks()), default=0)
        if end:
            return end
        if start == begin:
            break
    return begin


def plan_to_json(plan: LogPlan) -> str:
    """Write a plan for an option of the data source."""
    return json.dumps(asdict(plan))


def plan_from_json(text: str) -> LogPlan:
    """Read a plan from an option of the data source."""
    value = json.loads(text)
    missing: Sequence[Sequence[str | int]] = value["missing"]
    return LogPlan(
        value["folder"],
        tuple(LogSegment(**segment) for segment in value["segments"]),
        tuple((str(path), int(size)) for path, size in missing),
    )
