"""A running stock consumer that leaves its queues to the broker changes between pull and pop, and misses nothing."""

from __future__ import annotations

import base64
import time
from collections.abc import Callable
from typing import Any

import pytest

from remoting.codes import RequestCode
from remoting.json_dialect import dumps
from tests.interop.peers import Peer
from tests.interop.workload import NUMBER
from tests.support.clients import Client
from tests.support.wait import happens, let_pass
from tests.support.wire import Wire

pytestmark = [pytest.mark.interop, pytest.mark.long]

StartClient = Callable[[str, str], Client]
TOPIC, GROUP = "changing", "changing-g"
QUEUES, BURST = 4, 40
ASKS_EVERY_MS = 2_000
"""So often the consumer asks the broker for its queues, by default every 20 s."""
POP_CK = "POP_CK"
"""The property that says where a popped message was popped."""


class _Consumer:
    """One consumer, the messages sent to it so far, and those that it got."""

    def __init__(self, client: Client, peer: Peer) -> None:
        self.client = client
        self.peer = peer
        self.sent = 0
        client.consume("c", GROUP, {TOPIC: "*"}, client_rebalance="no")

    def send(self, count: int) -> list[int]:
        """Send so many, to all queues in turn; their numbers."""
        numbers = list(range(self.sent, self.sent + count))
        self.sent += count
        body = base64.b64encode(b"body").decode()
        messages: list[dict[str, Any]] = [
            {"n": n, "topic": TOPIC, "body": body, "tag": "A", "properties": {NUMBER: str(n)}, "queue": n % QUEUES}
            for n in numbers
        ]
        self.client.produce(f"p{numbers[0]}", "changing-p", messages, threads=1)
        return numbers

    def modes(self, numbers: list[int]) -> list[str]:
        """How each of these came at first, once all have come."""
        found: dict[int, str] = {}

        def all_here() -> bool:
            for event in self.client.received("c"):
                found.setdefault(int(event["properties"][NUMBER]), "POP" if POP_CK in event["properties"] else "PULL")
            return found.keys() >= set(numbers)

        assert happens(all_here, 60), f"missing: {sorted(set(numbers) - found.keys())}"
        return [found[number] for number in numbers]

    def change(self, mode: str) -> None:
        """Have the group pop or pull, and wait until this consumer does so in each queue."""
        document = {"topic": TOPIC, "consumerGroup": GROUP, "mode": mode, "popShareQueueNum": 0}
        with Wire(self.peer.address) as wire:
            wire.ask(RequestCode.SET_MESSAGE_REQUEST_MODE, {}, dumps(document))
        end = time.monotonic() + 90
        while set(found := self.modes(self.send(QUEUES))) != {mode}:
            assert time.monotonic() < end, f"the consumer was to {mode} and its queues came by {found}"
            let_pass(1)


def test_a_running_consumer_changes_its_mode_and_misses_nothing(
    peer: Peer, start_client: StartClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", f"-Drocketmq.client.rebalance.waitInterval={ASKS_EVERY_MS}")
    peer.prepare(TOPIC)
    consumer = _Consumer(start_client("java-5.5.0", peer.namesrv), peer)
    for mode in ("PULL", "POP", "PULL"):
        consumer.change(mode)
        assert set(consumer.modes(consumer.send(BURST))) == {mode}
    assert len(consumer.modes(list(range(consumer.sent)))) == consumer.sent
