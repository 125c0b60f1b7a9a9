"""Messages put into each topic and pulled by each group, over the last minute, hour and day (VIEW_BROKER_STATS_DATA
315).

Names and keys are those of Apache's ``BrokerStatsManager``:

==================================  =================  ============================================================
TOPIC_PUT_NUMS, TOPIC_PUT_SIZE      ``topic``          messages and bytes that its queues have got
GROUP_GET_NUMS, GROUP_GET_SIZE      ``topic@group``    messages and bytes that the group has pulled
SNDBCK_PUT_NUMS                     ``topic@group``    messages that the group could not handle
BROKER_PUT_NUMS, BROKER_GET_NUMS    the cluster        all messages sent, all messages pulled
==================================  =================  ============================================================

Putting a message costs nothing here: every ten seconds the growth of all queues is read, and the sizes of their new
entries are added up. A pull with messages costs one look-up.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from remoting.layout import QUEUE_ENTRY_BYTES, QUEUE_SIZE_AT

if TYPE_CHECKING:
    from store.derived.consume_queue import ConsumeQueue

__all__ = ["SERIES_MAX", "Traffic"]

_SAMPLE_MS = 10_000
_SPANS = (("statsMinute", 10_000, 7), ("statsHour", 600_000, 7), ("statsDay", 3_600_000, 25))
SERIES_MAX = 20_000
"""Most series of all kinds, some 10 KiB each after a day; further topics and groups are not counted by name."""
_STEPS = 500
"""Series that take a sample at a stretch: about a millisecond."""
_STRETCH = 50_000
"""Entries that are added up at a stretch: about a millisecond."""

_Sample = tuple[int, int, int, int]  # ms, calls, messages, bytes

_NUMS, _SIZE = 2, 3
_NAMES = {
    "TOPIC_PUT_NUMS": ("put", _NUMS),
    "TOPIC_PUT_SIZE": ("put", _SIZE),
    "GROUP_GET_NUMS": ("get", _NUMS),
    "GROUP_GET_SIZE": ("get", _SIZE),
    "SNDBCK_PUT_NUMS": ("back", _NUMS),
    "BROKER_PUT_NUMS": ("broker put", _NUMS),
    "BROKER_GET_NUMS": ("broker get", _NUMS),
}


class _Series:
    """A counter with its samples: every ten seconds, ten minutes and hour, as far back as it looks."""

    __slots__ = ("bytes", "calls", "messages", "samples")

    def __init__(self) -> None:
        self.calls = self.messages = self.bytes = 0
        self.samples: list[deque[_Sample]] = []

    def step(self, now_ms: int) -> None:
        """Take a sample at ``now_ms`` (epoch ms)."""
        sample = (now_ms, self.calls, self.messages, self.bytes)
        if not self.samples or now_ms < self.samples[0][-1][0]:  # new, or the clock was set back
            before = self.samples[0][-1][1:] if self.samples else (0, 0, 0)
            start: _Sample = (now_ms - _SAMPLE_MS, *before)
            self.samples = [deque([start, sample], maxlen=keep) for _, _, keep in _SPANS]
            return
        for kept, (_, every_ms, _) in zip(self.samples, _SPANS, strict=True):
            # The newest sample moves with the time until it is `every_ms` later than the one before; then it stays.
            if len(kept) > 1 and kept[-1][0] - kept[-2][0] < every_ms:
                kept[-1] = sample
            else:
                kept.append(sample)

    def idle(self) -> bool:
        """True if nothing has been counted in the whole time of its samples."""
        day = self.samples[-1]
        return len(day) == day.maxlen and day[0][1:] == (self.calls, self.messages, self.bytes)

    def figures(self, kind: int) -> dict[str, dict[str, float]]:
        """Sum, rate a second and average a call over each span; ``kind`` is the index of the field in a sample."""
        figures = {}
        for (name, _, _), kept in zip(_SPANS, self.samples, strict=True):
            first, last = kept[0], kept[-1]
            total, calls = last[kind] - first[kind], last[1] - first[1]
            figures[name] = {
                "avgpt": total / calls if calls else 0.0,
                "sum": total,
                "tps": total * 1000 / max(1, last[0] - first[0]),
            }
        return figures


class Traffic:
    """Statistics of topics and groups. Used by the network loop only.

    Args:
        queues: All queues of the store; what they hold now is not counted.
        cluster_name: The key of the figures of the whole broker.
        totals: Reads how many messages were put and pulled since the start.
        series_max: Most series.

    Raises StoreError if a queue's file cannot be read.
    """

    def __init__(
        self,
        queues: Iterable[ConsumeQueue],
        cluster_name: str,
        totals: Callable[[], tuple[int, int]],
        series_max: int = SERIES_MAX,
    ) -> None:
        self._queues = queues
        self._cluster_name = cluster_name
        self._totals = totals
        self._ends = {(queue.topic, queue.queue_id): queue.count for queue in queues}
        self._tables: dict[str, dict[str, _Series]] = {kind: {} for kind, _ in _NAMES.values()}
        self._stepped_ms: int | None = None
        self.series_max = series_max
        self._uncounted = _Series()
        """Counts for topics and groups beyond the limit of series."""

    @property
    def series_count(self) -> int:
        """Number of topics, groups and pairs of them that are counted."""
        return sum(map(len, self._tables.values()))

    # ------------------------------------------------------------------------------------------------ counting

    def got(self, group: str, topic: str, messages: int, size: int) -> None:
        """Count a pull that got messages."""
        series = self._series("get", f"{topic}@{group}")
        series.calls += 1
        series.messages += messages
        series.bytes += size

    def sent_back(self, group: str, topic: str) -> None:
        """Count a message that a group could not handle; ``topic`` is where it was first."""
        series = self._series("back", f"{topic}@{group}")
        series.calls += 1
        series.messages += 1

    def steps(self, now_ms: int) -> Iterator[None]:
        """Take a sample if ten seconds have passed, a stretch of about a millisecond at a time."""
        if self._stepped_ms is not None and 0 <= now_ms - self._stepped_ms < _SAMPLE_MS:
            return
        self._stepped_ms = now_ms
        yield from self._count_puts()
        for kind, total in zip(("broker put", "broker get"), self._totals(), strict=True):
            self._series(kind, self._cluster_name).messages = total
        for kind, table in self._tables.items():
            for number, (key, series) in enumerate(list(table.items()), 1):
                if number % _STEPS == 0:
                    yield
                series.step(now_ms)
                if series.idle() and not kind.startswith("broker"):
                    table.pop(key, None)

    def _count_puts(self) -> Iterator[None]:
        ends: dict[tuple[str, int], int] = {}
        for queue in self._queues:
            name = (queue.topic, queue.queue_id)
            start, end = self._ends.get(name, 0), queue.count
            ends[name] = end
            if start > end:
                start = 0  # deleted, and made again
            if start == end:
                continue
            series = self._series("put", queue.topic)
            series.calls += end - start
            series.messages += end - start
            while start < end:
                entries = queue.read(start, min(end - start, _STRETCH))
                if not entries:
                    break  # deleted meanwhile
                series.bytes += _sizes(entries)
                start += len(entries) // QUEUE_ENTRY_BYTES
                yield
        self._ends = ends

    def _series(self, kind: str, key: str) -> _Series:
        table = self._tables[kind]
        series = table.get(key)
        if series is None:
            if self.series_count >= self.series_max and not kind.startswith("broker"):
                return self._uncounted
            series = table[key] = _Series()
        return series

    # ------------------------------------------------------------------------------------------------ reading

    def view(self, name: str, key: str) -> Mapping[str, Mapping[str, float]] | None:
        """The figures of one key over a minute, an hour and a day, as of the last sample; None if there are none."""
        kind, field = _NAMES.get(name, ("", 0))
        series = self._tables.get(kind, {}).get(key)
        return series.figures(field) if series is not None and series.samples else None

    def pulled(self) -> list[tuple[str, int, int]]:
        """List ``topic@group`` with the messages and bytes that it has pulled since it was first seen. Any thread."""
        return [(key, series.messages, series.bytes) for key, series in list(self._tables["get"].items())]

    def rate(self, name: str, key: str) -> float:
        """Messages (or bytes) a second over the last minute; 0.0 if nothing is known."""
        figures = self.view(name, key)
        return 0.0 if figures is None else figures["statsMinute"]["tps"]


def _sizes(entries: bytes) -> int:
    """Add up the sizes in ConsumeQueue entries."""
    # Summed by byte place, high byte first: a slice with a step and `sum` run in C, without an object for each entry.
    total = 0
    for place in range(4):
        column = entries[QUEUE_SIZE_AT + place :: QUEUE_ENTRY_BYTES]
        total = total * 256 + (0 if column.count(0) == len(column) else sum(column))
    return total
