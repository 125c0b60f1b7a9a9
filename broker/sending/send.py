"""Sends: SEND_MESSAGE (10), SEND_MESSAGE_V2 (310), SEND_BATCH_MESSAGE (320), with and without a reply.

The checks, in this order, and the response code:

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

The broker adds the same properties as Apache's: MSG_REGION, TRACE_ON and CLUSTER, and UNIQ_KEY if the client made none.
To the messages of a batch it adds nothing (Go's client makes no UNIQ_KEY for them, so its consumers show the offset id,
as they do on Apache's broker). Properties that only a broker may set are removed, and so is sysFlag's bit for a
committed transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from broker.net.channel import Channel
from broker.net.processor import Handler
from broker.net.remarks import NUL, group_not_exist, nul_in_properties
from broker.sending.admission import INNER_BATCH, TRANSACTION, Admission, cleaned, is_half
from broker.sending.send_batch import BatchSends
from broker.tables.topic_names import DLQ_PREFIX, RETRY_PREFIX
from broker.tables.topics import Topics
from broker.turns.large_batch import LargeBatches
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand
from remoting.headers import SendHeader
from remoting.messages.message import Message
from remoting.messages.properties import (
    CLUSTER,
    DELAY,
    MSG_REGION,
    TRACE_ON,
    TRAN_MSG,
    UNIQ_KEY,
    find_property,
    remove_properties,
    with_property,
)
from store.derived.dispatch import is_queued
from store.put.plugin_api import PutStatus

if TYPE_CHECKING:
    from broker.sending.unique_keys import UniqueKeys
    from broker.tables.groups import SubscriptionGroups
    from broker.tables.queue_locks import QueueLocks
    from broker.turns.turn import Turn

__all__ = ["SendProcessor"]

_SUSPICIOUS_SYS_FLAG: Final = 0xCC  # inner batch bits, and any part of a transaction
_FIRST_WITH_MAX_RECONSUME: Final = 121  # V3_4_9
_UNIQ_KEY: Final = "UNIQ_KEY\x01"

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
        admission: Finds topic and queue, or refuses.
        large_batches: Checks large batches in slices; without it each is checked in one piece.
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
        admission: Admission,
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
        self._admission = admission
        self._batches = BatchSends(turn, admission, large_batches)
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
        """SEND_MESSAGE_V2, with header fields of one letter. Nearly all clients send this one: the hot path.

        An ordinary message to a known topic is handled here, without an object for its header. All others, and headers
        that cannot be read, take the longer way.
        """
        if self._turn.refusing:
            return self._admission.overloaded(command)
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
            # First: if it is not ordinary, the numbers may not be set.
            not ordinary
            or not 0 <= queue_id < topic.queue_limit
            or sys_flag & _SUSPICIOUS_SYS_FLAG
            or not 0 < len(body) <= self._max_message_bytes
            # `in` may find the name inside another text; the longer way looks closely.
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
            return self._admission.overloaded(command)
        name = header.topic
        admitted = self._admission.admit(channel, command, header)
        if isinstance(admitted, RemotingCommand):
            return admitted
        topic, queue_id = admitted
        body = command.body
        if not body or len(body) > self._max_message_bytes:
            return self._turn.refusal(command, PutStatus.MESSAGE_ILLEGAL, f"the body has {len(body)} bytes")
        if header.batch or command.code == RequestCode.SEND_BATCH_MESSAGE:
            return self._batches.send(channel, command, header, topic, queue_id, now_ms)
        properties = header.properties
        if NUL in properties:
            return self._turn.refusal(command, PutStatus.MESSAGE_ILLEGAL, nul_in_properties(properties))
        half = False
        if header.sys_flag & _SUSPICIOUS_SYS_FLAG or TRAN_MSG in properties:
            if header.sys_flag & INNER_BATCH:
                return self._admission.refuse_inner_batch(command, header)
            half = is_half(header, properties)
            if not half and not is_queued(header.sys_flag):
                return self._refuse_decided(command, header)
        properties, unique_key = self._complete(properties, now_ms)
        message = Message(
            name,
            queue_id,
            header.flag,
            header.sys_flag & ~TRANSACTION | topic.message_sys_flag,
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
        """Remove what only a broker may set, add a missing UNIQ_KEY and last separator; returns properties and key."""
        if "TRACE_ON" in properties or "__TW_" in properties or "POP_CK" in properties or properties[-1:] != "\x02":
            properties = cleaned(properties)
        unique_key = find_property(properties, _UNIQ_KEY)
        if unique_key is None:
            unique_key = self._unique_keys.next(now_ms)
            return with_property(properties, UNIQ_KEY, unique_key), unique_key
        return properties, unique_key

    def _refuse_decided(self, command: RemotingCommand, header: SendHeader) -> RemotingCommand:
        remark = f"sysFlag {header.sys_flag} says that its transaction was decided, which only a broker may say"
        return self._turn.refusal(command, PutStatus.MESSAGE_ILLEGAL, remark)

    def _retry(
        self, command: RemotingCommand, header: SendHeader, message: Message, now_ms: int
    ) -> RemotingCommand | None:
        """Handle a message to a retry topic: after too many tries it goes to the dead-letter topic instead."""
        name = message.topic.removeprefix(RETRY_PREFIX)
        group = self._groups.find(name)
        if group is None:
            remark = group_not_exist(name, self._groups.full())
            return self._admission.reply(command, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, remark)
        most = group.retry_max_times
        if command.version >= _FIRST_WITH_MAX_RECONSUME and header.max_reconsume_times is not None:
            most = header.max_reconsume_times
        # `>`: unlike in a send-back, the sender has already counted this try.
        # A group with locks consumes in order: it retries by itself, and sends here only what it gives up.
        if message.reconsume_times > most or self._locks.any_live(name, now_ms):
            message.topic = self._topics.create_for_group(DLQ_PREFIX + name, 1).name
            message.queue_id = 0
            message.properties = with_property(remove_properties(message.properties, (DELAY,)), DELAY, "-1")
        return None
