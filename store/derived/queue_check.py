"""Checks that every record of the log has its entry in its queue, by a walk through the log.

`store.store_reader` checks the other direction, from entries to records. It cannot see a record without an entry, which
is durable but which no consumer can read. Nor does it see that two records have the same queue offset, which hides one
of them.

A topic may be deleted, and made again: its records stay in the log, and its queue offsets begin at 0 again. So a record
before a queue's first entry belongs to an earlier life of that queue, and needs no entry.
"""

from __future__ import annotations

from store.derived.consume_queue import ConsumeQueue
from store.derived.consume_queues import ConsumeQueues
from store.derived.dispatch import Derived
from store.derived.queue_entries import ENTRY, PRE_BLANK_SIZE

__all__ = ["QueueCheck"]

SHOWN_MAX = 20
"""Most sentences for one queue; one more says how many were left out."""
_AT_ONCE = 256
_ANY_LEVELS = (0,)  # any value will do: deliver times are not compared here


class QueueCheck:
    """Gets each record of a log in order, and collects the missing entries.

    Args:
        queues: The queues of that log.
        begin: The log's lowest offset.
    """

    def __init__(self, queues: ConsumeQueues, begin: int) -> None:
        self._queues = queues
        self._begin = begin
        self._entries: dict[tuple[str, int], tuple[int, list[tuple[int, int, int]]]] = {}
        self._shown: list[str] = []
        self._count = 0

    def look(self, offset: int, record: bytes) -> None:
        """Look for the entry of one record. Raises StoreError."""
        derived = Derived(record, _ANY_LEVELS)
        queue = self._queues.find(derived.topic, derived.queue_id) if derived.queued else None
        if queue is None or queue.count == 0:
            return
        entry = self._entry(queue, derived.number)
        if entry is not None and entry[:2] == (offset, len(record)):
            return
        first = queue.entry(queue.min_offset(self._begin))
        if first is not None and offset < first[0]:
            return  # of an earlier life
        self._count += 1
        if len(self._shown) < SHOWN_MAX:
            where = f"record at {offset}: {derived.topic}/{derived.queue_id} has"
            if entry is None or entry[1] == PRE_BLANK_SIZE:
                self._shown.append(f"{where} no entry {derived.number} for it")
            else:
                self._shown.append(f"{where} another record as number {derived.number}: the one at {entry[0]}")

    def _entry(self, queue: ConsumeQueue, number: int) -> tuple[int, int, int] | None:
        key = queue.topic, queue.queue_id
        first, entries = self._entries.get(key, (0, []))
        if not first <= number < first + len(entries):
            first, entries = number, list(ENTRY.iter_unpack(queue.read(number, _AT_ONCE)))
            self._entries[key] = first, entries
        return entries[number - first] if entries else None

    def wrong(self) -> list[str]:
        """Return the sentences about what was found; empty when nothing is wrong."""
        more = self._count - len(self._shown)
        return [*self._shown, f"and {more} more records without their entries"] if more else self._shown
