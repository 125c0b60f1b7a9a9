"""The client's only sockets: one connection with many requests in flight.

Requests are numbered (opaque). Replies come in any order; each goes to the task that waits for its number. All frames
of one turn of the event loop go out in one write, so a hundred tasks that send at once cost one system call, not a
hundred. A peer that reads slowly makes the writers wait (the transport's high-water mark), each at most until its
request's timeout.

When a connection breaks, its requests in flight fail. If the peer vanishes without closing (a power cut, a network that
drops everything), the connection does not break by itself. The kernel then probes an idle connection and gives up
unacknowledged data (`KEEP_ALIVE`). And `is_mute` tells whether the peer leaves requests unanswered and sends nothing
else, so that the table (`timewheel_client.net.connection_table`) can open a new connection.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import Callable, Mapping

from remoting.codes import ResponseCode
from remoting.command import ProtocolError, RemotingCommand, encode_command, request
from remoting.connection import FrameDecoder
from timewheel_client.net.credentials import Credentials
from timewheel_client.net.deadlines import Deadlines
from timewheel_client.net.guarded import GuardedFrames
from timewheel_client.values.errors import ClientError, ConnectionFailedError, NotWrittenError, RequestTimeoutError
from timewheel_client.values.log import log

__all__ = ["CONNECT_TIMEOUT_MS", "REQUEST_TIMEOUT_MS", "ClientConnection", "RequestHandler", "split_address"]


RequestHandler = Callable[[RemotingCommand], RemotingCommand | None]
"""Answers a request that a broker sends to the client; None: not known here."""

CONNECT_TIMEOUT_MS = 3_000
REQUEST_TIMEOUT_MS = 3_000
CLOSE_TIMEOUT_MS = 1_000
MUTE_MS = 2_000
"""Silence of a peer, with requests waiting, after which a timeout counts against its connection."""
KEEP_ALIVE = {"TCP_KEEPIDLE": 15, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 30_000}
UNACKNOWLEDGED = ("TCP_USER_TIMEOUT",)
"""Socket options, where supported: probe after 15 s idle, every 5 s, 3 times; give up data unacknowledged for 30 s."""
_OPAQUE_MASK = 0x7FFFFFFF
_LOOK_AGAIN_S = 0.001


def split_address(address: str) -> tuple[str, int]:
    """Split ``HOST:PORT``; raises ValueError.

    >>> split_address("127.0.0.1:9876"), split_address("[::1]:9876")
    (('127.0.0.1', 9876), ('::1', 9876))
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
        raise ValueError(f"expected HOST:PORT, found {address!r}")
    return host.removeprefix("[").removesuffix("]"), int(port)


class ClientConnection(asyncio.Protocol):
    """One connection to a broker or name server; made by `ClientConnection.open`, used from one event loop."""

    def __init__(
        self, address: str, on_request: RequestHandler | None = None, credentials: Credentials | None = None
    ) -> None:
        self.address = address
        self._credentials = credentials
        self._on_request = on_request
        self._decoder = FrameDecoder()
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._waiting: dict[int, asyncio.Future[RemotingCommand]] = {}
        self._deadlines = Deadlines(self._loop, self._waiting, self._expire)
        self._next_opaque = 0
        self._frames: list[bytes] = []
        self._guarded = GuardedFrames()
        self._is_flush_due = False
        self._writable = asyncio.Event()
        self._writable.set()
        self._lost = self._loop.create_future()
        self._unanswered_since: float | None = None
        self._reason = "connection closed"

    @classmethod
    async def open(
        cls,
        address: str,
        *,
        timeout_ms: int = CONNECT_TIMEOUT_MS,
        on_request: RequestHandler | None = None,
        credentials: Credentials | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> ClientConnection:
        """Connect to ``HOST:PORT``; raises ConnectionFailedError, also when it takes too long.

        With ``credentials`` every request is signed; with ``tls`` the connection is encrypted as the context says.
        """
        host, port = split_address(address)
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                _, protocol = await loop.create_connection(
                    lambda: cls(address, on_request, credentials),
                    host,
                    port,
                    ssl=tls,
                    server_hostname=host if tls else None,
                    ssl_shutdown_timeout=CLOSE_TIMEOUT_MS / 1000 if tls else None,
                )
        except TimeoutError:
            raise ConnectionFailedError(f"{address}: no connection within {timeout_ms} ms") from None
        except ssl.SSLCertVerificationError as error:
            text = f"{address}: the certificate is not trusted: {error.verify_message}"
            raise ConnectionFailedError(text) from error
        except ssl.SSLError as error:
            raise ConnectionFailedError(f"{address}: TLS failed: {error.reason or error}") from error
        except OSError as error:
            # asyncio's own text repeats the address.
            reason = os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror or error
            raise ConnectionFailedError(f"{address}: {reason}") from error
        except ValueError as error:  # an impossible host name: UnicodeError, an embedded NUL
            raise ConnectionFailedError(f"{address!r:.300}: not the name of a host: {error}") from error
        return protocol

    # -------------------------------------------------------------------------------------- asyncio calls these

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        plain = transport.get_extra_info("socket")
        if plain is not None:
            _keep_alive(plain)

    def data_received(self, data: bytes) -> None:
        """Pass each reply to its waiting task and each request to the handler."""
        try:
            commands = self._decoder.feed(data)
        except ProtocolError as error:
            self.abort(f"not the protocol: {error}")
            return
        for command in commands:
            if command.is_response:
                waiter = self._waiting.pop(command.opaque, None)
                if waiter is not None and not waiter.done():
                    waiter.set_result(command)
            else:
                self._handle(command)
        self._unanswered_since = self._loop.time() if self._waiting else None

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail the requests in flight."""
        if exc is not None:
            self._reason = f"connection lost: {exc}"
        self._transport = None
        self._writable.set()
        waiting = list(self._waiting.values())
        self._waiting.clear()
        for waiter in waiting:
            if not waiter.done():
                waiter.set_exception(self._broken())
        if not self._lost.done():
            self._lost.set_result(None)

    def pause_writing(self) -> None:
        """Make writers wait: the peer does not keep up."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """Let writers go on."""
        self._writable.set()

    # -------------------------------------------------------------------------------------- callers use these

    @property
    def closed(self) -> bool:
        """True if the connection is gone."""
        return self._transport is None

    @property
    def local_host(self) -> str:
        """Our own IP address on this connection."""
        name = self._transport.get_extra_info("sockname") if self._transport else None
        return str(name[0]) if name else "127.0.0.1"

    @property
    def in_flight(self) -> int:
        """Number of requests without a reply."""
        return len(self._waiting)

    async def request(
        self,
        code: int,
        ext: Mapping[str, str] | None = None,
        body: bytes = b"",
        *,
        timeout_ms: int = REQUEST_TIMEOUT_MS,
    ) -> RemotingCommand:
        """Send a request and await its reply, whatever its code.

        Raises ConnectionFailedError, RequestTimeoutError, or ProtocolError for a request that fits no frame.
        """
        began = self._loop.time()
        if not self._writable.is_set():
            await self._wait_writable(code, timeout_ms)
        opaque = self._free_opaque()
        waiter: asyncio.Future[RemotingCommand] = self._loop.create_future()
        self._write(encode_command(request(code, self._fields(ext, body), body, opaque=opaque)))
        self._waiting[opaque] = waiter
        if self._unanswered_since is None:
            self._unanswered_since = began
        timer = self._loop.call_at(began + timeout_ms / 1000, self._expire, opaque, code, timeout_ms)
        try:
            return await waiter
        finally:
            timer.cancel()
            if self._waiting.get(opaque) is waiter:
                del self._waiting[opaque]

    @property
    def is_writable(self) -> bool:
        """True if bytes written now are sent at once, because the peer keeps up."""
        transport = self._transport
        return transport is not None and self._writable.is_set() and not transport.get_write_buffer_size()

    def request_now(
        self,
        code: int,
        ext: Mapping[str, str],
        body: bytes,
        *,
        timeout_ms: int,
        may: Callable[[], bool] | None = None,
    ) -> asyncio.Future[RemotingCommand]:
        """Write a request in this turn of the loop, without waiting for anything; the future has its reply or error.

        For a sender who may write now and perhaps not a moment later: ``may`` is asked immediately before the system
        call that writes. If it says no, nothing is written, and the future has a NotWrittenError. What the peer takes
        not in is kept back until then. Raises as `request` does, but for timeouts; if it raises, nothing was written.
        """
        opaque = self._free_opaque()
        waiter: asyncio.Future[RemotingCommand] = self._loop.create_future()
        frame = encode_command(request(code, self._fields(ext, body), body, opaque=opaque))
        if may is None:
            self._write(frame)
        else:
            self._flush_soon()
            self._guarded.add(opaque, frame, may)
        self._waiting[opaque] = waiter
        if self._unanswered_since is None:
            self._unanswered_since = self._loop.time()
        self._deadlines.add(opaque, code, timeout_ms)
        return waiter

    def limit_unacknowledged(self, most_ms: int) -> None:
        """Have the kernel break the connection, and drop what is unsent, when the peer does not take it in time.

        Where the system can (TCP_USER_TIMEOUT): else a cut that heals may deliver what was written long before.
        """
        plain = self._transport.get_extra_info("socket") if self._transport else None
        for name in UNACKNOWLEDGED:
            option = getattr(socket, name, None)
            if plain is not None and option is not None:
                plain.setsockopt(socket.IPPROTO_TCP, option, most_ms)

    async def oneway(
        self,
        code: int,
        ext: Mapping[str, str] | None = None,
        body: bytes = b"",
        *,
        timeout_ms: int = REQUEST_TIMEOUT_MS,
    ) -> None:
        """Send a request that gets no reply.

        Raises ConnectionFailedError if the connection is known to be gone, RequestTimeoutError if the peer does not
        read.
        """
        if not self._writable.is_set():
            await self._wait_writable(code, timeout_ms)
        opaque = self._free_opaque()
        self._write(encode_command(request(code, self._fields(ext, body), body, opaque=opaque, oneway=True)))

    def is_mute(self) -> bool:
        """True if requests have waited for `MUTE_MS` without a byte from the peer."""
        since = self._unanswered_since
        return since is not None and self._loop.time() - since >= MUTE_MS / 1000

    def abort(self, reason: str) -> None:
        """Break the connection; requests in flight fail with this reason."""
        self._reason = reason
        if self._transport is not None:
            self._transport.abort()

    async def close(self) -> None:
        """Write the waiting frames, then close; requests in flight fail. Takes `CLOSE_TIMEOUT_MS` at most."""
        self._flush()
        if self._transport is not None:
            self._transport.close()
            try:
                async with asyncio.timeout(CLOSE_TIMEOUT_MS / 1000):
                    await asyncio.shield(self._lost)
            except TimeoutError:
                self.abort("closed while the peer did not read")
            except asyncio.CancelledError:
                self.abort("closed because its close was cancelled")
                raise

    # -------------------------------------------------------------------------------------- inside

    def _fields(self, ext: Mapping[str, str] | None, body: bytes) -> dict[str, str] | None:
        if self._credentials is not None:
            return self._credentials.signed(ext, body)
        return dict(ext) if ext else None

    def _broken(self) -> ConnectionFailedError:
        return ConnectionFailedError(f"{self.address}: {self._reason}")

    def _free_opaque(self) -> int:
        """The next request's number, skipping numbers that still wait for a reply."""
        opaque = self._next_opaque + 1 & _OPAQUE_MASK
        while opaque in self._waiting:
            opaque = opaque + 1 & _OPAQUE_MASK
        self._next_opaque = opaque
        return opaque

    async def _wait_writable(self, code: int, timeout_ms: int) -> None:
        """Wait until the peer has read; from then on the request counts as waiting for a mute peer."""
        if self._unanswered_since is None:
            self._unanswered_since = self._loop.time()
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await self._writable.wait()
        except TimeoutError:
            text = f"{self.address}: request {code} could not be written within {timeout_ms} ms: the peer does not read"
            raise RequestTimeoutError(text) from None

    def _write(self, frame: bytes) -> None:
        self._flush_soon()
        self._frames.append(frame)

    def _flush_soon(self) -> None:
        """Have what is added now written at the end of this turn. Raises ConnectionFailedError."""
        if self._transport is None:
            raise self._broken()
        if not self._is_flush_due:
            self._is_flush_due = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._is_flush_due = False
        frames, self._frames = self._frames, []
        transport = self._transport
        if frames and transport is not None:
            transport.write(b"".join(frames))
        while self._guarded and transport is not None and not transport.is_closing():
            if transport.get_write_buffer_size():  # behind that it would be written when nobody asks any more
                self._is_flush_due = True
                self._loop.call_later(_LOOK_AGAIN_S, self._flush)
                return
            allowed, refused = self._guarded.take(self._waiting)
            transport.write(b"".join(allowed))
            for opaque in refused:
                self._fail(opaque, NotWrittenError(f"{self.address}: not written: its sender may not write any more"))

    def _expire(self, opaque: int, code: int, timeout_ms: int) -> None:
        self._fail(opaque, RequestTimeoutError(f"{self.address}: no reply to request {code} within {timeout_ms} ms"))

    def _fail(self, opaque: int, error: ClientError) -> None:
        """End the wait for one reply, if it still lasts."""
        waiter = self._waiting.pop(opaque, None)
        if waiter is not None and not waiter.done():
            waiter.set_exception(error)

    def _handle(self, command: RemotingCommand) -> None:
        """Serve a request of the peer; an error of the handler must not close the connection."""
        reply: RemotingCommand | None = None
        if self._on_request is not None:
            try:
                reply = self._on_request(command)
            except Exception:
                log.exception("request %d from %s could not be handled", command.code, self.address)
        if not self._writable.is_set():
            self.abort("the peer asks and does not read the answers")
        elif not command.is_oneway and self._transport is not None:
            text = f"request type {command.code} not supported"
            self._write(encode_command(reply or command.reply(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, text)))


def _keep_alive(plain: socket.socket) -> None:
    """Set the keep-alive options that this system supports, so that the kernel notices a vanished peer."""
    try:
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in KEEP_ALIVE.items():
            option = getattr(socket, name, None)
            if option is not None:
                plain.setsockopt(socket.IPPROTO_TCP, option, value)
    except OSError as error:
        log.debug("keep-alive: %s", error)
