"""Heartbeats, offsets, locks, send-backs and look-ups, over memory channels."""

import json

import pytest

from broker.sending.send_back import retry_message
from remoting.codes import RequestCode, ResponseCode
from remoting.messages.message import parse_message_id
from remoting.messages.properties import parse_properties
from store.disk.delay_id import DELAY_ID_BASE
from tests.broker.core_rig import START_MS, FakePlugin, Rig, properties, records_of

KEY = "0" * 32


@pytest.fixture
def rig(tmp_path):
    made = Rig(tmp_path / "store")
    yield made
    made.close()


@pytest.fixture
def client(rig):
    return rig.client()


# ------------------------------------------------------------------------------------------------ heartbeats


def test_a_heartbeat_makes_what_its_groups_need(client, rig):
    reply = client.heartbeat("c1", "g")
    assert (reply.code, reply.ext) == (0, {})
    assert rig.core.topics.get("%RETRY%g").write_queue_nums == 1
    assert rig.core.groups.get("g") is not None
    assert rig.core.clients.find_producer("c1").channel is client.channel
    assert client.channel.state.language == "JAVA"


def test_members_are_told_when_one_comes_or_goes(client, rig):
    other = rig.client(50002)
    client.submit(RequestCode.HEART_BEAT, {}, b"")
    client.take()

    def came(who):
        return [(command.code, command.flag, command.ext) for command in who.take() if not command.is_response]

    notice = (RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, 2, {"consumerGroup": "g"})
    client.heartbeat("c1", "g")
    other.heartbeat("c2", "g")
    assert came(client) == [notice]
    other.heartbeat("c2", "g")
    assert came(client) == [], "nothing has changed"
    other.heartbeat("c2", "g", topic="Other")
    assert came(client) == [notice]
    other.ask(RequestCode.UNREGISTER_CLIENT, {"clientID": "c2", "consumerGroup": "g", "producerGroup": "pg"})
    assert came(client) == [notice]
    other.heartbeat("c2", "g", topic="Other")
    client.take()
    rig.core.channel_closed(other.channel)
    assert came(client) == [notice]
    rig.core.config.set_value("notifyConsumerIdsChangedEnable", "false")
    other.heartbeat("c2", "g", topic="Other")
    assert came(client) == []


def test_notices_come_in_the_clients_own_serialize_type(client, rig):
    client.serialize_type = 1
    client.heartbeat("c1", "g")
    rig.client(50002).heartbeat("c2", "g")
    assert [command.serialize_type for command in client.take()] == [1]


def test_who_reads_in_order_has_an_ordered_retry_topic(client, rig):
    rig.core.topics.put(rig.core.topics.create_for_send("T", "TBW102", 4).changed(order=True))
    client.heartbeat("c1", "g")
    assert rig.core.topics.get("%RETRY%g").order


def test_a_group_that_may_not_be_made_is_passed_over(tmp_path):
    rig = Rig(tmp_path / "store", autoCreateSubscriptionGroup="false")
    assert rig.client().heartbeat("c1", "g").code == 0
    assert rig.core.clients.consumers == {}
    rig.close()


def test_a_heartbeat_without_subscriptions_keeps_them(client, rig):
    client.heartbeat("c1", "g")
    document = {
        "clientID": "c1",
        "consumerDataSet": [{"groupName": "g"}],
        "withoutSub": True,
        "heartbeatFingerprint": 7,
    }
    assert client.ask(RequestCode.HEART_BEAT, {}, json.dumps(document).encode()).code == 0
    assert rig.core.clients.subscription("g", "T") is not None


@pytest.mark.parametrize("body", [b"", b"garbage", b"[]", b"{}", b'{"clientID":"c","consumerDataSet":[5]}'])
def test_unreadable_heartbeats(client, body):
    assert client.ask(RequestCode.HEART_BEAT, {}, body).code == ResponseCode.SYSTEM_ERROR


@pytest.mark.parametrize("unreadable", [3, [7], [{}], {"a": 1}])
def test_a_heartbeat_that_is_unreadable_in_one_place_changes_nothing(client, rig, unreadable):
    good, bad = ({"groupName": name, "subscriptionDataSet": []} for name in ("good", "bad"))
    document = {"clientID": "c", "consumerDataSet": [good, bad | {"subscriptionDataSet": unreadable}]}
    reply = client.ask(RequestCode.HEART_BEAT, {}, json.dumps(document).encode())
    assert reply.code == ResponseCode.SYSTEM_ERROR
    assert "ProtocolError: unreadable" in reply.remark
    assert not rig.core.clients.consumers
    assert rig.core.groups.get("good") is None


def test_the_list_of_members(client, rig):
    ask = {"consumerGroup": "g"}
    reply = client.ask(RequestCode.GET_CONSUMER_LIST_BY_GROUP, ask)
    assert (reply.code, reply.remark) == (ResponseCode.SYSTEM_ERROR, "no consumer for this group, g")
    client.heartbeat("c2", "g")
    rig.client(50002).heartbeat("c1", "g")
    reply = client.ask(RequestCode.GET_CONSUMER_LIST_BY_GROUP, ask)
    assert json.loads(reply.body) == {"consumerIdList": ["c1", "c2"]}


def test_a_filter_by_anything_but_tags_is_refused_at_the_start(client):
    def check(kind):
        body = {"clientId": "c", "group": "g", "subscriptionData": {"topic": "T", "expressionType": kind}}
        return client.ask(RequestCode.CHECK_CLIENT_CONFIG, {}, json.dumps(body).encode())

    assert check("TAG").code == 0
    assert check("SQL92").remark == "The broker does not support consumer to filter message by SQL92"
    assert client.ask(RequestCode.CHECK_CLIENT_CONFIG).code == 0


# ------------------------------------------------------------------------------------------------ offsets


def query(client, group="g", queue_id=0, topic="T", **more):
    ext = {"consumerGroup": group, "topic": topic, "queueId": queue_id, **more}
    return client.ask(RequestCode.QUERY_CONSUMER_OFFSET, ext)


def update(client, offset, group="g", queue_id=0, topic="T"):
    ext = {"consumerGroup": group, "topic": topic, "queueId": queue_id, "commitOffset": offset}
    return client.ask(RequestCode.UPDATE_CONSUMER_OFFSET, ext)


def test_a_group_without_an_offset(client):
    client.send("T")
    assert query(client).ext == {"offset": "0"}, "a young queue is read from its first message"
    assert query(client, setZeroIfNotFound="false").code == ResponseCode.QUERY_NOT_FOUND
    assert query(client, queue_id=1).ext == {"offset": "0"}, "and so is one that never had any"
    assert query(client, queue_id=1, setZeroIfNotFound="false").code == ResponseCode.QUERY_NOT_FOUND
    for queue_id in (-1, 4, 1 << 30):
        assert query(client, queue_id=queue_id).code == ResponseCode.QUERY_NOT_FOUND
    assert query(client, topic="Unknown").code == ResponseCode.QUERY_NOT_FOUND


def test_a_new_group_misses_nothing_that_is_sent_while_it_asks_where_to_begin(client):
    """Java's consumer, which begins at the end: "how far have I read?", and if nobody knows, "where is the end?"."""
    client.send("T")
    begins = {}
    for queue_id in range(4):
        reply = query(client, queue_id=queue_id)
        client.send("T", body=b"meanwhile", e=queue_id)
        if reply.code == ResponseCode.QUERY_NOT_FOUND:
            reply = client.ask(RequestCode.GET_MAX_OFFSET, {"topic": "T", "queueId": queue_id})
        begins[queue_id] = int(reply.ext["offset"])
    for queue_id, begin in begins.items():
        reply = client.pull("T", begin, queue_id)
        assert b"meanwhile" in reply.body


def test_an_old_queue_is_read_as_the_group_wants(client, rig):
    client.send("T")
    (processor,) = [handler.__self__ for code, handler in rig.core.dispatcher._handlers["broker"].items() if code == 14]
    processor._in_memory_bytes = 10
    assert query(client).code == ResponseCode.QUERY_NOT_FOUND


def test_offsets_are_noted(client):
    client.send("T")
    client.heartbeat("c", "g")
    assert update(client, 7).code == 0
    assert query(client).ext == {"offset": "7"}
    assert update(client, -1).code == 0
    assert query(client).ext == {"offset": "7"}


def test_offsets_that_are_refused(client, rig):
    client.send("T")
    assert update(client, 1).code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    client.heartbeat("c", "g")
    assert update(client, 1, topic="Unknown").code == ResponseCode.TOPIC_NOT_EXIST
    reply = client.ask(RequestCode.UPDATE_CONSUMER_OFFSET, {"consumerGroup": "g", "topic": "T", "commitOffset": 1})
    assert (reply.code, reply.remark) == (ResponseCode.INVALID_PARAMETER, "QueueId is null, topic is T")
    reply = client.ask(RequestCode.UPDATE_CONSUMER_OFFSET, {"consumerGroup": "g", "topic": "T", "queueId": 0})
    assert (reply.code, reply.remark) == (ResponseCode.INVALID_PARAMETER, "Offset is null, topic is T")
    rig.core.offsets.reset("g", "T", {0: 0})
    assert update(client, 1).remark == "Offset has been previously reset"
    assert rig.core.offsets.get("g", "T", 0) == 0


def test_the_bounds_of_a_queue(client, rig):
    for _ in range(3):
        client.send("T")
        rig.now_ms += 10

    def ask(code, **more):
        return int(next(iter(client.ask(code, {"topic": "T", "queueId": 0, **more}).ext.values())))

    assert ask(RequestCode.GET_MAX_OFFSET) == 3 and ask(RequestCode.GET_MIN_OFFSET) == 0
    assert ask(RequestCode.GET_EARLIEST_MSG_STORETIME) == START_MS
    assert ask(RequestCode.GET_EARLIEST_MSG_STORETIME, queueId=1) == -1
    assert ask(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, timestamp=START_MS + 1) == 1
    assert ask(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, timestamp=START_MS + 1, boundaryType="UPPER") == 0
    assert ask(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, timestamp=START_MS + 99, boundaryType="LOWER") == 3


# ------------------------------------------------------------------------------------------------ locks


def test_locks_over_the_wire(client, rig):
    queues = [{"topic": "T", "brokerName": "broker-a", "queueId": n} for n in (0, 1)]

    def ask(code, client_id, *numbers):
        body = {"consumerGroup": "g", "clientId": client_id, "mqSet": [queues[n] for n in numbers]}
        return client.ask(code, {}, json.dumps(body).encode())

    def locked(client_id, *numbers):
        return json.loads(ask(RequestCode.LOCK_BATCH_MQ, client_id, *numbers).body)["lockOKMQSet"]

    assert locked("a", 0, 1) == [], "neither topic nor group are there"
    client.send("T")
    client.heartbeat("a", "g")
    assert locked("a", 0, 1) == queues
    assert locked("b", 0, 1) == []
    assert ask(RequestCode.UNLOCK_BATCH_MQ, "b", 0).code == 0
    assert ask(RequestCode.UNLOCK_BATCH_MQ, "a", 1).code == 0
    assert locked("b", 0, 1) == [queues[1]]
    rig.now_ms += 60_001
    assert locked("b", 0, 1) == queues
    assert client.ask(RequestCode.LOCK_BATCH_MQ, {}, b'{"mqSet":[{}]}').code == ResponseCode.SYSTEM_ERROR


# ------------------------------------------------------------------------------------------------ send-backs


def send_back(client, offset, **more):
    ext = {"offset": offset, "group": "g", "delayLevel": 0, "originMsgId": "", "originTopic": "T", **more}
    return client.ask(RequestCode.CONSUMER_SEND_MSG_BACK, ext)


def sent_offset(client, text="", body=b"body") -> int:
    return parse_message_id(client.send("T", text, body, g=77).ext["msgId"])[1]


def test_a_message_comes_back_for_its_group_alone(client, rig):
    offset = sent_offset(client, properties(UNIQ_KEY=KEY, TAGS="A", user="x"))
    assert send_back(client, offset).code == 0
    assert client.messages("%RETRY%g") == []
    rig.now_ms += 10_000
    rig.deliver_levels()
    (again,) = client.messages("%RETRY%g")
    (first,) = client.messages("T")
    assert (again.body, again.reconsume_times, again.born_ms, again.born_host) == (b"body", 1, 77, first.born_host)
    values = parse_properties(again.properties)
    assert values["RETRY_TOPIC"] == "T" and values["ORIGIN_MESSAGE_ID"] == first.message_id
    assert (values["UNIQ_KEY"], values["TAGS"], values["user"], values["WAIT"]) == (KEY, "A", "x", "false")
    assert send_back(client, again.offset).code == 0
    rig.now_ms += 29_999
    rig.deliver_levels()
    assert len(client.messages("%RETRY%g")) == 1, "the second try comes 30 s later"
    rig.now_ms += 1
    rig.deliver_levels()
    third = client.messages("%RETRY%g")[1]
    assert third.reconsume_times == 2
    assert parse_properties(third.properties)["ORIGIN_MESSAGE_ID"] == first.message_id
    assert parse_properties(third.properties)["RETRY_TOPIC"] == "T"


def test_the_last_try_goes_to_the_dead_letters(client, rig):
    offset = sent_offset(client)
    assert send_back(client, offset, maxReconsumeTimes=0).code == 0
    assert send_back(client, offset, delayLevel=-1).code == 0
    dead = client.messages("%DLQ%g")
    assert [message.reconsume_times for message in dead] == [1, 1]
    assert (
        parse_properties(dead[0].properties)["DELAY"] == "0"
        and parse_properties(dead[0].properties)["RETRY_TOPIC"] == "T"
    )
    assert rig.core.topics.get("%DLQ%g").perm == 6


def test_a_level_of_ones_own(client, rig):
    send_back(client, sent_offset(client), delayLevel=1)
    rig.now_ms += 1000
    rig.deliver_levels()
    assert len(client.messages("%RETRY%g")) == 1


def test_send_backs_that_are_refused(client, rig):
    offset = sent_offset(client)
    for wrong in (offset + 1, 1 << 40, -1):
        reply = send_back(client, wrong)
        assert (reply.code, reply.remark) == (1, f"look message by offset failed, {wrong}")
    assert send_back(client, offset, group="bad group").code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    groups = rig.core.groups
    groups.put(groups.find("g").changed(retryQueueNums=0))
    assert send_back(client, offset).code == 0
    rig.deliver_levels()
    assert client.messages("%RETRY%g") == []
    groups.put(groups.find("g").changed(retryQueueNums=1))
    rig.core.topics.put(rig.core.topics.get("%RETRY%g").changed(perm=4))
    assert send_back(client, offset).code == ResponseCode.NO_PERMISSION
    rig.core.config.set_value("brokerPermission", "4")
    assert send_back(client, offset).code == ResponseCode.NO_PERMISSION


def test_a_message_that_comes_back_carries_no_time_and_none_of_our_names(client):
    client.send("T", properties(UNIQ_KEY=KEY))
    (stored,) = client.messages("T")
    stored.properties += properties(
        __TW_ID="1",
        __TW_DUE="2",
        __TW_LEVEL="3:4",
        TIMER_DELAY_MS="5",
        TIMER_DELIVER_MS="6",
        REAL_TOPIC="T",
        REAL_QID=0,
    )
    message = retry_message(stored, "%RETRY%g", 0, 3)
    assert not {"__TW_ID", "__TW_DUE", "__TW_LEVEL", "TIMER_DELAY_MS", "TIMER_DELIVER_MS", "REAL_TOPIC"} & {
        pair.partition("\x01")[0] for pair in message.properties.split("\x02")
    }


@pytest.mark.pure
def test_a_send_back_that_the_store_refuses(client, rig):
    offset = sent_offset(client)
    rig.store.put_batch = lambda records, *_: [rig_result(rig)] * len(records)
    reply = send_back(client, offset)
    assert (reply.code, reply.remark) == (ResponseCode.SYSTEM_ERROR, "full")


def rig_result(_rig):
    from store.put.plugin_api import PutResult, PutStatus

    return PutResult(PutStatus.SERVICE_NOT_AVAILABLE, remark="full")


# ------------------------------------------------------------------------------------------------ look-ups


def test_a_message_is_found_by_its_id(client):
    offset = sent_offset(client, properties(UNIQ_KEY=KEY))
    reply = client.ask(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": offset})
    (found,) = records_of(reply.body)
    assert found.body == b"body" and found.offset == offset
    for wrong in (offset + 1, 1 << 40, -1):
        reply = client.ask(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": wrong})
        assert (reply.code, reply.remark) == (1, f"can not find message by the offset, {wrong}")


def test_a_pending_message_is_found_at_its_plugin(tmp_path):
    plugin = FakePlugin()
    rig = Rig(tmp_path / "store", plugin)
    client = rig.client()
    offset = DELAY_ID_BASE + 5
    plugin.viewable[offset] = b"record"
    assert client.ask(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": offset}).body == b"record"
    assert client.ask(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": offset + 1}).code == 1
    rig.close()


def test_messages_are_found_by_key(client, rig):
    sent_offset(client, properties(UNIQ_KEY=KEY, KEYS="order7 x"), b"one")
    sent_offset(client, properties(UNIQ_KEY="1" * 32, KEYS="order7"), b"two")

    def ask(key, **more):
        ext = {"topic": "T", "key": key, "maxNum": 10, "beginTimestamp": 0, "endTimestamp": rig.now_ms, **more}
        return client.ask(RequestCode.QUERY_MESSAGE, ext)

    reply = ask("order7")
    assert sorted(message.body for message in records_of(reply.body)) == [b"one", b"two"]
    assert int(reply.ext["indexLastUpdatePhyoffset"]) > 0
    assert len(records_of(ask("order7", maxNum=1).body)) == 1
    assert [message.body for message in records_of(ask(KEY, _UNIQUE_KEY_QUERY="true", maxNum=0).body)] == [b"one"]
    reply = ask("none")
    assert (reply.code, reply.remark) == (
        ResponseCode.QUERY_NOT_FOUND,
        "can not find message, maybe time range not correct",
    )


# ------------------------------------------------------------------------------------------------ retention


def test_level_messages_keep_segments_until_they_are_delivered_and_no_longer(tmp_path):
    every_hour = ";".join(map(str, range(24)))
    rig = Rig(tmp_path / "store", mappedFileSizeCommitLog=4096, fileReservedTime=0, deleteWhen=every_hour)
    client, log = rig.client(), rig.store.commit_log
    assert client.send("T", properties(DELAY=2)).code == 0
    for _ in range(20):
        assert client.send("T", body=b"y" * 1500).code == 0

    def expire():
        for _ in range(8):
            rig.store.housekeeper.step(rig.now_ms)
            rig.now_ms += 500
        rig.store.take_checkpoint()
        rig.store.delete_expired(4_000_000_000_000)

    expire()
    assert log.begin == 0, "it is not due yet"
    rig.now_ms += 5_000
    rig.deliver_levels()
    expire()
    assert log.begin > 0
    rig.close()
