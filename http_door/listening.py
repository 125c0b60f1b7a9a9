"""The sockets of the HTTP door, and nothing else. They are bound early; the door's own thread listens on them."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import NamedTuple

__all__ = ["BoundSocket", "bind", "listen"]

_BACKLOG = 128


class BoundSocket(NamedTuple):
    """A bound socket that does not listen yet, and its port."""

    sock: socket.socket
    port: int


def bind(host: str, port: int) -> BoundSocket:
    """Bind an address.

    Raises OSError, with the address in its text, if it cannot be bound.
    """
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((host, port))
    except OSError as error:
        sock.close()
        raise OSError(error.errno, f"cannot listen for HTTP on {host}:{port}: {error.strerror}") from None
    return BoundSocket(sock, int(sock.getsockname()[1]))


async def listen(bound: BoundSocket, make: Callable[[], asyncio.Protocol]) -> asyncio.Server:
    """Listen in the running loop; ``make`` is called for each connection.

    Raises OSError, with the address in its text, if another socket listens there.
    """
    host, port = bound.sock.getsockname()
    try:
        return await asyncio.get_running_loop().create_server(make, sock=bound.sock, backlog=_BACKLOG)
    except OSError as error:
        raise OSError(error.errno, f"cannot listen for HTTP on {host}:{port}: {error.strerror}") from None
