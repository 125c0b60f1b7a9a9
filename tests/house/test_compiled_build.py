"""The list of what a compiled build makes native: only modules that are there, and that mypyc can take."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from pathlib import Path

from remoting.messages.build import build_name
from tests.house.test_architecture import ROOT, nodes_of

PACKAGES = (
    "bench",
    "broker",
    "broker_plugin",
    "http_door",
    "remoting",
    "service",
    "store",
    "timewheel",
    "timewheel_client",
)


def compiled_modules() -> list[str]:
    names = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["timewheel"]["compiled"]
    assert isinstance(names, list)
    return names


def test_the_listed_modules_exist_and_none_twice() -> None:
    names = compiled_modules()
    assert names == sorted(set(names))
    assert [name for name in names if not (ROOT / name).is_file()] == []


def test_none_of_them_defines_a_protocol_or_asks_for_slots() -> None:
    for name in compiled_modules():
        text = (ROOT / name).read_text()
        assert "runtime_checkable" not in text, name
        assert not re.search(r"\.__slots__", text), name


def test_a_checkout_runs_from_its_sources() -> None:
    loaded = sys.modules["remoting.messages.build"].__file__ or ""
    if Path(loaded).is_relative_to(ROOT / "remoting"):
        assert build_name() == "pure Python"


def test_no_interpreted_class_inherits_from_a_native_one() -> None:
    native, others = set(compiled_modules()), []
    nodes = {path: nodes_of(path) for package in PACKAGES for path in (ROOT / package).rglob("*.py")}
    classes = {
        node.name
        for path, found in nodes.items()
        if str(path.relative_to(ROOT)) in native
        for node in found
        if isinstance(node, ast.ClassDef)
    }
    for path, found in nodes.items():
        if str(path.relative_to(ROOT)) not in native:
            bases = [base for node in found if isinstance(node, ast.ClassDef) for base in node.bases]
            others += [f"{path.name}: {base.id}" for base in bases if isinstance(base, ast.Name) and base.id in classes]
    assert others == []
