"""Stock clients that are given instances of the delay service as their name servers, beside Apache's brokers."""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from remoting.messages.properties import get_property
from service.running.entries import DELAY_ID, REJECTED_TOPIC
from tests.interop.workload import COUNT
from tests.interop.workload import NUMBER as OF_THE_DRIVER
from tests.service.process_cluster import ENTRY, NUMBER, Copies, RealCluster, now_ms
from tests.support.apache import apache_jars
from tests.support.clients import Client, was_out_of_time
from tests.support.need import need
from tests.support.ports import free_port
from tests.support.wait import let_pass

pytestmark = [pytest.mark.interop, pytest.mark.apache]
PATIENCE_S = 240
NAMES = ["java-5.5.0", "go-v2"]
BROKERS = 2
QUEUES = 4
OTHERS = ["java-4-9-8", "java-5-5-0", "ons-1-8-8-8", "node-ali-ons"]
TRANSACTED = ["transacted-java", "transacted-go"]
CHECKS = {"transactionTimeOut": "1000", "transactionCheckInterval": "1000"}


@pytest.fixture(scope="module")
def apache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RealCluster, list[str]]]:
    """Two brokers of Apache's and two instances that listen; their addresses."""
    need(apache_jars)
    cluster = RealCluster(tmp_path_factory.mktemp("apache"), BROKERS, settings=CHECKS)
    try:
        topics = [f"orders-{name.partition('-')[0]}" for name in NAMES]
        cluster.topics(QUEUES, *topics, *OTHERS, *TRANSACTED, "orders-batch", "orders-kill")
        fronts = [f"127.0.0.1:{free_port()}" for _ in range(2)]
        for front in fronts:
            cluster.service("--listen", front)
        cluster.wait_owned(BROKERS * QUEUES, PATIENCE_S)
        yield cluster, fronts
    finally:
        cluster.stop()


def workload(topic: str, count: int, due_ms: int, spread_ms: int = 10) -> list[dict[str, Any]]:
    """Timed and normal messages in turns."""
    return [
        {
            "n": number,
            "topic": topic,
            "tag": "a",
            "keys": [f"key{number}"],
            "body": base64.b64encode(b"body %d" % number).decode(),
            "properties": {NUMBER: str(number), "colour": "blue \u00e9"},
            **({"start_deliver_ms": due_ms + number * spread_ms} if number % 2 else {}),
        }
        for number in range(count)
    ]


def fair(copies: Copies, numbers: Sequence[int]) -> None:
    """None is lost, early, or delivered twice.

    A client that gets no answer for seconds, as on a busy machine, sends once more: that is a second entry, or a second
    message that passes through, as with every broker. So few of these are no fault of the service.
    """
    verdict = copies.verdict(numbers)
    assert (verdict["lost"], verdict["early"]) == (0, 0), verdict
    entries = Counter(get_property(message.properties, DELAY_ID) for message in copies.messages)
    del entries[None]
    assert set(entries.values()) <= {1}, "an entry was delivered twice"
    assert verdict["twice"] <= len(numbers) // 20, verdict


@pytest.mark.parametrize("name", NAMES)
def test_many_of_each(apache: tuple[RealCluster, list[str]], name: str, tmp_path: Path) -> None:
    cluster, fronts = apache
    topic = f"orders-{name.partition('-')[0]}"
    client = need(lambda: Client(name, ";".join(fronts), tmp_path))
    try:
        client.consume("c", f"consumers-{topic}", {topic: "a"})
        due_ms = now_ms() + 15_000
        sent = client.produce("p", f"producers-{topic}", workload(topic, 2 * COUNT, due_ms), PATIENCE_S)
        assert len(sent) == 2 * COUNT
        events = client.wait_received("c", 2 * COUNT, PATIENCE_S)
        let_pass(5)  # for copies that should not come
        events = client.received("c")
    finally:
        client.stop()
    counts = Counter(int(event["properties"][NUMBER]) for event in events)
    assert counts.keys() == set(range(2 * COUNT))
    for event in events:
        number = int(event["properties"][NUMBER])
        assert event["properties"]["colour"] == "blue \u00e9"
        assert "TW_TOPIC" not in event["properties"]
        if number % 2:
            assert event["received_ms"] >= due_ms + number * 10
    copies = cluster.read(topic)
    fair(copies, range(2 * COUNT))
    assert {message.body for message in copies.messages} == {b"body %d" % number for number in range(2 * COUNT)}
    assert not cluster.read(REJECTED_TOPIC).messages


@pytest.mark.parametrize("name", ["java-4.9.8", "java-5.5.0", "ons-1.8.8.8", "node-ali-ons"])
def test_each_way_to_say_when(apache: tuple[RealCluster, list[str]], name: str, tmp_path: Path) -> None:
    cluster, fronts = apache
    topic = name.replace(".", "-")
    due_ms = now_ms() + 8000
    fields = ["start_deliver_ms"]
    if name.startswith("java"):
        fields.append("timer_deliver_ms")
    if name == "java-5.5.0":
        fields.append("timer_due_ms")
    messages = workload(topic, 60, due_ms)
    for number, message in enumerate(messages):
        if message.pop("start_deliver_ms", None):
            message[fields[number // 2 % len(fields)]] = due_ms + number * 10
    client = need(lambda: Client(name, ";".join(fronts), tmp_path))
    try:
        assert len(client.produce("p", f"producers-{topic}", messages, PATIENCE_S)) == 60
    finally:
        client.stop()
    cluster.wait_delivered(60, PATIENCE_S, topic)
    let_pass(2)
    copies = cluster.read(topic)
    fair(copies, range(60))
    for number, stored, due in ((number, *row) for number, rows in copies.found.items() for row in rows):
        if number % 2:
            # A client that says how long to wait reckons from its own clock, and the broker from when it has it.
            slack_ms = 15_000 if fields[number // 2 % len(fields)] == "timer_due_ms" else 0
            assert due_ms + number * 10 <= stored and 0 <= due - (due_ms + number * 10) <= slack_ms


def test_batches(apache: tuple[RealCluster, list[str]], tmp_path: Path) -> None:
    """Batches of both kinds, of one kind, and of the other: none of their messages is early or twice."""
    cluster, fronts = apache
    client = need(lambda: Client("java-5.5.0", ";".join(fronts), tmp_path))
    due_ms = now_ms() + 12_000
    messages = workload("orders-batch", 300, due_ms)
    for number, message in enumerate(messages):
        message.pop("start_deliver_ms", None)
        if number < 100 or (number < 200 and number % 2):
            message["start_deliver_ms"] = due_ms + number * 10
    try:
        assert len(client.produce("p", "producers-batch", messages, PATIENCE_S, batch=10)) == 300
        sent_ms = now_ms()
    finally:
        client.stop()
    cluster.wait_delivered(300, PATIENCE_S, "orders-batch")
    let_pass(2)
    copies = cluster.read("orders-batch")
    fair(copies, range(300))
    for number, stored, due in ((number, *row) for number, rows in copies.found.items() for row in rows):
        if "start_deliver_ms" in messages[number]:
            assert stored >= due == due_ms + number * 10
        else:
            assert stored < max(due_ms, sent_ms + 10_000), "it waited, and had no due time"
            assert bool(due) == (number < 200), "with its batch, by the service; or passed through"


@pytest.mark.parametrize("name", NAMES)
def test_transactions(apache: tuple[RealCluster, list[str]], name: str, tmp_path: Path) -> None:
    """Ends and checks of half messages, with a due time and without."""
    cluster, fronts = apache
    topic = "transacted-" + name.partition("-")[0]
    commit, rollback, unknown = "COMMIT_MESSAGE", "ROLLBACK_MESSAGE", "UNKNOW"
    ends = [(commit, []), (rollback, []), (unknown, [commit]), (unknown, [rollback])]
    due_ms = now_ms() + 15_000
    messages = workload(topic, 40, due_ms)
    for number, message in enumerate(messages):
        message["outcome"], message["checks"] = ends[number // 2 % 4]
        message["properties"][OF_THE_DRIVER] = str(number)
    client = need(lambda: Client(name, ";".join(fronts), tmp_path))
    try:
        client.command("transact", id="t", group=f"transactors-{topic}", messages=messages)
        client.wait("t", "transactions", PATIENCE_S)
        assert not client.events("t", "send_failed")
        cluster.wait_delivered(20, PATIENCE_S, topic)
        let_pass(10)  # for checks and copies that should not come
    finally:
        client.stop()
    copies = cluster.read(topic)
    committed = [number for number in range(40) if commit in (messages[number]["outcome"], *messages[number]["checks"])]
    assert sorted(copies.found) == committed
    fair(copies, committed)
    for number, stored, due in ((number, *row) for number, rows in copies.found.items() for row in rows):
        assert due == (due_ms + number * 10 if number % 2 else 0) and stored >= due


def test_an_instance_is_killed(apache: tuple[RealCluster, list[str]], tmp_path: Path) -> None:
    """What the producer was told is stored comes once; it tries the rest again.

    Of its two threads each may have a send under way. Java's client tries these again as soon as the connection ends,
    but now and then it waits for the answer until its time is over (3 of 13 runs, on a busy machine). Nobody knows
    whether such a send is stored: it may come once.
    """
    cluster, fronts = apache
    client = need(lambda: Client("java-5.5.0", ";".join(fronts), tmp_path))
    try:
        due_ms = now_ms() + 20_000
        messages = workload("orders-kill", 2000, due_ms, 5)
        client.command("produce", id="p", group="producers-kill", messages=messages)
        client.wait("p", "sent", PATIENCE_S, 300)
        cluster.services[0].kill()
        client.wait("p", "produced", PATIENCE_S)
        waited = {event["n"]: event["error"] for event in client.events("p", "send_failed")}
        assert len(waited) <= 2 and all(map(was_out_of_time, waited.values())), waited
        told = {event["n"] for event in client.events("p", "sent")}
        assert told | waited.keys() == set(range(2000))
    finally:
        client.stop()
    copies = cluster.wait_delivered(len(told), PATIENCE_S, "orders-kill")
    let_pass(5)
    copies = cluster.read("orders-kill")
    fair(copies, sorted(told))
    entries = Counter(number for number in cluster.read(ENTRY).found if number >= 0)
    assert entries
