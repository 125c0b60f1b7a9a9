"""Queues move when a consumer comes, leaves or dies.

That they do is shown here, not why: the clients of these tests divide their queues by the clock as well.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Callable

import pytest

from tests.interop.peers import Peer
from tests.interop.workload import NUMBER
from tests.support.clients import Client
from tests.support.wait import let_pass

pytestmark = pytest.mark.interop

StartClient = Callable[[str, str], Client]
Borrow = Callable[..., Client]
QUEUES = 4


def _owners(sender: Client, topic: str, members: dict[str, Client], counter: list[int]) -> list[str]:
    """Send a message to each queue; who has got it, by queue."""
    first = counter[0]
    counter[0] += QUEUES
    body = base64.b64encode(b"body").decode()
    sender.produce(
        f"p{first}",
        "moving-p",
        [
            {"n": n, "topic": topic, "body": body, "tag": "A", "properties": {NUMBER: str(n)}, "queue": n % QUEUES}
            for n in range(first, first + QUEUES)
        ],
        threads=1,
    )
    wanted = range(first, first + QUEUES)
    until = time.monotonic() + 10
    owners: dict[int, str] = {}
    while len(owners) < QUEUES and time.monotonic() < until:
        for name, client in members.items():
            for event in client.received("c"):
                number = int(event["properties"][NUMBER])
                if number in wanted:
                    owners[number % QUEUES] = name
        let_pass(0.05)
    return [owners.get(queue_id, "") for queue_id in range(QUEUES)]


def _wait_owners(sender: Client, topic: str, members: dict[str, Client], counter: list[int], wanted: list[str]) -> None:
    until = time.monotonic() + 120
    while (found := sorted(_owners(sender, topic, members, counter))) != wanted:
        assert time.monotonic() < until, f"{topic}: the queues belong to {found}, not to {wanted}"


@pytest.mark.parametrize("leaves", ["closes", "dies"])
def test_queues_move(peer: Peer, start_client: StartClient, borrow: Borrow, leaves: str) -> None:
    topic = f"moving-{leaves}"
    peer.prepare(topic)
    sender, first = borrow("java-5.5.0", 1), borrow("java-5.5.0", 2)
    second = start_client("java-5.5.0", peer.namesrv) if leaves == "dies" else borrow("java-5.5.0", 3)
    members = {"first": first, "second": second}
    counter = [0]
    first.consume("c", f"{topic}-g", {topic: "*"})
    _wait_owners(sender, topic, members, counter, ["first"] * 4)
    second.consume("c", f"{topic}-g", {topic: "*"})
    _wait_owners(sender, topic, members, counter, ["first"] * 2 + ["second"] * 2)
    if leaves == "closes":
        second.close_consumer("c")
    else:
        second.kill()
    _wait_owners(sender, topic, {"first": first}, counter, ["first"] * 4)
