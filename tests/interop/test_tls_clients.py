"""TLS and plain connections of stock clients on the same port, on our broker and on Apache's."""

from __future__ import annotations

import base64
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.interop.peers import Peer, start_peer
from tests.interop.workload import NUMBER
from tests.support.certificates import make_certificate
from tests.support.clients import Client
from tests.support.ours import OurBroker
from tests.support.ports import wait_open

pytestmark = pytest.mark.interop

StartClient = Callable[[str, str], Client]
_names = itertools.count(1)


@pytest.fixture(
    scope="module",
    params=[pytest.param("ours", marks=pytest.mark.process), pytest.param("apache", marks=pytest.mark.apache)],
)
def peer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Peer]:
    """Ours with a certificate; Apache's makes itself one, as it does where none is configured."""
    folder = tmp_path_factory.mktemp(request.param)
    made = make_certificate(folder / "tls")
    own = {"tls.server.certPath": str(made.certificate), "tls.server.keyPath": str(made.key)}
    with start_peer(request.param, folder, own if request.param == "ours" else {}, tls=True) as started:
        yield started


def _messages(topic: str, numbers: range) -> list[dict[str, Any]]:
    body = base64.b64encode(b"x" * 100_000).decode()
    return [{"n": n, "topic": topic, "body": body, "tag": "A", "properties": {NUMBER: str(n)}} for n in numbers]


def _numbers(events: list[dict[str, Any]]) -> list[int]:
    return sorted(int(event["properties"][NUMBER]) for event in events)


def test_both_kinds_of_clients_read_what_both_kinds_send(peer: Peer, start_client: StartClient) -> None:
    topic = f"tls_{next(_names)}"
    peer.prepare(topic)
    secret, plain = start_client("java-5.5.0", peer.namesrv), start_client("java-5.5.0", peer.namesrv)
    secret.consume("c", f"{topic}_secret", {topic: "*"}, tls="yes")
    plain.consume("c", f"{topic}_plain", {topic: "*"})
    secret.produce("p", "secret-producers", _messages(topic, range(30)), tls="yes")
    plain.produce("p", "plain-producers", _messages(topic, range(30, 60)))
    for client in (secret, plain):
        assert _numbers(client.wait_received("c", 60, 60)) == list(range(60))


@pytest.fixture
def enforcing(tmp_path: Path) -> Iterator[OurBroker]:
    """Ours alone: Apache's broker and name server would have to speak TLS among themselves."""
    made = make_certificate(tmp_path / "tls")
    own = {"tls.server.certPath": str(made.certificate), "tls.server.keyPath": str(made.key)}
    broker = OurBroker(tmp_path / "enforcing", {"tls.server.mode": "enforcing", **own})
    try:
        broker.spawn()  # `start` would ask its name server without TLS
        assert wait_open(broker.port, 30)
        yield broker
    finally:
        broker.kill()


@pytest.mark.process
def test_enforcing_lets_in_who_speaks_tls_and_nobody_else(enforcing: OurBroker, start_client: StartClient) -> None:
    secret, plain = start_client("java-5.5.0", enforcing.namesrv), start_client("java-5.5.0", enforcing.namesrv)
    secret.produce("p", "secret-producers", _messages("enforced", range(10)), tls="yes")
    secret.consume("c", "enforced-group", {"enforced": "*"}, tls="yes")
    assert _numbers(secret.wait_received("c", 10, 60)) == list(range(10))
    plain.command("produce", id="p", group="plain-producers", messages=_messages("enforced", range(1)), threads=1)
    plain.wait("p", "produced", 60)
    assert len(plain.events("p", "send_failed")) == 1
    assert not plain.events("p", "sent")
