"""Request-reply of stock clients, the same on our broker and on Apache's."""

from __future__ import annotations

import base64
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.interop.peers import Peer
from tests.interop.workload import NUMBER
from tests.support.clients import Client
from tests.support.commitlog import Record, read_commit_log
from tests.support.wait import happens, let_pass
from tests.support.wire import Wire
from tests.support.wire_admin import create_group, set_offset

pytestmark = pytest.mark.interop

StartClient = Callable[[str, str], Client]
Borrow = Callable[..., Client]
REPLY_TOPIC = "DefaultCluster_REPLY_TOPIC"
PAIRS = [("java-5.5.0", "java-5.5.0"), ("go-v2", "go-v2"), ("java-5.5.0", "go-v2"), ("go-v2", "java-5.5.0")]


def _prepare(peer: Peer, topic: str) -> None:
    with Wire(peer.address) as wire:
        wire.create_topic(topic)
        create_group(wire, f"{topic}-c")
        for queue_id in range(4):
            set_offset(wire, f"{topic}-c", topic, queue_id, 0)
    with Wire(peer.namesrv) as wire:
        wire.wait_route(topic, 30)
        wire.wait_route(REPLY_TOPIC, 30)


def _requests(topic: str, count: int, first: int = 0) -> list[dict[str, Any]]:
    return [
        {
            "n": n,
            "topic": topic,
            "body": base64.b64encode(f"question {n}".encode()).decode(),
            "tag": "A",
            "keys": [],
            "properties": {NUMBER: str(n)},
        }
        for n in range(first, first + count)
    ]


def _stored_replies(peer: Peer) -> list[Record]:
    return [record for record in read_commit_log(peer.store) if record.topic == REPLY_TOPIC]


def _replied(client: Client, job: str, count: int) -> list[dict[str, Any]]:
    happens(lambda: len({event["n"] for event in client.events(job, "replied")}) >= count, 120)
    return client.events(job, "replied")


@pytest.mark.parametrize(("asks", "answers"), PAIRS)
def test_every_request_gets_its_own_reply(peer: Peer, borrow: Borrow, asks: str, answers: str) -> None:
    """Two requesters at once, one by one and all at a time: no reply goes to the other one.

    A request comes again where queues change hands while it is answered, and so may its reply: numbers count.
    """
    topic = f"asked-{asks[:2]}-{answers[:2]}"
    _prepare(peer, topic)
    replier = borrow(answers, 3)
    replier.consume("c", f"{topic}-c", {topic: "A"}, reply="re: ")
    modes = {"sync": 0, "async": 100}
    requesters = {mode: borrow(asks, number) for number, mode in enumerate(modes, 1)}
    before = len(_stored_replies(peer))
    for mode, first in modes.items():
        messages = _requests(topic, 20, first)
        requesters[mode].command(
            "request", id=mode, group=f"{topic}-p", mode=mode, timeout_ms=100_000, messages=messages
        )
    for mode, first in modes.items():
        events = _replied(requesters[mode], mode, 20)
        missed = [*requesters[mode].events(mode, "unanswered"), *replier.events("c", "unanswered")]
        wanted = {n: f"re: question {n}" for n in range(first, first + 20)}
        assert {event["n"]: event["body"] for event in events} == wanted, f"unanswered: {missed}"
        assert requesters[mode].events(mode, "unanswered") == []
        for event in events:
            assert event["properties"]["MSG_TYPE"] == "reply"
            assert event["properties"]["CORRELATION_ID"]
            assert event["properties"]["PUSH_REPLY_TIME"]
    replier.wait("c", "answered", 20, 40)
    assert replier.events("c", "unanswered") == []
    stored = _stored_replies(peer)[before:]
    assert len(stored) >= 40 and len({record.properties["CORRELATION_ID"] for record in stored}) == 40
    assert all("REPLY_TO_CLIENT" in record.properties for record in stored)


def test_nobody_answers(peer: Peer, borrow: Borrow) -> None:
    topic = "unanswered"
    _prepare(peer, topic)
    client = borrow("java-5.5.0")
    began = time.monotonic()
    for n, mode in enumerate(("sync", "async")):
        messages = _requests(topic, 1, n)
        client.command("request", id=mode, group="unanswered-p", mode=mode, timeout_ms=5_000, messages=messages)
    for mode in ("sync", "async"):
        (event,) = client.wait(mode, "unanswered", 30)
        assert "RequestTimeoutException" in event["error"]
    assert time.monotonic() - began >= 5


def test_the_requester_is_gone(peer: Peer, start_client: StartClient, borrow: Borrow) -> None:
    """Killed while its request waits: the one who answers is told so, and the broker goes on."""
    topic = "abandoned"
    _prepare(peer, topic)
    requester = start_client("java-5.5.0", peer.namesrv)
    requester.command(
        "request", id="r", group="abandoned-p", mode="async", timeout_ms=30_000, messages=_requests(topic, 3)
    )
    requester.wait("r", "requested", 30)
    let_pass(0.5)
    requester.kill()
    let_pass(0.5)
    replier = borrow("java-5.5.0")
    replier.consume("c", "abandoned-c", {topic: "*"}, reply="too late: ")
    events = replier.wait("c", "unanswered", 30, 3)
    assert {event["n"] for event in events} == {"0", "1", "2"}
    assert all("CODE: 1 " in event["error"] and "not found" in event["error"] for event in events)
