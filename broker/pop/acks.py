"""Acknowledgements: ACK_MESSAGE (200051), BATCH_ACK_MESSAGE (200151) and CHANGE_MESSAGE_INVISIBLETIME (200053).

The broker does not trust a handle: it only uses it to look up messages in flight. A handle may find nothing, because
its message was acknowledged or delivered again, or it is of another group, or invented. An ack then gets SUCCESS, as
from Apache's broker, with a remark that says so; nothing changes. A change of the invisible time gets NO_MESSAGE;
Apache's broker answers SUCCESS and delivers the message once more.
"""

from __future__ import annotations

from base64 import b64decode
from binascii import Error as Base64Error
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from broker.access.access_table import ACKS_BYTES_MAX
from broker.net.channel import Channel
from broker.net.processor import Handler
from broker.pop.answers import Answers
from broker.pop.handle import Handle, normal_topic, parse_handle, real_topic
from broker.pop.pop_polls import PopPolls
from broker.pop.pop_queues import PopQueues
from broker.pop.requests import INVISIBLE_MAX_MS, Checks, MessageHeader
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand
from remoting.errors import ProtocolError
from remoting.headers import need_long
from remoting.json_dialect import loads_body
from store.message_store import MessageStore
from store.pop.pop_queue import PopQueue

__all__ = ["AckProcessor"]

BATCH_COUNT_MAX = 1_000
"""Most entries of one BATCH_ACK_MESSAGE, each of which may acknowledge a whole pop."""
_BITS_MAX = 1 << 16
"""Most messages of a queue that one pop spans, so most bits of a set."""
_SHORT_CHARS_MAX = 12


# Most pops have few messages, so the same few texts come again and again.
@lru_cache(1_024)
def _short_bits(text: str) -> int:
    return int.from_bytes(b64decode(text, validate=True), "little")


def _bits(text: Any) -> int:
    """Read a bit set in base64. Raises Base64Error, TypeError, ValueError."""
    if isinstance(text, str) and len(text) <= _SHORT_CHARS_MAX:
        return _short_bits(text)
    raw = b64decode(text, validate=True)
    if len(raw) > _BITS_MAX // 8:
        raise ValueError
    return int.from_bytes(raw, "little")


class AckProcessor:
    """Answers acknowledgements and changes.

    Args:
        store: Tells the first and last offset of queues.
        checks: Refuses requests for queues that do not exist.
        queues: The queues that are popped.
        polls: Is told when a queue is no longer blocked.
        broker_name: The broker name that a handle must have.
        answers: Holds replies back until the journal of pops has their changes.
        due: Is told when a message is to be delivered again (epoch ms).
    """

    def __init__(
        self,
        *,
        store: MessageStore,
        checks: Checks,
        queues: PopQueues,
        polls: PopPolls,
        broker_name: str,
        answers: Answers,
        due: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._store = store
        self._checks = checks
        self._queues = queues
        self._in_flight = queues.in_flight
        self._polls = polls
        self._broker_name = broker_name
        self._answers = answers
        self._due = due
        self.ack_count = 0
        """Messages acknowledged since the start."""
        self.unknown_count = 0
        """Acknowledgements of messages not in flight: too late, repeated, or invented."""

    def handlers(self) -> Mapping[int, Handler]:
        """List what it answers."""
        after = self._answers.after
        return {
            RequestCode.ACK_MESSAGE: after(self.ack),
            RequestCode.BATCH_ACK_MESSAGE: after(self.ack_batch),
            RequestCode.CHANGE_MESSAGE_INVISIBLETIME: after(self.change),
        }

    # ------------------------------------------------------------------------------------------------ acks

    def ack(self, channel: Channel, command: RemotingCommand, now_ms: int) -> RemotingCommand:
        """ACK_MESSAGE."""
        header = MessageHeader(command.ext)
        refused = self._checks.queue_there(channel, command, header) or self._outside(command, header, 1)
        if refused is not None:
            return refused
        handle = parse_handle(header.handle)
        queue = self._named(handle, header)
        place = header.offset - handle.start
        if queue is None or not 0 <= place < _BITS_MAX or not self._ack(queue, handle, 1 << place, now_ms):
            self.unknown_count += 1
            return command.reply(remark=self._unknown(header))
        self._queues.moved((queue,))
        return command.reply()

    def _ack(self, queue: PopQueue, handle: Handle, bits: int, now_ms: int) -> int:
        """Acknowledge messages; returns how many were in flight. Bit 0 of ``bits`` is the first message of the handle.

        If there were any, the caller then notes the queue's offset (`PopQueues.moved`).
        """
        if handle.in_order:
            return self._ack_in_order(queue, handle, bits, now_ms)
        # Before the acknowledgement, which may make room.
        was_full = self._queues.room(queue) <= 0
        count = self._in_flight.ack(queue, handle.start, handle.pop_ms, bits)
        if count:
            self.ack_count += count
            if (was_full or not queue.count) and self._queues.offers(queue):
                self._polls.wake(normal_topic(queue.topic, queue.group), queue.group)
        return count

    def _ack_in_order(self, queue: PopQueue, handle: Handle, bits: int, now_ms: int) -> int:
        block, count = queue.block, 0
        if block is None:
            return 0
        for offset in [offset for offset in block.visible_ms if offset >= handle.start]:
            if bits >> (offset - handle.start) & 1 and self._in_flight.ack_in_order(queue, offset, handle.pop_ms):
                count += 1
        if count:
            self.ack_count += count
            if not block.blocks("", now_ms):
                self._polls.wake(queue.topic, queue.group)
        return count

    def ack_batch(self, _channel: Channel, command: RemotingCommand, now_ms: int) -> RemotingCommand:
        """BATCH_ACK_MESSAGE: each entry acknowledges messages of one pop. Raises ProtocolError for too many entries."""
        document: Any = loads_body(command.body, ACKS_BYTES_MAX) if command.body else None
        if document and not isinstance(document, dict):
            raise ProtocolError(f"body is not a JSON object: {command.body[:200]!r}")
        acks = document.get("acks") if document else None
        if not acks:
            return command.reply(ResponseCode.NO_MESSAGE)
        if not isinstance(acks, list):
            raise ProtocolError(f"acks is not a list: {acks!r:.200}")
        if len(acks) > BATCH_COUNT_MAX:
            raise ProtocolError(f"{len(acks)} entries in acks, at most {BATCH_COUNT_MAX} are taken")
        wanted = [self._entry(entry) for entry in acks]  # a bad entry refuses all of them
        moved: list[PopQueue] = []
        for group, topic, queue_id, handle, bits in wanted:
            queue = self._find(handle, group, topic, queue_id)
            if queue is None or not self._ack(queue, handle, bits, now_ms):
                self.unknown_count += 1
            else:
                moved.append(queue)
        self._queues.moved(moved)
        return command.reply()

    def _entry(self, entry: Any) -> tuple[str, str, int, Handle, int]:
        """Read one entry of a batch: group, topic, queue, handle, bits. Raises ProtocolError."""
        if not isinstance(entry, dict):
            raise ProtocolError(f"an entry of acks is an object, found {entry!r:.200}")
        get: Callable[..., Any] = entry.get
        try:
            bits = _bits(get("b", get("bitSet")))
            start, queue_id = int(get("so", get("startOffset"))), int(get("q", get("queueId")))
            revive_qid, pop_ms = int(get("rq", get("reviveQueueId"))), int(get("pt", get("popTime")))
            group, topic, retry = get("c", get("consumerGroup")), get("t", get("topic")), str(get("r", get("retry")))
            if not (isinstance(group, str) and isinstance(topic, str)):
                raise ValueError
        except (Base64Error, OverflowError, TypeError, ValueError) as error:
            raise ProtocolError(f"unreadable entry of acks: {entry!r:.300}") from error
        handle = Handle(start, pop_ms, 0, revive_qid, retry, self._broker_name)
        return group, real_topic(topic, group, retry), queue_id, handle, bits

    # ------------------------------------------------------------------------------------------------ changes

    def change(self, channel: Channel, command: RemotingCommand, now_ms: int) -> RemotingCommand:
        """CHANGE_MESSAGE_INVISIBLETIME: a new invisible time that begins now, and a new handle."""
        header = MessageHeader(command.ext)
        invisible_ms = need_long(command.ext, "invisibleTime")
        refused = self._checks.queue_there(channel, command, header) or self._outside(command, header, 0)
        if refused is not None:
            return refused
        handle = parse_handle(header.handle)
        problem = self._answers.refusal
        if problem:  # a change adds to the journal whatever is in flight
            return command.reply(ResponseCode.SYSTEM_ERROR, f"not changed: {problem}")
        if not 0 <= invisible_ms <= INVISIBLE_MAX_MS:
            remark = f"invisibleTime is {invisible_ms} ms: 0 to {INVISIBLE_MAX_MS} are possible"
            return command.reply(ResponseCode.INVALID_PARAMETER, remark)
        queue = self._named(handle, header)
        changed = None
        if queue is not None and handle.in_order:
            changed = self._change_in_order(queue, header, handle, invisible_ms, now_ms)
        elif queue is not None:
            batch = self._in_flight.change(queue, handle.start, handle.pop_ms, header.offset, invisible_ms, now_ms)
            changed = None if batch is None else (batch.pop_ms, batch.due_ms - batch.pop_ms, batch.due_ms)
        if changed is None:
            return command.reply(ResponseCode.NO_MESSAGE, self._unknown(header))
        pop_ms, span_ms, due_ms = changed
        self._due(due_ms)
        ext = {"popTime": str(pop_ms), "invisibleTime": str(span_ms), "reviveQid": str(handle.revive_qid)}
        return command.reply(ext=ext)

    def _change_in_order(
        self, queue: PopQueue, header: MessageHeader, handle: Handle, invisible_ms: int, now_ms: int
    ) -> tuple[int, int, int] | None:
        visible_ms = self._in_flight.pop_ms(now_ms) + invisible_ms  # a pop compares with its popTime
        if not self._in_flight.change_in_order(queue, header.offset, handle.pop_ms, visible_ms):
            return None
        return handle.pop_ms, visible_ms - handle.pop_ms, visible_ms

    # ------------------------------------------------------------------------------------------------ what is meant

    def _named(self, handle: Handle, header: MessageHeader) -> PopQueue | None:
        """Find the queue of a request; None also if its handle says another queue or message.

        Two queues that are popped at once have the same time, and often the same start.
        """
        if not handle.names(header.queue_id, header.offset):
            return None
        return self._find(handle, header.group, header.topic, header.queue_id)

    def _find(self, handle: Handle, group: str, topic: str, queue_id: int) -> PopQueue | None:
        """Find the queue of a handle; None if the handle names another broker or nobody pops the queue."""
        return self._in_flight.find(group, topic, queue_id) if handle.broker == self._broker_name else None

    def _outside(self, command: RemotingCommand, header: MessageHeader, behind: int) -> RemotingCommand | None:
        """Refuse an offset that is not in the queue."""
        first = self._store.min_offset(header.topic, header.queue_id)
        last = self._store.max_offset(header.topic, header.queue_id)
        if first <= header.offset < last + behind:
            return None
        name = f"{header.topic}@{header.queue_id}"
        remark = f"offset is illegal, key:{name}, commit:{header.offset}, store:{first}~{last}"
        return command.reply(ResponseCode.NO_MESSAGE, remark)

    @staticmethod
    def _unknown(header: MessageHeader) -> str:
        return (
            f"message {header.offset} of {header.topic}-{header.queue_id} is not in flight for group {header.group} "
            f"by handle [{header.handle:.300}]: it was acknowledged, its invisible time is over, or it was never popped"
        )
