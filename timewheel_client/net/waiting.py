"""Two ways to wait that asyncio lacks: for a task shared with other callers, and for one's own clean-up."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from timewheel_client.values.errors import ClosedError

__all__ = ["shared", "to_the_end"]

Result = TypeVar("Result")


async def shared(task: asyncio.Task[Result]) -> Result:
    """Await a task that other callers await, too: cancelling one caller does not cancel the task.

    Raises ClosedError when the task itself was cancelled, which happens only when the client is closed. (A bare
    CancelledError would tell the caller that *it* was cancelled.)
    """
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        waiter = asyncio.current_task()
        if task.cancelled() and not (waiter is not None and waiter.cancelling()):
            raise ClosedError("the client was closed meanwhile") from None
        raise


async def to_the_end(work: Coroutine[Any, Any, Result]) -> Result:
    """Await a clean-up to its end even if the caller is cancelled; the cancellation is raised afterwards.

    A second cancellation takes effect at once; the clean-up then continues by itself.
    """
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        if not task.done():
            await asyncio.wait([task])
        raise
