"""Warming a system up: turns of load until its rate no longer rises.

A Java virtual machine compiles its hot methods while they run. The first seconds of an Apache RocketMQ broker therefore
show a fraction of its rate: in consecutive turns of 5 s from its start it accepted 3.3, 7.2, 6.2, 6.7, 9.2, 12.4,
14.4, 17.1, 17.4, 17.7, 21.5, 23.9, 22.5, 30.2 thousand timed sends a second. A comparison with such a broker compares
with its start, not with the broker.

So each system is warmed in turns of `TURN_SECONDS`, at least for `System.warm_up_seconds`, and until the best of the
last `LOOK_BACK` turns is no more than `RISE` times the best turn before them. `MOST_SECONDS` bounds it; a result that
was still rising then says so in a note.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

__all__ = ["LOOK_BACK", "MOST_SECONDS", "RISE", "TURN_SECONDS", "Warmth", "is_warm", "warm_up"]

TURN_SECONDS = 5.0
LOOK_BACK = 3
RISE = 1.03
MOST_SECONDS = 180.0


@dataclasses.dataclass(frozen=True, slots=True)
class Warmth:
    """How a system was warmed: the rate of each turn (messages a second), and whether it had stopped rising."""

    rates: tuple[float, ...]
    turn_seconds: float
    settled: bool

    @property
    def seconds(self) -> float:
        """The length of the whole warm-up."""
        return len(self.rates) * self.turn_seconds

    def text(self) -> str:
        """Say it in one line, for a result's notes.

        >>> Warmth((900.0, 2100.0), 5.0, True).text()
        'warmed for 10 s: 1, 2 thousand a second in turns of 5 s'
        """
        rates = ", ".join(f"{rate / 1000:.0f}" for rate in self.rates)
        rising = "" if self.settled else "; still rising when the warm-up ended"
        return (
            f"warmed for {self.seconds:.0f} s: {rates} thousand a second in turns of {self.turn_seconds:.0f} s{rising}"
        )


def is_warm(rates: Sequence[float], turns_min: int) -> bool:
    """Say whether a system whose turns had these rates is warm.

    >>> is_warm([10, 20, 30, 30, 30, 30], turns_min=4)
    True
    >>> is_warm([10, 20, 30, 40, 50, 60], turns_min=4)
    False
    """
    if len(rates) < max(turns_min, LOOK_BACK + 1):
        return False
    return max(rates[-LOOK_BACK:]) <= RISE * max(rates[:-LOOK_BACK])


def warm_up(
    turn: Callable[[float], float],
    seconds_min: float,
    seconds_max: float = MOST_SECONDS,
    turn_seconds: float = TURN_SECONDS,
) -> Warmth:
    """Call ``turn(seconds)``, which loads the system and returns its rate, until it is warm or the time is up."""
    rates: list[float] = []
    turns_min = -int(-seconds_min // turn_seconds)
    while not is_warm(rates, turns_min) and (len(rates) + 1) * turn_seconds <= max(seconds_min, seconds_max):
        rates.append(turn(turn_seconds))
    return Warmth(tuple(rates), turn_seconds, is_warm(rates, turns_min))
