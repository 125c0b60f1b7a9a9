"""`PoppedQueues`: the queues that are popped: opened, moved, and forgotten with their topic or group.

What `store.pop.in_flight.InFlight` keeps of them hangs on each queue. A queue that is forgotten is not found from then
on; what it has had in flight, a million batches perhaps, goes by and by.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Mapping

from store.pop.notes import Notes
from store.pop.pop_queue import PopQueue
from timewheel import TimingWheel

__all__ = ["PoppedQueues"]

Groups = dict[str, dict[int, PopQueue]]


class PoppedQueues:
    """All queues that are popped; `store.pop.in_flight.InFlight` is what they have handed out.

    Args:
        now_ms: Where the wheel starts. Pops begin later: see `InFlight.pop_ms`.
        queues_max: Most queues, of all groups.
        count_max: Most messages in flight, of all queues.
    """

    def __init__(self, now_ms: int, queues_max: int = 500_000, count_max: int = 2_000_000) -> None:
        self.lock = threading.Lock()
        self.notes: Notes | None = None
        """Changes that the journal has to write; None without a journal."""
        self._wheel, self._first_ms = TimingWheel(now_ms), now_ms + 1
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
        """True if queues were forgotten since somebody last set this to False."""

    # ------------------------------------------------------------------------------------------------ queues

    def find(self, group: str, topic: str, queue_id: int) -> PopQueue | None:
        """A queue that is popped already."""
        groups = self._topics.get(topic)
        queues = None if groups is None else groups.get(group)
        return None if queues is None else queues.get(queue_id)

    def queues_of(self, group: str, topic: str) -> Mapping[int, PopQueue]:
        """The queues of a topic that a group pops already, by id."""
        groups = self._topics.get(topic)
        return {} if groups is None else groups.get(group, {})

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
        """Continue at an offset that an administrator has set; messages in flight are forgotten."""
        with self.lock:
            self._empty(queue)
            self._note_gone(queue)
            queue.next = queue.published = offset
            self.ref += 1
            queue.ref = self.ref
            self._note_opened(queue)

    def skip(self, queue: PopQueue, offset: int) -> None:
        """Continue at a later offset, which the group has reached without pops; messages in flight stay."""
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
        """Nothing of these queues is found any more; their batches go later."""
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
            if queue.packed:
                batches_max -= self._let_packed_go(queue, batches_max)
                continue
            # From the end: what is left of a heap is still a heap.
            rest = queue.heap[-batches_max:]
            del queue.heap[-batches_max:]
            for _, _, batch in rest:
                self._count_out(queue, batch.waiting.bit_count())
                batch.waiting = 0
                self._wheel.cancel(batch.timer)
            # One at least: else a queue without batches would keep the loop going for ever.
            batches_max -= len(rest) or 1
            if not queue.heap:
                self._empty(queue)
                going.popleft()

    def _let_packed_go(self, queue: PopQueue, rows_max: int) -> int:
        packed = queue.packed[-1]
        size = len(packed)
        self._count_out(queue, packed.take_last(rows_max))
        if not packed:
            self._wheel.cancel(packed.timer)
            queue.packed.pop()
        return min(size, rows_max) or 1

    def _count_out(self, queue: PopQueue, count: int) -> None:
        queue.count -= count
        self.count -= count

    def _empty(self, queue: PopQueue) -> None:
        for _, _, batch in queue.heap:
            batch.waiting = 0
            self._wheel.cancel(batch.timer)
        for packed in queue.packed:
            packed.clear()
            self._wheel.cancel(packed.timer)
        if queue.block is not None:
            self._wheel.cancel(queue.block.timer)
            queue.block = None
        self._count_out(queue, queue.count)
        queue.packed.clear()
        queue.batches.clear()
        queue.heap.clear()

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
