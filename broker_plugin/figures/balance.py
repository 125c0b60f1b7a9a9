"""What is pending by topic: accepted, less delivered, less cancelled.

Kept if somebody asks for metrics. What was pending when the counting began has to be read, which takes some
microseconds a message. What is due within the next seconds is read at once, before the threads start. If that is not
all, the rest is read in slices by a thread of its own, in key order; until it is done, nothing is shown by topic.

The count is exact although messages come and go meanwhile. What is delivered has been read by then, because it was
due soon. What is new has an id of the present epoch, and the reader passes it by. What is cancelled or moved behind the
reader's place is counted the moment that happens; what it has counted already it does not count a second time.

The network loop adds what is accepted, whoever holds the delivery lock what is gone and what was there: tables of
their own, so that no count is lost between two threads. Any thread may ask.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from remoting.messages.message import RecordError, record_fields
from store.disk.delay_id import delay_id as id_of
from store.disk.errors import StoreError

if TYPE_CHECKING:
    from store.spill.rows.model import Columns
    from store.spill.spill_store import SpillStore

__all__ = ["READ_MAX", "TopicBalance"]

READ_MAX = 100_000
"""Most messages that are read when the counting begins: half a second. If more are due soon, nothing is shown."""
SOON_MS = 5_000
"""What is due by then is read at once."""
_READ_AT_ONCE = 256
_FIRST, _END_MS, _ID_MAX = (-1, 0), 1 << 62, 1 << 63


class TopicBalance:
    """Pending messages by topic."""

    def __init__(self) -> None:
        self._accepted: dict[str, int] = {}
        self._gone: dict[str, int] = {}
        self._before: dict[str, int] = {}  # what was there when the counting began
        self._counted: set[int] = set()  # ids that were cancelled or moved before the reader came to them
        self._after = _FIRST
        self._epoch_begin = 0
        self.is_known = False
        """Whether what was pending before is counted, too."""
        self.is_reading = False
        """Whether a thread has to call `step` for that."""

    def load(self, spill: SpillStore, now_ms: int) -> None:
        """Count what is pending now. Under the delivery lock, before the threads start. Raises StoreError."""
        self._epoch_begin = id_of(spill.epoch, 0)
        everything = spill.pending_count <= READ_MAX
        until_ms = _END_MS if everything else now_ms + SOON_MS
        left = READ_MAX
        while left > 0:
            found = spill.scan(self._after, until_ms, _READ_AT_ONCE)
            self._read(spill, found)
            left -= len(found.refs)
            if len(found.refs) < _READ_AT_ONCE:
                self.is_known, self.is_reading = everything, not everything
                self._after = max(self._after, (until_ms - 1, _ID_MAX))
                return

    def step(self, spill: SpillStore, pause: Callable[[], object], now_ms: int) -> int:
        """Read some more of what was there; answers when to come back. A thread of its own. Raises StoreError.

        If it is overtaken by the deliveries, the counts stay unknown until the next start.
        """
        if self._after[0] < now_ms:  # what was not read may have been delivered: it stays unknown
            self.is_reading = False
            return _END_MS
        with spill.lock:
            found = spill.scan(self._after, _END_MS, _READ_AT_ONCE)
            self._read(spill, found)
            if len(found.refs) < _READ_AT_ONCE:
                self._counted.clear()
                self.is_known, self.is_reading = True, False
        pause()
        return now_ms if self.is_reading else _END_MS

    def _read(self, spill: SpillStore, found: Columns) -> None:
        """Count messages of the epochs before this one."""
        old = [
            (delay_id, ref)
            for delay_id, ref in zip(found.ids, found.refs, strict=True)
            if delay_id < self._epoch_begin and delay_id not in self._counted
        ]
        if old:
            for record in _readable(spill, [ref for _, ref in old]):
                topic = record_fields(record)[0]
                self._before[topic] = self._before.get(topic, 0) + 1
        if found.refs:
            self._after = (found.dues[-1], found.ids[-1])

    def accepted(self, topic: str, count: int) -> None:
        """Count accepted messages. The network loop."""
        self._accepted[topic] = self._accepted.get(topic, 0) + count

    def delivered(self, topic: str, count: int) -> None:
        """Count deliveries. Under the delivery lock."""
        self._gone[topic] = self._gone.get(topic, 0) + count

    def cancelled(self, delay_id: int, due_ms: int, topic: str, _text: str, _record_bytes: int) -> None:
        """Count a cancel. Under the delivery lock."""
        self.moved(delay_id, due_ms, topic)
        self.delivered(topic, 1)

    def moved(self, delay_id: int, due_ms: int, topic: str, _grown: int = 0) -> None:
        """Note that a message leaves its place. Under the delivery lock."""
        if self.is_reading and delay_id < self._epoch_begin and delay_id not in self._counted:
            self._counted.add(delay_id)
            if (due_ms, delay_id) > self._after:
                self._before[topic] = self._before.get(topic, 0) + 1

    def rows(self) -> list[tuple[str, int]]:
        """List topics with what is pending of them, largest first; nothing if it is not known."""
        if not self.is_known:
            return []
        accepted, gone, before = dict(self._accepted), self._gone, self._before
        counts = [
            (topic, accepted.get(topic, 0) + before.get(topic, 0) - gone.get(topic, 0))
            for topic in {**before, **accepted}
        ]
        return sorted((row for row in counts if row[1] > 0), key=lambda row: -row[1])


def _readable(spill: SpillStore, refs: list[int]) -> list[bytes]:
    """Read records, without those that cannot be read or are none."""
    try:
        records = spill.read(refs)
    except StoreError:
        records = []
        for ref in refs:
            with suppress(StoreError):
                records += spill.read((ref,))
    found = []
    for record in records:
        with suppress(RecordError):
            record_fields(record)
            found.append(record)
    return found
