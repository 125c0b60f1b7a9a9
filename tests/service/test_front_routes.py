"""Routes for senders: written through the doors of all instances, read from the brokers."""

from __future__ import annotations

from typing import Any

import pytest

from service.front.front import address_in
from service.front.routes import StaticTopicError, route_for_senders
from timewheel_client.values.routes import route_of

DOORS = {
    "10.0.0.1:9870": {"broker-a": "10.0.0.1:9871", "broker-b": "10.0.0.1:9872"},
    "10.0.0.2:9870": {"broker-a": "10.0.0.2:9871"},
}


def real(perm: int = 6, **more: Any) -> dict[str, Any]:
    return {
        "brokerDatas": [
            {"brokerAddrs": {"0": "a:10911", "1": "s:10911"}, "brokerName": "broker-a", "cluster": "C"},
            {"brokerAddrs": {"0": "b:10911"}, "brokerName": "broker-b", "cluster": "C"},
            {"brokerAddrs": {"1": "c:10911"}, "brokerName": "broker-c", "cluster": "C"},
        ],
        "filterServerTable": {},
        "queueDatas": [
            {"brokerName": name, "perm": perm, "readQueueNums": 4, "topicSysFlag": 0, "writeQueueNums": 3}
            for name in ("broker-a", "broker-b", "broker-c")
        ],
        **more,
    }


def test_written_through_doors_and_read_from_brokers() -> None:
    route = route_of("T", route_for_senders(real(), DOORS))
    write = {(queue.broker_name, route.address(queue.broker_name)) for queue in route.write_queues}
    assert write == {
        ("broker-a-via-10-0-0-1-9870", "10.0.0.1:9871"),
        ("broker-a-via-10-0-0-2-9870", "10.0.0.2:9871"),
        ("broker-b-via-10-0-0-1-9870", "10.0.0.1:9872"),
    }
    assert len(route.write_queues) == 9 and {queue.queue_id for queue in route.write_queues} == {0, 1, 2}
    assert {queue.broker_name for queue in route.read_queues} == {"broker-a", "broker-b", "broker-c"}
    assert len(route.read_queues) == 12
    assert route.brokers["broker-a"] == {0: "a:10911", 1: "s:10911"}


@pytest.mark.parametrize(("perm", "write", "read"), [(4, 0, 12), (2, 9, 0), (7, 9, 12), (0, 0, 0)])
def test_permissions_stay(perm: int, write: int, read: int) -> None:
    made = route_for_senders(real(perm), DOORS)
    route = route_of("T", made)
    assert (len(route.write_queues), len(route.read_queues)) == (write, read)
    doors = [queue for queue in made["queueDatas"] if "-via-" in queue["brokerName"]]
    assert all(queue["perm"] & 1 == perm & 1 and queue["readQueueNums"] == 4 for queue in doors)


def test_an_order_topic_names_doors() -> None:
    made = route_for_senders(real(orderTopicConf="broker-a:4;broker-b:4;"), {"10.0.0.2:9870": {"broker-a": "x:1"}})
    assert made["orderTopicConf"] == "broker-a-via-10-0-0-2-9870:4"


def test_a_static_topic_is_refused() -> None:
    with pytest.raises(StaticTopicError):
        route_for_senders(real(topicQueueMappingByBroker={"broker-a": {}}), DOORS)
    assert route_for_senders(real(topicQueueMappingByBroker={}), DOORS)


@pytest.mark.parametrize(
    "route",
    [
        {"brokerDatas": [{}]},
        {"brokerDatas": [7]},
        {"queueDatas": [{"brokerName": "a", "perm": "x"}]},
        {"brokerDatas": [{"brokerName": "a", "brokerAddrs": 5}]},
    ],
)
def test_no_route(route: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="not a route"):
        route_for_senders(route, DOORS)


def test_addresses_in_names_of_members() -> None:
    assert address_in("10.0.0.1@7#9~10.0.0.1:9870") == "10.0.0.1:9870"
    for name in ("10.0.0.1@7#9", "x~y", "x~:1", "x~a:b", "", "~~:~"):
        assert address_in(name) is None
