"""Ordered consumption, the same on our broker and on Apache's: a consumer that dies, one that suspends its queue."""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import pytest

from tests.interop.workload import NUMBER
from tests.support.apache import ApacheBroker, ApacheNameServer, apache_jars
from tests.support.clients import Client
from tests.support.need import need
from tests.support.ours import OurBroker
from tests.support.wait import happens, let_pass
from tests.support.wire import Wire
from tests.support.wire_admin import create_group, set_offset

pytestmark = [pytest.mark.interop, pytest.mark.process, pytest.mark.apache]

StartClient = Callable[[str, str], Client]
Broker = OurBroker | ApacheBroker
LOCK_MS = 4_000
QUEUES = 4
# Apache's broker and Java's client take these as system properties only.
JAVA_OPTIONS = f"-Drocketmq.broker.rebalance.lockMaxLiveTime={LOCK_MS} -Drocketmq.client.rebalance.lockInterval=1000"


@pytest.fixture(autouse=True)
def short_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have locks expire, and be renewed, fifteen times as fast as they are by default."""
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", JAVA_OPTIONS)


@pytest.fixture(scope="module", params=["ours", "apache"])
def broker(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """One broker of each kind."""
    folder = tmp_path_factory.mktemp(request.param)
    if request.param == "ours":
        ours = OurBroker(folder, {"lockMaxLiveTime": str(LOCK_MS)}).start()
        yield ours
        ours.kill()
        return
    need(apache_jars)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAVA_TOOL_OPTIONS", JAVA_OPTIONS)
        names = ApacheNameServer(folder / "namesrv")
        apache = ApacheBroker(folder / "broker", names.address)
        try:
            apache.start()
        except BaseException:
            apache.kill()
            names.stop()
            raise
    yield apache
    apache.kill()
    names.stop()


def _prepare(broker: Broker, topic: str) -> None:
    with Wire(broker.address) as wire:
        wire.create_topic(topic, QUEUES)
        create_group(wire, f"{topic}-c")
        for queue_id in range(QUEUES):
            set_offset(wire, f"{topic}-c", topic, queue_id, 0)
    with Wire(broker.namesrv) as wire:
        wire.wait_route(topic, 30)


def _produce(client: Client, job: str, topic: str, numbers: range) -> None:
    messages = [
        {
            "n": n,
            "topic": topic,
            "body": base64.b64encode(b"%d" % n).decode(),
            "tag": "A",
            "keys": [],
            "properties": {NUMBER: str(n)},
            "queue": n % QUEUES,
        }
        for n in numbers
    ]
    client.produce(job, f"{topic}-p", messages, threads=1)


def _by_queue(events: list[dict[str, Any]]) -> dict[int, list[dict[str, Any]]]:
    queues: dict[int, list[dict[str, Any]]] = {}
    for event in events:
        queues.setdefault(event["queue_id"], []).append(event)
    return queues


def test_nothing_is_reordered_when_one_of_two_dies(broker: Broker, start_client: StartClient) -> None:
    """Its queues are locked until its locks expire; then the other one goes on where it had stopped, not behind."""
    topic, name = "dying", "java-5.5.0"
    _prepare(broker, topic)
    clients = [start_client(name, broker.namesrv) for _ in range(2)]
    for client in clients:
        client.consume("c", f"{topic}-c", {topic: "*"}, order="yes")
    producer = start_client(name, broker.namesrv)
    sent = 0
    until = time.monotonic() + 120
    # Both have queues, and are at work on them.
    while time.monotonic() < until and not all(len(client.received("c")) > 10 for client in clients):
        _produce(producer, f"p{sent}", topic, range(sent, sent + 40))
        sent += 40
        let_pass(0.5)
    dying, heir = clients
    _produce(producer, f"p{sent}", topic, range(sent, sent + 40))
    sent += 40
    dying.kill()
    died_ms = int(time.time() * 1000)
    its_queues = set(_by_queue(dying.received("c")))
    for _ in range(3):
        _produce(producer, f"p{sent}", topic, range(sent, sent + 40))
        sent += 40
    happens(lambda: len({e["properties"][NUMBER] for client in clients for e in client.received("c")}) == sent, 60)
    events = sorted(
        [event for client in clients for event in client.received("c")],
        key=lambda event: event["received_ms"],
    )
    assert {int(event["properties"][NUMBER]) for event in events} == set(range(sent)), "nothing is missing"
    assert its_queues, "the one that died had queues"
    for queue_id, found in _by_queue(events).items():
        firsts = list(dict.fromkeys(event["queue_offset"] for event in found))
        assert firsts == list(range(len(firsts))), f"queue {queue_id} was reordered"
    inherited = [
        event["received_ms"]
        for event in heir.received("c")
        if event["queue_id"] in its_queues and event["received_ms"] > died_ms
    ]
    assert inherited


def test_a_suspended_queue_waits_for_its_message(broker: Broker, start_client: StartClient) -> None:
    """The message comes again with a higher count, what stands behind it waits, and the other queues go on."""
    topic = "suspending"
    _prepare(broker, topic)
    client = start_client("java-5.5.0", broker.namesrv)
    client.consume("c", f"{topic}-c", {topic: "*"}, order="yes", suspend_ms=500, retries={f"{topic}#5": "2"})
    _produce(client, "p", topic, range(40))
    events = client.wait_received("c", 42, 60)
    found = _by_queue(events)
    for queue_id in range(QUEUES):
        numbers = [int(event["properties"][NUMBER]) for event in found[queue_id]]
        expected = list(range(queue_id, 40, QUEUES))
        assert numbers == (expected if queue_id != 1 else [1, 5, 5, *expected[1:]])
    again = [event for event in found[1] if event["properties"][NUMBER] == "5"]
    assert [event["reconsume_times"] for event in again] == [0, 1, 2]
    for earlier, later in pairwise(again):
        assert later["received_ms"] - earlier["received_ms"] >= 450
