"""Request-reply over memory channels: to whom a reply goes, what its sender is told, what is stored."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from broker.sending import reply as reply_module
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand
from remoting.messages.message import parse_message_id
from remoting.messages.properties import parse_properties
from tests.broker.core_rig import Client, Rig, properties

TOPIC = "DefaultCluster_REPLY_TOPIC"
PUSH = RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT
TEXT = properties(CORRELATION_ID="c-1", REPLY_TO_CLIENT="asker", MSG_TYPE="reply", UNIQ_KEY="K", TTL="3000")
Answering = Callable[[RemotingCommand], RemotingCommand | None]


def drive(
    rig: Rig, asker: Client, replier: Client, fields: dict[str, Any], answering: Answering | None, **more: Any
) -> tuple[RemotingCommand, list[RemotingCommand]]:
    """Send a reply, have the asker answer what is pushed to it; the replier's answer, and what was pushed."""
    pushed: list[RemotingCommand] = []

    async def run() -> RemotingCommand:
        tasks: list[asyncio.Future[None]] = []
        rig.core.dispatcher.spawn = lambda work: tasks.append(asyncio.ensure_future(work))
        code = more.pop("code", RequestCode.SEND_REPLY_MESSAGE_V2)
        replier.submit(code, fields, more.pop("body", b"answer"))
        await asyncio.sleep(0)
        pushed.extend(asker.take())
        for command in pushed:
            told = answering(command) if answering else None
            if told is not None:
                rig.core.dispatcher.received(asker.channel, [told])
        await asyncio.gather(*tasks)
        rig.core.end_turn()
        (answer,) = replier.take()
        return answer

    return asyncio.run(run()), pushed


def fine(command: RemotingCommand) -> RemotingCommand:
    return command.reply()


@pytest.fixture
def rig(tmp_path: Path):
    rig = Rig(tmp_path / "store")
    yield rig
    rig.close()


@pytest.fixture
def asker(rig: Rig) -> Client:
    client = rig.client(50001)
    client.heartbeat("asker")
    return client


@pytest.fixture
def replier(rig: Rig) -> Client:
    client = rig.client(50002)
    client.heartbeat("replier")
    return client


def test_a_reply_goes_to_the_client_that_asked(rig: Rig, asker: Client, replier: Client) -> None:
    fields = replier.send_fields(TOPIC, TEXT, g=1234, h=7)
    answer, (pushed,) = drive(rig, asker, replier, fields, fine)
    assert pushed.code == PUSH
    assert not pushed.flag, "a request that wants an answer"
    assert pushed.body == b"answer"
    sent = parse_properties(pushed.ext.pop("properties"))
    assert sent == parse_properties(TEXT) | {"PUSH_REPLY_TIME": str(rig.now_ms)}
    assert pushed.ext == {
        "producerGroup": "pg",
        "topic": TOPIC,
        "defaultTopic": "TBW102",
        "defaultTopicQueueNums": "4",
        "queueId": "0",
        "sysFlag": "0",
        "bornTimestamp": "1234",
        "flag": "7",
        "reconsumeTimes": "0",
        "unitMode": "false",
        "bornHost": "192.0.2.9:50002",
        "storeHost": "127.0.0.1:10911",
        "storeTimestamp": str(rig.now_ms),
    }
    (stored,) = replier.messages(TOPIC)
    assert (answer.code, answer.ext["msgId"], answer.ext["queueOffset"]) == (0, stored.message_id, "0")
    assert answer.ext["TRACE_ON"] == "true"
    assert (stored.body, parse_properties(stored.properties)) == (b"answer", parse_properties(TEXT))
    assert parse_message_id(answer.ext["msgId"])[1] == stored.offset


def test_the_long_header_is_the_same(rig: Rig, asker: Client, replier: Client) -> None:
    fields = {
        "producerGroup": "pg",
        "topic": TOPIC,
        "defaultTopic": "TBW102",
        "defaultTopicQueueNums": 4,
        "queueId": 0,
        "sysFlag": 0,
        "bornTimestamp": 5,
        "flag": 0,
        "properties": TEXT,
    }
    answer, (pushed,) = drive(rig, asker, replier, fields, fine, code=RequestCode.SEND_REPLY_MESSAGE)
    assert answer.code == 0
    assert pushed.ext["bornTimestamp"] == "5"


def test_without_storing(tmp_path: Path) -> None:
    rig = Rig(tmp_path / "store", storeReplyMessageEnable="false")
    asker, replier = rig.client(50001), rig.client(50002)
    asker.heartbeat("asker")
    answer, pushed = drive(rig, asker, replier, replier.send_fields(TOPIC, TEXT), fine)
    assert (answer.code, answer.ext["msgId"], len(pushed)) == (0, "0", 1)
    assert rig.store.put_count == 0
    rig.close()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (properties(CORRELATION_ID="c"), "reply message properties[REPLY_TO_CLIENT] is null"),
        (properties(REPLY_TO_CLIENT="nobody"), "channel of <nobody> not found"),
    ],
)
def test_nobody_to_give_it_to(rig: Rig, asker: Client, replier: Client, text: str, said: str) -> None:
    answer, pushed = drive(rig, asker, replier, replier.send_fields(TOPIC, text), None)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert said in answer.remark
    assert pushed == []
    assert rig.store.max_offset(TOPIC, 0) == 1, "stored all the same, as on Apache's broker"


def test_an_asker_that_refuses(rig: Rig, asker: Client, replier: Client) -> None:
    fields = replier.send_fields(TOPIC, TEXT)
    answer, _ = drive(rig, asker, replier, fields, lambda command: command.reply(ResponseCode.SYSTEM_ERROR, "no"))
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "push reply message to asker fail" in answer.remark


def test_an_asker_that_goes_while_it_is_told(rig: Rig, asker: Client, replier: Client) -> None:
    def goes(_: RemotingCommand) -> None:
        asker.channel.close()
        rig.core.channel_closed(asker.channel)

    answer, _ = drive(rig, asker, replier, replier.send_fields(TOPIC, TEXT), goes)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "closed the connection" in answer.remark
    answer, pushed = drive(rig, asker, replier, replier.send_fields(TOPIC, TEXT), None)
    assert "not found" in answer.remark
    assert pushed == []


def test_an_asker_that_says_nothing(rig: Rig, asker: Client, replier: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reply_module, "PUSH_TIMEOUT_MS", 1)
    answer, pushed = drive(rig, asker, replier, replier.send_fields(TOPIC, TEXT), None)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "did not answer in time" in answer.remark
    assert len(pushed) == 1


def test_the_connection_heard_last_gets_it(rig: Rig, asker: Client, replier: Client) -> None:
    """The client has connected anew; its old connection is not known to be dead yet."""
    anew = rig.client(50003)
    anew.heartbeat("asker")
    _, pushed = drive(rig, anew, replier, replier.send_fields(TOPIC, TEXT), fine)
    assert len(pushed) == 1
    assert asker.take() == []
    rig.core.channel_closed(asker.channel)
    _, pushed = drive(rig, anew, replier, replier.send_fields(TOPIC, TEXT), fine)
    assert len(pushed) == 1, "the old one's end does not make the new one unknown"


def test_one_that_leaves_one_of_its_groups_is_still_found(rig: Rig, asker: Client) -> None:
    clients = rig.core.clients
    client = clients.find_producer("asker")
    assert client is not None
    clients.register_producer("second", client)
    clients.unregister_producer("pg", asker.channel)
    assert clients.find_producer("asker") is client
    clients.unregister_producer("second", asker.channel)
    assert clients.find_producer("asker") is None


@pytest.mark.parametrize(
    ("topic", "fields", "code"),
    [
        ("RMQ_SYS_TRANS_HALF_TOPIC", {}, ResponseCode.NO_PERMISSION),
        ("no topic", {}, ResponseCode.INVALID_PARAMETER),
        (TOPIC, {"e": 99}, ResponseCode.INVALID_PARAMETER),
        (TOPIC, {"e": "x"}, ResponseCode.SYSTEM_ERROR),
    ],
)
def test_what_no_send_may_say_no_reply_may(
    rig: Rig, asker: Client, replier: Client, topic: str, fields: dict[str, Any], code: int
) -> None:
    answer, pushed = drive(rig, asker, replier, replier.send_fields(topic, TEXT, **fields), None)
    assert (answer.code, pushed) == (code, [])
    assert rig.store.put_count == 0


def test_a_body_that_is_too_long(tmp_path: Path) -> None:
    rig = Rig(tmp_path / "store", maxMessageSize=100)
    asker, replier = rig.client(50001), rig.client(50002)
    asker.heartbeat("asker")
    answer, pushed = drive(rig, asker, replier, replier.send_fields(TOPIC, TEXT), None, body=b"x" * 101)
    assert (answer.code, pushed) == (ResponseCode.MESSAGE_ILLEGAL, [])
    rig.close()


def test_the_reply_topic_has_a_route(rig: Rig) -> None:
    topic = rig.core.topics.get(TOPIC)
    assert topic is not None
    assert (topic.read_queue_nums, topic.write_queue_nums, topic.perm) == (1, 1, 6)
