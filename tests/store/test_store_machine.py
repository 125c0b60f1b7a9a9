"""The whole store against a model: puts, flushes, deletions, faults, kills and power cuts, at tiny sizes."""

from __future__ import annotations

import random
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from remoting.messages.message import Message, decode_record, encode_host
from store.disk.errors import StoreError, SyncFailedError
from store.disk.ticket import Ticket
from store.message_store import MessageStore, PullStatus
from store.options import StoreOptions
from store.put.plugin_api import PutRecord, PutStatus, put_record
from store.put.put_group import results_of
from tests.support.examples import examples
from tests.support.raw_puts import grouped
from tests.support.simdisk import PowerCut, SimDisk

HOST = encode_host("127.0.0.1", 10911)
ROOT = Path("/store")
OPTIONS = StoreOptions(commit_log_segment_bytes=984, consume_queue_segment_bytes=60)
TOPICS = ("A", "B")
QUEUES = 2
Key = tuple[str, int]


class StoreMachine(RuleBasedStateMachine):
    """What was acknowledged as durable is there, once, in its place; all else may be lost, from the end only."""

    def __init__(self) -> None:
        super().__init__()
        self.disk = SimDisk(1)
        self.now = 1_000_000
        self.number = 0
        self.queues: dict[Key, list[bytes]] = {}  # what each queue holds, in order
        self.order: list[tuple[Key, bytes]] = []  # all puts in log order
        self.durable = 0  # puts that may not be lost
        self.refused: dict[bytes, Key] = {}  # puts that failed: a crash may bring back what was written of them
        self.store = self.opened()

    def opened(self) -> MessageStore:
        return MessageStore.open(self.disk, ROOT, OPTIONS, lambda: self.now)

    def record(self, topic: str, queue_id: int, size: int) -> tuple[bytes, PutRecord]:
        self.number += 1
        body = b"%d:" % self.number + b"x" * size
        properties = f"UNIQ_KEY\x01u{self.number}\x02TAGS\x01t{self.number % 3}\x02"
        return body, put_record(Message(topic, queue_id, body=body, properties=properties), HOST)

    @rule(
        what=st.lists(
            st.tuples(st.sampled_from(TOPICS), st.integers(0, QUEUES - 1), st.integers(0, 90)), min_size=1, max_size=6
        ),
        units=st.booleans(),
    )
    def put(self, what: list[tuple[str, int, int]], units: bool) -> None:
        made = [(*where[:2], *self.record(*where)) for where in what]
        groups = [2] * (len(made) // 2) + [1] * (len(made) % 2)
        puts = grouped([record for *_, record in made], groups if units else [1] * len(made))
        results = [
            own for put, result in zip(puts, self.store.put_batch(puts), strict=True) for own in results_of(put, result)
        ]
        for (topic, queue_id, body, _), result in zip(made, results, strict=True):
            assert result.status in (PutStatus.PUT_OK, PutStatus.SERVICE_NOT_AVAILABLE)
            if result.status is PutStatus.PUT_OK:
                queue = self.queues.setdefault((topic, queue_id), [])
                assert result.queue_offset == len(queue)
                queue.append(body)
                self.order.append(((topic, queue_id), body))
            else:
                self.refused[body] = (topic, queue_id)

    @rule(ms=st.integers(0, 3000))
    def housekeep(self, ms: int) -> None:
        self.now += ms
        for _ in range(6):
            self.store.housekeeper.step(self.now)

    @rule()
    def flush(self) -> None:
        told: list[bool] = []
        count = len(self.order)
        self.store.flusher.submit(self.store.commit_ticket(), told.append)
        self.store.flusher.step(self.now)
        if told == [True]:
            self.durable = count

    @rule(topic=st.sampled_from(TOPICS))
    def delete_topic(self, topic: str) -> None:
        if self.disk.fault is not None:
            return  # a deletion that fails half-way is tried again by its caller; not modelled
        self.store.delete_topic(topic)
        for key in [key for key in self.queues if key[0] == topic]:
            del self.queues[key]
        self.durable = len(self.order)

    @rule(
        operation=st.sampled_from(["pwrite", "sync", "sync_dir", "create", "punch", "rename", "all"]),
        number=st.integers(1, 10),
        times=st.integers(2, 6),
        can_punch=st.booleans(),
    )
    def break_something(self, operation: str, number: int, times: int, can_punch: bool) -> None:
        error = SyncFailedError("no") if operation.startswith("sync") else self.disk.full()
        self.disk.can_punch = can_punch
        self.disk.fail_at(operation, set(range(number, number + times)), error)

    @rule()
    def settle(self) -> None:
        """From here on not even a crash may bring back what was refused."""
        try:
            self.store.settle()
        except StoreError:
            return
        self.refused.clear()

    @rule(data=st.data())
    def a_refused_put_that_may_be_settled(self, data: st.DataObject) -> None:
        """A write fails, then perhaps its clearing, then perhaps the sync of that."""
        self.disk.fault = None
        faults = iter(data.draw(st.lists(st.sampled_from(["pwrite", "punch", "sync"]), min_size=1, max_size=4)))
        failing = ["pwrite", *faults]

        def fault(operation: str, path: Path) -> None:
            if failing and operation == failing[0] and "commitlog" in str(path):
                failing.pop(0)
                raise SyncFailedError("no") if operation == "sync" else self.disk.full()

        self.disk.fault = fault
        self.put([("A", 0, 10), ("B", 1, 20)], False)
        self.settle()
        self.disk.fault = None

    @rule()
    def mend(self) -> None:
        self.disk.fault = None

    @rule(seed=st.integers(0, 1000), keep=st.sampled_from([0.0, 0.5, 0.95, 1.0]))
    def power_cut(self, seed: int, keep: float) -> None:
        self.disk.rng = random.Random(seed)
        self.disk.power_cut(keep)
        self.reopen()

    @rule()
    def kill(self) -> None:
        self.disk.kill()
        self.reopen()

    @rule(number=st.integers(1, 40), seed=st.integers(0, 1000))
    def power_cut_while_opening(self, number: int, seed: int) -> None:
        self.disk.rng = random.Random(seed)
        self.disk.power_cut()
        self.disk.fail_at("all", {number}, PowerCut())
        try:
            self.store = self.opened()
        except PowerCut:
            self.disk.power_cut()
        else:
            self.disk.kill()
        self.reopen()

    @rule(number=st.integers(1, 40))
    def close(self, number: int) -> None:
        if number < 20:
            self.disk.fail_at("all", {number}, SyncFailedError("no"))
        try:
            self.store.close()
        except StoreError:
            self.disk.kill()
        else:
            self.disk.fault = None
            self.durable = len(self.order)
            assert not self.disk.exists(ROOT / "abort")
            self.disk.power_cut(0.0)
            self.apache_would_see_the_same()
        self.reopen()

    def apache_would_see_the_same(self) -> None:
        """Read ConsumeQueues as Apache does, which believes every entry up to the first that cannot be one."""
        top = ROOT / "consumequeue"
        for topic in self.disk.listdir(top):
            for queue_id in self.disk.listdir(top / topic):
                directory = top / topic / queue_id
                names = self.disk.listdir(directory)
                data = b"".join(self.disk.read_file(directory / name) for name in names)
                start = int(names[0]) if names else 0
                count = start // 20
                for at in range(0, len(data), 20):
                    if int.from_bytes(data[at + 8 : at + 12], "big", signed=True) <= 0:
                        break
                    count += 1
                assert count == len(self.queues.get((topic, int(queue_id)), []))

    def reopen(self) -> None:
        """Open again: the log may have lost puts from its end, and with them the queues the same ones."""
        self.disk.fault = None
        self.store = self.opened()
        found = [decode_record(record).body for _, record in self.store.scan(0)]
        assert len(found) >= self.durable
        for body in found[len(self.order) :]:
            key = self.refused.pop(body)
            self.order.append((key, body))
            self.queues.setdefault(key, []).append(body)
        assert found == [body for _, body in self.order[: len(found)]]
        for key, body in reversed(self.order[len(found) :]):
            if key in self.queues and body in self.queues[key]:
                assert self.queues[key].pop() == body
        del self.order[len(found) :]
        self.durable = len(found)

    @invariant()
    def queues_are_right(self) -> None:
        store = self.store
        for topic in TOPICS:
            for queue_id in range(QUEUES):
                expected = self.queues.get((topic, queue_id), [])
                assert store.max_offset(topic, queue_id) == len(expected)
                assert store.min_offset(topic, queue_id) == 0
                got: list[bytes] = []
                while len(got) < len(expected):
                    result = store.pull(topic, queue_id, len(got), 5, 1000, None)
                    assert result.status is PullStatus.FOUND
                    got += [decode_record(store.read(*position)).body for position in result.positions]
                    assert result.next_offset == len(got)
                assert got == expected

    @invariant()
    def keys_are_found(self) -> None:
        for (topic, _), body in self.order[-3:]:
            number = int(body.partition(b":")[0])
            found = self.store.query(topic, f"u{number}", 5, 0, 1 << 60)
            assert [decode_record(record).body for record in found] == [body]

    @invariant()
    def nothing_is_wrong(self) -> None:
        assert self.store.check() == []


def test_tickets_are_values() -> None:
    assert Ticket().is_done()


StoreMachine.TestCase.settings = settings(max_examples=examples(60), stateful_step_count=30, deadline=None)
TestStoreMachine = StoreMachine.TestCase
