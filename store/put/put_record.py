"""`PutRecord`, a put of one message, and the answers that a plug-in may give to a message.

They belong to the interface between a broker and its plug-ins; import them from `store.put.plugin_api`. They have a
file of their own because one is made for every message: in the compiled build they are native classes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

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
from store.derived.key_rows import key_rows
from store.derived.queue_entries import ENTRY
from store.put.put import Put, PutStatus

__all__ = ["Held", "HeldBatch", "OneByOne", "PutRecord", "Refused", "Unsettled", "put_record", "put_record_of"]

# `Final`: compiled, a name that never changes is not looked up for each message.
_pack_place_into: Final = RECORD.struct("queue_offset", "position").pack_into
_pack_entry: Final = ENTRY.pack
_pack_long_into: Final = LONG.pack_into


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
        # Not through `Put.__init__`: this runs for every message, and each call costs.
        self.due_ms = due_ms
        self.guarded = guarded
        self.accepted = accepted
        self.copied = False
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
        """A copy of this put for another queue of its topic."""
        record = b"".join((self.record[:QUEUE_ID_AT], INT.pack(queue_id), self.record[FLAG_AT:]))
        return PutRecord(
            self.topic, queue_id, record, self.tags_code, self.keys, self.due_ms, self.guarded, self.accepted
        )

    def schedule(self, store_ms: int, levels_ms: tuple[int, ...]) -> None:
        """Set the deliver time of a level message as its tags code."""
        if self.scheduled:
            patched = bytearray(self.record)
            LONG.pack_into(patched, store_ms_at(patched), store_ms)
            # By `Derived`, as recovery does it: a queue that is made anew must get the same tags code.
            self.tags_code = Derived(bytes(patched), levels_ms).tags_code

    def number(self, queues: ConsumeQueues) -> int:
        """Take the next queue offset of its queue; returns 1."""
        try:
            queue = queues.table[self.topic][self.queue_id]
        except KeyError:
            queue = queues.get(self.topic, self.queue_id)
        self._queue = queue
        self.first = number = queue.next
        queue.next = number + 1
        return 1

    def give_back(self) -> None:
        """Give the queue offset back."""
        self._queue.next -= 1

    def joined_to(self, buffer: bytearray, position: int, store_ms: int) -> bytearray:
        """Append the record to ``buffer``, with queue offset, position and store time written in."""
        record = self.record
        # The trick: both are the same, but compiled, an index into what is known to be bytes is not a call.
        sys_flag = record[SYS_FLAG_LOW_AT] if isinstance(record, bytes) else record[SYS_FLAG_LOW_AT]  # noqa: RUF034
        if sys_flag & UNQUEUED_BIT:
            record = as_queued(record)
        at = len(buffer)
        buffer += record
        _pack_place_into(buffer, at + QUEUE_OFFSET_AT, self.first, position)
        _pack_long_into(buffer, at + (STORE_MS_AT_V6 if sys_flag & BORN_HOST_V6 else STORE_MS_AT), store_ms)
        return buffer

    def derive(self, position: int, store_ms: int, queues: ConsumeQueues, index_rows: list[bytes]) -> None:
        """Append its queue entry and its rows of the key index."""
        queues.append(self._queue, _pack_entry(position, self.data_bytes, self.tags_code), 1)
        if self.keys:
            index_rows.append(key_rows(self.topic, self.keys, position, store_ms))


def put_record(message: Message, store_host: bytes) -> PutRecord:
    """Make the put of a message that is appended now. ``store_host`` is 8 or 20 bytes: IP address and port."""
    properties = message.properties
    return PutRecord(
        message.topic,
        message.queue_id,
        encode_record(message, store_host),
        tags_code(properties),
        message_keys(properties),
    )


def put_record_of(record: bytes, due_ms: int) -> PutRecord:
    """Make the delivery of a finished record that was read back from a store; ``due_ms`` is epoch ms.

    Its delay id becomes a key as well, with a NUL before it, so that the index finds the message by its virtual offset.
    Raises RecordError for bytes that are no record.
    """
    topic, queue_id, properties = record_fields(record)
    keys = message_keys(properties)
    if delay_id := get_property(properties, TW_ID):
        keys = (*keys, "\0" + delay_id.partition(".")[0])
    return PutRecord(topic, queue_id, record, tags_code(properties), keys, due_ms, True)


class Refused:
    """A plug-in refuses the message: nothing is stored, and the sender gets ``status`` and ``remark``."""

    __slots__ = ("remark", "status")

    def __init__(self, status: PutStatus, remark: str) -> None:
        self.status = status
        self.remark = remark


class Unsettled(Refused):
    """The answer depends on a message that the plug-in holds under ``offset`` and that is not journalled yet.

    If that message is part of the same request, ``settle`` gives the answer. If it is part of another one, the host
    ends the turn (or waits for the large batch that has it) and asks again.
    """

    __slots__ = ("offset", "settle")

    def __init__(self, status: PutStatus, remark: str, offset: int, settle: Callable[[], Held | Refused]) -> None:
        super().__init__(status, remark)
        self.offset = offset
        self.settle = settle


class Held:
    """A plug-in holds the message: it is pending under ``offset``, a virtual position at or above ``2**62``.

    `Plugin.view` finds the message by it before delivery, the store's index after delivery. ``due_ms`` is epoch ms.
    """

    __slots__ = ("due_ms", "offset")

    def __init__(self, offset: int, due_ms: int) -> None:
        self.offset = offset
        self.due_ms = due_ms


class HeldBatch:
    """A plug-in holds a whole batch: ``offsets`` has the virtual position of each message, in order."""

    __slots__ = ("due_ms", "offsets")

    def __init__(self, offsets: Sequence[int], due_ms: int) -> None:
        self.offsets = offsets
        self.due_ms = due_ms  # of the message that is due first


class OneByOne:
    """A plug-in must check the batch message by message; it has taken nothing yet."""
