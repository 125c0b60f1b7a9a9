"""The processor time of one broker of ours at 20,000 messages a second in and out, by thread and by code.

By thread, from /proc, each figure per message (accepted and delivered): user and system time, time ready without a
core, pages touched for the first time, and the number of times that it gave up the core.

By code and by stage, if ``perf`` is installed (`bench.workloads.samples`): a sample says which thread executed which
code, and for which of our folders. The time of a group is the thread's processor time in proportion to the samples.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path

from bench.figures.results import Case, Section
from bench.peers.rocketmq import OURS_NAMED
from bench.peers.system import Setup
from bench.running.session import Session
from bench.workloads import lateness
from bench.workloads.lateness import LatenessCase
from bench.workloads.samples import Samples, Shares

__all__ = ["Usage", "read_threads", "run"]

RATE = 20_000
_TICK_US = 1e6 / os.sysconf("SC_CLK_TCK")

Usage = dict[str, float]
"""Of one thread: ``user``, ``system``, ``ready`` in µs, ``touches`` of pages, ``switches``."""


def read_threads(pid: int) -> dict[str, Usage]:
    """Read what each thread of a process has used so far, by its name; threads of one name are added up."""
    found: dict[str, Usage] = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            name = (task / "comm").read_text().strip()
            fields = (task / "stat").read_text().rpartition(")")[2].split()
            waited_ns = int((task / "schedstat").read_text().split()[1])
            status = (task / "status").read_text()
        except OSError:
            continue  # it has ended
        usage = found.setdefault(name, dict.fromkeys(("user", "system", "ready", "touches", "switches"), 0.0))
        usage["user"] += int(fields[11]) * _TICK_US
        usage["system"] += int(fields[12]) * _TICK_US
        usage["ready"] += waited_ns / 1000
        usage["touches"] += int(fields[7])
        usage["switches"] += sum(map(int, re.findall(r"ctxt_switches:\s+(\d+)", status)))
    return found


def run(session: Session) -> Section:
    """Measure our broker, alone, in turns."""
    section = Section("profile", f"Where the processor time goes, {RATE:,} messages a second in and out")
    seconds = session.seconds * 3 if session.quick else max(30.0, session.seconds)
    (system,) = session.available([OURS_NAMED])
    for _ in range(session.repeats):
        with session.running(system, Setup(quick=session.quick)) as running:
            session.say(f"profile: {system.title}")
            late = Section("lateness", "")
            one = LatenessCase("timed", 2_000 if session.quick else RATE)
            pid = running.pids()[0]
            lateness.measure_on(session, late, system, running, one, max(3.0, seconds / 3))  # warms it
            before = read_threads(pid)
            samples = Samples(pid, session.folder)
            other = LatenessCase("timed", one.rate + 1)  # another topic
            sent = lateness.measure_on(session, late, system, running, other, seconds)
            shares = samples.end()
            used = {name: _minus(usage, before.get(name, {})) for name, usage in read_threads(pid).items()}
            messages = sent.accepted / seconds * (seconds + min(lateness.WARM_TIMED_SECONDS, seconds / 3))
        section.notes += [note for note in late.notes if note not in section.notes]
        _add(section, used, shares, messages)
        for figure in late.figures:
            if figure.metric in ("broker p50", "broker p99") and figure.case["a second"] == other.rate:
                section.add(
                    system.name, {"thread": "all"}, f"lateness {figure.metric}", "ms", "lower", figure.values[-1]
                )
    if not shutil.which("perf"):
        section.note("by code: perf is not installed (Debian: apt-get install linux-perf)")
    return section


def _minus(usage: Usage, before: Mapping[str, float]) -> Usage:
    return {key: value - before.get(key, 0.0) for key, value in usage.items()}


def _add(section: Section, used: Mapping[str, Usage], shares: Shares, messages: float) -> None:
    units = {"user": "µs", "system": "µs", "ready": "µs", "touches": "", "switches": ""}
    for name, usage in sorted(used.items(), key=lambda entry: -entry[1]["user"] - entry[1]["system"]):
        if usage["user"] + usage["system"] < 0.001 * messages:
            continue
        case: Case = {"thread": name}
        for key, unit in units.items():
            section.add("timewheel", case, f"{key} a message", unit, "lower", round(usage[key] / messages, 3))
        spent = (usage["user"] + usage["system"]) / messages
        for word, part in (("in", shares.by_code), ("for", shares.by_stage)):
            for (thread, group), share in sorted(part.items(), key=lambda entry: -entry[1]):
                if thread == name and share * spent >= 0.05:
                    section.add("timewheel", case, f"{word} {group}", "µs", "lower", round(share * spent, 2))
