"""Requests about pending messages, codes 370001 to 370006: what a client asks and is told, and what it may not ask."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from broker.pending.documents import bulk_document, count_document, forecast_document
from broker_plugin.plugin import DelayPlugin
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand
from store.put.pending_api import Forecast, PendingBulk, PendingCount
from tests.broker.core_rig import START_MS, Client, FakePlugin, Rig, properties

DUE = START_MS + 60_000


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    made = Rig(tmp_path / "store", DelayPlugin(), recallMessageEnable="true")
    yield made
    made.close()


@pytest.fixture
def client(rig: Rig) -> Client:
    return rig.client()


def send(client: Client, topic: str = "T", due_ms: int = DUE, **more: str) -> str:
    reply = client.send(topic, properties(TIMER_DELIVER_MS=due_ms, **more))
    assert reply.code == ResponseCode.SUCCESS
    return str(reply.ext["msgId"])


def ask(client: Client, code: RequestCode, **ext: object) -> tuple[RemotingCommand, Any]:
    reply = client.ask(code, {name: str(value) for name, value in ext.items()})
    assert reply.code == ResponseCode.SUCCESS, reply.remark
    return reply, orjson.loads(reply.body)


def change(client: Client, name: str, verb: str, **ext: object) -> Any:
    reply, document = ask(client, RequestCode.PENDING_CHANGE, verb=verb, name=name, **ext)
    assert reply.ext["verdict"] == document["verdict"]
    return document


def test_one_message_is_seen_moved_and_cancelled(client: Client) -> None:
    name = send(client, UNIQ_KEY="K1", TAGS="vip")
    _, seen = ask(client, RequestCode.PENDING_GET, name=name, topic="T")
    assert (seen["verdict"], seen["id"], seen["due_ms"]) == ("done", name, DUE)
    assert seen["message"]["tag"] == "vip"
    assert base64.b64decode(seen["message"]["body"])
    assert change(client, name, "move", dueMs=DUE + 5, version=0)["version"] == 1
    assert change(client, name, "move", byMs=-5, version=0)["verdict"] == "changed"
    assert change(client, name, "restart")["due_ms"] == DUE
    assert change(client, name, "cancel")["verdict"] == "done"
    again = change(client, name, "cancel")
    assert (again["verdict"], again["when_ms"]) == ("already", START_MS)
    assert change(client, name, "now")["verdict"] == "cancelled"
    assert change(client, name, "cancel", topic="Other")["verdict"] == "unknown"


def test_a_recall_handle_names_a_message_too(client: Client) -> None:
    handle = client.send("T", properties(UNIQ_KEY="K1", TIMER_DELIVER_MS=DUE)).ext["recallHandle"]
    assert change(client, handle, "cancel")["verdict"] == "done"


def test_lists_counts_and_bulk(client: Client) -> None:
    for number in range(7):
        send(client, "T" if number % 2 else "U", DUE + number)
    _, page = ask(client, RequestCode.PENDING_LIST, topic="U", limit=3)
    assert [message["due_ms"] - DUE for message in page["messages"]] == [0, 2, 4]
    _, rest = ask(client, RequestCode.PENDING_LIST, topic="U", limit=3, after=page["next"])
    assert [message["due_ms"] - DUE for message in rest["messages"]] == [6]
    assert ask(client, RequestCode.PENDING_COUNT)[1]["count"] == 7
    assert ask(client, RequestCode.PENDING_COUNT, dueFromMs=DUE + 5)[1]["count"] == 2
    _, dry = ask(client, RequestCode.PENDING_CHANGE_MATCHING, topic="U", verb="cancel")
    assert (dry["dry_run"], dry["verdicts"]) == (True, {"done": 4})
    assert ask(client, RequestCode.PENDING_COUNT)[1]["count"] == 7
    _, done = ask(client, RequestCode.PENDING_CHANGE_MATCHING, topic="U", verb="cancel", dryRun="false")
    assert (done["dry_run"], done["verdicts"], done["next"]) == (False, {"done": 4}, "")
    assert ask(client, RequestCode.PENDING_COUNT)[1]["count"] == 3


def test_what_was_passed_over_is_told() -> None:
    remark = "3 in run 0000000007"
    bulk = bulk_document(PendingBulk(unread=3, remark=remark), bytes(8))
    count = count_document(PendingCount(count=0, bytes=0, unread=3, remark=remark))
    assert [(told["unread"], told["remark"]) for told in (bulk, count)] == [(3, remark)] * 2
    forecast = Forecast(from_ms=0, to_ms=9, step_ms=9, bars=(), total=0, overdue=0, later=0, unread=3)
    assert forecast_document(forecast)["unread"] == 3


def test_what_a_deleted_topic_has_left_is_kept_counted_and_purged(client: Client) -> None:
    for _ in range(3):
        send(client, "Gone")
    send(client, "T")
    purge = {"topic": "Gone", "verb": "cancel", "purge": "true", "dryRun": "false"}
    refused = client.ask(RequestCode.PENDING_CHANGE_MATCHING, purge)
    assert (refused.code, "exists" in str(refused.remark)) == (ResponseCode.INVALID_PARAMETER, True)
    client.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "Gone"})
    assert ask(client, RequestCode.PENDING_COUNT, topic="Gone")[1]["count"] == 3
    assert ask(client, RequestCode.PENDING_CHANGE_MATCHING, **purge)[1]["verdicts"] == {"done": 3}
    assert ask(client, RequestCode.PENDING_COUNT)[1]["count"] == 1


@pytest.mark.parametrize(
    ("code", "ext"),
    [
        (RequestCode.PENDING_GET, {}),
        (RequestCode.PENDING_GET, {"name": "9" * 5000}),
        (RequestCode.PENDING_GET, {"name": "key:" + "k" * 10_240}),
        (RequestCode.PENDING_CHANGE, {"name": "key:a", "topic": "T", "verb": "destroy"}),
        (RequestCode.PENDING_CHANGE, {"verb": "move", "dueMs": "9" * 5000}),
        (RequestCode.PENDING_CHANGE, {"verb": "move", "dueMs": "1e12"}),
        (RequestCode.PENDING_CHANGE, {"verb": "move", "dueMs": START_MS // 1000}),
        (RequestCode.PENDING_CHANGE, {"verb": "move", "dueMs": START_MS - 60_000}),
        (RequestCode.PENDING_CHANGE, {"verb": "cancel", "version": "-"}),
        (RequestCode.PENDING_LIST, {"limit": "0"}),
        (RequestCode.PENDING_LIST, {"after": "nowhere"}),
        (RequestCode.PENDING_LIST, {"dueFromMs": START_MS + 5, "dueToMs": START_MS + 4}),
        (RequestCode.PENDING_LIST, {"dueFromMs": START_MS // 1000}),
        (RequestCode.PENDING_FORECAST, {"fromMs": START_MS // 1000, "toMs": START_MS}),
        (RequestCode.PENDING_CHANGE_MATCHING, {"verb": "cancel", "dryRun": "false"}),
        (RequestCode.PENDING_CHANGE_MATCHING, {"verb": "cancel", "dueFromMs": "0", "dryRun": "false"}),
        (RequestCode.PENDING_CHANGE_MATCHING, {"verb": "cancel", "dueToMs": 253_402_300_799_000}),
        (RequestCode.PENDING_CHANGE_MATCHING, {"verb": "move", "topic": "T", "dueMs": START_MS - 60_000}),
        (RequestCode.PENDING_CHANGE_MATCHING, {"verb": "cancel", "topic": "T", "dryRun": "no"}),
        (RequestCode.PENDING_FORECAST, {"fromMs": "5", "toMs": "5"}),
    ],
)
def test_what_cannot_be_meant_is_refused_and_changes_nothing(
    client: Client, code: RequestCode, ext: dict[str, object]
) -> None:
    name = send(client)
    reply = client.ask(code, {"name": name, **ext} if code is RequestCode.PENDING_CHANGE else ext)
    assert reply.code == ResponseCode.INVALID_PARAMETER
    assert reply.remark
    assert len(reply.remark) < 400
    assert ask(client, RequestCode.PENDING_GET, name=name)[1]["version"] == 0


def test_a_plug_in_without_a_desk_is_not_asked(tmp_path: Path) -> None:
    rig = Rig(tmp_path / "store", FakePlugin())
    try:
        reply = rig.client().ask(RequestCode.PENDING_COUNT, {})
        assert reply.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    finally:
        rig.close()


def test_a_delay_key_over_the_wire(client: Client) -> None:
    first = send(client, __DELAYKEY="order-1")
    again = client.send("T", properties(TIMER_DELIVER_MS=DUE, __DELAYKEY="order-1"))
    assert (again.code, "order-1" in str(again.remark)) == (ResponseCode.MESSAGE_ILLEGAL, True)
    assert send(client, due_ms=DUE + 9, __DELAYKEY="order-1", __DELAYKEY_MODE="keep") == first
    assert ask(client, RequestCode.PENDING_COUNT)[1]["count"] == 1
    assert send(client, due_ms=DUE + 9, __DELAYKEY="order-1", __DELAYKEY_MODE="replace") == first
    _, seen = ask(client, RequestCode.PENDING_GET, name="key:order-1", topic="T")
    assert (seen["id"], seen["due_ms"], seen["version"]) == (first, DUE + 9, 1)
    assert change(client, "key:order-1", "cancel", topic="T")["verdict"] == "done"
    assert send(client, __DELAYKEY="order-1") != first


def test_each_code_without_any_field(client: Client) -> None:
    """What tests/interop/bad_input.py says of them beside Apache's broker."""
    codes = {code: client.ask(code, {}).code for code in RequestCode if code.name.startswith("PENDING_")}
    good = {RequestCode.PENDING_LIST, RequestCode.PENDING_COUNT, RequestCode.PENDING_FORECAST}
    assert {code for code, answer in codes.items() if answer == ResponseCode.SUCCESS} == good
    assert {answer for code, answer in codes.items() if code not in good} == {ResponseCode.INVALID_PARAMETER}
