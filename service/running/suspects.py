"""Brokers that did not answer, and topics that nobody takes messages for.

A delivery to a broker that hangs takes as long as its timeout, and everything that is due at the same time waits for
it. So a broker that did not answer gets no deliveries, only cheap probes. After `PAUSE_MIN_MS` at least, it is used
again once it has answered a probe, even with an error, or an earlier delivery. That pause becomes longer each time if
deliveries time out although the broker answers probes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from service.core.progress import TargetQueue
from timewheel_client.values.errors import BrokerError, ClientError

__all__ = ["ClosedTopics", "Suspects"]

PAUSE_MIN_MS, PAUSE_MAX_MS = 500, 30_000
CLOSED_MAX = 10_000
"""Most topics that are remembered as closed; beyond it their time begins anew."""
UNSEEN_MS = 30_000
"""A topic that was not looked at for longer, as nothing was due for it or this machine slept, may have been open."""


class Suspects:
    """The suspects of one owner. For one event loop.

    Args:
        probe: Makes the broker of a queue answer a request; raises ClientError.
        well: Called when a broker is used again.
    """

    def __init__(self, probe: Callable[[TargetQueue], Awaitable[object]], well: Callable[[], None]) -> None:
        self._probe = probe
        self._well = well
        self._asking: dict[str, asyncio.Task[None]] = {}
        self._pause_ms: dict[str, int] = {}

    def __contains__(self, broker: str) -> bool:
        return broker in self._asking

    def __len__(self) -> int:
        return len(self._asking)

    def suspect(self, queue: TargetQueue) -> None:
        """Note that the broker of this queue did not answer in time, or cannot be reached."""
        if queue[1] not in self._asking:
            self._asking[queue[1]] = asyncio.ensure_future(self._ask(queue))

    def answered(self, broker: str) -> None:
        """Note that the broker of a queue answered a delivery."""
        self._pause_ms.pop(broker, None)
        task = self._asking.pop(broker, None)
        if task is not None:
            task.cancel()
            self._well()

    def tasks(self) -> list[asyncio.Task[None]]:
        """The tasks under way."""
        return list(self._asking.values())

    async def _ask(self, queue: TargetQueue) -> None:
        pause_ms = self._pause_ms.get(queue[1], PAUSE_MIN_MS)
        self._pause_ms[queue[1]] = min(2 * pause_ms, PAUSE_MAX_MS)
        while True:
            await asyncio.sleep(pause_ms / 1000)
            try:
                await self._probe(queue)
                break
            except BrokerError:  # an answer, too: its account may lack the right, or the topic is gone
                break
            except ClientError:
                pause_ms = PAUSE_MIN_MS
        self._asking.pop(queue[1], None)
        self._well()


class ClosedTopics:
    """Topics of which no broker accepts writes. Times are monotonic ms.

    >>> closed = ClosedTopics()
    >>> closed.closed_ms("T", 1000), closed.closed_ms("T", 21_000), closed.closed_ms("T", 90_000)
    (0, 20000, 0)
    >>> closed.is_open("T"); closed.closed_ms("T", 91_000)
    0
    """

    def __init__(self) -> None:
        self._since_ms: dict[str, tuple[int, int]] = {}  # since when, and when that was seen last

    def is_open(self, topic: str) -> None:
        """Note that a broker accepts writes to a topic."""
        self._since_ms.pop(topic, None)

    def closed_ms(self, topic: str, mono_ms: int) -> int:
        """Note that none does; returns for how long that has been so."""
        if len(self._since_ms) >= CLOSED_MAX:
            self._since_ms.clear()
        since_ms, seen_ms = self._since_ms.get(topic, (mono_ms, mono_ms))
        if mono_ms - seen_ms > UNSEEN_MS:
            since_ms = mono_ms
        self._since_ms[topic] = since_ms, mono_ms
        return mono_ms - since_ms
