"""Stock clients on a broker with shards, alone and in one cluster with Apache's broker; a shard is killed meanwhile."""

from __future__ import annotations

import base64
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.interop.workload import NUMBER
from tests.support.apache import ApacheBroker, ApacheNameServer, apache_jars
from tests.support.clients import Client, was_out_of_time
from tests.support.hostile import body as hostile_body
from tests.support.need import need
from tests.support.shards import ShardedBroker
from tests.support.wait import happens, wait_until
from tests.support.wire import Wire
from tests.support.wire_admin import create_group

pytestmark = [pytest.mark.interop, pytest.mark.process]

TOPIC = "over-shards"
GROUP = "readers-of-shards"
COUNT = 3_000
FIRST = 2_000
"""Messages sent from before the kill on; the others from right after it on."""
THREADS = 4
LEAD_MS, SPREAD_MS = 3_000, 6_000
SECONDS = 90


@pytest.fixture
def sharded(tmp_path: Path) -> Iterator[ShardedBroker]:
    broker = ShardedBroker(tmp_path / "shards")
    yield broker
    broker.kill()


@pytest.fixture
def names(tmp_path: Path) -> Iterator[ApacheNameServer]:
    need(apache_jars)
    server = ApacheNameServer(tmp_path / "namesrv")
    yield server
    server.stop()


def _message(n: int, due_ms: int) -> dict[str, Any]:
    """Every other one is timed."""
    line = {
        "n": n,
        "topic": TOPIC,
        "body": base64.b64encode(hostile_body(Random(n), 300)).decode(),
        "properties": {NUMBER: str(n)},
    }
    return {**line, "timer_deliver_ms": _due_ms(n, due_ms)} if n % 2 else line


def _place(event: dict[str, Any]) -> tuple[str, int, int]:
    """Which message of which broker an event is about: address, position in its log, and queue."""
    text = event["offset_msg_id"]
    return text[:16], int(text[16:], 16), event["queue_id"]


def _flows(client: Client, reader: Client) -> bool:
    """Whether messages come, or a good part of them is sent: a fast machine sends all before a client reads."""
    return len(reader.received("c")) > COUNT // 20 or len(client.events("p", "sent")) > FIRST // 4


def _send(client: Client, job: str, numbers: range, due_ms: int) -> None:
    messages = [_message(n, due_ms) for n in numbers]
    client.command("produce", id=job, group=f"senders-{job}", messages=messages, threads=THREADS)


def _kill(client: Client, reader: Client, ours: ShardedBroker, due_ms: int) -> None:
    """Kill a shard while messages flow; a fast machine may have sent the first ones by then, so more follow."""
    wait_until(lambda: _flows(client, reader), SECONDS, "messages flow")
    ours.kill_shard(1)
    _send(client, "q", range(FIRST, COUNT), due_ms)
    ours.wait_served(1, 2)


def _run(client: Client, reader: Client, ours: ShardedBroker, order: str) -> None:
    """Send while a shard is killed; then judge what was sent and what came."""
    reader.consume("c", GROUP, {TOPIC: "*"}, order=order)
    due_ms = int(time.time() * 1000) + LEAD_MS
    problems: list[BaseException] = []

    def work() -> None:
        try:
            _kill(client, reader, ours, due_ms)
        except BaseException as error:
            problems.append(error)

    trouble = threading.Thread(target=work)
    trouble.start()
    _send(client, "p", range(FIRST), due_ms)
    client.wait("p", "produced", SECONDS)
    trouble.join()
    assert not problems, problems
    client.wait("q", "produced", SECONDS)
    failed = [event for job in ("p", "q") for event in client.events(job, "send_failed")]
    # What each thread has on its way at the kill may use up the client's 10 s if the machine is busy with other tests.
    assert all(was_out_of_time(event["error"]) for event in failed), f"more than a retry: {failed[:2]}"
    assert len(failed) <= THREADS, f"more than a retry: {failed[:2]}"
    sent = {event["n"] for job in ("p", "q") for event in client.events(job, "sent")}
    assert len(sent) == COUNT - len(failed)
    assert happens(lambda: sent <= {_number(event) for event in reader.received("c")}, SECONDS), "lost"
    received = reader.received("c")

    places: dict[int, set[tuple[str, int, int]]] = {}
    for event in received:
        places.setdefault(_number(event), set()).add(_place(event))
    # A sender whose connection broke sends again, to another broker or the same one: at most one send of each thread.
    assert sum(len(found) > 1 for found in places.values()) <= THREADS, "two copies"
    _judge_queues(received, order == "yes")
    timed = [event for event in received if _number(event) % 2 and _is_ours(event, ours)]
    assert timed
    assert all(event["store_ms"] >= _due_ms(_number(event), due_ms) for event in timed), "early"


def _judge_queues(received: list[dict[str, Any]], in_order: bool) -> None:
    """No queue has a hole, and an orderly reader gets each queue in its order."""
    queues: dict[tuple[str, int], list[int]] = {}
    for event in received:
        address, _, queue = _place(event)
        offsets = queues.setdefault((address, queue), [])
        if event["queue_offset"] not in offsets:
            offsets.append(event["queue_offset"])
    assert len({address for address, _ in queues}) >= 2, "it went to more than one broker"
    for queue, offsets in queues.items():
        assert sorted(offsets) == list(range(min(offsets), max(offsets) + 1)), f"a hole in {queue}"
        if in_order:
            assert offsets == sorted(offsets), f"out of order in {queue}"


def _is_ours(event: dict[str, Any], broker: ShardedBroker) -> bool:
    return any(event["offset_msg_id"][8:16] == f"{int(one.rpartition(':')[2]):08X}" for one in broker.addresses)


def _number(event: dict[str, Any]) -> int:
    return int(event["properties"][NUMBER])


def _due_ms(n: int, base_ms: int) -> int:
    return base_ms + n * SPREAD_MS // COUNT


def test_java_client_while_a_shard_is_killed(
    sharded: ShardedBroker, start_client: Callable[[str, str], Client]
) -> None:
    sharded.start()
    with Wire(sharded.address) as wire:
        wire.create_topic(TOPIC)
    client = start_client("java-5.5.0", sharded.namesrv)
    _run(client, client, sharded, "yes")


@pytest.mark.apache
@pytest.mark.parametrize(("reads", "order"), [("go-v2", "no"), ("java-5.5.0", "yes")])
def test_two_shards_and_apaches_broker_are_one_cluster(
    tmp_path: Path, names: ApacheNameServer, start_client: Callable[[str, str], Client], reads: str, order: str
) -> None:
    """Two of ours and one of Apache's at Apache's name server; one of ours is killed.

    Java sends. Go reads, or Java does in order: then each queue's messages, of any broker, must come in its order.
    """
    ours = ShardedBroker(tmp_path / "shards", namesrv=names.address)
    apache = ApacheBroker(tmp_path / "apache", names.address, {"brokerName": "apache-a"})
    try:
        ours.start()
        apache.start()
        for address in (ours.address, apache.address):
            with Wire(address) as wire:
                wire.create_topic(TOPIC)
                create_group(wire, GROUP)
                wire.create_topic(f"%RETRY%{GROUP}", 1)
        wait_until(lambda: len(ours.brokers_of(TOPIC)) == 3, SECONDS, "all three are in the routes")
        assert set(ours.brokers_of(TOPIC)) == {"broker-a-0", "broker-a-1", "apache-a"}
        client = start_client("java-5.5.0", names.address)
        reader = client if reads == "java-5.5.0" else start_client(reads, names.address)
        _run(client, reader, ours, order)
    finally:
        ours.kill()
        apache.kill()
