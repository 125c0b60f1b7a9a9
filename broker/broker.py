"""`Broker`: a broker with its name server in the running asyncio loop: start, stop, and its timers.

::

    async with Broker(BrokerConfig("/var/lib/timewheel")) as broker:
        print(broker.listen_port, broker.namesrv_port)

Order at start: addresses are reserved first, so that a port in use is an error before any file is touched. Then store
and plug-ins recover, the threads start, and last the ports open. Order at stop: new connections are refused, reading
ends, requests that were read are stored, synced and answered, threads end, files are closed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from broker.bounds import name_server_bounds, server_bounds
from broker.config.broker_config import BrokerConfig, ConfigError
from broker.config.changes import check_change
from broker.config.key import shown
from broker.core import BrokerCore
from broker.door_opening import HttpDoor, NoDoor, open_door
from broker.live_config import take_over
from broker.lookout import Lookout, every
from broker.naming.namesrv import NameServer
from broker.naming.registration import Registration
from broker.naming.route_entries import OwnBroker
from broker.naming.topic_queues import AskedRoutes, own_routes
from broker.net.channel import NAME_SERVER_PORT
from broker.net.flow_control import FlowControl
from broker.net.requester import Requester
from broker.net.server import Server
from broker.net.tls import make_tls
from broker.open_files import connections_max
from broker.plugins import load_plugins
from broker.shards.left import unread
from broker.shards.link import SUPERVISOR, ShardLink
from broker.tables.json_files import JsonFile
from broker.turns.plugin_chain import someone_behind
from store.disk.errors import StoreError

if TYPE_CHECKING:
    from broker.net.clients import Clients
    from broker.tables.groups import SubscriptionGroups
    from broker.tables.offsets import ConsumerOffsets
    from broker.tables.topics import Topics
    from store.disk.files import Files
    from store.message_store import MessageStore
    from store.put.plugin_api import Plugin

__all__ = ["Broker"]

_LOG = logging.getLogger(__name__)

_RELOAD_MS = 1_000
_SWEEP_MS = 10_000


class Broker:
    """A broker in the running loop.

    Args:
        config: The configuration.
        files: Access to the disk, for tests.
        now_ms: A clock for everything, for tests.
        link: The link with a supervisor, if this is one of several shards.
    """

    def __init__(
        self,
        config: BrokerConfig,
        *,
        files: Files | None = None,
        now_ms: Callable[[], int] | None = None,
        link: ShardLink | None = None,
    ) -> None:
        self.config = config
        self.listen_port = 0
        """The port on which it listens; valid after the start."""
        self.namesrv_port = 0
        """The port of the embedded name server; 0 without one."""
        self.failure: BaseException | None = None
        """The error that ended one of its threads, so that it accepts no more requests; else None."""
        self._files = files
        self._clock = now_ms
        self._link = link
        self._core: BrokerCore | None = None
        self._server: Server | None = None
        self._registration: Registration | None = None
        self._name_server: NameServer | None = None
        self._timers: list[asyncio.Task[None]] = []
        self._lookout: Lookout | None = None
        self.door: HttpDoor = NoDoor()
        """The HTTP server; `NoDoor` without one."""

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    @property
    def core(self) -> BrokerCore:
        """The broker without its sockets. RuntimeError before `start` and after `stop`."""
        if self._core is None:
            raise RuntimeError("the broker is not started")
        return self._core

    @property
    def store(self) -> MessageStore:
        """The message store."""
        return self.core.store

    @property
    def plugins(self) -> list[Plugin]:
        """The plug-ins, in the order in which they are asked."""
        return self.core.plugins

    @property
    def topics(self) -> Topics:
        """The topics' configuration."""
        return self.core.topics

    @property
    def groups(self) -> SubscriptionGroups:
        """The subscription groups' configuration."""
        return self.core.groups

    @property
    def clients(self) -> Clients:
        """The connected clients."""
        return self.core.clients

    @property
    def offsets(self) -> ConsumerOffsets:
        """The offsets up to which the groups have read."""
        return self.core.offsets

    @property
    def name_servers(self) -> dict[str, str]:
        """The external name servers; for each ``registered``, or why not."""
        return {} if self._registration is None else dict(self._registration.status)

    # ------------------------------------------------------------------------------------------------ start

    async def start(self) -> None:
        """Recover and listen.

        Raises OSError for an address that is not available, StoreError for a store that cannot be opened, PluginError
        for a plug-in that cannot be loaded.
        """
        loop = asyncio.get_running_loop()
        config = self.config
        plugins = load_plugins(config.plugins)
        if not plugins:
            _LOG.warning("no plug-in is loaded: a message with a delivery time is delivered at once; set plugins=delay")
        server = self._server = Server(
            idle_ms=config.get_int("serverChannelMaxIdleTimeSeconds") * 1000,
            backlog=config.get_int("serverSocketBacklog"),
            tls=make_tls(config),
            held_max_bytes=config.get_int("connectionBytesMax"),
            connections_max=connections_max(),
        )
        try:
            self._bind(server)
            server.open()
            self.door = await open_door(config, lambda: self.failure, self._link)
            core = self._core = await asyncio.to_thread(
                BrokerCore,
                config,
                self.listen_port,
                plugins,
                files=self._files,
                now_ms=self._clock,
                schedule=server.schedule,
                call_soon_threadsafe=loop.call_soon_threadsafe,
            )
            core.bounds += server_bounds(server)
            server.received = core.dispatcher.received
            server.late = FlowControl(core.dispatcher, config.get_int("waitTimeMillsInSendQueue")).late
            server.end_of_turn = core.end_turn
            server.pace.yields = someone_behind(plugins)
            server.pace.owing = core.processors.owing
            server.closed_listeners.append(core.channel_closed)
            core.long_poll.paced(loop.time, loop.call_later)
            self._add_name_server(core, server)

            def failed(error: BaseException) -> None:
                loop.call_soon_threadsafe(self._failed, error)

            core.store.flusher.on_failure = core.store.housekeeper.on_failure = failed
            core.level_scheduler.on_failure = core.processors.pop.reviver.on_failure = failed
            self.door.attach(core)
            core.start()
            self._start_timers(core, server)
            if self._link is not None:
                await self._join(self._link, core, server)
            server.listen()
            await self._register(core, server)
            if self._link is not None:
                await self._link.serves(self.listen_port, core.pending_count(), self.door.http_port)
            self.door.serve()
        except BaseException:
            await self.stop()
            raise

    async def _join(self, link: ShardLink, core: BrokerCore, server: Server) -> None:
        """Join the other shards, whose topics, groups and settings are shared, before clients can connect."""

        def state(whole: bool) -> dict[str, Any]:
            return {
                "pending": core.pending_count(),
                "levels": core.level_scheduler.pending_count(),
                "undecided": len(core.halves.undecided),
                "unread": unread(core.store, core.offsets) if whole else [],
                "put": core.turn.put_count,
                "got": core.processors.pull.message_count,
            }

        def own_setting(name: str, value: str) -> None:
            config = self.config
            check_change(config, name, value, frozenset())
            _LOG.warning("set for this shard alone, until its next start: %s", shown(name, value))
            config.set_value(name, value)
            core.config_changed([name])

        link.state, link.own_setting = state, own_setting
        link.join(server, core.dispatcher, core.topics, core.groups)
        await link.ready()

    def _bind(self, server: Server) -> None:
        config = self.config
        self.listen_port = server.bind(config.listen_host, config.listen_port)
        if config.vip_port:
            server.bind(config.listen_host, config.vip_port)
        if config.namesrv_listen is not None:
            self.namesrv_port = server.bind(*config.namesrv_listen, NAME_SERVER_PORT)

    def _add_name_server(self, core: BrokerCore, server: Server) -> None:
        config = self.config
        if config.namesrv_listen is None:
            return
        own = OwnBroker(
            config.broker_name,
            config.cluster_name,
            core.topics,
            core.address,
            core.permission,
        )
        self._name_server = NameServer(
            own,
            core.groups,
            auto_create_topic=config.get_bool("autoCreateTopicOnRoute"),
            may=core.may,
            kv_file=JsonFile(core.files, config.store_dir / "config" / "kvConfig.json"),
            tables=core.tables,
        )
        core.dispatcher.add(self._name_server, NAME_SERVER_PORT)
        core.bounds += name_server_bounds(self._name_server)
        server.closed_listeners.append(self._name_server.channel_closed)
        core.processors.assignment.routes = own_routes(self._name_server.routes)

    async def _register(self, core: BrokerCore, server: Server) -> None:
        config, link = self.config, self._link
        inner = link is not None and link.embedded
        if config.namesrv_addr or inner:
            ask = link.ask if link is not None and inner else Requester(server, core.dispatcher).request
            name_servers = [SUPERVISOR] if inner else config.namesrv_addr
            core.processors.assignment.routes = AskedRoutes(ask, name_servers, core.now_ms, config.get_int).queues_of
            self._registration = Registration(
                ask,
                name_servers,
                core.topics,
                cluster=config.cluster_name,
                name=config.broker_name,
                address=core.address,
                perm=core.permission,
                period_ms=config.get_int("registerNameServerPeriod"),
                timeout_ms=config.get_int("registerBrokerTimeoutMills"),
            )
            core.config_listeners.append(self._registration.topics_changed)
            await self._registration.start()
            if link is not None:
                link.register = self._registration.now

    # ------------------------------------------------------------------------------------------------ by the clock

    def _start_timers(self, core: BrokerCore, server: Server) -> None:
        config = self.config

        async def sweep() -> None:
            now_ms = core.now_ms()
            for channel in core.clients.expire(now_ms):
                channel.close()
            server.sweep(_SWEEP_MS)
            core.processors.runtime.step(now_ms)
            for _ in core.processors.traffic.steps(now_ms):
                await asyncio.sleep(0)
            core.locks.expire(now_ms)
            if self._name_server is not None:
                self._name_server.expire(now_ms)

        async def check_transactions() -> int:
            checks = core.processors.checks
            await checks.run(core.now_ms)
            return checks.rest_ms

        async def reload_rules() -> None:
            await self._reload_rules(core, server)

        async def save_offsets() -> None:
            await asyncio.to_thread(core.save_offsets)

        for period_ms, work in (
            (_SWEEP_MS, sweep),
            (core.processors.checks.rest_ms, check_transactions),
            (_RELOAD_MS, reload_rules),
            (config.get_int("flushConsumerOffsetInterval"), save_offsets),
        ):
            self._timers.append(asyncio.create_task(every(period_ms, work)))
        self._lookout = Lookout(core.long_poll, core.turn, core.now_ms)

    async def _reload_rules(self, core: BrokerCore, server: Server) -> None:
        if core.acl is not None:
            await asyncio.to_thread(core.acl.reload)
        if server.tls is not None:
            await asyncio.to_thread(server.tls.reload)

    async def reload(self, read: Callable[[], BrokerConfig] | None = None) -> None:
        """Read access rules, certificates and settings again; invalid ones change nothing and are logged.

        Args:
            read: Reads the settings again; None leaves them as they are.
        """
        core, server = self._core, self._server
        if core is None or server is None:
            return
        await self._reload_rules(core, server)
        try:
            if read is not None:
                take_over(core.config, await asyncio.to_thread(read), core.config_changed)
        except (ConfigError, StoreError) as error:
            _LOG.error("the settings stay as they were: %s", error)
            return
        troubles = [part.trouble for part in (core.acl, server.tls) if part is not None and part.trouble]
        if troubles:
            _LOG.error("reloaded, except what cannot be used and stays as it was: %s", "; ".join(troubles))
        else:
            _LOG.info("reloaded")

    def _failed(self, error: BaseException) -> None:
        """Stop accepting: a thread has ended, and messages accepted from now on might be lost or never delivered."""
        self.failure = error
        _LOG.critical("this broker accepts no more messages: %s", error, exc_info=error)
        if self._server is not None:
            self._server.close()

    # ------------------------------------------------------------------------------------------------ stop

    async def stop(self) -> None:
        """Answer what was read, flush everything and end; within half a second unless the disk is slow."""
        core, server = self._core, self._server
        if server is None:
            return
        server.stop_listening()
        await asyncio.to_thread(self.door.stop)
        for timer in self._timers:
            timer.cancel()
        if self._lookout is not None:
            self._lookout.stop()
            self._lookout = None
        await asyncio.gather(*self._timers, return_exceptions=True)
        self._timers.clear()
        if self._registration is not None:
            await self._registration.stop()
            self._registration = None
        server.stop_reading()
        if core is not None:
            server.end_turn()
            await asyncio.to_thread(core.tables.stop)
            core.end_tables()
            server.end_turn()
            await core.dispatcher.stop()
            server.end_turn()
            try:
                await asyncio.to_thread(core.stop)
            except StoreError as error:
                _LOG.error("while stopping: %s", error)
        server.close()
        self._server = self._core = self._name_server = None
        if core is not None:
            await asyncio.to_thread(core.close)
