"""Reads one queue for a group: finds where to begin, pulls, keeps the window of what is not acknowledged.

What a pull can answer, and what is done about it:

====  ========================  ===================================================================================
 0    FOUND                     the messages go to the consumer, the next pull begins behind them
19    PULL_NOT_FOUND            nothing came while the broker held the request: pull again
20    PULL_RETRY_IMMEDIATELY    all that was looked at was filtered out: pull on behind it
21    PULL_OFFSET_MOVED         our offset does not exist (retention, a reset): go where the broker says; what is
                                open is forgotten, and the new offset is saved
24 25 SUBSCRIPTION_…            the broker does not know us (yet): heartbeat, then again
23    SUBSCRIPTION_PARSE_FAILED the expression is wrong: the consumer fails
else                            a pause, a look at the route, then again
====  ========================  ===================================================================================

Pulling stops while too much is open, because everything open is kept in memory, and because a message that is never
acknowledged holds the group's offset where it is: after a restart all from there on is repeated.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable
from functools import partial

from remoting.codes import PullSysFlag, RequestCode, ResponseCode
from remoting.command import ProtocolError, RemotingCommand
from remoting.errors import RecordError
from remoting.headers import need_long
from remoting.message import decode_record
from timewheel_client.ack_window import AckWindow
from timewheel_client.core import ClientCore, now_ms
from timewheel_client.errors import BrokerError, ClientError, NoRouteError
from timewheel_client.received import Message
from timewheel_client.routes import MessageQueue

__all__ = ["QueueReader", "ReaderSettings"]

log = logging.getLogger("timewheel_client")

SUSPEND_MS = 15_000
PULL_TIMEOUT_MS = 30_000
ERROR_PAUSE_MS = 1_000
BUSY_PAUSE_MS = 20
SAVE_SOON_MS = 100


class ReaderSettings:
    """What all readers of a consumer have in common; see `Consumer` for the meanings."""

    __slots__ = ("group", "max_open", "max_open_span", "pull_count", "saving", "start_from", "subscriptions", "version")

    def __init__(
        self, group: str, subscriptions: dict[str, str], start_from: str, pull_count: int, max_open: int
    ) -> None:
        self.group = group
        self.subscriptions = subscriptions
        self.start_from = start_from
        self.pull_count = pull_count
        self.max_open = max_open
        self.max_open_span = 2 * max_open
        self.version = now_ms()
        self.saving: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)


class QueueReader:
    """One queue that this member was given.

    Args:
        core: Connections and routes.
        settings: What all readers share.
        queue: The queue.
        tags: The tags wanted, None for all (compared as text: the broker compares hashes only).
        deliver: Takes the messages of a pull, with the window that counts them (see `holds`).
        retry: What `Message.retry` does.
        fail: Called with an error that trying again cannot mend.
    """

    def __init__(
        self,
        core: ClientCore,
        settings: ReaderSettings,
        queue: MessageQueue,
        tags: frozenset[str] | None,
        deliver: Callable[[QueueReader, AckWindow, list[Message]], None],
        retry: Callable[[Message, int], Awaitable[None]],
        fail: Callable[[ClientError], None],
    ) -> None:
        self.queue = queue
        self.dropped = False
        self._core = core
        self._settings = settings
        self._tags = tags
        self._deliver = deliver
        self._retry = retry
        self._fail = fail
        self._window: AckWindow | None = None
        self._saved: int | None = None
        self._room = asyncio.Event()
        self._room.set()
        self._task: asyncio.Task[None] | None = None
        self._saving: asyncio.Task[None] | None = None

    def start(self, pause_ms: int = 0) -> None:
        """Begin to read, after a pause in which the queue's last reader can save how far it came."""
        self._task = self._core.spawn(partial(self._run, pause_ms))

    def drop(self) -> None:
        """Stop reading: the queue goes to another member, or the consumer closes."""
        self.dropped = True
        if self._task is not None:
            self._task.cancel()

    @property
    def committed(self) -> int | None:
        """The offset below which all is done; None before the first pull."""
        return self._window.committed if self._window else None

    @property
    def open_count(self) -> int:
        """How many messages are pulled and not acknowledged."""
        return self._window.open_count if self._window else 0

    def holds(self, window: AckWindow) -> bool:
        """Whether a window still counts: False after a reset, and when the queue was given up."""
        return window is self._window and not self.dropped

    def reset(self, offset: int) -> None:
        """Go on from another offset (a command of the broker's); what is open is forgotten."""
        self._window = AckWindow(offset)
        self._saved = None
        self._room.set()
        if self._task is not None and not self.dropped:
            self._task.cancel()
            self.start()

    async def save(self) -> None:
        """Tell the broker how far the group has come, if it does not know.

        One at a time for a broker, each with its reply: a broker serves the requests of one connection with several
        threads. The older of two offsets must not be the last that it writes; and of a group's first offsets of a
        topic, those of different queues, Apache's broker forgets some that come at the same time
        (ConsumerOffsetManager.commitOffset makes the group's table twice).
        """
        if self.committed in (None, self._saved):
            return
        address = self._address()
        async with self._settings.saving[address]:
            offset = self.committed
            if offset is None or offset == self._saved:
                return
            ext = {
                "consumerGroup": self._settings.group,
                "topic": self.queue.topic,
                "queueId": str(self.queue.queue_id),
                "commitOffset": str(offset),
            }
            await self._core.ask(address, RequestCode.UPDATE_CONSUMER_OFFSET, ext, timeout_ms=2_000)
            self._saved = offset

    async def _save_soon(self) -> None:
        """Save after a moment, when nothing is open: another member may take the queue while this one waits."""
        await asyncio.sleep(SAVE_SOON_MS / 1000)
        self._saving = None
        if not self.dropped:
            try:
                await self.save()
            except ClientError as error:
                log.warning("saving the offset of %s: %s", self.queue, error)

    # -------------------------------------------------------------------------------------- inside

    def _address(self) -> str:
        route = self._core.cached_route(self.queue.topic)
        address = route.address(self.queue.broker_name) if route else None
        if address is None:
            raise NoRouteError(f"no address for broker {self.queue.broker_name} of topic {self.queue.topic}")
        return address

    async def _run(self, pause_ms: int) -> None:
        await asyncio.sleep(pause_ms / 1000)
        while not self.dropped:
            try:
                if self._window is None:
                    self._window = AckWindow(await self._find_start())
                await self._room.wait()
                await self._pull(self._window)
            except BrokerError as error:
                await self._after_error(error)
            except (ClientError, ProtocolError, RecordError) as error:
                log.warning("reading %s: %s", self.queue, error)
                self._core.refresh_soon(self.queue.topic)
                await asyncio.sleep(ERROR_PAUSE_MS / 1000)

    async def _after_error(self, error: BrokerError) -> None:
        if error.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED:
            self._fail(error)
            self.dropped = True
            return
        if error.code == ResponseCode.FLOW_CONTROL:
            await asyncio.sleep(BUSY_PAUSE_MS / 1000)
            return
        log.warning("reading %s: %s", self.queue, error)
        if error.code in (ResponseCode.SUBSCRIPTION_NOT_EXIST, ResponseCode.SUBSCRIPTION_NOT_LATEST):
            await self._core.send_heartbeats()
        self._core.refresh_soon(self.queue.topic)
        await asyncio.sleep(ERROR_PAUSE_MS / 1000)

    async def _find_start(self) -> int:
        """The group's offset, or where a group without one begins."""
        queue = self.queue
        where = {"topic": queue.topic, "queueId": str(queue.queue_id)}
        address = self._address()
        try:
            reply = await self._core.ask(
                address, RequestCode.QUERY_CONSUMER_OFFSET, {"consumerGroup": self._settings.group, **where}
            )
        except BrokerError as error:
            if error.code != ResponseCode.QUERY_NOT_FOUND:
                raise
            from_end = self._settings.start_from == "last" and not queue.topic.startswith("%RETRY%")
            code = RequestCode.GET_MAX_OFFSET if from_end else RequestCode.GET_MIN_OFFSET
            reply = await self._core.ask(address, code, where)
        return max(0, need_long(reply.ext, "offset"))

    async def _pull(self, window: AckWindow) -> None:
        settings, queue = self._settings, self.queue
        # No offset rides on a pull (COMMIT_OFFSET): a broker that handles it late would put the older one back.
        flags = PullSysFlag.SUSPEND | PullSysFlag.SUBSCRIPTION
        ext = {
            "consumerGroup": settings.group,
            "topic": queue.topic,
            "queueId": str(queue.queue_id),
            "queueOffset": str(window.next_offset),
            "maxMsgNums": str(settings.pull_count),
            "sysFlag": str(int(flags)),
            "commitOffset": "0",
            "suspendTimeoutMillis": str(SUSPEND_MS),
            "subscription": settings.subscriptions.get(queue.topic, "*"),
            "subVersion": str(settings.version),
            "expressionType": "TAG",
        }
        address = self._address()
        reply = await self._core.connections.request(address, RequestCode.PULL_MESSAGE, ext, timeout_ms=PULL_TIMEOUT_MS)
        if window is not self._window:
            return  # reset meanwhile
        if reply.code == ResponseCode.SUCCESS:
            self._take(window, reply)
        elif reply.code in (ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY):
            window.pulled((), max(window.next_offset, need_long(reply.ext, "nextBeginOffset")))
        elif reply.code == ResponseCode.PULL_OFFSET_MOVED:
            await self._move(need_long(reply.ext, "nextBeginOffset"), reply.remark)
        else:
            raise BrokerError(reply.code, reply.remark, address)

    def _take(self, window: AckWindow, reply: RemotingCommand) -> None:
        """Hand on what a pull found."""
        received_ms = now_ms()
        body, at = reply.body, 0
        messages: list[Message] = []

        def ack(message: Message) -> None:
            if window.ack(message.queue_offset):
                self._look_for_room()
                if not window.open_count and self._saving is None and not self.dropped:
                    self._saving = self._core.spawn(self._save_soon)

        while at < len(body):
            stored = decode_record(body, at)
            at += stored.size
            message = Message(stored, self.queue, received_ms, ack, self._retry)
            if stored.queue_offset >= window.next_offset and (self._tags is None or message.tags in self._tags):
                messages.append(message)
        next_offset = need_long(reply.ext, "nextBeginOffset")
        window.pulled((message.queue_offset for message in messages), next_offset)
        self._look_for_room()
        if messages:
            self._deliver(self, window, messages)

    async def _move(self, offset: int, remark: str | None) -> None:
        log.warning("%s: the broker moves us to offset %d: %s", self.queue, offset, remark)
        self._window = AckWindow(offset)
        self._saved = None
        await self.save()
        await asyncio.sleep(ERROR_PAUSE_MS / 1000)

    def _look_for_room(self) -> None:
        window, settings = self._window, self._settings
        if window is None or (window.open_count < settings.max_open and window.span < settings.max_open_span):
            self._room.set()
        else:
            self._room.clear()
