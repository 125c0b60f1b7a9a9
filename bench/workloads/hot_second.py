"""Very many messages due at one moment, and 200 others a second due around it: how late are both?"""

from __future__ import annotations

import dataclasses
import time

from bench.figures.results import Case, Section
from bench.figures.stats import percentile
from bench.generator.arrivals import Arrivals
from bench.generator.load import Load
from bench.peers.system import Running, Setup, System
from bench.running.session import Session
from bench.workloads.lateness import count_losses

__all__ = ["measure_on", "run"]

QUEUES = 8
PROBES_PER_SECOND = 200
PROBE_DELAY_MS = 3_000
PROBES_WAIT_MS = 30_000
LEAD_SECONDS = 5  # probes are sent from so long before the hot moment ...
TAIL_SECONDS = 5  # ... until so long after it
SPARE = 2.5  # so many times as long as a system took for the same at first is given to it before the moment comes
PROBE_NUMBERS = 1 << 40
WARM_NUMBERS = 1 << 41  # due in hours, and never looked at


def run(session: Session) -> Section:
    """Measure hot seconds of each size."""
    section = Section("hot-second", "A hot second: all due at the same millisecond S")
    section.note("probes: 200/s to a topic of their own, due within S..S+2 s")
    for count in session.counts or ((20_000,) if session.quick else (100_000, 500_000)):
        for _, system in session.turns(session.systems, f"hot second of {count:,}"):
            if "timed" in system.kinds:
                _measure(session, section, system, count)
    return section


def _measure(session: Session, section: Section, system: System, count: int) -> None:
    with session.running(system, Setup(quick=session.quick)) as running:
        running.prepare("Warm", QUEUES)
        warm = dataclasses.replace(_load(session, system, running), topic="Warm", first_number=WARM_NUMBERS)
        measure_on(session, section, system, running, count, session.warm(system, warm, section).rates[-1])


def _load(session: Session, system: System, running: Running) -> Load:
    return Load(
        port=running.port,
        protocol=system.protocol,  # type: ignore[arg-type]
        topic="Hot",
        body_bytes=session.bodies[0],
        connections=16,
        in_flight=16,
        queues=QUEUES,
    )


def measure_on(
    session: Session, section: Section, system: System, running: Running, count: int, per_second: float
) -> None:
    """Measure on a system that runs, is warm, and has accepted so many messages a second.

    The topics are those of this count: a reception begins at a topic's first message.
    """
    case: Case = {"due at once": count, "of": "hot"}
    topics = f"Hot{count}", f"Probe{count}"
    for topic in topics:
        running.prepare(topic, QUEUES)
    load = dataclasses.replace(_load(session, system, running), topic=topics[0])
    hot_ms, hot = _planned(load, count, per_second)
    probes = dataclasses.replace(
        hot,
        topic=topics[1],
        connections=2,
        in_flight=1 << 30,
        count=0,
        rate=PROBES_PER_SECOND,
        seconds=LEAD_SECONDS + TAIL_SECONDS,
        due_at_ms=0,
        due_from_ms=PROBE_DELAY_MS,
        due_to_ms=PROBE_DELAY_MS + 1,
        first_number=PROBE_NUMBERS,
    )
    with (
        session.receiving(system, running, topics[0], QUEUES) as hot_catch,
        session.receiving(system, running, topics[1], QUEUES) as probe_catch,
    ):
        sent = session.generate(hot)
        if sent.accepted < count or time.time() > hot_ms / 1000 - LEAD_SECONDS:
            section.note(f"{system.title}: took only {sent.per_second:,.0f}/s, so {count:,} were not there in time")
            if sent.accepted < count:
                return
        time.sleep(max(0.0, hot_ms / 1000 - LEAD_SECONDS - time.time()))
        probed = session.generate(probes)
        until_ms = time.time() * 1000 + (60_000 if session.quick else 240_000)
        came = hot_catch.wait(sent.accepted, until_ms)
        probes_came = probe_catch.wait(probed.accepted, time.time() * 1000 + PROBES_WAIT_MS, quiet_ms=PROBES_WAIT_MS)
    _add(section, system, case, hot_ms, came, probes_came)
    count_losses(section, system, case, came.judge(), sent.accepted)
    count_losses(section, system, {**case, "of": "probes"}, probes_came.judge(), probed.accepted)


def _planned(load: Load, count: int, per_second: float) -> tuple[int, Load]:
    """Choose the moment by how fast the system accepted messages; returns it and the load."""
    lead = SPARE * count / max(500.0, per_second) + LEAD_SECONDS + 2
    hot_ms = (int(time.time() + lead) + 1) * 1000
    return hot_ms, dataclasses.replace(load, count=count, seconds=lead, due_at_ms=hot_ms, due_from_ms=0, due_to_ms=0)


def _add(section: Section, system: System, case: Case, hot_ms: int, came: Arrivals, probes: Arrivals) -> None:
    verdict = came.judge()
    for where, values in (("broker", verdict.broker_ms), ("consumer", verdict.consumer_ms)):
        if len(values):
            section.add(system.name, case, f"last out at {where} after S", "s", "lower", round(values[-1] / 1000, 3))
    near = probes.due_between(hot_ms, hot_ms + 2_000).judge()
    for where, values in (("broker", near.broker_ms), ("consumer", near.consumer_ms)):
        if len(values):
            for name, share in (("p50", 0.5), ("p99", 0.99), ("max", 1.0)):
                value = round(percentile(values, share), 3)
                section.add(system.name, case, f"probes' {where} {name}", "ms", "lower", value)
