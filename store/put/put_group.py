"""`PutGroup`: several messages of one request that do not look alike, appended together or not at all."""

from __future__ import annotations

from store.derived.consume_queues import ConsumeQueues
from store.put.put import Put, PutResult, PutStatus
from store.put.put_record import PutRecord

__all__ = ["PutGroup", "put_of", "results_of"]


class PutGroup(Put):
    """Records of any queues, in the order of the log; at least one. See `store.put.put.Put`."""

    __slots__ = ("records",)

    def __init__(self, records: list[PutRecord]) -> None:
        # A list, not a generator: mypyc compiles it to a plain loop instead of an object resumed for each record.
        super().__init__(sum([record.data_bytes for record in records]))
        self.records = records
        self.accepted = True
        for record in records:
            self.due_ms = max(self.due_ms, record.due_ms)
            self.guarded = self.guarded or record.guarded
            self.accepted = self.accepted and record.accepted
            self.scheduled = self.scheduled or record.scheduled

    def __len__(self) -> int:
        return len(self.records)

    @property
    def longest(self) -> int:
        """Bytes of the longest record."""
        return max([record.data_bytes for record in self.records])

    @property
    def last_bytes(self) -> int:
        """Bytes of the last record."""
        return self.records[-1].data_bytes

    def where(self) -> list[tuple[str, int]]:
        """Topic and queue id of each queue, once."""
        return list({(record.topic, record.queue_id): None for record in self.records})

    def schedule(self, store_ms: int, levels_ms: tuple[int, ...]) -> None:
        """Set the deliver times of level messages as their tags codes."""
        for record in self.records:
            record.schedule(store_ms, levels_ms)

    def number(self, queues: ConsumeQueues) -> int:
        """Take the next queue offsets of its queues, one by one; returns how many."""
        for record in self.records:
            record.number(queues)
        self.first = self.records[0].first
        return len(self.records)

    def give_back(self) -> None:
        """Give the queue offsets back."""
        for record in self.records:
            record.give_back()

    def joined_to(self, buffer: bytearray, position: int, store_ms: int) -> bytearray:
        """Append the records to ``buffer``."""
        for record in self.records:
            buffer = record.joined_to(buffer, position, store_ms)
            position += record.data_bytes
        return buffer

    def derive(self, position: int, store_ms: int, queues: ConsumeQueues, index_rows: list[bytes]) -> None:
        """Append its queue entries and its rows of the key index."""
        for record in self.records:
            record.derive(position, store_ms, queues, index_rows)
            position += record.data_bytes


def put_of(records: list[PutRecord]) -> Put:
    """One put of one record or more: the record itself, or a group."""
    return records[0] if len(records) == 1 else PutGroup(records)


def results_of(put: Put, result: PutResult) -> list[PutResult]:
    """A result for each message of a group; for any other put the one that it has."""
    if not isinstance(put, PutGroup):
        return [result]
    if result.status is not PutStatus.PUT_OK:
        return [result] * len(put.records)
    results: list[PutResult] = []
    position = result.offset
    for record in put.records:
        results.append(PutResult(PutStatus.PUT_OK, position, record.first, result.store_ms))
        position += record.data_bytes
    return results
