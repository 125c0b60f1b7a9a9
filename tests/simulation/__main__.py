"""``python -m tests.simulation``: one seed again, or a long run over many.

python -m tests.simulation --seed 17                  the story of a seed, told line by line
python -m tests.simulation --seed 17 --crash 431      the same up to one crash point, and what comes after it
python -m tests.simulation --crash-points 100000 --jobs 2     a long run
python -m tests.simulation --minutes 30 --jobs 2              ... as long as this
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from collections.abc import Iterator

from tests.simulation.crashes import Tally, run_job, run_seed

SHARE = 0.1


def main() -> int:
    """Run; 1 if a promise was broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__.split("\n")[0])
    parser.add_argument("--seed", type=int, help="tell this seed's story")
    parser.add_argument("--crash", type=int, metavar="CALL", help="... with a crash at this call of the disk")
    parser.add_argument("--crash-points", type=int, metavar="N", help="run seeds until N crash points are done")
    parser.add_argument("--minutes", type=float, help="run seeds for so long")
    parser.add_argument("--from-seed", type=int, default=0, metavar="SEED", help="the first seed of a long run")
    parser.add_argument("--share", type=float, default=SHARE, help="share of the calls that are crash points")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--keep-going", action="store_true", help="do not end with the first finding")
    options = parser.parse_args()
    if options.seed is not None:
        tally = run_seed(options.seed, only=options.crash, say=print)
        for finding in tally.findings:
            print(finding)
        print("no promise was broken" if not tally.findings else "BROKEN")
        return 1 if tally.findings else 0
    if options.crash_points is None and options.minutes is None:
        parser.error("--seed, --crash-points or --minutes")
    return long_run(
        options.crash_points or sys.maxsize,
        options.from_seed,
        options.share,
        options.jobs,
        options.keep_going,
        60 * (options.minutes or sys.maxsize),
    )


def long_run(points: int, first_seed: int, share: float, jobs: int, keep_going: bool, seconds: float) -> int:
    """Seed after seed, until there are enough crash points or the time is over; tells every finding at once."""
    begin = told = time.monotonic()
    total = Tally()
    for tally in _tallies(first_seed, share, jobs):
        total.add(tally)
        for finding in tally.findings:
            print(finding, flush=True)
        now = time.monotonic()
        enough = total.points >= points or now - begin >= seconds or (total.findings and not keep_going)
        if enough or now - told > 30:
            told = now
            print(_line(total, now - begin), flush=True)
        if enough:
            break
    return 1 if total.findings else 0


def _line(total: Tally, seconds: float) -> str:
    return (
        f"{total.seeds} seeds, {total.points} crash points, {total.starts} starts, {total.messages} messages, "
        f"{total.calls} calls of the disk, {seconds / 3600:.2f} h ({seconds:.0f} s), "
        f"{len(total.findings)} broken promises"
    )


def _tallies(first_seed: int, share: float, jobs: int) -> Iterator[Tally]:
    work = ((seed, share) for seed in range(first_seed, first_seed + 10_000_000))
    if jobs <= 1:
        yield from map(run_job, work)
        return
    with multiprocessing.get_context("spawn").Pool(jobs, maxtasksperchild=200) as pool:
        # In portions, so that not all seeds of the world are handed out at once.
        while True:
            portion = [next(work) for _ in range(jobs * 8)]
            yield from pool.imap(run_job, portion)


if __name__ == "__main__":
    sys.exit(main())
