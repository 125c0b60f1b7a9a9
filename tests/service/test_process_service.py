"""The service as a process, beside a real Apache cluster and beside brokers of ours: stock clients, kills, stops."""

from __future__ import annotations

import asyncio
import base64
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from remoting.messages.message import Message, decode_record, encode_record
from remoting.messages.properties import format_properties, get_property
from service.link.cluster import ClusterLink, Fate, fate_of
from service.running.entries import REJECTED_TOPIC
from tests.service.process_cluster import ENTRY, NUMBER, RealCluster, continued, make_topic, now_ms, stopped
from tests.support.apache import apache_jars
from tests.support.clients import Client
from tests.support.need import need
from tests.support.ours import ROOT
from tests.support.ports import free_port
from tests.support.wait import happens, let_pass
from timewheel_client import Producer

pytestmark = pytest.mark.process
PATIENCE_S = 240
OF_THE_TIMER = ("TIMER_OUT_MS", "TIMER_ENQUEUE_MS", "TIMER_DEQUEUE_MS", "TIMER_ROLL_TIMES", "TIMER_DELAY_MS")
"""For a machine that does much else."""
FAIR = {"lost": 0, "early": 0, "twice": 0}


@pytest.fixture(scope="module")
def apache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealCluster]:
    need(apache_jars)
    cluster = RealCluster(tmp_path_factory.mktemp("apache"))
    yield cluster
    cluster.stop()


def run_service(namesrv: str, folder: Path, *more: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "broker.cli", "service", "--namesrv-addr", namesrv, "--store", str(folder), *more]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)


def test_without_a_cluster_it_says_so(tmp_path: Path) -> None:
    nobody = f"127.0.0.1:{free_port()}"
    done = run_service(nobody, tmp_path)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1 and "no name server can be reached" in done.stderr and nobody in done.stderr


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--topic", "TIME WHEEL"], "TIME WHEEL"),
        (["--topic", "TIMEWHEEL_REJECTED"], "TIMEWHEEL_REJECTED: this topic has another use"),
        (["--topic", "T" * 119], "too long"),
        (["--access-key", "me"], "TIMEWHEEL_SECRET_KEY"),
        (["--namesrv-addr", "nonsense"], "nonsense"),
    ],
)
def test_bad_arguments_are_named(tmp_path: Path, arguments: list[str], named: str) -> None:
    done = run_service("127.0.0.1:1", tmp_path, *arguments)
    assert done.returncode == 2
    assert named in done.stderr


@pytest.mark.apache
def test_beside_apache(apache: RealCluster, tmp_path: Path) -> None:
    """In one cluster, one after the other: each start of Apache's processes takes many seconds."""
    done = run_service(apache.namesrv, tmp_path / "early")
    assert done.returncode == 1
    for topic in (ENTRY, "TIMEWHEEL_PROGRESS", REJECTED_TOPIC):
        assert f"updateTopic -n '{apache.namesrv}' -c DefaultCluster -t {topic}" in done.stderr
    apache.topics(4, "orders")
    first = apache.service()
    apache.wait_owned(4)
    _stock_client(apache, tmp_path)
    _rejected(apache)
    _without_bodies(apache)
    _batches(apache)
    _faults(apache)
    for child in apache.services:
        if child is not first and child.running():
            assert child.terminate() == 0


def _stock_client(cluster: RealCluster, folder: Path) -> None:
    """A stock Java producer and consumer: two user properties are all that the sender needs.

    The last message is delayed by Apache's own timer, before it becomes an entry.
    """
    client = need(lambda: Client("java-5.5.0", cluster.namesrv, folder / "java"))
    try:
        client.consume("c", "consumers", {"orders": "a"})
        due_ms = now_ms() + 3000
        messages = [
            {
                "n": number,
                "topic": ENTRY,
                "tag": "a",
                "keys": [f"key{number}"],
                "body": base64.b64encode(b"body %d" % number).decode(),
                "properties": {NUMBER: str(number), "TW_TOPIC": "orders", "TW_DELIVER_MS": str(due_ms + number)},
            }
            for number in range(51)
        ]
        del messages[50]["properties"]["TW_DELIVER_MS"]
        messages[50]["timer_due_ms"] = due_ms + 50
        client.produce("p", "producers", messages)
        events = client.wait_received("c", 51, PATIENCE_S)
        assert sorted(int(event["properties"][NUMBER]) for event in events) == list(range(51))
        for event in events:
            number = int(event["properties"][NUMBER])
            assert event["received_ms"] >= due_ms + number
            assert event["properties"].keys().isdisjoint({"TW_TOPIC", "REAL_TOPIC", "REAL_QID", *OF_THE_TIMER})
        entry = next(message for message in cluster.read(ENTRY).messages if message.body == b"body 50")
        assert get_property(entry.properties, "REAL_TOPIC") == ENTRY, (
            "Apache's timer leaves it: it is kept from consumers"
        )
        bodies = {message.body for message in cluster.read("orders").messages}
        assert bodies == {b"body %d" % number for number in range(51)}
    finally:
        client.stop()


def _rejected(cluster: RealCluster) -> None:
    """What cannot be delivered goes to the topic of the rejected, with the reason; nothing is dropped."""
    cases = {
        1001: ({}, "TW_TOPIC is missing"),
        1002: ({"TW_TOPIC": "orders"}, "no due time"),
        1003: ({"TW_TOPIC": "orders", "TW_DELIVER_MS": "soon"}, "'soon'"),
        1004: ({"TW_TOPIC": "no such topic", "TW_DELAY_MS": "5"}, "is not a topic name"),
        1005: ({"TW_TOPIC": "missing", "TW_DELAY_MS": "5"}, "missing"),
        1006: ({"TW_TOPIC": "closed", "TW_DELAY_MS": "5"}, "not writable"),
        1007: ({"TW_TOPIC": ENTRY, "TW_DELAY_MS": "5"}, "the entry topic or a system topic"),
    }

    async def send() -> None:
        await make_topic(cluster.brokers[0].address, "closed", 4, perm=4)
        async with Producer(cluster.namesrv) as producer:
            for number, (properties, _) in cases.items():
                await producer.send(ENTRY, b"body", tags="t", properties={**properties, NUMBER: str(number)})

    asyncio.run(send())
    copies = cluster.wait_delivered(len(cases), PATIENCE_S, REJECTED_TOPIC)
    assert {number: len(rows) for number, rows in copies.found.items()} == dict.fromkeys(cases, 1)
    for message in copies.messages:
        number = int(get_property(message.properties, NUMBER) or 0)
        reason = get_property(message.properties, "TW_REASON") or ""
        assert cases[number][1] in reason, (number, reason)
        assert message.body == b"body" and get_property(message.properties, "TAGS") == "t"


def _without_bodies(cluster: RealCluster) -> None:
    """They come in a client's batch. Apache's broker 5.5.0 stores them only in a batch."""
    before = len(cluster.read("orders").found)
    due_ms = str(now_ms() + 2000)
    cluster.send_batch(
        (b"", {NUMBER: "1101", "TW_TOPIC": "orders", "TW_DELIVER_MS": due_ms, "TAGS": "t"}),
        (b"x", {NUMBER: "1102", "TW_TOPIC": "orders", "TW_DELIVER_MS": due_ms}),
        (b"", {NUMBER: "1103"}),
        (b"", {NUMBER: "1104", "TW_TOPIC": "closed", "TW_DELAY_MS": "5"}),
    )
    orders = cluster.wait_delivered(before + 2, PATIENCE_S, "orders")
    assert orders.verdict([1101, 1102]) == FAIR
    assert happens(lambda: {1103, 1104} <= set(cluster.read(REJECTED_TOPIC).found), PATIENCE_S)
    rejected = cluster.read(REJECTED_TOPIC)
    assert rejected.verdict([1103, 1104])["twice"] == 0
    for message in (*orders.messages, *rejected.messages):
        if get_property(message.properties, NUMBER) in ("1101", "1103", "1104"):
            assert message.body == b""
            assert get_property(message.properties, "TW_DELAY_ID")


_SPECIAL = {"batchy": "+queue.type=BatchCQ", "compacted": "+cleanup.policy=COMPACTION", "simple": ""}


def _batches(cluster: RealCluster) -> None:
    """What is due together and was born together goes in one request, and each message is as if it had gone alone.

    Topics for whole batches get plain records. A topic that is compacted gets those with keys; the others are rejected.
    """
    born_ms, count = now_ms() - 5000, 200
    due_ms = now_ms() + 6000

    async def send() -> None:
        for topic, attributes in _SPECIAL.items():
            await make_topic(cluster.brokers[0].address, topic, 1, attributes=attributes)
        link = ClusterLink(cluster.namesrv, "SENDER")
        await link.core.start()
        try:
            connection = await link.connection(ENTRY, "broker-0")
            replies = []
            for at, topic in enumerate(_SPECIAL):
                for number in range(count):
                    flags = 0 if number < count // 2 else 0x101  # it says that the body is compressed
                    born = Message(topic, 0, number, flags, born_ms + flags, bytes(8), 0, 0, b"", "")
                    like = decode_record(encode_record(born, bytes(8), 1))
                    named = {"UNIQ_KEY": f"u{at}/{number}", NUMBER: str(5000 + 1000 * at + number), "TW_TOPIC": topic}
                    text = format_properties(
                        {**named, "TW_DELIVER_MS": str(due_ms), "TAGS": "t", **({"KEYS": "k"} if number % 3 else {})}
                    )
                    replies.append(link.send_now(connection, (ENTRY, "broker-0", 0), text, b"%d" % number, like=like))
            assert {(await fate_of(reply)).fate for reply in replies} == {Fate.STORED}
        finally:
            await link.core.close()

    asyncio.run(send())
    keyless = len(range(0, count, 3))
    for at, topic in enumerate(_SPECIAL):
        rejected = keyless if topic == "compacted" else 0
        copies = cluster.wait_delivered(count - rejected, PATIENCE_S, topic)
        numbers = [number for number in range(count) if number % 3 or not rejected]
        assert copies.verdict([5000 + 1000 * at + number for number in numbers]) == FAIR
        for message in copies.messages:
            number = int(message.body)
            flags = 0 if number < count // 2 else 0x101
            assert (message.flag, message.sys_flag, message.born_ms) == (number, flags, born_ms + flags)
            text = message.properties
            assert get_property(text, "UNIQ_KEY") == f"u{at}/{number}" and get_property(text, "TAGS") == "t"
            assert all(get_property(text, name) for name in ("TW_DELAY_ID", "CLUSTER", "MSG_REGION", "TRACE_ON"))
        # Apache's broker writes the properties of a message that goes alone in another order.
        batched = [message for message in copies.messages if "TW_DELAY_ID" in message.properties[-40:]]
        assert len(batched) > count // 4, f"{len(batched)} of {topic} went in batches"
    wanted = {6000 + number for number in range(0, count, 3)}
    assert happens(lambda: wanted <= set(cluster.read(REJECTED_TOPIC).found), PATIENCE_S)


def _faults(cluster: RealCluster) -> None:
    """Three instances: one is killed, one stopped and continued, the broker is killed and started again."""
    cluster.service()
    cluster.service()
    let_pass(3)
    before = len(cluster.read("orders").found)
    begin = now_ms()
    numbers = list(range(2000, 3200))
    cluster.send(numbers, "orders", [begin + 2000 + 20 * at for at in range(len(numbers))])
    let_pass(3)
    cluster.services[0].kill()
    let_pass(2)
    stopped(cluster.services[1])
    let_pass(5)
    continued(cluster.services[1])
    cluster.service()
    broker = cluster.brokers[0]
    port = broker.port
    broker.kill()
    broker.start(port)
    copies = cluster.wait_delivered(before + len(numbers), PATIENCE_S, "orders")
    let_pass(4)  # for copies that should not come
    copies = cluster.read("orders")
    assert copies.verdict(numbers) == FAIR


def test_beside_ours(tmp_path: Path) -> None:
    """Brokers of ours, with their own name server; two instances share the shards, and one hands over to the other."""
    cluster = RealCluster(tmp_path, ours=True)
    try:
        cluster.topics(4, "orders")
        first = cluster.service("--roll-after", "2")
        cluster.wait_owned(4, PATIENCE_S)
        begin = now_ms()
        numbers = list(range(600))
        cluster.send(numbers, "orders", [begin + 12_000 + 10 * at for at in range(len(numbers))])
        later = {"TW_TOPIC": "orders", "TW_DELIVER_MS": str(begin + 12_000)}
        bodiless = [600, 601]
        cluster.send_batch(*((b"", {NUMBER: str(number), **later}) for number in bodiless))
        numbers += bodiless
        cluster.service("--roll-after", "2")
        cluster.wait_owned(6, PATIENCE_S)  # it has got two of them
        assert first.terminate() == 0
        copies = cluster.wait_delivered(len(numbers), PATIENCE_S, "orders")
        assert copies.verdict(numbers) == FAIR
        assert not cluster.read(REJECTED_TOPIC).messages
        entries = cluster.read(ENTRY).messages
        rolls = [message for message in entries if get_property(message.properties, "TW_KIND") == "roll"]
        assert rolls, "what waits longer than two seconds is written again"
        again = {get_property(message.properties, NUMBER) for message in rolls if not message.body}
        assert again == {str(number) for number in bodiless}
    finally:
        cluster.stop()
