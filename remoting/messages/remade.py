"""A record made from another one: the sender's fields and the body stay, topic and properties are new.

Reading a record into an object and writing it again costs ten microseconds, most of it for fields that do not change.
Here the bytes between head and topic are copied unchanged. This works only for records as most senders write them (V1,
both hosts IPv4, properties in UTF-8). For all others `plain_text` returns None, and the caller takes the long way
through `remoting.messages.stored.decode_record`.

>>> from remoting.messages.message import Message, decode_record, encode_record
>>> from remoting.messages.remade import plain_text, shown_as
>>> record = encode_record(Message("%RETRY%G_T", body=b"b", properties="k\\x01v\\x02"), bytes(8))
>>> plain_text(record, check_crc=True)
(89, 'k\\x01v\\x02')
>>> decode_record(shown_as(record, 89, "T", "k\\x01w\\x02") or b"").topic
'T'
"""

from __future__ import annotations

from typing import Final

from remoting.errors import MessageError
from remoting.layout import (
    BODY_AT,
    BODY_BYTES_AT,
    HOSTS_V6,
    MAGIC_AT,
    MAGIC_V1,
    PREPARED_OFFSET_AT,
    PROPERTIES_LENGTH_BYTES,
    RECORD,
    RECORD_BYTES_MIN,
    SYS_FLAG_LOW_AT,
    TOPIC_LENGTH_BYTES,
)
from remoting.layout.table import INT, SHORT
from remoting.messages.checksum import crc32
from remoting.messages.proof import PLAIN, PLAIN_LEAD, VOUCHER_LEAD, is_proof
from remoting.messages.record import MAX_PROPERTIES_BYTES, topic_part

__all__ = ["copied_to", "one_try_more", "plain_text", "shown_as", "shown_with"]

_HEAD = RECORD.struct()
_CHECKED = RECORD.picked("size", "magic", "crc", "prepared_offset", "body_bytes")
_SIZES = RECORD.picked("size", "magic", "body_bytes")
_NO_OFFSET: Final = bytes(8)
_pack_short, _pack_int = SHORT.pack, INT.pack
_CRC_MASK: Final = 0x7FFFFFFF
_TRIES_MAX: Final = 0x7FFFFFFF
_MAX: Final = MAX_PROPERTIES_BYTES
_SEPARATOR: Final = 2


def _parts(record: bytes) -> tuple[int, int, int, int] | None:
    """Positions of topic and properties, the body's checksum and PREPAREDTRANSACTIONOFFSET; None: not plain."""
    size = len(record)
    if size < RECORD_BYTES_MIN or record[SYS_FLAG_LOW_AT] & HOSTS_V6:
        return None
    claimed, magic, crc, prepared, body_bytes = _CHECKED.unpack_from(record)
    if claimed != size or magic != MAGIC_V1 or not 0 <= body_bytes <= size - RECORD_BYTES_MIN:
        return None
    topic_at = BODY_AT + body_bytes
    topic_end = topic_at + TOPIC_LENGTH_BYTES + record[topic_at]
    begin = topic_end + PROPERTIES_LENGTH_BYTES
    if begin > size or record[topic_end] << 8 | record[topic_end + 1] != size - begin:
        return None
    return topic_at, begin, crc, prepared


def plain_text(record: bytes, check_crc: bool) -> tuple[int, str] | None:
    """Position of the topic and the property text of a record, or None if it is not as most senders write it.

    Also None if the sizes of its parts do not add up, or (with ``check_crc``) if a checksum is wrong.
    """
    parts = _parts(record)
    if parts is None:
        return None
    topic_at, begin, crc, prepared = parts
    if len(record) - begin > _MAX:
        return None
    if check_crc:
        if crc32(record[BODY_AT:topic_at]) & _CRC_MASK != crc:
            return None
        if is_proof(prepared) and crc32(record[topic_at:]) != prepared & 0xFFFFFFFF:
            return None
    try:
        return topic_at, record[begin:].decode()
    except UnicodeDecodeError:
        return None


def _behind_body(topic: str, properties: str) -> bytes | None:
    """Topic and properties as they stand behind the body; None if they do not fit a V1 record."""
    try:
        magic, name = topic_part(topic)
        text = properties.encode()
    except (MessageError, UnicodeEncodeError):
        return None
    if magic != MAGIC_V1 or len(text) > _MAX:
        return None
    return b"".join((name, _pack_short(len(text)), text))


def one_try_more(tries: int) -> int:
    """Count one more try. The largest number that fits the field stays: a sender may set it.

    >>> one_try_more(2), one_try_more(0x7FFFFFFF)
    (3, 2147483647)
    """
    return min(tries, _TRIES_MAX - 1) + 1


def copied_to(record: bytes, topic_at: int, topic: str, properties: str, clear_flags: int) -> bytes | None:
    """Make the record of a message's next try: queue 0, one try more, no position yet, some bits of sysFlag cleared.

    None if topic or properties do not fit. ``topic_at`` comes from `plain_text`.
    """
    behind = _behind_body(topic, properties)
    if behind is None:
        return None
    _, magic, crc, _, flag, _, _, sys_flag, born_ms, born, _, store, tries, _, body_bytes = _HEAD.unpack_from(record)
    if tries == _TRIES_MAX:
        return None
    prepared = PLAIN + crc32(behind)
    size = topic_at + len(behind)
    sys_flag &= ~clear_flags
    numbers = (size, magic, crc, 0, flag, 0, 0, sys_flag, born_ms, born, 0, store, tries + 1, prepared, body_bytes)
    return b"".join((_HEAD.pack(*numbers), record[BODY_AT:topic_at], behind))


def shown_with(records: list[bytes], topic: str, more: list[bytes]) -> list[bytes | None]:
    """Make stored records look as if they were of another topic and had one more property; positions stay.

    ``more`` has a pair for each record, as it stands in a property text, with its separator at the end. None for a
    record that is not as most senders write it. The other properties are not read, so this takes half the time of
    `shown_as`.
    """
    front = _behind_body(topic, "")
    # Without the length of the properties, which differs from record to record.
    name = b"" if front is None else front[:-2]
    return [_with(record, name, own) if name else None for record, own in zip(records, more, strict=True)]


def _with(record: bytes, name: bytes, more: bytes) -> bytes | None:
    # The checks of `_parts` without the body's checksum, and the proof compared as bytes: this is a pop's hot path.
    size = len(record)
    if size < RECORD_BYTES_MIN or record[SYS_FLAG_LOW_AT] & HOSTS_V6:
        return None
    claimed, magic, body_bytes = _SIZES.unpack_from(record)
    if claimed != size or magic != MAGIC_V1 or not 0 <= body_bytes <= size - RECORD_BYTES_MIN:
        return None
    prepared = record[PREPARED_OFFSET_AT:BODY_BYTES_AT]
    lead = prepared[:4]
    if lead != PLAIN_LEAD and lead != VOUCHER_LEAD and prepared != _NO_OFFSET:
        return None  # the committed message of a transaction
    topic_at = BODY_AT + body_bytes
    topic_end = topic_at + TOPIC_LENGTH_BYTES + record[topic_at]
    begin = topic_end + PROPERTIES_LENGTH_BYTES
    if begin > size or record[topic_end] << 8 | record[topic_end + 1] != size - begin:
        return None
    text = record[begin:]
    if text and text[-1] != _SEPARATOR:
        more = b"\x02" + more
    text_bytes = len(text) + len(more)
    if text_bytes > _MAX or not text.isascii():
        return None
    behind = b"".join((name, _pack_short(text_bytes), text, more))
    front = _pack_int(topic_at + len(behind)) + record[MAGIC_AT:PREPARED_OFFSET_AT] + PLAIN_LEAD
    return b"".join((front, crc32(behind).to_bytes(4, "big"), record[BODY_BYTES_AT:topic_at], behind))


def shown_as(record: bytes, topic_at: int, topic: str, properties: str) -> bytes | None:
    """Make a stored record look as if it were of another topic and had other properties; its position stays.

    None if they do not fit, or for the committed message of a transaction.
    """
    behind = _behind_body(topic, properties)
    if behind is None:
        return None
    _, magic, crc, queue_id, flag, number, position, sys_flag, born_ms, born, store_ms, store, tries, prepared, rest = (
        _HEAD.unpack_from(record)
    )
    if prepared and not is_proof(prepared):
        return None
    size = topic_at + len(behind)
    front = (size, magic, crc, queue_id, flag, number, position, sys_flag)
    back = (born_ms, born, store_ms, store, tries, PLAIN + crc32(behind), rest)
    return b"".join((_HEAD.pack(*front, *back), record[BODY_AT:topic_at], behind))
