"""Transactions of stock producers, the same on our broker and on Apache's: outcomes, check-backs, a dead producer."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from remoting.messages.message import encode_host
from tests.interop.guests import Hosts
from tests.interop.workload import NUMBER, small_message
from tests.support.admin import MqAdmin
from tests.support.apache import ApacheBroker, ApacheNameServer, apache_jars
from tests.support.clients import Client
from tests.support.commitlog import Record, read_commit_log
from tests.support.need import need
from tests.support.ours import OurBroker
from tests.support.wait import happens, let_pass, wait_until
from tests.support.wire import Wire
from tests.support.wire_admin import create_group, set_offset

pytestmark = [pytest.mark.interop, pytest.mark.process, pytest.mark.apache]

Borrow = Callable[..., Client]
StartClient = Callable[[str, str], Client]
Broker = OurBroker | ApacheBroker
CLIENTS = ["java-5.5.0", "go-v2"]
CHECK_MAX = 3
SETTINGS = {
    "transactionTimeOut": "1000",
    "transactionCheckInterval": "1000",
    "transactionCheckMax": str(CHECK_MAX),
}
DISCARDED = "TRANS_CHECK_MAX_TIME_TOPIC"
IMMUNE_SECONDS = 5
LATE_ANSWERS = 2
UPDATE_BROKER_CONFIG = 25


@pytest.fixture(scope="module", params=["ours", "apache"])
def broker(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """One broker of each kind, with short times."""
    folder = tmp_path_factory.mktemp(request.param)
    if request.param == "ours":
        ours = OurBroker(folder, SETTINGS).start()
        yield ours
        ours.kill()
        return
    need(apache_jars)
    names = ApacheNameServer(folder / "namesrv")
    apache = ApacheBroker(folder / "broker", names.address, SETTINGS)
    try:
        yield apache.start()
    finally:
        apache.kill()
        names.stop()


@pytest.fixture(scope="module")
def hosts(broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    """The clients that the tests on a broker share; they end before it."""
    made = Hosts(broker.namesrv, tmp_path_factory)
    yield made
    made.stop()


@pytest.fixture
def borrow(broker: Broker, hosts: Hosts, start_client: StartClient) -> Iterator[Borrow]:
    """Borrow a client of Java's. One of Go's is started: it costs little, and its producers share what asks them."""
    with hosts.lent() as lent:
        yield lambda name: lent(name) if name.startswith("java") else start_client(name, broker.namesrv)


def _prepare(broker: Broker, topic: str, group: str) -> None:
    with Wire(broker.address) as wire:
        wire.create_topic(topic)
        create_group(wire, group)
        for queue_id in range(4):
            set_offset(wire, group, topic, queue_id, 0)
    with Wire(broker.namesrv) as wire:
        wire.wait_route(topic, 30)


def _message(n: int, topic: str, outcome: str, *checks: str, **properties: str) -> dict[str, Any]:
    named = {NUMBER: str(n), **properties}
    return small_message(n, topic, properties=named, outcome=outcome, checks=list(checks))


def _numbers(events: list[dict[str, Any]]) -> Counter[int]:
    return Counter(int(event["properties"][NUMBER]) for event in events)


def _records(broker: Broker, topic: str) -> list[Record]:
    return [record for record in read_commit_log(broker.store) if record.topic == topic]


@pytest.mark.parametrize("name", CLIENTS)
def test_every_outcome(broker: Broker, borrow: Borrow, name: str) -> None:
    """Committed at once or when asked: delivered once. Rolled back: never. Undecided for ever: to the discard topic."""
    commit, rollback, unknown = "COMMIT_MESSAGE", "ROLLBACK_MESSAGE", "UNKNOW"
    topic = "transacted-" + name.partition("-")[0]
    _prepare(broker, topic, f"{topic}-c")
    client = borrow(name)
    client.consume("c", f"{topic}-c", {topic: "*"})
    messages = [
        _message(0, topic, commit),
        _message(1, topic, rollback),
        _message(2, topic, unknown, commit),
        _message(3, topic, unknown, rollback),
        _message(4, topic, unknown, unknown, commit),
        _message(5, topic, unknown),
        _message(6, topic, commit),
        _message(7, topic, unknown, commit, CHECK_IMMUNITY_TIME_IN_SECONDS=str(IMMUNE_SECONDS)),
    ]
    if name.startswith("java"):
        messages.append(_message(8, topic, "THROW", commit))
    began = time.time()
    client.command("transact", id="p", group=f"{topic}-p", messages=messages)
    client.wait("p", "transactions", 30)
    assert not client.events("p", "send_failed")
    sent = {event["n"]: event for event in client.events("p", "transacted")}
    expected = [n for n in (0, 2, 4, 6, 7, 8) if n in sent]
    client.wait_received("c", len(expected), 60)
    happens(lambda: _discarded(broker, topic), 30)
    let_pass(2.5)  # two more rounds of checks: nothing else may happen
    received = client.received("c")
    assert _numbers(received) == Counter(expected)
    asked = _numbers(client.events("p", "checked"))
    wanted = Counter({n: times for n, times in {2: 1, 3: 1, 4: 2, 5: CHECK_MAX, 7: 1, 8: 1}.items() if n in sent})
    assert not wanted - asked
    assert asked[5] == CHECK_MAX
    # A producer that takes longer than a second to answer is asked once more.
    assert (asked - wanted).total() <= LATE_ANSWERS, asked
    by_number = {int(event["properties"][NUMBER]): event for event in received}
    halves: dict[str, set[int]] = {}
    for record in _records(broker, "RMQ_SYS_TRANS_HALF_TOPIC"):
        halves.setdefault(record.properties["UNIQ_KEY"], set()).add(record.offset)
    for n in expected:
        _check_delivered(by_number[n], sent[n], topic, halves)
    assert by_number[7]["store_ms"] >= (began + IMMUNE_SECONDS) * 1000
    given_up, *more = _discarded(broker, topic)
    assert not more or isinstance(broker, ApacheBroker), "once; Apache's broker may repeat itself"
    assert given_up.properties[NUMBER] == "5"
    assert given_up.properties["TRANSACTION_CHECK_TIMES"] == str(CHECK_MAX)
    assert given_up.properties["REAL_TOPIC"] == topic


def _check_delivered(event: dict[str, Any], sent: dict[str, Any], topic: str, halves: dict[str, set[int]]) -> None:
    """What a consumer sees of a committed message, on either broker."""
    assert event["topic"] == topic
    assert event["queue_id"] == sent["queue_id"], "as the sender asked"
    assert event["sys_flag"] & 0xC == 8, "committed"
    assert event["prepared_offset"] in halves[sent["transaction_id"]]
    assert event["msg_id"] == sent["msg_id"] == sent["transaction_id"]
    assert event["properties"]["UNIQ_KEY"] == sent["transaction_id"]
    assert event["properties"]["__transactionId__"] == sent["transaction_id"]
    assert event["properties"]["PGROUP"].endswith("-p")
    assert event["tags"] == "A"


def _discarded(broker: Broker, topic: str) -> list[Record]:
    return [record for record in _records(broker, DISCARDED) if record.properties.get("REAL_TOPIC") == topic]


@pytest.fixture
def patient(broker: Broker) -> Iterator[Broker]:
    """The broker asks as often as it takes: a slow machine would spend ``CHECK_MAX`` on a producer that is killed."""
    with Wire(broker.address) as wire:
        wire.ask(UPDATE_BROKER_CONFIG, {}, b"transactionCheckMax=100")
    yield broker
    with Wire(broker.address) as wire:
        wire.ask(UPDATE_BROKER_CONFIG, {}, f"transactionCheckMax={CHECK_MAX}".encode())


@pytest.mark.parametrize("name", CLIENTS)
def test_a_dead_producers_group_is_asked(patient: Broker, borrow: Borrow, start_client: StartClient, name: str) -> None:
    """The producer is killed with its transactions open; another one of its group knows the answers."""
    broker = patient
    topic = "orphaned-" + name.partition("-")[0]
    _prepare(broker, topic, f"{topic}-c")
    group = f"{topic}-p"
    heir = borrow(name)
    heir.consume("c", f"{topic}-c", {topic: "*"})
    answers = ["COMMIT_MESSAGE", "ROLLBACK_MESSAGE"]
    known = [_message(n, topic, "UNKNOW", answers[n % 2]) for n in range(10)]
    first = start_client(name, broker.namesrv)
    first.command("transact", id="p", group=group, messages=[_message(n, topic, "UNKNOW") for n in range(10)])
    first.wait("p", "transactions", 30)
    first.kill()
    heir.command(
        "transact",
        id="p",
        group=group,
        messages=[{**one, "only_checked": "yes"} for one in known] + [_message(10, topic, "COMMIT_MESSAGE")],
    )
    heir.wait("p", "transactions", 30)
    heir.wait_received("c", 6, 60)
    let_pass(2.5)
    assert _numbers(heir.received("c")) == Counter([0, 2, 4, 6, 8, 10])


def test_what_was_given_up_is_asked_about_again(broker: Broker, borrow: Borrow, tmp_path: Path) -> None:
    """An administrator resumes it; its producer, which did not know before, commits it now: delivered once."""
    topic = "resumed"
    _prepare(broker, topic, f"{topic}-c")
    client = borrow("java-5.5.0")
    client.consume("c", f"{topic}-c", {topic: "*"})
    answers = ["UNKNOW"] * CHECK_MAX + ["COMMIT_MESSAGE"]
    client.command("transact", id="p", group=f"{topic}-p", messages=[_message(0, topic, "UNKNOW", *answers)])
    client.wait("p", "transactions", 30)
    wait_until(lambda: _discarded(broker, topic), 30, "the half message is given up")
    given_up = _discarded(broker, topic)
    host, port = broker.address.split(":")
    msg_id = f"{encode_host(host, int(port)).hex().upper()}{given_up[0].offset:016X}"
    admin = MqAdmin(broker.namesrv, tmp_path / "admin")
    try:
        assert "true" in admin("resumeCheckHalfMessage", DISCARDED, msg_id)
        client.wait_received("c", 1, 30)
        if isinstance(broker, OurBroker):  # Apache's broker opens it once more, for another delivery
            assert "false" in admin("resumeCheckHalfMessage", DISCARDED, msg_id)
    finally:
        admin.stop()
    let_pass(2.5)
    assert _numbers(client.received("c")) == Counter([0])


def test_a_half_message_with_a_time_is_refused(
    start_broker: Callable[..., OurBroker], start_client: StartClient
) -> None:
    """Apache's broker does not look; what becomes of it there is not defined, so there is nothing to compare with."""
    broker = start_broker()
    _prepare(broker, "timed", "timed-c")
    client = start_client("java-5.5.0", broker.namesrv)
    due_ms = int(time.time() * 1000) + 60_000
    client.command(
        "transact",
        id="p",
        group="timed-p",
        messages=[{**_message(0, "timed", "COMMIT_MESSAGE"), "start_deliver_ms": due_ms}],
    )
    (failed,) = client.wait("p", "send_failed", 30)
    assert "CODE: 13" in failed["error"]
    assert str(due_ms) in failed["error"]
    assert _records(broker, "RMQ_SYS_TRANS_HALF_TOPIC") == []


def test_a_half_message_with_a_level_is_refused(
    start_broker: Callable[..., OurBroker], start_client: StartClient
) -> None:
    """Go's client sends it (Java's refuses it itself); Apache's broker takes it, and throws it away when it is due."""
    broker = start_broker()
    _prepare(broker, "levelled", "levelled-c")
    client = start_client("go-v2", broker.namesrv)
    message = {**_message(0, "levelled", "COMMIT_MESSAGE"), "level": 3}
    client.command("transact", id="p", group="levelled-p", messages=[message])
    (failed,) = client.wait("p", "send_failed", 30)
    assert "DELAY is 3" in failed["error"]
    assert _records(broker, "SCHEDULE_TOPIC_XXXX") == []
