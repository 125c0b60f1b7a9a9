"""kill -9 under load while messages come due: lost and repeated messages, and the longest lateness."""

from __future__ import annotations

import contextlib
import random
import time

from bench.figures.results import Case, Section
from bench.generator.arrivals import Arrivals
from bench.generator.load import Load
from bench.generator.probe import first_accepted
from bench.peers.system import Running, Setup, System
from bench.running.session import Catch, Session

__all__ = ["run"]

QUEUES = 8
RATE = 2_000
LOAD_SECONDS = 10.0
DUE_TO_MS = 5_000
WAIT_MS = 20_000
DOWN_SECONDS = 0.5


def run(session: Session) -> Section:
    """Kill each system in turn, once in each round."""
    section = Section("crash", f"kill -9 at {RATE:,} timed messages a second")
    section.note("lost: acknowledged before the kill and never delivered; repeated: delivered again after the restart")
    rounds = 1 if session.quick else 3
    for repeat, system in session.turns(session.systems, f"crash, {rounds} rounds"):
        if "timed" in system.kinds:
            _measure(session, section, system, rounds, random.Random(repeat))
    return section


def _measure(session: Session, section: Section, system: System, rounds: int, chance: random.Random) -> None:
    case: Case = {"rounds": rounds}
    accepted: set[int] = set()
    with session.running(system, Setup(quick=session.quick)) as running, contextlib.ExitStack() as stack:
        for topic in ("Bench", "Other"):
            running.prepare(topic, QUEUES)
        # Where a delivery removes a message, the consumer has to be there all the time.
        follower = None if system.keeps_delivered else _receive(session, stack, system, running)
        for number in range(rounds):
            accepted |= _round(session, system, running, number, chance)
            running.spawn()
            if first_accepted(_probe(system, running), 120) is None:
                section.note(f"{system.title} did not come back after a kill")
                return
        catch = follower or _receive(session, stack, system, running)
        until_ms = time.time() * 1000 + DUE_TO_MS + (WAIT_MS / 4 if session.quick else WAIT_MS)
        came = catch.wait(1 << 62, until_ms)  # to the end: what comes twice may come late
    _judge(section, system, case, accepted, came)


def _receive(session: Session, stack: contextlib.ExitStack, system: System, running: Running) -> Catch:
    return stack.enter_context(session.receiving(system, running, "Bench", QUEUES, reconnect=True))


def _round(session: Session, system: System, running: Running, number: int, chance: random.Random) -> set[int]:
    """Send, kill somewhere in the middle, and return the numbers that were acknowledged."""
    load = Load(
        port=running.port,
        protocol=system.protocol,  # type: ignore[arg-type]
        connections=4,
        in_flight=1 << 30,
        rate=RATE,
        seconds=LOAD_SECONDS / 2 if session.quick else LOAD_SECONDS,
        due_from_ms=200,
        due_to_ms=DUE_TO_MS,
        queues=QUEUES,
        first_number=number << 32,
        tolerant=True,
        accepted_path=str(session.folder / "accepted.npy"),
    )
    with session.generating(load) as wait:
        time.sleep(chance.uniform(0.6, 0.9) * load.seconds)
        running.kill()
        wait()
    time.sleep(DOWN_SECONDS)
    return session.accepted_numbers()


def _probe(system: System, running: Running) -> Load:
    return Load(port=running.port, protocol=system.protocol, kind="normal", topic="Other", queues=QUEUES)  # type: ignore[arg-type]


def _judge(section: Section, system: System, case: Case, accepted: set[int], came: Arrivals) -> None:
    verdict = came.judge()
    lost = len(accepted - set(came.numbers.tolist()))
    values = verdict.broker_ms if len(verdict.broker_ms) else verdict.consumer_ms
    section.add(system.name, case, "acknowledged", "", "", len(accepted))
    for name, value in (("lost", lost), ("repeated", verdict.repeated), ("early", verdict.early)):
        section.add(system.name, case, name, "", "lower", value)
    if len(values):
        section.add(system.name, case, "longest lateness", "s", "lower", round(float(values[-1]) / 1000, 3))
    if system.name == "timewheel" and (lost or verdict.early):
        section.failures.append(f"{lost:,} of {len(accepted):,} acknowledged messages lost, {verdict.early:,} early")
