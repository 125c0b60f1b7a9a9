"""`PopReader`: looks at the queues of a pop, and hands out their messages.

A look never blocks. Where records are not in memory it yields, and goes on when they have been read; meanwhile other
pops skip that queue. A topic may have tens of thousands of queues, so a look pauses after some hundred of them and lets
other requests run.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate
from typing import TYPE_CHECKING

from broker.pop.handle import NORMAL, ORDER_QID, RETRY_V1, RETRY_V2, Handle, retry_flag, retry_topic
from broker.pop.pop_polls import PopPolls
from broker.pop.pop_queues import PopQueues
from broker.pop.requests import PopHeader
from broker.pop.retry_record import all_for_reply
from broker.pop.under_way import Cold, Pop, Read, Work
from broker.pulling.cold_reads import ColdReads
from broker.pulling.pull_request import PullLimits
from remoting.layout.table import LONG
from remoting.messages.message import store_ms_at
from store.disk.errors import StoreError
from store.matching import pull_matching
from store.message_store import MessageStore, PullResult, PullStatus
from store.pop.order_block import OrderBlock
from store.pop.pop_queue import PopQueue

if TYPE_CHECKING:
    from broker.tables.topics import Topics

__all__ = ["PopReader"]

_REPLY_BYTES_MAX = 8 << 20
_QUEUES_MAX = 256
"""Most queues of a retry topic that are looked at; and queues that are looked through at once."""
_WORK_MAX = 4_096
"""ConsumeQueue entries that a look checks before it pauses: some milliseconds at most."""
_QUEUE_WORK = 16
"""Cost of a queue that is opened, in entries, whatever it has; one that has nothing costs one."""
_SQL_WORK = 8
"""Least cost of an entry, in entries, if a SQL92 filter has to read the message's properties."""
_LOOKS_MAX = 4
_FOUND = PullStatus.FOUND
_OUTSIDE = (PullStatus.OFFSET_TOO_SMALL, PullStatus.OFFSET_OVERFLOW_BADLY)


class PopReader:
    """Reads queues for pops.

    Args:
        store: Messages are read from it.
        topics: Tells which retry topics exist.
        queues: The queues that are popped.
        polls: Knows which held pops an arrival wakes.
        cold_reads: Reads message records.
        broker_name: A part of handles.
        limits: Most bytes that one pop gets.
        got: Is told group, topic, messages and bytes handed out of a queue.
        due: Is told when the invisible time of messages just handed out ends (epoch ms).
        now_ms: The clock.
        refusal: Returns why nothing may be handed out now; empty if it may.
    """

    def __init__(
        self,
        *,
        store: MessageStore,
        topics: Topics,
        queues: PopQueues,
        polls: PopPolls,
        cold_reads: ColdReads,
        broker_name: str,
        limits: PullLimits,
        got: Callable[[str, str, int, int], None],
        due: Callable[[int], None],
        now_ms: Callable[[], int],
        refusal: Callable[[], str] = lambda: "",
    ) -> None:
        self._store = store
        self._topics = topics
        self._queues = queues
        self._polls = polls
        self._cold_reads = cold_reads
        self._broker_name = broker_name
        self._limits = limits
        self._got = got
        self._due = due
        self._now_ms = now_ms
        self._refusal = refusal
        self.turn = 0
        """Looks since the start."""

    async def read(self, pop: Pop, need: Cold) -> Read:
        """Read what a look could not read without waiting. Raises StoreError."""
        if isinstance(need, list):
            body = await self._cold_reads.read(need)
            return PullResult(_FOUND, 0, 0, 0, need), body or b""
        topic, queue_id, offset, count = need
        limits = self._limits
        result = PullResult(PullStatus.MESSAGE_WAS_REMOVING, offset, 0, 0, [])
        for most in (min(count, limits.cold_count), 1):  # then one alone: one of several may be gone
            if pop.wants is None:
                result = self._store.pull(topic, queue_id, offset, most, limits.cold_bytes, pop.filter)
            else:
                result = await self._cold_reads.matching(topic, queue_id, offset, most, limits.cold_bytes, pop.wants)
            body = await self._cold_reads.read(result.positions)
            if body or result.status is not _FOUND:
                return result, body or b""
        result.status = PullStatus.MESSAGE_WAS_REMOVING  # deleted while it was read
        return result, b""

    # ------------------------------------------------------------------------------------------------ queues

    def pop_ms(self, now_ms: int) -> int:
        """Return the popTime of a pop at ``now_ms`` (`InFlight.pop_ms`)."""
        return self._queues.in_flight.pop_ms(now_ms)

    def look(self, pop: Pop) -> Work:
        """Look at the queues of a topic and of its retry topics, until the pop has as many messages as it wants."""
        header = pop.header
        self.turn += 1
        turn = self._queues.next_turn(header.group, header.topic)
        pop.problem = self._refusal()
        if pop.problem:
            return
        if turn % 5 == 0:
            yield from self._retried(pop)
        if header.queue_id >= 0:
            queue = self._open(pop, header.topic, header.queue_id)
            if queue is not None:
                yield from self._one(pop, queue)
        elif pop.queue_nums:
            yield from self._each(pop, header.topic, turn % pop.queue_nums, pop.queue_nums)
        if turn % 5:
            yield from self._retried(pop)

    def _retries(self, header: PopHeader) -> list[tuple[str, int]]:
        names = (retry_topic(header.topic, header.group, version) for version in (RETRY_V1, RETRY_V2))
        found = [(name, self._topics.get(name)) for name in names]
        return [(name, min(config.read_queue_nums, _QUEUES_MAX)) for name, config in found if config is not None]

    def _retried(self, pop: Pop) -> Work:
        for name, queue_nums in [] if pop.header.order else self._retries(pop.header):
            yield from self._each(pop, name, 0, queue_nums)

    def _each(self, pop: Pop, topic: str, first: int, count: int) -> Work:
        """Hand out messages of a topic's queues, from one on and round."""
        for begin in range(0, count, _QUEUES_MAX):
            queue_ids = [(first + index) % count for index in range(begin, min(begin + _QUEUES_MAX, count))]
            pop.work += len(queue_ids)
            for queue_id in self._queues.with_messages(pop.header.group, topic, queue_ids):
                queue = self._open(pop, topic, queue_id)
                if queue is not None:
                    yield from self._one(pop, queue)
                pop.work += _QUEUE_WORK
                if pop.work >= _WORK_MAX:
                    yield None
            if pop.work >= _WORK_MAX:
                yield None

    def _open(self, pop: Pop, topic: str, queue_id: int) -> PopQueue | None:
        """Open a queue; None if it cannot have messages for the pop, as most queues at most looks.

        A pop that has all its messages only adds what an open queue has left.
        """
        end = self._store.max_offset(topic, queue_id)
        if end == 0 or pop.channel.closed:
            return None
        header = pop.header
        if pop.count >= header.max_count and not header.order:
            known = self._queues.in_flight.find(header.group, topic, queue_id)
            if known is not None and known.block is None and self._queues.is_current(known):
                pop.rest += max(0, end - known.next)
                return None
        queue = self._queues.open(header.group, topic, queue_id, header.init_mode)
        if queue is None:
            pop.problem = self._queues.full()
            return None
        return queue if end > queue.next or queue.block is not None else None

    def _one(self, pop: Pop, queue: PopQueue) -> Work:
        """Hand out messages of one queue."""
        header, topic, queue_id = pop.header, queue.topic, queue.queue_id
        block = queue.block
        if block is not None and block.waiting:
            before = pop.count
            yield from self._again(pop, queue, block)
            # A reply has one stretch of each queue.
            if block.waiting or queue.block is not block or queue.gone or pop.count > before or pop.channel.closed:
                return  # otherwise retention has deleted the whole block
        end = self._store.max_offset(topic, queue_id)
        for _ in range(_LOOKS_MAX):
            rest = end - queue.next
            in_order = queue.block is not None and bool(queue.block.waiting)
            if rest <= 0 or in_order or (header.order and queue.count):
                return
            room = min(self._queues.room(queue), header.max_count - pop.count)
            if queue.busy or room <= 0 or pop.bytes >= self._limits.hot_bytes:
                pop.rest += rest
                return
            start = queue.next
            found = self._read_hot(pop, topic, queue_id, start, room)
            if found is None:
                queue.busy = True
                try:
                    found = yield topic, queue_id, start, room
                finally:
                    queue.busy = False
                    self._polls.wake(header.topic, header.group)
                if found is None or queue.gone or queue.next != start or pop.channel.closed:
                    return
            if self._take(pop, queue, start, *found):
                return
            if pop.work >= _WORK_MAX:
                yield None
                if queue.gone or pop.channel.closed:
                    return
        pop.more = pop.more or end > queue.next

    def _read_hot(self, pop: Pop, topic: str, queue_id: int, start: int, room: int) -> Read | None:
        """Read messages of a queue if all are in memory; None if not, or if reading fails."""
        try:
            return self._look_at(pop, topic, queue_id, start, room)
        except StoreError:
            return None

    def _hot(self, positions: list[tuple[int, int]]) -> bytes | None:
        """Read records if all are in memory; None if not, or if reading fails."""
        try:
            return self._cold_reads.hot(positions)
        except StoreError:
            return None

    def _look_at(self, pop: Pop, topic: str, queue_id: int, start: int, room: int) -> Read | None:
        store, most_bytes = self._store, self._limits.hot_bytes - pop.bytes
        result: PullResult | None
        each = 1
        if pop.wants is None:
            result = store.pull(topic, queue_id, start, room, most_bytes, pop.filter)
        else:
            result = pull_matching(store, topic, queue_id, start, room, most_bytes, pop.wants, store.read_hot)
            each = max(_SQL_WORK, pop.wants.words)
        if result is not None:
            pop.work += each * max(0, result.next_offset - start)
        if result is None or result.status is not _FOUND:
            return None if result is None else (result, b"")
        body = self._cold_reads.hot(result.positions)
        return None if body is None else (result, body)

    def _take(self, pop: Pop, queue: PopQueue, start: int, result: PullResult, body: bytes) -> bool:
        """Hand out the messages that were read; False if the queue has to be read again."""
        header = pop.header
        if not body:
            if result.next_offset != start and (result.next_offset > start or result.status in _OUTSIDE):
                self._queues.in_flight.record(queue, start, (), pop.pop_ms, 0, result.next_offset)
                self._queues.moved((queue,))
                return False
            return True
        if pop.bodies and pop.bytes + len(body) > _REPLY_BYTES_MAX:
            pop.rest += result.max_offset - start
            return True
        is_copies = retry_flag(queue.topic) != NORMAL
        records = _split(body, result.positions) if is_copies or header.order else [body]
        if is_copies and not self._is_over(pop, records[-1]):
            pop.rest += result.max_offset - start
            return True
        offsets = self._queues.offsets_of(queue, start, result)
        if not offsets:
            return True
        if header.order:
            self._hand_out_in_order(pop, queue, OrderBlock(offsets), records, offsets, result.next_offset)
        else:
            self._queues.in_flight.record(queue, start, offsets, pop.pop_ms, header.invisible_ms, result.next_offset)
            self._give(pop, queue, start, records, offsets)
        pop.rest += max(0, result.max_offset - result.next_offset)
        return True

    def _is_over(self, pop: Pop, copy: bytes) -> bool:
        """True if a copy was stored by the popTime of this pop. A thread stores copies while pops look.

        Otherwise the next invisible time would begin before the last one ended. A pop that has got nothing yet moves
        its popTime to now instead; any other leaves the copy to the next pop.
        """
        (stored_ms,) = LONG.unpack_from(copy, store_ms_at(copy))
        if stored_ms <= pop.pop_ms:
            return True
        now_ms = self._now_ms()
        if not pop.count:
            pop.pop_ms = max(pop.pop_ms, now_ms)
        return not pop.count or stored_ms > now_ms  # stored after now: the clock was set back

    def _give(self, pop: Pop, queue: PopQueue, start: int, records: list[bytes], offsets: list[int]) -> None:
        """Add records to the reply; originals may come as one piece."""
        flag, header = retry_flag(queue.topic), pop.header
        if flag != NORMAL:
            revive_qid = ORDER_QID if header.order else 0
            handle = Handle(start, pop.pop_ms, header.invisible_ms, revive_qid, flag, self._broker_name)
            lead = handle.lead(queue.queue_id)
            records = all_for_reply(records, header.topic, lead, offsets)
        pop.bodies += records
        size = sum(map(len, records))
        pop.bytes += size
        pop.count += len(offsets)
        pop.starts.append(f"{flag} {queue.queue_id} {start}")
        pop.offsets.append(f"{flag} {queue.queue_id} {','.join(map(str, offsets))}")
        self._got(header.group, queue.topic, len(offsets), size)
        self._due(pop.pop_ms + header.invisible_ms)

    # ------------------------------------------------------------------------------------------------ in order

    def _again(self, pop: Pop, queue: PopQueue, block: OrderBlock) -> Work:
        """Hand out again messages popped in order and not acknowledged, unless they still block the queue.

        A pop without order gets them as any others: its group has changed its mind.
        """
        header, store = pop.header, self._store
        room = header.max_count - pop.count
        if not header.order:
            room = min(room, self._queues.room(queue))
        elif queue.count:  # a pop without order holds some of the messages before
            return
        if queue.busy or room <= 0 or block.blocks(header.order_id, self._begin_ms(pop)):
            return
        offsets: list[int] = []
        positions: list[tuple[int, int]] = []
        size, begin = pop.bytes, store.commit_log.begin
        for offset in block.waiting[:]:
            if len(offsets) == room:
                break
            entry = store.entry(queue.topic, queue.queue_id, offset)
            if entry is None or entry[0] < begin:  # retention has taken it
                self._queues.in_flight.forget_in_order(queue, offset)
                continue
            size += entry[1]
            if (offsets or pop.bodies) and size > self._limits.hot_bytes:
                break
            offsets.append(offset)
            positions.append(entry[:2])
        if not offsets:
            return
        body = self._hot(positions)
        if body is None:
            queue.busy = True
            try:
                found = yield positions
            finally:
                queue.busy = False
                self._polls.wake(header.topic, header.group)
            body = b"" if found is None else found[1]
            if queue.gone or queue.block is not block or pop.channel.closed:
                return
            # While it was read, their holder may have acknowledged some, or have taken more time.
            if block.blocks(header.order_id, self._begin_ms(pop)):
                pop.more = True  # the end of that time may be over, too, and would wake nobody
                return
        waiting = set(block.waiting)
        read = zip(offsets, _split(body, positions), strict=True) if body else ()
        left = [(offset, record) for offset, record in read if offset in waiting]
        if not left:
            return
        offsets, records = [offset for offset, _ in left], [record for _, record in left]
        if header.order:
            self._hand_out_in_order(pop, queue, block, records, offsets)
        else:
            self._queues.in_flight.unblock(queue, offsets, pop.pop_ms, header.invisible_ms)
            self._give(pop, queue, offsets[0], records, offsets)

    def _begin_ms(self, pop: Pop) -> int:
        """The time that must be over for another holder: before now, and before the popTime of this pop."""
        return min(pop.pop_ms, self._now_ms())

    def _hand_out_in_order(
        self,
        pop: Pop,
        queue: PopQueue,
        block: OrderBlock,
        records: list[bytes],
        offsets: list[int],
        next_offset: int = -1,
    ) -> None:
        header, in_flight = pop.header, self._queues.in_flight
        until_ms = pop.pop_ms + header.invisible_ms
        in_flight.block(queue, block, offsets, header.attempt_id, pop.pop_ms, until_ms, next_offset)
        flag = retry_flag(queue.topic)
        counts = [block.counts.get(offset, 0) for offset in offsets]
        for offset, count in zip(offsets, counts, strict=True):
            if count:
                pop.counts.append(f"{flag} qo{queue.queue_id}%{offset} {count}")
        pop.counts.append(f"{flag} {queue.queue_id} {min(counts)}")
        self._give(pop, queue, offsets[0], records, offsets)


def _split(body: bytes, positions: list[tuple[int, int]]) -> list[bytes]:
    """Split what was read into records. Their own sizes are not asked: a damaged record may have any."""
    ends = [*accumulate(size for _, size in positions)]
    return [body[end - size : end] for end, (_, size) in zip(ends, positions, strict=True)]
