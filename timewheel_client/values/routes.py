"""The brokers that serve a topic, as reported by a name server (TopicRouteData), and the queue of a send."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from remoting.codes import Permission
from remoting.messages.message import java_hash

__all__ = ["MASTER_ID", "MessageQueue", "TopicRoute", "masters_of", "queue_for_key", "route_of", "template_route"]

MASTER_ID = 0
DEFAULT_TOPIC = "TBW102"
DEFAULT_QUEUES = 4
MAX_QUEUES = 65_536
"""Most queues of a topic at one broker; a route with more is refused, because it would fill the memory."""
MAX_ALL_QUEUES = 4 * MAX_QUEUES
"""Most queues of a topic at all brokers, for the same reason: ten bytes of a route can stand for 65,536 queues."""


@dataclass(frozen=True, slots=True, order=True)
class MessageQueue:
    """One queue of a topic at one broker. Sorts as in Apache's clients: topic, broker name, queue id."""

    topic: str
    broker_name: str
    queue_id: int


@dataclass(frozen=True, slots=True)
class TopicRoute:
    """Queues and addresses of a topic.

    ``write_queues`` and ``read_queues`` are sorted tuples of `MessageQueue`; ``brokers`` maps a broker name to its
    addresses by broker id (0 is the master). ``is_template`` is set for a topic that does not exist yet.
    """

    topic: str
    write_queues: tuple[MessageQueue, ...]
    read_queues: tuple[MessageQueue, ...]
    brokers: Mapping[str, Mapping[int, str]]
    is_template: bool = False

    def address(self, broker_name: str) -> str | None:
        """The address to dial for a broker: its master, else its lowest slave, else None."""
        addresses = self.brokers.get(broker_name)
        return addresses[min(addresses)] if addresses else None

    def addresses(self) -> set[str]:
        """The address to dial of every broker."""
        return {address for name in self.brokers if (address := self.address(name))}


def masters_of(brokers: Iterable[Any]) -> dict[str, str]:
    """The address of the master of each broker that has one, by its name, out of a route or a list of all brokers.

    >>> masters_of([{"brokerName": "broker-a", "brokerAddrs": {"0": "192.0.2.1:10911", "1": "192.0.2.2:10911"}}])
    {'broker-a': '192.0.2.1:10911'}

    Raises ValueError if these are no brokers (BrokerData).
    """
    found: dict[str, str] = {}
    try:
        for broker in brokers:
            for number, address in broker["brokerAddrs"].items():
                if int(number) == MASTER_ID:
                    found[str(broker["brokerName"])] = str(address)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"not a route, nor a list of brokers: {error!r:.200}") from error
    return found


def route_of(topic: str, data: Any) -> TopicRoute:
    """Read a TopicRouteData body; raises ValueError if it is not one.

    Queues of a broker without address are left out, and those of a broker without master among the ones to write to.
    """
    try:
        brokers = {
            str(broker["brokerName"]): {int(number): str(at) for number, at in broker["brokerAddrs"].items()}
            for broker in data.get("brokerDatas") or ()
        }
        write: list[MessageQueue] = []
        read: list[MessageQueue] = []
        total = 0
        for entry in data.get("queueDatas") or ():
            name, perm = str(entry["brokerName"]), int(entry["perm"])
            addresses = brokers.get(name) or {}
            counts = int(entry["writeQueueNums"]), int(entry["readQueueNums"])
            if not all(0 <= count <= MAX_QUEUES for count in counts):
                raise ValueError(f"{counts} queues of broker {name}, at most {MAX_QUEUES} are possible")
            total += max(counts)
            if total > MAX_ALL_QUEUES:
                raise ValueError(f"more than {MAX_ALL_QUEUES} queues at all brokers together, which is the limit")
            if perm & Permission.WRITE and MASTER_ID in addresses:
                write += (MessageQueue(topic, name, number) for number in range(counts[0]))
            if perm & Permission.READ and addresses:
                read += (MessageQueue(topic, name, number) for number in range(counts[1]))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(f"not a route: {error!r}: {data!r:.300}") from error
    return TopicRoute(topic, tuple(sorted(write)), tuple(sorted(read)), brokers)


def template_route(topic: str, default: TopicRoute) -> TopicRoute:
    """Make the route of a topic that its first send will create, out of the one of TBW102."""
    queues = tuple(
        MessageQueue(topic, queue.broker_name, queue.queue_id)
        for queue in default.write_queues
        if queue.queue_id < DEFAULT_QUEUES
    )
    return TopicRoute(topic, queues, (), default.brokers, True)


def queue_for_key(queues: Sequence[MessageQueue], key: str) -> MessageQueue:
    """Choose the queue of an ordering key: the same one as a Java producer's SelectMessageQueueByHash."""
    return queues[abs(java_hash(key)) % len(queues)]
