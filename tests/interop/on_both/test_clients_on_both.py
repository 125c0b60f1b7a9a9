"""What stock clients do besides sending and receiving: the same calls on both brokers, the same outcome."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from remoting.json_dialect import loads, queue_map
from tests.interop.peers import Peer
from tests.interop.workload import NUMBER, small_message
from tests.support.admin import MqAdmin
from tests.support.clients import Client
from tests.support.wait import happens, let_pass, wait_until
from tests.support.wire import Wire, WireError, wait_committed
from tests.support.wire_admin import create_group, set_offset

pytestmark = pytest.mark.interop

Borrow = Callable[..., Client]
JAVA = "java-5.5.0"
TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"
_names = itertools.count(1)


def _numbers(events: list[dict[str, Any]]) -> list[int]:
    return sorted(int(event["properties"][NUMBER]) for event in events)


@pytest.fixture
def topic(peer: Peer) -> str:
    name = f"both_{next(_names)}"
    peer.prepare(name)
    return name


@pytest.mark.parametrize("model", ["lite-pull", "pull"])
def test_pull_consumers(peer: Peer, borrow: Borrow, topic: str, model: str) -> None:
    """The application asks for messages itself; its offsets are kept by the broker and outlive it."""
    client = borrow(JAVA)
    with Wire(peer.address) as wire:
        create_group(wire, f"{topic}_g")
        for queue_id in range(4):
            set_offset(wire, f"{topic}_g", topic, queue_id, 0)
    client.consume("c", f"{topic}_g", {topic: "A"}, model=model)
    others = [{**small_message(n, topic), "tag": "B"} for n in range(50, 60)]
    client.produce("p", "producers", [*[small_message(n, topic) for n in range(50)], *others])
    events = client.wait_received("c", 50, 60)
    assert _numbers(events) == list(range(50))
    read = Counter[int]()
    for event in events:
        read[event["queue_id"]] = max(read[event["queue_id"]], event["queue_offset"] + 1)
    with Wire(peer.address) as wire:  # lite-pull saves its offsets every 5 s
        for queue_id, end in read.items():
            wait_until(
                lambda at=queue_id, end=end: (wire.offset_of(f"{topic}_g", topic, at) or 0) >= end,  # type: ignore[misc]
                60,
                "offsets are saved",
            )
    client.close_consumer("c")
    second = borrow(JAVA, 2)
    second.consume("d", f"{topic}_g", {topic: "A"}, model=model)
    second.produce("q", "producers", [small_message(n, topic) for n in range(60, 70)])
    assert _numbers(second.wait_received("d", 10, 60)) == list(range(60, 70))


@pytest.mark.parametrize("name", [JAVA, "go-v2"])
def test_broadcasting(borrow: Borrow, topic: str, name: str) -> None:
    clients = [borrow(name, number) for number in (1, 2)]
    for client in clients:
        client.consume("c", f"{topic}_g", {topic: "*"}, model="broadcasting")
    clients[0].produce("p", "producers", [small_message(n, topic) for n in range(40)])
    for client in clients:
        assert _numbers(client.wait_received("c", 40, 60)) == list(range(40))


def _has_key(wire: Wire, topic: str, key: str) -> bool:
    fields = {"topic": topic, "key": key, "maxNum": 32, "beginTimestamp": 0, "endTimestamp": 1 << 60}
    try:
        return bool(wire.ask(12, fields)[1])
    except WireError:
        return False


def test_looked_up_by_id_key_and_unique_key(peer: Peer, borrow: Borrow, topic: str) -> None:
    client = borrow(JAVA)
    sent = client.produce("p", "producers", [small_message(n, topic) for n in range(3)], threads=1)
    with Wire(peer.address) as wire:  # Apache's index follows its log
        wait_until(lambda: _has_key(wire, topic, "key2") and _has_key(wire, topic, sent[2]["msg_id"]), 60, "indexed")
    (by_id,) = client.look_up("a", topic=topic, msg_id=sent[1]["offset_msg_id"])
    (by_unique_key,) = client.look_up("b", topic=topic, msg_id=sent[1]["msg_id"])
    (by_key,) = client.look_up("c", topic=topic, key="key1")
    for found in (by_id, by_unique_key, by_key):
        assert (found["topic"], found["keys"], found["tags"]) == (topic, "key1", "A")
        assert found["commit_log_offset"] == int(sent[1]["offset_msg_id"][16:], 16)
    client.command("look_up", id="d", topic=topic, key="no such key")
    with pytest.raises(AssertionError, match=r"CODE: (17|208)"):
        client.wait("d", "looked_up", 30)


def test_message_traces(borrow: Borrow, topic: str) -> None:
    """Producer and consumer trace what they do; the traces are messages of a topic of their own."""
    reader, client = borrow(JAVA, 1), borrow(JAVA, 2)
    reader.consume("t", f"{topic}_traces", {TRACE_TOPIC: "*"})
    client.consume("c", f"{topic}_g", {topic: "*"}, trace="yes")
    sent = client.produce("p", f"{topic}_p", [small_message(n, topic) for n in range(5)], trace="yes", threads=1)
    client.wait_received("c", 5, 60)
    wanted = {event["msg_id"] for event in sent}

    def traces_of(msg_id: str) -> int:
        return sum(msg_id in (event["keys"] or "") for event in reader.received("t"))

    happens(lambda: all(traces_of(one) >= 2 for one in wanted), 60)  # the producer's, and the consumer's
    for one in wanted:
        assert traces_of(one) >= 2, one
    assert {event["topic"] for event in reader.received("t")} == {TRACE_TOPIC}


def _status(peer: Peer, topic: str) -> dict[int, int]:
    """What the members of the topic's group say of each queue (INVOKE_BROKER_TO_GET_CONSUMER_STATUS)."""
    with Wire(peer.address) as wire:
        _, body = wire.ask(223, {"topic": topic, "group": f"{topic}_g", "clientAddr": ""})
    tables = loads(body)["consumerTable"].values()
    return {queue_id: offset for table in tables for (_, _, queue_id), offset in queue_map(table)}


def _ends(peer: Peer, topic: str) -> dict[int, int]:
    with Wire(peer.address) as wire:
        return {queue_id: wire.max_offset(topic, queue_id) for queue_id in range(4)}


@pytest.mark.apache
def test_offsets_are_reset_while_consumers_run(peer: Peer, borrow: Borrow, topic: str, admin: MqAdmin) -> None:
    """An administrator sets a group back by time: both members, still running, read again from there."""
    clients = [borrow(JAVA, number) for number in (1, 2)]
    for client in clients:
        client.consume("c", f"{topic}_g", {topic: "*"})
    clients[0].produce("p", "producers", [small_message(n, topic) for n in range(40)])

    def received() -> list[int]:
        return _numbers([event for client in clients for event in client.received("c")])

    def wait_for(done: Callable[[], bool]) -> None:
        wait_until(done, 90, "members receive what was sent")

    # While the second member joins, a queue may change hands, and what was not acknowledged by then comes again.
    wait_for(lambda: set(received()) >= set(range(40)))
    let_pass(1.5)
    between_ms = int(time.time() * 1000)
    let_pass(1.5)
    clients[0].produce("q", "producers", [small_message(n, topic) for n in range(40, 60)])
    wait_for(lambda: set(received()) >= set(range(60)))
    with Wire(peer.address) as wire:
        wait_committed(wire, f"{topic}_g", topic, 4, 60)
    before = Counter(received())
    assert set(before) == set(range(60))
    admin("resetOffsetByTime", "-g", f"{topic}_g", "-t", topic, "-s", str(between_ms))
    wait_for(lambda: len(received()) >= before.total() + 20)
    let_pass(2)
    assert Counter(received()) - before == Counter(range(40, 60))
    assert _status(peer, topic) == _ends(peer, topic)
