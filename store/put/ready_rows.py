"""`ReadyRows`: the records of a large batch, made in slices and appended by one short step.

Tens of thousands of records take half a second to parse, check and encode, and the network loop must not be held for
so long. So they are gathered here a few hundred at a time (`add`, `add_rows`, `end_slice`) and joined once (`arrange`,
`join`). What is left for the append itself is what only the append knows: three numbers are written into each record
(queue offset, position, store time), as columns. For 32,767 records that is some milliseconds.

Like `store.put.put_block.PutBlock`, but for sends: records of any properties, and of any queues of any topic.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from remoting.layout import OFFSET_AT, QUEUE_OFFSET_AT
from remoting.messages.checksum import crc32
from remoting.messages.message import message_ids, store_ms_at
from store.derived.index import key_base
from store.put.put_record import PutRecord, PutRows

__all__ = ["ReadyRows"]

_Longs = NDArray[np.int64]


class ReadyRows:
    """Records that are appended together, or not at all. A row is the number of a message in its batch.

    Complete after `join`, in the order of the log, which is queue by queue:

    ==============  ================================================================================
    ``rows``        int64 array, the row of each record
    ``queues``      list of (topic, queue id, count): whose the first records are, the next, ...
    ``samples``     list of `PutRecord` or None: for each queue, a record put into it one by one
    ``sizes``       int64 array, bytes of each record
    ``tags_codes``  int64 array, what goes to the ConsumeQueue
    ``hashes``      array, what the key index gets; ``owners``: the place of the record that each is of
    ``due_ms``      int, epoch ms before which they must not be appended; 0 where none was delayed
    ==============  ================================================================================
    """

    __slots__ = (
        "_codes",
        "_data",
        "_hashes",
        "_keys",
        "_owners",
        "_records",
        "_rows",
        "_samples",
        "_starts",
        "_store_ms_at",
        "_tags",
        "accepted",
        "due_ms",
        "guarded",
        "hashes",
        "key_count",
        "owners",
        "queues",
        "rows",
        "samples",
        "sizes",
        "tags_codes",
    )

    def __init__(self) -> None:
        self._records: list[bytes | bytearray] = []
        self._rows: list[int] = []
        self._tags: list[int] = []
        self._codes: list[int] = []  # of each record's queue
        self._samples: dict[tuple[str, int], tuple[int, PutRecord | None]] = {}
        self._hashes: list[int] = []
        self._owners: list[int] = []
        self._keys: list[tuple[NDArray[Any], _Longs]] = []  # hashes and owners of earlier slices
        self.guarded = False
        self.accepted = False
        self.due_ms = 0
        self.key_count = 0
        """What the key index will get of all slices that have ended."""

    def __len__(self) -> int:
        return len(self._rows)

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
        if put.due_ms > self.due_ms:
            self.due_ms = put.due_ms

    def add_rows(self, row: int, put: PutRows) -> None:
        """Gather the records of consecutive messages, of which this row is the first."""
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
        """The number of a queue in the order in which they were first met."""
        found = self._samples.get((topic, queue_id))
        if found is None:
            found = self._samples[topic, queue_id] = (len(self._samples), put)
        return found[0]

    def end_slice(self) -> None:
        """See to it that what a slice has gathered costs little later."""
        if self._hashes:
            self.key_count += len(self._hashes)
            self._keys.append((np.array(self._hashes, np.uint32), np.array(self._owners, np.int64)))
            self._hashes, self._owners = [], []

    def arrange(self) -> None:
        """Put what was gathered in the order of the log; nothing more is added then."""
        codes = np.array(self._codes, np.int64)
        order = np.argsort(codes, kind="stable")
        records = self._records
        ordered = records if len(self._samples) == 1 else [records[place] for place in order.tolist()]
        self._records = ordered
        counts = np.bincount(codes, minlength=len(self._samples)).tolist()
        self.queues = [(*queue, count) for queue, count in zip(self._samples, counts, strict=True)]
        self.samples = [put for _, put in self._samples.values()]
        self.rows: _Longs = np.array(self._rows, np.int64)[order]
        self.sizes: _Longs = np.array(list(map(len, ordered)), np.int64)
        self.tags_codes: _Longs = np.array(self._tags, np.int64)[order]
        places = np.empty_like(order)
        places[order] = np.arange(len(order))
        keys = self._keys or [(np.empty(0, np.uint32), np.empty(0, np.int64))]
        self.hashes: NDArray[Any] = np.concatenate([hashes for hashes, _ in keys])
        self.owners: _Longs = places[np.concatenate([owners for _, owners in keys])]
        self._starts: _Longs = np.cumsum(self.sizes) - self.sizes
        self._codes, self._tags, self._keys = [], [], []

    def join(self) -> None:
        """Join the records, when they were arranged."""
        self._data = bytearray().join(self._records)
        self._store_ms_at = store_ms_at(self._data)
        self._records = []

    @property
    def data_bytes(self) -> int:
        """Bytes of all records."""
        return len(self._data)

    def places(self, position: int) -> _Longs:
        """Where each record stands if the first one stands at ``position``."""
        return self._starts + position

    def ids(self, store_host: bytes, position: int, held_rows: list[int], held_ids: list[int]) -> str:
        """The ids of all messages of the batch, joined by commas; those that are held have virtual offsets."""
        offsets = np.zeros(len(self) + len(held_ids), np.int64)
        if len(self):
            offsets[self.rows] = self.places(position)
        if held_ids:
            offsets[held_rows] = held_ids
        return message_ids(store_host, offsets.tolist())

    def joined(self, numbers: _Longs, position: int, store_ms: int) -> bytearray:
        """The records with these queue offsets, standing one behind the other from ``position`` on."""
        data, starts = self._data, self._starts
        longs: NDArray[Any] = np.ndarray((len(data) - 7,), np.dtype(">i8"), data, 0, (1,))
        longs[starts + QUEUE_OFFSET_AT] = numbers
        longs[starts + OFFSET_AT] = starts + position
        longs[starts + self._store_ms_at] = store_ms
        return data
