"""Rooms by noun: no folder is crowded, and neither modules nor folders know each other in a circle, types included."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.house.test_architecture import ALL, PACKAGES, ROOT, name_of, nodes_of

FILES_MAX = 16
"""Most modules of one folder, `__init__.py` not counted."""

Graph = dict[str, set[str]]


def modules() -> dict[str, Path]:
    """Every module of ours by its dotted name."""
    return {name_of(path).removesuffix(".py").removesuffix("/__init__").replace("/", "."): path for path in ALL}


def imported_names(path: Path) -> Iterator[tuple[str, str]]:
    """What a file imports: module and name; the name is empty for ``import module``."""
    for node in nodes_of(path):
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((node.module or "", alias.name) for alias in node.names)


def module_graph() -> Graph:
    """Which module imports which, wherever in the file, for types as well."""
    known = modules()
    graph: Graph = {}
    for name, path in known.items():
        found = set()
        for module, attribute in imported_names(path):
            whole = f"{module}.{attribute}"
            found.add(whole if whole in known else module)
        graph[name] = {other for other in found if other in known and other != name}
    return graph


def folder_graph(graph: Graph) -> Graph:
    """Which folder imports from which; a package's own `__init__.py`, which gathers what it exports, is left out."""
    known = modules()
    folders: Graph = defaultdict(set)
    for name, others in graph.items():
        if known[name].name == "__init__.py":
            continue
        here = name_of(known[name].parent)
        folders[here] |= {name_of(known[other].parent) for other in others if known[other].name != "__init__.py"}
        folders[here].discard(here)
    return folders


def circles(graph: Graph) -> list[tuple[str, str]]:
    """Pairs that reach each other."""

    def reached_from(start: str) -> set[str]:
        seen: set[str] = set()
        left = [start]
        while left:
            for other in graph.get(left.pop(), ()):
                if other not in seen:
                    seen.add(other)
                    left.append(other)
        return seen

    reach = {name: reached_from(name) for name in graph}
    return sorted((a, b) for a in reach for b in reach[a] if a < b and a in reach.get(b, ()))


def test_no_modules_know_each_other_in_a_circle() -> None:
    assert circles(module_graph()) == []


def test_no_folders_know_each_other_in_a_circle() -> None:
    assert circles(folder_graph(module_graph())) == []


@pytest.mark.parametrize("package", PACKAGES)
def test_no_folder_is_crowded(package: str) -> None:
    counts: dict[str, int] = defaultdict(int)
    for path in (ROOT / package).rglob("*.py"):
        if path.name != "__init__.py":
            counts[name_of(path.parent)] += 1
    crowded = {name: count for name, count in counts.items() if count > FILES_MAX}
    assert not crowded, f"give a noun a folder of its own: {crowded}"


def test_a_circle_is_found() -> None:
    graph = {"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": set()}
    assert circles(graph) == [("b", "c")]
