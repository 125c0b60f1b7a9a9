"""An account with rights of its own sends anything it can think of; what is others' stays unread and as it was.

Requests of every code are put together from names, places, bodies and fields that mean something to this broker, the
victim's own among them. After each one no answer may hold what the victim has written, and nothing of the victim's
(messages, offsets, locks, transactions, timed messages, settings) may have changed. One seed is new in each run.
"""

import random
import struct

import pytest

from broker.access.access_table import ACCESS, ACCOUNT
from broker.naming.namesrv import NameServer
from broker.naming.route_entries import OwnBroker
from broker.plugins import load_plugin
from remoting.codes import RequestCode
from remoting.json_dialect import dumps
from remoting.messages.batch import join_batch
from remoting.messages.message import parse_message_id
from tests.broker.core_rig import Rig, properties
from tests.broker.test_acl import Signed
from tests.broker.test_acl_abuse import RULES

COUNT = 400
HUSH = b"hush-hush"
GROUPS = ("mine", "theirs", "", "theirs ", "Theirs", "%RETRY%theirs", "pg")
TOPICS = (
    *("Open", "Secret", "secret", "Secret ", "", "%RETRY%theirs", "%DLQ%theirs", "%RETRY%mine", "%DLQ%mine", "TBW102"),
    *("SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC", "rmq_sys_wheel_timer"),
    *("DefaultCluster_REPLY_TOPIC", "RMQ_SYS_TRACE_TOPIC", "%RETRY%%RETRY%theirs", "Fresh", "DefaultCluster"),
)
TOPIC_FIELDS = ("topic", "b", "c", "defaultTopic", "originTopic", "topicList", "brokerName")
GROUP_FIELDS = ("consumerGroup", "group", "producerGroup", "a", "groupName", "srcGroup", "destGroup")
PLACE_FIELDS = ("offset", "commitLogOffset", "tranStateTableOffset", "queueOffset", "commitOffset", "index")
SMALL_FIELDS = (
    "queueId",
    "e",
    "queueOffset",
    "tranStateTableOffset",
    "index",
    "d",
    "defaultTopicQueueNums",
    "reconsumeTimes",
)
"""Numbers that are mostly small, or a place in the log."""
PLAIN: dict[str, object] = {"g": 1, "h": 0, "flag": 0, "bornTimestamp": 1, "maxMsgNums": 32, "maxNum": 32, "count": 9}
PLAIN |= {"beginTimestamp": 0, "endTimestamp": 1 << 60, "timestamp": 0, "suspendTimeoutMillis": 0, "subscription": "*"}
PLAIN |= {"key": "k", "clientID": "10.0.0.1@1", "clientId": "10.0.0.1@1", "setZeroIfNotFound": "true", "k": "false"}
PLAIN |= {"statsName": "TOPIC_PUT_NUMS", "namespace": "n", "value": "v", "d": 4, "defaultTopicQueueNums": 4}
ASKS_CLIENTS = {RequestCode.GET_CONSUMER_RUNNING_INFO, RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS}
"""They wait for an answer that nobody here gives."""
FOR_ACCOUNTS = [code for code, rule in ACCESS.items() if rule.role is ACCOUNT and code not in ASKS_CLIENTS]


class World(Rig):
    """A broker with the delay plug-in and its name server, and a victim that has everything there is to have."""

    def __init__(self, root):
        (root / "rules.yml").write_bytes(RULES)
        super().__init__(
            root / "store",
            load_plugin("delay"),
            aclEnable="true",
            aclFile=root / "rules.yml",
            recallMessageEnable="true",
            enablePropertyFilter="true",
        )
        core = self.core
        own = OwnBroker("broker-a", "DefaultCluster", core.topics, core.address)
        core.dispatcher.add(NameServer(own, core.groups, auto_create_topic=True, may=core.may))
        for topic in ("Secret", "Open"):
            core.topics.create_for_send(topic, "TBW102", 4)
        core.groups.find("theirs")
        core.topics.create_for_group("%RETRY%theirs", 1)
        victim = self.victim = Signed(self, "victim-1", "secret-v")
        self.mallory = Signed(self, "mallory-1", "secret-m")
        self.mallory.channel.peer = ("192.0.2.66", 50002)
        texts = ("", "", properties(TRAN_MSG="true", PGROUP="pg"), properties(DELAY="9"), properties(DELAY="-1"))
        sent = [victim.send("Secret", text + properties(KEYS="k"), HUSH) for text in texts]
        due = properties(TIMER_DELIVER_MS=str(self.now_ms + 3_600_000), KEYS="k")
        timed = [victim.send("Secret", due, HUSH) for _ in range(2)]
        assert all(reply.code == 0 for reply in (*sent, *timed))
        self.handles = [reply.ext["recallHandle"] for reply in timed]
        self.ids = [reply.ext["msgId"] for reply in (*sent, *timed)]
        mallory = self.mallory
        own = [mallory.send("Open", text + properties(KEYS="k"), b"mine") for text in texts]
        own.append(mallory.send("Open", due, b"mine"))
        self.handles.append(own[-1].ext["recallHandle"])
        self.ids += [reply.ext["msgId"] for reply in own]
        self.places = [parse_message_id(text)[1] for text in self.ids]
        halves = (sent[2], own[2])
        self.half_places = [(reply.ext["queueOffset"], parse_message_id(reply.ext["msgId"])[1]) for reply in halves]
        mallory.heartbeat("10.0.0.66@1", "mine", topic="Open")
        victim.heartbeat("10.0.0.1@1", "theirs", topic="Secret")
        queue = {"topic": "Secret", "brokerName": "broker-a", "queueId": 0}
        lock = dumps({"consumerGroup": "theirs", "clientId": "v", "mqSet": [queue]})
        assert victim.ask(RequestCode.LOCK_BATCH_MQ, {}, lock).code == 0
        victim.ask(
            RequestCode.UPDATE_CONSUMER_OFFSET,
            {**victim.pull_fields("Secret"), "consumerGroup": "theirs", "commitOffset": 1},
        )
        back = {"offset": self.places[0], "group": "theirs", "delayLevel": -1}
        assert victim.ask(RequestCode.CONSUMER_SEND_MSG_BACK, back).code == 0
        self.core.end_turn()
        victim.take()

    def theirs(self):
        """Everything of the victim's that somebody else might change."""
        core, store = self.core, self.store
        topics = ("Secret", "%RETRY%theirs", "%DLQ%theirs")
        return {
            "messages": {topic: [store.max_offset(topic, queue) for queue in range(4)] for topic in topics},
            "topics": [core.topics.get(topic) for topic in topics],
            "group": repr(core.groups.get("theirs")),
            "offset": core.offsets.get("theirs", "Secret", 0),
            "reset": core.offsets.has_reset("theirs", "Secret", 0),
            "locks": {queue: held[0] for queue, held in core.locks._groups.get("theirs", {}).items()},
            "halves": self.places[2] in [half.offset for half in core.halves.undecided.values()],
            "timed": [self.view(place) is not None for place in self.places[5:7]],
            "member": [client.client_id for client in core.clients.consumers["theirs"].clients.values()],
            "subscriptions": sorted(core.clients.consumers["theirs"].subscriptions),
            "settings": dict(core.config.values),
            "kv": core.topics.get("TBW102"),
        }

    def view(self, place):
        return self.core.plugins[0].view(place)


def request(world, rng):
    """One request of any code."""
    code = rng.choice(FOR_ACCOUNTS if rng.random() < 0.8 else world.codes)

    def topic():
        return rng.choice(TOPICS[:2] if rng.random() < 0.7 else TOPICS)

    def group():
        return rng.choice(GROUPS[:2] if rng.random() < 0.7 else GROUPS)

    def place():
        wild = (rng.randrange(world.store.commit_log.end), (1 << 62) + rng.randrange(99), -1)
        return rng.choice(world.places if rng.random() < 0.8 else wild)

    ext = dict(PLAIN)
    ext |= {name: topic() for name in TOPIC_FIELDS if rng.random() < 0.95}
    ext |= {name: group() for name in GROUP_FIELDS if rng.random() < 0.95}
    ext |= {name: place() for name in PLACE_FIELDS}
    ext |= {name: rng.choice((0, 0, 1, -1, 20)) for name in SMALL_FIELDS if rng.random() < 0.8}
    ext |= {name: rng.choice((0, 0, 0, 4, 8, 12, 1, 2)) for name in ("sysFlag", "f")}
    ext |= {name: rng.choice((0, 0, 16, 99)) for name in ("j", "l", "reconsumeTimes", "maxReconsumeTimes")}
    ext |= {
        "msgId": rng.choice(world.ids),
        "recallHandle": rng.choice(world.handles),
        "delayLevel": rng.choice((0, -1, 1)),
    }
    ext |= {
        "statsKey": topic(),
        "commitOrRollback": rng.choice((8, 12)),
        "fromTransactionCheck": rng.choice(("true", "false")),
    }
    ext |= {"m": rng.choice(("true", "false", "false")), "batch": "false"}
    text = rng.choice(TEXTS).replace("@", topic()).replace("#", str(place()))
    ext |= {"i": text, "properties": text}
    if code in (RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE) and rng.random() < 0.8:
        ext |= {"sysFlag": 4, "queueOffset": 0, "queueId": rng.randrange(3)}
    if code == RequestCode.END_TRANSACTION and rng.random() < 0.8:
        number, place = rng.choice(world.half_places)
        ext |= {"tranStateTableOffset": number, "commitLogOffset": place, "producerGroup": "pg"}
    if rng.random() < 0.7:
        ext["c"] = ext["defaultTopic"] = "TBW102"
    return code, ext, body_of(world, rng, topic, group, text)


TEXTS = (
    "",
    *(properties(REAL_TOPIC="@", REAL_QID="0", DELAY="1"), properties(DELAY="1", REAL_TOPIC="@") + "REAL_TOPIC\x01@"),
    *(properties(TRAN_MSG="true", PGROUP="pg", REAL_TOPIC="@"), properties(RETRY_TOPIC="@", ORIGIN_MESSAGE_ID="x")),
    *(properties(__STARTDELIVERTIME="1", REAL_TOPIC="@"), properties(__TW_ID="0.0", __TW_LEVEL="1")),
    *(properties(REPLY_TO_CLIENT="10.0.0.1@1", CORRELATION_ID="x"), properties(KEYS="k", UNIQ_KEY="k")),
    "REAL_TOPIC\x01@\x02REAL_TOPIC\x01@\x02DELAY\x011",
    "\x02REAL_TOPIC\x01@\x02\x02DELAY\x011\x02",
)


def body_of(world, rng, topic, group, text):
    queue = {"topic": topic(), "brokerName": "broker-a", "queueId": 0}
    subscription = {"topic": topic(), "subString": "*", "subVersion": 9, "expressionType": "TAG", "tagsSet": []}
    consumer = {"groupName": group(), "subscriptionDataSet": [subscription], "consumeType": "CONSUME_PASSIVELY"}
    return rng.choice(
        (
            b"",
            b"x" * 40,
            join_batch([(0, b"x", text)]),
            dumps({"consumerGroup": group(), "clientId": "v", "mqSet": [queue]}),
            dumps({"clientID": "10.0.0.1@1", "producerDataSet": [{"groupName": "pg"}], "consumerDataSet": [consumer]}),
            dumps(
                {"topicConfigList": [{"topicName": topic(), "perm": 6}], "groupConfigList": [{"groupName": group()}]}
            ),
            dumps({"groupName": group(), "consumeEnable": False}),
            b"brokerPermission=4\nfileReservedTime=1\n",
            struct.pack(">i", world.store.commit_log.end) + b"\xda\xa3 \xa7" + bytes(80),
        )
    )


@pytest.mark.parametrize("seed", [1, 2, None])
def test_nothing_of_others_is_read_or_changed(tmp_path, seed):
    if seed is None:
        seed = random.SystemRandom().randrange(1 << 32)
    print("seed", seed)
    rng = random.Random(seed)
    world = World(tmp_path)
    try:
        world.codes = sorted(world.core.dispatcher.codes() - ASKS_CLIENTS)
        before = world.theirs()
        assert before["halves"] and all(before["timed"])
        done = 0
        for _ in range(COUNT):
            code, ext, body = request(world, rng)
            world.now_ms += 1
            world.mallory.submit(code, ext, body)
            world.core.end_turn()
            for reply in world.mallory.take():
                name = RequestCode(code).name
                assert HUSH not in reply.body, (name, ext, body)
                assert HUSH.decode() not in (reply.remark or ""), (name, ext)
                done += reply.code == 0
            assert all(
                HUSH not in told.body
                for told in world.victim.take()
                if told.code == RequestCode.CHECK_TRANSACTION_STATE
            )
            assert world.theirs() == before, (RequestCode(code).name, ext, body)
        assert done > COUNT // 20, f"only {done} requests were served: they prove nothing"
    finally:
        world.close()
