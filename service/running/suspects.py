"""Brokers that did not answer. Nothing is sent to them until they answer, so that nothing waits for them.

A delivery to a broker that hangs takes as long as its timeout, and so does everything that is due at the same time. So
a broker that once did not answer is left out, and is sent cheap probes. It is used again when it has answered a probe,
also with an error, or an earlier delivery, after `PAUSE_MIN_MS` at least. That pause becomes longer each time if
deliveries time out although the broker answers probes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from service.core.progress import TargetQueue
from timewheel_client.values.errors import BrokerError, ClientError

__all__ = ["Suspects"]

PAUSE_MIN_MS, PAUSE_MAX_MS = 500, 30_000


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
