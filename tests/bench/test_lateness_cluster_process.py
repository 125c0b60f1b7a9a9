"""A real standalone cluster: executors without this project, one of them killed in mid-run, the same tables.

With a state each executor gets the hashes of its own tasks alone, and none of them sees the state's folder.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pyarrow.parquet as pq
import pytest

from bench.log_maker import make_log, spread_lateness
from remoting.messages.message import Message
from tests.support.lateness_world import START_MS, Log
from tests.support.spark_cluster import Cluster
from tests.support.wait import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.process, pytest.mark.filterwarnings("ignore")]

CODE = "from bench.lateness import command; command._draw = lambda *_: None; command.lateness_command()"
"""The command without its pictures, which take longer than the rest."""
RECORDS = 120_000
AS_OF = "2026-11-24T00:00Z"
SHARE_BYTES = 16 << 10
SMALL = (
    "from bench.lateness.counting import counted; from bench.lateness.logs import packing; "
    f"counted._SHARE_BYTES = {SHARE_BYTES}; packing._PART_BYTES = 1 << 18; {CODE}"
)
"""The same with many shares and parts of a small log."""


def tables(out: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (out / "histograms").iterdir()}


@contextmanager
def started(cluster: Cluster, words: list[str], said: IO[str]) -> Iterator[subprocess.Popen[bytes]]:
    """The command on the cluster, which begins when both executors are there."""
    there = ["--master", cluster.master, "--executor-memory", "512m", "--executor-cores", "1"]
    settings = {"driver.host": "127.0.0.1", "driver.bindAddress": "127.0.0.1", "cores.max": "2"}
    for name, value in (settings | {"scheduler.minRegisteredResourcesRatio": "1"}).items():
        there += ["--spark", f"spark.{name}={value}"]
    environment = os.environ | {"PYSPARK_PYTHON": str(cluster.python)}
    process = subprocess.Popen([*words, *there], stdout=said, stderr=said, env=environment)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """For all tests of this file: what an earlier one has left with the executors counts for none."""
    with Cluster(tmp_path_factory.mktemp("cluster")) as made:
        yield made


def test_executors_without_our_packages_and_one_that_is_killed(cluster: Cluster, tmp_path: Path) -> None:
    make_log(tmp_path / "store", spread_lateness(RECORDS), segment_bytes=8 << 20)
    words = [sys.executable, "-c", CODE, str(tmp_path / "store"), "--as-of", AS_OF, "--split-mb", "1", "--out"]
    subprocess.run([*words, str(tmp_path / "here"), "--engine", "local", "--quiet"], check=True, timeout=300)
    assert cluster.knows("pyarrow")
    assert not cluster.knows("bench")
    assert not cluster.knows("remoting")
    before = set(cluster.shuffle_files())
    with open(tmp_path / "said", "w+") as said, started(cluster, [*words, str(tmp_path / "there")], said) as process:
        began = lambda: len(set(cluster.shuffle_files()) - before) > 4 or process.poll() is not None  # noqa: E731
        wait_until(began, 600, "rows on their way from task to task")
        cluster.kill_an_executor()
        assert process.wait(600) == 0, (tmp_path / "said").read_text()
    assert cluster.said("exitStatus 137"), "an executor was killed"
    assert tables(tmp_path / "there") == tables(tmp_path / "here")
    text = (tmp_path / "said").read_text()
    assert "Traceback" not in text, text
    assert f"{RECORDS:,} sent; {RECORDS:,} delivered" in text


def timers(store: Path, messages: int) -> Path:
    """A log of Apache's timer: each message is accepted, and delivered a second later. Some wait, some come twice."""
    log = Log(store, 1 << 20)
    for number in range(messages):
        due_ms = START_MS + number + 1_000
        text = f"UNIQ_KEY\x01{number:032X}\x02TIMER_DELIVER_MS\x01{due_ms}\x02TIMER_OUT_MS\x01{due_ms}\x02"
        text += "REAL_TOPIC\x01Orders\x02REAL_QID\x010\x02"
        log.append(Message("rmq_sys_wheel_timer", 0, born_ms=START_MS, properties=text), START_MS + number)
        if number % 100:
            delivery = Message("Orders", 0, born_ms=START_MS, properties=text)
            log.append(delivery, due_ms + number % 7)
            if number % 500 == 1:
                again = delivery, START_MS + messages + 2_000
        if number == messages - 1 or number % 5_000 == 4_999:
            log.append(*again)
    log.close()
    return log.folder


def test_an_executor_gets_the_hashes_of_its_own_tasks_alone(cluster: Cluster, tmp_path: Path) -> None:
    """Two nights over Apache's log: the second one on the cluster, and beside it on the local engine."""
    full = timers(tmp_path / "full", 12_000)
    names = sorted(path.name for path in full.iterdir())
    assert len(names) > 3
    store = tmp_path / "store"
    (store / "commitlog").mkdir(parents=True)
    for name in names[: len(names) // 2 + 1]:
        shutil.copy(full / name, store / "commitlog")
    words = [sys.executable, "-c", SMALL, str(store), "--as-of", AS_OF, "--split-mb", "1"]
    out = [*words, "--out", str(tmp_path / "here"), "--state", str(tmp_path / "local")]
    subprocess.run([*out, "--engine", "local", "--quiet"], check=True, timeout=300)
    shutil.copytree(tmp_path / "local", tmp_path / "cluster-state")
    shutil.copytree(full, store / "commitlog", dirs_exist_ok=True)
    subprocess.run([*out, "--engine", "local", "--quiet"], check=True, timeout=300)
    known = hashes(tmp_path / "cluster-state")
    shares = 1 + 16 * known // SHARE_BYTES
    assert shares >= 4
    seen: dict[tuple[str, str], int] = {}
    there = [*words, "--out", str(tmp_path / "there"), "--state", str(tmp_path / "cluster-state")]
    before = cluster.handed_over().keys()
    with open(tmp_path / "said", "w+") as said, started(cluster, there, said) as process:

        def ended() -> bool:
            for place, size in cluster.handed_over().items():
                if place not in before:
                    seen[place] = max(size, seen.get(place, 0))
            return process.poll() is not None

        wait_until(ended, 600, "the end of the second night")
        assert process.returncode == 0, (tmp_path / "said").read_text()
    got = [place for place, size in seen.items() if size > SHARE_BYTES // 2]
    assert len({executor for executor, _ in got}) == 2, f"both executors were at work: {seen}"
    assert len(got) == shares, f"each share is on one executor only: {seen}"
    assert tables(tmp_path / "there") == tables(tmp_path / "here")
    assert hashes(tmp_path / "cluster-state") == hashes(tmp_path / "local") > known


def hashes(state: Path) -> int:
    """How many hashes a state has."""
    record = json.loads((state / "state.json").read_text().splitlines()[1])
    return sum(int(pq.read_metadata(state / one["name"]).num_rows) for one in record["hashes"])
