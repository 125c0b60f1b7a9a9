"""``python -m tests.soak`` (`./run soak`): what is random and gets better with time, one part after the other.

`./run test` runs the fixed cases and a little of each of these; this runs them for as long as it is told to, from seeds
that nobody has run before. It prints the command of each part, so that a part can be run alone, with the same seed, and
ends with one line for each. Exit status 1 if a part found something; the folder with its stores and logs is kept then.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from tests.simulation.fresh import FRESH_SEED

__all__ = ["Part", "parts_of"]

ROOT = Path(__file__).parents[1]
KILLS_PER_MINUTE = 12
"""About as many as `fault_storm` comes to, with its checks."""
DAMAGED_PER_MINUTE = 400
"""Stores with a damaged file."""
ROTTEN_PER_MINUTE = 500
"""Stories of the simulation with a bit that flips."""
TIMES_A_MINUTE = 0.05
"""How many times the examples that their files name the models draw; the suite draws a quarter of them."""
MODELS = (
    "tests/broker/test_appended_is_derived.py",
    "tests/broker/test_derived_after_a_kill.py",
    "tests/broker/test_late_tables.py",
    "tests/broker/test_long_poll.py",
    "tests/broker/test_timed_twin.py",
    "tests/broker/test_transaction_model.py",
    "tests/broker/test_uniform_batches.py",
    "tests/broker_plugin/test_delay_model.py",
    "tests/broker_plugin/test_delay_world.py",
    "tests/store/test_commit_log.py",
    "tests/store/test_in_flight_model.py",
    "tests/store/test_level_model.py",
    "tests/store/test_spill_model.py",
    "tests/store/test_store_machine.py",
    "tests/timewheel/test_wheel_model.py",
)
STORIES = (
    "tests/service/test_attacks.py",
    "tests/service/test_batch_world.py",
    "tests/service/test_blind_backfill.py",
    "tests/service/test_bounded_takeover.py",
    "tests/service/test_clerk_world.py",
    "tests/service/test_rotten_world.py",
    "tests/service/test_simulation.py",
)
"""Worlds of the delay service. Their planted bugs have seeds of their own, and are the suite's business."""
PROXIES = ("tests/interop/test_proxy_languages.py", "tests/interop/test_proxy_clients.py")
"""Skipped where Java, Node or Go is missing."""
STOCK = ("tests/interop/test_stock_clients.py", "tests/interop/test_listen_clients.py")
"""The same."""
INPUTS_PER_MINUTE = 1_000_000
"""More than any machine gets through: `--minutes` ends the run."""


@dataclass
class Part:
    """One part of a soak: a command, and what it needs in its environment."""

    name: str
    command: list[str]
    environment: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        named = [f"{key}={value}" for key, value in self.environment.items()]
        return shlex.join([*named, "python", *self.command])


def parts_of(minutes: float, jobs: int, seed: int, folder: Path) -> list[Part]:
    """The parts of a soak of about so many minutes; the last ones take as long as they take.

    Args:
        minutes: Shared out between the random parts.
        jobs: Processes for those that compute.
        seed: Where fresh seeds begin.
        folder: For stores, ledgers and logs.
    """
    storm_seed = str(seed % 1_000_000)
    kills = str(max(1, round(minutes * 0.15 * KILLS_PER_MINUTE)))
    damaged = str(max(1, round(minutes * 0.03 * DAMAGED_PER_MINUTE)))
    rotten = str(max(1, round(minutes * 0.02 * ROTTEN_PER_MINUTE)))
    inputs = str(max(1, round(minutes * INPUTS_PER_MINUTE)))

    stock = " --stock 30" if all(map(shutil.which, ("java", "mvn", "go"))) else ""
    times = f"{max(1, minutes * TIMES_A_MINUTE):g}"
    drawn = {"TIMEWHEEL_EXAMPLES": times, "TIMEWHEEL_FIRST_SEED": str(seed)}

    def share(of: float) -> str:
        return f"{minutes * of:g}"

    def part(name: str, command: str, *more: str, **environment: str) -> Part:
        return Part(name, [*command.split(), *more], environment)

    garbage = f"--minutes {share(0.25)} --inputs {inputs} --seed {storm_seed} --jobs {jobs}"
    return [
        part("simulation", f"-m tests.simulation --minutes {share(0.35)} --from-seed {seed} --jobs {jobs}"),
        part("garbage", f"-m tests.fuzz {garbage}"),
        part("damage", f"-m tests.support.damage_world --from-seed {storm_seed} --seeds {damaged}"),
        part(
            "bit rot", "-m pytest -q tests/simulation/test_simulation.py -k bit_that_flips", TIMEWHEEL_ROT_SEEDS=rotten
        ),
        part(
            "kills", f"-m tests.support.fault_storm --vary --kills {kills} --seed {storm_seed}", str(folder / "storm")
        ),
        part("load", f"-m tests.support.fault_soak --minutes {share(0.2)}", str(folder / "soak")),
        part(
            "service",
            f"-m tests.service.process_storm --ours --rate 300 --minutes {share(0.1)} --seed {storm_seed}{stock}",
            str(folder / "service"),
        ),
        part("models", f"-m pytest -q -n {jobs}", *MODELS, **drawn),
        part("stories", f"-m pytest -q -n {jobs} -k", "not planted", *STORIES, **drawn),
        part("RocketMQ 5 clients", "-m pytest -q", *PROXIES, TIMEWHEEL_PROXY_MESSAGES="1000"),
        part("stock clients", "-m pytest -q", *STOCK, TIMEWHEEL_STOCK_MESSAGES="1000"),
        part("every call", "-m pytest -q tests/faults/test_every_call.py", TIMEWHEEL_EVERY_CALL="1"),
        part("races", "-m pytest -q tests/faults/test_pending_races.py", TIMEWHEEL_RACES="100000"),
        part("stopped for long", "-m pytest -q tests/faults/test_time_stands_still.py", TIMEWHEEL_STOPPED_SECONDS="30"),
    ]


def main(arguments: list[str] | None = None) -> int:
    """Run all parts, or some; 1 if one found something."""
    parser = argparse.ArgumentParser(prog="./run soak", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--minutes", type=float, default=60, help="for all random parts together (default 60)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes for what computes")
    parser.add_argument("--only", action="append", metavar="PART", help="only this part (may be repeated)")
    parser.add_argument("--list", action="store_true", help="print the commands and end")
    options = parser.parse_args(arguments)
    if options.minutes <= 0 or options.jobs < 1:
        parser.error("--minutes must be above 0, --jobs at least 1")
    folder = Path(tempfile.mkdtemp(prefix="timewheel-soak-"))
    parts = parts_of(options.minutes, options.jobs, FRESH_SEED, folder)
    names = [part.name for part in parts]
    unknown = sorted(set(options.only or ()) - set(names))
    if unknown:
        folder.rmdir()
        parser.error(f"no part {unknown[0]!r}; there are {', '.join(map(repr, names))}")
    chosen = [part for part in parts if not options.only or part.name in options.only]
    if options.list:
        folder.rmdir()
        print("\n".join(map(str, chosen)))
        return 0
    told, wrong = [], False
    for part in chosen:
        print(f"== {part.name}: {part}", flush=True)
        begin = time.monotonic()
        done = subprocess.run(
            [sys.executable, *part.command], cwd=ROOT, env={**os.environ, **part.environment}, check=False
        )
        wrong |= done.returncode != 0
        verdict = "nothing found" if not done.returncode else f"FOUND something (exit status {done.returncode})"
        told.append(f"{part.name:18} {(time.monotonic() - begin) / 60:6.1f} min  {verdict}")
    print("\n".join(["==", *told]))
    if wrong:
        print(f"stores and logs are in {folder}")
    else:
        shutil.rmtree(folder)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
