"""A record read back, with every check that its bytes allow."""

from __future__ import annotations

from struct import error as struct_error

from remoting.errors import RecordError
from remoting.hosts import message_id
from remoting.layout import (
    BORN_HOST_AT,
    BORN_HOST_V6,
    HOST_BYTES,
    HOST_BYTES_V6,
    MAGIC_V1,
    MAGIC_V2,
    PROPERTIES_LENGTH_BYTES,
    RECORD,
    STORE_HOST_V6,
    TOPIC_LENGTH_BYTES,
    TOPIC_LENGTH_BYTES_V2,
)
from remoting.layout.table import LONG
from remoting.messages.checksum import crc32
from remoting.messages.proof import is_proof
from remoting.messages.record import MAX_TOPIC_BYTES_V1, Buffer, Message

__all__ = ["StoredMessage", "decode_record"]

_HEAD_FRONT = RECORD.struct("size", "born_ms")
_HEAD_BACK = RECORD.struct("reconsume_times", "body_bytes")
_TAIL_MIN = 3


class StoredMessage:
    """A record read back: the fields of `Message`, and where and when it was stored.

    ``offset`` is the CommitLog position, ``queue_offset`` its number in the queue, ``store_ms`` epoch ms,
    ``store_host`` bytes as of `encode_host`, ``size`` the record's bytes, ``version`` 1 or 2. ``prepared_offset`` is 0
    where a checksum stands in its place (`remoting.messages.proof`).
    """

    __slots__ = (
        "body",
        "born_host",
        "born_ms",
        "flag",
        "offset",
        "prepared_offset",
        "properties",
        "queue_id",
        "queue_offset",
        "reconsume_times",
        "size",
        "store_host",
        "store_ms",
        "sys_flag",
        "topic",
        "version",
    )

    def __init__(
        self,
        *,
        topic: str,
        queue_id: int,
        flag: int,
        sys_flag: int,
        born_ms: int,
        born_host: bytes,
        reconsume_times: int,
        prepared_offset: int,
        body: bytes,
        properties: str,
        queue_offset: int,
        offset: int,
        store_ms: int,
        store_host: bytes,
        size: int,
        version: int,
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
        self.queue_offset = queue_offset
        self.offset = offset
        self.store_ms = store_ms
        self.store_host = store_host
        self.size = size
        self.version = version

    @property
    def message_id(self) -> str:
        """The id that clients compute: store host and position in upper-case hex."""
        return message_id(self.store_host, self.offset)

    def message(self) -> Message:
        """Make a message to be stored again, with everything the sender gave it."""
        return Message(
            self.topic,
            self.queue_id,
            self.flag,
            self.sys_flag,
            self.born_ms,
            self.born_host,
            self.reconsume_times,
            self.prepared_offset,
            self.body,
            self.properties,
        )

    def __repr__(self) -> str:
        return (
            f"StoredMessage({self.topic!r}, {self.queue_id}, queue_offset={self.queue_offset}, "
            f"offset={self.offset}, store_ms={self.store_ms}, body={self.body!r:.40}, {self.properties!r})"
        )


def decode_record(buffer: Buffer, at: int = 0, check_crc: bool = True) -> StoredMessage:
    """Read the record that starts at ``at``.

    Raises RecordError if the bytes are not one whole record whose parts add up to its size; with ``check_crc`` also
    if the CRC of the body is wrong, or that of topic and properties where the record has one.
    """
    try:
        return _decode_record(buffer, at, check_crc)
    except (struct_error, IndexError) as error:
        raise RecordError(f"record at {at} is cut off after {len(buffer) - at} bytes") from error


def _decode_record(buffer: Buffer, at: int, check_crc: bool) -> StoredMessage:
    size, magic, crc, queue_id, flag, queue_offset, offset, sys_flag, born_ms = _HEAD_FRONT.unpack_from(buffer, at)
    if magic not in (MAGIC_V1, MAGIC_V2):
        raise RecordError(f"record at {at} has magic {magic:#010x}")
    end = at + size
    if size < 0 or end > len(buffer):
        raise RecordError(f"record at {at} claims {size} bytes, {len(buffer) - at} are there")
    place = at + BORN_HOST_AT
    born_length = HOST_BYTES_V6 if sys_flag & BORN_HOST_V6 else HOST_BYTES
    born_host = bytes(buffer[place : place + born_length])
    place += born_length
    (store_ms,) = LONG.unpack_from(buffer, place)
    place += LONG.size
    store_length = HOST_BYTES_V6 if sys_flag & STORE_HOST_V6 else HOST_BYTES
    store_host = bytes(buffer[place : place + store_length])
    place += store_length
    reconsume_times, prepared_offset, body_length = _HEAD_BACK.unpack_from(buffer, place)
    place += _HEAD_BACK.size
    if body_length < 0 or place + body_length + _TAIL_MIN > end:
        raise RecordError(f"record at {at}: body of {body_length} bytes in a record of {size}")
    body = bytes(buffer[place : place + body_length])
    place += body_length
    if check_crc and crc32(body) & 0x7FFFFFFF != crc:
        raise RecordError(f"record at {at}: body CRC is {crc32(body) & 0x7FFFFFFF}, the record says {crc}")
    if magic == MAGIC_V1:
        topic_length = buffer[place]
        place += TOPIC_LENGTH_BYTES
    else:
        topic_length = buffer[place] << 8 | buffer[place + 1]
        place += TOPIC_LENGTH_BYTES_V2
    properties_at = place + topic_length + PROPERTIES_LENGTH_BYTES
    if properties_at > end or topic_length > (MAX_TOPIC_BYTES_V1 if magic == MAGIC_V1 else 32767):
        raise RecordError(f"record at {at}: topic of {topic_length} bytes in a record of {size}")
    properties_length = buffer[properties_at - 2] << 8 | buffer[properties_at - 1]
    if properties_at + properties_length != end:
        raise RecordError(f"record at {at}: parts add up to {properties_at + properties_length - at}, size {size}")
    if is_proof(prepared_offset):
        length_at = place - (TOPIC_LENGTH_BYTES if magic == MAGIC_V1 else TOPIC_LENGTH_BYTES_V2)
        if check_crc and crc32(buffer[length_at:end]) != prepared_offset & 0xFFFFFFFF:
            raise RecordError(f"record at {at}: topic and properties do not have the CRC that the record says")
        # To whoever stores the message again, a checksum must not look like the offset of a half message.
        prepared_offset = 0
    return StoredMessage(
        topic=_text(buffer[place : place + topic_length]),
        queue_id=queue_id,
        flag=flag,
        sys_flag=sys_flag,
        born_ms=born_ms,
        born_host=born_host,
        reconsume_times=reconsume_times,
        prepared_offset=prepared_offset,
        body=body,
        properties=_text(buffer[properties_at:end]),
        queue_offset=queue_offset,
        offset=offset,
        store_ms=store_ms,
        store_host=store_host,
        size=size,
        version=1 if magic == MAGIC_V1 else 2,
    )


def _text(part: Buffer) -> str:
    """Decode as Java does: what is no UTF-8 becomes U+FFFD."""
    return str(part, "utf-8", "replace")
