"""Two ways to wait that asyncio leaves to its users: for a task of others', and for one's own clean-up."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from timewheel_client.values.errors import ClosedError

__all__ = ["shared", "to_the_end"]

Result = TypeVar("Result")


async def shared(task: asyncio.Task[Result]) -> Result:
    """Await a task that others await, too: cancelling one of them does not cancel it.

    Raises ClosedError when the task itself was cancelled, which only closing the client does. (A bare CancelledError
    would tell the waiter that *it* was cancelled.)
    """
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        waiter = asyncio.current_task()
        if task.cancelled() and not (waiter is not None and waiter.cancelling()):
            raise ClosedError("the client was closed meanwhile") from None
        raise


async def to_the_end(work: Coroutine[Any, Any, Result]) -> Result:
    """Await a clean-up to its end, also when the waiter is cancelled; the cancellation is raised behind it.

    A second cancellation is obeyed at once; the clean-up then goes on by itself.
    """
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        if not task.done():
            await asyncio.wait([task])
        raise
