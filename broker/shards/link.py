"""A shard's end of its link with the supervisor: an inherited socket, with frames as on any connection.

The shard sends: that it is ready, its registrations with the embedded name server, and changes for all shards. The
supervisor sends any request, and such changes. Nobody else has this socket, so nothing on it is signed or checked
against access rules: the shard that a client sent a change to has checked it.

When the link closes, the supervisor is dead, and the shard ends (``lost``): nobody would start it again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any

from broker.config.properties_file import parse_properties_file
from broker.net.channel import BROKER_PORT, SHARDS_PORT, Channel
from broker.net.listener import inherited
from broker.tables.groups import SubscriptionGroup
from broker.tables.table_writer import TableBatch
from broker.tables.topic_config import TopicConfig
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand, request
from remoting.errors import ProtocolError
from remoting.json_dialect import dumps, loads_body
from remoting.signing import ACCESS_KEY, SECURITY_TOKEN, SIGNATURE
from store.disk.errors import StoreError

if TYPE_CHECKING:
    from broker.net.dispatcher import Dispatcher
    from broker.net.processor import Handler
    from broker.net.server import Server
    from broker.tables.groups import SubscriptionGroups
    from broker.tables.topics import Topics

__all__ = [
    "ANSWER_MS",
    "MAKE_GROUPS",
    "MAKE_TOPICS",
    "PERMIT",
    "READY",
    "REGISTER",
    "SERVES",
    "SHARED_CODES",
    "STATE",
    "SUPERVISOR",
    "WHO",
    "ShardLink",
]

READY, SERVES, STATE, MAKE_TOPICS, MAKE_GROUPS, PERMIT, REGISTER, WHO = range(-1, -9, -1)
"""Codes that only this link has. From a shard: READY: it is recovered and needs the changes it has missed; SERVES: it
lets clients in; WHO: which shards are there? From the supervisor: STATE: what is left in the shard? MAKE_…: make these
topics or groups if they are missing; PERMIT: take this ``brokerPermission``; REGISTER: with the name servers, now."""

SHARED_CODES = (
    RequestCode.UPDATE_AND_CREATE_TOPIC,
    RequestCode.UPDATE_AND_CREATE_TOPIC_LIST,
    RequestCode.DELETE_TOPIC_IN_BROKER,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
    RequestCode.SET_MESSAGE_REQUEST_MODE,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
    RequestCode.DELETE_SUBSCRIPTIONGROUP,
    RequestCode.UPDATE_BROKER_CONFIG,
)
"""Requests that are carried out on all shards, whichever receives them."""

SUPERVISOR = "the supervisor"
"""The name of a shard's embedded name server in the log."""

ANSWER_MS = 20_000
"""A shard waits this long for the supervisor: longer than the supervisor waits for another shard."""
_OWN_SETTING = "brokerPermission"
_SIGNED = frozenset((ACCESS_KEY, SIGNATURE, SECURITY_TOKEN))
_SETTINGS_MAX_BYTES = 32 << 10


class ShardLink:
    """The link of one shard. Only the network loop uses it.

    Args:
        fd: The inherited socket.
        embedded: Whether the supervisor has a name server to register with.
        lost: Called when the link is closed.
    """

    def __init__(self, fd: int, embedded: bool, lost: Callable[[], None] = lambda: None) -> None:
        self.embedded = embedded
        self.lost = lost
        self.state: Callable[[bool], Mapping[str, Any]] = lambda _whole: {}
        """Reads figures of this shard; ``True``: also what is not read (`broker.shards.left`)."""
        self.register: Callable[[], Awaitable[None]] | None = None
        """Registers with the name servers, and returns when they have answered."""
        self.own_setting: Callable[[str, str], None] = lambda _name, _value: None
        """Changes a setting of this shard alone, until the next start."""
        self._fd = fd
        self._channel: Channel | None = None
        self._dispatcher: Dispatcher | None = None
        self._topics: Topics | None = None
        self._groups: SubscriptionGroups | None = None
        self._making: dict[tuple[int, bytes], TableBatch[Any, Any]] = {}

    def join(self, server: Server, dispatcher: Dispatcher, topics: Topics, groups: SubscriptionGroups) -> None:
        """Begin to use the link; the server must be open."""
        self._dispatcher, self._topics, self._groups = dispatcher, topics, groups
        channel = self._channel = server.adopt(inherited(self._fd), ("127.0.0.1", 0), SHARDS_PORT)
        dispatcher.add(_OnLink(self), SHARDS_PORT)
        dispatcher.add(_Forwarding(self), BROKER_PORT)
        topics.everywhere = self._make_topics
        groups.everywhere = self._make_groups

        def closed(gone: Channel) -> None:
            if gone is channel:
                self.lost()

        server.closed_listeners.append(closed)

    async def serves(self, port: int, pending: int, http_port: int) -> None:
        """Say that clients are let in. Raises OSError or TimeoutError."""
        await self.ask("", request(SERVES, {"pending": str(pending), "port": str(port), "http": str(http_port)}))

    async def who(self) -> list[dict[str, str]]:
        """Ask which shards there are, and where. Raises OSError, TimeoutError, ProtocolError."""
        reply = await self.ask("", request(WHO))
        return [{str(name): str(value) for name, value in one.items()} for one in loads_body(reply.body)]

    async def ready(self) -> None:
        """Say that this shard is recovered; returns when it has all changes that the others have.

        Raises OSError or TimeoutError.
        """
        reply = await self.ask("", request(READY))
        if reply.code != ResponseCode.SUCCESS:
            raise OSError(f"the supervisor refuses this shard: {reply.remark}")

    async def ask(self, _address: str, command: RemotingCommand) -> RemotingCommand:
        """Send a request to the supervisor, and wait for its reply. Raises OSError or TimeoutError."""
        if self._dispatcher is None or self._channel is None:
            raise ConnectionError("the link with the supervisor is not open")
        return await self._dispatcher.ask_command(self._channel, command, ANSWER_MS)

    # ------------------------------------------------------------------------------------------ changes for all

    async def forward(self, command: RemotingCommand) -> RemotingCommand:
        """Have a change made on all shards."""
        ext = {name: value for name, value in command.ext.items() if name not in _SIGNED}
        try:
            reply = await self.ask("", request(command.code, ext, command.body))
        except (OSError, TimeoutError) as error:
            text = f"the supervisor has not confirmed the change: {str(error) or type(error).__name__}; ask again"
            return command.reply(ResponseCode.SYSTEM_ERROR, text)
        return command.reply(reply.code, reply.remark, reply.ext, reply.body)

    def _make_topics(self, configs: tuple[TopicConfig, ...]) -> TableBatch[Any, Any]:
        return self._make(MAKE_TOPICS, [config.to_json() for config in configs])

    def _make_groups(self, groups: tuple[SubscriptionGroup, ...]) -> TableBatch[Any, Any]:
        return self._make(MAKE_GROUPS, [group.fields for group in groups])

    def _make(self, code: int, documents: list[Any]) -> TableBatch[Any, Any]:
        """Have topics or groups made on all shards; requests that need the same ones wait for the same answer."""
        assert self._dispatcher is not None
        key = code, dumps(documents)
        batch = self._making.get(key)
        if batch is None:
            batch = self._making[key] = TableBatch()
            self._dispatcher.spawn(self._made(key, batch))
        return batch

    async def _made(self, key: tuple[int, bytes], batch: TableBatch[Any, Any]) -> None:
        error: Exception | None = None
        try:
            reply = await self.ask("", request(key[0], {}, key[1]))
            if reply.code != ResponseCode.SUCCESS:
                error = StoreError(reply.remark or f"the supervisor answers with code {reply.code}")
        except (OSError, TimeoutError) as trouble:
            error = StoreError(f"the supervisor has not confirmed it: {str(trouble) or type(trouble).__name__}")
        finally:
            del self._making[key]
        for waiting in batch.waiting:
            waiting(error)

    def made_topics(self, command: RemotingCommand) -> RemotingCommand:
        """MAKE_TOPICS, from the supervisor."""
        assert self._topics is not None
        new = {}
        for document in loads_body(command.body):
            config = TopicConfig.from_json(document)
            known = self._topics.newest(config.name)
            if known is None or known.order != config.order:
                new[config.name] = config
        if new:
            self._topics.write(new, command.reply)
        return command.reply()

    def made_groups(self, command: RemotingCommand) -> RemotingCommand:
        """MAKE_GROUPS, from the supervisor."""
        assert self._groups is not None
        groups = [SubscriptionGroup(str(fields["groupName"]), fields) for fields in loads_body(command.body)]
        new = {group.name: group for group in groups if self._groups.newest(group.name) is None}
        if new:
            self._groups.write(new, command.reply)
        return command.reply()


class _OnLink:
    """Answers what comes over the link, besides all that clients may ask."""

    def __init__(self, link: ShardLink) -> None:
        self._link = link

    def handlers(self) -> Mapping[int, Handler]:
        """List what it answers."""
        return {
            STATE: self.state,
            MAKE_TOPICS: self.topics,
            MAKE_GROUPS: self.groups,
            PERMIT: self.permit,
            REGISTER: self.register,
        }

    def state(self, _channel: Channel, command: RemotingCommand, _now_ms: int) -> RemotingCommand:
        """STATE."""
        return command.reply(body=dumps(dict(self._link.state("whole" in command.ext))))

    def permit(self, _channel: Channel, command: RemotingCommand, _now_ms: int) -> RemotingCommand:
        """PERMIT."""
        self._link.own_setting(_OWN_SETTING, command.ext[_OWN_SETTING])
        return command.reply()

    async def register(self, _channel: Channel, command: RemotingCommand, _now_ms: int) -> RemotingCommand:
        """REGISTER."""
        if self._link.register is not None:
            await self._link.register()
        return command.reply()

    def topics(self, _channel: Channel, command: RemotingCommand, _now_ms: int) -> RemotingCommand:
        """MAKE_TOPICS."""
        return self._link.made_topics(command)

    def groups(self, _channel: Channel, command: RemotingCommand, _now_ms: int) -> RemotingCommand:
        """MAKE_GROUPS."""
        return self._link.made_groups(command)


class _Forwarding:
    """Answers clients' requests that are for all shards, instead of the processors that would carry them out here."""

    def __init__(self, link: ShardLink) -> None:
        self._link = link

    def handlers(self) -> Mapping[int, Handler]:
        """List what it answers."""
        return {**dict.fromkeys(SHARED_CODES, self.forward), RequestCode.UPDATE_BROKER_CONFIG: self.settings}

    def forward(
        self, _channel: Channel, command: RemotingCommand, _now_ms: int
    ) -> Coroutine[Any, Any, RemotingCommand]:
        """A change for all."""
        return self._link.forward(command)

    def settings(
        self, channel: Channel, command: RemotingCommand, now_ms: int
    ) -> RemotingCommand | Coroutine[Any, Any, RemotingCommand]:
        """UPDATE_BROKER_CONFIG; ``brokerPermission`` is this shard's own."""
        if len(command.body) <= _SETTINGS_MAX_BYTES:
            try:
                values = parse_properties_file(command.body)
            except ValueError as error:
                return command.reply(ResponseCode.SYSTEM_ERROR, str(error))
            if _OWN_SETTING in values:
                return self._own(command, values)
        return self.forward(channel, command, now_ms)

    def _own(self, command: RemotingCommand, values: Mapping[str, str]) -> RemotingCommand:
        if len(values) > 1:
            text = f"{_OWN_SETTING} is a setting of one shard, the others of all shards: change it on its own"
            return command.reply(ResponseCode.SYSTEM_ERROR, text)
        try:
            self._link.own_setting(_OWN_SETTING, values[_OWN_SETTING])
        except (ValueError, ProtocolError, StoreError) as error:
            return command.reply(ResponseCode.SYSTEM_ERROR, str(error))
        return command.reply()
