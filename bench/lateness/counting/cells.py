"""The length of the cells of time in which a run counts lateness: short runs have short cells, so there are enough.

============================  =======  ==========
messages were due within      a cell   cells
============================  =======  ==========
15 minutes                    1 s      900
2.5 hours                     10 s     900
longer                        1 min    1,440 a day
============================  =======  ==========

A log of years would have a million minutes, which nobody looks at one by one. So the table by minute has longer cells
where it is far behind its last one, `last_minute` (in whole days, UTC)::

    days before the last    0 … 32    33 … 1,500    more
    a cell                  1 min     1 h           1 day

That is at most 47,520 minutes, 35,232 hours, and a day a day. A longer cell begins where a shorter one does, so rows
may become coarser again and again: the result is that of once.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["MINUTE_S", "cell_seconds", "cell_widths", "last_minute"]

MINUTE_S = 60
_CELLS_MAX = 900
_MINUTE_MS, _HOUR_MS, _DAY_MS = 60_000, 3_600_000, 86_400_000
_MINUTE_DAYS, _HOUR_DAYS = 32, 1_500


def cell_seconds(first_s: int, last_s: int) -> int:
    """The length of a cell for messages due from one second to another (epoch s, both included).

    >>> cell_seconds(0, 26), cell_seconds(0, 900), cell_seconds(0, 86_400)
    (1, 10, 60)
    """
    span = last_s - first_s + 1
    return next((length for length in (1, 10) if span <= _CELLS_MAX * length), MINUTE_S)


def last_minute(starts_ms: NDArray[np.int64], as_of_ms: int) -> int | None:
    """The last of some cells that does not begin after the moment of the reading: what was due later, and came early,
    may have been due in a thousand years. None if there is none."""
    past = starts_ms[starts_ms <= as_of_ms]
    return int(past.max()) if len(past) else None


def cell_widths(starts_ms: NDArray[np.int64], last_ms: int | None) -> NDArray[np.int64]:
    """How long (ms) the cells of the table by minute are that hold these moments, if it ends with ``last_ms``.

    >>> day = 86_400_000
    >>> cell_widths(np.array([0, 1_467 * day, 1_468 * day, 1_501 * day]), 1_500 * day + 7).tolist()
    [3600000, 3600000, 60000, 60000]
    """
    if last_ms is None:
        return np.full(len(starts_ms), _MINUTE_MS, np.int64)
    days = last_ms // _DAY_MS - starts_ms // _DAY_MS
    return np.where(days > _HOUR_DAYS, _DAY_MS, np.where(days > _MINUTE_DAYS, _HOUR_MS, _MINUTE_MS)).astype(np.int64)
