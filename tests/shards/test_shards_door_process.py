"""HTTP with shards: each has a port of its own, ten apart, and each shows and changes what waits in all of them."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from urllib.parse import quote

import pytest

from remoting.messages.properties import format_properties
from tests.support.door import Answer, ask
from tests.support.ports import free_ports_around
from tests.support.shards import ShardedBroker
from tests.support.wait import wait_until
from tests.support.wire import Wire
from timewheel_client import PendingClient, Producer, SendError

pytestmark = pytest.mark.process

SECONDS = 60
TOKEN = "a-token-of-this-test"


def test_every_door_shows_and_changes_what_is_pending_in_all_shards(tmp_path: Path) -> None:
    port = free_ports_around(10)
    broker = ShardedBroker(tmp_path, settings={"httpListen": f"127.0.0.1:{port}", "httpToken": TOKEN})
    try:
        broker.start()
        doors = [_Door(port), _Door(port + 10)]
        for door in doors:
            wait_until(lambda door=door: _ready(door.port), SECONDS, f"the door at {door.port}")
        due_ms = time.time_ns() // 1_000_000 + 3_600_000
        for shard, count in enumerate((2, 3)):
            with Wire(broker.addresses[shard]) as wire:
                for number in range(count):
                    timer, key = str(due_ms + 10 * number + shard), f"key-{shard}-{number}"
                    text = format_properties({"__STARTDELIVERTIME": timer, "__DELAYKEY": key})
                    wire.ask(10, _fields(text), b"body")
        _read_alike(doors, due_ms)
        _change_one_by_one(doors)
        _twins(broker, doors, due_ms)
        _change_many(doors)
        for door in doors:  # nothing vouches for a caller: each shard looks at what it shows
            assert ask(door.port, "/api/v1/pending/count").status == 401
            assert ask(door.port, "/api/v1/pending/count", Authorization="Bearer wrong").status == 401
            assert door.post("bulk/cancel", {}, Origin="http://evil.example").status == 403
        assert b"<title>" in ask(doors[1].port, "/").body
        broker.kill_shard(1)
        broker.wait_served(1, 2)
        wait_until(lambda: doors[0].get("pending/count").status == 200, SECONDS, "the answer of both shards")
        assert doors[0].get("pending/count").json["count"] == 0
    finally:
        broker.kill()


class _Door:
    """The API at one port, with the token."""

    def __init__(self, port: int) -> None:
        self.port = port

    def get(self, path: str, **headers: str) -> Answer:
        return ask(self.port, f"/api/v1/{path}", Authorization=f"Bearer {TOKEN}", **headers)

    def post(self, path: str, document: object, **headers: str) -> Answer:
        return ask(self.port, f"/api/v1/{path}", "POST", document, Authorization=f"Bearer {TOKEN}", **headers)


def _read_alike(doors: list[_Door], due_ms: int) -> None:
    for number, door in enumerate(doors):
        assert door.get("pending/count").json["count"] == 5
        assert door.get("pending/count", Timewheel_Shard="own").json["count"] == 2 + number
        found, after = [], ""
        while after is not None:
            page = door.get(f"pending?topic=T&limit=2&after={quote(after)}").json
            found += page["messages"]
            after = page["next"]
        assert [row["key"] for row in found] == ["key-0-0", "key-1-0", "key-0-1", "key-1-1", "key-1-2"]
        assert {row["broker"] for row in found} == {"broker-a-0", "broker-a-1"}
        forecast = door.get(f"pending/forecast?from={due_ms}&to={due_ms + 100}&bars=10").json
        assert forecast["bars"] == [[due_ms, 2], [due_ms + 10, 2], [due_ms + 20, 1]]
        overview = door.get("overview").json
        assert (overview["broker"], overview["pending"]["count"]) == ("broker-a-0, broker-a-1", 5)
        assert door.get("topics").json["topics"][0]["count"] == 5
        assert ask(door.port, "/metrics", Authorization=f"Bearer {TOKEN}").body.count(b"timewheel_build_info{") == 1
        for wrong in ("pending?limit=x", "pending?after=nonsense", "pending?tpoic=T", "pending/count?due_from=17"):
            assert door.get(wrong).status == 400, wrong


def _change_one_by_one(doors: list[_Door]) -> None:
    row = doors[0].get("pending?key_prefix=key-1-0").json["messages"][0]
    assert doors[0].get(f"pending/{row['id']}").json["key"] == "key-1-0"  # both shards give the same offsets
    by_offset = doors[0].post(f"pending/{row['offset']}/cancel", {})
    assert by_offset.status == 400
    assert "broker-a-1" in by_offset.json["error"]
    moved = doors[0].post(f"pending/{row['id']}/move", {"by_ms": 60_000})
    assert (moved.status, moved.json["verdict"], moved.json["broker"]) == (200, "done", "broker-a-1")
    by_key = doors[1].post("pending/key:key-0-0/cancel?topic=T", {})
    assert (by_key.json["verdict"], by_key.json["broker"]) == ("done", "broker-a-0")
    assert doors[0].post("pending/key:key-0-0/cancel?topic=T", {}).json["verdict"] == "already"
    assert doors[0].post("pending/key:nobody/cancel?topic=T", {}).status == 404
    elsewhere = doors[0].get(f"pending/0A000001{row['id'][8:]}")
    assert (elsewhere.status, "10.0.0.1" in elsewhere.json["error"]) == (400, True)


def _twins(broker: ShardedBroker, doors: list[_Door], due_ms: int) -> None:
    """One delay key on both shards, and how a sender avoids that."""
    for number, address in enumerate(broker.addresses):
        with Wire(address) as wire:
            timer = str(due_ms + number)
            wire.ask(10, _fields(format_properties({"__STARTDELIVERTIME": timer, "__DELAYKEY": "twin"})), b"body")
    moved = doors[0].post("pending/key:twin/move?topic=T", {"by_ms": 5}).json
    assert [(one["verdict"], one["broker"]) for one in (moved, *moved["others"])] == [
        ("done", "broker-a-0"),
        ("done", "broker-a-1"),
    ]

    async def story() -> None:
        async with PendingClient(broker.namesrv) as pending, Producer(broker.namesrv) as producer:
            async with PendingClient(broker.namesrv, broker="broker-a-0") as one:
                assert await one.cancel("key:twin", topic="T")
            result = await pending.cancel("key:twin", topic="T")
            assert (result.verdict, result.broker, len(result.others)) == ("done", "broker-a-1", 1)
            assert (await pending.cancel("key:twin", topic="T")).verdict == "already"
            keys = [f"alone-{number}" for number in range(8)]
            brokers = set()
            for key in keys:
                found = await producer.send("T", b"b", delay=3600, properties={"__DELAYKEY": key})
                brokers.add(found.queue.broker_name)
            for key in keys:
                with pytest.raises(SendError, match=key):
                    await producer.send("T", b"b", delay=3600, properties={"__DELAYKEY": key})
                assert (await pending.cancel(f"key:{key}", topic="T")).others == ()
            assert brokers == {"broker-a-0", "broker-a-1"}

    asyncio.run(story())


def _change_many(doors: list[_Door]) -> None:
    assert doors[0].post("bulk/cancel", {"dry_run": False}).status == 400  # an empty query
    row = doors[0].get("pending?key_prefix=key-1-1").json["messages"][0]
    named = {"ids": [row["id"], "key:key-0-1", "key:nobody"], "topic": "T", "by_ms": 1000}
    for dry_run in (True, False):
        found = doors[0].post("bulk/move", {**named, "dry_run": dry_run}).json
        assert [(one["name"], one["verdict"]) for one in found["answers"]] == [
            *zip(named["ids"], ("done", "done", "unknown"), strict=True)
        ]
        assert [one["broker"] for one in found["answers"][:2]] == ["broker-a-1", "broker-a-0"]
        assert found["dry_run"] is dry_run
    assert doors[1].get(f"pending/{row['id']}").json["due_ms"] == row["due_ms"] + 1000
    wrong = doors[0].post("bulk/cancel", {"ids": [row["id"], f"0A000001{row['id'][8:]}"], "dry_run": False})
    assert (wrong.status, "10.0.0.1" in wrong.json["error"]) == (400, True)
    order = {"query": {"topic": "T"}, "limit": 3}
    assert doors[0].post("bulk/cancel", order).json["verdicts"] == {"done": 3}
    assert doors[0].get("pending/count").json["count"] == 4  # it was a dry run
    first = doors[0].post("bulk/cancel", {**order, "dry_run": False}).json
    assert (first["verdicts"], first["dry_run"]) == ({"done": 3}, False)
    assert {one["broker"] for one in first["answers"]} == {"broker-a-0", "broker-a-1"}
    rest = doors[1].post("bulk/cancel", {**order, "dry_run": False, "after": first["next"]}).json
    assert (rest["verdicts"], rest["next"]) == ({"done": 1}, None)


def _ready(port: int) -> bool:
    try:
        return ask(port, "/readyz", seconds=5).status == 200
    except OSError:
        return False


def _fields(text: str) -> dict[str, str]:
    return {
        "producerGroup": "pg",
        "topic": "T",
        "defaultTopic": "TBW102",
        "defaultTopicQueueNums": "4",
        "queueId": "0",
        "sysFlag": "0",
        "bornTimestamp": "5",
        "flag": "0",
        "properties": text,
        "reconsumeTimes": "0",
        "unitMode": "false",
        "batch": "false",
    }
