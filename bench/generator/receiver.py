"""The measuring consumer as a process: ``python -m bench.generator.receiver``.

Reads a `Reception` as one line of JSON, says ``ready`` when it is connected (or, with ``reconnect``, when it tries),
and receives. Any later line ``{"expect": n, "until_ms": t, "quiet_ms": q}`` says how many messages there are, and when
to give up: at ``t``, but not before nothing has come for ``q``. A little after the last one, so that repeats are seen,
it writes its rows to the file and says how many there are.
"""

from __future__ import annotations

import dataclasses
import json
import os
import select
import socket
import sys
import time

import numpy as np

from bench.generator.arrivals import join
from bench.generator.intake import Intake, Reception
from bench.generator.load import PORTS_APART
from bench.generator.protocols import INTAKES

__all__ = ["GRACE_SECONDS", "Receiver", "ReceptionEnd", "first_line", "main"]

GRACE_SECONDS = 0.3
_RETRY_SECONDS = 0.002


@dataclasses.dataclass(slots=True)
class ReceptionEnd:
    """What the parent said last: how many messages there are, and when to give up."""

    expect: int = 1 << 62
    until_ms: float = float("inf")
    quiet_ms: float = 0.0

    def gives_up(self, now_s: float, came_s: float) -> bool:
        """Whether to end the reception now, if the last message came at ``came_s`` (epoch seconds).

        >>> end = ReceptionEnd(9, until_ms=5_000, quiet_ms=2_000)
        >>> end.gives_up(5, 0), end.gives_up(6, 0), end.gives_up(6, 5), end.gives_up(8, 5)
        (False, True, False, True)
        """
        return now_s * 1000 > max(self.until_ms, came_s * 1000 + self.quiet_ms)


class _Line:
    """One connection, and what reads from it."""

    __slots__ = ("intake", "port", "sock")

    def __init__(self, reception: Reception, port: int) -> None:
        self.intake: Intake = INTAKES[reception.protocol](reception)
        self.port = port
        self.sock: socket.socket | None = None


class Receiver:
    """One reception, over a connection to each broker."""

    def __init__(self, reception: Reception) -> None:
        self._reception = reception
        ports = [reception.port + PORTS_APART * number for number in range(reception.brokers)]
        self._lines = [_Line(reception, port) for port in ports]
        self._parts: list[np.ndarray[tuple[int, ...], np.dtype[np.int64]]] = []
        self._received = 0
        self._orders = ReceptionEnd()
        self._came_at = 0.0
        self._done_at = float("inf")
        self._poll = select.poll()
        self._poll.register(0, select.POLLIN)

    def connect(self) -> bool:
        """Connect where that is missing, and say what is wanted; False if nobody listens at one of the ports."""
        return all(line.sock is not None or self._connect(line) for line in self._lines)

    def _connect(self, line: _Line) -> bool:
        try:
            sock = socket.create_connection(("127.0.0.1", line.port), 5)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            line.intake.hello(sock)
        except OSError:
            return False
        line.sock = sock
        self._poll.register(sock.fileno(), select.POLLIN)
        return True

    def run(self) -> int:
        """Receive until the parent says that this was all; returns the number of deliveries.

        Raises ConnectionError if nobody listens.
        """
        if not self.connect() and not self._reception.reconnect:
            raise ConnectionError(f"nobody listens on port {self._reception.port}")
        print("ready", flush=True)
        while not self._finished():
            self._turn(self._reception.poll_ms / 1000 if self.connect() else _RETRY_SECONDS)
        np.save(self._reception.store_path, join(self._parts).rows)
        return self._received

    def _turn(self, seconds: float) -> None:
        came = [fd for fd, _ in self._poll.poll(seconds * 1000)]
        if 0 in came:
            text = os.read(0, 4096)
            if text:
                self._orders = ReceptionEnd(**json.loads(text.splitlines()[-1]))
            elif self._orders.until_ms == float("inf"):
                raise EOFError("the parent is gone")
            else:
                self._poll.unregister(0)
        for line in self._lines:
            if line.sock is not None:
                self._read(line, line.sock, line.sock.fileno() in came)

    def _read(self, line: _Line, sock: socket.socket, readable: bool) -> None:
        try:
            if readable:
                data = sock.recv(1 << 20)
                received_us = time.time_ns() // 1000
                if not data:
                    raise ConnectionError("the system closed the connection")
                rows, answer = line.intake.feed(data, received_us)
                for part in rows:
                    self._parts.append(part)
                    self._received += len(part)
                    self._came_at = received_us / 1_000_000
            else:
                answer = line.intake.tick()
            if answer:
                sock.sendall(answer)
        except OSError:
            self._poll.unregister(sock.fileno())
            sock.close()
            line.sock = None
            if not self._reception.reconnect:
                raise

    def _finished(self) -> bool:
        now = time.time()
        if self._orders.gives_up(now, self._came_at):
            return True
        if self._received >= self._orders.expect:
            self._done_at = min(self._done_at, now + GRACE_SECONDS)
        return now > self._done_at


def main() -> int:
    """Run one reception for the parent process."""
    receiver = Receiver(Reception.of(json.loads(first_line())))
    print(json.dumps({"received": receiver.run()}), flush=True)
    return 0


def first_line() -> bytes:
    """Read one line and not a byte more: what comes later is read from the bare descriptor. EOFError: there is none."""
    line = b""
    while not line.endswith(b"\n"):
        part = os.read(0, 1)
        if not part:
            raise EOFError("no reception on standard input")
        line += part
    return line


if __name__ == "__main__":
    sys.exit(main())
