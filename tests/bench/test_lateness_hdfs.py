"""A store in a real HDFS: the figures of the same files on disk, and tasks on the machine that has the block."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.log_maker import make_log, spread_lateness
from tests.bench.test_lateness_spill import NOW_MS, fill
from tests.support.hdfs import BLOCK_BYTES, HOST, USER, Hdfs, hadoop_jars
from tests.support.need import need
from tests.support.spark_cluster import LIBRARIES, Cluster

pytestmark = [pytest.mark.spark, pytest.mark.process, pytest.mark.filterwarnings("ignore")]

RECORDS = 10_000
STORAGE = json.dumps({"user": USER})
CODE = "from bench.lateness import command; command._draw = lambda *_: None; command.lateness_command()"
"""The command without its pictures, which take longer than the rest."""


@pytest.fixture(scope="module")
def hdfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hdfs]:
    need(hadoop_jars)
    with Hdfs(tmp_path_factory.mktemp("hdfs")) as found:
        yield found


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of ours: two segments, each of several blocks, and a delay store."""
    folder = tmp_path_factory.mktemp("store")
    make_log(folder, spread_lateness(RECORDS), segment_bytes=2 * BLOCK_BYTES)
    fill(folder / "timewheel" / "delay")
    assert len(list((folder / "commitlog").iterdir())) == 2
    return folder


@pytest.fixture(scope="module")
def there(hdfs: Hdfs, store: Path) -> str:
    return hdfs.put(store, "/brokers/a")


def job(path: str, out: Path) -> Any:
    from bench.lateness.pipeline import Job, find_sources

    sources = find_sources([path], ["store"], storage=STORAGE)
    return Job(sources, out, as_of_ms=NOW_MS, split_bytes=BLOCK_BYTES // 2)


def tables(out: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (out / "histograms").iterdir()}


def test_both_engines_find_what_is_found_on_disk(spark: Any, there: str, store: Path, tmp_path: Path) -> None:
    from bench.lateness.engines.local_engine import LocalEngine
    from bench.lateness.engines.spark_engine import SparkEngine
    from bench.lateness.pipeline import run_job

    said: list[str] = []
    ways = {"disk": (LocalEngine(1), str(store)), "local": (LocalEngine(1), there)}
    ways["spark"] = (SparkEngine(spark, say=said.append), there)
    found = [run_job(engine, job(path, tmp_path / name), said.append) for name, (engine, path) in ways.items()]
    totals = [one["total"] for one in found]
    assert totals[0] == totals[1] == totals[2]
    assert totals[0]["delivered"] == RECORDS
    assert tables(tmp_path / "local") == tables(tmp_path / "disk")
    assert tables(tmp_path / "spark") == tables(tmp_path / "disk")
    assert not [line for line in said if "anywhere" in line]


def test_a_task_wants_the_machine_of_its_block(spark: Any, there: str, tmp_path: Path) -> None:
    from bench.lateness.engines.placed import hosts_of, rows_of
    from bench.lateness.engines.shares import LogShare, SpillShare, shares_of
    from bench.lateness.pipeline import look_around

    wanted, said = job(there, tmp_path), list[str]()
    look_around(wanted, None)
    shares = shares_of(wanted)
    hosts = hosts_of(spark, shares, said.append)
    kinds = {type(share): names for share, names in zip(shares, hosts, strict=True)}
    assert kinds == {LogShare: (HOST,), SpillShare: ()}
    rdd = rows_of(spark, shares, hosts)._jdf.queryExecution().toRdd()
    context = spark.sparkContext._jsc.sc()
    preferred = [context.getPreferredLocs(rdd, number).mkString(",") for number in range(rdd.getNumPartitions())]
    assert preferred == [",".join(names) for names in hosts]
    assert said == []


def test_places_that_cannot_be_had_are_said_to_be_missing(spark: Any, there: str, tmp_path: Path) -> None:
    from bench.lateness.engines.placed import hosts_of
    from bench.lateness.engines.shares import shares_of
    from bench.lateness.pipeline import look_around

    wanted, said = job(there, tmp_path), list[str]()
    look_around(wanted, None)
    shares = shares_of(wanted)
    object.__setattr__(shares[0].task.split.segment, "path", f"{there}/commitlog/none")
    assert hosts_of(spark, shares, said.append) == [()] * len(shares)
    (line,) = said
    assert line.startswith(f"{there}/commitlog/none: the machines of its blocks are not known (")
    assert "none" in line.partition("not known")[2]
    assert line.endswith("tasks run anywhere")


def test_on_a_cluster_tasks_run_where_their_blocks_are(there: str, store: Path, tmp_path: Path) -> None:
    """Two workers, one of them under the data node's name: only there a task that reads the log is at home."""
    words = [sys.executable, "-c", CODE, "--quiet", "--as-of", str(NOW_MS), "--split-mb", "1", "--name", "store"]
    subprocess.run([*words, str(store), "--out", str(tmp_path / "here"), "--engine", "local"], check=True, timeout=300)
    events = tmp_path / "events"
    events.mkdir()
    more = ("fsspec", "requests", "urllib3", "idna", "certifi")
    with Cluster(tmp_path / "cluster", hosts=(HOST, "localhost"), libraries=LIBRARIES + more) as cluster:
        there_words = [there, "--out", str(tmp_path / "there"), "--storage", STORAGE, "--master", cluster.master]
        there_words += ["--executor-memory", "512m", "--executor-cores", "1"]
        settings = {"eventLog.enabled": "true", "eventLog.dir": f"file://{events}", "eventLog.compress": "false"}
        settings |= {"driver.host": HOST, "driver.bindAddress": HOST, "eventLog.rolling.enabled": "false"}
        settings |= {"cores.max": "2", "scheduler.minRegisteredResourcesRatio": "1"}  # begin with both
        for name, value in settings.items():
            there_words += ["--spark", f"spark.{name}={value}"]
        environment = os.environ | {"PYSPARK_PYTHON": str(cluster.python)}
        done = subprocess.run([*words, *there_words], capture_output=True, text=True, timeout=600, env=environment)
        assert done.returncode == 0, done.stderr
    assert tables(tmp_path / "there") == tables(tmp_path / "here")
    (log,) = [path for path in events.rglob("*") if path.is_file() and not path.name.endswith(".crc")]
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    ended = [line for line in lines if line["Event"] == "SparkListenerTaskEnd"]
    first = min(line["Stage ID"] for line in ended)
    where = [(line["Task Info"]["Locality"], line["Task Info"]["Host"]) for line in ended if line["Stage ID"] == first]
    assert where.count(("NODE_LOCAL", HOST)) >= 3, where
