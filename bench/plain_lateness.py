"""A simple scan of one CommitLog in one process: how late its delayed messages were. It needs no Java.

This is the yardstick for `bench.lateness` (the pipeline, which also handles levels, Apache's logs, pending messages and
consumers' records). It recognizes delayed messages by the properties with due time and delay id, which the plug-in adds
to each message that it delivers. Repeats are counted separately. Bodies are not read. Bytes that are no record count as
damage, and reading continues at the next record.

The scan checks pipeline and broker, so it shares no reader with them: the few offsets that it needs are repeated here
and not taken from `remoting.layout`. So a wrong number there makes the two disagree, instead of being wrong in both.

Run as a program it prints one JSON object::

    python -m bench.plain_lateness STORE_DIRECTORY [--from-ms T]
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import mmap
import struct
import sys
from collections.abc import Iterator
from pathlib import Path

from remoting.messages.properties import TW_DUE, TW_ID

__all__ = ["PlainLateness", "delivered", "main", "measure"]

_HEAD = struct.Struct(">ii20xq3xB")  # size, magic, own position, the lowest byte of sysflag
_HEAD_BYTES = 40
_BORN_HOST_V6, _STORE_HOST_V6, _MORE_V6 = 0x10, 0x20, 12
_STORE_MS_AT, _BODY_BYTES_AT = 56, 84
_LONG, _INT, _SHORT = struct.Struct(">q"), struct.Struct(">i"), struct.Struct(">H")
_BLANK = -875286124
_MAGIC, _MAGIC_LONG_TOPIC = -626843481, -626843477
_MAGIC_BEGINS = struct.pack(">i", _MAGIC)[:3]
_DUE_MARK = b"\x02" + TW_DUE.encode() + b"\x01"
_ID_MARK = b"\x02" + TW_ID.encode() + b"\x01"


Delivery = tuple[str, int, int]
"""Delay id, due_ms, store_ms."""


@dataclasses.dataclass(slots=True)
class PlainLateness:
    """The distribution, in whole milliseconds; ``early``, ``repeated`` and ``damaged`` (regions) must be zero."""

    delivered: int
    early: int
    repeated: int
    damaged: int
    p50_ms: int
    p99_ms: int
    p999_ms: int
    max_ms: int
    first_store_ms: int
    last_store_ms: int


def _text_after(properties: bytes, mark: bytes) -> str:
    at = properties.rfind(mark)
    return properties[at + len(mark) : properties.index(b"\x02", at + 1)].decode() if at >= 0 else ""


def _properties(view: mmap.mmap, at: int, size: int, magic: int, flags: int) -> bytes | None:
    """The properties of a record, each between two separators; None if its sizes do not add up."""
    stop = at + size
    place = at + _BODY_BYTES_AT + _MORE_V6 * (bool(flags & _BORN_HOST_V6) + bool(flags & _STORE_HOST_V6))
    if place + 4 > stop:
        return None
    body_bytes = _INT.unpack_from(view, place)[0]
    place += 4 + body_bytes
    if body_bytes < 0 or place + 2 > stop:
        return None
    place += 2 + _SHORT.unpack_from(view, place)[0] if magic == _MAGIC_LONG_TOPIC else 1 + view[place]
    if place + 2 > stop or place + 2 + _SHORT.unpack_from(view, place)[0] != stop:
        return None
    return b"\x02" + view[place + 2 : stop] + b"\x02"


def _segment(view: mmap.mmap, base: int) -> Iterator[Delivery | bool]:
    """Yield each delivery of a segment, True for each other record, and False for each region without a record.

    If no blank ends the segment (it is the last one, or was cut), the last value is False.
    """
    at, end = 0, len(view)
    while at + 8 <= end:
        if _INT.unpack_from(view, at + 4)[0] == _BLANK:
            return
        size, magic, position, flags = _HEAD.unpack_from(view, at) if at + _HEAD_BYTES <= end else (0, 0, 0, 0)
        properties = None
        if magic in (_MAGIC, _MAGIC_LONG_TOPIC) and _HEAD_BYTES < size <= end - at and position == base + at:
            properties = _properties(view, at, size, magic, flags)
        if properties is None:
            at = _next(view, base, at)
            yield False
            continue
        if due := _text_after(properties, _DUE_MARK):
            store_ms_at = at + _STORE_MS_AT + (_MORE_V6 if flags & _BORN_HOST_V6 else 0)
            yield _text_after(properties, _ID_MARK), int(due), _LONG.unpack_from(view, store_ms_at)[0]
        else:
            yield True
        at += size


def _next(view: mmap.mmap, base: int, at: int) -> int:
    """The next place behind ``at`` where a record says of itself that it stands there; the file's end if none does."""
    found = view.find(_MAGIC_BEGINS, at + 5)
    while found >= 0:
        if found - 4 + _HEAD_BYTES <= len(view) and _HEAD.unpack_from(view, found - 4)[2] == base + found - 4:
            return found - 4
        found = view.find(_MAGIC_BEGINS, found + 1)
    return len(view)


def _walk(commit_log: Path) -> Iterator[Delivery | None]:
    """Each delivery of the log, and None for each damaged region: one that a record stands behind."""
    regions = 0
    for path in sorted(p for p in commit_log.iterdir() if p.name.isdigit()):
        if path.stat().st_size == 0:
            continue
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view:
            for found in _segment(view, int(path.name)):
                if found is False:
                    regions += 1
                    continue
                yield from [None] * regions
                regions = 0
                if found is not True:
                    yield found


def delivered(commit_log: Path) -> Iterator[Delivery]:
    """Yield (delay id, due_ms, store_ms) of each delivered delayed message, in log order; damage is passed over."""
    return (found for found in _walk(commit_log) if found is not None)


def measure(commit_log: Path, from_ms: int = 0) -> PlainLateness:
    """Measure what was due at or after ``from_ms`` (epoch milliseconds)."""
    seen: set[str] = set()
    damaged = repeated = 0
    late, stored = [], []
    for found in _walk(commit_log):
        if found is None:
            damaged += 1
            continue
        delay_id, due_ms, store_ms = found
        if due_ms < from_ms:
            continue
        if delay_id in seen:
            repeated += 1
            continue
        seen.add(delay_id)
        late.append(store_ms - due_ms)
        stored.append(store_ms)
    late.sort()
    pick = late or [0]
    return PlainLateness(
        delivered=len(late),
        early=sum(1 for ms in late if ms < 0),
        repeated=repeated,
        damaged=damaged,
        p50_ms=pick[len(pick) // 2],
        p99_ms=pick[int(len(pick) * 0.99)],
        p999_ms=pick[int(len(pick) * 0.999)],
        max_ms=pick[-1],
        first_store_ms=min(stored, default=0),
        last_store_ms=max(stored, default=0),
    )


def main(arguments: list[str] | None = None) -> int:
    """Measure one store from the command line and print the result as JSON."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.plain_lateness", description="How late was every delayed message?"
    )
    parser.add_argument("store", type=Path, help="the broker's store directory")
    parser.add_argument("--from-ms", type=int, default=0, help="leave out what was due before (epoch ms)")
    options = parser.parse_args(arguments)
    result = measure(options.store / "commitlog", options.from_ms)
    sys.stdout.write(json.dumps(dataclasses.asdict(result)) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
