"""Reads fields from a pending message's record, and writes the record of a moved message.

Two fields that the append fills are used for other values while a message waits. The *store time* holds when it was
accepted (epoch ms by the broker's clock; 0 in records of an older version). The *queue offset* of a moved message holds
the delay, in ms, with which it was sent, so that `restart` works however often it was moved. The delivery overwrites
both.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING

from broker_plugin.rules.properties import delivered_as
from remoting.layout import QUEUE_OFFSET_AT, RECORD
from remoting.layout.table import LONG
from remoting.messages.message import (
    Message,
    RecordError,
    decode_record,
    encode_record,
    record_fields,
    record_topic,
    store_ms_at,
)
from remoting.messages.properties import DELAY_KEY, TAGS, UNIQ_KEY, get_property
from store.put.pending_api import PendingQuery, PendingRow

if TYPE_CHECKING:
    from store.spill.rows.model import Found

__all__ = [
    "accepted_ms",
    "fits",
    "fitting",
    "fresh_copy",
    "key_hash",
    "restamped",
    "row_of",
    "sent_delay_ms",
    "with_delay",
]

_BORN_MS = RECORD.picked("born_ms")


def accepted_ms(record: bytes) -> int:
    """Time at which the broker accepted a record, epoch ms; in records of an older version the sender's send time."""
    (accepted,) = LONG.unpack_from(record, store_ms_at(record))
    (born,) = _BORN_MS.unpack_from(record)
    return int(accepted or born)


def sent_delay_ms(record: bytes, found: Found) -> int:
    """The delay with which it was sent, ms; 0 if that is unknown, because an older version of the broker moved it."""
    (delay,) = LONG.unpack_from(record, QUEUE_OFFSET_AT)
    if delay > 0:
        return int(delay)
    return 0 if found.version else max(0, found.due_ms - accepted_ms(record))


def restamped(record: bytes, found: Found, due_ms: int) -> bytes:
    """Make the record of a moved message: only version and due time (epoch ms) differ."""
    stored = decode_record(record)
    message: Message = stored.message()
    message.properties = delivered_as(stored.properties, found.delay_id, due_ms, found.version + 1)
    fresh = bytearray(encode_record(message, stored.store_host, stored.store_ms))
    LONG.pack_into(fresh, QUEUE_OFFSET_AT, sent_delay_ms(record, found))
    return bytes(fresh)


def with_delay(record: bytes, delay_ms: int) -> bytes:
    """A pending record with the delay (ms) with which it was sent written into it."""
    fresh = bytearray(record)
    LONG.pack_into(fresh, QUEUE_OFFSET_AT, delay_ms)
    return bytes(fresh)


def fresh_copy(record: bytes, delay_id: int, due_ms: int) -> bytes:
    """Make the record of a message that is accepted under another id than the one it was made for."""
    stored = decode_record(record)
    message: Message = stored.message()
    message.properties = delivered_as(stored.properties, delay_id, due_ms, 0)
    return encode_record(message, stored.store_host, stored.store_ms)


def row_of(record: bytes, size: int, delay_id: int, version: int, due_ms: int, failed: bool) -> PendingRow:
    """Make the row of a listing from a record; ``size`` is its full size, also if it has no body here."""
    topic, queue_id, text = record_fields(record)
    return PendingRow(
        offset=delay_id,
        version=version,
        due_ms=due_ms,
        accepted_ms=accepted_ms(record),
        topic=topic,
        queue_id=queue_id,
        size=size,
        tag=get_property(text, TAGS) or "",
        key=get_property(text, DELAY_KEY) or "",
        unique_key=get_property(text, UNIQ_KEY) or "",
        failed=failed,
    )


def fits(query: PendingQuery, record: bytes) -> bool:
    """True if a record matches a query; the due range is not compared. Raises RecordError."""
    if query.topic and record_topic(record) != query.topic:
        return False  # first, because most records are decided here, and their properties need not be read
    if query.is_of_topic:
        return True
    text = record_fields(record)[2]
    if query.tag and get_property(text, TAGS) != query.tag:
        return False
    if query.key_prefix and not (get_property(text, DELAY_KEY) or "").startswith(query.key_prefix):
        return False
    if query.accepted_from_ms is not None and accepted_ms(record) < query.accepted_from_ms:
        return False
    if query.accepted_to_ms is not None and accepted_ms(record) >= query.accepted_to_ms:
        return False
    return not query.properties or all(get_property(text, name) == value for name, value in query.properties)


def fitting(query: PendingQuery, records: Sequence[bytes]) -> list[int]:
    """Indices of the records that match a query; empty and unreadable ones are skipped."""
    if query.is_of_topic:
        topic = query.topic
        if not topic:
            return [place for place, record in enumerate(records) if record]
        try:  # nearly all queries end here: one call for each record, which reads its topic
            return [place for place, record in enumerate(records) if record and record_topic(record) == topic]
        except RecordError:
            # One of them cannot be read: they are compared one by one.
            pass
    return [place for place, record in enumerate(records) if record and _is_fit(query, record)]


def _is_fit(query: PendingQuery, record: bytes) -> bool:
    try:
        return fits(query, record)
    except RecordError:
        return False


def key_hash(topic: str, key: str) -> int:
    """A 64-bit hash of a topic and a delay key; never 0, which means no key."""
    # Neither of the two can have a NUL, so different pairs give different texts.
    text = f"{topic}\0{key}".encode("utf-8", "surrogatepass")
    return int.from_bytes(blake2b(text, digest_size=8).digest(), "little") or 1
