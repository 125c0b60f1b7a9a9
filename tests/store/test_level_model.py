"""Levels against stupid models: one queue's stretches, and the scheduler over crashes and clock steps."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from remoting.messages.message import Message, decode_record, encode_host
from remoting.messages.properties import get_property
from store.levels.delay_levels import DelayLevels
from store.levels.level_queue import Entry, LevelQueue
from store.levels.level_scheduler import LevelScheduler
from store.message_store import MessageStore
from store.options import StoreOptions
from store.put.plugin_api import PutStatus, put_record
from tests.support.examples import examples, seeds
from tests.support.simdisk import SimDisk

HOST = encode_host("127.0.0.1", 10911)
PRE_BLANK = 0x7FFF_FFFF


class LevelQueueAgainstASet(RuleBasedStateMachine):
    """The queue is a list of due times (None: a pre-blank); the model is the set of numbers that are done."""

    @initialize()
    def start(self) -> None:
        self.dues: list[int | None] = []
        self.done: set[int] = set()
        self.clock = 1000
        self.queue = LevelQueue(1, self.read)

    def read(self, number: int, limit: int) -> list[Entry]:
        limit = min(limit, 7 - number % 7)  # as at the end of a file
        entries = enumerate(self.dues[number : number + limit], number)
        return [(at, PRE_BLANK if due is None else 100, due or 0) for at, due in entries]

    @rule(steps=st.lists(st.integers(0, 3), min_size=1, max_size=8), back=st.integers(0, 50))
    def store_some(self, steps: list[int], back: int) -> None:
        self.clock -= back if back > 40 else 0
        for step in steps:
            self.clock += step
            self.dues.append(self.clock)

    @precondition(lambda self: not self.dues)
    @rule(count=st.integers(1, 20))
    def begin_with_blanks(self, count: int) -> None:
        self.dues += [None] * count

    @rule()
    def look_ahead(self) -> None:
        assert self.queue.look_ahead() == (self.queue.seen < len(self.dues)) or self.queue.seen == len(self.dues)

    @rule(now_ms=st.integers(900, 1400), limit=st.integers(1, 5), each=st.booleans())
    def deliver(self, now_ms: int, limit: int, each: bool) -> None:
        for stretch in list(self.queue.stretches):
            if stretch.retry_ms > now_ms:
                continue
            for number, entry in list(self.queue.due(stretch, now_ms, limit)):
                due = self.dues[number]
                assert due is not None and entry[0] == number and due == entry[2] <= now_ms
                if each:
                    self.queue.set_aside(number, now_ms + 5, 1)
                else:
                    assert self.queue.mark_done(number)
                    self.done.add(number)

    @rule(number=st.integers(0, 60))
    def mark(self, number: int) -> None:
        if number < self.queue.seen:
            fresh = number not in self.done and self.dues[number] is not None
            assert self.queue.mark_done(number) == fresh
            self.done.add(number)

    @rule(number=st.integers(0, 60))
    def forget_below(self, number: int) -> None:
        number = min(number, len(self.dues))
        fresh = {n for n in range(number) if n not in self.done and (n >= self.queue.seen or self.dues[n] is not None)}
        assert self.queue.forget_below(number) == len(fresh)
        self.done |= set(range(number))

    @rule()
    def restart(self) -> None:
        pending = self.queue.pending()
        self.queue = LevelQueue(1, self.read)
        self.queue.restore(pending)

    @invariant()
    def agrees(self) -> None:
        if not hasattr(self, "queue"):
            return
        assert self.queue.check() == []
        pending = {n for stretch in self.queue.stretches for n in range(stretch.next, stretch.end)}
        real = {n for n in range(self.queue.seen) if self.dues[n] is not None}
        assert pending == real - self.done
        assert self.queue.lowest == min(pending, default=self.queue.seen)


class TestLevelQueueAgainstASet(LevelQueueAgainstASet.TestCase):
    settings = settings(max_examples=examples(100), stateful_step_count=40, deadline=None)


class LevelStore:
    """A store with two levels and their scheduler, on a simulated disk, and what was acknowledged."""

    ROOT = Path("/store")
    OPTIONS = StoreOptions(
        commit_log_segment_bytes=1 << 14, consume_queue_segment_bytes=400, delay_levels_ms=(1_000, 3_000)
    )

    def __init__(self, seed: int) -> None:
        self.disk = SimDisk(seed)
        self.now_ms = 1_000_000
        self.levels = DelayLevels(self.OPTIONS.delay_levels_ms)
        self.sent: dict[str, int] = {}  # key: when it is due
        self.offsets: dict[str, int] = {}
        self.open()

    def open(self) -> None:
        """Open it, for the first time or after a crash."""
        self.store = MessageStore.open(self.disk, self.ROOT, self.OPTIONS, lambda: self.now_ms)
        self.store.store_host = HOST
        offsets_path = self.ROOT / "config" / "delayOffset.json"
        self.scheduler = LevelScheduler(
            self.store, self.levels, lambda: self.now_ms, files=self.disk, offsets_path=offsets_path
        )
        self.scheduler.recover()

    def send(self, level: int) -> None:
        """Put one message."""
        key = f"m{len(self.offsets)}"
        message = Message("T", 0, body=key.encode(), properties=f"DELAY\x01{level}\x02UNIQ_KEY\x01{key}\x02")
        self.levels.route(message)
        (result,) = self.store.put_batch([put_record(message, HOST)])
        assert result.status == PutStatus.PUT_OK
        self.sent[key] = result.store_ms + self.levels.delay_ms(level)
        self.offsets[key] = result.offset

    def power_cut(self, keep: float) -> None:
        """Cut the power: what was acknowledged since the last flush may be lost under ASYNC_FLUSH."""
        self.disk.power_cut(keep=keep)
        self.open()
        for key, offset in self.offsets.items():
            if offset >= self.store.commit_log.end:
                self.sent.pop(key, None)

    def drain(self) -> None:
        """Let everything come due."""
        self.now_ms += 100_000
        for _ in range(1000):
            if self.scheduler.step(self.now_ms) is None:
                break

    def delivered(self) -> dict[str, int]:
        """How often each message was delivered; AssertionError if one came early."""
        counts: dict[str, int] = {}
        entries = (entry for at in range(len(self.sent)) for entry in self.store.queue_entries("T", 0, at, 1))
        for offset, _, _ in entries:
            record = self.store.read_record(offset)
            assert record is not None
            copy = decode_record(record)
            key = get_property(copy.properties, "UNIQ_KEY") or ""
            counts[key] = counts.get(key, 0) + 1
            assert copy.store_ms >= self.sent[key]
        return counts


@pytest.mark.parametrize("seed", seeds(25))
def test_every_level_message_comes_once_and_never_early_over_crashes_and_clock_steps(seed: int) -> None:
    rng = random.Random(seed)
    world = LevelStore(seed)
    for _ in range(rng.randrange(100, 300)):
        choice = rng.random()
        if choice < 0.35:
            world.send(rng.choice((1, 2)))
        elif choice < 0.75:
            world.scheduler.step(world.now_ms)
        elif choice < 0.9:
            world.now_ms += rng.randrange(1500)
        elif choice < 0.93:
            world.now_ms -= rng.randrange(2000)
        elif choice < 0.97:
            world.store.housekeeper.step(world.now_ms)
        elif choice < 0.98:
            world.store.commit_log.sync()
        elif choice < 0.99:
            world.disk.kill()
            world.open()
        else:
            world.power_cut(keep=rng.random())
    world.drain()
    assert world.delivered() == dict.fromkeys(world.sent, 1)
    assert world.scheduler.check() == []
