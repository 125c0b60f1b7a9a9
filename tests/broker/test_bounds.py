"""Peers that invent names and numbers without end: each table stops at its bound, and says so.

Every bound of `broker.bounds` has an attack here, a request at a time through the real processors.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from broker.bounds import Bound, figures, name_server_bounds
from broker.naming.namesrv import NameServer
from broker.naming.route_entries import OwnBroker
from broker.net import clients as clients_module
from broker.net.channel import MemoryChannel
from broker.tables.json_files import JsonFile
from broker.transactions.transaction_processor import _ASKING_MAX, COMMIT
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand
from remoting.json_dialect import dumps, loads
from remoting.messages import keys
from store.disk.files import Files
from tests.broker.core_rig import Client, Rig, properties

OK = ResponseCode.SUCCESS
SMALL = {
    "maxAutoCreateTopicNum": 30,
    "maxAutoCreateSubscriptionGroupNum": 30,
    "maxConsumerOffsetNum": 20,
    "maxUndecidedTransactionNum": 5,
    "pullThreadPoolQueueCapacity": 20,
    "sendThreadPoolQueueCapacity": 10,
    "replyThreadPoolQueueCapacity": 10,
}
HOLD = {"sysFlag": 6, "suspendTimeoutMillis": 15_000}


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    rig = Rig(tmp_path / "store", **SMALL)
    rig.core.locks.count_max = 12
    rig.core.processors.traffic.series_max = 8
    rig.core.clients.memberships_max = 15
    rig.core.clients.subscription_bytes_max = 10_000
    yield rig
    rig.close()


@pytest.fixture
def client(rig: Rig) -> Client:
    return rig.client()


def bound_of(rig: Rig, name: str) -> Bound:
    (found,) = [bound for bound in rig.core.bounds if bound.name == name]
    return found


def attack(bound: Bound, ask: Callable[[int], RemotingCommand], count: int = 60) -> list[RemotingCommand]:
    """Ask with one new name after another; what is refused. The bound is reached, and never passed."""
    refused = []
    for number in range(count):
        reply = ask(number)
        assert bound.now() <= bound.most(), f"{bound.name} at request {number}"
        if reply.code != OK:
            refused.append(reply)
    assert bound.now() == bound.most(), f"{bound.name} is never full: {bound.now()} of {bound.most()}"
    assert refused, f"nothing was refused for {bound.name}"
    return refused


def says(reply: RemotingCommand, *parts: object) -> bool:
    return all(str(part) in (reply.remark or "") for part in parts)


# ------------------------------------------------------------------------------------------------ topics and groups


def test_topics_made_by_sends(rig: Rig, client: Client) -> None:
    refused = attack(bound_of(rig, "Topics"), lambda n: client.send(f"hostile-{n}"))
    assert {reply.code for reply in refused} == {ResponseCode.TOPIC_NOT_EXIST}
    assert says(refused[0], "there are 30 topics", "maxAutoCreateTopicNum=30")
    assert client.send("hostile-0").code == OK, "what is there is served"
    header = {"topic": "wanted", "defaultTopic": "TBW102", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6}
    more = {"topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": "false"}
    assert client.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, header | more).code == OK
    assert client.send("wanted").code == OK, "administrators may make more"
    assert client.heartbeat("c", "g").code == OK
    assert rig.core.topics.get("%RETRY%g") is not None, "a group's own topic is made"


def test_retry_topics_are_made_for_groups_only(rig: Rig, client: Client) -> None:
    before = len(rig.core.groups.table)
    answers = [client.send(f"%RETRY%hostile-{n}") for n in range(40)]
    assert len(rig.core.groups.table) == 30
    assert [reply.code for reply in answers].count(OK) == 30 - before
    assert says(answers[-1], "there are 30 groups", "maxAutoCreateSubscriptionGroupNum=30")
    assert answers[-1].code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST


def test_groups_made_by_pulls(rig: Rig, client: Client) -> None:
    client.send("T")
    refused = attack(bound_of(rig, "SubscriptionGroups"), lambda n: client.pull("T", consumerGroup=f"hostile-{n}"))
    assert {reply.code for reply in refused} == {ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST}
    assert says(refused[0], "there are 30 groups", "maxAutoCreateSubscriptionGroupNum=30")
    back = client.ask(RequestCode.CONSUMER_SEND_MSG_BACK, {"offset": 0, "group": "another", "delayLevel": 0})
    assert back.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST and says(back, "there are 30 groups")
    assert client.heartbeat("c", "another").code == OK, "passed over, as where groups are not made"
    assert "another" not in rig.core.clients.consumers and rig.core.topics.get("%RETRY%another") is None
    body = dumps({"groupName": "wanted"})
    assert client.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, body).code == OK
    assert client.pull("T", consumerGroup="wanted").code == OK


def test_a_bound_can_be_raised_while_the_broker_runs(rig: Rig, client: Client) -> None:
    attack(bound_of(rig, "Topics"), lambda n: client.send(f"hostile-{n}"))
    assert client.ask(RequestCode.UPDATE_BROKER_CONFIG, {}, b"maxAutoCreateTopicNum=31\n").code == OK
    assert client.send("one-more").code == OK
    assert client.send("two-more").code == ResponseCode.TOPIC_NOT_EXIST


# ------------------------------------------------------------------------------------------------ offsets and locks


def commit(client: Client, group: str, topic: str, queue_id: int, offset: int = 1) -> RemotingCommand:
    fields = {"consumerGroup": group, "topic": topic, "queueId": queue_id, "commitOffset": offset}
    return client.ask(RequestCode.UPDATE_CONSUMER_OFFSET, fields)


def test_offsets_of_queues_that_do_not_exist_are_not_kept(rig: Rig, client: Client) -> None:
    client.send("T")
    client.heartbeat("c", "g")
    for queue_id in (-1, 4, 2**31 - 1):
        refused = commit(client, "g", "T", queue_id)
        assert refused.code == ResponseCode.INVALID_PARAMETER and says(refused, f"queueId[{queue_id}]", "0 to 3")
    assert commit(client, "hostile", "T", 0).code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    assert commit(client, "g", "hostile", 0).code == ResponseCode.TOPIC_NOT_EXIST
    assert rig.core.offsets.table == {}
    assert commit(client, "g", "T", 3).code == OK
    rig.core.topics.put(rig.core.topics.table["T"].changed(read_queue_nums=2, write_queue_nums=2))
    assert commit(client, "g", "T", 3, 2).code == OK, "a queue that was taken away is still read to its end"


def test_offsets_of_many_groups_in_many_queues(rig: Rig, client: Client) -> None:
    client.send("T")
    groups = [f"g{n}" for n in range(15)]
    for group in groups:
        rig.core.groups.find(group)
    bound = bound_of(rig, "ConsumerOffsets")
    refused = attack(bound, lambda n: commit(client, groups[n // 4], "T", n % 4))
    assert {reply.code for reply in refused} == {ResponseCode.SYSTEM_ERROR}
    assert says(refused[0], "there are 20 consumer offsets", "at most 20", "maxConsumerOffsetNum")
    assert commit(client, "g0", "T", 0, 7).code == OK, "what is there moves on"
    for number in range(60):
        client.pull("T", queue_id=number % 4, consumerGroup=groups[number // 4])
    assert rig.core.offsets.pulled_count == 20 and bound.now() == 20
    reset = {"topic": "T", "group": "g14", "timestamp": -1, "isForce": "true"}
    assert client.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, reset).code == ResponseCode.SYSTEM_ERROR
    clone = {"srcGroup": "g0", "destGroup": "hostile"}
    assert client.ask(RequestCode.CLONE_GROUP_OFFSET, clone).code == ResponseCode.SYSTEM_ERROR
    delete = {"groupName": "g0", "cleanOffset": "true"}
    assert client.ask(RequestCode.DELETE_SUBSCRIPTIONGROUP, delete).code == OK
    assert rig.core.offsets.count == 16 and commit(client, "g14", "T", 0).code == OK


def test_offsets_are_counted_as_they_are(tmp_path: Path) -> None:
    rig = Rig(tmp_path / "store", **SMALL)
    client = rig.client()
    client.send("T")
    client.heartbeat("c", "g")
    for queue_id in range(4):
        commit(client, "g", "T", queue_id)
    rig.close()
    rig = Rig(tmp_path / "store", **SMALL)
    assert rig.core.offsets.count == 4
    rig.close()


def lock(client: Client, group: str, *queues: tuple[str, str, int], client_id: str = "c") -> RemotingCommand:
    wanted = [{"topic": topic, "brokerName": broker, "queueId": number} for topic, broker, number in queues]
    body = json.dumps({"consumerGroup": group, "clientId": client_id, "mqSet": wanted}).encode()
    return client.ask(RequestCode.LOCK_BATCH_MQ, {}, body)


def locked(reply: RemotingCommand) -> int:
    assert reply.code == OK
    return len(loads(reply.body)["lockOKMQSet"])


def test_locks_of_what_does_not_exist_are_not_kept(rig: Rig, client: Client) -> None:
    client.send("T")
    client.heartbeat("c", "g")
    strange = [("T", "broker-a", 4), ("T", "broker-a", -1), ("hostile", "broker-a", 0), ("T", "hostile", 0)]
    assert locked(lock(client, "g", *strange)) == 0
    assert locked(lock(client, "hostile", ("T", "broker-a", 0))) == 0
    assert rig.core.locks.count == 0
    too_long = lock(client, "g", ("T", "broker-a", 0), client_id="c" * 1_025)
    assert too_long.code == ResponseCode.SYSTEM_ERROR and says(too_long, 1_024, 1_025)
    assert locked(lock(client, "g", ("T", "broker-a", 0), client_id="c" * 1_024)) == 1


def test_locks_of_many_groups(rig: Rig, client: Client) -> None:
    client.send("T")
    groups = [rig.core.groups.find(f"g{n}") for n in range(10)]
    queues = [("T", "broker-a", number) for number in range(4)]
    held = [locked(lock(client, group.name, *queues)) for group in groups if group is not None]
    assert held == [4, 4, 4] + [0] * 7
    assert rig.core.locks.count == 12 == bound_of(rig, "QueueLocks").now()
    assert locked(lock(client, "g0", *queues)) == 4, "they can be renewed"
    rig.core.locks.expire(rig.now_ms + 61_000)
    assert rig.core.locks.count == 0 and locked(lock(client, "g9", *queues)) == 4


# ------------------------------------------------------------------------------------------------ clients


def producer_heartbeat(client: Client, client_id: str, *groups: str) -> RemotingCommand:
    document = {"clientID": client_id, "producerDataSet": [{"groupName": group} for group in groups]}
    return client.ask(RequestCode.HEART_BEAT, {}, dumps(document))


def test_producer_groups_of_heartbeats(rig: Rig, client: Client) -> None:
    refused = attack(bound_of(rig, "ClientMemberships"), lambda n: producer_heartbeat(client, "c", f"hostile-{n}"))
    assert {reply.code for reply in refused} == {ResponseCode.SYSTEM_ERROR}
    assert says(refused[0], "hostile-15", "15 groups (limit 15)")
    assert producer_heartbeat(client, "c", "hostile-0").code == OK, "who is there stays"
    rig.core.channel_closed(client.channel)
    assert rig.core.clients.memberships == 0 == client.channel.state.memberships
    assert rig.core.clients.producers == {} and rig.core.clients._producers_by_id == {}


def test_one_connections_groups(rig: Rig, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients_module, "MEMBERSHIPS_OF_ONE_MAX", 10)
    answers = [producer_heartbeat(client, "c", f"hostile-{n}") for n in range(12)]
    assert [reply.code for reply in answers] == [OK] * 10 + [ResponseCode.SYSTEM_ERROR] * 2
    assert says(answers[-1], "of this connection have 10 (limit 10)")
    assert producer_heartbeat(rig.client(50002), "d", "pg").code == OK


def test_client_ids_and_names_that_are_too_long(rig: Rig, client: Client) -> None:
    assert says(producer_heartbeat(client, "c" * 1_025, "pg"), 1_024, 1_025)
    assert says(producer_heartbeat(client, "c", "g" * 256), 255, 256)
    assert rig.core.clients.memberships == 0
    assert producer_heartbeat(client, "c" * 1_024, "g" * 255).code == OK


def test_a_client_that_changes_its_id_leaves_no_ids_behind(rig: Rig, client: Client) -> None:
    for number in range(50):
        assert producer_heartbeat(client, f"id-{number}", "pg").code == OK
    assert list(rig.core.clients._producers_by_id) == ["id-49"]
    assert rig.core.clients.memberships == 1


def test_words_of_heartbeats_are_kept_in_part(rig: Rig, client: Client) -> None:
    long = "x" * 40_000
    consumer = {"groupName": "g", "consumeType": long, "messageModel": long, "consumeFromWhere": long}
    document = {"clientID": "c", "producerDataSet": [], "consumerDataSet": [consumer]}
    assert client.ask(RequestCode.HEART_BEAT, {}, dumps(document), language=long).code == OK
    group = rig.core.clients.consumers["g"]
    (member,) = group.clients.values()
    kept = (group.consume_type, group.message_model, group.consume_from_where, member.language)
    assert max(map(len, (*kept, client.channel.state.language))) <= 64


def test_subscriptions(rig: Rig, client: Client) -> None:
    bound = bound_of(rig, "SubscriptionBytes")
    heartbeats = [client.heartbeat("c", "g", expression="x" * 1_000 * n, version=n) for n in range(1, 20)]
    refused = [reply for reply in heartbeats if reply.code != OK]
    assert len(refused) > 5 and {reply.code for reply in refused} == {ResponseCode.SYSTEM_ERROR}
    assert says(refused[0], "the subscriptions of group g", "the limit is 10000")
    assert 5_000 < bound.now() <= bound.most()
    assert client.heartbeat("c", "g", version=50).code == OK, "smaller ones take the place of larger ones"
    assert bound.now() < 1_000
    rig.core.channel_closed(client.channel)
    assert bound.now() == 0


# ------------------------------------------------------------------------------------------------ what waits


def test_pulls_that_wait(rig: Rig, client: Client) -> None:
    client.send("T")
    bound = bound_of(rig, "WaitingPulls")
    for number in range(60):
        client.submit(RequestCode.PULL_MESSAGE, client.pull_fields("T", queue_id=1 + number % 3, **HOLD))
        assert bound.now() <= bound.most()
    refused = client.take()
    assert len(refused) == 40 and bound.now() == 20
    assert says(refused[0], "20 pulls wait", "pullThreadPoolQueueCapacity=20")


def test_requests_that_wait_for_a_client(rig: Rig, client: Client) -> None:
    async def run() -> None:
        tasks: list[asyncio.Future[None]] = []
        rig.core.dispatcher.spawn = lambda work: tasks.append(asyncio.ensure_future(work))
        client.heartbeat("c", "g")
        asker, bound = rig.client(50002), bound_of(rig, "WaitingRequests")
        for _ in range(30):
            asker.submit(RequestCode.GET_CONSUMER_RUNNING_INFO, {"consumerGroup": "g", "clientId": "c"})
            await asyncio.sleep(0)
            assert bound.now() <= bound.most()
        refused = asker.take()
        assert len(refused) == 20 and bound.now() == 10 == len(client.channel.state.waiting)
        assert says(refused[0], "10 requests wait", "replyThreadPoolQueueCapacity=10")
        rig.core.dispatcher.channel_closed(client.channel)
        await asyncio.gather(*tasks)
        assert bound.now() == 0

    asyncio.run(run())


def test_sends_that_wait_for_their_sync(tmp_path: Path) -> None:
    rig = Rig(tmp_path / "store", flushDiskType="SYNC_FLUSH", **SMALL)
    client, bound = rig.client(), bound_of(rig, "WaitingSends")
    codes = []
    for _ in range(30):
        client.submit(RequestCode.SEND_MESSAGE_V2, client.send_fields("T"), b"body")
        rig.core.end_turn()
        assert bound.now() <= bound.most()
        codes += [reply.code for reply in client.take()]
    assert codes == [ResponseCode.SYSTEM_BUSY] * 20 and bound.now() == 10
    rig.close()


def half(client: Client, number: int) -> RemotingCommand:
    return client.send("T", properties(TRAN_MSG="true", PGROUP="pg", UNIQ_KEY=f"K{number}"), f=4)


def test_transactions_that_nobody_decides(rig: Rig, client: Client) -> None:
    refused = attack(bound_of(rig, "UndecidedTransactions"), lambda n: half(client, n))
    assert {reply.code for reply in refused} == {ResponseCode.SYSTEM_BUSY}
    assert says(refused[0], "5 transactions are undecided", "at most 5", "maxUndecidedTransactionNum")
    assert client.send("T").code == OK


def test_requests_that_wait_for_one_decision(tmp_path: Path) -> None:
    rig = Rig(tmp_path / "store", flushDiskType="SYNC_FLUSH")
    client = rig.client()
    client.submit(
        RequestCode.SEND_MESSAGE_V2, client.send_fields("T", properties(TRAN_MSG="true", PGROUP="pg"), f=4), b"x"
    )
    rig.core.end_turn()
    rig.store.flusher.sync_all()
    rig.core.end_turn()
    ((number, entry),) = rig.core.halves.undecided.items()
    fields = {
        "producerGroup": "pg",
        "tranStateTableOffset": number,
        "commitLogOffset": entry.offset,
        "commitOrRollback": COMMIT,
        "fromTransactionCheck": "false",
        "msgId": "",
        "transactionId": "",
    }
    client.take()
    for _ in range(200):
        client.submit(RequestCode.END_TRANSACTION, fields, bytes(1_000))
        rig.core.end_turn()
    deciding = rig.core.processors.transactions._deciding[number]
    assert len(deciding.waiting) == _ASKING_MAX
    assert all(not command.body and not command.ext for _, command, _ in deciding.waiting)
    refused = client.take()
    assert len(refused) == 200 - 1 - _ASKING_MAX and {reply.code for reply in refused} == {ResponseCode.SYSTEM_BUSY}
    rig.store.flusher.sync_all()
    rig.core.end_turn()
    assert len(client.take()) == _ASKING_MAX + 1, "all others are answered with the decision"
    rig.close()


# ------------------------------------------------------------------------------------------------ statistics


def test_statistics_of_many_groups(rig: Rig, client: Client) -> None:
    client.send("T")
    bound = bound_of(rig, "TrafficSeries")
    for number in range(15):
        assert client.pull("T", consumerGroup=f"hostile-{number}").code == OK
        assert bound.now() <= bound.most()
    assert bound.now() == 8
    for now_ms in (rig.now_ms, rig.now_ms + 10_000):
        for _ in rig.core.processors.traffic.steps(now_ms):
            pass
    view = {"statsName": "BROKER_GET_NUMS", "statsKey": "DefaultCluster"}
    assert client.ask(RequestCode.VIEW_BROKER_STATS_DATA, view).code == OK, "the sums are there"
    assert rig.core.processors.traffic.series_count <= 10


# ------------------------------------------------------------------------------------------------ name server


class NameRig:
    """A name server of its own bounds, with the broker of a rig."""

    def __init__(self, rig: Rig, root: Path) -> None:
        core = rig.core
        own = OwnBroker("broker-a", "DefaultCluster", core.topics, "192.0.2.1:10911")
        self.server = NameServer(own, core.groups, kv_file=JsonFile(Files(), root / "kvConfig.json"))
        self.routes = self.server.routes
        self.routes.brokers_max, self.routes.topics_max, self.server.kv.bytes_max = 6, 20, 2_000
        self.bounds = {bound.name: bound for bound in name_server_bounds(self.server)}
        self.channel = MemoryChannel()

    def ask(self, code: int, ext: dict[str, Any], body: bytes = b"") -> RemotingCommand:
        command = RemotingCommand(code, 1, ext={name: str(value) for name, value in ext.items()}, body=body)
        try:
            reply = self.server.handlers()[code](self.channel, command, 0)
            if not isinstance(reply, RemotingCommand) and reply is not None:
                reply = asyncio.run(reply)
        except Exception as error:  # as the dispatcher answers it
            return command.reply(ResponseCode.SYSTEM_ERROR, f"{type(error).__name__}: {error}")
        assert isinstance(reply, RemotingCommand)
        return reply

    def register(self, name: str, address: str, *topics: str, broker_id: int = 0, **more: Any) -> RemotingCommand:
        table = {topic: {"topicName": topic} for topic in topics}
        version = more.pop("version", {"counter": len(topics), "timestamp": 1})
        wrapper = {"topicConfigTable": table, "dataVersion": version}
        body = dumps({"topicConfigSerializeWrapper": wrapper, "filterServerList": more.pop("filters", [])})
        ext = {"brokerName": name, "brokerAddr": address, "clusterName": "c", "brokerId": broker_id, **more}
        return self.ask(RequestCode.REGISTER_BROKER, ext, body)


@pytest.fixture
def names(rig: Rig, tmp_path: Path) -> NameRig:
    return NameRig(rig, tmp_path)


def test_brokers_that_register(names: NameRig) -> None:
    bound = names.bounds["RegisteredBrokers"]
    refused = attack(bound, lambda n: names.register(f"hostile-{n}", f"192.0.2.{n}:1"), 20)
    assert says(refused[0], "6 brokers are registered", "at most 6")
    assert names.register("hostile-0", "192.0.2.0:1").code == OK, "who is there stays"
    names.routes.channel_closed(names.channel)
    assert bound.now() == 0
    refused = attack(bound, lambda n: names.register(f"hostile-{n}", "192.0.2.1:1"), 20)
    assert says(refused[0], "6 brokers are registered"), "with one address for all of them"


def test_processes_of_one_broker_name(names: NameRig) -> None:
    bound = names.bounds["RegisteredBrokers"]
    for number in range(30):
        names.register("hostile", f"192.0.2.{number}:1", broker_id=number)
        fields = {"clusterName": "c", "brokerName": "other", "brokerId": number, "brokerAddr": f"192.0.2.{number}:1"}
        assert names.ask(RequestCode.UNREGISTER_BROKER, fields).code == OK
        assert bound.now() <= bound.most()
        assert len(names.routes._brokers["hostile"].addresses) <= bound.most()


def test_topics_that_are_registered(names: NameRig) -> None:
    bound = names.bounds["RegisteredTopics"]
    for number in range(10):
        topics = [f"hostile-{number}-{n}" for n in range(6)]
        reply = names.register("b", "192.0.2.2:1", *topics, version={"counter": number})
        assert bound.now() <= bound.most()
    assert bound.now() == 18 and reply.code == ResponseCode.SYSTEM_ERROR
    assert says(reply, "18 topics are registered", "6 more", "the limit of 20")
    queues = dumps({"queueDatas": [{"brokerName": "broker-a"}]})
    refused = attack(bound, lambda n: names.ask(RequestCode.REGISTER_TOPIC_IN_NAMESRV, {"topic": f"T{n}"}, queues), 30)
    assert says(refused[0], "the limit of 20")
    for topic in names.routes.topics():
        names.ask(RequestCode.DELETE_TOPIC_IN_NAMESRV, {"topic": topic})
    assert bound.now() == 0
    names.register("b", "192.0.2.2:1", *topics, version={"counter": 99})
    assert bound.now() == 6
    names.routes.channel_closed(names.channel)
    assert bound.now() == 0


@pytest.mark.parametrize(
    "more",
    [
        {"version": {f"hostile-{n}": n for n in range(1_000)}},
        {"filters": [f"192.0.2.{n}:1" for n in range(17)]},
        {"filters": ["x" * 256]},
        {"haServerAddr": "x" * 256},
    ],
)
def test_what_a_registration_carries(names: NameRig, more: dict[str, Any]) -> None:
    reply = names.register("b", "192.0.2.2:1", **more)
    assert reply.code == ResponseCode.SYSTEM_ERROR and says(reply, "at most")
    assert names.bounds["RegisteredBrokers"].now() == 0


@pytest.mark.parametrize("words", [("x" * 256, "a:1"), ("b", "x" * 256), ("b", "a:1", "x" * 256)])
def test_names_of_a_registration(names: NameRig, words: tuple[str, ...]) -> None:
    reply = names.register(*words)
    assert reply.code == ResponseCode.SYSTEM_ERROR and says(reply, 255, 256)
    assert names.bounds["RegisteredBrokers"].now() == 0 == names.bounds["RegisteredTopics"].now()


def test_key_values(names: NameRig, tmp_path: Path) -> None:
    bound = names.bounds["KeyValues"]

    def put(n: int, value: str = "v") -> RemotingCommand:
        fields = {"namespace": f"hostile-{n}", "key": "k", "value": value}
        return names.ask(RequestCode.PUT_KV_CONFIG, fields)

    answers = [put(n) for n in range(40)]
    assert {reply.code for reply in answers[20:]} == {ResponseCode.SYSTEM_ERROR}
    assert 1_850 < bound.now() <= 2_000 and says(answers[-1], bound.now(), "the limit of 2000")
    assert put(0, "w").code == OK and put(0, "w" * 1_000).code == ResponseCode.SYSTEM_ERROR
    again = NameServer(kv_file=JsonFile(Files(), tmp_path / "kvConfig.json"))
    assert again.kv.bytes == bound.now(), "counted when it is read, too"
    for n in range(40):
        names.ask(RequestCode.DELETE_KV_CONFIG, {"namespace": f"hostile-{n}", "key": "k"})
    assert bound.now() == 0 and names.server.kv.table == {}


def test_settings_of_the_name_server(names: NameRig) -> None:
    body = b"orderMessageEnable=" + b"x" * 256
    assert names.ask(RequestCode.UPDATE_NAMESRV_CONFIG, {}, body).code == ResponseCode.SYSTEM_ERROR
    assert names.server._settings["orderMessageEnable"] == "false"


# ------------------------------------------------------------------------------------------------ figures


def test_the_runtime_info_shows_all_of_them(rig: Rig, client: Client) -> None:
    client.send("T")
    table = loads(client.ask(RequestCode.GET_BROKER_RUNTIME_INFO).body)["table"]
    shown = {name: text for name, text in table.items() if name.startswith("bound")}
    assert shown == figures(rig.core.bounds) and len(shown) >= 10
    assert shown["boundTopics"] == f"{len(rig.core.topics.table)} of 30"


def test_a_long_tag_is_not_remembered() -> None:
    for size, remembered in ((256, True), (257, False), (30_000, False)):
        tag = f"{size}".rjust(size, "t")
        keys._short_hash.cache_clear()
        assert keys.tag_hash(tag) == keys.java_hash(tag)
        assert keys._short_hash.cache_info().currsize == remembered, size
