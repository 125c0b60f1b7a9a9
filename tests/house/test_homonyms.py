"""A class has a name of its own: whoever reads it in another file need not ask which of two is meant."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from tests.house.test_architecture import ALL, name_of, tree_of


def _homonyms(paths: Iterable[Path]) -> dict[str, list[Path]]:
    """Public class names that more than one file defines."""
    found: dict[str, list[Path]] = defaultdict(list)
    for path in paths:
        for node in tree_of(path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].append(path)
    return {name: places for name, places in found.items() if len(places) > 1}


def test_no_class_name_stands_twice() -> None:
    found = _homonyms(ALL)
    wrong = [f"{name}: {', '.join(map(name_of, places))}" for name, places in found.items()]
    assert not wrong, "say what each is:\n" + "\n".join(wrong)


def test_a_homonym_is_found(tmp_path: Path) -> None:
    paths = [tmp_path / "one.py", tmp_path / "other.py"]
    for path in paths:
        path.write_text("class Segment: ...\nclass _Own: ...\n")
    assert _homonyms(paths) == {"Segment": paths}
