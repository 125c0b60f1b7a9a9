"""`Copier`: reads messages whose invisible time is over, and makes the copies for the retry topic of their group."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from operator import add
from typing import TYPE_CHECKING

from broker.pop.retry_record import mark_text, revived
from remoting.errors import RecordError
from remoting.layout import OFFSET_AT, RECORD_BYTES_MIN
from remoting.layout.table import LONG
from store.disk.errors import StoreError
from store.log.recent import adjacent_runs
from store.pop.pop_queue import Batch, numbers_of
from store.pop.retry_block import Copied, copies_of
from store.put.plugin_api import PutRecord, put_record_of
from store.put.put import Put

if TYPE_CHECKING:
    from store.message_store import MessageStore

__all__ = ["PUT_BYTES_MAX", "Claim", "Copier"]

_LOG = logging.getLogger(__name__)

_SPARSE = 4
"""Most ConsumeQueue entries that are read for each wanted message; sparser batches are read one by one."""
_DENSE = 4
"""A stretch of the log is read as a whole if it has at most so many times the bytes of the messages in it."""
PUT_BYTES_MAX = 1 << 20
"""Most bytes of copies in one put, unless a single copy has more. A put holds the append lock, and all of it is in
memory twice."""

Claim = tuple[Batch, int]
"""A batch, and the bits of some of its messages."""
Found = tuple[Batch, int, list[int], list[tuple[int, int]] | None]
"""A batch, its bits, the messages that they stand for, and position and size of each; None: not looked up together."""


class Copier:
    """Makes copies; never puts them. By one thread.

    Args:
        store: Where messages are read.
    """

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self.block_min = 24
        """Least messages of a block; fewer are copied one by one, because a block costs 0.2 ms whatever its size."""
        self.block_count = 0
        """Blocks made since the start."""

    # ------------------------------------------------------------------------------------------------ many

    def groups(self, batches: list[Batch]) -> Iterator[list[Found]]:
        """Look up the messages of batches, in groups that may be one put; a batch that has to be alone is a group."""
        group: list[Found] = []
        group_bytes = 0
        for batch in batches:
            bits = batch.waiting  # read once: a reset of the offset clears it from another thread
            offsets = [*numbers_of(batch.start, bits)]
            positions: list[tuple[int, int]] | None
            try:
                positions = self._places(batch, offsets)
            except StoreError:  # it is said when the batch is read alone
                positions = None
            if positions is None:
                yield [(batch, bits, offsets, None)]
                continue
            # A list: mypyc makes a plain loop of it, but of a generator an object that is resumed for each element.
            own_bytes = sum([size for _, size in positions])
            if group and group_bytes + own_bytes > PUT_BYTES_MAX:
                yield group
                group, group_bytes = [], 0
            group.append((batch, bits, offsets, positions))
            group_bytes += own_bytes
        if group:
            yield group

    def together(self, group: list[Found], topic: str) -> list[tuple[Put, list[Claim]]] | None:
        """Make the copies of a group, usually as one put; each put comes with the messages that it copies.

        Returns None if the messages must be read one by one: they are few, not all in memory, or unusual records.
        Raises StoreError.
        """
        copied = Copied()
        for batch, _, offsets, positions in group:
            if positions is None:
                return None
            copied.add(batch.name, offsets, batch.pop_ms, positions)
        if len(copied.places) < self.block_min or not 0 < sum(copied.sizes) <= PUT_BYTES_MAX:
            return None
        found = self._stretch(copied)
        if found is None or any(batch.queue.gone for batch, _, _, _ in group):
            return None
        copied.begin, copied.data = found
        copies = copies_of(copied, topic)
        if copies is None:
            return None
        block = copies.block(max([batch.due_ms for batch, _, _, _ in group]))
        if block is not None:
            self.block_count += 1
            return [(block, [(batch, bits) for batch, bits, _, _ in group])]
        puts: list[tuple[Put, list[Claim]]] = []
        records = iter(copies.records())
        for batch, bits, _, _ in group:
            while bits:
                low = bits & -bits
                bits ^= low
                puts.append((put_record_of(next(records), batch.due_ms), [(batch, low)]))
        return puts

    def _places(self, batch: Batch, offsets: list[int]) -> list[tuple[int, int]] | None:
        """Look up position and size of a batch's messages; None if the batch is sparse or entries are missing."""
        if not offsets:
            return []  # the group's offset was reset meanwhile: none of the batch is in flight now
        first, span = offsets[0], offsets[-1] - offsets[0] + 1
        if span > _SPARSE * len(offsets):
            return None
        queue = batch.queue
        entries = self._store.queue_entries(queue.topic, queue.queue_id, first, span)
        if len(entries) != span:
            return None
        return [entries[offset - first][:2] for offset in offsets]

    def _stretch(self, copied: Copied) -> tuple[int, bytes] | None:
        """Read messages: as one part of the log if that is short enough, with its begin; else alone, with -1.

        None unless they are in memory.
        """
        places, sizes = copied.places, copied.sizes
        begin = min(places)
        reach = max(map(add, places, sizes)) - begin
        if reach <= _DENSE * sum(sizes):
            data = self._read_runs([(begin, reach)])
            if data is not None:
                return begin, data
        data = self._read_runs([*zip(places, sizes, strict=True)])  # also if the stretch crosses the end of a file
        return None if data is None else (-1, data)

    def _read_runs(self, positions: list[tuple[int, int]]) -> bytes | None:
        runs = adjacent_runs(positions)
        return self._store.read_recent(runs) or self._store.gather_hot(runs)

    # ------------------------------------------------------------------------------------------------ one by one

    def singly(self, batch: Batch, topic: str) -> Iterator[list[tuple[int, PutRecord | None]]]:
        """Make the copies of one batch: the bit of each message with its copy, or with None if the message is gone.

        Each yield is at most one put. May wait for the disk. Raises StoreError.
        """
        offsets = [*batch.offsets()]
        if not offsets:
            return
        positions = self._places(batch, offsets) if len(offsets) > 1 else None
        for begin, end in self._parts(batch, offsets, positions):
            found = self._read(batch, offsets[begin:end], None if positions is None else positions[begin:end])
            if batch.queue.gone:  # the topic may have been deleted and created anew: these may be the new one's records
                return
            yield [(1 << (offset - batch.start), self._copy(batch, offset, topic, data)) for offset, data in found]

    def _parts(
        self, batch: Batch, offsets: list[int], positions: list[tuple[int, int]] | None
    ) -> Iterator[tuple[int, int]]:
        """Split a batch into parts that fit a put: begin and end of each."""
        if positions is not None:
            sizes = [size for _, size in positions]
        else:
            queue, entry = batch.queue, self._store.entry
            entries = [entry(queue.topic, queue.queue_id, offset) for offset in offsets] if len(offsets) > 1 else [None]
            sizes = [PUT_BYTES_MAX if found is None else found[1] for found in entries]
        begin = size = 0
        for at, more in enumerate(sizes):
            if at > begin and size + more > PUT_BYTES_MAX:
                yield begin, at
                begin, size = at, 0
            size += more
        yield begin, len(offsets)

    def _read(
        self, batch: Batch, offsets: list[int], positions: list[tuple[int, int]] | None
    ) -> list[tuple[int, bytes | None]]:
        """Read messages of a batch, those in memory by one call; None for a message that is gone."""
        store, queue = self._store, batch.queue
        if positions is not None:
            records = self._read_hot(positions)
            if records is not None:
                return [*zip(offsets, records, strict=True)]
        found: list[tuple[int, bytes | None]] = []
        for offset in offsets:
            entry = store.entry(queue.topic, queue.queue_id, offset)
            found.append((offset, None if entry is None else store.read_record(entry[0], entry[1])))
        return found

    def _read_hot(self, positions: list[tuple[int, int]]) -> list[bytes] | None:
        """Read records; None unless all of them are in memory and each one is the record of its position."""
        body = self._read_runs(positions)
        if body is None:
            return None
        records, at = [], 0
        for position, size in positions:
            record = body[at : at + size]
            at += size
            if len(record) < RECORD_BYTES_MIN or LONG.unpack_from(record, OFFSET_AT)[0] != position:
                return None
            records.append(record)
        return records if at == len(body) else None

    @staticmethod
    def _copy(batch: Batch, offset: int, topic: str, record: bytes | None) -> PutRecord | None:
        """Copy one message; None if it is gone or damaged."""
        if record is None:
            return None
        try:
            return revived(record, topic, batch.pop_ms, batch.due_ms, mark_text(batch.name, offset))
        except RecordError as error:
            queue = batch.queue
            _LOG.error("message %d of %s-%d cannot be delivered again: %s", offset, queue.topic, queue.queue_id, error)
            return None
