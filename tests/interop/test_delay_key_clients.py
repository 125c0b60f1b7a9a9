"""Delay keys from stock clients: two user properties, on single messages and in batches, in each mode."""

from __future__ import annotations

import base64
import time
from collections.abc import Callable
from hashlib import sha256
from typing import Any

import pytest

from tests.interop.workload import NUMBER
from tests.support.clients import Client
from tests.support.ours import OurBroker
from tests.support.wait import let_pass
from tests.support.wire import Wire

pytestmark = [pytest.mark.interop, pytest.mark.process]

StartClient = Callable[[str, str], Client]
StartBroker = Callable[..., OurBroker]
LATER_MS = 15_000
"""Between the sends and the first due time: a busy machine starts a JVM in some seconds."""


def _keyed(n: int, due_ms: int, key: str, mode: str = "") -> dict[str, Any]:
    properties = {NUMBER: str(n), "__DELAYKEY": key, "__STARTDELIVERTIME": str(due_ms)}
    if mode:
        properties["__DELAYKEY_MODE"] = mode
    body = base64.b64encode(f"body {n}".encode()).decode()
    return {"n": n, "topic": "Orders", "body": body, "tag": "A", "properties": properties}


def _refused(client: Client, job: str, messages: list[dict[str, Any]], **options: Any) -> str:
    client.command("produce", id=job, group="p", messages=messages, **options)
    client.wait(job, "produced", 60)
    failed = client.events(job, "send_failed")
    assert (len(failed), client.events(job, "sent")) == (len(messages), [])
    return str(failed[0]["error"])


@pytest.mark.parametrize("name", ["java-5.5.0", "java-4.9.8", "go-v2"])
def test_each_mode_from_a_stock_client(start_broker: StartBroker, start_client: StartClient, name: str) -> None:
    broker = start_broker()
    with Wire(broker.address) as wire:
        wire.create_topic("Orders")
    with Wire(broker.namesrv) as wire:
        wire.wait_route("Orders", 60)
    client = start_client(name, broker.namesrv)
    client.consume("c", "g", {"Orders": "*"})
    began = time.monotonic()
    client.produce("other", "p", [_keyed(90, int(time.time() * 1000) + 3_600_000, "of another hour")])
    # A producer that starts, as a measure of the machine.
    due_ms = int(time.time() * 1000) + max(LATER_MS, int(10_000 * (time.monotonic() - began)))
    first = {n: client.produce(f"first{n}", "p", [_keyed(n, due_ms, f"ключ {n}\U0001f600")])[0] for n in range(3)}
    for mode in ("", "reject"):
        error = _refused(client, f"reject{mode}", [_keyed(10, due_ms, "ключ 0\U0001f600", mode)])
        assert "delay key" in error and str(due_ms) in error
    assert "reject, keep, replace" in _refused(client, "unknown", [_keyed(10, due_ms, "other", "Replace")])
    (kept,) = client.produce("keep", "p", [_keyed(11, due_ms + 500, "ключ 1\U0001f600", "keep")])
    (replaced,) = client.produce("replace", "p", [_keyed(12, due_ms + 500, "ключ 2\U0001f600", "replace")])
    assert (kept["offset_msg_id"], replaced["offset_msg_id"]) == (
        first[1]["offset_msg_id"],
        first[2]["offset_msg_id"],
    )
    expected = {0, 1, 12}
    batch = [_keyed(n, due_ms, f"b{n}") for n in range(20, 23)]
    client.produce("batch", "p", batch, batch=3)
    assert "delay key" in _refused(client, "again", [_keyed(n, due_ms, f"b{n - 10}") for n in range(30, 33)], batch=3)
    client.produce("batch-keep", "p", [_keyed(n, due_ms, f"b{n - 20}", "keep") for n in range(40, 42)], batch=2)
    client.produce("batch-replace", "p", [_keyed(52, due_ms, "b22", "replace"), _keyed(53, due_ms, "b23")], batch=2)
    _refused(client, "twice", [_keyed(60, due_ms, "same"), _keyed(61, due_ms, "same")], batch=2)
    expected |= {20, 21, 52, 53}
    assert int(time.time() * 1000) < due_ms, "the machine was too slow for this test"
    client.wait_received("c", len(expected), 60)
    let_pass(2)
    events = client.received("c")
    assert sorted(int(event["properties"][NUMBER]) for event in events) == sorted(expected)
    for event in events:
        number = int(event["properties"][NUMBER])
        assert event["body_sha256"] == sha256(f"body {number}".encode()).hexdigest()
        assert event["received_ms"] >= due_ms + (500 if number == 12 else 0)
    again = client.produce("free", "p", [_keyed(70, int(time.time() * 1000) + 500, "ключ 0\U0001f600")])
    assert again[0]["offset_msg_id"] != first[0]["offset_msg_id"]
    client.wait_received("c", len(expected) + 1, 60)
