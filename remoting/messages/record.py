"""The message as bytes: the CommitLog record that disk and wire share.

The fields up to the body are those of `remoting.layout`; behind the body stand the topic (its length in one byte, in
V2 in two) and the properties (their length in two bytes).

`encode_record` makes all of it except three numbers that only the append knows: queue offset and position (one ``>qq``
at `QUEUE_OFFSET_AT`) and the store time (at `store_ms_at`). So a record can be finished, checked and journalled long
before it is appended, and the append writes three numbers.

Only the committed message of a transaction has a prepared offset. In all other records this field holds the checksum of
topic and properties instead of 0 (`remoting.messages.proof`).

V2 differs in the width of the topic length only, and is used only where V1 cannot hold the topic, because
RocketMQ 4.9 and 5.0 take it for corruption.
"""

from __future__ import annotations

from functools import lru_cache
from struct import error as struct_error
from typing import Final

from remoting.errors import MessageError, RecordError
from remoting.hosts import NO_HOST
from remoting.layout import (
    BODY_AT,
    BODY_AT_MAX,
    BODY_BYTES_BACK,
    BORN_HOST_V6,
    HOST_BYTES,
    HOST_BYTES_V6,
    HOST_MORE_V6,
    HOSTS_V6,
    MAGIC_AT,
    MAGIC_V1,
    MAGIC_V2,
    PROPERTIES_LENGTH_BYTES,
    RECORD,
    STORE_HOST_V6,
    STORE_MS_AT,
    STORE_MS_AT_V6,
    SYS_FLAG_LOW_AT,
    TOPIC_LENGTH_BYTES,
    TOPIC_LENGTH_BYTES_V2,
)
from remoting.layout.table import INT, LONG, SHORT
from remoting.messages.checksum import crc32
from remoting.messages.proof import OFFSET_0, PLAIN, VOUCHER

__all__ = [
    "MAX_PROPERTIES_BYTES",
    "MAX_TOPIC_BYTES",
    "MAX_TOPIC_BYTES_V1",
    "Buffer",
    "Message",
    "body_bounds",
    "encode_record",
    "record_fields",
    "record_size",
    "record_topic",
    "store_ms_at",
    "topic_part",
]

Buffer = bytes | bytearray | memoryview

MAX_TOPIC_BYTES_V1: Final = 127
MAX_TOPIC_BYTES: Final = 255
MAX_PROPERTIES_BYTES: Final = 32767

_pack_head: Final = RECORD.struct().pack  # where both hosts are IPv4
_pack_short: Final = SHORT.pack
_crc32: Final = crc32
"""Once more, as `Final`: compiled, a name that never changes is not looked up."""
_NO_HOSTS_V6: Final = ~HOSTS_V6
_HEAD_FRONT = RECORD.struct("size", "born_ms")
_HEAD_BACK = RECORD.struct("reconsume_times", "body_bytes")
_MAGIC_LOW_AT: Final = MAGIC_AT + 3
_MAGIC_LOW_V2: Final = MAGIC_V2 & 0xFF
_NAMES_AT_V4 = RECORD.picked("queue_id", "sys_flag", "body_bytes")


class Message:
    """A message on its way to the store.

    ===================  ===========================================================
    ``topic``            str
    ``queue_id``         int
    ``flag``             int32, the user's
    ``sys_flag``         int32, MessageSysFlag; the IPv6 bits are set by `encode_record`
    ``born_ms``          int, epoch ms by the sender's clock
    ``born_host``        bytes as of `encode_host`: 8 or 20
    ``reconsume_times``  int
    ``prepared_offset``  int, CommitLog offset of a transaction's half message; see `remoting.messages.proof`
    ``body``             bytes, as sent (maybe compressed)
    ``properties``       str, see `remoting.messages.properties`
    ``due_ms``           int, epoch ms before which it must not be stored; 0: any time
    ===================  ===========================================================
    """

    __slots__ = (
        "body",
        "born_host",
        "born_ms",
        "due_ms",
        "flag",
        "prepared_offset",
        "properties",
        "queue_id",
        "reconsume_times",
        "sys_flag",
        "topic",
    )

    def __init__(
        self,
        topic: str,
        queue_id: int = 0,
        flag: int = 0,
        sys_flag: int = 0,
        born_ms: int = 0,
        born_host: bytes = NO_HOST,
        reconsume_times: int = 0,
        prepared_offset: int = 0,
        body: bytes = b"",
        properties: str = "",
    ) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self.flag = flag
        self.sys_flag = sys_flag
        self.born_ms = born_ms
        self.born_host = born_host
        self.reconsume_times = reconsume_times
        self.prepared_offset = prepared_offset
        self.body = body
        self.properties = properties
        self.due_ms = 0

    def __repr__(self) -> str:
        return f"Message({self.topic!r}, {self.queue_id}, body={self.body!r:.40}, {self.properties!r})"


@lru_cache(maxsize=4096)
def topic_part(topic: str) -> tuple[int, bytes]:
    """Encode length and name; with the magic that this length needs.

    Raises MessageError if it is empty, too long or not Unicode.
    """
    try:
        name = topic.encode()
    except UnicodeEncodeError as error:
        raise MessageError(f"topic is not Unicode text: {topic!r:.100}") from error
    if not name:
        raise MessageError("topic is empty")
    if len(name) > MAX_TOPIC_BYTES:
        raise MessageError(f"topic has {len(name)} bytes, at most {MAX_TOPIC_BYTES} are possible: {topic:.100}…")
    if len(name) > MAX_TOPIC_BYTES_V1:
        return MAGIC_V2, SHORT.pack(len(name)) + name
    return MAGIC_V1, bytes((len(name),)) + name


def _begin_of(topic: str, properties_bytes: int) -> tuple[int, bytes, int]:
    """The bytes from the body to the properties; the magic before them, and their checksum behind them.

    Few topics and few lengths of properties are usual, so nearly every message finds its own here.
    """
    magic, name = topic_part(topic)
    begin = name + _pack_short(properties_bytes)
    return magic, begin, _crc32(begin)


_text_begin: Final = lru_cache(maxsize=4096)(_begin_of)


# ------------------------------------------------------------------------------------------------ records


def encode_record(message: Message, store_host: bytes, store_ms: int = 0) -> bytes:
    """Make the finished CommitLog record, with queue offset and position 0; ``store_ms`` (epoch ms) usually is 0 too.

    V1, or V2 for a topic of more than 127 bytes. Raises MessageError if topic, properties or a number do not fit the
    record's fields.
    """
    try:
        # Nothing is checked beforehand: what does not fit raises in `pack`, and `_why_not` then finds the field.
        properties = message.properties.encode()
        magic, begin, begin_sum = _text_begin(message.topic, len(properties))
        body = message.body
        born_host = message.born_host
        size = BODY_AT + len(body) + len(begin) + len(properties)
        prepared = message.prepared_offset
        if prepared == 0:
            prepared = PLAIN + _crc32(properties, begin_sum)
        elif prepared == VOUCHER:
            prepared += _crc32(properties, begin_sum)
        elif prepared == OFFSET_0:
            prepared = 0
        if len(born_host) == len(store_host) == HOST_BYTES:
            head = _pack_head(
                size,
                magic,
                _crc32(body) & 0x7FFFFFFF,
                message.queue_id,
                message.flag,
                0,
                0,
                message.sys_flag & _NO_HOSTS_V6,
                message.born_ms,
                born_host,
                store_ms,
                store_host,
                message.reconsume_times,
                prepared,
                len(body),
            )
        else:
            head = _head(message, magic, size, store_host, prepared, store_ms)
        return b"".join((head, body, begin, properties))
    except (struct_error, UnicodeEncodeError) as error:
        raise _why_not(message, store_host) from error


def _head(message: Message, magic: int, size: int, store_host: bytes, prepared: int, store_ms: int) -> bytes:
    """Pack the front of a record with at least one IPv6 host."""
    sys_flag = message.sys_flag & _NO_HOSTS_V6
    for host, bit in ((message.born_host, BORN_HOST_V6), (store_host, STORE_HOST_V6)):
        if len(host) == HOST_BYTES_V6:
            sys_flag |= bit
            size += HOST_MORE_V6
        elif len(host) != HOST_BYTES:
            raise MessageError(f"host must have 8 or 20 bytes: {host!r:.100}")
    front = _HEAD_FRONT.pack(
        size,
        magic,
        _crc32(message.body) & 0x7FFFFFFF,
        message.queue_id,
        message.flag,
        0,
        0,
        sys_flag,
        message.born_ms,
    )
    back = _HEAD_BACK.pack(message.reconsume_times, prepared, len(message.body))
    return b"".join((front, message.born_host, LONG.pack(store_ms), store_host, back))


def _why_not(message: Message, store_host: bytes) -> MessageError:
    """Find the field that does not fit a record."""
    try:
        properties_bytes = len(message.properties.encode())
    except UnicodeEncodeError:
        return MessageError(f"properties are not Unicode text: {message.properties!r:.100}")
    if properties_bytes > MAX_PROPERTIES_BYTES:
        return MessageError(f"properties have {properties_bytes} bytes, at most {MAX_PROPERTIES_BYTES} are possible")
    return MessageError(
        f"a number of the message is out of range: queue id {message.queue_id}, flag {message.flag}, "
        f"sysflag {message.sys_flag}, born {message.born_ms}, reconsumed {message.reconsume_times}, "
        f"prepared offset {message.prepared_offset}, body of {len(message.body)} bytes, store host {store_host!r}"
    )


def store_ms_at(record: Buffer, at: int = 0) -> int:
    """Position of the store time in the record at ``at``. It depends on whether the born host is IPv6."""
    return STORE_MS_AT_V6 if record[at + SYS_FLAG_LOW_AT] & BORN_HOST_V6 else STORE_MS_AT


def record_size(buffer: Buffer, at: int = 0) -> int:
    """Read a record's size in bytes; raises RecordError when there are no four bytes."""
    try:
        size: int = INT.unpack_from(buffer, at)[0]
    except struct_error as error:
        raise RecordError(f"no record at {at}: only {len(buffer)} bytes") from error
    return size


def body_bounds(head: Buffer) -> tuple[int, int]:
    """Begin and end of the body in a record, from the record's first `BODY_AT_MAX` bytes. Raises RecordError."""
    try:
        begin = BODY_AT + HOST_MORE_V6 * (head[SYS_FLAG_LOW_AT] & HOSTS_V6).bit_count()
        return begin, begin + int(INT.unpack_from(head, begin - BODY_BYTES_BACK)[0])
    except (struct_error, IndexError) as error:
        raise RecordError(f"not the head of a record: {len(head)} bytes") from error


def record_topic(record: Buffer) -> str:
    """Read the topic of a finished record alone; as `record_fields`. Raises RecordError if it is not a whole record."""
    try:
        _, begin, end = _topic_place(record)
        return str(record[begin:end], "utf-8", "replace")
    except (struct_error, IndexError) as error:
        raise RecordError(f"not a whole record: {len(record)} bytes") from error


def _topic_place(record: Buffer) -> tuple[int, int, int]:
    """Find queue id, and where the topic's name begins and ends; IndexError or struct.error for what is cut off."""
    queue_id, sys_flag, body_length = _NAMES_AT_V4.unpack_from(record)
    at = BODY_AT
    if sys_flag & HOSTS_V6:
        at = BODY_AT_MAX if sys_flag & HOSTS_V6 == HOSTS_V6 else BODY_AT + HOST_MORE_V6
        (body_length,) = INT.unpack_from(record, at - BODY_BYTES_BACK)
    at += body_length
    if record[_MAGIC_LOW_AT] == _MAGIC_LOW_V2:
        at += TOPIC_LENGTH_BYTES_V2
        return queue_id, at, at + (record[at - 2] << 8 | record[at - 1])
    at += TOPIC_LENGTH_BYTES
    return queue_id, at, at + record[at - 1]


def record_fields(record: Buffer) -> tuple[str, int, str]:
    """Read (topic, queue id, properties) of a finished record, without its checks and without its body.

    Raises RecordError if it is not a whole record.
    """
    try:
        queue_id, begin, end = _topic_place(record)
        topic = str(record[begin:end], "utf-8", "replace")
        at = end + PROPERTIES_LENGTH_BYTES
        properties = str(record[at : at + (record[end] << 8 | record[end + 1])], "utf-8", "replace")
    except (struct_error, IndexError) as error:
        raise RecordError(f"not a whole record: {len(record)} bytes") from error
    return topic, queue_id, properties
