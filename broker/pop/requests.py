"""Headers of the requests about popping, and the checks they share, in Apache's order and words."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from hashlib import sha256
from typing import TYPE_CHECKING

from broker.net.channel import Channel, peer_text
from broker.net.remarks import FAQ, topic_not_exist
from remoting.codes import Permission, ResponseCode
from remoting.command import RemotingCommand
from remoting.headers import need_int, need_long, need_str, opt_bool, opt_long, opt_str

if TYPE_CHECKING:
    from broker.tables.groups import SubscriptionGroups
    from broker.tables.topic_config import TopicConfig
    from broker.tables.topics import Topics

__all__ = ["INVISIBLE_MAX_MS", "POP_MAX", "Checks", "MessageHeader", "PopHeader", "bare"]

POP_MAX = 32
INVISIBLE_MAX_MS = 12 * 3_600_000
"""The longest invisible time; the proxy's own limit (``maxInvisibleTimeMills``)."""
_READ = int(Permission.READ)
_ATTEMPT_CHARS_MAX = 128
"""Longest attempt id kept as it is; the proxy's have 36 characters."""


def _short(attempt_id: str) -> str:
    """Return an attempt id, or a hash of a long one: one is kept for each queue popped in order."""
    if len(attempt_id) <= _ATTEMPT_CHARS_MAX:
        return attempt_id
    return sha256(attempt_id.encode()).hexdigest()


class PopHeader:
    """The header of POP_MESSAGE, PEEK_MESSAGE, NOTIFICATION and POLLING_INFO; each uses some of the fields."""

    __slots__ = (
        "attempt_id", "born_ms", "expression", "expression_type", "group", "init_mode", "invisible_ms", "max_count",
        "order", "poll_ms", "queue_id", "topic",
    )  # fmt: skip

    def __init__(self, ext: Mapping[str, str], now_ms: int, *needed: str) -> None:
        """``needed`` names numbers that must be there. Raises HeaderError for a field that is missing or unreadable."""
        self.group = need_str(ext, "consumerGroup")
        self.topic = need_str(ext, "topic")
        self.queue_id = need_int(ext, "queueId")
        read = {name: need_long(ext, name) for name in needed}
        self.max_count = need_int(ext, "maxMsgNums") if "maxMsgNums" in read else 0
        self.init_mode = need_int(ext, "initMode") if "initMode" in read else 0
        self.invisible_ms = read.get("invisibleTime", 0)
        self.poll_ms = read.get("pollTime", 0)
        self.born_ms = opt_long(ext, "bornTime") or now_ms
        self.expression_type = opt_str(ext, "expType")
        self.expression = opt_str(ext, "exp")
        self.order = opt_bool(ext, "order")
        self.attempt_id = _short(opt_str(ext, "attemptId"))

    @property
    def order_id(self) -> str:
        """The attempt that may have blocked messages again; empty for a pop without order."""
        return self.attempt_id if self.order else ""

    @property
    def end_ms(self) -> int:
        """Epoch ms until which the request may be held."""
        return self.born_ms + self.poll_ms


class MessageHeader:
    """The header of ACK_MESSAGE and CHANGE_MESSAGE_INVISIBLETIME: one message and its handle's text."""

    __slots__ = ("group", "handle", "offset", "queue_id", "topic")

    def __init__(self, ext: Mapping[str, str]) -> None:
        self.group = need_str(ext, "consumerGroup")
        self.topic = need_str(ext, "topic")
        self.queue_id = need_int(ext, "queueId")
        self.handle = need_str(ext, "extraInfo")
        self.offset = need_long(ext, "offset")


def bare(command: RemotingCommand) -> RemotingCommand:
    """Copy a request without fields and body; a request that waits needs no more to be answered."""
    return RemotingCommand(
        command.code, command.opaque, command.flag, command.language, command.version,
        serialize_type=command.serialize_type,
    )  # fmt: skip


class Checks:
    """Checks a request before its queues are looked at.

    Args:
        topics, groups: The broker's tables.
        permission: The broker's own permission (``brokerPermission``).
        address: The broker's address, for remarks.
    """

    def __init__(self, topics: Topics, groups: SubscriptionGroups, permission: Callable[[], int], address: str) -> None:
        self._topics = topics
        self._groups = groups
        self._permission = permission
        self._address = address

    def topic(self, name: str) -> TopicConfig | None:
        """Find a topic; None if it does not exist."""
        return self._topics.get(name)

    def readable(
        self, channel: Channel, command: RemotingCommand, header: PopHeader, verb: str = "peeking", held: bool = False
    ) -> TopicConfig | RemotingCommand:
        """Check that a group may read a topic; returns the topic, or the reply that refuses.

        A request that was held creates no group: its group existed before.
        """
        if not self._permission() & _READ:
            return command.reply(ResponseCode.NO_PERMISSION, f"the broker[{self._address}] {verb} message is forbidden")
        if header.max_count > POP_MAX or header.max_count < 0:
            than = f"greater than {POP_MAX}" if header.max_count > 0 else "less than 0"
            remark = f"the broker[{self._address}] pop message's num is {than}: {header.max_count}"
            return command.reply(ResponseCode.INVALID_PARAMETER, remark)
        topic = self._topics.get(header.topic)
        if topic is None:
            return command.reply(ResponseCode.TOPIC_NOT_EXIST, topic_not_exist(header.topic, " "))
        if not topic.readable:
            remark = f"the topic[{header.topic}] peeking message is forbidden"
            return command.reply(ResponseCode.NO_PERMISSION, remark)
        if header.queue_id >= topic.read_queue_nums:
            remark = self._bad_queue(channel, topic, header.queue_id)
            return command.reply(ResponseCode.INVALID_PARAMETER, remark)
        group = self._groups.table.get(header.group) if held else self._groups.find(header.group)
        if group is None:
            remark = f"subscription group [{header.group}] does not exist,{self._groups.full()} {FAQ}"
            return command.reply(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, remark)
        if not group.consume_enable:
            return command.reply(ResponseCode.NO_PERMISSION, f"subscription group no permission, {header.group}")
        return topic

    def queue_there(self, channel: Channel, command: RemotingCommand, header: MessageHeader) -> RemotingCommand | None:
        """Refuse an ack or a change if its queue does not exist."""
        topic = self._topics.get(header.topic)
        if topic is None:
            return command.reply(ResponseCode.TOPIC_NOT_EXIST, topic_not_exist(header.topic, " "))
        if not 0 <= header.queue_id < topic.read_queue_nums:
            remark = self._bad_queue(channel, topic, header.queue_id)
            return command.reply(ResponseCode.MESSAGE_ILLEGAL, remark)
        return None

    @staticmethod
    def _bad_queue(channel: Channel, topic: TopicConfig, queue_id: int) -> str:
        return (
            f"queueId[{queue_id}] is illegal, topic:[{topic.name}] topicConfig.readQueueNums:[{topic.read_queue_nums}] "
            f"consumer:[{peer_text(channel)}]"
        )
