"""Addresses with a login: whatever goes wrong, no line of ``timewheel lateness`` shows user or password."""

from __future__ import annotations

import ast
import doctest
import importlib
import pickle
import pkgutil
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import bench.lateness
from bench.lateness.logs import storage
from bench.lateness.logs.sources import short_names
from bench.lateness.logs.storage import LogMovedError, StorageError, without_login
from bench.log_maker import make_log

pytestmark = pytest.mark.spark  # it imports PySpark, and starts nothing

ROOT = Path(bench.lateness.__file__).parent
SECRETS = ("Zq7", "xW9")
LOGINS = ("me:Zq7xW9@", "Zq7@xW9@", "me:Zq7/xW9@", "Zq7xW9@", "me:Zq7%2FxW9@")
SHOWN_BY_THE_COMMAND = {
    "AssertionError", "DamagedLogError", "ExpectationError", "JavaMissingError", "ResultError",
    "SparkStartError", "SystemExit", "ValueError", "ClickException", "UsageError", "FileNotFoundError", "OSError",
    "_read_error",
}  # fmt: skip
"""What is raised and is no StorageError: the command turns it into a line, and hides logins there. OSError
and FileNotFoundError, of answers, name no address and become StorageErrors, which the last one, a function, makes."""


def modules() -> list[str]:
    return [one.name for one in pkgutil.walk_packages([str(ROOT)], "bench.lateness.")]


def kinds(kind: type[StorageError] = StorageError) -> set[type[StorageError]]:
    return {kind}.union(*map(kinds, kind.__subclasses__()))


@pytest.mark.parametrize("login", LOGINS)
def test_errors_of_every_kind_hide_logins(login: str) -> None:
    for name in modules():
        importlib.import_module(name)
    assert {one.__name__ for one in kinds()} >= {"StateError", "SpillMovedError", "NoStoreError", "ChangedError"}
    for kind in kinds():
        for text in (f"webhdfs://{login}host:1/a: no", f"{Path(f'/x/s3://{login}b/a')} cannot be read"):
            said = str(pickle.loads(pickle.dumps(kind(text))))
            assert not [secret for secret in SECRETS if secret in said], said
            assert "…@" in said
    assert without_login("s3://logs/a@b: no") == "s3://logs/a@b: no"
    assert without_login("hdfs://host:8020/a@b/c") == "hdfs://host:8020/a@b/c"
    assert doctest.testmod(storage).failed == 0


def test_whatever_is_raised_or_printed_goes_through_a_place_that_hides_logins() -> None:
    """By the names in the sources: a new kind of error, or another way to print, has to hide them, too."""
    hide = {one.__name__ for one in kinds()} | SHOWN_BY_THE_COMMAND
    for path in sorted(ROOT.rglob("*.py")):
        source = path.read_text()
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
                names = {one.id for one in ast.walk(node.exc.func) if isinstance(one, ast.Name)}
                names |= {one.attr for one in ast.walk(node.exc.func) if isinstance(one, ast.Attribute)}
                assert names & hide, f"{path.name}:{node.lineno}: {names}"
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("click.echo", "print", "sys.stdout.write"):
                words = ast.get_source_segment(source, node) or ""
                # A progress has figures alone.
                assert "without_login(" in words or path.name == "reading_progress.py", f"{path.name}:{node.lineno}"


def call(*arguments: object) -> str:
    from bench.lateness import command

    result = CliRunner().invoke(command.lateness_command, [str(argument) for argument in arguments])
    assert result.exit_code in (1, 2), result.output
    assert isinstance(result.exception, SystemExit), result.output
    return result.output


OPTIONS = (
    "SOURCE", "--out", "--state", "--baseline", "--received", "--master", "--spark", "--name", "--by", "--expect",
    "--target", "--since", "--levels", "--memory", "--executor-cores", "--engine", "--storage",
)  # fmt: skip


@pytest.mark.parametrize("option", OPTIONS)
def test_the_command_hides_logins_in_what_it_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str
) -> None:
    """An address in every option: where it belongs, and where it was put by mistake."""
    make_log(tmp_path / "store", np.zeros(3, np.int64), segment_bytes=1 << 20)
    monkeypatch.chdir(tmp_path)
    hosts = {"webhdfs": "127.0.0.1:1", "none": "h", "sc": "h:1"}
    for login, (scheme, host) in product(LOGINS if option == "SOURCE" else LOGINS[:3], hosts.items()):
        address = f"{scheme}://{login}{host}/no" + ("\udcff" if scheme == "none" else "")
        words: list[Any] = [address] if option == "SOURCE" else [tmp_path / "store", f"{option}={address}"]
        words += [] if option == "--out" else ["--out", tmp_path / "out"]
        if option == "--name":
            words += ["--name", "b"]
        if option not in ("--master", "--spark", "--memory", "--executor-cores", "--engine"):
            words += ["--engine", "local"]
        said = call(*words)
        assert not [secret for secret in SECRETS if secret in said], said


class Gone:
    """A file system whose files are deleted after they were listed; it says so in one of several ways."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def cat_file(self, *_: object, **__: object) -> bytes:
        """Fail."""
        raise self._error


@pytest.mark.parametrize(("error", "moved"), [(FileNotFoundError("x"), True), (OSError("x"), False)])
def test_a_file_that_was_deleted_meanwhile_has_moved(error: Exception, moved: bool) -> None:
    """As in a folder of this machine: then the reading starts again."""
    place = "webhdfs://Zq7:xW9@host:1/a"
    remote = storage._Remote.__new__(storage._Remote)
    remote._system = Gone(error)
    for use in (lambda: remote.peek(place, 0, 10), lambda: remote.open(place).read(0, 10)):
        with pytest.raises(StorageError) as found:
            use()
        assert isinstance(found.value, LogMovedError) is moved
        assert str(found.value).startswith("webhdfs://…@host:1/a: ")


@pytest.mark.parametrize(
    ("paths", "names"),
    [
        (["webhdfs://me:pw@h1:1/a", "webhdfs://me:pw@h2:1/a"], ["…@h1:1/a", "…@h2:1/a"]),
        (["s3://key:sec@bucket"], ["…@bucket"]),
        (["/data/a/commitlog", "/data/b/commitlog"], ["a/commitlog", "b/commitlog"]),
        (["hdfs://h:1/x"], ["x"]),
    ],
)
def test_a_source_is_not_named_by_its_login(paths: list[str], names: list[str]) -> None:
    """The name goes into the result, the page and the state."""
    assert short_names(paths) == names
