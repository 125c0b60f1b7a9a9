"""`PopQueues`: opens popped queues at their groups' offsets, and commits how far each group has come."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from broker.pop.handle import NORMAL, retry_flag
from store.pop.in_flight import InFlight
from store.pop.pop_queue import PopQueue

if TYPE_CHECKING:
    from broker.tables.offsets import ConsumerOffsets
    from store.message_store import MessageStore, PullResult

__all__ = ["FROM_MIN", "PopQueues"]

_TURNS_MAX = 10_000
"""Groups and topics whose looks are counted; then counting begins anew."""
FROM_MIN = 0
"""The initMode of pops whose group, if it has no offset yet, begins at a queue's first message."""


class PopQueues:
    """Finds and opens the queues that requests are about. Network loop only.

    Args:
        store: The queues.
        offsets: The groups' offsets.
        in_flight: The messages that are handed out.
        in_memory_bytes: Bytes at the end of the log that are assumed to be in memory.
        per_queue: Most messages of a queue in flight for a group (``popInflightMessageThreshold``).
    """

    def __init__(
        self,
        store: MessageStore,
        offsets: ConsumerOffsets,
        in_flight: InFlight,
        in_memory_bytes: int,
        per_queue: Callable[[], int],
    ) -> None:
        self._store = store
        self._offsets = offsets
        self.in_flight = in_flight
        self._in_memory_bytes = in_memory_bytes
        self._per_queue = per_queue
        self._turns: dict[tuple[str, str], int] = {}
        self._looks = 0

    def next_turn(self, group: str, topic: str) -> int:
        """Count the looks of a group at a topic. One count for all would favour queues if groups pop in turn."""
        turns, key = self._turns, (group, topic)
        turn = turns.get(key)
        if turn is None:
            if len(turns) >= _TURNS_MAX:
                turns.clear()
            turn = self._looks  # not 0: else all would begin at the same queue each time that counting begins anew
        self._looks += 1
        turns[key] = turn + 1
        return turn + 1

    def open(self, group: str, topic: str, queue_id: int, init_mode: int) -> PopQueue | None:
        """Open a queue for a pop, at an offset that may have been reset or pulled past; None if there are too many."""
        offsets = self._offsets
        queue = self.in_flight.find(group, topic, queue_id)
        stored, end = offsets.get(group, topic, queue_id), self._store.max_offset(topic, queue_id)
        if stored > end:  # no message has that offset: as with Apache, the group continues at the end
            stored = end
            offsets.commit(group, topic, queue_id, end)
        if queue is None:
            begin = self._begin(topic, queue_id, init_mode) if stored < 0 else stored
            if stored < 0 and not offsets.commit(group, topic, queue_id, begin):
                return None
            offsets.take_reset(group, topic, queue_id)
            return self.in_flight.open(group, topic, queue_id, begin)
        reset = offsets.take_reset(group, topic, queue_id)
        if reset is not None:
            self.in_flight.restart(queue, min(reset, end))
        elif stored > queue.published and not queue.busy:
            queue.published = stored
            if stored > queue.next:  # the group has pulled
                self.in_flight.skip(queue, stored)
        return queue

    def with_messages(self, group: str, topic: str, queue_ids: list[int]) -> list[int]:
        """Leave out the queues that have nothing for a pop: `open` would change nothing, and all was handed out."""
        ends = self._store.queues.table.get(topic)
        if ends is None:
            return []
        if self._offsets.resets:
            return queue_ids
        popped, offsets = self.in_flight.queues_of(group, topic), self._offsets.of(group, topic)
        found: list[int] = []
        for queue_id in queue_ids:
            queue = ends.get(queue_id)
            if queue is None or not queue.count:
                continue
            known = popped.get(queue_id)
            if (
                known is None
                or known.block is not None
                or queue.count > known.next
                or offsets.get(queue_id, -1) > known.published
            ):
                found.append(queue_id)
        return found

    def is_current(self, queue: PopQueue) -> bool:
        """True if `open` would change nothing: the group's offset was neither reset nor moved further by others."""
        name = queue.group, queue.topic, queue.queue_id
        return not self._offsets.has_reset(*name) and self._offsets.get(*name) <= queue.published

    def next_of(self, group: str, topic: str, queue_id: int) -> int:
        """Return the offset at which a pop of a queue would begin; opens nothing."""
        queue = self.in_flight.find(group, topic, queue_id)
        stored = self._offsets.get(group, topic, queue_id)
        if queue is not None and not self._offsets.has_reset(group, topic, queue_id):
            return max(queue.next, stored)
        return self._store.min_offset(topic, queue_id) if stored < 0 else stored

    def _begin(self, topic: str, queue_id: int, init_mode: int) -> int:
        """Return where a group without an offset begins.

        As with Apache, a queue whose first message is still in memory is read from there whatever the initMode.
        """
        store = self._store
        first, end = store.min_offset(topic, queue_id), store.max_offset(topic, queue_id)
        if init_mode == FROM_MIN or retry_flag(topic) != NORMAL or end == 0:
            return first
        if first <= 0:
            positions = store.pull(topic, queue_id, 0, 1, 1, None).positions
            if positions and store.commit_log.end - positions[0][0] <= self._in_memory_bytes:
                return 0
        return max(end - 1, 0)

    def offsets_of(self, queue: PopQueue, start: int, found: PullResult) -> list[int]:
        """Return the offsets of messages found from ``start`` on; none if the queue's entries are gone.

        They come from the ConsumeQueue. The fields of a record cannot be trusted, because it may be damaged.
        """
        end = found.next_offset
        if len(found.positions) == end - start:
            return [*range(start, end)]
        numbers: dict[int, int] = {}
        while start < end and (entries := self._store.queue_entries(queue.topic, queue.queue_id, start, end - start)):
            numbers |= {position: start + at for at, (position, _, _) in enumerate(entries)}
            start += len(entries)
        offsets = [numbers[position] for position, _ in found.positions if position in numbers]
        return offsets if len(offsets) == len(found.positions) else []

    def room(self, queue: PopQueue) -> int:
        """Number of further messages of a queue that may be in flight."""
        return min(self._per_queue() - queue.count, self.in_flight.count_max - self.in_flight.count)

    def moved(self, queues: Iterable[PopQueue]) -> None:
        """Commit the offsets that groups have reached in these queues.

        A deleted queue is left out, and one whose offset somebody has moved further or reset.
        """
        for queue in dict.fromkeys(queues):
            with self.in_flight.lock:
                committed = -1 if queue.gone else queue.committed()
            if committed > queue.published and not self._offsets.has_reset(queue.group, queue.topic, queue.queue_id):
                self._offsets.commit(queue.group, queue.topic, queue.queue_id, committed)
                queue.published = committed

    def offers(self, queue: PopQueue) -> bool:
        """True if a queue has messages not handed out yet, and room in flight for them."""
        end, block = self._store.max_offset(queue.topic, queue.queue_id), queue.block
        some = end > queue.next or (block is not None and bool(block.waiting))
        return some and not queue.gone and self.room(queue) > 0

    def full(self) -> str:
        """Say why no further queue can be popped."""
        most = self.in_flight.queues_max
        return self._offsets.full() or f"{self.in_flight.queue_count} queues are popped, at most {most} may be"
