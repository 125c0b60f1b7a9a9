"""Makes the routes that senders get: they write to the doors of the instances and read from the brokers.

A broker ``broker-a`` and two instances with a door to it become three names::

    broker-a                             the broker's own addresses, readable
    broker-a-via-192-0-2-1-9870          the first instance's door to it, writable
    broker-a-via-192-0-2-2-9870          the second instance's door, writable

Queue ids mean the same behind each of them. A sender that gets no answer from one instance tries another name, as it
would try another broker.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from remoting.codes import Permission
from timewheel_client.values.routes import masters_of

__all__ = ["Doors", "StaticTopicError", "door_name", "route_for_senders"]

Doors = Mapping[str, Mapping[str, str]]
"""The doors of all instances: instance (``HOST:PORT``) to broker to the address of its door."""


class StaticTopicError(ValueError):
    """A static topic, whose queues are numbered over all brokers. It cannot be used through doors."""


def door_name(broker: str, instance: str) -> str:
    """The name of an instance's door to a broker.

    >>> door_name("broker-a", "192.0.2.1:9870")
    'broker-a-via-192-0-2-1-9870'
    """
    return f"{broker}-via-" + "".join(char if char.isalnum() else "-" for char in instance)


def route_for_senders(route: Mapping[str, Any], doors: Doors) -> dict[str, Any]:
    """Make a route in which only the doors of instances are writable.

    Raises StaticTopicError; ValueError if the document is no route.
    """
    if route.get("topicQueueMappingByBroker"):
        raise StaticTopicError("a static topic cannot be sent to through the delay service: send to its brokers")
    masters = masters_of(route.get("brokerDatas") or ())
    queues: list[dict[str, Any]] = []
    brokers = [dict(broker) for broker in route.get("brokerDatas") or ()]
    named: dict[str, list[str]] = {}
    try:
        clusters = {str(broker["brokerName"]): broker.get("cluster") for broker in brokers}
        for queue in route.get("queueDatas") or ():
            name, perm = str(queue["brokerName"]), int(queue["perm"])
            queues.append({**queue, "perm": perm & ~Permission.WRITE})
            if not perm & Permission.WRITE or name not in masters:
                continue
            for instance in sorted(doors):
                if name not in doors[instance]:
                    continue
                door = door_name(name, instance)
                # The number of read queues stays: a sender makes the route of a new topic from that of TBW102 with it.
                queues.append({**queue, "brokerName": door, "perm": perm & ~Permission.READ})
                address = {"brokerAddrs": {"0": doors[instance][name]}, "brokerName": door, "cluster": clusters[name]}
                brokers.append({**address, "enableActingMaster": False})
                named.setdefault(name, []).append(door)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(f"not a route: {error!r}") from None
    made = {**route, "brokerDatas": brokers, "queueDatas": queues}
    order = route.get("orderTopicConf")
    if order:
        made["orderTopicConf"] = ordered(str(order), named)
    return made


def ordered(text: str, named: Mapping[str, list[str]]) -> str:
    """The setting of an order topic, ``broker:queues;broker:queues``, with doors instead of brokers.

    >>> ordered("a:4;b:2;", {"a": ["a-via-x", "a-via-y"]})
    'a-via-x:4;a-via-y:4'
    """
    made = []
    for part in text.split(";"):
        name, _, count = part.rpartition(":")
        made += [f"{door}:{count}" for door in named.get(name, ())]
    return ";".join(made)
