"""A broker whose tables are as large as they may become, and its largest requests: a row for each code.

A row has the header fields of a request that is served, and its bodies. From the fields more requests are made: each
field too long, or a number of thousands of digits. A row with bodies also gets all of `BODIES`. What does not depend
on the code is tried with one code on each port: `LONGEST`, headers of as many fields as there may be.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from broker.config.broker_config import BrokerConfig
from broker.core import BrokerCore
from broker.naming.broker_topics import QueueData
from broker.naming.namesrv import NameServer
from broker.naming.route_entries import OwnBroker
from broker.net.channel import BROKER_PORT, NAME_SERVER_PORT, Channel, MemoryChannel
from broker.net.clients import ClientInfo
from broker.sending.send_batch import BATCH_MESSAGES_MAX
from broker.tables.groups import SubscriptionGroup
from broker.tables.subscriptions import GroupSubscription
from broker.tables.topic_config import TopicConfig
from remoting.codes import REQUEST_HEADER_MAX_BYTES, RequestCode
from remoting.command import SERIALIZE_BINARY, RemotingCommand, encode_command
from remoting.json_dialect import BODY_BYTES_MAX, DIALECT_BYTES_MAX, FLAT_BYTES_MAX, dumps
from remoting.messages.message import join_batch
from tests.broker.core_rig import START_MS, properties
from tests.broker.loop_watch import AnsweringChannel, LoopWatch

__all__ = [
    "BODIES",
    "LONGEST",
    "ROWS",
    "BigBroker",
    "Row",
    "fields_of",
    "frame",
    "headers_of",
    "open_big",
    "send_frame",
]

_C = RequestCode
TOPICS, GROUPS, QUEUES, OFFSETS, STORED, ROUTES = 30_000, 30_000, 65_536, 200_000, 3_000, 200_000
MOST = 16 * 1024 * 1024 - 2_000
_LONG = "x" * 200_000
_SETTINGS = {"autoCreateTopicEnable": "false", "enablePropertyFilter": "true", "mappedFileSizeConsumeQueue": "2000"}
_MIB = 1 << 20


_ASSIGNMENT = {"topic": "Big", "consumerGroup": "cg", "clientId": "me", "messageModel": "CLUSTERING"}


@dataclass(frozen=True)
class Row:
    """The largest requests of one code: fields, bodies, and what has to be done before each try."""

    ext: dict[str, Any]
    bodies: tuple[bytes, ...] = (b"",)
    prepare: Callable[[BigBroker], object] = lambda _: None


class BigBroker:
    """The broker, its name server, and the connections that others have to it."""

    def __init__(self, core: BrokerCore, name_server: NameServer) -> None:
        self.core = core
        self.name_server = name_server
        self.members: list[Channel] = []
        self.offset = 0
        """Where the first stored message stands in the log."""
        self.message_id = ""

    def fill_topics(self) -> None:
        """Thirty thousand topics, one of them with as many queues as a topic may have."""
        table = self.core.topics.table
        for number in range(TOPICS):
            table[f"T{number}-{'t' * 40}"] = TopicConfig(f"T{number}-{'t' * 40}", 4, 4)
        for name in ("Big", "Gone"):
            table[name] = TopicConfig(name, QUEUES, QUEUES)
        table["T"] = TopicConfig("T", 4, 4)

    def fill_groups(self) -> None:
        """As many groups, and `cg` with 200,000 offsets."""
        table = self.core.groups.table
        for name in ["cg", "other", "hb", *(f"G{number}-{'g' * 40}" for number in range(GROUPS))]:
            table[name] = SubscriptionGroup(name)
        self.fill_offsets()

    def fill_offsets(self) -> None:
        """All queues of the big topic, and a topic in each of many groups."""
        offsets = self.core.offsets
        offsets.resets.clear()
        offsets.table.clear()
        for group in ("cg", "other"):
            offsets.table[f"Big@{group}"] = dict.fromkeys(range(QUEUES), 1)
        room = (OFFSETS - 2 * QUEUES) // 4
        for number in range(room // 2):
            offsets.table[f"T{number}-{'t' * 40}@cg"] = dict.fromkeys(range(4), 0)
            offsets.table[f"T@G{number}-{'g' * 40}"] = dict.fromkeys(range(4), 1)
        offsets._recount()

    def fill_clients(self, watch: LoopWatch) -> None:
        """A connection with as many memberships as it may have, and a group with a thousand members."""
        clients = self.core.clients
        crowd = MemoryChannel(("192.0.2.1", 1))
        for number in range(18_000):
            clients.register_producer(f"pg{number}", ClientInfo(crowd, "crowd", "JAVA", 1, START_MS))
        for number in range(1_000):
            body = b'{"messageQueueTable":{' + b'{"brokerName":"b","queueId":1,"topic":"T"}:5,' * 4_000 + b"}}"
            channel = AnsweringChannel(watch, ("192.0.2.2", number + 1), body if number % 500 == 0 else b"{}")
            self.members.append(channel)
            client = ClientInfo(channel, f"c{number}", "JAVA", 1, START_MS)
            clients.register_producer("pg", client)
            self.subscribe("cg", client)
        self.members.append(crowd)

    def subscribe(self, group: str, client: ClientInfo) -> None:
        """Have a client consume."""
        self.core.clients.register_consumer(
            group,
            client,
            consume_type="CONSUME_PASSIVELY",
            message_model="CLUSTERING",
            consume_from_where="CONSUME_FROM_LAST_OFFSET",
            subscriptions=[GroupSubscription("Big", "*", "TAG", 1, ()), GroupSubscription("T", "*", "TAG", 1, ())],
            notify=False,
        )

    def fill_store(self, watch: LoopWatch) -> None:
        """Some thousands of messages: half of them over the queues of the big topic, half in one queue."""
        frames = []
        for number in range(STORED):
            topic, queue = ("Big", number * 20) if number % 2 else ("T", 0)
            text = properties(KEYS="k", TAGS=f"t{number % 7}", a=str(number))
            frames.append(send_frame(topic, queue, text))
        replies = watch.feed(b"".join(frames))
        assert [reply.code for reply in replies] == [0] * STORED, replies[0]
        self.message_id = replies[0].ext["msgId"]
        self.offset = int(self.message_id[-16:], 16)

    def fill_routes(self) -> None:
        """A registered broker with as many topics, and all key-value configuration that there may be."""
        routes = self.name_server.routes
        if routes.member_group("other") is not None:
            return
        routes.topics_max = ROUTES + 20_000  # room for another broker's registration
        topics = {f"R{number}": QueueData(4, 4, 6, 0) for number in range(ROUTES)}
        routes.register(
            cluster="C", name="other", broker_id=0, address="192.0.2.7:10911", ha_address="192.0.2.7:10912",
            topics=topics, data_version={"counter": 1}, now_ms=START_MS,
        )  # fmt: skip
        kv: dict[str, str] = {f"k{number}": "v" * 100 for number in range(18_000)}
        self.name_server.kv.table["many"] = kv


def open_big(root: Path, watch: LoopWatch) -> BigBroker:
    """Open the broker over an empty directory and fill it. Only the thread of its tables runs."""
    config = BrokerConfig(root, _SETTINGS, listen_port=10911)
    core = BrokerCore(
        config, 10911, [], now_ms=lambda: START_MS, schedule=watch.schedule,
        call_soon_threadsafe=watch.loop.call_soon_threadsafe, random=Random(1),
    )  # fmt: skip
    watch.core = core
    name_server = NameServer(OwnBroker("broker-a", "DefaultCluster", core.topics, core.address), core.groups)
    core.dispatcher.add(name_server, NAME_SERVER_PORT)
    big = BigBroker(core, name_server)
    big.fill_topics()
    big.fill_groups()
    big.fill_clients(watch)
    big.fill_store(watch)
    big.fill_routes()
    core.tables.start()
    watch.settle()
    return big


# ------------------------------------------------------------------------------------------------ bytes


def frame(code: int, ext: dict[str, Any] | None = None, body: bytes = b"", kind: int = 0) -> bytes:
    """Write a request."""
    texts = {name: str(value) for name, value in (ext or {}).items()}
    return encode_command(RemotingCommand(code, 1, 0, ext=texts, body=body, serialize_type=kind))


def send_frame(topic: str, queue_id: int, text: str = "") -> bytes:
    """Write a send of one small message."""
    return frame(_C.SEND_MESSAGE_V2, _send(topic, e=queue_id, i=text), b"body")


def _of_size(begin: bytes, piece: bytes, end: bytes, size: int) -> bytes:
    return begin + piece * ((size - len(begin) - len(end)) // len(piece)) + end


def _nasty() -> Iterator[bytes]:
    for size in (DIALECT_BYTES_MAX, BODY_BYTES_MAX, FLAT_BYTES_MAX):
        yield _of_size(b"[", b"[],", b"[]]", size)
        yield _of_size(b"{", b"1:1,", b"1:1}", size)
        yield _of_size(b"{1:", b"{2:", b"}", size)
        yield _of_size(b"[", b"'a\\\\',", b"1]", size)
        yield _of_size(b"[", b'"\\u0041",', b"1]", size)
        yield _of_size(b"[", b"1,", b"1]", size)
        yield b"[" + b"9" * (size - 2) + b"]"
        yield b"[" * size
    yield b"[" * 60 + _of_size(b"", b"[1],", b"1", DIALECT_BYTES_MAX - 120) + b"]" * 60
    yield _of_size(b"", b"a=\\u0041\n", b"", 32 << 10)
    yield _of_size(b"", b"a=b\n", b"", 32 << 10)
    yield _of_size(b"", b"a=\\\n", b"", _MIB)


BODIES = tuple(_nasty())
LONGEST = (_of_size(b"[", b"[],", b"[]]", MOST), bytes(MOST))
"""As long as a frame may be."""


def fields_of(code: int, ext: dict[str, Any]) -> Iterator[tuple[str, bytes]]:
    """Frames with one field too long, and its name."""
    usual = {name: str(value) for name, value in ext.items()}
    for name in usual:
        for value in (_LONG, "-" + "9" * 4_000, "a;" * 80_000):
            yield name, frame(code, {**usual, name: value})


def headers_of(code: int, ext: dict[str, Any]) -> Iterator[bytes]:
    """Frames with the largest headers that there may be; no bodies."""
    usual = {name: str(value) for name, value in ext.items()}
    room = REQUEST_HEADER_MAX_BYTES - 10_000
    many = {f"f{number}": "v" for number in range(room // 12)}
    yield frame(code, {**usual, **many})
    yield frame(code, {**usual, **{f"f{n}": "v" for n in range(room // 14)}}, kind=SERIALIZE_BINARY)
    head = b'{"code":%d,"language":"JAVA","opaque":1,"flag":0,"version":401,"extFields":' % code
    for size, piece in ((16 << 10, b'"%d":[],'), (64 << 10, b'"%d":1,'), (64 << 10, b'"%d":1.5e300,')):
        pairs = b"".join(piece % number for number in range(size))[: size - len(head) - 200]
        text = head + b"{" + pairs[: pairs.rindex(b",")] + b"}}"
        yield (len(text) + 4).to_bytes(4, "big") + len(text).to_bytes(4, "big") + text


def _listed(name: str, one: Callable[[int], Any], count: int, **more: Any) -> bytes:
    return dumps({**more, name: [one(number) for number in range(count)]})


def _fitting(name: str, one: Callable[[int], Any], size: int, **more: Any) -> bytes:
    """A body with as many entries as fit."""
    each = len(dumps(one(99_999))) + 1
    return _listed(name, one, (size - 200) // each, **more)


# ------------------------------------------------------------------------------------------------ rows


def _send(topic: str, **more: Any) -> dict[str, Any]:
    fields = {"a": "pg", "b": topic, "c": "TBW102", "d": 4, "e": 0, "f": 0, "g": 5, "h": 0, "i": ""}
    return {**fields, "j": 0, "k": "false", "m": "false", **more}


_LONG_NAMES = ("producerGroup", "topic", "defaultTopic", "defaultTopicQueueNums", "queueId", "sysFlag", "bornTimestamp")


def _send_v1(topic: str) -> dict[str, Any]:
    values = ("pg", topic, "TBW102", 4, 0, 0, 5, 0, "", 0, "false", "false")
    names = (*_LONG_NAMES, "flag", "properties", "reconsumeTimes", "unitMode", "batch")
    return dict(zip(names, values, strict=True))


_PULL = {
    "consumerGroup": "cg", "topic": "T", "queueId": 0, "queueOffset": 0, "maxMsgNums": 1_000, "sysFlag": 4,
    "commitOffset": 0, "suspendTimeoutMillis": 0, "subscription": "*", "subVersion": 0, "expressionType": "TAG",
}  # fmt: skip
_SQL = " OR ".join(f"a = '{n}'" for n in range(100))
_TEXTS = (
    "",
    "a\x01b\x02",
    properties(KEYS="k l m n"),
    properties(KEYS="k " * 20),
    properties(WAIT="true", UNIQ_KEY="A" * 32),
)
_BATCHES = (
    *(join_batch([(0, b"", text)] * BATCH_MESSAGES_MAX) for text in _TEXTS),
    join_batch([(0, b"", f"a{n}\x01b\x02") for n in range(BATCH_MESSAGES_MAX)]),
)
_TOPIC = {
    "topic": "Big", "defaultTopic": "TBW102", "readQueueNums": QUEUES, "writeQueueNums": QUEUES, "perm": 6,
    "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": "false",
}  # fmt: skip
_CG_BIG = {"topic": "Big", "group": "cg"}
_REGISTER = {
    "brokerName": "x", "brokerAddr": "192.0.2.8:10911", "clusterName": "C", "haServerAddr": "192.0.2.8:10912",
    "brokerId": 0,
}  # fmt: skip


def _lock(number: int) -> Any:
    return {"topic": "Big", "brokerName": "broker-a", "queueId": number}


def _topic_json(number: int) -> Any:
    return {
        "topicName": f"T{number % TOPICS}-{'t' * 40}", "readQueueNums": 4, "writeQueueNums": 4, "perm": 6,
        "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": False, "attributes": {"+message.type": "NORMAL"},
    }  # fmt: skip


def _heartbeats() -> tuple[bytes, ...]:
    def consumer(number: int) -> Any:
        return {
            "groupName": f"G{number}-{'g' * 40}",
            "subscriptionDataSet": [{"topic": f"T{k}", "subString": "a||b"} for k in range(4)],
        }

    sql = [{"topic": f"T{k}", "subString": _SQL, "expressionType": "SQL92"} for k in range(30)]
    tags = [{"topic": "T", "subString": "*", "tagsSet": [f"t{n}" for n in range(9_000)]}]
    return (
        _listed("consumerDataSet", consumer, 256, clientID="h"),
        _listed("producerDataSet", lambda n: {"groupName": f"pp{n}"}, 256, clientID="h"),
        dumps({"clientID": "h", "consumerDataSet": [{"groupName": "hb", "subscriptionDataSet": sql}]}),
        dumps({"clientID": "h", "consumerDataSet": [{"groupName": "hb", "subscriptionDataSet": tags}]}),
    )


def _registrations() -> tuple[bytes, ...]:
    def body(count: int) -> bytes:
        config = {"perm": 6, "readQueueNums": 4, "topicSysFlag": 0, "writeQueueNums": 4}
        table = {f"N{number}": {**config, "topicName": f"N{number}"} for number in range(count)}
        version = {"counter": 1, "stateVersion": 0, "timestamp": 1}
        wrapper = {"dataVersion": version, "topicConfigTable": table}
        return dumps({"filterServerList": [], "topicConfigSerializeWrapper": wrapper})

    return body(20_000), body(5_000), body(500)


def _reset_routes(big: BigBroker) -> None:
    big.name_server.routes.unregister("C", "x", 0, "192.0.2.8:10911")


def _again(big: BigBroker) -> None:
    big.core.topics.table["Gone"] = TopicConfig("Gone", QUEUES, QUEUES)


def _group_again(big: BigBroker) -> None:
    if "other" not in big.core.groups.table:
        big.core.groups.table["other"] = SubscriptionGroup("other")
        big.fill_offsets()


def _no_resets(big: BigBroker) -> None:
    big.core.offsets.resets.clear()


def _crowd_again(big: BigBroker) -> None:
    big.core.locks.expire(START_MS + (1 << 40))


_QUEUE = {"topic": "Big", "queueId": 20}
_BROKER = {"brokerName": "other", "clusterName": "C", "brokerAddr": "192.0.2.7:10911", "brokerId": 0}
_KV = {"namespace": "many", "key": "k1", "value": "v" * 100}

_POP = {
    "consumerGroup": "cg", "topic": "Big", "queueId": -1, "maxMsgNums": 32, "invisibleTime": 60_000, "pollTime": 0,
    "bornTime": 0, "initMode": 0, "expType": "SQL92", "exp": _SQL, "order": "false",
}  # fmt: skip
_POPPED = {"consumerGroup": "cg", "topic": "Big", "queueId": 20, "extraInfo": "0 1 1 0 0 broker-a 20 0"}


def _ack_json(number: int) -> Any:
    return {"c": "cg", "t": "Big", "r": "0", "so": 0, "q": number, "rq": 0, "pt": 1, "it": 1, "b": "/" * 8}


ROWS: dict[str, dict[int, Row]] = {
    BROKER_PORT: {
        _C.SEND_MESSAGE: Row(_send_v1("T"), (bytes(4 * _MIB), b"x")),
        _C.SEND_MESSAGE_V2: Row(_send("T"), (bytes(4 * _MIB), b"x")),
        _C.SEND_BATCH_MESSAGE: Row(_send("T", m="true"), _BATCHES),
        _C.SEND_REPLY_MESSAGE: Row(_send_v1("T"), (bytes(4 * _MIB), b"x")),
        _C.SEND_REPLY_MESSAGE_V2: Row(_send("T"), (bytes(4 * _MIB), b"x")),
        _C.PULL_MESSAGE: Row(_PULL),
        _C.LITE_PULL_MESSAGE: Row({**_PULL, "subscription": _SQL, "expressionType": "SQL92"}),
        _C.QUERY_MESSAGE: Row(
            {"topic": "T", "key": "k", "maxNum": 100_000, "beginTimestamp": 0, "endTimestamp": 1 << 60}
        ),
        _C.QUERY_CONSUMER_OFFSET: Row({"consumerGroup": "cg", **_QUEUE}),
        _C.UPDATE_CONSUMER_OFFSET: Row({"consumerGroup": "cg", "commitOffset": 1, **_QUEUE}),
        _C.UPDATE_AND_CREATE_TOPIC: Row(_TOPIC),
        _C.UPDATE_AND_CREATE_TOPIC_LIST: Row(
            {}, (_fitting("topicConfigList", _topic_json, _MIB), _fitting("topicConfigList", _topic_json, 128 << 10))
        ),
        _C.GET_ALL_TOPIC_CONFIG: Row({}),
        _C.UPDATE_BROKER_CONFIG: Row({}, (b"fileReservedTime=72\n", b"brokerName=x\n" * 2_000)),
        _C.GET_BROKER_CONFIG: Row({}),
        _C.GET_BROKER_RUNTIME_INFO: Row({}),
        _C.SEARCH_OFFSET_BY_TIMESTAMP: Row({**_QUEUE, "timestamp": 1}),
        _C.GET_MAX_OFFSET: Row(_QUEUE),
        _C.GET_MIN_OFFSET: Row(_QUEUE),
        _C.GET_EARLIEST_MSG_STORETIME: Row(_QUEUE),
        _C.VIEW_MESSAGE_BY_ID: Row({"offset": 0}),
        _C.HEART_BEAT: Row({}, _heartbeats()),
        _C.UNREGISTER_CLIENT: Row({"clientID": "h", "producerGroup": "pg", "consumerGroup": "cg"}),
        _C.CONSUMER_SEND_MSG_BACK: Row(
            {"offset": 0, "group": "cg", "delayLevel": 0, "originMsgId": "x", "originTopic": "T", "unitMode": "false",
             "maxReconsumeTimes": 16}
        ),
        _C.END_TRANSACTION: Row(
            {"producerGroup": "pg", "tranStateTableOffset": 0, "commitLogOffset": 0, "commitOrRollback": 8,
             "fromTransactionCheck": "false", "msgId": "x", "transactionId": "x"}
        ),
        _C.GET_CONSUMER_LIST_BY_GROUP: Row({"consumerGroup": "cg"}),
        _C.LOCK_BATCH_MQ: Row(
            {}, (_fitting("mqSet", _lock, BODY_BYTES_MAX, consumerGroup="cg", clientId="h"),), _crowd_again
        ),
        _C.UNLOCK_BATCH_MQ: Row({}, (_fitting("mqSet", _lock, BODY_BYTES_MAX, consumerGroup="cg", clientId="h"),)),
        _C.GET_ALL_CONSUMER_OFFSET: Row({}),
        _C.GET_ALL_DELAY_OFFSET: Row({}),
        _C.CHECK_CLIENT_CONFIG: Row(
            {}, (dumps({"clientId": "h", "group": "cg", "subscriptionData": {
                "topic": "T", "subString": _SQL, "expressionType": "SQL92"}}),)
        ),
        _C.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: Row({}, (dumps({"groupName": "cg"}),)),
        _C.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: Row({}),
        _C.GET_TOPIC_STATS_INFO: Row({"topic": "Big"}),
        _C.GET_CONSUMER_CONNECTION_LIST: Row({"consumerGroup": "cg"}),
        _C.GET_PRODUCER_CONNECTION_LIST: Row({"producerGroup": "pg"}),
        _C.DELETE_SUBSCRIPTIONGROUP: Row({"groupName": "other", "cleanOffset": "true"}, (b"",), _group_again),
        _C.GET_CONSUME_STATS: Row({"consumerGroup": "cg", "topic": ""}),
        _C.DELETE_TOPIC_IN_BROKER: Row({"topic": "Gone"}, (b"",), _again),
        _C.INVOKE_BROKER_TO_RESET_OFFSET: Row(
            {**_CG_BIG, "timestamp": 1, "isForce": "true"}, (b"",), _no_resets
        ),
        _C.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: Row({"topic": "T", "group": "cg", "clientAddr": ""}),
        _C.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: Row(
            {}, (_fitting("groupConfigList", lambda n: {"groupName": f"G{n % GROUPS}-{'g' * 40}"}, _MIB),
                 _fitting("groupConfigList", lambda n: {"groupName": f"G{n % GROUPS}-{'g' * 40}"}, 128 << 10))
        ),
        _C.QUERY_TOPIC_CONSUME_BY_WHO: Row({"topic": "T"}),
        _C.QUERY_CONSUME_TIME_SPAN: Row(_CG_BIG),
        _C.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: Row({}),
        _C.CLEAN_EXPIRED_CONSUMEQUEUE: Row({}),
        _C.GET_CONSUMER_RUNNING_INFO: Row({"consumerGroup": "cg", "clientId": "c0", "jstackEnable": "true"}),
        _C.CONSUME_MESSAGE_DIRECTLY: Row({"consumerGroup": "cg", "clientId": "c0", "msgId": "MESSAGE"}),
        _C.CLONE_GROUP_OFFSET: Row({"srcGroup": "cg", "destGroup": "other", "topic": ""}),
        _C.VIEW_BROKER_STATS_DATA: Row({"statsName": "TOPIC_PUT_NUMS", "statsKey": "T"}),
        _C.CLEAN_UNUSED_TOPIC: Row({}),
        _C.GET_BROKER_CONSUME_STATS: Row({"isOrder": "false"}),
        _C.QUERY_CONSUME_QUEUE: Row(
            {"topic": "T", "queueId": 0, "index": 0, "count": 1_000_000, "consumerGroup": "cg"}
        ),
        _C.RESUME_CHECK_HALF_MESSAGE: Row({"msgId": "MESSAGE"}),
        _C.GET_ALL_PRODUCER_INFO: Row({}),
        _C.DELETE_EXPIRED_COMMITLOG: Row({}),
        _C.QUERY_TOPICS_BY_CONSUMER: Row({"group": "cg"}),
        _C.QUERY_SUBSCRIPTION_BY_CONSUMER: Row({"group": "cg", "topic": "T"}),
        _C.GET_TOPIC_CONFIG: Row({"topic": "Big"}),
        _C.GET_SUBSCRIPTIONGROUP_CONFIG: Row({"group": "cg"}),
        _C.RECALL_MESSAGE: Row({"producerGroup": "pg", "topic": "T", "recallHandle": "x" * 500}),
        _C.GET_BROKER_HA_STATUS: Row({}),
        _C.QUERY_ASSIGNMENT: Row({}, (dumps(_ASSIGNMENT), dumps({**_ASSIGNMENT, "topic": "x" * 100_000}))),
        _C.SET_MESSAGE_REQUEST_MODE: Row({}, (dumps({**_ASSIGNMENT, "mode": "POP", "popShareQueueNum": 8}),)),
        _C.GET_ALL_MESSAGE_REQUEST_MODE: Row({}),
        _C.PENDING_GET: Row({"name": "x" * 500, "topic": "Big"}),
        _C.PENDING_CHANGE: Row({"verb": "move", "name": f"{1 << 62}", "topic": "Big", "dueMs": 9, "version": 1}),
        _C.PENDING_LIST: Row({"topic": "Big", "limit": 1_000, "properties": "a\x01b\x02" * 1_000}),
        _C.PENDING_COUNT: Row({"topic": "Big", "dueFromMs": 0, "dueToMs": 1 << 60}),
        _C.PENDING_CHANGE_MATCHING: Row({"topic": "Big", "verb": "cancel", "limit": 10_000}),
        _C.PENDING_FORECAST: Row({"fromMs": 0, "toMs": 1 << 60, "bars": 2_000}),
        _C.POP_MESSAGE: Row(_POP),
        _C.ACK_MESSAGE: Row({**_POPPED, "offset": 0}),
        _C.BATCH_ACK_MESSAGE: Row({}, (_listed("acks", _ack_json, 1_000), _fitting("acks", _ack_json, 256 << 10))),
        _C.CHANGE_MESSAGE_INVISIBLETIME: Row({**_POPPED, "offset": 0, "invisibleTime": 1}),
        _C.PEEK_MESSAGE: Row({**_POP, "maxMsgNums": 32}),
        _C.NOTIFICATION: Row({**_POP, "pollTime": 0}),
        _C.POLLING_INFO: Row({**_POP, "queueId": -1}),
    },
    NAME_SERVER_PORT: {
        _C.PUT_KV_CONFIG: Row(_KV),
        _C.GET_KV_CONFIG: Row(_KV),
        _C.DELETE_KV_CONFIG: Row(_KV),
        _C.GET_KVLIST_BY_NAMESPACE: Row({"namespace": "many"}),
        _C.REGISTER_BROKER: Row(_REGISTER, _registrations(), _reset_routes),
        _C.UNREGISTER_BROKER: Row(_BROKER, (b"",), BigBroker.fill_routes),
        _C.GET_ROUTEINFO_BY_TOPIC: Row({"topic": "Big"}, (b"",), BigBroker.fill_routes),
        _C.GET_BROKER_CLUSTER_INFO: Row({}),
        _C.WIPE_WRITE_PERM_OF_BROKER: Row({"brokerName": "other"}),
        _C.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: Row({}),
        _C.DELETE_TOPIC_IN_NAMESRV: Row({"topic": "R1", "clusterName": "C"}),
        _C.REGISTER_TOPIC_IN_NAMESRV: Row({"topic": "R2"}, (
            _listed("queueDatas", lambda n: {"brokerName": f"b{n}", "perm": 6, "readQueueNums": 4, "writeQueueNums": 4},
                    100_000),
            _listed("queueDatas", lambda n: {"brokerName": f"b{n}", "perm": 6, "readQueueNums": 4, "writeQueueNums": 4},
                    1_000),
        )),
        _C.GET_TOPICS_BY_CLUSTER: Row({"cluster": "C"}),
        _C.GET_SYSTEM_TOPIC_LIST_FROM_NS: Row({}),
        _C.GET_UNIT_TOPIC_LIST: Row({}),
        _C.GET_HAS_UNIT_SUB_TOPIC_LIST: Row({}),
        _C.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: Row({}),
        _C.UPDATE_NAMESRV_CONFIG: Row({}, (b"orderMessageEnable=false\n",)),
        _C.GET_NAMESRV_CONFIG: Row({}),
        _C.QUERY_DATA_VERSION: Row(_BROKER, (dumps({"counter": 1}),)),
        _C.ADD_WRITE_PERM_OF_BROKER: Row({"brokerName": "other"}),
        _C.GET_BROKER_MEMBER_GROUP: Row({"brokerName": "other", "clusterName": "C"}),
        _C.BROKER_HEARTBEAT: Row(_BROKER),
    },
}  # fmt: skip
