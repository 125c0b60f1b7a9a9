"""Waiting: the only file of the tests that sleeps (a house rule; `tests/house/test_waits.py`).

`wait_until` is for what must happen, `happens` for a test that says itself what was missing, `let_pass` for time that
has to pass: nothing tells that something did *not* happen, or load shall run for a while. Inside an event loop `until`
and `pause` do the same and let the loop go on. A unit test may use `until` alone: it waits for the test's own loop.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

__all__ = ["happens", "let_pass", "let_pass_until_ms", "pause", "until", "wait_until"]

EVERY_S = 0.02
EVERY_MOST_S = 0.2
"""Looks come further apart the longer it takes: some ask a broker, which others share the processor with."""


def happens(condition: Callable[[], object], within_s: float) -> bool:
    """Wait until a condition is true, at most so many seconds: whether it is."""
    begin = time.monotonic()
    every_s = EVERY_S
    while not condition():
        if time.monotonic() - begin >= within_s:
            return bool(condition())
        time.sleep(every_s)
        every_s = min(1.2 * every_s, EVERY_MOST_S)
    return True


def wait_until(condition: Callable[[], object], within_s: float, what: str) -> None:
    """Wait until a condition is true; AssertionError that says ``what`` was waited for if it is not in time."""
    assert happens(condition, within_s), f"waited {within_s:g} s in vain: {what}"


def let_pass(seconds: float) -> None:
    """Let time pass."""
    time.sleep(seconds)


def let_pass_until_ms(at_ms: float) -> None:
    """Let time pass until the wall clock shows so many milliseconds; none if it does already."""
    time.sleep(max(0.0, at_ms / 1000 - time.time()))


async def until(condition: Callable[[], object], within_s: float = 20) -> None:
    """Let the loop turn until a condition is true; TimeoutError if it is not in time."""
    async with asyncio.timeout(within_s):
        while not condition():
            await asyncio.sleep(0.001)


async def pause(seconds: float) -> None:
    """Let time pass, and the loop go on."""
    await asyncio.sleep(seconds)
