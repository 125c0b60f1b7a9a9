"""Checks of every send: topic, queue and permission. Also the properties that only a broker may set."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING

from broker.net.channel import Channel, peer_text
from broker.net.remarks import group_not_exist, topic_not_exist
from broker.tables.topic_config import TopicConfig
from broker.tables.topic_names import NOT_ALLOWED_TO_SEND, RETRY_PREFIX, topic_problem
from broker.tables.topics import Topics
from remoting.codes import Permission, ResponseCode, SysFlag
from remoting.command import RemotingCommand
from remoting.headers import SendHeader
from remoting.messages.properties import (
    CLUSTER,
    DELAY,
    MSG_REGION,
    OWN_PROPERTIES,
    POP_CK,
    TRACE_ON,
    TRAN_MSG,
    get_property,
    remove_properties,
    without_own,
)
from store.put.plugin_api import PutStatus

if TYPE_CHECKING:
    from broker.tables.groups import SubscriptionGroups
    from broker.turns.turn import Turn

__all__ = ["INNER_BATCH", "NOT_CLIENTS", "TRANSACTION", "Admission", "cleaned", "cleaned_in_batch", "is_half"]

NOT_CLIENTS = (*OWN_PROPERTIES, POP_CK)
"""Properties that no client may set."""
_BROKERS_OWN = (*NOT_CLIENTS, MSG_REGION, TRACE_ON, CLUSTER)
"""Properties that only a broker may set in a message that is sent alone."""
INNER_BATCH = 0xC0
"""Bits of sysFlag: several messages in one record."""
TRANSACTION = int(SysFlag.TRANSACTION_ROLLBACK)
"""Bits of sysFlag: any part of a transaction."""
_UNIT_TOPIC, _UNIT_SUB_TOPIC = 1, 2


class Admission:
    """Finds or makes the topic and the queue of a send, or refuses it.

    Args:
        topics, groups: The broker's tables.
        turn: Makes replies with the fields that all replies to sends have.
        permission: The broker's own permission (``brokerPermission``).
        address: The broker's address, for remarks.
        random: Picks a queue for senders that leave the choice to the broker.
    """

    def __init__(
        self,
        *,
        topics: Topics,
        groups: SubscriptionGroups,
        turn: Turn,
        permission: Callable[[], int] = lambda: 6,
        address: str = "127.0.0.1",
        random: Random | None = None,
    ) -> None:
        self._topics = topics
        self._groups = groups
        self._turn = turn
        self._permission = permission
        self._address = address
        self._random = random or Random()

    def admit(
        self, channel: Channel, command: RemotingCommand, header: SendHeader
    ) -> tuple[TopicConfig, int] | RemotingCommand:
        """Find or create the topic, and find the queue, or refuse: the checks that sends and replies share."""
        name = header.topic
        topic = self._topics.get(name)
        if topic is not None and topic.order and not self._permission() & Permission.WRITE:
            remark = f"the broker[{self._address}] sending message is forbidden"
            return self.reply(command, ResponseCode.NO_PERMISSION, remark)
        problem = topic_problem(name)
        if problem is not None:
            return self.reply(command, ResponseCode.INVALID_PARAMETER, problem)
        if name in NOT_ALLOWED_TO_SEND:
            return self.reply(command, ResponseCode.NO_PERMISSION, f"Sending message to topic[{name}] is forbidden.")
        if topic is None:
            group = name.removeprefix(RETRY_PREFIX)
            if group != name and self._groups.find(group) is None:
                remark = group_not_exist(group, self._groups.full())
                return self.reply(command, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, remark)
            topic = self._create(header)
            if topic is None:
                return self.reply(command, ResponseCode.TOPIC_NOT_EXIST, topic_not_exist(name, self._topics.full()))
        if not topic.writable:
            remark = f"the topic[{name}] sending message is forbidden"
            return self.reply(command, ResponseCode.NO_PERMISSION, remark)
        queue_id = header.queue_id
        if queue_id < 0:
            queue_id = self._random.randrange(topic.write_queue_nums) if topic.write_queue_nums > 0 else 0
        if queue_id >= topic.queue_limit:
            remark = f"request queueId[{header.queue_id}] is illegal, {topic!r} Producer: {peer_text(channel)}"
            return self.reply(command, ResponseCode.INVALID_PARAMETER, remark)
        return topic, queue_id

    def _create(self, header: SendHeader) -> TopicConfig | None:
        """Create the topic of a first send, if that is allowed."""
        retry = header.topic.startswith(RETRY_PREFIX)
        sys_flag = 0 if not header.unit_mode else _UNIT_SUB_TOPIC if retry else _UNIT_TOPIC
        topic = self._topics.create_for_send(header.topic, header.default_topic, header.default_topic_queues, sys_flag)
        if topic is None and retry:
            topic = self._topics.create_for_group(header.topic, 1, sys_flag)
        return topic

    def overloaded(self, command: RemotingCommand) -> RemotingCommand:
        """Flow control, as Apache's broker answers when the queue in front of its send threads is full."""
        return self.reply(command, ResponseCode.SYSTEM_BUSY, self._turn.busy_remark())

    def reply(self, command: RemotingCommand, code: ResponseCode, remark: str) -> RemotingCommand:
        """Make a reply that refuses a send with this code."""
        return command.reply(code, remark, dict(self._turn.reply_ext))

    def refuse_inner_batch(self, command: RemotingCommand, header: SendHeader) -> RemotingCommand:
        """Refuse a message whose sysFlag says that it is an inner batch."""
        remark = f"sysFlag {header.sys_flag} says inner batch, which is not supported"
        return self._turn.refusal(command, PutStatus.MESSAGE_ILLEGAL, remark)


def is_half(header: SendHeader, properties: str) -> bool:
    """True if it is a transaction's half message."""
    level = get_property(properties, DELAY) or ""
    # Cut to 20 digits: `int` raises for thousands of them.
    retried = header.reconsume_times > 0 and level[:20].isdecimal() and int(level[:20]) > 0  # clients before 4.6.1
    half = (get_property(properties, TRAN_MSG) or "").lower() == "true" and not retried
    return half or header.sys_flag & SysFlag.TRANSACTION_ROLLBACK == SysFlag.TRANSACTION_PREPARED


def cleaned(properties: str) -> str:
    """Remove properties that only a broker may set; the rest ends with its separator.

    A message that a broker has sent out has TRACE_ON together with the other two. If a client sets one of these alone,
    the broker's own, which is appended behind it, counts.
    """
    if "TRACE_ON" in properties or "__TW_" in properties or "POP_CK" in properties:
        properties = remove_properties(properties, _BROKERS_OWN)
    return properties + "\x02" if properties and properties[-1] != "\x02" else properties


def cleaned_in_batch(properties: str) -> str:
    """`cleaned` for a message of a batch: CLUSTER, MSG_REGION and TRACE_ON stay as sent.

    Brokers add none of them in a batch, Apache's neither. So whoever sends messages on in a batch can keep the CLUSTER
    of a request, which a consumer needs to reply to it.
    """
    properties = without_own(properties)
    return properties + "\x02" if properties and properties[-1] != "\x02" else properties
