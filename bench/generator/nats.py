"""NATS for the generator: messages published into a JetStream stream, timed ones as message schedules (ADR-51).

A stream of its own for each topic: ordinary and delivered messages have the subject ``out.TOPIC``, a schedule has a
subject of its own, ``s.TOPIC.NUMBER``. Stream acknowledgements come to the inbox of the connection.
"""

from __future__ import annotations

import json
import socket

import numpy as np

from bench.generator.intake import Int64s, Reception, rows_of_bodies
from bench.generator.load import Load
from bench.generator.ring import BODY_MARK, ISO_MARK, NUMBER_MARK, Template, find_fields

__all__ = ["NatsIntake", "StreamReplies", "frames", "hello", "make_stream", "templates"]

_CONNECT = b'CONNECT {"verbose":false,"pedantic":false,"headers":true,"no_responders":true}\r\n'


def templates(load: Load) -> list[Template]:
    """Write one publication."""
    topic, body = load.topic.encode(), BODY_MARK + b"x" * (load.body_bytes - len(BODY_MARK))
    inbox = load.inbox.encode()
    if load.kind == "timed":
        head = b"NATS/1.0\r\nNats-Schedule: @at " + ISO_MARK + b"\r\nNats-Schedule-Target: out." + topic + b"\r\n\r\n"
        start = b"HPUB s.%b.%b %b %d %d\r\n" % (topic, NUMBER_MARK, inbox, len(head), len(head) + len(body))
        frame = start + head + body + b"\r\n"
    else:
        frame = b"PUB out.%b %b %d\r\n" % (topic, inbox, len(body)) + body + b"\r\n"
    return [Template(frame, find_fields(frame))]


def hello(sock: socket.socket, load: Load) -> None:
    """Connect, and subscribe to the inbox."""
    _shake(sock, b"SUB %b 1\r\n" % load.inbox.encode())


def _shake(sock: socket.socket, more: bytes = b"") -> None:
    sock.sendall(_CONNECT + more + b"PING\r\n")
    data = b""
    while b"PONG\r\n" not in data:
        part = sock.recv(65536)
        if not part or b"-ERR" in data:
            raise ConnectionError(f"NATS refused the connection: {data[-200:]!r}")
        data += part


def make_stream(port: int, topic: str) -> None:
    """Create the stream of a topic; ConnectionError with the server's words if it will not."""
    stream = {
        "name": topic,
        "subjects": [f"s.{topic}.>", f"out.{topic}"],
        "storage": "file",
        "retention": "limits",
        "num_replicas": 1,
        "allow_msg_schedules": True,
    }
    with socket.create_connection(("127.0.0.1", port), 10) as sock:
        _shake(sock)
        _ask(sock, f"$JS.API.STREAM.CREATE.{topic}", stream)


def _ask(sock: socket.socket, subject: str, question: dict[str, object]) -> None:
    text = json.dumps(question).encode()
    sock.sendall(b"SUB _INBOX.ask 9\r\nPUB %b _INBOX.ask %d\r\n%b\r\n" % (subject.encode(), len(text), text))
    data = b""
    while not (found := frames(data)[0]):
        part = sock.recv(65536)
        if not part:
            raise ConnectionError("NATS closed the connection")
        data += part
    payload = found[0][1]
    if b'"error"' in payload or b" 503" in payload:
        raise ConnectionError(f"NATS: {payload[:300].decode('latin-1')}")


def frames(data: bytes) -> tuple[list[tuple[list[bytes], bytes, int]], int]:
    """Read whole messages: (words of the first line, headers and payload, where the payload begins), and their end."""
    found = []
    at, end = 0, len(data)
    while (line_end := data.find(b"\r\n", at)) >= 0:
        start = line_end + 2
        if data.startswith((b"MSG ", b"HMSG "), at):
            words = data[at:line_end].split()
            after = start + int(words[-1]) + 2
            if after > end:
                break
            body_at = start + (int(words[-2]) if words[0] == b"HMSG" else 0)
            found.append((words, data[start : after - 2], body_at))
            at = after
        else:
            if data.startswith(b"-ERR", at):
                found.append(([b"-ERR"], data[at:line_end], line_end))
            at = start
    return found, at


class StreamReplies:
    """Counts stream acknowledgements."""

    __slots__ = ("_rest", "opaques", "refusal")

    def __init__(self) -> None:
        self._rest = b""
        self.refusal = ""
        self.opaques: list[int] | None = None

    def feed(self, data: bytes) -> tuple[int, int]:
        """Take what was received; return (acknowledgements, of them refusals)."""
        data = self._rest + data if self._rest else data
        found, at = frames(data)
        self._rest = data[at:]
        refused = [payload for _, payload, _ in found if b'"seq":' not in payload]
        if refused and not self.refusal:
            self.refusal = refused[0][:300].decode("latin-1")
        return len(found), len(refused)


class NatsIntake:
    """An ordered push of ``out.TOPIC`` from the first message on, without acknowledgements."""

    def __init__(self, reception: Reception) -> None:
        self._topic = reception.topic
        self._rest = b""
        self._next = 0

    def hello(self, sock: socket.socket) -> None:
        """Create the consumer; what it pushes comes to this connection."""
        self._rest = b""
        name = f"bench{sock.getsockname()[1]}"
        deliver = f"_DELIVER.{name}"
        _shake(sock, f"SUB {deliver} 2\r\n".encode())
        config: dict[str, object] = {
            "name": name,
            "deliver_subject": deliver,
            "deliver_policy": "by_start_sequence" if self._next else "all",
            "ack_policy": "none",
            "filter_subject": f"out.{self._topic}",
        }
        if self._next:
            config["opt_start_seq"] = self._next
        text = json.dumps({"stream_name": self._topic, "config": config}).encode()
        subject = f"$JS.API.CONSUMER.CREATE.{self._topic}.{name}.out.{self._topic}".encode()
        sock.sendall(b"PUB %b _INBOX.none %d\r\n%b\r\n" % (subject, len(text), text))

    def feed(self, data: bytes, received_us: int) -> tuple[list[Int64s], bytes]:
        """Take pushed messages; the stream's time stamp stands in their reply subject."""
        data = self._rest + data if self._rest else data
        found, at = frames(data)
        self._rest = data[at:]
        pushed = [(ack.split(b"."), body_at) for words, _, body_at in found if (ack := _ack_subject(words))]
        if not pushed:
            return [], b""
        stored_us = np.array([int(tokens[7]) // 1000 for tokens, _ in pushed], np.int64)
        self._next = int(pushed[-1][0][5]) + 1
        return [rows_of_bodies(data, [body_at for _, body_at in pushed], stored_us, received_us)], b""

    def tick(self) -> bytes:
        """Nothing: the server pushes."""
        return b""


def _ack_subject(words: list[bytes]) -> bytes | None:
    """The subject that would acknowledge a pushed message, if this is one."""
    return next((word for word in words if word.startswith(b"$JS.ACK.")), None)
