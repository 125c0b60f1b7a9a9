"""The access-control file against YAML itself: it is read as YAML says, and what is hostile is refused."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from broker.access.acl_file import AclFileError, Loader, read_acl_file

PIECES = [
    "a: ",
    "b: ",
    "a:\n",
    "accounts:\n",
    "- ",
    "- a\n",
    "  - x=PUB|SUB\n",
    "x\n",
    "'q'\n",
    "'it''s'\n",
    '"d"\n',
    '"\\n"\n',
    "  ",
    "    ",
    "\n",
    "# c\n",
    " # c\n",
    "&a ",
    "*a",
    "*\n",
    "*.*\n",
    "10.*\n",
    "!t ",
    "!!int 3\n",
    "[1]\n",
    "{a: 1}\n",
    "|\n",
    "? ",
    "~\n",
    "null\n",
    "0123\n",
    "yes\n",
    "---\n",
    "...\n",
    "\t",
    "\x85",
    "\u2028",
    "%YAML 1.1\n",
    "k: v\n",
    "- k: v\n",
    "  k2: v\n",
    "x: y: z\n",
    ": ",
    "<<: ",
    "`\n",
    "@x\n",
    "\r\n",
    "\x0b",
    "-\n",
    "- - a\n",
    "a :  b\n",
    "a:b\n",
]
files = st.lists(st.sampled_from(PIECES), min_size=1, max_size=9).map("".join)


def as_meant(value: Any) -> Any:
    """YAML's texts with what stands for no value taken for that."""
    if isinstance(value, dict):
        return {key: as_meant(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [as_meant(inner) for inner in value]
    return None if value in ("", "~", "null") else value


def read(text: str, loader: Any) -> dict[str, Any] | None:
    try:
        return read_acl_file(text.encode(), loader)
    except AclFileError:
        return None


@given(files)
def test_what_is_read_is_what_yaml_says(text: str) -> None:
    found = read(text, Loader)
    if found is None or "*" in text:  # an address of stars is no YAML
        return
    assert as_meant(found) == as_meant(yaml.load(text, Loader=yaml.BaseLoader) or {})


@given(files)
def test_both_of_pyyamls_parsers_read_the_same(text: str) -> None:
    assert read(text, Loader) == read(text, yaml.SafeLoader)


LAUGHS = "a0: &a0 [x, x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]\n" for n in range(1, 40))
BLOCK_LAUGHS = "a0: &a0\n- x\n" + "".join(f"a{n}: &a{n}\n- *a{n - 1}\n- *a{n - 1}\n" for n in range(1, 40))


@pytest.mark.parametrize("loader", [Loader, yaml.SafeLoader])
@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (LAUGHS, "line 1: .*no simple value"),
        (BLOCK_LAUGHS, "line 1: .*no simple value|line 2: .*no simple value"),
        ("base: &x\n  a: b\nc:\n  <<: *x\n", "no simple value"),
        ("a: " + "[" * 1_000_000, "line 1: .*no simple value"),
        ("a: " + "{" * 1_000_000, "line 1: .*no simple value"),
        ("- " * 100_000 + "a", "line 1: expected keys, found a list"),
        ("a:\n" + "- " * 100_000 + "a", "line 2: nested too deep"),
        ("a: !!python/object/apply:os.system [id]", "no simple value"),
        ("? " * 100_000 + "a", "line 1: expected KEY: VALUE"),
        ("a: b\n---\na: c\n", "one document"),
        ("%TAG ! tag:x,2000:\n---\na: b\n", "one document without directives"),
        ("a: b\x00", "line 1: a character that YAML does not allow"),
        ("a: 'x\n  y'\n", "line 2: a text over several lines"),
        ("# " + "x" * (4 << 20), "at most 4194304 are read"),
    ],
    ids=range(14),
)
def test_what_is_hostile_is_refused(text: str, problem: str, loader: Any) -> None:
    with pytest.raises(AclFileError, match=problem):
        read_acl_file(text.encode(), loader)


def test_the_largest_file_is_read() -> None:
    rules = "a:\n" + "- x=PUB|SUB\n" * 1_000
    text = rules + "# " + "x" * ((4 << 20) - len(rules) - 2)
    assert len(read_acl_file(text.encode())["a"]) == 1_000
