"""`put_record_of` once more, in two thirds of the time: what a delivery needs of a finished record.

A delivery costs seven microseconds in all; decoding a property text and finding four names in it was three of them.
Here the record's bytes are searched in place for ``\\x02NAME\\x01``, and only what is found is decoded. A record in
which not all of it stands as most senders write it (a name missing, or the first of the text; an empty value;
several keys; IPv6; a long topic) is left to `store.hook.put_record_of`: this answers the same in every case, and a
test compares them.
"""

from __future__ import annotations

from functools import lru_cache
from struct import Struct

from remoting.message import MAGIC_V1, java_hash
from remoting.properties import KEYS, TAGS, TW_ID, UNIQ_KEY
from store.hook import PutRecord, put_record_of

__all__ = ["due_record"]

_HEAD_V4 = Struct(">4xI4xi20xi44xi")  # magic, queue id, sysflag, body length where both hosts are IPv4
_HOSTS_V6 = 0x30
_UNIQ_KEY, _KEYS, _TAGS, _TW_ID = (f"\x02{name}\x01".encode() for name in (UNIQ_KEY, KEYS, TAGS, TW_ID))
_SMALLEST = 91


@lru_cache(maxsize=4096)
def _topic(name: bytes) -> str:
    return name.decode()


@lru_cache(maxsize=4096)
def _tags_code(tag: bytes) -> int:
    return java_hash(tag.decode())


def due_record(record: bytes, due_ms: int) -> PutRecord:
    """Make a delivery of a finished record that was read back; raises RecordError if it is none."""
    if len(record) < _SMALLEST:
        return put_record_of(record, due_ms)
    magic, queue_id, sys_flag, body_bytes = _HEAD_V4.unpack_from(record)
    if magic != MAGIC_V1 or sys_flag & _HOSTS_V6 or not 0 <= body_bytes <= len(record) - _SMALLEST:
        return put_record_of(record, due_ms)
    at = 88 + body_bytes
    end = at + 1 + record[at]
    begin = end + 2
    if begin > len(record) or record[end] << 8 | record[end + 1] != len(record) - begin:
        return put_record_of(record, due_ms)
    find, rfind = record.find, record.rfind
    # The last of two with one name counts, as in `remoting.properties`.
    id_at = rfind(_TW_ID, begin) + 9
    unique_at = rfind(_UNIQ_KEY, begin) + 10
    keys_at = rfind(_KEYS, begin) + 6
    tag_at = rfind(_TAGS, begin) + 6
    if id_at < begin or unique_at < begin or keys_at < begin or tag_at < begin:
        return put_record_of(record, due_ms)
    delay_id = record[id_at : find(b"\x02", id_at)]
    unique = record[unique_at : find(b"\x02", unique_at)]
    keys = record[keys_at : find(b"\x02", keys_at)]
    tag = record[tag_at : find(b"\x02", tag_at)]
    if not (delay_id and unique and keys and tag) or b" " in keys or b"." in delay_id or record[-1] != 2:
        return put_record_of(record, due_ms)
    try:
        return PutRecord(
            _topic(record[at + 1 : end]),
            queue_id,
            record,
            _tags_code(tag),
            (unique.decode(), keys.decode(), "\0" + delay_id.decode()),
            due_ms,
            True,
        )
    except UnicodeDecodeError:
        return put_record_of(record, due_ms)
