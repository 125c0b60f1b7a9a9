"""Answers about messages that are no longer pending: delivered, cancelled, or not known."""

from __future__ import annotations

from broker_plugin.rules.properties import own_properties_of
from remoting.layout import QUEUE_OFFSET_AT
from remoting.layout.table import LONG
from remoting.messages.message import record_fields, store_ms_at
from remoting.messages.properties import UNIQ_KEY, get_property
from store.put.pending_api import PendingAnswer, PendingName, PendingVerb, PendingVerdict

__all__ = ["cancelled", "delivered", "fits", "not_found", "unknown"]

_V = PendingVerdict


def fits(name: PendingName, topic: str, text: str) -> bool:
    """True if a message of this topic, with these properties, is one that the name may mean."""
    return name.topic in ("", topic) and (not name.unique_key or get_property(text, UNIQ_KEY) == name.unique_key)


def not_found() -> PendingAnswer:
    """The answer for a name that no message has: there is none at all, or it is another one.

    Which of the two it is is nobody's business who may see one topic only (`PendingName`).
    """
    return unknown("no message is or was pending under this name, or it is long gone")


def unknown(detail: str) -> PendingAnswer:
    """The answer for a message of which nothing more is known."""
    return PendingAnswer(verdict=_V.UNKNOWN, detail=detail)


def cancelled(verb: PendingVerb, offset: int, version: int, due_ms: int, when_ms: int) -> PendingAnswer:
    """The answer that says when a message was cancelled."""
    verdict = _V.ALREADY if verb is PendingVerb.CANCEL else _V.CANCELLED
    return PendingAnswer(
        verdict=verdict, detail="it was cancelled", offset=offset, version=version, due_ms=due_ms, when_ms=when_ms
    )


def delivered(name: PendingName, record: bytes) -> PendingAnswer:
    """The answer that says when and where a message was delivered."""
    topic, queue_id, text = record_fields(record)
    if not fits(name, topic, text):
        return not_found()
    own = own_properties_of(text) or (0, 0, 0)
    (queue_offset,) = LONG.unpack_from(record, QUEUE_OFFSET_AT)
    (when_ms,) = LONG.unpack_from(record, store_ms_at(record))
    return PendingAnswer(
        verdict=_V.TOO_LATE,
        detail="it was delivered",
        offset=name.offset,
        version=own[1],
        due_ms=own[2],
        when_ms=when_ms,
        where=f"{topic}/{queue_id}/{queue_offset}",
    )
