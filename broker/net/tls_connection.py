"""A connection on a port that speaks TLS and plain text alike."""

from __future__ import annotations

import logging
import select
import socket

from broker.net.channel import peer_text
from broker.net.connection import Connection, Sockets
from broker.net.tls import HELLO, TlsError, TlsSession
from remoting.errors import ProtocolError

__all__ = ["TlsConnection"]

_LOG = logging.getLogger(__name__)

_IN, _OUT = select.EPOLLIN, select.EPOLLOUT


class TlsConnection(Connection):
    """A connection on a port with TLS. Its first byte tells whether it is TLS; a plain connection is handed on."""

    __slots__ = ("_session",)

    def __init__(self, server: Sockets, sock: socket.socket, peer: tuple[str, int]) -> None:
        super().__init__(server, sock, peer)
        self._session: TlsSession | None = None

    def ready(self, events: int) -> None:
        """Read or write, as the socket is ready for."""
        if events != _IN:
            if events & _OUT:
                self._drain()
            if self.closed or events == _OUT:
                return
        server = self._server
        try:
            if self._session is None and not self._begin():
                return
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
        self._received(server.view[:count])

    def _begin(self) -> bool:
        """Look at the first byte; answer whether TLS begins. Raises OSError if the socket fails."""
        server = self._server
        # Only looked at: a plain connection has to read it again.
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
            # The session has an alert for the peer by now.
            self.flush()
            self.shut()
            return
        if commands:
            self._handle(commands)
        self._count_input()
        # Handshakes have bytes to send without any reply.
        if session.waiting and not self._out:
            self._server.dirty(self)
        if ended:
            self.close()

    def flush(self) -> None:
        """Encrypt the gathered replies and send them."""
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
