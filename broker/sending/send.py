"""Sends: SEND_MESSAGE (10), SEND_MESSAGE_V2 (310), SEND_BATCH_MESSAGE (320), with and without a reply.

What is checked, in this order, and what the sender is told:

=======================================================================  ============================================
the broker may not be written and the topic is an ordered one            NO_PERMISSION
the topic's name is empty, too long, or has other than ``%|a-zA-Z0-9_-``  INVALID_PARAMETER
the topic is the broker's own (schedule, half messages, …)               NO_PERMISSION
the topic is unknown and may not be created                              TOPIC_NOT_EXIST
the topic may not be written (Apache stores it)                          NO_PERMISSION
the queue id is beyond the topic's queues                                INVALID_PARAMETER
the body is empty or too long, or the message claims to be an inner batch  MESSAGE_ILLEGAL
a property, or a half message's producer group, has a NUL (Apache stores it)  MESSAGE_ILLEGAL
it is a batch, and its sysFlag or a message of it is of a transaction    MESSAGE_ILLEGAL
its sysFlag says rolled back (Apache stores it, and no consumer gets it)  MESSAGE_ILLEGAL
it goes to ``%RETRY%group`` and the group is unknown                     SUBSCRIPTION_GROUP_NOT_EXIST
it is a half message, and these are switched off                         NO_PERMISSION (``rejectTransactionMessage``)
=======================================================================  ============================================

To a message's properties are added what Apache adds: MSG_REGION, TRACE_ON and CLUSTER, and UNIQ_KEY if the client
made none; to a batch's messages nothing (Go's client makes no UNIQ_KEY for them, so its consumers show the offset id,
as they do on Apache's broker). Properties that only a broker may set are taken out, and so is sysFlag's bit for a
committed transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from random import Random
from typing import TYPE_CHECKING

from broker.net.channel import Channel, peer_text
from broker.net.processor import Handler
from broker.net.remarks import NUL, group_not_exist, nul_in_properties, topic_not_exist
from broker.tables.table_writer import NotYetError
from broker.tables.topic_config import TopicConfig
from broker.tables.topic_names import DLQ_PREFIX, NOT_ALLOWED_TO_SEND, RETRY_PREFIX, topic_problem
from broker.tables.topics import Topics
from broker.turns.large_batch import SLICE_TEXT_BYTES, LargeBatch, LargeBatches
from remoting.codes import Permission, RequestCode, ResponseCode, SysFlag
from remoting.command import RemotingCommand
from remoting.headers import SendHeader
from remoting.messages.message import Message, MessageError, UniformBatch, batch_slice, split_batch, split_uniform
from remoting.messages.properties import (
    CLUSTER,
    DELAY,
    MSG_REGION,
    OWN_PROPERTIES,
    POP_CK,
    TRACE_ON,
    TRAN_MSG,
    UNIQ_KEY,
    get_property,
    remove_properties,
    with_property,
)
from store.derived.dispatch import is_queued
from store.put.plugin_api import PutResult, PutStatus

if TYPE_CHECKING:
    from broker.sending.unique_keys import UniqueKeys
    from broker.tables.groups import SubscriptionGroups
    from broker.tables.queue_locks import QueueLocks
    from broker.turns.turn import Turn

__all__ = ["BATCH_MESSAGES_MAX", "SendProcessor"]

_BROKERS_OWN = (*OWN_PROPERTIES, POP_CK, MSG_REGION, TRACE_ON, CLUSTER)
_ODD = frozenset((*_BROKERS_OWN, DELAY, TRAN_MSG))
"""Properties that a batch is not stored as columns with."""
_SUSPICIOUS_SYS_FLAG = 0xCC  # inner batch bits, and any part of a transaction
_INNER_BATCH = 0xC0
_TRANSACTION = int(SysFlag.TRANSACTION_ROLLBACK)
_FIRST_WITH_MAX_RECONSUME = 121  # V3_4_9
_UNIT_TOPIC, _UNIT_SUB_TOPIC = 1, 2
BATCH_MESSAGES_MAX = 32_767
"""Apache's broker counts a batch in 16 bits: it stores a longer one and loses what comes to its queue behind it
(docs/decisions/0020). A reply that names so many messages has two of the 16 MiB that its header may have."""

PutHalf = Callable[[Channel, RemotingCommand, Message, str, str, int], RemotingCommand | None]


class SendProcessor:
    """Checks sends and hands them to the turn.

    Args:
        topics, groups, locks: The broker's tables.
        turn: Where messages are gathered.
        unique_keys: Makes UNIQ_KEY where it is missing.
        cluster_name: What CLUSTER says.
        max_message_bytes: Longest body.
        put_half: Takes a transaction's half message: (channel, command, message, unique key, producer group, now_ms).
        permission: The broker's own permission (``brokerPermission``).
        address: The broker's address, for remarks.
        random: Picks a queue for senders that leave the choice to the broker.
        large_batches: Looks at large batches in slices; without it each is looked at in one go.
    """

    def __init__(
        self,
        *,
        topics: Topics,
        groups: SubscriptionGroups,
        locks: QueueLocks,
        turn: Turn,
        unique_keys: UniqueKeys,
        cluster_name: str,
        max_message_bytes: int,
        put_half: PutHalf,
        permission: Callable[[], int] = lambda: 6,
        address: str = "127.0.0.1",
        random: Random | None = None,
        large_batches: LargeBatches | None = None,
    ) -> None:
        self._topics = topics
        self._table = topics.table
        self._groups = groups
        self._locks = locks
        self._turn = turn
        self._unique_keys = unique_keys
        self._max_message_bytes = max_message_bytes
        self._put_half = put_half
        self._permission = permission
        self._address = address
        self._random = random or Random()
        self._large_batches = large_batches
        self._looking = None if large_batches is None else turn.looking()
        ext = turn.reply_ext
        self._added = "".join(
            f"{name}\x01{value}\x02"
            for name, value in ((MSG_REGION, ext["MSG_REGION"]), (TRACE_ON, ext["TRACE_ON"]), (CLUSTER, cluster_name))
        )

    def handlers(self) -> Mapping[int, Handler]:
        """List what it answers."""
        return {
            RequestCode.SEND_MESSAGE: self.send_v1,
            RequestCode.SEND_MESSAGE_V2: self.send_v2,
            RequestCode.SEND_BATCH_MESSAGE: self.send_batch,
        }

    def send_v1(self, channel: Channel, command: RemotingCommand, now_ms: int) -> RemotingCommand | None:
        """SEND_MESSAGE, with header fields by their long names."""
        return self._send(channel, command, SendHeader.from_v1(command.ext), now_ms)

    def send_batch(self, channel: Channel, command: RemotingCommand, now_ms: int) -> RemotingCommand | None:
        """SEND_BATCH_MESSAGE, with header fields of one letter."""
        return self._send(channel, command, SendHeader.from_v2(command.ext), now_ms)

    def send_v2(self, channel: Channel, command: RemotingCommand, now_ms: int) -> RemotingCommand | None:
        """SEND_MESSAGE_V2, with header fields of one letter: what nearly all clients send, so the hot path.

        An ordinary message to a known topic is handed on from here, without an object for its header. Everything
        else, and whatever cannot be read, goes the longer way.
        """
        if self._turn.refusing:
            return self._overloaded(command)
        ext = command.ext
        try:
            topic = self._table[ext["b"]]
            queue_id = int(ext["e"])
            sys_flag = int(ext["f"])
            born_ms = int(ext["g"])
            flag = int(ext["h"])
            properties = ext["i"]
            ordinary = topic.plain and ext["m"] == "false" and ext["j"] == "0"
        except (KeyError, ValueError):
            ordinary = False
        body = command.body
        if (
            not ordinary
            or not 0 <= queue_id < topic.queue_limit
            or sys_flag & _SUSPICIOUS_SYS_FLAG
            or not 0 < len(body) <= self._max_message_bytes
            or TRAN_MSG in properties
            or NUL in properties
        ):
            return self._send(channel, command, SendHeader.from_v2(ext), now_ms)
        properties, unique_key = self._complete(properties, now_ms)
        properties += self._added
        sys_flag |= topic.message_sys_flag
        born_host = channel.state.born_host
        message = Message(topic.name, queue_id, flag, sys_flag, born_ms, born_host, 0, 0, body, properties)
        return self._turn.put(channel, command, message, unique_key, now_ms)

    def _send(
        self, channel: Channel, command: RemotingCommand, header: SendHeader, now_ms: int
    ) -> RemotingCommand | None:
        """Any send, with all checks."""
        if self._turn.refusing:
            return self._overloaded(command)
        name = header.topic
        admitted = self.admit(channel, command, header)
        if isinstance(admitted, RemotingCommand):
            return admitted
        topic, queue_id = admitted
        body = command.body
        if not body or len(body) > self._max_message_bytes:
            return self._refuse(command, PutStatus.MESSAGE_ILLEGAL, f"the body has {len(body)} bytes")
        if header.batch or command.code == RequestCode.SEND_BATCH_MESSAGE:
            return self._send_batch(channel, command, header, topic, queue_id, now_ms)
        properties = header.properties
        if NUL in properties:
            return self._refuse(command, PutStatus.MESSAGE_ILLEGAL, nul_in_properties(properties))
        half = False
        if header.sys_flag & _SUSPICIOUS_SYS_FLAG or TRAN_MSG in properties:
            if header.sys_flag & _INNER_BATCH:
                return self._refuse_inner_batch(command, header)
            half = self._is_half(header, properties)
            if not half and not is_queued(header.sys_flag):
                return self._refuse_decided(command, header)
        properties, unique_key = self._complete(properties, now_ms)
        message = Message(
            name,
            queue_id,
            header.flag,
            header.sys_flag & ~_TRANSACTION | topic.message_sys_flag,
            header.born_ms,
            channel.state.born_host,
            header.reconsume_times,
            0,
            body,
            properties + self._added,
        )
        if name.startswith(RETRY_PREFIX):
            refusal = self._retry(command, header, message, now_ms)
            if refusal is not None:
                return refusal
        if half:
            return self._put_half(channel, command, message, unique_key, header.producer_group, now_ms)
        return self._turn.put(channel, command, message, unique_key, now_ms)

    def _complete(self, properties: str, now_ms: int) -> tuple[str, str]:
        """Take out what only a broker may set, see to UNIQ_KEY and the last separator; properties and key."""
        if "TRACE_ON" in properties or "__TW_" in properties or "POP_CK" in properties or properties[-1:] != "\x02":
            properties = self._cleaned(properties)
        unique_key = get_property(properties, UNIQ_KEY)
        if unique_key is None:
            unique_key = self._unique_keys.next(now_ms)
            return with_property(properties, UNIQ_KEY, unique_key), unique_key
        return properties, unique_key

    @staticmethod
    def _cleaned(properties: str) -> str:
        """Take out what only a broker may set; what is left ends with its separator.

        Whatever a broker has sent out has TRACE_ON with the other two; where a client sets one of these alone, the
        broker's own, which is put behind it, counts.
        """
        if "TRACE_ON" in properties or "__TW_" in properties or "POP_CK" in properties:
            properties = remove_properties(properties, _BROKERS_OWN)
        return properties + "\x02" if properties and properties[-1] != "\x02" else properties

    # ------------------------------------------------------------------------------------------------ rare cases

    def admit(
        self, channel: Channel, command: RemotingCommand, header: SendHeader
    ) -> tuple[TopicConfig, int] | RemotingCommand:
        """Find or make the topic and its queue, or refuse: the checks that a reply has in common with a send."""
        name = header.topic
        topic = self._topics.get(name)
        if topic is not None and topic.order and not self._permission() & Permission.WRITE:
            remark = f"the broker[{self._address}] sending message is forbidden"
            return self._reply(command, ResponseCode.NO_PERMISSION, remark)
        problem = topic_problem(name)
        if problem is not None:
            return self._reply(command, ResponseCode.INVALID_PARAMETER, problem)
        if name in NOT_ALLOWED_TO_SEND:
            return self._reply(command, ResponseCode.NO_PERMISSION, f"Sending message to topic[{name}] is forbidden.")
        if topic is None:
            group = name.removeprefix(RETRY_PREFIX)
            if group != name and self._groups.find(group) is None:
                remark = group_not_exist(group, self._groups.full())
                return self._reply(command, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, remark)
            topic = self._create(header)
            if topic is None:
                return self._reply(command, ResponseCode.TOPIC_NOT_EXIST, topic_not_exist(name, self._topics.full()))
        if not topic.writable:
            remark = f"the topic[{name}] sending message is forbidden"
            return self._reply(command, ResponseCode.NO_PERMISSION, remark)
        queue_id = header.queue_id
        if queue_id < 0:
            queue_id = self._random.randrange(topic.write_queue_nums) if topic.write_queue_nums > 0 else 0
        if queue_id >= topic.queue_limit:
            remark = f"request queueId[{header.queue_id}] is illegal, {topic!r} Producer: {peer_text(channel)}"
            return self._reply(command, ResponseCode.INVALID_PARAMETER, remark)
        return topic, queue_id

    def _create(self, header: SendHeader) -> TopicConfig | None:
        """Make the topic of a first send, if that is allowed."""
        retry = header.topic.startswith(RETRY_PREFIX)
        sys_flag = 0 if not header.unit_mode else _UNIT_SUB_TOPIC if retry else _UNIT_TOPIC
        topic = self._topics.create_for_send(header.topic, header.default_topic, header.default_topic_queues, sys_flag)
        if topic is None and retry:
            topic = self._topics.create_for_group(header.topic, 1, sys_flag)
        return topic

    def _refuse_inner_batch(self, command: RemotingCommand, header: SendHeader) -> RemotingCommand:
        remark = f"sysFlag {header.sys_flag} says inner batch, which is not supported"
        return self._refuse(command, PutStatus.MESSAGE_ILLEGAL, remark)

    def _refuse_decided(self, command: RemotingCommand, header: SendHeader) -> RemotingCommand:
        remark = f"sysFlag {header.sys_flag} says that its transaction was decided, which only a broker may say"
        return self._refuse(command, PutStatus.MESSAGE_ILLEGAL, remark)

    @staticmethod
    def _is_half(header: SendHeader, properties: str) -> bool:
        """Whether it is a transaction's half message."""
        level = get_property(properties, DELAY) or ""
        retried = header.reconsume_times > 0 and level[:20].isdecimal() and int(level[:20]) > 0  # clients before 4.6.1
        half = (get_property(properties, TRAN_MSG) or "").lower() == "true" and not retried
        return half or header.sys_flag & SysFlag.TRANSACTION_ROLLBACK == SysFlag.TRANSACTION_PREPARED

    def _retry(
        self, command: RemotingCommand, header: SendHeader, message: Message, now_ms: int
    ) -> RemotingCommand | None:
        """A message that a consumer sends to its retry topic: to the dead letters if it came too often."""
        name = message.topic.removeprefix(RETRY_PREFIX)
        group = self._groups.find(name)
        if group is None:
            remark = group_not_exist(name, self._groups.full())
            return self._reply(command, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, remark)
        most = group.retry_max_times
        if command.version >= _FIRST_WITH_MAX_RECONSUME and header.max_reconsume_times is not None:
            most = header.max_reconsume_times
        if message.reconsume_times > most or self._locks.any_live(name, now_ms):
            message.topic = self._topics.create_for_group(DLQ_PREFIX + name, 1).name
            message.queue_id = 0
            message.properties = with_property(remove_properties(message.properties, (DELAY,)), DELAY, "-1")
        return None

    def _send_batch(
        self,
        channel: Channel,
        command: RemotingCommand,
        header: SendHeader,
        topic: TopicConfig,
        queue_id: int,
        now_ms: int,
    ) -> RemotingCommand | None:
        """A batch: each message of it on its own, all stored or none, one reply."""
        if header.topic.startswith(RETRY_PREFIX):
            remark = f"batch request does not support retry group {header.topic}"
            return self._reply(command, ResponseCode.MESSAGE_ILLEGAL, remark)
        if header.sys_flag & _INNER_BATCH:
            return self._refuse_inner_batch(command, header)
        if header.sys_flag & _TRANSACTION:
            remark = f"sysFlag {header.sys_flag} says transaction: a batch cannot be part of one"
            return self._refuse(command, PutStatus.MESSAGE_ILLEGAL, remark)
        unique_key = get_property(header.properties, UNIQ_KEY)
        if self._put_uniform(channel, command, header, topic, queue_id, unique_key, now_ms):
            return None
        if self._looking is not None and self._large_batches is not None:
            self._raise_if_large(channel, command, header, topic, queue_id, now_ms)
        try:
            elements = split_batch(command.body, BATCH_MESSAGES_MAX)
        except MessageError as error:
            return self._refuse(command, PutStatus.MESSAGE_ILLEGAL, str(error))
        messages: list[Message] = []
        for flag, body, properties in elements:
            message = self._element(channel, header, topic, queue_id)
            why = self._complete_element(header, message, flag, body, properties)
            if why is not None:
                remark = f"message {len(messages)} of the batch: {why}"
                return self._refuse(command, PutStatus.MESSAGE_ILLEGAL, remark)
            messages.append(message)
        if not messages:
            return self._refuse(command, PutStatus.MESSAGE_ILLEGAL, "the batch is empty")

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
        """Hand a batch on as columns if nothing about it is out of the ordinary: a fifth of the time."""
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
        """Give a message of a batch what is its own; why it cannot be stored, if so."""
        if NUL in properties:
            return nul_in_properties(properties)
        if self._is_half(header, properties):
            return "a batch cannot hold a transaction's half message"
        message.flag = flag
        message.body = body
        message.properties = self._cleaned(properties)
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
        """Raise NotYetError for a batch that is to be looked at in slices."""
        large, looking, body = self._large_batches, self._looking, command.body
        if large is None or looking is None or not large.slicing:
            return
        try:
            if batch_slice(body, 0, large.slice_messages, SLICE_TEXT_BYTES)[0] == len(body):
                return
        except MessageError:
            return  # the caller says which
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
        header.queue_id = queue_id  # also where the choice was ours
        then = partial(self._put_large, channel, command, header, batch)
        raise NotYetError(lambda: batch, then, partial(large.begin, batch))

    def _put_large(
        self, channel: Channel, command: RemotingCommand, header: SendHeader, batch: LargeBatch
    ) -> RemotingCommand | None:
        """Go on with a batch when all of it was looked at; the reply if it is refused."""
        if channel.closed:
            return None
        if batch.error is not None:
            raise batch.error
        if batch.stopped:
            return self._refuse(command, PutStatus.SERVICE_NOT_AVAILABLE, "the broker is stopping")
        if batch.refused is not None:
            return self._refuse(command, *batch.refused)
        if self._turn.refusing:
            return self._overloaded(command)
        admitted = self.admit(channel, command, header)  # what was right when it came may have changed
        if isinstance(admitted, RemotingCommand):
            return admitted
        unique_key = get_property(header.properties, UNIQ_KEY)

        def answer(results: list[PutResult]) -> RemotingCommand:
            result, first = _decisive(results), results[0]
            if result.status not in (PutStatus.PUT_OK, PutStatus.FLUSH_DISK_TIMEOUT):
                return self._refuse(command, result.status, result.remark)
            ids = batch.ids(self._turn.store_host, first.offset)
            number = 0 if batch.first_is_held else first.queue_offset
            flushed = result.status is PutStatus.PUT_OK
            return self._turn.stored(
                command.serialize_type, command.opaque, ids, header.queue_id, number, unique_key, flushed
            )

        self._turn.put_large(channel, command, batch, answer)
        return None

    # ------------------------------------------------------------------------------------------------ replies

    @staticmethod
    def _element(channel: Channel, header: SendHeader, topic: TopicConfig, queue_id: int) -> Message:
        """Make a message of a batch, but for what is its own: flag, body and properties."""
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
            return self._refuse(command, result.status, result.remark)
        flushed = result.status is PutStatus.PUT_OK
        ids = self._turn.message_ids(offsets)
        return self._turn.stored(
            command.serialize_type, command.opaque, ids, queue_id, queue_offset, unique_key, flushed
        )

    def _overloaded(self, command: RemotingCommand) -> RemotingCommand:
        """Flow control, as Apache's broker answers when the queue in front of its send threads is full."""
        return self._reply(command, ResponseCode.SYSTEM_BUSY, self._turn.busy_remark())

    def _reply(self, command: RemotingCommand, code: ResponseCode, remark: str) -> RemotingCommand:
        return command.reply(code, remark, dict(self._turn.reply_ext))

    def _refuse(self, command: RemotingCommand, status: PutStatus, remark: str) -> RemotingCommand:
        return self._turn.refusal(command, status, remark)


def _decisive(results: list[PutResult]) -> PutResult:
    """The result that is a batch's: the first that says no, or else one that could not be flushed, or any."""
    found = results[0]
    for result in results:
        if result.status > PutStatus.FLUSH_DISK_TIMEOUT:
            return result
        if result.status > found.status:
            found = result
    return found
