"""Check-backs: producers are asked about undecided half messages several times, then the messages are given up.

Every ``transactionCheckInterval`` all half messages older than ``transactionTimeOut`` (or than their own
CHECK_IMMUNITY_TIME_IN_SECONDS) are checked. If one had fewer than ``transactionCheckMax`` checks,
CHECK_TRANSACTION_STATE (39) goes to one of the live producers of its group, in turn; the answer is an END_TRANSACTION.
Otherwise, or when it is older than ``fileReservedTime``, it goes to TRANS_CHECK_MAX_TIME_TOPIC. All this is as on
Apache's broker, and so is that a round counts even if no producer of the group is connected.

Unlike Apache's broker, ours leaves the half message where it is, so that the offsets its producer knows stay valid. The
count is in the log (an op message for up to `SLICE` of them) before a producer is asked, so that no crash loses it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from broker.net.channel import MemoryChannel
from broker.transactions.transaction_messages import check_body, check_due_ms, checks_before, op_message
from remoting.codes import FLAG_ONEWAY, RequestCode
from remoting.command import RemotingCommand
from remoting.messages.message import MessageError, RecordError, StoredMessage, decode_record, message_id
from remoting.messages.properties import PGROUP, REAL_TOPIC, UNIQ_KEY, get_property
from store.disk.errors import StoreError
from store.half_messages import CHECKED, DISCARD_TOPIC, HALF_TOPIC, OP_TOPIC, HalfMessages
from store.put.plugin_api import PutResult, PutStatus

if TYPE_CHECKING:
    from broker.net.channel import Channel
    from broker.net.clients import ClientInfo
    from broker.net.dispatcher import Dispatcher
    from broker.tables.offsets import ConsumerOffsets
    from broker.transactions.transaction_processor import TransactionProcessor
    from broker.turns.turn import Turn
    from store.message_store import MessageStore

__all__ = ["SLICE", "TRANSACTIONS_GROUP", "CheckRules", "TransactionChecks"]

_LOG = logging.getLogger(__name__)
TRANSACTIONS_GROUP = "CID_RMQ_SYS_TRANS"
"""The group under which Apache's broker keeps its offsets in the two topics."""
SLICE = 64
_BUSY_MS = 200
_IDLE_MS = 1_000
_STORED = (PutStatus.PUT_OK, PutStatus.FLUSH_DISK_TIMEOUT)
_NOBODY = MemoryChannel()
_UNASKED = RemotingCommand(RequestCode.CHECK_TRANSACTION_STATE, 0, FLAG_ONEWAY)
_FOUND = list[tuple[int, bytes | None]]


class CheckRules:
    """The settings of a moment: ``timeout_ms``, ``check_max``, ``interval_ms`` and ``reserved_ms``."""

    __slots__ = ("check_max", "interval_ms", "reserved_ms", "timeout_ms")

    def __init__(self, timeout_ms: int, check_max: int, interval_ms: int, reserved_ms: int) -> None:
        self.timeout_ms = timeout_ms
        self.check_max = check_max
        self.interval_ms = interval_ms
        self.reserved_ms = reserved_ms


class TransactionChecks:
    """Sends the checks. Only the network loop uses it; `run` reads records in another thread, `step` in this one.

    Args:
        store: Where half messages are read.
        turn: Where messages are gathered.
        halves: What is undecided.
        offsets: Gets the offsets that an Apache broker would go on from.
        producers: Connected producers: group to channel to client.
        dispatcher: Pushes the requests.
        transactions: Decides.
        rules: Reads the settings.
        broker_name: Goes with each request.
        may_see: Whether a producer may be shown a message for a topic.
    """

    def __init__(
        self,
        *,
        store: MessageStore,
        turn: Turn,
        halves: HalfMessages,
        offsets: ConsumerOffsets,
        producers: Mapping[str, Mapping[Channel, ClientInfo]],
        dispatcher: Dispatcher,
        transactions: TransactionProcessor,
        rules: Callable[[], CheckRules],
        broker_name: str,
        may_see: Callable[[ClientInfo, str], bool] = lambda *_: True,
    ) -> None:
        self._store = store
        self._turn = turn
        self._halves = halves
        self._offsets = offsets
        self._producers = producers
        self._dispatcher = dispatcher
        self._transactions = transactions
        self._rules = rules
        self._broker_name = broker_name
        self._may_see = may_see
        self._next_ms: int | None = None
        self._turn_of = 0
        self.sent_count = 0
        self.unsent_count = 0
        """Checks for which no producer of the group was connected."""

    # ------------------------------------------------------------------------------------------ rounds

    async def run(self, now_ms: Callable[[], int]) -> None:
        """Do a round if one is due, and publish the changes; to be called every `rest_ms`."""
        if self._is_time(now_ms()):
            for numbers in self._slices(now_ms()):
                found = await asyncio.to_thread(self._read, numbers)
                self._check(found, now_ms())
        self.publish(now_ms())

    @property
    def rest_ms(self) -> int:
        """ms until `run` should be called again: long while no transaction is open."""
        rare = not self._halves.undecided and self._rules().interval_ms >= 10 * _IDLE_MS
        return _IDLE_MS if rare else _BUSY_MS

    def step(self, now_ms: int) -> None:
        """Do the same without another thread."""
        if self._is_time(now_ms):
            for numbers in self._slices(now_ms):
                self._check(self._read(numbers), now_ms)
        self.publish(now_ms)

    def _is_time(self, now_ms: int) -> bool:
        interval_ms = self._rules().interval_ms
        if self._next_ms is None:
            self._next_ms = now_ms + interval_ms
        if now_ms < self._next_ms <= now_ms + interval_ms:
            return False
        self._next_ms = now_ms + interval_ms
        return True

    def _slices(self, now_ms: int) -> Iterator[list[int]]:
        self._halves.follow()
        due = self._halves.due(now_ms)
        for at in range(0, len(due), SLICE):
            yield due[at : at + SLICE]

    def publish(self, now_ms: int, force: bool = False) -> None:
        """Give changes to the next checkpoint, and to Apache's offset file what the last checkpoint made durable."""
        if self._halves.publish(now_ms, force):
            self._store.checkpoint.touch()
        offsets = self._halves.take_durable()
        if offsets is not None:
            for topic, offset in zip((HALF_TOPIC, OP_TOPIC), offsets, strict=True):
                self._offsets.commit(TRANSACTIONS_GROUP, topic, 0, offset)

    def _read(self, numbers: Sequence[int]) -> _FOUND:
        """Read the records of some undecided messages (any thread)."""
        found: _FOUND = []
        for number in numbers:
            half = self._halves.undecided.get(number)
            try:
                found.append((number, b"" if half is None else self._store.read_record(half.offset)))
            except StoreError as error:
                _LOG.error("half message %d cannot be read now: %s", number, error)
                found.append((number, b""))
        return found

    # ------------------------------------------------------------------------------------------ one slice

    def _check(self, found: _FOUND, now_ms: int) -> None:
        """Check some undecided messages: wait, ask, or give up."""
        rules = self._rules()
        asked: list[StoredMessage] = []
        for number, record in found:
            half = self._halves.undecided.get(number)
            if half is None:
                continue
            if record == b"" or self._transactions.is_deciding(number):
                self._halves.look_again(number, now_ms + 1)
                continue
            try:
                if record is None:
                    raise RecordError(f"no whole and valid record at {half.offset}")
                stored = decode_record(record)
            except RecordError as error:
                self._halves.give_up(number, str(error))
                continue
            stored.queue_offset = number  # what the record says has no checksum: it may be another message's
            half.checks = max(half.checks, checks_before(stored))
            due_ms = check_due_ms(stored.properties, stored.born_ms, rules.timeout_ms, now_ms)
            # Otherwise an endless immunity would keep the log for ever.
            due_ms = min(due_ms, stored.store_ms + rules.reserved_ms + 1)
            given_up = half.checks >= max(1, rules.check_max) or now_ms - stored.store_ms > rules.reserved_ms
            self._halves.look_again(number, now_ms + 1 if given_up else max(due_ms, now_ms + 1))
            if given_up:
                self._give_up(stored, now_ms)
            elif due_ms <= now_ms:
                asked.append(stored)
        if asked:
            self._ask(asked, now_ms)

    def _ask(self, asked: list[StoredMessage], now_ms: int) -> None:
        """Count a check of some messages, and when that is stored, ask."""
        numbers = [stored.queue_offset for stored in asked]
        op = op_message(CHECKED, numbers, self._store.store_host, now_ms)

        def answer(results: list[PutResult]) -> None:
            if results[0].status in _STORED:
                self._halves.apply(results[0].queue_offset, CHECKED, numbers)
                for stored in asked:
                    self._send(stored)

        self._turn.put_request(_NOBODY, _UNASKED, [op], answer, now_ms)

    def _send(self, stored: StoredMessage) -> None:
        half = self._halves.undecided.get(stored.queue_offset)
        if half is None:
            return
        group = get_property(stored.properties, PGROUP) or ""
        channel = self._producer(group, get_property(stored.properties, REAL_TOPIC) or HALF_TOPIC)
        if channel is None:
            self.unsent_count += 1
            _LOG.warning("no producer of group %s to ask about half message %d", group, stored.queue_offset)
            return
        key = get_property(stored.properties, UNIQ_KEY) or ""
        ext = {
            "topic": HALF_TOPIC,
            "tranStateTableOffset": str(stored.queue_offset),
            "commitLogOffset": str(stored.offset),
            "msgId": key,
            "transactionId": key,
            "offsetMsgId": message_id(stored.store_host, stored.offset),
            "bname": self._broker_name,
        }
        try:
            body = check_body(stored, half.checks)
        except (MessageError, RecordError) as error:
            _LOG.error("half message %d cannot be shown to its producer: %s", stored.queue_offset, error)
            return
        self.sent_count += 1
        self._dispatcher.tell(channel, RequestCode.CHECK_TRANSACTION_STATE, ext, body)

    def _producer(self, group: str, topic: str) -> Channel | None:
        """The next of a group's live producers, in turn; of those who may write the topic."""
        members = self._producers.get(group, {})
        channels = [
            channel for channel, client in members.items() if not channel.closed and self._may_see(client, topic)
        ]
        if not channels:
            return None
        self._turn_of += 1
        return channels[self._turn_of % len(channels)]

    def _give_up(self, stored: StoredMessage, now_ms: int) -> None:
        number = stored.queue_offset
        checks = self._halves.undecided[number].checks
        try:
            if not self._transactions.give_up(stored, now_ms):
                return  # it is looked at again at once
        except StoreError as error:
            _LOG.error("half message %d cannot be given up now: %s", number, error)
            return
        text = "half message %d for %s, checked %d times, is given up and goes to %s"
        _LOG.warning(text, number, get_property(stored.properties, REAL_TOPIC), checks, DISCARD_TOPIC)

    def runtime_info(self) -> dict[str, str]:
        """Figures for GET_BROKER_RUNTIME_INFO."""
        return {
            "transactionChecksSent": str(self.sent_count),
            "transactionChecksUnsent": str(self.unsent_count),
        }
