"""The route table with as much as peers may bring: what concerns one broker costs nothing for the others' topics."""

from __future__ import annotations

import time

import pytest

from broker.naming.broker_topics import BrokerTopics, Leaving, QueueData
from broker.naming.route_entries import RoutesFullError
from broker.naming.routes import RouteTable
from broker.net.channel import MemoryChannel

READ, READ_WRITE = 4, 6


def register(
    routes: RouteTable, name: str, address: str, *topics: str, number: int = 0, cluster: str = "c", now_ms: int = 0,
    channel: MemoryChannel | None = None,
) -> None:  # fmt: skip
    routes.register(
        cluster=cluster, name=name, broker_id=number, address=address, ha_address="", now_ms=now_ms, channel=channel,
        topics={topic: QueueData(4, 4, READ_WRITE, 0) for topic in topics},
        data_version={"counter": len(topics), "name": name},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("steps", "perm"),
    [
        ("put", READ_WRITE),
        ("put wipe", READ),
        ("put wipe wipe", READ),
        ("put wipe give", READ_WRITE),
        ("put give wipe", READ),
        ("put wipe get give get", READ_WRITE),
        ("wipe put", READ_WRITE),
        ("put wipe put", READ_WRITE),
        ("put wipe get put get", READ_WRITE),
        ("put give wipe get give wipe", READ),
        ("read give", READ_WRITE),
        ("give read", READ),
        ("read wipe", READ),
        ("none wipe", 0),
    ],
)
def test_the_permission_of_all_topics(steps: str, perm: int) -> None:
    topics = BrokerTopics()
    perms = {"put": READ_WRITE, "read": READ, "none": 0}
    for step in steps.split():
        if step in perms:
            topics.put("T", QueueData(4, 4, perms[step], 0))
        elif step == "get":
            topics.get("T")
        else:
            topics.set_writable(step == "give")
    found = topics.get("T")
    assert found is not None and found.perm == perm


def test_a_broker_without_a_master_can_only_be_read_and_others_as_before() -> None:
    routes = RouteTable()
    register(routes, "a", "192.0.2.1:1", "T", "U")
    register(routes, "a", "192.0.2.2:1", number=1)
    register(routes, "b", "192.0.2.3:1", "T")
    routes.unregister("c", "a", 0, "192.0.2.1:1")
    assert {name: data.perm for name, data in routes.route("T")[1].items()} == {"a": READ, "b": READ_WRITE}
    assert routes.set_writable("a", True) == 2
    assert routes.route("U")[1]["a"].perm == READ_WRITE


def test_what_is_gone_is_freed_while_others_come() -> None:
    routes = RouteTable()
    register(routes, "a", "192.0.2.1:1", *(f"T{number}" for number in range(1_000)))
    routes.unregister("c", "a", 0, "192.0.2.1:1")
    assert routes.topic_count == 0 and len(routes._leaving) == 1_000 and routes.topics() == []
    register(routes, "b", "192.0.2.3:1", *(f"T{number}" for number in range(400)))
    assert len(routes._leaving) == 200
    routes.expire(1)
    assert len(routes._leaving) == 0 and routes.topic_count == 400


def test_tables_are_freed_one_behind_the_other() -> None:
    leaving = Leaving()
    for count in (3, 0, 4):
        leaving.add({f"T{number}": QueueData(1, 1, 6, 0) for number in range(count)})
    leaving.free(5)
    assert len(leaving) == 2
    leaving.free(5)
    assert len(leaving) == 0 and leaving._tables == []


def test_an_address_goes_with_its_process_when_the_name_has_moved_to_another_cluster() -> None:
    routes = RouteTable()
    register(routes, "a", "192.0.2.1:1", "T")
    register(routes, "a", "192.0.2.2:1", number=1, cluster="other", now_ms=100_000)
    assert routes.expire(130_000) == ["192.0.2.1:1"]
    entry = routes.member_group("a")
    assert entry is not None and entry.addresses == {1: "192.0.2.2:1"}


def test_an_address_stays_that_another_cluster_has_too() -> None:
    routes = RouteTable()
    register(routes, "a", "192.0.2.1:1", "T")
    register(routes, "a", "192.0.2.1:1", "T", cluster="other", now_ms=100_000)
    routes.expire(130_000)
    assert routes.route("T")[0][0].addresses == {0: "192.0.2.1:1"}


def test_names_and_processes_are_bounded_together() -> None:
    """A thousand names with a thousand addresses each would be a million lines in every list of the cluster."""
    routes = RouteTable(brokers_max=10)
    for number in range(5):
        register(routes, f"b{number}", f"192.0.2.{number}:1")
    with pytest.raises(RoutesFullError, match=r"at most 10"):
        for name in range(5):
            for number in range(5):
                register(routes, f"b{name}", f"192.0.2.{number}:1", number=number)
    assert routes.broker_count == 10


def test_a_connection_of_a_thousand_brokers_ends() -> None:
    """Forgetting them was quadratic in their number: 134 ms."""
    channel = MemoryChannel(("192.0.2.9", 1))
    took = []
    for _ in range(3):
        routes = RouteTable()
        for number in range(1_000):
            register(routes, f"b{number}", f"192.0.2.9:{number}", "T", channel=channel)
        begin = time.thread_time()
        routes.channel_closed(channel)
        took.append(time.thread_time() - begin)
        assert routes.broker_count == routes.topic_count == 0
    assert min(took) < 0.02, f"{1_000 * min(took):.1f} ms"
