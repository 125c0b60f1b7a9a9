"""Looking for one more request before the network loop sleeps.

A client that waits for each reply sends its next request some 30 µs behind it. To put the loop's thread to sleep, to
wake it and to go round the loop takes longer than that, so the next request is looked for at once, for a tenth of a
millisecond. But only if that one client is all there is: of many, more come in while the loop goes round, and a turn
that serves several costs less for each. So two turns in a row must have had nothing but this client's requests, and a
look that finds somebody else's was in vain, like one that finds nothing. Looks get rarer by being in vain: each time
doubles the number that are left out, and one that was not begins anew.

Other threads lose little by it: each look gives the interpreter away.
"""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["LINGER_S", "SKIP_MAX", "Linger"]

LINGER_S = 0.0001
SKIP_MAX = 64

_Events = list[tuple[int, int]]


class Linger:
    """Remembers who was served alone, and whether looking for more has been worth it.

    >>> times = iter([0.0, 0.00002, 0.00004])
    >>> answers = iter([[], [(5, 1)]])
    >>> linger = Linger(lambda: next(times))
    >>> linger.served([(5, 1)]), linger.served([(5, 1)])
    (False, True)
    >>> linger.find(lambda: next(answers))
    [(5, 1)]
    """

    __slots__ = ("_clock", "_fd", "_skip", "_skipped", "asked")

    def __init__(self, clock: Callable[[], float]) -> None:
        """``clock`` tells seconds, from any beginning."""
        self._clock = clock
        self._fd = -1  # who was served alone in the last turn
        self._skip = 0  # so many times are left out after the last one in vain
        self._skipped = 0
        self.asked = 0
        """How often `find` was called."""

    def served(self, ready: _Events) -> bool:
        """Learn whom a turn has served; whether it was one alone, and the same as in the turn before."""
        fd = ready[0][0] if len(ready) == 1 else -1
        again = fd >= 0 and fd == self._fd
        self._fd = fd
        return again

    def find(self, look: Callable[[], _Events]) -> _Events:
        """What ``look`` finds within `LINGER_S`; nothing at once if that has been in vain lately."""
        self.asked += 1
        if self._skipped < self._skip:
            self._skipped += 1
            return []
        clock = self._clock
        until = clock() + LINGER_S
        ready: _Events = []
        while not ready and clock() < until:
            ready = look()
        worth = len(ready) == 1 and ready[0][0] == self._fd
        self._skip = 0 if worth else min(self._skip * 2 + 1, SKIP_MAX)
        self._skipped = 0
        return ready
