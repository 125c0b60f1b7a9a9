"""Whenever the lock of what is in flight is free, another thread may write the journal, and the process may die then.

Here the journal is written at each release of that lock, and the process dies at one of them. What is found then must
be the whole of what a request does, or nothing of it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress

import pytest

from tests.broker.pop_client import Popped
from tests.broker.test_pop_restart import Machine

RELEASES = 6
"""No request here lets the lock go as often."""


class KilledError(BaseException):
    """The process is gone."""


class DeadlyLock:
    """Writes the journal whenever it is let go, and raises at one of these moments."""

    def __init__(self, machine: Machine, moment: int) -> None:
        self._lock = threading.Lock()
        self._commit: Callable[[], None] = machine.pops.journal.commit
        self._left = moment
        self._writing = False
        self.killed = False

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()
        if self._writing or self.killed:
            return
        self._writing = True
        self._commit()
        self._writing = False
        self._left -= 1
        if self._left == 0:
            self.killed = True
            raise KilledError


def killed_at(machine: Machine, moment: int, act: Callable[[], object]) -> bool:
    """Do something with the process killed at a release of the lock, and start again; whether it came to that."""
    lock = machine.pops.in_flight.lock = DeadlyLock(machine, moment)
    with suppress(KilledError):
        act()
    machine.kill()
    assert machine.pops.check() == []
    return lock.killed


def all_that_comes(machine: Machine, order: str) -> list[bytes]:
    """Everything that was not acknowledged, after the times of all holders."""
    found: list[bytes] = []
    for _ in range(3):
        machine.rig.pass_ms(60_000)
        machine.revive()
        while got := machine.popper.pop(order=order):
            found += [one.body for one in got]
            assert [machine.popper.ack(one).code for one in got] == [0] * len(got)
    return sorted(found)


@pytest.mark.parametrize("order", ["true", "false"])
@pytest.mark.parametrize("moment", range(1, RELEASES))
def test_a_pop(machine: Machine, order: str, moment: int) -> None:
    machine.send(b"a", b"b", b"c")
    killed_at(machine, moment, lambda: machine.popper.pop(order=order))
    assert all_that_comes(machine, order) == [b"a", b"b", b"c"]


@pytest.mark.parametrize("order", ["true", "false"])
@pytest.mark.parametrize("moment", range(1, RELEASES))
@pytest.mark.parametrize("what", ["ack", "change", "again"])
def test_what_follows_a_pop(machine: Machine, order: str, moment: int, what: str) -> None:
    machine.send(b"a", b"b", b"c")
    got: list[Popped] = machine.popper.pop(order=order, invisibleTime=1_000)
    acts: dict[str, Callable[[], object]] = {
        "ack": lambda: machine.popper.ack(got[1]),
        "change": lambda: machine.popper.change(got[1], 5_000),
        "again": lambda: (machine.rig.pass_ms(1_000), machine.pops.reviver.step(machine.rig.now_ms)),
    }
    killed = killed_at(machine, moment, acts[what])
    found = all_that_comes(machine, order)
    assert found == [b"a", b"b", b"c"] or (what == "ack" and found == [b"a", b"c"])
    assert killed or what != "ack" or found == [b"a", b"c"], "it was acknowledged, and answered"


@pytest.fixture
def machine() -> Machine:
    return Machine()


class WakingLock:
    """Has somebody pop, with a due time of its own, whenever it was let go."""

    def __init__(self, pop: Callable[[], object]) -> None:
        self._lock = threading.Lock()
        self._pop = pop

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()
        self._pop()


def test_a_pop_while_the_next_due_time_is_asked_for_wakes_the_reviver(machine: Machine) -> None:
    """It was missed: the thread slept for a quarter of a second."""
    reviver = machine.pops.reviver
    machine.send(b"a")
    machine.popper.pop()
    now_ms = machine.rig.now_ms
    assert (reviver.step(now_ms) or 0) > now_ms
    reviver._worker = threading.Thread()  # as if it ran
    reviver._woken = False
    machine.pops.in_flight.lock = WakingLock(lambda: reviver.wake(now_ms + 1))
    reviver._wake_ms = now_ms + 1  # what the turn before had found: until it is asked again, that pop need not wake
    reviver.step(now_ms)
    assert reviver._woken
