"""Requests to other servers (name servers), over one lasting connection to each."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from remoting.command import RemotingCommand

if TYPE_CHECKING:
    from broker.net.connection import Connection
    from broker.net.dispatcher import Dispatcher
    from broker.net.server import Server

__all__ = ["Requester"]


class Requester:
    """Sends requests to other servers. Only the network loop uses it."""

    def __init__(self, server: Server, dispatcher: Dispatcher) -> None:
        self._server = server
        self._dispatcher = dispatcher
        self._channels: dict[str, Connection] = {}
        self._connecting: dict[str, asyncio.Lock] = {}

    async def request(self, address: str, command: RemotingCommand, timeout_ms: int = 10_000) -> RemotingCommand:
        """Send a request to ``host:port`` and wait for its reply.

        Raises OSError if it cannot connect, TimeoutError if there is no reply in time.
        """
        channel = await self._channel(address)
        return await self._dispatcher.ask_command(channel, command, timeout_ms)

    async def _channel(self, address: str) -> Connection:
        async with self._connecting.setdefault(address, asyncio.Lock()):
            channel = self._channels.get(address)
            if channel is None or channel.closed:
                host, _, port = address.rpartition(":")
                channel = self._channels[address] = await self._server.connect(host, int(port))
            return channel
