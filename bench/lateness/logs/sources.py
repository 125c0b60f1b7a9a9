"""The sources of a run: which broker wrote a log, and which parts of its store are there.

A store of ours has a folder ``timewheel`` beside ``commitlog``. A CommitLog that was copied without it is recognized by
marks in its records (``__TW_ID``, ``__TW_LEVEL``), which are searched for at both ends of some segments. Read as
Apache's, its level messages would have no delivery and be called overdue. The messages that waited in the missing
folder are not known; the summary says so.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from bench.lateness.logs.planning import log_folder, some_segments
from bench.lateness.logs.reading import APACHE_LEVELS
from bench.lateness.logs.records import LogSegment, SplitReader
from bench.lateness.logs.s3a import storage_of
from bench.lateness.logs.storage import Storage, local_path, storage_for, without_login

__all__ = ["NO_LEVELS", "LogSource", "find_sources", "short_names"]

OURS, APACHES = "timewheel", "apache"
_ID_MARK = re.compile(rb"\x02__TW_ID\x01[0-9a-f]")
_LEVEL_MARK = re.compile(rb"\x02__TW_LEVEL\x01\d+:\d")
_LOOK_BYTES = 1 << 20
_SEGMENTS_MAX = 16
_NO_DELAY_STORE = (
    "the folder timewheel is not beside the CommitLog: messages that waited for their time when the log was copied, "
    "and those that were cancelled, are not counted"
)
NO_LEVELS = "config/delayOffset.json is not beside the CommitLog: level messages that were lost are called overdue"
"""Said only if messages are overdue."""


@dataclass(frozen=True, slots=True)
class LogSource:
    """One broker's store, as given on the command line; ``not_known``: what its files do not tell, in words."""

    name: str
    path: str
    kind: str
    levels: str = APACHE_LEVELS
    storage: str = ""
    not_known: tuple[str, ...] = ()


def find_sources(
    paths: Sequence[str],
    names: Sequence[str] = (),
    levels: str = APACHE_LEVELS,
    storage: str = "",
    hadoop: Mapping[str, str] | None = None,
) -> list[LogSource]:
    """Find the kind of each path; ``hadoop``: Hadoop's settings, which apply to ``s3a://`` (`storage_of`).

    Raises NoStoreError, StorageError, or ValueError for names that do not fit.
    """
    if names and len(names) != len(paths):
        raise ValueError(f"{len(names)} names for {len(paths)} sources: give --name once for each, or not at all")
    short = list(names) or short_names(paths)
    if not all(name.strip() for name in short):
        raise ValueError("a source has an empty name: give --name a word")
    if len(set(short)) != len(short):
        raise ValueError(f"two sources have the same name: {', '.join(short)}")
    found = []
    logs: dict[str, str] = {}
    for path, name in zip(paths, short, strict=True):
        _, separator, rest = path.partition("://")
        if separator and not rest.strip("/"):
            raise ValueError(f"{path}: a path is expected behind ://")
        options = storage_of(path, storage, hadoop or {})
        folder = log_folder(storage_for(path, options), path)
        own = local_path(folder)
        log = folder if own is None else os.path.realpath(own)
        if log in logs:
            raise ValueError(f"{logs[log]} and {path} are one log: give it once")
        logs[log] = path
        kind, not_known = _kind_of(path, options)
        found.append(LogSource(name, path.rstrip("/"), kind, levels, options, not_known))
    return found


def short_names(paths: Sequence[str]) -> list[str]:
    """The shortest ends of the paths that are different, without logins.

    >>> short_names(["/data/a/commitlog", "/data/b/commitlog"]), short_names(["s3://key:secret@bucket"])
    (['a/commitlog', 'b/commitlog'], ['…@bucket'])
    """
    shown = [without_login(path) for path in paths]
    parts = [[part for part in path.split("/") if part] or [path] for path in shown]
    for count in range(1, max(map(len, parts)) + 1):
        tails = ["/".join(part[-count:]) for part in parts]
        if len(set(tails)) == len(tails):
            return tails
    return shown


def _kind_of(path: str, options: str) -> tuple[str, tuple[str, ...]]:
    """The kind of a log, and what its files do not tell."""
    storage = storage_for(path, options)
    folder = log_folder(storage, path)
    root = folder.rpartition("/")[0]
    not_known = []
    if storage.is_folder(f"{root}/timewheel"):
        kind = OURS
    elif _has_marks(storage, folder):
        kind = OURS
        not_known.append(_NO_DELAY_STORE)
    else:
        kind = APACHES
    if not storage.sizes(f"{root}/config").get("delayOffset.json"):
        not_known.append(NO_LEVELS)
    return kind, tuple(not_known)


def _has_marks(storage: Storage, folder: str) -> bool:
    """Whether a record in one of the sampled segments has a mark of ours in its properties."""
    return any(_marked(storage, segment) for segment in some_segments(storage, folder, _SEGMENTS_MAX))


def _marked(storage: Storage, segment: LogSegment) -> bool:
    read = partial(storage.peek, segment.path)
    for begin in {0, max(0, segment.end - _LOOK_BYTES)}:
        stop = min(begin + _LOOK_BYTES, segment.end)
        reader = SplitReader(read, segment, begin, stop, chunk_bytes=_LOOK_BYTES)
        if any(_in_properties(text) for text in _properties(reader)):
            return True
    return False


def _properties(reader: SplitReader) -> Iterator[bytes]:
    """The properties of each record, behind a separator."""
    for data, heads in reader.chunks():
        for begin, end in zip(heads.properties_at.tolist(), heads.ends.tolist(), strict=True):
            yield b"\x02" + data[begin:end]


def _in_properties(text: bytes) -> bool:
    """Whether a broker of ours has written a mark. Apache's broker keeps those that a sender has copied, and adds the
    real topic to a delayed message; so does ours only for levels."""
    if b"\x02__TW_LEVEL\x01" in text:
        return _LEVEL_MARK.search(text) is not None
    return _ID_MARK.search(text) is not None and b"\x02REAL_TOPIC\x01" not in text
