"""A shard's owner with a cluster in memory: topics that the name servers know or not, brokers that answer or hang."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import cast

from broker_plugin.due_record import due_record
from remoting.command import RemotingCommand
from remoting.messages.message import Message, StoredMessage, decode_record, encode_record
from remoting.messages.properties import get_property, with_property
from service.core.lease import Lease, Timing
from service.core.lines import Line, LineKind
from service.core.progress import Picture, TargetQueue
from service.core.shard import Shard
from service.link.clock import mono_ms
from service.link.cluster import ClusterLink
from service.link.log import Teller
from service.link.targets import Targets
from service.running.entries import waiting_of
from service.running.instance_counts import InstanceCounts
from service.running.target import RemoteTarget
from store.put.plugin_api import PutResult
from timewheel_client.values.errors import ConnectionFailedError, NoRouteError, NotWrittenError
from timewheel_client.values.routes import MessageQueue, TopicRoute

NAME = "broker-e/0"
_HOST = bytes(8)


def owned_shard(name: str, lease_ms: int = 1 << 40) -> Shard:
    """A shard that is owned, after a takeover record and nothing else; its lease does not end unless told."""
    shard = Shard(name, Timing(lease_ms=lease_ms))
    shard.take_over("me")
    shard.load(Picture(), 0)
    shard.read([Line(0, LineKind.TAKEOVER, owner="me")], 1, 0)
    shard.settle(Picture(), 0)
    shard.record()
    shard.saved()
    return shard


class TargetWorld:
    """Core, cluster and owner in one: what `RemoteTarget` and `Targets` ask of them."""

    def __init__(self) -> None:
        self.now_ms = 1_000_000
        self.age_ms = 1_000_000
        self.routes: dict[str, TopicRoute] = {}
        self.elsewhere: dict[str, TopicRoute] = {}
        self.cached: dict[str, TopicRoute] = {}
        self.addresses: dict[str, str] = {}
        self.hanging: set[str] = set()
        self.refusing: set[str] = set()
        self.asked: list[str] = []
        self.soon: list[str] = []
        self.stored: list[tuple[TargetQueue, bytes]] = []
        self.lost_queues: list[TargetQueue] = []
        self.tries = 0
        self.waiting: list[asyncio.Future[RemotingCommand]] = []
        self.gate: asyncio.Event | None = None
        self.name, self.tally = NAME, InstanceCounts()
        self.tell = Teller(logging.getLogger(__name__), NAME)
        self.core = self
        self.targets = Targets(self, self.addresses.get, lambda: self.now_ms)
        self.cluster = cast(ClusterLink, self)
        self.is_writable, self.closed = True, False
        self.stands_still = False
        self.requests: list[int] = []
        """The number of messages of each request."""
        self.refuses: Callable[[Sequence[StoredMessage]], tuple[int, str] | None] = lambda _: None
        """Code and remark of a refusal of these messages."""
        self.shard = owned_shard(NAME)
        self.shard.lease.renew(mono_ms())
        self.target = RemoteTarget(self, asyncio.get_running_loop())

    # -- what tests say

    def topic(self, name: str, *brokers: str) -> TopicRoute:
        queues = tuple(MessageQueue(name, broker, number) for broker in brokers for number in range(2))
        return TopicRoute(name, queues, queues, {broker: {0: f"{broker}:1"} for broker in brokers})

    def entry(
        self, offset: int, topic: str, due_ms: int = 1, key: str = "", more: str = "", born_ms: int = -1
    ) -> bytes:
        """A finished delivery; no two can go in one batch, but those with the same ``born_ms``."""
        properties = (
            f"TW_TOPIC\x01{topic}\x02TW_DELIVER_MS\x01{due_ms}\x02{more}CLUSTER\x01c\x02UNIQ_KEY\x01u{offset}\x02"
        )
        if key:
            properties = with_property(properties, "__SHARDINGKEY", key)
        born_ms = offset if born_ms < 0 else born_ms
        message = Message("TIMEWHEEL", 0, 0, 0, born_ms, _HOST, 0, 0, b"%d" % offset, properties)
        stored = decode_record(encode_record(message, _HOST, 1))
        stored.queue_offset = offset
        return waiting_of(stored, NAME).record

    async def put(self, *entries: bytes, due_ms: int = 1) -> list[PutResult]:
        """From a thread, as the cache does."""
        self.shard.lease.renew(mono_ms())
        return await asyncio.to_thread(self.target.put_batch, [due_record(entry, due_ms) for entry in entries])

    def where(self) -> list[tuple[str, str]]:
        """Topic and broker of what was stored."""
        return [(queue[0], queue[1]) for queue, _ in self.stored]

    async def end_all(self) -> None:
        for task in self.target.tasks():
            task.cancel()
        await asyncio.gather(*self.target.tasks(), return_exceptions=True)

    # -- the core

    def cached_route(self, topic: str) -> TopicRoute | None:
        return self.cached.get(topic)

    async def refresh(self, topic: str) -> TopicRoute:
        self.asked.append(topic)
        if self.gate is not None:
            await self.gate.wait()
        if topic not in self.routes:
            raise NoRouteError(f"topic {topic} does not exist")
        self.cached[topic] = self.routes[topic]
        return self.routes[topic]

    async def refresh_elsewhere(self, topic: str) -> TopicRoute:
        if topic not in self.elsewhere:
            raise NoRouteError(f"topic {topic} does not exist")
        self.cached[topic] = self.elsewhere[topic]
        return self.elsewhere[topic]

    def refresh_soon(self, topic: str) -> None:
        self.soon.append(topic)

    def forget(self, topic: str) -> None:
        self.cached.pop(topic, None)

    def name_server_age_ms(self) -> int:
        return self.age_ms

    # -- the cluster

    async def end(self, queue: TargetQueue) -> int:
        if queue[1] in self.refusing:
            raise ConnectionFailedError(f"{queue[1]} refuses")
        if queue[1] in self.hanging:
            await asyncio.Event().wait()
        return 0

    async def connection(self, topic: str, broker: str) -> TargetWorld:
        assert topic
        if broker in self.refusing:
            raise ConnectionFailedError(f"{broker} refuses")
        return self

    def deliver_now(
        self,
        connection: object,
        queue: TargetQueue,
        messages: Sequence[StoredMessage],
        may: Callable[[], bool],
    ) -> asyncio.Future[RemotingCommand]:
        assert connection is self and all(get_property(message.properties, "TW_DELAY_ID") for message in messages)
        assert len({message.topic for message in messages}) == 1
        reply: asyncio.Future[RemotingCommand] = asyncio.get_running_loop().create_future()
        self.requests.append(len(messages))
        if self.stands_still:  # as a process that is stopped between the look and the system call that writes
            self.shard.lease = Lease(0)
        if queue[1] in self.hanging:
            self.waiting.append(reply)
        elif not may():
            reply.set_exception(NotWrittenError("its sender may not write any more"))
        elif why := self.refuses(messages):
            reply.set_result(RemotingCommand(why[0], 0, remark=why[1]))
        else:
            self.stored += [(queue, message.body) for message in messages]
            first = len(self.stored) - len(messages) + 1
            reply.set_result(RemotingCommand(0, 0, ext={"queueOffset": str(first)}))
        return reply

    # -- the owner

    def lost(self, queue: TargetQueue) -> None:
        self.lost_queues.append(queue)

    def try_again(self) -> None:
        self.tries += 1

    async def save_now(self) -> None:
        if self.shard.record() is not None:
            self.shard.saved()
        await asyncio.sleep(0)


def names(results: Sequence[PutResult]) -> list[str]:
    return [result.status.name for result in results]
