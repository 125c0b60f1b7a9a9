"""Batches: SEND_BATCH_MESSAGE, and SEND_MESSAGE with the batch field in its header.

A batch has one reply. All of its messages are stored, or none. There are three ways, from fast to slow:

=========  ==========================================================================================================
columns    the messages have the same, ordinary property names: no object is made for each message
slices     a batch that takes long to check is checked in slices, and other requests are served in between
messages   any other batch, message by message
=========  ==========================================================================================================
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from broker.net.channel import Channel
from broker.net.remarks import NUL, nul_in_properties
from broker.tables.table_writer import NotYetError
from broker.tables.topic_config import TopicConfig
from broker.tables.topic_names import RETRY_PREFIX
from broker.turns.large_batch import SLICE_TEXT_BYTES, LargeBatch, LargeBatches
from remoting.codes import ResponseCode
from remoting.command import RemotingCommand
from remoting.headers import SendHeader
from remoting.messages.message import Message, MessageError, UniformBatch, batch_slice, split_batch, split_uniform
from remoting.messages.properties import DELAY, TRAN_MSG, UNIQ_KEY, get_property
from store.put.plugin_api import PutResult, PutStatus

if TYPE_CHECKING:
    from broker.turns.turn import Turn

from broker.sending.admission import INNER_BATCH, NOT_CLIENTS, TRANSACTION, Admission, cleaned_in_batch, is_half

__all__ = ["BATCH_MESSAGES_MAX", "BatchSends"]

_ODD = frozenset((*NOT_CLIENTS, DELAY, TRAN_MSG))
"""With any of these properties, a batch is not stored as columns."""
BATCH_MESSAGES_MAX = 32_767
"""Apache's broker counts a batch in 16 bits: it stores a longer one and then loses later messages of its queue
(docs/decisions/0020). A reply with the ids of this many messages has a header of two MiB; 16 are allowed."""


class BatchSends:
    """Checks batches and hands them to the turn.

    Args:
        turn: Where messages are gathered.
        admission: Finds topic and queue, or refuses.
        large_batches: Checks large batches in slices; without it each is checked in one piece.
    """

    def __init__(self, turn: Turn, admission: Admission, large_batches: LargeBatches | None) -> None:
        self._turn = turn
        self._admission = admission
        self._large_batches = large_batches
        self._looking = None if large_batches is None else turn.looking()
        if large_batches is not None:
            turn.large_batch = large_batches.under_way

    def send(
        self,
        channel: Channel,
        command: RemotingCommand,
        header: SendHeader,
        topic: TopicConfig,
        queue_id: int,
        now_ms: int,
    ) -> RemotingCommand | None:
        """Handle a batch: all of its messages are stored, or none; one reply."""
        if header.topic.startswith(RETRY_PREFIX):
            remark = f"batch request does not support retry group {header.topic}"
            return self._admission.reply(command, ResponseCode.MESSAGE_ILLEGAL, remark)
        if header.sys_flag & INNER_BATCH:
            return self._admission.refuse_inner_batch(command, header)
        if header.sys_flag & TRANSACTION:
            remark = f"sysFlag {header.sys_flag} says transaction: a batch cannot be part of one"
            return self._turn.refusal(command, PutStatus.MESSAGE_ILLEGAL, remark)
        unique_key = get_property(header.properties, UNIQ_KEY)
        if self._put_uniform(channel, command, header, topic, queue_id, unique_key, now_ms):
            return None
        if self._looking is not None and self._large_batches is not None:
            self._raise_if_large(channel, command, header, topic, queue_id, now_ms)
        try:
            elements = split_batch(command.body, BATCH_MESSAGES_MAX)
        except MessageError as error:
            return self._turn.refusal(command, PutStatus.MESSAGE_ILLEGAL, str(error))
        messages: list[Message] = []
        for flag, body, properties in elements:
            message = self._element(channel, header, topic, queue_id)
            why = self._complete_element(header, message, flag, body, properties)
            if why is not None:
                remark = f"message {len(messages)} of the batch: {why}"
                return self._turn.refusal(command, PutStatus.MESSAGE_ILLEGAL, remark)
            messages.append(message)
        if not messages:
            return self._turn.refusal(command, PutStatus.MESSAGE_ILLEGAL, "the batch is empty")

        def answer(results: list[PutResult]) -> RemotingCommand:
            offsets = [result.offset for result in results]
            first = results[0].queue_offset
            return self._answer_batch(command, queue_id, unique_key, _decisive(results), first, offsets)

        return self._turn.put_request(channel, command, messages, answer, now_ms)

    def _put_uniform(
        self,
        channel: Channel,
        command: RemotingCommand,
        header: SendHeader,
        topic: TopicConfig,
        queue_id: int,
        unique_key: str | None,
        now_ms: int,
    ) -> bool:
        """Hand a batch on as columns if it has nothing unusual, which takes a fifth of the time; False if it has."""
        messages_max, text_max = BATCH_MESSAGES_MAX, 1 << 31
        if self._looking is not None and self._large_batches is not None:
            messages_max, text_max = self._large_batches.slice_messages, SLICE_TEXT_BYTES
        element = self._element(channel, header, topic, queue_id)
        batch = split_uniform(element, command.body, messages_max, text_max)
        if batch is None or not self._has_columns(batch):
            return False

        def answer(result: PutResult, offsets: Sequence[int]) -> RemotingCommand:
            return self._answer_batch(command, queue_id, unique_key, result, result.queue_offset, offsets)

        return self._turn.put_uniform(channel, command, batch, answer, now_ms)

    @staticmethod
    def _has_columns(batch: UniformBatch) -> bool:
        return _ODD.isdisjoint(batch.names)

    def _complete_element(
        self, header: SendHeader, message: Message, flag: int, body: bytes, properties: str
    ) -> str | None:
        """Set flag, body and properties of a message of a batch; returns why it cannot be stored, or None."""
        if NUL in properties:
            return nul_in_properties(properties)
        if is_half(header, properties):
            return "a batch cannot hold a transaction's half message"
        message.flag = flag
        message.body = body
        message.properties = cleaned_in_batch(properties)
        return None

    # ------------------------------------------------------------------------------------------------ large batches

    def _raise_if_large(
        self,
        channel: Channel,
        command: RemotingCommand,
        header: SendHeader,
        topic: TopicConfig,
        queue_id: int,
        now_ms: int,
    ) -> None:
        """Raise NotYetError for a batch that must be checked in slices."""
        large, looking, body = self._large_batches, self._looking, command.body
        if large is None or looking is None or not large.slicing:
            return
        try:
            if batch_slice(body, 0, large.slice_messages, SLICE_TEXT_BYTES)[0] == len(body):
                return
        except MessageError:
            return  # the caller finds the fault and names the message
        batch = LargeBatch(
            channel,
            body,
            messages_max=BATCH_MESSAGES_MAX,
            element=partial(self._element, channel, header, topic, queue_id),
            columns=self._has_columns,
            complete=partial(self._complete_element, header),
            looking=looking,
            asides=self._turn.asides(),
            now_ms=now_ms,
            slice_messages=large.slice_messages,
        )
        header.queue_id = queue_id  # fixed now, also if the broker has chosen it
        then = partial(self._put_large, channel, command, header, batch)
        raise NotYetError(lambda: batch, then, partial(large.begin, batch))

    def _put_large(
        self, channel: Channel, command: RemotingCommand, header: SendHeader, batch: LargeBatch
    ) -> RemotingCommand | None:
        """Go on with a batch after its last slice; returns the reply if it is refused."""
        taken = False
        try:
            reply = self._refusal_of_large(channel, command, header, batch)
            if reply is None and not channel.closed:
                self._gather_large(channel, command, header, batch)
                taken = True
            return reply
        finally:
            if not taken:
                batch.drop()
            if self._large_batches is not None:
                self._large_batches.settled(batch)

    def _refusal_of_large(
        self, channel: Channel, command: RemotingCommand, header: SendHeader, batch: LargeBatch
    ) -> RemotingCommand | None:
        if channel.closed:
            return None
        if batch.error is not None:
            raise batch.error
        if batch.stopped:
            return self._turn.refusal(command, PutStatus.SERVICE_NOT_AVAILABLE, "the broker is stopping")
        if batch.refused is not None:
            return self._turn.refusal(command, *batch.refused)
        if self._turn.refusing:
            return self._admission.overloaded(command)
        admitted = self._admission.admit(channel, command, header)  # topic or permission may have changed meanwhile
        return admitted if isinstance(admitted, RemotingCommand) else None

    def _gather_large(self, channel: Channel, command: RemotingCommand, header: SendHeader, batch: LargeBatch) -> None:
        unique_key = get_property(header.properties, UNIQ_KEY)

        def answer(results: list[PutResult]) -> RemotingCommand:
            result, first = _decisive(results), results[0]
            if result.status not in (PutStatus.PUT_OK, PutStatus.FLUSH_DISK_TIMEOUT):
                return self._turn.refusal(command, result.status, result.remark)
            ids = batch.ids(self._turn.store_host, first.offset)
            number = 0 if batch.first_is_held else first.queue_offset
            flushed = result.status is PutStatus.PUT_OK
            return self._turn.stored(
                command.serialize_type, command.opaque, ids, header.queue_id, number, unique_key, flushed
            )

        self._turn.put_large(channel, command, batch, answer)

    # ------------------------------------------------------------------------------------------------ replies

    @staticmethod
    def _element(channel: Channel, header: SendHeader, topic: TopicConfig, queue_id: int) -> Message:
        """Make a message of a batch without flag, body and properties, which differ."""
        sys_flag = header.sys_flag | topic.message_sys_flag
        host, reconsume_times = channel.state.born_host, header.reconsume_times
        return Message(header.topic, queue_id, 0, sys_flag, header.born_ms, host, reconsume_times)

    def _answer_batch(
        self,
        command: RemotingCommand,
        queue_id: int,
        unique_key: str | None,
        result: PutResult,
        queue_offset: int,
        offsets: Sequence[int],
    ) -> RemotingCommand:
        """Make a batch's reply from the result that decides it."""
        if result.status not in (PutStatus.PUT_OK, PutStatus.FLUSH_DISK_TIMEOUT):
            return self._turn.refusal(command, result.status, result.remark)
        flushed = result.status is PutStatus.PUT_OK
        ids = self._turn.message_ids(offsets)
        return self._turn.stored(
            command.serialize_type, command.opaque, ids, queue_id, queue_offset, unique_key, flushed
        )


def _decisive(results: list[PutResult]) -> PutResult:
    """The result that decides a batch: the first refusal, else one that could not be flushed, else any."""
    found = results[0]
    for result in results:
        if result.status > PutStatus.FLUSH_DISK_TIMEOUT:
            return result
        if result.status > found.status:
            found = result
    return found
