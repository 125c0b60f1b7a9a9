"""A disk that is full at the end of a run: one line, no half file, and the earlier result as it was."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from bench.log_maker import make_log
from bench.report import lateness_page

pytestmark = pytest.mark.spark  # it imports PySpark, and starts nothing

FULL = os.strerror(errno.ENOSPC)


def call(*arguments: object) -> list[str]:
    """The lines of a run that ends with status 1."""
    from bench.lateness import command

    found = CliRunner().invoke(command.lateness_command, [*map(str, arguments), "--engine", "local", "--quiet"])
    assert (found.exit_code, found.exception.__class__) == (1, SystemExit), found.output
    return found.output.splitlines()


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(lateness_page, "render", lambda _: "page")
    make_log(tmp_path / "store", np.arange(30), segment_bytes=1 << 12)
    return tmp_path / "store"


@pytest.mark.parametrize("name", ["lateness.hgrm", ".summary.json.new", "report.html.new"])
def test_a_result_that_cannot_be_written(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    out = tmp_path / "out"
    call(store, "--out", out, "--expect", "sent == 0")
    before = contents(out)
    write = Path.write_text

    def fails(path: Path, text: str, *words: Any, **more: Any) -> int:
        found = write(path, text[:2] if path.name == name else text, *words, **more)
        if path.name == name:
            raise OSError(errno.ENOSPC, FULL, str(path))
        return found

    monkeypatch.setattr(Path, "write_text", fails)
    what = "page" if name.startswith("report") else "result"
    (line,) = call(store, "--out", out, "--expect", "sent == 30")
    assert line.startswith(f"Error: --out {out}: the {what} cannot be written ({FULL})")
    after = contents(out)
    assert set(after) == set(before)
    changed = {place for place in after if after[place] != before[place]}
    assert changed == ({"summary.json"} if what == "page" else set())


def test_a_state_that_cannot_be_replaced(store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from bench.lateness.state import folder

    def fails(*_: object) -> None:
        raise OSError(errno.ENOSPC, FULL)

    words = (store, "--out", tmp_path / "out", "--state", tmp_path / "state", "--expect", "sent == 0")
    for method in ("replace", "remove"):
        with monkeypatch.context() as patch:
            patch.setattr(folder._Local, method, fails)
            if method == "remove":
                (tmp_path / "state" / f"{7:010d}-sums.parquet").write_bytes(b"")
            assert f"Error: --state {tmp_path / 'state'}: " in call(*words)[-1]
            assert FULL in call(*words)[-1]
    assert "FAILS: sent == 0 (found 30)" in call(*words)
