"""The JSON of bodies: standard and compact going out, Apache's dialect (fastjson) coming in.

fastjson writes three things that JSON does not know: integer keys without quotes (``{0:5}``), objects as keys
(``{{"brokerName":"b","queueId":0,"topic":"t"}:5}``) and references to earlier objects (``{"$ref":"$.a"}``). Java
clients and tools expect the second where a map is keyed by a message queue; `dump_queue_map` writes it. Reading,
an integer key becomes its text, an object key its compact JSON text with sorted names (`queue_map` gives such
maps back as pairs), and a reference stays the object that it is.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

import orjson

from remoting.errors import ProtocolError

__all__ = [
    "BODY_BYTES_MAX",
    "CONTAINERS_MAX",
    "DIALECT_BYTES_MAX",
    "FLAT_BYTES_MAX",
    "dump_queue_map",
    "dumps",
    "loads",
    "loads_apart",
    "loads_body",
    "queue_key",
    "queue_map",
]

_MAX_DEPTH = 64
DIALECT_BYTES_MAX = 16 << 10
"""Most bytes of a request's body in the dialect: reading takes half a microsecond a byte, and other requests wait."""
BODY_BYTES_MAX = 128 << 10
"""Most bytes of a request's body of JSON: lists in lists take up to 100 ns a byte."""
FLAT_BYTES_MAX = 1 << 20
"""Most bytes where long lists are expected, with few lists and objects in it (`CONTAINERS_MAX`)."""
CONTAINERS_MAX = 25_000
_BLANK = re.compile(r"[ \t\r\n]*")
_WORD = re.compile(r"[^\s,:{}\[\]\"']+")
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)
_QUOTED = re.compile(r"'((?:[^'\\]|\\.)*)'", re.DOTALL)


def dumps(value: Any) -> bytes:
    """Write standard compact JSON; raises ProtocolError for what JSON cannot hold."""
    try:
        return orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS)
    except TypeError as error:
        raise ProtocolError(f"cannot be written as JSON: {error}") from error


def queue_key(topic: str, broker_name: str, queue_id: int) -> str:
    """Write a message queue as it stands as a key of a fastjson map."""
    return dumps({"brokerName": broker_name, "queueId": queue_id, "topic": topic}).decode()


def dump_queue_map(
    name: str,
    pairs: Iterable[tuple[tuple[str, str, int], Any]],
    more: Mapping[str, Any] | None = None,
) -> bytes:
    """Write ``{name:{{queue}:value,…},…}`` for ((topic, broker name, queue id), value) pairs, ``more`` behind it."""
    entries = b",".join(queue_key(*queue).encode() + b":" + dumps(value) for queue, value in pairs)
    tail = b"".join(b"," + dumps(key) + b":" + dumps(value) for key, value in (more or {}).items())
    return b"{" + dumps(name) + b":{" + entries + b"}" + tail + b"}"


def queue_map(mapping: Mapping[str, Any]) -> list[tuple[tuple[str, str, int], Any]]:
    """Read a map keyed by message queues, as `loads` gives it, into ((topic, broker name, queue id), value) pairs.

    Raises ProtocolError if a key is no message queue.
    """
    pairs = []
    for key, value in mapping.items():
        try:
            queue = orjson.loads(key)
            pairs.append(((str(queue["topic"]), str(queue["brokerName"]), int(queue["queueId"])), value))
        except (ValueError, TypeError, KeyError, OverflowError) as error:
            raise ProtocolError(f"not a message queue: {key!r:.200}") from error
    return pairs


def loads(data: bytes | bytearray | memoryview) -> Any:
    """Read JSON or its fastjson dialect; raises ProtocolError."""
    return _read_dialect(data, True)


def loads_body(data: bytes, most: int = BODY_BYTES_MAX) -> Any:
    """Read a request's body while other requests wait; raises ProtocolError, also for one that would take long.

    Lists of what an administrator or a broker configures may be longer: `loads_apart`.
    """
    if len(data) > most:
        raise ProtocolError(f"a body of {len(data)} bytes of JSON, at most {most} are taken")
    if len(data) > BODY_BYTES_MAX and not _is_flat(data):
        raise ProtocolError(
            f"a body of {len(data)} bytes of JSON with more than {CONTAINERS_MAX} lists and objects: send it in parts"
        )
    try:
        return orjson.loads(data)
    except ValueError:
        pass
    if len(data) > DIALECT_BYTES_MAX:
        raise ProtocolError(
            f"not standard JSON, and of fastjson's dialect at most {DIALECT_BYTES_MAX} bytes are taken, "
            f"not {len(data)}: {data[:200]!r}"
        )
    return loads(data)


def loads_apart(data: bytes) -> Any:
    """Read a body of any size in a thread of its own; raises ProtocolError.

    The trick: orjson holds the interpreter lock until it has read everything. So a long text is read by our own reader
    in Python, which takes a hundred times as long but lets other threads run meanwhile.
    """
    size = len(data)
    if size <= DIALECT_BYTES_MAX:
        return loads_body(data)
    return _read_dialect(data, size <= BODY_BYTES_MAX or (size <= FLAT_BYTES_MAX and _is_flat(data)))


def _is_flat(data: bytes) -> bool:
    """True if a text has few lists and objects, counting also brackets inside strings."""
    return data.count(b"[") + data.count(b"{") <= CONTAINERS_MAX


def _read_dialect(data: bytes | bytearray | memoryview, standard_first: bool) -> Any:
    if standard_first:
        try:
            return orjson.loads(data)
        except ValueError:
            pass
    try:
        return _Reader(str(data, "utf-8", "replace")).document()
    except (ValueError, TypeError) as error:
        raise ProtocolError(f"not JSON: {error}: {bytes(data[:200])!r}") from error


class _Reader:
    """A small reader of the dialect; only texts that are not standard JSON come here."""

    __slots__ = ("_at", "_in_key", "_text")

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._in_key = False

    def document(self) -> Any:
        """Read the whole text as one value. Raises ValueError."""
        value = self._value(0)
        if self._peek():
            raise ValueError(f"something follows the document at {self._at}")
        return value

    def _peek(self) -> str:
        """Skip blanks and look at the next character; empty at the end."""
        match = _BLANK.match(self._text, self._at)
        assert match is not None  # the pattern matches nothing at least
        self._at = match.end()
        return self._text[self._at : self._at + 1]

    def _value(self, depth: int) -> Any:
        if depth > _MAX_DEPTH:
            raise ValueError(f"nested deeper than {_MAX_DEPTH}")
        first = self._peek()
        if first == "{":
            return self._object(depth)
        if first == "[":
            return self._array(depth)
        if first == '"':
            return self._string()
        if first == "'":
            return self._quoted()
        return _scalar(self._word())

    def _object(self, depth: int) -> dict[str, Any]:
        self._at += 1
        found: dict[str, Any] = {}
        # At the end of the text `first` is empty, and reading a word raises.
        while (first := self._peek()) != "}":
            if first == "{":
                key = self._object_key(depth)
            elif first == '"':
                key = self._string()
            elif first == "'":
                key = self._quoted()
            else:
                key = self._word()
            self._expect(":")
            found[key] = self._value(depth + 1)
            if self._peek() != "}":
                self._expect(",")
        self._at += 1
        return found

    def _object_key(self, depth: int) -> str:
        """Read an object that stands for a key; in there, no other may: each level would double the text's quotes."""
        if self._in_key:
            raise ValueError(f"an object for a key within another one at {self._at}")
        self._in_key = True
        value = self._value(depth + 1)
        self._in_key = False
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode()

    def _array(self, depth: int) -> list[Any]:
        self._at += 1
        found: list[Any] = []
        while self._peek() != "]":
            found.append(self._value(depth + 1))
            if self._peek() != "]":
                self._expect(",")
        self._at += 1
        return found

    def _expect(self, character: str) -> None:
        if self._peek() != character:
            raise ValueError(f"{character!r} expected at {self._at}")
        self._at += 1

    def _string(self) -> str:
        match = _STRING.match(self._text, self._at)
        if match is None:
            raise ValueError(f"text without end at {self._at}")
        self._at = match.end()
        text = json.loads(match.group(), strict=False)
        # A lone surrogate becomes U+FFFD: UTF-8 cannot hold it.
        return str(text).encode("utf-16", "surrogatepass").decode("utf-16", "replace")

    def _quoted(self) -> str:
        match = _QUOTED.match(self._text, self._at)
        if match is None:
            raise ValueError(f"text without end at {self._at}")
        self._at = match.end()
        return match.group(1).replace("\\'", "'")

    def _word(self) -> str:
        match = _WORD.match(self._text, self._at)
        if match is None:
            raise ValueError(f"nothing to read at {self._at}")
        self._at = match.end()
        return match.group()


def _scalar(word: str) -> Any:
    """Read true, false, null or a number, with the L, F, D that fastjson may put behind one."""
    if word in ("true", "false", "null"):
        return {"true": True, "false": False, "null": None}[word]
    digits = word[:-1] if word[-1] in "LFDSB" else word
    try:
        return int(digits) if digits.lstrip("-").isdecimal() else float(digits)
    except ValueError:
        raise ValueError(f"not a value: {word!r:.50}") from None
