"""`./run soak` starts what exists: each part's command takes the arguments that it is given."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from tests import soak
from tests.soak import parts_of

PARTS = parts_of(60, 2, 7, Path("/nowhere"))


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.name)
def test_a_part_can_be_started(part: soak.Part) -> None:
    spec = find_spec(part.command[1])
    if spec is not None and spec.submodule_search_locations is not None:
        spec = find_spec(f"{part.command[1]}.__main__")
    assert spec is not None
    known = Path(spec.origin or "").read_text()
    for word in part.command[2:]:
        if word.startswith("--"):
            assert f'"{word}"' in known, f"{part.command[1]} has no {word}"
        if word.startswith("tests/"):
            text = (soak.ROOT / word).read_text()
            for helper in ("support/examples", "support/proxy_ledger", "interop/workload"):
                if f"tests.{helper.replace('/', '.')} " in text:
                    text += (soak.ROOT / f"tests/{helper}.py").read_text()
            assert all(name in text for name in part.environment), word


def test_seeds_are_the_fresh_ones() -> None:
    assert "--from-seed 7" in str(PARTS[0])
    assert str(PARTS[-3]) == "TIMEWHEEL_EVERY_CALL=1 python -m pytest -q tests/faults/test_every_call.py"


@pytest.mark.parametrize("code", [0, 3])
def test_one_part_that_finds_something_fails_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], code: int
) -> None:
    folder = tmp_path / "soak"
    parts = [soak.Part("fails", ["-c", f"import sys; sys.exit({code})"]), soak.Part("goes on", ["-c", "print()"])]
    monkeypatch.setattr(soak, "parts_of", lambda *_: parts)
    monkeypatch.setattr(soak.tempfile, "mkdtemp", lambda **_: folder.mkdir() or str(folder))
    assert soak.main([]) == (1 if code else 0)
    told = capsys.readouterr().out.splitlines()
    assert sum(line.endswith("nothing found") for line in told) == (1 if code else 2)
    assert folder.exists() == (code != 0)


def test_an_unknown_part_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        soak.main(["--only", "rain"])
    assert "no part 'rain'" in capsys.readouterr().err


def test_the_list_is_printed_and_nothing_runs(capsys: pytest.CaptureFixture[str]) -> None:
    assert soak.main(["--list", "--only", "garbage", "--jobs", "2"]) == 0
    assert capsys.readouterr().out.startswith("python -m tests.fuzz --minutes 15 --inputs 60000000 --seed ")
