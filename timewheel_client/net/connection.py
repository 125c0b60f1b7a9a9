"""The client's only sockets: one connection with many requests in flight.

Requests are numbered (opaque); replies come in any order and are given to whoever waits for that number. All frames
that are written in one turn of the event loop go out in one write, so a hundred tasks that send at once cost one system
call, not a hundred. A peer that reads slowly makes the writers wait (the transport's high-water mark), each for as long
as its request may take.

A connection that breaks fails what is in flight on it. One whose peer has vanished without a word (a machine without
power, a network that drops everything) never breaks by itself. The kernel probes it while it is idle and gives up what
is not acknowledged (`KEEP_ALIVE`); and `is_mute` says whether the peer leaves requests unanswered and says nothing else
either, so that the table (`timewheel_client.net.connection_table`) can make a new connection.
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
from timewheel_client.values.errors import ConnectionFailedError, RequestTimeoutError
from timewheel_client.values.log import log

__all__ = ["CONNECT_TIMEOUT_MS", "REQUEST_TIMEOUT_MS", "Connection", "RequestHandler", "split_address"]


RequestHandler = Callable[[RemotingCommand], RemotingCommand | None]
"""Answers a request that a broker sends to the client; None: not known here."""

CONNECT_TIMEOUT_MS = 3_000
REQUEST_TIMEOUT_MS = 3_000
CLOSE_TIMEOUT_MS = 1_000
MUTE_MS = 2_000
"""How long a peer must have said nothing, with requests waiting, before a timeout counts against its connection."""
KEEP_ALIVE = {"TCP_KEEPIDLE": 15, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 30_000}
"""Socket options, where there are such: probe after 15 s idle, every 5 s, 3 times; unacknowledged data for 30 s."""
_OPAQUE_MASK = 0x7FFFFFFF


def split_address(address: str) -> tuple[str, int]:
    """Split ``HOST:PORT``; raises ValueError.

    >>> split_address("127.0.0.1:9876"), split_address("[::1]:9876")
    (('127.0.0.1', 9876), ('::1', 9876))
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
        raise ValueError(f"expected HOST:PORT, found {address!r}")
    return host.removeprefix("[").removesuffix("]"), int(port)


class Connection(asyncio.Protocol):
    """One connection to a broker or name server; made by `Connection.open`, used from one event loop."""

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
        self._next_opaque = 0
        self._frames: list[bytes] = []
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
    ) -> Connection:
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
        except ValueError as error:  # a name that cannot be one: UnicodeError, an embedded NUL
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
        """Give each reply to its waiter and each request to the handler."""
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
        """Fail what is in flight."""
        if exc is not None:
            self._reason = f"connection lost: {exc}"
        self._transport = None
        self._writable.set()
        waiting, self._waiting = self._waiting, {}
        for waiter in waiting.values():
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
        """Whether the connection is gone."""
        return self._transport is None

    @property
    def local_host(self) -> str:
        """Our own IP address on this connection."""
        name = self._transport.get_extra_info("sockname") if self._transport else None
        return str(name[0]) if name else "127.0.0.1"

    @property
    def in_flight(self) -> int:
        """How many replies are awaited."""
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
        """Whether requests have waited for `MUTE_MS` in which the peer said nothing at all."""
        since = self._unanswered_since
        return since is not None and self._loop.time() - since >= MUTE_MS / 1000

    def abort(self, reason: str) -> None:
        """Break the connection; what is in flight fails with this reason."""
        self._reason = reason
        if self._transport is not None:
            self._transport.abort()

    async def close(self) -> None:
        """Write out what is waiting, then close; what is in flight fails. Takes `CLOSE_TIMEOUT_MS` at most."""
        self._flush()
        if self._transport is not None:
            self._transport.close()
            try:
                async with asyncio.timeout(CLOSE_TIMEOUT_MS / 1000):
                    await asyncio.shield(self._lost)
            except TimeoutError:
                self.abort("closed while the peer did not read")
            except asyncio.CancelledError:
                self.abort("closed in haste")
                raise

    # -------------------------------------------------------------------------------------- inside

    def _fields(self, ext: Mapping[str, str] | None, body: bytes) -> dict[str, str] | None:
        if self._credentials is not None:
            return self._credentials.signed(ext, body)
        return dict(ext) if ext else None

    def _broken(self) -> ConnectionFailedError:
        return ConnectionFailedError(f"{self.address}: {self._reason}")

    def _free_opaque(self) -> int:
        """The next request's number; one that still waits for its reply is passed over."""
        opaque = self._next_opaque + 1 & _OPAQUE_MASK
        while opaque in self._waiting:
            opaque = opaque + 1 & _OPAQUE_MASK
        self._next_opaque = opaque
        return opaque

    async def _wait_writable(self, code: int, timeout_ms: int) -> None:
        """Wait until the peer has read; whoever waits begins to count against a mute peer."""
        if self._unanswered_since is None:
            self._unanswered_since = self._loop.time()
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await self._writable.wait()
        except TimeoutError:
            text = f"{self.address}: request {code} could not be written within {timeout_ms} ms: the peer does not read"
            raise RequestTimeoutError(text) from None

    def _write(self, frame: bytes) -> None:
        if self._transport is None:
            raise self._broken()
        if not self._frames:
            self._loop.call_soon(self._flush)
        self._frames.append(frame)

    def _flush(self) -> None:
        frames, self._frames = self._frames, []
        if frames and self._transport is not None:
            self._transport.write(b"".join(frames))

    def _expire(self, opaque: int, code: int, timeout_ms: int) -> None:
        waiter = self._waiting.pop(opaque, None)
        if waiter is not None and not waiter.done():
            text = f"{self.address}: no reply to request {code} within {timeout_ms} ms"
            waiter.set_exception(RequestTimeoutError(text))

    def _handle(self, command: RemotingCommand) -> None:
        """Serve a request of the peer's; a fault of the handler must not cost the connection."""
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
            self._write(
                encode_command(reply or command.reply(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, text)),
            )


def _keep_alive(plain: socket.socket) -> None:
    """Have the kernel find out that a peer is gone; systems without an option do without it."""
    try:
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in KEEP_ALIVE.items():
            option = getattr(socket, name, None)
            if option is not None:
                plain.setsockopt(socket.IPPROTO_TCP, option, value)
    except OSError as error:
        log.debug("keep-alive: %s", error)
