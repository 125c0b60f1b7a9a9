"""`ReadyRows`: the records of a large batch, made in slices and appended by one short step.

Tens of thousands of records take half a second to parse, check and encode, and the network loop must not be held for
so long. So they are gathered here a few hundred at a time (`add`, `add_rows`, `end_slice`) and joined once (`arrange`,
`join`). The append itself only writes the three numbers that nobody knows before (queue offset, position, store time)
into each record, as columns. For 32,767 records that takes some milliseconds.

Unlike `store.put.put_block.PutBlock`, which is for deliveries, it takes records with any properties, for any queues of
any topics.
"""

from __future__ import annotations

import numpy as np

from remoting.messages.checksum import crc32
from remoting.messages.message import message_ids, store_ms_at
from store.derived.consume_queues import ConsumeQueues
from store.derived.dispatch import SCHEDULE_TOPIC
from store.derived.key_rows import Column, key_base
from store.put.put_columns import Longs, PutColumns
from store.put.put_record import PutRecord
from store.put.put_rows import PutRows

__all__ = ["ReadyRows"]


class ReadyRows(PutColumns):
    """Records that are appended together or not at all. A row is the number of a message in its batch.

    Complete after `join`. Records stand in the order of the log: queue by queue. `store.put.put_columns.PutColumns` has
    the other columns:

    ==============  ================================================================================
    ``rows``        int64 array, the row of each record
    ``samples``     list, for each queue the first `PutRecord` that `add` gave it; None: it came by `add_rows`
    ==============  ================================================================================
    """

    __slots__ = (
        "_codes",
        "_found",
        "_hashes",
        "_keys",
        "_owners",
        "_records",
        "_rows",
        "_tags",
        "key_count",
        "rows",
        "samples",
    )

    def __init__(self) -> None:
        super().__init__()
        self._records: list[bytes | bytearray] = []
        self._rows: list[int] = []
        self._tags: list[int] = []
        self._codes: list[int] = []  # of each record's queue
        self._found: dict[tuple[str, int], tuple[int, PutRecord | None]] = {}
        self._hashes: list[int] = []
        self._owners: list[int] = []
        self._keys: list[tuple[Column, Longs]] = []  # hashes and owners of earlier slices
        self.rows: Longs = np.empty(0, np.int64)
        self.samples: list[PutRecord | None] = []
        self.key_count = 0
        """Number of rows that the key index will get, from all slices that have ended."""

    def __len__(self) -> int:
        return len(self._rows)

    def number(self, queues: ConsumeQueues) -> int:
        """Take the next queue offsets; ``first`` is that of the batch's first message, which may not be the log's."""
        count = super().number(queues)
        self.first = int(self._numbers[self.rows.argmin()])
        return count

    def schedule(self, store_ms: int, levels_ms: tuple[int, ...]) -> None:
        """Set the deliver times of level messages: all messages of one queue have the same."""
        at = 0
        for (_, _, count), sample in zip(self.queues, self.samples, strict=True):
            if sample is not None and sample.scheduled:
                sample.schedule(store_ms, levels_ms)
                self.tags_codes[at : at + count] = sample.tags_code
            at += count

    def add(self, row: int, put: PutRecord) -> None:
        """Gather one record."""
        if put.keys:
            base = key_base(put.topic)
            self._hashes += [crc32(key.encode(), base) for key in put.keys]
            self._owners += [len(self._rows)] * len(put.keys)
        self._codes.append(self._code(put.topic, put.queue_id, put))
        self._records.append(put.record)
        self._rows.append(row)
        self._tags.append(put.tags_code)
        # The latest due time: the batch is appended as a whole, and none of its messages before its time.
        if put.due_ms > self.due_ms:
            self.due_ms = put.due_ms

    def add_rows(self, row: int, put: PutRows) -> None:
        """Gather the records of consecutive messages; ``row`` is the first one's."""
        first, count = len(self._rows), len(put.rows)
        base = key_base(put.topic)
        self._hashes += [crc32(key, base) for key in put.keys]
        owners = range(len(put.keys)) if put.owners is None else put.owners
        self._owners += [first + owner for owner in owners]
        self._codes += [self._code(put.topic, put.queue_id, None)] * count
        self._records += put.rows.records()
        self._rows += range(row, row + count)
        self._tags += put.tags_codes

    def _code(self, topic: str, queue_id: int, put: PutRecord | None) -> int:
        """The number of a queue: queues are numbered as they first come up."""
        found = self._found.get((topic, queue_id))
        if found is None:
            found = self._found[topic, queue_id] = (len(self._found), put)
            self.scheduled = self.scheduled or topic == SCHEDULE_TOPIC
        return found[0]

    def end_slice(self) -> None:
        """End a slice: turn its keys into arrays now, so that `arrange` has little left to do."""
        if self._hashes:
            self.key_count += len(self._hashes)
            self._keys.append((np.array(self._hashes, np.uint32), np.array(self._owners, np.int64)))
            self._hashes, self._owners = [], []

    def arrange(self) -> None:
        """Bring all records into the order of the log; nothing may be added from now on."""
        codes = np.array(self._codes, np.int64)
        order = np.argsort(codes, kind="stable")
        records = self._records
        # With one queue they are in order already.
        ordered = records if len(self._found) == 1 else [records[place] for place in order.tolist()]
        self._records = ordered
        counts = np.bincount(codes, minlength=len(self._found)).tolist()
        self.queues = [(*queue, count) for queue, count in zip(self._found, counts, strict=True)]
        self.samples = [put for _, put in self._found.values()]
        self.rows = np.array(self._rows, np.int64)[order]
        self.sizes = np.array(list(map(len, ordered)), np.int64)
        self.tags_codes = np.array(self._tags, np.int64)[order]
        places = np.empty_like(order)  # the inverse of `order`: old place to new place
        places[order] = np.arange(len(order))
        keys = self._keys or [(np.empty(0, np.uint32), np.empty(0, np.int64))]
        self.hashes = np.concatenate([hashes for hashes, _ in keys])
        self.owners = places[np.concatenate([owners for _, owners in keys])]
        self._starts = np.cumsum(self.sizes) - self.sizes
        self._codes, self._tags, self._keys = [], [], []

    def join(self) -> None:
        """Join the records into one buffer; call it after `arrange`."""
        self._data = bytearray().join(self._records)
        self.data_bytes = len(self._data)
        self._store_ms_at = store_ms_at(self._data)
        self._records = []

    def ids(self, store_host: bytes, position: int, held_rows: list[int], held_ids: list[int]) -> str:
        """The message ids of the whole batch, joined by commas; messages that a plug-in holds have virtual offsets."""
        offsets = np.zeros(len(self) + len(held_ids), np.int64)
        if len(self):
            offsets[self.rows] = self.places(position)
        if held_ids:
            offsets[held_rows] = held_ids
        return message_ids(store_host, offsets.tolist())
