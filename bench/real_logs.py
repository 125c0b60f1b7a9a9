"""Makes stores with our broker and with Apache's under the same load, for ``timewheel lateness`` to read.

One system after the other takes timed messages with random due milliseconds at a steady rate, a burst that is due at
one second, and messages of level 1; then it has time to deliver, and is stopped as its users stop it::

    python -m bench.real_logs DIR --rate 500 --seconds 60 --burst 20000
    timewheel lateness DIR/timewheel/store DIR/apache/broker/store --name timewheel --name apache-5.5.0 --out DIR/report
"""

from __future__ import annotations

import argparse
import dataclasses
import time
from pathlib import Path

from bench.generator.load import Load, LoadResult
from bench.peers.catalogue import OURS, PEERS
from bench.peers.system import Setup, System
from bench.running.session import answer, end, spawn

__all__ = ["leave_store", "main"]

QUEUES = 8
SETTLE_SECONDS = 12


def _send(load: Load) -> LoadResult:
    child = spawn("bench.generator", dataclasses.asdict(load))
    try:
        return LoadResult.of(answer(child))
    finally:
        end(child)


def leave_store(system: System, folder: Path, rate: float, seconds: float, burst: int) -> Path:
    """Run one system below ``folder``, send to it, stop it; return its store."""
    system.need()
    folder.mkdir(parents=True)
    running = system.make(folder, Setup(quick=True))
    try:
        running.start()
        for topic in ("Orders", "Burst", "Levels"):
            running.prepare(topic, QUEUES)
        steady = Load(port=running.port, topic="Orders", in_flight=1 << 30, rate=rate, seconds=seconds,
                      due_from_ms=1_000, due_to_ms=10_000, queues=QUEUES)  # fmt: skip
        hot_ms = (int(time.time() + seconds / 3) + 5) * 1000
        child = spawn("bench.generator", dataclasses.asdict(steady))
        try:
            if burst:
                _send(Load(port=running.port, topic="Burst", in_flight=16, count=burst, seconds=seconds,
                           due_at_ms=hot_ms, due_from_ms=0, due_to_ms=1, queues=QUEUES))  # fmt: skip
            _send(Load(port=running.port, topic="Levels", kind="level", level=1, in_flight=1 << 30, rate=rate / 5,
                       seconds=seconds / 2, due_from_ms=1_000, due_to_ms=1_001, queues=QUEUES))  # fmt: skip
            answer(child)
        finally:
            end(child)
        time.sleep(SETTLE_SECONDS)
        running.stop()
    finally:
        running.kill()
        running.close()
    return running.store


def main() -> None:
    """Read the arguments, run both systems, print where their stores are."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rate", type=float, default=500, help="timed messages a second (500)")
    parser.add_argument("--seconds", type=float, default=60, help="how long (60)")
    parser.add_argument("--burst", type=int, default=20_000, help="messages that are due at one second (20000)")
    asked = parser.parse_args()
    for system in (OURS, PEERS["apache"]):
        print(leave_store(system, asked.folder / system.name, asked.rate, asked.seconds, asked.burst), flush=True)


if __name__ == "__main__":
    main()
