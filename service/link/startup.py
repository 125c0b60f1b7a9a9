"""Checks before the service starts: the three topics must exist with enough queues, readable and writable, and the
brokers must keep messages until the service rolls them.

Each error names what is missing and the command that creates it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterable
from contextlib import suppress

from remoting.codes import RequestCode
from remoting.command import ProtocolError
from remoting.json_dialect import loads
from service.core.progress import TargetQueue
from service.link.clock import mono_ms
from service.link.cluster import ClusterLink
from service.link.log import Teller
from service.link.progress_log import progress_topic
from service.link.targets import SETTLED_MS
from timewheel_client.values.errors import ClientError, NoRouteError
from timewheel_client.values.routes import TopicRoute

__all__ = ["SetupError", "check_retention", "check_topics", "shards_of"]

HOUR_MS = 3_600_000
ASK_TIMEOUT_MS = 3000
_tell = Teller(logging.getLogger(__name__), "start")


class SetupError(ClientError):
    """The cluster lacks something that the service needs. The text says what to do."""


def _make(topic: str, queues: int, namesrv: str, cluster: str) -> str:
    return f"sh mqadmin updateTopic -n '{namesrv}' -c {cluster} -t {topic} -r {queues} -w {queues}"


def shards_of(route: TopicRoute) -> list[TargetQueue]:
    """The shards of an entry topic: its queues that are both readable and writable, sorted."""
    return [
        (queue.topic, queue.broker_name, queue.queue_id) for queue in route.read_queues if queue in route.write_queues
    ]


async def _cluster_name(cluster: ClusterLink) -> str:
    """The name of the cluster, for the command in an error; CLUSTER if it is unknown."""
    try:
        reply = await cluster.core.ask_namesrv(RequestCode.GET_BROKER_CLUSTER_INFO, {})
        return str(min(loads(reply.body)["clusterAddrTable"]))
    except Exception:
        return "CLUSTER"


async def _opened(cluster: ClusterLink, topic: str, namesrv: str) -> str:
    """The remedy for a topic that cannot be read or written."""
    name = await _cluster_name(cluster)
    return (
        f"Give it the permission 6 (read and write) at all brokers:\n  "
        f"sh mqadmin updateTopicPerm -n '{namesrv}' -c {name} -t {topic} -p 6"
    )


async def _routes(cluster: ClusterLink, topics: Iterable[str]) -> dict[str, TopicRoute]:
    """The routes that are known, of these topics."""
    routes: dict[str, TopicRoute] = {}
    for topic in topics:
        try:
            routes[topic] = await cluster.core.route(topic)
        except NoRouteError:
            try:
                routes[topic] = await cluster.core.refresh_elsewhere(topic)
            except NoRouteError:
                continue
    return routes


async def _settled(cluster: ClusterLink, wanted: Collection[str]) -> dict[str, TopicRoute]:
    """The routes, as soon as the name server knows brokers. Raises ClientError if no name server answers.

    An answer shows that its address is right. After that it may be away for a while.
    """
    routes = await _routes(cluster, wanted)
    until_ms = mono_ms() + SETTLED_MS
    while len(routes) < len(wanted):
        try:
            if await cluster.core.masters() or mono_ms() >= until_ms:
                break
            _tell.info(
                "the name server knows no broker yet: brokers register with a restarted name server within a minute"
            )
        except ClientError as error:
            if mono_ms() >= until_ms:
                raise
            _tell.info(f"the name server answered before and does not answer now: {error}")
        await asyncio.sleep(1)
        with suppress(ClientError):
            routes = await _routes(cluster, wanted)
    return routes


async def check_topics(cluster: ClusterLink, namesrv: str, rejected: str) -> list[TargetQueue]:
    """Return the shards. Raises SetupError if something is missing, ClientError if the cluster does not answer."""
    progress = progress_topic(cluster.topic)
    wanted = {cluster.topic: 8, progress: 8, rejected: 4}
    routes = await _settled(cluster, wanted)
    missing = [topic for topic in wanted if topic not in routes]
    if missing:
        name = await _cluster_name(cluster)
        lines = "\n  ".join(_make(topic, wanted[topic], namesrv, name) for topic in missing)
        raise SetupError(f"topics are missing: {', '.join(missing)}. Create them:\n  {lines}")
    for topic, route in routes.items():
        if not route.write_queues or not route.read_queues:
            text = "written" if not route.write_queues else "read"
            raise SetupError(f"topic {topic} cannot be {text}. {await _opened(cluster, topic, namesrv)}")
    shards = shards_of(routes[cluster.topic])
    if not shards:
        text = f"topic {cluster.topic} has no queue that can be both read and written"
        raise SetupError(f"{text}. {await _opened(cluster, cluster.topic, namesrv)}")
    there = {(queue.broker_name, queue.queue_id) for queue in routes[progress].write_queues}
    short = sorted({broker for _, broker, number in shards if (broker, number) not in there})
    if short:
        count = 1 + max(number for _, _, number in shards)
        line = _make(progress, count, namesrv, await _cluster_name(cluster))
        raise SetupError(
            f"topic {progress} needs as many queues as {cluster.topic} on broker {', '.join(short)}:\n  {line}"
        )
    return shards


async def check_retention(cluster: ClusterLink, roll_after_ms: int) -> None:
    """Raise SetupError if a broker deletes entries before they are rolled; ClientError if the cluster does not answer.

    A broker that does not tell its configuration to this account is passed over.
    """
    route = await cluster.core.route(cluster.topic)
    for broker, addresses in sorted(route.brokers.items()):
        kept_ms = await _kept_ms(cluster, addresses[0]) if 0 in addresses else None
        if kept_ms is not None and kept_ms <= roll_after_ms:
            raise SetupError(
                f"broker {broker} deletes messages after {kept_ms // HOUR_MS} h (fileReservedTime), and entries are "
                f"stored again only after {roll_after_ms // 1000} s: what waits longer would be lost. Use --roll-after "
                f"{kept_ms // 2000}, or a longer fileReservedTime"
            )


async def _kept_ms(cluster: ClusterLink, address: str) -> int | None:
    """Retention of a broker's log, ms; None if the broker does not tell it."""
    try:
        reply = await cluster.core.ask(address, RequestCode.GET_BROKER_CONFIG, timeout_ms=ASK_TIMEOUT_MS)
        rows = (line.partition("=") for line in reply.body.decode("utf-8", "replace").splitlines())
        return next((int(value) * HOUR_MS for name, _, value in rows if name.strip() == "fileReservedTime"), None)
    except (ClientError, ProtocolError, ValueError):
        return None
