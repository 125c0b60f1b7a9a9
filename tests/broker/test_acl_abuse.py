"""Accounts that wish others ill: what they may not do, in spite of rights of their own."""

import json
import struct

import pytest

from broker.naming.namesrv import NameServer
from broker.naming.route_entries import OwnBroker
from remoting.codes import RequestCode, ResponseCode
from remoting.json_dialect import dumps
from remoting.messages.message import Message, encode_record, parse_message_id
from remoting.signing import sign
from tests.broker.core_rig import FakePlugin, Rig, properties
from tests.broker.test_acl import Signed

RULES = b"""
accounts:
- accessKey: mallory-1
  secretKey: secret-m
  defaultTopicPerm: PUB|SUB
  defaultGroupPerm: SUB
  topicPerms:
  - Secret=DENY
  groupPerms:
  - theirs=DENY
- accessKey: victim-1
  secretKey: secret-v
  topicPerms:
  - Secret=PUB|SUB
  groupPerms:
  - theirs=SUB
- accessKey: the-admin
  secretKey: secret-a
  admin: true
"""


BODY_AT = 88
"""Where the body stands in a record."""


class Broker(Rig):
    """With one plug-in and three accounts."""

    def __init__(self, root, **values):
        (root / "rules.yml").write_bytes(RULES)
        self.plugin = FakePlugin()
        super().__init__(root / "store", self.plugin, aclEnable="true", aclFile=root / "rules.yml", **values)
        for topic in ("Secret", "Open"):
            self.core.topics.create_for_send(topic, "TBW102", 4)


@pytest.fixture
def rig(tmp_path):
    made = Broker(tmp_path)
    yield made
    made.close()


@pytest.fixture
def mallory(rig):
    return Signed(rig, "mallory-1", "secret-m")


@pytest.fixture
def victim(rig):
    return Signed(rig, "victim-1", "secret-v")


def offset_of(reply):
    return parse_message_id(reply.ext["msgId"])[1]


def denied(reply):
    assert reply.code == ResponseCode.NO_PERMISSION, (reply.code, reply.remark)
    assert reply.body == b""


# ------------------------------------------------------------------------------------------------ messages by their id


def test_messages_by_id_need_the_topic(mallory, victim):
    offset = offset_of(victim.send("Secret", body=b"hush"))
    denied(mallory.ask(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": offset}))
    denied(mallory.ask(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": offset, "topic": "Open", "b": "Open"}))
    assert b"hush" in victim.ask(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": offset}).body


@pytest.mark.parametrize("text", [properties(DELAY="3"), properties(TRAN_MSG="true", PGROUP="pg")])
def test_messages_by_id_need_the_topic_that_they_were_sent_to(mallory, victim, text):
    offset = offset_of(victim.send("Secret", text, b"hush"))
    denied(mallory.ask(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": offset}))
    assert b"hush" in victim.ask(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": offset}).body


def test_pending_messages_by_id_need_the_topic(rig, mallory, victim):
    offset = (1 << 62) + 1
    record = record_at(Message("Secret", 0, body=b"hush"), 0, rig.store.store_host)
    rig.plugin.viewable[offset] = record
    denied(mallory.ask(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": offset}))
    assert victim.ask(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": offset}).body == record


def record_at(message: Message, offset: int, host: bytes) -> bytes:
    """A finished record, as if it stood at a place in the log, first of its queue."""
    record = bytearray(encode_record(message, host))
    struct.pack_into(">qq", record, 20, 0, offset)
    return bytes(record)


def test_a_record_within_a_message_is_no_message(rig, mallory):
    """Its topic would be one that may be read, and its body what was stored behind it, of whatever topic."""
    inner_at = rig.store.commit_log.end + BODY_AT
    inner = record_at(Message("Open", 0, body=b"forged"), inner_at, rig.store.store_host)
    mallory.send("Open", body=inner)
    assert rig.store.read_record(inner_at) == inner, "it has the form of one"
    reply = mallory.ask(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": inner_at})
    assert (reply.code, reply.remark) == (1, f"can not find message by the offset, {inner_at}")
    fields = {"offset": inner_at, "group": "mine", "delayLevel": 0}
    reply = mallory.ask(RequestCode.CONSUMER_SEND_MSG_BACK, fields)
    assert (reply.code, reply.remark) == (1, f"look message by offset failed, {inner_at}")


# ------------------------------------------------------------------------------------------------ others' groups


def test_messages_are_sent_back_by_those_who_may_read_them(rig, mallory, victim):
    offset = offset_of(victim.send("Secret"))
    denied(mallory.ask(RequestCode.CONSUMER_SEND_MSG_BACK, {"offset": offset, "group": "mine", "delayLevel": -1}))
    denied(mallory.ask(RequestCode.CONSUMER_SEND_MSG_BACK, {"offset": offset, "group": "theirs", "delayLevel": -1}))
    assert rig.core.topics.get("%DLQ%mine") is None and rig.core.topics.get("%DLQ%theirs") is None
    assert (
        victim.ask(RequestCode.CONSUMER_SEND_MSG_BACK, {"offset": offset, "group": "theirs", "delayLevel": -1}).code
        == 0
    )


def test_locks_of_others(rig, mallory, victim):
    rig.core.groups.find("theirs")
    queue = {"topic": "Secret", "brokerName": "broker-a", "queueId": 0}
    body = dumps({"consumerGroup": "theirs", "clientId": "v", "mqSet": [queue]})
    assert json.loads(victim.ask(RequestCode.LOCK_BATCH_MQ, {}, body).body)["lockOKMQSet"] == [queue]
    for group, topic in (("theirs", "Secret"), ("theirs", "Open"), ("mine", "Secret")):
        body = dumps({"consumerGroup": group, "clientId": "v", "mqSet": [{**queue, "topic": topic}]})
        for code in (RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ):
            denied(mallory.ask(code, {"consumerGroup": "mine", "topic": "Open"}, body))
    for body in (b"", b"[]", b'{"consumerGroup":"mine","mqSet":[{"topic":5}]}', b'{"consumerGroup":null}'):
        denied(mallory.ask(RequestCode.UNLOCK_BATCH_MQ, {}, body))


def test_another_groups_dead_letters_and_retries(mallory):
    for topic in ("%RETRY%theirs", "%DLQ%theirs"):
        denied(mallory.pull(topic, consumerGroup="mine"))
        denied(mallory.send(topic))
        denied(mallory.ask(RequestCode.QUERY_MESSAGE, {"topic": topic, "key": "k", "maxNum": 1}))
    denied(mallory.pull("Open", consumerGroup="theirs"))


@pytest.mark.parametrize("group", ["", None])
def test_a_pull_names_its_group(mallory, group):
    fields = mallory.pull_fields("Open")
    del fields["consumerGroup"]
    reply = mallory.ask(RequestCode.PULL_MESSAGE, fields if group is None else {**fields, "consumerGroup": group})
    assert reply.code in (ResponseCode.NO_PERMISSION, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST) and not reply.body


# ------------------------------------------------------------------------------------------------ others' transactions


def test_a_transaction_is_ended_by_those_who_may_write_its_topic(rig, mallory, victim):
    sent = victim.send("Secret", properties(TRAN_MSG="true", PGROUP="pg"))
    fields = {
        "producerGroup": "pg",
        "tranStateTableOffset": sent.ext["queueOffset"],
        "commitLogOffset": offset_of(sent),
    }
    for end in (8, 12):
        for more in ({}, {"topic": "Open", "b": "Open"}):
            denied(mallory.ask(RequestCode.END_TRANSACTION, {**fields, "commitOrRollback": end, **more}))
    assert rig.core.halves.undecided
    assert victim.ask(RequestCode.END_TRANSACTION, {**fields, "commitOrRollback": 8}).code == 0
    assert len(victim.messages("Secret")) == 0  # nobody but the group "theirs" may read there
    assert rig.store.max_offset("Secret", 0) == 1


def announce(client, client_id, group="pg"):
    document = {"clientID": client_id, "producerDataSet": [{"groupName": group}], "consumerDataSet": []}
    assert client.ask(RequestCode.HEART_BEAT, {}, dumps(document)).code == 0


def test_half_messages_are_shown_to_producers_who_may_write_their_topic(rig, mallory, victim):
    """A check brings the whole message, to one of those who say that they are its producer group."""
    victim.send("Secret", properties(TRAN_MSG="true", PGROUP="pg"), b"hush")
    announce(mallory, "mallory")
    checks = rig.core.processors.checks
    for _ in range(3):
        rig.now_ms += 60_000
        checks.step(rig.now_ms)
        rig.core.end_turn()
        checks.step(rig.now_ms)
        rig.core.end_turn()
    assert mallory.take() == [] and checks.unsent_count > 0
    announce(victim, "victim")
    rig.now_ms += 60_000
    checks.step(rig.now_ms)
    rig.core.end_turn()
    checks.step(rig.now_ms)
    rig.core.end_turn()
    (told,) = victim.take()
    assert told.code == RequestCode.CHECK_TRANSACTION_STATE and b"hush" in told.body
    assert mallory.take() == []


def test_a_client_id_belongs_to_one_account_while_it_is_connected(rig, mallory, victim):
    """Replies go by client id alone."""
    announce(victim, "10.0.0.1@4711")
    announce(mallory, "10.0.0.1@4711", "other")
    clients = rig.core.clients
    assert clients.find_producer("10.0.0.1@4711").channel is victim.channel
    again = Signed(rig, "victim-1", "secret-v")
    announce(again, "10.0.0.1@4711")
    assert clients.find_producer("10.0.0.1@4711").channel is again.channel, "a connection that was made anew"
    again.channel.close()
    announce(mallory, "10.0.0.1@4711", "other")
    assert clients.find_producer("10.0.0.1@4711").channel is mallory.channel


# ------------------------------------------------------------------------------------------------ topics of the broker


@pytest.mark.parametrize(
    "topic",
    [
        *("SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC", "RMQ_SYS_TRACE_TOPIC"),
        *("DefaultCluster_REPLY_TOPIC", "rmq_sys_wheel_timer", "TRANS_CHECK_MAX_TIME_TOPIC"),
    ],
)
def test_no_default_opens_what_was_sent_to_others(mallory, topic):
    denied(mallory.pull(topic))
    denied(mallory.ask(RequestCode.QUERY_MESSAGE, {"topic": topic, "key": "k", "maxNum": 1}))
    denied(mallory.ask(RequestCode.QUERY_CONSUME_QUEUE, {"topic": topic, "queueId": 0, "index": 0, "count": 9}))


@pytest.mark.parametrize("code", [RequestCode.SEND_REPLY_MESSAGE, RequestCode.SEND_REPLY_MESSAGE_V2])
def test_replies_go_where_one_may_write(rig, mallory, code):
    long_names = {"producerGroup": "pg", "topic": "Secret", "defaultTopic": "TBW102", "defaultTopicQueueNums": 4}
    long_names |= {"queueId": 0, "sysFlag": 0, "bornTimestamp": 1, "flag": 0}
    fields = {**mallory.send_fields("Secret"), **long_names}
    denied(mallory.ask(code, fields, b"reply"))
    shadow = "topic" if code == RequestCode.SEND_REPLY_MESSAGE_V2 else "b"
    denied(mallory.ask(code, {**fields, shadow: "Open"}, b"reply"))
    assert rig.store.max_offset("Secret", 0) == 0


def test_who_may_not_write_the_reply_topic_pushes_nothing_to_anybody(rig, mallory, victim):
    announce(mallory, "10.0.0.1@1")
    text = properties(REPLY_TO_CLIENT="10.0.0.1@1", CORRELATION_ID="guessed")
    refused = victim.ask(RequestCode.SEND_REPLY_MESSAGE_V2, victim.send_fields("Secret", text), b"forged")
    denied(refused)
    assert not [command for command in mallory.take() if command.code == RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT]
    assert rig.store.max_offset("Secret", 0) == 0


# ------------------------------------------------------------------------------------------------ look-ups


@pytest.mark.parametrize(
    ("key", "secret", "made"),
    [
        (None, "", False),
        ("victim-1", "secret-v", False),
        ("mallory-1", "secret-m", True),
        ("mallory-1", "wrong", False),
    ],
)
def test_a_look_up_makes_a_topic_for_those_who_may_write_it(tmp_path, key, secret, made):
    rig = Broker(tmp_path)
    try:
        own = OwnBroker("broker-a", "DefaultCluster", rig.core.topics, "127.0.0.1:10911")
        rig.core.dispatcher.add(NameServer(own, rig.core.groups, auto_create_topic=True, may=rig.core.may))
        client = Signed(rig, key, secret)
        assert client.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "Fresh"}).code == (0 if made else 17)
        assert (rig.core.topics.get("Fresh") is not None) is made
        assert client.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "%RETRY%fresh"}).code == 0
        assert rig.core.topics.get("%RETRY%fresh") is None and rig.core.groups.get("fresh") is None
    finally:
        rig.close()


# ------------------------------------------------------------------------------------------------ names and signatures


@pytest.mark.parametrize(
    "topic", ["", " ", "Secret ", " Secret", "secret", "%RETRY%", "%RETRY%%RETRY%theirs", "Secret\0"]
)
def test_other_ways_to_write_a_name_open_nothing(rig, mallory, victim, topic):
    victim.send("Secret", properties(KEYS="k"), b"hush")
    for code in (RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE):
        mallory.ask(code, mallory.send_fields(topic), b"x")
    assert rig.store.max_offset("Secret", 0) == 1
    query = {"topic": topic, "key": "k", "maxNum": 9, "beginTimestamp": 0, "endTimestamp": 1 << 60}
    for reply in (mallory.pull(topic), mallory.ask(RequestCode.QUERY_MESSAGE, query)):
        assert b"hush" not in reply.body


def test_a_refusal_does_not_repeat_a_name_of_megabytes(mallory):
    for topic in ("S" * 1_000_000, "%RETRY%" + "S" * 1_000_000):
        for reply in (mallory.ask(RequestCode.GET_TOPIC_CONFIG, {"topic": topic}), mallory.send(topic)):
            assert reply.code != 0
    victim = Signed(mallory.rig, "victim-1", "secret-v")
    for topic in ("S" * 1_000_000, "%RETRY%" + "S" * 1_000_000):
        reply = victim.send(topic)
        assert reply.code == ResponseCode.NO_PERMISSION and len(reply.remark) < 400


def test_signed_twice_over_is_signed_once():
    """What the documents say of signatures: names and code are not covered. That is the protocol's; here it is seen."""
    one = sign({"AccessKey": "a", "consumerGroup": "g", "topic": "T"}, b"", "s")
    other = sign({"AccessKey": "a", "b": "g", "c": "T"}, b"", "s")
    assert one == other
