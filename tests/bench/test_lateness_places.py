"""Folders and files that options of ``timewheel lateness`` name: one line before the work, and nothing lost."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from bench.log_maker import make_log

pytestmark = pytest.mark.spark  # it imports PySpark, and starts nothing


def call(*arguments: object) -> Result:
    from bench.lateness import command

    return CliRunner().invoke(command.lateness_command, [str(argument) for argument in arguments])


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    from bench.lateness import command

    def worked(*_: object) -> None:
        raise AssertionError("the work began")

    monkeypatch.setattr(command, "run_job", worked)
    make_log(tmp_path / "store", np.zeros(3, np.int64), segment_bytes=1 << 20)
    return tmp_path / "store"


def entries(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def assert_refused(result: Result, words: str) -> None:
    assert (result.exit_code, result.exception.__class__) == (2, SystemExit), result.output
    (error,) = [line for line in result.output.splitlines() if line.startswith("Error: ")]
    assert words in error


FOLDER, FILE, LINK = "folder", "file", "link"


@pytest.mark.parametrize(
    ("name", "what", "words"),
    [
        ("summary.json", FOLDER, "is a folder, and a file is to be written there"),
        ("report.html", FOLDER, "is a folder, and a file is to be written there"),
        (".summary.json.new", FOLDER, "is no file of this command"),
        (".summary.json.new", LINK, "is no file of this command"),
        ("report.html.new", LINK, "is no file of this command"),
        ("histograms", FILE, "is no folder, and one is to be written there"),
        ("histograms", LINK, "is no folder, and one is to be written there"),
        ("histograms/topic.parquet", FOLDER, "holds 'topic.parquet', which is no result"),
        (".histograms.new", FILE, "is no folder"),
        (".histograms.new", FOLDER, "holds 'mine', which is no result"),
        ("received.parquet", FILE, "is no folder"),
        ("received.parquet", FOLDER, "holds 'mine', which is no result"),
        ("received.parquet", LINK, "is no folder"),
    ],
)
def test_what_stands_under_the_name_of_a_result(store: Path, tmp_path: Path, name: str, what: str, words: str) -> None:
    path = tmp_path / "out" / name
    path.parent.mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    if what == FOLDER:
        path.mkdir()
        (path / "mine").write_text("mine")
    elif what == FILE:
        path.write_text("mine")
    else:
        path.symlink_to(tmp_path / "elsewhere")
    (tmp_path / "seen.jsonl").write_text("{}\n")
    before = entries(tmp_path)
    assert_refused(call(store, "--out", tmp_path / "out", "--received", tmp_path / "seen.jsonl"), words)
    assert entries(tmp_path) == before


@pytest.mark.parametrize("place", [".", "commitlog", "commitlog/x", "timewheel", "config/report"])
@pytest.mark.parametrize("option", ["--out", "--state"])
def test_a_store_that_is_read_stays_as_it_is(store: Path, tmp_path: Path, option: str, place: str) -> None:
    before = entries(store)
    for source in (store, store / "commitlog", f"file://{store}"):
        out = [] if option == "--out" else ["--out", tmp_path / "out"]
        assert_refused(call(source, option, store / place, *out), "is in the store that is read")
    assert entries(store) == before


@pytest.mark.parametrize("option", ["--out", "--state"])
def test_a_folder_that_holds_a_store(store: Path, tmp_path: Path, option: str) -> None:
    before = entries(tmp_path)
    out = [] if option == "--out" else ["--out", tmp_path / "out"]
    for source in (store, store / "commitlog", f"file://{store}"):
        assert_refused(call(source, option, tmp_path, *out), "holds the store that is read: give a folder beside it")
        assert_refused(call(source, option, "/", *out), "is the root of all files of this machine")
    (tmp_path / "link").symlink_to(tmp_path)
    assert_refused(call(store, option, tmp_path / "link", *out), "holds the store that is read")
    (tmp_path / "link").unlink()
    assert entries(tmp_path) == before


def test_segments_without_a_store(store: Path, tmp_path: Path) -> None:
    (store / "commitlog").rename(tmp_path / "segments")
    assert_refused(call(tmp_path / "segments", "--out", tmp_path / "segments" / "x"), "is in the store that is read")


def test_a_state_or_a_result_that_cannot_be_made(store: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert_refused(call(store, "--out", tmp_path / "out", "--state", tmp_path / "file"), "is no folder")
    assert_refused(call(store, "--out", "s3://bucket/report"), "a folder of this machine is expected")
    assert_refused(call(store, "--out", tmp_path / "file" / "x"), "nothing can be written there (Not a directory)")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("none.jsonl", "there is no such file"),
        ("folder", "is a folder: a file of `timewheel consume --record` is expected"),
        ("s3://bucket/seen.jsonl", "without Spark a file of this machine is expected"),
        ("out/received.parquet", "would be replaced by this run"),
        ("out/received.parquet/part-00000.parquet", "would be replaced by this run"),
    ],
)
def test_receipts_that_cannot_be_read(store: Path, tmp_path: Path, name: str, words: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "out" / "received.parquet").mkdir(parents=True)
    (tmp_path / "out" / "received.parquet" / "part-00000.parquet").write_bytes(b"x")
    path = name if "://" in name else tmp_path / name
    assert_refused(call(store, "--out", tmp_path / "out", "--received", path), words)
    assert (tmp_path / "out" / "received.parquet" / "part-00000.parquet").read_bytes() == b"x"


def test_a_log_that_is_given_twice(store: Path, tmp_path: Path) -> None:
    (tmp_path / "again").symlink_to(store)
    for other in (store / "commitlog", tmp_path / "again", f"file://{store}/"):
        result = call(store, other, "--name", "a", "--name", "b", "--out", tmp_path / "out")
        assert_refused(result, f"{store} and {other} are one log: give it once")


@pytest.mark.parametrize("option", ["--out", "--name", "--received", "--baseline", "--state"])
def test_words_that_no_result_can_name(store: Path, tmp_path: Path, option: str) -> None:
    name = os.fsdecode(b"f\xffe")
    assert_refused(call(store, "--out", tmp_path / "out", option, tmp_path / name), "is no UTF-8")
    assert_refused(call(store, "--out", tmp_path / "out", option, ""), f"{option} '': a value is expected")
    assert_refused(call(store, "--out", tmp_path / "out", f"{option}="), f"{option} '': a value is expected")
    assert entries(tmp_path) == {"store"} | {f"store/{entry}" for entry in entries(store)}


def test_rows_of_a_run_that_was_killed_go(tmp_path: Path) -> None:
    """A run by kill -9: they may be gigabytes. What has another name, or is in use by another run, stays."""
    from bench.lateness.logs.storage import StorageError
    from bench.lateness.places import alone_in

    for name in (".rows-ab_12xyz", ".rows-of-mine", "rows-ab_12xyz"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "0").write_text("rows")
    (tmp_path / ".rows-abcdefgh").write_text("a file")
    with alone_in(tmp_path):
        assert entries(tmp_path) & {".rows-ab_12xyz"} == set()
        (tmp_path / ".rows-12345678").mkdir()
        with pytest.raises(StorageError, match="another run is at work there"), alone_in(tmp_path):
            pass
    assert entries(tmp_path) == {
        ".rows-12345678",
        ".rows-abcdefgh",
        ".rows-of-mine",
        ".rows-of-mine/0",
        "rows-ab_12xyz",
        "rows-ab_12xyz/0",
    }
