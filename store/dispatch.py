"""From a record to its entries in ConsumeQueue and key index: what recovery derives, and what the append knows.

Both ways must agree, or a queue would look different after a crash. `Derived` is the slow and complete way, from the
record's bytes; the append has topic, queue and keys at hand and asks this file only for the special cases.
"""

from __future__ import annotations

from struct import Struct

from remoting.message import message_keys, record_fields, store_ms_at, tags_code
from remoting.properties import DELAY, TW_ID, get_property

__all__ = ["SCHEDULE_TOPIC", "Derived", "delivered_key", "level_due_ms"]

SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
"""Where level messages wait: queue n is level n + 1, the ConsumeQueue's tags code is the deliver time."""

_LONG = Struct(">q")
_NUMBER = Struct(">20xq")
_TRANSACTION_BITS = 0x0C
_NOT_QUEUED = (0x04, 0x0C)  # prepared, rolled back


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
    """What ConsumeQueue and key index hold of one record; ``queued`` is False for half and rolled-back messages."""

    __slots__ = ("keys", "number", "queue_id", "queued", "store_ms", "tags_code", "topic")

    def __init__(self, record: bytes, levels_ms: tuple[int, ...]) -> None:
        topic, self.queue_id, properties = record_fields(record)
        self.topic = topic
        (self.number,) = _NUMBER.unpack_from(record)
        (self.store_ms,) = _LONG.unpack_from(record, store_ms_at(record))
        transaction = record[39] & _TRANSACTION_BITS
        self.queued = transaction not in _NOT_QUEUED
        due_ms = level_due_ms(properties, self.store_ms, levels_ms) if topic == SCHEDULE_TOPIC else None
        self.tags_code = tags_code(properties) if due_ms is None else due_ms
        keys = () if transaction == _TRANSACTION_BITS else message_keys(properties)
        delay_id = get_property(properties, TW_ID)
        self.keys = keys if delay_id is None else (*keys, delivered_key(delay_id))
