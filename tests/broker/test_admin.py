"""Requests of administrators, over a memory channel; codes and remarks as Apache's broker 5.5.0 was seen to answer."""

import asyncio

import pytest

from broker.config.broker_config import BrokerConfig
from broker.figures.stats import Rates
from broker.figures.traffic import Traffic
from broker.net.asides import Asides
from broker.net.channel import MemoryChannel
from broker.net.clients import ClientInfo, Clients
from broker.net.dispatcher import Dispatcher
from broker.processors.admin import AdminProcessor
from broker.processors.progress import ProgressProcessor
from broker.processors.runtime import RuntimeProcessor
from broker.tables.groups import SubscriptionGroups
from broker.tables.offsets import ConsumerOffsets
from broker.tables.subscriptions import GroupSubscription
from broker.tables.topic_config import TopicConfig
from broker.tables.topics import Topics
from remoting.codes import RequestCode
from remoting.command import RemotingCommand, encode_command
from remoting.connection import FrameDecoder
from remoting.json_dialect import dumps, loads, queue_map
from remoting.messages.message import encode_host, message_id
from store.disk.files import Files
from tests.broker.core_rig import FakePlugin

BOOTED_MS = 1_763_600_000_000
TOPIC = {
    "topic": "T", "defaultTopic": "TBW102", "readQueueNums": "4", "writeQueueNums": "2", "perm": "6",
    "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false",
}  # fmt: skip


class QueuesOnly:
    """A store that knows nothing but the ends of queues: message number n was stored at 1000 + n."""

    def __init__(self):
        self.ends = {}
        self.records = {}

    def min_offset(self, topic, queue_id):
        return self.ends.get((topic, queue_id), (0, 0))[0]

    def max_offset(self, topic, queue_id):
        return self.ends.get((topic, queue_id), (0, 0))[1]

    def store_time_at(self, topic, queue_id, offset):
        begin, end = self.ends.get((topic, queue_id), (0, 0))
        return 1000 + offset if begin <= offset < end else -1

    def offset_by_time(self, topic, queue_id, at_ms):
        begin, end = self.ends.get((topic, queue_id), (0, 0))
        return min(max(at_ms - 1000, begin), end)

    def find_record(self, offset):
        return self.records.get(offset)

    def runtime_info(self):
        return {"commitLogMaxOffset": "77"}


class Figures(FakePlugin):
    """A plug-in that has figures and one key."""

    live_keys = ("figures.windowMs",)

    def runtime_info(self):
        return {"timewheelPending": "5"}


class Bench:
    """A broker's tables with the processors of administrators."""

    def __init__(self, directory):
        def clock():
            return BOOTED_MS

        files = Files()
        self.topics = Topics(files, directory / "topics.json", clock)
        self.groups = SubscriptionGroups(files, directory / "groups.json", clock)
        self.offsets = ConsumerOffsets(files, directory / "offsets.json", clock)
        self.clients = Clients()
        self.store = QueuesOnly()
        self.config = BrokerConfig(directory / "store")
        self.counters = {"put": 0, "put_bytes": 0, "found": 0, "miss": 0, "messages": 0}
        self.deleted = []
        self.changed = []
        self.works = []
        self.now_ms = BOOTED_MS
        self.channel = MemoryChannel()
        self.dispatcher = Dispatcher(lambda: self.now_ms, self.works.append)
        self.runtime = RuntimeProcessor(
            config=self.config,
            store=self.store,
            plugins=[Figures()],
            counters=lambda: self.counters,
            booted_ms=BOOTED_MS,
            changed=self.changed.append,
        )
        self.asides = Asides()
        self.processors = (
            self.runtime,
            AdminProcessor(
                topics=self.topics,
                groups=self.groups,
                offsets=self.offsets,
                delete_topic=self.delete_topic,
                asides=self.asides,
                delay_offsets=lambda: {1: 20},
            ),
            ProgressProcessor(
                store=self.store,
                topics=self.topics,
                groups=self.groups,
                offsets=self.offsets,
                clients=self.clients,
                dispatcher=self.dispatcher,
                broker_name="broker-a",
                address=lambda: "127.0.0.1:10911",
                traffic=Traffic([], "DefaultCluster", lambda: (0, 0)),
                asides=self.asides,
            ),
        )
        for processor in self.processors:
            self.dispatcher.add(processor)

    def delete_topic(self, name, _then):
        self.deleted.append(name)
        return self.topics.delete(name)

    def ask(self, code, ext=None, body=b""):
        command = RemotingCommand(code, 1, ext=ext, body=body)
        self.dispatcher.received(self.channel, FrameDecoder().feed(encode_command(command)))
        while self.works:
            asyncio.run(self.works.pop())
        (reply,) = FrameDecoder().feed(self.channel.take())
        return reply

    def table(self, code, ext=None, body=b""):
        reply = self.ask(code, ext, body)
        assert reply.code == 0, reply.remark
        return loads(reply.body)

    def consumer(self, group, client_id="c1", topic="T"):
        channel = MemoryChannel(("127.0.0.1", 50001))
        self.clients.register_consumer(
            group,
            ClientInfo(channel, client_id, "JAVA", 409, BOOTED_MS),
            consume_type="CONSUME_PASSIVELY",
            message_model="CLUSTERING",
            consume_from_where="CONSUME_FROM_LAST_OFFSET",
            subscriptions=[GroupSubscription(topic, "TagA", "TAG", 5, ["TagA"])],
        )
        return channel


@pytest.fixture
def bench(tmp_path):
    return Bench(tmp_path)


class TestTopics:
    def test_a_topic_is_created_changed_listed_and_deleted(self, bench):
        assert bench.ask(17, TOPIC).code == 0
        assert bench.table(351, {"topic": "T"}) == {
            "attributes": {"message.type": "MIXED"}, "order": False, "perm": 6, "readQueueNums": 4,
            "topicFilterType": "SINGLE_TAG", "topicName": "T", "topicSysFlag": 0, "writeQueueNums": 2,
        }  # fmt: skip
        assert bench.ask(17, {**TOPIC, "perm": "4"}).code == 0
        listed = bench.table(21)
        assert listed["topicConfigTable"]["T"]["perm"] == 4
        assert listed["dataVersion"]["counter"] == 2
        assert bench.ask(215, {"topic": "T"}).code == 0
        assert bench.deleted == ["T"]
        assert bench.ask(351, {"topic": "T"}).code == 17
        assert bench.ask(215, {"topic": "T"}).code == 0

    def test_the_same_again_changes_no_version(self, bench):
        bench.ask(17, TOPIC)
        bench.ask(17, TOPIC)
        assert bench.table(21)["dataVersion"]["counter"] == 1

    @pytest.mark.parametrize(
        ("change", "code", "text"),
        [
            ({"topic": ""}, 29, "The specified topic is blank."),
            ({"topic": "a b"}, 29, "The specified topic: a b, contains illegal characters"),
            ({"topic": "x" * 128}, 29, "is longer than topic max length: 127"),
            ({"topic": "TBW102"}, 29, "The topic[TBW102] is conflict with system topic."),
            ({"topic": "DefaultCluster"}, 29, "conflict with system topic"),
            ({"topic": "rmq_sys_x"}, 29, "conflict with system topic"),
            ({"writeQueueNums": "-1"}, 29, "writeQueueNums of topic T is -1"),
            ({"readQueueNums": "65537"}, 29, "readQueueNums of topic T is 65537"),
            ({"perm": "16"}, 29, "perm of topic T is 16"),
            ({"perm": "x"}, 1, "perm"),
            ({"attributes": "+foo=bar"}, 1, "unsupported key: foo"),
            ({"attributes": "+queue.type=BatchCQ"}, 1, "queue.type=BatchCQ"),
            ({"attributes": "-message.type"}, 1, "only add attribute is supported while creating topic"),
            ({"attributes": "message.type=FIFO"}, 1, "kv string format wrong"),
        ],
    )
    def test_what_is_refused_is_not_created(self, bench, change, code, text):
        before = set(bench.topics.table)
        reply = bench.ask(17, TOPIC | change)
        assert reply.code == code
        assert text in reply.remark
        assert set(bench.topics.table) == before

    def test_attributes_are_added_and_taken_away(self, bench):
        bench.ask(17, {**TOPIC, "attributes": "+message.type=DELAY"})
        assert bench.table(351, {"topic": "T"})["attributes"] == {"message.type": "DELAY"}
        bench.ask(17, {**TOPIC, "attributes": "-message.type,+cleanup.policy=DELETE"})
        assert bench.table(351, {"topic": "T"})["attributes"] == {"cleanup.policy": "DELETE", "message.type": "MIXED"}

    def test_a_topic_of_no_type_is_mixed_to_the_proxy_only(self, bench):
        bench.ask(17, TOPIC)
        assert bench.table(21)["topicConfigTable"]["T"]["attributes"] == {}
        assert bench.topics.get("T").attributes == {}

    @pytest.mark.parametrize("kind", ["NORMAL", "FIFO", "DELAY", "TRANSACTION", "MIXED", "UNSPECIFIED"])
    def test_a_type_is_kept_as_apache_keeps_it(self, bench, kind):
        assert bench.ask(17, {**TOPIC, "attributes": f"+message.type={kind}"}).code == 0
        assert bench.table(21)["topicConfigTable"]["T"]["attributes"] == {"message.type": kind}
        assert bench.table(351, {"topic": "T"})["attributes"] == {"message.type": kind}

    def test_a_list_is_created_whole_or_not_at_all(self, bench):
        good = TopicConfig("A", 1, 1).to_json()
        bad = TopicConfig("TBW102", 1, 1).to_json()
        assert bench.ask(18, body=dumps({"topicConfigList": [good, bad]})).code == 29
        assert bench.topics.get("A") is None
        assert bench.ask(18, body=dumps({"topicConfigList": [good]})).code == 0
        assert bench.topics.get("A").write_queue_nums == 1

    def test_system_topics_are_kept(self, bench):
        assert bench.ask(215, {"topic": "TBW102"}).code == 29
        assert bench.ask(215, {"topic": ""}).code == bench.ask(215).code == 29
        assert "SCHEDULE_TOPIC_XXXX" in bench.table(305)["topicList"]
        assert bench.deleted == []


class TestGroups:
    def test_a_group_is_created_listed_and_deleted(self, bench):
        document = {"groupName": "G", "retryMaxTimes": "3", "consumeEnable": "false", "unknown": 1, "brokerId": None}
        assert bench.ask(200, body=dumps(document)).code == 0
        found = bench.table(352, {"group": "G"})
        assert (found["retryMaxTimes"], found["consumeEnable"], found["brokerId"]) == (3, False, 0)
        assert "unknown" not in found
        assert bench.table(201)["subscriptionGroupTable"]["G"] == found
        bench.offsets.commit("G", "T", 0, 5)
        assert bench.ask(207, {"groupName": "G", "cleanOffset": "false"}).code == 0
        assert bench.offsets.get("G", "T", 0) == 5
        assert bench.ask(207, {"groupName": "G", "cleanOffset": "true"}).code == 0
        assert bench.offsets.get("G", "T", 0) == -1
        assert "G" not in bench.table(201)["subscriptionGroupTable"]

    def test_an_unknown_group_is_made_by_asking_for_it(self, bench):
        assert bench.table(352, {"group": "new"})["groupName"] == "new"
        assert bench.groups.get("new") is not None
        assert bench.ask(352, {"group": "a b"}).code == 26

    @pytest.mark.parametrize(
        ("body", "code"),
        [
            (b"", 0),
            (b"{}", 29),
            (b'{"groupName":"a b"}', 29),
            (b'{"groupName":"g","attributes":{"+x":"y"}}', 1),
            (b'{"groupName":"g","attributes":5}', 1),
            (b'{"groupName":"g","retryMaxTimes":"many"}', 1),
            (b"[]", 1),
            (b"{", 1),
        ],
    )
    def test_what_is_refused_is_not_created(self, bench, body, code):
        before = set(bench.groups.table)
        assert bench.ask(200, body=body).code == code
        assert set(bench.groups.table) == before

    def test_attributes_of_a_group_are_kept_and_answered(self, bench):
        def put(**attributes):
            return bench.ask(200, body=dumps({"groupName": "g", "retryMaxTimes": 3, "attributes": attributes}))

        assert put(**{"+priority.factor": "50", "+lite.sub.model": "Shared"}).code == 0
        assert put(**{"+priority.factor": "0", "-lite.sub.model": ""}).code == 0
        assert put().code == 0
        answered = bench.table(352, {"group": "g"})
        assert answered["attributes"] == {"priority.factor": "0"}
        assert bench.table(201)["subscriptionGroupTable"]["g"] == answered
        assert answered["retryMaxTimes"] == 3

    @pytest.mark.parametrize(
        ("known", "attributes", "remark"),
        [
            (False, {"x": "y"}, "only add attribute is supported while creating topic. key: x"),
            (False, {"-priority.factor": ""}, "only add attribute is supported while creating topic"),
            (False, {"+x": "y"}, "unsupported key: x"),
            (False, {"+": "y"}, "kv string format wrong"),
            (False, {"+priority.factor": "101"}, "value is not in range(0, 100)"),
            (False, {"+priority.factor": "-1"}, "value is not in range(0, 100)"),
            (False, {"+priority.factor": "9" * 30}, "For input string"),
            (False, {"+priority.factor": "²"}, "For input string"),
            (False, {"+lite.sub.model": "shared"}, "value is not in set: [Shared, Exclusive]"),
            (False, {"+lite.sub.reset.offset.exclusive": "1"}, "boolean attribute format is wrong."),
            (False, {"+lite.sub.client.max.event.cnt": "9"}, "value is not in range(10, "),
            (False, {"+lite.bind.topic": "x" * 256}, "256 characters"),
            (True, {"priority.factor": "1"}, "wrong format key: priority.factor"),
            (True, {"-priority.factor": ""}, "attempt to delete a nonexistent key: priority.factor"),
            (True, {"+lite.bind.topic": "T", "-lite.bind.topic": ""}, "alter duplication key. key: lite.bind.topic"),
        ],
    )
    def test_attributes_of_a_group_that_are_refused_change_nothing(self, bench, known, attributes, remark):
        if known:
            bench.ask(200, body=b'{"groupName":"g"}')
        before = dict(bench.groups.table)
        reply = bench.ask(200, body=dumps({"groupName": "g", "attributes": attributes}))
        assert (reply.code, remark in reply.remark) == (1, True), reply.remark
        assert bench.groups.table == before

    def test_a_list_is_created_whole_or_not_at_all(self, bench):
        assert bench.ask(225, body=b'{"groupConfigList":[{"groupName":"a"},{"groupName":""}]}').code == 29
        assert bench.groups.get("a") is None
        assert bench.ask(225, body=b'{"groupConfigList":[{"groupName":"a"},{"groupName":"b"}]}').code == 0
        assert bench.groups.get("b") is not None


class TestConfigAndRuntime:
    def test_configuration_is_read_and_changed(self, bench):
        reply = bench.ask(26)
        assert loads(reply.ext["version"].encode())["counter"] == 0
        lines = reply.body.decode().splitlines()
        assert lines == sorted(lines)
        assert {"brokerName=broker-a", "brokerIP1=127.0.0.1", "listenPort=10911"} <= set(lines)
        assert bench.ask(25, body=b"brokerPermission=4\nfigures.windowMs=5").code == 0
        assert bench.changed == [["brokerPermission", "figures.windowMs"]]
        reply = bench.ask(26)
        assert loads(reply.ext["version"].encode())["counter"] == 1
        assert "brokerPermission=4\n" in reply.body.decode()

    @pytest.mark.parametrize(
        ("body", "code", "text"),
        [
            (b"brokerConfigPath=/x", 16, "black list"),
            (b"storePathRootDir=/x", 16, "black list"),
            (b"brokerPermission=4\nfileReservedTime=abc", 1, "fileReservedTime=abc"),
            (b"brokerPermission=4\nlistenPort=1", 1, "listenPort=1: read at start only"),
            (b"brokerPermission=4\nnonsense=1", 1, "nonsense: no such key"),
            (b"brokerPermission=4\ndelay.windowMs=5", 1, "delay.windowMs: no such key"),
            (b"brokerPermission=4\ntls.server.mod=enforcing", 1, "tls.server.mod: no such key"),
            (b"tls.server.keyPassword=open sesame", 1, "tls.server.keyPassword=******: read at start only"),
            (b"a=\\uXXXX", 1, "four hex digits"),
        ],
    )
    def test_what_cannot_be_set_changes_nothing(self, bench, body, code, text):
        reply = bench.ask(25, body=body)
        assert reply.code == code
        assert text in reply.remark
        assert bench.config.get_int("brokerPermission") == 6
        assert bench.changed == []

    def test_runtime_info(self, bench):
        bench.ask(28)
        bench.counters.update(put=100, put_bytes=51200, messages=40, found=10, miss=2)
        bench.now_ms += 10_000
        table = bench.table(28)["table"]
        assert table["putTps"] == "10.0 10.0 10.0"
        assert table["getTotalTps"] == "1.2 1.2 1.2"
        assert table["getTransferredTps"] == "4.0 4.0 4.0"
        assert table["runtime"] == "[ 0 days, 0 hours, 0 minutes, 10 seconds ]"
        assert table["putMessageAverageSize"] == "512.0"
        assert table["commitLogMaxOffset"] == "77"
        assert table["timewheelPending"] == "5"
        assert table["brokerVersion"] == "409"
        assert all(isinstance(value, str) for value in table.values())

    def test_rates_over_three_spans_and_a_clock_set_back(self):
        rates = Rates()
        assert rates.text("put") == "0.0 0.0 0.0"
        for second in range(0, 1201, 10):
            rates.step(second * 1000, {"put": second if second <= 600 else 600 + 5 * (second - 600)})
        assert rates.text("put") == "5.0 5.0 5.0"
        rates.step(1_210_000, {"put": 3600})
        assert rates.text("put") == "0.0 4.17 4.92"
        rates.step(500_000, {"put": 3700})
        assert rates.text("put") == "0.0 0.0 0.0"
        rates.step(510_000, {"put": 3800})
        assert rates.text("put") == "10.0 10.0 10.0"

    def test_daily_totals(self):
        rates = Rates()
        for day, count in enumerate((10, 30, 70)):
            rates.step(BOOTED_MS + day * 86_400_000, {"put": count})
        assert rates.mornings("put") == (30, 70)

    def test_on_the_first_day_all_came_today(self):
        rates = Rates()
        rates.step(0, {"put": 8})
        rates.step(10_000, {"put": 9})
        assert rates.mornings("put") == (0, 0)


class TestProgress:
    def test_topic_stats(self, bench):
        bench.ask(17, TOPIC)
        bench.store.ends["T", 1] = (3, 10)
        reply = bench.ask(202, {"topic": "T"})
        assert reply.body.startswith(b'{"offsetTable":{{"brokerName":"broker-a","queueId":0,"topic":"T"}:{')
        assert queue_map(loads(reply.body)["offsetTable"])[1] == (
            ("T", "broker-a", 1),
            {"lastUpdateTimestamp": 1009, "maxOffset": 10, "minOffset": 3},
        )
        assert len(loads(reply.body)["offsetTable"]) == 4
        assert bench.ask(202, {"topic": "nope"}).remark == "topic[nope] not exist"

    def test_consume_stats_of_one_group_and_of_all(self, bench):
        bench.topics.put(TopicConfig("T", 2, 2))
        bench.groups.find("G")
        bench.store.ends["T", 0] = (0, 10)
        bench.offsets.commit("G", "T", 0, 4)
        bench.offsets.note_pull("G", "T", 0, 6)
        table = bench.table(208, {"consumerGroup": "G"})
        assert table["consumeTps"] == 0.0
        assert queue_map(table["offsetTable"]) == [
            (
                ("T", "broker-a", 0),
                {"brokerOffset": 10, "consumerOffset": 4, "lastTimestamp": 1003, "pullOffset": 6},
            ),
            (("T", "broker-a", 1), {"brokerOffset": 0, "consumerOffset": 0, "lastTimestamp": 0, "pullOffset": 0}),
        ]
        assert bench.table(208, {"consumerGroup": "none"})["offsetTable"] == {}
        everything = bench.table(317, {"isOrder": "false"})
        assert everything["totalDiff"] == 6
        (stats,) = next(entry["G"] for entry in everything["consumeStatsList"] if "G" in entry)
        assert stats == table

    def test_a_topic_that_a_connected_group_has_left_is_not_counted(self, bench):
        bench.topics.put(TopicConfig("T", 1, 1), TopicConfig("Left", 1, 1))
        for topic in ("T", "Left"):
            bench.offsets.commit("G", topic, 0, 1)
        bench.consumer("G")
        table = bench.table(208, {"consumerGroup": "G"})["offsetTable"]
        assert [queue for queue, _ in queue_map(table)] == [("T", "broker-a", 0)]

    def test_who_is_connected(self, bench):
        assert bench.ask(203, {"consumerGroup": "G"}).code == 206
        bench.consumer("G")
        found = bench.table(203, {"consumerGroup": "G"})
        assert found["connectionSet"] == [
            {"clientAddr": "127.0.0.1:50001", "clientId": "c1", "language": "JAVA", "version": 409}
        ]
        assert found["subscriptionTable"]["T"]["codeSet"] == [2598919]
        assert found["messageModel"] == "CLUSTERING"
        assert bench.ask(204, {"producerGroup": "P"}).remark == "the producer group[P] not exist"
        bench.clients.register_producer("P", ClientInfo(bench.channel, "p1", "GO", 317, BOOTED_MS))
        assert bench.table(204, {"producerGroup": "P"})["connectionSet"][0]["language"] == "GO"
        assert bench.table(328)["data"]["P"][0]["lastUpdateTimestamp"] == BOOTED_MS

    def test_who_reads_what(self, bench):
        bench.consumer("Online")
        bench.offsets.commit("Offline", "T", 0, 1)
        assert bench.table(300, {"topic": "T"}) == {"groupList": ["Offline", "Online"]}
        assert bench.table(343, {"group": "Offline"}) == {"brokerAddr": "127.0.0.1:10911", "topicList": ["T"]}
        assert bench.table(345, {"group": "Offline", "topic": "T"}) == {"group": "Offline", "topic": "T"}
        assert bench.table(345, {"group": "Online", "topic": "T"})["subscriptionData"]["subString"] == "TagA"

    def test_time_span(self, bench):
        bench.topics.put(TopicConfig("T", 1, 1))
        bench.store.ends["T", 0] = (2, 10)
        bench.offsets.commit("G", "T", 0, 5)
        (span,) = bench.table(303, {"topic": "T", "group": "G"})["consumeTimeSpanSet"]
        assert (span["minTimeStamp"], span["consumeTimeStamp"], span["maxTimeStamp"]) == (1002, 1004, 1009)
        assert span["delayTime"] == BOOTED_MS - 1004
        assert bench.ask(303, {"topic": "nope", "group": "G"}).code == 17

    def test_offsets_are_reset_to_a_time_to_the_end_and_to_a_number(self, bench):
        bench.topics.put(TopicConfig("T", 2, 2))
        bench.store.ends.update({("T", 0): (2, 10), ("T", 1): (0, 3)})
        fields = {"topic": "T", "group": "G", "isForce": "true"}

        def reset(**more):
            table = bench.table(222, {**fields, **more})["offsetTable"]
            return {queue_id: offset for (_, _, queue_id), offset in queue_map(table)}

        assert bench.ask(222, {**fields, "timestamp": "0"}).code == 26  # and asking has not made the group
        bench.groups.find("G")
        assert reset(timestamp="1005") == {0: 5, 1: 3}
        assert reset(timestamp="-1") == {0: 10, 1: 3}
        for offset in (1, 11, -2):
            reply = bench.ask(222, {**fields, "timestamp": "0", "queueId": "0", "offset": str(offset)})
            assert (reply.code, reply.remark) == (1, f"Target offset {offset} not in consume queue range [2-10]")
        assert reset(timestamp="0", queueId="0", offset="2") == {0: 2}
        assert reset(timestamp="0", queueId="0", offset="10") == {0: 10}
        assert bench.offsets.take_reset("G", "T", 0) == 10
        assert bench.offsets.get("G", "T", 1) == 3
        assert bench.ask(222, {**fields, "timestamp": "0", "topic": "nope"}).code == 17
        assert bench.ask(222, {**fields, "timestamp": "0", "group": "a b"}).code == 26
        assert bench.ask(222, {**fields, "timestamp": "0", "queueId": "2"}).code == 29

    def test_offsets_are_cloned_and_listed(self, bench):
        bench.offsets.commit("A", "T", 0, 7)
        bench.offsets.commit("A", "U", 0, 8)
        assert bench.ask(314, {"srcGroup": "A", "destGroup": "B", "topic": "T"}).code == 0
        assert bench.offsets.get("B", "U", 0) == -1
        assert bench.ask(314, {"srcGroup": "A", "destGroup": "B"}).code == 0
        table = bench.table(43)["offsetTable"]
        assert table == {"T@A": {"0": 7}, "U@A": {"0": 8}, "T@B": {"0": 7}, "U@B": {"0": 8}}
        assert bench.table(45)["offsetTable"] == {"1": 20}

    def test_no_statistics(self, bench):
        reply = bench.ask(315, {"statsName": "TOPIC_PUT_NUMS", "statsKey": "T"})
        assert (reply.code, reply.remark) == (1, "The stats <TOPIC_PUT_NUMS> <T> not exist")


class TestForwarding:
    """Requests that a client answers; the client here is the other end of a memory channel."""

    def exchange(self, bench, code, ext, body, answer):
        member = bench.consumer("G", "c9")

        async def scenario():
            command = RemotingCommand(code, 1, ext=ext)
            handlers = next(p for p in bench.processors if code in p.handlers()).handlers()
            work = asyncio.ensure_future(handlers[code](bench.channel, command, 0))
            while not member.sent and not work.done():  # a record is read by another thread
                await asyncio.sleep(0)
            (pushed,) = FrameDecoder().feed(member.take())
            assert pushed.code == code
            assert not pushed.is_response
            assert pushed.body == body
            if answer is None:
                bench.dispatcher.channel_closed(member)
            else:
                reply = pushed.reply(0, None, {"k": "v"}, answer)
                bench.dispatcher.received(member, [reply])
            return await work

        return asyncio.run(scenario())

    def test_running_info_comes_from_the_client_unchanged(self, bench):
        reply = self.exchange(bench, 307, {"consumerGroup": "G", "clientId": "c9"}, b"", b"{1:2}")
        assert (reply.code, reply.body, reply.ext) == (0, b"{1:2}", {"k": "v"})

    def test_a_client_that_goes_away(self, bench):
        reply = self.exchange(bench, 307, {"consumerGroup": "G", "clientId": "c9"}, b"", None)
        assert reply.code == 1
        assert "closed the connection" in reply.remark

    def test_a_message_is_given_to_a_client(self, bench):
        bench.store.records[64] = b"record"
        text = message_id(encode_host("127.0.0.1", 10911), 64)
        reply = self.exchange(bench, 309, {"consumerGroup": "G", "clientId": "c9", "msgId": text}, b"record", b"{}")
        assert reply.code == 0

    def test_what_cannot_be_passed_on(self, bench):
        assert bench.ask(307, {"consumerGroup": "g", "clientId": "x"}).remark == "The Consumer <g> <x> not online"
        assert bench.ask(309, {"consumerGroup": "g", "clientId": "x", "msgId": "zz"}).code == 1
        text = message_id(encode_host("127.0.0.1", 10911), 65)
        assert "no message" in bench.ask(309, {"consumerGroup": "g", "clientId": "x", "msgId": text}).remark


def test_clean_ups_have_nothing_to_do(bench):
    for code in (306, 316, 329):
        assert bench.ask(code).code == 0


def test_no_request_without_fields_breaks_anything(bench):
    for processor in bench.processors:
        for code in processor.handlers():
            for body in (b"", b"{}", b"[]", b"\xff"):
                reply = bench.ask(code, {}, body)
                assert reply.code in (0, 1, 17, 29), RequestCode(code)
