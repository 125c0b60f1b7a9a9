"""What is pending by topic: accepted, less delivered, less cancelled.

Kept if somebody asks for metrics. What was pending when the counting began is read once, which takes some microseconds
a message; with more than `READ_MAX` that would delay the start too much, and nothing is counted by topic until a start
with fewer.

The network loop adds what is accepted, whoever holds the delivery lock what is gone: two tables, so that no count is
lost between two threads. Any thread may ask.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from remoting.messages.message import RecordError, record_fields

if TYPE_CHECKING:
    from store.spill.spill_store import SpillStore

__all__ = ["READ_MAX", "TopicBalance"]

READ_MAX = 100_000
"""Most messages that are read when the counting begins: half a second."""
_READ_AT_ONCE = 512
_FIRST, _END_MS = (-1, 0), 1 << 62


class TopicBalance:
    """Pending messages by topic."""

    def __init__(self) -> None:
        self._accepted: dict[str, int] = {}
        self._gone: dict[str, int] = {}
        self.is_known = False
        """Whether what was pending before is counted, too."""

    def load(self, spill: SpillStore) -> None:
        """Count what is pending now. Under the delivery lock, before the threads start. Raises StoreError."""
        if spill.pending_count > READ_MAX:
            return
        after = _FIRST
        while True:
            found = spill.scan(after, _END_MS, _READ_AT_ONCE)
            if not found.refs:
                break
            for record in spill.read(found.refs):
                try:
                    self.accepted(record_fields(record)[0], 1)
                except RecordError:
                    continue
            after = (found.dues[-1], found.ids[-1])
        self.is_known = True

    def accepted(self, topic: str, count: int) -> None:
        """Count accepted messages. The network loop."""
        self._accepted[topic] = self._accepted.get(topic, 0) + count

    def delivered(self, topic: str, count: int) -> None:
        """Count deliveries. Under the delivery lock."""
        self._gone[topic] = self._gone.get(topic, 0) + count

    def cancelled(self, _delay_id: int, topic: str, _text: str, _record_bytes: int) -> None:
        """Count a cancel. Under the delivery lock."""
        self.delivered(topic, 1)

    def rows(self) -> list[tuple[str, int]]:
        """List topics with what is pending of them, largest first; nothing if it is not known."""
        if not self.is_known:
            return []
        gone = self._gone
        counts = [(topic, count - gone.get(topic, 0)) for topic, count in list(self._accepted.items())]
        return sorted((row for row in counts if row[1] > 0), key=lambda row: -row[1])
