"""Turns a message of the entry topic into the delivery that waits in the cache, or into a rejected message.

==================  ================================================================================================
``TW_TOPIC``        the topic that the message is for
due time            the first of these that is present: ``TW_DELIVER_MS`` (epoch ms), ``TW_DELAY_MS`` (ms after the
                    store time), ``__STARTDELIVERTIME``, ``TIMER_DELAY_SEC``, ``TIMER_DELAY_MS``, ``TIMER_DELIVER_MS``
==================  ================================================================================================

No broker interprets ``TW_DELIVER_MS`` and ``TW_DELAY_MS``. An Apache broker of version 5 delays messages with
``TIMER_*`` itself, and a Timewheel broker those with any of the last four properties. Such a message enters the entry
topic when it is due, and is delivered at once. Apache's broker leaves ``TIMER_DELAY_*`` in it and adds
``TIMER_OUT_MS``: by that it is known that this delay is over.

A delivered message has the sender's body, tags, keys and properties. Left out are ``TW_TOPIC``, the properties that
would delay the message again or make it a half message, and those that Apache's broker adds to an entry which it stores
or delays: its topic and queue, stamps, a checksum, places in an inner batch. Added are ``TW_DELAY_ID`` (broker, queue
and offset of the entry) and ``TW_DUE_MS``, and ``TW_ENTRY_TOPIC`` if that is not ``TIMEWHEEL``: another service of the
cluster may have an entry of the same name. All this depends on the message alone, so every owner computes the same
delivery.
"""

from __future__ import annotations

from dataclasses import dataclass

from broker_plugin.rules.properties import PRECEDENCE, TimerError, read_due
from remoting.messages.message import (
    MAX_PROPERTIES_BYTES,
    Message,
    MessageError,
    StoredMessage,
    decode_record,
    encode_record,
)
from remoting.messages.properties import (
    DELAY,
    OWN_PROPERTIES,
    REAL_QID,
    REAL_TOPIC,
    STARTDELIVERTIME,
    TIMER_DEQUEUE_MS,
    TIMER_ENQUEUE_MS,
    TIMER_OUT_MS,
    TIMER_ROLL_TIMES,
    TRAN_MSG,
    get_property,
    remove_properties,
    with_property,
)
from service.core.lines import Line, LineKind
from service.link.parcels import text_bytes_max
from service.link.progress_log import DELAY_ID, progress_topic
from timewheel_client.consuming.pulled import BadRecord
from timewheel_client.consuming.subscriptions import NAME

__all__ = [
    "DELAY_ID",
    "DUE",
    "ENTRY_TOPIC",
    "REASON",
    "REJECTED_TOPIC",
    "USUAL_ENTRY_TOPIC",
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
DUE, REASON = "TW_DUE_MS", "TW_REASON"
ORIGINAL_TOPIC, ENTRY_TOPIC = "TW_REJECTED_TOPIC", "TW_ENTRY_TOPIC"
REJECTED_TOPIC, USUAL_ENTRY_TOPIC = "TIMEWHEEL_REJECTED", "TIMEWHEEL"
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
    ENTRY_TOPIC,
)
_OF_APACHES_TIMER = (REAL_TOPIC, REAL_QID, TIMER_ENQUEUE_MS, TIMER_DEQUEUE_MS, TIMER_OUT_MS, TIMER_ROLL_TIMES)
_OF_APACHES_STORE = (*_OF_APACHES_TIMER, "__CRC32#", "INNER_NUM", "INNER_BASE")
"""Properties that an Apache broker adds to an entry that it stores or delays: untrue in a delivery. A message with
INNER_NUM is refused unless it comes in a batch, as that entry did."""
# TRAN_MSG: brokers leave it in a committed message. Sent again, that would become a half message again.
_STRIPPED = (
    TOPIC,
    DELIVER_MS,
    DELAY_MS,
    DELAY,
    TRAN_MSG,
    *_OF_APACHES_STORE,
    *PRECEDENCE[1:],
    *OWN_PROPERTIES,
    *SERVICE_PROPERTIES,
)
_OWN = b"TW_KIND\x01"
_EARLIER = frozenset({b"takeover", b"release", b"verdict"})
NAME_RULE = "up to 127 letters, digits and %|_-"
_NO_HOST = bytes(8)
_REASON_CHARS = 300
_DAMAGED_BYTES = 1 << 20
_DUE_MAX_MS = 253_402_300_799_999
_OFFSET_MAX = (1 << 63) - 1
_LONG_TEXT = MAX_PROPERTIES_BYTES // 8
"""Characters of properties up to which a roll has room for certain: they have four bytes at most."""
_SYSTEM_PREFIXES = ("%RETRY%", "%DLQ%", "rmq_sys_")
_SYSTEM_TOPICS = frozenset({"SCHEDULE_TOPIC_XXXX", "TBW102", "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC"})


@dataclass(frozen=True, slots=True)
class Waiting:
    """An entry in the cache: ``record`` is the finished delivery; ``rejected`` is why it was rejected, or ""."""

    offset: int
    due_ms: int
    record: bytes
    rejected: str = ""


def control(kind: LineKind, **fields: object) -> str:
    """Build the property text of a record of the service.

    >>> control(LineKind.TAKEOVER, TW_OWNER="a")
    'TW_KIND\\x01takeover\\x02TW_OWNER\\x01a\\x02'
    """
    return "".join(f"{name}\x01{value}\x02" for name, value in {KIND: kind.value, **fields}.items())


def own_record(kind: LineKind, **fields: object) -> tuple[str, bytes]:
    """Property text and body of a record of the service. Both say the same: a checksum covers only the body."""
    text = control(kind, **fields)
    return text, text.encode()


def _number(text: str | None) -> int:
    return int(text) if text and text.isascii() and text.isdecimal() and len(text) < 19 else -1


def _signed(text: str | None) -> int:
    return -max(0, _number(text[1:])) if text and text.startswith("-") else max(0, _number(text))


def line_of(message: StoredMessage) -> Line:
    """Classify a message of the entry topic, as ownership needs it. The due time of an entry is not read.

    Apache's format has no checksum of properties. So a record made by `own_record` is read from its body.
    """
    text = message.properties
    if message.body.startswith(_OWN) and not _is_senders(text):
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
        origin=_number(get_property(text, ORIGIN)) if kind is LineKind.VERDICT else -1,
    )


def _unmarked(message: StoredMessage) -> Line:
    """Classify a record without ``TW_KIND``: an entry, or a record of an older version that lost its properties."""
    return Line(message.queue_offset, damaged=message.body in _EARLIER and not _is_senders(message.properties))


def _is_senders(text: str) -> bool:
    """True if a record's body is a sender's: it is an entry, or another service has delivered it here."""
    return get_property(text, TOPIC) is not None or get_property(text, DELAY_ID) is not None


class _RejectedError(Exception):
    pass


def waiting_of(message: StoredMessage, shard: str) -> Waiting:
    """Make the delivery of an entry, or a delivery to `REJECTED_TOPIC` if it is rejected. Never raises."""
    try:
        topic, due_ms = _wanted(message)
        if not 0 <= due_ms <= _DUE_MAX_MS:
            raise _RejectedError(f"the store time of its record, {message.store_ms}, is damaged")
        return _finished(message, shard, topic, due_ms, "")
    except _RejectedError as error:
        return rejected_of(message, shard, str(error))


def rejected_of(message: StoredMessage, shard: str, why: str) -> Waiting:
    """The delivery of a rejected entry to `REJECTED_TOPIC`: its body, its properties, and the reason."""
    due_ms = message.store_ms if 0 <= message.store_ms <= _DUE_MAX_MS else 0  # no checksum covers it
    return _finished(message, shard, REJECTED_TOPIC, due_ms, why[:_REASON_CHARS])


def damaged(record: BadRecord, topic: str, now_ms: int) -> StoredMessage:
    """A rejected message in place of a record that cannot be read, with the bytes of that record."""
    message = Message(topic, 0, 0, 0, now_ms, _NO_HOST, 0, 0, record.raw[:_DAMAGED_BYTES], "")
    stored = decode_record(encode_record(message, _NO_HOST, now_ms))
    stored.queue_offset = record.queue_offset
    return stored


def is_topic_name(topic: str) -> bool:
    """True if a text is a legal topic name."""
    return NAME.fullmatch(topic) is not None and len(topic) <= 127


def is_for_senders(topic: str, entry_topic: str) -> bool:
    """True if a topic may get messages with a due time: not a system topic, and not the entry topic."""
    return not topic.startswith(_SYSTEM_PREFIXES) and topic not in _SYSTEM_TOPICS and topic != entry_topic


def _wanted(message: StoredMessage) -> tuple[str, int]:
    text = message.properties
    topic = get_property(text, TOPIC)
    if not topic:
        raise _RejectedError(f"property {TOPIC} is missing: set it to the topic that the message is for")
    if not is_topic_name(topic):
        raise _RejectedError(f"property {TOPIC}: {topic[:130]!r} is not a topic name: {NAME_RULE}")
    if not is_for_senders(topic, message.topic):
        raise _RejectedError(f"property {TOPIC}: {topic!r} is the entry topic or a system topic: name one of your own")
    if topic == progress_topic(message.topic):  # what stands there is believed
        raise _RejectedError(f"property {TOPIC}: {topic!r} is the service's own topic: name one of your own")
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
    if get_property(text, TIMER_OUT_MS) and read_due(text, 0) != due_ms:
        return store_ms  # a delay that Apache's timer has waited for
    return due_ms


def _clean(text: str) -> str:
    """Make a text fit for a property value: no control characters, no surrogates, not too long."""
    plain = "".join(max(char, " ") for char in text[:_REASON_CHARS])
    return plain.encode("utf-8", "replace").decode()


def _name_of(message: StoredMessage, shard: str) -> str:
    """The properties that name an entry in its delivery."""
    other = "" if message.topic == USUAL_ENTRY_TOPIC else f"{ENTRY_TOPIC}\x01{message.topic}\x02"
    return f"{DELAY_ID}\x01{shard}/{message.queue_offset}\x02{other}"


def _finished(message: StoredMessage, shard: str, topic: str, due_ms: int, why: str) -> Waiting:
    text = _without_later(remove_properties(message.properties, _STRIPPED), due_ms)
    if why:
        original = get_property(message.properties, TOPIC) or ""
        for name, value in ((REASON, _clean(why)), (ORIGINAL_TOPIC, _clean(original[:127]))):
            text = with_property(text, name, value) if value else text
    text = with_property(text, DUE, str(due_ms)) + _name_of(message, shard)
    flag, sys_flag, again = message.flag, message.sys_flag, message.reconsume_times
    made = Message(topic, 0, flag, sys_flag, message.born_ms, _NO_HOST, again, 0, message.body, text)
    try:
        record = encode_record(made, _NO_HOST, message.store_ms)
        if len(text) > _LONG_TEXT:
            _check_room(record, rolls=not why)
    except MessageError as error:
        if why:  # no room even for the reason: deliver the body without the sender's properties
            made.properties = _without_senders(text)
            return Waiting(message.queue_offset, due_ms, encode_record(made, _NO_HOST, message.store_ms), why)
        raise _RejectedError(f"no room for the properties of the delay: {error}") from None
    return Waiting(message.queue_offset, due_ms, record, why)


def _without_senders(text: str) -> str:
    """The property text of a rejected message, but for what its sender wrote: there is no room for that."""
    own = ((name, get_property(text, name)) for name in (DUE, DELAY_ID, ENTRY_TOPIC, REASON, ORIGINAL_TOPIC))
    return "".join(f"{name}\x01{value}\x02" for name, value in own if value)


def _check_room(record: bytes, rolls: bool) -> None:
    """Raise MessageError if a delivery has no room for every due time to which it may be moved.

    With ``rolls`` also if a roll of it then has no room for its properties: the cluster would delete the entry in the
    end. The offsets have as many digits here as they may have.
    """
    delivery = decode_record(moved_record(record, _DUE_MAX_MS))
    texts, most = [delivery.properties], text_bytes_max(delivery.body)
    if rolls:
        texts.append(rolled_of(delivery, _OFFSET_MAX, _OFFSET_MAX, _OFFSET_MAX))
    size = max(len(text.encode()) for text in texts)
    if size > most:
        raise MessageError(
            f"stored again, the entry would have {size} bytes of properties, at most {most} are possible"
            f"{'' if delivery.body else ' without a body'}"
        )


def due_of(text: str) -> int:
    """The due time of a finished delivery, epoch ms.

    >>> due_of("TW_DUE_MS\x015\x02")
    5
    """
    return _number(get_property(text, DUE))


def moved_record(record: bytes, due_ms: int) -> bytes:
    """The finished delivery of an entry with a changed due time. Raises RecordError, MessageError."""
    stored = decode_record(record)
    made = stored.message()
    text = _without_later(remove_properties(made.properties, (DUE,)), due_ms)
    made.properties = with_property(text, DUE, str(due_ms))
    return encode_record(made, stored.store_host, stored.store_ms)


def _without_later(text: str, due_ms: int) -> str:
    """A property text without a ``__STARTDELIVERTIME`` by which a broker of ours would delay or refuse the delivery.

    >>> _without_later("__STARTDELIVERTIME\\x017\\x02", 7) != "", _without_later("__STARTDELIVERTIME\\x017\\x02", 6)
    (True, '')
    """
    if STARTDELIVERTIME not in text or 0 <= _number(get_property(text, STARTDELIVERTIME)) <= due_ms:
        return text
    return remove_properties(text, (STARTDELIVERTIME,))  # an empty one, too: such a broker refuses it


def rolled_of(delivery: StoredMessage, offset: int, generation: int, origin: int) -> str:
    """The property text of a roll: the sender's properties, the absolute due time, and the entry that it replaces.

    ``delivery`` is the finished delivery of the entry at ``offset``, from the cache. ``origin`` is the offset of the
    entry that the sender wrote.
    """
    text = remove_properties(delivery.properties, (*SERVICE_PROPERTIES, STARTDELIVERTIME))
    due = get_property(delivery.properties, DUE) or "0"
    for name, value in ((TOPIC, delivery.topic), (DELIVER_MS, due)):
        text = with_property(text, name, value)
    return text + control(LineKind.ROLL, **{GENERATION: generation, ABOUT: offset, ORIGIN: origin})


def rejected_again(delivery: StoredMessage, why: str) -> StoredMessage:
    """Turn a finished delivery that every broker will refuse into one to `REJECTED_TOPIC`, which none refuses."""
    text = with_property(delivery.properties.replace("\0", " "), REASON, _clean(why))  # brokers of ours take no NUL
    text = with_property(text, ORIGINAL_TOPIC, delivery.topic)
    is_long = len(text) > _LONG_TEXT and len(text.encode("utf-8", "replace")) > text_bytes_max(delivery.body)
    delivery.properties = _without_senders(text) if is_long else text
    delivery.topic = REJECTED_TOPIC
    return delivery


def delay_id_of(text: str, shard: str, entry_topic: str = "") -> int:
    """The entry offset in a delivered message, if its entry is of this shard; -1 otherwise.

    ``entry_topic``: the shard is of this entry topic; empty: of any, because the message is one's own.

    >>> delay_id_of("TW_DELAY_ID\\x01broker-a/3/17\\x02", "broker-a/3"), delay_id_of("A\\x01b\\x02", "broker-a/3")
    (17, -1)
    >>> [delay_id_of("TW_DELAY_ID\\x01b/3/17\\x02", "b/3", topic) for topic in ("TIMEWHEEL", "OTHER")]
    [17, -1]
    """
    if DELAY_ID not in text:
        return -1
    if entry_topic and (get_property(text, ENTRY_TOPIC) or USUAL_ENTRY_TOPIC) != entry_topic:
        return -1
    name, _, offset = (get_property(text, DELAY_ID) or "").rpartition("/")
    return _number(offset) if name == shard else -1
