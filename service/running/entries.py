"""From a message of the entry topic to what waits in the cache, or to what is rejected and why.

==================  ================================================================================================
``TW_TOPIC``        the topic that the message is for
due time            the first that is there of ``TW_DELIVER_MS`` (epoch ms), ``TW_DELAY_MS`` (ms from when the broker
                    stored it), ``__STARTDELIVERTIME``, ``TIMER_DELAY_SEC``, ``TIMER_DELAY_MS``, ``TIMER_DELIVER_MS``
==================  ================================================================================================

The first two are names that no broker looks at. An Apache broker of version 5 delays ``TIMER_*`` itself, and so does a
Timewheel broker with all the others: such a message comes into the entry topic when it is due, and goes out at once.

A delivered message has the sender's body, tags, keys and properties, but for ``TW_TOPIC``, what would delay it once
more, and what would make it a half message of a transaction; and ``TW_DELAY_ID`` (broker, queue and offset of the
entry) and ``TW_DUE_MS``. Everything depends on the message alone, so every owner reads the same out of it.
"""

from __future__ import annotations

from dataclasses import dataclass

from broker_plugin.rules.properties import PRECEDENCE, TimerError, read_due
from remoting.messages.message import Message, MessageError, StoredMessage, decode_record, encode_record
from remoting.messages.properties import (
    DELAY,
    OWN_PROPERTIES,
    STARTDELIVERTIME,
    TRAN_MSG,
    get_property,
    remove_properties,
    with_property,
)
from service.core.lines import Line, LineKind
from timewheel_client.consuming.pulled import BadRecord
from timewheel_client.consuming.subscriptions import NAME

__all__ = [
    "DELAY_ID",
    "DUE",
    "REJECTED_TOPIC",
    "Waiting",
    "control",
    "damaged",
    "delay_id_of",
    "line_of",
    "moved_record",
    "own_record",
    "rejected_again",
    "rejected_of",
    "waiting_of",
]

KIND, OWNER, GENERATION, ABOUT = "TW_KIND", "TW_OWNER", "TW_GENERATION", "TW_ABOUT"
ENTRY, ORIGIN, VERDICT, BY_MS = "TW_ENTRY", "TW_ORIGIN", "TW_VERDICT", "TW_BY_MS"
TOPIC, DELIVER_MS, DELAY_MS = "TW_TOPIC", "TW_DELIVER_MS", "TW_DELAY_MS"
DELAY_ID, DUE, REASON = "TW_DELAY_ID", "TW_DUE_MS", "TW_REASON"
ORIGINAL_TOPIC = "TW_REJECTED_TOPIC"
REJECTED_TOPIC = "TIMEWHEEL_REJECTED"
SERVICE_PROPERTIES = (
    KIND,
    OWNER,
    GENERATION,
    ABOUT,
    ENTRY,
    ORIGIN,
    VERDICT,
    BY_MS,
    DELAY_ID,
    DUE,
    REASON,
    ORIGINAL_TOPIC,
)
# TRAN_MSG: brokers leave it in a message that was committed; sent once more, it would be a half message again.
_STRIPPED = (TOPIC, DELIVER_MS, DELAY_MS, DELAY, TRAN_MSG, *PRECEDENCE[1:], *OWN_PROPERTIES, *SERVICE_PROPERTIES)
_OWN = b"TW_KIND\x01"
_EARLIER = frozenset({b"takeover", b"release", b"verdict"})
_NO_HOST = bytes(8)
_REASON_CHARS = 300
_DAMAGED_BYTES = 1 << 20
_DUE_MAX_MS = 253_402_300_799_999
_SYSTEM_PREFIXES = ("%RETRY%", "%DLQ%", "rmq_sys_")
_SYSTEM_TOPICS = frozenset({"SCHEDULE_TOPIC_XXXX", "TBW102", "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC"})


@dataclass(frozen=True, slots=True)
class Waiting:
    """An entry as the cache keeps it: ``record`` is the finished delivery; ``rejected`` says why it is one, or ""."""

    offset: int
    due_ms: int
    record: bytes
    rejected: str = ""


def control(kind: LineKind, **fields: object) -> str:
    """The property text of a record of the service.

    >>> control(LineKind.TAKEOVER, TW_OWNER="a")
    'TW_KIND\\x01takeover\\x02TW_OWNER\\x01a\\x02'
    """
    return "".join(f"{name}\x01{value}\x02" for name, value in {KIND: kind.value, **fields}.items())


def own_record(kind: LineKind, **fields: object) -> tuple[str, bytes]:
    """Property text and body of a record of the service: the same in both, because a checksum covers the body alone."""
    text = control(kind, **fields)
    return text, text.encode()


def _number(text: str | None) -> int:
    return int(text) if text and text.isascii() and text.isdecimal() and len(text) < 19 else -1


def _signed(text: str | None) -> int:
    return -max(0, _number(text[1:])) if text and text.startswith("-") else max(0, _number(text))


def line_of(message: StoredMessage) -> Line:
    """What a message of the entry topic is, as far as ownership is concerned; the due time of an entry is not read.

    Apache's format has no checksum of properties. So what `own_record` makes is read from its body; an entry has
    ``TW_TOPIC``, and its body is its sender's.
    """
    text = message.properties
    if message.body.startswith(_OWN) and get_property(text, TOPIC) is None:
        text = message.body.decode("utf-8", "replace")
    if KIND not in text:
        return _unmarked(message)
    try:
        kind = LineKind(get_property(text, KIND) or "")
    except ValueError:
        return _unmarked(message)
    return Line(
        message.queue_offset,
        kind,
        owner=get_property(text, OWNER) or "",
        generation=_number(get_property(text, GENERATION)),
        about=_number(get_property(text, ABOUT)),
        entry=_number(get_property(text, ORIGIN if kind is LineKind.ROLL else ENTRY)),
        due_ms=_number(get_property(text, DELIVER_MS)),
        verdict=get_property(text, VERDICT) or "",
        by_ms=_signed(get_property(text, BY_MS)),
    )


def _unmarked(message: StoredMessage) -> Line:
    """An entry; unless it is a record of an earlier program that has lost its properties."""
    lost = message.body in _EARLIER and get_property(message.properties, TOPIC) is None
    return Line(message.queue_offset, damaged=lost)


class _RejectedError(Exception):
    pass


def waiting_of(message: StoredMessage, shard: str) -> Waiting:
    """Make the delivery of an entry, or that of a rejected one to `REJECTED_TOPIC`; never raises."""
    try:
        topic, due_ms = _wanted(message)
        return _finished(message, shard, topic, due_ms, "")
    except _RejectedError as error:
        return rejected_of(message, shard, str(error))


def rejected_of(message: StoredMessage, shard: str, why: str) -> Waiting:
    """The delivery of an entry to the topic of the rejected: body and properties as they were, with the reason."""
    return _finished(message, shard, REJECTED_TOPIC, message.store_ms, why[:_REASON_CHARS])


def damaged(record: BadRecord, topic: str, now_ms: int) -> StoredMessage:
    """A message that stands for a record that cannot be read: its bytes as they are; it is rejected."""
    message = Message(topic, 0, 0, 0, now_ms, _NO_HOST, 0, 0, record.raw[:_DAMAGED_BYTES], "")
    stored = decode_record(encode_record(message, _NO_HOST, now_ms))
    stored.queue_offset = record.queue_offset
    return stored


def is_topic_name(topic: str) -> bool:
    """Whether this can be the name of a topic."""
    return NAME.fullmatch(topic) is not None and len(topic) <= 127


def is_for_senders(topic: str, entry_topic: str) -> bool:
    """Whether messages with a due time may be for a topic: not for one of the system, nor for the entry topic."""
    return not topic.startswith(_SYSTEM_PREFIXES) and topic not in _SYSTEM_TOPICS and topic != entry_topic


def _wanted(message: StoredMessage) -> tuple[str, int]:
    text = message.properties
    topic = get_property(text, TOPIC)
    if not topic:
        raise _RejectedError(f"property {TOPIC} is missing: the topic that the message is for")
    if not is_topic_name(topic):
        raise _RejectedError(f"property {TOPIC}: {topic[:130]!r} is no name of a topic")
    if not is_for_senders(topic, message.topic):
        raise _RejectedError(f"property {TOPIC}: {topic!r} is not for messages of senders")
    return topic, _due(text, message.store_ms)


def _due(text: str, store_ms: int) -> int:
    for name, base in ((DELIVER_MS, 0), (DELAY_MS, store_ms)):
        value = get_property(text, name)
        if value is None:
            continue
        number = _number(value)
        if number < 0 or base + number > _DUE_MAX_MS:
            raise _RejectedError(f"property {name}: {value[:60]!r} is not a number of milliseconds up to the year 9999")
        return base + number
    try:
        due_ms = read_due(text, store_ms)
    except TimerError as error:
        raise _RejectedError(str(error)) from None
    if due_ms is None:
        raise _RejectedError(f"no due time: set {DELIVER_MS}, {DELAY_MS} or __STARTDELIVERTIME")
    return due_ms


def _clean(text: str) -> str:
    """A text as the value of a property: no control characters, no halves of characters, not too long."""
    plain = "".join(max(char, " ") for char in text[:_REASON_CHARS])
    return plain.encode("utf-8", "replace").decode()


def _finished(message: StoredMessage, shard: str, topic: str, due_ms: int, why: str) -> Waiting:
    text = remove_properties(message.properties, _STRIPPED)
    if why:
        original = get_property(message.properties, TOPIC) or ""
        for name, value in ((REASON, _clean(why)), (ORIGINAL_TOPIC, _clean(original[:127]))):
            text = with_property(text, name, value) if value else text
    text = with_property(text, DELAY_ID, f"{shard}/{message.queue_offset}")
    text = with_property(text, DUE, str(due_ms))
    made = Message(
        topic,
        0,
        message.flag,
        message.sys_flag,
        message.born_ms,
        _NO_HOST,
        message.reconsume_times,
        0,
        message.body,
        text,
    )
    try:
        record = encode_record(made, _NO_HOST, message.store_ms)
    except MessageError as error:
        if why:  # not even room for the reason: the bytes go without the sender's properties
            made.properties = f"{DELAY_ID}\x01{shard}/{message.queue_offset}\x02{REASON}\x01{_clean(str(error))}\x02"
            return Waiting(message.queue_offset, due_ms, encode_record(made, _NO_HOST, message.store_ms), why)
        raise _RejectedError(f"no room for the properties of the delay: {error}") from None
    return Waiting(message.queue_offset, due_ms, record, why)


def due_of(text: str) -> int:
    """The due time of a finished delivery, epoch ms.

    >>> due_of("TW_DUE_MS\x015\x02")
    5
    """
    return _number(get_property(text, DUE))


def moved_record(record: bytes, due_ms: int) -> bytes:
    """The finished delivery of an entry that has another due time now. Raises RecordError, MessageError."""
    stored = decode_record(record)
    made = stored.message()
    made.properties = with_property(remove_properties(made.properties, (DUE,)), DUE, str(due_ms))
    return encode_record(made, stored.store_host, stored.store_ms)


def rolled_of(delivery: StoredMessage, offset: int, generation: int, origin: int) -> str:
    """The property text of a roll: the sender's own, the due time as an absolute one, and what it is a roll of.

    ``delivery`` is the finished delivery that the cache has of the entry at ``offset``; ``origin`` is the entry that
    the sender wrote.
    """
    text = remove_properties(delivery.properties, (*SERVICE_PROPERTIES, STARTDELIVERTIME))
    due = get_property(delivery.properties, DUE) or "0"
    for name, value in ((TOPIC, delivery.topic), (DELIVER_MS, due)):
        text = with_property(text, name, value)
    return text + control(LineKind.ROLL, **{GENERATION: generation, ABOUT: offset, ORIGIN: origin})


def rejected_again(delivery: StoredMessage, why: str) -> StoredMessage:
    """Turn a finished delivery that no broker will ever take into one to `REJECTED_TOPIC`."""
    delivery.properties = with_property(delivery.properties, REASON, _clean(why))
    delivery.properties = with_property(delivery.properties, ORIGINAL_TOPIC, delivery.topic)
    delivery.topic = REJECTED_TOPIC
    return delivery


def delay_id_of(text: str, shard: str) -> int:
    """The entry offset that a delivered message names, if it is of this shard; -1 otherwise.

    >>> delay_id_of("TW_DELAY_ID\\x01broker-a/3/17\\x02", "broker-a/3"), delay_id_of("A\\x01b\\x02", "broker-a/3")
    (17, -1)
    """
    if DELAY_ID not in text:
        return -1
    name, _, offset = (get_property(text, DELAY_ID) or "").rpartition("/")
    return _number(offset) if name == shard else -1
