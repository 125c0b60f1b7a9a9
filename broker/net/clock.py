"""The only clock of this package: all other code gets the time as an argument, or one of these functions."""

from __future__ import annotations

import time

__all__ = ["Pauses", "monotonic_ms", "monotonic_s", "month_start_ms", "now_ms", "rest"]


def now_ms() -> int:
    """Read the wall clock: milliseconds since 1970, which is what due times and store times mean."""
    return time.time_ns() // 1_000_000


def monotonic_ms() -> int:
    """Read the monotonic clock, for waiting: milliseconds since some start."""
    return time.monotonic_ns() // 1_000_000


monotonic_s = time.monotonic
"""The same clock in seconds; itself, not a function that calls it: it is read at every call of a socket."""


def month_start_ms(at_ms: int) -> int:
    """Return the start of the month in local time: unique keys of messages count from there."""
    local = time.localtime(at_ms // 1000)
    first = time.mktime((local.tm_year, local.tm_mon, 1, 0, 0, 0, 0, 0, -1))
    return int(first) * 1000


def rest(seconds: float) -> None:
    """Sleep, so that other threads can run Python."""
    time.sleep(seconds)


class Pauses:
    """Rests as long as the work since the last rest took, between 0.2 and 10 ms: half of a thread's time is others'."""

    __slots__ = ("_since_ns",)

    def __init__(self) -> None:
        self._since_ns = time.monotonic_ns()

    def rest(self) -> None:
        """Rest, if there was work for a fifth of a millisecond."""
        worked_s = (time.monotonic_ns() - self._since_ns) / 1e9
        if worked_s >= 0.0002:
            time.sleep(min(worked_s, 0.01))
            self._since_ns = time.monotonic_ns()
