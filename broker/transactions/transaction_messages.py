"""The messages of a transaction, each made from another: half, committed, given up, op, and the one in a check.

Properties and flags are Apache's (TransactionalMessageBridge, EndTransactionProcessor,
DefaultTransactionalMessageCheckListener), except those of the committed message. Apache leaves TRAN_MSG and the
``REAL_`` properties in it, so an application that forwards the message makes another half message of it.
"""

from __future__ import annotations

from collections.abc import Iterable

from remoting.codes import SysFlag
from remoting.layout import BODY_AT_MAX, RECORD
from remoting.layout.table import LONG
from remoting.messages.message import (
    MAX_PROPERTIES_BYTES,
    MAX_TOPIC_BYTES,
    QUEUE_OFFSET_AT,
    Message,
    RecordError,
    StoredMessage,
    encode_record,
    store_ms_at,
)
from remoting.messages.proof import OFFSET_0, VOUCHER
from remoting.messages.properties import (
    CHECK_IMMUNITY_TIME_IN_SECONDS,
    PGROUP,
    REAL_QID,
    REAL_TOPIC,
    TAGS,
    TRAN_MSG,
    TRANSACTION_CHECK_TIMES,
    TRANSACTION_ID,
    format_properties,
    get_property,
    has_property,
    remove_properties,
    with_property,
)
from store.half_messages import DISCARD_TOPIC, HALF_TOPIC, OP_TOPIC

__all__ = [
    "check_body",
    "check_due_ms",
    "checks_before",
    "committed_message",
    "discarded_message",
    "immunity_ms",
    "make_half",
    "no_room",
    "op_message",
    "resumed_message",
]

_TYPE = int(SysFlag.TRANSACTION_ROLLBACK)
_ROOM_BYTES = len(TRANSACTION_CHECK_TIMES) + 2 + 10
"""Bytes that the count of checks, with ten digits, may add to a half message's properties."""
_PLACE = RECORD.struct("queue_offset", "position")


def make_half(message: Message, unique_key: str, producer_group: str) -> None:
    """Turn a message into its half message: Apache's topic for them, queue 0, its own in REAL_TOPIC and REAL_QID."""
    text = remove_properties(message.properties, (REAL_TOPIC, REAL_QID, TRANSACTION_ID, TRANSACTION_CHECK_TIMES))
    if (get_property(text, TRAN_MSG) or "").lower() != "true":
        text = with_property(text, TRAN_MSG, "true")
    if not has_property(text, PGROUP):
        text = with_property(text, PGROUP, producer_group)
    text = with_property(text, TRANSACTION_ID, unique_key)
    text = with_property(text, REAL_TOPIC, message.topic)
    message.properties = with_property(text, REAL_QID, str(message.queue_id))
    message.sys_flag &= ~_TYPE
    message.topic = HALF_TOPIC
    message.queue_id = 0


def no_room(half: Message, record_bytes_max: int) -> str:
    """Return why a half message is too large for the messages made from it later; empty if it is not.

    A commit, a check and a discard each write it once more: under another topic, with the count of checks.
    """
    text, body_bytes = half.properties, len(half.body)
    room = record_bytes_max - _ROOM_BYTES - MAX_TOPIC_BYTES - 4
    if len(text) < MAX_PROPERTIES_BYTES // 4 - _ROOM_BYTES and BODY_AT_MAX + body_bytes + 4 * len(text) <= room:
        return ""  # it fits even with four bytes a character
    own_bytes, most = len(text.encode("utf-8", "surrogatepass")), MAX_PROPERTIES_BYTES - _ROOM_BYTES
    if own_bytes > most:
        return f"the half message has {own_bytes} bytes of properties, with those that the broker adds; at most {most}"
    size = BODY_AT_MAX + body_bytes + own_bytes
    if size > room:
        return f"the half message has {size} bytes, with what the broker adds; at most {room} are possible"
    return ""


def committed_message(half: StoredMessage, checks: int) -> Message:
    """Make the committed message. Raises RecordError if the half message does not name its topic and queue."""
    message = _back(half, checks)
    message.properties = remove_properties(message.properties, (TRAN_MSG, REAL_TOPIC, REAL_QID))
    message.sys_flag = half.sys_flag & ~_TYPE | int(SysFlag.TRANSACTION_COMMIT)
    message.prepared_offset = half.offset or OFFSET_0
    return message


def discarded_message(half: StoredMessage, checks: int) -> Message:
    """Make what goes to the discard topic; its prepared offset says which half message it was."""
    message = half.message()
    message.topic = DISCARD_TOPIC
    message.queue_id = 0
    message.prepared_offset = half.offset
    message.properties = _with_checks(half.properties, checks)
    return message


def resumed_message(given_up: StoredMessage) -> Message:
    """Make a half message again of one from the discard topic, as if it had never been checked."""
    message = given_up.message()
    message.topic = HALF_TOPIC
    message.queue_id = 0
    message.prepared_offset = 0
    message.properties = remove_properties(given_up.properties, (TRANSACTION_CHECK_TIMES,))
    return message


def op_message(tag: str, numbers: Iterable[int], store_host: bytes, now_ms: int, *, vouches: bool = False) -> Message:
    """Make the op message that says what became of some half messages; see `store.half_messages`.

    With ``vouches`` it is to be put behind the message that names the half message, and carries its checksum.
    """
    body = b"".join([b"%d," % number for number in numbers])
    properties = format_properties({TAGS: tag})
    message = Message(OP_TOPIC, 0, born_ms=now_ms, born_host=store_host, body=body, properties=properties)
    if vouches:
        message.prepared_offset = VOUCHER
    return message


def check_body(half: StoredMessage, checks: int) -> bytes:
    """Make the body of a check: the half message as if it stood in its own topic. Raises RecordError."""
    record = bytearray(encode_record(_back(half, checks), half.store_host))
    _PLACE.pack_into(record, QUEUE_OFFSET_AT, half.queue_offset, half.offset)
    LONG.pack_into(record, store_ms_at(record), half.store_ms)
    return bytes(record)


def _back(half: StoredMessage, checks: int) -> Message:
    topic, queue_id = get_property(half.properties, REAL_TOPIC), get_property(half.properties, REAL_QID)
    if topic is None or queue_id is None or not (queue_id.isascii() and queue_id.isdecimal() and len(queue_id) < 11):
        raise RecordError(f"a half message for topic {topic!r} and queue {queue_id!r}")
    message = half.message()
    message.topic = topic
    message.queue_id = int(queue_id)
    message.properties = _with_checks(half.properties, checks)
    return message


def _with_checks(text: str, checks: int) -> str:
    if not checks:
        return text
    text = remove_properties(text, (TRANSACTION_CHECK_TIMES,))
    counted = with_property(text, TRANSACTION_CHECK_TIMES, str(checks))
    # Acceptance has kept room for the count (`no_room`); an older version's or Apache's half message may lack it. Then
    # the count goes, not the message: it must be shown to its producer, delivered or given up all the same.
    return counted if len(counted.encode()) <= MAX_PROPERTIES_BYTES else text


def checks_before(half: StoredMessage) -> int:
    """Return the number of checks that an Apache broker had made when it stored a half message."""
    text = get_property(half.properties, TRANSACTION_CHECK_TIMES) or "0"
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 11 else 0


def immunity_ms(properties: str) -> int | None:
    """Return the time for which the producer must not be asked (CHECK_IMMUNITY_TIME_IN_SECONDS), ms; None without one.

    A value that is no number is ignored, as in Apache.
    """
    text = get_property(properties, CHECK_IMMUNITY_TIME_IN_SECONDS)
    if text is None or not (text.isascii() and text.isdecimal()) or len(text) > 12:
        return None
    return int(text) * 1000


def check_due_ms(properties: str, born_ms: int, timeout_ms: int, now_ms: int) -> int:
    """When a half message may first be checked: behind its immunity, by its sender's clock; now if that is ahead."""
    immunity = immunity_ms(properties)
    return min(born_ms, now_ms) + (timeout_ms if immunity is None else immunity) + 1
