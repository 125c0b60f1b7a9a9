"""Registration with external name servers: writes and sends registrations, and reads those of others.

A broker tells each of its name servers all of its topics at start, every 30 s, and at once when a topic changes:
clients learn of new topics by asking name servers only. At stop it unregisters.

Each name server has a task of its own, so that one that is down or slow does not hold up the others. Changes that
come while a registration is under way are covered by one more registration after it. A name server that cannot be
reached is tried again after 1 s, 2 s, 4 s and so on, up to the usual period.

Each name server has one connection, which must stay open between requests: a name server forgets a broker whose
connection closes.

Two facts about Apache's name server (5.5.0): a registration with the same data version as before counts as a heartbeat
only, and a registration never removes a topic (tools send DELETE_TOPIC_IN_NAMESRV themselves).
"""

from __future__ import annotations

import asyncio
import logging
import zlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from broker.naming.broker_topics import QueueData
from broker.naming.routes import TOPICS_MAX
from remoting.codes import Permission, RequestCode
from remoting.command import RemotingCommand, request
from remoting.errors import ProtocolError
from remoting.json_dialect import dumps, loads_apart

if TYPE_CHECKING:
    from broker.tables.topics import Topics

__all__ = ["Registration", "parse_registration", "register_command", "unregister_command"]

_LOG = logging.getLogger(__name__)
_READ_WRITE = int(Permission.READ | Permission.WRITE)
_FIRST_RETRY_MS = 1000
_START_MS = 3000
_STOP_MS = 300
_MAX_INFLATED_BYTES = 16 << 20
REGISTRATION_BYTES_MAX = 4 << 20
"""The longest registration that is not compressed, some 25,000 topics: half a microsecond a byte to read."""

Request = Callable[[str, RemotingCommand], Awaitable[RemotingCommand]]


class Registration:
    """Keeps a broker registered. Only the network loop uses it.

    Args:
        ask: Sends a request to a name server (``host:port``) and waits for its reply, over a connection that it keeps
            open; raises OSError, TimeoutError or ProtocolError.
        name_servers: Addresses, ``host:port``.
        topics: The broker's topics.
        cluster: Cluster name. ``name``: broker name. ``address``: ``ip:port`` that clients are to dial.
        perm: Reads the broker's permission (``brokerPermission``).
        period_ms: Time between registrations (``registerNameServerPeriod``).
        timeout_ms: How long one may take (``registerBrokerTimeoutMills``).
    """

    def __init__(
        self,
        ask: Request,
        name_servers: Sequence[str],
        topics: Topics,
        *,
        cluster: str,
        name: str,
        address: str,
        perm: Callable[[], int] = lambda: _READ_WRITE,
        period_ms: int = 30_000,
        timeout_ms: int = 24_000,
    ) -> None:
        self._ask = ask
        self._topics = topics
        self._identity = {"brokerAddr": address, "brokerId": "0", "brokerName": name, "clusterName": cluster}
        self._perm = perm
        self._last_perm = perm()
        self._period_ms = period_ms
        self._timeout_ms = timeout_ms
        self.status: dict[str, str] = dict.fromkeys(name_servers, "not yet registered")
        """For each name server: ``registered``, or why not."""
        self._changed = {address: asyncio.Event() for address in name_servers}
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Register with all name servers and keep registered; a failure is logged, not raised.

        Returns when each of them has answered or failed once, or after 3 s; then open registrations continue.
        """
        self._topics.listeners.append(self.topics_changed)
        first = [asyncio.create_task(self._register(name_server)) for name_server in self.status]
        self._tasks = [
            asyncio.create_task(self._keep(name_server, task))
            for name_server, task in zip(self.status, first, strict=True)
        ]
        if first:
            await asyncio.wait(first, timeout=_START_MS / 1000)

    async def stop(self) -> None:
        """End the tasks and unregister the broker; waits for a name server at most 300 ms."""
        if self.topics_changed in self._topics.listeners:
            self._topics.listeners.remove(self.topics_changed)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []
        registered = [name_server for name_server, status in self.status.items() if status == "registered"]
        await asyncio.gather(*(self._unregister(name_server) for name_server in registered))

    def topics_changed(self, _names: list[str] | None = None) -> None:
        """Register again at once: topics changed, or the broker's permission, which counts as a change of all
        topics."""
        if self._last_perm != self._perm():
            self._last_perm = self._perm()
            self._topics.next_version(self._forget_perm)  # with an old version a name server ignores the topics
        for event in self._changed.values():
            event.set()

    def _forget_perm(self) -> None:
        """Called when the new version could not be written: the next change of any topic tries again."""
        self._last_perm = -1

    async def now(self) -> None:
        """Register with all name servers; returns when each of them has answered or failed."""
        await asyncio.gather(*(self._register(name_server) for name_server in self.status))

    async def _keep(self, name_server: str, first: asyncio.Task[None]) -> None:
        await first
        changed = self._changed[name_server]
        retry_ms = _FIRST_RETRY_MS
        while True:
            wait_ms = self._period_ms
            if self.status[name_server] != "registered":
                wait_ms = min(retry_ms, self._period_ms)
                retry_ms *= 2
            else:
                retry_ms = _FIRST_RETRY_MS
            try:
                async with asyncio.timeout(wait_ms / 1000):
                    await changed.wait()
            except TimeoutError:
                pass
            await self._register(name_server)

    async def _register(self, name_server: str) -> None:
        """Register once and note how it went; a change is logged once."""
        self._changed[name_server].clear()
        command = register_command(self._identity, self._topics, self._perm())
        status = "registered"
        try:
            async with asyncio.timeout(self._timeout_ms / 1000):  # wait_for of 3.11 can swallow a cancellation
                reply = await self._ask(name_server, command)
            if reply.code != 0:
                status = f"refused with code {reply.code}: {reply.remark}"
        except TimeoutError:
            status = f"no answer within {self._timeout_ms} ms"
        except (OSError, EOFError, ProtocolError) as error:
            status = str(error) or type(error).__name__
        except Exception as error:
            _LOG.exception("registering with name server %s failed", name_server)
            status = repr(error)
        if status != self.status[name_server]:
            if status == "registered":
                _LOG.info("registered with name server %s", name_server)
            else:
                _LOG.warning("not registered with name server %s, trying again: %s", name_server, status)
            self.status[name_server] = status

    async def _unregister(self, name_server: str) -> None:
        try:
            async with asyncio.timeout(_STOP_MS / 1000):
                await self._ask(name_server, unregister_command(self._identity))
        except (OSError, EOFError, TimeoutError, ProtocolError) as error:
            _LOG.info("name server %s did not confirm that this broker is unregistered: %s", name_server, error)
        self.status[name_server] = "unregistered"


def register_command(identity: Mapping[str, str], topics: Topics, perm: int = _READ_WRITE) -> RemotingCommand:
    """Make REGISTER_BROKER with all topics; a broker that may not be read or written limits its topics to that.

    ``identity`` has brokerAddr, brokerId, brokerName and clusterName.
    """
    table = topics.to_json()
    if perm & _READ_WRITE != _READ_WRITE:
        table["topicConfigTable"] = {
            name: {**config, "perm": config["perm"] & perm} for name, config in table["topicConfigTable"].items()
        }
    body = dumps(
        {
            "filterServerList": [],
            "topicConfigSerializeWrapper": {
                "dataVersion": table["dataVersion"],
                "mappingDataVersion": {"counter": 0, "stateVersion": 0, "timestamp": 0},
                "topicConfigTable": table["topicConfigTable"],
                "topicQueueMappingDetailMap": {},
                "topicQueueMappingInfoMap": {},
            },
        }
    )
    host, _, port = identity["brokerAddr"].rpartition(":")
    ext = {
        **identity,
        "bodyCrc32": str(zlib.crc32(body) & 0x7FFFFFFF),
        "compressed": "false",
        "enableActingMaster": "false",
        "haServerAddr": f"{host}:{int(port) + 1}",
    }
    return request(RequestCode.REGISTER_BROKER, ext, body)


def unregister_command(identity: Mapping[str, str]) -> RemotingCommand:
    """Make UNREGISTER_BROKER."""
    return request(RequestCode.UNREGISTER_BROKER, dict(identity))


def parse_registration(body: bytes, compressed: bool) -> tuple[dict[str, QueueData], dict[str, Any], list[str]]:
    """Read a registration's (topics, data version, filter servers); raises ProtocolError."""
    if not body:
        return {}, {"counter": 0, "stateVersion": 0, "timestamp": 0}, []
    try:
        if compressed:
            return _compressed_registration(body)
        if len(body) > REGISTRATION_BYTES_MAX:
            raise ProtocolError(
                f"a registration of {len(body)} bytes, at most {REGISTRATION_BYTES_MAX} are taken: "
                "send it compressed (compressedRegister=true) or in parts (enableSplitRegistration=true)"
            )
        document = loads_apart(body)
        wrapper = document.get("topicConfigSerializeWrapper") or {}
        table = wrapper.get("topicConfigTable") or {}
        _check_count(len(table))
        topics = {str(name): QueueData.from_json(config) for name, config in table.items()}
        return topics, dict(wrapper.get("dataVersion") or {}), list(document.get("filterServerList") or ())
    except (AttributeError, OverflowError, TypeError, ValueError, zlib.error) as error:
        raise ProtocolError(f"unreadable registration: {error!r}") from error


def _check_count(count: int) -> None:
    if count > TOPICS_MAX:
        raise ValueError(f"{count} topics, at most {TOPICS_MAX} can be registered")


def _compressed_registration(body: bytes) -> tuple[dict[str, QueueData], dict[str, Any], list[str]]:
    """Read the deflated form: a length before each part, a topic as ``name read write perm filterType …``."""
    inflater = zlib.decompressobj()
    data = inflater.decompress(body, _MAX_INFLATED_BYTES)
    if inflater.unconsumed_tail:
        raise ValueError(f"more than {_MAX_INFLATED_BYTES} bytes")
    at = 0

    def number() -> int:
        nonlocal at
        if at + 4 > len(data):
            raise ValueError("cut off")
        at += 4
        return int.from_bytes(data[at - 4 : at], "big", signed=True)

    def part() -> bytes:
        nonlocal at
        length = number()
        if length < 0 or at + length > len(data):
            raise ValueError(f"a part of {length} bytes, {len(data) - at} are left")
        at += length
        return data[at - length : at]

    version = loads_apart(part())
    topics: dict[str, QueueData] = {}
    count = number()
    _check_count(count)
    for _ in range(count):
        name, read, write, perm, *_rest = part().decode().split(" ")
        topics[name] = QueueData.from_json({"readQueueNums": read, "writeQueueNums": write, "perm": perm})
    filters = loads_apart(part())
    return topics, dict(version), list(filters or ())


def read_registration(
    body: bytes, compressed: bool, crc: int
) -> tuple[dict[str, QueueData], dict[str, Any], list[str]] | None:
    """Read a registration, any thread; None if its checksum is another one. Raises ProtocolError."""
    if crc and zlib.crc32(body) & 0x7FFFFFFF != crc:
        return None
    return parse_registration(body, compressed)
