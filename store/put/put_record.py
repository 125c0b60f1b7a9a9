"""`PutRecord`, a put of one message, and what a plug-in may say to a message.

They are part of the joint between a broker and its plug-ins, and are imported from `store.put.plugin_api`; they stand
apart because they are made for every message, so that a compiled build can have them as native classes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from remoting.layout import (
    BORN_HOST_V6,
    FLAG_AT,
    QUEUE_ID_AT,
    QUEUE_OFFSET_AT,
    RECORD,
    STORE_MS_AT,
    STORE_MS_AT_V6,
    SYS_FLAG_LOW_AT,
)
from remoting.layout.table import INT, LONG
from remoting.messages.message import Message, encode_record, message_keys, record_fields, store_ms_at, tags_code
from remoting.messages.properties import TW_ID, get_property
from store.derived.consume_queue import ConsumeQueue
from store.derived.consume_queues import ConsumeQueues
from store.derived.dispatch import SCHEDULE_TOPIC, UNQUEUED_BIT, Derived, as_queued
from store.derived.index import KeyIndex
from store.derived.key_rows import key_rows
from store.derived.queue_entries import ENTRY
from store.put.put import Put, PutStatus

__all__ = ["Held", "HeldBatch", "OneByOne", "PutRecord", "Refused", "Unsettled", "put_record", "put_record_of"]

_PLACE = RECORD.struct("queue_offset", "position")
_pack_entry = ENTRY.pack
_pack_long_into = LONG.pack_into


class PutRecord(Put):
    """One message on its way in; see `store.put.put.Put`.

    ==============  ================================================================================
    ``topic``       str, the topic inside the record
    ``queue_id``    int, the queue inside the record
    ``record``      bytes, the whole record; queue offset, position and store time are patched on append
    ``tags_code``   int, what goes to the ConsumeQueue: Java hash of the tag, or a level's deliver time
    ``keys``        tuple of str: UNIQ_KEY first, then each word of KEYS (for the key index)
    ==============  ================================================================================
    """

    __slots__ = ("_queue", "keys", "queue_id", "record", "tags_code", "topic")

    _queue: ConsumeQueue  # since `number`

    def __init__(
        self,
        topic: str,
        queue_id: int,
        record: bytes | bytearray,
        tags_code: int,
        keys: tuple[str, ...],
        due_ms: int = 0,
        guarded: bool = False,
        accepted: bool = False,
    ) -> None:
        # Not by `Put.__init__`: one is made for every message.
        self.due_ms = due_ms
        self.guarded = guarded
        self.accepted = accepted
        self.scheduled = topic == SCHEDULE_TOPIC
        self.data_bytes = len(record)
        self.topic = topic
        self.queue_id = queue_id
        self.record = record
        self.tags_code = tags_code
        self.keys = keys

    def __len__(self) -> int:
        return 1

    @property
    def longest(self) -> int:
        """Bytes of the record."""
        return len(self.record)

    @property
    def last_bytes(self) -> int:
        """Bytes of the record."""
        return len(self.record)

    def where(self) -> list[tuple[str, int]]:
        """Topic and queue id."""
        return [(self.topic, self.queue_id)]

    def moved(self, queue_id: int) -> PutRecord:
        """The same for another queue of its topic."""
        record = b"".join((self.record[:QUEUE_ID_AT], INT.pack(queue_id), self.record[FLAG_AT:]))
        return PutRecord(
            self.topic, queue_id, record, self.tags_code, self.keys, self.due_ms, self.guarded, self.accepted
        )

    def schedule(self, store_ms: int, levels_ms: tuple[int, ...]) -> None:
        """Set the deliver time of a level message."""
        if self.scheduled:
            patched = bytearray(self.record)
            LONG.pack_into(patched, store_ms_at(patched), store_ms)
            self.tags_code = Derived(bytes(patched), levels_ms).tags_code

    def number(self, queues: ConsumeQueues) -> int:
        """Take the next number of its queue; answers 1."""
        try:
            queue = queues.table[self.topic][self.queue_id]
        except KeyError:
            queue = queues.get(self.topic, self.queue_id)
        self._queue = queue
        self.first = number = queue.next
        queue.next = number + 1
        return 1

    def give_back(self) -> None:
        """Give the number back."""
        self._queue.next -= 1

    def joined_to(self, buffer: bytearray, position: int, store_ms: int) -> bytearray:
        """Add the record to a buffer."""
        record = self.record
        sys_flag = record[SYS_FLAG_LOW_AT]
        if sys_flag & UNQUEUED_BIT:
            record = as_queued(record)
        at = len(buffer)
        buffer += record
        _PLACE.pack_into(buffer, at + QUEUE_OFFSET_AT, self.first, position)
        _pack_long_into(buffer, at + (STORE_MS_AT_V6 if sys_flag & BORN_HOST_V6 else STORE_MS_AT), store_ms)
        return buffer

    def derive(self, position: int, store_ms: int, queues: ConsumeQueues, index: KeyIndex) -> None:
        """Add its entry and its keys."""
        queues.append(self._queue, _pack_entry(position, self.data_bytes, self.tags_code), 1)
        if self.keys:
            index.append(key_rows(self.topic, self.keys, position, store_ms))


def put_record(message: Message, store_host: bytes) -> PutRecord:
    """Make the record of a message that is appended now."""
    properties = message.properties
    return PutRecord(
        message.topic,
        message.queue_id,
        encode_record(message, store_host),
        tags_code(properties),
        message_keys(properties),
    )


def put_record_of(record: bytes, due_ms: int) -> PutRecord:
    """Make a delivery of a finished record that was read back from a store.

    Its delay id becomes a key as well (with a NUL before it), so that the message is found by its virtual offset.
    """
    topic, queue_id, properties = record_fields(record)
    keys = message_keys(properties)
    if delay_id := get_property(properties, TW_ID):
        keys = (*keys, "\0" + delay_id.partition(".")[0])
    return PutRecord(topic, queue_id, record, tags_code(properties), keys, due_ms, True)


class Refused:
    """A plug-in's no: nothing is stored, the sender is told why."""

    __slots__ = ("remark", "status")

    def __init__(self, status: PutStatus, remark: str) -> None:
        self.status = status
        self.remark = remark


class Unsettled(Refused):
    """A plug-in's "that depends": on a message that it holds under ``offset``, and that no turn has journalled yet.

    If that message is of the same request, ``settle`` says what becomes of this one. If it is another's, the host
    ends the turn (or waits for the large batch that has it), and asks again.
    """

    __slots__ = ("offset", "settle")

    def __init__(self, status: PutStatus, remark: str, offset: int, settle: Callable[[], Held | Refused]) -> None:
        super().__init__(status, remark)
        self.offset = offset
        self.settle = settle


class Held:
    """A plug-in's yes: the message is pending under ``offset``, a virtual position at or above ``2**62``.

    A message id made of it is answered by `Plugin.view` before delivery and by the store's index after it.
    """

    __slots__ = ("due_ms", "offset")

    def __init__(self, offset: int, due_ms: int) -> None:
        self.offset = offset
        self.due_ms = due_ms


class HeldBatch:
    """A plug-in's yes to a whole batch: each message is pending under its own of ``offsets``, in their order."""

    __slots__ = ("due_ms", "offsets")

    def __init__(self, offsets: Sequence[int], due_ms: int) -> None:
        self.offsets = offsets
        self.due_ms = due_ms  # of the first that is due


class OneByOne:
    """A plug-in's answer to a batch that it has to look at message by message; it has taken nothing of it."""
