"""For a broker that is a shard: lists all shards, and passes requests on to one of them over HTTP.

The supervisor lists the shards (`broker.shards.link`). A request is passed on with the caller's own ``Authorization``,
so each shard itself decides what the caller may see and change. The header `OWN` makes a shard answer for itself only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aiohttp import ClientError, ClientSession, ClientTimeout, TCPConnector, web

from broker.door.state import WORK_S, NotReadyError, WhoIsThere
from remoting.errors import ProtocolError
from remoting.json_dialect import dumps, loads

__all__ = ["OWN", "OWN_VALUE", "Peer", "PeerAnswer", "Peers"]

OWN, OWN_VALUE = "Timewheel-Shard", "own"
"""The header of a request, and its value, that is about one shard alone."""
_FRESH_S = 1.0
_MORE_S = 5.0
"""A shard gives up first, and says so."""


@dataclass(frozen=True, slots=True)
class Peer:
    """One shard: number, broker name, address of clients, address of HTTP."""

    index: int
    name: str
    address: str
    http: str


@dataclass(frozen=True, slots=True)
class PeerAnswer:
    """The answer of one shard."""

    peer: Peer
    status: int
    document: dict[str, Any]


class Peers:
    """All shards, with this one. Only the door's loop uses it.

    Args:
        who: Asks the supervisor.
    """

    def __init__(self, who: WhoIsThere) -> None:
        self._who = who
        self._known: list[Peer] = []
        self._known_at = 0.0
        self._session: ClientSession | None = None

    async def all(self) -> list[Peer]:
        """All shards in order. Raises NotReadyError if the supervisor does not answer."""
        clock = asyncio.get_running_loop().time
        if not self._known or clock() - self._known_at > _FRESH_S:
            try:
                found = await self._who()
            except (OSError, TimeoutError, ProtocolError) as error:
                raise NotReadyError(f"the supervisor does not say which shards there are: {error}") from None
            self._known = [Peer(int(one["index"]), one["name"], one["address"], one["http"]) for one in found]
            self._known_at = clock()
        return self._known

    async def ask(
        self,
        peer: Peer,
        request: web.Request,
        query: Sequence[tuple[str, str]] = (),
        body: Mapping[str, Any] | None = None,
    ) -> PeerAnswer:
        """Pass ``request`` on to one shard, with another query and body; 503 if the shard does not answer."""
        headers = {OWN: OWN_VALUE, "Content-Type": "application/json"}
        if "Authorization" in request.headers:
            headers["Authorization"] = request.headers["Authorization"]
        why_not = "it does not serve yet"
        if peer.http:
            host, _, port = peer.http.rpartition(":")
            data = None if body is None else dumps(dict(body))
            try:
                async with self._client().request(
                    request.method,
                    request.url.with_scheme("http").with_host(host).with_port(int(port)).with_query(list(query)),
                    headers=headers,
                    data=data,
                    allow_redirects=False,
                ) as reply:
                    return PeerAnswer(peer, reply.status, loads(await reply.read()))
            except (ClientError, OSError, TimeoutError, ProtocolError) as error:
                why_not = f"{str(error) or type(error).__name__}"
        return PeerAnswer(peer, 503, {"error": f"{peer.name} does not answer: {why_not}"})

    def _client(self) -> ClientSession:
        if self._session is None:
            # No connection is reused: a change would be lost on one that its shard has just closed.
            connector = TCPConnector(force_close=True, limit=0)
            self._session = ClientSession(connector=connector, timeout=ClientTimeout(total=WORK_S + _MORE_S))
        return self._session

    async def close(self) -> None:
        """Close the HTTP client."""
        if self._session is not None:
            await self._session.close()
            self._session = None
