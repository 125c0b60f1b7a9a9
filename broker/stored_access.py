"""Whose a stored message is: the topic that an account needs rights to, once the message has been found by its place.

A place in the log is whatever number a client names. Records are told by their form, and an account may store a message
whose body has the form of a record: of a topic that it may read, and so long that it reaches over the messages stored
behind it. So a record found by its place counts only if the queue that it names has it at the number that it names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.topics import HALF_TOPIC, SCHEDULE_TOPIC
from remoting.errors import RecordError
from remoting.message import StoredMessage, decode_record
from remoting.properties import REAL_TOPIC, get_property
from store.half_messages import DISCARD_TOPIC

if TYPE_CHECKING:
    from store.message_store import MessageStore

__all__ = ["decode_queued", "meant_topic"]

_ON_THEIR_WAY = frozenset((SCHEDULE_TOPIC, HALF_TOPIC, DISCARD_TOPIC))


def decode_queued(store: MessageStore, record: bytes, offset: int) -> StoredMessage | None:
    """Read a record found at a place in the log; None unless it is the one that its queue has there. Any thread."""
    try:
        stored = decode_record(record)
    except RecordError:
        return None
    entry = store.entry(stored.topic, stored.queue_id, stored.queue_offset)
    return stored if entry is not None and entry[:2] == (offset, len(record)) else None


def meant_topic(stored: StoredMessage) -> str:
    """The topic that a message was sent to, also while it waits for its time or its transaction."""
    if stored.topic in _ON_THEIR_WAY:
        return get_property(stored.properties, REAL_TOPIC) or stored.topic
    return stored.topic
