"""The only clock of this package: all other code gets the time as an argument, or one of these functions.

Also the pace of two threads: the network loop's turns (`TurnPace`), and a thread that is never in a hurry (`Pauses`).
"""

from __future__ import annotations

import time
from collections.abc import Callable

__all__ = ["FEW", "Pauses", "TurnPace", "monotonic_ms", "monotonic_s", "month_start_ms", "now_ms", "rest"]

_SLICE_S, _SLICE_EACH_S = 0.005, 0.000_02
_LATE_SLICE_S, _LATE_SLICE_EACH_S = 0.003, 0.000_004
_SLICE_MAX_S = 0.02
_READ_SLICE_S = 0.01
_CROWD_SLICE_S = 0.001
FEW = 8
"""Connections that are read between two looks at the clock; a turn of more of them is crowded."""


def now_ms() -> int:
    """Read the wall clock: milliseconds since 1970, which is what due times and store times mean."""
    return time.time_ns() // 1_000_000


def monotonic_ms() -> int:
    """Read the monotonic clock, for waiting: milliseconds since some start."""
    return time.monotonic_ns() // 1_000_000


monotonic_s = time.monotonic
"""The same clock in seconds; itself, not a function that calls it: it is read at every call of a socket."""


def month_start_ms(at_ms: int) -> int:
    """Return the start of the month in local time: unique keys of messages count from there."""
    local = time.localtime(at_ms // 1000)
    first = time.mktime((local.tm_year, local.tm_mon, 1, 0, 0, 0, 0, 0, -1))
    return int(first) * 1000


def rest(seconds: float) -> None:
    """Sleep, so that other threads can run Python."""
    time.sleep(seconds)


class Pauses:
    """Rests as long as the work since the last rest took, between 0.2 and 10 ms: half of a thread's time is others'."""

    __slots__ = ("_since_ns",)

    def __init__(self) -> None:
        self._since_ns = time.monotonic_ns()

    def rest(self) -> None:
        """Rest, if there was work for a fifth of a millisecond."""
        worked_s = (time.monotonic_ns() - self._since_ns) / 1e9
        if worked_s >= 0.0002:
            time.sleep(min(worked_s, 0.01))
            self._since_ns = time.monotonic_ns()


class TurnPace:
    """How long a turn of the network loop may take, and how long the loop rests after it; decision 86 has the figures.

    A turn over more than eight connections is cut off after 5 ms, and the next one follows at once. But one thread runs
    Python at a time. While others have work that must not wait (messages are overdue), a turn is cut off after 3 ms and
    keeps the interpreter's lock while it reads and sends (`remoting.held_calls`). Then the loop sleeps for as long as
    the turn took, and the others have the lock for certain. Requests that arrive meanwhile become one larger turn,
    which costs less than many small ones.

    It does not sleep after a turn in which a consumer was behind: what is delivered on time is of no use to a consumer
    that does not get it.

    >>> pace = TurnPace()
    >>> pace.ended(0.001, 16), pace.slice_s(16)
    (False, 0.005)
    >>> pace.yields = lambda: True
    >>> pace.ended(0.001, 16), pace.slice_s(16), pace.rest_count
    (True, 0.003, 1)
    """

    __slots__ = ("_owed", "is_late", "owing", "rest_count", "yields")

    def __init__(self) -> None:
        self.yields: Callable[[], bool] | None = None
        """Tells whether other threads have work that must not wait."""
        self.is_late = False
        """What it told after the last turn."""
        self.owing: Callable[[], int] = lambda: 0
        """Counts answers to consumers that are behind."""
        self._owed = 0
        self.rest_count = 0
        """Turns after which the loop has rested."""

    def slice_s(self, connections: int) -> float:
        """Seconds after which a turn is cut off, if so many connections have requests.

        To ask the kernel for them and to find out who has waited longest takes some 3 µs each. So a turn over very many
        is longer: when nothing is late, a thousand have 20 ms, of which this takes a seventh.
        """
        least, each = (_LATE_SLICE_S, _LATE_SLICE_EACH_S) if self.is_late else (_SLICE_S, _SLICE_EACH_S)
        return min(_SLICE_MAX_S, max(least, connections * each))

    @property
    def hold_s(self) -> float:
        """Seconds of a turn in which the interpreter's lock is kept, however much others want it."""
        return _LATE_SLICE_S if self.is_late else 0.0

    def read_slice_s(self, connections: int) -> float:
        """Seconds for the requests of one read, if so many connections have some."""
        return _READ_SLICE_S if connections <= FEW and not self.is_late else _CROWD_SLICE_S

    def ended(self, took_s: float, connections: int) -> bool:
        """Rest after a turn over so many connections, if others are late; whether the loop has rested."""
        yields = self.yields
        self.is_late = yields is not None and yields()
        owed, self._owed = self._owed, self.owing()
        if not self.is_late or self._owed != owed:
            return False
        self.rest_count += 1
        rest(min(took_s, self.slice_s(connections)))
        return True
