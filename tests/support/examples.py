"""The number of examples of a property-based test: fewer in `./run test --quick`, many times as many in a soak."""

from __future__ import annotations

import os

__all__ = ["TIMES", "examples"]

TIMES = float(os.environ.get("TIMEWHEEL_EXAMPLES") or 1)


def examples(count: int) -> int:
    """Return ``count`` times ``TIMEWHEEL_EXAMPLES`` (set by `./run soak` and `./run test --quick`), at least one."""
    return max(1, round(count * TIMES))
