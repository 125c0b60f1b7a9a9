"""What one part asks of another stands in a type: nobody asks for a member by its name in a string.

A call of ``getattr`` is a protocol that no reader and no checker sees: when the member is renamed, the answer is the
default and the feature is gone. An optional member belongs into a protocol of its own (`store.put.plugin_api`), and is
asked for by ``isinstance``. Nor does anybody put another function in the place of an object's method.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.house.test_architecture import ALL, dotted, name_of, nodes_of

BY_NAME = {"getattr", "hasattr", "setattr", "delattr"}
PATCHES = ("method-assign", "attr-defined")
"""What mypy's complaint about a patched object is called, where it was silenced."""

ALLOWED = {
    ("broker/plugins.py", "hasattr(plugin, member)"): "names what a stranger's class lacks of the protocol",
    ("broker/plugins.py", "getattr(importlib.import_module(module_name), class_name, None)"): "loads by name",
    ("broker/cli/__init__.py", "getattr(importlib.import_module(module), attribute)"): "loads by name",
    ("broker/config/logs.py", "hasattr(record, 'in_file_only')"): "how logging hands on its ``extra``",
    ("broker_plugin/options.py", "getattr(defaults, name)"): "the default of each option, by the option's name",
    ("store/disk/system_calls.py", "getattr(ctypes.PyDLL(None, use_errno=True), 'preadv2', None)"): "not in every libc",
    ("store/disk/system_calls.py", "getattr(_LIBC, 'fallocate64', None)"): "not in every libc",
    ("store/disk/system_calls.py", "getattr(_LIBC, 'fallocate', None)"): "not in every libc",
    ("timewheel_client/net/connection.py", "getattr(socket, name, None)"): "options that not every system has",
    ("bench/lateness/logs/records.py", "getattr(self, name)"): "a slice of each column of a dataclass",
    ("bench/lateness/engines/session.py", "getattr(gateway, 'proc', None)"): "Spark's, and not in every release",
}
"""(file, call): why it may."""


def _found(path: Path) -> Iterator[tuple[int, str]]:
    """Calls by name, and silenced complaints about patches, with their lines."""
    text = path.read_text(encoding="utf-8")
    for node in nodes_of(path):
        if isinstance(node, ast.Call) and dotted(node.func) in BY_NAME:
            yield node.lineno, ast.unparse(node)
    for number, line in enumerate(text.splitlines(), 1):
        _, ignored, why = line.partition("# type: ignore[")
        if ignored and any(patch in why.partition("]")[0] for patch in PATCHES):
            yield number, line.strip()


def test_no_member_is_asked_for_by_a_string() -> None:
    found = {(name_of(path), what): line for path in ALL for line, what in _found(path)}
    wrong = [f"{name}:{line}: {what}" for (name, what), line in found.items() if (name, what) not in ALLOWED]
    assert not wrong, "give it a protocol:\n" + "\n".join(wrong)
    assert not ALLOWED.keys() - found.keys(), "allowed, and gone"


def test_a_hidden_protocol_is_found(tmp_path: Path) -> None:
    file = tmp_path / "wrong.py"
    file.write_text('close = getattr(running, "close", None)\nself.step = quick  # type: ignore[method-assign]\n')
    assert list(_found(file)) == [
        (1, "getattr(running, 'close', None)"),
        (2, "self.step = quick  # type: ignore[method-assign]"),
    ]
