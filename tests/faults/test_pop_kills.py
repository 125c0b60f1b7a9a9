"""A real broker is killed while it pops: what its group may see afterwards, message by message.

A kill takes nothing of what was written, whatever the flush mode: so none is lost, nothing that was acknowledged and
answered comes again, and nobody gets a message while another one holds it. A request that was not answered may have
been done or not.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import pytest

from remoting.messages.message import StoredMessage, decode_record, record_size
from remoting.messages.properties import POP_CK, format_properties, get_property
from tests.simulation.fresh import FRESH_SEED
from tests.support import hostile
from tests.support.fault_storm import FaultyBroker
from tests.support.wait import let_pass
from tests.support.wire import Wire, WireError
from tests.support.wire_admin import create_group

pytestmark = pytest.mark.process

TOPIC, GROUP, QUEUES = "T", "G-%pop", 3
KILLS = 3
STEPS = (100, 300)
"""Requests before a kill."""
KILL_SECONDS = 0.02
"""A kill comes so long after the last of them at most, among more."""
DRAIN_SECONDS = 90
SEND, POP, ACK, CHANGE, BATCH_ACK = 310, 200050, 200051, 200053, 200151
NOTHING = (208, 209, 210, 211)
INVISIBLE_MS = (200, 800, 2_500)


@dataclass
class Held:
    """What the ledger knows of one message."""

    handle: str = ""
    topic: str = TOPIC
    queue_id: int = 0
    offset: int = 0
    tries: int = -1
    until_ms: int = 0
    """Before this time of the broker nobody else may have it."""
    sent: bool = False
    acked: bool = False
    unsure: bool = False
    """An acknowledgement was not answered: it may come again, or not."""


@dataclass
class Ledger:
    """All messages by key, and what was wrong."""

    messages: dict[str, Held] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)
    again: int = 0

    def came(self, key: str, message: StoredMessage, handle: str, pop_ms: int, invisible_ms: int, topic: str) -> None:
        """A message was handed out."""
        held = self.messages.get(key)
        if held is None:
            self.wrong.append(f"{key} came, which nobody has sent")
            return
        if held.acked:
            self.wrong.append(f"{key} came again after its acknowledgement was answered")
        if pop_ms < held.until_ms:
            self.wrong.append(f"{key} came {held.until_ms - pop_ms} ms before the time of its holder was over")
        if message.reconsume_times < held.tries:
            self.wrong.append(f"{key} came for the {message.reconsume_times}th time, after the {held.tries}th")
        self.again += held.tries >= 0
        held.handle, held.topic, held.queue_id, held.offset = handle, topic, message.queue_id, message.queue_offset
        held.tries, held.until_ms = message.reconsume_times, pop_ms + invisible_ms

    def missing(self) -> list[str]:
        """Acknowledged sends that nobody has acknowledged to the broker."""
        return [key for key, held in self.messages.items() if held.sent and not held.acked and not held.unsure]


class Load:
    """One client, one request at a time."""

    def __init__(self, wire: Wire, rng: Random, ledger: Ledger, order: bool) -> None:
        self.wire, self.rng, self.ledger, self.order = wire, rng, ledger, order

    def go(self, steps: int, kill: Callable[[], None]) -> None:
        """Do things until the broker is gone."""
        timer = threading.Timer(self.rng.uniform(0, KILL_SECONDS), kill)
        try:
            for step in itertools.count():
                if step == steps:
                    timer.start()
                what = self.rng.choice(("send", "send", "send", "pop", "pop", "ack", "ack", "change"))
                getattr(self, what)()
        except OSError:
            timer.join()

    def send(self) -> None:
        rng = self.rng
        key = f"{len(self.ledger.messages):032X}"
        values = hostile.plain_properties(rng) | hostile.broker_properties(rng, 0) | {"UNIQ_KEY": key}
        for name in ("DELAY", "TIMER_DELIVER_MS", "__STARTDELIVERTIME", "TIMER_DELAY_MS", "TIMER_DELAY_SEC"):
            values.pop(name, None)
        fields = ("pg", TOPIC, "TBW102", 4, rng.randrange(QUEUES), 0, int(time.time() * 1000), 0)
        head = dict(zip("abcdefgh", fields, strict=True)) | {"i": format_properties(values), "j": 0, "k": "false"}
        held = self.ledger.messages[key] = Held()
        try:
            self.wire.ask(SEND, head | {"m": "false"}, hostile.body(rng, 2_000))
            held.sent = True
        except WireError:
            del self.ledger.messages[key]  # refused

    def pop(self) -> None:
        now_ms, invisible_ms = int(time.time() * 1000), self.rng.choice(INVISIBLE_MS)
        fields = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": -1, "maxMsgNums": self.rng.choice((1, 5, 32))}
        fields |= {"invisibleTime": invisible_ms, "pollTime": 0, "bornTime": now_ms, "initMode": 0}
        fields["order"] = str(self.order).lower()
        try:
            ext, body = self.wire.ask(POP, fields)
        except WireError as error:
            assert error.code in NOTHING, error
            return
        starts = {tuple(part.split(" ")[:2]): part.split(" ")[2] for part in ext["startOffsetInfo"].split(";")}
        at = 0
        while at < len(body):
            message = decode_record(body, at)
            at += record_size(body, at)
            handle = get_property(message.properties, POP_CK) if message.reconsume_times else None
            if handle is None or len(handle.split(" ")) < 8:
                parts = (starts["0", str(message.queue_id)], ext["popTime"], ext["invisibleTime"], ext["reviveQid"], 0)
                handle = " ".join(map(str, (*parts, "broker-a", message.queue_id, message.queue_offset)))
            retry = handle.split(" ")[4]
            topic = TOPIC if retry == "0" else f"%RETRY%{GROUP}_{TOPIC}"
            key = get_property(message.properties, "UNIQ_KEY") or ""
            self.ledger.came(key, message, handle, int(ext["popTime"]), int(ext["invisibleTime"]), topic)

    def _live(self) -> Held | None:
        now_ms = int(time.time() * 1000)
        live = [held for held in self.ledger.messages.values() if held.handle and held.until_ms > now_ms + 100]
        return self.rng.choice(live) if live else None

    @staticmethod
    def _named(held: Held) -> dict[str, object]:
        named = {"consumerGroup": GROUP, "topic": held.topic, "queueId": held.queue_id, "offset": held.offset}
        return {**named, "extraInfo": held.handle}

    def ack(self) -> None:
        held = self._live()
        if held is None:
            return
        self._ack(held)

    def _ack(self, held: Held) -> None:
        """Acknowledge; it counts if the message was in flight when the broker had the request."""
        fields, held.handle = self._named(held), ""
        was, held.unsure = held.until_ms, True
        ext = self.wire.send(ACK, fields)
        header, _ = self.wire.receive()
        assert header["opaque"] == ext
        assert header["code"] == 0, header
        known = not header.get("remark") or "not in flight" not in header["remark"]
        if not known and int(time.time() * 1000) < was:
            self.ledger.wrong.append(f"an acknowledgement before its time was over found nothing: {header['remark']}")
        held.acked, held.unsure = known, False

    def change(self) -> None:
        held = self._live()
        if held is None:
            return
        invisible_ms, was = self.rng.choice(INVISIBLE_MS), held.until_ms
        fields, held.handle = self._named(held) | {"invisibleTime": invisible_ms}, ""
        held.until_ms = min(was, int(time.time() * 1000) + invisible_ms)  # if it is not answered, either may be
        try:
            ext, _ = self.wire.ask(CHANGE, fields)
        except WireError as error:
            assert error.code == 208, error
            if int(time.time() * 1000) < was:
                self.ledger.wrong.append(f"a change before its time was over found nothing: {error}")
            return
        parts = str(fields["extraInfo"]).split(" ")
        parts[:4] = [str(held.offset), ext["popTime"], ext["invisibleTime"], ext["reviveQid"]]
        held.handle, held.until_ms = " ".join(parts), int(ext["popTime"]) + int(ext["invisibleTime"])

    def drain(self, seconds: float) -> None:
        """Pop and acknowledge until all that was sent is acknowledged."""
        end = time.monotonic() + seconds
        while self.ledger.missing() and time.monotonic() < end:
            self.pop()
            for held in self.ledger.messages.values():
                if held.handle and held.until_ms > int(time.time() * 1000):
                    self._ack(held)
            let_pass(0.002)


@pytest.mark.parametrize(
    ("flush", "order", "seed"),
    [
        ("SYNC_FLUSH", False, 1),
        ("SYNC_FLUSH", False, FRESH_SEED),
        ("ASYNC_FLUSH", False, FRESH_SEED),
        ("ASYNC_FLUSH", True, FRESH_SEED),
    ],
)
def test_a_kill_loses_nothing_and_repeats_nothing_that_was_answered(
    tmp_path: Path, flush: str, order: bool, seed: int
) -> None:
    broker = FaultyBroker(tmp_path, {"flushDiskType": flush, "maxMessageSize": "3000"})
    rng, ledger = Random(seed), Ledger()
    try:
        broker.up()
        with Wire(broker.address) as wire:
            wire.create_topic(TOPIC, QUEUES)
            create_group(wire, GROUP)
        for _ in range(KILLS):
            with Wire(broker.address) as wire:
                Load(wire, rng, ledger, order).go(rng.randint(*STEPS), broker.kill)
            broker.up()
        with Wire(broker.address) as wire:
            Load(wire, rng, ledger, order).drain(DRAIN_SECONDS)
            assert not ledger.wrong, f"seed {seed}: {ledger.wrong[:5]}"
            assert not ledger.missing(), f"seed {seed}: {len(ledger.missing())} are lost"
        acked = sum(held.acked for held in ledger.messages.values())
        assert acked > 10, "hardly anything has happened"  # how much comes again depends on how busy the machine is
    finally:
        broker.kill()
