"""The embedded name server, driven over memory channels; answers compared with what Apache 5.5.0 was seen to send."""

import asyncio
import struct
import zlib

import pytest

from broker.naming.namesrv import NameServer
from broker.naming.registration import register_command
from broker.naming.route_entries import OwnBroker
from broker.net.channel import MemoryChannel
from broker.net.dispatcher import Dispatcher
from broker.tables.groups import SubscriptionGroup, SubscriptionGroups
from broker.tables.json_files import JsonFile
from broker.tables.topic_config import TopicConfig
from broker.tables.topics import Topics
from remoting.codes import RequestCode
from remoting.command import RemotingCommand, encode_command, request
from remoting.connection import FrameDecoder
from remoting.json_dialect import dumps, loads
from store.disk.files import Files

ADDRESS = "127.0.0.1:10911"
OTHER = {"brokerAddr": "192.0.2.5:10911", "brokerId": "0", "brokerName": "broker-b", "clusterName": "C2"}


class Peer:
    """A connection to a name server through the dispatcher, frames included."""

    def __init__(self, server: NameServer) -> None:
        self.channel = MemoryChannel()
        self.now_ms = 1_000_000
        self._dispatcher = Dispatcher(lambda: self.now_ms, asyncio.run)
        self._dispatcher.add(server)

    def ask(self, code: int, ext: dict | None = None, body: bytes = b"", version: int = 409) -> RemotingCommand:
        return self.send(RemotingCommand(code, 1, version=version, ext=ext, body=body))

    def send(self, command: RemotingCommand) -> RemotingCommand:
        self._dispatcher.received(self.channel, FrameDecoder().feed(encode_command(command)))
        (reply,) = FrameDecoder().feed(self.channel.take())
        assert reply.is_response
        return reply


@pytest.fixture
def topics(tmp_path):
    return Topics(Files(), tmp_path / "topics.json", lambda: 5)


@pytest.fixture
def groups(tmp_path):
    return SubscriptionGroups(Files(), tmp_path / "groups.json", lambda: 5)


@pytest.fixture
def own(topics):
    return OwnBroker("broker-a", "DefaultCluster", topics, ADDRESS)


@pytest.fixture
def peer(own, groups):
    return Peer(NameServer(own, groups))


@pytest.fixture
def other_topics(tmp_path):
    topics = Topics(Files(), tmp_path / "other" / "topics.json", lambda: 7, broker_name="broker-b", cluster_name="C2")
    topics.put(TopicConfig("T", 2, 3))
    return topics


def test_a_route_is_apaches_byte_for_byte(peer):
    reply = peer.ask(105, {"topic": "TBW102"})
    assert reply.code == 0
    assert reply.body == (
        b'{"brokerDatas":[{"brokerAddrs":{"0":"127.0.0.1:10911"},"brokerName":"broker-a","cluster":"DefaultCluster",'
        b'"enableActingMaster":false}],"filterServerTable":{},"queueDatas":[{"brokerName":"broker-a","perm":7,'
        b'"readQueueNums":8,"topicSysFlag":0,"writeQueueNums":8}]}'
    )


@pytest.mark.parametrize(
    ("version", "ext", "quoted"),
    [(400, {}, False), (401, {}, True), (317, {}, False), (121, {"acceptStandardJsonOnly": "true"}, True)],
)
def test_older_peers_get_broker_ids_without_quotes(peer, version, ext, quoted):
    body = peer.ask(105, {"topic": "TBW102", **ext}, version=version).body
    assert (b'{"0":"127.0.0.1:10911"}' in body) is quoted
    assert (b'{0:"127.0.0.1:10911"}' in body) is not quoted


def test_other_answers_never_quote_broker_ids(peer):
    assert peer.ask(106).body == (
        b'{"brokerAddrTable":{"broker-a":{"brokerAddrs":{0:"127.0.0.1:10911"},"brokerName":"broker-a",'
        b'"cluster":"DefaultCluster","enableActingMaster":false}},"clusterAddrTable":{"DefaultCluster":["broker-a"]}}'
    )
    assert peer.ask(901, {"brokerName": "broker-a"}).body == (
        b'{"brokerMemberGroup":{"brokerAddrs":{0:"127.0.0.1:10911"},"brokerName":"broker-a","cluster":"DefaultCluster"}}'
    )


def test_an_unknown_topic_is_told_so(peer):
    reply = peer.ask(105, {"topic": "nope"})
    assert reply.code == 17
    assert reply.remark.startswith("No topic route info in name server for the topic: nope\n")
    assert peer.ask(105).remark.startswith("No topic route info in name server for the topic: null")


def test_a_new_topic_is_in_the_next_answer_and_a_deleted_one_is_not(peer, topics):
    topics.put(TopicConfig("New", 3, 5, 6))
    (data,) = loads(peer.ask(105, {"topic": "New"}).body)["queueDatas"]
    assert (data["readQueueNums"], data["writeQueueNums"], data["perm"]) == (3, 5, 6)
    topics.delete("New")
    assert peer.ask(105, {"topic": "New"}).code == 17


def test_nothing_is_routed_before_the_broker_listens(peer, own):
    own.address = ""
    assert peer.ask(105, {"topic": "TBW102"}).code == 17
    assert loads(peer.ask(106).body) == {"brokerAddrTable": {}, "clusterAddrTable": {}}
    assert loads(peer.ask(304).body) == {"topicList": []}


def test_a_brokers_permission_limits_its_routes(peer, own):
    own.permission = lambda: 4
    assert loads(peer.ask(105, {"topic": "TBW102"}).body)["queueDatas"][0]["perm"] == 4


class TestMakingTopics:
    def test_a_retry_topic_has_a_route_before_it_is_there_and_looking_makes_nothing(
        self, peer, topics, groups, tmp_path
    ):
        before = (len(topics.table), len(groups.table), sorted(tmp_path.iterdir()))
        looked_up = peer.ask(105, {"topic": "%RETRY%g"})
        assert looked_up.code == 0
        assert (len(topics.table), len(groups.table), sorted(tmp_path.iterdir())) == before
        topics.create_for_group("%RETRY%g", groups.find("g").retry_queue_nums)
        assert peer.ask(105, {"topic": "%RETRY%g"}).body == looked_up.body

    def test_a_retry_topic_has_the_queues_that_its_group_says(self, peer, groups):
        groups.put(SubscriptionGroup("g", {"retryQueueNums": 3}))
        (data,) = loads(peer.ask(105, {"topic": "%RETRY%g"}).body)["queueDatas"]
        assert data["writeQueueNums"] == 3
        groups.put(SubscriptionGroup("g", {"retryQueueNums": 0}))
        assert peer.ask(105, {"topic": "%RETRY%g"}).code == 17

    def test_no_retry_topic_of_a_group_that_may_not_be(self, own, topics, tmp_path):
        groups = SubscriptionGroups(Files(), tmp_path / "none.json", lambda: 5, auto_create=False)
        peer = Peer(NameServer(own, groups, auto_create_topic=True))
        assert peer.ask(105, {"topic": "%RETRY%g"}).code == 17
        assert topics.get("%RETRY%g") is None

    def test_other_topics_by_option(self, own, groups, topics):
        peer = Peer(NameServer(own, groups, auto_create_topic=True))
        assert peer.ask(105, {"topic": "Fresh"}).code == 0
        config = topics.get("Fresh")
        assert (config.read_queue_nums, config.write_queue_nums, config.perm) == (4, 4, 6)

    @pytest.mark.parametrize("topic", ["", "bad topic", "x" * 128, "%DLQ%g", "rmq_sys_x", "%RETRY%", "%RETRY%a b"])
    def test_never_a_name_that_is_not_allowed(self, own, groups, topics, topic):
        peer = Peer(NameServer(own, groups, auto_create_topic=True))
        assert peer.ask(105, {"topic": topic}).code == 17
        assert topics.get(topic) is None

    def test_not_if_topics_are_not_made_by_themselves(self, tmp_path, groups):
        topics = Topics(Files(), tmp_path / "t.json", lambda: 5, auto_create=False)
        peer = Peer(NameServer(OwnBroker("b", "c", topics, ADDRESS), groups, auto_create_topic=True))
        assert peer.ask(105, {"topic": "Fresh"}).code == 17


class TestOtherBrokers:
    def test_a_broker_registers_and_its_topics_are_routed_beside_ours(self, peer, topics, other_topics):
        topics.put(TopicConfig("T", 4, 4))
        assert peer.send(register_command(OTHER, other_topics)).code == 0
        route = loads(peer.ask(105, {"topic": "T"}).body)
        assert [data["brokerName"] for data in route["queueDatas"]] == ["broker-a", "broker-b"]
        assert {data["brokerName"]: data["brokerAddrs"] for data in route["brokerDatas"]} == {
            "broker-a": {"0": ADDRESS},
            "broker-b": {"0": "192.0.2.5:10911"},
        }
        clusters = loads(peer.ask(106).body)
        assert clusters["clusterAddrTable"] == {"DefaultCluster": ["broker-a"], "C2": ["broker-b"]}
        assert "T" in loads(peer.ask(224, {"cluster": "C2"}).body)["topicList"]
        assert "BenchmarkTest" in loads(peer.ask(206).body)["topicList"]

    def test_it_is_gone_when_it_says_so(self, peer, other_topics):
        peer.send(register_command(OTHER, other_topics))
        assert peer.ask(104, OTHER).code == 0
        assert peer.ask(105, {"topic": "T"}).code == 17
        assert list(loads(peer.ask(106).body)["brokerAddrTable"]) == ["broker-a"]

    def test_it_is_gone_when_its_connection_closes(self, own, other_topics):
        server = NameServer(own)
        peer, bystander = Peer(server), Peer(server)
        peer.send(register_command(OTHER, other_topics))
        server.channel_closed(bystander.channel)
        assert peer.ask(105, {"topic": "T"}).code == 0
        server.channel_closed(peer.channel)
        assert peer.ask(105, {"topic": "T"}).code == 17

    def test_it_is_gone_after_two_silent_minutes(self, own, other_topics):
        server = NameServer(own)
        peer = Peer(server)
        peer.send(register_command(OTHER, other_topics))
        assert server.expire(peer.now_ms + 120_000) == []
        peer.now_ms += 60_000
        peer.ask(904, OTHER)
        assert server.expire(peer.now_ms + 120_000) == []
        assert server.expire(peer.now_ms + 120_001) == ["192.0.2.5:10911"]
        assert peer.ask(105, {"topic": "T"}).code == 17

    def test_a_registration_with_one_topic_adds_to_what_is_known(self, peer, other_topics):
        peer.send(register_command(OTHER, other_topics))
        other_topics.put(TopicConfig("U", 1, 1))
        command = register_command(OTHER, other_topics)
        body = loads(command.body)
        table = body["topicConfigSerializeWrapper"]["topicConfigTable"]
        body["topicConfigSerializeWrapper"]["topicConfigTable"] = {"U": table["U"]}
        command.body = dumps(body)
        command.ext["bodyCrc32"] = "0"
        peer.send(command)
        assert peer.ask(105, {"topic": "T"}).code == peer.ask(105, {"topic": "U"}).code == 0

    def test_a_deleted_topic_stays_until_a_tool_takes_it_out(self, peer, other_topics):
        peer.send(register_command(OTHER, other_topics))
        other_topics.delete("T")
        peer.send(register_command(OTHER, other_topics))
        assert peer.ask(105, {"topic": "T"}).code == 0
        peer.ask(216, {"topic": "T", "clusterName": "DefaultCluster"})
        assert peer.ask(105, {"topic": "T"}).code == 0
        peer.ask(216, {"topic": "T", "clusterName": "C2"})
        assert peer.ask(105, {"topic": "T"}).code == 17

    def test_a_slave_is_told_its_master_and_serves_readers_when_that_is_gone(self, peer, other_topics):
        peer.send(register_command(OTHER, other_topics))
        slave = {**OTHER, "brokerId": "1", "brokerAddr": "192.0.2.6:10911"}
        reply = peer.send(register_command(slave, other_topics))
        assert reply.ext == {"masterAddr": "192.0.2.5:10911", "haServerAddr": "192.0.2.5:10912"}
        peer.ask(104, OTHER)
        route = loads(peer.ask(105, {"topic": "T"}).body)
        assert route["brokerDatas"][0]["brokerAddrs"] == {"1": "192.0.2.6:10911"}
        assert route["queueDatas"][0]["perm"] == 4

    def test_our_own_name_is_taken(self, peer, other_topics):
        impostor = {**OTHER, "brokerName": "broker-a"}
        reply = peer.send(register_command(impostor, other_topics))
        assert reply.code == 1
        assert "broker-a" in reply.remark
        ourselves = {**impostor, "brokerAddr": ADDRESS}
        assert peer.send(register_command(ourselves, other_topics)).code == 0

    def test_data_versions(self, peer, other_topics):
        version = dumps(other_topics.data_version.to_json())
        assert peer.ask(322, OTHER, version).ext == {"changed": "true"}
        peer.send(register_command(OTHER, other_topics))
        reply = peer.ask(322, OTHER, version)
        assert reply.ext == {"changed": "false"}
        assert loads(reply.body) == other_topics.data_version.to_json()

    def test_a_compressed_registration(self, peer):
        def part(data: bytes) -> bytes:
            return struct.pack(">i", len(data)) + data

        version = part(b'{"counter":1,"stateVersion":0,"timestamp":2}')
        plain = version + struct.pack(">i", 1) + part(b"T 2 3 6 SINGLE_TAG {}") + part(b"[]")
        ext = {**OTHER, "compressed": "true", "haServerAddr": ""}
        assert peer.ask(103, ext, zlib.compress(plain)).code == 0
        assert loads(peer.ask(105, {"topic": "T"}).body)["queueDatas"][0]["writeQueueNums"] == 3
        for cut in range(len(plain) - 6):
            assert peer.ask(103, ext, zlib.compress(plain[:cut])).code == 1
        assert peer.ask(103, ext, b"garbage").code == 1

    @pytest.mark.parametrize("body", [b"[]", b"{", b'{"topicConfigSerializeWrapper":5}', b'{"filterServerList":5}'])
    def test_an_unreadable_registration_is_refused(self, peer, body):
        assert peer.ask(103, OTHER, body).code == 1
        assert peer.ask(103, {**OTHER, "bodyCrc32": "7"}, body).remark == "crc32 not match"


def test_write_permission_is_wiped_and_given_back(peer, topics):
    count = str(len(topics.table))
    assert peer.ask(205, {"brokerName": "broker-a"}).ext == {"wipeTopicCount": count}
    assert loads(peer.ask(105, {"topic": "TBW102"}).body)["queueDatas"][0]["perm"] == 5
    assert peer.ask(327, {"brokerName": "broker-a"}).ext == {"addTopicCount": count}
    assert loads(peer.ask(105, {"topic": "TBW102"}).body)["queueDatas"][0]["perm"] == 7
    assert peer.ask(205, {"brokerName": "zz"}).ext == {"wipeTopicCount": "0"}


def test_a_topic_registered_by_a_tool(peer):
    queue = {"brokerName": "broker-a", "perm": 6, "readQueueNums": 4, "topicSysFlag": 0, "writeQueueNums": 4}
    stranger = {**queue, "brokerName": "zz"}
    assert peer.ask(217, {"topic": "Reg"}, dumps({"queueDatas": [queue, stranger]})).code == 0
    assert loads(peer.ask(105, {"topic": "Reg"}).body)["queueDatas"] == [queue]
    assert peer.ask(216, {"topic": "Reg"}).code == 0
    assert peer.ask(105, {"topic": "Reg"}).code == 17
    assert peer.ask(217, {"topic": "Reg"}, b"5").code == 1


def test_key_value_pairs_last(own, tmp_path):
    path = tmp_path / "kvConfig.json"
    peer = Peer(NameServer(own, kv_file=JsonFile(Files(), path)))
    assert peer.ask(100, {"namespace": "ns", "key": "k", "value": "v"}).code == 0
    again = Peer(NameServer(own, kv_file=JsonFile(Files(), path)))
    assert again.ask(101, {"namespace": "ns", "key": "k"}).ext == {"value": "v"}
    assert loads(again.ask(219, {"namespace": "ns"}).body) == {"table": {"k": "v"}}
    missing = again.ask(101, {"namespace": "ns", "key": "x"})
    assert (missing.code, missing.remark) == (22, "No config item, Namespace: ns Key: x")
    assert again.ask(219, {"namespace": "other"}).code == 22
    assert again.ask(102, {"namespace": "ns", "key": "k"}).code == 0
    assert again.ask(102, {"namespace": "nope", "key": "k"}).code == 0
    assert again.ask(101, {"namespace": "ns", "key": "k"}).code == 22


def test_order_topics(peer, other_topics):
    entry = {"namespace": "ORDER_TOPIC_CONFIG", "key": "TBW102", "value": "broker-a:4;"}
    peer.ask(100, entry)
    assert "orderTopicConf" not in loads(peer.ask(105, {"topic": "TBW102"}).body)
    assert peer.ask(318, body=b"orderMessageEnable=true").code == 0
    assert loads(peer.ask(105, {"topic": "TBW102"}).body)["orderTopicConf"] == "broker-a:4"
    reply = peer.send(register_command(OTHER, other_topics))
    assert loads(reply.body) == {"table": {"TBW102": "broker-a:4;"}}


def test_settings(peer):
    assert b"\norderMessageEnable=false\n" in peer.ask(319).body
    assert peer.ask(318, body=b"unknown=1").code == 0
    assert b"unknown" not in peer.ask(319).body
    reply = peer.ask(318, body=b"kvConfigPath=/x")
    assert (reply.code, reply.remark) == (16, "Can not update config in black list.")
    assert peer.ask(318, body=b"a=\\u00").code == 1


def test_lists_for_tools(peer):
    assert loads(peer.ask(304).body) == {"brokerAddr": ADDRESS, "topicList": ["DefaultCluster", "broker-a"]}
    for code in (311, 312, 313):
        assert peer.ask(code).body == b'{"topicList":[]}'
    assert loads(peer.ask(901, {"clusterName": "c", "brokerName": "x"}).body) == {
        "brokerMemberGroup": {"brokerAddrs": {}, "brokerName": "x", "cluster": "c"}
    }


@pytest.mark.parametrize("code", sorted(NameServer().handlers()))
def test_no_request_without_fields_breaks_anything(peer, code):
    for body in (b"", b"{}", b"[]", b"\xff"):
        assert peer.ask(code, {}, body).code in (0, 1, 17, 22)
    assert peer.send(request(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "TBW102"})).code == 0
