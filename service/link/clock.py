"""The service's clocks: the wall clock for due times, and the monotonic clock for leases."""

from __future__ import annotations

import time

__all__ = ["mono_ms", "wall_ms"]


def wall_ms() -> int:
    """Epoch ms, rounded down, so that ``now >= due`` is never early by this machine's clock."""
    return time.time_ns() // 1_000_000


def mono_ms() -> int:
    """Milliseconds from an arbitrary start. Compare only readings of the same process."""
    return time.monotonic_ns() // 1_000_000
