"""Requests that read without popping: PEEK_MESSAGE (200052), NOTIFICATION (200054) and POLLING_INFO (200055)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from broker.net.channel import KEPT_OF_ONE_MAX_BYTES, Channel
from broker.net.processor import Handler
from broker.pop.handle import RETRY_V1, RETRY_V2, retry_topic
from broker.pop.pop_polls import Mark, PopPolls
from broker.pop.pop_queues import PopQueues
from broker.pop.requests import Checks, PopHeader, bare
from broker.pulling.cold_reads import ColdReads
from broker.pulling.long_poll import Hold, LongPoll
from broker.pulling.pull_request import PullLimits
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand, encode_command
from store.message_store import MessageStore, PullStatus

if TYPE_CHECKING:
    from broker.tables.topic_config import TopicConfig
    from broker.tables.topics import Topics

__all__ = ["LookProcessor"]

_QUEUES_MAX = 1_024
"""Most queues of a topic that one request looks at; the next one begins at another queue."""
_KEPT_BYTES = 2_000
_OF_ONE_MAX = 4_096
_HOLD_MAX_MS = 300_000


class LookProcessor:
    """Answers these requests.

    Args:
        store: Messages are read from it.
        topics: Tells which retry topics exist.
        checks: Refuses requests that may not read a topic.
        queues: The queues that are popped.
        polls: Knows which held requests an arrival wakes.
        long_poll: Holds requests that wait.
        cold_reads: Reads message records.
        limits: Most bytes of one reply.
        now_ms: The clock, for requests that have waited.
        waiting: Returns how many requests wait for messages or the disk, and how many may.
    """

    def __init__(
        self,
        *,
        store: MessageStore,
        topics: Topics,
        checks: Checks,
        queues: PopQueues,
        polls: PopPolls,
        long_poll: LongPoll,
        cold_reads: ColdReads,
        limits: PullLimits,
        now_ms: Callable[[], int],
        waiting: Callable[[], tuple[int, int]],
    ) -> None:
        self._store = store
        self._topics = topics
        self._checks = checks
        self._queues = queues
        self._polls = polls
        self._long_poll = long_poll
        self._cold_reads = cold_reads
        self._limits = limits
        self._now_ms = now_ms
        self._waiting = waiting
        self._turn = 0

    def handlers(self) -> Mapping[int, Handler]:
        """List what it answers."""
        return {
            RequestCode.PEEK_MESSAGE: self.peek,
            RequestCode.NOTIFICATION: self.notify,
            RequestCode.POLLING_INFO: self.polling,
        }

    def _queue_list(self, header: PopHeader, topic: TopicConfig) -> list[tuple[str, int]]:
        """List the queues that a request is about, with their retry queues, in the order to look at them."""
        self._turn += 1
        turn = self._turn
        if header.queue_id >= 0:
            found = [(header.topic, header.queue_id)]
        else:
            count = topic.read_queue_nums
            found = [(header.topic, (turn + index) % count) for index in range(min(count, _QUEUES_MAX))]
        retries = []
        for version in (RETRY_V1, RETRY_V2):
            name = retry_topic(header.topic, header.group, version)
            config = self._topics.get(name)
            if config is not None:
                retries += [(name, queue_id) for queue_id in range(min(config.read_queue_nums, _QUEUES_MAX))]
        return found + retries if turn % 5 else retries + found

    # ------------------------------------------------------------------------------------------------ peek

    async def peek(self, channel: Channel, command: RemotingCommand, now_ms: int) -> RemotingCommand:
        """PEEK_MESSAGE: the messages that a pop would get first. They are not popped."""
        header = PopHeader(command.ext, now_ms, "maxMsgNums")
        topic = self._checks.readable(channel, command, header)
        if isinstance(topic, RemotingCommand):
            return topic
        bodies: list[bytes] = []
        count = size = rest = 0
        for name, queue_id in self._queue_list(header, topic):
            end = self._store.max_offset(name, queue_id)
            begin = max(self._queues.next_of(header.group, name, queue_id), self._store.min_offset(name, queue_id))
            if end <= begin:
                continue
            rest += end - begin
            room = header.max_count - count
            if room <= 0 or size >= self._limits.hot_bytes:
                continue
            result = self._store.pull(name, queue_id, begin, room, self._limits.hot_bytes - size, None)
            body = await self._cold_reads.read(result.positions) if result.status is PullStatus.FOUND else b""
            if body:
                bodies.append(body)
                count += len(result.positions)
                size += len(body)
        ext = {"popTime": "0", "invisibleTime": "0", "reviveQid": "0", "restNum": str(rest)}
        if not count:
            return command.reply(ResponseCode.PULL_NOT_FOUND, "NO_MESSAGE_IN_QUEUE", ext)
        return command.reply(ResponseCode.SUCCESS, "FOUND", ext, b"".join(bodies))

    # ------------------------------------------------------------------------------------------------ notification

    def notify(self, channel: Channel, command: RemotingCommand, now_ms: int) -> RemotingCommand | None:
        """NOTIFICATION: whether there is a message to pop, now or within the request's pollTime."""
        header = PopHeader(command.ext, now_ms, "pollTime")
        topic = self._checks.readable(channel, command, header)
        if isinstance(topic, RemotingCommand):
            return topic
        mark = self._polls.add(header.topic, header.group, header.queue_id)
        there = self._is_something(header, topic, now_ms)
        if there or header.poll_ms <= 0 or header.end_ms <= now_ms or command.is_oneway:
            return self._notified(command, there, False)
        waiting, most = self._waiting()
        if waiting >= most or len(channel.state.holds) >= _OF_ONE_MAX or channel.kept_bytes >= KEPT_OF_ONE_MAX_BYTES:
            return self._notified(command, False, True)
        self._hold(channel, command, header, topic, now_ms, mark)
        return None

    def _hold(
        self,
        channel: Channel,
        command: RemotingCommand,
        header: PopHeader,
        topic: TopicConfig,
        now_ms: int,
        mark: Mark,
    ) -> None:
        key = self._polls.key(header.topic, header.group, header.queue_id)
        until_ms = min(header.end_ms, now_ms + _HOLD_MAX_MS)

        # The function below keeps it while the request waits: fields and body would stay in memory.
        command = bare(command)

        def again(final: bool) -> bool:
            there = self._is_something(header, topic, self._now_ms())
            if there or final:
                channel.send(encode_command(self._notified(command, there, False)))
            return there or final

        self._long_poll.hold(Hold(channel, key, until_ms, again, _KEPT_BYTES + 4 * len(header.expression)))
        if self._polls.add(header.topic, header.group, header.queue_id) != mark:
            self._polls.wake(header.topic, header.group)

    def _is_something(self, header: PopHeader, topic: TopicConfig, now_ms: int) -> bool:
        for name, queue_id in self._queue_list(header, topic):
            end = self._store.max_offset(name, queue_id)
            if end == 0:
                continue
            queue = self._queues.in_flight.find(header.group, name, queue_id)
            if queue is not None and ((header.order and queue.count) or self._queues.room(queue) <= 0):
                continue
            block = None if queue is None else queue.block
            if block is not None and block.waiting:
                if not block.blocks(header.order_id, now_ms):
                    return True
            elif end > self._queues.next_of(header.group, name, queue_id):
                return True
        return False

    @staticmethod
    def _notified(command: RemotingCommand, there: bool, full: bool) -> RemotingCommand:
        return command.reply(ext={"hasMsg": str(there).lower(), "pollingFull": str(full).lower()})

    # ------------------------------------------------------------------------------------------------ polling info

    def polling(self, channel: Channel, command: RemotingCommand, now_ms: int) -> RemotingCommand:
        """POLLING_INFO: how many pops of a group wait for a queue (-1: for all queues)."""
        header = PopHeader(command.ext, now_ms)
        topic = self._checks.readable(channel, command, header)
        if isinstance(topic, RemotingCommand):
            return topic
        count = self._polls.waiting(header.topic, header.group, header.queue_id)
        return command.reply(ext={"pollingNum": str(count)})
