"""What is appended is what is derived, and a batch is one thing: for whatever clients may send.

A property-based model: any sends and batches, with any sysFlag, properties that brokers set, levels, times that are
past or to come, sizes at the limits, clocks that go back, refusals, failed writes. Then

- every request is answered, and all messages of one that was accepted are there, and none of one that was not;
- after a kill and recovery all queues hold the same entries, keys find the same records, and the check finds nothing.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from broker.config.broker_config import BrokerConfig
from broker.core import BrokerCore
from broker_plugin.plugin import DelayPlugin
from remoting.codes import RequestCode
from remoting.messages.message import MAX_PROPERTIES_BYTES, join_batch, record_fields
from remoting.messages.properties import format_properties
from store.derived.queue_entries import ENTRY
from store.message_store import MessageStore
from store.put.plugin_api import PutStatus
from tests.broker.core_rig import START_MS, FakePlugin, Rig, records_of
from tests.support.examples import examples
from tests.support.simdisk import SimDisk

ROOT = Path("/store")
ADDED = len("MSG_REGION|DefaultRegion|TRACE_ON|true|CLUSTER|DefaultCluster|")


class SimRig(Rig):
    """A `Rig` over a disk in memory, with the delay plug-in and one that refuses what says REFUSE."""

    def __init__(self, disk: SimDisk, now_ms: int) -> None:
        self.now_ms = now_ms
        self.scheduled = 0
        self.delays = DelayPlugin()
        values = {
            "mappedFileSizeCommitLog": "200000",
            "maxMessageSize": "100000",
            "timewheelSegmentBytes": "400000",
            "enablePropertyFilter": "true",
        }
        self.core = BrokerCore(
            BrokerConfig(ROOT, values),
            10911,
            [FakePlugin(), self.delays],
            files=disk,
            now_ms=lambda: self.now_ms,
            schedule=self._schedule,
            random=random.Random(1),
        )
        self.store = self.core.store

    def bodies(self) -> set[bytes]:
        """The bodies of all messages that are stored, and of those that are pending."""
        found = {one.body for _, record in self.store.scan(0) for one in records_of(record)}
        for pending in self.delays.list_pending(None, 1 << 20):
            record = self.delays.view(pending.offset)
            assert record is not None
            found |= {one.body for one in records_of(record)}
        return found


def queues_of(store: MessageStore) -> dict[tuple[str, int], list[tuple[int, int, int]]]:
    found = {}
    for queue in store.queues:
        if queue.count:
            found[queue.topic, queue.queue_id] = list(ENTRY.iter_unpack(queue.read(0, queue.count)))
    return found


def by_keys(store: MessageStore) -> dict[int, list[bytes]]:
    """What each record's first key finds."""
    found = {}
    for offset, record in store.scan(0):
        topic, _, text = record_fields(record)
        key = text.partition("UNIQ_KEY\x01")[2].partition("\x02")[0] or "none"
        found[offset] = store.query(topic, key, 64, 0, 1 << 60)
    return found


FLAGS = st.sampled_from([0, 1, 2, 4, 8, 12, 13, 0x10, 0x20, 0x34, 0x3C, 0x40, 0x80, 0xFF, 0x108, 0x10C, -1, 1 << 31])
TIMES = st.integers(-3, 3).map(lambda n: START_MS + n * 1_000)
NAMES = st.sampled_from(
    ["UNIQ_KEY", "KEYS", "TAGS", "DELAY", "REAL_TOPIC", "REAL_QID", "TRAN_MSG", "PGROUP", "__TW_ID", "__TW_LEVEL"]
)
PAIRS = st.one_of(
    st.tuples(st.just("DELAY"), st.sampled_from(["0", "1", "18", "19", "-1", "x", "9" * 40])),
    st.tuples(st.sampled_from(["TIMER_DELIVER_MS", "__STARTDELIVERTIME"]), TIMES.map(str)),
    st.tuples(st.just("TIMER_DELAY_MS"), st.sampled_from(["0", "5", "-1", "x"])),
    st.tuples(st.just("TRAN_MSG"), st.sampled_from(["true", "false"])),
    st.tuples(st.just("REFUSE"), st.just("1")),
    st.tuples(NAMES, st.text(st.characters(blacklist_characters="\0\x01\x02", blacklist_categories=("Cs",)))),
)
LIMITS = (MAX_PROPERTIES_BYTES, MAX_PROPERTIES_BYTES - ADDED, MAX_PROPERTIES_BYTES - 36, MAX_PROPERTIES_BYTES - 170)


@st.composite
def texts(draw: st.DrawFn) -> tuple[str, int]:
    """A property text, and how much is to be added to it so that it is about as long as it may be: seldom anything."""
    text = format_properties(dict(draw(st.lists(PAIRS, max_size=2))))
    if draw(st.integers(0, 7)) == 0:
        size = draw(st.sampled_from(LIMITS)) + draw(st.integers(-1, 1)) - len(text.encode()) - len("A||")
        return text, max(0, size)
    return text, 0


def padded(text: str, size: int) -> str:
    return f"{text}A\x01{'x' * size}\x02" if size else text


SENDS = st.fixed_dictionaries(
    {
        "texts": st.lists(texts(), min_size=1, max_size=4),
        "flag": st.one_of(st.just(0), FLAGS),
        "batch": st.booleans(),
        "large": st.sampled_from([0, 0, 0, 60_000, 100_000]),
        "queue": st.integers(0, 1),
        "topic": st.sampled_from(["T", "T", "U", "%RETRY%cg"]),
    }
)
TURNS = st.fixed_dictionaries(
    {
        "sends": st.lists(SENDS, min_size=1, max_size=4),
        "back_ms": st.sampled_from([0, 0, 0, 2_500]),
        "fault": st.sampled_from(["", "", "", "", "disk", "commitlog", "timewheel"]),
    }
)


class Model:
    """Plays turns, and knows what must be there."""

    def __init__(self) -> None:
        self.disk = SimDisk(1)
        self.rig = SimRig(self.disk, START_MS)
        self.client = self.rig.client()
        self.wanted: set[bytes] = set()
        self.number = 0
        self.some_known = False

    def send(self, asked: dict[str, Any]) -> tuple[int, set[bytes]]:
        """Submit one request; its number, and its bodies."""
        texts = [padded(*text) for text in asked["texts"]]
        bodies = []
        for _ in asked["texts"]:
            self.number += 1
            bodies.append(b"%d:" % self.number + bytes(asked["large"] // len(asked["texts"])))
        fields = {"f": asked["flag"], "e": asked["queue"], "g": START_MS}
        if not asked["batch"]:
            fields = self.client.send_fields(asked["topic"], texts[0], **fields)
            return self.client.submit(RequestCode.SEND_MESSAGE_V2, fields, bodies[0]), {bodies[0]}
        short = [text if len(text.encode()) <= MAX_PROPERTIES_BYTES else "" for text in texts]
        body = join_batch(list(zip([0] * len(bodies), bodies, short, strict=True)))
        fields = self.client.send_fields(asked["topic"], m="true", **fields)
        return self.client.submit(RequestCode.SEND_BATCH_MESSAGE, fields, body), set(bodies)

    def turn(self, asked: dict[str, Any]) -> None:
        rig, retention = self.rig, self.rig.store.retention
        rig.store._keeper.finish()  # what comes now is what a recovery has to derive
        self.some_known = bool(queues_of(rig.store))
        sent = dict(self.send(one) for one in asked["sends"])
        rig.now_ms -= asked["back_ms"]
        if asked["fault"] == "disk":
            retention.disk_status = PutStatus.SERVICE_NOT_AVAILABLE
        elif asked["fault"]:
            self.disk.fail_at("pwrite", {1}, self.disk.full(), asked["fault"])
        rig.core.end_turn()
        self.disk.fault = None
        retention.disk_status = PutStatus.PUT_OK
        rig.now_ms += asked["back_ms"]
        codes = {reply.opaque: reply.code for reply in self.client.take()}
        if codes.keys() < sent.keys():  # a refusal waits until what takes back the journalled part is durable; no other
            rig.store.flusher.step(rig.now_ms)
            late = {reply.opaque: reply.code for reply in self.client.take()}
            assert PutStatus.PUT_OK not in late.values()
            codes |= late
        assert codes.keys() == sent.keys(), "each is answered, once"
        for opaque, bodies in sent.items():
            if codes[opaque] == 0:
                self.wanted |= bodies
        self.look()

    def look(self) -> None:
        assert self.rig.bodies() == self.wanted
        assert self.rig.store.check() == []

    def kill(self) -> None:
        queues, found = queues_of(self.rig.store), by_keys(self.rig.store)
        self.disk.kill()
        self.rig = SimRig(self.disk, self.rig.now_ms)
        self.client = self.rig.client()
        recovery = self.rig.store.recovery
        assert recovery.clashes == 0
        assert not (recovery.rebuilt and self.some_known), "no entry was missed"
        assert queues_of(self.rig.store) == queues
        assert by_keys(self.rig.store) == found
        self.look()

    def end(self) -> None:
        self.rig.close()
        self.rig = SimRig(self.disk, self.rig.now_ms)
        self.look()
        self.rig.close()


PLAIN = {"texts": [("", 0)], "flag": 0, "batch": False, "large": 0, "queue": 0, "topic": "T"}
MIXED = {
    **PLAIN,
    "texts": [(format_properties({"TIMER_DELIVER_MS": str(START_MS + more)}), 0) for more in (0, 1_000)],
    "batch": True,
}


@settings(max_examples=examples(60), deadline=None, suppress_health_check=list(HealthCheck))
@example(turns=[{"sends": [PLAIN, MIXED, PLAIN], "back_ms": 2_500, "fault": ""}], kills=set())
@given(turns=st.lists(TURNS, min_size=1, max_size=4), kills=st.sets(st.integers(0, 3)))
def test_all_of_a_request_is_there_or_nothing_and_a_kill_changes_nothing(
    turns: list[dict[str, Any]], kills: set[int]
) -> None:
    model = Model()
    for place, asked in enumerate(turns):
        model.turn(asked)
        if place in kills:
            model.kill()
    model.end()
