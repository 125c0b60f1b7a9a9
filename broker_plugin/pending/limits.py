"""How many messages may be pending, in all and of one topic: what is too much is refused, with the figure.

The figure for all is the delay store's own. The one for a topic is kept here, and only if a limit for topics is set:
what is pending is then read once at open, which takes some microseconds a message.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from broker_plugin.figures.tally import Delivered
from remoting.messages.message import RecordError, record_fields
from store.spill.rows.model import RecordCorruptError

if TYPE_CHECKING:
    from store.put.plugin_api import PutRecord
    from store.spill.spill_store import SpillStore

__all__ = ["LimitedShare", "LimitedTally", "PendingLimits"]

_READ_AT_ONCE = 512


class LimitedShare:
    """What a large batch has of what is limited, while its slices are looked at over several turns."""

    __slots__ = ("bytes", "count", "mark", "topics")

    def __init__(self) -> None:
        self.mark: tuple[int, int, dict[str, int]] = (0, 0, {})
        self.count = self.bytes = 0
        self.topics: Counter[str] = Counter()


class PendingLimits:
    """Counts what this turn of the network loop holds, and refuses what is too much. 0: no limit.

    ``refusal``, ``hold``, ``let_go`` and ``turn_over`` are the network loop's; the others need the delivery lock.
    """

    def __init__(self, spill: SpillStore, *, count_max: int, bytes_max: int, topic_max: int) -> None:
        self._spill = spill
        self._count_max = count_max
        self._bytes_max = bytes_max
        self._topic_max = topic_max
        self.topics: dict[str, int] = {}
        """What is pending by topic, if there is a limit for topics; changed under the delivery lock only.

        Below 0 for a moment if a message is delivered before its turn is over.
        """
        self._turn: dict[str, int] = {}
        self._count: int | None = None  # pending before this turn, once it was asked for
        self._bytes = 0
        self._held = 0
        self._held_bytes = 0
        self._aside = LimitedShare()  # of all large batches that belong to no turn yet
        self._committed: dict[int, str] = {}  # delay id to topic, of the turn that was just journalled

    @property
    def is_set(self) -> bool:
        """Whether there is any limit."""
        return self._count_max > 0 or self._bytes_max > 0 or self._topic_max > 0

    @property
    def by_topic(self) -> bool:
        """Whether there is a limit for topics."""
        return self._topic_max > 0

    def load(self) -> None:
        """Count what is pending by topic, by reading it: at open."""
        after = (-1, 0)
        while self.by_topic:
            found = self._spill.scan(after, 1 << 62, _READ_AT_ONCE)
            if not found.refs:
                return
            for record in self._whole(found.refs):
                self._count_one(record)
            after = (found.dues[-1], found.ids[-1])

    def _whole(self, refs: Sequence[int]) -> list[bytes]:
        """Read records, without damaged ones: they can be neither delivered nor counted."""
        try:
            return self._spill.read(refs)
        except RecordCorruptError:
            records: list[bytes] = []
            for ref in refs:
                with suppress(RecordCorruptError):
                    records += self._spill.read((ref,))
            return records

    def _count_one(self, record: bytes) -> None:
        try:
            topic = record_fields(record)[0]
        except RecordError:
            return
        self._change(topic, 1)

    def _change(self, topic: str, by: int) -> None:
        count = self.topics.get(topic, 0) + by
        if count:
            self.topics[topic] = count
        else:
            self.topics.pop(topic, None)

    # ------------------------------------------------------------------------------------------------ network loop

    def refusal(self, topic: str, size: int) -> str:
        """Say why a message of so many bytes may not be held; empty if it may."""
        if self._count is None or not self._held:
            self._count, self._bytes = self._spill.pending_count, self._spill.pending_bytes
        count, size_now = self._count + self._aside.count, self._bytes + self._aside.bytes
        if 0 < self._count_max <= count:
            return f"{count} messages are pending, at most {self._count_max} are allowed (timewheelPendingMax)"
        if 0 < self._bytes_max < size_now + size:
            return (
                f"{size_now} bytes are pending, {size} more would be above the {self._bytes_max} that are allowed "
                "(timewheelPendingBytesMax)"
            )
        if self._topic_max:
            count = self.topics.get(topic, 0) + self._turn.get(topic, 0) + self._aside.topics[topic]
            if count >= self._topic_max:
                return (
                    f"{count} messages are pending of topic {topic}, at most {self._topic_max} are allowed "
                    "(timewheelTopicPendingMax)"
                )
        return ""

    def hold(self, topic: str, size: int) -> None:
        """Note a message that this turn holds."""
        self._held += 1
        self._count = (self._count or 0) + 1
        self._bytes += size
        self._held_bytes += size
        if self._topic_max:
            self._turn[topic] = self._turn.get(topic, 0) + 1

    def let_go(self, record: bytes) -> None:
        """Note that one of them is not held after all."""
        if self._count is not None:
            self._held -= 1
            self._count -= 1
            self._bytes -= len(record)
            self._held_bytes -= len(record)
        if self._topic_max:
            topic = record_fields(record)[0]
            self._turn[topic] = self._turn.get(topic, 0) - 1

    def turn_over(self, stored: bool) -> None:
        """Note that this turn is journalled, or that nothing of it is."""
        self._count, self._held, self._held_bytes = None, 0, 0
        turn, self._turn = self._turn, {}
        if stored and turn:
            self._add(turn, 1)

    def _add(self, topics: Mapping[str, int], sign: int) -> None:
        with self._spill.lock:
            for topic, count in topics.items():
                self._change(topic, sign * count)

    def mark(self, share: LimitedShare) -> None:
        """Note what this turn holds, before a slice of a large batch is looked at."""
        share.mark = self._held, self._held_bytes, dict(self._turn)

    def cut(self, share: LimitedShare) -> None:
        """Take what was held since the mark out of this turn; it goes on counting."""
        held, held_bytes, turn = share.mark
        count, size = self._held - held, self._held_bytes - held_bytes
        topics = Counter(self._turn)
        topics.subtract(turn)
        self._turn, self._held, self._held_bytes = turn, held, held_bytes
        if self._count is not None:
            self._count -= count
            self._bytes -= size
        for one in (share, self._aside):
            one.count += count
            one.bytes += size
            one.topics.update(topics)

    def _no_longer_aside(self, share: LimitedShare) -> None:
        self._aside.count -= share.count
        self._aside.bytes -= share.bytes
        self._aside.topics.subtract(share.topics)
        self._aside.topics += Counter()  # without those of which there is nothing left

    def join(self, share: LimitedShare) -> None:
        """Make it a part of this turn."""
        self._no_longer_aside(share)
        if self._count is None or not self._held:
            self._count, self._bytes = self._spill.pending_count, self._spill.pending_bytes
        self._held += share.count
        self._held_bytes += share.bytes
        self._count += share.count
        self._bytes += share.bytes
        for topic, count in share.topics.items():
            self._turn[topic] = self._turn.get(topic, 0) + count

    def forget(self, share: LimitedShare, joined: bool, journalled: bool) -> None:
        """Count a large batch no more."""
        if not joined:
            self._no_longer_aside(share)
        elif journalled:
            self._add(share.topics, -1)
        else:
            turn = Counter(self._turn)
            turn.subtract(share.topics)
            self._turn = dict(turn)
            self._held -= share.count
            self._held_bytes -= share.bytes
            self._count = (self._count or 0) - share.count
            self._bytes -= share.bytes

    def committed(self, entries: Iterable[tuple[int, int, bytes]], more: Iterable[tuple[int, int, bytes]]) -> None:
        """Note what was just journalled, and ``more`` that was not held by `hold`."""
        if not self._topic_max:
            return
        others = {delay_id: record_fields(record)[0] for _, delay_id, record in more}
        self._committed = {delay_id: record_fields(record)[0] for _, delay_id, record in entries} | others
        self._add(Counter(others.values()), 1)

    def withdrawn(self, delay_id: int) -> None:
        """Note that a message which was just journalled is withdrawn."""
        topic = self._committed.pop(delay_id, None)
        if topic is not None:
            self._add({topic: 1}, -1)

    # ------------------------------------------------------------------------------------------------ gone

    def cancelled(self, _delay_id: int, _due_ms: int, topic: str, _text: str, _record_bytes: int) -> None:
        """Note that a message was cancelled."""
        self._gone(topic, 1)

    def moved(self, _delay_id: int, _due_ms: int, _topic: str) -> None:
        """Note nothing: it is pending as before."""

    def put(self, puts: Sequence[PutRecord]) -> None:
        """Note deliveries."""
        for put in puts:
            self._gone(put.topic, 1)

    def put_queues(self, queues: Iterable[tuple[str, int, int]]) -> None:
        """Note deliveries by queue: topic, queue id, count."""
        for topic, _, count in queues:
            self._gone(topic, count)

    def _gone(self, topic: str, count: int) -> None:
        if self._topic_max:
            self._change(topic, -count)


class LimitedTally(Delivered):
    """Tells the limits what was delivered, and then who else counts it."""

    def __init__(self, limits: PendingLimits, other: Delivered) -> None:
        super().__init__(0)
        self._limits = limits
        self._other = other

    def add_puts(self, puts: Sequence[PutRecord]) -> None:
        """Count puts that were all stored."""
        self._limits.put(puts)
        self._other.add_puts(puts)

    def add_queues(self, queues: Iterable[tuple[str, int, int]]) -> None:
        """Count a block that was stored."""
        found = list(queues)
        self._limits.put_queues(found)
        self._other.add_queues(found)
