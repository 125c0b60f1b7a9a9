"""Looking for one more request before the network loop sleeps.

A client that waits for each reply sends its next request some 30 µs behind it. To put the loop's thread to sleep, to
wake it and to go round the loop takes longer than that, so the next request is looked for at once, for a tenth of a
millisecond. Where nothing comes so soon (consumers that wait, clients that think) the looks get rarer: each one in vain
doubles the number of times that are left out, and one that finds something begins anew.

Other threads lose nothing by it: each look gives the interpreter away.
"""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["Linger"]

LINGER_S = 0.0001
SKIP_MAX = 64

_Events = list[tuple[int, int]]


class Linger:
    """Remembers whether looking for more has been worth it.

    >>> times = iter([0.0, 0.00002, 0.00004])
    >>> answers = iter([[], [(5, 1)]])
    >>> Linger(lambda: next(times)).find(lambda: next(answers))
    [(5, 1)]
    """

    __slots__ = ("_clock", "_skip", "_skipped")

    def __init__(self, clock: Callable[[], float]) -> None:
        """``clock`` tells seconds, from any beginning."""
        self._clock = clock
        self._skip = 0  # so many times are left out after the last one in vain
        self._skipped = 0

    def find(self, look: Callable[[], _Events]) -> _Events:
        """What ``look`` finds within `LINGER_S`; nothing at once if that has been in vain lately."""
        if self._skipped < self._skip:
            self._skipped += 1
            return []
        clock = self._clock
        until = clock() + LINGER_S
        while clock() < until:
            ready = look()
            if ready:
                self._skip = self._skipped = 0
                return ready
        self._skip = min(self._skip * 2 + 1, SKIP_MAX)
        self._skipped = 0
        return []
