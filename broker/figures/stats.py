"""Rates and daily totals for the runtime info, computed from a few samples of existing counters.

A sample every ten seconds, eleven minutes of them: enough for the three rates that Apache's tools show (over 10 s, 60 s
and 600 s). Nothing is counted here, so the hot paths pay nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from datetime import UTC, datetime

__all__ = ["Rates"]

_SAMPLE_MS = 10_000
_SPANS_MS = (10_000, 60_000, 600_000)


class Rates:
    """Samples of counters that only grow, and the rates computed from them.

    >>> rates = Rates()
    >>> rates.step(0, {"put": 0}); rates.step(10_000, {"put": 50}); rates.text("put")
    '5.0 5.0 5.0'
    """

    __slots__ = ("_day", "_mornings", "_samples")

    def __init__(self) -> None:
        self._samples: deque[tuple[int, dict[str, int]]] = deque(maxlen=_SPANS_MS[-1] // _SAMPLE_MS + 2)
        self._day: object = None
        self._mornings: tuple[dict[str, int], dict[str, int]] = ({}, {})

    def step(self, now_ms: int, counters: Mapping[str, int]) -> None:
        """Take a sample if ten seconds have passed since the last one."""
        day = datetime.fromtimestamp(now_ms / 1000, UTC).astimezone().date()
        if self._day is not None and day != self._day:  # on the first day all have begun at 0
            self._mornings = (self._mornings[1], dict(counters))
        self._day = day
        if not self._samples or not 0 <= now_ms - self._samples[-1][0] < _SAMPLE_MS:
            if self._samples and now_ms < self._samples[-1][0]:
                self._samples.clear()  # the clock was set back
            self._samples.append((now_ms, dict(counters)))

    def rate(self, name: str, span_ms: int) -> float:
        """Compute a counter's growth per second over the newest ``span_ms``, or over the samples there are."""
        if len(self._samples) < 2:
            return 0.0
        now_ms, newest = self._samples[-1]
        then_ms, then = self._samples[-2]
        for at_ms, counters in reversed(self._samples):
            if now_ms - at_ms > span_ms:
                break
            if at_ms < now_ms:
                then_ms, then = at_ms, counters
        return (newest.get(name, 0) - then.get(name, 0)) * 1000 / (now_ms - then_ms)

    def text(self, *names: str) -> str:
        """Write the sum of counters' rates as tools expect it: three numbers, over 10 s, 60 s and 600 s."""
        return " ".join(str(round(sum(self.rate(name, span) for name in names), 2)) for span in _SPANS_MS)

    def mornings(self, name: str) -> tuple[int, int]:
        """Return a counter's value at the beginning of yesterday and of today; 0 if it was not counted yet."""
        return self._mornings[0].get(name, 0), self._mornings[1].get(name, 0)
