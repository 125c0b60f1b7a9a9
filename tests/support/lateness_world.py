"""Small CommitLogs of a known lateness, and a plain count of them, written apart from the pipeline.

A `World` is a list of messages with what became of each; `write_world` makes the files, `count_world` says what a
report has to find. Both styles: ours (``__TW_…`` marks) and Apache's (what its levels and its timer leave on disk).
"""

from __future__ import annotations

import random
import struct
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from remoting.messages.message import Message, encode_record

__all__ = ["LEVELS", "LEVELS_MS", "GrowingLog", "Log", "World", "class_of", "count_world", "make_world", "write_world"]

HOST = bytes((127, 0, 0, 1, 0, 0, 0x2A, 0x9F))
HOST_V6 = bytes(range(16)) + bytes((0, 0, 0x2A, 0x9F))
LEVELS_MS = (1_000, 5_000, 10_000, 30_000)
LEVELS = "1s 5s 10s 30s"
START_MS = 1_700_000_000_000


class Log:
    """Appends records to the segments of a CommitLog."""

    def __init__(self, store: Path, segment_bytes: int = 1 << 16) -> None:
        self.folder = store / "commitlog"
        self.folder.mkdir(parents=True, exist_ok=True)
        self.segment_bytes = segment_bytes
        self.position = 0
        self.places: list[tuple[int, int]] = []
        self._parts: dict[int, bytearray] = {}
        self._numbers: Counter[tuple[str, int]] = Counter()

    def append(self, message: Message, store_ms: int, host: bytes = HOST) -> int:
        """Add one message; answers its queue offset."""
        record = bytearray(encode_record(message, host))
        number = self._numbers[message.topic, message.queue_id]
        self._numbers[message.topic, message.queue_id] += 1
        left = self.segment_bytes - self.position % self.segment_bytes
        if len(record) + 8 > left:
            self._write(struct.pack(">iI", left, 0xCBD43194).ljust(left, b"\0"))
        struct.pack_into(">qq", record, 20, number, self.position)
        struct.pack_into(">q", record, 68 if record[39] & 0x10 else 56, store_ms)
        self.places.append((self.position, len(record)))
        self._write(bytes(record))
        return number

    def _write(self, data: bytes) -> None:
        base = self.position - self.position % self.segment_bytes
        self._parts.setdefault(base, bytearray()).extend(data)
        self.position += len(data)

    def close(self) -> None:
        """Write the files, zero-filled to their full size."""
        if not self._parts:
            self._parts[0] = bytearray()
        for base, part in self._parts.items():
            (self.folder / f"{base:020d}").write_bytes(bytes(part).ljust(self.segment_bytes, b"\0"))


@dataclass(slots=True)
class World:
    """Messages as (kind, level, topic, requested_ms, due_ms, delivered store times); no times: it waits."""

    ours: bool
    messages: list[tuple[str, int, str, int, int, list[int]]] = field(default_factory=list)
    ordinary: int = 0


def make_world(rng: random.Random, count: int) -> World:
    """A random world."""
    world = World(rng.random() < 0.5)
    for _ in range(count):
        if rng.random() < 0.2:
            world.ordinary += 1
            continue
        level = rng.randint(1, len(LEVELS_MS)) if rng.random() < 0.4 else 0
        accepted_ms = START_MS + rng.randrange(20_000)
        requested = LEVELS_MS[level - 1] if level else rng.choice([1, 7, 999, 1_000, 20_000, 123_456])
        due_ms = accepted_ms + requested
        times = [due_ms + rng.choice([0, 0, 0, 1, 2, 15, 1_100, -3, 9_999, 10_000, 12_345, 3_600_001])]
        if rng.random() < 0.1:
            times = sorted(times[0] + k * 50 for k in range(rng.randint(2, 3)))
        if rng.random() < 0.15 and (level or not world.ours):
            times = []  # what of ours waits for a time is in the delay store, not in the log
        topic = rng.choice(["Orders", "Payments", "T" * 200])
        world.messages.append(("level" if level else "timed", level, topic, requested, due_ms, times))
    return world


def write_world(world: World, store: Path, rng: random.Random, segment_bytes: int = 1 << 13) -> Log:
    """Write the world's CommitLog, in order of storage."""
    if world.ours:
        (store / "timewheel").mkdir(parents=True)
    log = Log(store, segment_bytes)
    events: list[tuple[int, int, int]] = []
    for index, (kind, _, _, requested, due_ms, times) in enumerate(world.messages):
        if kind == "level" or not world.ours:
            events.append((due_ms - requested, 0, index))
        events += [(ms, 1 + k, index) for k, ms in enumerate(times)]
    events += [(START_MS + rng.randrange(60_000), 0, -1) for _ in range(world.ordinary)]
    numbers: dict[int, int] = {}
    for store_ms, step, index in sorted(events):
        host = HOST_V6 if rng.random() < 0.2 else HOST
        if index < 0:
            log.append(
                Message("Orders", 1, body=rng.randbytes(rng.randrange(50)), properties="TAGS\x01a\x02"), store_ms, host
            )
            continue
        message = _message(world, index, numbers, step)
        message.born_host = HOST_V6 if rng.random() < 0.2 else HOST
        number = log.append(message, store_ms, host)
        if step == 0:
            numbers[index] = number
    log.close()
    return log


def _message(world: World, index: int, numbers: dict[int, int], step: int) -> Message:
    kind, level, topic, requested, due_ms, _ = world.messages[index]
    born_ms = due_ms - requested
    text = f"UNIQ_KEY\x01{index:032X}\x02"
    waits = f"REAL_TOPIC\x01{topic}\x02REAL_QID\x010\x02"
    if kind == "level":
        text += f"DELAY\x01{level}\x02{waits}"
        if step == 0:
            return Message("SCHEDULE_TOPIC_XXXX", level - 1, born_ms=born_ms, body=b"b", properties=text)
        if world.ours:
            text += f"__TW_LEVEL\x01{level}:{numbers[index]}\x02"
    elif world.ours:
        text += f"__TW_ID\x01{(1 << 40) + index:x}\x02__TW_DUE\x01{due_ms}\x02"
    else:
        text += f"TIMER_DELIVER_MS\x01{due_ms}\x02TIMER_OUT_MS\x01{due_ms // 1000 * 1000}\x02{waits}"
        if step == 0:
            return Message("rmq_sys_wheel_timer", 0, born_ms=born_ms, body=b"b", properties=text)
    return Message(topic, 0, born_ms=born_ms, body=b"b", properties=text)


def class_of(lateness_ms: int, waiting: bool) -> int:
    """What stands for a lateness in a histogram: from ten seconds on its first three digits."""
    digits = str(abs(lateness_ms))
    if len(digits) < 5:
        return lateness_ms
    sign = -1 if lateness_ms < 0 else 1
    return sign * int(digits[:3] + ("0" if waiting and sign > 0 else "9") * (len(digits) - 3))


def count_world(world: World, as_of_ms: int) -> dict[str, object]:
    """What a report has to find: counts, and the histogram by topic, kind and level."""
    found: Counter[str] = Counter()
    late: Counter[tuple[str, str, int, int, bool]] = Counter()
    by_millisecond: Counter[tuple[int, int, bool]] = Counter()
    for kind, level, topic, _, due_ms, times in world.messages:
        found["sent"] += 1
        if times:
            found["delivered"] += 1
            found["repeated"] += len(times) - 1
            found["early"] += times[0] < due_ms
            row = (times[0] - due_ms, False)
        elif due_ms <= as_of_ms:
            found["overdue"] += 1
            row = (as_of_ms - due_ms, True)
        else:
            found["pending"] += 1
            continue
        row = (class_of(*row), row[1])
        late[topic, kind, level, *row] += 1
        by_millisecond[due_ms % 1000, *row] += 1
    return {"counts": found, "topic": late, "ms_in_second": by_millisecond}


class GrowingLog:
    """The whole log of a world, of which as many records as are shown are there; the rest is zeros."""

    def __init__(self, folder: Path, messages: int) -> None:
        """Write it whole to ``folder``."""
        rng = random.Random(11)
        self._log = write_world(make_world(rng, messages), folder, rng)
        self._whole = {path: path.read_bytes() for path in sorted(self._log.folder.iterdir())}
        self.records = len(self._log.places)

    def show(self, records: int, torn_bytes: int = 0) -> None:
        """The first records, and of the next one ``torn_bytes``: a broker may be writing it."""
        end = sum(self._log.places[records - 1]) + torn_bytes
        for path, data in self._whole.items():
            base = int(path.name)
            if base >= end:
                path.unlink(missing_ok=True)
            else:
                path.write_bytes(data[: end - base].ljust(len(data), b"\0"))
