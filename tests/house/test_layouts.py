"""Nobody knows the bytes on the disk by heart: what has an offset or a size there takes it from `remoting.layout`.

A file that owns another format (a frame of the wire, Apache's timer log, a file that only one of ours reads and writes)
is named here with that format. In it a struct may be spelled out; in every other file none may.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.house.test_architecture import ALL, dotted, name_of, tree_of

LAYOUT = "remoting/layout/"

OWN_FORMATS = {
    "bench/generator/intake.py": "frames of the wire",
    "bench/generator/lines.py": "the lines of other systems and their stamps",
    "bench/generator/pop_frames.py": "frames of the wire, and the two numbers of a body",
    "bench/generator/popper.py": "frames of the wire",
    "bench/generator/rocketmq.py": "batches and frames of the wire",
    "bench/lateness/logs/delays.py": "keys of a table in memory",
    "bench/lateness/counting/sums.py": "rows in memory",
    "bench/peers/naive.py": "the yardstick's own log",
    "bench/peers/wire.py": "frames of the wire",
    "bench/plain_lateness.py": "an independent reader, which checks the others",
    "broker/config/broker_config.py": "an address of the kernel's",
    "broker/naming/registration.py": "the deflated form of a registration",
    "broker/net/connection.py": "an option of a socket",
    "remoting/messages/batch.py": "a client's batch",
    "remoting/command.py": "frames of the wire",
    "remoting/connection.py": "frames of the wire",
    "remoting/send_reply.py": "frames of the wire",
    "remoting/hosts.py": "message ids",
    "remoting/messages/uniform_batch.py": "a client's batch",
    "service/core/progress.py": "a list of numbers in its own records",
    "store/disk/apache_files.py": "Apache's checkpoint and timer log",
    "store/half_messages.py": "its section of the checkpoint",
    "store/progress.py": "the file timewheel/progress",
}

STRUCT_CALLS = {"Struct", "pack", "unpack", "pack_into", "unpack_from", "iter_unpack", "calcsize"}
RECORDS = {"buffer", "data", "head", "patched", "raw", "record"}
"""Names that the code gives to bytes of a record, an entry or a frame."""
BEGINNINGS = {"data[:8]", "data[:80]", "data[:200]"}
"""As much of bytes that are not understood as an error shows."""


def spelled_out(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Each struct format, dtype, offset or slice of a record that a file spells out as a number or a text."""
    bare = {
        alias.asname or alias.name
        for node in tree.body
        if isinstance(node, ast.ImportFrom) and node.module == "struct"
        for alias in node.names
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign | ast.AnnAssign):
            yield from _named_places(node)
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr | ast.Add | ast.Sub):
            if any(ast.unparse(part) == "1 << 62" for part in (node.left, node.right)):
                yield node.lineno, f"a delay id: {ast.unparse(node)}"
        elif isinstance(node, ast.Call):
            name = dotted(node.func)
            last = name.rpartition(".")[2]
            if last == "Struct" or name in {f"struct.{call}" for call in STRUCT_CALLS} | STRUCT_CALLS & bare:
                if any(isinstance(part, ast.Constant | ast.JoinedStr) for part in node.args):
                    yield node.lineno, f"a struct: {ast.unparse(node)}"
            elif last in ("unpack_from", "pack_into") and any(_is_place(part) for part in node.args[1:2]):
                yield node.lineno, f"an offset: {ast.unparse(node)}"
            elif last == "dtype" and any(isinstance(part, ast.List) for part in node.args):
                yield node.lineno, f"a dtype: {ast.unparse(node)}"
        elif isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) and node.value.id in RECORDS:
            if ast.unparse(node) in BEGINNINGS:
                continue
            parts = [node.slice.lower, node.slice.upper] if isinstance(node.slice, ast.Slice) else [node.slice]
            if any(part is not None and _is_place(part) for part in parts):
                yield node.lineno, f"an offset: {ast.unparse(node)}"


def _named_places(node: ast.Assign | ast.AnnAssign) -> Iterator[tuple[int, str]]:
    """Names of a place or of a row's size (``…_AT``, ``…ROW_BYTES``) that get a number."""
    for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
        names = target.elts if isinstance(target, ast.Tuple) else [target]
        values = node.value.elts if isinstance(node.value, ast.Tuple) else [node.value] * len(names)
        for name, value in zip(names, values, strict=False):
            is_place = isinstance(name, ast.Name) and name.id.endswith(("_AT", "ROW_BYTES", "HEAD_BYTES"))
            if is_place and value is not None and _is_place(value):
                yield node.lineno, f"an offset or a size: {ast.unparse(name)} = {ast.unparse(value)}"


def _is_place(node: ast.expr) -> bool:
    """Whether an expression is a number above 3, or adds one: a place in a structure (0 to 3 is the first word)."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub):
        return _is_place(node.left) or _is_place(node.right)
    return isinstance(node, ast.Constant) and isinstance(node.value, int) and node.value > 3


@pytest.mark.parametrize("path", ALL, ids=name_of)
def test_offsets_and_formats_stand_in_the_layout(path: Path) -> None:
    found = [f"{name_of(path)}:{line}: {what}" for line, what in spelled_out(tree_of(path))]
    if name_of(path).startswith(LAYOUT):
        return
    if name_of(path) in OWN_FORMATS:
        assert found, f"{name_of(path)} spells out nothing any more: take it off the list"
    else:
        assert not found, "take it from remoting.layout: " + "\n".join(found)


@pytest.mark.parametrize(
    "text",
    [
        '_HEAD = Struct(">iIq")',
        '_HEAD = struct.Struct(">iIq")',
        "struct.unpack_from('>q', record, 28)",
        "(number,) = LONG.unpack_from(record, 20)",
        "LONG.pack_into(buffer, at + 20, 1)",
        "flag = record[39] & 16",
        "at = 68 if record[at + 39] & 16 else 56",
        "place = record[28:36]",
        "copy = record[:28] + place",
        '_ROWS = np.dtype([("due", "<i8")])',
        'from struct import pack\nhead = pack(f">{count}q", *numbers)',
        "_BODY_AT = 88",
        "_STORED_AT, _BODY_AT = 56, 88",
        "ROW_BYTES: Final = 28",
        "first = 1 << 62 | epoch << 40",
        "low = rows.ids - (1 << 62)",
    ],
)
def test_the_rule_sees_what_it_is_for(text: str) -> None:
    assert list(spelled_out(ast.parse(text)))


@pytest.mark.parametrize(
    "text",
    [
        "RECORD.struct()",
        "record[STORE_HOST_AT]",
        "LONG.unpack_from(record, OFFSET_AT)",
        "record[-1] != 2",
        "data[:1]",
        "from struct import error\nraise error('no')",
        '_CRC_AT = RECORD.at("crc")',
        "_NEVER = 1 << 62",
    ],
)
def test_the_rule_lets_names_through(text: str) -> None:
    assert not list(spelled_out(ast.parse(text)))
