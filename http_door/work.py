"""Runs the work of requests in threads of the door, never in its loop. Number and time are bounded."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import ParamSpec, TypeVar

__all__ = ["BusyError", "NotReadyError", "Workroom"]

_P = ParamSpec("_P")
_T = TypeVar("_T")


class NotReadyError(Exception):
    """The process does not serve this now. The text says why."""


class BusyError(Exception):
    """Too much work at once, or it took too long. The text gives the figure."""


class Workroom:
    """Runs work in threads and counts it. Only the door's loop calls it.

    >>> async def answer() -> int:
    ...     return await Workroom().run(32, 20.0, sum, [1, 2])
    >>> asyncio.run(answer())
    3
    """

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting = 0

    async def run(
        self, waiting_max: int, within_s: float, work: Callable[_P, _T], *args: _P.args, **more: _P.kwargs
    ) -> _T:
        """Run a function in a thread. Raises BusyError, and what the function raises.

        ``waiting_max``: most calls that wait for a thread or run in one. ``within_s``: the longest wait, in seconds.
        """
        if self._waiting >= waiting_max:
            raise BusyError(f"{self._waiting} requests are under way, at most {waiting_max} may be")
        self._waiting += 1
        future = asyncio.ensure_future(asyncio.to_thread(work, *args, **more))
        future.add_done_callback(self._done)
        try:
            async with asyncio.timeout(within_s):
                return await asyncio.shield(future)
        except TimeoutError:
            raise BusyError(f"it is not done after {within_s:g} s; it goes on, look again later") from None

    def _done(self, future: asyncio.Future[_T]) -> None:
        self._waiting -= 1
        if not future.cancelled():
            future.exception()  # the caller gets it; if nobody waits any more, it is no error of the loop
