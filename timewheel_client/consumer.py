"""Receiving: a member of a consumer group as an async iterator.

Example::

    async with Consumer("127.0.0.1:9876", "billing", "orders", tags="paid || refunded") as consumer:
        async for message in consumer:
            await handle(message.body)
            await message.ack()

The members of a group share the queues of its topics: each works out its own share (`allocation`) from the
broker's list of members, whenever a member comes or goes, and every 20 s. Java, Go and Python members can share a
group if they have the same subscriptions.

**At least once.** A message counts as received only when it is acknowledged; what is not acknowledged when the consumer
ends, or when a queue goes to another member, comes again, and so does what was acknowledged behind it (see
`ack_window`). Offsets are saved with each pull, every 5 s, when all that was received is acknowledged, when a queue
is given up, and at the end.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Self

from remoting.codes import RequestCode, ResponseCode
from remoting.command import ProtocolError, RemotingCommand
from remoting.json_dialect import loads, queue_map
from remoting.message import java_hash
from remoting.properties import ORIGIN_MESSAGE_ID, RETRY_TOPIC, format_properties
from remoting.subscription import split_expression
from timewheel_client.ack_window import AckWindow
from timewheel_client.allocation import allocate_evenly
from timewheel_client.core import ClientCore
from timewheel_client.credentials import credentials_of
from timewheel_client.errors import BrokerError, ClientError, NoRouteError, SendError
from timewheel_client.producer import send_header
from timewheel_client.queue_reader import QueueReader, ReaderSettings
from timewheel_client.received import Message
from timewheel_client.routes import MessageQueue

__all__ = ["Consumer"]

log = logging.getLogger("timewheel_client")

REBALANCE_MS = 20_000
SAVE_MS = 5_000
TAKE_OVER_PAUSE_MS = 100
LEAVE_MS = 5_000
MAX_RECONSUME_TIMES = 16
NAME = re.compile(r"[%|a-zA-Z0-9_-]+")


class Consumer:
    """One member of a group; for one event loop. Iterate over it once.

    Args:
        namesrv: Name servers: ``"HOST:PORT;HOST:PORT"`` or a sequence of ``"HOST:PORT"``.
        group: The consumer group.
        topics: A topic, several, or a mapping of topic to tag expression. Topics may come into being later.
        tags: Tag expression of topics that have none of their own: ``*``, or tags joined by ``||``.
        start_from: Where a group without saved offsets begins: ``"last"``, with what comes from now on, or ``"first"``.
            (A broker answers for a young topic that is still in memory: from the first in either case.)
        pull_count: Most messages of a pull.
        max_open: Most messages of a queue that are received and not acknowledged; then pulling it pauses. It pauses too
            when the oldest of them lies twice as far back.
        access_key, secret_key: The account to sign requests as, for brokers with access control; both or neither.

    Raises ValueError for arguments that make no sense. Entering raises ConnectionFailedError when no name server can be
    reached. Iterating raises BrokerError when the broker refuses the tag expression.
    """

    def __init__(
        self,
        namesrv: str | Sequence[str],
        group: str,
        topics: str | Iterable[str] | Mapping[str, str],
        *,
        tags: str = "*",
        start_from: str = "last",
        pull_count: int = 32,
        max_open: int = 1_000,
        access_key: str | None = None,
        secret_key: str | None = None,
    ) -> None:
        if start_from not in ("first", "last"):
            raise ValueError(f"start_from must be 'first' or 'last', found {start_from!r}")
        if not group or pull_count < 1 or max_open < 1:
            raise ValueError("a group needs a name, pull_count and max_open are at least 1")
        if isinstance(topics, str):
            topics = {topics: tags}
        elif not isinstance(topics, Mapping):
            topics = dict.fromkeys(topics, tags)
        if not topics:
            raise ValueError("no topic given")
        for what, name in (("group", group), *(("topic", topic) for topic in topics)):
            if NAME.fullmatch(name) is None:  # no broker would ever let it in, and nobody would be told
                raise ValueError(f"{what} {name!r} may consist of letters, digits and %|_- only")
        subscriptions = {topic: expression or "*" for topic, expression in topics.items()}
        subscriptions[f"%RETRY%{group}"] = "*"
        try:
            self._tags = {topic: split_expression(text) for topic, text in subscriptions.items()}
        except ProtocolError as error:
            raise ValueError(str(error)) from None
        self.group = group
        self._settings = ReaderSettings(group, subscriptions, start_from, pull_count, max_open)
        credentials = credentials_of(access_key, secret_key)
        self._core = ClientCore(namesrv, self._heartbeat, self._serve, self._wake, credentials)
        self._readers: dict[MessageQueue, QueueReader] = {}
        self._arrived: deque[tuple[QueueReader, AckWindow, Message]] = deque()
        self._something = asyncio.Event()
        self._rebalance_now = asyncio.Event()
        self._failure: ClientError | None = None
        self._closed = False
        self._closing: asyncio.Future[None] | None = None

    # -------------------------------------------------------------------------------------- life

    async def start(self) -> Self:
        """Connect, join the group, take over queues; the same as entering ``async with``."""
        core = self._core
        await core.start()
        for topic in self._settings.subscriptions:
            try:
                await core.refresh(topic)
            except NoRouteError:
                log.info("topic %s does not exist yet", topic)
        await core.send_heartbeats()
        await self._rebalance()
        core.spawn(self._keep_balanced)
        core.every(SAVE_MS, self._save)
        return self

    async def close(self) -> None:
        """Save the offsets, leave the group and close the connections. Iteration ends."""
        if self._closing is None:
            self._closed = True
            self._something.set()
            self._closing = asyncio.ensure_future(self._leave())
        await asyncio.shield(self._closing)

    async def _leave(self) -> None:
        if self._core.is_open:
            readers = list(self._readers.values())
            try:
                async with asyncio.timeout(LEAVE_MS / 1000):
                    await asyncio.gather(*(self._give_up(reader) for reader in readers))
            except TimeoutError:
                log.warning("not all offsets of %s were saved within %d ms", self.group, LEAVE_MS)
            ext = {"clientID": self._core.client_id, "consumerGroup": self.group}
            for address in self._core.broker_addresses():
                try:
                    await self._core.ask(address, RequestCode.UNREGISTER_CLIENT, ext, timeout_ms=1_000)
                except ClientError as error:
                    log.debug("leaving the group: %s", error)
        await self._core.close()

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # -------------------------------------------------------------------------------------- receiving

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message:
        """The next message; ends when the consumer is closed."""
        while True:
            if self._closed:
                raise StopAsyncIteration
            if self._failure is not None:
                raise self._failure
            while self._arrived:
                reader, window, message = self._arrived.popleft()
                if reader.holds(window):
                    return message
            self._core.require_open()
            self._something.clear()
            await self._something.wait()

    @property
    def client_id(self) -> str:
        """What the broker's lists call this member; empty before the start."""
        return self._core.client_id

    @property
    def assigned(self) -> list[MessageQueue]:
        """The queues that this member reads now, sorted."""
        return sorted(self._readers)

    @property
    def open_count(self) -> int:
        """How many messages were received and not acknowledged, over all queues."""
        return sum(reader.open_count for reader in self._readers.values())

    def _deliver(self, reader: QueueReader, window: AckWindow, messages: list[Message]) -> None:
        self._arrived.extend((reader, window, message) for message in messages)
        self._something.set()

    def _fail(self, error: ClientError) -> None:
        self._failure = error
        self._something.set()

    # -------------------------------------------------------------------------------------- group

    def _heartbeat(self) -> dict[str, object]:
        settings = self._settings
        where = "FIRST" if settings.start_from == "first" else "LAST"
        return {
            "producerDataSet": [],
            "consumerDataSet": [
                {
                    "groupName": self.group,
                    "consumeType": "CONSUME_PASSIVELY",
                    "messageModel": "CLUSTERING",
                    "consumeFromWhere": f"CONSUME_FROM_{where}_OFFSET",
                    "subscriptionDataSet": [
                        {
                            "topic": topic,
                            "subString": expression,
                            "tagsSet": self._tags[topic] or [],
                            "codeSet": [java_hash(tag) for tag in self._tags[topic] or ()],
                            "subVersion": settings.version,
                            "expressionType": "TAG",
                            "classFilterMode": False,
                        }
                        for topic, expression in settings.subscriptions.items()
                    ],
                    "unitMode": False,
                }
            ],
        }

    def _wake(self) -> None:
        self._rebalance_now.set()

    async def _keep_balanced(self) -> None:
        while True:
            try:
                async with asyncio.timeout(REBALANCE_MS / 1000):
                    await self._rebalance_now.wait()
            except TimeoutError:
                pass
            self._rebalance_now.clear()
            await self._rebalance()

    async def _rebalance(self) -> None:
        """Take the queues that are ours and give up those that are not."""
        wanted: set[MessageQueue] = set()
        alone = True
        for topic in self._settings.subscriptions:
            route = self._core.cached_route(topic)
            if route is None:
                continue
            try:
                members = await self._members(route.addresses())
            except (ClientError, ProtocolError) as error:
                log.warning("members of %s: %s", self.group, error)
                wanted.update(queue for queue in self._readers if queue.topic == topic)
                continue
            alone = alone and len(members) == 1
            wanted.update(allocate_evenly(self.client_id, members, route.read_queues))
        for queue in [queue for queue in self._readers if queue not in wanted]:
            await self._give_up(self._readers[queue])
        for queue in sorted(wanted - self._readers.keys()):
            self._take_over(queue, 0 if alone else TAKE_OVER_PAUSE_MS)

    async def _members(self, addresses: set[str]) -> list[str]:
        """The group's members; ourselves always among them, since we are alive whatever the broker knows."""
        failure: Exception = NoRouteError("no broker")
        for address in sorted(addresses):
            try:
                reply = await self._core.ask(
                    address, RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": self.group}
                )
                members = set(loads(reply.body)["consumerIdList"])
            except (ClientError, ProtocolError, KeyError, TypeError) as error:
                failure = error if isinstance(error, ClientError) else ProtocolError(f"consumer list: {error}")
                continue
            if self.client_id not in members:
                await self._core.send_heartbeats()
            return sorted(members | {self.client_id})
        raise failure

    def _take_over(self, queue: MessageQueue, pause_ms: int) -> None:
        tags = self._tags[queue.topic]
        reader = self._readers[queue] = QueueReader(
            self._core,
            self._settings,
            queue,
            None if tags is None else frozenset(tags),
            self._deliver,
            self._send_back,
            self._fail,
        )
        reader.start(pause_ms)

    async def _give_up(self, reader: QueueReader) -> None:
        reader.drop()
        self._readers.pop(reader.queue, None)
        try:
            await reader.save()
        except ClientError as error:
            log.warning("saving the offset of %s: %s", reader.queue, error)

    async def _save(self) -> None:
        for reader in list(self._readers.values()):
            try:
                await reader.save()
            except ClientError as error:
                log.warning("saving the offset of %s: %s", reader.queue, error)

    def _serve(self, command: RemotingCommand) -> RemotingCommand | None:
        """Do what a broker asks: rebalance, or begin elsewhere."""
        if command.code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED:
            self._wake()
            return command.reply()
        if command.code == RequestCode.RESET_CONSUMER_CLIENT_OFFSET:
            if command.ext.get("group") == self.group:
                for queue, offset in queue_map(loads(command.body)["offsetTable"]):
                    topic, broker_name, queue_id = queue
                    reader = self._readers.get(MessageQueue(topic, broker_name, queue_id))
                    if reader is not None:
                        reader.reset(int(offset))
            return command.reply()
        return None

    # -------------------------------------------------------------------------------------- giving back

    async def _send_back(self, message: Message, delay_level: int) -> None:
        """Have the broker deliver it again; if it cannot, send a copy to the retry topic, as Java's client does."""
        core = self._core
        core.require_open()
        route = core.cached_route(message.queue.topic)
        address = route.address(message.queue.broker_name) if route else None
        if address is None:
            raise NoRouteError(f"no address for broker {message.queue.broker_name}")
        ext = {
            "offset": str(message.log_offset),
            "group": self.group,
            "delayLevel": str(delay_level),
            "originMsgId": message.message_id,
            "originTopic": message.topic,
            "unitMode": "false",
            "maxReconsumeTimes": str(MAX_RECONSUME_TIMES),
        }
        try:
            await core.ask(address, RequestCode.CONSUMER_SEND_MSG_BACK, ext)
        except BrokerError as error:
            log.info("sending back %s: %s; a copy is sent instead", message.message_id, error)
            await self._send_copy(message, delay_level)
        await message.ack()

    async def _send_copy(self, message: Message, delay_level: int) -> None:
        properties = dict(message.properties)
        properties[RETRY_TOPIC] = message.topic
        properties.setdefault(ORIGIN_MESSAGE_ID, message.message_id)
        properties["RECONSUME_TIME"] = times = str(message.reconsume_times + 1)
        properties["MAX_RECONSUME_TIMES"] = str(MAX_RECONSUME_TIMES)
        properties["DELAY"] = str(delay_level if delay_level > 0 else 3 + message.reconsume_times)
        topic = f"%RETRY%{self.group}"
        route = await self._core.route_to_write(topic)
        address = route.address(message.queue.broker_name) or min(route.addresses())
        ext = send_header(self.group, topic, format_properties(properties), flag=message.flag)
        ext |= {"j": times, "l": str(MAX_RECONSUME_TIMES)}
        reply = await self._core.connections.request(address, RequestCode.SEND_MESSAGE_V2, ext, message.body)
        if reply.code != ResponseCode.SUCCESS:
            raise SendError(reply.code, reply.remark, address)
