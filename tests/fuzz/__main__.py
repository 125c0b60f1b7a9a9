"""``python -m tests.fuzz``: millions of inputs for every decoder and reader, or one input again.

python -m tests.fuzz --inputs 10000000 --jobs 2 --seed 1      a long run, shared out by the targets' weights
python -m tests.fuzz --inputs 100000 --target frames          one target
python -m tests.fuzz --target frames --seed 1 --number 4711   one input again, with its traceback
"""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import sys
import time
import traceback
from collections.abc import Iterator

from tests.fuzz.engine import BLOCK, Tally, input_of
from tests.fuzz.targets import TARGETS, shares
from tests.fuzz.work import Job, begin_process, run_job


def main() -> int:
    """Run; 1 if something was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--inputs", type=int, default=1_000_000, metavar="N", help="inputs in all")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--minutes", type=float, default=1e9, help="end after so long, with the figures of what ran")
    parser.add_argument("--target", action="append", choices=sorted(TARGETS), help="only this one (may be repeated)")
    parser.add_argument("--number", type=int, metavar="K", help="run input K of the target again")
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    if options.number is not None:
        if not options.target or len(options.target) != 1:
            parser.error("--number needs one --target")
        return again(options.target[0], options.seed, options.number)
    return long_run(options.target or list(TARGETS), options.inputs, options.seed, options.jobs, options.minutes)


def again(name: str, seed: int, number: int) -> int:
    """Run one input and show what comes of it."""
    target = TARGETS[name]
    data = input_of(target, seed, number)
    print(f"{len(data)} bytes: {data!r}")
    try:
        print("answer:", target.run(data))
    except target.errors as error:
        print(f"refused as documented: {type(error).__name__}: {error}")
    except Exception:
        traceback.print_exc()
        return 1
    return 0


def jobs_of(names: list[str], inputs: int, seed: int) -> list[Job]:
    """The blocks of a run: (target, seed, block, inputs), those of one target spread over the whole run."""
    jobs: list[tuple[float, Job]] = []
    for name, count in shares(names, inputs).items():
        blocks = -(-count // BLOCK)
        jobs += [
            ((block + 0.5) / blocks, (name, seed, block, min(BLOCK, count - block * BLOCK))) for block in range(blocks)
        ]
    return [job for _, job in sorted(jobs)]


def _tallies(jobs: list[Job], processes: int) -> Iterator[Tally]:
    with multiprocessing.get_context("spawn").Pool(processes, begin_process, maxtasksperchild=50) as pool:
        yield from pool.imap_unordered(run_job, jobs)


def long_run(names: list[str], inputs: int, seed: int, processes: int, minutes: float) -> int:
    """Run all blocks; says how far it is, every finding at once, and figures in the end.

    Those of one target are spread over the run, so it may end at any time.
    """
    begin = told = time.monotonic()
    totals = {name: Tally(name) for name in names}
    for tally in _tallies(jobs_of(names, inputs, seed), processes):
        total = totals[tally.target]
        before = len(total.findings)
        total.add(tally)
        for finding in total.findings[before:]:
            print(finding, flush=True)
        now = time.monotonic()
        if now - begin > 60 * minutes:
            break
        if now - told > 30:
            told = now
            print(f"{sum(t.inputs for t in totals.values()):>11,} inputs, {now - begin:.0f} s", flush=True)
    print(table(list(totals.values())))
    found = sum(len(total.findings) for total in totals.values())
    done = sum(total.inputs for total in totals.values())
    print(f"{done:,} inputs, seed {seed}, {processes} processes, {time.monotonic() - begin:.0f} s, {found} findings")
    return 1 if found else 0


def table(totals: list[Tally]) -> str:
    """The figures of each target."""
    lines = [f"{'target':<18}{'inputs':>11}{'/s':>8}{'lines':>10}{'kept':>7}{'longest':>10}  refused"]
    for total in totals:
        refused = ", ".join(f"{name} {count:,}" for name, count in total.rejected.most_common())
        rate = total.inputs / total.seconds if total.seconds else 0
        lines.append(
            f"{total.target:<18}{total.inputs:>11,}{rate:>8,.0f}{len(total.lines):>5}/{len(total.known):<5}"
            f"{total.kept:>6}{1000 * total.longest_s:>7.0f} ms  {refused}"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
