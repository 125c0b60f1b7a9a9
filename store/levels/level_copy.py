"""The copy of a level message for its own topic: Apache's content, and a mark that names the original."""

from __future__ import annotations

from remoting.messages.message import (
    Message,
    MessageError,
    RecordError,
    decode_record,
    encode_record,
    message_keys,
    record_fields,
    tags_code,
)
from remoting.messages.properties import (
    DELAY,
    REAL_QID,
    REAL_TOPIC,
    TW_LEVEL,
    get_property,
    remove_properties,
    with_property,
)
from store.derived.dispatch import SCHEDULE_TOPIC
from store.put.plugin_api import PutRecord

__all__ = ["HALF_TOPIC", "copy_of", "mark_of"]

HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
"""Level messages with this topic are dropped, as by Apache."""


_APACHE_CRC = "__CRC32#"
_MARK = TW_LEVEL.encode() + b"\x01"


def copy_of(record: bytes, level: int, number: int, due_ms: int, bytes_max: int = 1 << 31) -> PutRecord:
    """Make the delivery of record ``number`` of a level's queue.

    Topic and queue come from ``REAL_TOPIC`` and ``REAL_QID``. Body, flag, sysflag, born time and host, store host,
    reconsume times and the property text stay (``DELAY``, ``WAIT`` and the ``REAL_`` ones too, see
    ScheduleMessageService.messageTimeUp). The prepared offset becomes 0, and ``__TW_LEVEL`` is added. If that makes the
    properties too long, or the copy longer than ``bytes_max``, the largest record of the log, then ``REAL_TOPIC``,
    ``REAL_QID`` and ``DELAY`` are removed: without them no copy is longer than the original. Raises RecordError if the
    message has no topic or queue of its own.
    """
    stored = decode_record(record, check_crc=False)
    if (stored.topic, stored.queue_id, stored.queue_offset) != (SCHEDULE_TOPIC, level - 1, number):
        raise RecordError(f"it is message {stored.queue_offset} of {stored.topic}, queue {stored.queue_id}")
    properties = stored.properties
    topic = get_property(properties, REAL_TOPIC)
    queue_id = get_property(properties, REAL_QID)
    if topic is None or queue_id is None or not (queue_id.isascii() and queue_id.isdecimal() and len(queue_id) < 11):
        raise RecordError(f"a level message for topic {topic!r} and queue {queue_id!r}")
    mark = f"{level}:{number}"
    message = stored.message()
    message.topic = topic
    message.queue_id = int(queue_id)
    message.prepared_offset = 0
    message.properties = with_property(remove_properties(properties, (_APACHE_CRC, TW_LEVEL)), TW_LEVEL, mark)
    encoded = _fitting(message, stored.store_host, bytes_max)
    if encoded is None:
        message.properties = remove_properties(message.properties, (DELAY, REAL_TOPIC, REAL_QID))
        try:
            encoded = encode_record(message, stored.store_host)
        except MessageError as error:
            raise RecordError(f"a level message for topic {topic!r}: {error}") from error
    text = message.properties
    return PutRecord(topic, message.queue_id, encoded, tags_code(text), message_keys(text), due_ms, accepted=True)


def _fitting(message: Message, store_host: bytes, bytes_max: int) -> bytes | None:
    """The record of a message; None if its properties or the whole are too long."""
    try:
        encoded = encode_record(message, store_host)
    except MessageError:
        return None
    return encoded if len(encoded) <= bytes_max else None


def mark_of(record: bytes) -> tuple[int, int] | None:
    """Return level and queue offset of the original of a record of the CommitLog; None if it is not a copy."""
    if _MARK not in record:
        return None
    _, _, properties = record_fields(record)  # the bytes may also occur in a body
    level, colon, number = (get_property(properties, TW_LEVEL) or "").partition(":")
    if not colon or not (level + number).isascii() or not level.isdecimal() or not number.isdecimal():
        return None
    return (int(level), int(number)) if len(level) < 20 and len(number) < 20 else None
