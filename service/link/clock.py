"""The service's clocks: the wall clock for due times, and the monotonic clock for leases."""

from __future__ import annotations

import time

__all__ = ["mono_ms", "wall_ms"]


def wall_ms() -> int:
    """Epoch ms, rounded down, so that ``now >= due`` is never early by this machine's clock."""
    return time.time_ns() // 1_000_000


def mono_ms() -> int:
    """Milliseconds from an arbitrary start. Compare only readings of the same process.

    It goes on while the machine is suspended, as a lease does; `time.monotonic` stands still then.
    """
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000
