"""A door without sockets: a sender's connection, the cluster's, and a cluster that answers as it is told."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, cast

from remoting.command import RemotingCommand, encode_command
from remoting.connection import FrameDecoder
from service.front.frames import FrameCutter
from service.front.passage import Passage
from service.front.places import BrokerPlace
from service.front.routes import Doors
from service.front.sending import SendsRoom
from service.front.wire import PassageWire
from service.link.cluster import ClusterLink
from timewheel_client.net.tls import Tls
from timewheel_client.values.errors import ConnectionFailedError, NoRouteError
from timewheel_client.values.routes import MessageQueue, TopicRoute

ENTRY = "TIMEWHEEL"


class MemoryWire:
    """A connection that keeps what is written to it."""

    def __init__(self) -> None:
        self.written = bytearray()
        self.reading = True
        self.is_open = True
        self.peer = "sender:1"
        self.local_host = "127.0.0.1"
        self.pending_bytes = 0
        self.silent = 0

    def write(self, data: bytes) -> None:
        if self.is_open:
            self.written += data

    def read(self, wanted: bool) -> None:
        self.reading = wanted

    def close(self) -> None:
        self.is_open = False

    def abort(self, why: str) -> None:
        assert why
        self.is_open = False

    def take(self) -> bytes:
        data = bytes(self.written)
        self.written.clear()
        return data

    def answers(self) -> list[RemotingCommand]:
        return FrameDecoder().feed(self.take())


class FakeConnections:
    """Requests to brokers: each waits in ``sent`` for its answer."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, int, dict[str, str], bytes, asyncio.Future[RemotingCommand]]] = []
        self.broken = False

    async def get(self, address: str) -> None:
        if self.broken:
            raise ConnectionFailedError(f"{address}: refused")

    async def request(
        self, address: str, code: int, ext: Mapping[str, str], body: bytes, *, timeout_ms: int
    ) -> RemotingCommand:
        assert timeout_ms > 0
        answer: asyncio.Future[RemotingCommand] = asyncio.get_running_loop().create_future()
        self.sent.append((address, code, dict(ext), body, answer))
        return await answer


class FakeCore:
    """Routes of the cluster."""

    name_servers = ("127.0.0.1:1",)

    def __init__(self) -> None:
        self.connections = FakeConnections()
        self.routes = {topic: route(topic, {"broker-a": 4, "broker-b": 2}) for topic in (ENTRY, "orders")}
        self.routes["closed"] = TopicRoute("closed", (), (), {})
        self.forgotten: list[str] = []

    async def route(self, topic: str) -> TopicRoute:
        if topic not in self.routes:
            raise NoRouteError(f"topic {topic} does not exist")
        return self.routes[topic]

    def forget(self, topic: str) -> None:
        self.forgotten.append(topic)

    def refresh_soon(self, topic: str) -> None:
        assert topic == ENTRY


def route(topic: str, queues: Mapping[str, int]) -> TopicRoute:
    made = tuple(MessageQueue(topic, name, number) for name in sorted(queues) for number in range(queues[name]))
    return TopicRoute(topic, made, made, {name: {0: f"{name}:10911"} for name in queues})


class FrontWorld:
    """A house with one door, to ``broker-a``, and one sender; ``far`` is the connection to the cluster."""

    tls: Tls = False

    def __init__(self, room_bytes: int = 1 << 20, signs: bool = False) -> None:
        self.core = FakeCore()

        async def address(_topic: str, broker: str) -> str:
            return f"{broker}:10911"

        self.cluster = cast(ClusterLink, SimpleNamespace(core=self.core, topic=ENTRY, address=address, signs=signs))
        self.room = SendsRoom(room_bytes)
        self.said: list[str] = []
        self.entered: list[Passage] = []
        self.dials = 0
        self.held_bytes = 0
        self.refuses = False
        self.gate = asyncio.Event()
        self.gate.set()
        self.place = BrokerPlace(self, "broker-a")
        self.place.dial = self._dial  # type: ignore[method-assign]
        self.near = MemoryWire()
        self.far = MemoryWire()
        self.passage = Passage(self.place)
        self.passage.opened(cast(PassageWire, self.near))

    async def _dial(self, passage: Passage) -> PassageWire:
        self.dials += 1
        await self.gate.wait()
        if self.refuses:
            raise ConnectionFailedError("broker-a:10911: refused")
        self.far = MemoryWire()
        passage.opened(cast(PassageWire, self.far))
        return cast(PassageWire, self.far)

    def enter(self, passage: Passage) -> bool:
        self.entered.append(passage)
        return True

    def leave(self, passage: Passage) -> None:
        self.entered.remove(passage)

    def hold(self, more_bytes: int) -> None:
        self.held_bytes += more_bytes

    def say(self, text: str) -> None:
        self.said.append(text)

    def doors(self, local_host: str) -> Doors:
        return {"i:1": self.own_doors(local_host)}

    def own_doors(self, local_host: str) -> Mapping[str, str]:
        return {"broker-a": f"{local_host}:2"}

    async def learn(self, route: Mapping[str, Any]) -> None:
        assert route

    async def master(self, broker: str, *, fresh: bool = False) -> str:
        return f"{broker}:1091{int(fresh)}"

    # ------------------------------------------------------------------------------------------------ steps

    async def sends(self, *commands: RemotingCommand) -> bytes:
        """The sender writes; everything that can go on does."""
        data = b"".join(map(encode_command, commands))
        self.passage.received(cast(PassageWire, self.near), FrameCutter().feed(data))
        await self.settle()
        return data

    async def answers(self, *commands: RemotingCommand) -> bytes:
        """The cluster writes."""
        data = b"".join(map(encode_command, commands))
        self.passage.received(cast(PassageWire, self.far), FrameCutter().feed(data))
        await self.settle()
        return data

    async def settle(self) -> None:
        for _ in range(20):
            await asyncio.sleep(0)
