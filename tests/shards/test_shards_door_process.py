"""HTTP with shards: each has a port of its own, ten apart, and all of them together have what is pending."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from remoting.messages.properties import format_properties
from tests.support.door import ask
from tests.support.ports import free_ports_around
from tests.support.shards import ShardedBroker
from tests.support.wait import wait_until
from tests.support.wire import Wire

pytestmark = pytest.mark.process

SECONDS = 60


def test_each_shard_shows_what_waits_in_it(tmp_path: Path) -> None:
    port = free_ports_around(10)
    broker = ShardedBroker(tmp_path, settings={"httpListen": f"127.0.0.1:{port}"})
    try:
        broker.start()
        ports = (port, port + 10)
        for one in ports:
            wait_until(lambda one=one: _ready(one), SECONDS, f"the door at {one}")
        due_ms = time.time_ns() // 1_000_000 + 3_600_000
        for shard, count in enumerate((2, 3)):
            with Wire(broker.addresses[shard]) as wire:
                for number in range(count):
                    text = format_properties({"__STARTDELIVERTIME": str(due_ms), "UNIQ_KEY": f"{shard}{number}"})
                    wire.ask(10, _fields(text), b"body")
        assert [ask(one, "/api/v1/pending/count").json["count"] for one in ports] == [2, 3]
        row = ask(ports[1], "/api/v1/pending?topic=T&limit=1").json["messages"][0]
        for method, path in (("GET", ""), ("POST", "/cancel")):  # both shards give the same offsets
            elsewhere = ask(ports[0], f"/api/v1/pending/{row['id']}{path}", method, {} if path else None)
            assert elsewhere.status == 400
            assert broker.addresses[1] in elsewhere.json["error"]
        done = ask(ports[1], f"/api/v1/pending/{row['id']}/cancel", "POST", {})
        assert (done.status, done.json["verdict"]) == (200, "done")
        assert [ask(one, "/api/v1/pending/count").json["count"] for one in ports] == [2, 2]
        assert b"<title>" in ask(ports[1], "/").body
    finally:
        broker.kill()


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
