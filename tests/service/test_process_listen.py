"""Senders that stay as they are: an instance is their name server, and they never learn of the entry topic."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from remoting.messages.properties import get_property, parse_properties
from service.running.entries import DUE, REJECTED_TOPIC
from tests.service.process_cluster import ENTRY, NUMBER, RealCluster, now_ms
from tests.support.ports import free_port
from timewheel_client import Consumer, Producer

pytestmark = pytest.mark.process
PATIENCE_S = 240
PORTS = 4


def listening(cluster: RealCluster, *more: str) -> str:
    """Start an instance that listens; answer its address."""
    address = f"127.0.0.1:{free_port()}"
    cluster.service("--listen", address, *more)
    return address


async def _send(front: str, numbers: range, due_ms: int) -> None:
    async with Producer(front) as producer:
        for number in numbers:
            properties = {NUMBER: str(number), "colour": "blue"}
            at = due_ms + number if number % 2 else None
            body = b"body %d" % number
            await producer.send("orders", body, tags="a", keys=[f"key{number}"], properties=properties, at=at)


async def _consume(front: str, count: int) -> dict[int, bytes]:
    found: dict[int, bytes] = {}
    async with Consumer(front, "consumers", "orders", start_from="first") as consumer, asyncio.timeout(PATIENCE_S):
        async for message in consumer:
            found[int(message.properties[NUMBER])] = message.body
            await message.ack()
            if len(found) == count:
                break
    return found


def test_beside_ours(tmp_path: Path) -> None:
    """Timed and other messages, a consumer by the same address, and what is refused."""
    cluster = RealCluster(tmp_path, ours=True)
    try:
        cluster.topics(4, "orders")
        front = listening(cluster)
        cluster.wait_owned(4, PATIENCE_S)
        due_ms = now_ms() + 4000
        asyncio.run(_send(front, range(100), due_ms))
        assert len(cluster.read(ENTRY).found.keys() - {-1}) == 50
        copies = cluster.wait_delivered(100, PATIENCE_S, "orders")
        assert {len(rows) for rows in copies.found.values()} == {1}
        for message in copies.messages:
            number = int(get_property(message.properties, NUMBER) or -1)
            properties = parse_properties(message.properties)
            assert (properties["TAGS"], properties["KEYS"], properties["colour"]) == ("a", f"key{number}", "blue")
            assert message.body == b"body %d" % number
            assert "TW_TOPIC" not in properties and "__STARTDELIVERTIME" not in properties
            if number % 2:
                assert message.store_ms >= due_ms + number == int(properties[DUE])
        assert asyncio.run(_consume(front, 100)) == {number: b"body %d" % number for number in range(100)}
        assert not cluster.read(REJECTED_TOPIC).messages
        assert cluster.services[0].terminate() == 0
    finally:
        cluster.stop()
