"""What topics take in and groups read: sampled every ten seconds, from the queues and from pulls."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.figures.traffic import Traffic, _sizes
from remoting.codes import RequestCode, ResponseCode
from remoting.json_dialect import loads
from tests.broker.core_rig import Rig

SECOND, MINUTE, HOUR = 1_000, 60_000, 3_600_000


class Queue:
    """A queue whose entries all have the same size."""

    def __init__(self, topic: str, count: int = 0, size: int = 100) -> None:
        self.topic, self.queue_id, self.count, self.size = topic, 0, count, size

    def read(self, number: int, limit: int) -> bytes:
        limit = min(limit, 7, self.count - number)  # a file's end comes early
        return b"".join(struct.pack(">qiq", at, self.size, 0) for at in range(number, number + limit))


def traffic(*queues, totals=lambda: (0, 0)):
    return Traffic(list(queues), "cluster", totals)


def sample(traffic, now_ms):
    for _ in traffic.steps(now_ms):
        pass


def sums(traffic, name, key):
    return [figures["sum"] for figures in traffic.view(name, key).values()]


@given(st.lists(st.integers(0, (1 << 31) - 1), max_size=50))
def test_sizes_are_added_up(sizes):
    assert _sizes(b"".join(struct.pack(">qiq", -1, size, -1) for size in sizes)) == sum(sizes)


def test_what_was_there_before_is_not_counted():
    queue = Queue("T", 1000)
    counted = traffic(queue)
    sample(counted, 0)
    assert counted.view("TOPIC_PUT_NUMS", "T") is None
    queue.count += 20
    sample(counted, 10 * SECOND)
    assert counted.view("TOPIC_PUT_NUMS", "T")["statsMinute"] == {"sum": 20, "tps": 2.0, "avgpt": 1.0}
    assert counted.view("TOPIC_PUT_SIZE", "T")["statsDay"] == {"sum": 2000, "tps": 200.0, "avgpt": 100.0}


def test_a_sample_every_ten_seconds():
    queue = Queue("T")
    counted = traffic(queue)
    sample(counted, 0)
    queue.count = 5
    sample(counted, 9_999)
    assert counted.view("TOPIC_PUT_NUMS", "T") is None
    sample(counted, 10_000)
    assert counted.rate("TOPIC_PUT_NUMS", "T") == 0.5


def test_minute_hour_and_day_look_back_that_far():
    queue = Queue("T")
    counted = traffic(queue)
    for now_ms in range(0, 30 * HOUR, 10 * SECOND):
        queue.count += 10
        sample(counted, now_ms)
    view = counted.view("TOPIC_PUT_NUMS", "T")
    assert [round(figures["tps"], 9) for figures in view.values()] == [1.0, 1.0, 1.0]
    minute, hour, day = sums(counted, "TOPIC_PUT_NUMS", "T")
    assert minute == 60
    assert 50 * 60 <= hour <= 60 * 60
    assert 23 * 3600 <= day <= 24 * 3600


def test_an_hour_ago_is_part_of_the_day_only_and_two_days_ago_is_forgotten():
    queue = Queue("T")
    counted = traffic(queue, totals=lambda: (queue.count, 0))
    sample(counted, 0)
    queue.count = 7
    for now_ms in range(10 * SECOND, 2 * HOUR, 10 * SECOND):
        sample(counted, now_ms)
    assert sums(counted, "TOPIC_PUT_NUMS", "T") == [0, 0, 7]
    for now_ms in range(2 * HOUR, 50 * HOUR, MINUTE):
        sample(counted, now_ms)
    assert counted.view("TOPIC_PUT_NUMS", "T") is None
    assert sums(counted, "BROKER_PUT_NUMS", "cluster") == [0, 0, 0]


def test_a_topic_deleted_and_made_again_counts_from_its_beginning():
    queue = Queue("T")
    counted = traffic(queue)
    queue.count = 50
    sample(counted, 0)
    queue.count = 3
    sample(counted, 10 * SECOND)
    assert sums(counted, "TOPIC_PUT_NUMS", "T")[0] == 53


def test_a_clock_set_back_begins_again_and_loses_no_more_than_the_past():
    counted = traffic()
    counted.got("g", "T", 4, 400)
    sample(counted, HOUR)
    counted.got("g", "T", 2, 200)
    sample(counted, 0)
    assert sums(counted, "GROUP_GET_NUMS", "T@g") == [2, 2, 2]
    counted.got("g", "T", 6, 600)
    sample(counted, 10 * SECOND)
    assert counted.view("GROUP_GET_SIZE", "T@g")["statsMinute"] == {"sum": 800, "tps": 40.0, "avgpt": 400.0}


@pytest.mark.parametrize("name", ["TOPIC_PUT_NUMS", "unheard-of", ""])
def test_what_is_not_known(name):
    assert traffic().view(name, "T") is None
    assert traffic().rate(name, "T") == 0.0


def test_a_broker_counts_sends_pulls_and_send_backs(tmp_path):
    rig = Rig(tmp_path)
    client = rig.client()

    def ask(name, key):
        return client.ask(RequestCode.VIEW_BROKER_STATS_DATA, {"statsName": name, "statsKey": key})

    for _ in range(4):
        client.send("T")
    client.pull("T", consumerGroup="g", maxMsgNums=3)
    fields = {"group": "g", "offset": 0, "delayLevel": 1, "originTopic": "T"}
    assert client.ask(RequestCode.CONSUMER_SEND_MSG_BACK, fields).code == ResponseCode.SUCCESS
    assert ask("TOPIC_PUT_NUMS", "T").code == ResponseCode.SYSTEM_ERROR
    sample(rig.core.processors.traffic, rig.now_ms)
    expected = {
        ("TOPIC_PUT_NUMS", "T"): 4,
        ("GROUP_GET_NUMS", "T@g"): 3,
        ("SNDBCK_PUT_NUMS", "T@g"): 1,
        ("TOPIC_PUT_NUMS", "SCHEDULE_TOPIC_XXXX"): 1,
        ("BROKER_PUT_NUMS", "DefaultCluster"): 5,
        ("BROKER_GET_NUMS", "DefaultCluster"): 3,
    }
    for (name, key), count in expected.items():
        assert loads(ask(name, key).body)["statsDay"]["sum"] == count
    size = loads(ask("TOPIC_PUT_SIZE", "T").body)["statsDay"]["sum"]
    assert size == sum(len(rig.store.read_record(at) or b"") for at in _positions(rig, "T"))
    assert loads(ask("GROUP_GET_SIZE", "T@g").body)["statsDay"]["sum"] == size * 3 // 4
    consumed = loads(client.ask(RequestCode.GET_CONSUME_STATS, {"consumerGroup": "g", "topic": "T"}).body)
    assert consumed["consumeTps"] == 0.3
    rig.close()


def _positions(rig, topic):
    queue = rig.store.queues.find(topic, 0)
    return [queue.entry(number)[0] for number in range(queue.count)]
