"""Pending messages by topic, counted from the messages themselves: the sums, and the protocol that gives them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from store.put.pending_api import PendingControl, PendingQuery

__all__ = ["TOPICS_AT_ONCE", "TopicControl", "TopicSum", "TopicSums"]

TOPICS_AT_ONCE = 1000
"""A call that has met this many topics ends with a cursor, so that its answer has a bound."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSum:
    """Sums of one topic's pending messages: count, bytes of their records, first and last due time (epoch ms).

    The field names are those of the JSON documents.
    """

    topic: str
    count: int
    bytes: int
    first_due_ms: int
    last_due_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSums:
    """Sums of the messages that one call has looked at, largest topic first.

    If ``next`` is not empty, call again with it and add the sums up, ``unread`` too: the number of messages that are in
    no row because they could not be read.
    """

    rows: tuple[TopicSum, ...]
    next: str = ""
    unread: int = 0


class TopicControl(PendingControl, Protocol):
    """A plug-in that counts its pending messages by topic."""

    def by_topic(self, query: PendingQuery, after: str = "") -> TopicSums:
        """Add matching messages up by topic. It reads each message, so a call looks at a bounded number of them.

        Raises PendingError.
        """
        ...
