"""Tests side by side: how a run is dealt out to worker processes (pytest-xdist, `./run test`).

Most of the suite's time is waiting: for a JVM to start, a message to come due, a process to end. So there are more
workers than processors. A worker takes one *scope* after another, and the tests of a scope run in order in one process:

- a file, as a rule: its fixtures (a broker, a peer, a JVM) are made once;
- all tests that share a Spark session (`SPARK`), because it costs more than most of them;
- all tests of `tests/interop/on_both`, which share a broker of ours, one of Apache's, and clients;
- all tests of `tests/interop/on_pair`, which share a broker of ours and one of Apache's;
- all of `tests/house`, which read the same sources;
- a single test, where a file has many long ones that share nothing (`ONE_BY_ONE`).

Long scopes begin first (`FIRST`), those that wait and those that compute by turns, and the many short ones fill what is
left. What measures time or memory is marked ``alone``: `./run test` runs it afterwards, when nothing else runs. What
`LONG` names is marked ``long``: `./run test --quick` leaves it out.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from itertools import zip_longest
from typing import Any

import pytest

from bench.peers.ports import FIRST as FIRST_PORT
from bench.peers.ports import LAST as LAST_PORT

__all__ = ["LONG", "in_order", "is_long", "ports_of", "scheduler", "scope_of", "worker_count"]

MEMORY_PER_WORKER = 2 << 30
"""A broker of Apache's has a heap of 1 GiB, and clients have their JVMs beside it."""
WORKERS_MAX = 8
ONE_BY_ONE = (
    "tests/bench/test_lateness_state.py::test_a_failure_at_any_file_operation",
    "tests/simulation/test_planted_bugs.py",
    "tests/simulation/test_simulation.py",
)
SPARK = (
    "tests/bench/test_lateness_command.py",
    "tests/bench/test_lateness_ended.py",
    "tests/bench/test_lateness_follow.py",
    "tests/bench/test_lateness_hdfs.py",
    "tests/bench/test_lateness_minutes.py",
    "tests/bench/test_lateness_process.py",
    "tests/bench/test_lateness_spark.py",
    "tests/bench/test_lateness_spill.py",
    "tests/bench/test_lateness_state.py::test_spark_",
)
"""Beginnings of the names of tests that share a Spark session, and one file that must come before the session is made.
The other tests marked ``spark`` need its Python packages, or start a Spark of their own in a process of its own."""
SHARED = {
    "spark": SPARK,
    "on-both": ("tests/interop/on_both/",),
    "on-pair": ("tests/interop/on_pair/",),
    "house": ("tests/house/",),
}
FIRST = (
    "tests/service/test_process_service.py",
    "tests/interop/test_listen_clients.py",
    "spark",
    "on-both",
    "on-pair",
    "tests/interop/test_proxy_languages.py",
    "tests/interop/test_stock_clients.py",
    "tests/bench/test_lateness_s3.py",
    "tests/interop/test_proxy_clients.py",
    "tests/interop/test_shards.py",
    "tests/interop/test_apache_roundtrip.py",
    "tests/interop/test_client_features.py",
    "tests/interop/test_transactions.py",
    "tests/packaging/test_wheel_process.py",
    "tests/bench/test_report_chromium.py",
    "tests/bench/test_lateness_state.py",
)
"""Scopes that took longest (80 to 300 s of a run of 25 minutes): none of them may be the last. The first one waits most
of its time: begun late, it was all that ran for the last minute and a half."""
WAITING = ("tests/interop/", "tests/bench/", "tests/faults/", "tests/service/test_process_", "tests/shards/")
COMPUTING = ("tests/bench/test_lateness_state.py::", "tests/simulation/")
LONG = (
    "tests/bench/test_report_bench.py",
    "tests/bench/test_report_page.py",
    "tests/broker/test_loop_is_free.py",
    "tests/broker/test_loop_watch.py::test_a_step_that_holds_the_loop_is_found_however",
    "tests/broker/test_uniform_batches.py::test_columns_and_messages",
    "tests/broker_plugin/test_delay_model.py",
    "tests/broker_plugin/test_delay_world.py",
    "tests/faults/test_damage.py",
    "tests/faults/test_every_call.py",
    "tests/faults/test_kills.py",
    "tests/faults/test_load.py",
    "tests/faults/test_pop_kills.py",
    "tests/faults/test_soak.py::test_a_mixed_load",
    "tests/faults/test_stop_and_restart.py",
    "tests/faults/test_time_stands_still.py",
    "tests/faults/test_transaction_kills.py",
    "tests/fuzz/test_fuzz.py::test_a_planted_bug",
    "tests/fuzz/test_fuzz.py::test_an_input_that_holds_the_loop",
    "tests/fuzz/test_fuzz.py::test_memory_beyond",
    "tests/packaging/",
    "tests/service/test_commands.py::test_verdicts_outlive",
    "tests/service/test_planted_bugs.py",
    "tests/service/test_process_listen.py::test_bad_input_and",
    "tests/service/test_process_storm.py",
    "tests/service/test_rotten_world.py::test_nothing_is_lost",
    "tests/shards/test_shard_stories_process.py",
    "tests/simulation/test_planted_bugs.py",
    "tests/simulation/test_simulation.py::test_crash_points_of_fresh_seeds[1]",
    "tests/simulation/test_simulation.py::test_a_bit_that_flips",
    "tests/simulation/test_simulation.py::test_every_kind_of_thing_happens",
    "tests/store/test_spill_model.py::test_planted_bugs",
    "tests/store/test_spill_model.py::test_power_cut",
)
"""Beginnings of the names of tests that take more than half of the time of all that need only Python: storms of kills,
planted bugs, most seeds of the simulation, wheels, pages with pictures. What is random is left in the rest with some of
its seeds, and fewer of its examples (`tests.support.examples`)."""


def scope_of(nodeid: str) -> str:
    """Name the scope of a test: tests of one scope run in one process, in order."""
    if nodeid.startswith(ONE_BY_ONE):
        return nodeid
    shared = (scope for scope, begins in SHARED.items() if nodeid.startswith(begins))
    return next(shared, nodeid.partition("::")[0])


def is_long(nodeid: str) -> bool:
    """Tell whether `./run test --quick` leaves a test out."""
    return nodeid.startswith(LONG)


def in_order(items: Iterable[pytest.Item]) -> list[pytest.Item]:
    """Order tests as they are dealt out: what waits, the longest first, and what computes by turns; then the rest."""
    scopes: dict[str, list[pytest.Item]] = {}
    for item in items:
        scopes.setdefault(scope_of(item.nodeid), []).append(item)

    def of(*folders: str) -> Iterator[list[pytest.Item]]:
        return (scopes.pop(scope) for scope in list(scopes) if scope.startswith(folders))

    first = [scopes.pop(scope) for scope in FIRST if scope in scopes]
    computing = list(of(*COMPUTING))
    by_turns = [scope for pair in zip_longest((*first, *of(*WAITING)), computing) for scope in pair if scope]
    return [item for scope in (*by_turns, *scopes.values()) for item in scope]


def ports_of(worker: int, count: int) -> str:
    """Name the ports that a worker picks from (``TIMEWHEEL_PORTS``): each has a part of its own.

    >>> ports_of(1, 5)
    '16000-19999'
    """
    size = (LAST_PORT + 1 - FIRST_PORT) // count
    first = FIRST_PORT + worker % count * size  # a worker that replaces a crashed one has a higher number
    return f"{first}-{first + size - 1}"


def worker_count() -> int:
    """Two workers for each processor and one more, as far as the memory goes."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return max(1, min(2 * len(os.sched_getaffinity(0)) + 1, memory // MEMORY_PER_WORKER, WORKERS_MAX))


def scheduler(config: pytest.Config, log: Any) -> Any:
    """Make the scheduler that deals out whole scopes."""
    from xdist.scheduler import LoadScopeScheduling

    class Scopes(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            return scope_of(nodeid)

    config.option.loadscopereorder = False
    return Scopes(config, log)
