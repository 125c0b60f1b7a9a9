"""Records of messages delivered again: the copy for the retry topic, and the form in which a pop returns the copy."""

from __future__ import annotations

from remoting.codes import SysFlag
from remoting.errors import MessageError, RecordError
from remoting.layout import OFFSET_AT, QUEUE_OFFSET_AT, RECORD, SYS_FLAG_LOW_AT
from remoting.layout.table import LONG
from remoting.messages.message import (
    Message,
    StoredMessage,
    decode_record,
    encode_record,
    message_keys,
    store_ms_at,
    tags_code,
)
from remoting.messages.properties import FIRST_POP_TIME, POP_CK, TW_POP, get_property, with_property, without_own
from remoting.messages.remade import copied_to, one_try_more, plain_text, shown_as, shown_with
from store.derived.dispatch import is_queued
from store.put.plugin_api import PutRecord, put_record

__all__ = ["all_for_reply", "for_reply", "mark_text", "revived"]

_TRANSACTION = int(SysFlag.TRANSACTION_ROLLBACK)
_TRIES = RECORD.picked("reconsume_times")


def mark_text(name: int, offset: int) -> str:
    """Write the mark of a copy: which batch its message was popped in, and its number in its queue.

    >>> mark_text(26, 255)
    '1a.ff'
    """
    return f"{name:x}.{offset:x}"


def revived(record: bytes, topic: str, pop_ms: int, due_ms: int, mark: str) -> PutRecord:
    """Make the copy of a message that was not acknowledged, to be stored when its invisible time is over.

    The copy keeps the sender's body and properties. reconsumeTimes is one more. 1ST_POP_TIME is the time of the first
    pop. ``mark`` (`mark_text`) names the original, so that a start can match them. Raises RecordError for bytes that
    are no whole record.
    """
    found = plain_text(record, check_crc=True)
    if found is None:
        return _revived_by_fields(record, topic, pop_ms, due_ms, mark)
    topic_at, text = found
    properties = without_own(text)
    marked = with_property(properties, TW_POP, mark)
    if get_property(properties, FIRST_POP_TIME) is None or not _TRIES.unpack_from(record)[0]:
        marked = with_property(marked, FIRST_POP_TIME, str(pop_ms))
    sys_flag = record[SYS_FLAG_LOW_AT]
    copy = copied_to(record, topic_at, topic, marked, 0 if is_queued(sys_flag) else _TRANSACTION)
    if copy is None:
        return _revived_by_fields(record, topic, pop_ms, due_ms, mark)
    return PutRecord(topic, 0, copy, tags_code(marked), message_keys(marked), due_ms, True)


def _revived_by_fields(record: bytes, topic: str, pop_ms: int, due_ms: int, mark: str) -> PutRecord:
    """Make the copy of any record, by decoding and encoding it."""
    stored = decode_record(record)
    properties = without_own(stored.properties)
    message = _like(stored, topic, properties)
    message.queue_id = 0
    message.reconsume_times = one_try_more(message.reconsume_times)
    message.prepared_offset = 0
    if not is_queued(message.sys_flag):
        message.sys_flag &= ~_TRANSACTION
    marked = with_property(properties, TW_POP, mark)
    tries = [marked, properties]  # if there is no room for the mark, a crash may leave two copies
    if stored.reconsume_times == 0 or get_property(properties, FIRST_POP_TIME) is None:
        tries.insert(0, with_property(marked, FIRST_POP_TIME, str(pop_ms)))
    for text in tries:
        message.properties = text
        try:
            put = put_record(message, stored.store_host)
        except MessageError as error:
            problem = error
        else:
            put.due_ms = due_ms
            put.guarded = True
            return put
    raise RecordError(f"a retry of a message of {stored.topic}: {problem}") from problem


def all_for_reply(records: list[bytes], topic: str, lead: str, offsets: list[int]) -> list[bytes]:
    """Make the records of a retry topic ready for a pop's reply; ``lead`` is their handle without the offset.

    The result is the same as that of `for_reply` for each of them.
    """
    if "\x01" in lead or "\x02" in lead:  # in the broker's name
        return records
    begin = f"{POP_CK}\x01{lead}"
    shown = shown_with(records, topic, [f"{begin}{offset}\x02".encode() for offset in offsets])
    return [
        for_reply(record, topic, f"{lead}{offset}") if made is None else made
        for made, record, offset in zip(shown, records, offsets, strict=True)
    ]


def for_reply(record: bytes, topic: str, handle: str) -> bytes:
    """Make a record of a retry topic ready for a pop's reply: with the topic that was popped, and with its handle."""
    found = plain_text(record, check_crc=False)
    if found is not None:
        try:
            shown = shown_as(record, found[0], topic, with_property(found[1], POP_CK, handle))
        except MessageError:  # a separator in the handle
            return record
        if shown is not None:
            return shown
    return _for_reply_by_fields(record, topic, handle)


def _for_reply_by_fields(record: bytes, topic: str, handle: str) -> bytes:
    try:
        stored = decode_record(record, check_crc=False)
        message = _like(stored, topic, with_property(stored.properties, POP_CK, handle))
        data = bytearray(encode_record(message, stored.store_host))
    except (MessageError, RecordError):  # no room for the handle: clients derive it from the retry topic's name
        return record
    LONG.pack_into(data, QUEUE_OFFSET_AT, stored.queue_offset)
    LONG.pack_into(data, OFFSET_AT, stored.offset)
    LONG.pack_into(data, store_ms_at(data), stored.store_ms)
    return bytes(data)


def _like(stored: StoredMessage, topic: str, properties: str) -> Message:
    message = stored.message()
    message.topic = topic
    message.properties = properties
    return message
