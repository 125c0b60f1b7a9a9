"""The service's only sockets: the ports for senders, and a connection to the cluster for each connection of a sender.

A `PassageWire` is one connection. It reads frames and gives them to its user. It also tells its user when the peer does
not read fast enough (the high-water mark of asyncio's transports). Then the user stops reading from the other side.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from remoting.command import ProtocolError
from service.front.frames import HEADER_MAX_BYTES, FrameCutter, PassedFrame
from timewheel_client.net.connection import CONNECT_TIMEOUT_MS, split_address
from timewheel_client.net.tls import Tls, context_of
from timewheel_client.values.errors import ConnectionFailedError

__all__ = ["PassageWire", "WireUser", "dial", "listen"]

WRITE_HIGH_BYTES = 1 << 20
"""Unsent bytes of one connection from which on nothing more is read for it."""
BACKLOG = 1024


class WireUser(Protocol):
    """The user of a connection."""

    def opened(self, wire: PassageWire) -> None:
        """The connection is open."""
        ...

    def received(self, wire: PassageWire, frames: list[PassedFrame]) -> None:
        """Frames were read; none if only a part of a frame was."""
        ...

    def pressed(self, wire: PassageWire, full: bool) -> None:
        """The peer does not read fast enough, or does so again."""
        ...

    def lost(self, wire: PassageWire, why: str) -> None:
        """The connection is closed."""
        ...


class PassageWire(asyncio.Protocol):
    """One connection, of a sender or to the cluster."""

    def __init__(self, user: WireUser, header_max_bytes: int) -> None:
        self._user = user
        self._cutter = FrameCutter(header_max_bytes)
        self._transport: asyncio.Transport | None = None
        self._paused = False
        self._why = "closed by the other side"
        self.silent = 0
        """How often the connection was found silent since the last read; others count it up."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Tell the user."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.set_write_buffer_limits(WRITE_HIGH_BYTES)
        self._user.opened(self)

    def data_received(self, data: bytes) -> None:
        """Give complete frames to the user; close the connection at bytes that are no frame."""
        self.silent = 0
        try:
            frames = self._cutter.feed(data)
        except ProtocolError as error:
            self.abort(f"not RocketMQ's protocol: {error}")
            return
        self._user.received(self, frames)

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the user."""
        self._transport = None
        self._user.lost(self, str(exc) if exc is not None else self._why)

    def pause_writing(self) -> None:
        """Tell the user."""
        self._user.pressed(self, True)

    def resume_writing(self) -> None:
        """Tell the user."""
        self._user.pressed(self, False)

    @property
    def is_open(self) -> bool:
        """True if the connection is open for writing."""
        return self._transport is not None and not self._transport.is_closing()

    @property
    def pending_bytes(self) -> int:
        """Buffered bytes: of an unfinished frame, and unsent ones."""
        unsent = self._transport.get_write_buffer_size() if self._transport is not None else 0
        return self._cutter.pending_bytes + unsent

    @property
    def peer(self) -> str:
        """The peer's address, for texts."""
        name = self._transport.get_extra_info("peername") if self._transport is not None else None
        return f"{name[0]}:{name[1]}" if name else "unknown"

    @property
    def local_host(self) -> str:
        """Our own address on this connection."""
        name = self._transport.get_extra_info("sockname") if self._transport is not None else None
        return str(name[0]) if name else "127.0.0.1"

    def write(self, data: bytes) -> None:
        """Write a frame. On a closed connection this does nothing."""
        if self._transport is not None:
            self._transport.write(data)

    def read(self, wanted: bool) -> None:
        """Start or stop reading."""
        if self._transport is None or self._transport.is_closing() or wanted is not self._paused:
            return
        self._paused = not wanted
        if wanted:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()

    def close(self) -> None:
        """Close the connection once everything is written."""
        if self._transport is not None:
            self._transport.close()

    def abort(self, why: str) -> None:
        """Close the connection at once."""
        self._why = why
        if self._transport is not None:
            self._transport.abort()


async def listen(host: str, port: int, new_user: Callable[[], WireUser]) -> asyncio.Server:
    """Accept connections, each with a user of its own. Raises OSError."""
    loop = asyncio.get_running_loop()
    try:
        return await loop.create_server(
            lambda: PassageWire(new_user(), HEADER_MAX_BYTES), host, port, backlog=BACKLOG, reuse_address=True
        )
    except OSError as error:
        raise OSError(error.errno, f"cannot listen on {host}:{port}: {error.strerror}") from None


async def dial(address: str, user: WireUser, tls: Tls) -> PassageWire:
    """Connect to a server of the cluster. Raises ConnectionFailedError."""
    try:
        host, port = split_address(address)
        context = context_of(tls)
        async with asyncio.timeout(CONNECT_TIMEOUT_MS / 1000):
            _, wire = await asyncio.get_running_loop().create_connection(
                lambda: PassageWire(user, 0xFFFFFF), host, port, ssl=context, server_hostname=host if context else None
            )
    except TimeoutError:
        raise ConnectionFailedError(f"{address}: no connection within {CONNECT_TIMEOUT_MS} ms") from None
    except (OSError, ValueError) as error:
        raise ConnectionFailedError(f"{address}: {error}") from None
    return wire
