"""Signed requests of stock clients: ours by the rules of a plain_acl.yml, Apache's 5.5.0 by its own users."""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.interop.peers import Peer, start_peer
from tests.interop.workload import NUMBER
from tests.support.clients import Client
from tests.support.ours import OurBroker
from tests.support.wire import Wire
from timewheel_client import BrokerError, Consumer, Producer

pytestmark = pytest.mark.interop

StartClient = Callable[[str, str], Client]
RULES = """
accounts:
- accessKey: rocketmq-admin
  secretKey: 12345678
  admin: true
- accessKey: sender-only
  secretKey: 87654321
  defaultTopicPerm: PUB
"""
GOOD = {"access_key": "rocketmq-admin", "secret_key": "12345678"}
USER = json.dumps({"username": GOOD["access_key"], "password": GOOD["secret_key"]})
INNER = json.dumps({"accessKey": GOOD["access_key"], "secretKey": GOOD["secret_key"]})
APACHE = {
    "authenticationEnabled": "true",
    "authenticationProvider": "org.apache.rocketmq.auth.authentication.provider.DefaultAuthenticationProvider",
    "authenticationMetadataProvider": (
        "org.apache.rocketmq.auth.authentication.provider.LocalAuthenticationMetadataProvider"
    ),
    "initAuthenticationUser": USER,
    "innerClientAuthenticationCredentials": INNER,
}
_names = itertools.count(1)


@pytest.fixture(
    scope="module",
    params=[pytest.param("ours", marks=pytest.mark.process), pytest.param("apache", marks=pytest.mark.apache)],
)
def peer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Peer]:
    folder = tmp_path_factory.mktemp(request.param)
    rules = folder / "plain_acl.yml"
    rules.write_text(RULES)
    settings = {"aclEnable": "true", "aclFile": str(rules)} if request.param == "ours" else APACHE
    with start_peer(request.param, folder, settings) as made:
        yield made


def _messages(topic: str, count: int) -> list[dict[str, Any]]:
    body = base64.b64encode(b"body").decode()
    return [{"n": n, "topic": topic, "body": body, "tag": "A", "properties": {NUMBER: str(n)}} for n in range(count)]


@pytest.mark.parametrize("name", ["java-5.5.0", "go-v2", "ons-1.8.8.8", "node-ali-ons"])
def test_signed_clients_are_served(peer: Peer, start_client: StartClient, name: str) -> None:
    topic = f"signed_{next(_names)}"
    expected = list(range(20))
    if name == "node-ali-ons":  # which does not send to a topic that nobody made
        start_client("java-5.5.0", peer.namesrv).produce("p", "producers", _messages(topic, 1), **GOOD)
        with Wire(peer.namesrv) as names:
            names.wait_route(topic, 30)
        expected.insert(0, 0)
    client = start_client(name, peer.namesrv)
    client.produce("p", "producers", _messages(topic, 20), **GOOD)
    client.consume("c", f"{topic}_g", {topic: "*"}, **GOOD)
    found: set[int] = set()
    for count in itertools.count(len(expected)):
        found.update(map(_number, client.wait_received("c", count, 60)))
        if found >= set(expected):
            break  # a client that waited too long for a reply has sent again: what counts here is that it is served
    assert found == set(expected)


def _number(event: dict[str, Any]) -> int:
    return int(event["properties"][NUMBER])


@pytest.mark.parametrize("name", ["java-5.5.0", "go-v2"])
@pytest.mark.parametrize(
    ("keys", "ours"),
    [
        (
            {"access_key": "rocketmq-admin", "secret_key": "wrong"},
            "Check signature failed for accessKey=rocketmq-admin",
        ),
        ({"access_key": "nobody-at-all", "secret_key": "12345678"}, "No acl config for nobody-at-all"),
        ({}, "No accessKey is configured"),
    ],
    ids=["wrong-secret", "unknown", "unsigned"],
)
def test_wrong_signatures_are_refused_with_no_permission(
    peer: Peer, start_client: StartClient, name: str, keys: dict[str, str], ours: str
) -> None:
    client = start_client(name, peer.namesrv)
    for job in ("p", "again", "once more"):
        client.command("produce", id=job, group="producers", messages=_messages("TBW102", 1), threads=1, **keys)
        client.wait(job, "produced", 60)
        (failed,) = client.events(job, "send_failed")
        # On a machine that stands still for seconds: the second comes of the connection that the first has closed.
        if not re.search("Remoting(Timeout|SendRequest)Exception", failed["error"]):
            break
    if name != "go-v2":  # which shows the remark only
        assert "CODE: 16" in failed["error"]
    assert (ours in failed["error"]) is peer.ours


@pytest.mark.asyncio
async def test_our_python_client_is_served_when_it_signs(peer: Peer) -> None:
    topic = f"signed_{next(_names)}"
    async with (
        Producer(peer.namesrv, **GOOD) as producer,
        Consumer(peer.namesrv, f"{topic}_g", topic, start_from="first", **GOOD) as consumer,
    ):
        await producer.send(topic, b"body")
        async with asyncio.timeout(60):
            message = await anext(aiter(consumer))
        assert message.body == b"body"
        await message.ack()


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("keys", "ours"),
    [
        (
            {"access_key": "rocketmq-admin", "secret_key": "wrong"},
            "Check signature failed for accessKey=rocketmq-admin",
        ),
        ({}, "No accessKey is configured"),
    ],
    ids=["wrong-secret", "unsigned"],
)
async def test_our_python_client_is_told_why_not(peer: Peer, keys: dict[str, str], ours: str) -> None:
    async with Producer(peer.namesrv, **keys) as producer:
        with pytest.raises(BrokerError) as caught:
            await producer.send("TBW102", b"body")
    assert caught.value.code == 16
    assert (ours in str(caught.value)) is peer.ours


@pytest.mark.process
def test_rights_count(start_broker: Callable[..., OurBroker], start_client: StartClient, tmp_path: Path) -> None:
    """Who may only send cannot read."""
    rules = tmp_path / "plain_acl.yml"
    rules.write_text(RULES)
    broker = start_broker(settings={"aclEnable": "true", "aclFile": str(rules)})
    client = start_client("java-5.5.0", broker.namesrv)
    keys = {"access_key": "sender-only", "secret_key": "87654321"}
    client.produce("p", "producers", _messages("signed", 1), **keys)
    client.command("consume", id="c", group="reading", topics={"signed": "*"}, **keys)
    client.wait("c", "consuming", 60)
    client.consume("d", "reading-too", {"signed": "*"}, **GOOD)
    client.wait_received("d", 1, 30)
    assert client.received("c") == []


LEAST_RULES = """
accounts:
- accessKey: writer-only
  secretKey: 87654321
  topicPerms:
  - least=PUB
- accessKey: reader-only
  secretKey: 12345678
  topicPerms:
  - least=SUB
  groupPerms:
  - least_g=SUB
  - least_o=SUB
"""


@pytest.mark.process
@pytest.mark.parametrize("name", ["java-5.5.0", "go-v2"])
def test_the_least_rights_are_enough(
    start_broker: Callable[..., OurBroker], start_client: StartClient, tmp_path: Path, name: str
) -> None:
    """PUB of the topic to send; SUB of topic and group to read, in order (with locks) as well."""
    rules = tmp_path / "plain_acl.yml"
    rules.write_text(LEAST_RULES)
    broker = start_broker(settings={"aclEnable": "true", "aclFile": str(rules)})
    client = start_client(name, broker.namesrv)
    client.produce("p", "producers", _messages("least", 20), access_key="writer-only", secret_key="87654321")
    keys = {"access_key": "reader-only", "secret_key": "12345678"}
    client.consume("c", "least_g", {"least": "*"}, **keys)
    client.wait_received("c", 20, 60)
    client.consume("o", "least_o", {"least": "*"}, order="yes", **keys)
    client.wait_received("o", 20, 60)


@pytest.mark.process
@pytest.mark.asyncio
async def test_the_least_rights_are_enough_for_our_client(
    start_broker: Callable[..., OurBroker], tmp_path: Path
) -> None:
    rules = tmp_path / "plain_acl.yml"
    rules.write_text(LEAST_RULES)
    broker = start_broker(settings={"aclEnable": "true", "aclFile": str(rules)})
    keys = {"access_key": "reader-only", "secret_key": "12345678"}
    async with (
        Producer(broker.namesrv, access_key="writer-only", secret_key="87654321") as producer,
        Consumer(broker.namesrv, "least_g", "least", start_from="first", **keys) as consumer,
    ):
        await producer.send("least", b"now")
        await producer.send("least", b"later", delay=0.5)
        async with asyncio.timeout(60):
            bodies = []
            async for message in consumer:
                bodies.append(message.body)
                await message.ack()
                if len(bodies) == 2:
                    break
    assert sorted(bodies) == [b"later", b"now"]
