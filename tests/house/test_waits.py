"""Tests wait in one place, and unit tests do not wait at all."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

from tests.house.test_architecture import ROOT, nodes_of

HELPER = "tests/support/wait.py"
SLOW = {"interop", "faults", "support"}
"""Folders whose tests drive processes; elsewhere, a file with ``process`` in its name may wait."""


def _names_of(path: Path) -> list[tuple[int, str]]:
    """What a file imports or reads of modules that wait. ``asyncio.sleep(0)`` is a turn of the loop, and no wait."""
    found, turns = [], set()
    for node in nodes_of(path):
        sleeps = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "sleep"
        if sleeps and ast.unparse(node) == "asyncio.sleep(0)":
            turns.add(id(node.func))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if id(node) not in turns:
                found.append((node.lineno, f"{node.value.id}.{node.attr}"))
        elif isinstance(node, ast.ImportFrom):
            found += [(node.lineno, f"{node.module}.{alias.name}") for alias in node.names]
    return found


@cache
def _files() -> dict[str, list[tuple[int, str]]]:
    return {path.relative_to(ROOT).as_posix(): _names_of(path) for path in sorted((ROOT / "tests").rglob("*.py"))}


def test_one_file_sleeps() -> None:
    wrong = [
        f"{name}:{line}: wait with {HELPER}"
        for name, names in _files().items()
        if name != HELPER
        for line, found in names
        if found in ("time.sleep", "asyncio.sleep")
    ]
    assert not wrong, "\n".join(wrong)


def test_unit_tests_do_not_wait() -> None:
    """`until` alone is theirs, too: it lets the test's own loop turn until it has done something."""
    wrong = [
        f"{name}:{line}: {found}"
        for name, names in _files().items()
        if name.split("/")[1] not in SLOW and "process" not in name.rpartition("/")[2]
        for line, found in names
        if found.startswith("tests.support.wait.") and found != "tests.support.wait.until"
    ]
    assert not wrong, "\n".join(wrong)


def test_the_rules_see_what_breaks_them(tmp_path: Path) -> None:
    file = tmp_path / "wrong.py"
    file.write_text("import time\nfrom time import sleep\ntime.sleep(1)\nfrom tests.support.wait import let_pass\n")
    assert [name for _, name in sorted(_names_of(file))] == ["time.sleep", "time.sleep", "tests.support.wait.let_pass"]
    file = tmp_path / "turns.py"
    file.write_text(
        "await asyncio.sleep(0)\nawait asyncio.sleep(0.1)\nfrom asyncio import sleep\nnap = asyncio.sleep\n"
    )
    assert [line for line, name in sorted(_names_of(file)) if name == "asyncio.sleep"] == [2, 3, 4]
