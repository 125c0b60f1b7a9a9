"""The part that producer and consumer share: name servers, the cache of routes, heartbeats, background tasks.

Routes are cached and refreshed every 30 s, as by Apache's clients, and at once after a failed send or pull. The route
of a missing topic is requested more often (after 1 s, then more slowly, up to 5 s), so that a consumer started before
its topic does not wait half a minute for it.

A core may be started again after a failed or cancelled start, which leaves nothing behind.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import re
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from remoting.codes import RequestCode, ResponseCode
from remoting.command import ProtocolError, RemotingCommand
from remoting.json_dialect import dumps, loads
from timewheel_client.net.connection import REQUEST_TIMEOUT_MS, RequestHandler, split_address
from timewheel_client.net.connection_table import ConnectionTable
from timewheel_client.net.credentials import Credentials
from timewheel_client.net.tls import Tls, context_of
from timewheel_client.net.waiting import shared, to_the_end
from timewheel_client.values.arguments import need_text
from timewheel_client.values.errors import BrokerError, ClientError, ClosedError, ConnectionFailedError, NoRouteError
from timewheel_client.values.log import log
from timewheel_client.values.routes import DEFAULT_TOPIC, TopicRoute, masters_of, route_of, template_route

__all__ = ["ClientCore", "now_ms"]


ROUTE_REFRESH_MS = 30_000
MISSING_ROUTE_MS = (1_000, 5_000)
HEARTBEAT_MS = 30_000
HEARTBEAT_TIMEOUT_MS = 3_000
UNREGISTER_TIMEOUT_MS = 1_000
OTHER_TIMEOUT_MS = 1_000

_instances = itertools.count(1)


def now_ms() -> int:
    """The wall clock in epoch milliseconds."""
    return time.time_ns() // 1_000_000


class ClientCore:
    """The shared part of one producer or consumer.

    Args:
        namesrv: Name servers, ``HOST:PORT;HOST:PORT`` or a sequence of ``HOST:PORT``.
        heartbeat: Makes the body of a heartbeat, without ``clientID``.
        on_request: Serves requests of brokers.
        on_routes: Called when a route that is in use has changed.
        credentials: Sign every request; None: requests are not signed.
        tls: Whether connections are encrypted, see `timewheel_client.net.tls`.

    Raises ValueError.
    """

    def __init__(
        self,
        namesrv: str | Sequence[str],
        heartbeat: Callable[[], dict[str, object]],
        on_request: RequestHandler | None = None,
        on_routes: Callable[[], None] | None = None,
        credentials: Credentials | None = None,
        tls: Tls = False,
    ) -> None:
        self._namesrv = _addresses(namesrv)
        if not self._namesrv:
            raise ValueError("no name server given: expected HOST:PORT;HOST:PORT")
        for address in self._namesrv:
            split_address(address)
        self._heartbeat = heartbeat
        self._on_routes = on_routes
        context = context_of(tls)
        self._new_table = partial(ConnectionTable, on_request, self._connected, credentials=credentials, tls=context)
        self.connections = self._new_table()
        self.client_id = ""
        self.local_host = "127.0.0.1"
        self._routes: dict[str, TopicRoute] = {}
        self._lookups: dict[str, asyncio.Task[TopicRoute]] = {}
        self._wanted: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._open = False
        self._leaving = False
        self._opened_s: dict[str, float] = {}  # name server to when the last connection to it was opened

    # -------------------------------------------------------------------------------------- life

    async def start(self) -> None:
        """Connect to a name server (to fail early, and to learn our own address) and start the background tasks.

        If that fails or is cancelled, no connection is left.

        Raises ClientError if it is open.
        """
        if self._open:
            raise ClientError("it is open already")
        self.connections = self._new_table()
        self._routes.clear()
        self._wanted.clear()
        try:
            await self._reach_name_server()
        except BaseException:
            await to_the_end(self.connections.close())
            raise
        self.client_id = f"{self.local_host}@{os.getpid()}#{time.time_ns()}{next(_instances):03d}"
        self._open, self._leaving = True, False
        self.every(HEARTBEAT_MS, self.send_heartbeats)
        self.spawn(self._refresh_routes)

    async def _reach_name_server(self) -> None:
        for address in list(self._namesrv):
            try:
                self.local_host = (await self.connections.get(address)).local_host
                return
            except ConnectionFailedError as error:
                failure = error
                self._namesrv.append(self._namesrv.pop(0))
        raise ConnectionFailedError(f"no name server can be reached: {failure}") from failure

    async def unregister(self, kind: str, group: str) -> None:
        """Tell each connected broker that we leave a group; ``kind`` is producerGroup or consumerGroup.

        No heartbeat is sent any more. A broker that does not answer notices when the connection is closed.
        """
        self._leaving = True
        ext = {"clientID": self.client_id, kind: group}

        async def leave(address: str) -> None:
            try:
                await self.ask(address, RequestCode.UNREGISTER_CLIENT, ext, timeout_ms=UNREGISTER_TIMEOUT_MS)
            except ClientError as error:
                log.debug("leaving %s: %s", group, error)

        await asyncio.gather(*map(leave, filter(self.connections.is_open, self.broker_addresses())))

    async def close(self) -> None:
        """Stop the background tasks and close the connections."""
        self._open = False
        current = asyncio.current_task()
        tasks = [task for task in (*self._tasks, *self._lookups.values()) if task is not current]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.connections.close()

    @property
    def is_open(self) -> bool:
        """True if the client was started and not closed."""
        return self._open

    def require_open(self) -> None:
        """Raise ClosedError unless it is open."""
        if not self._open:
            raise ClosedError("not open: use it in `async with`, or await start() first")

    def spawn(self, work: Callable[[], Awaitable[None]]) -> asyncio.Task[None]:
        """Run a coroutine in the background until it ends or the client is closed; errors are logged."""
        task = asyncio.ensure_future(_logged(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def every(self, interval_ms: int, work: Callable[[], Awaitable[None]]) -> None:
        """Run a coroutine repeatedly, first after one interval."""

        async def repeat() -> None:
            while True:
                await asyncio.sleep(interval_ms / 1000)
                await _logged(work)

        self.spawn(repeat)

    # -------------------------------------------------------------------------------------- requests

    async def ask(
        self,
        address: str,
        code: int,
        ext: dict[str, str] | None = None,
        body: bytes = b"",
        timeout_ms: int | None = None,
    ) -> RemotingCommand:
        """Send a request; raises BrokerError for any response code other than 0."""
        timeout_ms = REQUEST_TIMEOUT_MS if timeout_ms is None else timeout_ms
        reply = await self.connections.request(address, code, ext, body, timeout_ms=timeout_ms)
        if reply.code != ResponseCode.SUCCESS:
            raise BrokerError(reply.code, reply.remark, address)
        return reply

    @property
    def name_servers(self) -> list[str]:
        """The addresses of the name servers; the one that is asked first comes first."""
        return list(self._namesrv)

    async def ask_namesrv(self, code: int, ext: dict[str, str]) -> RemotingCommand:
        """Ask the name servers in turn until one answers, whatever the code of the answer.

        Raises ConnectionFailedError if none answers.
        """
        failure: Exception | None = None
        for address in list(self._namesrv):
            try:
                return await self.connections.request(address, code, ext, timeout_ms=REQUEST_TIMEOUT_MS)
            except ClosedError:
                raise
            except (ClientError, ProtocolError) as error:
                failure = error
                if self._namesrv[0] == address:
                    self._namesrv.append(self._namesrv.pop(0))
        raise ConnectionFailedError(f"no name server answers: {failure}") from failure

    def name_server_age_ms(self) -> int:
        """Time for which the first name server has certainly been up, ms: the age of its connection."""
        address, now_s = self._namesrv[0], time.monotonic()
        return int((now_s - self._opened_s.get(address, now_s)) * 1000) if self.connections.is_open(address) else 0

    async def masters(self) -> dict[str, str]:
        """The address of the master of each broker of the cluster, by its name, sorted. Raises ClientError."""
        reply = await self.ask_namesrv(RequestCode.GET_BROKER_CLUSTER_INFO, {})
        if reply.code != ResponseCode.SUCCESS:
            raise ClientError(f"the name server does not tell its brokers: {reply.code} {reply.remark}")
        try:
            found = masters_of(loads(reply.body)["brokerAddrTable"].values())
        except (ProtocolError, ValueError, KeyError, AttributeError, TypeError) as error:
            raise ClientError(f"the name server's list of brokers cannot be read: {error!r:.200}") from error
        return dict(sorted(found.items()))

    # -------------------------------------------------------------------------------------- routes

    def cached_route(self, topic: str) -> TopicRoute | None:
        """The cached route of a topic, if there is one."""
        return self._routes.get(topic)

    async def route(self, topic: str) -> TopicRoute:
        """The route of an existing topic, refreshed from now on; raises NoRouteError."""
        route = self._routes.get(topic)
        if route is None or route.is_template:
            route = await self.refresh(topic)
        return route

    async def route_to_write(self, topic: str) -> TopicRoute:
        """The route for a send: that of the topic, or the one that the send will create.

        Raises NoRouteError if there is neither.
        """
        route = self._routes.get(topic)
        if route is not None:
            return route
        try:
            return await self.refresh(topic)
        except NoRouteError as error:
            try:
                default = await self._look_up(DEFAULT_TOPIC)
            except NoRouteError:
                raise error from None
        template = self._routes[topic] = template_route(topic, default)
        return template

    async def refresh(self, topic: str) -> TopicRoute:
        """Ask the name servers now. Concurrent callers share one request."""
        self._wanted.add(topic)
        lookup = self._lookups.get(topic)
        if lookup is None:
            lookup = self._lookups[topic] = asyncio.ensure_future(self._look_up(topic))
            lookup.add_done_callback(lambda task: self._looked_up(topic, task))
        return await shared(lookup)

    async def refresh_elsewhere(self, topic: str) -> TopicRoute:
        """Ask the name servers but for the first one, which does not know a topic; raises NoRouteError if none does."""
        for address in self._namesrv[1:]:
            try:
                route = await self._look_up(topic, address)
            except (ClientError, ProtocolError) as error:
                log.debug("route of %s, %s: %s", topic, address, error)
                continue
            self._learn(topic, route)
            return route
        raise NoRouteError(f"topic {topic} does not exist")

    def forget(self, topic: str) -> None:
        """Do not keep a topic's route any more, nor look for it."""
        self._wanted.discard(topic)
        self._routes.pop(topic, None)

    def refresh_soon(self, topic: str) -> None:
        """Refresh a route in the background, because a request with the cached one failed."""
        if self._open and topic not in self._lookups:
            self.spawn(partial(self._refresh_quietly, topic))

    async def _refresh_quietly(self, topic: str) -> None:
        try:
            await self.refresh(topic)
        except ClientError as error:
            log.debug("route of %s: %s", topic, error)

    async def _look_up(self, topic: str, address: str | None = None) -> TopicRoute:
        """Ask the name servers in turn, or one of them."""
        code, ext = RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic, "acceptStandardJsonOnly": "true"}
        if address is None:
            reply = await self.ask_namesrv(code, ext)
        else:
            reply = await self.connections.request(address, code, ext, timeout_ms=OTHER_TIMEOUT_MS)
        if reply.code == ResponseCode.TOPIC_NOT_EXIST:
            raise NoRouteError(f"topic {topic} does not exist")
        if reply.code != ResponseCode.SUCCESS:
            raise NoRouteError(f"route of {topic}: {BrokerError(reply.code, reply.remark, self._namesrv[0])}")
        try:
            return route_of(topic, loads(reply.body))
        except (ValueError, ProtocolError) as error:
            raise NoRouteError(f"route of {topic}: {error}") from error

    def _looked_up(self, topic: str, task: asyncio.Task[TopicRoute]) -> None:
        self._lookups.pop(topic, None)
        if not task.cancelled() and task.exception() is None:
            self._learn(topic, task.result())

    def _learn(self, topic: str, route: TopicRoute) -> None:
        known = self._routes.get(topic)
        strangers = route.addresses() - self.broker_addresses()
        self._routes[topic] = route
        for address in strangers:
            if self.connections.is_open(address):  # name server and broker share one port
                self.spawn(partial(self._send_heartbeat, address))
        if route != known and self._on_routes is not None:
            self._on_routes()

    async def _refresh_routes(self) -> None:
        """Refresh the routes of all topics in use, and look for missing ones."""
        first, slowest = MISSING_ROUTE_MS
        pause_ms, since_refresh_ms = first, 0
        while True:
            missing = [topic for topic in self._wanted if topic not in self._routes]
            step_ms = pause_ms if missing else first
            await asyncio.sleep(step_ms / 1000)
            since_refresh_ms += step_ms
            pause_ms = min(pause_ms + 500, slowest) if missing else first
            if since_refresh_ms >= ROUTE_REFRESH_MS:
                since_refresh_ms = 0
                due = list(self._wanted)
            else:
                due = [topic for topic in missing if topic not in self._routes]
            for topic in due:
                await self._refresh_quietly(topic)

    # -------------------------------------------------------------------------------------- heartbeats

    def broker_addresses(self) -> set[str]:
        """The address of every broker that a cached route names."""
        return {address for route in self._routes.values() for address in route.addresses()}

    def known_masters(self) -> dict[str, str]:
        """The address of the master of each broker that a cached route names."""
        rows = (route.brokers.items() for route in self._routes.values())
        return {name: addresses[0] for row in rows for name, addresses in row if 0 in addresses}

    async def send_heartbeats(self) -> None:
        """Send a heartbeat to every known broker."""
        await asyncio.gather(*(self._send_heartbeat(address) for address in self.broker_addresses()))

    async def _send_heartbeat(self, address: str) -> None:
        if self._leaving:
            return
        body = dumps({"clientID": self.client_id, **self._heartbeat()})
        try:
            await self.ask(address, RequestCode.HEART_BEAT, None, body, HEARTBEAT_TIMEOUT_MS)
        except (ClientError, ProtocolError) as error:
            log.warning("heartbeat: %s", error)

    def _connected(self, address: str) -> None:
        """Send a heartbeat after a connect, because the broker knows clients by connection."""
        if address in self._namesrv:
            self._opened_s[address] = time.monotonic()
        if self._open and address in self.broker_addresses():
            self.spawn(partial(self._send_heartbeat, address))


async def _logged(work: Callable[[], Awaitable[None]]) -> None:
    """Run a coroutine and log its error, which nobody else would see."""
    try:
        await work()
    except Exception:
        log.exception("a background chore failed")


def _addresses(namesrv: object) -> list[str]:
    """Split the argument for name servers; raises TypeError for a value that is not text."""
    parts = re.split("[;,]", namesrv) if isinstance(namesrv, str) else namesrv
    if not isinstance(parts, Sequence) or isinstance(parts, bytes | bytearray):
        raise TypeError(f"namesrv must be a text HOST:PORT;HOST:PORT or a list of HOST:PORT, found {namesrv!r:.100}")
    return [part.strip() for part in (need_text("namesrv", part, empty=True) for part in parts) if part.strip()]
