"""WebHDFS that refuses or is silent: the figures of the disk, or an error of one line; never other figures."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from bench.lateness.logs import webhdfs
from bench.lateness.logs.storage import StorageError, file_system, storage_for
from bench.log_maker import make_log
from tests.bench.test_lateness_spill import NOW_MS, fill
from tests.bench.test_lateness_state import assert_same, days, prefix, run
from tests.support.lateness_world import make_world, write_world
from tests.support.webhdfs import BLOCK_HOST, HALF, Answer, WebHdfs

pytestmark = pytest.mark.spark  # it needs numpy, and starts nothing

AS_OF_MS = NOW_MS - 3_600_000
"""Nothing of the delay store is overdue: its records are made up."""
PLACE = "/brokers/a b%20ü%/x"
BUSY = 503, {"error": "busy"}
NOTHING = 200, b""
LOST = 307, b""
"""A redirection that does not say where to."""
PAGE = 200, b"<html>Sign in</html>" * 10_000
"""As many bytes as the file has, or more."""
CHANGES = ("CREATE", "EMPTY", "APPEND", "WRITE", "RENAME", "DELETE")
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


@pytest.mark.parametrize(
    ("operation", "answer"),
    [
        ("READ", NOTHING),
        ("READ", HALF),
        ("READ", PAGE),
        ("READ", (204, b"")),
        ("READ", LOST),
        ("OPEN", NOTHING),
        ("OPEN", LOST),
        ("OPEN", PAGE),
        ("OPEN", (302, {"error": "sign in"})),
    ],
)
def test_bytes_are_those_that_were_asked_for(
    server: WebHdfs, monkeypatch: pytest.MonkeyPatch, operation: str, answer: Answer | str
) -> None:
    """A page of a proxy is not taken for the file, nor a part for all of it: zeros end a log, and so does its end."""
    place = "/brokers/bytes"
    (server.folder / place[1:]).write_bytes(bytes(range(200)) * 500)
    there = storage_for(server.uri(place))
    asks = (lambda: there.peek(server.uri(place), 10, 5_000), lambda: there.open(server.uri(place)).read(10, 5_000))
    for ask in asks:
        assert ask() == (bytes(range(200)) * 500)[10:5_010]
    monkeypatch.setattr(server, "instead", lambda asked, _: answer if asked == operation else "as usual")
    for ask in asks:
        with pytest.raises(StorageError, match=r"the answer is not the file's|30 redirects") as found:
            ask()
        assert "\n" not in str(found.value)


def test_a_file_that_is_deleted_between_two_requests_is_gone(server: WebHdfs, monkeypatch: pytest.MonkeyPatch) -> None:
    """The name node sends to a data node, which does not find it."""
    (server.folder / "gone").write_bytes(b"x" * 100)
    monkeypatch.setattr(server, "instead", lambda asked, _: (404, {}) if asked == "READ" else "as usual")
    with pytest.raises(FileNotFoundError):
        file_system(server.uri("/gone")).cat_file(server.uri("/gone"), start=0, end=10)


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
    monkeypatch.setattr(webhdfs, "_SILENT_S_MAX", 0.2)
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


@pytest.mark.parametrize(
    ("asked", "times", "state"),
    [("OPEN", 1, False), ("OPEN", 2, False), ("READ", 2, False), ("OPEN", 2, True), ("OPEN", 3, True)],
)
def test_a_segment_that_retention_deletes_meanwhile_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: str, times: int, state: bool
) -> None:
    """As in a folder of this machine: the reading starts again, with what is there now.

    A segment is opened when its end is searched, when it is read, and when a state looks at what it has counted.
    """
    from bench.lateness import command

    make_log(tmp_path / "store", np.zeros(9_000, np.int64), segment_bytes=1 << 20)
    oldest, *others = sorted((tmp_path / "store" / "commitlog").iterdir())
    assert len(others) > 1
    monkeypatch.setattr(command, "_draw", lambda *_: None)
    with WebHdfs(tmp_path) as server:
        left = [times]

        def instead(operation: str, path: str) -> Answer | str:
            left[0] -= operation == asked and path.endswith(oldest.name)
            if left[0] <= 0 and path.endswith(oldest.name):
                oldest.unlink(missing_ok=True)
            return "as usual"

        monkeypatch.setattr(server, "instead", instead)
        words = [server.uri("/store"), "--out", str(tmp_path / "out"), "--engine", "local", "--quiet"]
        words += ["--state", str(tmp_path / "state")] if state else []
        result = CliRunner().invoke(command.lateness_command, words)
        assert result.exit_code == 0, result.output
    assert not oldest.exists()
    (source,) = json.loads((tmp_path / "out" / "summary.json").read_text())["sources"]
    assert 0 < source["records"] < 9_000
    assert source["damaged_count"] == 0


def test_a_password_is_not_written(server: WebHdfs, tmp_path: Path) -> None:
    run(server.uri(PLACE, "me:Zq7@xW9@"), tmp_path / "out", None, as_of_ms=AS_OF_MS)
    text = (tmp_path / "out" / "summary.json").read_text()
    assert "Zq7" not in text
    assert "xW9" not in text


def test_a_state_in_hdfs_is_the_old_one_or_the_new_one(
    server: WebHdfs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever request is the last one of a run: a file is made empty there, then its bytes are added."""
    full, failed, at = days(tmp_path / "full", 3, 60), True, 0
    run(full, tmp_path / "whole", None)
    prefix(full, tmp_path / "store", 2, 1 << 30)
    while failed:
        state, left, failed = server.uri(f"/states/{at}"), [at], False
        run(tmp_path / "store", tmp_path / "out", state)

        def instead(asked: str, path: str, left: list[int] = left) -> Answer | str:
            left[0] -= ("state.json" in path and asked in CHANGES) or asked == "DELETE"
            return BUSY if left[0] < 0 and asked in CHANGES else "as usual"

        with monkeypatch.context() as patch:
            patch.setattr(server, "instead", instead)
            try:
                run(full, tmp_path / "out", state)
            except StorageError as error:
                failed = True
                assert "\n" not in str(error)
        run(full, tmp_path / "out", state)
        assert_same(tmp_path / "out", tmp_path / "whole")
        at += 1
    assert at > 4


def test_a_state_that_cannot_be_read_is_one_line(
    server: WebHdfs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the words of the refusal are of another kind than an error of files."""
    full = days(tmp_path / "full", 3, 60)
    run(full, tmp_path / "out", server.uri("/states/read"))
    monkeypatch.setattr(server, "instead", lambda asked, path: REFUSED if asked == "OPEN" and "states" in path else "")
    with pytest.raises(StorageError, match="no") as found:
        run(full, tmp_path / "out", server.uri("/states/read"))
    assert "\n" not in str(found.value)


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
