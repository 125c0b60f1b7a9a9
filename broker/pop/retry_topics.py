"""`RetryTopics`: finds the retry topics to delete together with a topic.

Messages of a topic that are delivered again to a popping group are stored in ``%RETRY%group_topic``. Such a name is
ambiguous: ``%RETRY%app_eu_orders`` may belong to the group ``app_eu`` and the topic ``orders``, or to ``app`` and
``eu_orders``, or it may hold messages that the group ``app_eu_orders`` has sent back. If another reading is in use, the
topic is kept: its messages have no other copy.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

from broker.pop.handle import RETRY_V1, RETRY_V2, retry_topic
from broker.tables.topic_names import RETRY_PREFIX

if TYPE_CHECKING:
    from broker.tables.groups import SubscriptionGroups
    from broker.tables.offsets import ConsumerOffsets
    from broker.tables.topics import Topics

__all__ = ["RetryTopics"]


class RetryTopics:
    """Finds the retry topics of a topic. Network loop only.

    Args:
        topics, groups, offsets: The broker's tables.
    """

    def __init__(self, topics: Topics, groups: SubscriptionGroups, offsets: ConsumerOffsets) -> None:
        self._topics = topics
        self._groups = groups
        self._offsets = offsets
        self._as_of = -1, -1
        self._backwards: list[str] = []  # names of all retry topics, each reversed, sorted

    def of(self, topic: str) -> list[str]:
        """List the retry topics of a topic, including those of groups that no longer have offsets."""
        known = [
            name
            for group in self._offsets.groups_of_topic(topic)
            for name in (retry_topic(topic, group, version) for version in (RETRY_V1, RETRY_V2))
            if self._topics.newest(name) is not None
        ]
        found = dict.fromkeys([*known, *self._ending("_" + topic), *self._ending("+" + topic)])
        return [name for name in found if not self._is_of_another(name, topic)]

    def _ending(self, end: str) -> list[str]:
        table = self._topics.table
        as_of = self._topics.data_version.counter, len(table)
        if self._as_of != as_of:  # hundreds of topics may be deleted at once
            self._backwards = sorted(name[::-1] for name in table if name.startswith(RETRY_PREFIX))
            self._as_of = as_of
        begin, names, found = end[::-1], self._backwards, []
        at = bisect_left(names, begin)
        while at < len(names) and names[at].startswith(begin):
            found.append(names[at][::-1])
            at += 1
        return found

    def _is_of_another(self, name: str, topic: str) -> bool:
        """True if a retry topic belongs, or may belong, to a group that sends messages back, or to another topic."""
        rest = name.removeprefix(RETRY_PREFIX)
        if rest in self._groups.table:
            return True
        for at, char in enumerate(rest):
            other = rest[at + 1 :]
            if (
                char in "_+"
                and other != topic
                and self._topics.newest(other) is not None
                and self._offsets.queues(rest[:at], other)
            ):
                return True
        return False
