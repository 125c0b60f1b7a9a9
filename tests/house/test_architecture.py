"""The house rules that a machine can check: layers, who touches files, sockets and clocks, sizes, names.

The layer table is the one of docs/architecture.md. A rule that fails here is mended by moving the code, not
by widening the rule.
"""

from __future__ import annotations

import ast
import functools
import importlib
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

PACKAGES = (
    "timewheel",
    "remoting",
    "store",
    "timewheel_client",
    "http_door",
    "broker",
    "broker_plugin",
    "service",
    "bench",
)

MAY_IMPORT: dict[str, set[str]] = {
    "timewheel": set(),
    "remoting": {"isal", "orjson"},
    "store": {"remoting", "timewheel", "numpy"},
    "timewheel_client": {"remoting"},
    "http_door": {"remoting", "store", "aiohttp"},
    "broker": {
        "remoting",
        "store",
        "timewheel_client",
        "http_door",
        "aiofiles",
        "aiohttp",
        "click",
        "opentelemetry",
        "prometheus_client",
        "rich",
        "yaml",
    },
    "broker_plugin": {"store", "timewheel", "remoting"},
    "service": {
        "remoting",
        "store",
        "timewheel_client",
        "broker_plugin",
        "http_door",
        "aiohttp",
        "click",
        "prometheus_client",
    },
    "bench": {
        "remoting",
        "timewheel_client",
        "store",
        "timewheel",
        "numpy",
        "sortedcontainers",
        "click",
        "rich",
        "pyspark",
        "pyarrow",
        "fsspec",
        "matplotlib",
    },
}

# Packages of an extra that not every environment has.
OF_AN_EXTRA = {"aiohttp", "fsspec", "opentelemetry", "prometheus_client", "pyarrow", "pyspark"}

# Of remoting, a plug-in sees messages, their properties and where a record's fields stand, not the wire.
PLUGIN_SEES_OF_REMOTING = {
    "remoting.pending_rules",
    "remoting.layout",
    "remoting.layout.table",
    "remoting.messages.build",  # which build runs: the size of a block depends on it
    "remoting.messages.message",
    "remoting.messages.properties",
}

FILES = {"store/disk/files.py"}
OPEN_FILE = "store/disk/file.py"
ON_AN_OPEN_FILE = {"os.pwrite", "os.pwritev", "os.fdatasync", "os.ftruncate"}
"""What the class of one open file may call: it gets its descriptor from the file that opens."""
SOCKETS = {
    "broker/net/server.py",  # makes them
    "http_door/listening.py",  # makes those that HTTP is served on, by aiohttp in a thread of its own
    "broker/net/connection.py",
    "broker/net/listener.py",
    "broker/net/tls_connection.py",
    "service/front/wire.py",  # makes those that senders connect to
    "timewheel_client/net/connection.py",
}
TLS = {"broker/net/tls.py", "timewheel_client/net/tls.py"}  # they may know ssl, but no socket
CLOCKS = {"broker/net/clock.py", "broker_plugin/threads/clock.py", "service/link/clock.py"}
# The client and the command line are programs of their own: they may ask for the time.
FREE_OF_CLOCK_RULE = ("timewheel_client/", "broker/cli/", "bench/")

CLOCK_CALLS = {
    "time.time",
    "time.time_ns",
    "time.monotonic",
    "time.monotonic_ns",
    "time.perf_counter",
    "time.perf_counter_ns",
    "time.sleep",
    "datetime.now",
    "datetime.utcnow",
    "datetime.today",
    "datetime.datetime.now",
    "datetime.datetime.utcnow",
    "datetime.date.today",
}
FILE_CALLS = {
    "open",
    "io.open",
    "os.open",
    "os.fdopen",
    "os.write",
    "os.pwrite",
    "os.pwritev",
    "os.fsync",
    "os.fdatasync",
    "os.sync",
    "os.rename",
    "os.replace",
    "os.remove",
    "os.unlink",
    "os.truncate",
    "os.ftruncate",
    "os.posix_fallocate",
    "os.mkdir",
    "os.makedirs",
    "shutil.move",
    "shutil.rmtree",
}
FILE_METHODS = {"write_bytes", "write_text", "read_bytes", "read_text", "symlink_to", "hardlink_to"}


def sources(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


ALL = [path for package in PACKAGES for path in sources(package)]


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@functools.cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


@functools.cache
def nodes_of(path: Path) -> tuple[ast.AST, ...]:
    """Everything in a file's tree, walked once for all rules."""
    return tuple(ast.walk(tree_of(path)))


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """Every module that a file imports, absolute names, wherever in the file the import stands."""
    for node in nodes_of(path):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name_of(path)}:{node.lineno}: import absolutely"
            yield node.lineno, node.module or ""


def dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        inner = dotted(node.value)
        return f"{inner}.{node.attr}" if inner else node.attr
    return ""


def calls(path: Path) -> Iterator[tuple[int, str]]:
    """Every call of a file by its dotted name, with names that were imported from a module spelled out."""
    spelled: dict[str, str] = {}
    for node in nodes_of(path):
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                spelled[alias.asname or alias.name] = f"{node.module}.{alias.name}"
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.asname:
                    spelled[alias.asname] = alias.name
    for node in nodes_of(path):
        if isinstance(node, ast.Call):
            name = dotted(node.func)
            head, _, rest = name.partition(".")
            if head in spelled:
                name = spelled[head] + ("." + rest if rest else "")
            yield node.lineno, name


def test_there_is_something_to_check() -> None:
    assert len(ALL) > 40


def test_top_level_is_the_floor_plan() -> None:
    allowed = {
        *PACKAGES,
        "tests",
        "docs",
        "pyproject.toml",
        "README.md",
        "LICENSE",
        "CHANGELOG.md",
        "requirements.lock",
        "run",
        "setup.py",
    }
    found = {p.name for p in ROOT.iterdir() if not p.name.startswith(".")}
    built = {"build", "dist", "rocketmq_timewheel.egg-info", "target"}
    assert found - built <= allowed
    assert allowed <= found


def test_every_package_is_installed_and_typed() -> None:
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    found = {name_of(path.parent).replace("/", ".") for path in ALL}
    assert sorted(listed) == sorted(found)
    missing = [package for package in listed if not (ROOT / package.replace(".", "/") / "__init__.py").exists()]
    missing += [package for package in PACKAGES if not (ROOT / package / "py.typed").exists()]
    assert not missing


@pytest.mark.parametrize("package", PACKAGES)
def test_layers(package: str) -> None:
    may = MAY_IMPORT[package] | {package, "__future__"}
    wrong = [
        f"{name_of(path)}:{line}: {package} may not import {module}"
        for path in sources(package)
        for line, module in imports(path)
        if module.partition(".")[0] not in may and module.partition(".")[0] not in sys.stdlib_module_names
    ]
    assert not wrong, "\n".join(wrong)


def test_the_document_says_who_may_import_what() -> None:
    table = (ROOT / "docs" / "architecture.md").read_text("utf-8").partition("## Layers")[2]
    rows = [line.split("|") for line in table.splitlines() if line.startswith("| `")][: len(PACKAGES)]
    said = {cells[1].strip(" `"): {*re.findall(r"\w+", cells[3].lower())} for cells in rows}
    missing = {name: MAY_IMPORT[name] - said[name] - {"yaml"} for name in PACKAGES}
    assert not any(missing.values()), f"add it to the table in docs/architecture.md: {missing}"
    assert "pyyaml" in said["broker"]


def test_plugin_sees_messages_not_the_wire() -> None:
    wrong = [
        f"{name_of(path)}:{line}: {module}"
        for path in sources("broker_plugin")
        for line, module in imports(path)
        if module.startswith("remoting") and module not in PLUGIN_SEES_OF_REMOTING
    ]
    assert not wrong, "\n".join(wrong)


def test_one_file_of_the_store_touches_files() -> None:
    watched = [p for package in ("timewheel", "remoting", "store", "broker_plugin") for p in sources(package)]
    wrong = [
        f"{name_of(path)}:{line}: {name}"
        for path in watched
        if name_of(path) not in FILES
        for line, name in calls(path)
        if name in FILE_CALLS or name.rpartition(".")[2] in FILE_METHODS
        if name_of(path) != OPEN_FILE or name not in ON_AN_OPEN_FILE
    ]
    assert not wrong, "\n".join(wrong)


def test_one_file_each_touches_sockets() -> None:
    modules = {"socket", "select", "selectors", "socketserver", "ssl"}
    streams = {"asyncio.open_connection", "asyncio.start_server"}
    wrong = [
        f"{name_of(path)}:{line}: {module}"
        for package in PACKAGES
        if package != "bench"
        for path in sources(package)
        if name_of(path) not in SOCKETS
        for line, module in [
            *((line, m) for line, m in imports(path) if m in modules - ({"ssl"} if name_of(path) in TLS else set())),
            *((line, c) for line, c in calls(path) if c in streams or c.endswith((".create_server", ".sock_connect"))),
        ]
    ]
    assert not wrong, "\n".join(wrong)


def test_libraries_of_the_http_door_stay_in_it() -> None:
    """A broker without HTTP does not need them, and aiohttp has sockets of its own."""
    rooms = {
        "aiohttp": ("http_door/", "broker/door/", "service/door/"),
        "prometheus_client": ("broker/metrics/", "service/metrics/"),
        "opentelemetry": ("broker/tracing/",),
    }
    wrong = [
        f"{name_of(path)}:{line}: {module}"
        for package in ("broker", "service")
        for path in sources(package)
        for line, module in imports(path)
        for library, allowed in rooms.items()
        if module.partition(".")[0] == library and not name_of(path).startswith(allowed)
    ]
    wrong += [
        f"{name_of(path)}:{line}: {module}"
        for package in ("broker", "service")
        for path in sources(package)
        for line, module in imports(path)
        if module.startswith(("http_door.", "broker.door.", "broker.metrics.", "service.door.", "service.metrics."))
        and not name_of(path).startswith(OPEN_THE_DOOR)
        and not _is_for_types(path, line)
    ]
    assert not wrong, "\n".join(wrong)


OPEN_THE_DOOR = (
    "broker/door_opening.py",
    "broker/door/",
    "broker/metrics/",
    "service/command.py",
    "service/door/",
    "service/metrics/",
)
"""Who may know what needs the extra."""


def _is_for_types(path: Path, line: int) -> bool:
    return any(
        isinstance(node, ast.If)
        and dotted(node.test) == "TYPE_CHECKING"
        and node.lineno < line <= (node.end_lineno or 0)
        for node in nodes_of(path)
    )


def test_clocks_stand_in_their_files() -> None:
    wrong = [
        f"{name_of(path)}:{line}: {name}"
        for package in ("timewheel", "remoting", "store", "http_door", "broker", "broker_plugin")
        for path in sources(package)
        if name_of(path) not in CLOCKS and not name_of(path).startswith(FREE_OF_CLOCK_RULE)
        for line, name in calls(path)
        if name in CLOCK_CALLS
    ]
    assert not wrong, "\n".join(wrong)


def test_pure_packages_know_no_clock_at_all() -> None:
    wrong = [
        f"{name_of(path)}:{line}: {module}"
        for package in ("timewheel", "remoting", "store")
        for path in sources(package)
        for line, module in imports(path)
        if module == "time" or module.startswith("time.")
    ]
    assert not wrong, "\n".join(wrong)


def test_the_wheel_has_no_thread_and_no_io() -> None:
    forbidden = {"threading", "asyncio", "os", "io", "pathlib", "socket", "multiprocessing", "subprocess"}
    wrong = [
        f"{name_of(path)}:{line}: {module}"
        for package in ("timewheel", "remoting")
        for path in sources(package)
        for line, module in imports(path)
        if module.partition(".")[0] in forbidden
    ]
    assert not wrong, "\n".join(wrong)


def test_public_modules_guard_their_surface() -> None:
    wrong = []
    for path in ALL:
        only_text = all(isinstance(node, ast.Expr) for node in tree_of(path).body)
        if path.name == "__main__.py" or (path.name == "__init__.py" and only_text):
            continue
        names = {
            target.id
            for node in tree_of(path).body
            if isinstance(node, ast.Assign | ast.AnnAssign)
            for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
            if isinstance(target, ast.Name)
        }
        if "__all__" not in names:
            wrong.append(name_of(path))
    assert not wrong, "no __all__ in: " + ", ".join(wrong)


@pytest.mark.parametrize("path", ALL, ids=name_of)
def test_all_names_exist(path: Path) -> None:
    if path.name == "__main__.py":
        return
    module = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    try:
        loaded = importlib.import_module(module)
    except ModuleNotFoundError as error:
        # What only an extra brings may be missing in a quick run; the whole run installs it.
        if (error.name or "").partition(".")[0] in OF_AN_EXTRA:
            pytest.skip(f"{error.name} is not installed")
        raise
    for name in getattr(loaded, "__all__", ()):
        assert hasattr(loaded, name), f"{module}.__all__ names {name}, which is not there"


def silent_names(body: list[ast.stmt]) -> Iterator[tuple[int, str]]:
    """Classes and functions without a docstring, methods of private classes too; a setter's is at its property."""
    for node in body:
        if isinstance(node, ast.If | ast.Try):
            yield from silent_names([*node.body, *node.orelse])
        elif isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            elsewhere = any(dotted(d).endswith((".setter", "overload")) for d in node.decorator_list)
            if not node.name.startswith("_") and not ast.get_docstring(node) and not elsewhere:
                yield node.lineno, node.name
            if isinstance(node, ast.ClassDef):
                yield from silent_names(node.body)


def test_public_names_have_a_docstring() -> None:
    wrong = [f"{name_of(path)}:{line} {name}" for path in ALL for line, name in silent_names(tree_of(path).body)]
    assert not wrong, "\n".join(wrong)


def test_the_rule_sees_a_name_without_a_docstring() -> None:
    text = "class _A:\n    def shown(self): ...\n    def _own(self): ...\n    class B:\n        def deep(self): ...\n"
    assert list(silent_names(ast.parse(text).body)) == [(2, "shown"), (4, "B"), (5, "deep")]
