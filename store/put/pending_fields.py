"""Reads queries for pending messages from header fields, named as in docs/pending.md: one reader for all servers.

>>> query_of({"topic": "Orders", "dueToMs": "1700000000000"}).due_to_ms
1700000000000
"""

from __future__ import annotations

from collections.abc import Mapping

from remoting.messages.properties import parse_properties
from store.put.pending_api import PendingError, PendingQuery

__all__ = ["number_of", "query_of"]

NUMBER_CHARS_MAX = 20


def query_of(fields: Mapping[str, str]) -> PendingQuery:
    """Read a query from header fields; missing ones are no condition. Raises PendingError."""
    return PendingQuery(
        topic=fields.get("topic", ""),
        tag=fields.get("tag", ""),
        key_prefix=fields.get("keyPrefix", ""),
        due_from_ms=number_of(fields, "dueFromMs"),
        due_to_ms=number_of(fields, "dueToMs"),
        accepted_from_ms=number_of(fields, "acceptedFromMs"),
        accepted_to_ms=number_of(fields, "acceptedToMs"),
        properties=tuple(parse_properties(fields.get("properties", "")).items()),
    )


def number_of(fields: Mapping[str, str], name: str, otherwise: int | None = None) -> int | None:
    """Read a whole number; ``otherwise`` if the field is missing or empty. Raises PendingError."""
    text = fields.get(name, "")
    if not text:
        return otherwise
    digits = text.removeprefix("-")
    if len(text) > NUMBER_CHARS_MAX or not digits.isascii() or not digits.isdecimal():
        raise PendingError(f"{name} = {text!r:.40} is not a whole number of at most {NUMBER_CHARS_MAX} characters")
    return int(text)
