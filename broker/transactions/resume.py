"""Reopens half messages that were given up: RESUME_CHECK_HALF_MESSAGE (323).

An administrator names a message of TRANS_CHECK_MAX_TIME_TOPIC by its id (Java: ``MQAdminExt.resumeCheckHalfMessage``).
It becomes a half message again, and the live producers of its group are asked as for a new one. Its copy in that topic
stays. Apache's broker makes a new half message of any record, each time. Here a transaction that is open already stays
as it is (SUCCESS), and one that was committed since is refused, so that it is not delivered twice.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from broker.net.channel import Channel
from broker.net.processor import Handler
from broker.transactions.transaction_messages import check_due_ms, resumed_message
from broker.turns.put_status import failure
from remoting.codes import RequestCode, ResponseCode, SysFlag
from remoting.command import RemotingCommand
from remoting.headers import need_str
from remoting.messages.message import MessageError, RecordError, StoredMessage, decode_record, parse_message_id
from remoting.messages.properties import REAL_TOPIC, UNIQ_KEY, get_property
from store.disk.errors import StoreError
from store.half_messages import DISCARD_TOPIC, HALF_TOPIC, HalfMessages
from store.put.plugin_api import PutResult, PutStatus

if TYPE_CHECKING:
    from broker.turns.turn import Turn
    from store.message_store import MessageStore

__all__ = ["ResumeProcessor"]

_LOG = logging.getLogger(__name__)
_STORED = (PutStatus.PUT_OK, PutStatus.FLUSH_DISK_TIMEOUT)
_TYPE = int(SysFlag.TRANSACTION_ROLLBACK)
_COMMITTED = int(SysFlag.TRANSACTION_COMMIT)
_MOST = 64


class ResumeProcessor:
    """Opens transactions again.

    Args:
        store: Where messages are read and looked for.
        turn: Where the half message is gathered.
        halves: The undecided half messages.
        timeout_ms: Age at which a half message may be checked (``transactionTimeOut``).
        reserved_ms: Age at which it is given up at the latest (``fileReservedTime``).
        now_ms: The clock; looking takes time.
    """

    def __init__(
        self,
        *,
        store: MessageStore,
        turn: Turn,
        halves: HalfMessages,
        timeout_ms: Callable[[], int],
        reserved_ms: Callable[[], int],
        now_ms: Callable[[], int],
    ) -> None:
        self._store = store
        self._turn = turn
        self._halves = halves
        self._timeout_ms = timeout_ms
        self._reserved_ms = reserved_ms
        self._now_ms = now_ms
        self._resuming: set[int] = set()

    def handlers(self) -> Mapping[int, Handler]:
        """List what it answers."""
        return {RequestCode.RESUME_CHECK_HALF_MESSAGE: self.resume}

    async def resume(self, channel: Channel, command: RemotingCommand, _now_ms: int) -> RemotingCommand | None:
        """RESUME_CHECK_HALF_MESSAGE."""
        text = need_str(command.ext, "msgId")
        try:
            _, offset = parse_message_id(text)
        except MessageError as error:
            return command.reply(ResponseCode.SYSTEM_ERROR, str(error))
        if offset in self._resuming:
            return command.reply(ResponseCode.SYSTEM_ERROR, f"{text} is already being resumed")
        self._resuming.add(offset)
        try:
            reply = await self._resume(channel, command, text, offset)
        except BaseException:
            self._resuming.discard(offset)
            raise
        if reply is not None:
            self._resuming.discard(offset)
        return reply

    async def _resume(
        self, channel: Channel, command: RemotingCommand, text: str, offset: int
    ) -> RemotingCommand | None:
        """Find the transaction's state and gather the half message; return a reply unless it comes after the store."""
        given_up = await asyncio.to_thread(self._read, offset)
        if given_up is None:
            return command.reply(ResponseCode.SYSTEM_ERROR, f"no message of {DISCARD_TOPIC} has the id {text}")
        try:
            outcome = await asyncio.to_thread(self._outcome, given_up)
        except StoreError as error:
            remark = f"the state of the transaction of {text} cannot be read: {error}"
            return command.reply(ResponseCode.SYSTEM_ERROR, remark)
        if outcome == HALF_TOPIC:
            return command.reply()
        if outcome:
            remark = f"the transaction of {text} has been committed since: its message is in {outcome}"
            return command.reply(ResponseCode.ILLEGAL_OPERATION, remark)
        return self._put(channel, command, given_up, offset)

    def _read(self, offset: int) -> StoredMessage | None:
        """Read a message that was given up (any thread)."""
        record = self._store.find_record(offset)
        try:
            found = None if record is None else decode_record(record)
        except RecordError:
            return None
        return found if found is not None and found.topic == DISCARD_TOPIC else None

    def _outcome(self, given_up: StoredMessage) -> str:
        """The transaction's state since then: HALF_TOPIC (open again), its own topic (committed), or neither.

        Any thread. Raises StoreError if too many messages have its key to tell.
        """
        key, topic = get_property(given_up.properties, UNIQ_KEY), get_property(given_up.properties, REAL_TOPIC)
        if key is None or topic is None:
            return ""
        for record in self._store.each_behind(HALF_TOPIC, key, given_up.offset, _MOST):
            stored = decode_record(record)
            half = self._halves.undecided.get(stored.queue_offset)
            if half is not None and half.offset == stored.offset:
                return HALF_TOPIC
        found = map(decode_record, self._store.each_behind(topic, key, given_up.offset, _MOST))
        return topic if any(stored.sys_flag & _TYPE == _COMMITTED for stored in found) else ""

    def _put(
        self, channel: Channel, command: RemotingCommand, given_up: StoredMessage, offset: int
    ) -> RemotingCommand | None:
        """Gather the half message; the reply if it is refused at once."""
        now_ms = self._now_ms()
        message = resumed_message(given_up)
        due_ms = check_due_ms(message.properties, message.born_ms, self._timeout_ms(), now_ms)
        due_ms = min(due_ms, now_ms + self._reserved_ms() + 1)

        def answer(results: list[PutResult]) -> RemotingCommand:
            self._resuming.discard(offset)
            result = results[0]
            if result.status not in _STORED:
                code, text = failure(result.status, result.remark, self._store.options.max_message_bytes)
                return command.reply(code, text)
            self._halves.add(result.queue_offset, result.offset, due_ms)
            _LOG.warning("the message given up at %d is half message %d now", offset, result.queue_offset)
            return command.reply()

        return self._turn.put_request(channel, command, [message], answer, now_ms, copies=True)
