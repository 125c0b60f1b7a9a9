"""A little store with something of everything in it, one of its files damaged, and what must be true afterwards.

`Life` makes the store once: topics, messages for now and for later, levels, cancels, transactions, small files that
roll, runs that are merged. It keeps a copy from the middle of its life, one of a broker that was killed, and one of a
broker that was stopped. `damage` spoils one file of a copy, by a seed; `judge` opens it as an operator would, repairs
it if the broker refuses, lets every due time pass, and compares what consumers see with what was sent. It knows which
messages are *intact*: none of the bytes of their record, and of the frame or page that leads to it, was touched.

By hand::

    python -m tests.support.damage_world --seeds 5000 [--from-seed 0] [--lives 4]
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import re
import shutil
import struct
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

import store.disk.files as store_files
from broker.cli.repair import repair_store
from broker.config.broker_config import BrokerConfig
from broker.core import BrokerCore
from broker_plugin.plugin import DelayPlugin
from remoting.codes import RequestCode
from remoting.layout import FILE_HEADER_BYTES, FRAME_BYTES, FRAME_ROW_BYTES
from remoting.messages.message import parse_message_id, record_fields
from store.disk.errors import StoreError
from store.disk.files import Files
from store.levels.level_copy import HALF_TOPIC
from store.put.plugin_api import CommandOutcome
from store.spill.rows.format import frame_seed, read_frame
from store.spill.runs.run import Run
from tests.broker.core_rig import Client, properties

__all__ = ["KINDS", "SEEDS_OF_THE_SUITE", "VALUES", "Damage", "Life", "Machine", "ViolationError", "damage", "judge"]

START_MS = 1_700_000_000_000
SEEDS_OF_THE_SUITE = 40
"""A block of the suite; it has four, or fewer. `./run soak` tries more."""
FAR_MS = 400 * 86_400_000
TOPICS = ("T", "U")
SCHEDULE = "SCHEDULE_TOPIC_XXXX"
QUEUES = 2
KINDS = ("flip", "truncate", "zero", "delete", "older")
VALUES = {
    "messageDelayLevel": "1s 2s 1h",
    "mappedFileSizeCommitLog": "6000",
    "mappedFileSizeConsumeQueue": "200",
    "maxMessageSize": "1500",
    "defaultTopicQueueNums": str(QUEUES),
    "fileReservedTime": "100000",
    "diskSpaceWarningLevelRatio": "100",
    "cleanFileForciblyEnable": "false",
    "timewheelSegmentBytes": "5000",
    "timewheelPageBytes": "200",
    "timewheelNearMs": "2000",
    "timewheelNearBytes": "15000",
    "timewheelNearRecords": "60",
    "timewheelRunsMax": "4",
    "timewheelMergeWidth": "3",
    "timewheelPunchBytes": "600",
    "timewheelReserveBytes": "0",
    "timewheelCacheBytes": "600",
}
Place = tuple[str, int, int]
"""A file's path in the store, and a range of its bytes."""


class ViolationError(AssertionError):
    """A promise was broken."""


class Sent:
    """One message: when it is due (0: now, or not known), and whether it was cancelled or never may be delivered."""

    def __init__(self, number: int, kind: str, due_ms: int, size: int) -> None:
        self.number = number
        self.kind = kind
        self.due_ms = due_ms
        self.never = False
        self.body = b"%d." % number + bytes([65 + number % 26]) * size
        self.offset = 0
        self.places: list[Place] = []


class Machine:
    """A broker without sockets and threads on a real directory, in virtual time."""

    def __init__(self, root: Path, now_ms: int, files: Files | None = None, **values: str) -> None:
        self.root = root
        self.now_ms = now_ms
        self.plugin = DelayPlugin()
        self.core = BrokerCore(
            BrokerConfig(root, VALUES | values, listen_port=10911),
            10911,
            [self.plugin],
            files=files,
            now_ms=lambda: self.now_ms,
            schedule=lambda: None,
            spawn=asyncio.run,
            random=Random(1),
        )
        self.store = self.core.store

    def run(self, for_ms: int) -> None:
        """Let everything run for some time."""
        parts: list[Callable[[int], int | None]] = [
            self.store.flusher.step,
            self.store.housekeeper.step,
            self.core.level_scheduler.step,
            self.plugin.sweeper.step,
            self.plugin.recovery.step,
            self.plugin.spiller.step,
        ]
        until = self.now_ms + for_ms
        while self.now_ms <= until:
            self.core.processors.checks.publish(self.now_ms)
            wakes = [self.now_ms] * len(parts)
            for _ in range(2000):
                busy = [at for at, wake in enumerate(wakes) if wake <= self.now_ms]
                if not busy:
                    break
                for at in busy:
                    wake = parts[at](self.now_ms)
                    wakes[at] = self.now_ms + 250 if wake is None else wake
                self.core.end_turn()
            self.now_ms = max(self.now_ms + 1, min(min(wakes), self.now_ms + 250))

    def close(self) -> None:
        """End as a broker ends."""
        self.core.stop()
        self.core.close()

    def abandon(self) -> None:
        """Let go of everything without an end."""
        self.store._release()
        self.core._opened = []


class Life:
    """One store and its copies: ``older``, ``killed`` and ``clean``, directories under ``root``."""

    def __init__(self, root: Path, seed: int) -> None:
        self.rng = Random(seed)
        self.root = root
        self.sent: dict[int, Sent] = {}
        self.end_ms = 0
        live = root / "live"
        self.machine = Machine(live, START_MS)
        self.client = Client(self.machine, 50001)  # type: ignore[arg-type]
        self.client.heartbeat("producer-1")
        self._send_some(50)
        shutil.copytree(live, root / "older")
        self._send_some(60)
        self.offsets = self._commit_offsets()
        self.machine.run(2500)
        # Indexes: of segments that have left the journal by now, and of such that have not.
        self._send_far(20, 1200)
        self._send_some(6)
        self._send_far(20, 20)
        shutil.copytree(live, root / "killed")
        self.end_ms = self.machine.now_ms
        self.machine.close()
        shutil.move(live, root / "clean")
        self.places = {name: places_of(root / name, root / "look", self) for name in ("killed", "clean")}

    def copy(self, which: str, target: Path) -> Path:
        """Copy a store, ``killed`` or ``clean``."""
        shutil.copytree(self.root / which, target)
        return target

    def _commit_offsets(self) -> dict[tuple[str, int], int]:
        """Have a group read half of everything."""
        found = {}
        for topic in TOPICS:
            for queue in range(QUEUES):
                offset = self.machine.store.max_offset(topic, queue) // 2
                self.machine.core.offsets.commit("g", topic, queue, offset)
                self.machine.core.save_offsets()
                found[topic, queue] = offset
        return found

    def _send_some(self, count: int) -> None:
        rng = self.rng
        for _ in range(count):
            kind = rng.choices(("now", "timed", "far", "level", "half"), (4, 5, 4, 3, 1))[0]
            topic, queue = rng.choice(TOPICS), rng.randrange(QUEUES)
            self._send(kind, topic, queue)
            if rng.random() < 0.1:
                self._cancel()
            self.machine.run(rng.choice((0, 5, 40, 300)))

    def _send_far(self, count: int, for_ms: int) -> None:
        for _ in range(count):
            self._send("far", self.rng.choice(TOPICS), self.rng.randrange(QUEUES))
        self._cancel()
        self.machine.run(for_ms)

    def _send(self, kind: str, topic: str, queue: int) -> None:
        rng, machine = self.rng, self.machine
        number = len(self.sent) + 1
        due_ms = 0
        values: dict[str, Any] = {"KEYS": f"k{number}", "UNIQ_KEY": f"{number:032X}", "TAGS": "AB"[number % 2]}
        if kind in ("timed", "far"):
            due_ms = machine.now_ms + (rng.randrange(4000) if kind == "timed" else rng.randrange(10_000, FAR_MS))
            values["TIMER_DELIVER_MS"] = due_ms
        elif kind == "level":
            values["DELAY"] = rng.randint(1, 3)
            due_ms = machine.now_ms + 1000
        sent = Sent(number, kind, due_ms, rng.randrange(300))
        fields: dict[str, Any] = {"e": queue}
        if kind == "half":
            values |= {"TRAN_MSG": "true", "PGROUP": "pg"}
            fields |= {"f": 4, "g": machine.now_ms}
        reply = self.client.send(topic, properties(**values), sent.body, **fields)
        if reply.code != 0:
            raise AssertionError(reply)
        self.sent[number] = sent
        sent.offset = parse_message_id(reply.ext["msgId"])[1]
        if kind == "half":
            outcome = rng.choice((8, 12, 0))
            sent.never = outcome != 8
            if not outcome:
                return
            ids = {
                "producerGroup": "pg",
                "tranStateTableOffset": reply.ext["queueOffset"],
                "commitLogOffset": sent.offset,
                "msgId": reply.ext["transactionId"],
                "transactionId": reply.ext["transactionId"],
                "commitOrRollback": outcome,
            }
            self.client.ask(RequestCode.END_TRANSACTION, ids)

    def _cancel(self) -> None:
        pending = [sent for sent in self.sent.values() if sent.kind == "far" and not sent.never]
        if pending:
            sent = self.rng.choice(pending)
            if self.machine.plugin.cancel(sent.offset, self.machine.now_ms).outcome is CommandOutcome.DONE:
                sent.never = True


def _number_in(record: bytes) -> int:
    body = record[88 : 88 + int.from_bytes(record[84:88], "big")]
    head = body.partition(b".")[0]
    return int(head) if head.isdigit() else 0


def places_of(store: Path, scratch: Path, life: Life) -> dict[int, list[Place]]:
    """By number, the bytes that a message needs: its record, and the frame or the page that leads to it."""
    shutil.copytree(store, scratch)
    machine = Machine(scratch, life.end_ms)
    found: dict[int, list[Place]] = {}
    log = machine.store.commit_log
    for offset, record in log.scan(log.begin):
        topic = record_fields(record)[0]
        if topic not in (*TOPICS, SCHEDULE, HALF_TOPIC):
            continue
        start = offset - offset % log.segment_bytes
        found[_number_in(record)] = [(f"commitlog/{start:020d}", offset - start, len(record))]
    for source in machine.plugin.spill._state.sources.values():
        name, data_name = (str(file.path.relative_to(scratch)) for file in (source.file, source.data))
        frames = [] if isinstance(source, Run) else _frames(source)
        for ordinal in range(source.count):
            if not source.owns(ordinal) or ordinal in source.done:
                continue
            starts, sizes, _ = source.places(np.array([ordinal], np.int64))
            number = _number_in(source.data.pread(sizes[0], starts[0]))
            lead = (
                (FILE_HEADER_BYTES + ordinal // source.rows_per_page * source.shape.page_bytes, source.shape.page_bytes)
                if isinstance(source, Run)
                else max(frame for frame in frames if frame[0] <= starts[0])
            )
            found[number] = [(data_name, starts[0], sizes[0]), (name, *lead)]
    machine.abandon()
    machine.plugin.stop()
    shutil.rmtree(scratch)
    return found


def _frames(segment: Any) -> list[tuple[int, int]]:
    frames, at = [], FILE_HEADER_BYTES
    seed = frame_seed(bytes(segment.file.pread(64, 0)[8:24]))
    while at < segment.end:
        frame = read_frame(segment.file.pread(segment.size - at, at), 0, segment.base + at, seed)
        assert frame is not None
        frames.append((at, FRAME_BYTES + frame.count * FRAME_ROW_BYTES))
        at += frame.length
    return frames


class Damage:
    """What was done: ``kind`` to the file ``name`` (relative), at ``at``; ``before`` and ``after`` are its bytes."""

    def __init__(self, kind: str, name: str, at: int, before: bytes, after: bytes | None) -> None:
        self.kind, self.name, self.at, self.before, self.after = kind, name, at, before, after

    def __repr__(self) -> str:
        size = "gone" if self.after is None else f"{len(self.after)} bytes"
        return f"{self.kind} {self.name} at {self.at} of {len(self.before)} ({size})"

    def touches(self, place: Place) -> bool:
        """Whether bytes of a place were changed."""
        name, start, size = place
        if name != self.name:
            return False
        if self.after is None:
            return True
        return self.after[start : start + size] != self.before[start : start + size]


def damage(store: Path, older: Path, rng: Random) -> Damage | None:
    """Spoil one file; None if the draw would have changed nothing."""
    names = sorted(
        str(path.relative_to(store))
        for path in store.rglob("*")
        if path.is_file() and path.name != "lock" and "logs" not in path.parts
    )
    groups = sorted({name.rpartition("/")[0] or name for name in names})
    group = rng.choice(groups)
    name = rng.choice([name for name in names if (name.rpartition("/")[0] or name) == group])
    kind = rng.choice(KINDS)
    path = store / name
    before = path.read_bytes()
    at = 0
    after: bytes | None
    if kind == "delete":
        after = None
    elif kind == "older":
        if not (older / name).exists():
            return None
        after = (older / name).read_bytes()
    elif not before:
        return None
    elif kind == "truncate":
        at = rng.randrange(len(before))
        after = before[:at]
    else:
        used = len(before.rstrip(b"\0")) or len(before)
        at = rng.randrange(used)
        changed = bytearray(before)
        if kind == "zero":
            count = rng.choice((1, 8, 60, 512, 3000))
            changed[at : at + count] = bytes(len(changed[at : at + count]))
        else:
            for _ in range(rng.choice((1, 1, 3))):
                changed[min(used - 1, at + rng.randrange(8))] ^= 1 << rng.randrange(8)
        after = bytes(changed)
    if after == before:
        return None
    if after is None:
        path.unlink()
    else:
        path.write_bytes(after)
    return Damage(kind, name, at, before, after)


_PLACE = re.compile(r"\b(at|offset|position|byte) \d")


def judge(life: Life, seed: int, scratch: Path) -> tuple[Damage, str] | None:
    """Damage a copy by a seed, open it, repair it if need be; answers what was done and how it went."""
    rng = Random(seed)
    which = rng.choice(("clean", "killed"))
    life.copy(which, scratch)
    try:
        done = damage(scratch, life.root / "older", rng)
        if done is None:
            return None
        try:
            return done, _judge(life, which, done, scratch)
        except Exception as error:
            raise ViolationError(f"seed {seed}: {which} store, {done}: {type(error).__name__}: {error}") from error
    finally:
        shutil.rmtree(scratch)


def _judge(life: Life, which: str, done: Damage, store: Path) -> str:
    result = "started"
    spoiled = {path: path.read_bytes() for path in store.rglob("*") if path.is_file()}
    try:
        machine = Machine(store, life.end_ms + 10)
    except StoreError as error:
        text = str(error)
        _expect(Path(done.name).name in text, f"the error does not name the file: {text}")
        _expect("check" in text and "--repair" in text, f"the error names no command: {text}")
        if done.kind in ("flip", "zero"):
            _expect(_PLACE.search(text) is not None, f"the error names no offset: {text}")
        config = BrokerConfig(store, dict(VALUES), listen_port=10911)
        report = repair_store(config)
        _expect(bool(report), "nothing was repaired")
        result = "repaired"
        machine = Machine(store, life.end_ms + 10)
    try:
        _nothing_vanished(spoiled, store, done)
        _judge_running(life, which, done, machine, result)
        machine.close()
    except BaseException:
        machine.abandon()
        raise
    # What was repaired stays so.
    machine = Machine(store, machine.now_ms)
    machine.close()
    return result


def _nothing_vanished(spoiled: dict[Path, bytes], store: Path, done: Damage) -> None:
    """Each byte of the damaged file is where it was, or aside."""
    path = store / done.name
    before = spoiled.get(path)
    if before is None or not _is_source(done.name):
        return
    after = path.read_bytes() if path.exists() else b""
    kept = b"\xff".join(found.read_bytes() for found in store.rglob("*") if found.is_file() and "aside" in str(found))
    for start, end in _differences(before, after):
        lost = before[start:end].strip(b"\0")
        _expect(lost in kept, f"bytes {start} to {end} of {done.name} have vanished")


def _is_source(name: str) -> bool:
    return name.startswith(("commitlog/", "timewheel/delay/journal/", "timewheel/delay/runs/"))


def _differences(before: bytes, after: bytes) -> list[tuple[int, int]]:
    """Ranges (with gaps under 32 bytes closed) in which two contents differ."""
    length = max(len(before), len(after))
    a = np.frombuffer(before.ljust(length, b"\0"), np.uint8)
    b = np.frombuffer(after.ljust(length, b"\0"), np.uint8)
    where = np.flatnonzero(a != b)
    if not len(where):
        return []
    cuts = np.flatnonzero(np.diff(where) > 1) + 1
    return [(int(part[0]), int(part[-1]) + 1) for part in np.split(where, cuts)]


def _judge_running(life: Life, which: str, done: Damage, machine: Machine, result: str) -> None:
    machine.run(3000)
    machine.now_ms += FAR_MS + 86_400_000
    machine.plugin.topics_changed()
    machine.run(3000)
    seen = consume(machine)
    counts = Counter(number for number, *_ in seen)
    cut = which == "killed" and result == "started" and _was_cut(machine.root, done)
    twice = sorted(number for number, count in counts.items() if count > 1)
    _expect(not twice, f"delivered twice: {twice}")
    for number, store_ms, body in seen:
        sent = life.sent[number]
        if body == sent.body:
            _expect(store_ms >= sent.due_ms, f"message {number} was early by {sent.due_ms - store_ms} ms")
            may_be_back = (result == "repaired" or cut) and not done.name.startswith(("commitlog", "consumequeue"))
            _expect(not sent.never or may_be_back, f"message {number} ({sent.kind}) was taken back, and is there")
    places = life.places[which]
    lost = []
    for number, sent in life.sent.items():
        if sent.never or number in counts:
            continue
        found = places.get(number, [])
        _expect(bool(found), f"message {number} is nowhere in the undamaged store")
        behind = cut and all(place[0].rpartition("/")[0] == done.name.rpartition("/")[0] for place in found)
        if behind and found[0][:2] > (done.name, done.at):
            continue  # behind what looks like the torn end of a broker that was killed; it was kept aside
        if not any(done.touches(place) for place in found):
            lost.append((number, sent.kind, found))
    _expect(not lost, f"lost: {lost}")


def _was_cut(store: Path, done: Damage) -> bool:
    """Whether a start took the damage for the torn end of log or journal, and kept what stood behind it."""
    name = Path(done.name)
    if name.parent.name == "journal":
        return any((store / name.parent).glob("*.aside"))
    return name.parent.name == "commitlog" and any((store / "timewheel" / "aside").glob("*@*"))


def consume(machine: Machine) -> list[tuple[int, int, bytes]]:
    """Pull every queue from its beginning: (number, store time, body) of each message, with and without a filter."""
    found: list[tuple[int, int, bytes]] = []
    for topic in TOPICS:
        for queue in range(QUEUES):
            offset = machine.store.min_offset(topic, queue)
            end = machine.store.max_offset(topic, queue)
            while offset < end:
                result = machine.store.pull(topic, queue, offset, 32, 1 << 20, None)
                for position, size in result.positions:
                    record = machine.store.read_record(position)
                    if record is None or len(record) != size or record_fields(record)[:2] != (topic, queue):
                        continue  # a damaged one
                    (store_ms,) = struct.unpack_from(">q", record, 56)
                    length = int.from_bytes(record[84:88], "big")
                    found.append((_number_in(record), store_ms, record[88 : 88 + length]))
                _expect(result.next_offset > offset, f"{topic}/{queue} does not go on at {offset}: {result}")
                offset = result.next_offset
    return found


def _expect(truth: bool, text: str) -> None:
    if not truth:
        raise ViolationError(text)


def _main() -> int:
    """Damage and judge; 1 if a promise was broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.damage_world")
    parser.add_argument("--from-seed", type=int, default=0)
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--lives", type=int, default=2)
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    store_files.os.fdatasync = store_files.os.fsync = lambda _: None  # type: ignore[assignment]
    counts: Counter[tuple[str, ...]] = Counter()
    with tempfile.TemporaryDirectory(prefix="damage-") as folder:
        lives = [Life(Path(folder) / f"life{seed}", seed) for seed in range(options.lives)]
        for seed in range(options.from_seed, options.from_seed + options.seeds):
            try:
                found = judge(lives[seed % len(lives)], seed, Path(folder) / "store")
            except ViolationError as error:
                counts["violated",] += 1
                print(error, flush=True)
            else:
                counts[("nothing changed",) if found is None else (found[1], found[0].kind)] += 1
    for key, count in sorted(counts.items()):
        print(f"{count:>7}  {' '.join(key)}")
    return 1 if counts["violated",] else 0


if __name__ == "__main__":
    sys.exit(_main())
