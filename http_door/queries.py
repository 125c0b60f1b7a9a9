"""Reads requests as values of `store.put.pending_api`. `PendingError` says what is wrong with a request.

Times are epoch milliseconds. A value that looks like seconds, or that has more digits than a time can have, is refused:
nothing is guessed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from remoting.errors import ProtocolError
from remoting.json_dialect import dumps
from remoting.pending_rules import time_fault
from store.put.pending_api import PendingError, PendingName, PendingOrder, PendingQuery, PendingVerb

__all__ = [
    "FILTERS",
    "known_only",
    "limit_of",
    "moment_of",
    "order_of",
    "query_of",
    "read_document",
    "time_of",
    "whole",
]

DIGITS_MAX = 15
"""More than a time until the year 9999 has."""
TEXT_CHARS_MAX = 4096
FILTERS = frozenset(("topic", "tag", "key_prefix", "due_from", "due_to", "accepted_from", "accepted_to", "property"))
_TIMES = ("due_from", "due_to", "accepted_from", "accepted_to")


def whole(name: str, text: object, low: int, high: int) -> int:
    """Read a whole number. Raises PendingError."""
    number = text if isinstance(text, int) and not isinstance(text, bool) else None
    if isinstance(text, str) and len(text) <= DIGITS_MAX + 1 and re.fullmatch("-?[0-9]+", text, re.ASCII):
        number = int(text)
    if number is None or not low <= number <= high:
        raise PendingError(f"{name}: a whole number from {low} to {high} is expected, found {str(text)!r:.60}")
    return number


def time_of(name: str, text: object) -> int:
    """Read a time, epoch ms. Raises PendingError."""
    number = whole(name, text, -(10**DIGITS_MAX), 10**DIGITS_MAX)
    fault = time_fault(name, number)
    if fault:
        raise PendingError(fault)
    return number


def _text(name: str, text: object) -> str:
    if not isinstance(text, str) or len(text) > TEXT_CHARS_MAX:
        raise PendingError(
            f"{name}: a text of at most {TEXT_CHARS_MAX} characters is expected, found {str(text)!r:.60}"
        )
    return text


def known_only(given: Mapping[str, object], known: frozenset[str]) -> None:
    """Refuse unknown names: a misspelt filter would match everything. Raises PendingError."""
    seen = set()
    for name, _ in given.items():  # noqa: PERF102 - the keys of a MultiDict alone come once each
        if name not in known:
            raise PendingError(f"{name!r:.60} is unknown here; known: {', '.join(sorted(known))}")
        if name in seen and name != "property":
            raise PendingError(f"{name} is given twice: write it once")
        seen.add(name)


def limit_of(given: Mapping[str, object], usual: int, most: int) -> int:
    """Read ``limit``. Raises PendingError."""
    return whole("limit", given.get("limit", usual), 1, most)


def query_of(given: Mapping[str, Any], properties: list[str]) -> PendingQuery:
    """Read the filters; each of ``properties`` is ``name=value``. Raises PendingError."""
    times = {f"{name}_ms": time_of(name, given[name]) for name in _TIMES if given.get(name) not in (None, "")}
    pairs = []
    for text in properties:
        name, equals, value = _text("property", text).partition("=")
        if not name or not equals:
            raise PendingError(f"property: name=value is expected, found {text!r:.60}")
        pairs.append((name, value))
    return PendingQuery(
        topic=_text("topic", given.get("topic", "")),
        tag=_text("tag", given.get("tag", "")),
        key_prefix=_text("key_prefix", given.get("key_prefix", "")),
        properties=tuple(pairs),
        **times,
    )


def _number(text: str) -> int | str:
    """Read a number. One that is too long for a time stays a text, which is refused where a number is expected."""
    return int(text) if len(text) <= DIGITS_MAX + 1 else text


def read_document(body: bytes) -> dict[str, Any]:
    """Read the body of a request: a JSON object, or nothing. Raises PendingError."""
    if not body.strip():
        return {}
    try:
        found = json.loads(body, parse_int=_number)
    except json.JSONDecodeError as error:
        raise PendingError(
            f"the body is no JSON: it cannot be read on from line {error.lineno}, column {error.colno}"
        ) from None
    except ValueError:
        raise PendingError("the body is no JSON: it is not UTF-8") from None
    except RecursionError:
        raise PendingError("the body is no JSON that can be read: it is nested too deeply") from None
    if not isinstance(found, dict):
        raise PendingError(f"the body is no JSON object, but {type(found).__name__}")
    try:  # the names are part of the answer, too, and other shards are asked with the same document
        dumps(found)
    except ProtocolError as error:
        raise PendingError(f"the body {error}") from None
    return found


def order_of(verb: PendingVerb, name: PendingName, given: Mapping[str, Any]) -> PendingOrder:
    """Read an order for one message. Raises PendingError."""
    moves = verb is PendingVerb.MOVE
    known_only(given, frozenset(("version", "due_ms", "by_ms") if moves else ("version",)))
    version = None if given.get("version") is None else whole("version", given["version"], 0, 2**31 - 1)
    due_ms, by_ms = moment_of(given) if moves else (None, None)
    return PendingOrder(verb=verb, name=name, due_ms=due_ms, by_ms=by_ms, version=version)


def moment_of(given: Mapping[str, Any]) -> tuple[int | None, int | None]:
    """Read the new due time of a move: ``due_ms`` or ``by_ms``; the other is None. Raises PendingError."""
    due, by = given.get("due_ms"), given.get("by_ms")
    if (due is None) == (by is None):
        raise PendingError("a move needs either due_ms (when, milliseconds since 1970) or by_ms (by how much)")
    if by is not None:
        return None, whole("by_ms", by, -(10**14), 10**14)
    return time_of("due_ms", due), None
