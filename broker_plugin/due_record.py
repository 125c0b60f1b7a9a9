"""`put_record_of` once more, in a third of the time: what a delivery needs of a finished record.

Decoding a property text and finding four names in it costs three microseconds. Here the record's bytes are searched
for ``\\x02NAME\\x01``, and only what is found is decoded. A record in which not all of it stands as most senders write
it (no unique key or delay id; keys or a tag first of the text; an empty value; several keys; IPv6; a long topic) is
left to `store.put.plugin_api.put_record_of`: this answers the same in every case, and a test compares them.
"""

from __future__ import annotations

from functools import lru_cache

from remoting.layout import (
    BODY_AT,
    HOST_BYTES,
    HOSTS_V6,
    MAGIC_V1,
    RECORD,
    RECORD_BYTES_MIN,
    STORE_HOST_AT,
    SYS_FLAG_LOW_AT,
)
from remoting.messages.message import java_hash
from remoting.messages.properties import KEYS, TAGS, TW_ID, UNIQ_KEY
from store.put.plugin_api import PutRecord, put_record_of

__all__ = ["due_record", "rehosted"]

_HEAD_V4 = RECORD.picked("magic", "queue_id", "sys_flag", "body_bytes")
_UNIQ_KEY, _KEYS, _TAGS, _TW_ID = (f"\x02{name}\x01".encode() for name in (UNIQ_KEY, KEYS, TAGS, TW_ID))
_STORE_HOST_END = STORE_HOST_AT + HOST_BYTES  # if both hosts are IPv4
_UNIQ_KEY_FIRST = _UNIQ_KEY[1:]
_SHORT_BYTES_MAX = 256  # longer tags are not remembered: 4,096 of 32 KiB would be kept


@lru_cache(maxsize=4096)
def _topic(name: bytes) -> str:
    return name.decode()


@lru_cache(maxsize=4096)
def _short_tags_code(tag: bytes) -> int:
    return java_hash(tag.decode())


def _tags_code(tag: bytes) -> int:
    return _short_tags_code(tag) if len(tag) <= _SHORT_BYTES_MAX else java_hash(tag.decode())


def due_record(record: bytes, due_ms: int) -> PutRecord:
    """Make a delivery of a finished record that was read back; raises RecordError if it is none."""
    size = len(record)
    if size < RECORD_BYTES_MIN:
        return put_record_of(record, due_ms)
    magic, queue_id, sys_flag, body_bytes = _HEAD_V4.unpack_from(record)
    if magic != MAGIC_V1 or sys_flag & HOSTS_V6 or not 0 <= body_bytes <= size - RECORD_BYTES_MIN:
        return put_record_of(record, due_ms)
    at = BODY_AT + body_bytes
    end = at + 1 + record[at]
    begin = end + 2
    if begin > size or record[end] << 8 | record[end + 1] != size - begin or record[-1] != 2:
        return put_record_of(record, due_ms)
    text = record[begin:]
    # `rfind` answers -1 for what is absent, so a sum below the pattern's length (9, 10, 6) means "not there": no branch
    # for each name.
    # The last of two with one name counts, as in `remoting.messages.properties`.
    id_at = text.rfind(_TW_ID) + 9
    unique_at = text.rfind(_UNIQ_KEY) + 10
    if unique_at == 9 and not text.startswith(_UNIQ_KEY_FIRST):  # where its value begins if it is the first of all
        unique_at = 0
    if id_at < 9 or not unique_at:
        return put_record_of(record, due_ms)
    delay_id = text[id_at : text.find(b"\x02", id_at)]
    unique = text[unique_at : text.find(b"\x02", unique_at)]
    if not (delay_id and unique) or b"." in delay_id:
        return put_record_of(record, due_ms)
    key, code = b"", 0
    if b"KEYS\x01" in text:
        at_key = text.rfind(_KEYS) + 6
        key = text[at_key : text.find(b"\x02", at_key)]
        if at_key < 6 or not key or b" " in key:
            return put_record_of(record, due_ms)
    try:
        if b"TAGS\x01" in text:
            at_tag = text.rfind(_TAGS) + 6
            tag = text[at_tag : text.find(b"\x02", at_tag)]
            if at_tag < 6 or not tag:
                return put_record_of(record, due_ms)
            code = _tags_code(tag)
        id_key = "\0" + delay_id.decode()
        keys = (unique.decode(), key.decode(), id_key) if key else (unique.decode(), id_key)
        return PutRecord(_topic(record[at + 1 : end]), queue_id, record, code, keys, due_ms, True)
    except UnicodeDecodeError:
        return put_record_of(record, due_ms)


def rehosted(record: bytes, host: bytes) -> bytes:
    """The record with this store host, which clients dial; as it is if a host in it is no IPv4 address."""
    # Bounds, and no slice object: mypyc takes any index of bytes that stands alone for a number.
    if record[STORE_HOST_AT:_STORE_HOST_END] == host or record[SYS_FLAG_LOW_AT] & HOSTS_V6:
        return record
    return b"".join((record[:STORE_HOST_AT], host, record[_STORE_HOST_END:]))
