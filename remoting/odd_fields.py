"""The extFields of a JSON header whose values are not all strings: read slowly, and within limits."""

from __future__ import annotations

import json
from typing import Any

from remoting.errors import ProtocolError

__all__ = ["check_size", "ext_as_text"]

NUMBERS_HEADER_MAX_BYTES = 128 << 10
"""The longest JSON header with non-string values in extFields, which are read slowly."""
NESTED_HEADER_MAX_BYTES = 16 << 10
"""The longest JSON header with lists or objects in it, which no client sends."""


def check_size(header: bytes, fields: dict[str, Any]) -> None:
    """Raise ProtocolError for a header that would take long to read: no signature has been checked yet."""
    ext = fields["extFields"]
    if type(ext) is not dict:
        raise ProtocolError(f"extFields must be an object: {header!r:.200}")
    most = NUMBERS_HEADER_MAX_BYTES
    if any(type(value) in (list, dict) for table in (fields, ext) for value in table.values() if value is not ext):
        most = NESTED_HEADER_MAX_BYTES
    if len(header) > most:
        what = "lists or objects" if most == NESTED_HEADER_MAX_BYTES else "numbers or booleans"
        raise ProtocolError(f"header of {len(header)} bytes with {what} for texts, at most {most} are read")


def ext_as_text(header: bytes) -> dict[str, str]:
    """Read extFields with non-string values: numbers keep their original text, other values become JSON text.

    Raises ProtocolError if the header cannot be read.
    """
    try:
        ext = json.loads(header, parse_int=str, parse_float=str, parse_constant=str).get("extFields")
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"header is not JSON: {header!r:.200}") from error
    if not isinstance(ext, dict):
        raise ProtocolError(f"extFields must be an object: {header!r:.200}")
    texts: dict[str, str] = {}
    whole: dict[str, Any] = {}  # the same, read without keeping numbers as texts; once, however many need it
    for name, value in ext.items():
        if isinstance(value, str):
            texts[name] = value
        elif isinstance(value, bool):
            texts[name] = "true" if value else "false"
        elif value is not None:
            whole = whole or _whole_ext(header)
            texts[name] = _json_text(whole, name)
    return texts


def _whole_ext(header: bytes) -> dict[str, Any]:
    try:
        ext: dict[str, Any] = json.loads(header)["extFields"]
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"extFields cannot be read: {error}: {header!r:.200}") from error
    return ext


def _json_text(ext: dict[str, Any], name: str) -> str:
    """Write a list or an object in extFields as the JSON text that Java's library makes of it."""
    try:
        return json.dumps(ext[name], ensure_ascii=False, separators=(",", ":"))
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"extFields value of {name!r:.100} cannot be read: {error}") from error
