"""SQL92 subscriptions at the broker: in pulls, in heartbeats, checked beforehand, and while a pull waits."""

import asyncio

import pytest

from remoting.codes import RequestCode, ResponseCode
from remoting.json_dialect import dumps
from store.matching import ENTRIES_MAX
from tests.broker.core_rig import Rig, properties, records_of

SUSPEND, SUBSCRIPTION = 2, 4


@pytest.fixture
def rig(tmp_path):
    made = Rig(tmp_path / "store", enablePropertyFilter="true")
    yield made
    made.close()


@pytest.fixture
def client(rig):
    return rig.client()


def fill(client, *sizes):
    for size in sizes:
        client.send("T", properties(size=size), str(size).encode())


def bodies(reply):
    return [message.body for message in records_of(reply.body)]


def sql(client, expression, offset=0, **more):
    return client.pull("T", offset, subscription=expression, expressionType="SQL92", **more)


def subscribe(client, expression, version=1, kind="SQL92", **more):
    subscription = {"topic": "T", "subString": expression, "expressionType": kind, "subVersion": version, **more}
    consumer = {
        "groupName": "cg",
        "consumeType": "CONSUME_PASSIVELY",
        "messageModel": "CLUSTERING",
        "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
        "subscriptionDataSet": [subscription],
    }
    document = {"clientID": "c1", "producerDataSet": [], "consumerDataSet": [consumer]}
    return client.ask(RequestCode.HEART_BEAT, {}, dumps(document))


def test_a_pull_brings_its_expression(client):
    fill(client, 1, 5, 2, 9, 5)
    reply = sql(client, "size BETWEEN 4 AND 9")
    assert (reply.code, bodies(reply), reply.ext["nextBeginOffset"]) == (0, [b"5", b"9", b"5"], "5")
    reply = sql(client, "size > 100")
    assert (reply.code, reply.remark) == (ResponseCode.PULL_RETRY_IMMEDIATELY, "NO_MATCHED_MESSAGE")
    assert reply.ext["nextBeginOffset"] == "5"
    assert bodies(sql(client, "size > 1", maxMsgNums=2)) == [b"5", b"2"]


def test_system_properties_can_be_asked_for(client):
    client.send("T", properties(TAGS="A", KEYS="k1 k2"), b"1")
    assert bodies(sql(client, "TAGS = 'A' AND KEYS CONTAINS 'k2' AND UNIQ_KEY IS NOT NULL")) == [b"1"]


def test_many_that_do_not_match_are_passed_in_steps(client):
    fill(client, *[1] * (2 * ENTRIES_MAX + 3), 9)
    offset, steps = 0, 0
    while (reply := sql(client, "size = 9", offset)).code == ResponseCode.PULL_RETRY_IMMEDIATELY:
        assert int(reply.ext["nextBeginOffset"]) > offset
        offset, steps = int(reply.ext["nextBeginOffset"]), steps + 1
    assert (steps, bodies(reply)) == (2, [b"9"])


def test_an_expression_that_cannot_be_read(client):
    fill(client, 1)
    reply = sql(client, "size >")
    assert reply.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
    assert reply.remark.startswith("parse the consumer's subscription failed: Invalid MessageSelector. ")
    assert reply.remark.endswith("found the end at column 7")
    assert sql(client, "").code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
    assert bodies(sql(client, "size = 1")) == [b"1"]


def test_switched_off(tmp_path):
    rig = Rig(tmp_path / "store")
    client = rig.client()
    fill(client, 1)
    text = "The broker does not support consumer to filter message by SQL92"
    for reply in (sql(client, "size = 1"), check(client, "size = 1")):
        assert (reply.code, reply.remark) == (ResponseCode.SYSTEM_ERROR, text)
    subscribe(client, "size = 1")
    reply = client.pull("T", 0, sysFlag=0, subVersion=1)
    assert (reply.code, reply.remark) == (ResponseCode.SYSTEM_ERROR, text)
    rig.close()


def test_no_other_kinds(client):
    fill(client, 1)
    for reply in (client.pull("T", 0, expressionType="GROOVY"), check(client, "size = 1", "GROOVY")):
        assert reply.code == ResponseCode.SYSTEM_ERROR and reply.remark.endswith("by GROOVY")
    subscribe(client, "size = 1", kind="GROOVY")
    assert client.pull("T", 0, sysFlag=0, subVersion=1).remark.endswith("by GROOVY")


# ------------------------------------------------------------------------------------------------ heartbeats


def test_the_groups_subscription(client):
    fill(client, 1, 5, 9)
    subscribe(client, "size > 4")
    reply = client.pull("T", 0, sysFlag=0, subVersion=1)
    assert bodies(reply) == [b"5", b"9"]
    assert client.pull("T", 0, sysFlag=0, subVersion=2).code == ResponseCode.SUBSCRIPTION_NOT_LATEST
    subscribe(client, "size < 4", 2)
    assert bodies(client.pull("T", 0, sysFlag=0, subVersion=2)) == [b"1"]
    subscribe(client, "*", 3, "TAG")
    assert bodies(client.pull("T", 0, sysFlag=0, subVersion=3)) == [b"1", b"5", b"9"]


def test_a_heartbeat_with_a_bad_expression(client):
    fill(client, 1)
    assert subscribe(client, "size >").code == 0
    reply = client.pull("T", 0, sysFlag=0, subVersion=1)
    assert reply.code == ResponseCode.FILTER_DATA_NOT_EXIST
    assert "Your expression may be wrong!" in reply.remark and reply.remark.endswith("at column 7")


def check(client, expression, kind="SQL92"):
    data = {"topic": "T", "subString": expression, "expressionType": kind}
    document = {"clientId": "c1", "group": "cg", "subscriptionData": data, "namespace": ""}
    return client.ask(RequestCode.CHECK_CLIENT_CONFIG, {}, dumps(document))


def test_checked_beforehand(client):
    assert check(client, "size > 4").code == 0
    assert check(client, "whatever", "TAG").code == 0
    assert client.ask(RequestCode.CHECK_CLIENT_CONFIG).code == 0
    reply = check(client, "size > 'x'")
    assert reply.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
    assert reply.remark == "Invalid MessageSelector. Value ''x'' cannot be compared with > at column 6"


# ------------------------------------------------------------------------------------------------ waiting, cold files


def test_a_waiting_pull_is_answered_by_what_matches_only(rig, client):
    sender = rig.client(50002)
    fill(sender, 1)
    fields = client.pull_fields("T", 1, subscription="size = 9", expressionType="SQL92", sysFlag=SUSPEND | SUBSCRIPTION)
    client.submit(RequestCode.PULL_MESSAGE, fields)
    rig.core.end_turn()
    fill(sender, 2, 3)
    assert client.take() == []
    fill(sender, 9)
    (reply,) = client.take()
    assert (reply.code, bodies(reply), reply.ext["nextBeginOffset"]) == (0, [b"9"], "4")


def test_a_waiting_pull_ends_behind_what_it_has_looked_at(rig, client):
    sender = rig.client(50002)
    fill(sender, 1)
    fields = client.pull_fields("T", 1, subscription="size = 9", expressionType="SQL92", sysFlag=SUSPEND | SUBSCRIPTION)
    client.submit(RequestCode.PULL_MESSAGE, fields)
    rig.core.end_turn()
    fill(sender, 2, 3)
    rig.pass_ms(16_000)
    (reply,) = client.take()
    assert (reply.code, reply.ext["nextBeginOffset"]) == (ResponseCode.PULL_RETRY_IMMEDIATELY, "3")


class ColdStore:
    """The store, of which nothing is in memory; ``gone``: nor anywhere else."""

    def __init__(self, rig, gone=False):
        self._store = rig.store
        self._gone = gone
        rig.core.processors.pull._store = rig.core.cold_reads._store = self

    def __getattr__(self, name):
        return getattr(self._store, name)

    def read_hot(self, _offset, _size):
        return None

    def read_recent(self, _positions):
        return None

    def read(self, offset, size):
        return b"" if self._gone else self._store.read(offset, size)


@pytest.mark.pure
def test_from_files_that_are_not_in_memory(rig, client):
    fill(client, 1, 9, 9)
    ColdStore(rig)
    reads = rig.core.cold_reads.count
    assert bodies(sql(client, "size = 9")) == [b"9", b"9"]
    assert rig.core.cold_reads.count > reads
    reply = sql(client, "size = 5")
    assert (reply.code, reply.ext["nextBeginOffset"]) == (ResponseCode.PULL_RETRY_IMMEDIATELY, "3")


@pytest.mark.pure
def test_deleted_while_it_was_looked_at(rig, client):
    fill(client, 1)
    ColdStore(rig, gone=True)
    reply = sql(client, "size = 1")
    assert (reply.code, reply.remark) == (ResponseCode.PULL_RETRY_IMMEDIATELY, "MESSAGE_WAS_REMOVING")


@pytest.mark.pure
def test_cold_answer_to_a_closed_connection_is_dropped(rig, client, monkeypatch):
    fill(client, 1)
    ColdStore(rig)
    waiting = []
    monkeypatch.setattr(rig.core.processors.pull, "_spawn", waiting.append)
    client.submit(RequestCode.PULL_MESSAGE, client.pull_fields("T", 0, subscription="TRUE", expressionType="SQL92"))
    client.channel.close()
    asyncio.run(waiting[0])
    assert client.take() == []
