"""Lateness of delayed messages at a steady rate, alone and beside other traffic, at the broker and the consumer."""

from __future__ import annotations

import dataclasses
import time

import numpy as np
import numpy.typing as npt

from bench.figures.results import Case, Curve, Section
from bench.figures.stats import ccdf, percentile
from bench.generator.arrivals import Verdict
from bench.generator.load import Kind, Load, LoadResult
from bench.peers.catalogue import VARIANTS
from bench.peers.system import Running, Setup, System
from bench.running.session import Session

__all__ = ["LatenessCase", "add_lateness", "count_losses", "latencies", "measure_on", "run", "sustained"]

QUEUES = 8
WAIT_MS = 30_000
OTHERS_PER_SECOND = 10_000
SECONDS_MIN = 60.0  # a shorter run does not show what falls behind slowly
WARM_TIMED_SECONDS = 20.0
WARM_NUMBERS = 1 << 56  # to a topic that nobody reads here


@dataclasses.dataclass(frozen=True, slots=True)
class LatenessCase:
    """One row: the load, its rate, and other traffic."""

    kind: Kind
    rate: int
    beside: int = 0
    due_from_ms: int = 1_000
    due_to_ms: int = 6_000

    def case(self) -> Case:
        """Write it as a case of the results."""
        beside = f"beside {self.beside:,}/s normal" if self.beside else "alone"
        kind = "level 1" if self.kind == "level" else self.kind
        return {"kind": kind, "a second": self.rate, "beside": beside}


FULL = (
    LatenessCase("timed", 2_000),
    LatenessCase("timed", 20_000),
    LatenessCase("timed", 2_000, OTHERS_PER_SECOND),
    LatenessCase("timed", 20_000, OTHERS_PER_SECOND),
    LatenessCase("level", 2_000, 0, 1_000, 1_001),
)


def run(session: Session) -> Section:
    """Measure lateness in each case."""
    section = Section("lateness", "Lateness of delayed messages")
    section.note("broker: store time minus due time, whole milliseconds; consumer: received minus due, in microseconds")
    cases = (FULL[0], FULL[4]) if session.quick else FULL
    systems = session.systems + session.available([v for name in session.peers for v in VARIANTS.get(name, ())])
    if session.quick:
        systems = session.systems
    seconds = session.seconds * 3 if session.quick else max(SECONDS_MIN, session.seconds)
    for one in cases:
        for _, system in session.turns(systems, f"lateness, {' '.join(map(str, one.case().values()))}"):
            if one.kind in system.kinds and not (one.beside and system.protocol != "rocketmq"):
                _measure(session, section, system, one, seconds)
    return section


def sustained(session: Session) -> Section:
    """Measure lateness at 20,000 messages a second (or another rate) in and out, held for ten minutes."""
    section = Section("sustained", "Lateness at a rate that is held")
    seconds = session.seconds * 3 if session.quick else session.sustain_seconds
    section.note(f"held for {seconds:,.0f} s")
    one = LatenessCase("timed", session.sustain_rate or (2_000 if session.quick else 20_000))
    for _, system in session.turns(session.systems, f"{one.rate:,} a second for {seconds:,.0f} s"):
        if one.kind in system.kinds:
            _measure(session, section, system, one, seconds)
    return section


def _measure(session: Session, section: Section, system: System, one: LatenessCase, seconds: float) -> None:
    with session.running(system, Setup(quick=session.quick)) as running:
        for topic in ("Bench", "Other", "Warm"):
            running.prepare(topic, QUEUES)
        load = _load(system, running, session, one, seconds)
        _warm(session, section, system, load)
        _hold(session, section, system, running, one, load)


def measure_on(
    session: Session, section: Section, system: System, running: Running, one: LatenessCase, seconds: float
) -> LoadResult:
    """Measure on a system that runs and has sent for a while, after ``seconds / 3`` of the same load.

    Returns what was sent. The topic is one of this rate: a reception begins at a topic's first message.
    """
    load = dataclasses.replace(_load(system, running, session, one, seconds), topic=f"Bench{one.rate}")
    for topic in (load.topic, "Other", "Warm"):
        running.prepare(topic, QUEUES)
    _warm_deliveries(session, load, min(WARM_TIMED_SECONDS, seconds / 3))
    return _hold(session, section, system, running, one, load)


def _hold(
    session: Session, section: Section, system: System, running: Running, one: LatenessCase, load: Load
) -> LoadResult:
    seconds = load.seconds
    with session.receiving(system, running, load.topic, QUEUES) as catch:
        if one.beside:
            other = dataclasses.replace(load, kind="normal", topic="Other", rate=one.beside, seconds=seconds + 6)
            with session.generating(other) as others:
                result = session.generate(load)
                others()
        else:
            result = session.generate(load)
        until_ms = time.time() * 1000 + one.due_to_ms + WAIT_MS
        arrivals = catch.wait(result.accepted, until_ms, quiet_ms=WAIT_MS)
    verdict = arrivals.judge()
    case = one.case()
    add_lateness(section, system, case, verdict)
    count_losses(section, system, case, verdict, result.accepted)
    latencies(section, system, case, verdict)
    if verdict.early:
        share = verdict.early / max(1, verdict.delivered)
        first = min(float(values[0]) for values in (verdict.broker_ms, verdict.consumer_ms) if len(values))
        text = f"{share:.0%} of its messages came before they were due, by up to {-first:,.0f} ms"
        section.note(f"{system.title}, {one.rate:,}/s: {text}")
    if result.behind_ms > 100:
        section.note(f"{system.title}, {one.rate:,}/s: the generator was up to {result.behind_ms:.0f} ms behind")
    if result.accepted < 0.98 * one.rate * seconds:
        rate = result.accepted / result.seconds
        section.note(f"{system.title}, {one.rate:,}/s: took only {rate:,.0f}/s ({result.refused:,} refused)")
    return result


def _load(system: System, running: Running, session: Session, one: LatenessCase, seconds: float) -> Load:
    return Load(
        port=running.port,
        protocol=system.protocol,  # type: ignore[arg-type]
        kind=one.kind,
        body_bytes=session.bodies[0],
        connections=16,
        in_flight=1 << 30,
        rate=one.rate,
        seconds=seconds,
        due_from_ms=one.due_from_ms,
        due_to_ms=one.due_to_ms,
        level=1,
        queues=QUEUES,
    )


def _warm(session: Session, section: Section, system: System, load: Load) -> None:
    """Warm the send path until it is no faster, then the deliveries, by a while of the load itself to another topic."""
    warm = dataclasses.replace(load, topic="Warm", first_number=WARM_NUMBERS)
    if load.protocol == "rocketmq":
        session.warm(system, dataclasses.replace(warm, kind="normal", rate=0.0, in_flight=16), section)
        _warm_deliveries(session, load, 1.0 if session.quick else WARM_TIMED_SECONDS)


def _warm_deliveries(session: Session, load: Load, seconds: float) -> None:
    session.generate(dataclasses.replace(load, topic="Warm", seconds=seconds, first_number=WARM_NUMBERS * 2))
    time.sleep(load.due_to_ms / 1000)  # what was sent to warm it has been delivered


def add_lateness(section: Section, system: System, case: Case, verdict: Verdict) -> None:
    """Add the percentiles at the broker and at the consumer."""
    for where, values in (("broker", verdict.broker_ms), ("consumer", verdict.consumer_ms)):
        if not len(values):
            continue
        for name, share in (("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999)):
            section.add(system.name, case, f"{where} {name}", "ms", "lower", round(percentile(values, share), 3))
        section.add(system.name, case, f"{where} max", "ms", "lower", round(float(values[-1]), 3))


def count_losses(section: Section, system: System, case: Case, verdict: Verdict, accepted: int) -> None:
    """Add early, lost and repeated messages. Those of our broker are failures."""
    lost = max(0, accepted - verdict.delivered)
    for name, value in (("early", verdict.early), ("lost", lost), ("repeated", verdict.repeated)):
        section.add(system.name, case, name, "", "lower", value)
        if value and system.name == "timewheel" and name != "repeated":
            section.failures.append(f"{value:,} of {accepted:,} messages {name}: {' '.join(map(str, case.values()))}")


def latencies(section: Section, system: System, case: Case, verdict: Verdict) -> None:
    """Add the distributions as curves, one for each repeat."""
    for where, values in (("broker", verdict.broker_ms), ("consumer", verdict.consumer_ms)):
        xs, shares = ccdf(_positive(values))
        if xs:
            section.curves.append(Curve(system.name, {**case, "where": where}, "ccdf", "ms", xs, shares))


def _positive(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    return np.maximum(values, 0.0)
