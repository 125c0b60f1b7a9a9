"""The length of the cells of time in which a run counts lateness: short runs have short cells, so there are enough.

============================  =======  ==========
messages were due within      a cell   cells
============================  =======  ==========
15 minutes                    1 s      900
2.5 hours                     10 s     900
longer                        1 min    1,440 a day
============================  =======  ==========
"""

from __future__ import annotations

__all__ = ["MINUTE_S", "cell_seconds"]

MINUTE_S = 60
_CELLS_MAX = 900


def cell_seconds(first_s: int, last_s: int) -> int:
    """The length of a cell for messages due from one second to another (epoch s, both included).

    >>> cell_seconds(0, 26), cell_seconds(0, 900), cell_seconds(0, 86_400)
    (1, 10, 60)
    """
    span = last_s - first_s + 1
    return next((length for length in (1, 10) if span <= _CELLS_MAX * length), MINUTE_S)
