"""How a measuring consumer receives messages: the interface, and its form for RocketMQ's pulls.

Bodies begin with two big-endian int64: due time in µs and number. Only these and the broker's own time stamp are read,
with NumPy for all messages of an answer at once.
"""

from __future__ import annotations

import dataclasses
import json
import socket
import struct
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from bench.generator.arrivals import NO_STAMP
from remoting.layout import BODY_AT, STORE_MS_AT

__all__ = ["Intake", "Reception", "RocketmqIntake", "rows_of_bodies"]

Int64s = npt.NDArray[np.int64]


@dataclasses.dataclass(slots=True)
class Reception:
    """What to receive: all messages of a topic, until their number is known.

    ``store_path`` gets the rows as a .npy file. ``reconnect`` tries again when the system goes away, for as long as the
    reception lasts; ``pull_count`` is the most messages of one answer, where the protocol has such a thing.
    With several ``brokers``, `PORTS_APART` ports apart, there is a connection to each.
    """

    port: int
    protocol: str
    topic: str
    queues: int
    store_path: str
    pull_count: int = 32
    reconnect: bool = False
    poll_ms: int = 10
    brokers: int = 1

    @classmethod
    def of(cls, values: dict[str, Any]) -> Reception:
        """Read what `dataclasses.asdict` wrote."""
        return cls(**values)


class Intake(Protocol):
    """One protocol's consumer over one connection."""

    def hello(self, sock: socket.socket) -> None:
        """Say what is wanted, on a new (blocking) connection."""

    def feed(self, data: bytes, received_us: int) -> tuple[list[Int64s], bytes]:
        """Take what was received; return rows of deliveries, and what to write in answer."""

    def tick(self) -> bytes:
        """What to write when nothing came for ``poll_ms``."""


def rows_of_bodies(data: bytes, bodies: list[int], stored_us: Int64s | None, received_us: int) -> Int64s:
    """Read the rows of messages whose bodies begin at these offsets of ``data``."""
    rows = np.empty((len(bodies), 4), np.int64)
    at = np.array(bodies, np.int64)
    rows[:, 1] = _int64s(data, at)
    rows[:, 0] = _int64s(data, at + 8)
    rows[:, 2] = NO_STAMP if stored_us is None else stored_us
    rows[:, 3] = received_us
    return rows


def _int64s(data: bytes, at: Int64s) -> Int64s:
    content = np.frombuffer(data, np.uint8)
    values: Int64s = content[at[:, None] + np.arange(8)].view(">i8").astype(np.int64).reshape(-1)
    return values


_LENGTH = struct.Struct(">i")
PULL_MESSAGE = 11
FOUND = 0


class RocketmqIntake:
    """Long-polling pulls from the first offset of every queue, one request out for each queue."""

    def __init__(self, reception: Reception) -> None:
        self._reception = reception
        self._offsets = dict.fromkeys(range(reception.queues), 0)
        self._rest = b""

    def hello(self, sock: socket.socket) -> None:
        """Ask for each queue."""
        self._rest = b""
        sock.sendall(b"".join(self._pull(queue) for queue in self._offsets))

    def _pull(self, queue: int) -> bytes:
        fields = {
            "consumerGroup": "BenchGroup",
            "topic": self._reception.topic,
            "queueId": queue,
            "queueOffset": self._offsets[queue],
            "maxMsgNums": self._reception.pull_count,
            "sysFlag": 6,  # wait for messages, and here is the subscription
            "commitOffset": 0,
            "suspendTimeoutMillis": 15_000,
            "subscription": "*",
            "subVersion": 0,
            "expressionType": "TAG",
        }
        header = {
            "code": PULL_MESSAGE,
            "language": "JAVA",
            "version": 399,
            "opaque": queue,
            "flag": 0,
            "serializeTypeCurrentRPC": "JSON",
            "extFields": {name: str(value) for name, value in fields.items()},
        }
        head = json.dumps(header, separators=(",", ":")).encode()
        return _LENGTH.pack(4 + len(head)) + _LENGTH.pack(len(head)) + head

    def feed(self, data: bytes, received_us: int) -> tuple[list[Int64s], bytes]:
        """Take whole answers, and ask again for each queue that was answered."""
        data = self._rest + data if self._rest else data
        at, end = 0, len(data)
        rows: list[Int64s] = []
        asks: list[bytes] = []
        while at + 8 <= end:
            (length,) = _LENGTH.unpack_from(data, at)
            after = at + 4 + length
            if after > end:
                break
            body_at = at + 8 + int.from_bytes(data[at + 5 : at + 8], "big")
            header = json.loads(data[at + 8 : body_at])
            queue = int(header["opaque"])
            if queue in self._offsets and header["flag"] & 1:
                offset = (header.get("extFields") or {}).get("nextBeginOffset")
                self._offsets[queue] = int(offset) if offset is not None else self._offsets[queue]
                if header["code"] == FOUND:
                    rows.append(self._rows(data[body_at:after], received_us))
                asks.append(self._pull(queue))
            at = after
        self._rest = data[at:]
        return rows, b"".join(asks)

    @staticmethod
    def _rows(body: bytes, received_us: int) -> Int64s:
        at, starts = 0, []
        while at < len(body):
            starts.append(at)
            at += _LENGTH.unpack_from(body, at)[0]
        stored_us = _int64s(body, np.array(starts, np.int64) + STORE_MS_AT) * 1000
        return rows_of_bodies(body, [start + BODY_AT for start in starts], stored_us, received_us)

    def tick(self) -> bytes:
        """Nothing: the broker answers when there is something."""
        return b""
