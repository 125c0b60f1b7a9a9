"""The broker's server: accepted connections, connections to other servers, and the turns of the network loop.

All sockets are non-blocking and registered in one epoll set, which the asyncio loop watches as a single file. When it
is readable a *turn* begins: every readable connection is read once (256 KiB at most), and its requests are decoded and
handled. Then the turn ends: messages are stored by one write, and replies go out by one send for each connection. A
turn costs one epoll call, whatever the number of sockets. While requests keep coming, up to eight turns follow each
other before the loop's timers and the calls of other threads run (which may want the lock: `remoting.held_calls`).

A turn is cut off when its time is over (`broker.net.clock.TurnPace`): the gathered messages are stored and answered,
and the loop's other work runs. The connections not read yet come first in the next turn. The server knows how long they
have waited and tells ``late``, which refuses sends that waited too long. While deliveries are late, connections that
ask for messages come before all others, for half of a turn at most. An answer has 32 messages of a queue, so a consumer
that waits until all senders were served gets fewer messages, the more are sent.

One read may bring thousands of requests. They are handled for a while; the rest waits for one of the loop's next
rounds, and until then nothing more is read from that connection. The rests of many connections share one turn of each
round: a hundred peers with a thousand requests each do not shut the others out.
`broker.net.connection` describes what one peer may cost. Decision 1 says why the loop watches one set, and why all
reads go into one buffer.
"""

from __future__ import annotations

import asyncio
import logging
import select
import socket
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from broker.net.channel import BROKER_PORT, NO_PORT, Channel
from broker.net.clock import FEW, TurnPace
from broker.net.connection import UNTIMED, Connection
from broker.net.linger import Linger
from broker.net.listener import Accepting, Listener, tune
from broker.net.tls import Tls
from broker.net.tls_connection import TlsConnection
from remoting.command import RemotingCommand

__all__ = ["Server"]

_LOG = logging.getLogger(__name__)

_IN = select.EPOLLIN
_EVENTS_MAX = 256
_TURNS_MAX = 8
_AT_ONCE = 64  # requests of one read that are handled between two looks at the clock; fewer before the first ones
_NO_FILES_PAUSE_S = 1.0
_CONNECT_S = 3.0

Late = Callable[[Channel, list[RemotingCommand], int, int], None]


class Server(Accepting):
    """Listens, reads and sends. Only the network loop uses it.

    Args:
        idle_ms: `sweep` closes a connection that has been silent for this long.
        backlog: Connections that may wait to be accepted.
        tls: Certificate and rules of TLS connections; None: plain connections only.
        held_max_bytes: Most bytes of unfinished frames, of replies that were not taken and of requests that wait to be
            answered, of all connections.
        connections_max: Most connections; further ones are closed at once.
    """

    def __init__(
        self,
        *,
        idle_ms: int = 120_000,
        backlog: int = 1024,
        tls: Tls | None = None,
        held_max_bytes: int = 256 << 20,
        connections_max: int = 1 << 30,
    ) -> None:
        super().__init__(tls, held_max_bytes)
        self.late: Late | None = None
        """Like `received`, for connections that had to wait: also gets the least wait in ms and how many wait."""
        self.end_of_turn: Callable[[], None] = lambda: None
        """Called at the end of every turn, before replies are sent."""
        self.pace = TurnPace()
        self.accepted = Connection if tls is None else TlsConnection
        self._idle_ms = idle_ms
        self._accept_backlog = backlog
        self._listeners: list[Listener] = []
        self._targets: dict[int, Any] = {}
        self._unfinished: deque[Connection] = deque()  # the rest of their last read is not handled yet
        self._goes_on = False
        self._read_slice_s = 0.0
        self._waiting: dict[int, float] = {}  # files that could not be read in time: since when (loop time)
        self.connections_max = connections_max
        self._turned_away = 0
        self._linger: Linger | None = None
        self._poll: select.epoll | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    # ------------------------------------------------------------------------------------------------ life

    def bind(self, host: str, port: int, answers: str = BROKER_PORT) -> int:
        """Bind an address and return its port; nobody can connect before `listen`.

        ``answers`` is the `ChannelState.port` of connections to it.

        Raises OSError, with the address in its text, if it cannot be bound.
        """
        sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        # Or a restart could not bind it while old connections are in TIME_WAIT.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener = Listener(self, sock, answers)
        try:
            sock.bind((host, port))
        except OSError as error:
            sock.close()
            raise OSError(error.errno, f"cannot listen on {host}:{port}: {error.strerror}") from None
        self._listeners.append(listener)
        return int(sock.getsockname()[1])

    def open(self) -> None:
        """Begin to watch sockets in the running loop."""
        self._loop = asyncio.get_running_loop()
        self._linger = Linger(self._loop.time)
        self._poll = select.epoll()
        self._loop.add_reader(self._poll.fileno(), self._turns)

    def listen(self) -> None:
        """Listen on all addresses.

        The broker's own port, bound first, opens last: a client that reaches it may assume that the name server and
        the VIP port answer too.

        Raises OSError if another process took an address meanwhile.
        """
        for listener in reversed(self._listeners):
            listener.listen(self._accept_backlog)
            self._register(listener, listener.fd)

    def stop_listening(self) -> None:
        """Stop accepting connections and free the addresses."""
        for listener in self._listeners:
            self._unregister(listener.fd)
            listener.close()
        self._listeners.clear()

    def stop_reading(self) -> None:
        """Stop reading from all connections."""
        self.reading = False
        for connection in self._connections:
            connection.update()

    def close(self) -> None:
        """Send the gathered replies and close everything."""
        self.stop_listening()
        self.flush()
        for connection in list(self._connections):
            connection.shut()
        if self._poll is not None and self._loop is not None:
            self._loop.remove_reader(self._poll.fileno())
            self._poll.close()
            self._poll = None

    def sweep(self, passed_ms: int) -> None:
        """Close connections that were silent for too long; to be called every ``passed_ms``."""
        for connection in list(self._connections):
            if (connection.sweep() - 1) * passed_ms >= self._idle_ms:
                held = f", {connection.held_bytes} bytes wait for it" if connection.held_bytes else ""
                connection.shut(f"silent for {self._idle_ms // 1000} s{held}")
        if self._turned_away:
            text = "%d connections were refused, %d are open. To allow more, raise the limit of open files "
            text += "(LimitNOFILE of the service, or ulimit -n)"
            _LOG.warning(text, self._turned_away, len(self._connections))
            self._turned_away = 0

    @property
    def full(self) -> bool:
        """True if there are as many connections as allowed."""
        return len(self._connections) >= self.connections_max

    def turn_away(self, sock: socket.socket) -> None:
        """Close a new connection because there are too many."""
        sock.close()
        self._turned_away += 1

    # ------------------------------------------------------------------------------------------------ turns

    def _turns(self) -> None:
        """Run turns while connections are readable; after `_TURNS_MAX` of them return to the asyncio loop."""
        assert self._loop is not None
        assert self._linger is not None
        pace, clock = self.pace, self._loop.time
        linger, alone = self._linger, False
        for _ in range(_TURNS_MAX):
            if self._poll is None:
                return
            begin = clock()
            # While some wait, all must be seen: a file that is missing in the answer counts as no longer ready.
            ready = self._poll.poll(0, max(_EVENTS_MAX, len(self._targets)) if self._waiting else _EVENTS_MAX)
            if not ready and alone:
                ready = linger.find(partial(self._poll.poll, 0, _EVENTS_MAX))
            if not ready:
                return
            alone = linger.served(ready)
            self.calls.begin(pace.hold_s)
            self._ending = True
            self._read_slice_s = pace.read_slice_s(len(ready))
            try:
                if self._waiting or (pace.is_late and len(ready) > 1):
                    self._slice_late(ready)
                else:
                    self._slice(ready)
            finally:
                self.end_turn()
            if pace.ended(clock() - begin, len(ready)):
                alone = False
            if self._waiting:
                return

    def _slice(self, ready: list[tuple[int, int]]) -> None:
        """Read connections; note those that could not be read in time as waiting."""
        assert self._loop is not None
        clock, targets = self._loop.time, self._targets
        begin = clock()
        end = begin + self.pace.slice_s(len(ready))
        for at in range(0, len(ready), FEW):
            if at and clock() > end:
                self._waiting.update((fd, begin) for fd, _ in ready[at:])
                return
            for fd, events in ready[at : at + FEW]:
                target = targets.get(fd)
                if target is not None:
                    target.ready(events)

    def _slice_late(self, ready: list[tuple[int, int]]) -> None:
        """Like `_slice` when some connections wait already: who has waited longest comes first.

        While other threads are late, the first half of the turn is for consumers. The second begins with the others.
        """
        assert self._loop is not None
        waiting, usual, late, slice_s = self._waiting, self.received, self.pace.is_late, self.pace.slice_s(len(ready))
        begin = self._loop.time()
        now_ready = dict(ready)
        for fd in now_ready:
            waiting.setdefault(fd, begin)
        try:
            if late:
                self._serve([fd for fd in waiting if self._consumes(fd)], now_ready, begin + slice_s / 2)
            self._serve(sorted(waiting, key=self._consumes) if late else list(waiting), now_ready, begin + slice_s)
        finally:
            self.received = usual

    def _consumes(self, fd: int) -> bool:
        target = self._targets.get(fd)
        return isinstance(target, Connection) and target.state.consumes

    def _serve(self, fds: list[int], events_of: dict[int, int], until_s: float) -> None:
        """Read these connections until a time of the loop, at least one; those that are read wait no longer."""
        assert self._loop is not None
        clock, targets, waiting, late = self._loop.time, self._targets, self._waiting, self.late
        for fd in fds:
            now_s = clock()
            since_s = waiting.pop(fd, now_s)
            target = targets.get(fd)
            events = events_of.get(fd)
            if target is None or events is None:
                continue
            if late is not None:
                self.received = partial(_handle_late, late, int((now_s - since_s) * 1000), len(waiting) + 1)
            target.ready(events)
            if now_s > until_s:
                break

    def handle_some(self, connection: Connection, commands: list[RemotingCommand]) -> int:
        """Handle requests of one read for a while; answer how many were handled."""
        assert self._loop is not None
        clock = self._loop.time
        end = clock() + self._read_slice_s
        at, step = 0, UNTIMED
        while at < len(commands):
            if connection.closed or (at and clock() > end):
                return at
            self.received(connection, commands[at : at + step])
            at += step
            step = min(2 * step, _AT_ONCE)
        return len(commands)

    def go_on_with(self, connection: Connection) -> None:
        """Have a connection handle the rest of its read in the loop's next rounds."""
        assert self._loop is not None
        self._unfinished.append(connection)
        if not self._goes_on:
            self._goes_on = True
            self._loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        """Go on with some of them, as one turn; others are read before the rest has its chance."""
        assert self._loop is not None
        clock, unfinished, count = self._loop.time, self._unfinished, len(self._unfinished)
        self._read_slice_s = self.pace.read_slice_s(count)
        begin = clock()
        end = begin + self.pace.slice_s(count)
        self.calls.begin(self.pace.hold_s)
        self._ending = True
        try:
            for _ in range(count):
                unfinished.popleft().go_on()
                if clock() > end:
                    break
        finally:
            self._goes_on = bool(unfinished)
            if unfinished:  # first of all: after an error of the turn's end they must be read, too
                self._loop.call_soon(self._go_on)
            self.end_turn()
        self.pace.ended(clock() - begin, count)

    def schedule(self) -> None:
        """Schedule the end of a turn, because messages or replies were gathered outside of one."""
        if not self._ending and self._loop is not None:
            self._ending = True
            self._loop.call_soon(self.end_turn)

    def end_turn(self) -> None:
        """Commit the messages of the turn and send its replies."""
        try:
            self.end_of_turn()
        finally:
            self._ending = False
            self.flush()

    # ------------------------------------------------------------------------------------------------ connections

    async def connect(self, host: str, port: int) -> Connection:
        """Connect to another server.

        Raises OSError if it cannot be reached, TimeoutError after 3 s.
        """
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host, port, family=socket.AF_INET, type=socket.SOCK_STREAM)
        sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        try:
            async with asyncio.timeout(_CONNECT_S):
                await loop.sock_connect(sock, found[0][4])
        except BaseException:
            sock.close()
            raise
        return self.adopt(sock, (str(found[0][4][0]), port), NO_PORT)

    def adopt(
        self, sock: socket.socket, peer: tuple[str, int], port: str, kind: type[Connection] = Connection
    ) -> Connection:
        """Watch a connected socket; ``port`` becomes `ChannelState.port`."""
        sock.setblocking(False)
        tune(sock)
        connection = kind(self, sock, peer)
        connection.state.port = port
        self._connections.add(connection)
        self._register(connection, connection.fd)
        return connection

    def plain(self, connection: Connection, sock: socket.socket) -> None:
        """Replace a connection that turned out not to be TLS by a plain one."""
        # Not `shut`: the socket lives on, and nobody is told of a closed connection.
        self.forget(connection)
        connection.closed = True
        self.adopt(sock, connection.peer, connection.state.port).ready(_IN)

    def forget(self, connection: Connection) -> None:
        """Stop watching a connection."""
        self._connections.discard(connection)
        self._unregister(connection.fd)

    def watch(self, fd: int, events: int) -> None:
        """Change the events for which a socket is watched."""
        if self._poll is not None:
            self._poll.modify(fd, events)

    def pause(self, listener: Listener, error: OSError) -> None:
        """Stop accepting for a second: there are no file descriptors (or no memory) left."""
        text = "no connections are accepted for %g s, %d are open: %s"
        _LOG.error(text, _NO_FILES_PAUSE_S, len(self._connections), error.strerror)
        self._unregister(listener.fd)
        if self._loop is not None:
            self._loop.call_later(_NO_FILES_PAUSE_S, self._resume, listener)

    def _resume(self, listener: Listener) -> None:
        if listener in self._listeners and self._poll is not None:
            self._register(listener, listener.fd)

    def _register(self, target: Connection | Listener, fd: int) -> None:
        assert self._poll is not None
        self._targets[fd] = target
        self._poll.register(fd, _IN)

    def _unregister(self, fd: int) -> None:
        self._waiting.pop(fd, None)
        if self._targets.pop(fd, None) is not None and self._poll is not None:
            self._poll.unregister(fd)


def _handle_late(late: Late, waited_ms: int, waiting: int, channel: Channel, commands: list[RemotingCommand]) -> None:
    late(channel, commands, waited_ms, waiting)
