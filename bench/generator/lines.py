"""Redis, beanstalkd and the naive yardstick for the generator: protocols of short lines.

Redis: a timed message is a member of a sorted set, its score the due time; the consumer polls for what is due, as the
usual recipe says. beanstalkd: a job with a delay in whole seconds. Naive: a length, one letter for the topic,
then the body, which begins with the due time.
"""

from __future__ import annotations

import socket
import struct
import time

import numpy as np

from bench.generator.intake import Int64s, Reception, rows_of_bodies
from bench.generator.load import Load
from bench.generator.ring import BODY_MARK, DELAY_MARK, DUE_MARK, Template, find_fields

__all__ = [
    "BeanstalkdIntake",
    "LineReplies",
    "NaiveIntake",
    "RedisIntake",
    "beanstalkd_hello",
    "beanstalkd_templates",
    "naive_templates",
    "redis_templates",
]

_GOOD = (b":", b"INSERTED ", b"+")


class LineReplies:
    """Counts replies of one line each."""

    __slots__ = ("_rest", "opaques", "refusal")

    def __init__(self) -> None:
        self._rest = b""
        self.refusal = ""
        self.opaques: list[int] | None = None

    def feed(self, data: bytes) -> tuple[int, int]:
        """Take what was received; return (lines, of them refusals)."""
        lines = (self._rest + data).split(b"\r\n")
        self._rest = lines.pop()
        refused = [line for line in lines if not line.startswith(_GOOD)]
        if refused and not self.refusal:
            self.refusal = refused[0][:300].decode("latin-1")
        return len(lines), len(refused)


def _body(load: Load) -> bytes:
    return BODY_MARK + b"x" * (load.body_bytes - len(BODY_MARK))


def _resp(*words: bytes) -> bytes:
    """One Redis command: an array of bulk strings."""
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)


def redis_templates(load: Load) -> list[Template]:
    """ZADD for a timed message, RPUSH for an ordinary one."""
    topic = load.topic.encode()
    if load.kind == "timed":
        frame = _resp(b"ZADD", b"delayed:" + topic, DUE_MARK, _body(load))
    else:
        frame = _resp(b"RPUSH", b"list:" + topic, _body(load))
    return [Template(frame, find_fields(frame))]


class RedisIntake:
    """Takes what is due out of the sorted set by a script, every ``poll_ms`` and at once while there is more."""

    MOST = 500
    SCRIPT = (
        b"local m=redis.call('ZRANGEBYSCORE',KEYS[1],'-inf',ARGV[1],'LIMIT',0,%d) "
        b"if #m>0 then redis.call('ZREM',KEYS[1],unpack(m)) end return m" % MOST
    )

    def __init__(self, reception: Reception) -> None:
        self._key = b"delayed:" + reception.topic.encode()
        self._rest = b""
        self._asked = False

    def hello(self, sock: socket.socket) -> None:
        """Forget what an earlier connection was in the middle of."""
        del sock
        self._rest, self._asked = b"", False

    def _ask(self) -> bytes:
        self._asked = True
        now_ms = b"%d" % (time.time_ns() // 1_000_000)
        return _resp(b"EVAL", self.SCRIPT, b"1", self._key, now_ms)

    def tick(self) -> bytes:
        """Poll, unless an answer is still out."""
        return b"" if self._asked else self._ask()

    def feed(self, data: bytes, received_us: int) -> tuple[list[Int64s], bytes]:
        """Take an answer when it is whole."""
        data = self._rest + data if self._rest else data
        self._rest = data
        line_end = data.find(b"\r\n")
        if line_end < 0:
            return [], b""
        if not data.startswith(b"*"):
            self._rest, self._asked = b"", False  # it is still loading: ask again at the next tick
            return [], b""
        count, at, bodies = int(data[1:line_end]), line_end + 2, []
        for _ in range(count):
            line_end = data.find(b"\r\n", at)
            if line_end < 0:
                return [], b""
            bodies.append(line_end + 2)
            at = line_end + 4 + int(data[at + 1 : line_end])
        if at > len(data):
            return [], b""
        self._rest, self._asked = data[at:], False
        rows = [rows_of_bodies(data, bodies, None, received_us)] if bodies else []
        return rows, self._ask() if count == self.MOST else b""


def beanstalkd_templates(load: Load) -> list[Template]:
    """``put`` with a delay."""
    delay = DELAY_MARK if load.kind == "timed" else b"0"
    frame = b"put 0 %b 600 %d\r\n" % (delay, load.body_bytes) + _body(load) + b"\r\n"
    return [Template(frame, find_fields(frame))]


def beanstalkd_hello(sock: socket.socket, load: Load) -> None:
    """Choose the tube. Raises ConnectionError if beanstalkd answers otherwise."""
    sock.sendall(b"use %b\r\n" % load.topic.encode())
    answer = sock.recv(200)
    if not answer.startswith(b"USING"):
        raise ConnectionError(f"beanstalkd: {answer!r}")


class BeanstalkdIntake:
    """Reserves a job, deletes it and reserves the next in one write."""

    def __init__(self, reception: Reception) -> None:
        self._tube = reception.topic.encode()
        self._rest = b""

    def hello(self, sock: socket.socket) -> None:
        """Watch the tube, and wait for its first job."""
        self._rest = b""
        sock.sendall(b"watch %b\r\nignore default\r\nreserve\r\n" % self._tube)

    def feed(self, data: bytes, received_us: int) -> tuple[list[Int64s], bytes]:
        """Take whole jobs."""
        data = self._rest + data if self._rest else data
        at, bodies, answer = 0, [], []
        while (line_end := data.find(b"\r\n", at)) >= 0:
            after = line_end + 2
            if data.startswith(b"RESERVED ", at):
                _, number, size = data[at:line_end].split()
                after += int(size) + 2
                if after > len(data):
                    break
                bodies.append(line_end + 2)
                answer.append(b"delete %b\r\nreserve\r\n" % number)
            at = after
        self._rest = data[at:]
        return [rows_of_bodies(data, bodies, None, received_us)] if bodies else [], b"".join(answer)

    def tick(self) -> bytes:
        """Nothing: it is waiting in ``reserve``."""
        return b""


_LENGTH = struct.Struct(">I")
_STAMPED = struct.Struct(">Iq")


def naive_templates(load: Load) -> list[Template]:
    """A length, the first letter of the topic, and a body; the server finds the due time at the body's start."""
    frame = _LENGTH.pack(load.body_bytes) + load.topic[:1].encode() + _body(load)
    return [Template(frame, find_fields(frame))]


class NaiveIntake:
    """Says that it is the consumer, and takes what is pushed: a length, the time of the delivery in µs, the body."""

    def __init__(self, reception: Reception) -> None:
        self._topic = reception.topic[:1].encode()
        self._rest = b""

    def hello(self, sock: socket.socket) -> None:
        """Say so."""
        self._rest = b""
        sock.sendall(_LENGTH.pack(0) + self._topic)

    def feed(self, data: bytes, received_us: int) -> tuple[list[Int64s], bytes]:
        """Take whole messages."""
        data = self._rest + data if self._rest else data
        at, bodies, stamps = 0, [], []
        while at + 12 <= len(data):
            size, stored_us = _STAMPED.unpack_from(data, at)
            if at + 12 + size > len(data):
                break
            bodies.append(at + 12)
            stamps.append(stored_us)
            at += 12 + size
        self._rest = data[at:]
        if not bodies:
            return [], b""
        return [rows_of_bodies(data, bodies, np.array(stamps, np.int64), received_us)], b""

    def tick(self) -> bytes:
        """Nothing."""
        return b""
