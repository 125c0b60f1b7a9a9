"""A few RocketMQ requests over a plain socket, independent of the project's own codec.

Tests use it to prepare topics and to look at a broker from outside, ours or Apache's. So it shares no code with the
code under test. One connection, one request at a time.
"""

from __future__ import annotations

import json
import socket
import struct
import time
from typing import Any, Self

__all__ = ["Wire", "WireError"]

SUCCESS = 0
QUERY_NOT_FOUND = 22


class WireError(Exception):
    """An answer other than success; ``code`` is RocketMQ's response code."""

    def __init__(self, code: int, remark: str) -> None:
        super().__init__(f"response code {code}: {remark}")
        self.code = code


class Wire:
    """One connection to a broker or name server at ``host:port``."""

    def __init__(self, address: str, timeout_seconds: float = 10) -> None:
        host, port = address.rsplit(":", 1)
        self.socket = socket.create_connection((host, int(port)), timeout_seconds)
        self._opaque = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self.socket.close()

    def _read(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            part = self.socket.recv(count - len(data))
            if not part:
                raise ConnectionError("the peer closed the connection")
            data += part
        return data

    def send(self, code: int, fields: dict[str, Any], body: bytes = b"", flag: int = 0) -> int:
        """Write one request and return its opaque."""
        self._opaque += 1
        header = json.dumps(
            {
                "code": code,
                "language": "PYTHON",
                "version": 409,
                "opaque": self._opaque,
                "flag": flag,
                "extFields": {name: str(value) for name, value in fields.items()},
            }
        ).encode()
        self.socket.sendall(struct.pack(">ii", 4 + len(header) + len(body), len(header)) + header + body)
        return self._opaque

    def receive(self) -> tuple[dict[str, Any], bytes]:
        """Read one frame: its header and its body."""
        (total,) = struct.unpack(">i", self._read(4))
        frame = self._read(total)
        length = int.from_bytes(frame[1:4], "big")
        return json.loads(frame[4 : 4 + length]), frame[4 + length :]

    def ask(self, code: int, fields: dict[str, Any], body: bytes = b"") -> tuple[dict[str, str], bytes]:
        """Make one request and return (extFields, body) of its answer; WireError unless that is a success."""
        opaque = self.send(code, fields, body)
        while True:
            header, data = self.receive()
            if header["opaque"] == opaque and header["flag"] & 1:
                break
        if header["code"] != SUCCESS:
            raise WireError(header["code"], header.get("remark") or "")
        return header.get("extFields") or {}, data

    def create_topic(self, topic: str, queues: int = 4) -> None:
        """UPDATE_AND_CREATE_TOPIC at a broker."""
        self.ask(
            17,
            {
                "topic": topic,
                "defaultTopic": "TBW102",
                "readQueueNums": queues,
                "writeQueueNums": queues,
                "perm": 6,
                "topicFilterType": "SINGLE_TAG",
                "topicSysFlag": 0,
                "order": "false",
            },
        )

    def wait_route(self, topic: str, seconds: float) -> None:
        """Ask a name server until it knows the topic."""
        until = time.monotonic() + seconds
        while True:
            try:
                self.ask(105, {"topic": topic})
                return
            except WireError as error:
                if time.monotonic() > until:
                    raise AssertionError(f"the name server never learnt of {topic}: {error}") from error
                time.sleep(0.1)

    def offset_of(self, group: str, topic: str, queue_id: int) -> int | None:
        """QUERY_CONSUMER_OFFSET of one queue; None if the group has none."""
        try:
            fields = {"consumerGroup": group, "topic": topic, "queueId": queue_id}
            return int(self.ask(14, fields)[0]["offset"])
        except WireError as error:
            if error.code == QUERY_NOT_FOUND:
                return None
            raise

    def view(self, offset: int, topic: str) -> bytes:
        """VIEW_MESSAGE_BY_ID: one stored record."""
        return self.ask(33, {"offset": offset, "topic": topic})[1]

    def max_offset(self, topic: str, queue_id: int) -> int:
        """GET_MAX_OFFSET of one queue."""
        return int(self.ask(30, {"topic": topic, "queueId": queue_id})[0]["offset"])
