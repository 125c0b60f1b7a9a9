"""How many examples a property-based test draws: a fair number in the suite, many times as many in a soak."""

from __future__ import annotations

import os

__all__ = ["examples"]

TIMES = int(os.environ.get("TIMEWHEEL_EXAMPLES", "1"))


def examples(count: int) -> int:
    """So many, times what ``TIMEWHEEL_EXAMPLES`` says (`./run soak` sets it)."""
    return count * TIMES
