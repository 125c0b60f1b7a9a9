"""All rows of the comparison with Apache within a given time. Rows in which ours was slower come first.

Each system is started and warmed once a turn (`bench.running.warmth`), and is stopped (SIGSTOP) while another one is
measured. So the systems of a row are measured within minutes of each other, do not disturb each other, and Java stays
warm. Each turn begins with the next of them (A B, B A). A turn goes through all rows, and the next one begins with new
stores; there are as many as fit into the time. What does not fit is left out and named: a row is measured on all
systems or on none.

How long a row takes is estimated (`SittingRow.cost`). If one turn does not fit, its lengths become shorter, down to
`SHORTEST`; the section's notes say how long they were.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import time
from collections.abc import Callable, Iterator

from bench.figures.results import Case, Section
from bench.peers.system import Running, Setup, System
from bench.running.session import Session, in_turn
from bench.workloads import hot_second, lateness, send
from bench.workloads.lateness import LatenessCase

__all__ = ["ROWS", "Sitting", "SittingRow", "lengths", "sitting"]

RATE_SECONDS, LATENESS_SECONDS = 30.0, 60.0
SHORTEST = 0.2
"""The smallest share of the full lengths, if not even one turn of them fits."""
START_SECONDS = 8.0
ASSUMED_PER_SECOND = 20_000
"""For the estimate of a hot second only."""


@dataclasses.dataclass(frozen=True, slots=True)
class SittingRow:
    """One row: ``what`` is ``rate``, ``lateness`` or ``hot``, the rest says of what."""

    what: str
    kind: str = ""
    shape: str = ""
    count: int = 0
    ours_alone: bool = False

    @property
    def title(self) -> str:
        """The row in words."""
        if self.what == "rate":
            return f"{self.kind} {self.shape}"
        return f"{self.count:,} due at once" if self.what == "hot" else f"lateness at {self.count:,}/s"

    def cost(self, length: float) -> float:
        """Estimate the seconds that this row takes of one system, at this share of the full lengths."""
        if self.what == "rate":
            return RATE_SECONDS * length * 1.2 + 3
        if self.what == "hot":
            return self.count / ASSUMED_PER_SECOND * 4.5 + 25
        return LATENESS_SECONDS * length * 1.34 + 25


ROWS = (
    SittingRow("lateness", count=20_000),
    SittingRow("rate", "normal", send.BATCH),
    SittingRow("hot", count=100_000),
    SittingRow("lateness", count=2_000),
    SittingRow("rate", "timed far", "1x100"),
    SittingRow("rate", "timed far", "16x16"),
    SittingRow("rate", "timed far", "16x1"),
    SittingRow("rate", "timed far", "1x1"),
    SittingRow("rate", "normal", "16x1"),
    SittingRow("rate", "normal", "1x100"),
    SittingRow("rate", "normal", "16x16"),
    SittingRow("rate", "timed far", send.BATCH, ours_alone=True),
    SittingRow("hot", count=500_000),
)
"""In the order of what was lost last: worst first."""


def lengths(systems: list[System], minutes: float, rows: tuple[SittingRow, ...] = ROWS) -> float:
    """Say what share of the full lengths one turn through all rows has room for; `SHORTEST` at least.

    >>> lengths([], 1)
    1.0
    """

    def cost(length: float) -> float:
        warm = sum(START_SECONDS + 1.3 * system.warm_up_seconds for system in systems)
        return warm + sum(row.cost(length) for row in rows for system in systems if _takes(row, system))

    fixed, whole = cost(0.0), cost(1.0)
    if whole <= minutes * 60:
        return 1.0
    return max(SHORTEST, (minutes * 60 - fixed) / (whole - fixed))


def _takes(row: SittingRow, system: System) -> bool:
    return system.timed_batches if row.ours_alone else True


class Sitting:
    """The sections of a sitting, and how much of its time is left.

    Args:
        minutes: Its time. ``now``: the clock, in seconds.
        finished: Called after each row with all sections so far.
    """

    def __init__(
        self,
        session: Session,
        minutes: float,
        finished: Callable[[list[Section]], object] = lambda _sections: None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.session = session
        self._now = now
        self._until = now() + minutes * 60
        self._finished = finished
        self.length = 0.02 if session.quick else lengths(session.systems, minutes)
        self.late = Section("lateness", "Lateness of delayed messages")
        self.rates = Section("send", "Sends accepted a second")
        self.hot = Section("hot-second", "A hot second: all due at the same millisecond S")
        self.left_out: list[SittingRow] = []
        self._rates_of: dict[str, float] = {}
        rate, held = RATE_SECONDS * self.length, LATENESS_SECONDS * self.length
        self.rates.note(f"each rate held for {rate:.0f} s, after {rate / 5:.0f} s of the same")
        self.late.note(f"each rate held for {held:.0f} s, after {held / 3:.0f} s of the same")
        for section in self.sections:
            section.note("all systems run and are warm; those that are not measured are stopped meanwhile")

    @property
    def sections(self) -> list[Section]:
        """All of them."""
        return [self.late, self.rates, self.hot]

    def room(self, seconds: float) -> bool:
        """True if this much time is left."""
        return self._now() + seconds <= self._until

    def run(self) -> list[Section]:
        """Measure turn after turn until the time is up; return the sections."""
        systems, turn = self.session.systems, 0
        warm = sum(START_SECONDS + 1.3 * system.warm_up_seconds for system in systems)
        while turn == 0 or self.room(warm + max(len(systems) * row.cost(self.length) for row in ROWS[:2])):
            self._turn(turn)
            turn += 1
            if self.session.quick or turn >= self.session.repeats:
                break
        for row in self.left_out:
            self.rates.note(f"not measured, the time was over: {row.title}")
        self.rates.note(f"turns that were begun: {turn}")
        self._finished(self.sections)
        return self.sections

    def _turn(self, turn: int) -> None:
        with contextlib.ExitStack() as stack:
            running = {}
            for system in in_turn(self.session.systems, turn):
                self.session.say(f"turn {turn + 1}: starting and warming {system.title}")
                one = stack.enter_context(self.session.running(system, Setup(quick=self.session.quick)))
                running[system.name] = one
                self._warm(system, one)
                _signal(one, signal.SIGSTOP)
            for row in _rows(self.session.quick):
                self._row(turn, row, running)

    def _row(self, turn: int, row: SittingRow, running: dict[str, Running]) -> None:
        systems = in_turn([system for system in self.session.systems if _takes(row, system)], turn)
        if not self.session.quick and not self.room(len(systems) * row.cost(self.length)):
            if turn == 0:
                self.left_out.append(row)
            return
        for system in systems:
            self.session.say(f"turn {turn + 1}: {row.title}: {system.title}")
            with _awake(self.session, system, running[system.name]) as one:
                self._measure(row, system, one)
        self._finished(self.sections)

    def _warm(self, system: System, one: Running) -> None:
        one.prepare("Warming", send.QUEUES)
        load = send.load_of(self.session, system, one, "normal", "16x16")
        load = dataclasses.replace(load, topic="Warming", first_number=send.WARM_NUMBERS)
        self._rates_of[system.name] = self.session.warm(system, load, self.rates).rates[-1]

    def _measure(self, row: SittingRow, system: System, one: Running) -> None:
        if row.what == "lateness":
            case = LatenessCase("timed", row.count)
            lateness.measure_on(self.session, self.late, system, one, case, LATENESS_SECONDS * self.length)
        elif row.what == "hot":
            hot_second.measure_on(self.session, self.hot, system, one, row.count, self._rates_of[system.name] / 2)
        else:
            self._rate(row, system, one)

    def _rate(self, row: SittingRow, system: System, one: Running) -> None:
        one.prepare("Bench", send.QUEUES)
        seconds = RATE_SECONDS * self.length
        load = dataclasses.replace(
            send.load_of(self.session, system, one, row.kind, row.shape),
            seconds=seconds,
            first_number=(ROWS.index(row) + 1) << 40,
        )
        case: Case = {"kind": row.kind, "shape": row.shape, "flush": Setup().flush, "body_bytes": load.body_bytes}
        self.session.generate(dataclasses.replace(load, seconds=max(0.5, seconds / 5), first_number=send.WARM_NUMBERS))
        send.measure_on(self.session, self.rates, system, one, load, case)


def _rows(quick: bool) -> tuple[SittingRow, ...]:
    """All rows; in a quick run the lateness at 2,000/s stands for both, and a smaller hot second for all."""
    if not quick:
        return ROWS
    return (*(row for row in ROWS if row.what == "rate" or row.count == 2_000), SittingRow("hot", count=10_000))


@contextlib.contextmanager
def _awake(session: Session, system: System, one: Running) -> Iterator[Running]:
    """Let a stopped system run for a while."""
    session.brokers = system.shards
    _signal(one, signal.SIGCONT)
    try:
        yield one
    finally:
        _signal(one, signal.SIGSTOP)


def _signal(one: Running, number: int) -> None:
    for pid in one.pids():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def sitting(session: Session, minutes: float, finished: Callable[[list[Section]], object]) -> list[Section]:
    """Measure all rows on all systems, in so many minutes."""
    return Sitting(session, minutes, finished).run()
