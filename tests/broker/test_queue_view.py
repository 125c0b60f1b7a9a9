"""What administrators see of a ConsumeQueue (321), and of slaves (907)."""

from __future__ import annotations

import pytest

from remoting.codes import RequestCode, ResponseCode
from remoting.json_dialect import loads
from tests.broker.core_rig import Rig


@pytest.fixture
def client(tmp_path):
    rig = Rig(tmp_path)
    client = rig.client()
    for _ in range(3):
        client.send("T", "TAGS\x01A\x02")
    yield client
    rig.close()


def view(client, **fields):
    usual = {"topic": "T", "queueId": 0, "index": 0, "count": 10, "consumerGroup": ""}
    return client.ask(RequestCode.QUERY_CONSUME_QUEUE, {**usual, **fields})


def test_entries_of_a_queue(client):
    document = loads(view(client, index=1, count=1).body)
    assert (document["minQueueIndex"], document["maxQueueIndex"]) == (0, 3)
    (entry,) = document["queueData"]
    record = client.rig.store.read_record(entry["physicOffset"])
    assert record is not None
    assert entry["physicSize"] == len(record)
    assert entry["tagsCode"] == ord("A")
    assert "subscriptionData" not in document


def test_with_a_groups_subscription(client):
    client.heartbeat("c1", "G", topic="T", expression="A")
    document = loads(view(client, consumerGroup="G").body)
    assert len(document["queueData"]) == 3
    assert document["subscriptionData"]["subString"] == "A"


@pytest.mark.parametrize("index", [-1, 3, 1 << 40])
def test_an_index_out_of_range(client, index):
    reply = view(client, index=index)
    assert (reply.code, reply.remark) == (ResponseCode.SUCCESS, f"Index {index} of 0@T is not exist!")
    assert "queueData" not in loads(reply.body)


@pytest.mark.parametrize("fields", [{"queueId": 3}, {"queueId": -1}, {"topic": "unknown"}])
def test_a_queue_that_is_not_there(client, fields):
    reply = view(client, **fields)
    assert reply.code == ResponseCode.SYSTEM_ERROR
    assert reply.remark.endswith("is not exist!")


@pytest.mark.parametrize("count", [0, -5])
def test_no_entries_wanted(client, count):
    assert loads(view(client, count=count).body)["queueData"] == []


def test_no_slaves(client):
    document = loads(client.ask(RequestCode.GET_BROKER_HA_STATUS).body)
    assert document["master"] is True
    assert document["masterCommitLogMaxOffset"] == client.rig.store.commit_log.end
    assert document["haConnectionInfo"] == []
