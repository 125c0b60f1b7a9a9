"""The plug-in's only clock: what time it is, how to wait for a millisecond, and whether the wall clock was set.

==============  ==================================================================================================
wall clock      due times are on it; read as whole milliseconds, rounded down, so ``now >= due`` is never early
monotonic       for waiting, and for measuring how long something took
==============  ==================================================================================================

A wait ends after `WAIT_MAX_MS` at the latest: the wall clock may be set while a thread sleeps until a time on it.

`Alarm` is a bare lock used as a binary semaphore. Measured on Linux, two cores, waits of 2-4 ms, µs after the
wanted time (p50, p99)::

    Lock.acquire(timeout)   93, 160     ringing costs 0.1 µs
    Event.wait             110, 170     and takes a Condition, which makes a lock for each wait
    select on an eventfd   100, 400     ringing is a system call
    time.sleep              92, 220     cannot be woken
"""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import Lock

__all__ = ["WAIT_MAX_MS", "Alarm", "Clock", "StepWatch"]

WAIT_MAX_MS = 250
"""Longest wait of a thread of the plug-in."""
STEP_MIN_MS = 50
"""A difference between wall clock and monotonic clock below this is drift or a late thread, not a step."""


class Clock:
    """The machine's clocks, or one that a test or a simulation moves.

    Args:
        now_ms: a wall clock to use instead, epoch ms; the monotonic clock then follows it.
    """

    __slots__ = ("monotonic_ns", "now_ms", "seconds_until", "worked_ns")

    def __init__(self, now_ms: Callable[[], int] | None = None) -> None:
        self.now_ms: Callable[[], int] = now_ms or _wall_ms
        """Read the wall clock: epoch ms, rounded down."""
        self.monotonic_ns: Callable[[], int] = time.monotonic_ns if now_ms is None else lambda: now_ms() * 1_000_000
        """Read the monotonic clock, ns from an arbitrary start."""
        self.worked_ns: Callable[[], int] = time.thread_time_ns if now_ms is None else self.monotonic_ns
        """Read the processor time of the calling thread, ns: without waits for a lock or the interpreter."""
        self.seconds_until: Callable[[int], float] = (
            _seconds_until if now_ms is None else lambda due_ms: (due_ms - now_ms()) / 1000
        )
        """Seconds until a wall-clock millisecond begins; negative if it has begun."""


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000


def _seconds_until(due_ms: int) -> float:
    return due_ms / 1000 - time.time()


class Alarm:
    """One thread waits, any thread may ring. A ring that comes before the wait is kept and ends it at once."""

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = Lock()
        self._lock.acquire()

    def ring(self) -> None:
        """End the present wait, or the next one if nobody waits."""
        try:
            self._lock.release()
        except RuntimeError:
            pass  # the lock is free: it was rung already

    def wait(self, seconds: float) -> bool:
        """Wait at most this long; True if it was rung."""
        # A negative timeout is an error, and -1 waits for ever.
        return self._lock.acquire(timeout=seconds) if seconds > 0 else self._lock.acquire(blocking=False)


class StepWatch:
    """Notices that the wall clock was set: it has then moved by another amount than the monotonic clock.

    A suspended machine looks the same, because its monotonic clock stands still, and is reported the same way. Slow
    corrections (NTP's slewing, at most 0.5 ms a second) stay below the threshold.
    """

    __slots__ = ("_difference_ms", "backward_count", "backward_ms", "forward_count", "forward_ms", "last_step_ms")

    def __init__(self) -> None:
        self._difference_ms: int | None = None
        self.forward_count = 0
        self.backward_count = 0
        self.forward_ms = 0
        self.backward_ms = 0
        """Sum of all steps back."""
        self.last_step_ms = 0
        """The last step; negative: set back."""

    def look(self, wall_ms: int, monotonic_ns: int) -> int:
        """Compare both clocks with the last look; returns the step in ms, 0 for none."""
        difference = wall_ms - monotonic_ns // 1_000_000
        before = self._difference_ms
        self._difference_ms = difference
        if before is None:
            return 0
        step = difference - before
        if -STEP_MIN_MS < step < STEP_MIN_MS:
            return 0
        if step > 0:
            self.forward_count += 1
            self.forward_ms += step
        else:
            self.backward_count += 1
            self.backward_ms -= step
        self.last_step_ms = step
        return step
