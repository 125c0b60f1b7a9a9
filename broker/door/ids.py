"""A bulk change of named messages: ``POST bulk/{verb}`` with ``ids`` instead of a query."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from broker.pending.names import read_name
from http_door.queries import known_only, order_of
from store.put.pending_api import PendingError, PendingOrder, PendingVerb

__all__ = ["IDS_MAX", "ids_of", "is_dry", "orders_of"]

IDS_MAX = 1_000
"""Most ids of one request."""
_KNOWN = frozenset(("ids", "topic", "dry_run"))
_TIMES = frozenset(("due_ms", "by_ms"))


def ids_of(given: Mapping[str, Any]) -> list[str]:
    """Read the names of messages. Raises PendingError."""
    ids = given["ids"]
    if not isinstance(ids, list) or not all(isinstance(text, str) for text in ids):
        raise PendingError(f"ids: a list of texts is expected, found {ids!r:.60}")
    if not 1 <= len(ids) <= IDS_MAX:
        raise PendingError(f"ids: 1 to {IDS_MAX} are possible in one request, found {len(ids)}")
    return ids


def is_dry(given: Mapping[str, Any]) -> bool:
    """True if a request is a dry run, which is the default. Raises PendingError."""
    dry_run = given.get("dry_run", True)
    if not isinstance(dry_run, bool):
        raise PendingError(f"dry_run is true or false, found {dry_run!r:.60}")
    return dry_run


def orders_of(given: Mapping[str, Any], verb: PendingVerb, store_host: bytes) -> list[PendingOrder]:
    """Read the orders, one for each of the ids. Raises PendingError."""
    known_only(given, _KNOWN | (_TIMES if verb is PendingVerb.MOVE else frozenset()))
    topic = given.get("topic", "")
    if not isinstance(topic, str):
        raise PendingError(f"topic: a text is expected, found {topic!r:.60}")
    is_dry(given)
    times = {name: given[name] for name in _TIMES & given.keys()}
    return [order_of(verb, read_name(text, topic, store_host), times) for text in ids_of(given)]
