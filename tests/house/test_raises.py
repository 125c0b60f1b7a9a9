"""Who calls a public function learns from its docstring which errors it raises.

Only errors that a function raises itself are looked for, not those of what it calls. Commands are left out: their
docstring is their help text.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tests.house.test_architecture import ALL, dotted, name_of, tree_of

NOT_ERRORS = {"AssertionError", "NotImplementedError", "SystemExit"}
_NAMED = re.compile(r"\w+Error\b|\b[Rr]aises?\b")

Function = ast.FunctionDef | ast.AsyncFunctionDef


def raised(function: Function) -> set[str]:
    """What a function raises by name; functions inside it are not looked at."""
    found: set[str] = set()

    def look(node: ast.AST) -> None:
        for inner in ast.iter_child_nodes(node):
            if isinstance(inner, Function | ast.Lambda):
                continue
            if isinstance(inner, ast.Raise) and inner.exc is not None:
                found.add(ast.unparse(inner.exc.func if isinstance(inner.exc, ast.Call) else inner.exc))
            look(inner)

    look(function)
    return {name for name in found if name not in NOT_ERRORS and not name.startswith("click.")}


def silent(body: list[ast.stmt], holder: ast.ClassDef | None = None) -> Iterator[tuple[int, str, set[str]]]:
    """Public functions that raise and do not say so: line, name, what they raise."""
    for node in body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield from silent(node.body, node)
        elif isinstance(node, Function) and (node.name == "__init__" or not node.name.startswith("_")):
            text = ast.get_docstring(node) or ""
            if node.name == "__init__" and holder is not None:
                text += ast.get_docstring(holder) or ""
            errors = raised(node)
            is_command = any(
                dotted(getattr(d, "func", d)).endswith((".command", ".group")) for d in node.decorator_list
            )
            if errors and not is_command and not _NAMED.search(text):
                yield node.lineno, node.name, errors


def test_public_functions_name_their_errors() -> None:
    wrong = [
        f"{name_of(path)}:{line} {name} raises {', '.join(sorted(errors))}"
        for path in ALL
        for line, name, errors in silent(tree_of(path).body)
    ]
    assert not wrong, "say so in the docstring, and when:\n" + "\n".join(wrong)


def test_the_rule_sees_what_is_silent() -> None:
    text = "def quiet():\n    '''Do it.'''\n    raise ValueError('no')\n"
    assert [found[1:] for found in silent(ast.parse(text).body)] == [("quiet", {"ValueError"})]
    assert not list(silent(ast.parse(text.replace("Do it.", "Do it. Raises ValueError.")).body))
