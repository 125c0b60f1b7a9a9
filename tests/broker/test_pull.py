"""Pulls: what is found, what is held, what is refused."""

import errno
import json

import aiofiles
import pytest

from broker.pulling import cold_reads
from broker.pulling.cold_reads import ColdReads
from broker.pulling.pull_request import PullLimits
from remoting.codes import RequestCode, ResponseCode
from store.disk.errors import StoreError
from tests.broker.core_rig import Rig, properties, records_of


@pytest.fixture
def rig(tmp_path):
    made = Rig(tmp_path / "store")
    yield made
    made.close()


@pytest.fixture
def client(rig):
    return rig.client()


def fill(client, *tags: str, topic: str = "T") -> None:
    for tag in tags:
        client.send(topic, properties(TAGS=tag) if tag else "", tag.encode() or b"-")


def bodies(reply) -> list[bytes]:
    return [message.body for message in records_of(reply.body)]


def offsets_of(reply) -> tuple[int, int, int]:
    return tuple(int(reply.ext[name]) for name in ("nextBeginOffset", "minOffset", "maxOffset"))


# ------------------------------------------------------------------------------------------------ results


def test_answers_that_leave_another_whole_answer_behind_are_counted(rig, client):
    pull = rig.core.processors.pull
    pull.set_limits(PullLimits(hot_count=2))
    fill(client, *"ABCDE")
    for offset, owing in ((0, 1), (1, 2), (2, 2), (4, 2), (5, 2)):
        client.pull("T", offset)
        assert pull.owing_count == owing, f"{5 - offset} messages were there"
    assert client.pull("T", 0).code == 0
    assert pull.owing_count == 3


def test_what_is_found(client):
    fill(client, "A", "B", "A")
    reply = client.pull("T", 1)
    assert (reply.code, reply.remark) == (ResponseCode.SUCCESS, "FOUND")
    assert reply.ext == {
        "suggestWhichBrokerId": "0",
        "nextBeginOffset": "3",
        "minOffset": "0",
        "maxOffset": "3",
        "topicSysFlag": "0",
        "groupSysFlag": "0",
    }
    assert bodies(reply) == [b"B", b"A"]
    assert [message.queue_offset for message in records_of(reply.body)] == [1, 2]


@pytest.mark.parametrize(
    ("topic", "offset", "code", "status", "next_offset"),
    [
        ("T", 3, ResponseCode.PULL_NOT_FOUND, "OFFSET_OVERFLOW_ONE", 3),
        ("T", 4, ResponseCode.PULL_OFFSET_MOVED, "OFFSET_OVERFLOW_BADLY", 3),
        ("T", -1, ResponseCode.PULL_OFFSET_MOVED, "OFFSET_TOO_SMALL", 0),
        ("Empty", 0, ResponseCode.PULL_NOT_FOUND, "NO_MESSAGE_IN_QUEUE", 0),
        ("Empty", 5, ResponseCode.PULL_OFFSET_MOVED, "NO_MESSAGE_IN_QUEUE", 0),
    ],
)
def test_what_is_not_found(client, rig, topic, offset, code, status, next_offset):
    fill(client, "A", "B", "A")
    rig.core.topics.create_for_send("Empty", "TBW102", 4)
    reply = client.pull(topic, offset)
    assert (reply.code, reply.remark, reply.body) == (code, status, b"")
    assert offsets_of(reply)[0] == next_offset


def test_tags_select_and_the_offset_moves_past_the_rest(client):
    fill(client, "A", "B", "", "A", "B", "B")
    reply = client.pull("T", subscription="A || C")
    assert bodies(reply) == [b"A", b"A"] and offsets_of(reply)[0] == 6
    reply = client.pull("T", subscription="C")
    assert (reply.code, reply.remark) == (ResponseCode.PULL_RETRY_IMMEDIATELY, "NO_MATCHED_MESSAGE")
    assert offsets_of(reply) == (6, 0, 6)


def test_limits_of_the_request_and_of_the_broker(tmp_path):
    rig = Rig(tmp_path / "store", maxTransferCountOnMessageInMemory=4, maxTransferBytesOnMessageInMemory=2000)
    client = rig.client()
    fill(client, *["A"] * 10)
    assert len(bodies(client.pull("T", maxMsgNums=3))) == 3
    assert len(bodies(client.pull("T", maxMsgNums=100))) == 4
    assert len(bodies(client.pull("T", maxMsgNums=0))) == 1
    assert len(bodies(client.pull("T", maxMsgBytes=1))) == 1
    client.send("T", "", bytes(3000))
    assert len(bodies(client.pull("T", 10))) == 1, "one message at least, however large"
    rig.close()


def test_lite_pulls_are_answered_alike(client):
    fill(client, "A")
    assert bodies(client.ask(RequestCode.LITE_PULL_MESSAGE, client.pull_fields("T", sysFlag=4 + 16))) == [b"A"]


def nothing_in_memory(rig, monkeypatch):
    for name in ("read_hot", "gather_hot", "read_recent"):
        monkeypatch.setattr(type(rig.store), name, lambda *_: None)


def test_bodies_that_are_not_in_memory_are_read_from_the_disk(client, rig, monkeypatch):
    fill(client, *["A"] * 12)
    rig.core.processors.pull._limits = PullLimits(cold_count=5)
    nothing_in_memory(rig, monkeypatch)
    reply = client.pull("T")
    assert len(bodies(reply)) == 5 and offsets_of(reply)[0] == 5
    assert rig.core.cold_reads.count > 0


def test_bodies_that_went_while_they_were_read(client, rig, monkeypatch):
    fill(client, "A")
    nothing_in_memory(rig, monkeypatch)

    def gone(_store, offset):
        raise KeyError(offset)

    monkeypatch.setattr(type(rig.store), "segment_of", gone)
    reply = client.pull("T")
    assert (reply.code, reply.remark) == (ResponseCode.PULL_RETRY_IMMEDIATELY, "MESSAGE_WAS_REMOVING")


# ------------------------------------------------------------------------------------------------ refusals


@pytest.mark.parametrize(
    ("fields", "code", "text"),
    [
        ({"consumerGroup": "bad group"}, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "bad group"),
        ({"topic": "Unknown"}, ResponseCode.TOPIC_NOT_EXIST, "topic[Unknown] not exist, apply first please! "),
        ({"queueId": 4}, ResponseCode.INVALID_PARAMETER, "queueId[4] is illegal, topic:[T]"),
        ({"queueId": -1}, ResponseCode.INVALID_PARAMETER, "queueId[-1]"),
        ({"subscription": "||"}, ResponseCode.SUBSCRIPTION_PARSE_FAILED, "parse"),
        ({"expressionType": "SQL92", "subscription": "a = 1"}, ResponseCode.SYSTEM_ERROR, "SQL92"),
        ({"sysFlag": 0}, ResponseCode.SUBSCRIPTION_NOT_EXIST, "the consumer's group info not exist"),
        ({"queueOffset": "x"}, ResponseCode.SYSTEM_ERROR, "queueOffset"),
    ],
)
def test_pulls_that_are_refused(client, fields, code, text):
    fill(client, "A")
    reply = client.ask(RequestCode.PULL_MESSAGE, client.pull_fields("T") | fields)
    assert reply.code == code and text in reply.remark


def test_what_may_not_be_read(client, rig):
    fill(client, "A")
    groups, topics = rig.core.groups, rig.core.topics
    groups.put(groups.find("cg").changed(consumeEnable=False))
    reply = client.pull("T")
    assert (reply.code, reply.ext["forbiddenType"]) == (ResponseCode.NO_PERMISSION, "2")
    groups.put(groups.find("cg").changed(consumeEnable=True))
    topics.put(topics.get("T").changed(perm=2))
    assert client.pull("T").ext["forbiddenType"] == "3"
    topics.put(topics.get("T").changed(perm=6))
    client.heartbeat("c", "cg", messageModel="BROADCASTING")
    groups.put(groups.find("cg").changed(consumeBroadcastEnable=False))
    assert client.pull("T", sysFlag=0).ext["forbiddenType"] == "4"
    client.heartbeat("c", "cg")
    groups.forbidden["cg"] = {"T": 4}
    assert client.pull("T", sysFlag=0).ext["forbiddenType"] == "5"
    rig.core.config.set_value("brokerPermission", "2")
    assert client.pull("T").ext["forbiddenType"] == "1"


# ------------------------------------------------------------------------------------------------ subscriptions


def test_the_subscription_of_the_heartbeat_counts(client):
    fill(client, "A", "B")
    client.heartbeat("c", "cg", expression="B", version=5)
    assert bodies(client.pull("T", sysFlag=0, subVersion=5)) == [b"B"]
    reply = client.pull("T", sysFlag=0, subVersion=6)
    assert (reply.code, reply.remark) == (
        ResponseCode.SUBSCRIPTION_NOT_LATEST,
        "the consumer's subscription not latest",
    )
    reply = client.pull("BenchmarkTest", sysFlag=0)
    assert reply.code == ResponseCode.SUBSCRIPTION_NOT_EXIST and "subscription not exist" in reply.remark


def test_a_heartbeat_with_another_kind_of_expression(client, rig):
    fill(client, "A")
    client.heartbeat("c", "cg")
    rig.core.clients.consumers["cg"].subscriptions["T"].expression_type = "SQL92"
    assert client.pull("T", sysFlag=0).code == ResponseCode.SYSTEM_ERROR


# ------------------------------------------------------------------------------------------------ waiting

WAIT = {"sysFlag": 2 + 4, "suspendTimeoutMillis": 1000}


def test_a_pull_at_the_end_waits_for_a_message(client, rig):
    fill(client, "A")
    waiting = rig.client(50002)
    waiting.submit(RequestCode.PULL_MESSAGE, waiting.pull_fields("T", 1, **WAIT))
    rig.core.end_turn()
    assert waiting.take() == [] and len(rig.core.long_poll) == 1
    fill(client, "B")
    (reply,) = waiting.take()
    assert bodies(reply) == [b"B"] and offsets_of(reply) == (2, 0, 2)
    assert len(rig.core.long_poll) == 0 and rig.core.long_poll.check() == []


def test_a_pull_of_an_empty_queue_waits_for_its_first_message(client, rig):
    rig.core.topics.create_for_send("T", "TBW102", 4)
    waiting = rig.client(50002)
    waiting.submit(RequestCode.PULL_MESSAGE, waiting.pull_fields("T", 0, **WAIT))
    rig.core.end_turn()
    assert waiting.take() == []
    fill(client, "A")
    assert bodies(*waiting.take()) == [b"A"]


def test_a_pull_ends_at_its_deadline(client, rig):
    fill(client, "A")
    waiting = rig.client(50002)
    opaque = waiting.submit(RequestCode.PULL_MESSAGE, waiting.pull_fields("T", 1, **WAIT))
    rig.pass_ms(999)
    assert waiting.take() == []
    rig.pass_ms(1)
    (reply,) = waiting.take()
    assert (reply.opaque, reply.code, reply.remark) == (opaque, ResponseCode.PULL_NOT_FOUND, "OFFSET_OVERFLOW_ONE")
    assert offsets_of(reply) == (1, 0, 1)


def test_messages_with_other_tags_leave_a_pull_waiting_and_move_it_on(client, rig):
    fill(client, "A")
    waiting = rig.client(50002)
    fields = waiting.pull_fields("T", 1, **WAIT, subscription="B")
    waiting.submit(RequestCode.PULL_MESSAGE, fields)
    rig.core.end_turn()
    fill(client, "A", "A")
    assert waiting.take() == []
    fill(client, "B")
    (reply,) = waiting.take()
    assert bodies(reply) == [b"B"] and offsets_of(reply)[0] == 4
    waiting.submit(RequestCode.PULL_MESSAGE, waiting.pull_fields("T", 4, **WAIT, subscription="B"))
    rig.core.end_turn()
    fill(client, "A", "A")
    rig.pass_ms(1000)
    (reply,) = waiting.take()
    assert (reply.code, offsets_of(reply)[0]) == (ResponseCode.PULL_RETRY_IMMEDIATELY, 6)


@pytest.mark.pure
def test_a_message_from_another_thread_between_look_and_hold_is_seen(client, rig, monkeypatch):
    fill(client, "A")
    pull = rig.store.pull
    sender = rig.client(50003)

    def look_and_be_overtaken(*arguments):
        result = pull(*arguments)
        monkeypatch.undo()
        fill(sender, "B")
        return result

    waiting = rig.client(50002)
    monkeypatch.setattr(rig.store, "pull", look_and_be_overtaken)
    waiting.submit(RequestCode.PULL_MESSAGE, waiting.pull_fields("T", 1, **WAIT))
    rig.core.end_turn()
    assert bodies(*waiting.take()) == [b"B"]


def test_nothing_else_ever_waits(client):
    fill(client, "A")
    for topic, offset, fields in (
        ("T", 2, WAIT),
        ("T", -1, WAIT),
        ("T", 1, {"sysFlag": 4}),
        ("T", 0, WAIT | {"subscription": "Z"}),
    ):
        assert client.pull(topic, offset, **fields).code in (19, 20, 21)


def test_without_long_polling_a_pull_waits_a_second_only(tmp_path):
    rig = Rig(tmp_path / "store", longPollingEnable="false")
    client = rig.client()
    fill(client, "A")
    client.submit(RequestCode.PULL_MESSAGE, client.pull_fields("T", 1, sysFlag=6))
    rig.pass_ms(1000)
    assert client.take()[0].code == ResponseCode.PULL_NOT_FOUND
    rig.close()


def test_more_pulls_than_may_wait_are_told_that_it_is_busy(tmp_path):
    rig = Rig(tmp_path / "store", pullThreadPoolQueueCapacity=2)
    client = rig.client()
    fill(client, "A")
    for _ in range(3):
        client.submit(RequestCode.PULL_MESSAGE, client.pull_fields("T", 1, sysFlag=6))
    (busy,) = client.take()
    assert busy.code == ResponseCode.SYSTEM_BUSY
    assert busy.remark.startswith(
        "[OVERLOAD]system busy, start flow control for a while: 2 pulls wait (limit pullThreadPoolQueueCapacity=2)"
    )
    assert client.pull("T", 0).code == 0, "what need not wait is served"
    fill(rig.client(50009), "B")
    assert [bodies(reply) for reply in client.take()] == [[b"B"], [b"B"]]
    client.submit(RequestCode.PULL_MESSAGE, client.pull_fields("T", 2, sysFlag=6))
    assert client.take() == [] and len(rig.core.long_poll) == 1 and rig.core.long_poll.check() == []
    rig.close()


@pytest.mark.pure
def test_one_connection_may_not_have_all_the_pulls_that_wait(rig, client, monkeypatch):
    monkeypatch.setattr("broker.pulling.pull._WAITING_OF_ONE_MAX", 1)
    fill(client, "A")
    other = rig.client(50007)
    for asker in (client, client, other):
        asker.submit(RequestCode.PULL_MESSAGE, asker.pull_fields("T", 1, sysFlag=6))
    assert [reply.code for reply in client.take()] == [ResponseCode.SYSTEM_BUSY]
    assert other.take() == [] and len(rig.core.long_poll) == 2


def test_a_closed_channel_and_a_deleted_topic_end_the_wait(client, rig):
    fill(client, "A")
    gone, told = rig.client(50002), rig.client(50003)
    for waiting in (gone, told):
        waiting.submit(RequestCode.PULL_MESSAGE, waiting.pull_fields("T", 1, **WAIT))
    rig.core.end_turn()
    gone.channel.close()
    rig.core.channel_closed(gone.channel)
    assert len(rig.core.long_poll) == 1
    assert rig.core.delete_topic("T")
    (reply,) = told.take()
    assert reply.code == ResponseCode.TOPIC_NOT_EXIST
    assert client.pull("T").code == ResponseCode.TOPIC_NOT_EXIST


# ------------------------------------------------------------------------------------------------ offsets on pull


def test_a_pull_commits_once_and_only_if_it_says_so(client, rig):
    fill(client, "A", "A")
    client.pull("T", 1, commitOffset=1)
    assert rig.core.offsets.get("cg", "T", 0) == -1
    assert rig.core.offsets.get_pulled("cg", "T", 0) == 2
    client.pull("T", 1, sysFlag=4 + 1, commitOffset=1)
    assert rig.core.offsets.get("cg", "T", 0) == 1
    client.submit(RequestCode.PULL_MESSAGE, client.pull_fields("T", 2, sysFlag=1 + 2 + 4, commitOffset=2))
    rig.core.end_turn()
    rig.core.offsets.commit("cg", "T", 0, 1)
    rig.pass_ms(15_000)
    assert client.take()[0].code == 19
    assert rig.core.offsets.get("cg", "T", 0) == 1, "the answer after waiting commits nothing"


def test_a_reader_that_was_moved_is_told_once(client, rig):
    fill(client, "A", "A", "A")
    rig.core.offsets.reset("cg", "T", {0: 1})
    assert client.ask(RequestCode.QUERY_CONSUMER_OFFSET, {"consumerGroup": "cg", "topic": "T", "queueId": 0}).ext == {
        "offset": "1"
    }
    reply = client.pull("T", 3)
    assert (reply.code, reply.remark) == (ResponseCode.PULL_OFFSET_MOVED, "OFFSET_RESET")
    assert offsets_of(reply) == (1, 0, 3)
    assert bodies(client.pull("T", 1)) == [b"A", b"A"]


def test_offsets_survive_and_are_not_beyond_the_end(tmp_path):
    rig = Rig(tmp_path / "store")
    client = rig.client()
    fill(client, "A", "A")
    client.pull("T", 0, sysFlag=5, commitOffset=2)
    rig.close()
    file = tmp_path / "store" / "config" / "consumerOffset.json"
    document = json.loads(file.read_bytes())
    assert document["offsetTable"] == {"T@cg": {"0": 2}}
    document["offsetTable"]["T@cg"]["0"] = 99
    file.write_text(json.dumps(document))
    rig = Rig(tmp_path / "store")
    assert rig.core.offsets.get("cg", "T", 0) == 2
    assert rig.core.topics.get("T") is not None and rig.core.groups.get("cg") is not None
    rig.close()


# ------------------------------------------------------------------------------------------------ reads that fail


class BadDisk:
    """The CommitLog files of a store cannot be read from the disk until `heal`; nothing of them is in memory."""

    def __init__(self, rig, monkeypatch):
        self.broken = True
        right = aiofiles.open
        nothing_in_memory(rig, monkeypatch)

        def opened(*args, **named):
            if self.broken:
                raise OSError(errno.EIO, "Input/output error")
            return right(*args, **named)

        monkeypatch.setattr(cold_reads.aiofiles, "open", opened)


def test_a_read_that_fails_skips_nothing(client, rig, monkeypatch):
    """It is not a message that was deleted: a consumer told to go on behind it would never see it."""
    fill(client, "A", "B")
    disk = BadDisk(rig, monkeypatch)
    reply = client.pull("T")
    assert reply.code == ResponseCode.SYSTEM_ERROR
    assert "Input/output error (errno 5)" in reply.remark
    assert "nextBeginOffset" not in reply.ext
    disk.broken = False
    assert bodies(client.pull("T")) == [b"A", b"B"]


@pytest.mark.pure
def test_a_held_pull_is_answered_when_nothing_can_be_read(client, rig, monkeypatch):
    """And so are the others that the same message has woken."""
    others = [rig.client(50002), rig.client(50003)]
    suspend = {"sysFlag": 6, "suspendTimeoutMillis": 15_000}
    for reader in (client, *others):
        fill(reader, "A", topic=f"T{reader.channel.peer[1]}")
        reader.submit(RequestCode.PULL_MESSAGE, reader.pull_fields("T50001", 1, **suspend))
    rig.core.end_turn()
    right, failures = rig.core.processors.pull._look, [StoreError("cannot read /x: Input/output error (errno 5)")]

    def look(pull):
        if failures:
            raise failures.pop()
        return right(pull)

    monkeypatch.setattr(rig.core.processors.pull, "_look", look)
    fill(rig.client(50009), "B", topic="T50001")
    replies = [reader.take()[-1] for reader in (client, *others)]
    assert [reply.code for reply in replies] == [ResponseCode.SYSTEM_ERROR, ResponseCode.SUCCESS, ResponseCode.SUCCESS]
    assert "cannot read /x" in replies[0].remark
    assert rig.core.long_poll.check() == []


def test_short_reads_are_continued(client, rig, monkeypatch):
    fill(client, "A", "B")
    nothing_in_memory(rig, monkeypatch)
    right = aiofiles.threadpool.binary.AsyncFileIO.read
    monkeypatch.setattr(aiofiles.threadpool.binary.AsyncFileIO, "read", lambda self, n: right(self, min(n, 50)))
    assert bodies(client.pull("T")) == [b"A", b"B"]


def test_one_that_is_not_there_does_not_take_the_others_along(client, rig, monkeypatch):
    fill(client, "A", "B", "C")
    nothing_in_memory(rig, monkeypatch)
    (bad,) = rig.store.pull("T", 0, 1, 1, 1 << 20, None).positions
    right = ColdReads._read

    async def read(self, offset, size):
        return b"" if offset <= bad[0] < offset + size else await right(self, offset, size)

    monkeypatch.setattr(ColdReads, "_read", read)
    first = client.pull("T")
    assert (bodies(first), offsets_of(first)[0]) == ([b"A"], 1)
    second = client.pull("T", 1)
    assert (second.remark, offsets_of(second)[0]) == ("MESSAGE_WAS_REMOVING", 2)
    assert bodies(client.pull("T", 2)) == [b"C"]
