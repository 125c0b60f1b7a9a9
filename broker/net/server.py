"""The sockets of the broker, the only ones: who connects to it, and whom it connects to.

All of them are non-blocking and stand in one epoll set of their own, which the asyncio loop watches as a single file.
When it is readable a *turn* begins: every connection that has something is read once (256 KiB at most), what it
brought is decoded and handled, and then the turn ends: messages are stored by one write, replies go out, one send
for each connection. A turn costs one look at all sockets, whatever their number; while requests keep coming, up to
eight turns follow each other before the loop's timers and other threads' calls have theirs.

While other threads have work that must not wait (``yields``: messages are overdue), the loop rests after each turn as
long as the turn took, a millisecond at most. One thread runs Python at a time, so what the loop leaves is theirs; and
what comes in meanwhile is handled by one turn in the place of many, which costs less.

Why not one ``loop.add_reader`` for each socket: the loop then spends 0.7 µs of each event on its own handles, and what
is scheduled for the end of a turn runs only after another look at all sockets. Why ``recv_into`` one buffer: a fresh
buffer of 256 KiB for each read costs 15 µs in page faults (measured with 16 connections, one request in flight each).

One read may bring thousands of requests. They are handled until 10 ms have passed; the rest of them waits for the
loop's next round, and nothing is read from that connection before it is done.

A turn of more than a few connections is a slice of 20 ms at most: then what was gathered is stored and answered, the
loop's other work has its chance, and those that were not read yet are first in the next slice. How long they have
waited is known, and told to ``late``, which turns sends away that waited too long.

What one peer may cost:

===========================  ==================================================================================
replies that it does not     beyond 4 MiB nothing is read from it any more, so that it cannot ask for more before it
take                         has taken what is there; beyond 64 MiB it is closed, and also when it has taken nothing
                             of what waits for ``idle_ms``; it is reset then, so that the kernel forgets it, too
a frame in many pieces       its bytes are kept as they come, none before; the length is checked first
requests that wait           for a client's answer or the disk: at most 64 MiB of a connection's, more are refused
                             (see `broker.net.dispatcher`); of a pull that waits, only what its answer needs is kept
all three, of all together   beyond ``held_max_bytes`` the connections with the most of it are closed, until there is
                             room again (as Redis does with ``maxmemory-clients``); beyond three quarters nothing is
                             read from those that do not take their replies
silence                      ``idle_ms``, then it is closed
a connection                 beyond ``connections_max`` newcomers are closed at once: the store needs files, too
===========================  ==================================================================================
"""

from __future__ import annotations

import asyncio
import errno
import logging
import select
import socket
import struct
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from broker.net.channel import BROKER_PORT, NO_PORT, Channel, ChannelState, peer_text
from broker.net.clock import rest
from broker.net.linger import Linger
from broker.net.tls import HELLO, Tls, TlsError, TlsSession
from remoting.codes import REQUEST_HEADER_MAX_BYTES
from remoting.command import RemotingCommand
from remoting.connection import FrameDecoder
from remoting.errors import ProtocolError

__all__ = ["Connection", "Server"]

_LOG = logging.getLogger(__name__)

_IN, _OUT = select.EPOLLIN, select.EPOLLOUT
_READ_BYTES = 256 << 10
_EVENTS_MAX = 256
_TURNS_MAX = 8
_ACCEPTS_MAX = 64
_STOP_READING_BYTES = 4 << 20
_READ_AGAIN_BYTES = 1 << 20
_BACKLOG_MAX_BYTES = 64 << 20
_LARGE_BYTES = 16 << 10  # replies from here on do not wait for the end of the turn; unfinished frames are counted
_FEW = 8  # so many connections are read without a look at the clock
_SLICE_S = 0.02
_AT_ONCE = 64  # so many requests of one read are handled without a look at the clock
_READ_MAX = 1_024  # so many are decoded before the first of them is handled
_READ_SLICE_S = 0.01
_REST_MAX_S = 0.001
_NO_FILES_PAUSE_S = 1.0
_NO_FILES = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM))
_CONNECT_S = 3.0
_RESET = struct.pack("ii", 1, 0)

Received = Callable[[Channel, list[RemotingCommand]], None]
Late = Callable[[Channel, list[RemotingCommand], int, int], None]


class Connection:
    """One connection, as a `Channel`. Made by the server."""

    __slots__ = (
        "_backlog",
        "_backlog_bytes",
        "_closing",
        "_decoder",
        "_events",
        "_feed",
        "_input_bytes",
        "_out",
        "_recv_into",
        "_rest",
        "_resting",
        "_server",
        "_socket",
        "_stuck",
        "closed",
        "fd",
        "idle",
        "kept_bytes",
        "peer",
        "state",
    )

    def __init__(self, server: Server, sock: socket.socket, peer: tuple[str, int]) -> None:
        self._server = server
        self._socket = sock
        self._decoder = FrameDecoder(max_header_bytes=REQUEST_HEADER_MAX_BYTES, most=_READ_MAX)
        self._feed = self._decoder.feed
        self._rest: list[RemotingCommand] = []  # of the last read, not handled yet
        self._resting = False  # whether something of the last read is not handled yet
        self._input_bytes = 0  # of an unfinished frame, as far as the server counts it
        self._stuck = 0  # sweeps since something of the backlog was taken
        self._recv_into = sock.recv_into
        self._out: list[bytes] = []
        self._backlog: deque[memoryview] = deque()
        self._backlog_bytes = 0
        self._events = _IN
        self._closing = False
        self.fd = sock.fileno()
        self.peer = peer
        self.state = ChannelState(peer)
        self.closed = False
        self.idle = 0
        """Sweeps since something was read or sent."""
        self.kept_bytes = 0
        """Bytes of its requests that are kept until they are answered."""

    def send(self, data: bytes) -> None:
        """Send at the end of the turn, together with whatever else goes to this peer."""
        if not self.closed:
            out = self._out
            if not out:
                self._server.dirty(self)
            out.append(data)

    def send_at_once(self, data: bytes) -> None:
        """Send without waiting for the end of the turn, if it is large: a turn may have thousands of such replies."""
        if len(data) < _LARGE_BYTES:
            self.send(data)
        elif not self.closed:
            self._out.append(data)
            self.flush()

    def keep(self, size: int) -> None:
        """Count bytes of requests that are kept until they are answered (below 0: no longer)."""
        if not self.closed:
            self.kept_bytes += size
            self._server.hold(size)

    @property
    def held_bytes(self) -> int:
        """Bytes that are kept for this peer: replies not taken, a frame that is not whole, requests not answered."""
        return self._backlog_bytes + self._input_bytes + self.kept_bytes

    def close(self) -> None:
        """Close as soon as everything was sent."""
        if not self.closed:
            self._closing = True
            if not self._out and not self._backlog:
                self.shut()

    def shut(self, reason: object = None) -> None:
        """Close now."""
        if self.closed:
            return
        self.closed = True
        if reason is not None:
            _LOG.info("%s: connection closed: %s", peer_text(self), reason)
        if self._backlog:
            # Without this the kernel keeps what its peer does not take, for minutes, although nobody owns it any more.
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self._server.held_bytes -= self.held_bytes
        self._backlog_bytes = self._input_bytes = self.kept_bytes = 0
        self._out.clear()
        self._backlog.clear()
        self._rest.clear()
        self._server.forget(self)
        self._socket.close()
        for listener in self._server.closed_listeners:
            listener(self)

    def ready(self, events: int) -> None:
        """Do what the socket is ready for."""
        if events != _IN:
            if events & _OUT:
                self._drain()
            if self.closed or events == _OUT:
                return
        server = self._server
        try:
            count = self._recv_into(server.buffer)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self.shut(error.strerror)
            return
        if not count:
            self.shut()
            return
        self.idle = 0
        try:
            commands = self._feed(server.view[:count])
        except ProtocolError as error:
            _LOG.warning("%s: not RocketMQ's protocol, connection closed: %s", peer_text(self), error)
            self.shut()
            return
        if not commands:
            self._count_input()
            return
        if len(commands) <= _AT_ONCE:
            server.received(self, commands)
        else:
            self._handle(commands)
        if count > _LARGE_BYTES or self._input_bytes:
            self._count_input()

    def _handle(self, commands: list[RemotingCommand]) -> None:
        """Handle many requests of one read, until that has taken long; the rest in the loop's next round."""
        server = self._server
        handled = server.handle_some(self, commands)
        if (handled < len(commands) or self._decoder.more) and not self.closed:
            self._rest = commands[handled:]
            self._resting = True
            self.update()
            server.go_on_with(self)

    def go_on(self) -> None:
        """Handle the rest of the last read."""
        if self.closed:
            return
        commands, self._rest = self._rest, []
        self._resting = False
        if not commands:
            try:
                commands = self._feed(b"")
            except ProtocolError as error:
                _LOG.warning("%s: not RocketMQ's protocol, connection closed: %s", peer_text(self), error)
                self.shut()
                return
        self._handle(commands)
        if not self._resting and not self.closed:
            self._count_input()
            self.update()

    def _count_input(self) -> None:
        """Count what is kept of a frame that is not whole yet."""
        pending = 0 if self.closed else self._decoder.pending_bytes
        if pending < _LARGE_BYTES:
            pending = 0
        more = pending - self._input_bytes
        self._input_bytes = pending
        if more:
            self._server.hold(more)

    def sweep(self) -> int:
        """Note that time has passed; for how many sweeps it has been silent, or taken nothing of what waits for it."""
        self.idle += 1
        self._stuck = self._stuck + 1 if self._backlog else 0
        return max(self.idle, self._stuck)

    def flush(self) -> None:
        """Send what has gathered."""
        out = self._out
        if not out:
            return
        data = out[0] if len(out) == 1 else b"".join(out)
        out.clear()
        sent = 0
        if not self._backlog:
            try:
                sent = self._socket.send(data)
            except (BlockingIOError, InterruptedError):
                pass
            except OSError as error:
                self.shut(error.strerror)
                return
            if sent == len(data):
                self.idle = 0
                if self._closing:
                    self.shut()
                return
        self._backlog.append(memoryview(data)[sent:])
        self._backlog_bytes += len(data) - sent
        if self._backlog_bytes > _BACKLOG_MAX_BYTES:
            _LOG.warning("%s: takes nothing, %d bytes wait for it", peer_text(self), self._backlog_bytes)
            self._server.held_bytes += len(data) - sent
            self.shut()
            return
        self._server.hold(len(data) - sent)
        if not self.closed:
            self.update()

    def _drain(self) -> None:
        """Send of the backlog what the socket takes."""
        backlog = self._backlog
        while backlog:
            data = backlog[0]
            try:
                sent = self._socket.send(data)
            except (BlockingIOError, InterruptedError):
                break
            except OSError as error:
                self.shut(error.strerror)
                return
            self.idle = self._stuck = 0
            self._backlog_bytes -= sent
            self._server.held_bytes -= sent
            if sent == len(data):
                backlog.popleft()
            else:
                backlog[0] = data[sent:]
        if self._closing and not backlog and not self._out:
            self.shut()
        else:
            self.update()

    def update(self) -> None:
        """Wait for room to send if something waits, and read only if not too much does."""
        if self._server.tight:
            limit = 0
        else:
            limit = _STOP_READING_BYTES if self._events & _IN else _READ_AGAIN_BYTES
        reading = self._server.reading and not self._closing and not self._resting and self._backlog_bytes <= limit
        events = (_IN if reading else 0) | (_OUT if self._backlog else 0)
        if events != self._events:
            self._events = events
            self._server.watch(self.fd, events)


class _TlsConnection(Connection):
    """A connection on a port that speaks TLS too; its first byte tells what it is, a plain one is handed on."""

    __slots__ = ("_session",)

    def __init__(self, server: Server, sock: socket.socket, peer: tuple[str, int]) -> None:
        super().__init__(server, sock, peer)
        self._session: TlsSession | None = None

    def ready(self, events: int) -> None:
        """Do what the socket is ready for."""
        if events != _IN:
            if events & _OUT:
                self._drain()
            if self.closed or events == _OUT:
                return
        server = self._server
        try:
            if self._session is None and not self._begin():
                return
            count = self._recv_into(server.buffer)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self.shut(error.strerror)
            return
        if not count:
            self.shut()
            return
        self.idle = 0
        self._received(server.view[:count])

    def _begin(self) -> bool:
        """Look at the first byte; whether it is TLS that begins. May raise OSError."""
        server = self._server
        first = self._socket.recv(1, socket.MSG_PEEK)
        tls = server.tls
        if not first or tls is None:
            self.shut()
        elif first[0] == HELLO:
            self._session = tls.session()
        elif tls.enforcing:
            self.shut("it is not TLS (tls.server.mode=enforcing)")
        else:
            server.plain(self, self._socket)
        return self._session is not None

    def _received(self, data: memoryview) -> None:
        session = self._session
        assert session is not None
        try:
            plain, ended = session.receive(data)
            commands = self._feed(plain) if plain else []
        except (TlsError, ProtocolError) as error:
            _LOG.warning("%s: connection closed: %s", peer_text(self), error)
            self.flush()
            self.shut()
            return
        if commands:
            self._handle(commands)
        self._count_input()
        if session.waiting and not self._out:
            self._server.dirty(self)
        if ended:
            self.close()

    def flush(self) -> None:
        """Encrypt what has gathered and send it."""
        session, out = self._session, self._out
        if session is None or self.closed:
            return
        if out:
            data = b"".join(out)
            out.clear()
            try:
                session.encrypt(data)
            except TlsError as error:
                self.shut(error)
                return
        if session.waiting:
            out.append(session.outgoing())
            super().flush()


class _Listener:
    """One listening socket."""

    __slots__ = ("_port", "_server", "_socket", "fd")

    def __init__(self, server: Server, sock: socket.socket, port: str) -> None:
        self._server = server
        self._socket = sock
        self._port = port
        self.fd = sock.fileno()

    def listen(self, backlog: int) -> None:
        self._socket.listen(backlog)

    def ready(self, _events: int) -> None:
        """Accept who waits."""
        for _ in range(_ACCEPTS_MAX):
            try:
                sock, peer = self._socket.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _NO_FILES:
                    raise
                self._server.pause(self, error)
                return
            if self._server.full:
                self._server.turn_away(sock)
                continue
            self._server.adopt(sock, (peer[0], peer[1]), self._port, self._server.accepted)

    def close(self) -> None:
        self._socket.close()


class Server:
    """Listens, reads and sends. Only the network loop uses it.

    Args:
        idle_ms: A connection that is silent for so long is closed by `sweep`.
        backlog: Connections that may wait to be accepted.
        tls: What TLS connections get; None: there are none.
        held_max_bytes: Most bytes of unfinished frames, of replies that were not taken and of requests that wait to be
            answered, of all connections.
        connections_max: Most connections; who comes then is closed at once.
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
        self.received: Received = lambda *_: None
        """Handles the commands that one read brought."""
        self.late: Late | None = None
        """The same for those that could not be read at once: ms that they waited at least, connections that wait."""
        self.end_of_turn: Callable[[], None] = lambda: None
        """Called at the end of every turn, before replies are sent."""
        self.yields: Callable[[], bool] | None = None
        """Whether other threads have work that must not wait: then turns are rarer, and each does more."""
        self.rest_count = 0
        """Turns after which the loop has rested for that."""
        self.reading = True
        self.closed_listeners: list[Callable[[Channel], None]] = []
        """Called with each connection that was closed, by whichever side."""
        self.tls = tls
        self.accepted: type[Connection] = Connection if tls is None else _TlsConnection
        """What is made of a socket that connects to us."""
        self.buffer = bytearray(_READ_BYTES)
        self.view = memoryview(self.buffer)
        self._idle_ms = idle_ms
        self._accept_backlog = backlog
        self._listeners: list[_Listener] = []
        self._targets: dict[int, Any] = {}
        self._connections: set[Connection] = set()
        self._waiting: dict[int, float] = {}  # files that could not be read in time: since when (loop time)
        self.held_max_bytes = held_max_bytes
        self.connections_max = connections_max
        self._turned_away = 0
        self.held_bytes = 0
        """Bytes that are kept for all peers (see `Connection.held_bytes`)."""
        self._dirty: list[Connection] = []
        self._ending = False
        self._linger: Linger | None = None
        self._poll: select.epoll | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    # ------------------------------------------------------------------------------------------------ life

    def bind(self, host: str, port: int, answers: str = BROKER_PORT) -> int:
        """Reserve an address and answer with its port; nobody can connect before `start`.

        ``answers`` is what `ChannelState.port` says of those who connect there.

        Raises OSError with the address in its text.
        """
        sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener = _Listener(self, sock, answers)
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
        """Let clients in, at the first address last: who gets in there may take all others to be served.

        Raises OSError if somebody else took an address meanwhile.
        """
        for listener in reversed(self._listeners):
            try:
                listener.listen(self._accept_backlog)
            except OSError as error:
                raise OSError(error.errno, f"cannot listen: {error.strerror}") from None
            self._register(listener, listener.fd)

    def stop_listening(self) -> None:
        """Let nobody in any more, and free the addresses."""
        for listener in self._listeners:
            self._unregister(listener.fd)
            listener.close()
        self._listeners.clear()

    def stop_reading(self) -> None:
        """Take nothing any more from those who are connected."""
        self.reading = False
        for connection in self._connections:
            connection.update()

    def close(self) -> None:
        """Send what there is and close everything."""
        self.stop_listening()
        self.flush()
        for connection in list(self._connections):
            connection.shut()
        if self._poll is not None and self._loop is not None:
            self._loop.remove_reader(self._poll.fileno())
            self._poll.close()
            self._poll = None

    def sweep(self, passed_ms: int) -> None:
        """Close who has been silent for too long; to be called every ``passed_ms``."""
        for connection in list(self._connections):
            if (connection.sweep() - 1) * passed_ms >= self._idle_ms:
                held = f", {connection.held_bytes} bytes wait for it" if connection.held_bytes else ""
                connection.shut(f"silent for {self._idle_ms // 1000} s{held}")
        if self._turned_away:
            _LOG.warning(
                "%d connections were turned away, there are %d: for more of them, raise the limit of open files "
                "(LimitNOFILE of the service, or ulimit -n)",
                self._turned_away,
                len(self._connections),
            )
            self._turned_away = 0

    @property
    def connection_count(self) -> int:
        """How many are connected."""
        return len(self._connections)

    @property
    def full(self) -> bool:
        """Whether nobody more may come in."""
        return len(self._connections) >= self.connections_max

    def turn_away(self, sock: socket.socket) -> None:
        """Close the connection of one who came when there was no room."""
        sock.close()
        self._turned_away += 1

    @property
    def tight(self) -> bool:
        """Whether so much is kept for all peers that those who do not take it are not read from."""
        return self.held_bytes > self.held_max_bytes * 3 // 4

    def hold(self, more: int) -> None:
        """Count bytes that are kept for a peer; if that is too much, close those who have the most of it."""
        self.held_bytes += more
        if self.held_bytes <= self.held_max_bytes or more < 0:
            return
        for connection in sorted(self._connections, key=_held_bytes, reverse=True):
            if self.held_bytes <= self.held_max_bytes * 7 // 8:
                break
            _LOG.warning(
                "%s: connection closed, %d bytes were kept for it, %d for all (at most %d, connectionBytesMax)",
                peer_text(connection),
                connection.held_bytes,
                self.held_bytes,
                self.held_max_bytes,
            )
            connection.shut()

    # ------------------------------------------------------------------------------------------------ turns

    def _turns(self) -> None:
        """Take turns while there is something to read, but let the loop look round after some of them."""
        assert self._loop is not None
        assert self._linger is not None
        targets, yields, clock = self._targets, self.yields, self._loop.time
        linger, alone = self._linger, False
        for _ in range(_TURNS_MAX):
            if self._poll is None:
                return
            begin = clock()
            ready = self._poll.poll(0, max(_EVENTS_MAX, len(targets)) if self._waiting else _EVENTS_MAX)
            if not ready and alone:
                ready = linger.find(partial(self._poll.poll, 0, _EVENTS_MAX))
            if not ready:
                return
            alone = linger.served(ready)
            self._ending = True
            try:
                if self._waiting:
                    self._slice_late(ready)
                elif len(ready) > _FEW:
                    self._slice(ready)
                else:
                    for fd, events in ready:
                        target = targets.get(fd)
                        if target is not None:
                            target.ready(events)
            finally:
                self.end_turn()
            if yields is not None and yields():
                self.rest_count += 1
                alone = False
                rest(min(clock() - begin, _REST_MAX_S))
            if self._waiting:
                return

    def _slice(self, ready: list[tuple[int, int]]) -> None:
        """Read many connections; those that cannot be read in time are noted as waiting."""
        assert self._loop is not None
        clock, targets = self._loop.time, self._targets
        begin = clock()
        for at in range(0, len(ready), _FEW):
            if at and clock() - begin > _SLICE_S:
                for fd, _ in ready[at:]:
                    self._waiting[fd] = begin
                return
            for fd, events in ready[at : at + _FEW]:
                target = targets.get(fd)
                if target is not None:
                    target.ready(events)

    def _slice_late(self, ready: list[tuple[int, int]]) -> None:
        """The same when some wait already: they come first, and behind them those that are ready now."""
        assert self._loop is not None
        clock, targets, waiting, usual = self._loop.time, self._targets, self._waiting, self.received
        late = self.late
        begin = clock()
        now_ready = dict(ready)
        for fd in now_ready:
            waiting.setdefault(fd, begin)
        try:
            for fd in list(waiting):
                since = waiting.pop(fd, begin)
                target = targets.get(fd)
                events = now_ready.get(fd)
                if target is None or events is None:
                    continue
                now = clock()
                if late is not None:
                    self.received = partial(_handle_late, late, int((now - since) * 1000), len(waiting) + 1)
                target.ready(events)
                if now - begin > _SLICE_S:
                    break
        finally:
            self.received = usual

    def handle_some(self, connection: Connection, commands: list[RemotingCommand]) -> int:
        """Handle requests of one read until that has taken long; how many."""
        assert self._loop is not None
        clock = self._loop.time
        end = clock() + _READ_SLICE_S
        for at in range(0, len(commands), _AT_ONCE):
            if connection.closed or (at and clock() > end):
                return at
            self.received(connection, commands[at : at + _AT_ONCE])
        return len(commands)

    def go_on_with(self, connection: Connection) -> None:
        """Have a connection handle the rest of its read in the loop's next round, as a turn of its own."""
        assert self._loop is not None
        self._loop.call_soon(self._go_on, connection)

    def _go_on(self, connection: Connection) -> None:
        self._ending = True
        try:
            connection.go_on()
        finally:
            self.end_turn()

    def schedule(self) -> None:
        """Have a turn end soon: something was gathered or is to be sent outside of one."""
        if not self._ending and self._loop is not None:
            self._ending = True
            self._loop.call_soon(self.end_turn)

    def end_turn(self) -> None:
        """Commit what the turn has gathered and send what is to be sent."""
        try:
            self.end_of_turn()
        finally:
            self._ending = False
            self.flush()

    def flush(self) -> None:
        """Send what was put into the connections."""
        if self._dirty:
            dirty, self._dirty = self._dirty, []
            for connection in dirty:
                connection.flush()

    def dirty(self, connection: Connection) -> None:
        """Note a connection that has something to send."""
        self._dirty.append(connection)
        if not self._ending:
            self.schedule()

    # ------------------------------------------------------------------------------------------------ connections

    async def connect(self, host: str, port: int) -> Connection:
        """Connect to another server. Raises OSError, or TimeoutError after 3 s."""
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host, port, family=socket.AF_INET, type=socket.SOCK_STREAM)
        sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        try:
            await asyncio.wait_for(loop.sock_connect(sock, found[0][4]), _CONNECT_S)
        except BaseException:
            sock.close()
            raise
        return self.adopt(sock, (str(found[0][4][0]), port), NO_PORT)

    def adopt(
        self, sock: socket.socket, peer: tuple[str, int], port: str, kind: type[Connection] = Connection
    ) -> Connection:
        """Watch a connected socket; ``port`` is what `ChannelState.port` says of it."""
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        connection = kind(self, sock, peer)
        connection.state.port = port
        self._connections.add(connection)
        self._register(connection, connection.fd)
        return connection

    def plain(self, connection: Connection, sock: socket.socket) -> None:
        """Go on with a plain connection in the place of one that might have been TLS."""
        self.forget(connection)
        connection.closed = True
        self.adopt(sock, connection.peer, connection.state.port).ready(_IN)

    def forget(self, connection: Connection) -> None:
        """Watch a connection no longer."""
        self._connections.discard(connection)
        self._unregister(connection.fd)

    def watch(self, fd: int, events: int) -> None:
        """Change what a socket is watched for."""
        if self._poll is not None:
            self._poll.modify(fd, events)

    def pause(self, listener: _Listener, error: OSError) -> None:
        """Accept nobody for a moment: there are no file descriptors (or no memory) left."""
        _LOG.error(
            "no connections are accepted for %g s, there are %d: %s",
            _NO_FILES_PAUSE_S,
            len(self._connections),
            error.strerror,
        )
        self._unregister(listener.fd)
        if self._loop is not None:
            self._loop.call_later(_NO_FILES_PAUSE_S, self._resume, listener)

    def _resume(self, listener: _Listener) -> None:
        if listener in self._listeners and self._poll is not None:
            self._register(listener, listener.fd)

    def _register(self, target: Connection | _Listener, fd: int) -> None:
        assert self._poll is not None
        self._targets[fd] = target
        self._poll.register(fd, _IN)

    def _unregister(self, fd: int) -> None:
        self._waiting.pop(fd, None)
        if self._targets.pop(fd, None) is not None and self._poll is not None:
            self._poll.unregister(fd)


def _handle_late(late: Late, waited_ms: int, waiting: int, channel: Channel, commands: list[RemotingCommand]) -> None:
    late(channel, commands, waited_ms, waiting)


def _held_bytes(connection: Connection) -> int:
    return connection.held_bytes
