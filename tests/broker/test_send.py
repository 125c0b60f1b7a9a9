"""Sends: what is stored, what is refused, and how it is answered."""

import pytest

from remoting.codes import RequestCode, ResponseCode
from remoting.messages.message import join_batch, parse_message_id
from remoting.messages.properties import parse_properties
from store.disk.errors import StoreError
from store.put.plugin_api import PutStatus
from tests.broker.core_rig import FakePlugin, Rig, properties

KEY = "0" * 32


@pytest.fixture
def rig(tmp_path):
    made = Rig(tmp_path / "store")
    yield made
    made.close()


@pytest.fixture
def client(rig):
    return rig.client()


@pytest.fixture
def plugin():
    return FakePlugin()


@pytest.fixture
def plugged(tmp_path, plugin):
    made = Rig(tmp_path / "store", plugin)
    yield made
    made.close()


def added(reply_or_text) -> dict[str, str]:
    return {"CLUSTER": "DefaultCluster", "MSG_REGION": "DefaultRegion", "TRACE_ON": "true"} | reply_or_text


# ------------------------------------------------------------------------------------------------ what is stored


def test_a_message_is_stored_as_it_was_sent(client, rig):
    reply = client.send("T", properties(UNIQ_KEY=KEY, TAGS="A", user="x"), b"hello", e=2, f=1, g=1234, h=-7, j=3)
    assert reply.code == 0
    assert reply.ext == {
        "msgId": reply.ext["msgId"],
        "queueId": "2",
        "queueOffset": "0",
        "transactionId": KEY,
        "MSG_REGION": "DefaultRegion",
        "TRACE_ON": "true",
    }
    (stored,) = client.messages("T", 2)
    assert (stored.body, stored.flag, stored.sys_flag, stored.born_ms) == (b"hello", -7, 1, 1234)
    assert stored.reconsume_times == 3
    assert stored.born_host == client.channel.state.born_host
    assert parse_properties(stored.properties) == added({"UNIQ_KEY": KEY, "TAGS": "A", "user": "x"})
    assert stored.message_id == reply.ext["msgId"]
    assert parse_message_id(stored.message_id) == (rig.store.store_host, stored.offset)


def test_long_and_short_header_names_mean_the_same(client):
    ext = {
        "producerGroup": "pg",
        "topic": "T",
        "defaultTopic": "TBW102",
        "defaultTopicQueueNums": 4,
        "queueId": 0,
        "sysFlag": 0,
        "bornTimestamp": 5,
        "flag": 0,
        "properties": properties(UNIQ_KEY=KEY),
    }
    assert client.ask(RequestCode.SEND_MESSAGE, ext, b"one").ext["transactionId"] == KEY
    client.send("T", properties(UNIQ_KEY=KEY), b"one")
    first, second = client.messages("T")
    assert first.properties == second.properties and first.body == second.body


@pytest.mark.parametrize("text", ["", "a\x01b", "a\x01b\x02"])
def test_a_missing_unique_key_is_made(client, text):
    reply = client.send("T", text)
    (stored,) = client.messages("T")
    key = parse_properties(stored.properties)["UNIQ_KEY"]
    assert len(key) == 32 and reply.ext["transactionId"] == key
    assert parse_properties(stored.properties) == added(parse_properties(text) | {"UNIQ_KEY": key})


def test_what_only_a_broker_may_set_is_taken_out(client):
    mine = properties(
        UNIQ_KEY=KEY, CLUSTER="mine", MSG_REGION="r", TRACE_ON="false", POP_CK="1", __TW_ID="5", __TW_LEVEL="1:2", a="b"
    )
    client.send("T", mine)
    (stored,) = client.messages("T")
    assert parse_properties(stored.properties) == added({"UNIQ_KEY": KEY, "a": "b"})
    assert stored.properties.count("CLUSTER") == 1


@pytest.mark.parametrize("more", ["", properties(POP_CK="1", __TW_ID="5", __TW_LEVEL="1:2")])
def test_in_a_batch_cluster_region_and_trace_stay_as_sent(client, more):
    """As at Apache's broker, which adds none of them there. A consumer needs the CLUSTER of a request to reply."""
    kept = properties(UNIQ_KEY=KEY, CLUSTER="mine", MSG_REGION="r", TRACE_ON="false", a="b")
    body = join_batch([(0, b"1", more + kept), (0, b"2", kept + more)])
    assert client.ask(RequestCode.SEND_BATCH_MESSAGE, client.send_fields("T", m="true"), body).code == 0
    assert [stored.properties for stored in client.messages("T")] == [kept, kept]


@pytest.mark.pure
def test_messages_of_one_turn_are_one_append_and_are_answered_after_it(client, rig):
    puts = []
    put_batch = rig.store.put_batch
    rig.store.put_batch = lambda records, *more: puts.append(len(records)) or put_batch(records, *more)
    other = rig.client(50002)
    for number in range(3):
        client.submit(RequestCode.SEND_MESSAGE_V2, client.send_fields("T"), b"%d" % number)
        other.submit(RequestCode.SEND_MESSAGE_V2, other.send_fields("T", e=1), b"x")
    assert client.take() == other.take() == [] and rig.scheduled == 1
    rig.core.end_turn()
    assert [reply.ext["queueOffset"] for reply in client.take()] == ["0", "1", "2"]
    assert [reply.ext["queueOffset"] for reply in other.take()] == ["0", "1", "2"]
    assert puts == [6]
    assert [stored.body for stored in client.messages("T")] == [b"0", b"1", b"2"]


def test_a_oneway_send_is_stored_and_not_answered(client):
    client.tell(RequestCode.SEND_MESSAGE_V2, client.send_fields("T"), b"quiet")
    assert [stored.body for stored in client.messages("T")] == [b"quiet"]


def test_a_binary_client_is_answered_in_binary(client):
    client.serialize_type = 1
    reply = client.send("T", properties(UNIQ_KEY=KEY))
    assert reply.serialize_type == 1 and reply.ext["transactionId"] == KEY


def test_region_and_trace_as_configured(tmp_path):
    rig = Rig(tmp_path / "store", regionId="cn-north", traceOn="false")
    client = rig.client()
    reply = client.send("T", properties(UNIQ_KEY=KEY))
    assert (reply.ext["MSG_REGION"], reply.ext["TRACE_ON"], reply.ext["queueOffset"]) == ("cn-north", "false", "0")
    (stored,) = client.messages("T")
    assert parse_properties(stored.properties)["MSG_REGION"] == "cn-north"
    rig.close()


# ------------------------------------------------------------------------------------------------ topics


def test_an_unknown_topic_is_made_and_told(client, rig):
    heard = []
    rig.core.topics.listeners.append(heard.append)
    assert client.send("New", d=3).code == 0
    assert rig.core.topics.get("New").write_queue_nums == 3
    assert heard == [["New"]]


def test_a_broker_that_picks_the_queue_says_which(client):
    picked = {client.send("T", e=-1).ext["queueId"] for _ in range(60)}
    assert picked == {"0", "1", "2", "3"}


@pytest.mark.parametrize(
    ("topic", "fields", "code", "text"),
    [
        ("", {}, ResponseCode.INVALID_PARAMETER, "blank"),
        ("a b", {}, ResponseCode.INVALID_PARAMETER, "a b"),
        ("t" * 128, {}, ResponseCode.INVALID_PARAMETER, "127"),
        ("SCHEDULE_TOPIC_XXXX", {}, ResponseCode.NO_PERMISSION, "SCHEDULE_TOPIC_XXXX"),
        ("RMQ_SYS_TRANS_HALF_TOPIC", {}, ResponseCode.NO_PERMISSION, "RMQ_SYS_TRANS_HALF_TOPIC"),
        ("rmq_sys_wheel_timer", {}, ResponseCode.NO_PERMISSION, "rmq_sys_wheel_timer"),
        ("T", {"c": "NoSuchModel"}, ResponseCode.TOPIC_NOT_EXIST, "topic[T] not exist, apply first please!"),
        ("T", {"e": 4}, ResponseCode.INVALID_PARAMETER, "request queueId[4] is illegal, TopicConfig [topicName=T,"),
        ("%RETRY%bad group", {}, ResponseCode.INVALID_PARAMETER, "illegal characters"),
    ],
)
def test_topics_that_are_refused(client, rig, topic, fields, code, text):
    reply = client.send(topic, **fields)
    assert reply.code == code and text in reply.remark
    assert reply.ext == {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}
    assert rig.store.put_count == 0


def test_a_topic_that_may_not_be_written(client, rig):
    rig.core.topics.put(rig.core.topics.create_for_send("T", "TBW102", 4).changed(perm=4))
    reply = client.send("T")
    assert reply.code == ResponseCode.NO_PERMISSION and "the topic[T] sending message is forbidden" in reply.remark


def test_a_broker_that_may_not_be_written_refuses_ordered_topics_only(client, rig):
    rig.core.topics.put(rig.core.topics.create_for_send("T", "TBW102", 4).changed(order=True))
    assert client.send("T").code == 0
    rig.core.config.set_value("brokerPermission", "4")
    # The hot path does not look: Apache's broker stores messages of ordinary topics too.
    assert client.send("U").code == 0


# ------------------------------------------------------------------------------------------------ refusals


@pytest.mark.parametrize(
    ("text", "body", "fields", "code", "value"),
    [
        ("", b"", {}, ResponseCode.MESSAGE_ILLEGAL, "0 bytes"),
        ("", bytes(1001), {}, ResponseCode.MESSAGE_ILLEGAL, "1001 bytes"),
        ("k\x01" + "v" * 33000, b"x", {}, ResponseCode.MESSAGE_ILLEGAL, "33"),
        ("DELAY\x01abc", b"x", {}, ResponseCode.MESSAGE_ILLEGAL, "'abc'"),
        ("", b"x", {"f": 0x80}, ResponseCode.MESSAGE_ILLEGAL, "sysFlag 128"),
        ("", b"x", {"h": 1 << 40}, ResponseCode.MESSAGE_ILLEGAL, "1099511627776"),
        ("TRAN_MSG\x01true\x02DELAY\x013", b"x", {}, ResponseCode.MESSAGE_ILLEGAL, "DELAY is 3"),
        ("DELAY\x011", b"x", {"f": 4}, ResponseCode.MESSAGE_ILLEGAL, "DELAY is 1"),
        ("", b"x", {"e": "x"}, ResponseCode.SYSTEM_ERROR, "'x'"),
    ],
)
def test_messages_that_are_refused(tmp_path, text, body, fields, code, value):
    rig = Rig(tmp_path / "store", maxMessageSize=1000)
    client = rig.client()
    reply = client.send("T", text, body, **fields)
    assert reply.code == code and value in reply.remark
    assert rig.store.put_count == 0
    assert client.send("T").code == 0, "the connection and the turn go on"
    rig.close()


def test_a_retried_message_that_was_transactional_once_is_an_ordinary_one(client):
    assert client.send("T", properties(TRAN_MSG="true", DELAY=3), j=1).code == 0


def test_a_store_that_takes_nothing_is_said_so(client, rig):
    retention = rig.store.retention
    retention.disk_status, retention.disk_remark = PutStatus.SERVICE_NOT_AVAILABLE, "the disk is 97 % full"
    reply = client.send("T")
    assert reply.code == ResponseCode.SERVICE_NOT_AVAILABLE and "the disk is 97 % full" in reply.remark
    assert reply.ext["TRACE_ON"] == "true"
    client.tell(RequestCode.SEND_MESSAGE_V2, client.send_fields("T"), b"quiet")


@pytest.mark.pure
def test_a_bug_in_the_store_is_answered(client, rig):
    def broken(*_):
        raise RuntimeError("a bug")

    rig.store.put_batch = broken
    reply = client.send("T")
    assert reply.code == ResponseCode.SYSTEM_ERROR
    batch = join_batch([(0, b"1", ""), (0, b"2", "")])
    reply = client.ask(RequestCode.SEND_BATCH_MESSAGE, client.send_fields("T", m="true"), batch)
    assert reply.code == ResponseCode.SYSTEM_ERROR


# ------------------------------------------------------------------------------------------------ batches


def test_a_batch_is_stored_message_by_message(client):
    elements = [(1, b"b1", properties(UNIQ_KEY="A" * 32, TAGS="x")), (2, b"b2", properties(UNIQ_KEY="B" * 32))]
    elements.append((3, b"b3", ""))  # Go's client makes no key, and none is added
    fields = client.send_fields("T", properties(UNIQ_KEY=KEY), e=3, m="true")
    reply = client.ask(RequestCode.SEND_BATCH_MESSAGE, fields, join_batch(elements))
    assert reply.code == 0
    stored = client.messages("T", 3)
    assert reply.ext["msgId"] == ",".join(message.message_id for message in stored)
    assert (reply.ext["queueId"], reply.ext["queueOffset"], reply.ext["transactionId"]) == ("3", "0", KEY)
    assert [(message.flag, message.body, message.properties) for message in stored] == elements


def test_batch_by_code_or_by_field(client):
    body = join_batch([(0, b"1", ""), (0, b"2", "")])
    for code, m in ((RequestCode.SEND_BATCH_MESSAGE, "false"), (RequestCode.SEND_MESSAGE_V2, "true")):
        reply = client.ask(code, client.send_fields("T", m=m), body)
        assert reply.ext["msgId"].count(",") == 1
    assert len(client.messages("T")) == 4
    client.tell(RequestCode.SEND_BATCH_MESSAGE, client.send_fields("T", m="true"), body)
    assert len(client.messages("T")) == 6


@pytest.mark.parametrize("body", [b"garbage", join_batch([(0, b"1", "")]) + b"x"])
def test_a_batch_that_cannot_be_read(client, rig, body):
    reply = client.ask(RequestCode.SEND_BATCH_MESSAGE, client.send_fields("T", m="true"), body)
    assert reply.code == ResponseCode.MESSAGE_ILLEGAL
    assert rig.store.put_count == 0


def test_no_batches_to_retry_topics(client):
    fields = client.send_fields("%RETRY%g", m="true")
    reply = client.ask(RequestCode.SEND_BATCH_MESSAGE, fields, join_batch([(0, b"1", "")]))
    assert reply.code == ResponseCode.MESSAGE_ILLEGAL and "%RETRY%g" in reply.remark


def test_a_batch_with_one_half_message_is_refused_as_a_whole(client, rig):
    body = join_batch([(0, b"1", ""), (0, b"2", properties(TRAN_MSG="true"))])
    assert client.ask(RequestCode.SEND_BATCH_MESSAGE, client.send_fields("T", m="true"), body).code == 13
    assert rig.store.put_count == 0


# ------------------------------------------------------------------------------------------------ retries, levels


def test_a_message_to_a_retry_topic_goes_to_the_dead_letters_after_too_many_tries(client, rig):
    assert client.send("%RETRY%g", properties(UNIQ_KEY=KEY), j=16).code == 0
    assert client.send("%RETRY%g", properties(DELAY=5, UNIQ_KEY=KEY), j=17).code == 0
    assert client.send("%RETRY%g", j=3, l=2).code == 0
    assert (
        client.ask(RequestCode.SEND_MESSAGE_V2, client.send_fields("%RETRY%g", j=3, l=2), b"x", version=100).code == 0
    )
    assert len(client.messages("%RETRY%g")) == 2
    dead = client.messages("%DLQ%g")
    assert [message.reconsume_times for message in dead] == [17, 3]
    assert parse_properties(dead[0].properties)["DELAY"] == "-1"
    assert rig.core.groups.get("g") is not None


def test_a_group_that_reads_in_order_goes_to_the_dead_letters_at_once(client, rig):
    rig.core.locks.lock("g", "c", ("T", "broker-a", 0), rig.now_ms)
    client.send("%RETRY%g")
    assert len(client.messages("%DLQ%g")) == 1


def test_an_unknown_group_where_groups_are_not_made(tmp_path):
    rig = Rig(tmp_path / "store", autoCreateSubscriptionGroup="false")
    reply = rig.client().send("%RETRY%g")
    assert reply.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST and "g" in reply.remark
    rig.close()


def test_a_level_message_waits_and_comes_back(client, rig):
    reply = client.send("T", properties(UNIQ_KEY=KEY, DELAY=1, TAGS="A"), e=2)
    assert (reply.code, reply.ext["queueId"], reply.ext["queueOffset"]) == (0, "2", "0")
    assert client.messages("T", 2) == []
    rig.now_ms += 999
    rig.deliver_levels()
    assert client.messages("T", 2) == []
    rig.now_ms += 1
    rig.deliver_levels()
    (stored,) = client.messages("T", 2)
    assert stored.store_ms == rig.now_ms
    assert parse_properties(stored.properties)["DELAY"] == "1"


def test_the_level_scheduler_is_told_the_earliest_due_time(client, rig):
    told = []
    rig.core.turn._wake_levels = told.append
    for level in (3, 1, 2):
        client.submit(RequestCode.SEND_MESSAGE_V2, client.send_fields("T", properties(DELAY=level)), b"x")
    rig.core.end_turn()
    assert told == [rig.now_ms + 1000]
    assert len(client.take()) == 3
    client.send("T")
    assert told == [rig.now_ms + 1000]


# ------------------------------------------------------------------------------------------------ plug-ins


def test_a_held_message_is_committed_with_its_turn_and_answered_with_its_virtual_id(plugged, plugin):
    client = plugged.client()
    reply = client.send("T", properties(HOLD=1, UNIQ_KEY=KEY), e=3)
    assert reply.code == 0 and (reply.ext["queueId"], reply.ext["transactionId"]) == ("3", KEY)
    assert parse_message_id(reply.ext["msgId"])[1] == plugin.committed[0] >= 1 << 62
    assert plugged.store.put_count == 0
    assert plugin.seen[0].properties.endswith("CLUSTER\x01DefaultCluster\x02"), "the plug-in sees what would be stored"


def test_a_refused_message_is_answered_with_the_plugins_remark(plugged, plugin):
    client = plugged.client()
    reply = client.send("T", properties(REFUSE=1))
    assert reply.code == ResponseCode.MESSAGE_ILLEGAL and reply.remark.startswith("REFUSE is not wanted")
    assert plugged.store.put_count == 0 and plugin.committed == []


def test_a_batch_is_held_stored_or_refused_as_a_whole(plugged, plugin):
    client = plugged.client()

    def batch(*texts):
        body = join_batch([(0, b"%d" % number, text) for number, text in enumerate(texts)])
        return client.ask(RequestCode.SEND_BATCH_MESSAGE, client.send_fields("T", m="true"), body)

    reply = batch("", properties(HOLD=1), "")
    ids = [parse_message_id(text)[1] for text in reply.ext["msgId"].split(",")]
    assert ids[1] == plugin.committed[0] and ids[0] < ids[2] < 1 << 62
    assert [message.body for message in client.messages("T")] == [b"0", b"2"]
    assert batch(properties(HOLD=1), "", properties(REFUSE=1)).code == ResponseCode.MESSAGE_ILLEGAL
    assert len(plugin.committed) == 1 and plugin.held == []
    assert len(client.messages("T")) == 2


def test_when_the_plugin_cannot_write_the_rest_of_the_turn_is_stored(plugged, plugin):
    client = plugged.client()
    plugin.error = StoreError("the disk is full")
    fields = client.send_fields
    client.submit(RequestCode.SEND_MESSAGE_V2, fields("T"), b"plain")
    client.submit(RequestCode.SEND_MESSAGE_V2, fields("T", properties(HOLD=1)), b"held")
    mixed = join_batch([(0, b"1", ""), (0, b"2", properties(HOLD=1))])
    client.submit(RequestCode.SEND_BATCH_MESSAGE, fields("T", m="true"), mixed)
    whole = join_batch([(0, b"3", ""), (0, b"4", "")])
    client.submit(RequestCode.SEND_BATCH_MESSAGE, fields("T", m="true"), whole)
    plugged.core.end_turn()
    replies = {reply.opaque: reply for reply in client.take()}
    assert [replies[n].code for n in (1, 2, 3, 4)] == [0, 14, 14, 0]
    assert "the disk is full" in replies[2].remark
    assert [message.body for message in client.messages("T")] == [b"plain", b"3", b"4"]


def test_several_plugins_are_asked_in_order(tmp_path):
    first, second = FakePlugin(), FakePlugin()
    second.name = "second"
    rig = Rig(tmp_path / "store", first, second)
    client = rig.client()
    client.send("T", properties(HOLD=1))
    client.send("T")
    assert (len(first.seen), len(second.seen)) == (2, 1)
    assert (len(first.committed), len(second.committed)) == (1, 0)
    rig.close()


# ------------------------------------------------------------------------------------------------ SYNC_FLUSH


def test_under_sync_flush_nothing_is_answered_before_it_is_durable(tmp_path):
    rig = Rig(tmp_path / "store", flushDiskType="SYNC_FLUSH")
    client = rig.client()
    for number in range(3):
        client.submit(RequestCode.SEND_MESSAGE_V2, client.send_fields("T"), b"%d" % number)
        rig.core.end_turn()
    assert client.take() == []
    before = rig.store.flusher.sync_count
    rig.store.flusher.step(rig.now_ms)
    assert [reply.ext["queueOffset"] for reply in client.take()] == ["0", "1", "2"]
    assert rig.store.flusher.sync_count == before + 1, "one sync for all three turns"
    rig.close()


def test_more_sends_than_may_wait_for_the_disk_are_told_that_it_is_busy(tmp_path):
    rig = Rig(tmp_path / "store", flushDiskType="SYNC_FLUSH", sendThreadPoolQueueCapacity=2)
    client = rig.client()
    body = join_batch([(0, b"1", ""), (0, b"2", "")])
    for _ in range(2):
        client.submit(RequestCode.SEND_MESSAGE_V2, client.send_fields("T"), b"x")
        rig.core.end_turn()
    client.submit(RequestCode.SEND_MESSAGE_V2, client.send_fields("T"), b"x")
    client.submit(RequestCode.SEND_BATCH_MESSAGE, client.send_fields("T", m="true"), body)
    rig.core.end_turn()
    busy = client.take()
    assert [reply.code for reply in busy] == [ResponseCode.SYSTEM_BUSY] * 2
    assert all(reply.remark.startswith("[OVERLOAD]system busy, start flow control for a while") for reply in busy)
    assert all("2 sends wait for the disk, at most 2 may" in reply.remark for reply in busy)
    rig.store.flusher.step(rig.now_ms)
    assert [reply.code for reply in client.take()] == [0, 0]
    client.submit(RequestCode.SEND_MESSAGE_V2, client.send_fields("T"), b"y")
    rig.core.end_turn()
    rig.store.flusher.step(rig.now_ms)
    assert [reply.code for reply in client.take()] == [0]
    assert rig.store.max_offset("T", 0) == 3, "what was refused is not stored"
    rig.close()


def test_under_sync_flush_a_failed_sync_is_answered_as_stored_but_not_flushed(tmp_path, monkeypatch):
    rig = Rig(tmp_path / "store", flushDiskType="SYNC_FLUSH")
    client = rig.client()
    monkeypatch.setattr(type(rig.store.flusher), "submit", lambda *given: given[2](False))
    reply = client.send("T", properties(UNIQ_KEY=KEY))
    assert reply.code == ResponseCode.FLUSH_DISK_TIMEOUT
    assert reply.ext["queueOffset"] == "0" and reply.ext["transactionId"] == KEY
    body = join_batch([(0, b"1", ""), (0, b"2", "")])
    reply = client.ask(RequestCode.SEND_BATCH_MESSAGE, client.send_fields("T", m="true"), body)
    assert reply.code == ResponseCode.FLUSH_DISK_TIMEOUT and reply.ext["msgId"].count(",") == 1
    monkeypatch.undo()
    rig.close()


def test_under_sync_flush_held_messages_wait_for_the_plugins_ticket(tmp_path, plugin):
    class Journal:
        name = "journal"
        written = 10
        synced = 0

        def sync(self):
            self.synced = self.written

    rig = Rig(tmp_path / "store", plugin, flushDiskType="SYNC_FLUSH")
    client = rig.client()
    journal = Journal()
    plugin.ticket = rig.store.commit_ticket().__class__((journal, 10))
    client.submit(RequestCode.SEND_MESSAGE_V2, client.send_fields("T", properties(HOLD=1)), b"x")
    rig.core.end_turn()
    assert client.take() == [] and journal.synced == 0
    rig.store.flusher.step(rig.now_ms)
    assert [reply.code for reply in client.take()] == [0] and journal.synced == 10
    rig.close()


def test_a_bug_in_a_plugin_leaves_nothing_of_its_batch(plugged, plugin):
    client = plugged.client()
    before_put = plugin.before_put

    def fail_at_second(message, now_ms):
        if message.body == b"2":
            raise RuntimeError("planted")
        return before_put(message, now_ms)

    plugged.core.turn._before_put = fail_at_second
    body = join_batch([(0, b"1", properties(HOLD=1)), (0, b"2", "")])
    reply = client.ask(RequestCode.SEND_BATCH_MESSAGE, client.send_fields("T", m="true"), body)
    assert reply.code == ResponseCode.SYSTEM_ERROR and "planted" in reply.remark
    assert plugin.held == plugin.committed == [] and plugged.store.put_count == 0
