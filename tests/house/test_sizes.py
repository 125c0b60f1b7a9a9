"""Sizes: a source file has at most 400 lines; a function, in the tests too, 60."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from pathlib import Path

from tests.house.test_architecture import ALL, ROOT, name_of, nodes_of

FILE_LINES_MAX = 400
FUNCTION_LINES_MAX = 60


def too_long(path: Path, name: str) -> list[str]:
    """What has more lines in a file than it may."""
    text = path.read_text("utf-8")
    lines = len(text.splitlines())
    found = [f"{name} has {lines} lines, more than {FILE_LINES_MAX}"] if lines > FILE_LINES_MAX else []
    return found + long_functions(nodes_of(path), name)


def long_functions(nodes: Iterable[ast.AST], name: str) -> list[str]:
    """Functions of a file that have more lines than they may."""
    found = []
    for node in nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            size = (node.end_lineno or node.lineno) - node.lineno + 1
            if size > FUNCTION_LINES_MAX:
                found.append(f"{name}:{node.lineno} {node.name} has {size} lines, more than {FUNCTION_LINES_MAX}")
    return found


def test_files_and_functions_are_short() -> None:
    wrong = [text for path in ALL for text in too_long(path, name_of(path))]
    assert not wrong, "divide by noun:\n" + "\n".join(wrong)


def test_functions_of_tests_are_short() -> None:
    paths = sorted((ROOT / "tests").rglob("*.py"))
    wrong = [text for path in paths for text in long_functions(nodes_of(path), name_of(path))]
    assert not wrong, "make a world or a step of its own:\n" + "\n".join(wrong)


def test_the_rule_sees_what_breaks_it(tmp_path: Path) -> None:
    path = tmp_path / "long.py"
    path.write_text("def short():\n" + "    pass\n" * 59 + "\n\ndef long():\n" + "    pass\n" * 60)
    assert too_long(path, "long.py") == ["long.py:63 long has 61 lines, more than 60"]
    path = tmp_path / "longer.py"
    path.write_text("a = 1\n" * 401)
    assert too_long(path, "long.py") == ["long.py has 401 lines, more than 400"]
