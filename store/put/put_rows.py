"""`PutRows`: a client batch whose messages all have the same properties, put without an object for each.

Its columns are Python lists. For tens to hundreds of messages these are cheaper than NumPy's calls; for thousands
there is `store.put.put_columns`.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import accumulate

from remoting.messages.message import RecordRows, UniformBatch, tag_hash
from remoting.messages.properties import KEYS, TAGS, UNIQ_KEY
from store.derived.consume_queue import ConsumeQueue
from store.derived.consume_queues import ConsumeQueues
from store.derived.key_rows import rows_of
from store.derived.queue_entries import pack_rows
from store.put.put import Put

__all__ = ["PutRows"]


class PutRows(Put):
    """The messages of a client batch that all have the same properties: records of one queue.

    ==============  ================================================================================
    ``topic``       str, the topic inside the records; never the level scheduler's
    ``queue_id``    int, the queue inside the records
    ``rows``        `RecordRows`
    ``tags_codes``  list of int, the Java hash of each record's tag
    ``keys``        list of bytes: what the key index gets, message by message, UNIQ_KEY before KEYS
    ``owners``      list of int: the row that each key belongs to; None: one key a message, or none at all
    ==============  ================================================================================
    """

    __slots__ = ("_queue", "keys", "owners", "queue_id", "rows", "tags_codes", "topic")

    _queue: ConsumeQueue  # since `number`

    def __init__(self, batch: UniformBatch, store_host: bytes) -> None:
        """Raises MessageError for a message that does not fit a record."""
        message = batch.message
        rows = RecordRows(message, store_host, batch.flags, batch.bodies, batch.texts)
        super().__init__(sum(rows.sizes))
        self.topic = message.topic
        self.queue_id = message.queue_id
        self.rows = rows
        self.tags_codes = _tags_codes(batch)
        self.keys: list[bytes] = []
        self.owners: list[int] | None = None
        self._find_keys(batch)

    def _find_keys(self, batch: UniformBatch) -> None:
        unique, words = batch.values(UNIQ_KEY), batch.values(KEYS)
        if words is None and (unique is None or all(unique)):
            self.keys = unique or []
            return
        owners: list[int] = []
        for row in range(len(batch)):
            own = [] if unique is None else [unique[row]]
            if words is not None:
                own += words[row].split(b" ")
            for key in own:
                # Blanks side by side in KEYS make empty words, which are no keys.
                if key:
                    self.keys.append(key)
                    owners.append(row)
        self.owners = owners

    def __len__(self) -> int:
        return len(self.rows.sizes)

    @property
    def longest(self) -> int:
        """Bytes of the longest record."""
        return max(self.rows.sizes)

    @property
    def last_bytes(self) -> int:
        """Bytes of the last record."""
        return self.rows.sizes[-1]

    def where(self) -> list[tuple[str, int]]:
        """Topic and queue id."""
        return [(self.topic, self.queue_id)]

    def number(self, queues: ConsumeQueues) -> int:
        """Take the next queue offsets of its queue; returns how many."""
        count = len(self.rows.sizes)
        self._queue = queue = queues.get(self.topic, self.queue_id)
        self.first = queue.next
        queue.next += count
        return count

    def give_back(self) -> None:
        """Give the queue offsets back."""
        self._queue.next -= len(self.rows.sizes)

    def joined_to(self, buffer: bytearray, position: int, store_ms: int) -> bytearray:
        """Append the records to ``buffer``; if that is empty, returns the records themselves."""
        joined = self.rows.joined(self.first, position, store_ms)
        if not buffer:
            return joined
        buffer += joined
        return buffer

    def derive(self, position: int, store_ms: int, queues: ConsumeQueues, index_rows: list[bytes]) -> None:
        """Append its queue entries and its rows of the key index."""
        sizes = self.rows.sizes
        queues.append(self._queue, pack_rows(position, sizes, self.tags_codes), len(sizes))
        if self.keys:
            positions: Iterable[int] = accumulate(sizes, initial=position)
            if self.owners is not None:
                places = list(positions)
                positions = [places[row] for row in self.owners]
            index_rows.append(rows_of(self.topic, self.keys, positions, store_ms))


def _tags_codes(batch: UniformBatch) -> list[int]:
    tags = batch.values(TAGS)
    if tags is None:
        return [0] * len(batch)
    # A batch has few different tags: each is hashed once.
    codes = {tag: tag_hash(tag.decode()) for tag in set(tags)}  # an empty tag has code 0, like no tag
    return [codes[tag] for tag in tags]
