"""Sending: now, at an instant, after a delay, by level; one by one, in batches, or without waiting for the reply.

Example::

    async with Producer("127.0.0.1:9876") as producer:
        await producer.send("orders", b"now")
        await producer.send("orders", b"at ten", at=datetime(2030, 1, 1, 10, tzinfo=UTC))
        await producer.send("orders", b"in 47 minutes", delay=timedelta(minutes=47), tags="reminder")

Many sends may be in flight on one producer (`asyncio.gather`); they share one connection for each broker, and what
one turn of the event loop sends goes out as one write.

A send that fails is tried again while its time lasts, see `timewheel_client.net.tries`. After a broken connection or a
timeout the first try may have been stored: the message may come twice, with the same ``message_id``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Self

from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand
from remoting.errors import MessageError
from remoting.messages.message import join_batch
from remoting.messages.properties import DELAY_KEY
from timewheel_client.net.client_core import ClientCore
from timewheel_client.net.credentials import credentials_of
from timewheel_client.net.tls import Tls
from timewheel_client.net.tries import ANYWHERE, STORED, Place, Tries, send_header
from timewheel_client.net.waiting import to_the_end
from timewheel_client.producing.recalling import recall_message
from timewheel_client.values.arguments import need_bytes, need_int, need_many, need_text
from timewheel_client.values.client_values import BatchMessage, RecallResult, SendResult, properties_text
from timewheel_client.values.delivery_time import At, Delay
from timewheel_client.values.errors import ClientError, ClosedError, NoRouteError
from timewheel_client.values.routes import MessageQueue, queue_for_key
from timewheel_client.values.unique_id import UniqueIds

__all__ = ["Producer"]

_INT32 = 1 << 31
_LONG_MS = 86_400_000 * 365


class Producer:
    """Sends messages; for one event loop.

    Args:
        namesrv: Name servers: ``"HOST:PORT;HOST:PORT"`` or a sequence of ``"HOST:PORT"``.
        group: Name of the producer group, for the broker's lists.
        timeout_ms: How long a send may take: all its tries, connects and look-ups together.
        attempt_timeout_ms: How long one try may take.
        attempts: The most tries of a send; 1 for messages that must not come twice. None: as many as fit into
            ``timeout_ms`` while no broker can be reached, three when brokers refuse it.
        tls: Whether connections are encrypted: False, True, a PEM file of trusted authorities, or an SSLContext.
        access_key, secret_key: The account to sign requests as, for brokers with access control; both or neither.

    Raises ValueError or TypeError for a bad argument. Entering raises ConnectionFailedError when no name server can be
    reached; it may then be started again. After `close` it cannot: make a new one.
    """

    def __init__(
        self,
        namesrv: str | Sequence[str],
        *,
        group: str = "PYTHON_PRODUCER",
        timeout_ms: int = 10_000,
        attempt_timeout_ms: int = 3_000,
        attempts: int | None = None,
        tls: Tls = False,
        access_key: str | None = None,
        secret_key: str | None = None,
    ) -> None:
        self._group = need_text("group", group)
        need_int("timeout_ms", timeout_ms, 1, _LONG_MS)
        need_int("attempt_timeout_ms", attempt_timeout_ms, 1, _LONG_MS)
        if attempts is not None:
            need_int("attempts", attempts, 1, 1 << 31)
        self._timeout_ms = timeout_ms
        self._core = ClientCore(namesrv, self._heartbeat, credentials=credentials_of(access_key, secret_key), tls=tls)
        self._tries = Tries(self._core, timeout_ms, attempt_timeout_ms, attempts)
        self._ids = UniqueIds()
        self._starting = False
        self._closing: asyncio.Task[None] | None = None

    async def start(self) -> Self:
        """Connect; the same as entering ``async with``.

        Raises ClosedError after `close`, ClientError when it is open already.
        """
        if self._is_closed():
            raise ClosedError("this producer was closed: make a new one")
        if self._starting:
            raise ClientError("it is being started already")
        self._starting = True
        try:
            await self._core.start()
        finally:
            self._starting = False
        if self._is_closed():
            await to_the_end(self._core.close())
            raise ClosedError("this producer was closed while it was started")
        self._ids = UniqueIds(self._core.local_host)
        return self

    def _is_closed(self) -> bool:
        return self._closing is not None

    async def close(self) -> None:
        """Leave the group and close the connections; sends in flight fail. Takes two seconds at most."""
        if self._closing is None:
            self._closing = asyncio.ensure_future(self._leave())
        await asyncio.shield(self._closing)

    async def _leave(self) -> None:
        if self._core.is_open:
            await self._core.unregister("producerGroup", self._group)
        await self._core.close()

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def send(
        self,
        topic: str,
        body: bytes | str,
        *,
        at: At | None = None,
        delay: Delay | None = None,
        level: int | None = None,
        tags: str | None = None,
        keys: str | Sequence[str] | None = None,
        properties: Mapping[str, str] | None = None,
        sharding_key: str | None = None,
        queue: MessageQueue | int | None = None,
        flag: int = 0,
    ) -> SendResult:
        """Send one message and wait until it is stored.

        Args:
            topic: Its topic; a broker that is allowed to creates it.
            body: Bytes, or text (sent as UTF-8).
            at: Deliver at this instant: a datetime with its zone, or epoch milliseconds as an int.
            delay: Deliver after this span: a timedelta or seconds.
            level: Deliver after this fixed delay of the broker, 1 to 18.
            tags: One tag; consumers choose by it.
            keys: What it can be looked up by: a text with blanks between keys, or several texts.
            properties: Further properties, of names that are not reserved; or those of a received message. A delay key
                (``__DELAYKEY``) decides the queue, unless the next two do: so it is unique over all brokers.
            sharding_key: Messages with the same key go to the same queue, in order.
            queue: This queue, or the queue with this number of the first broker by name.
            flag: A number that travels along (int32).

        Raises SendError (with the broker's code and remark), NoRouteError, ConnectionFailedError, RequestTimeoutError;
        ValueError or TypeError for arguments that cannot be sent.
        """
        self._core.require_open()
        place = _place(topic, sharding_key, queue, (properties,))
        unique_id = self._ids.make()
        text = properties_text(unique_id, tags, keys, properties, at, delay, level, sharding_key)
        ext = send_header(self._group, topic, text, flag=need_int("flag", flag, -_INT32, _INT32 - 1))
        code = RequestCode.SEND_MESSAGE_V2
        reply, chosen = await self._tries.send(topic, code, ext, need_bytes("body", body), place)
        return _result(reply, chosen, unique_id)

    async def send_oneway(
        self,
        topic: str,
        body: bytes | str,
        *,
        at: At | None = None,
        delay: Delay | None = None,
        level: int | None = None,
        tags: str | None = None,
        keys: str | Sequence[str] | None = None,
        properties: Mapping[str, str] | None = None,
        sharding_key: str | None = None,
        queue: MessageQueue | int | None = None,
        flag: int = 0,
    ) -> str:
        """Send one message and ask for no reply: fast, and lost without a sign if the broker refuses it.

        Arguments as for `send`. Returns the message id. Raises as `send` does, but for SendError.
        """
        self._core.require_open()
        place = _place(topic, sharding_key, queue, (properties,))
        unique_id = self._ids.make()
        text = properties_text(unique_id, tags, keys, properties, at, delay, level, sharding_key)
        ext = send_header(self._group, topic, text, flag=need_int("flag", flag, -_INT32, _INT32 - 1))
        await self._tries.send_oneway(topic, RequestCode.SEND_MESSAGE_V2, ext, need_bytes("body", body), place)
        return unique_id

    async def send_batch(
        self,
        topic: str,
        messages: Sequence[BatchMessage | bytes | str],
        *,
        sharding_key: str | None = None,
        queue: MessageQueue | int | None = None,
    ) -> list[SendResult]:
        """Send several messages as one request to one queue: all are stored, or none. One result for each.

        A whole batch must stay below the broker's limit for one message (4 MiB by default). Its delay keys must be
        of one broker, see `key_queue`, unless a key or a queue is given. Raises as `send` does; ValueError also for a
        message that does not fit into a batch.
        """
        self._core.require_open()
        elements: list[tuple[int, bytes, str]] = []
        ids: list[str] = []
        for number, message in enumerate(need_many("messages", messages)):
            if isinstance(message, BatchMessage):
                one = message
            else:
                one = BatchMessage(need_bytes(f"message {number} of the batch", message))
            unique_id = self._ids.make()
            text = properties_text(
                unique_id, one.tags, one.keys, one.properties, one.at, one.delay, sharding_key=sharding_key
            )
            elements.append((0, need_bytes(f"the body of message {number}", one.body), text))
            ids.append(unique_id)
        if not elements:
            return []
        each = [message.properties for message in messages if isinstance(message, BatchMessage)]
        place = _place(topic, sharding_key, queue, each)
        try:
            body = join_batch(elements)
        except MessageError as error:
            raise ValueError(str(error)) from None
        ext = send_header(self._group, topic, "", batch=True)
        reply, chosen = await self._tries.send(topic, RequestCode.SEND_BATCH_MESSAGE, ext, body, place)
        first = _result(reply, chosen, "")
        offset_ids = first.offset_message_id.split(",")
        if len(offset_ids) != len(ids):
            offset_ids = [first.offset_message_id] * len(ids)
        return [
            SendResult(ids[index], offset_ids[index], chosen, first.queue_offset + index, first.status)
            for index in range(len(ids))
        ]

    async def recall(self, sent: SendResult) -> RecallResult:
        """Take a timed message back before it is delivered.

        Args:
            sent: What `send` returned for it; it has a ``recall_handle`` if the broker allows recalls.

        A Timewheel broker's answer is definite: the result is true if the message will not be delivered and never was.
        (Apache's broker says yes whatever becomes of the message.) Asking again is harmless, so it is tried until
        ``timeout_ms`` are over. Raises ValueError for a send without handle, BrokerError when recalls are switched off.
        """
        self._core.require_open()
        return await recall_message(self._core, self._tries, self._group, sent, self._timeout_ms)

    async def queues(self, topic: str) -> list[MessageQueue]:
        """The queues of a topic that can be written to, for the ``queue`` argument; raises NoRouteError."""
        self._core.require_open()
        deadline = asyncio.get_running_loop().time() + self._timeout_ms / 1000
        return list((await self._tries.find_route(need_text("topic", topic), deadline)).write_queues)

    async def key_queue(self, topic: str, key: str) -> MessageQueue:
        """The queue that messages with this delay key, or sharding key, go to; raises NoRouteError.

        It is the one that Java's SelectMessageQueueByHash chooses, among the queues that can be written to now.
        """
        queues = await self.queues(topic)
        if not queues:
            raise NoRouteError(f"no broker of topic {topic} accepts writes")
        return queue_for_key(queues, need_text("key", key))

    def _heartbeat(self) -> dict[str, object]:
        return {"producerDataSet": [{"groupName": self._group}], "consumerDataSet": []}


def _place(
    topic: str,
    sharding_key: str | None,
    queue: MessageQueue | int | None,
    properties: Sequence[Mapping[str, str] | None],
) -> Place:
    """Check where a message is to go; raises TypeError or ValueError."""
    need_text("topic", topic)
    if sharding_key is None and queue is None:
        keys = tuple(each[DELAY_KEY] for each in properties if isinstance(each, Mapping) and DELAY_KEY in each)
        return Place(delay_keys=keys) if keys else ANYWHERE
    if sharding_key is not None:
        need_text("sharding_key", sharding_key)
    if isinstance(queue, MessageQueue):
        if queue.topic != topic:
            raise ValueError(f"queue is one of topic {queue.topic!r}, the message goes to {topic!r}")
    elif queue is not None:
        need_int("queue", queue, 0, _INT32 - 1)
    return Place(sharding_key, queue)


def _result(reply: RemotingCommand, queue: MessageQueue, message_id: str) -> SendResult:
    ext = reply.ext
    return SendResult(
        message_id,
        ext.get("msgId", ""),
        MessageQueue(queue.topic, queue.broker_name, _number(ext.get("queueId"), queue.queue_id)),
        _number(ext.get("queueOffset"), 0),
        STORED[ResponseCode(reply.code)],
        ext.get("recallHandle", ""),
    )


def _number(text: str | None, otherwise: int) -> int:
    """A number of a reply; one that is none does not undo that the message is stored."""
    return int(text) if text and text.isascii() and text.isdigit() and len(text) < 20 else otherwise
