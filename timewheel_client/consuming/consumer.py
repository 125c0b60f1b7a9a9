"""Receiving: a member of a consumer group as an async iterator.

Example::

    async with Consumer("127.0.0.1:9876", "billing", "orders", tags="paid || refunded") as consumer:
        async for message in consumer:
            await handle(message.body)
            await message.ack()

The members of a group share the queues of its topics: each computes its own share (`allocation`) from the broker's list
of members, whenever a member comes or goes, and every 20 s. Java, Go and Python members can share a
group if they have the same subscriptions.

A start that fails or is cancelled leaves the group again, so no queue stays assigned to a member that does not run.

**At least once.** A message counts as received only when it is acknowledged. When the consumer ends, or a queue goes to
another member, unacknowledged messages come again, and so do later ones that were acknowledged (see `ack_window`).
Offsets are saved with each pull, every 5 s, when all that was received is acknowledged, when a queue
is given up, and at the end.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from remoting.allocation import allocate_evenly
from remoting.codes import RequestCode, ResponseCode
from remoting.command import ProtocolError, RemotingCommand
from remoting.json_dialect import loads, queue_map
from timewheel_client.consuming.ack_window import AckWindow
from timewheel_client.consuming.queue_reader import QueueReader
from timewheel_client.consuming.reader_settings import OnUndecodable, ReaderSettings
from timewheel_client.consuming.received import MAX_BODY_BYTES, ReceivedMessage
from timewheel_client.consuming.send_back import send_back
from timewheel_client.consuming.subscriptions import Topics, subscriptions_of
from timewheel_client.net.client_core import ClientCore
from timewheel_client.net.credentials import credentials_of
from timewheel_client.net.tls import Tls
from timewheel_client.net.waiting import to_the_end
from timewheel_client.values.arguments import need_int
from timewheel_client.values.errors import ClientError, ClosedError, NoRouteError
from timewheel_client.values.log import log
from timewheel_client.values.routes import MessageQueue

__all__ = ["Consumer"]


REBALANCE_MS = 20_000
SAVE_MS = 5_000
TAKE_OVER_PAUSE_MS = 100
LEAVE_MS = 5_000
SETTLE_MS = 5_000
TURN_MESSAGES = 16
TURN_MS = 1
_MOST = (1 << 31) - 1


class Consumer:
    """One member of a group; for one event loop. Iterate over it once.

    Args:
        namesrv: Name servers: ``"HOST:PORT;HOST:PORT"`` or a sequence of ``"HOST:PORT"``.
        group: The consumer group.
        topics: A topic, several, or a mapping of topic to tag expression or `Sql`. A topic need not exist yet.
        tags: Tag expression of topics that have none of their own: ``*``, or tags joined by ``||``.
        sql: Instead of ``tags``: an SQL92 expression over properties, for brokers with ``enablePropertyFilter=true``.
        start_from: Where a group without saved offsets begins: ``"last"``, at the end of the queues, or ``"first"``.
            (For a young topic that is still in memory a broker begins at the first message in either case.)
        pull_count: Most messages of a pull.
        max_open: Most messages of a queue that are received and not acknowledged; then pulling it pauses. It pauses too
            when the oldest of them lies twice as far back.
        max_body_bytes: Most bytes of a decompressed body; a larger one stays as it was sent, and an error is logged.
        on_undecodable: Awaited with each `UndecodableMessage`; when it returns, the message counts as done, and when
            it raises, it stays open and comes again. Without it such a message is skipped. An error is logged always.
        tls: Whether connections are encrypted: False, True, a PEM file of trusted authorities, or an SSLContext.
        access_key, secret_key: The account to sign requests as, for brokers with access control; both or neither.

    Raises ValueError or TypeError for arguments that make no sense. Entering raises ConnectionFailedError when no name
    server can be reached; it may then be started again. Iterating raises BrokerError when the broker refuses the tag or
    SQL expression.
    """

    def __init__(
        self,
        namesrv: str | Sequence[str],
        group: str,
        topics: Topics,
        *,
        tags: str = "*",
        sql: str | None = None,
        start_from: str = "last",
        pull_count: int = 32,
        max_open: int = 1_000,
        max_body_bytes: int = MAX_BODY_BYTES,
        on_undecodable: OnUndecodable | None = None,
        tls: Tls = False,
        access_key: str | None = None,
        secret_key: str | None = None,
    ) -> None:
        if start_from not in ("first", "last"):
            raise ValueError(f"start_from must be 'first' or 'last', found {start_from!r}")
        if on_undecodable is not None and not callable(on_undecodable):
            raise TypeError(f"on_undecodable must be an async function, found {on_undecodable!r:.100}")
        self._settings = ReaderSettings(
            group,
            subscriptions_of(group, topics, tags, sql),
            start_from,
            need_int("pull_count", pull_count, 1, _MOST),
            need_int("max_open", max_open, 1, _MOST),
            need_int("max_body_bytes", max_body_bytes, 1, _MOST),
            on_undecodable,
        )
        self.group = group
        credentials = credentials_of(access_key, secret_key)
        self._core = ClientCore(namesrv, self._heartbeat, self._serve, self._wake, credentials, tls)
        self._readers: dict[MessageQueue, QueueReader] = {}
        self._arrived: deque[tuple[QueueReader, AckWindow, ReceivedMessage]] = deque()
        self._something = asyncio.Event()
        self._rebalance_now = asyncio.Event()
        self._failure: ClientError | None = None
        self._closed = False
        self._starting = False
        self._turn_messages, self._turn_ends = 0, 0.0
        self._closing: asyncio.Task[None] | None = None

    # -------------------------------------------------------------------------------------- life

    async def start(self) -> Self:
        """Connect, join the group, take over queues; the same as entering ``async with``.

        When it returns, the group has an offset in each queue that the member got at the start: messages sent after
        that are not missed. Raises ClosedError after `close`, ClientError when it is open already.
        """
        if self._closed:
            raise ClosedError("this consumer was closed: make a new one")
        if self._starting:
            raise ClientError("it is being started already")
        self._starting = True
        try:
            await self._core.start()
            try:
                await self._join()
                if self._closed:
                    raise ClosedError("this consumer was closed while it was started")
            except BaseException:
                await to_the_end(self._leave())
                raise
        finally:
            self._starting = False
        return self

    async def _join(self) -> None:
        core = self._core
        for topic in self._settings.subscriptions:
            try:
                await core.refresh(topic)
            except NoRouteError:
                log.info("topic %s does not exist yet", topic)
        await core.send_heartbeats()
        await self._rebalance()
        core.spawn(self._keep_balanced)
        core.every(SAVE_MS, self._save)
        try:
            async with asyncio.timeout(SETTLE_MS / 1000):
                await asyncio.gather(*(reader.settled.wait() for reader in list(self._readers.values())))
        except TimeoutError:
            log.warning("%s: not all queues can be read yet; the broker does not tell where to begin", self.group)

    async def close(self) -> None:
        """Save the offsets, leave the group and close the connections. Iteration ends. Takes eight seconds at most."""
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
            await self._core.unregister("consumerGroup", self.group)
        await self._core.close()
        self._readers.clear()

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # -------------------------------------------------------------------------------------- receiving

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ReceivedMessage:
        """The next message; ends when the consumer is closed.

        Other tasks run every `TURN_MESSAGES` messages or `TURN_MS`, also while messages are waiting.
        """
        while True:
            if self._closed:
                raise StopAsyncIteration
            if self._failure is not None:
                raise self._failure
            while self._arrived:
                if self._turn_is_over():
                    await asyncio.sleep(0)
                    break
                reader, window, message = self._arrived.popleft()
                if reader.holds(window):
                    return message
            else:
                self._core.require_open()
                self._something.clear()
                await self._something.wait()

    def _turn_is_over(self) -> bool:
        """True if other tasks should run now; then a new turn begins."""
        now = asyncio.get_running_loop().time()
        self._turn_messages += 1
        if self._turn_messages <= TURN_MESSAGES and now < self._turn_ends:
            return False
        self._turn_messages, self._turn_ends = 0, now + TURN_MS / 1000
        return True

    @property
    def client_id(self) -> str:
        """This member's client id; empty before the start."""
        return self._core.client_id

    @property
    def assigned(self) -> list[MessageQueue]:
        """The queues that this member reads now, sorted."""
        return sorted(self._readers)

    @property
    def open_count(self) -> int:
        """Number of messages that were received and not acknowledged, over all queues."""
        return sum(reader.open_count for reader in self._readers.values())

    def _deliver(self, reader: QueueReader, window: AckWindow, messages: list[ReceivedMessage]) -> None:
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
                        subscription.data(settings.version) for subscription in settings.subscriptions.values()
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
            try:
                await self._rebalance()
            except Exception:  # without it, queues would be read by two members or by none from now on
                log.exception("sharing the queues of %s failed", self.group)

    async def _rebalance(self) -> None:
        """Start reading our queues and give up the others."""
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
        """The group's members, always including ourselves, even if the broker does not list us yet."""
        failure: Exception = NoRouteError("no broker")
        for address in sorted(addresses):
            try:
                reply = await self._core.ask(
                    address, RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": self.group}
                )
                members = set(map(str, loads(reply.body)["consumerIdList"]))
            except (ClientError, ProtocolError, ValueError, KeyError, TypeError) as error:
                failure = error if isinstance(error, ClientError) else ProtocolError(f"consumer list: {error}")
                continue
            if self.client_id not in members:
                await self._core.send_heartbeats()
            return sorted(members | {self.client_id})
        raise failure

    def _take_over(self, queue: MessageQueue, pause_ms: int) -> None:
        reader = self._readers[queue] = QueueReader(
            self._core, self._settings, queue, self._deliver, self._send_back, self._fail
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
                try:
                    table = queue_map(loads(command.body)["offsetTable"])
                    offsets = {MessageQueue(*queue): max(0, int(offset)) for queue, offset in table}
                except (ProtocolError, ValueError, KeyError, TypeError) as error:
                    log.warning("a reset of offsets that cannot be read: %s", error)
                    return command.reply(ResponseCode.SYSTEM_ERROR, f"offsetTable cannot be read: {error}")
                for queue in offsets.keys() & self._readers.keys():
                    self._readers[queue].reset(offsets[queue])
            return command.reply()
        return None

    async def _send_back(self, message: ReceivedMessage, delay_level: int) -> None:
        """Ask the broker to deliver the message again; then mark it as done here."""
        await send_back(self._core, self.group, message, delay_level)
        await message.ack()
