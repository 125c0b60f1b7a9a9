"""Routes: which brokers hold which queues of a topic, as a name server keeps them.

The routes come from two sources:

* The broker in this process (`OwnBroker`). Its topics are read from its own table for each answer, so a new topic is in
  the next answer.
* Brokers that register over the wire (`RouteTable.register`). One is forgotten when it unregisters, when its connection
  closes, or after 120 s of silence.

The rules for the second source are those of Apache's RouteInfoManager, including a surprising one: a registration adds
and changes topics but never removes any, because brokers may send only what has changed. So a topic deleted on its
broker stays until DELETE_TOPIC_IN_NAMESRV or until the broker is gone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from heapq import merge
from itertools import groupby
from typing import TYPE_CHECKING, Any

from broker.naming.broker_topics import BrokerTopics, Leaving, QueueData
from broker.naming.route_entries import MASTER_ID, BrokerEntry, LiveBroker, OwnBroker, RoutesFullError
from remoting.codes import Permission
from remoting.json_dialect import dumps

if TYPE_CHECKING:
    from broker.net.channel import Channel

__all__ = ["BROKERS_MAX", "BROKER_EXPIRED_MS", "NAME_CHARS_MAX", "TOPICS_MAX", "RouteTable"]

BROKERS_MAX = 1_000
"""Most brokers that may be registered, by names as by processes; and most processes of one name."""
TOPICS_MAX = 200_000
"""Most topics of registered brokers, counted once for each broker that has them."""
NAME_CHARS_MAX = 255
_VERSION_BYTES_MAX = 1_000
_FILTER_SERVERS_MAX = 16

BROKER_EXPIRED_MS = 120_000
"""Silence after which a registered broker is forgotten, unless it asked for another time."""

_FREED_AT_ONCE = 20_000
_SORTED_AT_ONCE = 2_000
_READ_WRITE = int(Permission.READ | Permission.WRITE)


class RouteTable:
    """Brokers, clusters and topics. Only the network loop uses it.

    Args:
        own: The broker in this process; None for a name server without one.
        brokers_max, topics_max: Bounds, because any peer may register; beyond them RoutesFullError is raised.
    """

    def __init__(
        self, own: OwnBroker | None = None, brokers_max: int = BROKERS_MAX, topics_max: int = TOPICS_MAX
    ) -> None:
        self.own = own
        self.brokers_max = brokers_max
        self.topics_max = topics_max
        self.topic_count = 0
        """Topics of registered brokers, counted once for each broker that has them."""
        self._brokers: dict[str, BrokerEntry] = {}
        self._topics: dict[str, BrokerTopics] = {}  # by broker name: work on one walks no other's
        self._leaving = Leaving()
        self._live: dict[tuple[str, str], LiveBroker] = {}  # (cluster, address)
        self._filter_servers: dict[str, list[str]] = {}  # address to filter servers

    @property
    def broker_count(self) -> int:
        """Number of registered brokers: names or processes, whichever is more."""
        processes = sum([len(entry.addresses) for entry in self._brokers.values()])
        return max(len(self._brokers), len(self._live), processes)

    # ------------------------------------------------------------------------------------------ asking

    def _own_entry(self) -> BrokerEntry | None:
        own = self.own
        if own is None or not own.address:
            return None
        return BrokerEntry(own.name, own.cluster, {MASTER_ID: own.address})

    def brokers(self) -> list[BrokerEntry]:
        """List all brokers, our own first."""
        entry = self._own_entry()
        return ([entry] if entry else []) + list(self._brokers.values())

    def route(self, topic: str) -> tuple[list[BrokerEntry], dict[str, QueueData], dict[str, list[str]]]:
        """Return a topic's (brokers, queues by broker name, filter servers by address); no brokers: unknown topic."""
        queues = {}
        for name, topics in self._topics.items():
            data = topics.get(topic)
            if data is not None:
                queues[name] = data
        own = self.own
        if own is not None and own.address and (own_data := own.queue_data(topic)) is not None:
            queues[own.name] = own_data
        if not queues:
            return [], {}, {}
        brokers = [entry for entry in self.brokers() if entry.name in queues and entry.addresses]
        addresses = [address for entry in brokers for address in entry.addresses.values()]
        filters = {address: self._filter_servers[address] for address in addresses if address in self._filter_servers}
        return brokers, queues, filters

    def clusters(self) -> dict[str, list[str]]:
        """List the broker names of each cluster."""
        found: dict[str, list[str]] = {}
        for entry in self.brokers():
            found.setdefault(entry.cluster, []).append(entry.name)
        return found

    def member_group(self, name: str) -> BrokerEntry | None:
        """Return the addresses of a broker name."""
        return next((entry for entry in self.brokers() if entry.name == name), None)

    def topics(self, cluster: str | None = None) -> list[str]:
        """List the topics of all brokers, or of one cluster's, sorted. Any thread."""
        names = {entry.name for entry in self.brokers() if cluster in (None, entry.cluster)}
        tables: list[Mapping[str, object]] = [
            topics.table for name, topics in list(self._topics.items()) if cluster is None or name in names
        ]
        if self.own is not None and self.own.name in names:
            tables.append(self.own.topics.table)
        return _sorted_names(tables)

    def data_version(self, cluster: str, address: str) -> dict[str, Any] | None:
        """Return the data version that a broker last registered."""
        live = self._live.get((cluster, address))
        return live.data_version if live else None

    # ------------------------------------------------------------------------------------------ brokers of others

    def register(
        self,
        *,
        cluster: str,
        name: str,
        broker_id: int,
        address: str,
        ha_address: str,
        topics: Mapping[str, QueueData],
        data_version: Mapping[str, Any],
        now_ms: int,
        channel: Channel | None = None,
        timeout_ms: int = BROKER_EXPIRED_MS,
        enable_acting_master: bool = False,
        filter_servers: list[str] | None = None,
    ) -> tuple[str, str] | None:
        """Note a broker's registration; return, for a slave, (address, HA address) of its master if known.

        Raises RoutesFullError, and changes nothing then.
        """
        filter_servers = filter_servers or []
        self._check_words(cluster, name, address, ha_address, *map(str, filter_servers), *topics)
        self._check_broker(cluster, name, broker_id, address)
        if len(dumps(data_version)) > _VERSION_BYTES_MAX or len(filter_servers) > _FILTER_SERVERS_MAX:
            raise RoutesFullError(
                f"broker {name}: a data version has at most {_VERSION_BYTES_MAX} bytes, and a broker "
                f"at most {_FILTER_SERVERS_MAX} filter servers"
            )
        if broker_id == MASTER_ID:
            self._check_topics(self._news(name, topics))
        entry = self._brokers.get(name)
        if entry is None:
            entry = self._brokers[name] = BrokerEntry(name, cluster, {})
        entry.cluster = cluster
        entry.enable_acting_master = enable_acting_master
        for known_id in [i for i, known in entry.addresses.items() if known == address and i != broker_id]:
            del entry.addresses[known_id]
        first = broker_id not in entry.addresses
        entry.addresses[broker_id] = address
        known = self._live.get((cluster, address))
        changed = known is None or first or known.data_version != dict(data_version)
        self._live[cluster, address] = LiveBroker(channel, now_ms, timeout_ms, data_version, ha_address)
        if filter_servers:
            self._filter_servers[address] = filter_servers
        else:
            self._filter_servers.pop(address, None)
        if broker_id != MASTER_ID:
            master = entry.addresses.get(MASTER_ID)
            master_live = self._live.get((cluster, master)) if master else None
            return (master, master_live.ha_address) if master and master_live else None
        if changed:
            for topic, data in topics.items():
                self._put_queues(topic, name, data)
        return None

    @staticmethod
    def _check_words(*words: str) -> None:
        for word in words:
            if len(word) > NAME_CHARS_MAX:
                raise RoutesFullError(
                    f"a name has at most {NAME_CHARS_MAX} characters, this one {len(word)}: {word:.100}…"
                )

    def _check_broker(self, cluster: str, name: str, broker_id: int, address: str) -> None:
        entry = self._brokers.get(name)
        held = {} if entry is None else entry.addresses
        news = (cluster, address) not in self._live or (broker_id not in held and address not in held.values())
        if news and self.broker_count >= self.brokers_max:
            raise RoutesFullError(f"{self.broker_count} brokers are registered, at most {self.brokers_max} may be")

    def _check_topics(self, more: int) -> None:
        if more and self.topic_count + more > self.topics_max:
            raise RoutesFullError(
                f"{self.topic_count} topics are registered, counted for each broker; {more} more would exceed "
                f"the limit of {self.topics_max}"
            )

    def check_room(self, name: str, topics: Mapping[str, QueueData]) -> None:
        """Raise RoutesFullError if a broker has too many topics or too long names. Any thread."""
        self._check_words(*topics)
        self._check_topics(self._news(name, topics))

    def _news(self, name: str, topics: Mapping[str, QueueData]) -> int:
        """Count the topics of a broker that are new."""
        known = self._topics.get(name)
        return len(topics) if known is None else sum(topic not in known.table for topic in topics)

    def would_change(
        self, cluster: str, name: str, broker_id: int, address: str, data_version: Mapping[str, Any]
    ) -> bool:
        """True if a registration is more than a heartbeat, so that its topics count."""
        entry, known = self._brokers.get(name), self._live.get((cluster, address))
        first = entry is None or broker_id not in entry.addresses
        return first or known is None or known.data_version != dict(data_version)

    def add_topics(self, name: str, topics: Mapping[str, QueueData]) -> None:
        """Add more topics of a registered broker; does nothing if it is no longer registered."""
        if name in self._brokers:
            for topic, data in topics.items():
                self._put_queues(topic, name, data)

    def _put_queues(self, topic: str, name: str, data: QueueData) -> None:
        topics = self._topics.get(name)
        if topics is None:
            topics = self._topics[name] = BrokerTopics()
        self.topic_count += topic not in topics.table
        topics.put(topic, data)
        self._leaving.free(2)

    def heard(self, cluster: str, address: str, now_ms: int) -> bool:
        """Note a broker's heartbeat; answer whether the broker is known."""
        live = self._live.get((cluster, address))
        if live is None:
            return False
        live.updated_ms = now_ms
        return True

    def unregister(self, cluster: str, name: str, broker_id: int, address: str) -> None:
        """Forget a broker process; its topics go with the last process of its name.

        A request that names another broker than the one at the address changes nothing; otherwise that broker's topics
        would stay.
        """
        entry = self._brokers.get(name)
        if entry is None or entry.addresses.get(broker_id) != address:
            return
        self._live.pop((cluster, address), None)
        self._filter_servers.pop(address, None)
        del entry.addresses[broker_id]
        if not entry.addresses:
            del self._brokers[name]
            self._drop_broker(name)
        elif MASTER_ID not in entry.addresses and name in self._topics:  # slaves are read only
            self._topics[name].set_writable(False)

    def channel_closed(self, channel: Channel) -> None:
        """Forget the brokers that registered over a channel."""
        self._forget([key for key, live in self._live.items() if live.channel is channel])

    def expire(self, now_ms: int) -> list[str]:
        """Forget brokers that were silent for too long; return their addresses."""
        silent = [key for key, live in self._live.items() if live.updated_ms + live.timeout_ms < now_ms]
        self._forget(silent)
        self._leaving.free(_FREED_AT_ONCE)
        return [address for _, address in silent]

    def _forget(self, keys: list[tuple[str, str]]) -> None:
        """Forget processes, in one pass over all of them.

        The cluster is not compared: if the name has moved to another cluster since, the address would stay for ever.
        """
        if not keys:
            return
        for key in keys:
            del self._live[key]
        gone = {address for _, address in keys} - {address for _, address in self._live}
        for entry in list(self._brokers.values()):
            for broker_id in [number for number, address in entry.addresses.items() if address in gone]:
                self.unregister(entry.cluster, entry.name, broker_id, entry.addresses[broker_id])

    # ------------------------------------------------------------------------------------------ by command

    def set_writable(self, name: str, writable: bool) -> int:
        """Take the write permission from all topics of a broker, or give it back; return the number of topics."""
        count = 0
        if self.own is not None and self.own.name == name:
            self.own.write_wiped = not writable
            count += len(self.own.topics.table)
        topics = self._topics.get(name)
        if topics is not None:
            topics.set_writable(writable)
            count += len(topics.table)
        return count

    def put_topic(self, topic: str, queues: Mapping[str, QueueData]) -> None:
        """Add a topic to the known ones among some brokers. Raises RoutesFullError."""
        names = {entry.name for entry in self.brokers()}
        known = {name: data for name, data in queues.items() if name in names}
        self._check_words(topic)
        self._check_topics(sum(self._news(name, {topic: data}) for name, data in known.items()))
        for name, data in known.items():
            self._put_queues(topic, name, data)

    def delete_topic(self, topic: str, cluster: str | None = None) -> None:
        """Forget a topic, everywhere or in one cluster. A topic that exists on our own broker stays."""
        for name in list(self._topics) if cluster is None else self.clusters().get(cluster, []):
            topics = self._topics.get(name)
            if topics is not None and topics.table.pop(topic, None) is not None:
                self.topic_count -= 1
                if not topics.table:
                    del self._topics[name]

    def _drop_broker(self, name: str) -> None:
        """Forget all topics of a broker."""
        topics = self._topics.pop(name, None)
        if topics is not None:
            self.topic_count -= len(topics.table)
            self._leaving.add(topics.table)


def _sorted_names(tables: Iterable[Mapping[str, object]]) -> list[str]:
    """Sort the distinct names of large tables, piece by piece, so that other threads can run meanwhile."""
    pieces = []
    for table in tables:
        names = list(table)
        pieces += [sorted(names[at : at + _SORTED_AT_ONCE]) for at in range(0, len(names), _SORTED_AT_ONCE)]
    return [name for name, _ in groupby(merge(*pieces))]


# ------------------------------------------------------------------------------------------------ bodies
