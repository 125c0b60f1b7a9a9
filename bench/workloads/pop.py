"""Popping: messages a second, lateness of redeliveries, very many of them at one moment, and memory."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager

from bench.figures.results import Case, Section
from bench.figures.stats import percentile
from bench.generator.arrivals import Arrivals, Verdict
from bench.generator.load import Load
from bench.generator.popper import PopTask
from bench.peers.catalogue import POP_VARIANTS
from bench.peers.system import Running, Setup, System
from bench.running.machine import CpuMeter, resident_bytes
from bench.running.session import BenchError, Catch, Session, answer, end, spawn
from bench.workloads.lateness import count_losses

__all__ = ["run", "seen"]

QUEUES = 8
CONNECTIONS = 8
EACH_QUEUE = 4_000  # most of one queue that a group holds: ours refuses more than 10,000
DRAINED = 100_000
AGAIN_RATE = 2_000
AGAIN_INVISIBLE_MS = 3_000
PROBE_RATE = 200
LEAD_SECONDS = 6  # probes are popped from so long before the hot moment ...
TAIL_SECONDS = 3  # ... until so long after it
SPARE = 2.5
WAIT_MS = 60_000
FILL_TRIES = 10
FILL_PAUSE_SECONDS = 1.0
HELD_INVISIBLE_MS = 3_600_000
HELD_BODY_BYTES = 128
SETTLE_SECONDS = 5.0
QUICK_SETTLE_SECONDS = 1.0


def run(session: Session) -> Section:
    """Measure popping."""
    section = Section("pop", "Popping: acknowledged, come again, held")
    section.note("popped 32 at a time over 8 connections, each with one pop out; all messages are in memory")
    section.note("come again: store time of the copy, and reception, minus due; due is popTime + invisibleTime")
    systems = session.systems + session.available([v for name in session.peers for v in POP_VARIANTS.get(name, ())])
    if session.quick:
        systems = session.systems
    systems = [system for system in systems if system.protocol == "rocketmq" and system.shards == 1]
    failed: set[str] = set()
    for _, system in session.turns(systems, "pop"):
        if system.name in failed:
            continue
        try:
            _turn(session, section, system)
        except BenchError as error:
            if system in session.systems:
                raise
            failed.add(system.name)  # a variant takes nobody else's figures with it
            section.note(f"{system.title} failed, and was left out from then on: {error}")
    return section


def _turn(session: Session, section: Section, system: System) -> None:
    with _started(session, section, system) as running:
        _rate(session, section, system, running)
        _again(session, section, system, running)
        _hot(session, section, system, running)
    _memory(session, section, system)


# ---------------------------------------------------------------------------------------------- messages a second


@contextlib.contextmanager
def _started(session: Session, section: Section, system: System) -> Iterator[Running]:
    """Start a system, fill a topic, and pop from it until the rate no longer rises."""
    with session.running(system, Setup(quick=session.quick)) as running:
        _fill(session, running, system, "Drain", QUEUES, _drained(session), session.bodies[0])
        turn = iter(range(1_000_000))

        def once(seconds: float) -> float:
            number = next(turn)
            return float(_drain(session, running, f"Warm{number}", seconds, number % 2 == 0)["per_second"])

        session.warm_by(system, once, section)
        yield running


def _drained(session: Session) -> int:
    return 10_000 if session.quick else DRAINED


def _fill(
    session: Session, running: Running, system: System, topic: str, queues: int, count: int, body_bytes: int
) -> None:
    running.prepare(topic, queues)
    load = Load(
        port=running.port,
        kind="normal",
        topic=topic,
        body_bytes=body_bytes,
        in_flight=16,
        count=count,
        seconds=count / 1_000 + 30,
        queues=queues,
    )
    there, number = 0, 0
    for _ in range(FILL_TRIES):  # a slow disk: what is refused now is taken a little later
        sent = session.generate(dataclasses.replace(load, count=count - there, first_number=number))
        there += sent.accepted
        number += sent.sent
        if there >= count:
            return
        time.sleep(FILL_PAUSE_SECONDS)
    raise BenchError(f"{system.title} took only {there:,} of {count:,} messages: {sent.refusal}")


def _task(task: PopTask) -> dict[str, float]:
    """Run a task in a process of its own."""
    child = spawn("bench.generator.popper", dataclasses.asdict(task))
    try:
        result = answer(child)
    finally:
        end(child)
    if result["refused"] or (result["refusal"] and not result["took"]):
        raise BenchError(f"{result['refused']:,} acknowledgements refused: {result['refusal']}")
    return result


def _drain(session: Session, running: Running, group: str, seconds: float, one_ack: bool) -> dict[str, float]:
    task = PopTask(running.port, "Drain", group, "drain", CONNECTIONS, _drained(session), seconds, one_ack=one_ack)
    return _task(task)


def _rate(session: Session, section: Section, system: System, running: Running) -> None:
    """Pop and acknowledge as fast as possible."""
    for one_ack in (True, False):
        case: Case = {"what": "pop and ack", "acks": "one for 32" if one_ack else "one for each"}
        meter = CpuMeter(running.pids())
        result = _drain(session, running, f"Rate{int(one_ack)}", session.seconds, one_ack)
        cores = meter.share()
        section.add(system.name, case, "popped and acknowledged", "1/s", "higher", result["per_second"])
        section.add(system.name, case, "system's CPU", "cores", "", round(cores, 3))
        section.add(system.name, case, "generator's CPU", "cores", "", result["generator_cpu"])
        if result["generator_cpu"] > 0.9:
            section.note(f"{system.title}, acks {case['acks']}: the generator was the limit")


# ---------------------------------------------------------------------------------------------- come again


def seen(session: Session, task: PopTask) -> AbstractContextManager[Catch]:
    """Let a process record redeliveries, beside other things."""
    return session.catching("bench.generator.popper", dataclasses.replace(task, kind="again"))


def _again(session: Session, section: Section, system: System, running: Running) -> None:
    """Let 2,000 invisible times end every second; the first few seconds are a warm-up."""
    case: Case = {"what": "come again", "a second": AGAIN_RATE}
    seconds = session.seconds * 2
    warm_seconds = 1.0 if session.quick else 10.0
    running.prepare("Again", QUEUES)
    task = PopTask(running.port, "Again", "AgainGroup", "again", CONNECTIONS, invisible_ms=AGAIN_INVISIBLE_MS)
    with seen(session, task) as catch:
        sent = session.generate(_steady(session, running, "Again", AGAIN_RATE, warm_seconds + seconds))
        came = catch.wait(sent.accepted, time.time() * 1000 + AGAIN_INVISIBLE_MS + WAIT_MS)
    count_losses(section, system, case, came.judge(), sent.accepted)
    if len(came.rows):
        from_us = int(came.rows[:, 1].min() + warm_seconds * 1e6)
        came = Arrivals(came.rows[came.rows[:, 1] >= from_us])
    _add_times(section, system, case, came.judge(), "")


def _steady(session: Session, running: Running, topic: str, rate: int, seconds: float) -> Load:
    return Load(
        port=running.port,
        kind="normal",
        topic=topic,
        body_bytes=session.bodies[0],
        connections=4,
        in_flight=1 << 30,
        rate=rate,
        seconds=seconds,
        queues=QUEUES,
    )


def _add_times(section: Section, system: System, case: Case, verdict: Verdict, of: str) -> None:
    for where, values in (("broker", verdict.broker_ms), ("consumer", verdict.consumer_ms)):
        if len(values):
            for name, share in (("p50", 0.5), ("p99", 0.99), ("max", 1.0)):
                value = round(percentile(values, share), 3)
                section.add(system.name, case, f"{of}{where} {name}", "ms", "lower", value)


def _hot(session: Session, section: Section, system: System, running: Running) -> None:
    """Let very many invisible times end at one moment, and others around it."""
    count = 10_000 if session.quick else 100_000
    case: Case = {"what": "all times end at S", "messages": count}
    queues = max(QUEUES, count // EACH_QUEUE)
    _fill(session, running, system, "Hot", queues, count, session.bodies[0])
    running.prepare("Probe", QUEUES)
    per_second = float(_drain(session, running, "Before", 1.0, True)["per_second"])
    hot_ms = (int(time.time() + SPARE * count / max(500.0, per_second) + LEAD_SECONDS + 2) + 1) * 1000
    hot_task = PopTask(running.port, "Hot", "HotGroup", "again", CONNECTIONS, end_ms=hot_ms)
    probe_task = PopTask(running.port, "Probe", "ProbeGroup", "again", 2, invisible_ms=AGAIN_INVISIBLE_MS)
    with seen(session, hot_task) as hot_catch, seen(session, probe_task) as probe_catch:
        time.sleep(max(0.0, hot_ms / 1000 - LEAD_SECONDS - time.time()))
        probed = session.generate(_steady(session, running, "Probe", PROBE_RATE, LEAD_SECONDS + TAIL_SECONDS))
        came = hot_catch.wait(count, hot_ms + 4 * WAIT_MS)
        probes = probe_catch.wait(probed.accepted, time.time() * 1000 + WAIT_MS)
    count_losses(section, system, case, came.judge(), count)
    count_losses(section, system, {**case, "of": "probes"}, probes.judge(), probed.accepted)
    if len(came.rows):
        due_us, stored_us = came.rows[:, 1], came.rows[:, 2]
        spread = int(due_us.max() - due_us.min()) / 1000
        section.note(f"{system.title}: the {count:,} times ended within {spread:,.0f} ms")
        last = float(stored_us.max() - due_us.max()) / 1e6
        section.add(system.name, case, "last come again, after the last due", "s", "lower", round(last, 3))
        last = float(came.rows[:, 3].max() - due_us.max()) / 1e6
        section.add(system.name, case, "last received, after the last due", "s", "lower", round(last, 3))
    _add_times(section, system, case, probes.due_between(hot_ms, hot_ms + 2_000).judge(), "probes' ")


# ---------------------------------------------------------------------------------------------- memory


def _memory(session: Session, section: Section, system: System) -> None:
    """Measure the memory of very many messages in flight."""
    count = session.counts[0] if session.counts else 20_000 if session.quick else 1_000_000
    case: Case = {"what": "held", "messages": count}
    queues = max(QUEUES, count // EACH_QUEUE)
    with session.running(system, Setup(quick=session.quick)) as running:
        _fill(session, running, system, "Held", queues, count, HELD_BODY_BYTES)
        time.sleep(QUICK_SETTLE_SECONDS if session.quick else SETTLE_SECONDS)
        before, _ = resident_bytes(running.pids())
        task = PopTask(
            running.port, "Held", "HeldGroup", "hold", CONNECTIONS, count, 600.0, invisible_ms=HELD_INVISIBLE_MS
        )
        took = _task(task)["took"]
        time.sleep(QUICK_SETTLE_SECONDS if session.quick else SETTLE_SECONDS)
        after, _ = resident_bytes(running.pids())
    if took < count:
        section.note(f"{system.title} handed out only {took:,} of {count:,}")
    section.add(system.name, case, "RSS more than before", "MB", "lower", round((after - before) / 1e6, 1))
