"""The target topics of an instance: their routes, and how long the name servers have not known them.

A name server that has just started knows a topic only after a broker with that topic has registered. RocketMQ's brokers
register every 30 s, at most every 60 s. So at first its "no such topic" proves little. Other sources:

====================  ==========================================================================================
the cached route      the client core keeps it; the brokers' own answers show whether the topic still exists
the progress          names the target queues of the previous owner, so their topics existed
other name servers    are asked, too
====================  ==========================================================================================

A topic counts as missing (`Targets.is_gone`) after `MISSING_MS`, if the answer comes from a name server that has been
up for `SETTLED_MS`, as an open connection to it proves. Each missing topic is asked for separately, with a back-off of
its own. Nobody waits longer than `WAIT_MS` for the answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Protocol

from service.core.progress import TargetQueue
from service.link.clock import mono_ms
from timewheel_client.values.errors import ClientError, NoRouteError
from timewheel_client.values.routes import MessageQueue, TopicRoute

__all__ = ["BrokerBook", "RouteSource", "Targets"]

MISSING_MS = 10_000
"""Messages are rejected after their topic has been unknown to the name servers for this long."""
SETTLED_MS = 65_000
"""A name server knows all topics after it has been up for this long: a little more than the longest period in which
RocketMQ's brokers register their topics."""
WAIT_MS = 300
"""Longest wait of a delivery for a route; it is tried again anyway."""
PAUSE_MIN_MS, PAUSE_MAX_MS = 200, 3000
"""Shortest and longest pause between two questions for one missing topic."""
AGAIN_MS = 1000
"""Pause between two queries for the route of a topic that takes no writes."""
TOPICS_MAX = 10_000
"""Most missing topics, topics without a master and topics of other owners that are remembered; beyond it the oldest is
forgotten."""
KEEP_MS = 600_000
"""The address of a broker is kept for this long after the last route that named it."""


class RouteSource(Protocol):
    """The part of the client core that is used here."""

    def cached_route(self, topic: str) -> TopicRoute | None:
        """The cached route of a topic, if there is one."""
        ...

    async def refresh(self, topic: str) -> TopicRoute:
        """Ask the name servers."""
        ...

    async def refresh_elsewhere(self, topic: str) -> TopicRoute:
        """Ask all name servers except the first."""
        ...

    def refresh_soon(self, topic: str) -> None:
        """Ask the name servers in the background."""
        ...

    def forget(self, topic: str) -> None:
        """Stop looking for a topic."""
        ...

    def name_server_age_ms(self) -> int:
        """Time for which the first name server has certainly been up, ms."""
        ...


class BrokerBook:
    """Addresses of masters by broker name, from routes.

    >>> book = BrokerBook(1000)
    >>> book.saw({"a": "h:1", "b": "h:2"}, 0); book.saw({"a": "h:1"}, 500)
    >>> book.address("b", 1500), book.address("b", 1501)
    ('h:2', None)

    An address that now belongs to another broker is no longer the first one's:

    >>> book.saw({"c": "h:2"}, 600); book.address("b", 700), book.address("a", 700)
    (None, 'h:1')
    """

    def __init__(self, keep_ms: int = KEEP_MS) -> None:
        self._keep_ms = keep_ms
        self._now: dict[str, str] = {}
        self._gone: dict[str, tuple[str, int]] = {}

    def saw(self, masters: dict[str, str], mono_ms: int) -> None:
        """Note the addresses that all routes together name."""
        for broker in self._now.keys() - masters.keys():
            self._gone[broker] = self._now[broker], mono_ms
        self._now = dict(masters)
        for broker, (_, since_ms) in list(self._gone.items()):
            if broker in masters or mono_ms - since_ms > self._keep_ms:
                del self._gone[broker]

    def address(self, broker: str, mono_ms: int) -> str | None:
        """The address of a broker, or its last one; None if that is too old."""
        if broker in self._now:
            return self._now[broker]
        address, since_ms = self._gone.get(broker, ("", 0))
        return (
            address if address and mono_ms - since_ms <= self._keep_ms and address not in self._now.values() else None
        )


class _Missing:
    """A topic without a route."""

    __slots__ = ("next_ms", "pause_ms", "since_ms", "task", "text", "told_ms", "waited")

    def __init__(self) -> None:
        self.since_ms: int | None = None  # since when a name server says so, and when it has said so last
        self.told_ms = 0
        self.next_ms = 0
        self.pause_ms = PAUSE_MIN_MS
        self.text = "its route is not known yet"
        self.task: asyncio.Task[None] | None = None
        self.waited = False


class Targets:
    """The target topics of one instance. For one event loop.

    Args:
        core: Looks routes up.
        address_of: The address of a broker, from routes.
        now_ms: The monotonic clock.
    """

    def __init__(
        self, core: RouteSource, address_of: Callable[[str], str | None], now_ms: Callable[[], int] = mono_ms
    ) -> None:
        self._core = core
        self._address_of = address_of
        self._now_ms = now_ms
        self._missing: dict[str, _Missing] = {}
        self._learnt: dict[str, set[TargetQueue]] = {}
        self._found: set[Callable[[], None]] = set()
        self._refreshed_ms: dict[str, int] = {}  # topics without a master: when their route was asked for

    def watch(self, found: Callable[[], None]) -> Callable[[], None]:
        """Call ``found`` when a missing topic is found. Returns a function that ends this."""
        self._found.add(found)
        return lambda: self._found.discard(found)

    def learn(self, queues: Iterable[TargetQueue]) -> None:
        """Note queues that an owner has delivered to."""
        for queue in queues:
            if queue[0] not in self._learnt and len(self._learnt) >= TOPICS_MAX:
                del self._learnt[next(iter(self._learnt))]
            self._learnt.setdefault(queue[0], set()).add(queue)

    def is_gone(self, topic: str) -> bool:
        """True if a topic certainly does not exist, and no known owner has delivered to it."""
        missing = self._missing.get(topic)
        if missing is None or missing.since_ms is None or topic in self._learnt:
            return False
        now_ms = self._now_ms()
        long, lately = now_ms - missing.since_ms >= MISSING_MS, now_ms - missing.told_ms <= MISSING_MS
        return long and lately and self.is_settled

    @property
    def is_settled(self) -> bool:
        """True if the first name server has been up long enough to know every topic."""
        return self._core.name_server_age_ms() >= SETTLED_MS

    def known(self, topic: str) -> TopicRoute | None:
        """The route of a topic, if it is known without a request."""
        route = self._core.cached_route(topic)
        return None if route is None or route.is_template else route

    async def route(self, topic: str, *, keyed: bool = False) -> TopicRoute:
        """The route of a topic, within `WAIT_MS`. Raises NoRouteError.

        ``keyed``: the queue depends on the message's key, so all queues must be known.
        """
        route = self.known(topic)
        if route is not None:
            if not route.write_queues:
                self._look_again(topic)
            elif self._refreshed_ms:
                self._refreshed_ms.pop(topic, None)
            return route
        missing = await self._ask(topic)
        route = self.known(topic)
        if route is not None:
            return route
        known = self._of_progress(topic) if not keyed or self.is_settled else None
        if known is None:
            raise NoRouteError(missing.text)
        return known

    def _look_again(self, topic: str) -> None:
        """Look the route up now, because no broker accepts writes: the next regular look may be 30 s away."""
        now_ms = self._now_ms()
        if now_ms - self._refreshed_ms.get(topic, now_ms - AGAIN_MS) >= AGAIN_MS:
            self._refreshed_ms.pop(topic, None)
            if len(self._refreshed_ms) >= TOPICS_MAX:
                del self._refreshed_ms[next(iter(self._refreshed_ms))]
            self._refreshed_ms[topic] = now_ms
            self._core.refresh_soon(topic)

    def _of_progress(self, topic: str) -> TopicRoute | None:
        """The queues that the previous owner used, of brokers whose address is known."""
        rows = [queue for queue in sorted(self._learnt.get(topic, ())) if self._address_of(queue[1]) is not None]
        queues = tuple(MessageQueue(*queue) for queue in rows)
        brokers = {queue[1]: {0: self._address_of(queue[1]) or ""} for queue in rows}
        return TopicRoute(topic, queues, queues, brokers) if queues else None

    async def _ask(self, topic: str) -> _Missing:
        missing = self._missing.get(topic)
        if missing is None:
            if len(self._missing) >= TOPICS_MAX:
                del self._missing[next(iter(self._missing))]
            missing = self._missing[topic] = _Missing()
        if missing.task is None and self._now_ms() >= missing.next_ms:
            missing.waited = False
            missing.task = asyncio.ensure_future(self._look(topic, missing))
        if missing.task is not None and not missing.waited:
            await asyncio.wait({missing.task}, timeout=WAIT_MS / 1000)
            missing.waited = True
        return missing

    async def _look(self, topic: str, missing: _Missing) -> None:
        try:
            try:
                await self._core.refresh(topic)
            except NoRouteError:
                await self._core.refresh_elsewhere(topic)
        except ClientError as error:
            missing.text = str(error)
            now_ms = self._now_ms()
            if not isinstance(error, NoRouteError):
                missing.since_ms = None
            elif missing.since_ms is None or now_ms - missing.told_ms > MISSING_MS:
                missing.since_ms = now_ms
            missing.told_ms = now_ms
            missing.next_ms = now_ms + missing.pause_ms
            missing.pause_ms = min(2 * missing.pause_ms, PAUSE_MAX_MS)
            self._core.forget(topic)  # senders may name any number of such topics; so ask for it here
        else:
            self._missing.pop(topic, None)
            for found in list(self._found):
                found()
        finally:
            missing.task = None
