"""``--listen HOST:PORT``: an instance acts as name server and brokers, for senders that stay as they are.

``PORT`` is the name server's. After it, each broker of the cluster has a port of its own, its *door*. So queue ids and
everything else in a request mean what the sender means, although not every client names the broker in its requests.

Instances find each other through the cluster: the name of an instance as a member of the service's group ends in its
address. They ask each other for their doors. The routes of each instance name the doors of all that answer.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import re
from collections.abc import Mapping, Sequence
from typing import Any

from remoting.codes import RequestCode
from remoting.command import ProtocolError
from remoting.json_dialect import loads
from service.front.passage import Passage
from service.front.places import DOORS, BrokerPlace, NamesPlace
from service.front.routes import Doors
from service.front.sending import SendsRoom
from service.front.wire import listen
from service.link.clock import mono_ms
from service.link.cluster import ClusterLink
from timewheel_client.net.connection import ClientConnection
from timewheel_client.net.tls import Tls
from timewheel_client.values.errors import ClientError, NoRouteError
from timewheel_client.values.routes import masters_of

__all__ = ["SenderFront", "address_in"]

_LOG = logging.getLogger(__name__)

MARK = "~"
"""Before the address in an instance's name as a member."""
DOORS_MAX = 256
PORTS_TRIED = 32
"""Ports that are tried for a door before it is given up: others may be in use."""
PEERS_EVERY_MS = 3000
PEER_TIMEOUT_MS = 1000
SWEEP_MS = 10_000
IDLE_SWEEPS = 12
"""Sweeps in which a sender was silent after which its connection is closed: two minutes, as at brokers."""
CONNECTIONS_MAX = 10_000
HELD_MAX_BYTES = 256 << 20
"""Bytes kept for all senders (unfinished frames, what the other side does not take) above which connections end."""
END_MS = 4000
_ANYWHERE = ("", "0.0.0.0", "::")


def address_in(member: str) -> str | None:
    """The address in the name of a member; None if it has none.

    >>> address_in("192.0.2.1@7#99~192.0.2.1:9870"), address_in("192.0.2.1@7#99")
    ('192.0.2.1:9870', None)
    """
    _, mark, address = member.rpartition(MARK)
    return address if mark and re.fullmatch(r"[^:~]+:[0-9]{1,5}", address) else None


class SenderFront:
    """The doors of one instance; a `House`.

    Args:
        cluster: The instance's link to the cluster. Senders use a second link with connections of its own, so that
            the requests that keep shards owned never wait behind their sends.
        host, port: Where to listen.
        tls: TLS of the connections to the cluster. Senders connect without TLS.
    """

    def __init__(self, cluster: ClusterLink, host: str, port: int, tls: Tls) -> None:
        self._instance_link = cluster
        self.cluster = cluster.beside()
        self.room = SendsRoom()
        self.tls = tls
        self._host = host
        self._port = port
        self._names = NamesPlace(self, self.cluster.core.name_servers)
        self._places: dict[str, BrokerPlace] = {}
        self._ports: dict[str, int] = {}
        self._masters: dict[str, str] = {}
        self._servers: list[asyncio.Server] = []
        self._passages: set[Passage] = set()
        self._members: list[str] = []
        self._peers: dict[str, dict[str, str]] = {}
        self._opening = asyncio.Lock()
        self._changed = asyncio.Event()
        self._chores: list[asyncio.Task[None]] = []
        self._told: dict[str, int] = {}
        self._held_bytes = 0

    # ------------------------------------------------------------------------------------------------ life

    @property
    def instance(self) -> str:
        """The address by which other instances know this one."""
        host = self._instance_link.core.local_host if self._host in _ANYWHERE else self._host
        return f"{host}:{self._port}"

    def name(self) -> str:
        """The end of the instance's name as a member."""
        return MARK + self.instance

    async def open(self) -> None:
        """Open the ports. Raises OSError, ClientError."""
        await self.cluster.core.start()
        try:
            await self._listen()
        except BaseException:
            await self.close()
            raise

    async def _listen(self) -> None:
        self._masters = await self.cluster.core.masters()
        for broker in sorted(self._masters):
            await self._open_door(broker)
        self._servers.append(await listen(self._host, self._port, lambda: Passage(self._names)))
        doors = ", ".join(f"{broker} {port}" for broker, port in self._ports.items())
        _LOG.info("name server for senders at %s; doors: %s", self.instance, doors)
        self._chores = [asyncio.ensure_future(self._meet_peers()), asyncio.ensure_future(self._sweep())]

    async def close(self) -> None:
        """Accept no more senders, end the requests under way, close all connections."""
        for server in self._servers:
            server.close()
        for chore in self._chores:
            chore.cancel()
        await asyncio.gather(*self._chores, return_exceptions=True)
        tasks = [*self._names.tasks(), *(task for place in self._places.values() for task in place.tasks())]
        if tasks:
            await asyncio.wait(tasks, timeout=END_MS / 1000)
        for passage in list(self._passages):
            if passage.near is not None:
                passage.near.close()
        await self.cluster.core.close()

    @property
    def ended(self) -> Mapping[str, int]:
        """Number of sends with a due time, by their outcome."""
        return self.room.ended

    @property
    def senders(self) -> int:
        """Number of connections of senders."""
        return len(self._passages)

    def members(self, names: Sequence[str]) -> None:
        """Take over the names of the members of the service's group."""
        found = [address for name in names if (address := address_in(name)) and address != self.instance]
        if found != self._members:
            self._members = found
            self._peers = {peer: doors for peer, doors in self._peers.items() if peer in found}
            self._changed.set()

    # ------------------------------------------------------------------------------------------------ a house

    def enter(self, passage: Passage) -> bool:
        """Count a sender; False if there is no room for it."""
        if len(self._passages) >= CONNECTIONS_MAX:
            self.say(f"there are {CONNECTIONS_MAX} connections, the limit: more were refused")
            return False
        self._passages.add(passage)
        return True

    def leave(self, passage: Passage) -> None:
        """Count a sender no more."""
        self._passages.discard(passage)

    def hold(self, more_bytes: int) -> None:
        """Count buffered bytes. If there are too many, the passage that has most of them is closed."""
        self._held_bytes += more_bytes
        if self._held_bytes > HELD_MAX_BYTES and more_bytes > 0:
            greedy = max(self._passages, key=lambda passage: passage.counted_bytes, default=None)
            if greedy is not None:
                greedy.give_up(
                    f"more than {HELD_MAX_BYTES >> 20} MiB are kept for all senders, most of them for this one"
                )

    def say(self, text: str) -> None:
        """Log an event; at most one line of a kind in ten seconds, because there may be many senders."""
        kind = text.partition(": ")[2][:40] or text[:40]
        now_ms = mono_ms()
        if len(self._told) > 1000:
            self._told.clear()
        if now_ms - self._told.get(kind, -SWEEP_MS) >= SWEEP_MS:
            self._told[kind] = now_ms
            _LOG.warning("senders: %s", text)

    def own_doors(self, local_host: str) -> Mapping[str, str]:
        """The doors of this instance, at the address by which the sender reached it."""
        host = local_host if self._host in _ANYWHERE else self._host
        return {broker: f"{host}:{port}" for broker, port in self._ports.items()}

    def doors(self, local_host: str) -> Doors:
        """The doors of all instances that answer."""
        return {**self._peers, self.instance: self.own_doors(local_host)}

    async def learn(self, route: Mapping[str, Any]) -> None:
        """Open a door to each broker of a route."""
        masters = masters_of(route.get("brokerDatas") or ())
        self._masters.update(masters)
        for broker in sorted(masters.keys() - self._ports.keys()):
            try:
                await self._open_door(broker)
            except OSError as error:
                self.say(f"no door to {broker}: {error}")

    async def master(self, broker: str, *, fresh: bool = False) -> str:
        """The address of a broker's master. Raises ClientError, NoRouteError if it has none now."""
        if fresh or broker not in self._masters:
            self._masters.update(await self.cluster.core.masters())
        if broker not in self._masters:
            raise NoRouteError(f"broker {broker} has no master now")
        return self._masters[broker]

    # ------------------------------------------------------------------------------------------------ inside

    async def _open_door(self, broker: str) -> None:
        async with self._opening:
            if broker in self._ports or len(self._ports) >= DOORS_MAX:
                return
            place = BrokerPlace(self, broker)
            first = max([self._port, *self._ports.values()]) + 1
            for port in range(first, first + PORTS_TRIED):
                try:
                    server = await listen(self._host, port, lambda: Passage(place))
                except OSError as error:
                    if error.errno != errno.EADDRINUSE or port == first + PORTS_TRIED - 1:
                        raise
                    continue
                self._servers.append(server)
                self._places[broker], self._ports[broker] = place, port
                return

    async def _meet_peers(self) -> None:
        while True:
            self._changed.clear()
            members = self._members
            found = await asyncio.gather(*map(self._doors_of, members))
            self._peers = {
                peer: doors for peer, doors in zip(members, found, strict=True) if doors and peer in self._members
            }
            try:
                async with asyncio.timeout(PEERS_EVERY_MS / 1000):
                    await self._changed.wait()
            except TimeoutError:
                pass

    async def _doors_of(self, peer: str) -> dict[str, str]:
        """The doors of another instance; empty if it does not answer."""
        connection: ClientConnection | None = None
        try:
            connection = await ClientConnection.open(peer, timeout_ms=PEER_TIMEOUT_MS)
            ext = {"topic": self.cluster.topic, DOORS: "true"}
            code = RequestCode.GET_ROUTEINFO_BY_TOPIC
            told = await connection.request(code, ext, timeout_ms=PEER_TIMEOUT_MS)
            doors = loads(told.body)
            return {str(broker): str(address) for broker, address in doors.items()} if told.code == 0 else {}
        except (ClientError, ProtocolError, ValueError, AttributeError):
            return {}
        finally:
            if connection is not None:
                connection.abort("asked")

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_MS / 1000)
            self.sweep()

    def sweep(self) -> None:
        """Close connections of senders that were idle for too long; call it every `SWEEP_MS`."""
        for passage in list(self._passages):
            if passage.near is not None:
                passage.near.silent += 1
                if passage.near.silent > IDLE_SWEEPS:
                    passage.near.abort("silent for two minutes")
