"""`Lookout`: ends pulls that have waited long enough, and checks how far the disk is behind.

It wakes up ten times a second while messages are written or a pull ends soon, and rarely otherwise. Each wake-up of an
idle broker costs a third of a millisecond of a core, nearly all of it for cold caches.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from store.disk.errors import StoreError

if TYPE_CHECKING:
    from broker.pulling.long_poll import LongPoll
    from broker.turns.turn import Turn

__all__ = ["Lookout", "every"]

_LOG = logging.getLogger(__name__)

_BUSY_MS = 100
_ROUND_MS = 5
"""The rest between two rounds if more pulls end at once than one round takes: other requests are served in it."""
_IDLE_MS = 400
"""Shorter than it takes to fill an idle disk's cache so far that sends have to be refused."""


class Lookout:
    """A timer of the running loop, from its making until `stop`."""

    def __init__(self, long_poll: LongPoll, turn: Turn, now_ms: Callable[[], int]) -> None:
        self._loop = asyncio.get_running_loop()
        self._long_poll = long_poll
        self._turn = turn
        self._now_ms = now_ms
        long_poll.sooner = self._soon
        self._rest(now_ms(), _BUSY_MS)

    def stop(self) -> None:
        """Look no more."""
        self._long_poll.sooner = lambda: None
        self._timer.cancel()

    def _look(self) -> None:
        now_ms = self._now_ms()
        more = False
        try:
            more = self._long_poll.expire(now_ms)
            self._turn.look_at_disk()
        except Exception as error:
            _LOG.error("the look at held pulls and at the disk failed: %s", error, exc_info=True)
        rest_ms = _ROUND_MS if more else _BUSY_MS
        if not more and not self._turn.unsynced_bytes:
            next_ms = self._long_poll.next_deadline_ms()
            rest_ms = _IDLE_MS if next_ms is None else min(max(next_ms - now_ms, _BUSY_MS), _IDLE_MS)
        self._rest(now_ms, rest_ms)

    def _soon(self) -> None:
        now_ms = self._now_ms()
        if self._long_poll.alarm_ms > now_ms + _BUSY_MS:  # else it would be put off by each short pull anew
            self._timer.cancel()
            self._rest(now_ms, _BUSY_MS)

    def _rest(self, now_ms: int, rest_ms: int) -> None:
        self._long_poll.alarm_ms = now_ms + rest_ms
        self._timer = self._loop.call_later(rest_ms / 1000, self._look)


async def every(period_ms: int, work: Callable[[], Awaitable[int | None]]) -> None:
    """Do something again and again, after the pause that it asks for; a failure is logged and then tried again."""
    pause_ms = period_ms
    while True:
        await asyncio.sleep(pause_ms / 1000)
        try:
            pause_ms = await work() or period_ms
        except Exception as error:
            _LOG.error("%s failed: %s", work.__name__, error, exc_info=not isinstance(error, StoreError))
