"""Whose a stored message is: the topic that an account needs rights to, once the message has been found by its place.

A place in the log is whatever number a client names; `StoreReader.find_record` believes none that the store has not
given out.
"""

from __future__ import annotations

from broker.tables.topics import HALF_TOPIC, SCHEDULE_TOPIC
from remoting.messages.message import StoredMessage
from remoting.messages.properties import REAL_TOPIC, get_property
from store.half_messages import DISCARD_TOPIC

__all__ = ["meant_topic"]

_ON_THEIR_WAY = frozenset((SCHEDULE_TOPIC, HALF_TOPIC, DISCARD_TOPIC))


def meant_topic(stored: StoredMessage) -> str:
    """The topic that a message was sent to, also while it waits for its time or its transaction."""
    if stored.topic in _ON_THEIR_WAY:
        return get_property(stored.properties, REAL_TOPIC) or stored.topic
    return stored.topic
