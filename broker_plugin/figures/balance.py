"""Pending messages by topic: accepted, less delivered, less cancelled.

Counted only if metrics are on. Messages that were pending when the counting began must be read, which takes some
microseconds each. Those due within the next seconds are read at once, before the threads start. Any others are read
in slices by a thread of its own, in key order; until it has finished, no counts by topic are shown.

The count is exact although messages come and go meanwhile. Delivered messages were read before, because they were due
soon. New ones have an id of the present epoch, and the reader skips them. If a message ahead of the reader is cancelled
or moved, it is counted at that moment, and the reader skips it later.

The network loop counts accepted messages; the holder of the delivery lock counts the others. Each has tables of its
own, so that no count is lost between two threads. Any thread may read.
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
"""Most messages that are read at once: half a second. If more are due soon, no counts by topic are shown."""
SOON_MS = 5_000
"""Messages due within this time are read at once."""
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
        """True if the messages that were pending at the start are counted completely."""
        self.is_reading = False
        """True if a thread must call `step` to count the messages that were pending at the start."""

    def load(self, spill: SpillStore, now_ms: int) -> None:
        """Count pending messages: all, or those due soon. Under the lock, before threads start. Raises StoreError."""
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
        """Read the next slice; returns when to call again (epoch ms). For a thread of its own. Raises StoreError.

        If deliveries overtake it, the counts stay unknown until the next start.
        """
        if self._after[0] < now_ms:  # unread messages may have been delivered: the counts stay unknown
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
        """Note that a message leaves its place, so that the reader would miss it. Under the delivery lock."""
        if self.is_reading and delay_id < self._epoch_begin and delay_id not in self._counted:
            self._counted.add(delay_id)
            if (due_ms, delay_id) > self._after:
                self._before[topic] = self._before.get(topic, 0) + 1

    def rows(self) -> list[tuple[str, int]]:
        """Topics with the number of their pending messages, largest first; empty while that is unknown."""
        if not self.is_known:
            return []
        # A copy, because the network loop may add a topic meanwhile.
        accepted, gone, before = dict(self._accepted), self._gone, self._before
        counts = [
            (topic, accepted.get(topic, 0) + before.get(topic, 0) - gone.get(topic, 0))
            for topic in {**before, **accepted}
        ]
        return sorted((row for row in counts if row[1] > 0), key=lambda row: -row[1])


def _readable(spill: SpillStore, refs: list[int]) -> list[bytes]:
    """Read records, leaving out those that cannot be read or are no records."""
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
