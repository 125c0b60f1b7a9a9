"""Records that a client has written into the body of a message: no request may take one for a message of the broker.

Whoever sends knows where its next message will stand, and so where a record inside its body will.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from remoting.codes import RequestCode, ResponseCode
from remoting.hosts import encode_host
from remoting.messages.message import OFFSET_AT, QUEUE_OFFSET_AT, Message, encode_record, message_id, parse_message_id
from tests.broker.core_rig import Client, Rig, greeted, properties, sound
from tests.broker.test_transactions import COMMIT, DISCARDED, HALF, ROLLBACK, bodies, check_round, checks_of, end, half

HOST = encode_host("127.0.0.1", 10911)


@pytest.fixture
def rig(tmp_path: Path):
    yield from sound(Rig(tmp_path / "store"))


@pytest.fixture
def client(rig: Rig) -> Client:
    return greeted(rig, "producer-1")


def forge(client: Client, message: Message, number: int, filler: bytes = b"") -> int:
    """Send a message to ``Mine`` whose body holds a record; the CommitLog offset where that record stands."""
    record = bytearray(encode_record(message, HOST))
    end_now = client.rig.store.commit_log.end
    offset = end_now + 88 + len(filler)  # what a sender can work out from the id of its last message
    record[QUEUE_OFFSET_AT : QUEUE_OFFSET_AT + 8] = number.to_bytes(8, "big", signed=True)
    record[OFFSET_AT : OFFSET_AT + 8] = offset.to_bytes(8, "big")
    reply = client.send("Mine", properties(UNIQ_KEY="mine"), filler + bytes(record) + filler)
    assert reply.code == 0
    assert client.rig.store.read_record(offset) == bytes(record), "it looks like one"
    return offset


def forged_half(topic: str = "Orders", **more: Any) -> Message:
    text = properties(TRAN_MSG="true", PGROUP="pg", UNIQ_KEY="forged", REAL_TOPIC=topic, REAL_QID=0, **more)
    return Message(HALF, body=b"forged", properties=text)


@pytest.mark.parametrize("outcome", [COMMIT, ROLLBACK])
@pytest.mark.parametrize("cold", [False, True])
@pytest.mark.parametrize("number", [0, 1, 2, -1, 1 << 62])
def test_a_half_message_in_a_body_is_none(
    rig: Rig, client: Client, outcome: int, cold: bool, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither is it committed, nor is somebody else's half message with its number decided by it."""
    assert client.send("Orders").code == 0
    ids = [half(client, b"%d" % n) for n in range(2)]
    assert end(client, ids[1], ROLLBACK) == 0  # number 1 is decided, 0 is not, 2 is none
    offset = forge(client, forged_half(), number)
    forged = {"producerGroup": "pg", "tranStateTableOffset": number, "commitLogOffset": offset}
    if cold:
        monkeypatch.setattr(type(rig.store), "read_hot", lambda *_: None)
    for more in ({}, {"msgId": "forged", "transactionId": "forged"}, {"fromTransactionCheck": "true"}):
        assert end(client, {**forged, **more}, outcome) == ResponseCode.SYSTEM_ERROR
    assert bodies(client, "Orders", 0) == [b"body"]
    assert list(rig.core.halves.undecided) == [0]
    assert end(client, ids[0], COMMIT) == 0
    assert bodies(client) == [b"0"]


def test_a_check_and_a_restart_go_by_the_queue_of_half_messages(tmp_path: Path) -> None:
    rig = Rig(tmp_path / "store")
    client = rig.client()
    client.heartbeat("producer-1")
    half(client, b"true")
    forge(client, forged_half(), 0)
    rig.close()
    again = Rig(tmp_path / "store")
    again.now_ms = rig.now_ms
    client = again.client()
    client.heartbeat("producer-1")
    check_round(again)
    check_round(again)
    assert {seen.body for _, seen in checks_of(client)} == {b"true"}
    again.close()


def test_a_record_in_a_body_is_not_shown(client: Client) -> None:
    """By VIEW_MESSAGE_BY_ID; with a number that its queue has, and with one that it has not."""
    first = parse_message_id(client.send("Orders", properties(UNIQ_KEY="first")).ext["msgId"])[1]
    for number in (0, 1, -1):
        forged = Message("Orders", body=b"secret", properties=properties(UNIQ_KEY="first", KEYS="a b c d"))
        offset = forge(client, forged, number, b"x" * 500)
        reply = client.ask(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": offset, "topic": "Orders"})
        assert reply.code == ResponseCode.SYSTEM_ERROR
    assert client.ask(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": first, "topic": "Orders"}).code == 0
    reply = client.ask(
        RequestCode.QUERY_MESSAGE,
        {"topic": "Orders", "key": "first", "maxNum": 32, "beginTimestamp": 0, "endTimestamp": 1 << 50},
    )
    assert reply.body.count(b"secret") == 0


def test_a_record_in_a_body_is_not_sent_back(rig: Rig, client: Client) -> None:
    offset = forge(client, Message("Orders", body=b"secret", properties=properties(UNIQ_KEY="k")), 0)
    fields = {"offset": offset, "group": "cg", "delayLevel": 0, "originTopic": "Orders", "unitMode": "false"}
    assert client.ask(RequestCode.CONSUMER_SEND_MSG_BACK, fields).code == ResponseCode.SYSTEM_ERROR
    assert rig.store.max_offset("SCHEDULE_TOPIC_XXXX", 2) == 0


def test_a_record_in_a_body_is_not_resumed(rig: Rig, client: Client) -> None:
    text = properties(TRAN_MSG="true", PGROUP="pg", UNIQ_KEY="k", REAL_TOPIC="Orders", REAL_QID=0)
    offset = forge(client, Message(DISCARDED, body=b"secret", properties=text), 0)
    reply = client.ask(RequestCode.RESUME_CHECK_HALF_MESSAGE, {"msgId": message_id(HOST, offset)})
    assert reply.code == ResponseCode.SYSTEM_ERROR
    assert not rig.core.halves.undecided


def test_a_message_of_a_deleted_topic_is_still_found(client: Client) -> None:
    """Its queue, which would vouch for it, is gone; the key index does."""
    offset = parse_message_id(client.send("Orders", properties(UNIQ_KEY="first"), b"kept").ext["msgId"])[1]
    assert client.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "Orders"}).code == 0
    for again in (False, True):
        reply = client.ask(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": offset, "topic": "Orders"})
        assert (reply.code, b"kept" in reply.body) == (0, True)
        if not again:
            client.send("Orders", properties(UNIQ_KEY="second"))
    forged = forge(client, Message("Gone", body=b"secret", properties=properties(UNIQ_KEY="first")), 0)
    reply = client.ask(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": forged, "topic": "Gone"})
    assert reply.code == ResponseCode.SYSTEM_ERROR


def test_what_was_decided_while_its_record_was_read_is_answered_as_decided(rig: Rig, client: Client) -> None:
    """The commit goes through while a second one reads from the disk: the second is told the same."""
    ids = half(client)
    processor = rig.core.processors.transactions
    read = processor._read_half

    def meanwhile(*what: Any) -> bytes | None:
        record = read(*what)
        if rig.core.halves.undecided:
            assert end(rig.client(50_002), ids, COMMIT) == 0
        return record

    with pytest.MonkeyPatch.context() as patched:
        hot = [None, rig.store.read_hot(ids["commitLogOffset"], 1 << 20)]
        assert hot[1] is None
        found = rig.store.read_record(ids["commitLogOffset"])
        answers = iter([None, found])
        patched.setattr(type(rig.store), "read_hot", lambda *_: next(answers))
        patched.setattr(processor, "_read_half", meanwhile)
        assert end(client, ids, COMMIT) == 0
    assert bodies(client) == [b"body"]
