"""The content of one pull: messages, and records that cannot be read.

A record cannot be read if its body does not match its checksum, or its parts do not add up. If the length in its head
is plausible, because a record begins behind it or the answer ends there, reading continues behind it. Otherwise the
rest of the answer is lost, and `Pulled.cut` says so.
"""

from __future__ import annotations

from dataclasses import dataclass

from remoting.errors import RecordError
from remoting.layout import MAGIC_AT, MAGIC_V1, MAGIC_V2, OFFSET_AT, QUEUE_OFFSET_AT, RECORD_BYTES_MIN, SYS_FLAG_AT
from remoting.layout.table import LONG
from remoting.messages.message import StoredMessage, decode_record
from timewheel_client.values.routes import MessageQueue

__all__ = ["BadRecord", "Pulled", "UndecodableMessage", "read_pulled"]


@dataclass(frozen=True, slots=True)
class UndecodableMessage:
    """A record at a queue offset that cannot be read; see ``on_undecodable`` of `Consumer`.

    ================  ====================================================================================
    ``queue``         `MessageQueue` that it stands in
    ``queue_offset``  int, its number there
    ``log_offset``    int, its position in the broker's log as its head says, -1 if the head cannot be read
    ``reason``        str, what is wrong with it
    ``raw``           bytes, as the broker sent them
    ================  ====================================================================================
    """

    queue: MessageQueue
    queue_offset: int
    log_offset: int
    reason: str
    raw: bytes


@dataclass(frozen=True, slots=True)
class BadRecord:
    """Bytes of an answer that are not a valid record; the offsets come from its head, -1 if that is cut off."""

    raw: bytes
    reason: str
    queue_offset: int
    log_offset: int


@dataclass(slots=True)
class Pulled:
    """The records of an answer in order; ``cut`` if the end of the last one is unknown, so later ones may be lost."""

    records: list[StoredMessage | BadRecord]
    cut: bool = False


def read_pulled(body: bytes) -> Pulled:
    """Read an answer's body; never raises."""
    pulled = Pulled([])
    at = 0
    while at < len(body):
        try:
            stored = decode_record(body, at)
            pulled.records.append(stored)
            at += stored.size
        except RecordError as error:
            size = _believable_size(body, at)
            end = len(body) if size is None else at + size
            pulled.records.append(_bad(body[at:end], str(error)))
            pulled.cut = size is None
            at = end
    return pulled


def _bad(raw: bytes, reason: str) -> BadRecord:
    if len(raw) < SYS_FLAG_AT:  # the field behind both numbers
        return BadRecord(raw, reason, -1, -1)
    queue_offset = int(LONG.unpack_from(raw, QUEUE_OFFSET_AT)[0])
    log_offset = int(LONG.unpack_from(raw, OFFSET_AT)[0])
    return BadRecord(raw, reason, queue_offset, log_offset)


def _believable_size(body: bytes, at: int) -> int | None:
    """The length in a bad record's head, if the bytes behind it confirm it."""
    size = int.from_bytes(body[at : at + 4], "big")
    end = at + size
    if size < RECORD_BYTES_MIN or end > len(body):
        return None
    follows = int.from_bytes(body[end + MAGIC_AT : end + MAGIC_AT + 4], "big")
    return size if end == len(body) or follows in (MAGIC_V1, MAGIC_V2) else None
