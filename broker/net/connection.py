"""One connection: its frames on the way in, its replies on the way out, and its limits.

What one peer may cost:

===========================  ==================================================================================
replies that it does not     beyond 4 MiB nothing more is read from it, so it cannot request more before it has taken
take                         these; beyond 64 MiB, or when it has taken none of them for ``idle_ms``, its connection
                             is reset, so that the kernel drops its replies, too
a frame in many pieces       its length is checked first; memory is allocated only as bytes arrive
requests that wait           for a client's answer or the disk: at most 64 MiB of one connection, more are refused
                             (see `broker.net.dispatcher`); of a waiting pull only what its answer needs is kept
all three, of all peers      beyond ``held_max_bytes`` the connections with the most are closed, until there is room
                             again (as Redis does with ``maxmemory-clients``); from three quarters on, connections
                             that do not take their replies are not read from
silence                      after ``idle_ms`` the connection is closed
a connection                 beyond ``connections_max`` new ones are closed at once: the store needs files, too
===========================  ==================================================================================
"""

from __future__ import annotations

import logging
import select
import socket
import struct
from collections import deque
from collections.abc import Callable

from broker.net.channel import Channel, ChannelState, peer_text
from broker.net.clock import monotonic_s
from broker.net.tls import Tls
from remoting.codes import REQUEST_HEADER_MAX_BYTES
from remoting.command import RemotingCommand
from remoting.connection import FrameDecoder
from remoting.errors import ProtocolError
from remoting.held_calls import HeldCalls

__all__ = ["UNTIMED", "Connection", "Received", "Sockets"]

_LOG = logging.getLogger(__name__)

_IN, _OUT = select.EPOLLIN, select.EPOLLOUT
_READ_BYTES = 256 << 10
_STOP_READING_BYTES = 4 << 20
_READ_AGAIN_BYTES = 1 << 20
_BACKLOG_MAX_BYTES = 64 << 20
_LARGE_BYTES = 16 << 10  # larger replies are sent before the turn ends; larger unfinished frames are counted
UNTIMED = 4  # requests of one read that are handled before the first look at the clock
_READ_MAX = 1_024  # requests that are decoded before the first of them is handled
_RESET = struct.pack("ii", 1, 0)

Received = Callable[[Channel, list[RemotingCommand]], None]


class Sockets:
    """The part of a server that its connections use: one buffer for all reads, and the bytes kept for all of them."""

    def __init__(self, tls: Tls | None, held_max_bytes: int) -> None:
        self.received: Received = lambda *_: None
        """Handles the commands that one read brought."""
        self.reading = True
        self.closed_listeners: list[Callable[[Channel], None]] = []
        """Called with each closed connection, whichever side closed it."""
        self.tls = tls
        self.buffer = bytearray(_READ_BYTES)
        self.view = memoryview(self.buffer)
        self.calls = HeldCalls(monotonic_s, self.buffer)
        self._connections: set[Connection] = set()
        self._dirty: list[Connection] = []
        self._ending = False
        self.held_max_bytes = held_max_bytes
        self.held_bytes = 0
        """Bytes kept for all peers together (see `Connection.held_bytes`)."""

    @property
    def connection_count(self) -> int:
        """Number of connections."""
        return len(self._connections)

    @property
    def tight(self) -> bool:
        """True if the bytes kept for all peers exceed three quarters of the limit.

        From then on, connections that do not take their replies are not read from.
        """
        return self.held_bytes > self.held_max_bytes * 3 // 4

    def hold(self, more: int) -> None:
        """Count bytes kept for a peer; beyond the limit, close the connections that hold the most."""
        self.held_bytes += more
        if self.held_bytes <= self.held_max_bytes or more < 0:
            return
        for connection in sorted(self._connections, key=_held_bytes, reverse=True):
            if self.held_bytes <= self.held_max_bytes * 7 // 8:
                break
            _LOG.warning(
                "%s: connection closed: it held %d of the %d bytes that all connections hold (connectionBytesMax=%d)",
                peer_text(connection),
                connection.held_bytes,
                self.held_bytes,
                self.held_max_bytes,
            )
            connection.shut()

    def dirty(self, connection: Connection) -> None:
        """Note a connection that has something to send."""
        self._dirty.append(connection)
        if not self._ending:
            self.schedule()

    def flush(self) -> None:
        """Send the replies of all connections that have some."""
        if self._dirty:
            dirty, self._dirty = self._dirty, []
            for connection in dirty:
                connection.flush()

    def schedule(self) -> None:
        """Have a turn end soon."""
        raise NotImplementedError

    def watch(self, fd: int, events: int) -> None:
        """Change the events for which a socket is watched."""
        raise NotImplementedError

    def forget(self, connection: Connection) -> None:
        """Stop watching a connection."""
        raise NotImplementedError

    def plain(self, connection: Connection, sock: socket.socket) -> None:
        """Replace a connection that turned out not to be TLS by a plain one."""
        raise NotImplementedError

    def handle_some(self, connection: Connection, commands: list[RemotingCommand]) -> int:
        """Handle requests of one read for a while; answer how many were handled."""
        raise NotImplementedError

    def go_on_with(self, connection: Connection) -> None:
        """Have a connection handle the rest of its read in the loop's next round."""
        raise NotImplementedError


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

    def __init__(self, server: Sockets, sock: socket.socket, peer: tuple[str, int]) -> None:
        self._server = server
        self._socket = sock
        self._decoder = FrameDecoder(max_header_bytes=REQUEST_HEADER_MAX_BYTES, most=_READ_MAX)
        self._feed = self._decoder.feed
        self._rest: list[RemotingCommand] = []  # of the last read, not handled yet
        self._resting = False  # whether something of the last read is not handled yet
        self._input_bytes = 0  # bytes of an unfinished frame that the server has counted
        self._stuck = 0  # sweeps since the peer last took bytes of the backlog
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
        """Send at the end of the turn, together with the other replies to this peer."""
        if not self.closed:
            out = self._out
            if not out:
                self._server.dirty(self)
            out.append(data)

    def send_at_once(self, data: bytes) -> None:
        """Send a large reply without waiting for the end of the turn: a turn may have thousands of them."""
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
        """Bytes kept for this peer: replies not taken, an unfinished frame, requests not answered."""
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
            # SO_LINGER of 0 resets the connection. Otherwise the kernel keeps the unsent replies for minutes, unowned.
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
        """Read or write, as the socket is ready for."""
        if events != _IN:
            if events & _OUT:
                self._drain()
            if self.closed or events == _OUT:
                return
        server = self._server
        try:
            count = server.calls.recv(self._socket, self.fd)
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
        if len(commands) <= UNTIMED:
            server.received(self, commands)
        else:
            self._handle(commands)
        if count > _LARGE_BYTES or self._input_bytes:
            self._count_input()

    def _handle(self, commands: list[RemotingCommand]) -> None:
        """Handle many requests of one read for a while; the rest in the loop's next round."""
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
        try:
            self._handle(commands)
        finally:  # after an error, too, it must be read again
            if not self._resting and not self.closed:
                self._count_input()
                self.update()

    def _count_input(self) -> None:
        """Count the bytes of an unfinished frame."""
        pending = 0 if self.closed else self._decoder.pending_bytes
        if pending < _LARGE_BYTES:
            pending = 0
        more = pending - self._input_bytes
        self._input_bytes = pending
        if more:
            self._server.hold(more)

    def sweep(self) -> int:
        """Note that time has passed; answer for how many sweeps the peer was silent, or took none of its replies."""
        self.idle += 1
        self._stuck = self._stuck + 1 if self._backlog else 0
        return max(self.idle, self._stuck)

    def flush(self) -> None:
        """Send the replies gathered in this turn."""
        out = self._out
        if not out:
            return
        data = out[0] if len(out) == 1 else b"".join(out)
        out.clear()
        sent = 0
        if not self._backlog:
            try:
                sent = self._server.calls.send(self._socket, self.fd, data)
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
        # A view: a slice of bytes would copy what is left of a large reply.
        self._backlog.append(memoryview(data)[sent:])
        self._backlog_bytes += len(data) - sent
        if self._backlog_bytes > _BACKLOG_MAX_BYTES:
            _LOG.warning("%s: connection closed, it left %d bytes unread", peer_text(self), self._backlog_bytes)
            # `shut` subtracts the whole backlog, and this part of it is not counted yet.
            self._server.held_bytes += len(data) - sent
            self.shut()
            return
        self._server.hold(len(data) - sent)
        if not self.closed:
            self.update()

    def _drain(self) -> None:
        """Send as much of the backlog as the socket takes."""
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
        """Watch for room to send if there is a backlog; stop reading while the backlog is too large."""
        if self._server.tight:
            limit = 0
        else:
            # Two limits, so that a backlog near one of them does not switch reading on and off all the time.
            limit = _STOP_READING_BYTES if self._events & _IN else _READ_AGAIN_BYTES
        reading = self._server.reading and not self._closing and not self._resting and self._backlog_bytes <= limit
        events = (_IN if reading else 0) | (_OUT if self._backlog else 0)
        if events != self._events:
            self._events = events
            self._server.watch(self.fd, events)


def _held_bytes(connection: Connection) -> int:
    return connection.held_bytes
