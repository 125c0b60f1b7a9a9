"""Sizes: a source file has at most 400 lines, a function 60. What is over has a ceiling here, which only goes down."""

from __future__ import annotations

import ast

from tests.house.test_architecture import ALL, name_of, nodes_of

FILE_LINES_MAX = 400
FUNCTION_LINES_MAX = 60

FILES_STILL_OVER = {
}

FUNCTIONS_STILL_OVER = {
    "bench/lateness/command.py:lateness_command": 77,
}


def over(sizes: dict[str, int], limit: int, ceilings: dict[str, int]) -> list[str]:
    """What is larger than its ceiling, or the limit; and ceilings that are needed no more."""
    return [
        *(
            f"{name} has {lines} lines, more than {ceilings.get(name, limit)}: divide it by noun"
            for name, lines in sizes.items()
            if lines > ceilings.get(name, limit)
        ),
        *(f"{name} needs no ceiling any more" for name in ceilings if sizes.get(name, 0) <= limit),
    ]


def test_files_are_short() -> None:
    sizes = {name_of(path): len(path.read_text("utf-8").splitlines()) for path in ALL}
    assert not over(sizes, FILE_LINES_MAX, FILES_STILL_OVER)


def test_functions_are_short() -> None:
    sizes: dict[str, int] = {}
    for path in ALL:
        for node in nodes_of(path):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                name = f"{name_of(path)}:{node.name}"
                sizes[name] = max(sizes.get(name, 0), (node.end_lineno or node.lineno) - node.lineno + 1)
    assert not over(sizes, FUNCTION_LINES_MAX, FUNCTIONS_STILL_OVER)


def test_the_rule_sees_what_breaks_it() -> None:
    sizes = {"short": 10, "long": 11, "known": 20, "mended": 9}
    assert [text.split()[0] for text in over(sizes, 10, {"known": 20, "mended": 30})] == ["long", "mended"]
    assert [text.split()[0] for text in over(sizes, 10, {"known": 19, "long": 11})] == ["known"]
