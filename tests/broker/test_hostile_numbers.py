"""Numbers and words that a table cannot be written with, or that are too many: refused, and the next change is made."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from broker.naming.registration import parse_registration
from broker.naming.routes import TOPICS_MAX
from broker.processors import admin
from broker.tables.groups import SubscriptionGroup, SubscriptionGroups
from broker.tables.topic_config import TopicConfig
from broker.tables.topics import Topics
from remoting.codes import RequestCode, ResponseCode
from remoting.errors import ProtocolError
from remoting.json_dialect import dumps
from store.disk.files import Files
from tests.broker.core_rig import Client, Rig

HUGE = 10**30
TOPIC = {"readQueueNums": 4, "writeQueueNums": 4, "perm": 6, "topicFilterType": "SINGLE_TAG"}


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    rig = Rig(tmp_path / "store")
    yield rig.client()
    rig.close()


def put_group(client: Client, body: bytes) -> Any:
    return client.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, body)


@pytest.mark.parametrize(
    "field",
    [
        f'"retryMaxTimes":{HUGE}',
        f'"retryMaxTimes":"{HUGE}"',
        f'"retryQueueNums":{1 << 31}',
        f'"brokerId":{-(1 << 31) - 1}',
        f'"groupRetryPolicy":{{"x":"{"y" * 5_000}"}}',
    ],
)
def test_a_group_that_cannot_be_written_does_not_stay(client: Client, field: str) -> None:
    reply = put_group(client, b'{"groupName":"hostile",%b}' % field.encode())
    assert reply.code == ResponseCode.SYSTEM_ERROR
    assert client.rig.core.groups.get("hostile") is None
    assert put_group(client, b'{"groupName":"fine"}').code == 0, "the next group can be made"
    assert client.heartbeat("c", "made-by-heartbeat").code == 0


@pytest.mark.parametrize("value", [-(1 << 31), (1 << 31) - 1])
def test_the_ends_of_an_int32_are_taken(client: Client, value: int) -> None:
    assert put_group(client, b'{"groupName":"g","retryMaxTimes":%d}' % value).code == 0


@pytest.mark.parametrize(
    ("field", "value"),
    [("topicSysFlag", HUGE), ("topicSysFlag", str(1 << 31)), ("topicFilterType", "x" * 1_000), ("perm", HUGE)],
)
def test_a_topic_that_cannot_be_written_does_not_stay(client: Client, field: str, value: Any) -> None:
    text = b'"%b"' % value.encode() if isinstance(value, str) else b"%d" % value
    document = b'{"topicConfigList":[{"topicName":"hostile",%b,"%b":%b}]}'
    body = document % (dumps(TOPIC)[1:-1], field.encode(), text)
    reply = client.ask(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, {}, body)
    assert reply.code != 0 and client.rig.core.topics.get("hostile") is None
    assert client.send("fine").code == 0, "the next topic can be made"


def test_tables_take_back_what_they_could_not_write(tmp_path: Path) -> None:
    topics = Topics(Files(), tmp_path / "topics.json", lambda: 1)
    groups = SubscriptionGroups(Files(), tmp_path / "groups.json", lambda: 1)
    with pytest.raises(ProtocolError):
        topics.put(TopicConfig("hostile", sys_flag=HUGE))
    with pytest.raises(ProtocolError):
        groups.put(SubscriptionGroup("hostile", {"retryMaxTimes": HUGE}))
    assert topics.get("hostile") is None and groups.get("hostile") is None
    topics.put(TopicConfig("fine"))
    groups.put(SubscriptionGroup("fine"))


def test_administrators_topics_and_groups_end_somewhere_too(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    core = client.rig.core
    monkeypatch.setattr(admin, "TOPICS_MAX", len(core.topics.table) + 1)
    monkeypatch.setattr(admin, "GROUPS_MAX", len(core.groups.table) + 1)
    header = {**TOPIC, "defaultTopic": "TBW102", "topicSysFlag": 0, "order": "false"}
    replies = [client.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, {**header, "topic": f"t{n}"}) for n in (0, 1, 0)]
    assert [reply.code for reply in replies] == [0, ResponseCode.SYSTEM_ERROR, 0]
    assert f"the limit of {admin.TOPICS_MAX}" in (replies[1].remark or "")
    many = b'{"groupConfigList":[{"groupName":"a"},{"groupName":"b"}]}'
    reply = client.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, {}, many)
    assert reply.code == ResponseCode.SYSTEM_ERROR and f"the limit of {admin.GROUPS_MAX}" in (reply.remark or "")
    assert core.groups.get("a") is None, "all of them or none"
    assert [put_group(client, b'{"groupName":"%b"}' % name).code for name in (b"a", b"a", b"b")] == [0, 0, 1]


@pytest.mark.parametrize("target", ["", "x" * 121, "with@sign", "x" * 1_000_000])
def test_offsets_are_cloned_to_what_can_be_a_group(client: Client, target: str) -> None:
    client.rig.core.offsets.commit("g", "T", 0, 5)
    reply = client.ask(RequestCode.CLONE_GROUP_OFFSET, {"srcGroup": "g", "destGroup": target, "topic": "T"})
    assert reply.code != 0 and list(client.rig.core.offsets.table) == ["T@g"]


# ------------------------------------------------------------------------------------------------ registrations


def registration(table: bytes) -> bytes:
    return b'{"topicConfigSerializeWrapper":{"topicConfigTable":%b}}' % table


@pytest.mark.parametrize("field", ["readQueueNums", "writeQueueNums", "perm", "topicSysFlag"])
@pytest.mark.parametrize("value", [HUGE, 1 << 31, -(1 << 31) - 1])
def test_a_registered_number_that_no_route_can_hold(field: str, value: int) -> None:
    with pytest.raises(ProtocolError, match="int32"):
        parse_registration(registration(b'{"T":{"%b":%d}}' % (field.encode(), value)), False)


def test_more_topics_than_a_name_server_keeps_are_not_even_read() -> None:
    table = b"{" + b",".join(b'"%x":{}' % n for n in range(TOPICS_MAX + 1)) + b"}"
    with pytest.raises(ProtocolError, match=f"at most {TOPICS_MAX}"):
        parse_registration(registration(table), False)
    version = b"{}"
    announced = len(version).to_bytes(4, "big") + version + (TOPICS_MAX + 1).to_bytes(4, "big")
    with pytest.raises(ProtocolError, match=f"at most {TOPICS_MAX}"):
        parse_registration(zlib.compress(announced), True)


def test_a_registration_that_inflates_without_end() -> None:
    with pytest.raises(ProtocolError, match="more than"):
        parse_registration(zlib.compress(bytes(17 << 20)), True)
