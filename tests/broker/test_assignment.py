"""Queues that the broker deals out, and the modes that it keeps: requests 400, 401 and 402."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from pathlib import Path

import pytest

from broker.naming.topic_queues import AskedRoutes
from broker.processors.assignment import assigned
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand
from remoting.json_dialect import dumps
from store.disk.errors import StoreCorruptError
from tests.broker.core_rig import Rig

TOPIC, GROUP = "T", "G"
QUEUES = [("a", 0), ("a", 1), ("a", 2), ("b", 0), ("b", 1)]


@pytest.fixture
def rig(tmp_path):
    rig = Rig(tmp_path)
    rig.client().send(TOPIC)
    yield rig
    rig.close()


def asked(rig, **fields):
    document = {"topic": TOPIC, "consumerGroup": GROUP, "clientId": "c1", "strategyName": "AVG"}
    body = dumps({**document, "messageModel": "CLUSTERING", **fields})
    reply = rig.client().ask(RequestCode.QUERY_ASSIGNMENT, {}, body)
    assert reply.code == 0, reply.remark
    found = json.loads(reply.body).get("messageQueueAssignments")
    return found and sorted((entry["messageQueue"]["queueId"], entry["mode"]) for entry in found)


def set_mode(rig, **fields):
    document = {"topic": TOPIC, "consumerGroup": GROUP, "mode": "POP", "popShareQueueNum": 0, **fields}
    return rig.client().ask(RequestCode.SET_MESSAGE_REQUEST_MODE, {}, dumps(document))


def modes(rig):
    reply = rig.client().ask(RequestCode.GET_ALL_MESSAGE_REQUEST_MODE)
    return json.loads(reply.body)["messageRequestModeMap"]


def test_members_share_the_queues(rig):
    assert asked(rig) is None, "nobody of the group is there: the broker cannot say"
    rig.client(50001).heartbeat("c1", GROUP)
    rig.client(50002).heartbeat("c2", GROUP)
    first, second = asked(rig), asked(rig, clientId="c2")
    assert first == [(0, "PULL"), (1, "PULL")] and second == [(2, "PULL"), (3, "PULL")]
    assert asked(rig, strategyName="AVG_BY_CIRCLE") == [(0, "PULL"), (2, "PULL")]
    assert asked(rig, clientId="stranger") == []
    assert asked(rig, strategyName="MACHINE_ROOM") is None
    assert asked(rig, topic="unheard-of") is None
    assert len(asked(rig, messageModel="BROADCASTING")) == 4


def test_a_mode_is_told_and_lasts(rig, tmp_path):
    rig.client(50001).heartbeat("c1", GROUP)
    assert set_mode(rig).code == 0
    assert asked(rig) == [(-1, "POP")]
    assert asked(rig, topic=f"%RETRY%{GROUP}") == [(0, "PULL")], "retry topics are pulled"
    expected = {TOPIC: {GROUP: {"consumerGroup": GROUP, "mode": "POP", "popShareQueueNum": 0, "topic": TOPIC}}}
    assert modes(rig) == expected
    file = tmp_path / "config" / "messageRequestMode.json"
    assert json.loads(file.read_bytes()) == {"messageRequestModeMap": expected}
    again = Rig(tmp_path / "other")
    again.close()
    (tmp_path / "other" / "config" / file.name).write_bytes(file.read_bytes())
    again = Rig(tmp_path / "other")
    assert modes(again) == expected
    again.close()


@pytest.mark.parametrize(
    ("fields", "code", "value"),
    [
        ({"topic": "%RETRY%G"}, ResponseCode.NO_PERMISSION, "%RETRY%G"),
        ({"topic": "unheard-of"}, ResponseCode.TOPIC_NOT_EXIST, "unheard-of"),
        ({"consumerGroup": "no group!"}, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "no group!"),
        ({"mode": "PUSH"}, ResponseCode.INVALID_PARAMETER, "PUSH"),
        ({"popShareQueueNum": 2**31}, ResponseCode.SYSTEM_ERROR, "2147483648"),
        ({"popShareQueueNum": "x"}, ResponseCode.SYSTEM_ERROR, "x"),
        ({"popShareQueueNum": True}, ResponseCode.SYSTEM_ERROR, "True"),
        ({"topic": None}, ResponseCode.SYSTEM_ERROR, "topic"),
        ({"topic": ["T"]}, ResponseCode.SYSTEM_ERROR, "['T']"),
    ],
)
def test_a_bad_mode_is_refused_and_changes_nothing(rig, fields, code, value):
    reply = set_mode(rig, **fields)
    assert (reply.code, value in reply.remark) == (code, True), reply.remark
    assert modes(rig) == {}


def test_there_is_room_for_so_many_modes(rig, monkeypatch):
    monkeypatch.setattr("broker.processors.assignment.MODES_MAX", 1)
    monkeypatch.setattr("broker.tables.request_modes.MODES_MAX", 1)
    assert set_mode(rig).code == 0
    assert set_mode(rig, popShareQueueNum=3).code == 0, "the same pair may change"
    reply = set_mode(rig, consumerGroup="G2")
    assert (reply.code, "G2" in reply.remark) == (ResponseCode.SYSTEM_ERROR, True)
    assert list(modes(rig)[TOPIC]) == [GROUP]


def test_a_file_that_cannot_be_meant_is_an_error(tmp_path):
    Rig(tmp_path).close()
    path = tmp_path / "config" / "messageRequestMode.json"
    path.write_text('{"messageRequestModeMap":{"T":{"G":{"mode":"PUSH"}}}}')
    with pytest.raises(StoreCorruptError, match=r"messageRequestMode\.json.*PUSH"):
        Rig(tmp_path)


def test_groups_without_a_mode_have_the_brokers_own(tmp_path):
    rig = Rig(tmp_path, defaultMessageRequestMode="POP", serverLoadBalancerEnable="true")
    rig.client().send(TOPIC)
    rig.client(50001).heartbeat("c1", GROUP)
    assert asked(rig) == [(-1, "POP")]
    assert set_mode(rig, mode="PULL").code == 0
    assert len(asked(rig)) == 4
    rig.close()


@pytest.mark.parametrize("strategy", ["AVG", "AVG_BY_CIRCLE"])
@pytest.mark.parametrize("count", range(1, 8))
def test_each_queue_has_one_puller_and_at_least_one_popper(strategy, count):
    members = [f"m{number}" for number in range(count)]
    pulled = Counter(q for me in members for q in assigned(me, members, QUEUES, strategy, ("PULL", 0)))
    assert pulled == dict.fromkeys(QUEUES, 1)
    for share in range(1, count - 1):
        shares = {me: assigned(me, members, QUEUES, strategy, ("POP", share)) for me in members}
        assert {queue for got in shares.values() for queue in got} == set(QUEUES)
        assert all(shares.values()), "each popper has something"
    assert assigned(members[0], members, QUEUES, strategy, ("POP", count - 1)) == [("a", -1), ("b", -1)]
    assert assigned(members[0], members, QUEUES, strategy, ("POP", -1)) == [("a", -1), ("b", -1)]


ROUTE = b"""{"brokerDatas":[{"brokerAddrs":{0:"h:1"},"brokerName":"b","cluster":"c"}],"queueDatas":[
{"brokerName":"b","perm":6,"readQueueNums":2,"writeQueueNums":4},
{"brokerName":"a","perm":2,"readQueueNums":2,"writeQueueNums":2}]}"""


class NameServers:
    """External name servers: what each answers, and how often they were asked."""

    def __init__(self, **answers: RemotingCommand | Exception) -> None:
        self.answers = answers
        self.asked: list[str] = []

    async def ask(self, address: str, command: RemotingCommand) -> RemotingCommand:
        assert command.ext["topic"] == TOPIC
        self.asked.append(address)
        answer = self.answers[address]
        if isinstance(answer, Exception):
            raise answer
        return answer


def reply_of(code: int, body: bytes = b"") -> RemotingCommand:
    return RemotingCommand(code, 1, 1, body=body)


def test_external_name_servers_are_asked_in_turn_and_not_each_time():
    now = [1_000]
    servers = NameServers(one=OSError("down"), two=reply_of(0, ROUTE))
    routes = AskedRoutes(servers.ask, ["one", "two"], lambda: now[0], lambda _: 30_000)
    assert asyncio.run(routes.queues_of(TOPIC)) == [("b", 0), ("b", 1)], "what may not be read is left out"
    assert asyncio.run(routes.queues_of(TOPIC)) == [("b", 0), ("b", 1)]
    assert servers.asked == ["one", "two"]
    now[0] += 30_000
    servers.answers["two"] = reply_of(0, b"[]")
    assert asyncio.run(routes.queues_of(TOPIC)) == [("b", 0), ("b", 1)], "nobody can say: what was said last"
    servers.answers["one"] = reply_of(17)
    assert asyncio.run(routes.queues_of(TOPIC)) is None, "the topic is gone"
    assert len(servers.asked) == 5


def test_modes_of_apaches_file_are_read(tmp_path: Path):
    Rig(tmp_path).close()
    entry = '{"consumerGroup":"G","mode":"POP","popShareQueueNum":8,"topic":"T"}'
    text = '{\n\t"messageRequestModeMap":{"T":{"G":' + entry + "}}\n}"
    (tmp_path / "config" / "messageRequestMode.json").write_text(text)
    rig = Rig(tmp_path)
    assert modes(rig)["T"]["G"]["popShareQueueNum"] == 8
    rig.close()
