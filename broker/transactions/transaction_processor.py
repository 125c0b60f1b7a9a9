"""Transactions: half messages come in, END_TRANSACTION (37) decides each of them once.

A decision is one write of two records: the committed message and the op message behind it (a rollback: the op message
alone). From the moment it is on its way, the same decision is answered with success again, and the opposite one is
refused. Apache's broker delivers the message again for each END_TRANSACTION that it gets.

=====================================================================  =============================================
``commitOrRollback`` is neither 8 (commit) nor 12 (rollback)             no reply and no effect, as Apache
no half message has this ``tranStateTableOffset``, or it stands at       SYSTEM_ERROR
another ``commitLogOffset``
another producer group                                                   SYSTEM_ERROR
an account without PUB of the message's topic                            NO_PERMISSION
another transaction's half message: a power cut took the one that was    SYSTEM_ERROR
meant, and a later one has its place
not from a check, and the producer's own check immunity is over          ILLEGAL_OPERATION: a check will ask
the opposite was decided before, or the message was given up             ILLEGAL_OPERATION
its topic has been deleted meanwhile                                     TOPIC_NOT_EXIST; it stays undecided
=====================================================================  =============================================

The broker finds the half message in its own tables: the undecided ones, or else the queue of half messages, contain the
CommitLog offset of each number. Bytes at an offset that only the request names are never trusted: anybody can write a
half message's record into the body of a message, and know its position.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any

from broker.access.access_table import May, everybody_may
from broker.access.acl_rules import PUB
from broker.net.channel import Channel, MemoryChannel
from broker.net.processor import Handler
from broker.net.remarks import NUL, topic_not_exist
from broker.tables.topic_config import TopicConfig
from broker.transactions.transaction_messages import (
    check_due_ms,
    committed_message,
    discarded_message,
    immunity_ms,
    make_half,
    no_room,
    op_message,
)
from broker.turns.put_status import failure
from remoting.codes import FLAG_ONEWAY, RequestCode, ResponseCode, SysFlag
from remoting.command import RemotingCommand, encode_command
from remoting.headers import EndTransactionHeader
from remoting.messages.message import Message, RecordError, StoredMessage, decode_record
from remoting.messages.properties import DELAY, PGROUP, REAL_TOPIC, UNIQ_KEY, get_property
from store.disk.errors import StoreError
from store.half_messages import DECIDED, DISCARD_TOPIC, HALF_TOPIC, Half, HalfMessages
from store.put.plugin_api import PutResult, PutStatus

if TYPE_CHECKING:
    from broker.tables.topics import Topics
    from broker.turns.turn import Turn
    from store.message_store import MessageStore

__all__ = ["TransactionProcessor"]

_LOG = logging.getLogger(__name__)
COMMIT = int(SysFlag.TRANSACTION_COMMIT)
ROLLBACK = int(SysFlag.TRANSACTION_ROLLBACK)
_STORED = (PutStatus.PUT_OK, PutStatus.FLUSH_DISK_TIMEOUT)
_GIVE_UP = -1
_ASKING_MAX = 64
"""Most requests that wait for one decision on its way."""
_SAME_KEY_MAX = 64
"""Most messages behind a half message with its key that are read to find the committed one."""
_NAMES = {COMMIT: "commit", ROLLBACK: "roll back", _GIVE_UP: "give it up"}
_NOBODY = MemoryChannel()
_UNASKED = RemotingCommand(RequestCode.END_TRANSACTION, 0, FLAG_ONEWAY)


class _Deciding:
    """A decision on its way to the log, and the other requests for a decision that came meanwhile."""

    __slots__ = ("outcome", "waiting")

    def __init__(self, outcome: int) -> None:
        self.outcome = outcome
        self.waiting: list[tuple[Channel, RemotingCommand, int]] = []


class TransactionProcessor:
    """Stores half messages and answers END_TRANSACTION.

    Args:
        store: Where half messages are read.
        topics: The broker's topics.
        turn: Where messages are gathered.
        halves: What is undecided.
        timeout_ms: Age at which a half message may be checked (``transactionTimeOut``).
        reserved_ms: Age at which a half message is given up, whatever its sender wants (``fileReservedTime``).
        may_send: Whether half messages are taken at all (not ``rejectTransactionMessage``).
        undecided_max: Most half messages that may be undecided (``maxUndecidedTransactionNum``).
        address: The broker's address, for remarks.
        may: Says whether the asker may write the topic that a half message is for.
    """

    def __init__(
        self,
        *,
        store: MessageStore,
        topics: Topics,
        turn: Turn,
        halves: HalfMessages,
        timeout_ms: Callable[[], int],
        reserved_ms: Callable[[], int],
        may_send: Callable[[], bool] = lambda: True,
        undecided_max: Callable[[], int] = lambda: 500_000,
        address: str = "127.0.0.1",
        may: May = everybody_may,
    ) -> None:
        self._store = store
        self._may = may
        self._topics = topics
        self._turn = turn
        self._halves = halves
        self._timeout_ms = timeout_ms
        self._reserved_ms = reserved_ms
        self._may_send = may_send
        self._undecided_max = undecided_max
        self._address = address
        self._deciding: dict[int, _Deciding] = {}
        self.counts = dict.fromkeys(_NAMES, 0)
        """Decisions since the start."""

    def handlers(self) -> Mapping[int, Handler]:
        """List what it answers."""
        return {RequestCode.END_TRANSACTION: self.end}

    def is_deciding(self, number: int) -> bool:
        """True if a decision about a half message is on its way to the log."""
        return number in self._deciding

    # ------------------------------------------------------------------------------------------ half messages

    def put_half(
        self,
        channel: Channel,
        command: RemotingCommand,
        message: Message,
        unique_key: str,
        producer_group: str,
        now_ms: int,
    ) -> RemotingCommand | None:
        """Gather a half message, checked as any send; the reply if it is refused at once."""
        turn = self._turn
        if not self._may_send():
            remark = f"the broker[{self._address}] sending transaction message is forbidden"
            return command.reply(ResponseCode.NO_PERMISSION, remark, dict(turn.reply_ext))
        if NUL in producer_group:
            remark = f"the producer group {producer_group!r:.200} has a NUL (U+0000): remove it"
            return turn.refusal(command, PutStatus.MESSAGE_ILLEGAL, remark)
        undecided, most = len(self._halves.undecided), self._undecided_max()
        if undecided >= most:
            remark = (
                f"[OVERLOAD]system busy, start flow control for a while: {undecided} transactions are undecided, "
                f"at most {most} may be (maxUndecidedTransactionNum)"
            )
            return command.reply(ResponseCode.SYSTEM_BUSY, remark, dict(turn.reply_ext))
        level = get_property(message.properties, DELAY) or ""
        if level.removeprefix("+").isdecimal() and int(level[:20]) > 0:
            remark = f"a transaction's half message cannot be delayed: its property DELAY is {level:.60}"
            return turn.refusal(command, PutStatus.MESSAGE_ILLEGAL, remark)
        queue_id = message.queue_id
        make_half(message, unique_key, producer_group)
        problem = no_room(message, self._store.record_bytes_max)
        if problem:
            return turn.refusal(command, PutStatus.MESSAGE_ILLEGAL, problem)
        due_ms = check_due_ms(message.properties, message.born_ms, self._timeout_ms(), now_ms)
        due_ms = min(due_ms, now_ms + self._reserved_ms() + 1)

        def answer(results: list[PutResult]) -> RemotingCommand:
            result = results[0]
            if result.status not in _STORED:
                return turn.refusal(command, result.status, result.remark)
            self._halves.add(result.queue_offset, result.offset, due_ms)
            message_id = turn.message_id(result.offset)
            flushed = result.status is PutStatus.PUT_OK
            return turn.stored(
                command.serialize_type, command.opaque, message_id, queue_id, result.queue_offset, unique_key, flushed
            )

        return turn.put_request(channel, command, [message], answer, now_ms)

    # ------------------------------------------------------------------------------------------ decisions

    def end(
        self, channel: Channel, command: RemotingCommand, now_ms: int
    ) -> RemotingCommand | Coroutine[Any, Any, RemotingCommand | None] | None:
        """END_TRANSACTION."""
        header = EndTransactionHeader(command.ext)
        if header.end not in (COMMIT, ROLLBACK):
            return None
        half = self._halves.undecided.get(header.queue_offset)
        if half is not None:
            if half.offset != header.offset:
                return self._end(channel, command, header, None, now_ms)
            record = self._store.read_hot(half.offset, half.size)
            if record is not None:
                return self._end(channel, command, header, record, now_ms)
        return self._end_cold(channel, command, header, now_ms)

    async def _end_cold(
        self, channel: Channel, command: RemotingCommand, header: EndTransactionHeader, now_ms: int
    ) -> RemotingCommand | None:
        """`end` with a record that must be read from the disk, or for a transaction that is decided already."""
        number = header.queue_offset
        half = self._halves.undecided.get(number)
        record = await asyncio.to_thread(self._read_half, number, header.offset, half)
        outcome: int | StoreError = ROLLBACK
        if record is not None and number not in self._halves.undecided:  # and will never be again
            outcome = await asyncio.to_thread(self._outcome_of, record, header)
        return self._end(channel, command, header, record, now_ms, outcome)

    def _read_half(self, number: int, offset: int, half: Half | None) -> bytes | None:
        """Read the half message with a number if it stands at an offset (any thread).

        ``half`` is what is known of it as undecided; else its queue decides.
        """
        if half is not None:
            return self._store.read_record(offset, half.size) if half.offset == offset else None
        entry = self._store.entry(HALF_TOPIC, 0, number)
        return self._store.read_record(offset, entry[1]) if entry is not None and entry[0] == offset else None

    def _end(
        self,
        channel: Channel,
        command: RemotingCommand,
        header: EndTransactionHeader,
        record: bytes | None,
        now_ms: int,
        outcome: int | StoreError = ROLLBACK,
    ) -> RemotingCommand | None:
        """Check the request against the half message's record, and decide."""
        try:
            stored = decode_record(record) if record else None
        except RecordError:
            stored = None
        if stored is not None:
            stored.queue_offset = header.queue_offset  # by which it was found; what the record says has no checksum
        problem = self._problem(header, stored)
        if stored is None or problem:
            return command.reply(ResponseCode.SYSTEM_ERROR, problem)
        refusal = self._may(channel, command, [(get_property(stored.properties, REAL_TOPIC) or HALF_TOPIC, PUB)])
        if refusal is not None:
            return refusal
        if not header.from_check and self._is_late(stored, now_ms):
            remark = f"transaction {header.transaction_id} is past its check immunity time: a check will ask"
            return command.reply(ResponseCode.ILLEGAL_OPERATION, remark)
        number = header.queue_offset
        deciding = self._deciding.get(number)
        if deciding is not None:
            if len(deciding.waiting) >= _ASKING_MAX:
                remark = f"[OVERLOAD]{_ASKING_MAX} others wait for the decision about half message {number}"
                return command.reply(ResponseCode.SYSTEM_BUSY, remark)
            if not command.flag & FLAG_ONEWAY:
                asked = RemotingCommand(command.code, command.opaque, serialize_type=command.serialize_type)
                deciding.waiting.append((channel, asked, header.end))
            return None
        if number not in self._halves.undecided:
            if isinstance(outcome, StoreError):
                remark = f"half message {number} is decided, but the decision cannot be read: {outcome}"
                return command.reply(ResponseCode.SYSTEM_ERROR, remark)
            return self._decided_before(command, header.end, outcome)
        return self._decide(channel, command, header.end, stored, now_ms)

    def _problem(self, header: EndTransactionHeader, stored: StoredMessage | None) -> str:
        """Why a request does not belong to the half message that it names, in Apache's words; empty if it does."""
        if not 0 <= header.queue_offset < self._store.max_offset(HALF_TOPIC, 0):
            return "The transaction state table offset wrong"
        if stored is None or stored.topic != HALF_TOPIC:
            return "Find prepared transaction message failed"
        if get_property(stored.properties, PGROUP) != header.producer_group:
            return "The producer group wrong"
        if stored.offset != header.offset:
            return "The commit log offset wrong"
        key = get_property(stored.properties, UNIQ_KEY)
        if header.transaction_id and key not in (None, header.transaction_id, header.message_id):
            return f"The transaction id wrong: {key} stands there"
        return ""

    def _is_late(self, stored: StoredMessage, now_ms: int) -> bool:
        immunity = immunity_ms(stored.properties)
        return immunity is not None and now_ms - stored.born_ms > max(immunity, self._timeout_ms())

    def _outcome_of(self, record: bytes, header: EndTransactionHeader) -> int | StoreError:
        """The decision about a half message, found by its committed message (any thread); or why it cannot be told.

        The committed message is behind it in the log, so messages sent later with its key hide nothing.
        """
        properties = decode_record(record).properties
        topic, key = get_property(properties, REAL_TOPIC), get_property(properties, UNIQ_KEY)
        if topic is None or key is None:
            return ROLLBACK
        found = map(decode_record, self._store.each_behind(topic, key, header.offset, _SAME_KEY_MAX))
        try:
            committed = any(one.prepared_offset == header.offset and one.sys_flag & ROLLBACK == COMMIT for one in found)
        except StoreError as error:
            return error
        return COMMIT if committed else ROLLBACK

    @staticmethod
    def _decided_before(command: RemotingCommand, wanted: int, outcome: int) -> RemotingCommand:
        if wanted == outcome:
            return command.reply()
        remark = f"cannot {_NAMES[wanted]}: the transaction was decided before, to {_NAMES[outcome]}"
        return command.reply(ResponseCode.ILLEGAL_OPERATION, remark)

    def give_up(self, stored: StoredMessage, now_ms: int) -> bool:
        """Move an undecided message to the discard topic; False if that is being made, once in a store's life.

        Raises StoreError if it cannot be made.
        """
        if not self._topics.have(TopicConfig(DISCARD_TOPIC, 1, 1)):
            return False
        refusal = self._decide(_NOBODY, _UNASKED, _GIVE_UP, stored, now_ms)
        if refusal is not None:
            _LOG.error("half message %d cannot be given up: %s", stored.queue_offset, refusal.remark)
        return True

    def _decide(
        self, channel: Channel, command: RemotingCommand, outcome: int, stored: StoredMessage, now_ms: int
    ) -> RemotingCommand | None:
        """Gather the decision's records; the half message is decided when they are stored."""
        number = stored.queue_offset
        vouches = outcome != ROLLBACK
        messages = [op_message(DECIDED, [number], self._store.store_host, now_ms, vouches=vouches)]
        if outcome != ROLLBACK:
            make = committed_message if outcome == COMMIT else discarded_message
            try:
                messages.insert(0, make(stored, self._halves.undecided[number].checks))
            except RecordError as error:
                return command.reply(ResponseCode.SYSTEM_ERROR, str(error))
            if self._topics.get(messages[0].topic) is None:
                return command.reply(ResponseCode.TOPIC_NOT_EXIST, topic_not_exist(messages[0].topic))
            messages[0].queue_id = self._topics.queue_for(messages[0].topic, messages[0].queue_id)
        deciding = self._deciding[number] = _Deciding(outcome)

        def answer(results: list[PutResult]) -> RemotingCommand:
            del self._deciding[number]
            failed = next((result for result in results if result.status not in _STORED), None)
            if failed is None:
                self.counts[outcome] += 1
                self._halves.apply(results[-1].queue_offset, DECIDED, [number])
            for other_channel, other, wanted in deciding.waiting:
                reply = (
                    self._outcome(other, results, failed) if failed else self._decided_before(other, wanted, outcome)
                )
                other_channel.send(encode_command(reply))
            return self._outcome(command, results, failed)

        try:
            refusal = self._turn.put_request(channel, command, messages, answer, now_ms, copies=True)
        except BaseException:
            del self._deciding[number]
            raise
        if refusal is not None:
            del self._deciding[number]
        return refusal

    def _outcome(self, command: RemotingCommand, results: list[PutResult], failed: PutResult | None) -> RemotingCommand:
        if failed is not None:
            code, text = failure(failed.status, failed.remark, self._store.options.max_message_bytes)
            return command.reply(code, text)
        if any(result.status is not PutStatus.PUT_OK for result in results):
            return command.reply(ResponseCode.FLUSH_DISK_TIMEOUT, "decided, but not known to be durable")
        return command.reply()

    def runtime_info(self) -> dict[str, str]:
        """Figures for GET_BROKER_RUNTIME_INFO."""
        halves = self._halves
        return {
            "transactionsUndecided": str(len(halves.undecided)),
            "transactionsHalfOffset": f"{halves.lowest},{halves.seen}",
            "transactionsLost": str(halves.lost_count),
            "transactionsCommitted": str(self.counts[COMMIT]),
            "transactionsRolledBack": str(self.counts[ROLLBACK]),
            "transactionsDiscarded": str(self.counts[_GIVE_UP]),
        }
