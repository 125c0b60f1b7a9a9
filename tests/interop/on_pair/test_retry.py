"""A consumer that fails: the message comes back by its level, not by its old due time, with every stock client.

The same happens on Apache's broker at the same time, and the copies that come back are compared.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.interop.on_pair.conftest import Pair
from tests.interop.workload import KINDS, NUMBER, SENDS, make_messages
from tests.support.apache import ApacheBroker
from tests.support.clients import Client, command_of
from tests.support.commitlog import Record, read_commit_log
from tests.support.need import need
from tests.support.ours import OurBroker
from tests.support.parallel import run_all
from tests.support.wait import let_pass
from tests.support.wire import Wire
from tests.support.wire_admin import create_group, set_offset

pytestmark = [pytest.mark.interop, pytest.mark.process, pytest.mark.apache]

COUNT = 20
TIMED_FROM = 10
"""Messages from this number on are timed, those before are ordinary ones."""
RETRY_MS = 10_000  # level 3, the first that a consumer gets
CLIENTS = list(SENDS)


@dataclass
class Retries:
    """What one client saw on one broker, and the copies that came back as they are on disk."""

    sent: list[dict[str, Any]] = field(default_factory=list)
    received: list[dict[str, Any]] = field(default_factory=list)
    due_ms: dict[int, int] = field(default_factory=dict)
    copies: dict[int, list[Record]] = field(default_factory=dict)


def _names(client: str) -> tuple[str, str]:
    plain = client.replace(".", "")
    return f"retry-{plain}", f"retry-group-{plain}"


def _drive(client: Client, seen: Retries, due_field: str) -> None:
    topic, group = _names(client.name)
    client.consume("c", group, {topic: "*"}, retries={topic: "1"})
    lines = []
    base_ms = int(time.time() * 1000) + 2_000
    for message in make_messages(client.name, KINDS["normal"], 2_000, COUNT):
        timed = message.n >= TIMED_FROM
        if timed:
            seen.due_ms[message.n] = base_ms + message.due_in_ms
        lines.append(message.line(topic, due_field if timed else None, base_ms + message.due_in_ms))
    seen.sent = client.produce("p", f"{group}-p", lines)
    client.wait_received("c", 2 * COUNT, 75)
    let_pass(2)
    seen.received = client.received("c")


def _run(broker: OurBroker | ApacheBroker, folder: Path, due_field: str) -> dict[str, Retries]:
    for name in CLIENTS:
        need(partial(command_of, name, folder))
    with Wire(broker.address) as wire:
        for topic, group in map(_names, CLIENTS):
            wire.create_topic(topic)
            wire.create_topic(f"%RETRY%{group}", 1)
            create_group(wire, group)
            for queue_id in range(4):
                set_offset(wire, group, topic, queue_id, 0)
    with Wire(broker.namesrv) as wire:
        for topic, group in map(_names, CLIENTS):
            wire.wait_route(topic, 30)
            wire.wait_route(f"%RETRY%{group}", 30)
    found = {name: Retries() for name in CLIENTS}
    running = [Client(name, broker.namesrv, folder / name) for name in CLIENTS]
    try:
        run_all([partial(_drive, client, found[client.name], due_field) for client in running])
    finally:
        for client in running:
            client.stop()
    retry_topics = {f"%RETRY%{_names(name)[1]}": name for name in CLIENTS}
    for record in read_commit_log(broker.store):
        if record.topic in retry_topics:
            seen = found[retry_topics[record.topic]]
            seen.copies.setdefault(int(record.properties[NUMBER]), []).append(record)
    return found


@pytest.fixture(scope="module")
def retries(pair: Pair, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Retries]]:
    """Run it on our broker and on Apache's at the same time: {"ours" | "apache": {client: what it saw}}."""
    folder = tmp_path_factory.mktemp("retry")
    found: dict[str, dict[str, Retries]] = {}

    def on(name: str, broker: OurBroker | ApacheBroker, due_field: str) -> None:
        found[name] = _run(broker, folder / name, due_field)

    run_all([
        lambda: on("ours", pair.ours, "start_deliver_ms"),
        lambda: on("apache", pair.apache, "timer_deliver_ms"),
    ])  # fmt: skip
    return found


@pytest.mark.parametrize("client", CLIENTS)
def test_comes_back_once_by_its_level(retries: dict[str, dict[str, Retries]], client: str) -> None:
    seen = retries["ours"][client]
    assert len(seen.received) == 2 * COUNT
    topic, _ = _names(client)
    for n in range(COUNT):
        first, second = (event for event in seen.received if event["properties"][NUMBER] == str(n))
        assert (first["reconsume_times"], second["reconsume_times"]) == (0, 1)
        assert second["topic"] == topic
        assert second["body_sha256"] == first["body_sha256"]
        waited_ms = second["received_ms"] - first["received_ms"]
        assert RETRY_MS <= waited_ms < 3 * RETRY_MS, f"message {n} came back after {waited_ms} ms"
        assert first["received_ms"] >= seen.due_ms.get(n, 0)


@pytest.mark.parametrize("client", CLIENTS)
def test_copy_is_not_armed_again(retries: dict[str, dict[str, Retries]], client: str) -> None:
    seen = retries["ours"][client]
    assert {n: len(copies) for n, copies in seen.copies.items()} == dict.fromkeys(range(COUNT), 1)
    for (copy,) in seen.copies.values():
        armed = {"__TW_ID", "__TW_DUE", "TIMER_DELAY_MS", "TIMER_DELAY_SEC"} & copy.properties.keys()
        assert not armed, f"the copy still has {armed}"
        assert copy.reconsume_times == 1


# The reasons are those of compare.DIFFERENCES; what must not stay on a copy of ours is looked for above.
MAY_DIFFER = {
    "__TW_LEVEL",
    "__STARTDELIVERTIME",
    "TIMER_DELIVER_MS",
    "TIMER_OUT_MS",
    "TIMER_ENQUEUE_MS",
    "TIMER_DEQUEUE_MS",
}


def _form(seen: Retries, record: Record) -> dict[str, Any]:
    def value(name: str, text: str) -> str:
        if name == "UNIQ_KEY":  # of 32 digits or, made from an IPv6 address, 56
            return "<an id>" if re.fullmatch("[0-9A-Fa-f]{32}([0-9A-Fa-f]{24})?", text) else text
        if name == "ORIGIN_MESSAGE_ID":
            first = next(e for e in seen.received if e["properties"][NUMBER] == record.properties[NUMBER])
            ids = {first["msg_id"]: "<msg id>", first.get("offset_msg_id"): "<offset msg id>"}
            return ids.get(text, f"<an id of {len(text)}>")
        return text

    return {
        "topic": record.topic,
        "body": record.body_sha256,
        "flag": record.flag,
        "sys_flag": record.sys_flag,
        "reconsume_times": record.reconsume_times,
        "born_host": record.born_host.split(":")[0],
        "queue_id": record.queue_id,
        "properties": {k: value(k, v) for k, v in record.properties.items() if v and k not in MAY_DIFFER},
    }


@pytest.mark.parametrize("client", CLIENTS)
def test_copy_is_as_on_apache(retries: dict[str, dict[str, Retries]], client: str) -> None:
    ours, apache = retries["ours"][client], retries["apache"][client]
    assert ours.copies.keys() == apache.copies.keys()
    for n in ours.copies:
        assert _form(ours, ours.copies[n][0]) == _form(apache, apache.copies[n][0]), f"message {n}"
