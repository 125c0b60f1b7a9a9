"""A store in an object store: the command, Spark and its workers read it over the network, to the same figures."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from bench.lateness.state.folder import Folder, StateError, folder_for
from tests.bench.test_lateness_spill import EACH, NOW_MS, fill
from tests.bench.test_lateness_state import Remembering, count, days, prefix
from tests.support.lateness_world import LEVELS, make_world, write_world
from tests.support.s3 import KEY, Bucket

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(scope="module")
def bucket() -> Iterator[Bucket]:
    with Bucket("logs") as found:
        yield found


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of ours: a log of several segments, with damage and a torn end, and a delay store."""
    folder = tmp_path_factory.mktemp("store")
    rng = random.Random(5)
    world = make_world(rng, 400)
    world.ours = True
    log = write_world(world, folder, rng, 1 << 16)
    assert len(list(log.folder.iterdir())) > 1
    place, _ = log.places[len(log.places) // 2]
    hurt = log.folder / f"{place - place % log.segment_bytes:020d}"
    content = bytearray(hurt.read_bytes())
    content[place % log.segment_bytes + 4] ^= 0xFF
    hurt.write_bytes(content)
    fill(folder / "timewheel" / "delay")
    return folder


def run(source: str, out: Path, *more: str) -> dict[str, Any]:
    """Run the command as a user does, but without its pictures; answers everything that it found."""
    from bench.lateness.results.result import read_result

    code = "from bench.lateness import command; command._draw = lambda *_: None; command.lateness_command()"
    arguments = [
        source,
        "--out",
        str(out),
        "--as-of",
        str(NOW_MS - 3_600_000),
        "--levels",
        LEVELS,
        "--name",
        "store",
        *more,
    ]
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr
    result = read_result(out)
    found = {name: table.to_pylist() for name, table in result.histograms.items()}
    (one,) = result.summary["sources"]
    for region in (*one["damaged"], *([one["torn_tail"]] if one["torn_tail"] else [])):
        region["file"] = Path(region["file"]).name
    return found | {"source": {**one, "paths": None}}


class Between:
    """The folder of a state, but that something happens before one of its operations."""

    def __init__(self, folder: Folder, at: int, what: Callable[[], object]) -> None:
        self._folder, self._at, self._what = folder, at, what
        self.calls = 0
        self.done = False

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._folder, name)
        if not callable(found):
            return found

        def call(*values: Any) -> Any:
            self.calls += 1
            if self.calls == self._at:
                self.done = True
                self._what()
            return found(*values)

        return call


def test_the_same_figures_as_from_disk(bucket: Bucket, store: Path, tmp_path: Path) -> None:
    keys = bucket.put(store, "brokers/a")
    assert any(key.startswith("brokers/a/commitlog/") for key in keys)
    there = run("s3://logs/brokers/a", tmp_path / "there", "--storage", bucket.storage)
    here = run(str(store), tmp_path / "here")
    assert there == here
    again = run("s3a://logs/brokers/a", tmp_path / "again", "--storage", bucket.storage, "--engine", "local")
    assert again == here, "the scheme of Hadoop's own client names the same store"
    assert there["source"]["kind"] == "timewheel"
    assert there["source"]["damaged_count"] == 1
    assert there["source"]["pending"] > EACH


def test_hadoops_settings_apply_to_s3a(
    bucket: Bucket, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Endpoint and login are given as users of Spark give them: by ``--spark``, and in the cluster's files."""
    bucket.put(store, "brokers/h")
    here = run(str(store), tmp_path / "here")
    host = bucket.endpoint.removeprefix("http://")
    settings = {"endpoint": host, "connection.ssl.enabled": "false", "path.style.access": "true"}
    settings |= {"endpoint.region": "us-east-1", "access.key": KEY["key"], "secret.key": KEY["secret"]}
    words = [word for name, value in settings.items() for word in ("--spark", f"spark.hadoop.fs.s3a.{name}={value}")]
    assert run("s3a://logs/brokers/h", tmp_path / "spark", *words) == here
    about = json.loads((tmp_path / "spark" / "summary.json").read_text())["run"]
    assert about["engine"] == "spark"
    assert KEY["secret"] not in json.dumps(about)
    pairs = "".join(f"<property><name>fs.s3a.{k}</name><value>{v}</value></property>" for k, v in settings.items())
    (tmp_path / "core-site.xml").write_text(f"<configuration>{pairs}</configuration>")
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    state = ("--engine", "local", "--state", "s3a://logs/states/h")
    assert run("s3a://logs/brokers/h", tmp_path / "files", *state) == here


def test_a_state_beside_the_log(bucket: Bucket, store: Path, tmp_path: Path) -> None:
    """Counted in two nights, state and log in the object store: what one run over everything finds."""
    words = ("--storage", bucket.storage, "--engine", "local", "--state", "s3://logs/states/b")
    bucket.put(store, "brokers/b")
    run("s3://logs/brokers/b", tmp_path / "first", *words)
    there = run("s3://logs/brokers/b", tmp_path / "second", *words)
    assert there == run(str(store), tmp_path / "whole", "--engine", "local")
    about = json.loads((tmp_path / "second" / "summary.json").read_text())["run"]
    assert 0 < about["state"]["records_read"] < there["source"]["records"]
    assert bucket.storage not in json.dumps(about)


@pytest.mark.parametrize("first", [True, False])
def test_of_two_runs_at_once_one_changes_the_state(bucket: Bucket, tmp_path: Path, first: bool) -> None:
    """No lock keeps the second one out, at no point of the first; what it has made is not taken away from either."""
    full = days(tmp_path / "full", 5, 60)
    for segments in (3, 4):
        prefix(full, tmp_path / str(segments), segments, 1 << 30)
    engines = {name: Remembering() for name in ("full", "3", "4")}

    def counted(store: Path, state: str, folder: Folder | None = None) -> Any:
        return count(store, tmp_path / "out", state, engines[store.name], folder or folder_for(state, bucket.storage))

    expected = counted(full, str(tmp_path / "here"), folder_for(str(tmp_path / "here")))
    at, passed, refused = 0, True, 0
    while passed:
        at += 1
        state = f"s3://logs/states/{first}/{at}"
        if not first:
            counted(tmp_path / "3", state)
        between = Between(folder_for(state, bucket.storage), at, partial(counted, tmp_path / "4", state))
        try:
            assert counted(full, state, between) == expected
        except StateError as error:
            assert between.done, "alone it is never refused"
            refused += "another run has written it meanwhile" in str(error)
        passed = between.done
        assert counted(full, state) == expected, f"after another run at operation {at}"
    assert at > 5
    assert refused > 3


def test_what_is_not_there_or_closed_is_said_in_a_line(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bench.lateness.command import lateness_command

    def said(*more: str) -> str:
        result = CliRunner().invoke(lateness_command, ["s3://logs/nothing", "--out", str(tmp_path), *more])
        assert (result.exit_code, len(result.output.splitlines())) == (1, 1)
        return result.output

    assert said("--storage", bucket.storage) == "Error: s3://logs/nothing: there is no such folder\n"
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    client = {"endpoint_url": bucket.endpoint, "region_name": "us-east-1"}
    assert "Unable to locate credentials" in said("--storage", json.dumps({"client_kwargs": client}))
