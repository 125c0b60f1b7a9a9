"""The rest of a shard: messages that nobody would deliver or read if it ended for good.

===============  =====================================================================================
``pending``      timed messages that are not due yet, or whose put failed
``levels``       messages of the fixed delay levels
``undecided``    half messages of transactions
``unread``       for each topic and group, messages that the group has not read
===============  =====================================================================================

A group counts for a topic if it has an offset in any queue of it. A topic that no group has read counts with all of its
messages: somebody may still want them. Groups that read by broadcasting keep their offsets themselves, so they are not
seen here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from store.half_messages import HALF_TOPIC, OP_TOPIC
from store.levels.delay_levels import SCHEDULE_TOPIC

if TYPE_CHECKING:
    from broker.tables.offsets import ConsumerOffsets
    from store.store_reader import StoreReader

__all__ = ["NO_GROUP", "unread"]

NO_GROUP = ""
"""Stands for the group of a topic that no group has read."""
_INNER = frozenset((HALF_TOPIC, OP_TOPIC, SCHEDULE_TOPIC))


def unread(store: StoreReader, offsets: ConsumerOffsets) -> list[dict[str, Any]]:
    """List what groups have not read, the most first: ``topic``, ``group`` and ``messages`` of each."""
    found = [
        {"topic": topic, "group": group, "messages": count}
        for topic in store.topics_on_disk()
        if topic not in _INNER
        for group, count in _of_topic(store, offsets, topic, offsets.groups_of_topic(topic) or [NO_GROUP])
        if count
    ]
    return sorted(found, key=lambda entry: -int(str(entry["messages"])))


def _of_topic(store: StoreReader, offsets: ConsumerOffsets, topic: str, groups: list[str]) -> Iterator[tuple[str, int]]:
    spans = [
        (queue, store.min_offset(topic, queue), store.max_offset(topic, queue)) for queue in store.queue_ids(topic)
    ]
    for group in groups:
        yield group, sum(max(0, end - max(begin, offsets.get(group, topic, queue))) for queue, begin, end in spans)
