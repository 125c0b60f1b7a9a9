"""What is appended is what is derived: a broker that runs and one that finds its log after a kill know the same.

Consumers, queries, levels and transactions live on what is derived from the CommitLog: by the append while a broker
runs, by recovery after an abrupt end. Those are two pieces of code, and whatever one of them does not take as the other
does (a flag, a byte, a length) is lost or comes twice. So any sequence of requests is given to the real processors, and
afterwards to a second broker on the disk that a kill leaves.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from broker_plugin.plugin import DelayPlugin
from remoting.codes import FLAG_ONEWAY, RequestCode, ResponseCode
from remoting.messages.message import MessageError, join_batch
from remoting.messages.properties import format_properties
from store.derived.dispatch import SCHEDULE_TOPIC, Derived
from tests.broker.core_rig import Client, Rig
from tests.simulation.inline import run_inline
from tests.support import hostile
from tests.support.examples import examples
from tests.support.simdisk import SimDisk

pytestmark = pytest.mark.pure

ROOT = Path("/store")
FOREVER = 1 << 60
TOPICS = ("T", "U")
SETTINGS = {
    "mappedFileSizeCommitLog": 120_000,
    "mappedFileSizeConsumeQueue": 400,
    "maxMessageSize": 3000,
    "messageDelayLevel": "1s 1s 3s",
    "timewheelSegmentBytes": 120_000,
    "timewheelReserveBytes": 0,
    "transactionTimeOut": 300,
    "transactionCheckInterval": 400,
}
WORK = (
    *("send", "one way", "wild", "long", "batch", "even batch", "half", "end", "send back", "level", "timed", "past"),
    *("flag", "offset", "wait", "checkpoint", "round"),
)


class Traffic:
    """A broker on a simulated disk, with one client that does what it is told."""

    def __init__(self, disk: SimDisk) -> None:
        self.disk = disk
        self.plugin = DelayPlugin()
        self.rig = Rig(ROOT, self.plugin, files=disk, spawn=run_inline, **SETTINGS)
        self.client = Client(self.rig, 50001)
        self.number = 0
        self.halves: list[tuple[int, int, str]] = []
        self.stored: list[int] = []
        self.keys: set[str] = set()
        self.client.heartbeat("c", "cg")

    def do(self, what: str, rng: Random) -> None:
        """One request, or some time."""
        rig = self.rig
        if what == "wait":
            self.pass_ms(rng.choice((1, 400, 1500, 4000)))
        elif what == "checkpoint":
            rig.store.take_checkpoint()
        elif what == "round":
            rig.store._keeper.finish()
        elif what == "offset":
            offset = rng.choice((0, 1, 5, -1, 1 << 40))
            fields = {"consumerGroup": "cg", "topic": "T", "queueId": rng.choice((0, 1, 7)), "commitOffset": offset}
            self.ask(RequestCode.UPDATE_CONSUMER_OFFSET, fields)
        elif what == "send back" and self.stored:
            fields = {"offset": rng.choice(self.stored), "group": "cg", "delayLevel": rng.choice((-1, 0, 1, 2))}
            self.ask(RequestCode.CONSUMER_SEND_MSG_BACK, fields)
        elif what == "end" and self.halves:
            number, offset, key = rng.choice(self.halves)
            fields = {"producerGroup": "pg", "tranStateTableOffset": number, "commitLogOffset": offset}
            fields |= {"commitOrRollback": rng.choice((8, 12)), "fromTransactionCheck": "true"}
            self.ask(RequestCode.END_TRANSACTION, {**fields, "msgId": key, "transactionId": key})
        elif what in ("batch", "even batch"):
            self.batch(rng, what == "even batch")
        elif what not in ("send back", "end"):
            self.send(what, rng)

    def send(self, what: str, rng: Random) -> None:
        """One message."""
        values, key = self.properties(what, rng)
        flag = 4 if what == "half" else hostile.sys_flag(rng) if what in ("wild", "flag") else 0
        text = hostile.property_text(rng, values) if what == "wild" else format_properties(values)
        fields = {"e": rng.choice((0, 1, 1, -1)), "f": flag, "g": self.rig.now_ms}
        request = self.client.send_fields(rng.choice(TOPICS), text, **fields)
        body = hostile.body(rng, 3000)
        if what == "one way":
            self.client.submit(RequestCode.SEND_MESSAGE_V2, request, body, FLAG_ONEWAY)
            self.rig.core.end_turn()
            return
        reply = self.ask(RequestCode.SEND_MESSAGE_V2, request, body)
        if reply is not None and reply.code == ResponseCode.SUCCESS:
            offset = int(reply.ext["msgId"][-16:], 16)
            if what == "half":
                self.halves.append((int(reply.ext["queueOffset"]), offset, key))
            elif offset < 1 << 62:
                self.stored.append(offset)

    def batch(self, rng: Random, even: bool) -> None:
        """Several messages in one request, all of one sort or of any."""
        kinds = ["send", "wild", "level", "timed", "past", "long"]
        chosen = [rng.choice(kinds)] * rng.randint(2, 5) if even else rng.choices(kinds, k=rng.randint(1, 5))
        texts = [self.properties(kind, rng)[0] for kind in chosen]
        elements = [(0, hostile.body(rng, 200), format_properties(values)) for values in texts]
        fields = self.client.send_fields(rng.choice(TOPICS), "", e=rng.choice((0, 1)), m="true")
        with suppress(MessageError):  # no client can say so
            self.ask(RequestCode.SEND_BATCH_MESSAGE, fields, join_batch(elements))

    def properties(self, what: str, rng: Random) -> tuple[dict[str, str], str]:
        """Properties that make it what it is to be, and others; with its unique key."""
        self.number += 1
        key, now = f"{self.number:032X}", self.rig.now_ms
        values = {"UNIQ_KEY": key, "KEYS": f"k{self.number % 5} k{self.number}", "TAGS": f"t{self.number % 3}"}
        self.keys |= {key, *values["KEYS"].split()}
        if rng.random() < 0.5:
            values |= hostile.plain_properties(rng)
        if what == "wild":
            values |= hostile.broker_properties(rng, now)
        elif what == "half":
            values |= {"TRAN_MSG": "true", "PGROUP": "pg"}
        elif what == "level":
            values["DELAY"] = str(rng.randint(1, 4))
        elif what == "timed":
            values["TIMER_DELIVER_MS"] = str(now + rng.choice((1, 900, 2500)))
        elif what == "past":
            values["__STARTDELIVERTIME"] = str(now - rng.choice((0, 1, 5000)))
        if what == "long" or rng.random() < 0.05:
            values["long"] = hostile.long_value(rng, values, 32_767, 130)
        return values, key

    def ask(self, code: int, fields: dict[str, Any], body: bytes = b"") -> Any:
        """The reply to a request; None for one that is not answered."""
        opaque = self.client.submit(code, fields, body)
        self.rig.core.end_turn()
        replies = [reply for reply in self.client.take() if reply.is_response and reply.opaque == opaque]
        return replies[0] if replies else None

    def pass_ms(self, ms: int) -> None:
        """Let time pass, with everything that is delivered and checked meanwhile."""
        rig = self.rig
        rig.pass_ms(ms)
        rig.deliver_levels()
        for _ in range(6):
            self.plugin.sweeper.step(rig.now_ms)
            self.plugin.recovery.step(rig.now_ms)
        rig.core.processors.checks.step(rig.now_ms)
        rig.core.end_turn()
        self.client.take()

    def killed(self) -> Traffic:
        """The broker that comes up after a kill at this very moment."""
        return Traffic(self.disk.crashed(Random(0), None))

    def derived(self) -> dict[str, Any]:
        """All that follows from the log, as this broker has it."""
        store, core = self.rig.store, self.rig.core
        known = {
            name: {queue: self.queue(name, queue) for queue in found} for name, found in store.queues.table.items()
        }
        log = [Derived(record, store.options.delay_levels_ms) for _, record in store.scan(store.commit_log.begin)]
        wanted = self.keys | {key for one in log for key in one.keys}
        topics = {one.topic for one in log} | set(known)
        found = {(t, key): sorted(store.index.find(t, key, 0, FOREVER, 1000)) for t in topics for key in wanted}
        halves = core.halves
        return {
            "end": store.commit_log.end,
            "queues": {name: queues for name, queues in known.items() if any(queues.values())},
            "keys": {at: offsets for at, offsets in found.items() if offsets},
            "levels": {queue.level: self.level(queue) for queue in core.level_scheduler.progress.queues},
            "undecided": {number: (half.offset, half.checks) for number, half in halves.undecided.items()},
            "accounted": (halves.seen, halves.op_seen),
            "pending": [(row.offset, row.due_ms) for row in self.plugin.list_pending(None, 1000)],
        }

    def queue(self, topic: str, queue_id: int) -> list[Any]:
        """The entries of a queue."""
        store = self.rig.store
        entries: list[Any] = []
        while found := store.queue_entries(topic, queue_id, len(entries), 100):
            entries += [tuple(entry) for entry in found]
        return entries

    def level(self, queue: Any) -> list[int]:
        """The numbers in a level's queue that are still to be delivered."""
        end = self.rig.store.max_offset(SCHEDULE_TOPIC, queue.level - 1)
        stretches = [range(first, end if until is None else until) for first, until in queue.pending()]
        return sorted({number for stretch in stretches for number in stretch} | set(range(queue.seen, end)))


@settings(max_examples=examples(60), deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(st.tuples(st.sampled_from(WORK), st.integers(0, 1 << 32)), min_size=1, max_size=25))
@example([(what, seed) for seed in range(4) for what in WORK])
def test_a_broker_knows_after_a_kill_what_it_knew_before(work: list[tuple[str, int]]) -> None:
    traffic = Traffic(SimDisk())
    for what, seed in work:
        traffic.do(what, Random(seed))
    again = traffic.killed()
    again.keys = traffic.keys
    before, after = traffic.derived(), again.derived()
    for name, value in before.items():
        assert after[name] == value, name
    assert again.rig.store.recovery.clashes == 0
    assert again.rig.store.check() + again.plugin.check() + again.rig.core.halves.check() == []
    once_more = again.killed()
    once_more.keys = traffic.keys
    assert once_more.derived() == after
