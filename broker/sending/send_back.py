"""Messages that a consumer could not handle: CONSUMER_SEND_MSG_BACK (36).

The message is stored again for this group alone, in ``%RETRY%group``, after a delay that grows with each try
(level 3 + tries: 10 s, 30 s, 1 min, …). After the last try it goes to ``%DLQ%group``, the dead letters, where somebody
must look at it. It keeps the properties of its sender; RETRY_TOPIC and ORIGIN_MESSAGE_ID name its origin. Its due time
is removed, because it has passed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from random import Random
from typing import TYPE_CHECKING, Any

from broker.access.access_table import May, everybody_may
from broker.access.acl_rules import SUB
from broker.net.channel import Channel
from broker.net.processor import Handler
from broker.net.remarks import group_not_exist
from broker.tables.topic_names import DLQ_PREFIX, RETRY_PREFIX
from remoting.codes import Permission, RequestCode, ResponseCode, SysFlag
from remoting.command import RemotingCommand
from remoting.errors import RecordError
from remoting.headers import SendBackHeader
from remoting.messages.message import Message, StoredMessage, decode_record
from remoting.messages.properties import (
    DELAY,
    ORIGIN_MESSAGE_ID,
    OWN_PROPERTIES,
    REAL_QID,
    REAL_TOPIC,
    RETRY_TOPIC,
    TIMER_DELAY_MS,
    TIMER_DELAY_SEC,
    TIMER_DELIVER_MS,
    TIMER_OUT_MS,
    WAIT,
    get_property,
    remove_properties,
    with_property,
)
from remoting.messages.remade import one_try_more
from store.derived.dispatch import is_queued
from store.put.plugin_api import PutResult, PutStatus

if TYPE_CHECKING:
    from broker.tables.groups import SubscriptionGroup, SubscriptionGroups
    from broker.tables.topics import Topics
    from broker.turns.turn import Turn
    from store.message_store import MessageStore

__all__ = ["SendBackProcessor", "retry_message"]

_FIRST_WITH_MAX_RECONSUME = 121  # V3_4_9
_FIRST_RETRY_LEVEL = 3
_TRANSACTION = int(SysFlag.TRANSACTION_ROLLBACK)
_REMADE = (
    *OWN_PROPERTIES,
    REAL_TOPIC,
    REAL_QID,
    TIMER_DELAY_MS,
    TIMER_DELAY_SEC,
    TIMER_DELIVER_MS,
    TIMER_OUT_MS,
    DELAY,
    WAIT,
)


def retry_message(stored: StoredMessage, topic: str, queue_id: int, delay_level: int) -> Message:
    """Make the message that is stored for the next try; ``delay_level`` 0 means at once (dead letters)."""
    properties = remove_properties(stored.properties, _REMADE)
    if get_property(properties, RETRY_TOPIC) is None:
        properties = with_property(properties, RETRY_TOPIC, stored.topic)
    if get_property(properties, ORIGIN_MESSAGE_ID) is None:
        properties = with_property(properties, ORIGIN_MESSAGE_ID, stored.message_id)
    properties = with_property(properties, WAIT, "false")
    properties = with_property(properties, DELAY, str(delay_level))
    message = stored.message()
    # With these bits the copy would get no entry in its retry queue.
    if not is_queued(message.sys_flag):
        message.sys_flag &= ~_TRANSACTION
    message.topic = topic
    message.queue_id = queue_id
    message.properties = properties
    message.reconsume_times = one_try_more(message.reconsume_times)
    message.prepared_offset = 0
    return message


class SendBackProcessor:
    """Answers send-backs.

    Args:
        store: Where the message is read.
        topics, groups: The broker's tables.
        turn: Where the new message is gathered.
        now_ms: The clock; reading the message takes time.
        permission: The broker's own permission (``brokerPermission``).
        address: The broker's address, for remarks.
        random: Picks a queue.
        sent_back: Told the group and the first topic of each message that was stored again.
        may: Says whether the asker may read the message's topic.
    """

    def __init__(
        self,
        *,
        store: MessageStore,
        topics: Topics,
        groups: SubscriptionGroups,
        turn: Turn,
        now_ms: Callable[[], int],
        permission: Callable[[], int] = lambda: 6,
        address: str = "127.0.0.1",
        random: Random | None = None,
        sent_back: Callable[[str, str], None] = lambda *_: None,
        may: May = everybody_may,
    ) -> None:
        self._store = store
        self._topics = topics
        self._groups = groups
        self._turn = turn
        self._now_ms = now_ms
        self._permission = permission
        self._address = address
        self._random = random or Random()
        self._sent_back = sent_back
        self._may = may

    def handlers(self) -> Mapping[int, Handler]:
        """List what it answers."""
        return {RequestCode.CONSUMER_SEND_MSG_BACK: self.send_back}

    def send_back(
        self,
        channel: Channel,
        command: RemotingCommand,
        _now_ms: int,
    ) -> RemotingCommand | Coroutine[Any, Any, RemotingCommand | None]:
        """CONSUMER_SEND_MSG_BACK: store a message again for its group."""
        header = SendBackHeader(command.ext)
        group = self._groups.find(header.group)
        if group is None:
            return command.reply(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, group_not_exist(header.group, self._groups.full())
            )
        if not self._permission() & Permission.WRITE:
            remark = f"the broker[{self._address}] sending message is forbidden"
            return command.reply(ResponseCode.NO_PERMISSION, remark)
        # As Apache's broker: a group without retry queues gives up what it sends back.
        if group.retry_queue_nums <= 0:
            return command.reply()
        topic = self._topics.create_for_group(RETRY_PREFIX + group.name, group.retry_queue_nums)
        if not topic.writable:
            return command.reply(ResponseCode.NO_PERMISSION, f"the topic[{topic.name}] sending message is forbidden")
        return self._store_again(channel, command, header, group)

    def _find(self, offset: int) -> StoredMessage | None:
        """Read the message that is sent back; None if there is none. Any thread."""
        record = self._store.find_record(offset)
        if record is None:
            return None
        try:
            return decode_record(record)
        except RecordError:
            return None

    async def _store_again(
        self, channel: Channel, command: RemotingCommand, header: SendBackHeader, group: SubscriptionGroup
    ) -> RemotingCommand | None:
        stored = await asyncio.to_thread(self._find, header.offset)
        if stored is None:
            return command.reply(ResponseCode.SYSTEM_ERROR, f"look message by offset failed, {header.offset}")
        refusal = self._may(channel, command, [(stored.topic, SUB)])
        if refusal is not None:
            return refusal
        most = group.retry_max_times
        if command.version >= _FIRST_WITH_MAX_RECONSUME and header.max_reconsume_times is not None:
            most = header.max_reconsume_times
        if stored.reconsume_times >= most or header.delay_level < 0:
            topic = self._topics.create_for_group(DLQ_PREFIX + group.name, 1)
            message = retry_message(stored, topic.name, 0, 0)
        else:
            # Level 0 leaves the choice to the broker: each try waits for longer.
            level = header.delay_level or _FIRST_RETRY_LEVEL + stored.reconsume_times
            queue_id = self._random.randrange(group.retry_queue_nums)
            message = retry_message(stored, RETRY_PREFIX + group.name, queue_id, level)

        def answer(results: list[PutResult]) -> RemotingCommand:
            status = results[0].status
            if status is PutStatus.PUT_OK:
                self._sent_back(group.name, get_property(stored.properties, RETRY_TOPIC) or stored.topic)
                return command.reply()
            return command.reply(ResponseCode.SYSTEM_ERROR, results[0].remark or status.name)

        return self._turn.put_request(channel, command, [message], answer, self._now_ms(), copies=True)
