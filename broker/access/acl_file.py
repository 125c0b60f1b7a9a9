"""Reads ``plain_acl.yml`` with PyYAML: mappings, sequences and texts, and no other part of YAML.

Every scalar is a text: a secret key ``12345678`` is no number, and ``0123`` is no octal number. Only ``~``, ``null``
and an empty value mean no value. PyYAML's parser gives only events; this module makes dicts, lists and strings of them.
So that no access rule can be misread, these are refused, with their line:

========================================  =========================================================================
anchors, aliases                          a few lines of them grow to gigabytes
tags (``!!python/object``)                they name types
flow collections, blocks of text,         not needed, and easy to get wrong in a file that is written by hand
keys that are no plain names, documents
a key twice                               one of the two would not count
a text over several lines                 most often a colon is missing
more than 8 levels, more than 4 MiB       nobody writes such rules
========================================  =========================================================================
"""

from __future__ import annotations

import re
from typing import Any

import yaml

try:  # libyaml's parser is 17 times as fast, and rules are read again while the broker serves
    from yaml import CSafeLoader as Loader
except ImportError:
    from yaml import SafeLoader as Loader

from broker.config.key import ConfigError

__all__ = ["AclFileError", "Loader", "quoted", "read_acl_file"]

_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_STARS = re.compile(r"^( *(?:- +)*(?:[A-Za-z_][A-Za-z0-9_]* *: +)?)(\*[*.]*)(?= *(?: #.*)?$)", re.MULTILINE)
"""An address of stars: YAML takes it for an alias without a name, Apache's documents show it without quotes."""
_TAB = re.compile(r"^ *(?:- +)*(?:[A-Za-z_][A-Za-z0-9_]* *:)? *\t", re.MULTILINE)
_FORBIDDEN_FIRST = "[]{}&*!|>%@`?,"
_QUOTES = "put it in quotes"
_DEPTH_MAX = 8
_BYTES_MAX = 4 << 20


class AclFileError(ConfigError):
    """A file that cannot be read; the text names the line and what is wrong."""


def quoted(value: object, above: str = "") -> str:
    """A value for an error's text; hidden if it, or the key above it, has to do with a secret."""
    hidden = "secret" in f"{value!r} {above}".lower()
    return "a value that is not shown (it may be a secret)" if hidden else f"{value!r:.80}"


def read_acl_file(data: bytes, loader: Any = Loader) -> dict[str, Any]:
    """Read a file: dict, list, str and None (for no value). Raises AclFileError.

    >>> read_acl_file(b"accounts:\\n- accessKey: reader\\n  topicPerms:\\n  - a=PUB|SUB\\n")
    {'accounts': [{'accessKey': 'reader', 'topicPerms': ['a=PUB|SUB']}]}
    """
    if len(data) > _BYTES_MAX:
        raise AclFileError(f"the file has {len(data)} bytes, at most {_BYTES_MAX} are read")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise AclFileError(f"not UTF-8: {error}") from None
    tab = _TAB.search(text)
    if tab:
        line = text.count("\n", 0, tab.end()) + 1
        raise AclFileError(f"line {line}: indented by a tab")
    text = _STARS.sub(r'\1"\2"', text)
    builder = _Builder(text)
    try:
        for event in yaml.parse(text, Loader=loader):
            builder.take(event)
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise AclFileError(f"line {line}: a character that YAML does not allow") from None
    except yaml.MarkedYAMLError as error:
        raise AclFileError(_trouble(error, text)) from None
    return builder.root


class _Builder:
    """Makes dicts, lists and texts of a parser's events, one after the other, without recursion."""

    def __init__(self, text: str) -> None:
        self.root: dict[str, Any] = {}
        self._text = text
        self._open: list[dict[str, Any] | list[Any]] = []
        self._keys: list[str | None] = []
        """For each open mapping the key of the next value; None for a list."""
        self._documents = 0

    def take(self, event: yaml.Event) -> None:
        """Take the next event. Raises AclFileError for parts of YAML that this file must not have."""
        if isinstance(event, yaml.ScalarEvent):
            self._scalar(event)
        elif isinstance(event, yaml.MappingStartEvent | yaml.SequenceStartEvent):
            self._begin(event)
        elif isinstance(event, yaml.MappingEndEvent | yaml.SequenceEndEvent):
            self._open.pop()
            self._keys.pop()
        elif isinstance(event, yaml.AliasEvent):
            raise self._not_simple(event)
        elif isinstance(event, yaml.DocumentStartEvent):
            self._documents += 1
            if event.version or event.tags or self._documents > 1:
                raise AclFileError(f"line {_line(event)}: one document without directives is expected")

    def _begin(self, event: Any) -> None:
        is_list = isinstance(event, yaml.SequenceStartEvent)
        if event.flow_style or event.anchor is not None or event.tag is not None:
            raise self._not_simple(event)
        if is_list and not self._open:
            raise AclFileError(f"line {_line(event)}: expected keys, found a list")
        if len(self._open) > _DEPTH_MAX:
            raise AclFileError(f"line {_line(event)}: nested too deep")
        made: dict[str, Any] | list[Any] = [] if is_list else {}
        if not self._open:
            assert isinstance(made, dict)
            self.root = made
        else:
            self._put(event, made)
        self._open.append(made)
        self._keys.append(None)

    def _scalar(self, event: Any) -> None:
        if self._open and isinstance(self._open[-1], dict) and self._keys[-1] is None:
            self._key(event)
            return
        begin, end = event.start_mark, event.end_mark
        written = self._text[begin.index : end.index]
        if not self._open and not written:
            return  # a document of comments
        if event.anchor is not None or event.tag is not None or event.style in ("|", ">"):
            raise self._not_simple(event)
        before = self._text[self._text.rfind("\n", 0, begin.index) + 1 : begin.index]
        if self._open and begin.line != end.line:
            trouble = "a text over several lines" if event.style else "indented more than its key"
            raise AclFileError(f"line {begin.line + 2}: {trouble}")
        if not self._open or (written and not before.strip()):
            found = quoted(written, " ".join(key or "" for key in self._keys))
            raise AclFileError(f"line {_line(event)}: expected KEY: VALUE, found {found}")
        if not event.style:
            if written[:1] in _FORBIDDEN_FIRST and written:
                raise self._not_simple(event)
            self._put(event, None if written in ("", "null", "~") else event.value)
            return
        if written[0] in written[1:-1] or "\\" in written:
            raise AclFileError(f"line {_line(event)}: a quoted text must not contain its own quote or a backslash")
        self._put(event, event.value)

    def _key(self, event: Any) -> None:
        mapping = self._open[-1]
        key, plain = event.value, not event.style and event.anchor is None and event.tag is None
        if not plain or not _KEY.fullmatch(key) or self._is_explicit(event):
            found = quoted(key, " ".join(key or "" for key in self._keys))
            raise AclFileError(f"line {_line(event)}: expected KEY: VALUE, found {found}")
        if key in mapping:
            raise AclFileError(f"line {_line(event)}: {key} is given twice")
        self._keys[-1] = key

    def _is_explicit(self, event: Any) -> bool:
        """True if a key stands behind a question mark, or not in front of a colon."""
        at = event.start_mark.index
        before = self._text[self._text.rfind("\n", 0, at) + 1 : at]
        return "?" in before or not self._text[event.end_mark.index :].lstrip(" ").startswith(":")

    def _put(self, event: Any, value: Any) -> None:
        target, key = self._open[-1], self._keys[-1]
        if isinstance(target, list):
            target.append(value)
            return
        if key is None:  # a list or a mapping as a key
            raise AclFileError(f"line {_line(event)}: expected KEY: VALUE")
        target[key] = value
        self._keys[-1] = None

    def _not_simple(self, event: Any) -> AclFileError:
        at = event.start_mark.index
        written = self._text[at:].split("\n", 1)[0]
        advice = "write each entry on its own line below the key" if written[:1] in ("[", "{") else _QUOTES
        found = quoted(written, " ".join(key or "" for key in self._keys))
        return AclFileError(f"line {_line(event)}: {found} is no simple value; {advice}")


def _line(event: Any) -> int:
    return int(event.start_mark.line) + 1


def _trouble(error: yaml.MarkedYAMLError, text: str) -> str:
    """The error of PyYAML or libyaml in our words. Text of the file is not shown, because it may be a secret."""
    problem, context = error.problem or "", error.context or ""
    if "quoted scalar" in context:
        return f"line {error.context_mark.line + 1}: a quote without its end"
    mark = error.problem_mark or error.context_mark
    lines = text.split("\n")
    number = min(mark.line, len(lines) - 1)
    line = lines[number]
    if "\t" in line[: len(line) - len(line.lstrip())]:
        trouble = "indented by a tab"
    elif "mapping values" in problem:
        trouble = f"no simple value; {_QUOTES}" if ": " in line[: mark.column] else "indented more than its key"
    elif "could not find expected ':'" in problem:
        trouble = "expected KEY: VALUE"
    elif "expected" in problem and any(
        word in problem for word in ("document start", "block end", "block mapping", "expected key", "'-' indicator")
    ):
        trouble = "its indentation fits no line above it"
    else:
        trouble = f"no simple value; {_QUOTES}"
    return f"line {number + 1}: {trouble}"
