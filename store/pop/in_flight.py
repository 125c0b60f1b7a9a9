"""`InFlight`: which messages are handed out, to be acknowledged or to come again. Pure: no clock, no file, no thread.

The problem
    A popped message belongs to one holder until a due time. It comes again then unless it was acknowledged, and its
    group's offset must not pass it before one of the two is certain.

The idea
    An un-acknowledged message's reappearance is a delayed event without a body. One `Batch` has all messages that one
    pop got from one queue: its start, a bit for each message that is not acknowledged, the pop's time, and a due time
    for a `timewheel.TimingWheel`. As long as it only gets acks it is a row (`store.pop.packed`).

    ============  ===================================================================================================
    ``record``    a pop got messages: a new batch, ``next`` moves on
    ``ack``       takes a bit away; the last one cancels the timer
    ``change``    takes a bit away and makes a batch of one message, with a new pop time: both or neither
    ``claim``     batches that are due, for the reviver, which copies them into the retry topic; acks of them come too
                  late now
    ``put_back``  the copy failed: due again a little later, acknowledged by the same handles
    ``copied``    copies are made: no handle names those messages any more, but the offset does not pass them yet
                  (``all_copied`` for many at once)
    ``settle``    the copies are as durable as they have to be: the messages are done with (``settle_all``)
    ``forget_…``  a topic or a group was deleted: its queues are gone at once, what was in flight by and by (``claim``)
    ============  ===================================================================================================

    ``committed`` of a queue is its lowest message in flight, else ``next``. Rows are in order. Objects are in a heap by
    their lowest message when they were added; only the first entry is corrected, when it is read. So an ack costs no
    search.

What a crash does
    All of this is memory. ``notes`` has the changes, for a journal (`store.pop.journal`), and `open` and `restored`
    make it again from the journal. Without a journal, all messages from the stored offset on are offered again: they
    come twice, but none is lost.

Threads: the network loop records, acknowledges and changes; the reviver claims and settles. A lock is around each.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter

from store.pop.due_tail import DueTail
from store.pop.order_block import OrderBlock
from store.pop.packed import NEVER_MS, PACKED_MAX, ROW_BITS_MAX
from store.pop.pop_queue import Batch, PopQueue, QueueRows
from store.pop.popped_queues import PoppedQueues

__all__ = ["InFlight"]

_GO_MAX = 1_000
"""Batches of deleted topics and groups that one `InFlight.claim` lets go: a millisecond."""
_DUE_MAX = 1_000
"""Batches that one `InFlight.claim` takes out of wheel and rows: a millisecond."""
_DUE_STEP = _DUE_MAX // PACKED_MAX + 1
_DUE_MS = itemgetter(0)


class InFlight(PoppedQueues):
    """The messages in flight of all popped queues.

    Args:
        now_ms, queues_max, count_max: As `PoppedQueues` says.
    """

    def __init__(self, now_ms: int, queues_max: int = 500_000, count_max: int = 2_000_000) -> None:
        super().__init__(now_ms, queues_max, count_max)
        self._tail = DueTail()
        self.passing = 0
        """How many of the batches claimed last, the first ones, were never in the tail."""

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
        with self.lock:
            if offsets:
                queue.next = next_offset
                self._handed_out(queue, start, offsets, pop_ms, invisible_ms, next_offset)
            else:
                self._move(queue, next_offset)

    def _handed_out(
        self, queue: PopQueue, start: int, offsets: Sequence[int], pop_ms: int, invisible_ms: int, next_offset: int
    ) -> None:
        waiting = 0
        for offset in offsets:
            waiting |= 1 << (offset - start)
        due_ms = pop_ms + invisible_ms
        self.number = name = self.number + 1
        self.restored(queue, name, start, waiting, pop_ms, due_ms)
        if self.notes is not None:
            self.notes.added(queue.ref, name, start, waiting, pop_ms, due_ms, next_offset)

    def restored(self, queue: PopQueue, name: int, start: int, waiting: int, pop_ms: int, due_ms: int) -> None:
        """Add a batch that has a name already. The caller holds the lock, or nobody else is there yet."""
        packed = queue.packed_for(start, waiting, due_ms)
        if packed is None:
            self._timed(Batch(queue, start, waiting, pop_ms, due_ms, name, name))
        else:
            packed.add(name, start, waiting, pop_ms, due_ms)
            if due_ms < packed.armed_ms:
                self._arm(packed, due_ms)
        count = waiting.bit_count()
        queue.count += count
        self.count += count

    def _timed(self, batch: Batch) -> None:
        batch.timer = self._wheel.insert(batch.due_ms, batch)
        self._keep(batch)

    def _keep(self, batch: Batch) -> None:
        """Have an object found by its handle, and keep the offset back; its messages are counted by the caller."""
        batch.queue.batches[batch.start, batch.pop_ms] = batch
        batch.queue.hold_back(batch)

    def _arm(self, packed: QueueRows, due_ms: int) -> None:
        self._wheel.cancel(packed.timer)
        packed.timer = self._wheel.insert(due_ms, packed)
        packed.armed_ms = due_ms

    def _take_row(self, queue: PopQueue, start: int, pop_ms: int, bits: int) -> int:
        """Take messages that are done with out of the row of a handle; how many, or -1 if there is no such row."""
        rows = queue.packed
        if not rows:
            return -1
        packed = rows[-1]
        if start < packed.first:
            at = queue.packed_at(start)
            if at < 0:
                return -1
            packed = rows[at]
        count = packed.take(start, pop_ms, bits, self.notes)
        if count > 0:
            queue.count -= count
            self.count -= count
            if not packed.live and packed is not rows[-1]:  # the last ones stay, to be added to
                self._wheel.cancel(packed.timer)
                del rows[queue.packed_at(packed.first)]
        return count

    def _take(self, batch: Batch, bits: int, done: bool = True) -> int:
        """Take messages out of a batch, as a rule since they are done with; how many."""
        taken = batch.waiting & bits
        if done and taken and self.notes is not None:
            self.notes.taken(batch.name, taken)
        count = taken.bit_count()
        batch.waiting ^= taken
        queue = batch.queue
        self._count_out(queue, count)
        if not batch.waiting:
            queue.batches.pop((batch.start, batch.pop_ms), None)
            self._wheel.cancel(batch.timer)
        return count

    def ack(self, queue: PopQueue, start: int, pop_ms: int, bits: int) -> int:
        """Acknowledge messages, as bits from ``start``; how many of them were in flight under that handle."""
        with self.lock:
            count = self._take_row(queue, start, pop_ms, bits)
            if count >= 0:
                return count
            batch = queue.batches.get((start, pop_ms))
            return 0 if batch is None or batch.claimed else self._take(batch, bits)

    def change(
        self, queue: PopQueue, start: int, pop_ms: int, offset: int, invisible_ms: int, now_ms: int
    ) -> Batch | None:
        """Give one message another due time, and with it another handle; None if it was not in flight."""
        with self.lock:
            if not self._take_one(queue, start, pop_ms, offset):
                return None
            # A handle names one batch, and one of before nothing: pop times of one message's own batches only grow.
            new_ms = max(now_ms, pop_ms + 1) if start == offset else self.pop_ms(now_ms)
            while (offset, new_ms) in queue.batches:
                new_ms += 1
            self.number = name = self.number + 1
            batch = Batch(queue, offset, 1, new_ms, new_ms + invisible_ms, name, name)
            self._timed(batch)
            self._count_out(queue, -1)
            if self.notes is not None:
                self.notes.added(queue.ref, name, offset, 1, new_ms, batch.due_ms, -1)
            return batch

    def _take_one(self, queue: PopQueue, start: int, pop_ms: int, offset: int) -> bool:
        """Take one message out of the batch that a handle names; False if it is not there."""
        place = offset - start
        count = self._take_row(queue, start, pop_ms, 1 << place if 0 <= place < ROW_BITS_MAX else 0)
        if count >= 0:
            return count == 1
        batch = queue.batches.get((start, pop_ms))
        if batch is None or batch.claimed or not 0 <= place < batch.waiting.bit_length():
            return False
        return self._take(batch, 1 << place) == 1

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

    def unblock(self, queue: PopQueue, offsets: Sequence[int], pop_ms: int, invisible_ms: int) -> None:
        """A pop without order got messages of a block, which are a batch from now on.

        Both under one lock: a journal that had the first alone would lose them in a kill.
        """
        with self.lock:
            block = queue.block
            if block is not None:
                for offset in offsets:
                    block.forget(offset)
                self._time(queue, block)
            self._handed_out(queue, offsets[0], offsets, pop_ms, invisible_ms, -1)

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
        """Take some ``count_max`` due messages, as batches to copy and then settle, and the queues that are unblocked.

        Messages due later pass those that did not fit (`store.pop.due_tail`).
        """
        unblocked: list[PopQueue] = []
        with self.lock:
            self._let_go(_GO_MAX)
            due = self._come_due(now_ms, unblocked)
            batches = self._tail.choose(due, count_max)
            self.passing = self._tail.passing
            for batch in batches:
                batch.claimed = True
        return batches, unblocked

    def _come_due(self, now_ms: int, unblocked: list[PopQueue]) -> list[Batch]:
        """Take what is due out of the wheel, and out of rows; in order, unless that is more than `_DUE_MAX`."""
        due: list[tuple[int, Batch]] = []
        room = _DUE_MAX
        while room > 0:
            times, items = self._wheel.advance(now_ms, _DUE_STEP)
            for due_ms, item in zip(times, items, strict=True):
                room -= 1
                if isinstance(item, QueueRows):
                    room -= self._unpack(item, now_ms, due)
                elif isinstance(item, PopQueue):
                    unblocked.append(item)
                elif item.waiting and not item.queue.gone:
                    due.append((due_ms, item))
            if len(items) < _DUE_STEP:
                break
        due.sort(key=_DUE_MS)
        return [batch for _, batch in due]

    def _unpack(self, packed: QueueRows, now_ms: int, due: list[tuple[int, Batch]]) -> int:
        """Make objects of the rows that are due, as others hold them from now on; how many. The timer has fired."""
        packed.timer, packed.armed_ms = -1, NEVER_MS
        queue = packed.queue
        if queue.gone:
            return 0
        rows = packed.take_due(now_ms)
        for name, start, waiting, pop_ms, due_ms in rows:
            batch = Batch(queue, start, waiting, pop_ms, due_ms, name, name)
            self._keep(batch)
            due.append((due_ms, batch))
        if packed.live:
            self._arm(packed, packed.earliest_ms())
        else:
            del queue.packed[queue.packed_at(packed.first)]
        return len(rows)

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
        return self.all_copied([(batch, bits)])[0]

    def all_copied(self, claims: Sequence[tuple[Batch, int]]) -> list[Batch]:
        """Do so for many claimed batches under one hold of the lock."""
        with self.lock:
            return [self._copied(batch, bits) for batch, bits in claims]

    def _copied(self, batch: Batch, bits: int) -> Batch:
        taken = batch.waiting & bits
        count = self._take(batch, taken, done=False)
        self.number += 1
        # The pop time as its complement, below 0: no handle has such a time.
        rest = Batch(batch.queue, batch.start, taken, ~batch.pop_ms, batch.due_ms, self.number, batch.name)
        rest.claimed = True
        if taken:
            queue = batch.queue
            queue.count += count
            self.count += count
            queue.hold_back(rest)
            if self.notes is not None and self.notes.listing:  # it may have taken only the object of before
                self.notes.added(queue.ref, batch.name, batch.start, taken, batch.pop_ms, batch.due_ms, -1)
        return rest

    def settle(self, batch: Batch, bits: int = -1) -> None:
        """Messages of a claimed batch are done with: their copies are durable, or they are not there any more."""
        with self.lock:
            self._take(batch, bits)

    def settle_all(self, batches: Sequence[Batch]) -> None:
        """Do so for all messages of many claimed batches under one hold of the lock."""
        with self.lock:
            for batch in batches:
                self._take(batch, -1)
