"""What an administrator asks a running consumer through the broker: its inner state, and to take one message again."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable
from typing import Any

import pytest

from tests.interop.peers import Peer
from tests.support.admin import MqAdmin
from tests.support.clients import Client
from tests.support.wait import wait_until

pytestmark = pytest.mark.interop

Borrow = Callable[..., Client]
TOPIC, GROUP, COUNT = "inspected", "inspected-group", 8


@pytest.mark.parametrize("name", ["java-5.5.0", "java-4.9.8"])
def test_a_running_consumer_answers(peer: Peer, borrow: Borrow, admin: MqAdmin, name: str) -> None:
    suffix = name.replace(".", "_")
    topic, group = f"{TOPIC}-{suffix}", f"{GROUP}-{suffix}"
    peer.prepare(topic)
    client = borrow(name)
    client.consume("c", group, {topic: "A || B"})
    body = base64.b64encode(b"body").decode()
    messages: list[dict[str, Any]] = [
        {"n": n, "topic": topic, "body": body, "tag": "A", "keys": [f"k{n}"], "queue": n % 4} for n in range(COUNT)
    ]
    sent = client.produce("p", "inspected-p", messages, threads=1)
    client.wait_received("c", COUNT, 60)
    client_id = _client_id(admin, group)

    def consumed() -> bool:  # topic, broker, queue, and the offset that it has consumed to
        status = admin.run("consumerStatus", "-g", group, "-i", client_id)
        assert "#Consumer Properties#" in status
        assert re.search(rf"Topic: {topic}\s.*SubExpression: A \|\| B", status), status
        return all(re.search(rf"{topic}\s+broker-a\s+{n}\s+{COUNT // 4}\b", status) for n in range(4))

    wait_until(consumed, 60, "it says how far it has come")
    assert "#Consumer jstack#" in admin.run("consumerStatus", "-g", group, "-i", client_id, "-s")

    summary = admin("consumerStatus", "-g", group)
    assert client_id in summary
    assert "Rebalance OK" in summary

    result = admin("queryMsgById", "-t", topic, "-i", sent[3]["offset_msg_id"], "-g", group, "-d", client_id)
    assert "CR_SUCCESS" in result, result
    again = client.wait_received("c", COUNT + 1, 30)[COUNT:]
    assert [event["keys"] for event in again] == ["k3"]

    gone = admin.run("queryMsgById", "-t", topic, "-i", sent[3]["offset_msg_id"], "-g", group, "-d", "nobody@1#2")
    assert "not online" in gone


def _client_id(admin: MqAdmin, group: str) -> str:
    found = re.findall(r"^\S+@\S+", admin("consumerConnection", "-g", group), re.MULTILINE)
    assert len(found) == 1
    return str(found[0])
