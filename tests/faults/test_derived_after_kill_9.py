"""What clients see of a real broker before a SIGKILL they see after it: queues, messages by key, transactions.

The small sister of `tests/broker/test_derived_after_a_kill.py`: the same hostile content over a socket, to a process.
"""

from __future__ import annotations

import time
from pathlib import Path
from random import Random
from typing import Any

import pytest

from remoting.messages.message import join_batch
from remoting.messages.properties import format_properties
from tests.simulation.fresh import FRESH_SEED
from tests.support import hostile
from tests.support.fault_storm import FaultyBroker
from tests.support.wire import Wire, WireError
from tests.support.wire_admin import create_group

pytestmark = pytest.mark.process

TOPICS = ("T", "U")
MESSAGES = 250
FAR_MS = 3_600_000


@pytest.mark.parametrize("seed", [1, FRESH_SEED])
def test_clients_see_the_same_after_a_kill(tmp_path: Path, seed: int) -> None:
    broker = FaultyBroker(tmp_path, {"maxMessageSize": "3000", "transactionCheckInterval": "3600000"})
    rng = Random(seed)
    try:
        broker.up()
        with Wire(broker.address) as wire:
            for topic in TOPICS:
                wire.create_topic(topic, 2)
            keys = [key for number in range(MESSAGES) for key in _send(wire, rng, number)]
            before = _seen(wire, keys)
        assert sum(before["ends"].values()) > MESSAGES // 20, "hardly anything was stored"  # 36 to 54 are usual
        broker.kill()
        broker.up()
        with Wire(broker.address) as wire:
            after = _seen(wire, keys)
        for name, value in before.items():
            assert after[name] == value, f"seed {seed}: {name}"
    finally:
        broker.kill()


def _send(wire: Wire, rng: Random, number: int) -> list[str]:
    """One request; the unique keys of what was acknowledged."""
    now_ms = int(time.time() * 1000)
    kind = rng.choice(("now", "now", "wild", "half", "level", "timed", "past", "batch"))
    head = {"a": "pg", "b": rng.choice(TOPICS), "c": "TBW102", "d": 2, "e": rng.randrange(2), "f": 0, "g": now_ms}
    head |= {"h": 0, "j": 0, "k": "false", "m": "false"}
    count = rng.randint(1, 4) if kind == "batch" else 1
    made = [_properties(kind, rng, f"{number:024X}{part:08X}", now_ms) for part in range(count)]
    keys = [values["UNIQ_KEY"] for values in made]
    try:
        if kind == "batch":
            body = join_batch([(0, hostile.body(rng, 200), format_properties(values)) for values in made])
            wire.ask(320, {**head, "i": "", "m": "true"}, body)
        else:
            text = hostile.property_text(rng, made[0]) if kind == "wild" else format_properties(made[0])
            flag = 4 if kind == "half" else hostile.sys_flag(rng) if kind == "wild" else 0
            wire.ask(310, {**head, "i": text, "f": flag}, hostile.body(rng, 3000))
    except WireError:
        return []  # refused
    return keys


def _properties(kind: str, rng: Random, key: str, now_ms: int) -> dict[str, str]:
    values = hostile.plain_properties(rng) | {"UNIQ_KEY": key, "KEYS": f"k{rng.randrange(9)}"}
    if kind == "wild":
        waits = ("DELAY", "TIMER_DELIVER_MS", "__STARTDELIVERTIME", "TIMER_DELAY_MS", "TIMER_DELAY_SEC")
        odd = hostile.broker_properties(rng, now_ms)
        values |= {name: value for name, value in odd.items() if name not in waits}  # nothing may come due meanwhile
    elif kind == "half":
        values |= {"TRAN_MSG": "true", "PGROUP": "pg"}
    elif kind == "level":
        values["DELAY"] = "18"
    elif kind == "timed":
        values["TIMER_DELIVER_MS"] = str(now_ms + FAR_MS)
    elif kind == "past":
        values["__STARTDELIVERTIME"] = str(now_ms - rng.choice((0, 1, 60_000)))
    return values


def _seen(wire: Wire, keys: list[str]) -> dict[str, Any]:
    """What clients are told."""
    ends = {(topic, queue_id): wire.max_offset(topic, queue_id) for topic in TOPICS for queue_id in range(2)}
    _, table = wire.ask(28, {})
    counts = ("transactionsUndecided", "transactionsHalfOffset", "transactionsLost", "scheduleMessageOffset_18")
    return {
        "ends": ends,
        "messages": {queue: _messages(wire, *queue, end) for queue, end in ends.items()},
        "found": {(topic, key): _found(wire, topic, key) for topic in TOPICS for key in keys},
        "counts": [line for line in table.decode().split(",") if any(name in line for name in counts)],
    }


def _messages(wire: Wire, topic: str, queue_id: int, end: int) -> bytes:
    """All records of a queue."""
    data, offset = b"", 0
    fields = {"consumerGroup": "cg", "topic": topic, "queueId": queue_id, "maxMsgNums": 32, "sysFlag": 4}
    fields |= {"commitOffset": 0, "suspendTimeoutMillis": 0, "subscription": "*", "subVersion": 0}
    fields["expressionType"] = "TAG"
    create_group(wire, "cg")
    while offset < end:
        ext, part = wire.ask(11, {**fields, "queueOffset": offset})
        assert int(ext["nextBeginOffset"]) > offset
        offset = int(ext["nextBeginOffset"])
        data += part
    return data


def _found(wire: Wire, topic: str, key: str) -> bytes:
    """QUERY_MESSAGE."""
    fields = {"topic": topic, "key": key, "maxNum": 32, "beginTimestamp": 0, "endTimestamp": 1 << 60}
    try:
        return wire.ask(12, fields)[1]
    except WireError:
        return b""
