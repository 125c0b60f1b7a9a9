"""What is pending by topic, counted from the messages themselves: sums, and the protocol of who can give them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from store.put.pending_api import PendingControl, PendingQuery

__all__ = ["TOPICS_AT_ONCE", "TopicControl", "TopicSum", "TopicSums"]

TOPICS_AT_ONCE = 1000
"""A call ends, with a cursor, once it has met so many topics: its answer has a bound."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSum:
    """What is pending of one topic: messages, bytes of their records, and when the first and the last is due, ms.

    The fields are those of every answer's document.
    """

    topic: str
    count: int
    bytes: int
    first_due_ms: int
    last_due_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSums:
    """Sums of what one call has looked at, largest first; ``next`` goes on behind it: add both up. Empty at the end."""

    rows: tuple[TopicSum, ...]
    next: str = ""


class TopicControl(PendingControl, Protocol):
    """A plug-in that counts its pending messages by topic."""

    def by_topic(self, query: PendingQuery, after: str = "") -> TopicSums:
        """Add up by topic what matches. It reads each message, so a call ends as a count by topic does.

        Raises PendingError.
        """
        ...
