"""Pulls: PULL_MESSAGE (11) and LITE_PULL_MESSAGE (361), with long polling.

A pull names a queue and an offset. It gets the messages from there on that match its subscription, with the bytes of
the CommitLog. The subscription comes from the group's heartbeats, unless the request carries its own. A pull that finds
nothing at the queue's end is held if it allows that (see `broker.pulling.long_poll`); all other pulls are answered at
once.

The broker keeps only pulls that are held or wait for a cold disk. Their number is limited, for all connections together
and for each: further pulls get SYSTEM_BUSY in Apache's words, and clients try again after a moment. For a waiting pull
only the data that its answer needs are kept, not the request with its body and fields; their size is counted for its
connection.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any

from broker.net.channel import KEPT_OF_ONE_MAX_BYTES, Channel, peer_text
from broker.net.clients import Clients
from broker.net.processor import Handler
from broker.net.remarks import FAQ, topic_not_exist
from broker.pulling.cold_reads import ColdReads
from broker.pulling.long_poll import Hold, LongPoll
from broker.pulling.pull_request import PullLimits, PullRequest
from broker.pulling.selection import Selection, forbidden
from remoting.codes import Permission, PullSysFlag, RequestCode, ResponseCode
from remoting.command import RemotingCommand, encode_command
from remoting.headers import PullHeader
from store.matching import pull_matching
from store.message_store import MessageStore, PullResult, PullStatus

if TYPE_CHECKING:
    from broker.tables.groups import SubscriptionGroups
    from broker.tables.offsets import ConsumerOffsets
    from broker.tables.topics import Topics

__all__ = ["PullProcessor"]

_LOG = logging.getLogger(__name__)

_CODES: dict[PullStatus, ResponseCode] = {
    PullStatus.FOUND: ResponseCode.SUCCESS,
    PullStatus.NO_MATCHED_MESSAGE: ResponseCode.PULL_RETRY_IMMEDIATELY,
    PullStatus.MESSAGE_WAS_REMOVING: ResponseCode.PULL_RETRY_IMMEDIATELY,
    PullStatus.OFFSET_OVERFLOW_ONE: ResponseCode.PULL_NOT_FOUND,
    PullStatus.OFFSET_OVERFLOW_BADLY: ResponseCode.PULL_OFFSET_MOVED,
    PullStatus.OFFSET_TOO_SMALL: ResponseCode.PULL_OFFSET_MOVED,
    PullStatus.NO_MESSAGE_IN_QUEUE: ResponseCode.PULL_OFFSET_MOVED,  # at offset 0: PULL_NOT_FOUND
    PullStatus.NO_MATCHED_LOGIC_QUEUE: ResponseCode.PULL_OFFSET_MOVED,  # at offset 0: PULL_NOT_FOUND
}
# Plain numbers: & of an enum costs a microsecond.
_COMMIT_OFFSET, _SUSPEND, _READ = int(PullSysFlag.COMMIT_OFFSET), int(PullSysFlag.SUSPEND), int(Permission.READ)
_SHORT_POLL_MS = 1_000
_LONG_POLL_MAX_MS = 300_000
_LOOKS_MAX = 16
_WAITING_OF_ONE_MAX = 4_096
_FILTER_LOOKS_MAX = 4
_EMPTY = (PullStatus.NO_MESSAGE_IN_QUEUE, PullStatus.NO_MATCHED_LOGIC_QUEUE)

# forbiddenType of a NO_PERMISSION reply
_BROKER_FORBIDDEN, _GROUP_FORBIDDEN, _TOPIC_FORBIDDEN = range(1, 4)


class PullProcessor:
    """Answers pulls.

    Args:
        store: Where messages are read.
        topics, groups, clients, offsets: The broker's tables.
        long_poll: Keeps what waits.
        cold_reads: Reads bodies.
        limits: Most messages and bytes of one pull.
        spawn: Runs a coroutine that answers later.
        permission: The broker's own permission (``brokerPermission``).
        may_hold: Whether pulls are held as long as they allow (``longPollingEnable``), or for a second only.
        by_property: Whether SQL92 subscriptions are served (``enablePropertyFilter``).
        address: The broker's address, for remarks.
        got: Called with group, topic, messages and bytes of each pull that got messages.
        waiting_max: Most pulls that wait for messages or for the disk (``pullThreadPoolQueueCapacity``).
    """

    def __init__(
        self,
        *,
        store: MessageStore,
        topics: Topics,
        groups: SubscriptionGroups,
        clients: Clients,
        offsets: ConsumerOffsets,
        long_poll: LongPoll,
        cold_reads: ColdReads,
        spawn: Callable[[Coroutine[Any, Any, None]], None],
        limits: PullLimits | None = None,
        permission: Callable[[], int] = lambda: 6,
        may_hold: Callable[[], bool] = lambda: True,
        by_property: Callable[[], bool] = lambda: False,
        address: str = "127.0.0.1",
        got: Callable[[str, str, int, int], None] = lambda *_: None,
        waiting_max: int = 100_000,
    ) -> None:
        self._store = store
        self._topics = topics
        self._groups = groups
        self._selection = Selection(groups, clients, by_property)
        self._offsets = offsets
        self._long_poll = long_poll
        self.waiting_max = waiting_max
        """Most pulls that may wait."""
        self._cold_reads = cold_reads
        self._spawn = spawn
        self._limits = limits or PullLimits()
        self._permission = permission
        self._may_hold = may_hold
        self._address = address
        self._got = got
        self._cold = 0  # pulls that wait for the disk
        self.found_count = 0
        """Pulls that got messages since the start."""
        self.miss_count = 0
        self.message_count = 0
        """Messages handed out since the start."""
        self.owing_count = 0
        """Answers that left messages for another whole answer behind: their consumers are behind."""

    def set_limits(self, limits: PullLimits) -> None:
        """Change the limits of a pull, from the next pull on."""
        self._limits = limits

    @property
    def waiting(self) -> int:
        """Pulls that wait, for messages or for the disk."""
        return self._long_poll.count + self._cold

    def handlers(self) -> Mapping[int, Handler]:
        """List what it answers."""
        return {RequestCode.PULL_MESSAGE: self.pull, RequestCode.LITE_PULL_MESSAGE: self.pull}

    def pull(self, channel: Channel, command: RemotingCommand, now_ms: int) -> RemotingCommand | None:
        """PULL_MESSAGE and LITE_PULL_MESSAGE."""
        channel.state.consumes = True
        header = PullHeader(command.ext)
        if command.is_oneway:
            return None  # a one-way request gets no messages
        checked = self._check(channel, command, header)
        if isinstance(checked, RemotingCommand):
            return checked
        reset = self._offsets.take_reset(header.consumer_group, header.topic, header.queue_id)
        if reset is not None:
            return self._reply_reset(checked, reset)
        result = self._look(checked)
        next_offset = header.offset if result is None else result.next_offset
        self._offsets.note_pull(header.consumer_group, header.topic, header.queue_id, next_offset)
        if header.sys_flag & _COMMIT_OFFSET:
            self._offsets.commit(header.consumer_group, header.topic, header.queue_id, header.commit_offset)
        if result is not None and not (self._is_at_end(result, header) and header.sys_flag & _SUSPEND):
            self._answer(checked, result)
            return None
        busy = self._busy(checked)
        if busy is not None:
            return busy
        if result is None:
            self._answer_later(checked)
        else:
            self._hold(checked, now_ms)
        return None

    def _busy(self, pull: PullRequest) -> RemotingCommand | None:
        """Refuse a pull that would have to wait, if too many wait."""
        waiting, of_one = self.waiting, len(pull.channel.state.holds)
        kept = pull.channel.kept_bytes
        if waiting < self.waiting_max and of_one < _WAITING_OF_ONE_MAX and kept < KEPT_OF_ONE_MAX_BYTES:
            return None
        remark = (
            f"[OVERLOAD]system busy, start flow control for a while: {waiting} pulls wait "
            f"(limit pullThreadPoolQueueCapacity={self.waiting_max}), {of_one} of them of this connection "
            f"(limit {_WAITING_OF_ONE_MAX}); its requests have {kept} bytes (limit {KEPT_OF_ONE_MAX_BYTES})"
        )
        return pull.command.reply(ResponseCode.SYSTEM_BUSY, remark)

    # ------------------------------------------------------------------------------------------------ what may be read

    def _check(self, channel: Channel, command: RemotingCommand, header: PullHeader) -> PullRequest | RemotingCommand:
        """All checks before the queue is read, in Apache's order."""
        if not self._permission() & _READ:
            remark = f"the broker[{self._address}] pulling message is forbidden"
            return forbidden(command, _BROKER_FORBIDDEN, remark)
        group = self._groups.find(header.consumer_group)
        if group is None:
            remark = f"subscription group [{header.consumer_group}] does not exist,{self._groups.full()} {FAQ}"
            return command.reply(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, remark)
        if not group.consume_enable:
            remark = f"subscription group no permission, {header.consumer_group}"
            return forbidden(command, _GROUP_FORBIDDEN, remark)
        topic = self._topics.get(header.topic)
        if topic is None:
            return command.reply(ResponseCode.TOPIC_NOT_EXIST, topic_not_exist(header.topic, " "))
        if not topic.readable:
            return forbidden(command, _TOPIC_FORBIDDEN, f"the topic[{header.topic}] pulling message is forbidden")
        if not 0 <= header.queue_id < topic.read_queue_nums:
            remark = (
                f"queueId[{header.queue_id}] is illegal, topic:[{header.topic}] "
                f"topicConfig.readQueueNums:[{topic.read_queue_nums}] consumer:[{peer_text(channel)}]"
            )
            return command.reply(ResponseCode.INVALID_PARAMETER, remark)
        wanted = self._selection.of(command, header, group)
        if isinstance(wanted, RemotingCommand):
            return wanted
        return PullRequest(channel, command, header, wanted, topic.sys_flag, group.group_sys_flag)

    # ------------------------------------------------------------------------------------------------ looking, waiting

    def _look(self, pull: PullRequest) -> PullResult | None:
        """Read the queue from where the last look ended; None if that would wait for the disk."""
        header, limits = pull.header, self._limits
        max_bytes = min(header.max_bytes, limits.hot_bytes) if header.max_bytes > 0 else limits.hot_bytes
        max_count = max(1, min(header.max_count, limits.hot_count))
        if pull.wants is not None:
            store = self._store
            return pull_matching(
                store, header.topic, header.queue_id, pull.at, max_count, max_bytes, pull.wants, store.read_hot
            )
        return self._store.pull(header.topic, header.queue_id, pull.at, max_count, max_bytes, pull.filter)

    @staticmethod
    def _is_at_end(result: PullResult, header: PullHeader) -> bool:
        """True if the pull found nothing, but may find something later."""
        status = result.status
        return status is PullStatus.OFFSET_OVERFLOW_ONE or (status in _EMPTY and header.offset == 0)

    def _answer_later(self, pull: PullRequest) -> None:
        """Read bodies that are not in memory, then answer."""
        size = pull.keep_little()
        pull.channel.keep(size)
        if not pull.channel.closed:
            self._cold += 1
            self._spawn(self._answer_cold(pull, size))

    def _hold(self, pull: PullRequest, now_ms: int) -> None:
        if pull.channel.closed:
            return
        header = pull.header
        size = pull.keep_little()
        hold = Hold(
            pull.channel,
            (header.topic, header.queue_id),
            now_ms + (min(max(0, header.suspend_ms), _LONG_POLL_MAX_MS) if self._may_hold() else _SHORT_POLL_MS),
            lambda final: self._retry(pull, final),
            size,
        )
        self._long_poll.hold(hold)
        # Another thread may have appended between the look and the hold, and found no one to wake.
        if self._store.max_offset(header.topic, header.queue_id) > pull.at:
            self._long_poll.arrived([hold.queue])

    def _retry(self, pull: PullRequest, final: bool) -> bool:
        """Try a held pull again; return whether it has been answered."""
        try:
            return self._look_again(pull, final)
        except Exception as error:  # an error of this pull must not affect the other held pulls
            self._failed(pull, error)
            return True

    def _look_again(self, pull: PullRequest, final: bool) -> bool:
        if final:
            topic = self._topics.get(pull.header.topic)
            if topic is None:
                remark = topic_not_exist(pull.header.topic, " ")
                pull.channel.send(encode_command(pull.command.reply(ResponseCode.TOPIC_NOT_EXIST, remark)))
                return True
        for _ in range(_LOOKS_MAX if pull.wants is None else _FILTER_LOOKS_MAX):
            result = self._look(pull)
            if result is None or result.status is not PullStatus.NO_MATCHED_MESSAGE:
                break
            pull.at = result.next_offset
        if result is None:
            self._answer_later(pull)
            return True
        if not final and self._is_at_end(result, pull.header):
            return False
        self._answer(pull, result)
        return True

    # ------------------------------------------------------------------------------------------------ answering

    def _answer(self, pull: PullRequest, result: PullResult) -> None:
        """Send the found messages; later, if their bodies are not in memory."""
        if result.status is not PullStatus.FOUND:
            self.miss_count += 1
            self._send(pull, result, b"")
            return
        body = self._cold_reads.hot(result.positions)
        if body is None:
            self._answer_later(pull)
        else:
            self._found(pull, result, body)

    async def _answer_cold(self, pull: PullRequest, size: int) -> None:
        try:
            await self._look_cold(pull)
        except Exception as error:
            self._failed(pull, error)
        finally:
            self._cold -= 1
            pull.channel.keep(-size)

    async def _look_cold(self, pull: PullRequest) -> None:
        header, limits = pull.header, self._limits
        # Second try: the first message alone, because one of several may be gone.
        for count in (max(1, min(header.max_count, limits.cold_count)), 1):
            if pull.wants is None:
                result = self._store.pull(header.topic, header.queue_id, pull.at, count, limits.cold_bytes, pull.filter)
            else:
                result = await self._cold_reads.matching(
                    header.topic, header.queue_id, pull.at, count, limits.cold_bytes, pull.wants
                )
            body = await self._cold_reads.read(result.positions)
            if body or result.status is not PullStatus.FOUND:
                break
        if pull.channel.closed:
            return
        if body:
            self._found(pull, result, body)
            return
        if result.status is PullStatus.FOUND:  # deleted while it was read
            result.status = PullStatus.MESSAGE_WAS_REMOVING
        self._send(pull, result, b"")

    def _failed(self, pull: PullRequest, error: Exception) -> None:
        """Answer a waiting pull when the disk cannot read: the client asks again for the same messages."""
        _LOG.error("a pull of %s-%d failed: %s", pull.header.topic, pull.header.queue_id, error)
        reply = pull.command.reply(ResponseCode.SYSTEM_ERROR, f"{type(error).__name__}: {error}")
        pull.channel.send_at_once(encode_command(reply))

    def _found(self, pull: PullRequest, result: PullResult, body: bytes) -> None:
        self.found_count += 1
        self.message_count += len(result.positions)
        whole = max(1, min(pull.header.max_count, self._limits.hot_count))
        self.owing_count += result.max_offset - result.next_offset >= whole
        self._got(pull.header.consumer_group, pull.header.topic, len(result.positions), len(body))
        self._send(pull, result, body)

    def _send(self, pull: PullRequest, result: PullResult, body: bytes) -> None:
        status = result.status
        code = _CODES[status]
        if status in _EMPTY:
            status = (
                PullStatus.NO_MESSAGE_IN_QUEUE
            )  # Apache creates a queue on the first request for it, so none is unknown
            if pull.header.offset == 0:
                code = ResponseCode.PULL_NOT_FOUND
        elif status is PullStatus.OFFSET_OVERFLOW_ONE and pull.at != pull.header.offset:
            status, code = PullStatus.NO_MATCHED_MESSAGE, ResponseCode.PULL_RETRY_IMMEDIATELY
        elif code is ResponseCode.PULL_OFFSET_MOVED:
            _LOG.warning(
                "group %s asked for %s-%d at %d (%s), told to go on at %d",
                pull.header.consumer_group,
                pull.header.topic,
                pull.header.queue_id,
                pull.header.offset,
                status.name,
                result.next_offset,
            )
        ext = {
            "suggestWhichBrokerId": "0",
            "nextBeginOffset": str(result.next_offset),
            "minOffset": str(result.min_offset),
            "maxOffset": str(result.max_offset),
            "topicSysFlag": str(pull.topic_sys_flag),
            "groupSysFlag": str(pull.group_sys_flag),
        }
        pull.channel.send_at_once(encode_command(pull.command.reply(code, status.name, ext, body)))

    def _reply_reset(self, pull: PullRequest, offset: int) -> RemotingCommand:
        """Tell a consumer that an administrator has reset its offset."""
        header = pull.header
        ext = {
            "suggestWhichBrokerId": "0",
            "nextBeginOffset": str(offset),
            "minOffset": str(self._store.min_offset(header.topic, header.queue_id)),
            "maxOffset": str(self._store.max_offset(header.topic, header.queue_id)),
            "topicSysFlag": str(pull.topic_sys_flag),
            "groupSysFlag": str(pull.group_sys_flag),
        }
        return pull.command.reply(ResponseCode.PULL_OFFSET_MOVED, "OFFSET_RESET", ext)
