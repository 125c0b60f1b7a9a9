"""The tables that peers can grow by names and numbers: for each its size, its bound, and where both are shown.

Anybody who reaches the port may invent any number of topics, groups, client ids, queues and brokers. So each table
with such names has a bound. Entries beyond it are refused with the figure; a table that only counts leaves them out.
`mqadmin brokerStatus` (GET_BROKER_RUNTIME_INFO) shows all of them as ``bound…: N of M``.

A test compares this list with the attributes of `broker` that are tables. It fails for a table that is neither here
nor, with a reason, on the test's list of fixed ones. Another test fills each of them up to its bound.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from broker.tables.request_modes import MODES_MAX

if TYPE_CHECKING:
    from broker.figures.traffic import Traffic
    from broker.naming.namesrv import NameServer
    from broker.net.server import Server
    from broker.parts import BrokerParts
    from broker.processor_set import ProcessorSet
    from broker.pulling.pull import PullProcessor
    from store.pop.in_flight import InFlight

__all__ = ["Bound", "broker_bounds", "figures", "name_server_bounds", "server_bounds"]


class Bound:
    """One table, or several that grow together.

    ``now`` and ``most`` read its size and its bound, ``key`` is the configuration key of the bound (empty: it is
    fixed), ``tables`` names the attributes, ``module:Class.attribute``.
    """

    __slots__ = ("key", "most", "name", "now", "tables")

    def __init__(
        self, name: str, now: Callable[[], int], most: Callable[[], int], key: str, tables: Iterable[str]
    ) -> None:
        self.name = name
        self.now = now
        self.most = most
        self.key = key
        self.tables = tuple(tables)


def figures(bounds: Iterable[Bound]) -> dict[str, str]:
    """Write them for GET_BROKER_RUNTIME_INFO: ``boundTopics`` to ``14 of 20000``."""
    return {f"bound{bound.name}": f"{bound.now()} of {bound.most()}" for bound in bounds}


def broker_bounds(parts: BrokerParts, processors: ProcessorSet) -> list[Bound]:
    """List the tables of a broker without sockets."""
    return [
        *_names(parts, processors.traffic),
        *_popped(processors.pop.in_flight),
        *_clients(parts),
        *_requests(parts, processors.pull),
    ]


def _names(parts: BrokerParts, traffic: Traffic) -> list[Bound]:
    topics, groups, offsets = parts.topics, parts.groups, parts.offsets
    return [
        Bound(
            "Topics",
            lambda: len(topics.table),
            lambda: topics.auto_create_max,
            "maxAutoCreateTopicNum",
            ("tables.topics:Topics.table",),
        ),
        Bound(
            "SubscriptionGroups",
            lambda: len(groups.table),
            lambda: groups.auto_create_max,
            "maxAutoCreateSubscriptionGroupNum",
            ("tables.groups:SubscriptionGroups.table",),
        ),
        Bound(
            "ConsumerOffsets",
            lambda: max(offsets.count, offsets.pulled_count),
            lambda: offsets.count_max,
            "maxConsumerOffsetNum",
            (
                "tables.offsets:ConsumerOffsets.table",
                "tables.offsets:ConsumerOffsets.resets",
                "tables.offsets:ConsumerOffsets.pulled",
            ),
        ),
        Bound(
            "RequestModes",
            lambda: parts.modes.count,
            lambda: MODES_MAX,
            "",
            ("tables.request_modes:RequestModes.table",),
        ),
        Bound(
            "QueueLocks",
            lambda: parts.locks.count,
            lambda: parts.locks.count_max,
            "",
            ("tables.queue_locks:QueueLocks._groups",),
        ),
        Bound(
            "TrafficSeries",
            lambda: traffic.series_count,
            lambda: traffic.series_max,
            "",
            ("figures.traffic:Traffic._tables", "figures.traffic:_Series.samples"),
        ),
        Bound(
            "UndecidedTransactions",
            lambda: len(parts.halves.undecided),
            lambda: parts.config.get_int("maxUndecidedTransactionNum"),
            "maxUndecidedTransactionNum",
            (),
        ),
    ]


def _popped(in_flight: InFlight) -> list[Bound]:
    return [
        Bound(
            "PopQueues",
            lambda: in_flight.queue_count,
            lambda: in_flight.queues_max,
            "maxConsumerOffsetNum",
            (),
        ),
        Bound(
            "PoppedMessages",
            lambda: in_flight.count,
            lambda: in_flight.count_max,
            "",
            ("pop.reviver:Reviver._unsynced",),
        ),
    ]


def _clients(parts: BrokerParts) -> list[Bound]:
    clients = parts.clients
    return [
        Bound(
            "ClientMemberships",
            lambda: clients.memberships,
            lambda: clients.memberships_max,
            "",
            (
                "net.clients:Clients.consumers",
                "net.clients:Clients.producers",
                "net.clients:Clients._producers_by_id",
                "net.clients:Clients._consumers_of",
                "net.clients:Clients._producers_of",
                "net.clients:ConsumerGroup.clients",
            ),
        ),
        Bound(
            "SubscriptionBytes",
            lambda: clients.subscription_bytes,
            lambda: clients.subscription_bytes_max,
            "",
            ("net.clients:ConsumerGroup.subscriptions",),
        ),
    ]


def _requests(parts: BrokerParts, pull: PullProcessor) -> list[Bound]:
    turn, dispatcher = parts.turn, parts.dispatcher
    return [
        Bound(
            "WaitingSends",
            lambda: turn.waiting,
            lambda: turn.waiting_max,
            "sendThreadPoolQueueCapacity",
            (
                "turns.turn:Turn._entries",
                "turns.durable_replies:DurableReplies._again",
                "turns.durable_replies:DurableReplies._durable",
                "turns.put_request:PutRequest.asides",
                "turns.put_request:PutRequest.parts",
                "transactions.transaction_processor:TransactionProcessor._deciding",
                "transactions.transaction_processor:_Deciding.waiting",
            ),
        ),
        Bound(
            "WaitingPulls",
            lambda: pull.waiting,
            lambda: pull.waiting_max,
            "pullThreadPoolQueueCapacity",
            (
                "pulling.long_poll:LongPoll._holds",
                "pulling.long_poll:LongPoll._deadlines",
                "pulling.long_poll:LongPoll._arrivals",
                "pulling.long_poll:LongPoll._called",
                "pulling.long_poll:LongPoll._again",
                "pop.pop_polls:PopPolls._names",
                "pop.pop_polls:_Name.keys",
                "net.channel:ChannelState.holds",
            ),
        ),
        Bound(
            "WaitingRequests",
            lambda: dispatcher.running,
            lambda: dispatcher.running_max,
            "replyThreadPoolQueueCapacity",
            (
                "net.dispatcher:Dispatcher._tasks",
                "net.dispatcher:Dispatcher._line",
                "tables.table_writer:TableBatch.changes",
                "tables.table_writer:TableBatch.waiting",
                "tables.late_tables:LateTable._coming",
                "tables.late_tables:LateTable._endings",
                "net.asides:Asides._lines",
                "tables.late_tables:LateTable._ending_line",
                "net.channel:ChannelState.waiting",
                "turns.large_batch:LargeBatches._batches",
                "turns.large_batch:LargeBatch.waiting",
                "turns.large_batch:LargeBatch.held_ids",
                "turns.large_batch:LargeBatch._held_rows",
                "turns.large_batch:LargeBatch._late",
                "transactions.resume:ResumeProcessor._resuming",
            ),
        ),
    ]


def server_bounds(server: Server) -> list[Bound]:
    """List the tables of the sockets."""
    return [
        Bound(
            "Connections",
            lambda: server.connection_count,
            lambda: server.connections_max,
            "",
            (
                "net.connection:Sockets._connections",
                "net.server:Server._targets",
                "net.server:Server._waiting",
                "net.server:Server._unfinished",
                "net.connection:Sockets._dirty",
                "net.connection:Connection._rest",
            ),
        ),
        Bound(
            "ConnectionBytes",
            lambda: server.held_bytes,
            lambda: server.held_max_bytes,
            "connectionBytesMax",
            ("net.connection:Connection._out", "net.connection:Connection._backlog"),
        ),
    ]


def name_server_bounds(name_server: NameServer) -> list[Bound]:
    """List the tables of the embedded name server."""
    routes = name_server.routes
    return [
        Bound(
            "RegisteredBrokers",
            lambda: routes.broker_count,
            lambda: routes.brokers_max,
            "",
            (
                "naming.routes:RouteTable._brokers",
                "naming.routes:RouteTable._live",
                "naming.routes:RouteTable._filter_servers",
                "naming.route_entries:LiveBroker.data_version",
            ),
        ),
        Bound(
            "RegisteredTopics",
            lambda: routes.topic_count,
            lambda: routes.topics_max,
            "",
            (
                "naming.routes:RouteTable._topics",
                "naming.broker_topics:BrokerTopics.table",
                "naming.broker_topics:Leaving._tables",
            ),
        ),
        Bound(
            "KeyValues",
            lambda: name_server.kv.bytes,
            lambda: name_server.kv.bytes_max,
            "",
            ("naming.kv_config:KvConfig.table", "naming.namesrv:NameServer._settings"),
        ),
    ]
