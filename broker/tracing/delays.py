"""Reads the delay from a delivered message whose sender traces it (W3C Trace Context in its properties)."""

from __future__ import annotations

import re
from typing import NamedTuple

from remoting.layout import QUEUE_OFFSET_AT, RECORD
from remoting.layout.table import LONG
from remoting.messages.message import RecordError, record_fields, store_ms_at
from remoting.messages.properties import KEYS, TAGS, TW_DUE, TW_ID, UNIQ_KEY, get_property
from remoting.messages.record import body_bounds
from store.disk.delay_id import parse_id_text

__all__ = ["TRACE_PARENT", "Delay", "Parent", "delay_of", "parent_of"]

TRACE_PARENT = "traceparent"
"""The property in which OpenTelemetry's instrumentation of RocketMQ's clients, and most others, put the context."""
TRACE_STATE = "tracestate"
_MARK = TRACE_PARENT.encode()
_FORM = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.ASCII | re.DOTALL)
_SAMPLED = 1
_BORN_MS = RECORD.picked("born_ms")
_TEXT_MAX = 512
"""Longest ``tracestate`` that is taken over, as the specification asks for at least."""


class Parent(NamedTuple):
    """The span that sent a message."""

    trace_id: int
    span_id: int
    flags: int
    state: str

    @property
    def is_sampled(self) -> bool:
        """True if the sender records this trace."""
        return bool(self.flags & _SAMPLED)


class Delay(NamedTuple):
    """A delivered message; times in epoch ms. ``born_ms`` is by the sender's clock."""

    parent: Parent
    delay_id: int
    topic: str
    queue_id: int
    queue_offset: int
    born_ms: int
    due_ms: int
    delivered_ms: int
    unique_key: str
    tag: str
    keys: str
    body_bytes: int


def parent_of(text: str, state: str = "") -> Parent | None:
    """Read a ``traceparent``; None if it is none: then the sender is not traced.

    >>> parent_of("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01").is_sampled
    True
    >>> parent_of("00-00000000000000000000000000000000-b7ad6b7169203331-01") is None
    True
    """
    found = _FORM.fullmatch(text)
    if found is None:
        return None
    version, trace, span, flags, more = found.groups()
    if version == "ff" or (version == "00" and more) or not int(trace, 16) or not int(span, 16):
        return None
    return Parent(int(trace, 16), int(span, 16), int(flags, 16), state if len(state) <= _TEXT_MAX else "")


def delay_of(record: bytes) -> Delay | None:
    """Read a record of the CommitLog; None unless it is a delayed message of a sender that traces."""
    if _MARK not in record:
        return None
    try:
        topic, queue_id, text = record_fields(record)
        begin, end = body_bounds(record)
    except RecordError:
        return None
    name, due = get_property(text, TW_ID), get_property(text, TW_DUE)
    parent = parent_of(get_property(text, TRACE_PARENT) or "", get_property(text, TRACE_STATE) or "")
    if parent is None or name is None or due is None:
        return None
    try:
        delay_id, due_ms = parse_id_text(name)[0], int(due)
    except ValueError:
        return None
    return Delay(
        parent=parent,
        delay_id=delay_id,
        topic=topic,
        queue_id=queue_id,
        queue_offset=LONG.unpack_from(record, QUEUE_OFFSET_AT)[0],
        born_ms=_BORN_MS.unpack_from(record)[0],
        due_ms=due_ms,
        delivered_ms=LONG.unpack_from(record, store_ms_at(record))[0],
        unique_key=get_property(text, UNIQ_KEY) or "",
        tag=get_property(text, TAGS) or "",
        keys=get_property(text, KEYS) or "",
        body_bytes=end - begin,
    )
