"""The service's requests to the cluster, one method each, over the client's connections and routes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from remoting.codes import PullSysFlag, RequestCode, ResponseCode
from remoting.command import ProtocolError, RemotingCommand
from remoting.headers import need_long
from remoting.messages.message import MessageError, StoredMessage, join_batch
from service.core.progress import TargetQueue, queue_text
from service.link.clock import mono_ms
from service.link.parcels import BODY_FLAGS, batch_body
from service.link.targets import BrokerBook, Targets
from timewheel_client.consuming.pulled import BadRecord, Pulled, read_pulled
from timewheel_client.net.client_core import ClientCore
from timewheel_client.net.connection import ClientConnection
from timewheel_client.net.credentials import Credentials
from timewheel_client.net.refusals import refusal_of
from timewheel_client.net.tls import Tls
from timewheel_client.net.tries import STORED, send_header
from timewheel_client.values.errors import BrokerError, ClientError, NoRouteError, NotWrittenError

__all__ = ["ClusterLink", "Fate", "Pull", "Sent"]

GROUP = "TIMEWHEEL_SERVICE"
SUSPEND_MS = 15_000
HOLD_MORE_MS = 15_000
"""By how much a broker may hold a pull longer than it was asked to: Apache looks every 5 s."""
PULL_COUNT = 1024
UNACKNOWLEDGED_MS = 800
"""The kernel gives up unacknowledged bytes after this time: less than `service.core.lease.SETTLE_MS`."""
SEND_TIMEOUT_MS = 3000
ASK_TIMEOUT_MS = 3000


class Fate(Enum):
    """The outcome of a send."""

    STORED = "stored"
    REFUSED = "refused"
    UNKNOWN = "unknown"
    UNWRITTEN = "unwritten"


_SAID = {Fate.UNKNOWN: "no answer", Fate.UNWRITTEN: "not written"}


@dataclass(frozen=True, slots=True)
class Sent:
    """The answer to a send: ``at`` is the queue offset of the stored message; ``code`` and ``remark`` of a refusal."""

    fate: Fate
    at: int = -1
    code: int = 0
    remark: str = ""

    def __str__(self) -> str:
        """The outcome for texts.

        >>> str(Sent(Fate.REFUSED, code=16, remark="no right")), str(Sent(Fate.UNKNOWN))
        ('refused (NO_PERMISSION: no right)', 'no answer (no remark)')
        """
        why = self.remark or "no remark"
        if self.fate is Fate.REFUSED:
            return f"refused ({ResponseCode(self.code).name}: {why})"
        return f"{_SAID[self.fate]} ({why})" if self.fate in _SAID else self.fate.value


@dataclass(frozen=True, slots=True)
class Pull:
    """The result of a pull: messages in order, and the next offset. ``moved``: the asked offset did not exist."""

    messages: list[StoredMessage]
    next_offset: int
    moved: bool = False
    bad: tuple[BadRecord, ...] = ()
    """Records that cannot be read, each with its queue offset."""
    end: int = -1
    """Where the queue ended then, as the broker says; -1: it does not."""
    size: int = 0
    """Bytes of the answer."""

    @property
    def reached_end(self) -> bool:
        """True if the queue had no more records than these: there are none, or the broker names this end.

        >>> Pull([], 7).reached_end, Pull([], 7, end=8).reached_end
        (True, True)
        """
        return self.next_offset == self.end or not (self.messages or self.bad)


class ClusterLink:
    """The cluster, as the service sees it; for one event loop.

    Args:
        namesrv: Name servers, ``HOST:PORT;HOST:PORT``.
        topic: The entry topic.
        credentials, tls: As of `timewheel_client.Producer`.
        member: Whether to join the group whose members share the shards.
    """

    def __init__(
        self,
        namesrv: str,
        topic: str,
        credentials: Credentials | None = None,
        tls: Tls = False,
        *,
        member: bool = True,
    ) -> None:
        self.topic = topic
        self.group = f"{GROUP}_{topic}"
        """The consumer group whose members share the shards."""
        self._account: tuple[Credentials | None, Tls] = credentials, tls
        self._member = member
        self.version = 0
        self.on_change: Callable[[], None] = lambda: None
        """Called when members of the group have come or gone."""
        self.core = ClientCore(namesrv, self._heartbeat, self._serve, self._changed, credentials, tls)
        self._book = BrokerBook()
        self.targets = Targets(self.core, lambda broker: self._book.address(broker, mono_ms()))

    def beside(self) -> ClusterLink:
        """A second link to the same cluster, with connections of its own; not started, and not a member."""
        return ClusterLink(";".join(self.core.name_servers), self.topic, *self._account, member=False)

    @property
    def signs(self) -> bool:
        """True if requests are signed with the service's account, because the cluster has access control."""
        return self._account[0] is not None

    def _changed(self) -> None:
        self._book.saw(self.core.known_masters(), mono_ms())
        self.on_change()

    def _serve(self, command: RemotingCommand) -> RemotingCommand | None:
        if command.code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED:
            self.on_change()
            return command.reply()
        return None

    def _heartbeat(self) -> dict[str, object]:
        if not self._member:
            return {"producerDataSet": [{"groupName": self.group}], "consumerDataSet": []}
        subscription = {
            "topic": self.topic,
            "subString": "*",
            "tagsSet": [],
            "codeSet": [],
            "subVersion": self.version,
            "expressionType": "TAG",
            "classFilterMode": False,
        }
        consumer = {
            "groupName": self.group,
            "consumeType": "CONSUME_PASSIVELY",
            "messageModel": "CLUSTERING",
            "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
            "subscriptionDataSet": [subscription],
            "unitMode": False,
        }
        return {"producerDataSet": [{"groupName": self.group}], "consumerDataSet": [consumer]}

    # ------------------------------------------------------------------------------------------------ where

    async def address(self, topic: str, broker: str) -> str:
        """The address of a broker that serves a topic, or its last known one. Raises NoRouteError."""
        try:
            route = await self.targets.route(topic)
        except NoRouteError:
            address = None
        else:
            address = route.brokers.get(broker, {}).get(0)
            if address is None:
                self.core.refresh_soon(topic)
        address = address or self._book.address(broker, mono_ms())
        if address is None:
            raise NoRouteError(f"no address of a master for broker {broker} of topic {topic}")
        return address

    async def connection(self, topic: str, broker: str) -> ClientConnection:
        """An open connection to a broker's master. It drops what cannot be sent in time. Raises ClientError."""
        address = await self.address(topic, broker)
        connection = await self.core.connections.get(address)
        connection.limit_unacknowledged(UNACKNOWLEDGED_MS)
        return connection

    # ------------------------------------------------------------------------------------------------ reading

    async def end(self, queue: TargetQueue) -> int:
        """The offset of the next message of a queue (its max offset). Raises ClientError."""
        return await self._offset(queue, RequestCode.GET_MAX_OFFSET)

    async def begin(self, queue: TargetQueue) -> int:
        """The offset of the first message that a queue still has (its min offset). Raises ClientError."""
        return await self._offset(queue, RequestCode.GET_MIN_OFFSET)

    async def _offset(self, queue: TargetQueue, code: int, **more: str) -> int:
        topic, broker, number = queue
        await self.connection(topic, broker)
        ext = {"topic": topic, "queueId": str(number), **more}
        reply = await self.core.ask(await self.address(topic, broker), code, ext, timeout_ms=ASK_TIMEOUT_MS)
        try:
            return max(0, need_long(reply.ext, "offset"))
        except ProtocolError as error:
            raise ClientError(f"{queue_text(queue)}, asked for an offset: {error}") from None

    async def end_before(self, queue: TargetQueue, store_ms: int) -> int:
        """The offset of the first message of a queue that was stored at this time (epoch ms) or later."""
        return await self._offset(queue, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, timestamp=str(store_ms))

    async def probe(self, topic: str, broker: str) -> None:
        """Make a broker answer a request. Raises ClientError."""
        await self.end((topic, broker, 0))

    async def pull(self, queue: TargetQueue, offset: int, *, wait: bool, count: int = PULL_COUNT) -> Pull:
        """Pull ``count`` messages at most from a queue. With ``wait`` the broker holds the pull until there is one.

        Raises ClientError.
        """
        topic, broker, number = queue
        address = await self.address(topic, broker)
        flags = PullSysFlag.SUBSCRIPTION | (PullSysFlag.SUSPEND if wait else 0)
        ext = {
            "consumerGroup": self.group,
            "topic": topic,
            "queueId": str(number),
            "queueOffset": str(offset),
            "maxMsgNums": str(count),
            "sysFlag": str(int(flags)),
            "commitOffset": "0",
            "suspendTimeoutMillis": str(SUSPEND_MS if wait else 0),
            "subscription": "*",
            "subVersion": str(self.version),
            "expressionType": "TAG",
        }
        timeout_ms = SUSPEND_MS + HOLD_MORE_MS if wait else ASK_TIMEOUT_MS
        reply = await self.core.connections.request(address, RequestCode.PULL_MESSAGE, ext, timeout_ms=timeout_ms)
        if reply.code not in (
            ResponseCode.SUCCESS,
            ResponseCode.PULL_NOT_FOUND,
            ResponseCode.PULL_RETRY_IMMEDIATELY,
            ResponseCode.PULL_OFFSET_MOVED,
        ):
            raise BrokerError(reply.code, reply.remark, address)
        try:
            next_offset = need_long(reply.ext, "nextBeginOffset")
        except ProtocolError as error:
            raise ClientError(f"{queue_text(queue)}, pulled at {offset}: {error}") from None
        end = _end_of(reply)
        if reply.code != ResponseCode.SUCCESS:
            return Pull([], next_offset, reply.code == ResponseCode.PULL_OFFSET_MOVED, end=end)
        whole = queue if topic == self.topic else None
        pull = pull_of(read_pulled(reply.body), offset, next_offset, whole)
        return replace(pull, end=end, size=len(reply.body))

    # ------------------------------------------------------------------------------------------------ writing

    def send_now(
        self,
        connection: ClientConnection,
        queue: TargetQueue,
        properties: str,
        body: bytes,
        *,
        like: StoredMessage | None = None,
        may: Callable[[], bool] | None = None,
        batch: bool = False,
    ) -> asyncio.Future[RemotingCommand]:
        """Write a send to one queue now; `fate_of` reads its outcome. ``like``: a message that gives flags and times.

        A message without a body goes as a batch of one: alone, brokers of version 5 and ours do not store it.

        ``may`` is called immediately before the system call that writes. If it returns False, nothing is written.

        Raises ClientError; then nothing was written.
        """
        topic, _, number = queue
        if not body:
            properties, body, batch = "", _batch_of_one(topic, properties, like), True
        ext = send_header(self.group, topic, properties, batch=batch)
        ext["c"] = topic  # the template for a missing topic: none, so that no broker creates the topic
        ext["e"] = str(number)
        if like is not None:
            ext["g"] = str(like.born_ms)
            if like.sys_flag or like.flag or like.reconsume_times:
                ext["f"], ext["h"] = str(like.sys_flag & BODY_FLAGS), str(like.flag)
                ext["j"] = str(like.reconsume_times)
        try:
            return connection.request_now(RequestCode.SEND_MESSAGE_V2, ext, body, timeout_ms=SEND_TIMEOUT_MS, may=may)
        except ProtocolError as error:
            raise ClientError(f"cannot be sent to {topic}: {error}") from None

    def deliver_now(
        self,
        connection: ClientConnection,
        queue: TargetQueue,
        messages: Sequence[StoredMessage],
        may: Callable[[], bool],
    ) -> asyncio.Future[RemotingCommand]:
        """Write messages to one queue in one request; several must be of one kind (`service.link.parcels`).

        The answer holds for all of them. Raises ClientError; then nothing was written.
        """
        first = messages[0]
        if len(messages) == 1:
            return self.send_now(connection, queue, first.properties, first.body, like=first, may=may)
        try:
            body = batch_body(messages)
        except MessageError as error:
            raise ClientError(f"cannot be sent to {queue[0]}: {error}") from None
        return self.send_now(connection, queue, "", body, like=first, may=may, batch=True)

    async def send(self, queue: TargetQueue, properties: str, body: bytes) -> Sent:
        """Send to one queue and wait for the outcome. Raises ClientError only if nothing was written."""
        connection = await self.connection(queue[0], queue[1])
        return await fate_of(self.send_now(connection, queue, properties, body))


def _batch_of_one(topic: str, properties: str, like: StoredMessage | None) -> bytes:
    """A batch of a message without a body. Raises ClientError."""
    try:
        return join_batch([(like.flag if like is not None else 0, b"", properties)])
    except MessageError as error:
        raise ClientError(f"cannot be sent to {topic}: {error}") from None


def _end_of(reply: RemotingCommand) -> int:
    try:
        return max(-1, need_long(reply.ext, "maxOffset"))
    except ProtocolError:
        return -1


def pull_of(pulled: Pulled, offset: int, next_offset: int, queue: TargetQueue | None = None) -> Pull:
    """Read the answer to a pull from an offset. If its rest cannot be read, the next pull begins there.

    ``queue``: each record must be of this queue, at its offset. No checksum covers these fields of a record, and a
    broker's index may point at a record of another queue. Missing records may be those that the cluster deleted.
    """
    messages: list[StoredMessage] = []
    bad: list[BadRecord] = []
    at = offset
    for number, record in enumerate(pulled.records):
        if isinstance(record, StoredMessage):
            # After it there must be room for all the others. So if none is missing, only one offset is right.
            last = max(at, next_offset - (1 if pulled.cut else len(pulled.records) - number))
            strange = queue is not None and not (
                (record.topic, record.queue_id) == (queue[0], queue[2]) and at <= record.queue_offset <= last
            )
            if strange:
                what = f"record {record.queue_offset} of queue {record.queue_id} of {record.topic!r:.60} in its place"
                bad.append(BadRecord(record.body, what, at, -1))
                at += 1
            elif record.queue_offset >= offset:
                messages.append(record)
                at = record.queue_offset + 1
        else:
            # Its head is as uncertain as the rest, but the offsets of a queue have no gaps.
            bad.append(BadRecord(record.raw, record.reason, at, record.log_offset))
            at += 1
    return Pull(messages, at if pulled.cut else next_offset, bad=tuple(bad))


async def fate_of(reply: asyncio.Future[RemotingCommand]) -> Sent:
    """The outcome of a send. Never raises ClientError."""
    try:
        answer = await reply
    except NotWrittenError as error:
        return Sent(Fate.UNWRITTEN, remark=str(error))
    except (ClientError, ProtocolError) as error:
        return Sent(Fate.UNKNOWN, remark=str(error))
    return fate_of_answer(answer)


def fate_of_answer(answer: RemotingCommand) -> Sent:
    """Read a broker's answer to a send."""
    if answer.code in STORED:
        text = answer.ext.get("queueOffset", "")
        if text.isascii() and text.isdigit() and len(text) < 20:
            return Sent(Fate.STORED, int(text))
        return Sent(Fate.UNKNOWN, remark="stored, and the answer has no queueOffset")
    code = refusal_of(answer.code, answer.remark)
    fate = Fate.UNKNOWN if code is None else Fate.REFUSED
    return Sent(fate, code=answer.code if code is None else code, remark=answer.remark or "")
