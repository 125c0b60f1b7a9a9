"""A peer that answers as a test tells it to: name server and broker in one, in the test's own event loop."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from types import TracebackType
from typing import Self

from remoting.codes import RequestCode
from remoting.command import RemotingCommand, encode_command, request
from remoting.connection import FrameDecoder

__all__ = ["FakeBroker"]

Handler = Callable[[RemotingCommand], RemotingCommand | None]


class FakeBroker(asyncio.Protocol):
    """Serves requests from a table of code to handler; keeps all requests in ``requests``.

    A handler that returns None leaves the request without answer. Codes without handler get code 0. A route names this
    peer as the only broker, ``broker-a``, with ``queues`` queues, for the topics in ``topics``. Behind a request of a
    code in ``blocking`` nothing on the same connection is answered, as if it had very much to work off.
    """

    def __init__(self, topics: dict[str, int] | None = None) -> None:
        self.topics = topics or {}
        self.requests: list[RemotingCommand] = []
        self.handlers: dict[int, Handler] = {RequestCode.GET_ROUTEINFO_BY_TOPIC: self.route}
        self.transports: list[asyncio.Transport] = []
        self.blocking: set[int] = set()
        self.connects = 0
        self.port = 0
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        await self.listen()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def listen(self) -> None:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Peer(self), "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        self.drop_connections()
        assert self._server is not None
        self._server.close()
        await self._server.wait_closed()

    def drop_connections(self) -> None:
        for transport in self.transports:
            transport.abort()
        self.transports.clear()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def of(self, code: int) -> list[RemotingCommand]:
        """The requests of a code so far."""
        return [command for command in self.requests if command.code == code]

    def route(self, command: RemotingCommand) -> RemotingCommand:
        queues = self.topics.get(command.ext["topic"])
        if queues is None:
            return command.reply(17, "no route")
        data = {
            "brokerDatas": [
                {"brokerAddrs": {"0": self.address}, "brokerName": "broker-a", "cluster": "DefaultCluster"}
            ],
            "queueDatas": [{"brokerName": "broker-a", "perm": 6, "readQueueNums": queues, "writeQueueNums": queues}],
        }
        return command.reply(body=json.dumps(data, separators=(",", ":")).encode())

    def push(self, code: int, ext: dict[str, str], body: bytes = b"") -> None:
        """Send a one-way request to every client."""
        for transport in self.transports:
            transport.write(encode_command(request(code, ext, body, opaque=77, oneway=True)))


class _Peer(asyncio.Protocol):
    def __init__(self, owner: FakeBroker) -> None:
        self.owner = owner
        self.decoder = FrameDecoder()
        self.blocked = False
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.owner.connects += 1
        self.owner.transports.append(transport)

    def connection_lost(self, _exc: Exception | None) -> None:
        if self.transport in self.owner.transports:
            self.owner.transports.remove(self.transport)

    def data_received(self, data: bytes) -> None:
        for command in self.decoder.feed(data):
            self.owner.requests.append(command)
            self.blocked = self.blocked or command.code in self.owner.blocking
            if command.is_response or self.blocked:
                continue
            handler = self.owner.handlers.get(command.code, lambda command: command.reply())
            reply = handler(command)
            if reply is not None and not command.is_oneway and self.transport is not None:
                self.transport.write(encode_command(reply))
