"""Keeps connections busy: a closed loop with a number of requests in flight on each, or an open loop at a rate.

The cost of a message must be low, because the generator shares the machine with the measured system: one ``send``
carries all that a connection may have out, one ``recv`` takes all replies that are there, and of a reply only the
length is read. `python -m bench.generator` runs one `Sender` as a process: a `Load` as JSON in, a `LoadResult` out.
"""

from __future__ import annotations

import dataclasses
import os
import select
import socket
import time
from collections import deque
from pathlib import Path

import numpy as np

from bench.figures.stats import weighted_percentile
from bench.generator.load import Load, LoadResult
from bench.generator.protocols import PROTOCOLS, ReplyCounter
from bench.generator.ring import Ring, opaque_of

__all__ = ["Sender"]

_RECEIVE_BYTES = 1 << 18
_RING_BYTES = 1 << 20
_DRAIN_SECONDS = 30.0
_TICK_SECONDS = 0.0005
_NUMBERS_EACH = 10_000_000  # messages of a connection that has frames of its own


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _ring(load: Load) -> Ring:
    made = PROTOCOLS[load.protocol].templates(load)
    rows = max(2, min(4096, _RING_BYTES // len(made[0].data)))
    due = (load.due_from_ms, load.due_to_ms, load.due_at_ms)
    return Ring(made, rows, _now_ms, *due, load.first_number, load.seed)


class _Connection:
    """One connection: its socket, what is out on it, and what the kernel would not take yet."""

    __slots__ = ("fd", "free", "numbers", "out", "replies", "rest", "ring", "sock")

    def __init__(self, load: Load, ring: Ring) -> None:
        speech = PROTOCOLS[load.protocol]
        self.sock = socket.create_connection(("127.0.0.1", load.port))
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 22)
        speech.hello(self.sock, load)
        self.sock.setblocking(False)
        self.ring = ring
        self.fd = self.sock.fileno()
        self.replies: ReplyCounter = speech.replies()
        self.rest: memoryview | None = None
        self.free = load.in_flight
        if load.accepted_path and not speech.in_order:
            self.replies.opaques = []
        self.numbers: deque[int] = deque()  # of the messages that are out, where acknowledged ones are wanted
        self.out: deque[list[float]] = deque()  # [sent at, requests not answered yet] of each send, oldest first


class Sender:
    """One run of a `Load` over connections of its own."""

    def __init__(self, load: Load) -> None:
        self.load = load
        own_frames = PROTOCOLS[load.protocol].own_frames
        shared = None if own_frames else _ring(load)
        self._poll = select.epoll()
        self._connections = {}
        for at in range(load.connections):
            first = load.first_number + at * _NUMBERS_EACH
            inbox = f"_INBOX.{os.getpid()}.{at}"
            own = dataclasses.replace(load, inbox=inbox, first_number=first) if own_frames else load
            if load.brokers > 1:
                own = dataclasses.replace(own, port=load.port_of(at))
            connection = _Connection(own, shared or _ring(own))
            self._connections[connection.fd] = connection
            self._poll.register(connection.fd, select.EPOLLIN)
        self._sent = self._answered = self._refused = 0
        self._waits: list[tuple[float, float]] = []
        self._idle = 0.0
        self._first_accepted = 0.0
        self._behind = 0.0
        self._broken = False
        self._by_opaque: dict[int, int] = {}
        self._accepted: list[int] = []

    # ------------------------------------------------------------------------------------------ one step

    def _write(self, connection: _Connection, count: int, fresh: bool = False) -> int:
        """Send at most so many requests on a connection, in one call; return how many."""
        ring = connection.ring
        frames = ring.fresh(count) if fresh else ring.take(count)
        count = len(frames) // ring.size
        connection.out.append([time.perf_counter(), count])
        connection.free -= count
        self._sent += count
        if self.load.accepted_path:
            self._remember(connection, count)
        try:
            written = connection.sock.send(frames)
        except BlockingIOError:
            written = 0
        if written < len(frames):
            # A copy: the ring writes new values into these rows before the kernel may have taken them.
            connection.rest = memoryview(bytes(frames[written:]))
            self._poll.modify(connection.fd, select.EPOLLIN | select.EPOLLOUT)
        return count

    def _remember(self, connection: _Connection, count: int) -> None:
        """Keep the numbers of what was just sent (fresh frames, one message each)."""
        numbers = range(connection.ring.number - count, connection.ring.number)
        if connection.replies.opaques is None:
            connection.numbers.extend(numbers)
        else:
            opaques = opaque_of(np.arange(numbers.start, numbers.stop)).tolist()
            self._by_opaque.update(zip(opaques, numbers, strict=True))

    def _acknowledge(self, connection: _Connection, answered: int) -> None:
        """Note the numbers of what was just acknowledged."""
        opaques = connection.replies.opaques
        if opaques is None:
            self._accepted += [connection.numbers.popleft() for _ in range(answered)]
        else:
            self._accepted += [self._by_opaque[opaque] for opaque in opaques]
            opaques.clear()

    def _go_on(self, connection: _Connection) -> None:
        """Hand over more of what the kernel would not take."""
        rest = connection.rest
        if rest is None:
            return
        try:
            rest = rest[connection.sock.send(rest) :]
        except BlockingIOError:
            return
        connection.rest = rest if len(rest) else None
        if connection.rest is None:
            self._poll.modify(connection.fd, select.EPOLLIN)

    def _read(self, connection: _Connection, now: float) -> None:
        data = connection.sock.recv(_RECEIVE_BYTES)
        if not data:
            raise ConnectionError("the broker closed the connection")
        answered, refused = connection.replies.feed(data)
        if not self._first_accepted and answered > refused:
            self._first_accepted = time.time() * 1000
        self._answered += answered
        self._refused += refused
        connection.free += answered
        if self.load.accepted_path:
            self._acknowledge(connection, answered)
        out, waits = connection.out, self._waits
        while answered:
            first = out[0]
            if first[1] <= answered:
                answered -= int(first[1])
                waits.append((now - first[0], first[1]))
                out.popleft()
            else:
                first[1] -= answered
                waits.append((now - first[0], answered))
                answered = 0

    def _wait(self, seconds: float) -> list[_Connection]:
        """Wait for replies and read them; return the connections that may send again."""
        before = time.perf_counter()
        events = self._poll.poll(seconds)
        now = time.perf_counter()
        self._idle += now - before
        ready = []
        for fd, event in events:
            connection = self._connections[fd]
            if event & ~select.EPOLLIN:
                self._go_on(connection)
            if event & ~select.EPOLLOUT:
                self._read(connection, now)
            ready.append(connection)
        return ready

    # ------------------------------------------------------------------------------------------ the loops

    def _closed_loop(self, until: float) -> None:
        """Keep every connection full."""
        load = self.load
        most = load.count // load.batch or 1 << 62
        ready = list(self._connections.values())
        while time.perf_counter() < until and self._sent < most:
            for connection in ready:
                while connection.free and connection.rest is None and self._sent < most:
                    self._write(connection, min(connection.free, most - self._sent))
            ready = self._wait(0.2)

    def _lockstep(self, until: float) -> None:
        """`_closed_loop` for one request in flight on each connection, with the fewest steps a message."""
        clock, poll, connections = time.perf_counter, self._poll.poll, self._connections
        for connection in connections.values():
            self._write(connection, 1)
        waits, idle, sent, refused = self._waits, 0.0, 0, 0
        now = clock()
        while now < until:
            before = now
            events = poll(0.2)
            now = clock()
            idle += now - before
            for fd, event in events:
                connection = connections[fd]
                if event != select.EPOLLIN or connection.rest is not None:
                    self._go_on(connection)
                    continue
                answered, bad = connection.replies.feed(connection.sock.recv(65536))
                if not answered:
                    continue
                refused += bad
                out = connection.out[0]
                waits.append((now - out[0], 1))
                out[0] = now
                frame = connection.ring.take(1)
                sent += 1
                written = connection.sock.send(frame)
                if written < len(frame):
                    connection.rest = memoryview(bytes(frame[written:]))
                    self._poll.modify(fd, select.EPOLLIN | select.EPOLLOUT)
            now = clock()
        self._idle += idle
        self._sent += sent
        self._answered += sent
        self._refused += refused

    def _open_loop(self, start: float, until: float) -> None:
        """Send at a rate, whatever comes back, each connection in its turn."""
        load = self.load
        most = load.count // load.batch or 1 << 62
        rate = load.rate / load.batch
        connections = list(self._connections.values())
        turn = 0
        while (now := time.perf_counter()) < until and self._sent < most:
            wanted = min(int((now - start) * rate) + 1, most) - self._sent
            self._behind = max(self._behind, wanted / rate)
            share = max(1, -(-wanted // len(connections)))
            for _ in connections:
                if wanted <= 0:
                    break
                connection = connections[turn % len(connections)]
                turn += 1
                if connection.rest is None:
                    wanted -= self._write(connection, min(share, wanted), fresh=True)
            self._wait(_TICK_SECONDS)

    def _drain(self) -> None:
        """Wait for the replies that are still out."""
        until = time.perf_counter() + _DRAIN_SECONDS
        while self._answered < self._sent and time.perf_counter() < until:
            self._wait(0.1)

    # ------------------------------------------------------------------------------------------ the whole

    def run(self) -> LoadResult:
        """Send the load and count. Raises ConnectionError if the broker goes away, unless the load is tolerant."""
        load = self.load
        try:
            if load.warm_up_seconds:
                self._closed_loop(time.perf_counter() + load.warm_up_seconds)
                self._drain()
                self._sent = self._answered = self._refused = 0
                self._waits.clear()
            return self._measure()
        finally:
            for connection in self._connections.values():
                connection.sock.close()
            self._poll.close()

    def _measure(self) -> LoadResult:
        load, self._idle = self.load, 0.0
        cpu, start = time.process_time(), time.perf_counter()
        until = start + load.seconds
        try:
            if load.rate:
                self._open_loop(start, until)
            elif load.in_flight == 1 and not load.count and load.batch == 1:
                self._lockstep(until)
            else:
                self._closed_loop(until)
            idle, loop_cpu = self._idle, time.process_time() - cpu
            loop_seconds = time.perf_counter() - start
            self._drain()
        except OSError:
            if not load.tolerant:
                raise
            self._broken = True
            idle, loop_cpu, loop_seconds = self._idle, time.process_time() - cpu, time.perf_counter() - start
        if load.accepted_path:
            path = Path(load.accepted_path)
            np.save(path.with_stem(f"{path.stem}-{os.getpid()}"), np.array(self._accepted, np.int64))
        seconds = time.perf_counter() - start
        batch = load.batch
        accepted = (self._answered - self._refused) * batch
        refusals = [c.replies.refusal for c in self._connections.values() if c.replies.refusal]
        p50, p99 = weighted_percentile(self._waits, (0.5, 0.99))
        return LoadResult(
            sent=self._sent * batch,
            accepted=accepted,
            refused=self._refused * batch,
            seconds=round(seconds, 4),
            per_second=round(accepted / seconds, 1),
            generator_cpu=round(loop_cpu / loop_seconds, 3),
            waited=round(idle / loop_seconds, 3),
            reply_p50_us=round(p50 * 1e6, 1),
            reply_p99_us=round(p99 * 1e6, 1),
            behind_ms=round(self._behind * 1000, 1),
            broken=self._broken,
            first_accepted_ms=self._first_accepted,
            refusal=refusals[0] if refusals else "",
        )
