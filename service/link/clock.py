"""The service's clocks: the wall clock that due times mean, and the monotonic one that leases are measured with."""

from __future__ import annotations

import time

__all__ = ["mono_ms", "wall_ms"]


def wall_ms() -> int:
    """Epoch ms, rounded down: ``now >= due`` is never early by this machine's clock."""
    return time.time_ns() // 1_000_000


def mono_ms() -> int:
    """Milliseconds from an arbitrary start; compared with readings of this process only."""
    return time.monotonic_ns() // 1_000_000
