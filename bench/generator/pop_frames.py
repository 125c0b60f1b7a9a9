"""Requests about popping for the generator, written by hand as `bench.generator.rocketmq` writes sends.

A pop's reply names what it has by queue: ``startOffsetInfo`` is ``retry queue start;…``, ``msgOffsetInfo`` is
``retry queue o1,o2;…``. From these, and from ``popTime``, ``invisibleTime`` and ``reviveQid``, a client makes the
handles that it acknowledges by. A message that has come again brings its handle along, as the property POP_CK.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import struct
from collections.abc import Iterator, Mapping

from remoting.layout import BODY_AT, RECORD, STORE_MS_AT

__all__ = [
    "ACK",
    "POP",
    "Portion",
    "ack_frame",
    "batch_ack_frame",
    "frame",
    "pop_frame",
    "portion_of",
    "records",
    "taken_by_queue",
]

POP, ACK = 7, 8
"""The ``opaque`` of each kind of request: a reply's kind is read without reading its header."""
POP_MESSAGE, ACK_MESSAGE, BATCH_ACK_MESSAGE = 200050, 200051, 200151
BROKER = "broker-a"
_LENGTH = struct.Struct(">i")
_TWO = struct.Struct(">qq")
_LONG = struct.Struct(">q")
_PLACE = RECORD.picked("queue_id", "queue_offset")
_HANDLE = b"POP_CK\x01"


@dataclasses.dataclass(slots=True)
class Portion:
    """What one pop got from one queue: the parts of its handles, and the offsets."""

    start: int
    pop_ms: int
    invisible_ms: int
    revive_qid: int
    retry: str
    queue_id: int
    offsets: list[int]


def frame(code: int, opaque: int, fields: Mapping[str, object], body: bytes = b"") -> bytes:
    """Write one request."""
    header = {
        "code": code,
        "language": "JAVA",
        "version": 475,
        "opaque": opaque,
        "flag": 0,
        "serializeTypeCurrentRPC": "JSON",
        "extFields": {name: str(value) for name, value in fields.items()},
    }
    head = json.dumps(header, separators=(",", ":")).encode()
    return _LENGTH.pack(4 + len(head) + len(body)) + _LENGTH.pack(len(head)) + head + body


def pop_frame(topic: str, group: str, now_ms: int, invisible_ms: int, poll_ms: int, count: int = 32) -> bytes:
    """Ask for messages of any queue, from the oldest on, and wait ``poll_ms`` for the first."""
    fields = {
        "consumerGroup": group,
        "topic": topic,
        "queueId": -1,
        "maxMsgNums": count,
        "invisibleTime": invisible_ms,
        "pollTime": poll_ms,
        "bornTime": now_ms,
        "initMode": 0,
        "expType": "TAG",
        "exp": "*",
        "order": "false",
    }
    return frame(POP_MESSAGE, POP, fields)


def ack_frame(topic: str, group: str, taken: Portion, offset: int) -> bytes:
    """Acknowledge one message."""
    parts = (taken.start, taken.pop_ms, taken.invisible_ms, taken.revive_qid, taken.retry, BROKER, taken.queue_id)
    real = topic if taken.retry == "0" else f"%RETRY%{group}{'_' if taken.retry == '1' else '+'}{topic}"
    fields = {
        "consumerGroup": group,
        "topic": real,
        "queueId": taken.queue_id,
        "extraInfo": " ".join(map(str, (*parts, offset))),
        "offset": offset,
    }
    return frame(ACK_MESSAGE, ACK, fields)


def batch_ack_frame(topic: str, group: str, all_taken: list[Portion]) -> bytes:
    """Acknowledge everything of one pop."""
    acks = []
    for taken in all_taken:
        bits = 0
        for offset in taken.offsets:
            bits |= 1 << (offset - taken.start)
        acks.append(
            {
                "c": group,
                "t": topic,
                "r": taken.retry,
                "so": taken.start,
                "q": taken.queue_id,
                "rq": taken.revive_qid,
                "pt": taken.pop_ms,
                "it": taken.invisible_ms,
                "b": base64.b64encode(bits.to_bytes(bits.bit_length() // 8 + 1, "little")).decode(),
            }
        )
    body = json.dumps({"brokerName": BROKER, "acks": acks}, separators=(",", ":")).encode()
    return frame(BATCH_ACK_MESSAGE, ACK, {}, body)


def taken_by_queue(ext: Mapping[str, str]) -> list[Portion]:
    """Read what a pop got from a reply's fields.

    >>> fields = {"popTime": "5", "invisibleTime": "9", "reviveQid": "0"}
    >>> (one,) = taken_by_queue({**fields, "startOffsetInfo": "0 2 7", "msgOffsetInfo": "0 2 7,8"})
    >>> (one.retry, one.queue_id, one.start, one.offsets)
    ('0', 2, 7, [7, 8])
    """
    starts: dict[tuple[str, str], int] = {}
    for part in ext["startOffsetInfo"].split(";"):
        if part:
            retry, queue, start = part.split(" ")
            starts[retry, queue] = int(start)
    times = int(ext["popTime"]), int(ext["invisibleTime"]), int(ext["reviveQid"])
    found = []
    for part in ext["msgOffsetInfo"].split(";"):
        if part:
            retry, queue, offsets = part.split(" ")
            numbers = [int(offset) for offset in offsets.split(",")]
            found.append(Portion(starts[retry, queue], *times, retry, int(queue), numbers))
    return found


def records(body: bytes) -> Iterator[tuple[int, int, bytes, int, int]]:
    """List a reply's messages: number, stored ms, the handle without its offset (empty: the first time), queue, offset.

    A handle is not parsed here: it is the same in all messages that one pop has of one queue (`portion_of`).
    """
    at = 0
    while at < len(body):
        end = at + _LENGTH.unpack_from(body, at)[0]
        _, number = _TWO.unpack_from(body, at + BODY_AT)
        (stored_ms,) = _LONG.unpack_from(body, at + STORE_MS_AT)
        queue_id, offset = _PLACE.unpack_from(body, at)
        begin, lead = body.rfind(_HANDLE, at + BODY_AT + 16, end), b""
        if begin >= 0:
            begin += len(_HANDLE)
            stop = body.find(b"\x02", begin, end)
            lead = body[begin : body.rfind(b" ", begin, stop if stop >= 0 else end)]
        yield number, stored_ms, lead, queue_id, offset
        at = end


def portion_of(lead: bytes, queue_id: int, offsets: list[int]) -> Portion:
    """Say what acknowledges messages that have come again, by what `records` says of them.

    >>> portion_of(b"4 1000 3000 2 1 broker-a 0", 0, [4, 5])
    Portion(start=4, pop_ms=1000, invisible_ms=3000, revive_qid=2, retry='1', queue_id=0, offsets=[4, 5])
    """
    parts = lead.decode().split(" ")
    start, pop_ms, invisible_ms, revive_qid = map(int, parts[:4])
    return Portion(start, pop_ms, invisible_ms, revive_qid, parts[4], queue_id, offsets)
