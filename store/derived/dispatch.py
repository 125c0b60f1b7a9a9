"""From a record to its entries in ConsumeQueue and key index: what recovery derives, and what the append knows.

Both ways must agree, or a queue would look different after a crash. `Derived` is the slow and complete way, from the
record's bytes; the append has topic, queue and keys at hand and asks this file only for the special cases.
"""

from __future__ import annotations

from remoting.layout import LONG, QUEUE_OFFSET_AT, SYS_FLAG_LOW_AT
from remoting.messages.message import message_keys, record_fields, store_ms_at, tags_code
from remoting.messages.properties import DELAY, TW_ID, get_property

__all__ = [
    "SCHEDULE_TOPIC",
    "UNQUEUED_BIT",
    "Derived",
    "as_queued",
    "delivered_key",
    "is_queued",
    "level_due_ms",
]

SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
"""Where level messages wait: queue n is level n + 1, the ConsumeQueue's tags code is the deliver time."""

_TRANSACTION_BITS = 0x0C
UNQUEUED_BIT = 0x04
"""Of prepared (4) and of rolled back (12), not of committed (8); see `is_queued`."""


def is_queued(sys_flag: int) -> bool:
    """Whether a record with this sysFlag (or the low byte of one) gets an entry in its queue, as Apache has it.

    Everybody asks here: acceptance, which refuses what would not; the append, which lets in nothing that would not (see
    `as_queued`); recovery and check, which derive.
    """
    return not sys_flag & UNQUEUED_BIT


def as_queued(record: bytes | bytearray) -> bytes | bytearray:
    """The record, or a copy of it without the bits that would keep it out of its queue.

    Whatever is appended is numbered, so recovery has to queue it as well. No sender can set these bits, but pending
    messages that an older version accepted may have them.
    """
    if is_queued(record[SYS_FLAG_LOW_AT]):
        return record
    copied = bytearray(record)
    copied[SYS_FLAG_LOW_AT] &= ~_TRANSACTION_BITS & 0xFF
    return copied


def delivered_key(id_text: str) -> str:
    """The key under which the index finds the delivered copy of a delayed message, whatever its version (``.v``)."""
    return "\0" + id_text.partition(".")[0]


def level_due_ms(properties: str, store_ms: int, levels_ms: tuple[int, ...]) -> int | None:
    """The deliver time of a message in `SCHEDULE_TOPIC`; None if it has no level (its tag counts then).

    As Apache computes it: a level above the highest is the highest.
    """
    text = get_property(properties, DELAY)
    if text is None:
        return None
    try:
        level = int(text)
    except ValueError:
        return None
    return store_ms + levels_ms[min(level, len(levels_ms)) - 1] if level > 0 else None


class Derived:
    """What ConsumeQueue and key index hold of one record; ``queued`` is False for half and rolled-back messages.

    Those that Apache's broker does not queue have the number 0. One with another number was written by a version of
    this broker that queued them when it appended them: it has its place, and what came behind counts on that.
    """

    __slots__ = ("keys", "number", "queue_id", "queued", "store_ms", "tags_code", "topic")

    def __init__(self, record: bytes, levels_ms: tuple[int, ...]) -> None:
        topic, self.queue_id, properties = record_fields(record)
        self.topic = topic
        (self.number,) = LONG.unpack_from(record, QUEUE_OFFSET_AT)
        (self.store_ms,) = LONG.unpack_from(record, store_ms_at(record))
        flag = record[SYS_FLAG_LOW_AT]
        self.queued = is_queued(flag) or self.number > 0
        due_ms = level_due_ms(properties, self.store_ms, levels_ms) if topic == SCHEDULE_TOPIC else None
        self.tags_code = tags_code(properties) if due_ms is None else due_ms
        rolled_back = flag & _TRANSACTION_BITS == _TRANSACTION_BITS
        keys = () if rolled_back and not self.queued else message_keys(properties)
        delay_id = get_property(properties, TW_ID)
        self.keys = keys if delay_id is None else (*keys, delivered_key(delay_id))
