"""Classes of lateness: exact to the millisecond below ten seconds, three digits above.

In an outage of hours nearly every message has a lateness of its own. Histograms with a row for each would be as large
as the log. So values below `EXACT_MS` on both sides of zero stay exact. Beyond it, a class has all values that begin
with the same three digits, as in an HdrHistogram::

    lateness ms        9,999     10,000 … 10,099    12,300 … 12,399    3,600,000 … 3,609,999
    delivered          9,999          10,099             12,399               3,609,999
    still waiting      9,999          10,000             12,300               3,600,000

The value of a class is a bound: a delivery was at most so late, a message that still waits is at least so late. The
error is below 1 %. There are 900 classes for each power of ten: 19,999 exact values and 27,000 classes for all of
int64. Maxima are kept separately, and exact.

>>> import numpy as np
>>> delivered, waiting = np.zeros(4, bool), np.ones(4, bool)
>>> lateness_class(np.array([-12_345, 9_999, 12_345, 3_600_001]), delivered).tolist()
[-12399, 9999, 12399, 3609999]
>>> lateness_class(np.array([-12_345, 9_999, 12_345, 3_600_001]), waiting).tolist()
[-12399, 9999, 12300, 3600000]
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["EXACT_MS", "lateness_class"]

EXACT_MS = 10_000
"""Below it, on both sides of zero, each millisecond is a class of its own."""
_STEPS = 10 ** np.arange(2, 17, dtype=np.int64)
"""The widths of classes beyond `EXACT_MS`. A class of width w has values from 100 to 1,000 times w."""
_TWO_DIGITS = 100
_MOST = np.iinfo(np.int64).max


def lateness_class(lateness_ms: NDArray[np.int64], waiting: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Round each lateness (ms) to the value of its class; ``waiting`` marks messages that are not delivered yet.

    Early ones (below zero) are rounded away from zero: at most so early. The top class ends with int64.
    """
    beyond = np.abs(lateness_ms) >= EXACT_MS
    if not beyond.any():
        return lateness_ms
    values = lateness_ms[beyond]
    sizes = np.abs(values)
    lowest, steps = sizes.copy(), np.ones(len(sizes), np.int64)
    most = int(sizes.max())
    for step in _STEPS[most >= _STEPS * _TWO_DIGITS].tolist():
        # Dividing by one number is cheaper than by an array, and an outage has only two or three widths.
        mine = sizes >= step * _TWO_DIGITS
        np.copyto(lowest, sizes // step * step, where=mine)
        np.copyto(steps, step, where=mine)
    highest = lowest + np.minimum(steps - 1, _MOST - lowest)
    found = lateness_ms.copy()
    found[beyond] = np.where(values < 0, -highest, np.where(waiting[beyond], lowest, highest))
    return found
