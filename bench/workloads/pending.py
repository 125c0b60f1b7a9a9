"""Very many pending messages: memory, disk and idle processor time with them; a clean stop, a kill, and starts.

`restart` and `memory` show two parts of the same runs, so ``all`` makes these runs only once.
"""

from __future__ import annotations

import dataclasses
import time

from bench.figures.results import OURS, Case, Section
from bench.generator.load import Load
from bench.generator.probe import first_accepted
from bench.peers.system import Running, Setup, System
from bench.running.machine import CpuMeter, resident_bytes, store_bytes
from bench.running.session import Session

__all__ = ["memory", "restart"]

QUEUES = 8
MOST_OF_A_PEER = 1_000_000
# Some are due all the time, before, while and after the system is down; their first one after it says when it is back.
TICKS_PER_SECOND = 10
TICK_SECONDS = 240
TICK_NUMBERS = 1 << 40
START_SECONDS = 120.0
SETTLE_SECONDS = 3.0


def memory(session: Session) -> Section:
    """Show memory, disk and idle processor time with pending messages."""
    return _sections(session)[0]


def restart(session: Session) -> Section:
    """Show how soon a system with pending messages serves again after a stop, and after SIGKILL."""
    return _sections(session)[1]


def _sections(session: Session) -> tuple[Section, Section]:
    if session.pending is None:
        weight = Section("memory", "What pending messages weigh")
        weight.note(
            "disk: blocks used by the store, less those of the empty one; idle: processor time while nothing is due"
        )
        weight.note("per message of disk: with a body of the size given and about 100 bytes of properties")
        back = Section("restart", "Stop and start with messages pending")
        back.note(
            "first accepted: from the start of the process to the first acknowledged send; first due: to the store"
        )
        back.note("time (without one: to the reception) of the first delayed message that is delivered")
        for count in _counts(session):
            for _, system in session.turns(session.systems, f"{count:,} pending"):
                if count > MOST_OF_A_PEER and system.name != OURS:
                    weight.note(f"peers are measured with up to {MOST_OF_A_PEER:,} pending: some keep all in memory")
                elif "timed" in system.kinds:
                    _measure(session, weight, back, system, count)
        session.pending = (weight, back)
    return session.pending


def _counts(session: Session) -> tuple[int, ...]:
    if session.counts:
        return session.counts
    return (10_000,) if session.quick else (10_000, 100_000, 1_000_000, 10_000_000)


def _measure(session: Session, weight: Section, back: Section, system: System, count: int) -> None:
    case: Case = {"pending": count, "body_bytes": session.bodies[0]}
    with session.running(system, Setup(quick=session.quick)) as running:
        for topic in ("Bench", "Other"):
            running.prepare(topic, QUEUES)
        time.sleep(SETTLE_SECONDS)
        empty = (*resident_bytes(running.pids()), store_bytes(running.store))
        load = Load(
            port=running.port,
            protocol=system.protocol,  # type: ignore[arg-type]
            body_bytes=session.bodies[0],
            connections=16,
            in_flight=16,
            count=count,
            seconds=count / 2_000 + 30,
            queues=QUEUES,
        )
        if session.generate(load).accepted < count:
            weight.note(f"{system.title} did not take {count:,} messages")
            return
        _weigh(session, weight, system, running, case, count, empty)
        if _come_back(session, back, system, running, case, load):
            _come_back(session, back, system, running, {**case, "after": "kill -9"}, load, killed=True)


def _weigh(
    session: Session, section: Section, system: System, running: Running, case: Case, count: int, empty: tuple[int, ...]
) -> None:
    """Measure memory, disk and idle processor time."""
    time.sleep(SETTLE_SECONDS if session.quick else 20)
    meter = CpuMeter(running.pids())
    time.sleep(3 if session.quick else 10)
    idle = meter.share()
    rss, pss = resident_bytes(running.pids())
    add = section.add
    add(system.name, case, "RSS", "MB", "lower", round(rss / 1e6, 1))
    add(system.name, case, "PSS", "MB", "lower", round(pss / 1e6, 1))
    add(system.name, case, "RSS more than empty", "MB", "lower", round((rss - empty[0]) / 1e6, 1))
    disk = (store_bytes(running.store) - empty[2]) / count
    add(system.name, case, "disk for each message", "bytes", "lower", round(disk, 1))
    add(system.name, case, "idle", "% of a core", "lower", round(idle * 100, 2))


def _come_back(
    session: Session,
    section: Section,
    system: System,
    running: Running,
    case: Case,
    load: Load,
    killed: bool = False,
) -> bool:
    """End a system while messages come due, start it again, and measure when it serves. False: it does not."""
    ticks = dataclasses.replace(
        load,
        connections=1,
        in_flight=256,
        count=TICKS_PER_SECOND * TICK_SECONDS,
        due_from_ms=1_000,
        due_to_ms=TICK_SECONDS * 1000,
        first_number=TICK_NUMBERS,
    )
    session.generate(ticks)
    if killed:
        running.kill()
    else:
        begin = time.perf_counter()
        running.stop()
        section.add(system.name, case, "clean stop", "s", "lower", round(time.perf_counter() - begin, 3))
    time.sleep(1)
    with session.receiving(system, running, "Bench", QUEUES, reconnect=True) as catch:
        started_ms = time.time() * 1000
        running.spawn()
        seconds = first_accepted(dataclasses.replace(load, kind="normal", topic="Other", count=0), START_SECONDS)
        if seconds is None:
            section.note(f"{system.title} took no message within {START_SECONDS:.0f} s of its start")
            return False
        section.add(system.name, case, "start to first accepted", "s", "lower", round(seconds, 3))
        time.sleep(3 if session.quick else 8)
        came = catch.wait(1 << 62, time.time() * 1000)
    stamps = came.rows[:, 2].copy()
    stamps[stamps < 0] = came.rows[stamps < 0, 3]
    after = stamps[(stamps >= started_ms * 1000) & (came.rows[:, 0] >= TICK_NUMBERS)]
    if not len(after):
        section.note(f"{system.title} delivered nothing in the first seconds after its start")
        return True
    first = (int(after.min()) / 1000 - started_ms) / 1000
    section.add(system.name, case, "start to first due delivered", "s", "lower", round(first, 3))
    return True
