"""Sending: now, at an instant, after a delay, by level; one by one, in batches, or without waiting for the reply.

Example::

    async with Producer("127.0.0.1:9876") as producer:
        await producer.send("orders", b"now")
        await producer.send("orders", b"at ten", at=datetime(2030, 1, 1, 10, tzinfo=UTC))
        await producer.send("orders", b"in 47 minutes", delay=timedelta(minutes=47), tags="reminder")

Many sends may be in flight on one producer (`asyncio.gather`); they share one connection for each broker, and what
one turn of the event loop sends goes out as one write.

A send that fails is tried again, at another broker where there is one, when the connection broke, when no reply came
in time, or when the reply's code says that another broker may do better (those for which Apache's producer does so).
After a broken connection or a timeout the first try may have been stored: the message may come twice, with the same
``message_id``.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Self

from remoting.codes import RequestCode, ResponseCode
from remoting.command import ProtocolError, RemotingCommand
from remoting.errors import MessageError
from remoting.message import join_batch
from remoting.properties import SHARDING_KEY, with_property
from timewheel_client.core import ClientCore, now_ms
from timewheel_client.credentials import credentials_of
from timewheel_client.delivery_time import At, Delay
from timewheel_client.errors import (
    ClientError,
    ConnectionFailedError,
    NoRouteError,
    RequestTimeoutError,
    SendError,
)
from timewheel_client.routes import DEFAULT_QUEUES, DEFAULT_TOPIC, MessageQueue, TopicRoute, queue_for_key
from timewheel_client.unique_id import UniqueIds
from timewheel_client.values import BatchMessage, SendResult, as_body, properties_text

__all__ = ["RETRY_CODES", "Producer", "send_header"]

RETRY_CODES = frozenset(
    {
        ResponseCode.SYSTEM_ERROR,
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.NO_PERMISSION,
        ResponseCode.TOPIC_NOT_EXIST,
        204,
        205,
    }
)
"""Codes after which another broker is tried (DefaultMQProducer.retryResponseCodes of 5.x, and SYSTEM_BUSY)."""

RETRY_PAUSE_MS = 100
_STORED = {
    ResponseCode.SUCCESS: "SEND_OK",
    ResponseCode.FLUSH_DISK_TIMEOUT: "FLUSH_DISK_TIMEOUT",
    ResponseCode.SLAVE_NOT_AVAILABLE: "SLAVE_NOT_AVAILABLE",
    ResponseCode.FLUSH_SLAVE_TIMEOUT: "FLUSH_SLAVE_TIMEOUT",
}
_DEFAULT_QUEUES_TEXT = str(DEFAULT_QUEUES)


class Producer:
    """Sends messages; for one event loop.

    Args:
        namesrv: Name servers: ``"HOST:PORT;HOST:PORT"`` or a sequence of ``"HOST:PORT"``.
        group: Name of the producer group, for the broker's lists.
        timeout_ms: How long a send may take, all its tries together.
        attempt_timeout_ms: How long one try may take.
        attempts: How many tries a send has; a send to a given queue or by key has one.
        access_key, secret_key: The account to sign requests as, for brokers with access control; both or neither.

    Raises ValueError for a bad address. Entering raises ConnectionFailedError when no name server can be reached.
    """

    def __init__(
        self,
        namesrv: str | Sequence[str],
        *,
        group: str = "PYTHON_PRODUCER",
        timeout_ms: int = 10_000,
        attempt_timeout_ms: int = 3_000,
        attempts: int = 3,
        access_key: str | None = None,
        secret_key: str | None = None,
    ) -> None:
        self._group = group
        self._timeout_ms = timeout_ms
        self._attempt_timeout_ms = attempt_timeout_ms
        self._attempts = attempts
        self._core = ClientCore(namesrv, self._heartbeat, credentials=credentials_of(access_key, secret_key))
        self._turn = itertools.count(random.randrange(1 << 16))
        self._ids = UniqueIds()

    async def start(self) -> Self:
        """Connect; the same as entering ``async with``."""
        await self._core.start()
        self._ids = UniqueIds(self._core.local_host)
        return self

    async def close(self) -> None:
        """Leave the group and close the connections; sends in flight fail."""
        if self._core.is_open:
            ext = {"clientID": self._core.client_id, "producerGroup": self._group}
            for address in self._core.broker_addresses():
                try:
                    await self._core.ask(address, RequestCode.UNREGISTER_CLIENT, ext, timeout_ms=1_000)
                except ClientError:
                    pass  # it finds out by the closed connection
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
            at: Deliver at this instant: a datetime (without zone: local time) or epoch milliseconds.
            delay: Deliver after this span: a timedelta or seconds.
            level: Deliver after this fixed delay of the broker, 1 to 18.
            tags: One tag; consumers choose by it.
            keys: What it can be looked up by: a text with blanks between keys, or several texts.
            properties: Further properties.
            sharding_key: Messages with the same key go to the same queue, in order.
            queue: This queue, or the queue with this number of the first broker by name.
            flag: A number that travels along (int32).

        Raises SendError (with the broker's code and remark), NoRouteError, ConnectionFailedError, RequestTimeoutError;
        ValueError or TypeError for arguments that cannot be sent.
        """
        unique_id = self._ids.make()
        text = properties_text(unique_id, tags, keys, properties, at, delay, level)
        if sharding_key is not None:
            text = _with_key(text, sharding_key)
        ext = send_header(self._group, topic, text, flag=flag)
        code = RequestCode.SEND_MESSAGE_V2
        reply, chosen = await self._send(topic, code, ext, as_body(body), sharding_key, queue)
        return _result(reply, chosen, (properties or {}).get("UNIQ_KEY", unique_id))

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

        Arguments as for `send`. Returns the message id.
        """
        unique_id = self._ids.make()
        text = properties_text(unique_id, tags, keys, properties, at, delay, level)
        if sharding_key is not None:
            text = _with_key(text, sharding_key)
        ext = send_header(self._group, topic, text, flag=flag)
        self._core.require_open()
        route = await self._core.route_to_write(topic)
        chosen, address = self._choose(route, sharding_key, queue, None)
        ext["e"] = str(chosen.queue_id)
        await self._core.connections.oneway(address, RequestCode.SEND_MESSAGE_V2, ext, as_body(body))
        return (properties or {}).get("UNIQ_KEY", unique_id)

    async def send_batch(
        self,
        topic: str,
        messages: Sequence[BatchMessage | bytes | str],
        *,
        sharding_key: str | None = None,
        queue: MessageQueue | int | None = None,
    ) -> list[SendResult]:
        """Send several messages as one request to one queue: all are stored, or none. One result for each.

        A whole batch must stay below the broker's limit for one message (4 MiB by default). Raises as `send` does.
        """
        if not messages:
            return []
        elements: list[tuple[int, bytes, str]] = []
        ids: list[str] = []
        for message in messages:
            one = message if isinstance(message, BatchMessage) else BatchMessage(message)
            unique_id = self._ids.make()
            text = properties_text(unique_id, one.tags, one.keys, one.properties, one.at, one.delay)
            if sharding_key is not None:
                text = _with_key(text, sharding_key)
            elements.append((0, as_body(one.body), text))
            ids.append(one.properties.get("UNIQ_KEY", unique_id))
        try:
            body = join_batch(elements)
        except MessageError as error:
            raise ValueError(str(error)) from None
        ext = send_header(self._group, topic, "", batch=True)
        reply, chosen = await self._send(topic, RequestCode.SEND_BATCH_MESSAGE, ext, body, sharding_key, queue)
        first = _result(reply, chosen, "")
        offset_ids = first.offset_message_id.split(",")
        if len(offset_ids) != len(ids):
            offset_ids = [first.offset_message_id] * len(ids)
        return [
            SendResult(ids[index], offset_ids[index], chosen, first.queue_offset + index, first.status)
            for index in range(len(ids))
        ]

    async def queues(self, topic: str) -> list[MessageQueue]:
        """The queues of a topic that can be written to, for the ``queue`` argument; raises NoRouteError."""
        self._core.require_open()
        return list((await self._core.route_to_write(topic)).write_queues)

    # -------------------------------------------------------------------------------------- inside

    def _heartbeat(self) -> dict[str, object]:
        return {"producerDataSet": [{"groupName": self._group}], "consumerDataSet": []}

    async def _send(
        self,
        topic: str,
        code: int,
        ext: dict[str, str],
        body: bytes,
        sharding_key: str | None,
        queue: MessageQueue | int | None,
    ) -> tuple[RemotingCommand, MessageQueue]:
        """Try until a broker stores it, the tries or the time are used up, or trying again is no use."""
        self._core.require_open()
        clock = asyncio.get_running_loop().time
        deadline = clock() + self._timeout_ms / 1000
        tries = self._attempts if sharding_key is None and queue is None else 1
        avoid: str | None = None
        pause_s = 0.0
        while True:
            tries -= 1
            try:
                route = await self._core.route_to_write(topic)
                chosen, address = self._choose(route, sharding_key, queue, avoid)
                avoid = chosen.broker_name
                ext["e"] = str(chosen.queue_id)
                left_ms = int((deadline - clock()) * 1000)
                reply = await self._core.connections.request(
                    address, code, ext, body, timeout_ms=max(1, min(self._attempt_timeout_ms, left_ms))
                )
                if reply.code in _STORED:
                    if route.is_template:
                        self._core.refresh_soon(topic)  # now it exists, maybe with other queues
                    return reply, chosen
                error: ClientError = SendError(reply.code, reply.remark, address)
                again = reply.code in RETRY_CODES
            except (ConnectionFailedError, RequestTimeoutError) as failure:
                error, again = failure, True
            except ProtocolError as failure:
                raise ValueError(f"cannot be sent: {failure}") from None
            if not again or tries <= 0 or clock() >= deadline:
                raise error
            self._core.refresh_soon(topic)
            pause_s += RETRY_PAUSE_MS / 1000
            await asyncio.sleep(pause_s)

    def _choose(
        self, route: TopicRoute, sharding_key: str | None, queue: MessageQueue | int | None, avoid: str | None
    ) -> tuple[MessageQueue, str]:
        """Choose a queue: the given one, the key's, or the next in turn, away from a broker that just failed."""
        queues = route.write_queues
        if not queues:
            raise NoRouteError(f"no broker of topic {route.topic} accepts writes")
        if isinstance(queue, MessageQueue):
            chosen = queue
        elif queue is not None:
            chosen = MessageQueue(route.topic, queues[0].broker_name, queue)
        elif sharding_key is not None:
            chosen = queue_for_key(queues, sharding_key)
        else:
            if avoid is not None:
                queues = tuple(other for other in queues if other.broker_name != avoid) or queues
            chosen = queues[next(self._turn) % len(queues)]
        address = route.address(chosen.broker_name)
        if address is None:
            raise NoRouteError(f"no address for broker {chosen.broker_name} of topic {route.topic}")
        return chosen, address


def send_header(
    group: str, topic: str, properties: str, *, flag: int = 0, batch: bool = False, reconsume_times: int = 0
) -> dict[str, str]:
    """Write the header fields of a send (310, 320) but for ``e``, the queue id."""
    ext = {
        "a": group,
        "b": topic,
        "c": DEFAULT_TOPIC,
        "d": _DEFAULT_QUEUES_TEXT,
        "e": "0",
        "f": "0",
        "g": str(now_ms()),
        "h": str(flag),
        "i": properties,
        "j": str(reconsume_times),
        "k": "false",
    }
    if batch:
        ext["m"] = "true"
    return ext


def _with_key(properties: str, sharding_key: str) -> str:
    try:
        return with_property(properties, SHARDING_KEY, sharding_key)
    except MessageError as error:
        raise ValueError(str(error)) from None


def _result(reply: RemotingCommand, queue: MessageQueue, message_id: str) -> SendResult:
    ext = reply.ext
    return SendResult(
        message_id,
        ext.get("msgId", ""),
        MessageQueue(queue.topic, queue.broker_name, int(ext.get("queueId", queue.queue_id))),
        int(ext.get("queueOffset", 0)),
        _STORED[ResponseCode(reply.code)],
    )
