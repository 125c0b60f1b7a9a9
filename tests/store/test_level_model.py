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
    settings = settings(max_examples=100, stateful_step_count=40, deadline=None)


@pytest.mark.parametrize("seed", range(25))
def test_every_level_message_comes_once_and_never_early_over_crashes_and_clock_steps(seed: int) -> None:
    rng = random.Random(seed)
    disk = SimDisk(seed)
    root = Path("/store")
    options = StoreOptions(
        commit_log_segment_bytes=1 << 14, consume_queue_segment_bytes=400, delay_levels_ms=(1_000, 3_000)
    )
    clock = [1_000_000]
    levels = DelayLevels(options.delay_levels_ms)

    def open_store() -> tuple[MessageStore, LevelScheduler]:
        store = MessageStore.open(disk, root, options, lambda: clock[0])
        store.store_host = HOST
        scheduler = LevelScheduler(
            store, levels, lambda: clock[0], files=disk, offsets_path=root / "config" / "delayOffset.json"
        )
        scheduler.recover()
        return store, scheduler

    store, scheduler = open_store()
    sent: dict[str, int] = {}
    offsets: dict[str, int] = {}
    for _ in range(rng.randrange(100, 300)):
        choice = rng.random()
        if choice < 0.35:
            key = f"m{len(offsets)}"
            level = rng.choice((1, 2))
            message = Message("T", 0, body=key.encode(), properties=f"DELAY\x01{level}\x02UNIQ_KEY\x01{key}\x02")
            levels.route(message)
            (result,) = store.put_batch([put_record(message, HOST)])
            assert result.status == PutStatus.PUT_OK
            sent[key] = result.store_ms + levels.delay_ms(level)
            offsets[key] = result.offset
        elif choice < 0.75:
            scheduler.step(clock[0])
        elif choice < 0.9:
            clock[0] += rng.randrange(1500)
        elif choice < 0.93:
            clock[0] -= rng.randrange(2000)
        elif choice < 0.97:
            store.housekeeper.step(clock[0])
        elif choice < 0.98:
            store.commit_log.sync()
        elif choice < 0.99:
            disk.kill()
            store, scheduler = open_store()
        else:
            disk.power_cut(keep=rng.random())
            store, scheduler = open_store()
            for key, offset in offsets.items():
                if offset >= store.commit_log.end:
                    sent.pop(key, None)  # acknowledged since the last flush: may be lost under ASYNC_FLUSH
    clock[0] += 100_000
    for _ in range(1000):
        wake_ms = scheduler.step(clock[0])
        if wake_ms is None:
            break
    counts: dict[str, int] = {}
    for offset, _, _ in (entry for at in range(len(sent)) for entry in store.queue_entries("T", 0, at, 1)):
        record = store.read_record(offset)
        assert record is not None
        copy = decode_record(record)
        key = get_property(copy.properties, "UNIQ_KEY") or ""
        counts[key] = counts.get(key, 0) + 1
        assert copy.store_ms >= sent[key]
    assert counts == dict.fromkeys(sent, 1)
    assert scheduler.check() == []
