"""Reads one queue for a group: finds the first offset, pulls, and keeps the window of unacknowledged messages.

Answers to a pull, and the reader's reaction:

====  ========================  ===================================================================================
 0    FOUND                     the messages go to the consumer, the next pull begins behind them
19    PULL_NOT_FOUND            nothing came while the broker held the request: pull again
20    PULL_RETRY_IMMEDIATELY    all that was looked at was filtered out: pull on behind it
21    PULL_OFFSET_MOVED         our offset does not exist (retention, a reset): go where the broker says; what is
                                open is forgotten, and the new offset is saved
24-28 SUBSCRIPTION_… FILTER_…   the broker does not know us (yet): heartbeat, then again; after three times 27
                                (FILTER_DATA_NOT_EXIST) the SQL expression must be wrong: the consumer fails
23    SUBSCRIPTION_PARSE_FAILED the expression is wrong: the consumer fails
 1    "does not support …"      the broker knows no SQL92: the consumer fails
else                            a pause, a look at the route, then again
====  ========================  ===================================================================================

Pulling pauses while too many messages are open. They are kept in memory; and a message that is never acknowledged holds
the group's offset, so that after a restart all later messages are repeated.

A record that cannot be read is pulled once more, alone, in case it was damaged on its way; the messages beside it have
been delivered already. If it still cannot be read, an error is logged, ``on_undecodable`` gets it (see `Consumer`), and
reading continues behind it, one record at a time until one can be read.

A broker with a damaged store may answer every pull at once with nothing to read, and would then be asked thousands of
times a second. So from the third such answer in a row on there is a pause before the next pull, up to
`FRUITLESS_PAUSE_MS` (`BUSY_PAUSE_MS` if all messages were filtered out).

If a group without an offset begins at the end, that offset is saved before the first pull. Otherwise, if the group's
first member dies before it saves an offset, the next start would skip the messages sent in between.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

from remoting.codes import PullSysFlag, RequestCode, ResponseCode
from remoting.command import ProtocolError, RemotingCommand
from remoting.headers import need_long
from remoting.messages.message import StoredMessage
from timewheel_client.consuming.ack_window import AckWindow
from timewheel_client.consuming.pulled import BadRecord, UndecodableMessage, read_pulled
from timewheel_client.consuming.reader_settings import OnUndecodable, ReaderSettings
from timewheel_client.consuming.received import ReceivedMessage
from timewheel_client.net.client_core import ClientCore, now_ms
from timewheel_client.values.errors import BrokerError, ClientError, NoRouteError
from timewheel_client.values.log import log
from timewheel_client.values.routes import MessageQueue

__all__ = ["QueueReader"]


SUSPEND_MS = 15_000
PULL_TIMEOUT_MS = 30_000
ERROR_PAUSE_MS = 1_000
BUSY_PAUSE_MS = 20
FRUITLESS_PAUSE_MS = 100
"""Pause after an unreadable record: a damaged stretch of a thousand takes less than two minutes."""
FRUITLESS_IN_A_ROW = 3
MOST_WITHOUT_FILTER = 3
SAVE_SOON_MS = 100
SAVE_TIMEOUT_MS = 2_000


_UNKNOWN_TO_BROKER = {
    ResponseCode.SUBSCRIPTION_NOT_EXIST,
    ResponseCode.SUBSCRIPTION_NOT_LATEST,
    ResponseCode.FILTER_DATA_NOT_EXIST,
    ResponseCode.FILTER_DATA_NOT_LATEST,
}


class QueueReader:
    """One queue that this member was given.

    Args:
        core: Connections and routes.
        settings: Settings that all readers share.
        queue: The queue.
        deliver: Gets the messages of a pull, with the window that counts them (see `holds`).
        retry: Carries out `ReceivedMessage.retry`.
        fail: Called with an error that another try cannot fix.
    """

    def __init__(
        self,
        core: ClientCore,
        settings: ReaderSettings,
        queue: MessageQueue,
        deliver: Callable[[QueueReader, AckWindow, list[ReceivedMessage]], None],
        retry: Callable[[ReceivedMessage, int], Awaitable[None]],
        fail: Callable[[ClientError], None],
    ) -> None:
        self.queue = queue
        self.dropped = False
        self.settled = asyncio.Event()
        self._core = core
        self._settings = settings
        self._subscription = settings.subscriptions[queue.topic]
        tags = self._subscription.tags  # compared as text: the broker compares hashes only
        self._tags = None if tags is None else frozenset(tags)
        self._deliver = deliver
        self._retry = retry
        self._fail = fail
        self._window: AckWindow | None = None
        self._saved: int | None = None
        self._room = asyncio.Event()
        self._room.set()
        self._task: asyncio.Task[None] | None = None
        self._saving: asyncio.Task[None] | None = None
        self._without_filter = 0
        self._fruitless = 0  # immediate answers in a row without anything to read
        self._alone = False  # whether to pull one message only, because the last pull had an unreadable record

    def start(self, pause_ms: int = 0) -> None:
        """Begin to read, after a pause in which the queue's last reader can save its offset."""
        self._task = self._core.spawn(partial(self._run, pause_ms))

    def drop(self) -> None:
        """Stop reading: the queue goes to another member, or the consumer closes."""
        self.dropped = True
        self.settled.set()
        if self._task is not None:
            self._task.cancel()

    @property
    def committed(self) -> int | None:
        """The offset below which all messages are done; None before the first pull."""
        return self._window.committed if self._window else None

    @property
    def open_count(self) -> int:
        """Number of messages that are pulled and not acknowledged."""
        return self._window.open_count if self._window else 0

    def holds(self, window: AckWindow) -> bool:
        """True if a window still counts: not after a reset, nor when the queue was given up."""
        return window is self._window and not self.dropped

    def reset(self, offset: int) -> None:
        """Continue at another offset, as the broker ordered; open messages are forgotten."""
        self._window = AckWindow(offset)
        self._saved = None
        self._room.set()
        if self._task is not None and not self.dropped:
            self._task.cancel()
            self.start()

    async def save(self) -> None:
        """Save the group's offset at the broker, if it has changed.

        Offsets are saved one at a time for each broker, waiting for each reply, for two reasons. A broker serves one
        connection with several threads, so an older offset could otherwise be written after a newer one. And if a
        group's first offsets of a topic come at the same time for several queues, Apache's broker forgets some of them
        (ConsumerOffsetManager.commitOffset creates the group's table twice).
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
            await self._core.ask(address, RequestCode.UPDATE_CONSUMER_OFFSET, ext, timeout_ms=SAVE_TIMEOUT_MS)
            self._saved = offset

    async def _save_soon(self) -> None:
        """Save the offset soon after the last open message is done, in case another member takes the queue."""
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
                    await self._begin()
                    continue
                self.settled.set()
                await self._room.wait()
                await self._pull(self._window)
            except BrokerError as error:
                await self._after_error(error)
            except (ClientError, ProtocolError) as error:
                log.warning("reading %s: %s", self.queue, error)
                self._core.refresh_soon(self.queue.topic)
                await asyncio.sleep(ERROR_PAUSE_MS / 1000)
            except Exception:  # if the reader ended, nobody would read the queue
                log.exception("reading %s: this should not happen; it goes on", self.queue)
                await asyncio.sleep(ERROR_PAUSE_MS / 1000)

    async def _begin(self) -> None:
        """Find where to begin; a group's first offset is saved at once."""
        offset, is_first = await self._find_start()
        if self._window is not None:
            return  # reset meanwhile
        window = self._window = AckWindow(offset)
        if is_first and self._settings.start_from == "last":
            try:
                await self.save()
            except BaseException:
                if self._window is window:
                    self._window = None  # nothing was pulled: find the offset again, or be cancelled
                raise

    async def _after_error(self, error: BrokerError) -> None:
        if error.code == ResponseCode.FILTER_DATA_NOT_EXIST:
            self._without_filter += 1
        no_sql = self._subscription.kind != "TAG" and "does not support" in error.remark
        wrong_sql = self._without_filter >= MOST_WITHOUT_FILTER
        if error.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED or no_sql or wrong_sql:
            self._fail(error)
            self.dropped = True
            self.settled.set()
            return
        if error.code == ResponseCode.FLOW_CONTROL:
            await asyncio.sleep(BUSY_PAUSE_MS / 1000)
            return
        log.warning("reading %s: %s", self.queue, error)
        if error.code in _UNKNOWN_TO_BROKER:
            await self._core.send_heartbeats()
        self._core.refresh_soon(self.queue.topic)
        await asyncio.sleep(ERROR_PAUSE_MS / 1000)

    async def _find_start(self) -> tuple[int, bool]:
        """Return the group's offset, or the start of a group without one; and whether the broker may have saved none.

        A broker answers 0 for a queue that is still young, although nothing is saved.
        """
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
            return max(0, need_long(reply.ext, "offset")), True
        offset = max(0, need_long(reply.ext, "offset"))
        return offset, offset == 0

    async def _pull(self, window: AckWindow) -> None:
        settings, queue = self._settings, self.queue
        # A pull does not commit an offset (COMMIT_OFFSET): if handled late, it would restore an older one.
        # An SQL expression goes with the heartbeat only: Apache's broker ignores an invalid one in a pull.
        flags = PullSysFlag.SUSPEND
        if self._subscription.kind == "TAG":
            flags |= PullSysFlag.SUBSCRIPTION
        ext = {
            "consumerGroup": settings.group,
            "topic": queue.topic,
            "queueId": str(queue.queue_id),
            "queueOffset": str(window.next_offset),
            "maxMsgNums": "1" if self._alone else str(settings.pull_count),
            "sysFlag": str(int(flags)),
            "commitOffset": "0",
            "suspendTimeoutMillis": str(SUSPEND_MS),
            "subscription": self._subscription.expression,
            "subVersion": str(settings.version),
            "expressionType": self._subscription.kind,
        }
        address = self._address()
        clock = asyncio.get_running_loop().time
        asked, offset = clock(), window.next_offset
        reply = await self._core.connections.request(address, RequestCode.PULL_MESSAGE, ext, timeout_ms=PULL_TIMEOUT_MS)
        if window is not self._window:
            return  # reset meanwhile
        if reply.code == ResponseCode.SUCCESS or reply.code == ResponseCode.PULL_NOT_FOUND:
            self._without_filter = 0
        quick = clock() - asked < BUSY_PAUSE_MS / 1000
        if reply.code == ResponseCode.SUCCESS:
            self._fruitless = 0 if self._take(window, reply) else self._fruitless + 1
            if window.next_offset == offset and not self._alone:
                raise ProtocolError(
                    f"the broker says FOUND at offset {offset}, but sends no message and no next offset"
                )
        elif reply.code in (ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY):
            window.pulled((), max(window.next_offset, need_long(reply.ext, "nextBeginOffset")))
            moved = window.next_offset - offset
            self._fruitless = self._fruitless + 1 if quick and 0 < moved < self._settings.pull_count else 0
            if window.next_offset == offset and quick:
                await asyncio.sleep(BUSY_PAUSE_MS / 1000)  # it does not hold pulls
        elif reply.code == ResponseCode.PULL_OFFSET_MOVED:
            await self._move(need_long(reply.ext, "nextBeginOffset"), reply.remark)
        else:
            raise BrokerError(reply.code, reply.remark, address)
        more = self._fruitless - FRUITLESS_IN_A_ROW
        if more >= 0:
            most = FRUITLESS_PAUSE_MS if reply.code == ResponseCode.SUCCESS else BUSY_PAUSE_MS
            await asyncio.sleep(min(most, 1 << min(more, 20)) / 1000)

    def _take(self, window: AckWindow, reply: RemotingCommand) -> bool:
        """Deliver the messages of a pull; return whether there was something to read."""
        pulled = read_pulled(reply.body)
        messages: list[ReceivedMessage] = []
        bad: list[UndecodableMessage] = []
        at, next_offset, again = window.next_offset, need_long(reply.ext, "nextBeginOffset"), False
        readable = False
        for record in pulled.records:
            if isinstance(record, BadRecord):
                if not self._alone:
                    again = True  # once more, and alone
                    break
                bad.append(self._undecodable(record, at, next_offset))
                at = bad[-1].queue_offset + 1
            elif record.queue_offset >= at:
                at, readable = record.queue_offset + 1, True
                message = self._message(window, record)
                if self._tags is None or message.tags in self._tags:
                    messages.append(message)
        if again or pulled.cut:
            next_offset = at
        self._alone = again or bool(bad)
        kept = [] if self._settings.on_undecodable is None else bad
        offsets = sorted([*(one.queue_offset for one in messages), *(one.queue_offset for one in kept)])
        window.pulled(offsets, max(at, next_offset))
        self._look_for_room()
        for one in bad:
            self._report(window, one)
        if messages:
            self._deliver(self, window, messages)
        return readable

    def _message(self, window: AckWindow, stored: StoredMessage) -> ReceivedMessage:
        return ReceivedMessage(
            stored, self.queue, now_ms(), partial(self._ack, window), self._retry, self._settings.max_body_bytes
        )

    def _ack(self, window: AckWindow, message: ReceivedMessage | UndecodableMessage) -> None:
        if window.ack(message.queue_offset):
            self._look_for_room()
            if not window.open_count and self._saving is None and not self.dropped:
                self._saving = self._core.spawn(self._save_soon)

    def _undecodable(self, record: BadRecord, at: int, next_offset: int) -> UndecodableMessage:
        """Describe a record that cannot be read; its offset comes from its head, if plausible."""
        offset = record.queue_offset if at <= record.queue_offset < next_offset else at
        return UndecodableMessage(self.queue, offset, record.log_offset, record.reason, record.raw)

    def _report(self, window: AckWindow, bad: UndecodableMessage) -> None:
        """Log that a message is lost for the application, and give it the bytes."""
        handler = self._settings.on_undecodable
        log.error(
            "%s: the message at offset %d (log offset %d, %d bytes) cannot be read and is %s: %s",
            bad.queue,
            bad.queue_offset,
            bad.log_offset,
            len(bad.raw),
            "skipped" if handler is None else "handed to on_undecodable",
            bad.reason,
        )
        if handler is not None:
            self._core.spawn(partial(self._hand_over, handler, window, bad))

    async def _hand_over(self, handler: OnUndecodable, window: AckWindow, bad: UndecodableMessage) -> None:
        """Acknowledge it once the application has handled it; after an error, which the task logs, it stays open."""
        await handler(bad)
        self._ack(window, bad)

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
