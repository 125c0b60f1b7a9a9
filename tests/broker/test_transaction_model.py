"""Transactions against a model, with crashes at every write: decided once, as acknowledged, and never forgotten.

The oracle is the log itself, read from its beginning after every restart: a half message is decided if an op message or
a committed message says so. The broker, which reads neither from the beginning, must have found the same.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from broker.config.broker_config import BrokerConfig
from broker.core import BrokerCore
from remoting.codes import FLAG_ONEWAY, RequestCode
from remoting.messages.message import StoredMessage, decode_record, parse_message_id
from remoting.messages.properties import get_property
from tests.broker.core_rig import START_MS, Client, Rig, properties
from tests.support.examples import examples
from tests.support.simdisk import PowerCut, SimDisk

ROOT = Path("/store")
HALF, OP, DISCARDED = "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC", "TRANS_CHECK_MAX_TIME_TOPIC"
COMMIT, ROLLBACK = 8, 12
CHECK_MAX = 2


class SimRig(Rig):
    """A `Rig` over a disk in memory."""

    def __init__(self, disk: SimDisk, now_ms: int, flush: str) -> None:
        self.now_ms = now_ms
        self.scheduled = 0
        values = {
            "mappedFileSizeCommitLog": "4096",
            "flushDiskType": flush,
            "transactionTimeOut": "500",
            "transactionCheckInterval": "1000",
            "transactionCheckMax": str(CHECK_MAX),
            "fileReservedTime": "10000",
        }
        self.core = BrokerCore(
            BrokerConfig(ROOT, values),
            10911,
            [],
            files=disk,
            now_ms=lambda: self.now_ms,
            schedule=self._schedule,
            spawn=_run,
            random=random.Random(1),
        )
        self.store = self.core.store


def _run(work: Any) -> None:
    """Run a coroutine that waits for other threads at most."""
    import asyncio

    asyncio.run(work)


class Transactions(RuleBasedStateMachine):
    """One producer, any order of half messages, decisions, checks and crashes."""

    @initialize(flush=st.sampled_from(["SYNC_FLUSH", "ASYNC_FLUSH"]))
    def begin(self, flush: str) -> None:
        self.flush = flush
        self.disk = SimDisk(1)
        self.number = 0
        self.known: dict[bytes, dict[str, Any]] = {}  # half messages that were acknowledged
        self.waiting: dict[int, tuple[str, bytes]] = {}  # opaque to what was asked
        self.promised: dict[bytes, int] = {}  # decisions that were acknowledged
        self.asked: dict[bytes, set[int]] = {}  # decisions that were asked for
        self.checks: dict[bytes, int] = {}  # how often the producer was asked
        self.rig = SimRig(self.disk, START_MS, flush)
        self.meet()

    def meet(self) -> None:
        self.client: Client = self.rig.client()
        self.client.heartbeat("producer-1")

    # ------------------------------------------------------------------------------------------ the producer

    @rule(size=st.sampled_from([1, 100, 900]))
    def send_half(self, size: int) -> None:
        self.number += 1
        body = b"%d:" % self.number + b"x" * size
        text = properties(TRAN_MSG="true", PGROUP="pg", UNIQ_KEY=f"K{self.number}")
        fields = self.client.send_fields("T", text, g=self.rig.now_ms)
        self.waiting[self.client.submit(RequestCode.SEND_MESSAGE_V2, fields, body)] = ("half", body)

    @precondition(lambda self: getattr(self, "known", None))
    @rule(data=st.data(), outcome=st.sampled_from([COMMIT, ROLLBACK]), oneway=st.booleans(), answer=st.booleans())
    def decide(self, data: Any, outcome: int, oneway: bool, answer: bool) -> None:
        self.ask(data.draw(st.sampled_from(self.latest())), outcome, oneway, answer)

    def latest(self) -> list[bytes]:
        """A few of the half messages, so that one is often decided twice."""
        return list(self.known)[-3:]

    def ask(self, body: bytes, outcome: int, oneway: bool, answer: bool) -> None:
        ext = {**self.known[body], "commitOrRollback": outcome, "fromTransactionCheck": str(answer).lower()}
        self.asked.setdefault(body, set()).add(outcome)
        opaque = self.client.submit(RequestCode.END_TRANSACTION, ext, b"", FLAG_ONEWAY if oneway else 0)
        if not oneway:
            self.waiting[opaque] = ("commit" if outcome == COMMIT else "rollback", body)

    @rule(sizes=st.lists(st.sampled_from([1, 100, 900]), min_size=1, max_size=3))
    def send_and_hear(self, sizes: list[int]) -> None:
        for size in sizes:
            self.send_half(size)
        self.end_turn()

    @precondition(lambda self: getattr(self, "known", None))
    @rule(data=st.data(), outcomes=st.lists(st.sampled_from([COMMIT, ROLLBACK]), min_size=2, max_size=3))
    def decide_at_once_several_times(self, data: Any, outcomes: list[int]) -> None:
        body = data.draw(st.sampled_from(self.latest()))
        for outcome in outcomes:
            self.ask(body, outcome, False, False)
        self.end_turn()

    @precondition(lambda self: getattr(self, "known", None))
    @rule(data=st.data(), seed=st.integers(0, 10_000), outcome=st.sampled_from([COMMIT, ROLLBACK]))
    def decide_and_crash(self, data: Any, seed: int, outcome: int) -> None:
        self.end_turn()
        self.ask(data.draw(st.sampled_from(self.latest())), outcome, False, False)
        self.crash_in_a_write(1, seed)

    @precondition(lambda self: getattr(self, "known", None))
    @rule(data=st.data(), outcome=st.sampled_from([COMMIT, ROLLBACK]))
    def decide_on_a_full_disk(self, data: Any, outcome: int) -> None:
        self.end_turn()
        self.ask(data.draw(st.sampled_from(self.latest())), outcome, False, False)
        self.a_write_fails(1)

    @rule()
    def other_traffic(self) -> None:
        opaque = self.client.submit(RequestCode.SEND_MESSAGE_V2, self.client.send_fields("U"), b"other")
        self.waiting[opaque] = ("other", b"")

    # ------------------------------------------------------------------------------------------ the broker

    @rule()
    def end_turn(self) -> None:
        self.rig.core.end_turn()
        self.flush_and_hear()

    def flush_and_hear(self) -> None:
        store = self.rig.store
        for _ in range(3):
            store.flusher.step(self.rig.now_ms)
        for command in self.client.take():
            if command.code == RequestCode.CHECK_TRANSACTION_STATE and not command.is_response:
                body = decode_record(command.body).body
                self.checks[body] = self.checks.get(body, 0) + 1
                continue
            what, body = self.waiting.pop(command.opaque)
            if command.code != 0:
                continue
            if what == "half":
                self.known[body] = {
                    "producerGroup": "pg",
                    "tranStateTableOffset": command.ext["queueOffset"],
                    "commitLogOffset": parse_message_id(command.ext["msgId"])[1],
                }
            elif what != "other":
                outcome = COMMIT if what == "commit" else ROLLBACK
                assert self.promised.setdefault(body, outcome) == outcome

    @rule(ms=st.sampled_from([100, 600, 1000, 1500]))
    def check_round(self, ms: int) -> None:
        self.rig.now_ms += ms
        self.rig.core.processors.checks.step(self.rig.now_ms)
        self.end_turn()

    @rule()
    def housekeep(self) -> None:
        self.rig.now_ms += 50
        self.rig.core.processors.checks.publish(self.rig.now_ms)
        for _ in range(8):
            self.rig.store.housekeeper.step(self.rig.now_ms)

    @rule()
    def checkpoint(self) -> None:
        self.rig.core.processors.checks.publish(self.rig.now_ms)
        self.rig.store.take_checkpoint()
        self.rig.core.processors.checks.publish(self.rig.now_ms)
        self.rig.core.save_offsets()

    @rule(number=st.integers(1, 4))
    def a_write_fails(self, number: int) -> None:
        self.disk.fail_at("pwrite", {number}, self.disk.full(), "commitlog")
        self.rig.core.end_turn()
        self.disk.fault = None
        self.end_turn()

    # ------------------------------------------------------------------------------------------ crashes

    @rule(number=st.integers(1, 3), seed=st.integers(0, 10_000))
    def crash_in_a_write(self, number: int, seed: int) -> None:
        self.disk.rng = random.Random(seed)
        self.disk.fail_at("pwrite", {number}, PowerCut(), "commitlog")
        try:
            self.rig.core.end_turn()
            self.flush_and_hear()
        except PowerCut:
            pass
        self.crash(seed)

    @rule(seed=st.integers(0, 10_000))
    def crash(self, seed: int) -> None:
        self.disk.rng = random.Random(seed)
        if self.flush == "SYNC_FLUSH" and seed % 2:
            self.disk.power_cut()
        else:
            self.disk.kill()
        self.reopen()

    @rule(seed=st.integers(0, 10_000), number=st.integers(1, 60))
    def crash_while_opening(self, seed: int, number: int) -> None:
        self.disk.rng = random.Random(seed)
        self.disk.kill()
        self.disk.fail_at("all", {number}, PowerCut())
        try:
            SimRig(self.disk, self.rig.now_ms, self.flush)
        except PowerCut:
            pass
        if self.flush == "SYNC_FLUSH":
            self.disk.power_cut()
        else:
            self.disk.kill()
        self.reopen()

    @rule()
    def restart(self) -> None:
        self.end_turn()
        self.rig.core.stop()
        self.rig.core.close()
        self.reopen()

    def reopen(self) -> None:
        self.disk.fault = None
        self.waiting.clear()
        self.rig = SimRig(self.disk, self.rig.now_ms, self.flush)
        self.meet()
        assert set(self.rig.core.halves.undecided) == self.undecided_by_the_log()

    # ------------------------------------------------------------------------------------------ what must hold

    def log(self) -> list[StoredMessage]:
        return [decode_record(record) for _, record in self.rig.store.scan(0)]

    def undecided_by_the_log(self) -> set[int]:
        numbers: dict[int, int] = {}
        undecided: set[int] = set()
        for message in self.log():
            if message.topic == HALF:
                numbers[message.offset] = message.queue_offset
                undecided.add(message.queue_offset)
            elif message.topic == OP and get_property(message.properties, "TAGS") == "d":
                undecided -= {int(word) for word in message.body.split(b",") if word}
            elif message.sys_flag & 12 == 8 or message.topic == DISCARDED:
                undecided.discard(numbers[message.prepared_offset])
        return undecided

    @invariant()
    def every_half_message_has_one_fate(self) -> None:
        if not hasattr(self, "rig"):
            return
        halves: dict[bytes, int] = {}
        delivered: list[bytes] = []
        discarded: list[bytes] = []
        for message in self.log():
            if message.topic == HALF:
                halves[message.body] = message.queue_offset
            elif message.topic == "T":
                delivered.append(message.body)
            elif message.topic == DISCARDED:
                discarded.append(message.body)
        assert len(set(delivered + discarded)) == len(delivered + discarded), "once, and in one place"
        undecided = set(self.rig.core.halves.undecided)
        for body in delivered:
            assert COMMIT in self.asked[body]
            assert self.promised.get(body, COMMIT) == COMMIT
        for body in self.known:
            assert body in halves, "an acknowledged half message is lost"
            fates = [body in delivered, body in discarded, halves[body] in undecided]
            assert sum(fates) <= 1 or self.waiting
            if not any(fates):
                assert ROLLBACK in self.asked[body], "forgotten"
            if body in discarded:
                assert self.checks.get(body, 0) <= CHECK_MAX
        for body, outcome in self.promised.items():
            assert (body in delivered) == (outcome == COMMIT), "not what was acknowledged"
            assert outcome == ROLLBACK or body not in discarded
        for body, count in self.checks.items():
            assert count <= CHECK_MAX, body

    @invariant()
    def nothing_is_wrong(self) -> None:
        if hasattr(self, "rig"):
            assert self.rig.core.halves.check() == []
            assert self.rig.core.halves.lost_count == 0


Transactions.TestCase.settings = settings(max_examples=examples(100), stateful_step_count=30, deadline=None)
TestTransactions = Transactions.TestCase
