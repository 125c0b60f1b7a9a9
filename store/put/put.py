"""`Put`: what is put into the store, one value in every layer. Its kinds differ in how many messages they are of.

===================================  ===============================================================================
`store.put.put_record.PutRecord`     one message
`store.put.put_group.PutGroup`       several that belong to one request
`store.put.put_rows.PutRows`         a client batch of which all messages have the same properties, as columns of Python
`store.put.ready_rows.ReadyRows`     a large batch, as columns of NumPy
`store.put.put_block.PutBlock`       due messages that look alike, as columns of NumPy
===================================  ===============================================================================

Each layer has one ``append``, which asks a put for what that layer holds of a message, in bytes:

1. `store.store_writer.StoreWriter.put_batch` looks at every put, and has it take its numbers (`Put.number`);
2. `store.log.commit_log.CommitLog.append` has it write its records (`Put.joined_to`);
3. `Put.derive` gives its queues their entries (`ConsumeQueues.append`) and the key index its rows
   (`KeyIndex.append`).

So whether a message comes alone or among ten thousand is known to its put and to nobody else. A put is appended as a
whole, into one segment, or not at all.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from store.derived.consume_queues import ConsumeQueues
    from store.derived.index import KeyIndex

__all__ = ["Put", "PutResult", "PutStatus"]


class PutStatus(IntEnum):
    """What became of a put. Names as in Apache RocketMQ's PutMessageStatus; the last five are ours."""

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
    """The clock, read inside the append lock, stood before ``due_ms``: nothing was appended."""
    TOPIC_NOT_EXIST = 21
    """Delivery only: the topic was deleted while the message was pending."""
    NO_PERMISSION = 22
    """Delivery only: the topic lost its write permission while the message was pending."""
    NOT_AS_ONE = 23
    """Block of deliveries only: its records have to be put one by one; nothing was appended."""
    TOPIC_AWAY = 24
    """Delivery to a cluster only: none of its topic's queues can be reached now; nothing was appended."""


class PutResult:
    """The outcome of a put.

    ``offset`` is the position that the message id is made of: in the CommitLog, or virtual (at or above
    ``2**62``, see `store.put.put_record.Held`) for a pending message. ``queue_offset`` is the message's number in its
    queue. A put of several messages says both of its first one.
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
    """Finished records that are appended together, or not at all: all but their place and store time is final.

    ==============  ================================================================================
    ``due_ms``      int, epoch ms before which it must not be appended; 0 for what is not delayed
    ``guarded``     bool, a delivery: the topic must still exist and be writable
    ``accepted``    bool, not a new send: a disk that takes no more sends still takes it (as what is guarded)
    ``data_bytes``  int, bytes of all records
    ``first``       int, the number of the first message in its queue, when they are numbered
    ``scheduled``   bool, some of it goes to the level scheduler's topic, so `schedule` has to be called
    ==============  ================================================================================

    Everything from `number` on is called under the append lock.
    """

    __slots__ = ("accepted", "data_bytes", "due_ms", "first", "guarded", "scheduled")

    def __init__(self, data_bytes: int) -> None:
        self.data_bytes = data_bytes
        self.due_ms = 0
        self.guarded = False
        self.accepted = False
        self.scheduled = False
        self.first = 0

    def __len__(self) -> int:
        """How many messages."""
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
        """Topic and queue id of every queue that it goes to."""
        raise NotImplementedError

    def schedule(self, store_ms: int, levels_ms: tuple[int, ...]) -> None:
        """Set the tags codes of level messages: their deliver time, which only the append knows."""
        raise NotImplementedError

    def number(self, queues: ConsumeQueues) -> int:
        """Take the next numbers of its queues; answers how many."""
        raise NotImplementedError

    def give_back(self) -> None:
        """Give the numbers back, which no later put has got any behind."""
        raise NotImplementedError

    def joined_to(self, buffer: bytearray, position: int, store_ms: int) -> bytearray:
        """Add its records, with their numbers, to what will stand in front of them; ``position`` is the first one's.

        Answers the buffer, or another one if it was empty.
        """
        raise NotImplementedError

    def derive(self, position: int, store_ms: int, queues: ConsumeQueues, index: KeyIndex) -> None:
        """Add what derives from its records, of which the first stands at ``position``: queue entries, keys."""
        raise NotImplementedError
