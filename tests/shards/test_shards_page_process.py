"""The page and the API of a broker with shards: accounts at each of them, the same refusals, and a drain to its end."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.door.app import BODY_MAX_BYTES
from remoting.messages.properties import format_properties
from tests.shards.test_shards_door_process import SECONDS, TOKEN, _fields, _ready
from tests.shards.test_shards_process import command
from tests.support.chromium import Chromium
from tests.support.door import ask
from tests.support.need import need
from tests.support.ports import free_ports_around
from tests.support.shards import ShardedBroker
from tests.support.wait import wait_until
from tests.support.wire import Wire

RULES = b"""
accounts:
- accessKey: adminkey
  secretKey: adminsecret
  admin: true
- accessKey: writer1
  secretKey: writersecret
  topicPerms:
  - T=PENDING
"""


def basic(key: str, secret: str) -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(f"{key}:{secret}".encode()).decode()}


def send(broker: ShardedBroker, shard: int, due_ms: int, key: str) -> None:
    with Wire(broker.addresses[shard]) as wire:
        text = format_properties({"__STARTDELIVERTIME": str(due_ms), "__DELAYKEY": key})
        wire.ask(10, _fields(text), b"body")


@pytest.fixture
def port() -> int:
    return free_ports_around(10)


@pytest.fixture
def broker(tmp_path: Path, port: int) -> Iterator[ShardedBroker]:
    made = ShardedBroker(tmp_path, settings={"httpListen": f"127.0.0.1:{port}", "httpToken": TOKEN})
    try:
        made.start()
        for one in (port, port + 10):
            wait_until(lambda one=one: _ready(one), SECONDS, f"the door at {one}")
        yield made
    finally:
        made.kill()


@pytest.mark.process
def test_accounts_and_refusals_at_each_shard(tmp_path: Path, port: int) -> None:
    rules = tmp_path / "acl.yml"
    rules.write_bytes(RULES)
    rules.chmod(0o600)
    settings = {"httpListen": f"127.0.0.1:{port}", "aclEnable": "true", "aclFile": str(rules)}
    broker = ShardedBroker(tmp_path / "store", settings=settings)
    try:
        broker.start()
        admin, writer = basic("adminkey", "adminsecret"), basic("writer1", "writersecret")
        for one in (port, port + 10):
            wait_until(lambda one=one: _ready(one), SECONDS, f"the door at {one}")
        for one in (port, port + 10):
            for refused in ({}, basic("adminkey", "wrong"), basic("nobody", ""), {"Authorization": "Basic \xff\xfe"}):
                for path in ("pending", "pending/count", "overview", "topics", "pending/key:k?topic=T"):
                    assert ask(one, f"/api/v1/{path}", **refused).status == 401, (path, refused)
            for path in ("pending", "pending/count", "overview", "topics"):
                assert ask(one, f"/api/v1/{path}", **admin).status == 200, path
            assert ask(one, "/api/v1/pending?topic=T", **writer).status == 200
            assert ask(one, "/api/v1/pending?topic=U", **writer).status == 403
            assert ask(one, "/api/v1/pending", **writer).status == 403
            order = {"query": {"topic": "U"}, "dry_run": False}
            assert ask(one, "/api/v1/bulk/cancel", "POST", order, **writer).status == 403
            assert ask(one, "/api/v1/pending/key:k/cancel?topic=U", "POST", {}, **writer).status == 403
            assert ask(one, "/api/v1/pending/key:k/cancel?topic=T", "POST", {}, **writer).status == 404
            _refuses_in_its_own_words(one, admin)
    finally:
        broker.kill()


def _refuses_in_its_own_words(port: int, admin: dict[str, str]) -> None:
    """Long addresses, long numbers, no JSON, too much of it: always JSON that says what is wrong."""
    long, nines = "x" * 70_000, "9" * 5000
    for status, path in (
        (414, f"pending?topic={long}"),
        (400, f"pending?due_from={nines}"),
        (400, f"pending?limit={nines}"),
        (400, f"pending?after={nines}={nines}"),
        (400, f"pending/{nines}"),
        (400, "pending?topic=T&topic=U"),
        (400, f"pending/forecast?from=0&to={nines}"),
        (404, "nothing"),
    ):
        answer = ask(port, f"/api/v1/{path}", **admin)
        assert (answer.status, list(answer.json)) == (status, ["error"]), (path[:40], answer.body[:200])
    for status, body in (
        (400, b"{"),
        (400, b"\xff\0"),
        (400, b"[]"),
        (400, b'{"by_ms": ' + nines.encode() + b"}"),
        (400, b'{"due_ms": 1700000000}'),
        (400, b"[" * 30_000),
        (413, b" " * (BODY_MAX_BYTES + 1)),
    ):
        for path in ("pending/key:k/move?topic=T", "bulk/cancel"):
            answer = ask(port, f"/api/v1/{path}", "POST", body, **admin)
            assert (answer.status, list(answer.json)) == (status, ["error"]), (path, body[:20], answer.body[:200])


@pytest.mark.process
@pytest.mark.chromium
def test_the_page_of_a_shard_shows_all_of_them_and_a_drain_to_its_end(broker: ShardedBroker, port: int) -> None:
    due_ms = time.time_ns() // 1_000_000 + 3_600_000
    for shard in range(2):
        send(broker, shard, due_ms + shard, "twin")
        send(broker, shard, due_ms + 10 + shard, f"alone-{shard}")
    with need(Chromium) as browser:

        def shows(script: str, what: str) -> None:
            wait_until(lambda: browser.evaluate(script), SECONDS, what)

        def find(key: str) -> None:
            for field, text in (("topic", "T"), ("id", key)):
                browser.evaluate(f"document.querySelector('#{field}').value = {json.dumps(text)}")
            browser.evaluate("document.querySelector('#find button').click()")

        def visit(one: int) -> None:
            browser.visit(f"http://127.0.0.1:{one}/", 1280)
            shows("!document.querySelector('#login').hidden", "the question for a token")
            browser.evaluate("document.querySelector('#secret').focus()")
            browser.type(TOKEN)
            browser.key("Enter")

        visit(port + 10)
        shows("document.title.startsWith('4 pending')", "what waits in both shards")
        find("twin")
        about = "document.querySelector('#about').innerText"
        shows(f"{about}.includes('Same key on broker-a-1') && {about}.includes('waits, too, due')", "the other twin")
        assert "broker-a-0" in browser.evaluate(about)
        browser.evaluate("document.querySelector('[data-verb=cancel]').click()")
        shows("document.querySelector('#verdict').innerText == 'Cancel: done'", "the verdict")
        shows("document.title.startsWith('3 pending')", "that the other twin waits on")
        find("twin")
        shows(f"{about}.includes('Same key on broker-a-0') && {about}.includes('it was cancelled')", "that twin's end")
        assert command("drain", "broker-a-1", "--store", broker.store, "--no-wait").returncode == 0
        for key in ("twin", "alone-1"):  # what is drained can be changed until its last message
            find(key)
            shows(f"{about}.includes({json.dumps(key)})", key)
            browser.evaluate("document.querySelector('[data-verb=cancel]').click()")
            shows("document.querySelector('#verdict').innerText == 'Cancel: done'", f"the verdict on {key}")
        assert command("drain", "1", "--store", broker.store).returncode == 0
        shows(
            "document.querySelector('#state').innerText.includes('cannot be reached')",
            "the page of a shard that is out",
        )
        visit(port)
        shows("document.title.startsWith('1 pending')", "the page of the shard that is left")
        shows("document.querySelector('#state').innerText.startsWith('Ready')", "that nothing is missing")
        assert browser.evaluate("document.querySelector('#broker').innerText") == "broker-a-0, DefaultCluster"
        browser.evaluate("sessionStorage.clear()")
