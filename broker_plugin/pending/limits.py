"""Limits of pending messages and bytes, in all and of one topic. Sends above a limit are refused with figures.

The totals are the delay store's own. Those of a topic are counted here, and only if a limit for topics is set: then all
pending messages are read once at open, which takes some microseconds each.

The bytes of a topic are those of its finished records. A move or a replacement makes another record, which may be
longer or shorter; its writer reports the difference (`PendingLimits.grew`). If the message is withdrawn afterwards, the
bytes of its last record are subtracted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from broker_plugin.figures.tally import Delivered
from remoting.messages.message import RecordError, record_fields
from store.disk.delay_id import delay_id as id_of
from store.spill.rows.model import RecordCorruptError

if TYPE_CHECKING:
    from store.put.plugin_api import PutRecord
    from store.put.put_columns import Longs
    from store.spill.spill_store import SpillStore

__all__ = ["LimitedShare", "LimitedTally", "PendingLimits"]

_READ_AT_ONCE = 512


class LimitedShare:
    """The messages and bytes of a large batch, while its slices are checked in several turns."""

    __slots__ = ("bytes", "count", "mark", "topic_bytes", "topics")

    def __init__(self) -> None:
        self.mark: tuple[int, int, dict[str, int], dict[str, int]] = (0, 0, {}, {})
        self.count = self.bytes = 0
        self.topics: Counter[str] = Counter()
        self.topic_bytes: Counter[str] = Counter()


class PendingLimits:
    """Counts the messages that this turn of the network loop holds, and refuses those above a limit. 0: no limit.

    ``refusal``, ``hold``, ``let_go`` and ``turn_over`` are the network loop's; the others need the delivery lock.
    """

    def __init__(
        self, spill: SpillStore, *, count_max: int, bytes_max: int, topic_max: int, topic_bytes_max: int
    ) -> None:
        self._spill = spill
        self._count_max = count_max
        self._bytes_max = bytes_max
        self._topic_max = topic_max
        self._topic_bytes_max = topic_bytes_max
        self.topics: dict[str, int] = {}
        """Messages pending by topic, if there is a limit for topics; changed only under the delivery lock.

        It is below 0 for a moment if a message is delivered before its turn is counted.
        """
        self.topic_bytes: dict[str, int] = {}
        """Bytes pending by topic, if these are limited."""
        self._turn: dict[str, int] = {}
        self._turn_bytes: dict[str, int] = {}
        self._count: int | None = None  # pending before this turn, once it was asked for
        self._bytes = 0
        self._held = 0
        self._held_bytes = 0
        self._aside = LimitedShare()  # of all large batches that belong to no turn yet
        # Of the turn that was just journalled, delay id to topic and bytes. Large batches are not among them.
        self._committed: dict[int, tuple[str, int]] = {}
        self._last_id = 0  # the highest of their ids, or of those before them
        # Growth (topic, bytes) of records that may still be withdrawn but are not in `_committed`: those of the turn
        # being journalled, and those of large batches of the turn before.
        self._grown: dict[int, tuple[str, int]] = {}
        self._grown_before: dict[int, tuple[str, int]] = {}

    @property
    def is_set(self) -> bool:
        """True if any limit is set."""
        return self._count_max > 0 or self._bytes_max > 0 or self.by_topic

    @property
    def by_topic(self) -> bool:
        """True if topics have a limit of messages or of bytes."""
        return self._topic_max > 0 or self._topic_bytes_max > 0

    @property
    def by_topic_bytes(self) -> bool:
        """True if topics have a limit of bytes."""
        return self._topic_bytes_max > 0

    def load(self) -> None:
        """At open: count pending messages by topic, by reading all of them. Raises StoreError."""
        self._last_id = id_of(self._spill.epoch, 0) - 1
        after = (-1, 0)
        while self.by_topic:
            found = self._spill.scan(after, 1 << 62, _READ_AT_ONCE)
            if not found.refs:
                return
            for record in self._whole(found.refs):
                self._count_one(record)
            after = (found.dues[-1], found.ids[-1])

    def _whole(self, refs: Sequence[int]) -> list[bytes]:
        """Read records, leaving out damaged ones, which can be neither delivered nor counted."""
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
        self._change(topic, 1, len(record))

    def _change(self, topic: str, by: int, size: int) -> None:
        count = self.topics.get(topic, 0) + by
        if count:
            self.topics[topic] = count
        else:
            self.topics.pop(topic, None)
        if self._topic_bytes_max:
            size += self.topic_bytes.get(topic, 0)
            if size:
                self.topic_bytes[topic] = size
            else:
                self.topic_bytes.pop(topic, None)

    # ------------------------------------------------------------------------------------------------ network loop

    def refusal(self, topic: str, size: int) -> str:
        """Why a message whose record has ``size`` bytes may not be held; empty if it may."""
        # Anew as long as this turn holds nothing: deliveries and cancels go on between turns.
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
        if self._topic_bytes_max:
            size_now = self.topic_bytes.get(topic, 0) + self._turn_bytes.get(topic, 0) + self._aside.topic_bytes[topic]
            if size_now + size > self._topic_bytes_max:
                return (
                    f"{size_now} bytes are pending of topic {topic}, {size} more would be above the "
                    f"{self._topic_bytes_max} that are allowed (timewheelTopicPendingBytesMax)"
                )
        return ""

    def hold(self, topic: str, size: int) -> None:
        """Note a message that this turn holds."""
        self._held += 1
        self._count = (self._count or 0) + 1
        self._bytes += size
        self._held_bytes += size
        if self.by_topic:
            self._hold_of(topic, 1, size)

    def _hold_of(self, topic: str, count: int, size: int) -> None:
        self._turn[topic] = self._turn.get(topic, 0) + count
        if self._topic_bytes_max:
            self._turn_bytes[topic] = self._turn_bytes.get(topic, 0) + size

    def let_go(self, record: bytes) -> None:
        """Note that a message of this turn is not held after all."""
        if self._count is not None:
            self._held -= 1
            self._count -= 1
            self._bytes -= len(record)
            self._held_bytes -= len(record)
        if self.by_topic:
            self._hold_of(record_fields(record)[0], -1, -len(record))

    def turn_over(self, stored: bool) -> None:
        """End the turn: it is journalled (``stored``), or none of it is."""
        self._count, self._held, self._held_bytes = None, 0, 0
        turn, self._turn = self._turn, {}
        sizes, self._turn_bytes = self._turn_bytes, {}
        if stored and turn:
            self._add(turn, sizes, 1)
        elif not stored and self._topic_bytes_max:
            with self._spill.lock:
                self._grown = {}

    def _add(self, topics: Mapping[str, int], sizes: Mapping[str, int], sign: int) -> None:
        with self._spill.lock:
            for topic, count in topics.items():
                self._change(topic, sign * count, sign * sizes.get(topic, 0))

    def mark(self, share: LimitedShare) -> None:
        """Remember what this turn holds, before a slice of a large batch is checked."""
        share.mark = self._held, self._held_bytes, dict(self._turn), dict(self._turn_bytes)

    def cut(self, share: LimitedShare) -> None:
        """Take everything since the mark out of this turn; it still counts for `refusal`."""
        held, held_bytes, turn, turn_bytes = share.mark
        count, size = self._held - held, self._held_bytes - held_bytes
        topics, topic_bytes = Counter(self._turn), Counter(self._turn_bytes)
        topics.subtract(turn)
        topic_bytes.subtract(turn_bytes)
        self._turn, self._turn_bytes, self._held, self._held_bytes = turn, turn_bytes, held, held_bytes
        if self._count is not None:
            self._count -= count
            self._bytes -= size
        for one in (share, self._aside):
            one.count += count
            one.bytes += size
            one.topics.update(topics)
            one.topic_bytes.update(topic_bytes)

    def _no_longer_aside(self, share: LimitedShare) -> None:
        self._aside.count -= share.count
        self._aside.bytes -= share.bytes
        self._aside.topics.subtract(share.topics)
        self._aside.topics += Counter()  # `+=` drops all entries that are not above 0
        self._aside.topic_bytes.subtract(share.topic_bytes)
        self._aside.topic_bytes += Counter()

    def join(self, share: LimitedShare) -> None:
        """Make the messages of a large batch a part of this turn."""
        self._no_longer_aside(share)
        if self._count is None or not self._held:
            self._count, self._bytes = self._spill.pending_count, self._spill.pending_bytes
        self._held += share.count
        self._held_bytes += share.bytes
        self._count += share.count
        self._bytes += share.bytes
        for topic, count in share.topics.items():
            self._hold_of(topic, count, share.topic_bytes[topic])

    def forget(self, share: LimitedShare, joined: bool, journalled: bool) -> None:
        """Stop counting a large batch. ``joined``: it was part of a turn; ``journalled``: that turn is journalled."""
        if not joined:
            self._no_longer_aside(share)
        elif journalled:
            self._add(share.topics, share.topic_bytes, -1)
        else:
            for topic, count in share.topics.items():
                self._hold_of(topic, -count, -share.topic_bytes[topic])
            self._held -= share.count
            self._held_bytes -= share.bytes
            self._count = (self._count or 0) - share.count
            self._bytes -= share.bytes

    def committed(self, entries: Iterable[tuple[int, int, bytes]], more: Iterable[tuple[int, int, bytes]]) -> None:
        """Note the messages that were just journalled, and ``more`` for which `hold` was not called."""
        if not self.by_topic:
            return
        others = {delay_id: (record_fields(record)[0], len(record)) for _, delay_id, record in more}
        committed = {delay_id: (record_fields(record)[0], len(record)) for _, delay_id, record in entries} | others
        with self._spill.lock:
            for topic, size in others.values():
                self._change(topic, 1, size)
            for delay_id in self._grown.keys() & committed.keys():
                topic, size = committed[delay_id]
                committed[delay_id] = topic, size + self._grown.pop(delay_id)[1]
            self._grown_before, self._grown = self._grown, {}
            self._committed = committed
            self._last_id = max(committed, default=self._last_id)

    def withdrawn(self, delay_id: int) -> None:
        """Note that a message is withdrawn: one just journalled, one of a turn that fails, or one of a large batch.

        For the latter two `turn_over` and `forget` subtract what was held, but they do not know how it grew since.
        """
        with self._spill.lock:
            found = self._committed.pop(delay_id, None)
            if found is not None:
                self._change(found[0], -1, -found[1])
            for grown in (self._grown, self._grown_before):
                found = grown.pop(delay_id, None)
                if found is not None:
                    self._change(found[0], 0, -found[1])

    # ------------------------------------------------------------------------------------------------ gone

    def cancelled(self, _delay_id: int, _due_ms: int, topic: str, _text: str, record_bytes: int) -> None:
        """Note that a message was cancelled."""
        if self.by_topic:
            self._change(topic, -1, -record_bytes)

    def moved(self, delay_id: int, _due_ms: int, topic: str, grown: int) -> None:
        """Note that a moved message is pending as before, and by how many bytes its record grew."""
        self.grew(delay_id, topic, grown, delay_id > self._last_id)

    def grew(self, delay_id: int, topic: str, by: int, is_young: bool) -> None:
        """Note by how many bytes a record grew. Under the delivery lock.

        ``is_young``: its turn is not journalled yet, or it belongs to a large batch.
        """
        if not by or not self._topic_bytes_max:
            return
        self._change(topic, 0, by)
        known = self._committed.get(delay_id)
        if known is not None:
            self._committed[delay_id] = topic, known[1] + by
        elif delay_id in self._grown_before:
            self._grown_before[delay_id] = topic, self._grown_before[delay_id][1] + by
        elif is_young:
            self._grown[delay_id] = topic, self._grown.get(delay_id, (topic, 0))[1] + by

    def put(self, puts: Sequence[PutRecord]) -> None:
        """Note deliveries."""
        if self.by_topic:
            for put in puts:
                self._change(put.topic, -1, -len(put.record))

    def put_queues(self, queues: Iterable[tuple[str, int, int]], sizes: Longs) -> None:
        """Note deliveries by queue: (topic, queue id, count) each; ``sizes``: bytes of each message, in order."""
        if not self.by_topic:
            return
        begin = 0
        for topic, _, count in queues:
            end = begin + count
            self._change(topic, -count, -int(sizes[begin:end].sum()) if self._topic_bytes_max else 0)
            begin = end


class LimitedTally(Delivered):
    """Reports deliveries to the limits, and then to another counter."""

    def __init__(self, limits: PendingLimits, other: Delivered) -> None:
        super().__init__(0)
        self._limits = limits
        self._other = other

    def add_puts(self, puts: Sequence[PutRecord]) -> None:
        """Count puts that were all stored."""
        self._limits.put(puts)
        self._other.add_puts(puts)

    def add_queues(self, queues: Sequence[tuple[str, int, int]], sizes: Longs, /) -> None:
        """Count a block that was stored."""
        self._limits.put_queues(queues, sizes)
        self._other.add_queues(queues, sizes)
