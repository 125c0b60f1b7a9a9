"""Documents name what is there: files, folders, modules and their names, tests, commands with their options."""

from __future__ import annotations

import ast
import builtins
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from broker import cli
from tests.house.test_architecture import ALL, PACKAGES, ROOT, name_of, nodes_of, tree_of

DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]

NO_MODULES = {"broker.conf", "timewheel.commands", "timewheel.plugins"}
"""What looks like a module and is none: a file, the groups of entry points."""

_TOPS = "|".join((*PACKAGES, "tests", "docs"))
_PATH = re.compile(rf"(?<![\w/.\-])(?:{_TOPS})/[\w/.\-]++(?![*{{<])")
_FILE = re.compile(r"(?<![\w/.\-*{}])\w+\.py(?!\w)")
_MODULE = re.compile(rf"(?<![\w/.\-@])(?:{_TOPS})(?:\.\w+)+")
_TEST = re.compile(r"(?<![\w/])test_\w+(?![\w.*])")
_COMMAND = re.compile(r"(?:\./run|(?<![\w./-])(?<!from )timewheel) +([a-z][\w-]*(?: +[^\s|;&`#<>]+)*)")
_RUN = {"test", "soak", "compile", "demo", "wheels"}
"""Words of `./run` itself; any other is a command of ``timewheel``."""


@functools.cache
def _trees_files() -> frozenset[str]:
    inside = {path.name for top in (*PACKAGES, "tests") for path in (ROOT / top).rglob("*.py")}
    return frozenset(inside | {path.name for path in ROOT.glob("*.py")})


@functools.cache
def _tests() -> frozenset[str]:
    """Test functions and test files, without their ending."""
    found = {path.stem for path in (ROOT / "tests").rglob("test_*.py")}
    for path in (ROOT / "tests").rglob("*.py"):
        found |= {
            node.name
            for node in nodes_of(path)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
        }
    return frozenset(found)


def _names_in(body: list[ast.stmt]) -> dict[str, list[ast.stmt]]:
    """What stands at the top of a module or class, each with what stands in it."""
    found: dict[str, list[ast.stmt]] = {}
    for node in body:
        if isinstance(node, ast.ClassDef):
            found[node.name] = node.body
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found[node.name] = []
        elif isinstance(node, ast.Assign):
            found |= {leaf.id: [] for target in node.targets for leaf in ast.walk(target) if isinstance(leaf, ast.Name)}
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found[node.target.id] = []
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found |= {alias.asname or alias.name: [] for alias in node.names}
    return found


def is_there(dotted: str) -> bool:
    """Whether a dotted name leads to a package, a module, or a name in one.

    What comes after a function or a value is not looked at: it depends on the object.
    """
    parts = dotted.split(".")
    place = ROOT
    while parts and (place / parts[0]).is_dir():
        place /= parts.pop(0)
    module = place / f"{parts[0]}.py" if parts else place / "__init__.py"
    if parts and module.exists():
        parts.pop(0)
    else:
        module = place / "__init__.py"
    if not parts:
        return True
    if not module.exists():
        return False
    names = _names_in(tree_of(module).body)
    return parts[0] in names and (len(parts) == 1 or not names[parts[0]] or parts[1] in _names_in(names[parts[0]]))


def _quoted(text: str) -> Iterator[str]:
    """What a document shows as code: blocks between fences, and what stands between single backticks elsewhere."""
    prose = []
    for i, part in enumerate(re.split(r"^```.*$", text, flags=re.MULTILINE)):
        if i % 2:
            yield part
        else:
            prose.append(part)
    for part in prose:
        yield from re.findall(r"`([^`]+)`", part)


def _gone_commands(code: str) -> Iterator[str]:
    """Commands and options of ``timewheel`` and ``./run`` that there are not."""
    for line in code.replace("\\\n", " ").split("\n"):
        for found in _COMMAND.finditer(line):
            words = found.group(1).split()
            command: click.Command = cli._timewheel
            context = click.Context(command)
            shown = []
            if line[found.start()] == "." and words[0] in _RUN - {"demo"}:
                continue
            while words and isinstance(command, click.Group):
                if words[0].startswith("-") or words[0].isupper() or words[0] in ("COMMAND", "..."):
                    break
                word = words.pop(0)
                shown.append(word)
                inner = command.get_command(context, word)
                if inner is None:
                    yield " ".join(shown)
                    break
                command = inner
                context = click.Context(inner, parent=context)
            else:
                if command.context_settings.get("ignore_unknown_options"):  # an extra is not installed
                    continue
                known = {option for param in command.params for option in (*param.opts, *param.secondary_opts)}
                known.add("--help")
                for word in words:
                    name = word.strip("[](),.:").partition("=")[0]
                    if re.fullmatch(r"--[a-z][\w-]*", name) and name not in known:
                        yield " ".join((*shown, name))


def gone(text: str) -> list[str]:
    """What a document names and is not there."""
    found: set[str] = set()
    for code in _quoted(text):
        found |= {
            path
            for path in (found.rstrip("./-") for found in _PATH.findall(code))
            if not path.startswith("timewheel/") or path.endswith(".py")  # a store has a folder of this name, too
            if not (ROOT / path).exists() and not (ROOT / path).with_suffix(".py").exists()
        }
        found |= {name for name in _FILE.findall(code) if name not in _trees_files()}
        found |= {
            name for name in _MODULE.findall(code) if not name.endswith(".py") and not is_there(name)
        } - NO_MODULES
        found |= {name for name in _TEST.findall(code) if name not in _tests()}
        found |= set(_gone_commands(code))
    return sorted(found)


@pytest.mark.parametrize("path", DOCUMENTS, ids=name_of)
def test_what_a_document_names_is_there(path: Path) -> None:
    assert gone(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    ("text", "missing"),
    [
        ("`store/log/commit_log.py`, `store/log`, `store.log.commit_log.CommitLog.append`, `commit_log.py`", []),
        ("`store/no_such.py`", ["store/no_such.py"]),
        ("`bench.no_such` and `store.log.commit_log.NoSuch`", ["bench.no_such", "store.log.commit_log.NoSuch"]),
        ("`test_no_such`", ["test_no_such"]),
        ("`./run test --quick`, `timewheel send --help`", []),
        ("```sh\n./run nosuch --flag\ntimewheel send \\\n  --no-such 1\n```", ["nosuch", "send --no-such"]),
    ],
)
def test_the_rule_sees_what_is_gone(text: str, missing: list[str]) -> None:
    assert gone(text) == missing


PROGRAMS = {"df"}
"""Names of other programs, as docstrings mark them."""


@functools.cache
def _words_of_the_source() -> frozenset[str]:
    """Every name that the source has, the folders and modules, and words that are texts of it (keys, fields)."""
    found = {*dir(builtins), *PROGRAMS, (ROOT / "bench/generator/native.c").read_text("utf-8")}
    for path in ALL:
        found.add(name_of(path))
        for node in nodes_of(path):
            if isinstance(node, ast.Name):
                found.add(node.id)
            elif isinstance(node, ast.Attribute):
                found.add(node.attr)
            elif isinstance(node, ast.arg):
                found.add(node.arg)
            elif isinstance(node, ast.alias | ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                found.add(node.name)
            elif isinstance(node, ast.ImportFrom):
                found.add(node.module or "")
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and " " not in node.value:
                found.add(node.value)
    return frozenset(re.findall(r"\w+", " ".join(found)))


def gone_names(text: str) -> list[str]:
    """Single names in a docstring, between single backticks, that the source does not have anywhere."""
    names = re.findall(r"(?<!`)`([A-Za-z_]\w*)(?:\(\))?`(?!`)", text)
    return [name for name in names if name not in _words_of_the_source()]


def test_a_single_name_in_a_docstring_is_there() -> None:
    wrong = [
        f"{name_of(path)}:{getattr(node, 'lineno', 1)}: {name}"
        for path in ALL
        for node in nodes_of(path)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        for name in gone_names(ast.get_docstring(node) or "")
    ]
    assert not wrong, "\n".join(wrong)


def test_a_single_name_that_is_gone_is_seen() -> None:
    assert gone_names("Call `no_such_name`, or `put_batch`, ``no_such_key``.") == ["no_such_name"]


@pytest.mark.parametrize("package", (*PACKAGES, "tests"))
def test_what_a_docstring_names_is_there(package: str) -> None:
    wrong = []
    for path in sorted((ROOT / package).rglob("*.py")):
        for node in nodes_of(path):
            if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            text = ast.get_docstring(node) or ""
            paths = {found.rstrip("./-") for found in _PATH.findall(text) if ".py" in found}
            quoted = " ".join(re.findall(r"`+([^`]+)`", text))
            modules = {name for name in _MODULE.findall(quoted) if not name.endswith(".py")}
            wrong += [f"{name_of(path)}: {name}" for name in paths if not (ROOT / name).exists()]
            wrong += [f"{name_of(path)}: {name}" for name in modules - NO_MODULES if not is_there(name)]
    assert not wrong, "\n".join(sorted(wrong))
