"""Made-up results of the benchmark command: every workload, several systems, repeats, curves."""

from __future__ import annotations

import random
from typing import Any

from bench.figures.results import Case, Curve, Section, SystemNote, document

__all__ = ["SYSTEMS", "results_of"]

SYSTEMS = ("timewheel", "apache", "apache-100ms", "nats", "redis", "beanstalkd", "naive")


def results_of(systems: tuple[str, ...] = SYSTEMS, repeats: int = 3, seed: int = 1) -> dict[str, Any]:
    """Return a document with sends, lateness (CCDF), pending and a hot second."""
    rng = random.Random(seed)
    send = Section("send", "Sends accepted a second")
    late = Section("lateness", "Lateness at a steady rate")
    pending = Section("pending", "With many pending: restart, stop")
    hot = Section("hot-second", "A hot second", notes=["probes: 200/s <around> it"])
    for _ in range(repeats):
        for number, system in enumerate(systems):
            for kind in ("normal", "timed", "level"):
                for shape in ("1x1", "16x1", "16x16", "1x100"):
                    case: Case = {"kind": kind, "shape": shape, "flush": "ASYNC_FLUSH", "body_bytes": 1024}
                    value = round(rng.uniform(0.9, 1.1) * 200_000 / (number + 1) / (1 + len(shape)), 1)
                    send.add(system, case, "accepted", "1/s", "higher", value)
                    send.add(system, case, "reply p50", "µs", "", 80.0)
            for rate in ("2,000/s", "20,000/s"):
                for where in ("broker", "consumer"):
                    x = sorted(rng.expovariate(1) * 4.0**number for _ in range(300))
                    y = [1 - (k + 1) / 300 for k in range(300)]
                    late.curves.append(Curve(system, {"rate": rate, "where": where}, "ccdf", "ms", x, y))
                late.add(system, {"rate": rate}, "broker p99", "ms", "lower", 2.0 * 4**number)
                late.add(system, {"rate": rate}, "early", "", "lower", 0)
            for count in (10_000, 100_000, 1_000_000):
                value = rng.uniform(0.4, 0.5) + number * count / 4e5
                held: Case = {"pending": f"{count:,}", "body_bytes": 1024}
                pending.add(system, held, "start to first accepted", "s", "lower", round(value, 3))
            for count in (100_000,):
                burst: Case = {"due at once": f"{count:,}", "of": "hot"}
                hot.add(system, burst, "last out at broker after S", "s", "lower", round(0.4 * 3**number, 3))
    notes = [SystemNote(name, name.title(), "1.0", {"flushDiskType": "ASYNC_FLUSH"}) for name in systems]
    notes.append(SystemNote("artemis", "Artemis", left_out="its archive could not be had"))
    machine = {"cpu": "a processor", "cores": 2, "limits": {"socket_round_trip_us": 7.2}}
    return document("timewheel bench all", False, machine, notes, [send, late, pending, hot])
