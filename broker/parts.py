"""The pieces of a broker without sockets, for code that needs several of them."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from broker.access.access_table import May
from broker.access.acl import Acl
from broker.config.broker_config import BrokerConfig
from broker.net.clients import Clients
from broker.net.dispatcher import Dispatcher
from broker.pulling.cold_reads import ColdReads
from broker.pulling.long_poll import LongPoll
from broker.tables.groups import SubscriptionGroups
from broker.tables.offsets import ConsumerOffsets
from broker.tables.queue_locks import QueueLocks
from broker.tables.request_modes import RequestModes
from broker.tables.topics import Topics
from broker.turns.large_batch import LargeBatches
from broker.turns.turn import Turn
from store.disk.files import Files
from store.half_messages import HalfMessages
from store.levels.level_scheduler import LevelScheduler
from store.message_store import MessageStore
from store.put.plugin_api import Plugin

__all__ = ["BrokerParts"]


class BrokerParts:
    """The opened pieces of one broker, declared here and nowhere else.

    `broker.core.BrokerCore` is one: it opens the pieces and ends them. Those who need many of them (the processors'
    set, the bounds) take a `BrokerParts`, so that they need not know the core.
    """

    config: BrokerConfig
    files: Files
    address: str
    """The address for clients, ``host:port``."""
    now_ms: Callable[[], int]
    random: Random
    """For queues that the broker picks."""
    plugins: list[Plugin]
    store: MessageStore
    topics: Topics
    groups: SubscriptionGroups
    offsets: ConsumerOffsets
    modes: RequestModes
    halves: HalfMessages
    level_scheduler: LevelScheduler
    clients: Clients
    locks: QueueLocks
    long_poll: LongPoll
    cold_reads: ColdReads
    dispatcher: Dispatcher
    acl: Acl | None
    may: May
    turn: Turn
    large_batches: LargeBatches

    def permission(self) -> int:
        """Tell the broker's own permission, which can be changed at run time."""
        return self.config.get_int("brokerPermission")
