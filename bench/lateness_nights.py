"""Measures a nightly run of `timewheel lateness --state`, night after night, and prints a table.

A log has one segment for each day. Night n sees the segments of the first n days, and the state of the night before.
Its wall and processor time are those of the whole command, Python's start and the page included.

::

    python -m bench.lateness_nights FOLDER [--days 30] [--records 1000000] [--each 5]

At the end one run without a state reads all days. It must find the same figures, and shows the cost without a state.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from pathlib import Path

from bench.lateness_cost import Cost, cost_of
from bench.log_maker import make_log, spread_lateness

__all__ = ["main", "night"]

_RECORD_BYTES = 300
_DAY_S = 86_400


def night(store: Path, out: Path, state: Path | None) -> Cost:
    """Run the command once; RuntimeError if it fails."""
    command = [sys.executable, "-m", "broker.cli", "lateness", str(store), "--out", str(out), "--quiet"]
    command += ["--engine", "local", "--name", "log"]
    return cost_of(command if state is None else [*command, "--state", str(state)], out)


def _records_read(out: Path) -> int:
    return int(json.loads((out / "summary.json").read_text())["run"]["state"]["records_read"])


def main(arguments: list[str] | None = None) -> int:
    """Make the log, run the nights, print the table; status 1 if the nights found something else than one run does."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.lateness_nights", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("folder", type=Path, help="where the log is made, and kept for the next time")
    parser.add_argument("--days", type=int, default=30, help="days, a segment each (30)")
    parser.add_argument("--records", type=int, default=1_000_000, help="records of a day (1,000,000)")
    parser.add_argument("--each", type=int, default=5, help="print each so manieth night (5)")
    options = parser.parse_args(arguments)
    full = options.folder / f"days{options.days}x{options.records}"
    if not full.exists():
        segment_bytes = options.records * _RECORD_BYTES + 8
        late = spread_lateness(options.days * options.records)
        per_second = max(1, round(options.records / _DAY_S))
        make_log(full, late, record_bytes=_RECORD_BYTES, segment_bytes=segment_bytes, per_second=per_second)
    store, state, out = (options.folder / name for name in ("store", "state", "report"))
    for path in (store, state, out):
        shutil.rmtree(path, ignore_errors=True)
    (store / "commitlog").mkdir(parents=True)
    (store / "timewheel").mkdir()
    print("| night | records read | wall s | processor s | state, MB |\n|---|---|---|---|---|")
    found: tuple[int, ...] = ()
    for number, segment in enumerate(sorted((full / "commitlog").iterdir()), 1):
        (store / "commitlog" / segment.name).hardlink_to(segment)
        cost = night(store, out, state)
        found = cost.found
        if number in (1, 2, options.days) or number % options.each == 0:
            size = sum(path.stat().st_size for path in state.iterdir())
            read = _records_read(out)
            print(
                f"| {number} | {read:,} | {cost.wall_s:.1f} | {cost.processor_s:.1f} | {size / 1e6:.1f} |", flush=True
            )
    whole = night(store, out, None)
    total = options.days * options.records
    print(f"| without a state | {total:,} | {whole.wall_s:.1f} | {whole.processor_s:.1f} | - |")
    if whole.found != found:
        print(f"the nights found {found}, one run {whole.found}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
