"""What was appended is marked done, whatever can be read at that moment: else it would be delivered once more."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from broker_plugin.delivery import Deliverer
from broker_plugin.failures import Failures
from broker_plugin.rules.properties import stamped
from broker_plugin.rules.states import State
from broker_plugin.rules.stats import Stats
from remoting.messages.message import Message, encode_record
from store.disk.errors import StoreError
from store.put.plugin_api import PutResult, PutStatus
from store.spill.journal.segment import JournalSegment
from store.spill.spill_store import SpillStore
from tests.store.spill_world import ROOT, STORE_ID, tiny_options
from tests.support.delay_rig import FakeCheckpoint
from tests.support.simdisk import SimDisk


class Target:
    """A CommitLog; when it has appended, the disk cannot read for a while."""

    def __init__(self, disk: SimDisk) -> None:
        self.disk = disk
        self.put: list[bytes] = []

    def put_batch(self, records: Sequence[Any]) -> list[PutResult]:
        self.put += [bytes(record.record) for record in records]
        self.disk.read_fault = cannot_read
        return [PutResult(PutStatus.PUT_OK, store_ms=20_000) for _ in records]


def cannot_read(path: Path) -> None:
    raise StoreError(f"cannot read {path}: Input/output error (errno 5)")


@pytest.mark.parametrize("count", [1, 20, 40])
def test_what_has_moved_since_it_was_armed_is_marked_where_it_lives(count: int) -> None:
    disk = SimDisk()
    checkpoint = FakeCheckpoint()
    store = SpillStore.open(disk, ROOT, STORE_ID, tiny_options(segment_bytes=9000), None, checkpoint.lock)

    def accept(due_ms: int, size: int) -> int:
        delay_id = store.next_id()
        text = stamped("KEYS\x01k\x02", delay_id, due_ms)
        record = encode_record(Message("T", 0, 0, 0, 0, bytes(8), 0, 0, bytes(size), text), bytes(8))
        block = store.append([(due_ms, delay_id, record)])
        with store.lock:
            store.publish(block)
        return delay_id

    for _ in range(count):
        accept(10, 20)
    with store.lock:
        store.frontier_ms = 100
        armed = store.scan((-1, 0), 100, 100).refs  # before its journal file is given up
    for due_ms in range(500, 560):
        accept(due_ms, 200)
    for _ in range(3):
        while store.spill_step(10_000):
            pass
        with store.lock:
            store.snapshot()
        store.journal.sync()
        store.durable()
    assert not [s for s in store._state.sources.values() if isinstance(s, JournalSegment) and s.closed]

    target = Target(disk)
    stats = Stats()
    deliverer = Deliverer(store, target, checkpoint, Failures(), stats, print)  # type: ignore[arg-type]
    with store.lock:
        outcome = deliverer.deliver([10] * count, armed, 20_000, stats.on_time, state=State.ARMED)
        assert (outcome.delivered, list(outcome.kept), len(target.put)) == (count, [], count)
        disk.read_fault = None
        assert all(map(store.is_done, armed))
        deliverer.deliver([10] * count, armed, 20_000, stats.on_time, state=State.ARMED)
    assert len(target.put) == count


def test_of_many_those_that_were_cancelled_or_are_named_twice_are_not_put_again() -> None:
    disk = SimDisk()
    checkpoint = FakeCheckpoint()
    store = SpillStore.open(disk, ROOT, STORE_ID, tiny_options(segment_bytes=90_000), None, checkpoint.lock)
    entries = []
    for _ in range(40):
        delay_id = store.next_id()
        text = stamped("KEYS\x01k\x02", delay_id, 10)
        entries.append((10, delay_id, encode_record(Message("T", 0, 0, 0, 0, bytes(8), 0, 0, b"", text), bytes(8))))
    block = store.append(entries)
    target, stats = Target(disk), Stats()
    deliverer = Deliverer(store, target, checkpoint, Failures(), stats, print)  # type: ignore[arg-type]
    with store.lock:
        store.publish(block)
        armed = list(store.scan((-1, 0), 100, 100).refs)
        store.mark_done([armed[7]])
        refs = [*armed, armed[3]]
        outcome = deliverer.deliver([10] * len(refs), refs, 20_000, stats.on_time, state=State.ARMED)
    assert outcome.delivered == len(target.put) == 39
    assert len({bytes(record) for record in target.put}) == 39
