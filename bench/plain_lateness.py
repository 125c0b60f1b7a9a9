"""A plain scan of one CommitLog in one process: how late its delayed messages were, in a second and without Java.

The yardstick of `bench.lateness` (the pipeline on Spark, which also knows levels, Apache's logs, what is pending and
what consumers saw), and a quick look for whoever has only the files. Delayed messages are told by the due time and the
delay id that the plug-in leaves among the properties of what it delivers; repeats are counted apart.

It checks the pipeline and the broker, so it shares no reader with them: the few offsets that it needs stand here once
more, and not in `remoting.layout`. A number that is wrong there makes the two disagree instead of hiding in both.

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

_HEAD = struct.Struct(">ii")  # size, magic
_SYS_FLAG_LOW_AT, _BORN_HOST_V6 = 39, 0x10
_STORE_MS_AT, _STORE_MS_AT_V6 = 56, 68
_STORE_MS = struct.Struct(">q")
_BLANK = -875286124
_MAGICS = (-626843481, -626843477)
_DUE_MARK = TW_DUE.encode() + b"\x01"
_ID_MARK = TW_ID.encode() + b"\x01"


@dataclasses.dataclass(slots=True)
class PlainLateness:
    """The distribution, in whole milliseconds; ``early`` and ``repeated`` must be zero."""

    delivered: int
    early: int
    repeated: int
    p50_ms: int
    p99_ms: int
    p999_ms: int
    max_ms: int
    first_store_ms: int
    last_store_ms: int


def _text_after(record: bytes, mark: bytes) -> str:
    at = record.rfind(mark)
    return record[at + len(mark) : record.index(b"\x02", at)].decode() if at >= 0 else ""


def delivered(commit_log: Path) -> Iterator[tuple[str, int, int]]:
    """Yield (delay id, due_ms, store_ms) of each delivered delayed message, in log order."""
    for path in sorted(p for p in commit_log.iterdir() if p.name.isdigit()):
        if path.stat().st_size == 0:
            continue
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view:
            at, end = 0, len(view)
            while at + 8 <= end:
                size, magic = _HEAD.unpack_from(view, at)
                if magic not in _MAGICS or size <= 0 or at + size > end:
                    break
                record = view[at : at + size]
                if due := _text_after(record, _DUE_MARK):
                    store_ms_at = _STORE_MS_AT_V6 if record[_SYS_FLAG_LOW_AT] & _BORN_HOST_V6 else _STORE_MS_AT
                    yield _text_after(record, _ID_MARK), int(due), _STORE_MS.unpack_from(record, store_ms_at)[0]
                at += size
            if at + 8 <= end and _HEAD.unpack_from(view, at)[1] != _BLANK:
                return


def measure(commit_log: Path, from_ms: int = 0) -> PlainLateness:
    """Measure what was due at or after ``from_ms`` (epoch milliseconds)."""
    seen: set[str] = set()
    repeated, late, stored = 0, [], []
    for delay_id, due_ms, store_ms in delivered(commit_log):
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
