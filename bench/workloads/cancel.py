"""Cancels very many pending messages by one query while others are sent and come due: duration, and lateness."""

from __future__ import annotations

import dataclasses
import json
import time

from bench.figures.results import OURS, Case, Section
from bench.figures.stats import percentile
from bench.generator.load import Load
from bench.peers.system import Running, Setup, System
from bench.peers.wire import Wire
from bench.running.machine import CpuMeter
from bench.running.session import BenchError, Session
from bench.workloads.lateness import count_losses
from remoting.codes import RequestCode

__all__ = ["run"]

QUEUES = 8
CANCELLED = 1_000_000
BESIDE_RATE = 1_000
BESIDE_NUMBERS = 1 << 40
DUE_FROM_MS, DUE_TO_MS = 1_000, 3_000
PHASE_SECONDS = 20.0  # before the cancel begins, and after it
MOST_SECONDS = 120.0
AT_ONCE = 10_000  # messages of one request
WAIT_MS = 30_000


def run(session: Session) -> Section:
    """Measure a cancel by query."""
    section = Section("cancel", "Pending messages cancelled by a query")
    section.note(f"{BESIDE_RATE:,} timed messages a second go on to another topic; due {DUE_FROM_MS / 1000:.0f} to")
    section.note(
        f"{DUE_TO_MS / 1000:.0f} s later. Their lateness at the broker is that of those due before, during, after"
    )
    systems = [system for system in session.systems if system.name == OURS and system.shards == 1]
    for count in session.counts or ((5_000,) if session.quick else (CANCELLED,)):
        for _, system in session.turns(systems, f"{count:,} cancelled by a query"):
            with session.running(system, Setup(quick=session.quick)) as running:
                _measure(session, section, system, running, count)
    return section


def _measure(session: Session, section: Section, system: System, running: Running, count: int) -> None:
    case: Case = {"pending": count, "body_bytes": session.bodies[0]}
    for topic in ("Mine", "Beside"):
        running.prepare(topic, QUEUES)
    far = Load(
        port=running.port,
        topic="Mine",
        body_bytes=session.bodies[0],
        in_flight=16,
        count=count,
        seconds=count / 2_000 + 30,
        queues=QUEUES,
    )
    if session.generate(far).accepted < count:
        raise BenchError(f"{system.title} did not take {count:,} messages")
    phase = 2.0 if session.quick else PHASE_SECONDS
    time.sleep(phase)  # what was accepted is sorted in the background
    beside = dataclasses.replace(
        far,
        topic="Beside",
        connections=4,
        in_flight=1 << 30,
        rate=BESIDE_RATE,
        count=0,
        seconds=2 * phase + (6.0 if session.quick else MOST_SECONDS / 2),
        due_from_ms=DUE_FROM_MS,
        due_to_ms=DUE_TO_MS,
        first_number=BESIDE_NUMBERS,
    )
    with session.receiving(system, running, "Beside", QUEUES) as catch, session.generating(beside) as others:
        begin_ms = time.time() * 1000 + DUE_TO_MS
        time.sleep(DUE_TO_MS / 1000 + phase)
        meter = CpuMeter(running.pids())
        from_ms = time.time() * 1000
        cancelled, calls, longest = _cancel(running.port, far.topic)
        to_ms = time.time() * 1000
        share = meter.share()
        sent = others()
        came = catch.wait(sent.accepted, time.time() * 1000 + WAIT_MS, quiet_ms=WAIT_MS)
    seconds = (to_ms - from_ms) / 1000
    if cancelled != count:
        section.failures.append(f"{cancelled:,} of {count:,} messages were cancelled")
    add = section.add
    add(system.name, case, "cancelled in", "s", "lower", round(seconds, 2))
    add(system.name, case, "longest call", "s", "lower", round(longest, 2))
    section.note(f"{system.title}: {calls:,} calls; the broker used {share * 100:.0f} % of a core meanwhile")
    for name, first, last in (
        ("before", begin_ms, from_ms),
        ("during", from_ms, to_ms),
        ("after", to_ms, begin_ms + (beside.seconds - DUE_TO_MS / 1000) * 1000),
    ):
        late = came.due_between(first, last).judge().broker_ms
        if len(late):
            for quantile, at in (("p50", 0.5), ("p99", 0.99), ("max", 1.0)):
                add(system.name, case, f"others' {quantile} {name}", "ms", "lower", round(percentile(late, at), 3))
    count_losses(section, system, {**case, "of": "others"}, came.judge(), sent.accepted)


def _cancel(port: int, topic: str) -> tuple[int, int, float]:
    """Cancel all messages of a topic; returns their number, the number of calls, and the longest call."""
    fields = {"verb": "cancel", "topic": topic, "limit": AT_ONCE, "dryRun": "false", "after": ""}
    cancelled = calls = 0
    longest = 0.0
    with Wire(f"127.0.0.1:{port}", MOST_SECONDS) as wire:
        while True:
            begin = time.perf_counter()
            answer = json.loads(wire.ask(RequestCode.PENDING_CHANGE_MATCHING, fields)[1])
            longest = max(longest, time.perf_counter() - begin)
            calls += 1
            cancelled += answer["verdicts"].get("done", 0)
            if not answer["next"]:
                return cancelled, calls, longest
            fields["after"] = answer["next"]
