"""One send as many tries: which queue, how long, and whether to try again.

What went wrong decides:

=========================================  =============================================================================
the connection failed or broke, no reply   again until the send's time is up: a broker that is restarted is back soon
in time, or code 2 or 14 (busy, starting
or stopping)
codes 1, 16, 17, 204, 205                  again, three tries in all, since another broker may do better (Apache's
                                           producer has the same list); to a given queue or by key: no other try
any other code                             no other try
no route, after such a failure             as for a failed connection: the name server forgot the broker meanwhile
=========================================  =============================================================================

``attempts``, if given, bounds all of them together. Before another try the route is asked for again; the pauses begin
at `RETRY_PAUSE_MS` and double up to `MAX_PAUSE_MS`.

After a broken connection or a timeout an earlier try may have been stored. Every try carries the same ``UNIQ_KEY``, so
a message that was stored twice is twice the same ``message_id`` to its consumers.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass

from remoting.codes import ResponseCode
from remoting.command import ProtocolError, RemotingCommand
from timewheel_client.net.client_core import ClientCore, now_ms
from timewheel_client.values.errors import (
    ClientError,
    ConnectionFailedError,
    NoRouteError,
    RequestTimeoutError,
    SendError,
)
from timewheel_client.values.routes import DEFAULT_QUEUES, DEFAULT_TOPIC, MessageQueue, TopicRoute, queue_for_key

__all__ = ["ANYWHERE", "RETRY_CODES", "STORED", "Place", "Tries", "send_header"]

RETRY_CODES = frozenset(
    {
        ResponseCode.SYSTEM_ERROR,
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.NO_PERMISSION,
        ResponseCode.TOPIC_NOT_EXIST,
        204,
        205,
    }
)
"""Codes after which a send is tried again (DefaultMQProducer.retryResponseCodes of 5.x, and SYSTEM_BUSY)."""

NOT_NOW_CODES = frozenset({ResponseCode.SYSTEM_BUSY, ResponseCode.SERVICE_NOT_AVAILABLE})
"""Those of them that say that the broker may do it a little later."""

REFUSED_TRIES = 3
RETRY_PAUSE_MS = 100
MAX_PAUSE_MS = 1_000
STORED = {
    ResponseCode.SUCCESS: "SEND_OK",
    ResponseCode.FLUSH_DISK_TIMEOUT: "FLUSH_DISK_TIMEOUT",
    ResponseCode.SLAVE_NOT_AVAILABLE: "SLAVE_NOT_AVAILABLE",
    ResponseCode.FLUSH_SLAVE_TIMEOUT: "FLUSH_SLAVE_TIMEOUT",
}
_DEFAULT_QUEUES_TEXT = str(DEFAULT_QUEUES)


@dataclass(frozen=True, slots=True)
class Place:
    """Target of a send: a key's queue, a given queue, the broker of delay keys, or (none of them) any queue."""

    sharding_key: str | None = None
    queue: MessageQueue | int | None = None
    delay_keys: tuple[str, ...] = ()

    @property
    def is_fixed(self) -> bool:
        """True if no other broker may be tried."""
        return self.sharding_key is not None or self.queue is not None or bool(self.delay_keys)


ANYWHERE = Place()


class Tries:
    """Makes the tries of one producer's sends.

    Args:
        core: Connections and routes.
        timeout_ms: How long a send may take, all its tries, connects and look-ups together.
        attempt_timeout_ms: How long one try may take.
        attempts: The most tries of a send; None: as many as the table above allows.
    """

    def __init__(self, core: ClientCore, timeout_ms: int, attempt_timeout_ms: int, attempts: int | None) -> None:
        self._core = core
        self._timeout_ms = timeout_ms
        self._attempt_timeout_ms = attempt_timeout_ms
        self._attempts = attempts
        self._turn = itertools.count(random.randrange(1 << 16))

    async def send(
        self, topic: str, code: int, ext: dict[str, str], body: bytes, place: Place
    ) -> tuple[RemotingCommand, MessageQueue]:
        """Try until a broker stores it, the tries or the time are used up, or trying again is no use.

        Raises ValueError.
        """
        clock = asyncio.get_running_loop().time
        deadline = clock() + self._timeout_ms / 1000
        made = refused = 0
        avoid: str | None = None
        pause_s = RETRY_PAUSE_MS / 1000
        while True:
            made += 1
            try:
                route = self._core.cached_route(topic) or await self.find_route(topic, deadline)
                chosen, address = self.choose(route, place, avoid)
                avoid = chosen.broker_name
                ext["e"] = str(chosen.queue_id)
                left_ms = int((deadline - clock()) * 1000)
                reply = await self._core.connections.request(
                    address, code, ext, body, timeout_ms=max(1, min(self._attempt_timeout_ms, left_ms))
                )
                if reply.code in STORED:
                    if route.is_template:
                        self._core.refresh_soon(topic)  # now it exists, maybe with other queues
                    return reply, chosen
                error: ClientError = SendError(reply.code, reply.remark, address)
                again = reply.code in RETRY_CODES
                if again and reply.code not in NOT_NOW_CODES:
                    refused += 1
                    again = refused < REFUSED_TRIES and not place.is_fixed
            except (ConnectionFailedError, RequestTimeoutError) as failure:
                error, again = failure, True
            except NoRouteError as failure:
                error, again = failure, made > 1
            except ProtocolError as failure:
                raise ValueError(f"cannot be sent: {failure}") from None
            left_s = deadline - clock()
            if not again or made == self._attempts or left_s <= pause_s:
                raise error
            self._core.refresh_soon(topic)
            await asyncio.sleep(pause_s * random.uniform(0.75, 1))
            pause_s = min(2 * pause_s, MAX_PAUSE_MS / 1000)

    async def send_oneway(self, topic: str, code: int, ext: dict[str, str], body: bytes, place: Place) -> None:
        """Write a request that gets no reply; one try. Raises ValueError if the request cannot be written."""
        clock = asyncio.get_running_loop().time
        deadline = clock() + self._timeout_ms / 1000
        route = self._core.cached_route(topic) or await self.find_route(topic, deadline)
        chosen, address = self.choose(route, place)
        ext["e"] = str(chosen.queue_id)
        left_ms = max(1, int((deadline - clock()) * 1000))
        try:
            await self._core.connections.oneway(address, code, ext, body, timeout_ms=left_ms)
        except ProtocolError as failure:
            raise ValueError(f"cannot be sent: {failure}") from None

    async def find_route(self, topic: str, deadline: float) -> TopicRoute:
        """The route for a send; raises NoRouteError, ConnectionFailedError, or RequestTimeoutError at the deadline."""
        try:
            async with asyncio.timeout_at(deadline):
                return await self._core.route_to_write(topic)
        except TimeoutError as error:
            if isinstance(error, RequestTimeoutError):
                raise
            raise RequestTimeoutError(f"no name server told the route of {topic} in time") from None

    def choose(self, route: TopicRoute, place: Place, avoid: str | None = None) -> tuple[MessageQueue, str]:
        """Choose a queue: the given one, the key's, or the next in turn, away from a broker that just failed.

        Raises NoRouteError if no queue can be written, ValueError if delay keys of one batch belong to several brokers.
        """
        queues = route.write_queues
        if not queues:
            raise NoRouteError(f"no broker of topic {route.topic} accepts writes")
        queue = place.queue
        if isinstance(queue, MessageQueue):
            chosen = queue
        elif queue is not None:
            chosen = MessageQueue(route.topic, queues[0].broker_name, queue)
        elif place.sharding_key is not None:
            chosen = queue_for_key(queues, place.sharding_key)
        elif place.delay_keys:
            chosen = _queue_of_all(queues, place.delay_keys)
        else:
            if avoid is not None:
                queues = tuple(other for other in queues if other.broker_name != avoid) or queues
            chosen = queues[next(self._turn) % len(queues)]
        address = route.address(chosen.broker_name)
        if address is None:
            raise NoRouteError(f"no address for broker {chosen.broker_name} of topic {route.topic}")
        return chosen, address


def _queue_of_all(queues: Sequence[MessageQueue], delay_keys: Sequence[str]) -> MessageQueue:
    """The queue of the first delay key; the others must be of the same broker. Raises ValueError."""
    chosen = [queue_for_key(queues, key) for key in delay_keys]
    brokers = sorted({queue.broker_name for queue in chosen})
    if len(brokers) > 1:
        raise ValueError(
            f"the delay keys of this batch belong to {', '.join(brokers)}: make a batch for each, by "
            "Producer.key_queue; or give a queue, then a key may wait on several brokers at once"
        )
    return chosen[0]


def send_header(
    group: str, topic: str, properties: str, *, flag: int = 0, batch: bool = False, reconsume_times: int = 0
) -> dict[str, str]:
    """Write the header fields of a send (310, 320) but for ``e``, the queue id."""
    ext = {
        "a": group,
        "b": topic,
        "c": DEFAULT_TOPIC,
        "d": _DEFAULT_QUEUES_TEXT,
        "e": "0",
        "f": "0",
        "g": str(now_ms()),
        "h": str(flag),
        "i": properties,
        "j": str(reconsume_times),
        "k": "false",
    }
    if batch:
        ext["m"] = "true"
    return ext
