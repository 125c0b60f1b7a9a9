"""A name server's entry of one broker, and the JSON of a route."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from broker.naming.broker_topics import QueueData
from broker.tables.topic_config import READ_WRITE
from remoting.codes import Permission
from remoting.errors import ProtocolError
from remoting.json_dialect import dumps

if TYPE_CHECKING:
    from broker.net.channel import Channel
    from broker.tables.topic_config import TopicConfig
    from broker.tables.topics import Topics

__all__ = ["MASTER_ID", "BrokerEntry", "LiveBroker", "OwnBroker", "RoutesFullError", "broker_json", "route_json"]

MASTER_ID = 0


class RoutesFullError(ProtocolError):
    """A registration that exceeds the name server's bounds; the text gives the figures."""


class BrokerEntry:
    """A broker name with the addresses of its master (id 0) and its slaves."""

    __slots__ = ("addresses", "cluster", "enable_acting_master", "name")

    def __init__(self, name: str, cluster: str, addresses: dict[int, str], enable_acting_master: bool = False) -> None:
        self.name = name
        self.cluster = cluster
        self.addresses = addresses
        self.enable_acting_master = enable_acting_master

    def any_address(self) -> str:
        """Return the master's address, or that of some slave."""
        return self.addresses.get(MASTER_ID) or next(iter(self.addresses.values()), "")


class OwnBroker:
    """The broker in this process.

    ``address`` is the advertised ``ip:port``, empty until it listens; ``permission`` reads ``brokerPermission``.
    """

    __slots__ = ("address", "cluster", "name", "permission", "topics", "write_wiped")

    def __init__(
        self,
        name: str,
        cluster: str,
        topics: Topics,
        address: str = "",
        permission: Callable[[], int] = lambda: READ_WRITE,
    ) -> None:
        self.name = name
        self.cluster = cluster
        self.topics = topics
        self.address = address
        self.permission = permission
        self.write_wiped = False

    def queue_data(self, topic: str) -> QueueData | None:
        """Read a topic's queues from the broker's own table; the broker's permission limits the topic's."""
        config = self.topics.get(topic)
        return None if config is None else self.data_of(config)

    def data_of(self, config: TopicConfig) -> QueueData:
        """The route's data of a topic with this configuration."""
        perm = config.perm
        if self.write_wiped:
            perm &= ~int(Permission.WRITE)
        broker_perm = self.permission()
        if broker_perm & READ_WRITE != READ_WRITE:
            perm &= broker_perm
        return QueueData(config.read_queue_nums, config.write_queue_nums, perm, config.sys_flag)


class LiveBroker:
    """One registered broker process."""

    __slots__ = ("channel", "data_version", "ha_address", "timeout_ms", "updated_ms")

    def __init__(
        self, channel: Channel | None, now_ms: int, timeout_ms: int, data_version: Mapping[str, Any], ha_address: str
    ) -> None:
        self.channel = channel
        self.updated_ms = now_ms
        self.timeout_ms = timeout_ms
        self.data_version = dict(data_version)
        self.ha_address = ha_address


def broker_json(entry: BrokerEntry, quoted: bool, acting: bool = True) -> bytes:
    """Write BrokerData (or, without ``acting``, BrokerMemberGroup)."""
    form = b'"%d":%b' if quoted else b"%d:%b"
    addresses = b",".join(form % (broker_id, dumps(address)) for broker_id, address in sorted(entry.addresses.items()))
    tail = b"}"
    if acting:
        tail = b',"enableActingMaster":' + (b"true}" if entry.enable_acting_master else b"false}")
    names = b'},"brokerName":' + dumps(entry.name) + b',"cluster":' + dumps(entry.cluster)
    return b'{"brokerAddrs":{' + addresses + names + tail


def route_json(
    brokers: list[BrokerEntry],
    queues: Mapping[str, QueueData],
    filters: Mapping[str, list[str]],
    quoted: bool = True,
    order: str | None = None,
) -> bytes:
    """Write TopicRouteData, compact: some clients cut ``brokerAddrs`` out of the text by hand.

    ``order`` is written without a ``;`` at its end, which one client cannot parse.
    """
    data = [queues[name].to_json(name) for name in sorted(queues)]
    parts = [
        b'"brokerDatas":[' + b",".join(broker_json(entry, quoted) for entry in brokers) + b"]",
        b'"filterServerTable":' + dumps(filters),
    ]
    if order and order.rstrip(";"):
        parts.append(b'"orderTopicConf":' + dumps(order.rstrip(";")))
    parts.append(b'"queueDatas":' + dumps(data))
    return b"{" + b",".join(parts) + b"}"
