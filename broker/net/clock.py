"""The one clock of this package: everything else is handed the time as an argument, or one of these functions."""

from __future__ import annotations

import time

__all__ = ["monotonic_ms", "month_start_ms", "now_ms", "rest"]


def now_ms() -> int:
    """Read the wall clock: milliseconds since 1970, which is what due times and store times mean."""
    return time.time_ns() // 1_000_000


def monotonic_ms() -> int:
    """Read the clock that no one sets: milliseconds since some start, for waiting."""
    return time.monotonic_ns() // 1_000_000


def month_start_ms(at_ms: int) -> int:
    """Say when the month of a moment began, in local time: what the unique keys of messages count from."""
    local = time.localtime(at_ms // 1000)
    first = time.mktime((local.tm_year, local.tm_mon, 1, 0, 0, 0, 0, 0, -1))
    return int(first) * 1000


def rest(seconds: float) -> None:
    """Let other threads have the interpreter for so long; the calling one does nothing meanwhile."""
    time.sleep(seconds)
