"""What stock clients do besides plain sending and receiving, with timed messages in the middle of it.

All tests share a broker and borrow clients (`tests.interop.guests`): each has topics and groups of its own.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from remoting.json_dialect import loads, queue_map
from tests.interop.guests import Hosts
from tests.interop.workload import NUMBER, small_message
from tests.support.clients import Client
from tests.support.commitlog import read_commit_log
from tests.support.ours import OurBroker
from tests.support.wait import happens, let_pass, wait_until
from tests.support.wire import Wire
from tests.support.wire_admin import create_group, set_offset

pytestmark = [pytest.mark.interop, pytest.mark.process]

Borrow = Callable[..., Client]
JAVA = ["java-5.5.0", "java-4.9.8"]
VIRTUAL = 1 << 62
DELAY_MAX_S = 7_200
_names = itertools.count(1)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OurBroker]:
    made = OurBroker(tmp_path_factory.mktemp("ours"), {"timerMaxDelaySec": str(DELAY_MAX_S)})
    try:
        yield made.start()
    finally:
        made.kill()


@pytest.fixture(scope="module")
def hosts(broker: OurBroker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    """The clients that the tests share; they end before the broker."""
    made = Hosts(broker.namesrv, tmp_path_factory)
    yield made
    made.stop()


@pytest.fixture
def borrow(hosts: Hosts) -> Iterator[Borrow]:
    with hosts.lent() as lent:
        yield lent


@pytest.fixture
def own() -> str:
    """A name that no other test has: the begin of its topics and groups."""
    return f"features-{next(_names)}"


def _now_ms() -> int:
    return int(time.time() * 1000)


def _numbers(events: list[dict[str, Any]]) -> list[int]:
    return [int(event["properties"][NUMBER]) for event in events]


def _prepare(broker: OurBroker, *topics: str) -> None:
    with Wire(broker.address) as wire:
        for topic in topics:
            wire.create_topic(topic)
    with Wire(broker.namesrv) as wire:
        for topic in topics:
            wire.wait_route(topic, 60)


@pytest.mark.parametrize("name", [*JAVA, "ons-1.8.8.8", "go-v2"])
def test_topic_is_created_by_the_first_send(broker: OurBroker, borrow: Borrow, own: str, name: str) -> None:
    """The clients that fall back to TBW102 send to a topic that nobody made, timed from the first message on."""
    client = borrow(name)
    due_ms = _now_ms() + 4_000
    messages = [small_message(n, own, **({"start_deliver_ms": due_ms} if n < 10 else {})) for n in range(20)]
    client.produce("p", f"{own}-p", messages)
    with Wire(broker.namesrv) as wire:
        wire.wait_route(own, 60)
    with Wire(broker.address) as wire:
        create_group(wire, f"{own}-c")
        for queue_id in range(4):
            set_offset(wire, f"{own}-c", own, queue_id, 0)
    client.consume("c", f"{own}-c", {own: "*"})
    events = client.wait_received("c", 20, 60)
    assert sorted(_numbers(events)) == list(range(20))
    assert all(event["received_ms"] >= due_ms for event in events if int(event["properties"][NUMBER]) < 10)


def test_node_client_is_told_that_a_topic_is_unknown(borrow: Borrow, own: str) -> None:
    """ali-ons never falls back to TBW102: as on Apache's broker, the application gets an error."""
    client = borrow("node-ali-ons")
    client.command("produce", id="p", group=f"{own}-p", messages=[small_message(0, own)])
    client.wait("p", "produced", 30)
    assert own in client.events("p", "send_failed")[0]["error"]


@pytest.mark.parametrize("name", [*JAVA, "go-v2"])
def test_orderly_consumer(broker: OurBroker, borrow: Borrow, own: str, name: str) -> None:
    """Queue by queue in order of queue offset; equal queues and rising due times come in due order."""
    _prepare(broker, own, f"{own}-before")
    client = borrow(name)
    client.consume("c", f"{own}-c", {own: "*"}, order="yes")
    count = 200
    began = time.monotonic()
    client.produce("p0", f"{own}-p", [small_message(n, f"{own}-before") for n in range(count // 4)], threads=1)
    # A quarter of the sends, and a producer that starts: a measure of the machine. All must come before they are due.
    base_ms = _now_ms() + max(3_000, int(8_000 * (time.monotonic() - began)))
    # The later the number the earlier it is due, so that acceptance order and due order are opposite.
    messages = [small_message(n, own, start_deliver_ms=base_ms + (count - n) * 20, queue=n % 4) for n in range(count)]
    client.produce("p", f"{own}-p", messages, threads=1)
    events = client.wait_received("c", count, 60)
    by_queue: dict[int, list[dict[str, Any]]] = {}
    for event in events:
        by_queue.setdefault(event["queue_id"], []).append(event)
    assert sorted(_numbers(events)) == list(range(count))
    for found in by_queue.values():
        assert [event["queue_offset"] for event in found] == list(range(len(found)))
        assert _numbers(found) == sorted(_numbers(found), reverse=True)


def _queues_of(broker: OurBroker, group: str, topic: str) -> list[int]:
    """How many queues of a topic each member of a group reads, as it says itself (GET_CONSUMER_RUNNING_INFO)."""
    with Wire(broker.address) as wire:
        members = json.loads(wire.ask(38, {"consumerGroup": group})[1])["consumerIdList"]
        tables = [
            loads(wire.ask(307, {"consumerGroup": group, "clientId": one, "jstackEnable": "false"})[1])["mqTable"]
            for one in members
        ]
    return sorted(sum(name == topic for (name, _, _), _ in queue_map(table)) for table in tables)


@pytest.mark.parametrize("name", JAVA)
def test_two_consumers_share_the_queues(broker: OurBroker, borrow: Borrow, own: str, name: str) -> None:
    """A second member joins, both are told, the queues are divided; each message goes to one of them."""
    _prepare(broker, own)
    first, second = borrow(name), borrow(name, 2)
    first.consume("c", f"{own}-c", {own: "*"})
    second.consume("c", f"{own}-c", {own: "*"})
    wait_until(lambda: _queues_of(broker, f"{own}-c", own) == [2, 2], 90, "two queues each")
    due_ms = _now_ms() + 4_000
    messages = [small_message(n, own, **({"start_deliver_ms": due_ms + n} if n % 2 else {})) for n in range(400)]
    first.produce("p", f"{own}-p", messages)
    happens(lambda: len(first.received("c")) + len(second.received("c")) >= 400, 40)
    let_pass(1)
    ours, theirs = _numbers(first.received("c")), _numbers(second.received("c"))
    assert sorted(ours + theirs) == list(range(400))
    assert min(len(ours), len(theirs)) >= 100


@pytest.mark.parametrize("name", [*JAVA, "go-v2"])
def test_broadcasting_consumers_get_everything(broker: OurBroker, borrow: Borrow, own: str, name: str) -> None:
    _prepare(broker, own)
    clients = [borrow(name, number) for number in (1, 2)]
    for client in clients:
        client.consume("c", f"{own}-c", {own: "*"}, model="broadcasting")
    due_ms = _now_ms() + 2_000
    messages = [small_message(n, own, **({"start_deliver_ms": due_ms + n} if n % 2 else {})) for n in range(100)]
    clients[0].produce("p", f"{own}-p", messages)
    for client in clients:
        assert sorted(_numbers(client.wait_received("c", 100, 40))) == list(range(100))


@pytest.mark.parametrize("name", JAVA)
def test_lite_pull_consumer(broker: OurBroker, borrow: Borrow, own: str, name: str) -> None:
    _prepare(broker, own)
    client = borrow(name)
    client.consume("c", f"{own}-c", {own: "A"}, model="lite-pull")
    due_ms = _now_ms() + 3_000
    messages = [small_message(n, own, **({"start_deliver_ms": due_ms + n} if n % 2 else {})) for n in range(200)]
    client.produce("p", f"{own}-p", messages)
    events = client.wait_received("c", 200, 40)
    assert sorted(_numbers(events)) == list(range(200))
    assert all(event["received_ms"] >= due_ms for event in events if int(event["properties"][NUMBER]) % 2)


@pytest.mark.parametrize("name", JAVA)
def test_found_by_id_before_and_after_delivery(broker: OurBroker, borrow: Borrow, own: str, name: str) -> None:
    """The id that the sender was told answers while the message is pending, and goes on to after delivery."""
    _prepare(broker, own)
    client = borrow(name)
    client.consume("c", f"{own}-c", {own: "*"})
    began = time.monotonic()
    plain = client.produce("p0", f"{own}-p", [small_message(0, own)])
    lead_ms = max(6_000, int(8_000 * (time.monotonic() - began)))  # a producer that starts, as a measure of the machine
    due_ms = _now_ms() + lead_ms
    messages = [
        small_message(1, own, start_deliver_ms=due_ms),
        small_message(2, own, start_deliver_ms=due_ms + 3_600_000),
    ]
    sent = {event["n"]: event for event in [*plain, *client.produce("p", f"{own}-p", messages, threads=1)]}
    for n in (1, 2):
        assert int(sent[n]["offset_msg_id"][16:], 16) >= VIRTUAL

    def view(n: int, job: str) -> dict[str, Any]:
        (found,) = client.look_up(job, topic=own, msg_id=sent[n]["offset_msg_id"])
        assert found["properties"][NUMBER] == str(n)
        assert found["topic"] == own
        assert (found["tags"], found["keys"]) == ("A", f"key{n}")
        return found

    view(0, "plain")
    assert view(1, "pending")["properties"]["__TW_DUE"] == str(due_ms)
    assert _now_ms() < due_ms, "the machine was too slow for this test"
    (event,) = (one for one in client.wait_received("c", 2, 30) if one["properties"][NUMBER] == "1")
    delivered = view(1, "delivered")
    for name_ in ("body_sha256", "born_ms", "born_host", "queue_id"):
        assert delivered[name_] == event[name_]
    assert view(2, "still pending")["properties"]["__TW_DUE"] == str(due_ms + 3_600_000)
    # The consumer's own offset id leads to the record itself; the UNIQ_KEY and the keys are indexed.
    (by_place,) = client.look_up("by place", topic=own, msg_id=event["offset_msg_id"])
    assert by_place["commit_log_offset"] == event["commit_log_offset"]
    (by_uniq,) = client.look_up("by unique key", topic=own, msg_id=sent[1]["msg_id"])
    assert by_uniq["properties"][NUMBER] == "1"
    assert _numbers(client.look_up("by key", topic=own, key="key1")) == [1]


@pytest.mark.parametrize("name", JAVA)
def test_object_that_is_sent_on_is_not_delayed_again(broker: OurBroker, borrow: Borrow, own: str, name: str) -> None:
    """Applications hand a received message to a producer as it is: our properties go, and nothing is armed."""
    _prepare(broker, own, f"{own}-to")
    client = borrow(name)
    client.consume("c", f"{own}-c", {own: "*"}, forward={own: f"{own}-to"})
    client.consume("d", f"{own}-d", {f"{own}-to": "*"})
    before = _accepted(broker)
    due_ms = _now_ms() + 6_000
    fields = ["start_deliver_ms", "timer_deliver_ms", "timer_due_ms"]
    client.produce("p", f"{own}-p", [small_message(n, own, **{fields[n % 3]: due_ms + n}) for n in range(30)])
    arrived = client.wait_received("d", 30, 60)
    client.wait_received("c", 30, 30)
    assert sorted(_numbers(arrived)) == list(range(30))
    for event in arrived:
        assert not {"__TW_ID", "__TW_DUE", "TIMER_DELAY_MS"} & event["properties"].keys()
    assert _accepted(broker) - before <= 30, "what was sent on was held once more"


def _accepted(broker: OurBroker) -> int:
    """How many timed messages the broker has accepted since its start."""
    with Wire(broker.address) as wire:
        return int(json.loads(wire.ask(28, {})[1])["table"]["timewheelAccepted"])  # GET_BROKER_RUNTIME_INFO


BAD: list[tuple[dict[str, Any], str]] = [
    ({"start_deliver_ms": "soon"}, "soon"),
    ({"start_deliver_ms": "-5"}, "-5"),
    ({"start_deliver_ms": "1e3"}, "1e3"),
]


@pytest.mark.parametrize("name", JAVA)
def test_bad_time_is_refused_with_its_value(broker: OurBroker, borrow: Borrow, own: str, name: str) -> None:
    _prepare(broker, own)
    client = borrow(name)
    too_far = _now_ms() + 2_000 * DELAY_MAX_S
    cases = [*BAD, ({"start_deliver_ms": str(too_far)}, str(too_far))]
    client.command(
        "produce",
        id="p",
        group=f"{own}-p",
        threads=1,
        messages=[small_message(n, own, **more) for n, (more, _) in enumerate(cases)],
    )
    client.wait("p", "produced", 60)
    failed = {event["n"]: event["error"] for event in client.events("p", "send_failed")}
    assert sorted(failed) == list(range(len(cases)))
    for n, (_, value) in enumerate(cases):
        assert value in failed[n]
        assert "CODE: 13" in failed[n]
    assert [record for record in read_commit_log(broker.store) if record.topic == own] == []
