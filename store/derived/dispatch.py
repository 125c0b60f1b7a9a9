"""From a record to its entries in ConsumeQueue and key index, for recovery and for the append.

Both must agree, or a queue would look different after a crash. Recovery uses `Derived`, the slow and complete way from
the record's bytes. The append knows topic, queue and keys already and uses this file for special cases only.
"""

from __future__ import annotations

from typing import Final

from remoting.layout import QUEUE_OFFSET_AT, SYS_FLAG_LOW_AT
from remoting.layout.table import LONG
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

SCHEDULE_TOPIC: Final = "SCHEDULE_TOPIC_XXXX"
"""The topic in which level messages wait: queue n is level n + 1, the ConsumeQueue's tags code is the deliver time."""

_TRANSACTION_BITS = 0x0C
UNQUEUED_BIT: Final = 0x04
"""Of prepared (4) and of rolled back (12), not of committed (8); see `is_queued`."""


def is_queued(sys_flag: int) -> bool:
    """True if a record with this sysFlag (or the low byte of one) gets an entry in its queue, as on Apache's broker.

    This is the only place for the rule. Acceptance refuses messages that would get none; the append stores no such
    record (see `as_queued`); recovery and check derive by it.
    """
    return not sys_flag & UNQUEUED_BIT


def as_queued(record: bytes | bytearray) -> bytes | bytearray:
    """The record, or a copy of it without the bits that would keep it out of its queue.

    Every appended record gets a queue offset, so recovery must queue it, too. Senders cannot set these bits, but
    pending messages accepted by an older version may have them.
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
    """The deliver time of a message in `SCHEDULE_TOPIC`; None if it has no level (the entry then has its tag).

    As on Apache's broker a level above the highest counts as the highest.
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
    """The entries of one record in ConsumeQueue and key index; ``queued`` is False for half and rolled-back messages.

    Records that Apache's broker does not queue have the queue offset 0. If such a record has another offset, an older
    version of this broker queued it when it appended it: it keeps its place, because later records are numbered after
    it.
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
        # Apache's broker indexes half messages too, but none that was rolled back.
        keys = () if rolled_back and not self.queued else message_keys(properties)
        delay_id = get_property(properties, TW_ID)
        self.keys = keys if delay_id is None else (*keys, delivered_key(delay_id))
