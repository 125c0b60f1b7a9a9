"""The supervisor's sockets: the embedded name server, and a link with each shard.

A shard's routes outlive its process: while it is started again, clients keep its queues, and a send to it is tried
again or goes to another shard. Its routes are removed once it has been down for `ROUTES_MS`. If they went at once, a
restart of a second would move all keys of an ordered topic to other queues, and back.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from broker.access.acl import Acl
from broker.config.broker_config import BrokerConfig
from broker.config.properties_file import parse_properties_file, update_properties_file
from broker.naming.namesrv import NameServer
from broker.net.channel import NAME_SERVER_PORT, SHARDS_PORT, Channel, MemoryChannel
from broker.net.clock import now_ms
from broker.net.dispatcher import Dispatcher
from broker.net.listener import socket_pair
from broker.net.server import Server
from broker.net.tls import make_tls
from broker.shards.changes import SharedChanges, catch_up, spread
from broker.shards.link import MAKE_GROUPS, MAKE_TOPICS, READY, REGISTER, SERVES, SHARED_CODES, STATE, WHO
from broker.tables.json_files import JsonFile
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand, request
from remoting.errors import ProtocolError
from remoting.json_dialect import dumps, loads
from store.disk.errors import StoreError

if TYPE_CHECKING:
    from broker.net.connection import Connection
    from broker.net.processor import Handler
    from store.disk.files import Files

__all__ = ["ROUTES_MS", "Front"]

_LOG = logging.getLogger(__name__)

ROUTES_MS = 10_000
"""A shard that has been down for this long is not in the routes any more."""
_ASK_MS = 5_000
_REGISTER_MS = 2_000
_MESSAGE_BODY_MAX = 4 << 20
_IN_ROUTES = frozenset((RequestCode.UPDATE_AND_CREATE_TOPIC, RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, MAKE_TOPICS))


class Front:
    """Name server and links. Only the network loop uses it.

    Args:
        config: The configuration of the whole.
        files: The door to the disk.
        changes: What shards have not confirmed.
        name: Writes a shard's name.
        ready: Told of a shard that serves: index, port and pending messages.
        members: Reads which shards there are.
        connections_max: Most connections of clients.
    """

    def __init__(
        self,
        config: BrokerConfig,
        files: Files,
        changes: SharedChanges,
        *,
        name: Callable[[int], str],
        ready: Callable[[int, int, int], None],
        members: Callable[[], list[int]],
        connections_max: int = 1 << 30,
    ) -> None:
        self._config = config
        self._files = files
        self._changes = changes
        self._name = name
        self._ready = ready
        self._members = members
        self._change_lock = asyncio.Lock()
        self._links: dict[int, Connection] = {}
        self._serving: set[int] = set()
        self._lasting: dict[int, MemoryChannel] = {}  # the connection that the routes of each shard belong to
        self.states: dict[int, dict[str, Any]] = {}
        """Figures of each shard, as of its last answer."""
        self.places: dict[int, tuple[int, int]] = {}
        """Ports of each shard for clients and for HTTP (0: none), as of its last start."""
        self.settings: dict[str, str] = {}
        """Settings that were changed since the start: a shard that is started later gets them, too."""
        self.namesrv_port = 0
        """Port of the name server; 0 without one."""
        self.names: NameServer | None = None
        self._acl: Acl | None = None
        self._server = Server(
            idle_ms=config.get_int("serverChannelMaxIdleTimeSeconds") * 1000,
            backlog=config.get_int("serverSocketBacklog"),
            tls=make_tls(config),
            connections_max=connections_max,
        )
        loop = asyncio.get_running_loop()
        self._dispatcher = Dispatcher(now_ms, call_soon=loop.call_soon_threadsafe)
        self._open()

    def _open(self) -> None:
        config, server, dispatcher = self._config, self._server, self._dispatcher
        server.received = dispatcher.received
        server.closed_listeners.append(self._closed)
        server.open()
        if config.namesrv_listen is not None:
            self._add_name_server()
        dispatcher.add(_FromShards(self), SHARDS_PORT)

    def _add_name_server(self) -> None:
        config, dispatcher = self._config, self._dispatcher
        assert config.namesrv_listen is not None
        self.namesrv_port = self._server.bind(*config.namesrv_listen, NAME_SERVER_PORT)
        if config.get_bool("aclEnable"):
            self._acl = Acl(self._files, config.acl_file, _MESSAGE_BODY_MAX)
            dispatcher.guard = self._acl.guard
        kv_file = JsonFile(self._files, config.store_dir / "config" / "kvConfig.json")
        self.names = NameServer(kv_file=kv_file)
        dispatcher.add(self.names, NAME_SERVER_PORT)
        self._server.closed_listeners.append(self.names.channel_closed)

    # ------------------------------------------------------------------------------------------------ links

    def link(self, index: int) -> int:
        """Make a link for a shard's new process. Returns the descriptor that it inherits; the caller closes it here."""
        ours, theirs = socket_pair()
        self._links[index] = self._server.adopt(ours, ("127.0.0.1", index), SHARDS_PORT)
        return theirs.detach()

    def _index(self, channel: Channel) -> int:
        return next(index for index, known in self._links.items() if known is channel)

    def _closed(self, channel: Channel) -> None:
        self._dispatcher.channel_closed(channel)
        for index, known in list(self._links.items()):
            if known is channel:
                del self._links[index]
                self._serving.discard(index)

    async def ask(
        self, index: int, code: int, ext: dict[str, str] | None = None, body: bytes = b"", timeout_ms: int = _ASK_MS
    ) -> RemotingCommand:
        """Have a shard answer a request. Raises OSError or TimeoutError."""
        channel = self._links.get(index)
        if channel is None:
            raise ConnectionError(f"{self._name(index)} is not running")
        return await self._dispatcher.ask_command(channel, request(code, dict(ext or {}), body), timeout_ms)

    async def is_ready(self, channel: Channel, command: RemotingCommand) -> RemotingCommand:
        """READY: give a shard the changes it has missed, and all later ones from then on."""
        index = self._index(channel)
        async with self._change_lock:
            try:
                if await catch_up(self._changes, index, self.ask, self._name):
                    await asyncio.to_thread(self._changes.save)
                if self.settings:  # some may have changed since its process was started
                    body = update_properties_file(b"", self.settings)
                    await self.ask(index, RequestCode.UPDATE_BROKER_CONFIG, {}, body)
            except (OSError, TimeoutError, ProtocolError, StoreError) as error:
                return command.reply(ResponseCode.SYSTEM_ERROR, str(error) or type(error).__name__)
            self._serving.add(index)
        return command.reply()

    def serves(self, channel: Channel, command: RemotingCommand) -> RemotingCommand:
        """SERVES."""
        index, port = self._index(channel), int(command.ext["port"])
        self.places[index] = port, int(command.ext["http"])
        self._ready(index, port, int(command.ext["pending"]))
        return command.reply()

    def who(self, command: RemotingCommand) -> RemotingCommand:
        """WHO: all shards that belong to the whole, whether they run or not."""
        config = self._config
        listens = config.http_listen
        host = "127.0.0.1" if listens is None or listens[0] == "0.0.0.0" else listens[0]
        found = []
        for index in self._members():
            port, http = self.places.get(index, (0, 0))
            found.append(
                {
                    "index": str(index),
                    "name": self._name(index),
                    "address": f"{config.advertised}:{port}",
                    "http": f"{host}:{http}" if http else "",
                }
            )
        return command.reply(body=dumps(found))

    def named(self, handler: Handler, channel: Channel, command: RemotingCommand, at_ms: int) -> Any:
        """A shard's request to the name server, on a connection that lasts longer than its process."""
        lasting = self._lasting.setdefault(self._index(channel), MemoryChannel(channel.peer))
        return handler(lasting, command, at_ms)

    def forget_routes(self, index: int) -> None:
        """Take a shard out of the routes."""
        lasting = self._lasting.pop(index, None)
        if lasting is not None and self.names is not None:
            self.names.channel_closed(lasting)

    # ------------------------------------------------------------------------------------------------ changes

    async def change(self, command: RemotingCommand) -> RemotingCommand:
        """Make a change on all shards, and return the reply. Raises StoreError."""
        async with self._change_lock:
            reply = await spread(self._changes, command, self._members(), sorted(self._serving), self.ask, self._name)
        if command.code in _IN_ROUTES and reply.code == ResponseCode.SUCCESS:
            await self._register()
        if command.code == RequestCode.UPDATE_BROKER_CONFIG and reply.code == ResponseCode.SUCCESS:
            self.settings.update(parse_properties_file(command.body))
        return reply

    async def _register(self) -> None:
        """Have all shards register, so that a topic is in the routes when its maker gets the answer."""
        asked = [self.ask(index, REGISTER, timeout_ms=_REGISTER_MS) for index in sorted(self._serving)]
        for result in await asyncio.gather(*asked, return_exceptions=True):
            if isinstance(result, BaseException):
                _LOG.warning("a shard has not registered in time, so clients learn of a new topic later: %r", result)

    async def catch_up(self) -> None:
        """Have shards that serve make the changes they did not confirm in time. Call it every few seconds.

        Raises StoreError.
        """
        if not any(self._changes.of(index) for index in self._serving):
            return
        async with self._change_lock:
            for index in sorted(self._serving):
                try:
                    await catch_up(self._changes, index, self.ask, self._name)
                except (OSError, TimeoutError, ProtocolError) as error:
                    _LOG.warning("%s has not confirmed its changes: %s", self._name(index), error)
            await asyncio.to_thread(self._changes.save)

    async def ping(self) -> None:
        """Keep the links from being silent."""
        for index in sorted(self._serving):
            try:
                self.states[index] = loads((await self.ask(index, STATE)).body)
            except (OSError, TimeoutError, ProtocolError) as error:
                _LOG.warning("%s does not answer: %s", self._name(index), str(error) or type(error).__name__)

    # ------------------------------------------------------------------------------------------------ life

    def listen(self) -> None:
        """Let clients ask for routes. Raises OSError if another process took the address."""
        self._server.listen()

    def step(self, passed_ms: int) -> None:
        """Look at files that may have changed, and at silent peers; to be called every ``passed_ms``."""
        if self._acl is not None:
            self._acl.reload()
        if self._server.tls is not None:
            self._server.tls.reload()
        self._server.sweep(passed_ms)
        if self.names is not None:
            self.names.expire(now_ms())

    def stop_listening(self) -> None:
        """Let nobody in."""
        self._server.stop_listening()

    async def close(self) -> None:
        """End: all links close."""
        await self._dispatcher.stop()
        self._server.close()


class _FromShards:
    """Answers what shards ask over their links."""

    def __init__(self, front: Front) -> None:
        self._front = front

    def handlers(self) -> Mapping[int, Handler]:
        """List what it answers."""
        front = self._front
        names = front.names
        registering = () if names is None else (RequestCode.REGISTER_BROKER, RequestCode.UNREGISTER_BROKER)
        return {
            READY: self.ready,
            SERVES: self.serves,
            WHO: self.who,
            **dict.fromkeys((*SHARED_CODES, MAKE_TOPICS, MAKE_GROUPS), self.change),
            **{code: partial(front.named, names.handlers()[code]) for code in registering if names is not None},
        }

    def ready(self, channel: Channel, command: RemotingCommand, _at_ms: int) -> Coroutine[Any, Any, RemotingCommand]:
        """READY."""
        return self._front.is_ready(channel, command)

    def serves(self, channel: Channel, command: RemotingCommand, _at_ms: int) -> RemotingCommand:
        """SERVES."""
        return self._front.serves(channel, command)

    def who(self, _channel: Channel, command: RemotingCommand, _at_ms: int) -> RemotingCommand:
        """WHO."""
        return self._front.who(command)

    def change(self, _channel: Channel, command: RemotingCommand, _at_ms: int) -> Coroutine[Any, Any, RemotingCommand]:
        """A change for all."""
        return self._front.change(command)
