"""A sitting ends in time, measures a row on all systems or on none, and wakes only the system that it measures."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from bench.figures.results import SystemNote
from bench.peers.rocketmq import APACHE, OURS, ours_with
from bench.peers.system import Running, Setup, System
from bench.running.session import Session
from bench.workloads import sitting as module
from bench.workloads.sitting import ROWS, SHORTEST, Sitting, SittingRow, lengths
from tests.support.wait import wait_until

pytestmark = pytest.mark.process

SYSTEMS = [OURS, ours_with(2), APACHE]


class Fake(Running):
    """A system that is a process which does nothing."""

    def __init__(self) -> None:
        self.configuration = {}
        self.child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)

    def start(self) -> None:
        """It runs."""

    def prepare(self, _topic: str, _queues: int) -> None:
        """No topics."""

    def pids(self) -> list[int]:
        return [self.child.pid]

    def kill(self) -> None:
        self.child.kill()
        self.child.wait()
        assert self.child.stdin is not None
        self.child.stdin.close()

    def close(self) -> None:
        """Nothing is left."""

    @property
    def stopped(self) -> bool:
        return Path(f"/proc/{self.child.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


class Told(Sitting):
    """Costs its time by a made-up clock, and notes what it measures."""

    def __init__(self, session: Session, minutes: float, fakes: list[Fake], slower: float = 1.0) -> None:
        self.clock = 0.0
        self.fakes = fakes
        self.told: list[tuple[str, str]] = []
        self.slower = slower
        super().__init__(session, minutes, now=lambda: self.clock)

    def _warm(self, system: System, one: Running) -> None:
        assert one in self.fakes
        self.clock += 1.3 * system.warm_up_seconds + 8

    def _measure(self, row: SittingRow, system: System, one: Running) -> None:
        alive = [fake for fake in self.fakes if fake.child.poll() is None]
        assert len(alive) == len(self.session.systems)
        wait_until(lambda: all(fake.stopped == (fake is not one) for fake in alive), 30, "only this one runs")
        self.told.append((row.title, system.name))
        self.clock += row.cost(self.length) * self.slower


def told(tmp_path: Path, minutes: float, repeats: int = 5, slower: float = 1.0) -> Told:
    fakes: list[Fake] = []

    def make(_folder: Path, _setup: Setup) -> Running:
        fakes.append(Fake())
        return fakes[-1]

    systems = [
        System(one.name, one.title, lambda: "1", "rocketmq", make, timed_batches=one.timed_batches) for one in SYSTEMS
    ]
    session = Session(tmp_path, systems, repeats=repeats)
    for one in systems:
        session.notes[one.name] = SystemNote(one.name, one.title)
    sitting = Told(session, minutes, fakes, slower)
    sitting.run()
    return sitting


def test_all_systems_take_turns_in_each_row_the_worst_first(tmp_path: Path) -> None:
    found = told(tmp_path, 120, repeats=1).told
    assert [title for title, _ in found[:4]] == [*["lateness at 20,000/s"] * 3, "normal 16x1 b100"]
    assert [name for _, name in found[:3]] == [one.name for one in SYSTEMS]
    assert {title for title, _ in found} == {row.title for row in ROWS}
    assert [name for title, name in found if title == "timed far 16x1 b100"] == ["timewheel", "timewheel-2-shards"]


def test_each_turn_begins_with_the_next_system(tmp_path: Path) -> None:
    found = [name for title, name in told(tmp_path, 400, repeats=2).told if title == "lateness at 20,000/s"]
    names = [one.name for one in SYSTEMS]
    assert found == [*names, *names[1:], names[0]]


@pytest.mark.parametrize(("minutes", "slower"), [(10, 1.0), (25, 1.0), (25, 2.0), (60, 1.0), (200, 1.0)])
def test_it_ends_in_time_and_names_what_did_not_fit(tmp_path: Path, minutes: float, slower: float) -> None:
    done = told(tmp_path, minutes, slower=slower)
    longest = max(row.cost(done.length) for row in ROWS) * len(SYSTEMS)
    assert done.clock <= minutes * 60 + longest * (slower - 1) + 1e-6
    rows = {row.title: [name for title, name in done.told if title == row.title] for row in ROWS}
    for names in rows.values():
        counts = {names.count(name) for name in set(names)}
        assert len(counts) <= 1, "a row is measured on all or on none"
    assert rows["lateness at 20,000/s"]
    for row in done.left_out:
        assert not [title for title, _ in done.told if title == row.title]
        assert any(row.title in note for note in done.rates.notes)


def test_a_turn_that_does_not_fit_is_shorter_and_never_too_short() -> None:
    assert lengths(SYSTEMS, 10_000) == 1.0
    assert 0.3 < lengths(SYSTEMS, 30) < 1.0
    assert lengths(SYSTEMS, 1) == SHORTEST
    needed = sum(row.cost(1.0) for row in ROWS) * len(SYSTEMS) / 60
    assert lengths(SYSTEMS, needed * 1.2) == 1.0


def test_processes_that_are_gone_are_no_error() -> None:
    fake = Fake()
    fake.kill()
    module._signal(fake, signal.SIGSTOP)
