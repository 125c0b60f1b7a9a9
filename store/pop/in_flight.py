"""`InFlight`: which messages are handed out, to be acknowledged or to come again. Pure: no clock, no file, no thread.

The problem
    A popped message belongs to one holder until a due time. It comes again then unless it was acknowledged, and its
    group's offset must not pass it before one of the two is certain.

The idea
    An un-acknowledged message's reappearance is a delayed event without a body. One `Batch` stands for all that one
    pop got from one queue: where it begins, a bit for each message that is not acknowledged, the pop's time and a due
    time, which is a timer of a `timewheel.TimingWheel`. 32 messages take some 16 bytes each, alone one takes 500.

    ============  ===================================================================================================
    ``record``    a pop got messages: a new batch, ``next`` moves on
    ``ack``       takes a bit away; the last one cancels the timer
    ``change``    takes a bit away and makes a batch of one message, with a new pop time: both or neither
    ``claim``     batches that are due, for the reviver, which copies them into the retry topic; acks of them come too
                  late now
    ``put_back``  the copy failed: due again a little later, acknowledged by the same handles
    ``copied``    copies are made: no handle names those messages any more, but the offset does not pass them yet
    ``settle``    the copies are as durable as they have to be: the messages are done with
    ``forget_…``  a topic or a group was deleted: its queues are gone at once, what was in flight by and by (``claim``)
    ============  ===================================================================================================

    ``committed`` of a queue is its lowest message in flight, else ``next``. Batches stand in a heap by what was their
    lowest message; the first entry is corrected when it is looked at, so an ack costs no search.

What a crash does
    All of this is memory. ``notes`` has what happens to it, for a journal (`store.pop.journal`), and `open` and
    `restored` make it anew of what the journal says. Without one, everything from the stored offset on is offered
    again: messages come twice, and none is lost.

Threads: the network loop records, acknowledges and changes; the reviver claims and settles. A lock is around each.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Sequence
from heapq import heappush

from store.pop.due_tail import DueTail
from store.pop.notes import Notes
from store.pop.order_block import OrderBlock
from store.pop.pop_queue import Batch, PopQueue
from timewheel import TimingWheel

__all__ = ["InFlight"]

_GO_MAX = 1_000
"""Batches of deleted topics and groups that one `InFlight.claim` lets go: a millisecond."""
_DUE_MAX = 1_000
"""Timers that one `InFlight.claim` takes out of the wheel: a millisecond."""


Groups = dict[str, dict[int, PopQueue]]


class InFlight:
    """All queues that are popped.

    Args:
        now_ms: Where the wheel starts. Pops begin later: see `pop_ms`.
        queues_max: Most queues, of all groups.
        count_max: Most messages in flight, of all queues.
    """

    def __init__(self, now_ms: int, queues_max: int = 500_000, count_max: int = 2_000_000) -> None:
        self.lock = threading.Lock()
        self.notes: Notes | None = None
        """What a journal has to write; None without one."""
        self._wheel, self._first_ms = TimingWheel(now_ms), now_ms + 1
        self._tail = DueTail()
        self._topics: dict[str, Groups] = {}
        self._going: deque[PopQueue] = deque()
        self.number = 0
        """The last number that was given to a batch."""
        self.ref = 0
        """The last reference that was given to a queue."""
        self.queues_max = queues_max
        self.count_max = count_max
        self.queue_count = 0
        """Queues that are popped."""
        self.count = 0
        """Messages that are handed out, or whose copies are not durable yet."""
        self.forgotten = False
        """Whether queues were forgotten since somebody last set this to False."""

    # ------------------------------------------------------------------------------------------------ queues

    def find(self, group: str, topic: str, queue_id: int) -> PopQueue | None:
        """A queue that is popped already."""
        groups = self._topics.get(topic)
        queues = None if groups is None else groups.get(group)
        return None if queues is None else queues.get(queue_id)

    def open(self, group: str, topic: str, queue_id: int, begin: int) -> PopQueue | None:
        """Begin to pop a queue from an offset on; None if there are too many queues."""
        if self.queue_count >= self.queues_max:
            return None
        with self.lock:
            self.ref += 1
            queue = PopQueue(group, topic, queue_id, begin, self.ref)
            self._topics.setdefault(topic, {}).setdefault(group, {})[queue_id] = queue
            self.queue_count += 1
            self._note_opened(queue)
        return queue

    def _note_opened(self, queue: PopQueue) -> None:
        if self.notes is not None:
            self.notes.opened(queue.ref, queue.group, queue.topic, queue.queue_id, queue.next)

    def _note_gone(self, queue: PopQueue) -> None:
        if self.notes is not None:
            self.notes.gone(queue.ref)

    def restart(self, queue: PopQueue, offset: int) -> None:
        """Go on from an offset that an administrator has set; what is in flight is forgotten."""
        with self.lock:
            self._empty(queue)
            self._note_gone(queue)
            queue.next = queue.published = offset
            self.ref += 1
            queue.ref = self.ref
            self._note_opened(queue)

    def skip(self, queue: PopQueue, offset: int) -> None:
        """Go on from an offset further on, which the group has come to otherwise; what is in flight stays."""
        with self.lock:
            self._move(queue, offset)

    def _move(self, queue: PopQueue, offset: int) -> None:
        queue.next = offset
        if self.notes is not None:
            self.notes.moved(queue.ref, offset)

    def forget_topic(self, topic: str) -> None:
        """Forget a topic's queues: it was deleted."""
        with self.lock:
            for queues in self._topics.pop(topic, {}).values():
                self._forget(queues)

    def forget_group(self, group: str) -> None:
        """Forget a group's queues: it was deleted."""
        with self.lock:
            for topic in [topic for topic, groups in self._topics.items() if group in groups]:
                groups = self._topics[topic]
                self._forget(groups.pop(group))
                if not groups:
                    del self._topics[topic]

    def _forget(self, queues: dict[int, PopQueue]) -> None:
        """Nothing of these queues is found any more; their batches, of which there may be a million, go later."""
        for queue in queues.values():
            queue.gone = self.forgotten = True
            self._note_gone(queue)
            self.queue_count -= 1
            self._going.append(queue)

    def _let_go(self, batches_max: int) -> None:
        """Let some of what queues that are gone have had in flight go."""
        going = self._going
        while going and batches_max > 0:
            queue = going[0]
            heap = queue.heap
            rest = heap[-batches_max:]
            del heap[-batches_max:]
            for _, _, batch in rest:
                self._take(batch, -1)
            batches_max -= len(rest) or 1
            if not heap:
                self._empty(queue)
                going.popleft()

    def _empty(self, queue: PopQueue) -> None:
        for _, _, batch in queue.heap:
            batch.waiting = 0
            self._wheel.cancel(batch.timer)
        if queue.block is not None:
            self._wheel.cancel(queue.block.timer)
            queue.block = None
        self.count -= queue.count
        queue.count = 0
        queue.batches.clear()
        queue.heap.clear()

    # ------------------------------------------------------------------------------------------------ one message

    def pop_ms(self, now_ms: int) -> int:
        """The time by which a pop of now goes: never that of a pop of before the start.

        A handle is an offset and this time. After a power cut an offset may be given again: a handle of before must not
        name its message, also within one millisecond.
        """
        return max(now_ms, self._first_ms)

    def record(
        self, queue: PopQueue, start: int, offsets: Sequence[int], pop_ms: int, invisible_ms: int, next_offset: int
    ) -> None:
        """A pop got messages of a queue, which were looked at from ``start`` up to ``next_offset``."""
        waiting = 0
        for offset in offsets:
            waiting |= 1 << (offset - start)
        with self.lock:
            if offsets:
                queue.next = next_offset
                self._add(queue, start, waiting, pop_ms, pop_ms + invisible_ms, next_offset)
            else:
                self._move(queue, next_offset)

    def _add(self, queue: PopQueue, start: int, waiting: int, pop_ms: int, due_ms: int, next_offset: int) -> Batch:
        self.number += 1
        batch = self.restored(queue, self.number, start, waiting, pop_ms, due_ms)
        if self.notes is not None:
            self.notes.added(queue.ref, batch.name, start, waiting, pop_ms, due_ms, next_offset)
        return batch

    def restored(self, queue: PopQueue, name: int, start: int, waiting: int, pop_ms: int, due_ms: int) -> Batch:
        """Add a batch that has a name already. The caller holds the lock, or nobody else is there yet."""
        batch = Batch(queue, start, waiting, pop_ms, due_ms, name, name)
        batch.timer = self._wheel.insert(due_ms, batch)
        queue.batches[start, pop_ms] = batch
        heappush(queue.heap, (start + (waiting & -waiting).bit_length() - 1, batch.number, batch))
        queue.count += waiting.bit_count()
        self.count += waiting.bit_count()
        return batch

    def _find(self, queue: PopQueue, start: int, pop_ms: int, offset: int) -> Batch | None:
        batch = queue.batches.get((start, pop_ms))
        if batch is None or batch.claimed or not 0 <= offset - start < batch.waiting.bit_length():
            return None
        return batch if batch.waiting >> (offset - start) & 1 else None

    def _take(self, batch: Batch, bits: int, done: bool = True) -> int:
        """Take messages out of a batch, as a rule since they are done with; how many."""
        taken = batch.waiting & bits
        if done and taken and self.notes is not None:
            self.notes.taken(batch.name, taken)
        count = taken.bit_count()
        batch.waiting ^= taken
        queue = batch.queue
        queue.count -= count
        self.count -= count
        if not batch.waiting:
            queue.batches.pop((batch.start, batch.pop_ms), None)
            self._wheel.cancel(batch.timer)
        return count

    def ack(self, queue: PopQueue, start: int, pop_ms: int, bits: int) -> int:
        """Acknowledge messages, as bits from ``start``; how many of them were in flight under that handle."""
        with self.lock:
            batch = queue.batches.get((start, pop_ms))
            return 0 if batch is None or batch.claimed else self._take(batch, bits)

    def change(
        self, queue: PopQueue, start: int, pop_ms: int, offset: int, invisible_ms: int, now_ms: int
    ) -> Batch | None:
        """Give one message another due time, and with it another handle; None if it was not in flight."""
        with self.lock:
            batch = self._find(queue, start, pop_ms, offset)
            if batch is None:
                return None
            # A handle names one batch, and one of before nothing: pop times of one message's own batches only grow.
            new_ms = max(now_ms, batch.pop_ms + 1) if batch.start == offset else self.pop_ms(now_ms)
            while (offset, new_ms) in queue.batches:
                new_ms += 1
            self._take(batch, 1 << (offset - start))
            return self._add(queue, offset, 1, new_ms, new_ms + invisible_ms, -1)

    # ------------------------------------------------------------------------------------------------ in order

    def block(
        self,
        queue: PopQueue,
        block: OrderBlock,
        offsets: Sequence[int],
        attempt_id: str,
        pop_ms: int,
        until_ms: int,
        next_offset: int = -1,
    ) -> None:
        """Messages of a block were handed out; with ``next_offset`` for the first time.

        The offset moves under the same lock: a journal that had one without the other would lose messages in a kill.
        """
        with self.lock:
            if next_offset >= 0:
                self._move(queue, next_offset)
            queue.block = block
            block.hand_out(offsets, attempt_id, pop_ms, until_ms - pop_ms)
            self._time(queue, block)

    def ack_in_order(self, queue: PopQueue, offset: int, pop_ms: int) -> bool:
        """Acknowledge a message that was popped in order; whether it was handed out by that pop."""
        with self.lock:
            block = queue.block
            if block is None or not block.ack(offset, pop_ms):
                return False
            self._time(queue, block)
            return True

    def change_in_order(self, queue: PopQueue, offset: int, pop_ms: int, visible_ms: int) -> bool:
        """Have such a message visible at another time; whether it was handed out by that pop."""
        with self.lock:
            block = queue.block
            if block is None or not block.change(offset, pop_ms, visible_ms):
                return False
            self._time(queue, block)
            return True

    def forget_in_order(self, queue: PopQueue, offset: int) -> None:
        """A message that was popped in order is not there any more."""
        with self.lock:
            if queue.block is not None:
                queue.block.forget(offset)
                self._time(queue, queue.block)

    def restored_block(self, queue: PopQueue, block: OrderBlock) -> None:
        """Block a queue as it was. Nobody else is there yet."""
        queue.block = block
        self._time(queue, block)

    def _time(self, queue: PopQueue, block: OrderBlock) -> None:
        if self.notes is not None:
            self.notes.blocked(queue.ref, block)
        self._wheel.cancel(block.timer)
        block.timer = self._wheel.insert(block.free_ms(), queue) if block.visible_ms else -1

    # ------------------------------------------------------------------------------------------------ what is due

    def claim(self, now_ms: int, count_max: int) -> tuple[list[Batch], list[PopQueue]]:
        """Take some ``count_max`` messages that are due: batches, which the caller copies and then settles.

        And queues that are unblocked. What is due later passes what did not fit (`store.pop.due_tail`).
        """
        due: list[Batch] = []
        unblocked: list[PopQueue] = []
        with self.lock:
            self._let_go(_GO_MAX)
            for item in self._wheel.advance(now_ms, _DUE_MAX)[1]:
                if isinstance(item, PopQueue):
                    unblocked.append(item)
                elif item.waiting and not item.queue.gone:
                    due.append(item)
            batches = self._tail.choose(due, count_max)
            for batch in batches:
                batch.claimed = True
        return batches, unblocked

    def next_due_ms(self) -> int | None:
        """When `claim` has something to do (0: at once); None if nothing is in flight."""
        with self.lock:
            return 0 if self._going or self._tail else self._wheel.next_wake_ms()

    def put_back(self, batch: Batch, due_ms: int) -> None:
        """A batch could not be copied: it is due again then, and acknowledged by its handles until then."""
        with self.lock:
            if batch.waiting:
                batch.claimed = False
                batch.timer = self._wheel.insert(due_ms, batch)

    def copied(self, batch: Batch, bits: int) -> Batch:
        """Copies of some messages of a claimed batch were put: they are a batch that only keeps the offset back."""
        with self.lock:
            taken = batch.waiting & bits
            count = self._take(batch, taken, done=False)
            self.number += 1
            rest = Batch(batch.queue, batch.start, taken, ~batch.pop_ms, batch.due_ms, self.number, batch.name)
            rest.claimed = True
            if taken:
                queue = batch.queue
                queue.count += count
                self.count += count
                heappush(queue.heap, (batch.start + (taken & -taken).bit_length() - 1, rest.number, rest))
            return rest

    def settle(self, batch: Batch, bits: int = -1) -> None:
        """Messages of a claimed batch are done with: their copies are durable, or they are not there any more."""
        with self.lock:
            self._take(batch, bits)

    # ------------------------------------------------------------------------------------------------ checks

    def queues(self) -> Iterator[PopQueue]:
        """List all queues."""
        return (queue for groups in self._topics.values() for queues in groups.values() for queue in queues.values())

    def check(self) -> list[str]:
        """Say everything that is wrong; empty when nothing is."""
        queues = [*self.queues(), *self._going]
        wrong = [sentence for queue in queues for sentence in queue.check()]
        count, number = sum(len(queue.in_flight()) for queue in queues), len(queues) - len(self._going)
        if (count, number) != (self.count, self.queue_count):
            wrong.append(
                f"{self.count} messages of {self.queue_count} queues are counted, there are {count} of {number}"
            )
        return wrong
