"""Offsets: a group's own (QUERY_CONSUMER_OFFSET 14, UPDATE_CONSUMER_OFFSET 15) and a queue's
(SEARCH_OFFSET_BY_TIMESTAMP 29, GET_MAX_OFFSET 30, GET_MIN_OFFSET 31, GET_EARLIEST_MSG_STORETIME 32).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from broker.net.channel import Channel
from broker.net.processor import Handler
from broker.tables.topic_names import RETRY_PREFIX
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand
from remoting.headers import HeaderError, need_int, need_long, need_str, opt_bool

if TYPE_CHECKING:
    from broker.tables.groups import SubscriptionGroups
    from broker.tables.offsets import ConsumerOffsets
    from broker.tables.topics import Topics
    from store.message_store import MessageStore

__all__ = ["OffsetProcessor"]


class OffsetProcessor:
    """Answers requests for offsets.

    Args:
        store: Knows the queues.
        topics, groups, offsets: The broker's tables.
        in_memory_bytes: Size of the CommitLog's end that counts as in memory. If the first message of a queue is still
            in memory, a new group begins there, whatever it asked for.
    """

    def __init__(
        self,
        *,
        store: MessageStore,
        topics: Topics,
        groups: SubscriptionGroups,
        offsets: ConsumerOffsets,
        in_memory_bytes: int = 8 << 30,
    ) -> None:
        self._store = store
        self._topics = topics
        self._groups = groups
        self._offsets = offsets
        self._in_memory_bytes = in_memory_bytes

    def handlers(self) -> Mapping[int, Handler]:
        """List what it answers."""
        return {
            RequestCode.QUERY_CONSUMER_OFFSET: self.query,
            RequestCode.UPDATE_CONSUMER_OFFSET: self.update,
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: self.search,
            RequestCode.GET_MAX_OFFSET: self.max_offset,
            RequestCode.GET_MIN_OFFSET: self.min_offset,
            RequestCode.GET_EARLIEST_MSG_STORETIME: self.earliest,
        }

    def query(self, _channel: Channel, command: RemotingCommand, _now_ms: int) -> RemotingCommand:
        """QUERY_CONSUMER_OFFSET: a group's offset, or 0 if it begins there; else QUERY_NOT_FOUND."""
        ext = command.ext
        topic, queue_id = need_str(ext, "topic"), need_int(ext, "queueId")
        offset = self._offsets.get(need_str(ext, "consumerGroup"), topic, queue_id)
        if offset >= 0:
            return command.reply(ext={"offset": str(offset)})
        if not opt_bool(ext, "setZeroIfNotFound", True):
            remark = "Not found, do not set to zero, maybe this group boot first"
            return command.reply(ResponseCode.QUERY_NOT_FOUND, remark)
        if self._is_unwritten(topic, queue_id) or self._begins_in_memory(topic, queue_id):
            return command.reply(ext={"offset": "0"})
        remark = "Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first"
        return command.reply(ResponseCode.QUERY_NOT_FOUND, remark)

    def update(self, _channel: Channel, command: RemotingCommand, _now_ms: int) -> RemotingCommand:
        """UPDATE_CONSUMER_OFFSET: note a group's offset."""
        ext = command.ext
        group, topic = need_str(ext, "consumerGroup"), need_str(ext, "topic")
        if self._groups.get(group) is None:
            return command.reply(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"Group {group} not exist!")
        config = self._topics.get(topic)
        if config is None:
            return command.reply(ResponseCode.TOPIC_NOT_EXIST, f"Topic {topic} not exist!")
        for name, text in (("queueId", "QueueId"), ("commitOffset", "Offset")):
            if name not in ext:
                return command.reply(ResponseCode.INVALID_PARAMETER, f"{text} is null, topic is {topic}")
        try:
            queue_id, offset = need_int(ext, "queueId"), need_long(ext, "commitOffset")
        except HeaderError as error:
            return command.reply(ResponseCode.INVALID_PARAMETER, f"{error}, topic is {topic}")
        if self._offsets.has_reset(group, topic, queue_id):
            return command.reply(remark="Offset has been previously reset")
        queues = max(config.read_queue_nums, config.write_queue_nums)
        if not 0 <= queue_id < queues and queue_id not in self._offsets.queues(group, topic):
            remark = f"queueId[{queue_id}] is illegal, topic:[{topic}] has queues 0 to {queues - 1}"
            return command.reply(ResponseCode.INVALID_PARAMETER, remark)
        if not self._offsets.commit(group, topic, queue_id, offset):
            return command.reply(ResponseCode.SYSTEM_ERROR, f"not committed: {self._offsets.full()}")
        return command.reply()

    def search(self, _channel: Channel, command: RemotingCommand, _now_ms: int) -> RemotingCommand:
        """SEARCH_OFFSET_BY_TIMESTAMP: the first message stored at a time or later (UPPER: the last one until then)."""
        ext = command.ext
        upper = ext.get("boundaryType", "").upper() == "UPPER"
        offset = self._store.offset_by_time(
            need_str(ext, "topic"), need_int(ext, "queueId"), need_long(ext, "timestamp"), upper
        )
        return command.reply(ext={"offset": str(offset)})

    def max_offset(self, _channel: Channel, command: RemotingCommand, _now_ms: int) -> RemotingCommand:
        """GET_MAX_OFFSET: the offset of the next message."""
        offset = self._store.max_offset(need_str(command.ext, "topic"), need_int(command.ext, "queueId"))
        return command.reply(ext={"offset": str(offset)})

    def min_offset(self, _channel: Channel, command: RemotingCommand, _now_ms: int) -> RemotingCommand:
        """GET_MIN_OFFSET: the offset of the oldest message in the store."""
        offset = self._store.min_offset(need_str(command.ext, "topic"), need_int(command.ext, "queueId"))
        return command.reply(ext={"offset": str(offset)})

    def earliest(self, _channel: Channel, command: RemotingCommand, _now_ms: int) -> RemotingCommand:
        """GET_EARLIEST_MSG_STORETIME: when the oldest message of a queue was stored; -1 if there is none."""
        topic, queue_id = need_str(command.ext, "topic"), need_int(command.ext, "queueId")
        stored_ms = self._store.store_time_at(topic, queue_id, self._store.min_offset(topic, queue_id))
        return command.reply(ext={"timestamp": str(stored_ms)})

    def _is_unwritten(self, topic: str, queue_id: int) -> bool:
        """True if a queue has never had a message. Then a new group begins at 0, wherever it wanted to begin.

        Apache answers "not found" here. A client that begins at the end then asks for the end (GET_MAX_OFFSET), and
        misses messages sent between the two requests. Retry topics need no such answer: clients begin at their start
        anyway.
        """
        if topic.startswith(RETRY_PREFIX):
            return False
        known = self._topics.get(topic)
        queues = 0 if known is None else max(known.read_queue_nums, known.write_queue_nums)
        return 0 <= queue_id < queues and self._store.max_offset(topic, queue_id) == 0

    def _begins_in_memory(self, topic: str, queue_id: int) -> bool:
        """True if a queue still has its very first message, and that lies in the last bytes of the CommitLog."""
        store = self._store
        if store.min_offset(topic, queue_id) > 0:
            return False
        first = store.pull(topic, queue_id, 0, 1, 1, None).positions
        return bool(first) and store.commit_log.end - first[0][0] <= self._in_memory_bytes
