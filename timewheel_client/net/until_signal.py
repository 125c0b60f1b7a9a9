"""A process that serves until it is told to end: what the broker's commands and the delay service share."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

__all__ = ["run_until_signal"]

Result = TypeVar("Result")


def run_until_signal(work: Callable[[asyncio.Event], Coroutine[Any, Any, Result]]) -> Result:
    """Run a coroutine in a new event loop; SIGINT and SIGTERM set the event that it gets.

    A second signal of the same kind is not caught, so it ends a shutdown that hangs.
    """

    async def run() -> Result:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()

        def caught(number: signal.Signals) -> None:
            stop.set()
            loop.remove_signal_handler(number)

        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, caught, number)
        return await work(stop)

    return asyncio.run(run())
