"""The queues that a topic can be read from, on all brokers: what QUERY_ASSIGNMENT deals out to the members of a group.

The embedded name server knows them. Without it, the external ones are asked, one after another. Their answer counts for
half a minute (``loadBalancePollNameServerInterval``); if none answers, the last answer counts. A topic that they do not
know has no queues.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence

from broker.naming.broker_topics import QueueData
from broker.naming.registration import Request
from broker.naming.routes import RouteTable
from remoting.codes import Permission, RequestCode, ResponseCode
from remoting.command import RemotingCommand, request
from remoting.errors import ProtocolError
from remoting.json_dialect import loads

__all__ = ["AskedRoutes", "own_routes"]

_LOG = logging.getLogger(__name__)
_READ = int(Permission.READ)
_TOPICS_MAX = 10_000
"""Topics that are kept; beyond them all are forgotten and asked for anew."""
_QUEUES_MAX = 65_536
"""Queues of one topic and broker that are taken from a name server's answer."""

Queues = Sequence[tuple[str, int]]


def own_routes(routes: RouteTable) -> Callable[[str], Awaitable[Queues | None]]:
    """Look queues up in the embedded name server."""

    async def queues_of(topic: str) -> Queues | None:
        brokers, queues, _ = routes.route(topic)
        return _readable([(name, queues[name]) for name in sorted(queues)]) if brokers else None

    return queues_of


def _readable(entries: Sequence[tuple[str, QueueData]]) -> Queues:
    return [
        (name, queue_id)
        for name, data in entries
        if data.perm & _READ
        for queue_id in range(min(data.read_queue_nums, _QUEUES_MAX))
    ]


class AskedRoutes:
    """Looks queues up at external name servers. Network loop only.

    Args:
        ask: Sends a request to a name server (``host:port``) and waits for its reply.
        name_servers: Addresses, ``host:port``.
        now_ms: The clock.
        setting: Reads how long an answer counts (``loadBalancePollNameServerInterval``), in milliseconds.
    """

    def __init__(
        self, ask: Request, name_servers: Sequence[str], now_ms: Callable[[], int], setting: Callable[[str], int]
    ) -> None:
        self._ask = ask
        self._name_servers = tuple(name_servers)
        self._now_ms = now_ms
        self._period_ms = setting("loadBalancePollNameServerInterval")
        self._known: dict[str, tuple[Queues, int]] = {}

    async def queues_of(self, topic: str) -> Queues | None:
        """List a topic's queues; None if it is not known or nobody can say. Raises ProtocolError."""
        queues, asked_ms = self._known.get(topic, (None, 0))
        now_ms = self._now_ms()
        if queues and 0 <= now_ms - asked_ms < self._period_ms:
            return queues
        for name_server in self._name_servers:
            try:
                reply = await self._ask(name_server, request(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic}))
                if reply.code == ResponseCode.TOPIC_NOT_EXIST:
                    self._known.pop(topic, None)
                    return None
                queues = _read(reply)
            except (OSError, EOFError, TimeoutError, ProtocolError) as error:
                _LOG.warning("name server %s does not say which queues %s has: %s", name_server, topic, error)
                continue
            if len(self._known) >= _TOPICS_MAX:
                self._known.clear()
            self._known[topic] = queues, now_ms
            break
        return queues


def _read(reply: RemotingCommand) -> Queues:
    """Read TopicRouteData. Raises ProtocolError."""
    if reply.code != ResponseCode.SUCCESS:
        raise ProtocolError(f"code {reply.code}: {reply.remark}")
    body = reply.body
    document = loads(body)
    try:
        entries = [(str(entry["brokerName"]), QueueData.from_json(entry)) for entry in document.get("queueDatas") or ()]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ProtocolError(f"unreadable route: {error!r}: {body[:200]!r}") from error
    return _readable(entries)
