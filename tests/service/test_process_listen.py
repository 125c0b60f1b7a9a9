"""Senders that stay as they are: an instance is their name server, and they never learn of the entry topic."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import urllib.request
from pathlib import Path

import pytest

from remoting.codes import RequestCode
from remoting.command import encode_command, request
from remoting.connection import FrameDecoder
from remoting.headers import SendHeader
from remoting.json_dialect import loads
from remoting.messages.properties import get_property, parse_properties
from service.running.entries import DUE, REJECTED_TOPIC
from tests.service.process_access_door import ARRIVE, NEVER, RETRY, SENT_BACK, use_the_door
from tests.service.process_cluster import ENTRY, NUMBER, RealCluster, continued, now_ms, read_all, stopped
from tests.support.ports import free_port
from tests.support.scrape import parse
from tests.support.wait import wait_until
from timewheel_client import BrokerError, ClientConnection, Consumer, Producer
from timewheel_client.net.credentials import credentials_of
from timewheel_client.values.routes import route_of

pytestmark = pytest.mark.process
PATIENCE_S = 240
RULES = """
accounts:
- accessKey: rocketmq-admin
  secretKey: 12345678
  admin: true
- accessKey: delay-service
  secretKey: 23456789
  defaultTopicPerm: PUB|SUB
  defaultGroupPerm: SUB
- accessKey: orders-sender
  secretKey: 34567890
  defaultTopicPerm: DENY
  topicPerms:
  - orders=PUB
- accessKey: orders-user
  secretKey: 45678901
  defaultTopicPerm: DENY
  topicPerms:
  - orders=PUB|SUB
  groupPerms:
  - readers=SUB
"""


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
        metrics = free_port()
        began = now_ms()
        front = listening(cluster, "--metrics-listen", f"127.0.0.1:{metrics}")
        cluster.wait_owned(4, PATIENCE_S)
        due_ms = now_ms() + max(4_000, now_ms() - began)  # an instance that starts, as a measure of the machine
        asyncio.run(_send(front, range(100), due_ms))
        with urllib.request.urlopen(f"http://127.0.0.1:{metrics}/metrics", timeout=30) as reply:
            figures = parse(reply.read().decode())
        assert figures["timewheel_service_sends_total"].total(end="stored") == 50
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


async def _doors(front: str) -> set[str]:
    """The names to write to in an instance's route."""
    connection = await ClientConnection.open(front)
    try:
        reply = await connection.request(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "orders"}, timeout_ms=10_000)
        assert reply.code == 0, reply.remark
        return {queue.broker_name for queue in route_of("orders", loads(reply.body)).write_queues}
    finally:
        await connection.close()


def test_two_instances(tmp_path: Path) -> None:
    """Each one's routes name the doors of both, as long as both answer; a dead one is another try for a sender."""
    cluster = RealCluster(tmp_path, ours=True)
    try:
        cluster.topics(4, "orders")
        fronts = [listening(cluster) for _ in range(2)]
        cluster.wait_owned(4, PATIENCE_S)

        def count(front: str) -> int:
            return len(asyncio.run(_doors(front)))

        for front in fronts:
            wait_until(lambda front=front: count(front) == 2, PATIENCE_S, "both doors in the route")  # type: ignore[misc]
        stopped(cluster.services[1])
        wait_until(lambda: count(fronts[0]) == 1, PATIENCE_S, "the door of one that hangs is left out")
        continued(cluster.services[1])
        wait_until(lambda: count(fronts[0]) == 2, PATIENCE_S, "both doors again")

        async def work() -> None:
            async with Producer(";".join(fronts)) as producer:
                for number in range(40):
                    if number == 20:
                        cluster.services[1].kill()
                    at = now_ms() + 100 if number % 2 else None
                    await producer.send("orders", b"body", properties={NUMBER: str(number)}, at=at)

        asyncio.run(work())
        copies = cluster.wait_delivered(40, PATIENCE_S, "orders")
        assert copies.verdict(range(40)) == {"lost": 0, "early": 0, "twice": 0}
    finally:
        cluster.stop()


def test_signed_senders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A signature passes through unbroken, also of a batch or a commit; what is rewritten has the service's own."""
    rules = tmp_path / "acl.yml"
    rules.write_text(RULES)
    monkeypatch.setenv("TIMEWHEEL_SECRET_KEY", "23456789")
    cluster = RealCluster(tmp_path, ours=True, settings={"aclEnable": "true", "aclFile": str(rules)})
    admin = {"access_key": "rocketmq-admin", "secret_key": "12345678"}
    try:
        cluster.topics(4, "orders", "payroll", credentials=credentials_of(*admin.values()))
        front = listening(cluster, "--access-key", "delay-service")
        cluster.wait_owned(4, PATIENCE_S)

        async def work() -> None:
            async with Producer(front, access_key="orders-sender", secret_key="34567890") as producer:
                await producer.send("orders", b"now")
                await producer.send("orders", b"later", at=now_ms() + 1000)
                with pytest.raises(BrokerError, match="payroll"):
                    await producer.send("payroll", b"now")
            async with Producer(front, access_key="orders-sender", secret_key="wrong-key") as producer:
                with pytest.raises(BrokerError, match="ignature"):
                    await producer.send("orders", b"forged")
            found = set()
            async with Consumer(front, "readers", "orders", start_from="first", **admin) as consumer:
                async with asyncio.timeout(PATIENCE_S):
                    async for message in consumer:
                        found.add(message.body)
                        await message.ack()
                        if len(found) == 2:
                            break
            assert found == {b"now", b"later"}

        asyncio.run(work())
        asyncio.run(use_the_door(front, "orders-user", "45678901"))

        def found(topic: str) -> set[int]:
            return set(asyncio.run(read_all(cluster.namesrv, [topic], credentials_of(*admin.values()))).found)

        wait_until(lambda: found("orders") >= ARRIVE, PATIENCE_S, f"{ARRIVE}, there are {found('orders')}")
        wait_until(lambda: SENT_BACK in found(RETRY), PATIENCE_S, "the message that was sent back")
        assert not found("orders") & NEVER
    finally:
        cluster.stop()


def door_of(cluster: RealCluster) -> int:
    """The port of the only broker's door, as the log says it."""
    log = cluster.services[0].log
    wait_until(lambda: "doors: " in log.read_text(), PATIENCE_S, "the first line of the log")
    return int(log.read_text().partition("doors: ")[2].split()[1])


def frame(opaque: int, properties: str, body: bytes) -> bytes:
    ext = SendHeader("raw", "orders", queue_id=opaque % 4, properties=properties).to_v2()
    return encode_command(request(310, ext, body, opaque=opaque))


def memory_of(pid: int) -> int:
    """Resident bytes of a process."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_bad_input_and_a_cluster_that_hangs(tmp_path: Path) -> None:
    """What is no frame closes its connection only; a broker that hangs fills no memory and is no success."""
    cluster = RealCluster(tmp_path, ours=True)
    try:
        cluster.topics(4, "orders")
        front = listening(cluster)
        cluster.wait_owned(4, PATIENCE_S)
        door, names = door_of(cluster), int(front.rpartition(":")[2])
        for port in (door, names):
            for data in (b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01" + bytes(50), b"\xff" * 100):
                with socket.create_connection(("127.0.0.1", port), 10) as bad:
                    bad.sendall(data)
                    bad.settimeout(20)
                    try:
                        assert bad.recv(100) == b""
                    except ConnectionResetError:
                        pass
        asyncio.run(_send(front, range(10), now_ms() + 100))
        _hang(cluster, door)
        asyncio.run(_send(front, range(10, 20), now_ms() + 100))
        copies = cluster.wait_delivered(21, PATIENCE_S, "orders")  # one of them stands for those without a number
        assert copies.found.keys() >= set(range(20))
        assert "Traceback" not in cluster.services[0].log.read_text()
    finally:
        cluster.stop()


def _hang(cluster: RealCluster, door: int) -> None:
    broker, service = cluster.brokers[0].child.process.pid, cluster.services[0].process.pid
    before = memory_of(service)
    os.kill(broker, signal.SIGSTOP)
    try:
        senders = [socket.create_connection(("127.0.0.1", door), 10) for _ in range(20)]
        written = 0
        for at, sender in enumerate(senders):
            due = "" if at % 2 else "TIMER_DELAY_MS\x0160000\x02"
            written += poured(sender, b"".join(frame(opaque, due, bytes(100_000)) for opaque in range(200)))
        assert written < 300 << 20, "no more is read than is kept"
        assert memory_of(service) - before < 400 << 20
        for sender in senders[::2]:
            sender.settimeout(60)
            replies = FrameDecoder().feed(sender.recv(1 << 20))
            assert replies and all(reply.code == 14 for reply in replies)
        for sender in senders:
            sender.close()
    finally:
        os.kill(broker, signal.SIGCONT)


def poured(sender: socket.socket, data: bytes) -> int:
    """How many bytes the other side takes before it does not for half a second."""
    sender.settimeout(0.5)
    at = 0
    try:
        while at < len(data):
            at += sender.send(data[at : at + 65_536])
    except TimeoutError:
        pass
    return at
