"""The client's only sockets: one connection with many requests in flight, and a table of connections by address.

Requests are numbered (opaque); replies come in any order and are given to whoever waits for that number. All frames
that are written in one turn of the event loop go out in one write, so a hundred tasks that send at once cost one system
call, not a hundred. A peer that reads slowly makes the writers wait (the transport's high-water mark).

A connection that breaks fails what is in flight on it; the table makes a new one when the next request asks
for that address. Nothing is repeated here but a request that was answered with GO_AWAY, which was not
executed: whether anything else may be repeated only the caller knows.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Mapping

from remoting.codes import ResponseCode
from remoting.command import ProtocolError, RemotingCommand, encode_command, request
from remoting.connection import FrameDecoder
from timewheel_client.credentials import Credentials
from timewheel_client.errors import ClosedError, ConnectionFailedError, RequestTimeoutError

__all__ = ["Connection", "ConnectionTable", "RequestHandler", "split_address"]

log = logging.getLogger("timewheel_client")

RequestHandler = Callable[[RemotingCommand], RemotingCommand | None]
"""Answers a request that a broker sends to the client; None: not known here."""

CONNECT_TIMEOUT_MS = 3_000
REQUEST_TIMEOUT_MS = 3_000
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
        self._reason = "connection closed"

    @classmethod
    async def open(
        cls,
        address: str,
        *,
        timeout_ms: int = CONNECT_TIMEOUT_MS,
        on_request: RequestHandler | None = None,
        credentials: Credentials | None = None,
    ) -> Connection:
        """Connect to ``HOST:PORT``; raises ConnectionFailedError, also when it takes too long.

        With ``credentials`` every request is signed.
        """
        host, port = split_address(address)
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                _, protocol = await loop.create_connection(lambda: cls(address, on_request, credentials), host, port)
        except TimeoutError:
            raise ConnectionFailedError(f"{address}: no connection within {timeout_ms} ms") from None
        except OSError as error:
            # asyncio's own text repeats the address.
            reason = os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror or error
            raise ConnectionFailedError(f"{address}: {reason}") from error
        return protocol

    # -------------------------------------------------------------------------------------- asyncio calls these

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Give each reply to its waiter and each request to the handler."""
        try:
            commands = self._decoder.feed(data)
        except ProtocolError as error:
            self._abort(f"not the protocol: {error}")
            return
        for command in commands:
            if command.is_response:
                waiter = self._waiting.pop(command.opaque, None)
                if waiter is not None and not waiter.done():
                    waiter.set_result(command)
            else:
                self._handle(command)

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
        if not self._writable.is_set():
            await self._writable.wait()
        opaque = self._next_opaque = self._next_opaque + 1 & _OPAQUE_MASK
        waiter: asyncio.Future[RemotingCommand] = self._loop.create_future()
        self._write(encode_command(request(code, self._fields(ext, body), body, opaque=opaque)))
        self._waiting[opaque] = waiter
        timer = self._loop.call_later(timeout_ms / 1000, self._expire, opaque, code, timeout_ms)
        try:
            return await waiter
        finally:
            timer.cancel()
            self._waiting.pop(opaque, None)

    async def oneway(self, code: int, ext: Mapping[str, str] | None = None, body: bytes = b"") -> None:
        """Send a request that gets no reply; raises ConnectionFailedError if the connection is known to be gone."""
        if not self._writable.is_set():
            await self._writable.wait()
        opaque = self._next_opaque = self._next_opaque + 1 & _OPAQUE_MASK
        self._write(encode_command(request(code, self._fields(ext, body), body, opaque=opaque, oneway=True)))

    async def close(self) -> None:
        """Write out what is waiting, then close; what is in flight fails."""
        self._flush()
        if self._transport is not None:
            self._transport.close()
            try:
                async with asyncio.timeout(1):
                    await asyncio.shield(self._lost)
            except TimeoutError:
                self._abort("closed while the peer did not read")

    # -------------------------------------------------------------------------------------- inside

    def _fields(self, ext: Mapping[str, str] | None, body: bytes) -> dict[str, str] | None:
        if self._credentials is not None:
            return self._credentials.signed(ext, body)
        return dict(ext) if ext else None

    def _broken(self) -> ConnectionFailedError:
        return ConnectionFailedError(f"{self.address}: {self._reason}")

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
        if not command.is_oneway and self._transport is not None:
            text = f"request type {command.code} not supported"
            self._write(
                encode_command(reply or command.reply(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, text)),
            )

    def _abort(self, reason: str) -> None:
        self._reason = reason
        if self._transport is not None:
            self._transport.abort()


class ConnectionTable:
    """Connections by address, made when first wanted and made anew when they broke.

    Args:
        on_request: Serves what brokers ask of this client.
        on_open: Called with the address after each new connection (to send a heartbeat on it, for one).
        connect_timeout_ms: How long a connect may take.
        credentials: Sign every request, if there are some.
    """

    def __init__(
        self,
        on_request: RequestHandler | None = None,
        on_open: Callable[[str], None] | None = None,
        connect_timeout_ms: int = CONNECT_TIMEOUT_MS,
        credentials: Credentials | None = None,
    ) -> None:
        self._credentials = credentials
        self._on_request = on_request
        self._on_open = on_open
        self._connect_timeout_ms = connect_timeout_ms
        self._connections: dict[str, Connection] = {}
        self._opening: dict[str, asyncio.Task[Connection]] = {}
        self._leaving: set[Connection] = set()
        self._closed = False

    def is_open(self, address: str) -> bool:
        """Whether there is a connection to an address now."""
        connection = self._connections.get(address)
        return connection is not None and not connection.closed

    async def get(self, address: str) -> Connection:
        """The connection to an address; raises ConnectionFailedError. Those who ask at once share one connect."""
        connection = self._connections.get(address)
        if connection is not None and not connection.closed:
            return connection
        if self._closed:
            raise ClosedError("the client is closed")
        opening = self._opening.get(address)
        if opening is None:
            opening = self._opening[address] = asyncio.ensure_future(self._open(address))
            opening.add_done_callback(lambda task: self._opened(address, task))
        return await asyncio.shield(opening)

    async def request(
        self,
        address: str,
        code: int,
        ext: Mapping[str, str] | None = None,
        body: bytes = b"",
        *,
        timeout_ms: int = REQUEST_TIMEOUT_MS,
    ) -> RemotingCommand:
        """Send a request to an address and await the reply, whatever its code; see `Connection.request`."""
        connection = self._connections.get(address)
        if connection is None or connection.closed:
            connection = await self.get(address)
        reply = await connection.request(code, ext, body, timeout_ms=timeout_ms)
        if reply.code == ResponseCode.GO_AWAY:
            self._let_go(connection)
            reply = await (await self.get(address)).request(code, ext, body, timeout_ms=timeout_ms)
        return reply

    async def oneway(self, address: str, code: int, ext: Mapping[str, str] | None = None, body: bytes = b"") -> None:
        """Send a request that gets no reply; see `Connection.oneway`."""
        await (await self.get(address)).oneway(code, ext, body)

    async def close(self) -> None:
        """Close all of them, for good."""
        self._closed = True
        for opening in list(self._opening.values()):
            opening.cancel()
        await asyncio.gather(*self._opening.values(), return_exceptions=True)
        connections = [*self._connections.values(), *self._leaving]
        self._connections.clear()
        await asyncio.gather(*(connection.close() for connection in connections))

    async def _open(self, address: str) -> Connection:
        return await Connection.open(
            address,
            timeout_ms=self._connect_timeout_ms,
            on_request=self._on_request,
            credentials=self._credentials,
        )

    def _opened(self, address: str, task: asyncio.Task[Connection]) -> None:
        self._opening.pop(address, None)
        if task.cancelled() or task.exception() is not None:
            return
        self._connections[address] = task.result()
        if self._on_open is not None and not self._closed:
            self._on_open(address)

    def _let_go(self, connection: Connection) -> None:
        """Use a connection no more, and close it when its last reply is in."""
        if self._connections.get(connection.address) is connection:
            del self._connections[connection.address]
        if not connection.closed and connection not in self._leaving:
            self._leaving.add(connection)
            asyncio.get_running_loop().call_later(REQUEST_TIMEOUT_MS / 1000, self._dismiss, connection)

    def _dismiss(self, connection: Connection) -> None:
        self._leaving.discard(connection)
        connection._abort("the peer told us to go away")  # our own class
