"""A store that Apache's broker wrote, ended cleanly or by kill -9, is opened by ours; the same clients go on.

Both cases, and the store with timer messages that ours refuses, are written at the same time.
"""

from __future__ import annotations

import base64
import json
import re
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.interop.workload import NUMBER
from tests.support.apache import TIMER_OFTEN, ApacheBroker, ApacheNameServer, apache_jars
from tests.support.clients import Client, command_of
from tests.support.commitlog import Record, read_commit_log
from tests.support.need import need
from tests.support.ours import OurBroker
from tests.support.parallel import Background, run_all
from tests.support.wait import let_pass
from tests.support.wire import Wire, wait_committed

pytestmark = [pytest.mark.interop, pytest.mark.process, pytest.mark.apache]

CLIENT = "java-5.5.0"
TOPIC = "moved"
GROUP = "moved-group"
QUEUES = 4
READ, UNREAD, LEVELLED = 60, 40, 30
LEVEL = 4
LEVEL_MS = 30_000
NEW = range(1_000, 1_020)
REST = [*range(READ, READ + UNREAD + LEVELLED), *NEW]
"""What is left to be consumed on our broker."""
TIMERS = 5


@dataclass
class Moved:
    """What became of a store that moved from Apache's broker to ours."""

    level_sent_ms: dict[int, int] = field(default_factory=dict)
    started_ms: int = 0
    up_ms: int = 0
    received: list[dict[str, Any]] = field(default_factory=list)
    found_by_key: list[dict[str, Any]] = field(default_factory=list)
    before: dict[int, Record] = field(default_factory=dict)
    after: dict[int, Record] = field(default_factory=dict)
    end_status: int = -1


@dataclass
class Refused:
    """How our broker ended on a store with messages in Apache's timer, and the store before that."""

    status: int
    text: str
    store: Path
    before: list[Record]


def _message(n: int, **more: Any) -> dict[str, Any]:
    body = base64.b64encode(b"body %d" % n).decode()
    properties = {NUMBER: str(n)}
    return {"n": n, "topic": TOPIC, "body": body, "tag": "A", "keys": [f"key{n}"], "properties": properties, **more}


def _on_apache(folder: Path, fill: Callable[[ApacheBroker, Client], None]) -> ApacheBroker:
    """Start Apache's broker and a client, let ``fill`` use them and end the broker, and clear up."""
    names = ApacheNameServer(folder / "namesrv")
    broker = ApacheBroker(folder / "apache", names.address, TIMER_OFTEN)
    client = None
    try:
        broker.start()
        with Wire(broker.address) as wire:
            wire.create_topic(TOPIC, QUEUES)
        with Wire(names.address) as wire:
            wire.wait_route(TOPIC, 30)
        client = Client(CLIENT, names.address, folder / "apache-client")
        fill(broker, client)
    finally:
        if client is not None:
            client.stop()
        broker.kill()
        names.stop()
    return broker


def _wait_for_offsets(store: Path) -> None:
    """Apache writes the consumers' offsets every 5 s."""
    until = time.monotonic() + 30
    while True:
        try:
            table = json.loads(_quoted((store / "config" / "consumerOffset.json").read_text()))["offsetTable"]
            if sum(table[f"{TOPIC}@{GROUP}"].values()) == READ:
                return
        except (OSError, ValueError, KeyError):
            pass
        assert time.monotonic() < until, "Apache's broker never wrote that the group has read everything"
        let_pass(0.2)


def _quoted(fastjson: str) -> str:
    """Put the quotes round numeric keys that Apache's JSON leaves out."""
    return re.sub(r"([{,])\s*(\d+)\s*:", r'\1"\2":', fastjson)


def _move(folder: Path, how: str) -> Moved:
    """Some messages read by a group, some not, some waiting at a level; then our broker on the same store."""
    seen = Moved()

    def fill(broker: ApacheBroker, client: Client) -> None:
        client.consume("c", GROUP, {TOPIC: "*"})
        client.produce("read", "p", [_message(n) for n in range(READ)])
        client.wait_received("c", READ, 60)
        with Wire(broker.address) as wire:
            wait_committed(wire, GROUP, TOPIC, QUEUES, READ)
        client.close_consumer("c")
        client.produce("unread", "p", [_message(n) for n in range(READ, READ + UNREAD)])
        levels = range(READ + UNREAD, READ + UNREAD + LEVELLED)
        sent = client.produce("levels", "p", [_message(n, level=LEVEL) for n in levels])
        seen.level_sent_ms = {event["n"]: event["ended_ms"] for event in sent}
        if how == "SIGTERM":
            broker.stop()
        else:
            _wait_for_offsets(broker.store)
            broker.kill()

    apache = _on_apache(folder, fill)
    seen.before = {record.offset: record for record in read_commit_log(apache.store)}
    broker = OurBroker(folder / "ours", store=apache.store, port=apache.port)
    client = None
    try:
        seen.started_ms = int(time.time() * 1000)
        broker.start()
        seen.up_ms = int(time.time() * 1000)
        client = Client(CLIENT, broker.namesrv, folder / "client")
        client.consume("c", GROUP, {TOPIC: "*"})
        client.produce("new", "p", [_message(n, start_deliver_ms=seen.up_ms + 4_000) for n in NEW])
        client.wait_received("c", len(REST), 75)
        let_pass(2)
        seen.received = client.received("c")
        seen.found_by_key = client.look_up("old", topic=TOPIC, key="key3")
        seen.after = {record.offset: record for record in read_commit_log(apache.store)}
        seen.end_status = broker.stop()
    finally:
        if client is not None:
            client.stop()
        broker.kill()
    return seen


def _refuse(folder: Path) -> Refused:
    """Leave messages pending in Apache's own timer, and start our broker on that."""

    def fill(broker: ApacheBroker, client: Client) -> None:
        due_ms = int(time.time() * 1000) + 3_600_000
        client.produce("p", "p", [_message(n, timer_deliver_ms=due_ms) for n in range(TIMERS)])
        let_pass(2)
        broker.stop()

    apache = _on_apache(folder, fill)
    before = list(read_commit_log(apache.store))
    child = OurBroker(folder / "ours", store=apache.store).spawn()
    try:
        status = child.process.wait(30)
    finally:
        child.kill()
    return Refused(status, child.tail(), apache.store, before)


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Moved | Refused]:
    folder = tmp_path_factory.mktemp("apache-store")
    need(apache_jars)
    need(partial(command_of, CLIENT, folder))
    moves = Background(lambda: run_all(partial(_move, folder / how, how) for how in ("SIGTERM", "SIGKILL")))
    refused = _refuse(folder / "timer")
    term, kill = moves.result()
    return {"SIGTERM": term, "SIGKILL": kill, "timer": refused}


def _moved(stores: dict[str, Moved | Refused], how: str) -> Moved:
    seen = stores[how]
    assert isinstance(seen, Moved)
    return seen


@pytest.mark.parametrize("how", ["SIGTERM", "SIGKILL"])
def test_rest_is_consumed_exactly(stores: dict[str, Moved | Refused], how: str) -> None:
    """The group goes on where it was, and each message comes once."""
    seen = _moved(stores, how)
    counts = Counter(int(event["properties"][NUMBER]) for event in seen.received)
    assert counts == Counter(dict.fromkeys(REST, 1))
    assert seen.end_status == 0


@pytest.mark.parametrize("how", ["SIGTERM", "SIGKILL"])
def test_levels_come_at_their_time(stores: dict[str, Moved | Refused], how: str) -> None:
    seen = _moved(stores, how)
    levelled = [event for event in seen.received if int(event["properties"][NUMBER]) in seen.level_sent_ms]
    assert len(levelled) == LEVELLED
    for event in levelled:
        # The sender's clock reading is a little after the broker's.
        due_ms = seen.level_sent_ms[int(event["properties"][NUMBER])] + LEVEL_MS
        assert event["store_ms"] >= due_ms - 1_000
    # With delays that begin anew at its start, all of them would be that late.
    late = sum(event["store_ms"] >= seen.started_ms + LEVEL_MS for event in levelled)
    assert late <= LEVELLED // 2, "the delay began anew"


@pytest.mark.parametrize("how", ["SIGTERM", "SIGKILL"])
def test_what_apache_wrote_stays_and_is_found(stores: dict[str, Moved | Refused], how: str) -> None:
    seen = _moved(stores, how)
    assert len(seen.before) >= READ + UNREAD + LEVELLED
    assert {offset: seen.after.get(offset) for offset in seen.before} == seen.before
    copies = Counter(int(record.properties[NUMBER]) for record in seen.after.values() if record.topic == TOPIC)
    assert copies == Counter(dict.fromkeys([*range(READ), *REST], 1))
    assert [event["properties"][NUMBER] for event in seen.found_by_key] == ["3"]


def test_pending_timer_messages_are_refused(stores: dict[str, Moved | Refused]) -> None:
    """Messages that wait in Apache's own timer would be lost: our broker says so, and touches nothing."""
    seen = stores["timer"]
    assert isinstance(seen, Refused)
    assert seen.status != 0
    assert str(TIMERS) in seen.text and "timer" in seen.text.lower() and str(seen.store) in seen.text, seen.text
    assert "Traceback" not in seen.text, seen.text
    assert len(seen.before) >= TIMERS
    assert list(read_commit_log(seen.store)) == seen.before
