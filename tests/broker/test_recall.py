"""Timed messages that are taken back: the handle, the answers, and that what was recalled never comes."""

import base64

import pytest

from broker.turns.recall_handle import RecallHandle
from broker_plugin.plugin import DelayPlugin
from remoting.codes import RequestCode, ResponseCode
from remoting.errors import ProtocolError
from remoting.messages.properties import MSG_REGION
from store.disk.errors import StoreError
from store.put.plugin_api import CommandOutcome, CommandResult
from tests.broker.core_rig import START_MS, FakePlugin, Rig, properties

ON = {"recallMessageEnable": "true"}


@pytest.fixture
def rig(tmp_path):
    made = Rig(tmp_path / "store", DelayPlugin(), **ON)
    yield made
    made.close()


@pytest.fixture
def client(rig):
    return rig.client()


def send_timed(client, key="K1", due_ms=START_MS + 60_000, topic="T"):
    return client.send(topic, properties(UNIQ_KEY=key, TIMER_DELIVER_MS=due_ms))


def recall(client, handle, topic="T"):
    fields = {"producerGroup": "pg", "topic": topic, "recallHandle": handle}
    return client.ask(RequestCode.RECALL_MESSAGE, fields)


def pending(rig):
    return len(rig.core.plugins[0].list_pending(None, 10))


def test_a_recalled_message_is_not_pending_any_more(rig, client):
    handle = send_timed(client).ext["recallHandle"]
    send_timed(client, "K2")
    assert pending(rig) == 2
    reply = recall(client, handle)
    assert (reply.code, reply.remark) == (ResponseCode.SUCCESS, None)
    assert reply.ext == {"msgId": "K1", MSG_REGION: "DefaultRegion"}
    assert pending(rig) == 1


def test_the_handle_reads_as_apaches(client):
    """What a Java client reads of it: five words between blanks, and it passes over the sixth."""
    reply = send_timed(client)
    words = base64.urlsafe_b64decode(reply.ext["recallHandle"]).decode().split(" ")
    assert words[:5] == ["v1", "T", "broker-a", str(START_MS + 60_000), "K1"]
    assert reply.ext["msgId"].endswith(f"{int(words[5], 16):016X}")
    assert {"queueId", "queueOffset", "transactionId", "MSG_REGION", "TRACE_ON"} <= reply.ext.keys()


def test_recalled_twice_is_recalled(client):
    handle = send_timed(client).ext["recallHandle"]
    recall(client, handle)
    reply = recall(client, handle)
    assert (reply.code, reply.remark, reply.ext["msgId"]) == (ResponseCode.SUCCESS, "it was recalled before", "K1")


def test_only_timed_messages_have_one(client):
    assert "recallHandle" not in client.send("T").ext
    assert "recallHandle" not in client.send("T", properties(DELAY=3)).ext
    assert "recallHandle" not in send_timed(client, due_ms=START_MS - 1).ext
    client.tell(RequestCode.SEND_MESSAGE_V2, client.send_fields("T", properties(TIMER_DELIVER_MS=START_MS + 9)), b"b")


def test_a_unique_key_of_several_words(client):
    handle = send_timed(client, "a key of words").ext["recallHandle"]
    assert recall(client, handle).ext["msgId"] == "a key of words"


@pytest.mark.parametrize("serialize_type", [0, 1])
def test_in_both_serializations(client, serialize_type):
    client.serialize_type = serialize_type
    assert recall(client, send_timed(client).ext["recallHandle"]).code == ResponseCode.SUCCESS


def handle_of(**changes):
    fields = {"topic": "T", "broker_name": "broker-a", "due_ms": START_MS, "unique_key": "K1", "offset": (1 << 62) + 5}
    return RecallHandle(**(fields | changes)).encode()


def test_what_is_refused(rig, client):
    real = RecallHandle.decode(send_timed(client).ext["recallHandle"])
    rig.core.topics.create_for_send("Other", "TBW102", 4)
    illegal = ResponseCode.ILLEGAL_OPERATION
    for handle, topic, code, remark in [
        (handle_of(), "Nowhere", ResponseCode.TOPIC_NOT_EXIST, "the topic[Nowhere] not exist"),
        (handle_of(), "Other", illegal, "topic not match: the handle is of T, the request of Other"),
        (handle_of(broker_name="broker-z"), "T", illegal, "the handle is of broker broker-z"),
        (handle_of(), "T", illegal, "no message is pending under this handle"),
        # That there is another message there is not told: recalls are asked for with the rights on one topic.
        (handle_of(offset=real.offset, unique_key="K9"), "T", illegal, "no message is pending under this handle"),
        (handle_of(offset=real.offset, topic="Other"), "Other", illegal, "no message is pending under this handle"),
        ("***", "T", illegal, "recall handle is invalid: '***'"),
    ]:
        reply = recall(client, handle, topic)
        assert reply.code == code and remark in reply.remark
    assert pending(rig) == 1
    assert client.ask(RequestCode.RECALL_MESSAGE, {"topic": "T"}).code == ResponseCode.SYSTEM_ERROR


@pytest.mark.parametrize(
    "text",
    [
        "",
        "é",
        "djE",
        base64.urlsafe_b64encode(b"v1 T broker-a 5 K1").decode(),  # Apache's own: it does not name a message of ours
        base64.urlsafe_b64encode(b"v2 T broker-a 5 K1 4000000000000000").decode(),
        base64.urlsafe_b64encode(b"v1 T broker-a soon K1 4000000000000000").decode(),
        base64.urlsafe_b64encode(b"v1 T broker-a 5 K1 zz").decode(),
        base64.urlsafe_b64encode(b"\xff\xff").decode(),
    ],
)
def test_no_handle(text):
    with pytest.raises(ProtocolError, match="recall handle is invalid"):
        RecallHandle.decode(text)


def test_off_by_default(tmp_path):
    rig = Rig(tmp_path / "store", DelayPlugin())
    client = rig.client()
    assert "recallHandle" not in send_timed(client).ext
    reply = recall(client, handle_of())
    assert (reply.code, reply.remark) == (ResponseCode.NO_PERMISSION, "recall failed, operation is forbidden")
    rig.close()


class AnsweringPlugin(FakePlugin):
    """Answers a cancel as it is told."""

    result: CommandResult | StoreError = CommandResult(CommandOutcome.UNKNOWN)

    def cancel(self, _offset, _now_ms):
        if isinstance(self.result, StoreError):
            raise self.result
        return self.result


def test_the_plugins_answer_is_handed_on(tmp_path):
    plugins = [AnsweringPlugin(), AnsweringPlugin()]
    rig = Rig(tmp_path / "store", *plugins, **ON)
    client = rig.client()
    rig.core.topics.create_for_send("T", "TBW102", 4)
    plugins[1].result = CommandResult(CommandOutcome.ALREADY_DELIVERED, "it was delivered")
    reply = recall(client, handle_of())
    assert (reply.code, reply.remark) == (ResponseCode.ILLEGAL_OPERATION, "recall failed, it was delivered")
    plugins[1].result = StoreError("the disk is broken")
    reply = recall(client, handle_of())
    assert reply.code == ResponseCode.SYSTEM_ERROR and "the disk is broken" in reply.remark
    rig.close()


def test_a_send_that_fails_has_no_handle(tmp_path):
    plugin = FakePlugin()
    rig = Rig(tmp_path / "store", plugin, **ON)
    client = rig.client()
    plugin.error = StoreError("full")
    reply = client.send("T", properties(HOLD="yes"))
    assert reply.code == ResponseCode.SERVICE_NOT_AVAILABLE and "full" in reply.remark
    assert "recallHandle" not in reply.ext
    plugin.error = None
    assert "recallHandle" in client.send("T", properties(HOLD="yes")).ext
    rig.close()
