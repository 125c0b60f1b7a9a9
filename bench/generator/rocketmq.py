"""RocketMQ's protocol for the generator: send frames as stock clients write them, and replies counted by length.

The frames are written by hand (the header is JSON with the short names of SEND_MESSAGE_V2), so that nothing of
the project's own codec stands between the generator and what it measures.
"""

from __future__ import annotations

import json
import re
import struct

from bench.generator.load import Load
from bench.generator.ring import BODY_MARK, DUE_MARK, NUMBER_MARK, OPAQUE_MARK, Template, find_fields

__all__ = ["ReplyFrames", "templates"]

SEND_MESSAGE_V2 = 310
SEND_BATCH_MESSAGE = 320
_LENGTH = struct.Struct(">i")
_BATCH_HEAD = struct.Struct(">iiiii")
_SUCCESS = b'"code":0'
_OPAQUE = re.compile(rb'"opaque":(\d+)')


def templates(load: Load) -> list[Template]:
    """Write one frame for each queue; all of the same shape."""
    body = BODY_MARK + b"x" * (load.body_bytes - len(BODY_MARK))
    properties = b"UNIQ_KEY\x017F0000010BE4ACED" + NUMBER_MARK + b"\x02WAIT\x01true\x02"
    if load.kind == "timed":
        properties += b"TIMER_DELIVER_MS\x01" + DUE_MARK + b"\x02"
    elif load.kind == "level":
        properties += b"DELAY\x01%d\x02" % load.level
    return [_template(load, queue, body, properties) for queue in range(load.queues)]


def _template(load: Load, queue: int, body: bytes, properties: bytes) -> Template:
    if load.batch == 1:
        frame = _frame(load, queue, body, properties)
        return Template(frame, find_fields(frame))
    element = _BATCH_HEAD.pack(22 + len(body) + len(properties), 0, 0, 0, len(body)) + body
    element += struct.pack(">h", len(properties)) + properties
    frame = _frame(load, queue, element * load.batch, b"")
    start = len(frame) - load.batch * len(element)
    fields = [(OPAQUE_MARK, frame.index(OPAQUE_MARK))]
    fields += [(mark, start + at) for mark, at in find_fields(element)]
    return Template(frame, fields, load.batch, len(element))


def _frame(load: Load, queue: int, body: bytes, properties: bytes) -> bytes:
    header = {
        "code": SEND_MESSAGE_V2 if load.batch == 1 else SEND_BATCH_MESSAGE,
        "extFields": {
            "a": "bench",
            "b": load.topic,
            "c": "TBW102",
            "d": str(load.queues),
            "e": f"{queue:0{len(str(load.queues - 1))}d}",  # of one length: a ring's templates have equal places
            "f": "0",
            "g": "1700000000000",
            "h": "0",
            "i": properties.decode(),
            "j": "0",
            "k": "false",
            "m": "true" if load.batch > 1 else "false",
        },
        "flag": 0,
        "language": "JAVA",
        "opaque": int(OPAQUE_MARK),
        "serializeTypeCurrentRPC": "JSON",
        "version": 399,
    }
    head = json.dumps(header, separators=(",", ":")).encode()
    return _LENGTH.pack(4 + len(head) + len(body)) + _LENGTH.pack(len(head)) + head + body


class ReplyFrames:
    """Counts the replies of one connection as they come in, whole frames or pieces."""

    __slots__ = ("_rest", "opaques", "refusal")

    def __init__(self) -> None:
        self._rest = b""
        self.refusal = ""
        self.opaques: list[int] | None = None  # a list: gets the opaque of each request that succeeded

    def feed(self, data: bytes) -> tuple[int, int]:
        """Take what was received; return (frames answered, of them refused)."""
        if self._rest:
            data = self._rest + data
        at, end, answered = 0, len(data), 0
        unpack = _LENGTH.unpack_from
        while at + 4 <= end:
            after = at + 4 + unpack(data, at)[0]
            if after > end:
                break
            answered += 1
            if self.opaques is not None and data.find(_SUCCESS, at, after) >= 0:
                self.opaques.append(int(_OPAQUE.findall(data, at, after)[0]))
            at = after
        self._rest = data[at:]
        refused = answered - data.count(_SUCCESS, 0, at)
        if refused and not self.refusal:
            self.refusal = data[:400].decode("latin-1")
        return answered, refused
