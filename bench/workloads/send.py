"""How many messages a second are accepted: kinds, senders, flush modes and body sizes, each system in turn."""

from __future__ import annotations

import dataclasses
import time

from bench.figures.results import Case, Section
from bench.generator.load import Kind, Load, LoadResult
from bench.peers.system import Running, Setup, System
from bench.running.machine import CpuMeter
from bench.running.session import BenchError, Session

__all__ = ["BATCH", "FLUSHES", "KINDS", "SHAPES", "SendChoice", "default_choice", "load_of", "measure_on", "run"]

BATCH = "16x1 b100"
# Connections, requests in flight on each, messages in a request.
SHAPES = {"1x1": (1, 1, 1), "16x1": (16, 1, 1), "16x16": (16, 16, 1), "1x100": (1, 100, 1), BATCH: (16, 1, 100)}
# Kind of message, and when it is due after it is sent: near is within the second that a broker keeps in memory.
KINDS: dict[str, tuple[Kind, int, int]] = {
    "normal": ("normal", 0, 0),
    "level": ("level", 0, 0),
    "timed near": ("timed", 500, 1_000),
    "timed far": ("timed", 3_600_000, 10_800_000),
}
FLUSHES = ("ASYNC_FLUSH", "SYNC_FLUSH")
GENERATOR = "generator's CPU"
WARM_NUMBERS = 1 << 56
QUEUES = 8


@dataclasses.dataclass(frozen=True, slots=True)
class SendChoice:
    """Which part of the table is measured."""

    kinds: tuple[str, ...] = tuple(KINDS)
    shapes: tuple[str, ...] = tuple(SHAPES)
    flushes: tuple[str, ...] = FLUSHES


def run(session: Session, choice: SendChoice | None = None) -> Section:
    """Measure accepted sends a second."""
    choice = choice or default_choice(session)
    section = Section("send", "Sends accepted a second")
    section.note("shapes are connections x requests in flight on each; b100: batches of 100 messages")
    for body_bytes in session.bodies:
        for flush in choice.flushes:
            for kind in choice.kinds:
                for repeat, system in session.turns(session.systems, f"send, {kind}, {flush}, {body_bytes} B"):
                    if KINDS[kind][0] in system.kinds and flush in system.flushes:
                        shapes = [s for s in choice.shapes if _possible(system, kind, s, section)]
                        _one_start(session, section, system, kind, shapes, flush, body_bytes, repeat)
    for system in session.systems:
        shares = [v for f in section.figures if (f.system, f.metric) == (system.name, GENERATOR) for v in f.values]
        if shares:
            section.note(f"{system.title}: the generator used {min(shares):.2f}-{max(shares):.2f} of a core")
    limit = session.limits.get("socket_round_trip_us")
    if limit:
        section.note(f"limit for 1x1: one bare round trip, {limit} µs, so {1e6 / limit:,.0f}/s")
    return section


def default_choice(session: Session) -> SendChoice:
    """What is measured unless one asks for less."""
    if session.quick:
        return SendChoice(("normal", "timed far"), ("1x1", "16x1", "16x16", BATCH), ("ASYNC_FLUSH",))
    return SendChoice()


def _possible(system: System, kind: str, shape: str, section: Section) -> bool:
    if shape == BATCH and system.protocol != "rocketmq":
        return False
    if shape == BATCH and kind == "level" and system.protocol == "rocketmq":
        return False  # stock clients refuse to send it
    if shape == BATCH and kind.startswith("timed") and not system.timed_batches:
        section.note(f"{system.title} accepts timed messages in batches, but delivers them at once")
        return False
    return True


def _one_start(
    session: Session,
    section: Section,
    system: System,
    kind: str,
    shapes: list[str],
    flush: str,
    body_bytes: int,
    repeat: int,
) -> None:
    """Start a system once and send to it in each shape."""
    if not shapes:
        return
    with session.running(system, Setup(flush, session.quick)) as running:
        running.prepare("Bench", QUEUES)
        base = dataclasses.replace(load_of(session, system, running, kind), body_bytes=body_bytes, seed=repeat + 1)
        warm_load = dataclasses.replace(base, connections=16, in_flight=16, first_number=WARM_NUMBERS)
        session.warm(system, warm_load, section)
        for number, shape in enumerate(shapes):
            connections, in_flight, batch = SHAPES[shape]
            load = dataclasses.replace(
                base, connections=connections, in_flight=in_flight, batch=batch, first_number=(number + 1) << 40
            )
            case: Case = {"kind": kind, "shape": shape, "flush": flush, "body_bytes": body_bytes}
            measure_on(session, section, system, running, load, case)
            if kind == "timed near":
                time.sleep(2)  # what is still to be delivered must not weigh on the next shape


def load_of(session: Session, system: System, running: Running, kind: str, shape: str = "1x1") -> Load:
    """Make the load of a kind in a shape."""
    sort, due_from_ms, due_to_ms = KINDS[kind]
    connections, in_flight, batch = SHAPES[shape]
    return Load(
        port=running.port,
        protocol=system.protocol,  # type: ignore[arg-type]
        kind=sort,
        body_bytes=session.bodies[0],
        due_from_ms=due_from_ms,
        due_to_ms=due_to_ms,
        seconds=session.seconds,
        queues=QUEUES,
        connections=connections,
        in_flight=in_flight,
        batch=batch,
    )


def measure_on(session: Session, section: Section, system: System, running: Running, load: Load, case: Case) -> None:
    """Measure a load on a system that runs and is warm. Raises BenchError if it accepts nothing."""
    meter = CpuMeter(running.pids())
    result = session.generate(load)
    cores = meter.share()
    if result.accepted == 0:
        raise BenchError(f"{system.title} accepted nothing: {result.refusal or 'no answer'}")
    section.add(system.name, case, "accepted", "1/s", "higher", result.per_second)
    section.add(system.name, case, "reply p50", "µs", "", result.reply_p50_us)
    section.add(system.name, case, "reply p99", "µs", "", result.reply_p99_us)
    section.add(system.name, case, "system's CPU", "cores", "", round(cores, 3))
    section.add(system.name, case, GENERATOR, "cores", "", result.generator_cpu)
    section.add(system.name, case, "generator waited", "share", "", result.waited)
    for line in _warnings(system, case, result):
        section.note(line)


def _warnings(system: System, case: Case, result: LoadResult) -> list[str]:
    found = []
    where = f"{system.title}, {case['kind']} {case['shape']} {case['flush']}"
    if result.generator_cpu > 0.9 and result.waited < 0.05:
        found.append(f"{where}: the generator was the limit (its CPU {result.generator_cpu:.2f}): more --generators")
    if result.refused:
        found.append(f"{where}: {result.refused:,} refused: {result.refusal[:160]}")
    if result.broken or result.accepted + result.refused < result.sent:
        found.append(f"{where}: {result.sent - result.accepted - result.refused:,} sends were never answered")
    return found
