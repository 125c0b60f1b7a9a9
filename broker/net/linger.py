"""Polling once more for a request before the network loop sleeps.

A client that waits for each reply sends its next request some 30 µs after it. Putting the loop's thread to sleep and
waking it takes longer than that, so the loop polls for the next request for a tenth of a millisecond. It does so only
for a single client: with many, more requests arrive while the loop goes round, and a turn that serves several costs
less for each. So two turns in a row must have had requests of this client only. A poll that finds nothing, or another
client's request, counts as useless. Each useless poll doubles the number of turns without one; a useful poll resets it.

Other threads lose little by it: each poll releases the interpreter lock.
"""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["LINGER_S", "SKIP_MAX", "Linger"]

LINGER_S = 0.0001
SKIP_MAX = 64

_Events = list[tuple[int, int]]


class Linger:
    """Remembers which connection was served alone, and whether polling was useful.

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
        """``clock`` returns seconds, from any start."""
        self._clock = clock
        self._fd = -1  # the file that was served alone in the last turn
        self._skip = 0  # number of turns without a poll after the last useless one
        self._skipped = 0
        self.asked = 0
        """Number of calls of `find`."""

    def served(self, ready: _Events) -> bool:
        """Note the connections of a turn; answer whether it was a single one, the same as in the turn before."""
        fd = ready[0][0] if len(ready) == 1 else -1
        again = fd >= 0 and fd == self._fd
        self._fd = fd
        return again

    def find(self, look: Callable[[], _Events]) -> _Events:
        """Poll with ``look`` for at most `LINGER_S`; return an empty list at once if polls were useless lately."""
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
