"""Measures `timewheel lateness` and the plain scan of the same files: a table for 10^5, 10^6 and 10^7 records.

Each log is made once (300 bytes a record), read once so that it lies in memory, and then read by either program in a
process of its own. Wall time is from start to end of that process: Python, Java, Spark, the counting, the report.
Processor time is user and system time of all processes of the run. Spark's workers outlive the Java process that is
their parent; here they become children of this process (prctl's child subreaper), so that none of their time is lost.

::

    python -m bench.lateness_cost FOLDER [--records 100000,1000000,10000000] [--rounds 3] [--cores 2]

Of several rounds the smallest figures are printed, because other work on the machine can only add to them.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.log_maker import make_log, spread_lateness

__all__ = ["Cost", "cost_of", "main", "table"]

_SUBREAPER = 36
_COUNTED = ("delivered", "early", "repeated")


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds that one run took; ``found``: its figures, which both programs have to agree on."""

    wall_s: float
    processor_s: float
    found: tuple[int, ...]


def cost_of(command: Sequence[str], result: Path | None = None) -> Cost:
    """Run a command to its end and count the time of all its processes; RuntimeError if it fails.

    ``result``: the folder where it leaves its summary; None: it prints its figures as JSON.
    """
    ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began = time.perf_counter()
    done = subprocess.run(command, stdout=subprocess.PIPE, check=False)
    wall_s = time.perf_counter() - began
    with contextlib.suppress(ChildProcessError):
        while True:
            os.wait()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: ended with status {done.returncode}")
    value = json.loads(done.stdout) if result is None else json.loads((result / "summary.json").read_text())["total"]
    processor_s = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    return Cost(wall_s, processor_s, tuple(value[name] for name in _COUNTED))


def _least(costs: Sequence[Cost]) -> Cost:
    return Cost(min(c.wall_s for c in costs), min(c.processor_s for c in costs), costs[0].found)


def _warm(folder: Path) -> None:
    for path in sorted((folder / "commitlog").iterdir()):
        with open(path, "rb") as file:
            while file.read(8 << 20):
                pass


def table(rows: Sequence[tuple[int, Cost, Cost]]) -> str:
    """The figures as a table of Markdown: (records, Spark, plain) a row."""
    lines = [
        "| records | Spark: wall s | Spark: processor s | plain: wall s | plain: processor s |",
        "|---|---|---|---|---|",
    ]
    lines += [
        f"| {records:,} | {spark.wall_s:.1f} | {spark.processor_s:.1f} | {plain.wall_s:.1f} | {plain.processor_s:.1f} |"
        for records, spark, plain in rows
    ]
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    """Make the logs, measure, print the table; status 1 if the two programs disagree on what is in a log."""
    parser = argparse.ArgumentParser(prog="python -m bench.lateness_cost", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, help="where the logs are made, and kept for the next time (3.3 GB)")
    parser.add_argument("--records", default="100000,1000000,10000000", help="how many records, a row each")
    parser.add_argument("--rounds", type=int, default=1, help="runs of each program; the least counts (1)")
    parser.add_argument("--cores", type=int, default=2, help="cores that Spark may use (2)")
    options = parser.parse_args(arguments)
    rows = []
    for records in (int(number) for number in options.records.split(",")):
        log = options.folder / f"log{records}"
        if not log.exists():
            make_log(log, spread_lateness(records))
        _warm(log)
        out = options.folder / "report"
        spark = [sys.executable, "-m", "broker.cli", "lateness", str(log), "--out", str(out), "--quiet"]
        spark += ["--master", f"local[{options.cores}]"]
        plain = [sys.executable, "-m", "bench.plain_lateness", str(log)]
        ours = _least([cost_of(spark, out) for _ in range(options.rounds)])
        yardstick = _least([cost_of(plain) for _ in range(options.rounds)])
        if ours.found != yardstick.found:
            print(f"{log}: Spark found {ours.found} of {_COUNTED}, the plain scan {yardstick.found}", file=sys.stderr)
            return 1
        rows.append((records, ours, yardstick))
        print(f"{records:,} records done", file=sys.stderr, flush=True)
    print(table(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
