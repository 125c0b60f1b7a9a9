"""Timed messages that the Java client takes back (`recallMessage`), on our broker and on Apache's."""

from __future__ import annotations

import base64
import itertools
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.interop.peers import Peer
from tests.interop.workload import NUMBER
from tests.support.clients import Client
from tests.support.wait import let_pass

pytestmark = pytest.mark.interop

Borrow = Callable[..., Client]
_names = itertools.count(1)


def _message(n: int, topic: str, **more: Any) -> dict[str, Any]:
    body = base64.b64encode(f"body {n}".encode()).decode()
    return {"n": n, "topic": topic, "body": body, "tag": "A", "properties": {NUMBER: str(n)}, **more}


def _recall(client: Client, job: str, topic: str, handle: str) -> dict[str, Any]:
    client.command("recall", id=job, topic=topic, handle=handle)
    (answer,) = client.wait(job, "done", 30)
    return answer


def test_recalled_messages_never_come_and_the_others_do(peer: Peer, borrow: Borrow) -> None:
    """Every other one of twenty timed messages is recalled; what both brokers do the same is compared."""
    topic = f"recalled_{next(_names)}"
    peer.prepare(topic)
    client = borrow("java-5.5.0")
    client.consume("c", f"{topic}_g", {topic: "*"})
    began = time.monotonic()
    plain = client.produce("plain", "recall-p", [_message(20, topic)])
    lead_s = max(10.0, 8 * (time.monotonic() - began))  # a producer that starts, as a measure of the machine
    due_ms = int((time.time() + lead_s) * 1000)
    messages = [_message(n, topic, timer_deliver_ms=due_ms) for n in range(20)]
    sent = {event["n"]: event for event in [*plain, *client.produce("p", "recall-p", messages)]}
    assert sent[20]["recall_handle"] is None
    for n in range(20):
        words = base64.urlsafe_b64decode(sent[n]["recall_handle"]).decode().split(" ")
        assert words[:3] == ["v1", topic, "broker-a"] and words[4] == sent[n]["msg_id"]
        assert abs(int(words[3]) - due_ms) < 1_001
    for n in range(0, 20, 2):
        answer = _recall(client, f"r{n}", topic, sent[n]["recall_handle"])
        assert answer.get("msg_id") == sent[n]["msg_id"], answer
    assert int(time.time() * 1000) < due_ms, "the machine was too slow for this test"
    events = client.wait_received("c", 11, 60)
    let_pass(2)
    events = client.received("c")
    assert sorted(int(event["properties"][NUMBER]) for event in events) == [*range(1, 20, 2), 20]
    assert all(event["received_ms"] >= due_ms for event in events if event["properties"][NUMBER] != "20")


def test_what_cannot_be_recalled(peer: Peer, borrow: Borrow) -> None:
    """Both refuse a handle of another topic or broker; too late is only told by ours, definitely."""
    topic = f"recalled_{next(_names)}"
    peer.prepare(topic, f"{topic}_other")
    client = borrow("java-5.5.0")
    client.consume("c", f"{topic}_g", {topic: "*"})
    due_ms = int(time.time() * 1000) + 3_000
    (sent,) = client.produce("p", "recall-p", [_message(0, topic, timer_deliver_ms=due_ms)])
    handle = sent["recall_handle"]
    assert "CODE: 604" in _recall(client, "other", f"{topic}_other", handle)["error"]
    client.wait_received("c", 1, 30)
    error = _recall(client, "late", topic, handle)["error"]
    assert "CODE: 604" in error
    assert ("it was delivered" in error) is peer.ours  # Apache's: "timestamp invalid"
