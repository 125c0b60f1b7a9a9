"""The values of a put: what goes in, what came of it, and what a plug-in may say to it.

They are part of the joint between a broker and its plug-ins, and are imported from `store.put.plugin_api`; they stand
apart because they are made for every message, so that a compiled build can have them as native classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

from remoting.layout import FLAG_AT, INT, QUEUE_ID_AT
from remoting.messages.message import (
    Message,
    RecordRows,
    UniformBatch,
    encode_record,
    message_keys,
    record_fields,
    tag_hash,
    tags_code,
)
from remoting.messages.properties import KEYS, TAGS, TW_ID, UNIQ_KEY, get_property

__all__ = [
    "Held",
    "HeldBatch",
    "OneByOne",
    "PutRecord",
    "PutResult",
    "PutRows",
    "PutStatus",
    "Refused",
    "in_queue",
    "put_record",
    "put_record_of",
]


class PutStatus(IntEnum):
    """What became of a put. Names as in Apache RocketMQ's PutMessageStatus; the last three are ours."""

    PUT_OK = 0
    FLUSH_DISK_TIMEOUT = 1
    SERVICE_NOT_AVAILABLE = 2
    CREATE_MAPPED_FILE_FAILED = 3
    MESSAGE_ILLEGAL = 4
    PROPERTIES_SIZE_EXCEEDED = 5
    OS_PAGE_CACHE_BUSY = 6
    UNKNOWN_ERROR = 7
    WHEEL_TIMER_FLOW_CONTROL = 8
    WHEEL_TIMER_MSG_ILLEGAL = 9
    WHEEL_TIMER_NOT_ENABLE = 10
    NOT_DUE = 20
    """The clock, read inside the append lock, stood before ``due_ms``: nothing was appended."""
    TOPIC_NOT_EXIST = 21
    """Delivery only: the topic was deleted while the message was pending."""
    NO_PERMISSION = 22
    """Delivery only: the topic lost its write permission while the message was pending."""


class PutResult:
    """The outcome of one message of a put.

    ``offset`` is the position that the message id is made of: in the CommitLog, or virtual (at or above
    ``2**62``, see `Held`) for a pending message. ``queue_offset`` is the message's number in its queue.
    """

    __slots__ = ("offset", "queue_offset", "remark", "status", "store_ms")

    def __init__(
        self, status: PutStatus, offset: int = 0, queue_offset: int = 0, store_ms: int = 0, remark: str = ""
    ) -> None:
        self.status = status
        self.offset = offset
        self.queue_offset = queue_offset
        self.store_ms = store_ms
        self.remark = remark

    def __repr__(self) -> str:
        return (
            f"PutResult({self.status.name}, offset={self.offset}, queue_offset={self.queue_offset}, "
            f"store_ms={self.store_ms}, remark={self.remark!r})"
        )


class PutRecord:
    """A finished CommitLog record on its way in: all but queue offset, position and store time is final.

    ==============  ================================================================================
    ``topic``       str, the topic inside the record
    ``queue_id``    int, the queue inside the record
    ``record``      bytes, the whole record; queue offset, position and store time are patched on append
    ``tags_code``   int, what goes to the ConsumeQueue: Java hash of the tag, or a level's deliver time
    ``keys``        tuple of str: UNIQ_KEY first, then each word of KEYS (for the key index)
    ``due_ms``      int, epoch ms before which it must not be appended; 0 for what is not delayed
    ``guarded``     bool, a delivery: the topic must still exist and be writable
    ``accepted``    bool, not a new send: a disk that takes no more sends still takes it (as what is guarded)
    ==============  ================================================================================
    """

    __slots__ = ("accepted", "due_ms", "guarded", "keys", "queue_id", "record", "tags_code", "topic")

    def __init__(
        self,
        topic: str,
        queue_id: int,
        record: bytes | bytearray,
        tags_code: int,
        keys: tuple[str, ...],
        due_ms: int = 0,
        guarded: bool = False,
        accepted: bool = False,
    ) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self.record = record
        self.tags_code = tags_code
        self.keys = keys
        self.due_ms = due_ms
        self.guarded = guarded
        self.accepted = accepted


class PutRows:
    """Finished records of one queue that are appended as a whole, one behind the other, or not at all.

    ==============  ================================================================================
    ``topic``       str, the topic inside the records; never the level scheduler's
    ``queue_id``    int, the queue inside the records
    ``rows``        `RecordRows`
    ``tags_codes``  list of int, the Java hash of each record's tag
    ``keys``        list of bytes: what the key index gets, message by message, UNIQ_KEY before KEYS
    ``owners``      list of int: the row that each key belongs to; None: one key each, or none at all
    ==============  ================================================================================
    """

    __slots__ = ("accepted", "guarded", "keys", "owners", "queue_id", "rows", "tags_codes", "topic")

    def __init__(self, batch: UniformBatch, store_host: bytes) -> None:
        """Raises MessageError for what a record has no room for."""
        message = batch.message
        self.topic = message.topic
        self.queue_id = message.queue_id
        self.rows = RecordRows(message, store_host, batch.flags, batch.bodies, batch.texts)
        self.tags_codes = _tags_codes(batch)
        self.keys: list[bytes] = []
        self.owners: list[int] | None = None
        self.guarded = False
        self.accepted = False
        self._find_keys(batch)

    def _find_keys(self, batch: UniformBatch) -> None:
        unique, words = batch.values(UNIQ_KEY), batch.values(KEYS)
        if words is None and (unique is None or all(unique)):
            self.keys = unique or []
            return
        owners: list[int] = []
        for row in range(len(batch)):
            own = [] if unique is None else [unique[row]]
            if words is not None:
                own += words[row].split(b" ")
            for key in own:
                if key:
                    self.keys.append(key)
                    owners.append(row)
        self.owners = owners


def _tags_codes(batch: UniformBatch) -> list[int]:
    tags = batch.values(TAGS)
    if tags is None:
        return [0] * len(batch)
    codes = {tag: tag_hash(tag.decode()) for tag in set(tags)}  # of an empty one: 0, as of none
    return [codes[tag] for tag in tags]


def put_record(message: Message, store_host: bytes) -> PutRecord:
    """Make the record of a message that is appended now."""
    properties = message.properties
    return PutRecord(
        message.topic,
        message.queue_id,
        encode_record(message, store_host),
        tags_code(properties),
        message_keys(properties),
    )


def put_record_of(record: bytes, due_ms: int) -> PutRecord:
    """Make a delivery of a finished record that was read back from a store.

    Its delay id becomes a key as well (with a NUL before it), so that the message is found by its virtual offset.
    """
    topic, queue_id, properties = record_fields(record)
    keys = message_keys(properties)
    if delay_id := get_property(properties, TW_ID):
        keys = (*keys, "\0" + delay_id.partition(".")[0])
    return PutRecord(topic, queue_id, record, tags_code(properties), keys, due_ms, True)


def in_queue(put: PutRecord, queue_id: int) -> PutRecord:
    """The same record for another queue of its topic."""
    record = b"".join((put.record[:QUEUE_ID_AT], INT.pack(queue_id), put.record[FLAG_AT:]))
    return PutRecord(put.topic, queue_id, record, put.tags_code, put.keys, put.due_ms, put.guarded, put.accepted)


class Refused:
    """A plug-in's no: nothing is stored, the sender is told why."""

    __slots__ = ("remark", "status")

    def __init__(self, status: PutStatus, remark: str) -> None:
        self.status = status
        self.remark = remark


class Held:
    """A plug-in's yes: the message is pending under ``offset``, a virtual position at or above ``2**62``.

    A message id made of it is answered by `Plugin.view` before delivery and by the store's index after it.
    """

    __slots__ = ("due_ms", "offset")

    def __init__(self, offset: int, due_ms: int) -> None:
        self.offset = offset
        self.due_ms = due_ms


class HeldBatch:
    """A plug-in's yes to a whole batch: each message is pending under its own of ``offsets``, in their order."""

    __slots__ = ("due_ms", "offsets")

    def __init__(self, offsets: Sequence[int], due_ms: int) -> None:
        self.offsets = offsets
        self.due_ms = due_ms  # of the first that is due


class OneByOne:
    """A plug-in's answer to a batch that it has to look at message by message; it has taken nothing of it."""
