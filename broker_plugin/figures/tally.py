"""Counts by topic: accepted messages with sizes and delays, and delivered ones.

Counted only if metrics are on. The network loop counts accepted messages once a turn, from their finished records.
Deliveries are counted a batch at a time, under the delivery lock. Any thread may read.

``python -m tests.broker_plugin.counting_cost`` measures the cost. It is one loop over a turn's messages, native in the
compiled build. Sorting the messages into lists by topic costs more as soon as two topics share a turn.

A limited number of topics is counted by name; later ones are counted under `store.put.measures.OTHER`. A topic never
loses its name, so that no counter ever falls.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from broker_plugin.figures.balance import TopicBalance
from remoting.layout import BODY_AT, BODY_BYTES_AT, TOPIC_LENGTH_BYTES
from store.put.measures import OTHER
from store.put.plugin_api import PutRecord

if TYPE_CHECKING:
    from store.put.put_columns import Longs

__all__ = ["DELAYS_S", "SIZES", "Accepted", "Delivered", "Uncounted"]

SIZES = (1 << 10, 4 << 10, 512 << 10, 1 << 20, 2 << 20, 4 << 20)
"""Bounds of ``rocketmq_message_size``, bytes."""
DELAYS_S = (60, 600, 3600, 43_200, 86_400, 259_200)
"""Bounds of ``rocketmq_delay_message_latency_seconds``."""
_DELAYS_MS = tuple(bound * 1000 for bound in DELAYS_S)
_KIB: Final = 1 << 10
_4_KIB: Final = 4 << 10
_MINUTE_MS: Final = 60_000
"""The first bounds as constants, which mypyc compiles in: most messages lie within them, and need no bisecting."""
_BODY_BYTES_END = BODY_BYTES_AT + 4
Entry = tuple[int, int, bytes]
"""Due time, delay id, finished record."""


class AcceptedRow:
    """Counters of the accepted messages of one topic."""

    __slots__ = ("bytes", "count", "delay_ms", "delays", "sizes")

    def __init__(self) -> None:
        self.count = 0
        self.bytes = 0
        self.delay_ms = 0
        self.sizes = [0] * (len(SIZES) + 1)
        self.delays = [0] * (len(DELAYS_S) + 1)


class Accepted:
    """Accepted messages by topic.

    Args:
        now_ms: Reads the wall clock, epoch ms, once a turn: a delay is counted from then.
        topics_max: Most topics by name.
        balance: Told of every change as well.
    """

    def __init__(self, now_ms: Callable[[], int], topics_max: int, balance: TopicBalance) -> None:
        self._balance = balance
        self._now_ms = now_ms
        self._topics_max = topics_max
        self._rows: dict[str, AcceptedRow] = {}
        self._turn: list[Sequence[Entry]] = []  # what the last turn accepted
        self._topics: dict[int, str] | None = None  # its messages' topics, once somebody asks

    def add_turn(self, topics: Sequence[str], entries: Sequence[Entry], *more: Sequence[Entry]) -> None:
        """Count all messages that one turn accepted; ``topics`` are those of ``entries``, as for `add`."""
        self._turn, self._topics = [entries, *more], None
        self.add(topics, entries)
        for others in more:
            self.add((), others)

    def withdrawn(self, delay_id: int) -> None:
        """Note that a message which the last turn accepted is refused after all: one less is pending.

        It stays in the total of accepted messages, because no counter may fall.
        """
        if self._topics is None:
            self._topics = {entry[1]: _topic_of(entry[2]) for entries in self._turn for entry in entries}
        topic = self._topics.pop(delay_id, None)
        if topic is not None:
            self._balance.accepted(topic, -1)

    def add(self, topics: Sequence[str], entries: Sequence[Entry]) -> None:
        """Count accepted messages: (due time, delay id, finished record) each.

        ``topics`` has one topic for each. If some entries were taken back, the lengths differ; then the topics are read
        from the records.
        """
        if not entries:
            return
        if len(topics) != len(entries):
            topics = [_topic_of(entry[2]) for entry in entries]
        now_ms, rows = self._now_ms(), self._rows
        counts: dict[str, int] = {}
        topic, row, count = topics[0], None, 0
        for at, (due_ms, _, record) in enumerate(entries):
            if row is None or topics[at] != topic:
                if count:
                    counts[topic] = counts.get(topic, 0) + count
                topic, count = topics[at], 0
                row = rows.get(topic)
                if row is None:
                    row = self._row(topic)
            size, delay_ms = len(record), due_ms - now_ms
            count += 1
            row.count += 1
            row.bytes += size
            row.delay_ms += delay_ms
            row.sizes[0 if size <= _KIB else 1 if size <= _4_KIB else bisect_left(SIZES, size)] += 1
            row.delays[0 if delay_ms <= _MINUTE_MS else bisect_left(_DELAYS_MS, delay_ms)] += 1
        counts[topic] = counts.get(topic, 0) + count
        for topic, count in counts.items():
            self._balance.accepted(topic, count)

    def _row(self, topic: str) -> AcceptedRow:
        if len(self._rows) >= self._topics_max:
            topic = OTHER
        return self._rows.setdefault(topic, AcceptedRow())

    def rows(self) -> list[tuple[str, AcceptedRow]]:
        """List what was counted."""
        return list(self._rows.items())


def _topic_of(record: bytes) -> str:
    at = BODY_AT + int.from_bytes(record[BODY_BYTES_AT:_BODY_BYTES_END])
    begin = at + TOPIC_LENGTH_BYTES
    return record[begin : begin + record[at]].decode("utf-8", "replace")


class Delivered:
    """Deliveries by topic."""

    def __init__(self, topics_max: int, balance: TopicBalance | None = None) -> None:
        self._topics_max = topics_max
        self._balance = balance
        self._counts: dict[str, int] = {}

    def add_puts(self, puts: Sequence[PutRecord]) -> None:
        """Count puts that were all stored."""
        found: dict[str, int] = {}
        for put in puts:
            topic = put.topic
            found[topic] = found.get(topic, 0) + 1
        for topic, count in found.items():
            self._add(topic, count)

    def add_queues(self, queues: Sequence[tuple[str, int, int]], _sizes: Longs, /) -> None:
        """Count a stored block: (topic, queue id, count) of each queue, and the bytes of each message."""
        for topic, _, count in queues:
            self._add(topic, count)

    def _add(self, topic: str, count: int) -> None:
        if self._balance is not None:
            self._balance.delivered(topic, count)
        counts = self._counts
        if topic not in counts and len(counts) >= self._topics_max:
            topic = OTHER
        counts[topic] = counts.get(topic, 0) + count

    def rows(self) -> list[tuple[str, int]]:
        """List what was counted."""
        return list(self._counts.items())


class Uncounted(Delivered):
    """Counts nothing: for a broker without metrics."""

    def __init__(self) -> None:
        super().__init__(0)

    def add_puts(self, puts: Sequence[PutRecord]) -> None:
        """Do nothing."""

    def add_queues(self, queues: Sequence[tuple[str, int, int]], _sizes: Longs, /) -> None:
        """Do nothing."""
