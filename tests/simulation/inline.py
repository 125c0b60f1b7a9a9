"""Coroutines of the broker without an event loop: what they leave to another thread is done at once.

So a simulated network loop stays one actor, and a seed one story.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

__all__ = ["run_inline"]


class _Loop:
    """What `asyncio.to_thread` needs of a running loop."""

    async def run_in_executor(self, _executor: object, call: Callable[[], Any]) -> Any:
        """Do it."""
        return call()


def run_inline(work: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine to its end; it may wait for other threads only."""
    asyncio._set_running_loop(_Loop())  # type: ignore[arg-type]
    try:
        work.send(None)
    except StopIteration:
        return
    finally:
        asyncio._set_running_loop(None)
    raise AssertionError(f"{work} waits for something else than a thread")
