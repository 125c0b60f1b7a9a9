from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.config.properties_file import PropertiesError, parse_properties_file


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a=b", {"a": "b"}),
        ("a = b ", {"a": "b "}),
        ("  a:b\r\nc d\re=f", {"a": "b", "c": "d", "e": "f"}),
        ("# no\n! no\n\n \t \na=#yes", {"a": "#yes"}),
        ("a", {"a": ""}),
        ("a=", {"a": ""}),
        ("=b", {"": "b"}),
        ("a==b", {"a": "=b"}),
        ("a b=c", {"a": "b=c"}),
        ("a\t=\tb=c d", {"a": "b=c d"}),
        (r"a\=b\:c\ d=e", {"a=b:c d": "e"}),
        (r"path=C\:\\x\tz\q", {"path": "C:\\x\tzq"}),
        (r"name=\u4e2d\u6587", {"name": "中文"}),
        ("list=1;\\\n   2;\\\n\t3\nnext=4", {"list": "1;2;3", "next": "4"}),
        ("a=b\\\\\nc=d", {"a": "b\\", "c": "d"}),
        ("a=b\\", {"a": "b"}),
        ("a=1\\\n# no comment", {"a": "1# no comment"}),
        ("# a comment is not continued \\\na=b", {"a": "b"}),
        ("a=1\na=2", {"a": "2"}),
    ],
)
def test_as_java_reads_it(text: str, expected: dict[str, str]) -> None:
    assert parse_properties_file(text.encode("iso-8859-1")) == expected


def test_comments_in_any_encoding_and_a_byte_order_mark() -> None:
    assert parse_properties_file("\ufeffa=b\n# 存储路径\nc=d".encode()) == {"a": "b", "c": "d"}


@pytest.mark.parametrize("text", [r"a=\u12", r"a=\u12x4", r"\u=b"])
def test_a_broken_escape(text: str) -> None:
    with pytest.raises(PropertiesError, match="four hex digits"):
        parse_properties_file(text.encode())


@given(st.binary(max_size=60))
def test_garbage_gives_the_parsers_own_error_or_none(data: bytes) -> None:
    try:
        parse_properties_file(data)
    except PropertiesError:
        pass


def escaped(text: str) -> str:
    return "".join(f"\\u{ord(char):04x}" if not char.isalnum() or ord(char) > 126 else char for char in text)


@given(
    st.dictionaries(
        st.text(st.characters(max_codepoint=0xFFFF, exclude_categories=["Cs"]), min_size=1),
        st.text(st.characters(max_codepoint=0xFFFF, exclude_categories=["Cs"])),
    )
)
def test_what_is_escaped_comes_back(pairs: dict[str, str]) -> None:
    data = "".join(f"{escaped(key)}={escaped(value)}\n" for key, value in pairs.items())
    assert parse_properties_file(data.encode("iso-8859-1")) == pairs


def test_a_line_that_goes_on_very_often_is_read_in_one_pass() -> None:
    """Whoever may send a configuration chooses it: half a million pieces took minutes when each was joined anew."""
    data = b"a=" + b"xy\\\n" * 500_000 + b"end\nb=1\n"
    assert parse_properties_file(data) == {"a": "xy" * 500_000 + "end", "b": "1"}
