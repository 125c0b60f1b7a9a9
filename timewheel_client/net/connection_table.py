"""Connections by address: opened on first use, and again after they broke or their peer went mute.

Concurrent callers share one connect. Only a request answered with GO_AWAY is repeated here, because it was not
executed; for any other request the caller must decide.

When a request times out and its peer has sent nothing at all for some time (`ClientConnection.is_mute`), the connection
leaves the table and the next request gets a new one. Requests in flight on the old one may still be answered for
`REQUEST_TIMEOUT_MS`; then they fail. Heartbeats go out every 30 s, so a half-open connection that is otherwise idle is
given up within 33 s, or sooner by the kernel's keep-alive.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from remoting.codes import ResponseCode
from remoting.command import RemotingCommand
from timewheel_client.net.connection import (
    CONNECT_TIMEOUT_MS,
    REQUEST_TIMEOUT_MS,
    ClientConnection,
    RequestHandler,
    split_address,
)
from timewheel_client.net.credentials import Credentials
from timewheel_client.net.tls import SSLContext
from timewheel_client.net.waiting import shared
from timewheel_client.values.errors import ClosedError, ConnectionFailedError, RequestTimeoutError

__all__ = ["ConnectionTable"]


class ConnectionTable:
    """Connections by address, opened on first use and again after they broke.

    Args:
        on_request: Serves what brokers ask of this client.
        on_open: Called with the address after each new connection (to send a heartbeat on it, for one).
        connect_timeout_ms: How long a connect may take.
        credentials: Sign every request, if there are some.
        tls: Encrypt every connection as it says; None: plain connections.
    """

    def __init__(
        self,
        on_request: RequestHandler | None = None,
        on_open: Callable[[str], None] | None = None,
        connect_timeout_ms: int = CONNECT_TIMEOUT_MS,
        credentials: Credentials | None = None,
        tls: SSLContext | None = None,
    ) -> None:
        self._credentials = credentials
        self._tls = tls
        self._on_request = on_request
        self._on_open = on_open
        self._connect_timeout_ms = connect_timeout_ms
        self._connections: dict[str, ClientConnection] = {}
        self._opening: dict[str, asyncio.Task[ClientConnection]] = {}
        self._leaving: set[ClientConnection] = set()
        self._closed = False

    def is_open(self, address: str) -> bool:
        """True if there is a connection to an address now."""
        connection = self._connections.get(address)
        return connection is not None and not connection.closed

    async def get(self, address: str) -> ClientConnection:
        """Return the connection to an address; concurrent callers share one connect.

        Raises ConnectionFailedError, or ClosedError if the client is closed.
        """
        connection = self._connections.get(address)
        if connection is not None and not connection.closed:
            return connection
        if self._closed:
            raise ClosedError("the client is closed")
        opening = self._opening.get(address)
        if opening is None:
            opening = self._opening[address] = asyncio.ensure_future(self._open(address))
            opening.add_done_callback(lambda task: self._opened(address, task))
        return await shared(opening)

    async def request(
        self,
        address: str,
        code: int,
        ext: Mapping[str, str] | None = None,
        body: bytes = b"",
        *,
        timeout_ms: int = REQUEST_TIMEOUT_MS,
    ) -> RemotingCommand:
        """Send a request to an address and await the reply, whatever its code; see `ClientConnection.request`.

        ``timeout_ms`` is for everything together, a connect included.
        """
        clock = asyncio.get_running_loop().time
        deadline = clock() + timeout_ms / 1000
        connection = self._connections.get(address)
        if connection is not None and not connection.closed:
            reply = await self._ask(connection, code, ext, body, timeout_ms)
            if reply.code != ResponseCode.GO_AWAY:
                return reply
            self._let_go(connection, "the peer told us to go away")
        for last in (False, True):
            connection = await self._get_until(address, deadline, code, timeout_ms)
            reply = await self._ask(connection, code, ext, body, max(1, int((deadline - clock()) * 1000)))
            if reply.code != ResponseCode.GO_AWAY or last:
                break
            self._let_go(connection, "the peer told us to go away")
        return reply

    async def oneway(
        self,
        address: str,
        code: int,
        ext: Mapping[str, str] | None = None,
        body: bytes = b"",
        *,
        timeout_ms: int = REQUEST_TIMEOUT_MS,
    ) -> None:
        """Send a request that gets no reply; see `ClientConnection.oneway`."""
        clock = asyncio.get_running_loop().time
        deadline = clock() + timeout_ms / 1000
        connection = await self._get_until(address, deadline, code, timeout_ms)
        try:
            await connection.oneway(code, ext, body, timeout_ms=max(1, int((deadline - clock()) * 1000)))
        except RequestTimeoutError:
            self._doubt(connection)
            raise

    async def close(self) -> None:
        """Close all of them, for good."""
        self._closed = True
        for opening in list(self._opening.values()):
            opening.cancel()
        await asyncio.gather(*self._opening.values(), return_exceptions=True)
        connections = [*self._connections.values(), *self._leaving]
        self._connections.clear()
        try:
            await asyncio.gather(*(connection.close() for connection in connections))
        finally:
            for connection in connections:
                connection.abort("the client is closed")

    async def _open(self, address: str) -> ClientConnection:
        try:
            split_address(address)
        except ValueError as error:  # of a route
            raise ConnectionFailedError(str(error)) from None
        return await ClientConnection.open(
            address,
            timeout_ms=self._connect_timeout_ms,
            on_request=self._on_request,
            credentials=self._credentials,
            tls=self._tls,
        )

    def _opened(self, address: str, task: asyncio.Task[ClientConnection]) -> None:
        self._opening.pop(address, None)
        if task.cancelled() or task.exception() is not None:
            return
        self._connections[address] = task.result()
        if self._closed:
            task.result().abort("the client is closed")
        elif self._on_open is not None:
            self._on_open(address)

    async def _get_until(self, address: str, deadline: float, code: int, timeout_ms: int) -> ClientConnection:
        """`get`, but not beyond a deadline; ``code`` and ``timeout_ms`` are for the error's text."""
        try:
            async with asyncio.timeout_at(deadline):
                return await self.get(address)
        except TimeoutError:
            raise RequestTimeoutError(f"{address}: no connection for request {code} within {timeout_ms} ms") from None

    async def _ask(
        self, connection: ClientConnection, code: int, ext: Mapping[str, str] | None, body: bytes, timeout_ms: int
    ) -> RemotingCommand:
        try:
            return await connection.request(code, ext, body, timeout_ms=timeout_ms)
        except RequestTimeoutError:
            self._doubt(connection)
            raise

    def _doubt(self, connection: ClientConnection) -> None:
        """Note that a request timed out: a peer that sends nothing else either may be gone."""
        if connection.is_mute():
            self._let_go(connection, "the peer does not answer any more")

    def _let_go(self, connection: ClientConnection, reason: str) -> None:
        """Remove a connection from the table, and close it once its requests in flight had time to be answered."""
        if self._connections.get(connection.address) is connection:
            del self._connections[connection.address]
        if not connection.closed and connection not in self._leaving:
            self._leaving.add(connection)
            asyncio.get_running_loop().call_later(REQUEST_TIMEOUT_MS / 1000, self._dismiss, connection, reason)

    def _dismiss(self, connection: ClientConnection, reason: str) -> None:
        self._leaving.discard(connection)
        connection.abort(reason)
