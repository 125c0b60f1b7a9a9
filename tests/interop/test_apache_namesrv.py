"""Apache's own name server and admin tool, with our broker registered: clients find it as they find Apache's."""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.interop.workload import NUMBER
from tests.support.admin import MqAdmin, admin_classes
from tests.support.apache import ApacheNameServer, apache_jars
from tests.support.clients import Client
from tests.support.need import need
from tests.support.ours import OurBroker
from tests.support.ports import free_port
from tests.support.wait import wait_until
from tests.support.wire import Wire, WireError

pytestmark = [pytest.mark.interop, pytest.mark.process, pytest.mark.apache]

TOPIC = "through-apache"


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApacheNameServer]:
    need(apache_jars)
    server = ApacheNameServer(tmp_path_factory.mktemp("namesrv"))
    yield server
    server.stop()


def _message(n: int, due_ms: int | None = None) -> dict[str, object]:
    line: dict[str, object] = {
        "n": n,
        "topic": TOPIC,
        "body": base64.b64encode(b"body %d" % n).decode(),
        "keys": [f"key{n}"],
        "properties": {NUMBER: str(n)},
    }
    return line if due_ms is None else {**line, "start_deliver_ms": due_ms}


@pytest.mark.parametrize("name", ["java-5.5.0", "java-4.9.8"])
def test_java_client_through_apaches_name_server(
    names: ApacheNameServer,
    start_broker: Callable[..., OurBroker],
    start_client: Callable[[str, str], Client],
    name: str,
) -> None:
    """A second, dead name server in the list does no harm; a stopped broker leaves the routes."""
    dead = f"127.0.0.1:{free_port()}"
    broker = start_broker(namesrv=names.address, settings={"namesrvAddr": f"{dead};{names.address}"})
    client = start_client(name, names.address)
    due_ms = int(time.time() * 1000) + 4_000
    client.produce("p", "producers", [_message(n, due_ms + n if n % 2 else None) for n in range(200)])
    with Wire(names.address) as wire:
        wire.wait_route(TOPIC, 60)
    client.consume("c", "consumers", {TOPIC: "*"})
    events = client.wait_received("c", 200, 60)
    assert sorted(int(event["properties"][NUMBER]) for event in events) == list(range(200))
    for event in events:
        n = int(event["properties"][NUMBER])
        assert n % 2 == 0 or event["received_ms"] >= due_ms + n
    client.stop()
    assert broker.stop() == 0
    with Wire(names.address) as wire, pytest.raises(WireError):
        wire.ask(105, {"topic": TOPIC})


def test_apaches_admin_tool(
    names: ApacheNameServer,
    start_broker: Callable[..., OurBroker],
    start_client: Callable[[str, str], Client],
    tmp_path: Path,
) -> None:
    """The commands that people use every day run against our broker and show what is there."""
    need(admin_classes)
    broker = start_broker(namesrv=names.address)
    admin = MqAdmin(names.address, tmp_path / "admin")
    try:
        _administer(admin, broker, names, start_client)
    finally:
        admin.stop()


def _administer(
    admin: MqAdmin, broker: OurBroker, names: ApacheNameServer, start_client: Callable[[str, str], Client]
) -> None:
    assert "success" in admin("updateTopic", "-b", broker.address, "-t", TOPIC, "-r", "4", "-w", "4")
    assert "success" in admin("updateSubGroup", "-b", broker.address, "-g", "admin-group")
    with Wire(names.address) as wire:
        wire.wait_route(TOPIC, 60)
    client = start_client("java-5.5.0", names.address)
    client.consume("c", "admin-group", {TOPIC: "*"})
    due_ms = int(time.time() * 1000) + 2_000
    messages = [_message(n, due_ms if n % 2 else None) for n in range(20)]
    sent = {event["n"]: event for event in client.produce("p", "producers", messages)}
    client.wait_received("c", 20, 60)

    assert broker.address in admin("clusterList")
    assert TOPIC in admin("topicList")
    assert broker.address in admin("topicRoute", "-t", TOPIC)
    status = admin("topicStatus", "-t", TOPIC)
    assert sum(int(line.split()[3]) for line in status.splitlines() if line.startswith("broker-a")) == 20
    assert "admin-group" in admin("consumerConnection", "-g", "admin-group")
    # A consumer tells its offsets every five seconds.
    wait_until(lambda: TOPIC in admin("consumerProgress", "-g", "admin-group"), 60, "the consumer's offsets")
    assert "putTps" in admin("brokerStatus", "-b", broker.address)
    assert "flushDiskType" in admin("getBrokerConfig", "-b", broker.address)
    ordinary, timed = sent[0], sent[1]
    assert ordinary["msg_id"] in admin("queryMsgById", "-i", ordinary["offset_msg_id"], "-t", TOPIC)
    assert timed["msg_id"] in admin("queryMsgById", "-i", timed["offset_msg_id"], "-t", TOPIC)
    assert timed["msg_id"] in admin("queryMsgByUniqueKey", "-i", timed["msg_id"], "-t", TOPIC)
    assert ordinary["msg_id"] in admin("queryMsgByKey", "-k", "key0", "-t", TOPIC)
    client.stop()
    assert "success" in admin("deleteTopic", "-c", "DefaultCluster", "-t", TOPIC)
    with Wire(names.address) as wire, pytest.raises(WireError):
        wire.ask(105, {"topic": TOPIC})
