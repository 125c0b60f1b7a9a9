"""Compare a ledger of sends (`tests.support.fault_load`) with what stands in a CommitLog.

The log is read apart from the project's codec: exactly once for what was acknowledged, at most once for the rest,
never early, in the queue and with the body that was sent; a level message once under its own topic, not before its
level's delay has passed since it was stored for the level scheduler.
"""

from __future__ import annotations

import mmap
import struct
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["LEVEL_DELAYS_MS", "NEVER_MS", "Entry", "Stored", "Verdict", "judge", "read_ledger", "stored_messages"]

NEVER_MS = 30_000_000_000_000
"""What is due from here on (the year 2920) will not be delivered while a test runs."""
LEVEL_DELAYS_MS = {"1": 1_000, "2": 5_000}
SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
_HEAD = struct.Struct(">iIiiiqqiq")
_MAGICS = (0xDAA320A7, 0xDAA320AB)
_BLANK = 0xCBD43194
_SHOWN = 8


@dataclass(slots=True)
class Entry:
    """One send; ``fate`` is A, R, S or U."""

    fate: str
    kind: str
    due_ms: int
    queue: int
    sent_ms: int
    size: int


@dataclass(slots=True)
class Stored:
    """One record of the CommitLog, as far as this file looks at it."""

    key: str
    topic: str
    queue: int
    queue_offset: int
    offset: int
    store_ms: int
    body: bytes
    text: str


@dataclass(slots=True)
class Verdict:
    """What was found; ``wrong`` is empty when all promises were kept."""

    wrong: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    late_ms: list[int] = field(default_factory=list)
    due_and_store_ms: list[tuple[int, int]] = field(default_factory=list)
    entries: list[Entry] = field(default_factory=list)
    """All sends."""
    places: set[tuple[str, int, int, int]] = field(default_factory=set)
    """Of each message of the topic: unique key, queue, queue offset, store time."""

    never_acknowledged: int = 0
    never_sent: int = 0
    """Messages due in some centuries: those acknowledged, and those sent."""

    @property
    def stored_count(self) -> int:
        """Records of the topic."""
        return len(self.places)

    def add(self, what: str, key: str, detail: str) -> None:
        """Note one violation; a kind that comes often is counted, not repeated."""
        self.counts[f"WRONG {what}"] += 1
        if self.counts[f"WRONG {what}"] <= _SHOWN:
            self.wrong.append(f"{what}: {key} {detail}")

    def late(self, share: float) -> int:
        """Milliseconds that this share of the timed messages stayed within."""
        return self.late_ms[min(len(self.late_ms) - 1, int(len(self.late_ms) * share))] if self.late_ms else 0

    def __str__(self) -> str:
        counts = ", ".join(f"{name} {count}" for name, count in sorted(self.counts.items()))
        late = f"ms late p50 {self.late(0.5)}, p99 {self.late(0.99)}, max {self.late(1.0)}"
        return "\n".join([f"{counts}; {late}", *self.wrong])


def read_ledger(path: Path) -> dict[str, Entry]:
    """Read a ledger: unique key to what was sent."""
    entries = {}
    with open(path, encoding="ascii") as file:
        for line in file:
            fate, key, kind, due_ms, queue, sent_ms, size = line.split()
            entries[key] = Entry(fate, kind, int(due_ms), int(queue), int(sent_ms), int(size))
    return entries


def _record(view: mmap.mmap, at: int, size: int) -> Stored:
    data = view[at : at + size]
    _, magic, _, queue, _, queue_offset, offset, sys_flag, _ = _HEAD.unpack_from(data)
    here = 48 + (20 if sys_flag & 0x10 else 8)
    (store_ms,) = struct.unpack_from(">q", data, here)
    here += 8 + (20 if sys_flag & 0x20 else 8) + 12
    (length,) = struct.unpack_from(">i", data, here)
    body = data[here + 4 : here + 4 + length]
    here += 4 + length
    width = 1 if magic == _MAGICS[0] else 2
    length = int.from_bytes(data[here : here + width], "big")
    topic = data[here + width : here + width + length].decode()
    text = data[here + width + length + 2 :].decode()
    return Stored(property_of(text, "UNIQ_KEY"), topic, queue, queue_offset, offset, store_ms, body, text)


def property_of(text: str, name: str) -> str:
    """One property's value; empty without it."""
    at = ("\x02" + text).find(f"\x02{name}\x01")
    return "" if at < 0 else text[at + len(name) + 1 : text.index("\x02", at + len(name))]


def stored_messages(store: Path) -> Iterator[Stored]:
    """Yield all records of a store directory in order; AssertionError where one does not stand where it says."""
    for path in sorted((store / "commitlog").glob("[0-9]" * 20)):
        if path.stat().st_size == 0:
            continue
        base = int(path.name)
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view:
            at = 0
            while at + 8 <= len(view):
                size, magic = struct.unpack_from(">iI", view, at)
                if magic not in _MAGICS or size <= 0 or at + size > len(view):
                    break
                stored = _record(view, at, size)
                assert stored.offset == base + at, f"{path.name}+{at} says that it stands at {stored.offset}"
                yield stored
                at += size


def judge(store: Path, ledger: Path, topic: str = "storm", *, all_due: bool = True) -> Verdict:
    """Compare; with ``all_due`` everything that was acknowledged must have been delivered."""
    entries, verdict = read_ledger(ledger), Verdict()
    seen: dict[str, int] = {}
    next_in_queue: Counter[int] = Counter()
    level_stored_ms: dict[str, int] = {}
    for stored in stored_messages(store):
        key = stored.key
        if stored.topic == SCHEDULE_TOPIC:
            if property_of(stored.text, "REAL_TOPIC") == topic:
                if key in level_stored_ms:
                    verdict.add("level message taken twice", key, f"at {stored.offset}")
                level_stored_ms[key] = stored.store_ms
            continue
        if stored.topic != topic:
            continue
        if stored.queue_offset != next_in_queue[stored.queue]:
            verdict.add("queue offset", key, f"{stored.queue_offset} after {next_in_queue[stored.queue] - 1}")
        next_in_queue[stored.queue] = stored.queue_offset + 1
        entry = entries.get(key)
        if entry is None:
            verdict.add("never sent", key, f"at {stored.offset}")
        elif key in seen:
            verdict.add("twice", key, f"{entry} at {seen[key]} and {stored.offset}")
        else:
            _look(verdict, key, entry, stored, level_stored_ms)
        seen[key] = stored.offset
        verdict.places.add((key, stored.queue, stored.queue_offset, stored.store_ms))
    for key, entry in entries.items():
        if entry.due_ms >= NEVER_MS:
            verdict.never_sent += 1
            verdict.never_acknowledged += entry.fate == "A"
            continue
        verdict.counts[f"{entry.fate}{'' if key in seen else ' not stored'}"] += 1
        if entry.fate == "A" and key not in seen and (all_due or (not entry.due_ms and entry.kind == "n")):
            verdict.add("lost", key, str(entry) + (f" level stored {level_stored_ms.get(key)}"))
    verdict.late_ms.sort()
    verdict.entries = list(entries.values())
    return verdict


def _look(verdict: Verdict, key: str, entry: Entry, stored: Stored, level_stored_ms: dict[str, int]) -> None:
    """Look at the first copy of a message."""
    due_ms = entry.due_ms
    if entry.kind in LEVEL_DELAYS_MS:
        if key not in level_stored_ms:
            verdict.add("level message without its origin", key, str(entry))
            return
        due_ms = level_stored_ms[key] + LEVEL_DELAYS_MS[entry.kind]
    if stored.store_ms < due_ms:
        verdict.add("early", key, f"by {due_ms - stored.store_ms} ms: {entry}")
    if stored.queue != entry.queue:
        verdict.add("wrong queue", key, f"{stored.queue}: {entry}")
    if stored.body != (key * (entry.size // 32 + 1))[: entry.size].encode():
        verdict.add("wrong body", key, f"{stored.body[:40]!r}: {entry}")
    if due_ms:
        verdict.late_ms.append(stored.store_ms - due_ms)
        verdict.due_and_store_ms.append((due_ms, stored.store_ms))
