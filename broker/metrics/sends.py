"""Messages that the broker stores for senders, by the topic that they are stored under: counted a turn at a time.

As on Apache's broker, a message of a fixed level counts under ``SCHEDULE_TOPIC_XXXX`` and a half message under its
system topic. Timed messages are a plug-in's, which counts them itself. What was delivered is no send.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from store.derived.dispatch import SCHEDULE_TOPIC
from store.half_messages import HALF_TOPIC, OP_TOPIC
from store.put.measures import OTHER, Classes, Family, MetricKind
from store.put.plugin_api import Put, PutRecord, PutResult, PutStatus

__all__ = ["SIZES", "SendCounts"]

SIZES = (1 << 10, 4 << 10, 512 << 10, 1 << 20, 2 << 20, 4 << 20)
"""Bounds of ``rocketmq_message_size``, bytes."""
_KIB: Final = 1 << 10
_4_KIB: Final = 4 << 10
_STORED = frozenset((PutStatus.PUT_OK, PutStatus.FLUSH_DISK_TIMEOUT))
_DLQ = "%DLQ%"
_RETRY = "%RETRY%"
_LABELS = ("topic", "message_type", "is_system")


class _SendRow:
    __slots__ = ("bytes", "count", "sizes")

    def __init__(self) -> None:
        self.count = 0
        self.bytes = 0
        self.sizes = [0] * (len(SIZES) + 1)


class SendCounts:
    """Counts what turns store. The network loop adds, any thread reads.

    Args:
        topics_max: Most topics by name; the rest is counted as `OTHER`.
        is_system: Whether a topic is the broker's own.
    """

    def __init__(self, topics_max: int, is_system: Callable[[str], bool]) -> None:
        self._topics_max = topics_max
        self._is_system = is_system
        self.rows: dict[str, _SendRow] = {}

    def add(self, puts: Sequence[Put], results: Sequence[PutResult]) -> None:
        """Count the puts of one turn that were stored."""
        rows = self.rows
        for put, result in zip(puts, results, strict=True):
            if result.status not in _STORED:
                continue
            if isinstance(put, PutRecord):
                row = rows.get(put.topic)
                if row is None:
                    row = self._row(put.topic)
                size = put.data_bytes
                row.count += 1
                row.bytes += size
                row.sizes[0 if size <= _KIB else 1 if size <= _4_KIB else bisect_left(SIZES, size)] += 1
            else:
                self._add_many(put)

    def _add_many(self, put: Put) -> None:
        """Count a batch: each of its topics gets its share, and every message the average size, as Apache has it."""
        topics = [topic for topic, _ in put.where()]
        count, rest = divmod(len(put), len(topics))
        size = put.data_bytes // len(put)
        for number, topic in enumerate(topics):
            row = self.rows.get(topic) or self._row(topic)
            share = count + (number < rest)
            row.count += share
            row.bytes += size * share
            row.sizes[bisect_left(SIZES, size)] += share

    def _row(self, topic: str) -> _SendRow:
        if len(self.rows) >= self._topics_max and topic not in (SCHEDULE_TOPIC, HALF_TOPIC):
            topic = OTHER
        return self.rows.setdefault(topic, _SendRow())

    def families(self) -> Iterator[Family]:
        """Make the metrics."""
        rows = [
            ((topic, _type_of(topic), "true" if self._is_system(topic) else "false"), row)
            for topic, row in list(self.rows.items())
            if topic != OP_TOPIC and not topic.startswith((_DLQ, _RETRY))
        ]
        yield Family(
            name="rocketmq_messages_in_total",
            kind=MetricKind.COUNTER,
            text="Messages sent.",
            labels=_LABELS,
            rows=[(labels, row.count) for labels, row in rows],
        )
        yield Family(
            name="rocketmq_throughput_in_total",
            kind=MetricKind.COUNTER,
            text="Bytes of the records of messages sent.",
            labels=_LABELS,
            rows=[(labels, row.bytes) for labels, row in rows],
        )
        yield Family(
            name="rocketmq_message_size",
            kind=MetricKind.HISTOGRAM,
            text="Bytes of the records of messages sent.",
            labels=_LABELS,
            rows=[(labels, Classes(SIZES, row.sizes, row.bytes)) for labels, row in rows],
        )
        yield Family(
            name="rocketmq_send_to_dlq_messages_total",
            kind=MetricKind.COUNTER,
            text="Messages that a group could not handle, put into its dead letters.",
            labels=("consumer_group", "topic", "is_system"),
            rows=[
                ((topic.removeprefix(_DLQ), topic, "false"), row.count)
                for topic, row in list(self.rows.items())
                if topic.startswith(_DLQ)
            ],
        )


def _type_of(topic: str) -> str:
    """Tell what Apache calls the type of a message that is stored under a topic."""
    return {SCHEDULE_TOPIC: "delay", HALF_TOPIC: "transaction"}.get(topic, "normal")
