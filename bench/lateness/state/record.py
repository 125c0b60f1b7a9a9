"""``state.json``: the files and the sources of a state. Two lines: CRC-32 in hexadecimal, JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any
from zlib import crc32

from bench.lateness.state.folder import Folder, StateError
from bench.lateness.state.identity import Identity

__all__ = ["NAME", "Kept", "OfSource", "Record", "read_record", "write_record"]

NAME = "state.json"
VERSION = 3
_READ = (1, 2, VERSION)
"""In version 1 the pairs of all days were among the sums. Up to version 2 hashes were among the ranges of ids."""
_OURS = re.compile(
    r"\d{10}(-[0-9a-f]{16})?-(sums|open|finished|hashes\d*|small|days|day-?\d+)\.parquet(\.new)?|state\.json\.new"
)


@dataclass(frozen=True, slots=True)
class Kept:
    """A file of the state."""

    name: str
    size: int
    crc: int


@dataclass(slots=True)
class OfSource:
    """One source: the log is counted from ``begin`` to ``end`` (CommitLog positions)."""

    name: str
    kind: str
    store_id: str = ""
    begin: int = 0
    end: int = 0
    segments: dict[int, Identity] = field(default_factory=dict)


@dataclass(slots=True)
class Record:
    """The content of ``state.json``; ``said``: topic, key and id of the latest messages, by source and place."""

    levels: str
    sources: list[OfSource]
    generation: int = 0
    records: int = 0
    sums: list[Kept] = field(default_factory=list)
    open: Kept | None = None
    finished: Kept | None = None
    hashes: list[Kept] = field(default_factory=list)
    small: Kept | None = None
    days: Kept | None = None
    pairs: dict[int, Kept] = field(default_factory=dict)
    """By day (`bench.lateness.state.days`)."""
    said: dict[tuple[int, int], list[str | None]] = field(default_factory=dict)

    def files(self) -> list[Kept]:
        """All files of the state."""
        single = (self.open, self.finished, self.small, self.days)
        return [*self.sums, *self.hashes, *(one for one in single if one), *self.pairs.values()]


def write_record(folder: Folder, record: Record, version: str) -> None:
    """Replace ``state.json`` if it still has this version: at that moment the state changes.

    Raises ChangedError if it has another version by now, OSError or StateError if it cannot be written.
    """
    value: dict[str, Any] = {"version": VERSION} | asdict(record)
    value["pairs"] = [[day, *one.values()] for day, one in value["pairs"].items()]
    value["said"] = [[*place, *words] for place, words in record.said.items()]
    for one in value["sources"]:
        one["segments"] = list(one["segments"].values())
    text = json.dumps(value, separators=(",", ":"))
    folder.replace(NAME, f"{crc32(text.encode()):08x}\n{text}\n".encode(), version)


def read_record(path: str, folder: Folder, levels: str, sources: Sequence[tuple[str, str]]) -> Record:
    """Read ``state.json`` for sources given as (name, kind), or begin a new state.

    Raises StateError if the folder or the file belongs to something else, or is damaged; OSError if it cannot be read.
    """
    names = folder.names()
    if NAME not in names:
        foreign = [name for name in names if not _OURS.fullmatch(name)]
        if foreign:
            raise StateError(f"--state {path} is no state of this command: it holds {foreign[0]!r}, and no {NAME}")
        return Record(levels, [OfSource(*one) for one in sources])
    record = _parsed(path, folder.read(NAME))
    # Without a lock another run may have changed the state since the files were listed; reading them will find out.
    gone = [one.name for one in record.files() if one.name not in names] if folder.locks else []
    if gone:
        raise StateError(f"--state {path}: {gone[0]} is missing; bring it back, or give a new folder")
    had = ", ".join(f"{one.name} ({one.kind})" for one in record.sources)
    have = ", ".join(f"{name} ({kind})" for name, kind in sources)
    if had != have:
        raise StateError(f"--state {path} is of {had}, not of {have}: give each set of sources a folder of its own")
    if record.levels != levels:
        raise StateError(f"--state {path} was counted with --levels '{record.levels}': give these, or a new folder")
    return record


def _parsed(path: str, data: bytes) -> Record:
    head, _, text = data.partition(b"\n")
    text = text.rstrip(b"\n")
    if head != b"%08x" % crc32(text):
        raise StateError(f"--state {path}: {NAME} is damaged; bring it back from a copy, or give a new folder")
    value = json.loads(text)
    version = value.pop("version", None)
    if version not in _READ:
        raise StateError(f"--state {path} has version {version}; this software reads 1 to 3: give a new folder")
    sources = []
    for one in value.pop("sources"):
        found = [Identity(**segment) for segment in one.pop("segments")]
        sources.append(OfSource(**one, segments={segment.base: segment for segment in found}))
    kept: dict[str, Any] = {
        name: Kept(**value[name]) if value.get(name) else None for name in ("open", "finished", "small", "days")
    }
    kept["pairs"] = {day: Kept(*words) for day, *words in value.get("pairs", [])}
    said = {(number, place): words for number, place, *words in value.pop("said")}
    sums, hashes = ([Kept(**one) for one in value.pop(name, [])] for name in ("sums", "hashes"))
    return Record(**{**value, **kept}, sources=sources, sums=sums, hashes=hashes, said=said)


def remove_unlisted(folder: Folder, record: Record) -> None:
    """Remove the files of an interrupted run, and those that the last change replaced. Raises OSError, StateError."""
    listed = {one.name for one in record.files()}
    for name in folder.names():
        if _OURS.fullmatch(name) and name not in listed:
            folder.remove(name)
