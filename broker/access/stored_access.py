"""The topic to which an account needs rights for a stored message, once the message has been found by its place.

A client may name any number as a place in the log; `StoreReader.find_record` accepts only places that the store has
given out.
"""

from __future__ import annotations

from broker.tables.topic_names import HALF_TOPIC, SCHEDULE_TOPIC
from remoting.messages.message import StoredMessage
from remoting.messages.properties import REAL_TOPIC, get_property
from store.half_messages import DISCARD_TOPIC

__all__ = ["meant_topic"]

_ON_THEIR_WAY = frozenset((SCHEDULE_TOPIC, HALF_TOPIC, DISCARD_TOPIC))


def meant_topic(stored: StoredMessage) -> str:
    """The topic to which a message was sent, also while it waits for its time or its transaction."""
    if stored.topic in _ON_THEIR_WAY:
        return get_property(stored.properties, REAL_TOPIC) or stored.topic
    return stored.topic
