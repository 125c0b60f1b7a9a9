"""Reads ``plain_acl.yml``: the part of YAML that such files use, and nothing else.

Mappings and sequences by indentation, one plain or quoted scalar a line, comments. Every scalar is a text
(``12345678`` too: a secret key is no number, ``0123`` no octal one). All other features of YAML (flow collections,
anchors, tags, blocks of text, several documents, tabs) are errors with their line, so that no text in a file of rights
can be misread.
"""

from __future__ import annotations

import re
from typing import Any

from broker.config.key import ConfigError

__all__ = ["AclFileError", "quoted", "read_acl_file"]

_KEY = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)[ ]*:(?:[ ]+(.*))?$")
_FORBIDDEN_FIRST = "[]{}&*!|>%@`?,"
_DEPTH_MAX = 8


class AclFileError(ConfigError):
    """A file that cannot be read; the text names the line and what is wrong."""


def quoted(value: object, above: str = "") -> str:
    """A value for an error's text; hidden if it, or a key above it, may be a secret."""
    hidden = "secret" in f"{value!r} {above}".lower()
    return "what is not shown (it may be a secret)" if hidden else f"{value!r:.80}"


class _Line:
    __slots__ = ("indent", "number", "text")

    def __init__(self, number: int, indent: int, text: str) -> None:
        self.number = number
        self.indent = indent
        self.text = text


def read_acl_file(data: bytes) -> dict[str, Any]:
    """Read a file: dict, list, str and None (for no value). Raises AclFileError.

    >>> read_acl_file(b"accounts:\\n- accessKey: reader\\n  topicPerms:\\n  - a=PUB|SUB\\n")
    {'accounts': [{'accessKey': 'reader', 'topicPerms': ['a=PUB|SUB']}]}
    """
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise AclFileError(f"not UTF-8: {error}") from None
    lines = []
    for number, raw in enumerate(text.splitlines(), 1):
        line = _without_comment(raw, number).rstrip()
        if line.strip() and line != "---":
            indent = len(line) - len(line.lstrip(" "))
            if line[indent] == "\t":
                raise AclFileError(f"line {number}: indented by a tab")
            lines.append(_Line(number, indent, line[indent:]))
    if not lines:
        return {}
    reader = _Reader(lines)
    value = reader.block(lines[0].indent, 0)
    if reader.at < len(lines):
        raise AclFileError(f"line {lines[reader.at].number}: indentation that fits nothing before it")
    if not isinstance(value, dict):
        raise AclFileError(f"line {lines[0].number}: expected keys, found a list")
    return value


class _Reader:
    """Goes through the lines once."""

    def __init__(self, lines: list[_Line]) -> None:
        self._lines = lines
        self.at = 0

    def block(self, indent: int, depth: int) -> Any:
        """Read the mapping or sequence that begins here."""
        line = self._lines[self.at]
        if depth > _DEPTH_MAX:
            raise AclFileError(f"line {line.number}: nested too deep")
        if line.text == "-" or line.text.startswith("- "):
            return self._sequence(indent, depth)
        return self._mapping(indent, depth)

    def _sequence(self, indent: int, depth: int) -> list[Any]:
        if depth > _DEPTH_MAX:
            raise AclFileError(f"line {self._lines[self.at].number}: nested too deep")
        items: list[Any] = []
        while (line := self._here(indent)) is not None and (line.text == "-" or line.text.startswith("- ")):
            rest = line.text[1:].lstrip(" ")
            if not rest:
                self.at += 1
                items.append(self._deeper(indent, depth))
            elif _KEY.match(rest):
                # A mapping that begins behind the dash: its further keys follow below this one.
                self._lines[self.at] = _Line(line.number, indent + len(line.text) - len(rest), rest)
                items.append(self._mapping(self._lines[self.at].indent, depth + 1))
            else:
                self.at += 1
                items.append(_scalar(rest, line.number))
        return items

    def _mapping(self, indent: int, depth: int) -> dict[str, Any]:
        values: dict[str, Any] = {}
        while (line := self._here(indent)) is not None:
            found = _KEY.match(line.text)
            if found is None:
                if line.text == "-" or line.text.startswith("- "):
                    break
                above = self._lines[self.at - 1].text if self.at else ""
                raise AclFileError(f"line {line.number}: expected KEY: VALUE, found {quoted(line.text, above)}")
            key, rest = found[1], found[2]
            if key in values:
                raise AclFileError(f"line {line.number}: {key} stands there twice")
            self.at += 1
            values[key] = _scalar(rest, line.number, key) if rest else self._deeper(indent, depth)
        return values

    def _deeper(self, indent: int, depth: int) -> Any:
        """Read the block below a key or a dash without a value, if there is one. A list may have the key's
        indentation."""
        if self.at == len(self._lines):
            return None
        line = self._lines[self.at]
        if line.indent > indent:
            return self.block(line.indent, depth + 1)
        below_a_key = line.indent == indent and _KEY.match(self._lines[self.at - 1].text)
        if below_a_key and (line.text == "-" or line.text.startswith("- ")):
            return self._sequence(indent, depth + 1)
        return None

    def _here(self, indent: int) -> _Line | None:
        """The next line if it has this indentation; a deeper one is an error."""
        if self.at == len(self._lines):
            return None
        line = self._lines[self.at]
        if line.indent > indent:
            raise AclFileError(f"line {line.number}: indented more than what it belongs to")
        return line if line.indent == indent else None


def _without_comment(line: str, number: int) -> str:
    quote = ""
    for at, char in enumerate(line):
        if quote:
            if char == quote:
                quote = ""
        elif char in "'\"" and (at == 0 or line[at - 1] in " :-"):
            quote = char
        elif char == "#" and (at == 0 or line[at - 1] in " \t"):
            return line[:at]
    if quote:
        raise AclFileError(f"line {number}: a quote without its end")
    return line


def _scalar(text: str, number: int, key: str = "") -> str | None:
    if text[0] in "'\"":
        inner = text[1:-1]
        if len(text) < 2 or text[-1] != text[0] or text[0] in inner or "\\" in inner:
            raise AclFileError(f"line {number}: a quoted text with quotes or backslashes inside, or without its end")
        return inner
    plain_star = text[0] == "*" and re.fullmatch(r"[*.]+", text)  # an address; as an alias it would have a name
    if (text[0] in _FORBIDDEN_FIRST and not plain_star) or ": " in text or text.endswith(":"):
        advice = "write what is in brackets below its key, one a line" if text[0] in "[{" else "put it in quotes"
        raise AclFileError(f"line {number}: {quoted(text, key)} is no simple value; {advice}")
    return None if text in ("null", "~") else text
