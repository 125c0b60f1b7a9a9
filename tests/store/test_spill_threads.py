"""The real threads on a real disk: loop, sweeper, spiller and flusher at once; everything goes out once."""

from __future__ import annotations

import random
import sys
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path

import pytest

from store.disk.files import Files
from store.spill.rows.block import Block
from store.spill.rows.model import SpillOptions
from store.spill.spill_store import SpillStore

STORE_ID = bytes(range(16))
MESSAGES = 6_000


@pytest.fixture
def eager_switching() -> object:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield None
    sys.setswitchinterval(before)


class Traffic:
    """What the threads share: a clock that the sweeper moves, and what has come out."""

    def __init__(self, path: Path) -> None:
        options = SpillOptions(
            segment_bytes=16_000, page_bytes=512, near_ms=200, near_bytes=60_000, runs_max=4, merge_width=3,
            punch_bytes=1_000, reserve_bytes=0,
        )  # fmt: skip
        self.path, self.options = path, options
        self.store = SpillStore.open(Files(), path, STORE_ID, options, None)
        self.now_ms = 1_000
        self.inbox: deque[Block] = deque()
        self.expected: dict[int, bytes] = {}
        self.delivered: dict[int, bytes] = {}
        self.cancelled: set[int] = set()
        self.section: bytes | None = None
        self.accepted_all = False
        self.finished = threading.Event()
        self.failures: list[BaseException] = []

    def guarded(self, work: Callable[[], None]) -> Callable[[], None]:
        def run() -> None:
            try:
                work()
            except BaseException as failure:
                self.failures.append(failure)
                self.finished.set()

        return run

    def loop(self) -> None:
        """Accept everything, some at a time; cancel a few through the sweeper's lock."""
        rng = random.Random(1)
        while len(self.expected) < MESSAGES and not self.finished.is_set():
            entries = []
            for _ in range(rng.randint(1, 8)):
                id_, due = self.store.next_id(), self.now_ms + rng.choice((rng.randrange(60), rng.randrange(3_000)))
                entries.append((due, id_, b"%d %d" % (due, id_) + bytes(rng.randrange(60))))
                self.expected[id_] = entries[-1][2]
            self.inbox.append(self.store.append(entries))
            if rng.random() < 0.1:
                with self.store.lock:
                    if self.store.cancel(entries[0][1]) is not None:
                        self.cancelled.add(entries[0][1])
        self.accepted_all = True

    def sweeper(self) -> None:
        """Publish, deliver what is due, let time pass."""
        armed: dict[int, int] = {}
        covered = (-1, 0)
        while not self.finished.is_set():
            with self.store.lock:
                while self.inbox:
                    block = self.inbox.popleft()
                    columns = self.store.publish(block)
                    rows = zip(columns.dues, columns.ids, columns.refs, strict=True)
                    armed.update({ref: due for due, id_, ref in rows if (due, id_) <= covered})
                found = self.store.scan(covered, self.now_ms + 20, 64)
                covered = (found.dues[-1], found.ids[-1]) if len(found) == 64 else (self.now_ms + 19, 1 << 63)
                self.store.frontier_ms = covered[0] + 1
                armed.update(zip(found.refs, found.dues, strict=True))
                refs = [r for r, due in armed.items() if due <= self.now_ms and not self.store.is_done(r)]
                for record in self.store.read(refs):
                    id_ = int(record.split(b"\0")[0].split()[1])
                    assert id_ not in self.delivered
                    self.delivered[id_] = record
                self.store.mark_done(refs)
                armed = {ref: due for ref, due in armed.items() if due > self.now_ms}
            self.now_ms += 5 if covered[0] > self.now_ms else 0
            done = len(self.delivered) + len(self.cancelled)
            if self.accepted_all and not self.inbox and done >= MESSAGES and not self.store.pending_count:
                self.finished.set()

    def spiller(self) -> None:
        """Background work."""
        while not self.finished.is_set():
            self.store.spill_step(self.now_ms)

    def flusher(self) -> None:
        """Syncs and checkpoints."""
        while not self.finished.is_set():
            self.store.journal.sync()
            with self.store.lock:
                section = self.store.snapshot()
            self.store.journal.sync()
            self.store.durable()
            self.section = section


@pytest.mark.usefixtures("eager_switching")
def test_everything_goes_out_once(tmp_path: Path) -> None:
    traffic = Traffic(tmp_path / "delay")
    works = (traffic.loop, traffic.sweeper, traffic.spiller, traffic.flusher)
    threads = [threading.Thread(target=traffic.guarded(work), daemon=True) for work in works]
    for thread in threads:
        thread.start()
    assert traffic.finished.wait(60)
    for thread in threads:
        thread.join()
    assert traffic.failures == []
    assert set(traffic.delivered) | traffic.cancelled == set(traffic.expected)
    assert not set(traffic.delivered) & traffic.cancelled
    assert all(traffic.expected[id_] == record for id_, record in traffic.delivered.items())
    store = traffic.store
    assert store.check() == []
    for _ in range(3):
        with store.lock:
            section = store.snapshot()
        store.journal.sync()
        store.durable()
        while store.spill_step(traffic.now_ms):
            pass
    assert store.run_count == 0
    assert store.journal_bytes <= 2 * 16_000
    store.close()
    again = SpillStore.open(Files(), traffic.path, STORE_ID, traffic.options, section)
    assert again.pending_count == 0
    assert again.check() == []
