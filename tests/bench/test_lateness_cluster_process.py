"""A real standalone cluster: executors without this project, one of them killed in mid-run, the same tables."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bench.log_maker import make_log, spread_lateness
from tests.support.spark_cluster import Cluster
from tests.support.wait import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.process, pytest.mark.filterwarnings("ignore")]

CODE = "from bench.lateness import command; command._draw = lambda *_: None; command.lateness_command()"
"""The command without its pictures, which take longer than the rest."""
RECORDS = 120_000
AS_OF = "2026-11-24T00:00Z"


def tables(out: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (out / "histograms").iterdir()}


def test_executors_without_our_packages_and_one_that_is_killed(tmp_path: Path) -> None:
    make_log(tmp_path / "store", spread_lateness(RECORDS), segment_bytes=8 << 20)
    words = [sys.executable, "-c", CODE, str(tmp_path / "store"), "--as-of", AS_OF, "--split-mb", "1", "--out"]
    subprocess.run([*words, str(tmp_path / "here"), "--engine", "local", "--quiet"], check=True, timeout=300)
    with Cluster(tmp_path / "cluster") as cluster, open(tmp_path / "said", "w+") as said:
        assert cluster.knows("pyarrow")
        assert not cluster.knows("bench")
        assert not cluster.knows("remoting")
        there = ["--master", cluster.master, "--executor-memory", "512m", "--executor-cores", "1"]
        for name in ("host", "bindAddress"):
            there += ["--spark", f"spark.driver.{name}=127.0.0.1"]
        process = subprocess.Popen(
            [*words, str(tmp_path / "there"), *there],
            stdout=said,
            stderr=said,
            env=os.environ | {"PYSPARK_PYTHON": str(cluster.python)},
        )
        try:
            began = lambda: len(cluster.shuffle_files()) > 4 or process.poll() is not None  # noqa: E731
            wait_until(began, 600, "rows on their way from task to task")
            cluster.kill_an_executor()
            assert process.wait(600) == 0, (tmp_path / "said").read_text()
        finally:
            process.kill()
            process.wait()
        assert cluster.said("exitStatus 137"), "an executor was killed"
    assert tables(tmp_path / "there") == tables(tmp_path / "here")
    text = (tmp_path / "said").read_text()
    assert "Traceback" not in text, text
    assert f"{RECORDS:,} sent; {RECORDS:,} delivered" in text
