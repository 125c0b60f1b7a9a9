"""Who prints to a terminal: what peers have written goes through `remoting.printable` first."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.house.test_architecture import ROOT, dotted, nodes_of

PRINTING = {"print", "click.echo", "click.secho", "sys.stdout.write", "sys.stderr.write"}
OF_A_CONSOLE = {"broker/cli/demo_view.py"}  # numbers and words of our own, drawn by rich


def _unescaped(path: Path) -> Iterator[str]:
    """Calls that print something that is no text of our own and not escaped."""
    for node in nodes_of(path):
        if not isinstance(node, ast.Call) or dotted(node.func) not in PRINTING:
            continue
        first = node.args[0] if node.args else None
        escaped = isinstance(first, ast.Call) and ast.unparse(first.func) == "printable"
        if not escaped and not isinstance(first, ast.Constant):
            yield f"{path.relative_to(ROOT)}:{node.lineno}: {ast.unparse(node)}"


def test_what_is_printed_is_printable() -> None:
    paths = [
        path for package in ("broker", "broker_plugin", "store", "remoting") for path in (ROOT / package).rglob("*.py")
    ]
    wrong = [text for path in paths if str(path.relative_to(ROOT)) not in OF_A_CONSOLE for text in _unescaped(path)]
    assert not wrong, "\n".join(wrong)
