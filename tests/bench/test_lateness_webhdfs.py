"""WebHDFS that refuses or is silent: the figures of the disk, or an error of one line; never other figures."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bench.lateness.logs import storage
from bench.lateness.logs.storage import StorageError
from tests.bench.test_lateness_spill import NOW_MS, fill
from tests.bench.test_lateness_state import run
from tests.support.lateness_world import make_world, write_world
from tests.support.webhdfs import BLOCK_HOST, Answer, WebHdfs

pytestmark = pytest.mark.spark  # it needs numpy, and starts nothing

AS_OF_MS = NOW_MS - 3_600_000
"""Nothing of the delay store is overdue: its records are made up."""
PLACE = "/brokers/a b%20ü%/x"
BUSY = 503, {"error": "busy"}
REFUSED = 403, {"RemoteException": {"exception": "InvalidToken", "message": "no"}}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WebHdfs]:
    folder = tmp_path_factory.mktemp("hdfs")
    rng = random.Random(5)
    world = make_world(rng, 400)
    world.ours = True
    write_world(world, folder / PLACE[1:], rng)
    fill(folder / PLACE[1:] / "timewheel" / "delay")
    with WebHdfs(folder) as found:
        yield found


def figures(path: str | Path, out: Path, **values: Any) -> dict[str, Any]:
    """The counts, and what is damaged."""
    summary = run(path, out, None, as_of_ms=AS_OF_MS, **values)
    (source,) = summary["sources"]
    return summary["total"] | {"damaged": source["damaged_count"], "kind": source["kind"], "tail": source["torn_tail"]}


@pytest.mark.parametrize(("operation", "answer"), [("GETFILESTATUS", BUSY), ("LISTSTATUS", BUSY), ("READ", REFUSED)])
def test_an_answer_that_fails_once_is_no_other_figure(
    server: WebHdfs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, operation: str, answer: Answer
) -> None:
    """Whichever answer it is: a folder is not taken for missing, nor the words of a refusal for records."""
    expected = figures(server.folder / PLACE[1:], tmp_path / "here")
    passed, failed = 0, True
    while failed:
        left = [passed]
        passed += 1 + passed // 5

        def instead(asked: str, path: str, left: list[int] = left) -> Answer | str:
            del path
            left[0] -= asked == operation
            return answer if left[0] == -1 and asked == operation else "as usual"

        monkeypatch.setattr(server, "instead", instead)
        failed = False
        try:
            assert figures(server.uri(PLACE), tmp_path / "there") == expected
            failed = left[0] < 0  # only the names of the latest were not to be had
        except StorageError as error:
            failed = True
            assert "\n" not in str(error)
    assert passed > 3


@pytest.mark.parametrize("operation", ["GETFILESTATUS", "LISTSTATUS", "OPEN", "READ"])
def test_a_server_that_says_nothing_is_not_waited_for_for_ever(
    server: WebHdfs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, operation: str
) -> None:
    monkeypatch.setattr(storage, "_SILENT_S_MAX", 0.2)
    monkeypatch.setattr(server, "instead", lambda asked, _: None if asked == operation else "as usual")
    with pytest.raises(StorageError, match="timed out") as found:
        run(server.uri(PLACE, f"{operation}@"), tmp_path / "out", None)  # a name of its own: fsspec keeps connections
    assert "\n" not in str(found.value)


def test_a_token_is_not_told(server: WebHdfs, tmp_path: Path) -> None:
    """It stands in the address of a request, which is in the errors of the library."""
    place = server.uri("/nothing").replace("127.0.0.1", "127.0.0.2")
    with pytest.raises(StorageError, match="delegation=…") as found:
        run(place, tmp_path / "out", None, storage=json.dumps({"token": "HUSH"}))
    assert "HUSH" not in str(found.value)


@pytest.mark.parametrize("path", ["webhdfs:///a", "webhdfs://host:port/a"])
def test_an_address_without_host_or_port_is_one_line(tmp_path: Path, path: str) -> None:
    with pytest.raises(StorageError, match=r"'host'|Port") as found:
        run(path, tmp_path / "out", None)
    assert "\n" not in str(found.value)


def test_a_password_is_not_written(server: WebHdfs, tmp_path: Path) -> None:
    run(server.uri(PLACE, "me:Zq7@xW9@"), tmp_path / "out", None, as_of_ms=AS_OF_MS)
    text = (tmp_path / "out" / "summary.json").read_text()
    assert "Zq7" not in text
    assert "xW9" not in text


def test_places_are_asked_for_a_bounded_time_only(
    server: WebHdfs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name node that is slow, but answers, may be asked about thousands of files."""
    pytest.importorskip("pyspark")
    from bench.lateness.engines import placed
    from bench.lateness.engines.shares import LogShare, shares_of
    from bench.lateness.pipeline import Job, find_sources, look_around

    spark: Any = SimpleNamespace(sparkContext=SimpleNamespace(_jvm=None, _jsc=SimpleNamespace(hadoopConfiguration=str)))
    job, said = Job(find_sources([server.uri(PLACE)]), tmp_path), list[str]()
    look_around(job, None)
    shares = shares_of(job)
    hosts = [(BLOCK_HOST,) if isinstance(share, LogShare) else () for share in shares]
    assert placed.hosts_of(spark, shares, said.append) == hosts
    assert said == []
    monkeypatch.setattr(placed, "_ASKING_S_MAX", -1.0)
    assert placed.hosts_of(spark, shares, said.append) == [()] * len(shares)
    (line,) = said
    assert line.endswith("tasks of others run anywhere")
