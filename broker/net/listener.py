"""A listening socket: accepts waiting connections while the limits and the open files allow it.

Also sockets that are connected without one: the two ends of a pair, one of which another process inherits.
"""

from __future__ import annotations

import errno
import socket

from broker.net.connection import Connection, Sockets

__all__ = ["Accepting", "Listener", "inherited", "socket_pair", "tune"]

_ACCEPTS_MAX = 64
_NO_FILES = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM))


class Accepting(Sockets):
    """The part of the server that a listening socket uses."""

    accepted: type[Connection]
    """Class of incoming connections."""

    @property
    def full(self) -> bool:
        """True if there are as many connections as allowed."""
        raise NotImplementedError

    def turn_away(self, sock: socket.socket) -> None:
        """Close a new connection because there are too many."""
        raise NotImplementedError

    def adopt(self, sock: socket.socket, peer: tuple[str, int], port: str, kind: type[Connection]) -> Connection:
        """Watch a connected socket."""
        raise NotImplementedError

    def pause(self, listener: Listener, error: OSError) -> None:
        """Stop accepting for a second: there are no file descriptors (or no memory) left."""
        raise NotImplementedError


class Listener:
    """One listening socket."""

    __slots__ = ("_port", "_server", "_socket", "fd")

    def __init__(self, server: Accepting, sock: socket.socket, port: str) -> None:
        self._server = server
        self._socket = sock
        self._port = port
        self.fd = sock.fileno()

    def listen(self, backlog: int) -> None:
        """Let clients connect; ``backlog`` is the number that may wait to be accepted.

        Raises OSError, with the address in its text, if another socket listens there.
        """
        try:
            self._socket.listen(backlog)
        except OSError as error:
            host, port = self._socket.getsockname()
            raise OSError(error.errno, f"cannot listen on {host}:{port}: {error.strerror}") from None

    def ready(self, _events: int) -> None:
        """Accept waiting connections."""
        # Other connections have their turns in between; what still waits is reported again.
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
        """Free the address."""
        self._socket.close()


def socket_pair() -> tuple[socket.socket, socket.socket]:
    """Make two connected sockets, for two processes. Raises OSError."""
    return socket.socketpair()


def inherited(fd: int) -> socket.socket:
    """The end of such a pair that this process has inherited. Raises OSError if it is no socket."""
    return socket.socket(fileno=fd)


def tune(sock: socket.socket) -> None:
    """Have a TCP connection send small replies at once, and notice peers that vanished; a pair needs neither."""
    if sock.family == socket.AF_INET:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
