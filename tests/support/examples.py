"""How much of what is random is tried: a part of it in `./run test`, less with --quick, many times as much in a soak.

The numbers in the tests are the whole: ``TIMEWHEEL_EXAMPLES=1``, which is what pytest takes by itself. Where examples
are seeds, the suite takes the same ones each time, and a soak those from ``TIMEWHEEL_FIRST_SEED`` on.
"""

from __future__ import annotations

import os

__all__ = ["TIMES", "examples", "seeds"]

TIMES = float(os.environ.get("TIMEWHEEL_EXAMPLES") or 1)
_FIRST = os.environ.get("TIMEWHEEL_FIRST_SEED")


def examples(count: int) -> int:
    """Return ``count`` times ``TIMEWHEEL_EXAMPLES`` (set by `./run soak` and `./run test`), at least one."""
    return max(1, round(count * TIMES))


def seeds(count: int, first: int = 0) -> range:
    """Return as many seeds as `examples`, from ``first`` on; in a soak from where it begins."""
    begin = int(_FIRST) if _FIRST else first
    return range(begin, begin + examples(count))
