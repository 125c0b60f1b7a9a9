"""Who calls a public function learns from its docstring which errors it raises.

The docstring names the class that a function raises, or a base of it. Only errors that a function raises itself are
looked for, not those of the functions that it calls, nor those that it handles. If it raises what an expression gives
(``raise disk_error(...)``), it names any error. Commands are left out: their docstring is their help text.
"""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Iterator
from functools import cache

from tests.house.test_architecture import ALL, dotted, name_of, nodes_of, tree_of

NOT_ERRORS = {"AssertionError", "NotImplementedError", "SystemExit"}
_NAMED = re.compile(r"\w+Error\b|\b[Rr]aises?\b")

Function = ast.FunctionDef | ast.AsyncFunctionDef


@cache
def bases() -> dict[str, set[str]]:
    """The names of the base classes of each class of the project, by its name."""
    found: dict[str, set[str]] = {}
    for path in ALL:
        for node in nodes_of(path):
            if isinstance(node, ast.ClassDef):
                found.setdefault(node.name, set()).update(dotted(base).rpartition(".")[2] for base in node.bases)
    return found


def names_of(error: str) -> set[str]:
    """An error's name and those of its bases, but for Exception."""
    name = error.rpartition(".")[2]
    if error.startswith("web.HTTP"):
        return {name, "HTTPException"}
    of = getattr(builtins, name, None)
    known = {base.__name__ for base in of.__mro__} if isinstance(of, type) else bases().get(name, set())
    return {name}.union(*(names_of(base) for base in known - {name, "Exception", "BaseException", "object"}))


def handled(tried: ast.Try) -> set[str]:
    """The errors that a try statement handles without raising them again."""
    return {
        dotted(error)
        for handler in tried.handlers
        if handler.type is not None and not any(isinstance(n, ast.Raise) and n.exc is None for n in ast.walk(handler))
        for error in (handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type])
    }


def raised(function: Function) -> set[str]:
    """What a function raises and does not handle, by name; functions inside it are not looked at."""
    found: set[str] = set()

    def look(nodes: list[ast.AST], caught: set[str]) -> None:
        for node in nodes:
            if isinstance(node, Function | ast.Lambda):
                continue
            if isinstance(node, ast.Try):
                look([*node.body], caught | handled(node))
                look([*node.handlers, *node.orelse, *node.finalbody], caught)
                continue
            if isinstance(node, ast.Raise) and node.exc is not None:
                error = ast.unparse(node.exc.func if isinstance(node.exc, ast.Call) else node.exc)
                if not names_of(error) & caught:
                    found.add(error)
            look([*ast.iter_child_nodes(node)], caught)

    look([*function.body], set())
    return {name for name in found if name not in NOT_ERRORS and not name.startswith("click.")}


def unnamed(text: str, errors: set[str]) -> set[str]:
    """Which of these errors a docstring does not name."""
    words = set(re.findall(r"\w+", text))
    return {
        error
        for error in errors
        if not (names_of(error) & words if error.rpartition(".")[2][0].isupper() else _NAMED.search(text))
    }


def silent(body: list[ast.stmt], holder: ast.ClassDef | None = None) -> Iterator[tuple[int, str, set[str]]]:
    """Public functions that raise and do not say so: line, name, what they raise."""
    for node in body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield from silent(node.body, node)
        elif isinstance(node, Function) and (node.name == "__init__" or not node.name.startswith("_")):
            text = ast.get_docstring(node) or ""
            if node.name == "__init__" and holder is not None:
                text += ast.get_docstring(holder) or ""
            errors = unnamed(text, raised(node))
            is_command = any(
                dotted(getattr(d, "func", d)).endswith((".command", ".group")) for d in node.decorator_list
            )
            if errors and not is_command:
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
    assert list(silent(ast.parse(text.replace("Do it.", "Do it. Raises KeyError.")).body))
    assert not list(silent(ast.parse(text.replace("Do it.", "Do it. Raises ValueError.")).body))


def test_a_base_of_the_error_will_do() -> None:
    text = "def quiet():\n    '''Do it. Raises StoreError.'''\n    raise StoreCorruptError('no')\n"
    assert not list(silent(ast.parse(text).body))
    assert list(silent(ast.parse(text.replace("StoreCorruptError", "OSError")).body))


def test_an_error_that_is_handled_is_not_raised() -> None:
    text = "def quiet():\n    try:\n        raise KeyError\n    except LookupError:\n        pass\n"
    assert not list(silent(ast.parse(text).body))
    assert list(silent(ast.parse(text.replace("pass", "raise")).body))
    assert list(silent(ast.parse(text.replace("LookupError", "ValueError")).body))
