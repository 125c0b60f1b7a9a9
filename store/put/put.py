"""`Put`: one value for everything that is put into the store, in every layer. Its kinds differ in their messages.

===================================  ===============================================================================
`store.put.put_record.PutRecord`     one message
`store.put.put_group.PutGroup`       several that belong to one request
`store.put.put_rows.PutRows`         a client batch whose messages have the same properties, as columns of Python
`store.put.ready_rows.ReadyRows`     a large batch, as columns of NumPy
`store.put.put_block.PutBlock`       due messages that look alike, as columns of NumPy
===================================  ===============================================================================

Each layer has one ``append``, which asks a put for the bytes that this layer keeps of a message:

1. `store.store_writer.StoreWriter.put_batch` checks every put and lets it take its queue offsets (`Put.number`);
2. `store.log.commit_log.CommitLog.append` lets it write its records (`Put.joined_to`);
3. `Put.derive` gives its queues their entries (`ConsumeQueues.append`), and makes its rows of the key index, which
   gets those of all puts at once (`KeyIndex.append`).

So only the put knows whether a message comes alone or among ten thousand. A put is appended as a whole, into one
segment, or not at all.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from store.derived.consume_queues import ConsumeQueues

__all__ = ["Put", "PutResult", "PutStatus"]


class PutStatus(IntEnum):
    """The outcome of a put. Names as in Apache RocketMQ's PutMessageStatus; the last five are our own."""

    PUT_OK = 0
    FLUSH_DISK_TIMEOUT = 1
    SERVICE_NOT_AVAILABLE = 2
    CREATE_MAPPED_FILE_FAILED = 3
    MESSAGE_ILLEGAL = 4
    PROPERTIES_SIZE_EXCEEDED = 5
    OS_PAGE_CACHE_BUSY = 6
    UNKNOWN_ERROR = 7
    WHEEL_TIMER_FLOW_CONTROL = 8
    WHEEL_TIMER_MSG_ILLEGAL = 9
    WHEEL_TIMER_NOT_ENABLE = 10
    NOT_DUE = 20
    """The clock, read inside the append lock, was before ``due_ms``: nothing was appended."""
    TOPIC_NOT_EXIST = 21
    """Delivery only: the topic was deleted while the message was pending."""
    NO_PERMISSION = 22
    """Delivery only: the topic lost its write permission while the message was pending."""
    NOT_AS_ONE = 23
    """Block of deliveries only: put its records one by one; nothing was appended."""
    TOPIC_AWAY = 24
    """Delivery to a cluster only: no queue of its topic can be reached now; nothing was appended."""


class PutResult:
    """The outcome of a put.

    ``offset`` is the position of which the message id is made: in the CommitLog, or virtual (at or above ``2**62``, see
    `store.put.put_record.Held`) for a pending message. ``queue_offset`` is the message's number in its queue. For a put
    of several messages both are those of the first one. ``store_ms`` is the store time, epoch ms.
    """

    __slots__ = ("offset", "queue_offset", "remark", "status", "store_ms")

    def __init__(
        self, status: PutStatus, offset: int = 0, queue_offset: int = 0, store_ms: int = 0, remark: str = ""
    ) -> None:
        self.status = status
        self.offset = offset
        self.queue_offset = queue_offset
        self.store_ms = store_ms
        self.remark = remark

    def __repr__(self) -> str:
        return (
            f"PutResult({self.status.name}, offset={self.offset}, queue_offset={self.queue_offset}, "
            f"store_ms={self.store_ms}, remark={self.remark!r})"
        )


class Put:
    """Finished records that are appended together or not at all. Only queue offset, position and store time are open.

    ==============  ================================================================================
    ``due_ms``      int, epoch ms before which it must not be appended; 0 if it is not delayed
    ``guarded``     bool, a delivery: the topic must still exist and be writable
    ``accepted``    bool, not a new send: it is stored even if the disk is too full for sends (as a guarded put is)
    ``copied``      bool, a copy of a stored message: it may be as long as a segment has room for
    ``data_bytes``  int, bytes of all records
    ``first``       int, queue offset of the first message; valid after `number`
    ``scheduled``   bool, a message of it goes to the level scheduler's topic, so `schedule` must be called
    ==============  ================================================================================

    `number` and the methods below it are called under the append lock.
    """

    __slots__ = ("accepted", "copied", "data_bytes", "due_ms", "first", "guarded", "scheduled")

    def __init__(self, data_bytes: int) -> None:
        self.data_bytes = data_bytes
        self.due_ms = 0
        self.guarded = False
        self.accepted = False
        self.copied = False
        self.scheduled = False
        self.first = 0

    def __len__(self) -> int:
        """The number of messages."""
        raise NotImplementedError

    @property
    def longest(self) -> int:
        """Bytes of the longest record."""
        raise NotImplementedError

    @property
    def last_bytes(self) -> int:
        """Bytes of the last record."""
        raise NotImplementedError

    def where(self) -> list[tuple[str, int]]:
        """Topic and queue id of each queue that it goes to, once."""
        raise NotImplementedError

    def schedule(self, store_ms: int, levels_ms: tuple[int, ...]) -> None:
        """Set the tags codes of level messages to their deliver times, which depend on the store time."""
        raise NotImplementedError

    def number(self, queues: ConsumeQueues) -> int:
        """Take the next queue offsets of its queues; returns how many."""
        raise NotImplementedError

    def give_back(self) -> None:
        """Give the queue offsets back. Puts that took theirs later must give them back too, or a gap remains."""
        raise NotImplementedError

    def joined_to(self, buffer: bytearray, position: int, store_ms: int) -> bytearray:
        """Append its records, with queue offset, position and store time written in, to ``buffer``.

        ``position`` is the CommitLog position of the first one. Returns the buffer. If it was empty, another one may be
        returned instead: the put's own bytes, which saves copying them.
        """
        raise NotImplementedError

    def derive(self, position: int, store_ms: int, queues: ConsumeQueues, index_rows: list[bytes]) -> None:
        """Append its entries to the queues, and its rows of the key index to ``index_rows``.

        The first record stands at ``position``.
        """
        raise NotImplementedError
