"""How tests are dealt out to worker processes: whole scopes, each test once, the long ones first."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from bench.peers.ports import FIRST, LAST, free_ports_around
from tests.support import workers

ROOT = Path(__file__).resolve().parents[2]


@dataclass
class Item:
    """What `in_order` knows of a test."""

    nodeid: str


NODEIDS = [
    "tests/store/test_files.py::test_a",
    "tests/bench/test_lateness_s3.py::test_b",
    "tests/simulation/test_planted_bugs.py::test_c[x]",
    "tests/interop/test_orderly.py::test_d[ours]",
    "tests/simulation/test_planted_bugs.py::test_c[y]",
    "tests/interop/test_orderly.py::test_d[apache]",
    "tests/bench/test_lateness_spark.py::test_e",
    "tests/bench/test_lateness_cluster_process.py::test_f",
    "tests/bench/test_lateness_state.py::test_spark_g",
    "tests/bench/test_lateness_state.py::test_a_failure_at_any_file_operation_h[1]",
    "tests/house/test_run.py::test_i",
    "tests/house/test_waits.py::test_j",
]


def test_order() -> None:
    items: list[Any] = [Item(nodeid) for nodeid in NODEIDS]
    ordered = [item.nodeid for item in workers.in_order(items)]
    assert ordered == [NODEIDS[at] for at in (6, 8, 2, 1, 4, 3, 5, 9, 7, 0, 10, 11)]


def test_scopes() -> None:
    scopes = [workers.scope_of(nodeid) for nodeid in NODEIDS]
    assert scopes[6] == scopes[8] == "spark"
    assert scopes[3] == scopes[5] == "tests/interop/test_orderly.py"
    assert scopes[10] == scopes[11] == "house"
    assert scopes[9] == NODEIDS[9]
    assert len(set(scopes)) == 9


def test_tests_that_share_a_spark_session_are_in_its_scope() -> None:
    found = []
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for name, values in re.findall(r"^def (test_\w+)\(([^)]*)\)", path.read_text(), re.MULTILINE):
            if "spark: Any" in values:
                found.append(f"{path.relative_to(ROOT).as_posix()}::{name}")
    assert len(found) > 10
    assert {workers.scope_of(nodeid) for nodeid in found} == {"spark"}


@pytest.mark.parametrize("count", [1, 3, 5, 8])
def test_no_two_workers_pick_from_the_same_ports(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = [range(*map(int, workers.ports_of(worker, count).split("-"))) for worker in range(count)]
    assert all(one.stop < other.start for one, other in pairwise(parts))
    assert (parts[0].start, parts[-1].stop) >= (FIRST, LAST - count)
    for worker, part in enumerate(parts):
        monkeypatch.setenv("TIMEWHEEL_PORTS", workers.ports_of(worker, count))
        for _ in range(20):
            port = free_ports_around(-2, 1, 10)
            assert part.start <= port - 2 < port + 10 <= part.stop


@pytest.mark.parametrize("scope", workers.FIRST)
def test_what_begins_first_is_there(scope: str) -> None:
    assert scope in workers.SHARED or (ROOT / scope).exists()


@pytest.mark.parametrize("begin", workers.LONG)
def test_what_is_named_as_long_is_there(begin: str) -> None:
    path, _, name = begin.partition("::")
    assert (ROOT / path).exists()
    assert not name or f"\ndef {name.partition('[')[0]}" in (ROOT / path).read_text()


def test_what_is_named_as_long_is_long() -> None:
    assert workers.is_long("tests/simulation/test_planted_bugs.py::test_c[x]")
    assert workers.is_long("tests/packaging/test_wheel_process.py::test_a")
    assert not workers.is_long("tests/simulation/test_simulation.py::test_crash_points[0]")
    assert not workers.is_long(NODEIDS[0])


@pytest.mark.parametrize(("gib", "cores", "count"), [(24, 2, 5), (4, 2, 2), (1, 2, 1), (64, 16, 8)])
def test_as_many_as_processors_and_memory_allow(
    monkeypatch: pytest.MonkeyPatch, gib: int, cores: int, count: int
) -> None:
    sizes = {"SC_PHYS_PAGES": gib << 18, "SC_PAGE_SIZE": 4096}
    monkeypatch.setattr(workers.os, "sysconf", sizes.__getitem__)
    monkeypatch.setattr(workers.os, "sched_getaffinity", lambda _: set(range(cores)))
    assert workers.worker_count() == count
