"""A hierarchical timing wheel: pure, in memory, with time as an argument.

>>> from timewheel import TimingWheel
>>> wheel = TimingWheel(now_ms=1_000)
>>> handle = wheel.insert(5_000, 42)
>>> wheel.insert(61_000, 43) != handle
True
>>> wheel.advance(5_000, limit=100)
([5000], [42])
"""

from __future__ import annotations

from timewheel.wheel import TimingWheel

__all__ = ["TimingWheel"]
