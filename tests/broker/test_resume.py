"""RESUME_CHECK_HALF_MESSAGE: a transaction that was given up is open again, once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from remoting.codes import RequestCode, ResponseCode
from remoting.messages.message import message_id
from remoting.messages.properties import parse_properties
from tests.broker.core_rig import Client, Rig, properties
from tests.broker.test_transactions import COMMIT, DISCARDED, ROLLBACK, bodies, check_round, checks_of, end, half

SETTINGS: dict[str, Any] = {"transactionCheckMax": 1, "transactionCheckInterval": 1000, "transactionTimeOut": 500}


@pytest.fixture
def rig(tmp_path: Path):
    rig = Rig(tmp_path / "store", **SETTINGS)
    yield rig
    assert rig.core.halves.check() == []
    rig.close()


@pytest.fixture
def client(rig: Rig) -> Client:
    made = rig.client()
    made.heartbeat("producer-1")
    check_round(rig, 1000)
    return made


def give_up(client: Client) -> str:
    """Let a half message be given up; the id of what is left of it."""
    half(client)
    for _ in range(4):
        check_round(client.rig, 1000)
    client.take()
    (stored,) = client.messages(DISCARDED)
    assert client.rig.core.halves.undecided == {}
    return message_id(stored.store_host, stored.offset)


def resume(client: Client, name: str) -> tuple[int, str | None]:
    reply = client.ask(RequestCode.RESUME_CHECK_HALF_MESSAGE, {"topic": DISCARDED, "msgId": name})
    return reply.code, reply.remark


def decide(client: Client, outcome: int) -> int:
    """Answer the check that comes, as its producer."""
    check_round(client.rig, 1000)
    ((ext, stored),) = checks_of(client)
    assert (stored.topic, stored.queue_id, stored.body) == ("T", 1, b"body")
    assert parse_properties(stored.properties)["TRANSACTION_CHECK_TIMES"] == "1"
    ids = {name: ext[name] for name in ("tranStateTableOffset", "commitLogOffset", "msgId", "transactionId")}
    return end(client, {"producerGroup": "pg", **ids}, outcome, fromTransactionCheck="true")


def test_its_producer_is_asked_again_and_a_commit_delivers_it(client: Client) -> None:
    name = give_up(client)
    assert resume(client, name) == (0, None)
    assert decide(client, COMMIT) == 0
    assert bodies(client) == [b"body"]


def test_twice_is_once(client: Client) -> None:
    name = give_up(client)
    assert resume(client, name) == resume(client, name) == (0, None)
    assert len(client.rig.core.halves.undecided) == 1


def test_any_number_of_times_is_once(client: Client) -> None:
    name = give_up(client)
    assert [resume(client, name) for _ in range(3)] == [(0, None)] * 3
    assert len(client.rig.core.halves.undecided) == 1
    none = message_id(client.rig.store.store_host, 4711)
    replies = {resume(client, none) for _ in range(2)}
    assert replies == {(ResponseCode.SYSTEM_ERROR, f"no message of {DISCARDED} has the id {none}")}


@pytest.mark.parametrize(("before", "told"), [(0, True), (60, True), (64, False)])
def test_messages_with_its_key_do_not_let_it_be_delivered_twice(client: Client, before: int, told: bool) -> None:
    """What was sent after the commit hides nothing; if too much was sent before it, nothing is opened again."""
    name = give_up(client)
    resume(client, name)
    for _ in range(before):
        assert client.send("T", properties(UNIQ_KEY="KEY-body"), b"same").code == 0
    decide(client, COMMIT)
    for _ in range(70):
        assert client.send("T", properties(UNIQ_KEY="KEY-body"), b"same").code == 0
    code, remark = resume(client, name)
    assert code == (ResponseCode.ILLEGAL_OPERATION if told else ResponseCode.SYSTEM_ERROR)
    assert ("has been committed since" if told else "cannot be read") in (remark or "")
    assert client.rig.core.halves.undecided == {}


def test_two_at_once_make_one(client: Client, rig: Rig) -> None:
    name = give_up(client)
    for _ in range(2):
        client.submit(RequestCode.RESUME_CHECK_HALF_MESSAGE, {"topic": DISCARDED, "msgId": name})
    rig.core.end_turn()
    assert sorted(reply.code for reply in client.take()) == [0, 1]
    assert len(rig.core.halves.undecided) == 1


def test_what_was_committed_since_is_refused(client: Client) -> None:
    name = give_up(client)
    resume(client, name)
    decide(client, COMMIT)
    code, remark = resume(client, name)
    assert code == ResponseCode.ILLEGAL_OPERATION
    assert remark == f"the transaction of {name} has been committed since: its message is in T"
    assert bodies(client) == [b"body"]


def test_what_was_rolled_back_since_can_be_opened_again(client: Client) -> None:
    name = give_up(client)
    resume(client, name)
    assert decide(client, ROLLBACK) == 0
    assert resume(client, name) == (0, None)
    assert decide(client, COMMIT) == 0
    assert bodies(client) == [b"body"]


def test_unanswered_it_is_given_up_again(client: Client, rig: Rig) -> None:
    resume(client, give_up(client))
    for _ in range(4):
        check_round(rig, 1000)
    assert len(client.messages(DISCARDED)) == 2
    assert rig.core.halves.undecided == {}


def test_an_old_one_is_asked_about_before_it_is_given_up_again(tmp_path: Path) -> None:
    rig = Rig(tmp_path / "store", **SETTINGS, fileReservedTime=1)
    client = rig.client()
    client.heartbeat("producer-1")
    check_round(rig, 1000)
    name = give_up(client)
    rig.now_ms += 5 * 3_600_000
    assert resume(client, name) == (0, None)
    assert decide(client, COMMIT) == 0
    rig.close()


def test_a_restart_keeps_it_open(tmp_path: Path) -> None:
    rig = Rig(tmp_path / "store", **SETTINGS)
    client = rig.client()
    client.heartbeat("producer-1")
    check_round(rig, 1000)
    resume(client, give_up(client))
    now_ms = rig.now_ms
    rig.close()
    rig = Rig(tmp_path / "store", **SETTINGS)
    rig.now_ms = now_ms
    client = rig.client()
    client.heartbeat("producer-1")
    check_round(rig, 1000)
    assert decide(client, COMMIT) == 0
    assert bodies(client) == [b"body"]
    rig.close()


def test_other_messages_cannot_be_resumed(client: Client, rig: Rig) -> None:
    client.send("T", body=b"plain")
    (plain,) = client.messages("T")
    for name in (message_id(plain.store_host, plain.offset), message_id(plain.store_host, plain.offset + 1)):
        assert resume(client, name) == (1, f"no message of {DISCARDED} has the id {name}")
    code, remark = resume(client, "no-id")
    assert code == ResponseCode.SYSTEM_ERROR
    assert remark
    assert rig.core.halves.undecided == {}
