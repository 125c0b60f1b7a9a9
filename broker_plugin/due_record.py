"""`put_record_of` in a third of the time: makes the delivery of a finished record.

Reading a record into fields and searching its property text for four names costs five microseconds. Here the text is
searched for ``\\x02NAME\\x01`` from its end. Unusual records (no unique key or delay id; keys or a tag at the start of
the text; an empty value; several keys; IPv6; a long topic) are left to `store.put.plugin_api.put_record_of`. Both give
the same result for every record, and a test compares them.
"""

from __future__ import annotations

from typing import Final

from remoting.layout import (
    BODY_AT,
    HOST_BYTES,
    HOSTS_V6,
    MAGIC_V1,
    PROPERTIES_LENGTH_BYTES,
    RECORD,
    RECORD_BYTES_MIN,
    STORE_HOST_AT,
    SYS_FLAG_LOW_AT,
    TOPIC_LENGTH_BYTES,
)
from remoting.messages.message import tag_hash
from store.put.plugin_api import PutRecord, put_record_of

__all__ = ["due_record", "rehosted"]

_unpack_head = RECORD.picked("magic", "queue_id", "sys_flag", "body_bytes").unpack_from
# `Final` literals, not strings joined at run time: mypyc compiles them in, so that a search looks up no global.
_UNIQ_KEY: Final = "\x02UNIQ_KEY\x01"
_KEYS: Final = "\x02KEYS\x01"
_TAGS: Final = "\x02TAGS\x01"
_TW_ID: Final = "\x02__TW_ID\x01"
_FIRST_UNIQ_KEY: Final = "UNIQ_KEY\x01"
_FIRST: Final = ("KEYS\x01", "TAGS\x01")
_STORE_HOST_END: Final = STORE_HOST_AT + HOST_BYTES  # if both hosts are IPv4
_TOPICS_MAX: Final = 4096
_topics: dict[bytes, str] = {}


def _topic(name: bytes) -> str:
    topic = name.decode()
    if len(_topics) >= _TOPICS_MAX:
        _topics.clear()
    _topics[name] = topic
    return topic


def due_record(record: bytes, due_ms: int) -> PutRecord:
    """Make the delivery of a finished record that was read back; ``due_ms`` is epoch ms. Raises RecordError."""
    size = len(record)
    if size < RECORD_BYTES_MIN:
        return put_record_of(record, due_ms)
    magic, queue_id, sys_flag, body_bytes = _unpack_head(record)
    if magic != MAGIC_V1 or sys_flag & HOSTS_V6 or not 0 <= body_bytes <= size - RECORD_BYTES_MIN:
        return put_record_of(record, due_ms)
    # Said here, because `unpack` does not say it: compiled, these are numbers then, not any objects.
    at: int = BODY_AT + body_bytes
    end: int = at + TOPIC_LENGTH_BYTES + record[at]
    begin: int = end + PROPERTIES_LENGTH_BYTES
    if begin > size or record[end] << 8 | record[end + 1] != size - begin or record[size - 1] != 2:
        return put_record_of(record, due_ms)
    try:
        text = record[begin:].decode()
        name = record[at + TOPIC_LENGTH_BYTES : end]
        topic = _topics.get(name)
        if topic is None:
            topic = _topic(name)
    except UnicodeDecodeError:
        return put_record_of(record, due_ms)
    # `rfind` answers -1 for what is absent, so a sum below the pattern's length (9, 10, 6) means "not there": no branch
    # for each name. The last of two with one name counts, as in `remoting.messages.properties`.
    id_at = text.rfind(_TW_ID) + 9
    unique_at = text.rfind(_UNIQ_KEY) + 10
    if unique_at == 9 and not text.startswith(_FIRST_UNIQ_KEY):  # its value begins at 9 if it is the first of all
        return put_record_of(record, due_ms)
    if id_at < 9 or text.startswith(_FIRST):
        return put_record_of(record, due_ms)
    delay_id = text[id_at : text.find("\x02", id_at)]
    unique = text[unique_at : text.find("\x02", unique_at)]
    if not delay_id or not unique or "." in delay_id:
        return put_record_of(record, due_ms)
    code = 0
    at_tag = text.rfind(_TAGS) + 6
    if at_tag >= 6:
        tag = text[at_tag : text.find("\x02", at_tag)]
        if not tag:
            return put_record_of(record, due_ms)
        code = tag_hash(tag)
    at_key = text.rfind(_KEYS) + 6
    if at_key < 6:
        return PutRecord(topic, queue_id, record, code, (unique, "\0" + delay_id), due_ms, True)
    key = text[at_key : text.find("\x02", at_key)]
    if not key or " " in key:
        return put_record_of(record, due_ms)
    return PutRecord(topic, queue_id, record, code, (unique, key, "\0" + delay_id), due_ms, True)


def rehosted(record: bytes, host: bytes) -> bytes:
    """The record with this store host (8 bytes), which clients dial; unchanged if one of its hosts is IPv6."""
    # Bounds instead of a `slice` object: mypyc takes a single name in an index of bytes for an integer.
    if record[STORE_HOST_AT:_STORE_HOST_END] == host or record[SYS_FLAG_LOW_AT] & HOSTS_V6:
        return record
    return b"".join((record[:STORE_HOST_AT], host, record[_STORE_HOST_END:]))
