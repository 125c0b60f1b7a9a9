"""`Family`: one metric with its rows, as plain values, so that a plug-in needs no exposition library.

A family is made at each scrape, from counters that exist anyway. If several parts have rows of one metric (the broker
counts ordinary sends, a plug-in timed ones), each makes a `Family` of that name, with the same kind and labels.

>>> Family(name="sheep_total", kind=MetricKind.COUNTER, text="Sheep that jumped.", rows=[((), 3)]).name
'sheep_total'
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol, runtime_checkable

from store.put.lateness import LatenessCounts
from store.put.plugin_api import Plugin

__all__ = ["LATENESS_BOUNDS_MS", "OTHER", "Classes", "Family", "MeasuredPlugin", "MetricKind", "lateness_row"]

OTHER = "other"
"""The label under which all topics beyond the limit are counted together."""

LATENESS_BOUNDS_MS = (
    *(1, 2, 5, 10, 20, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 30_000, 60_000, 300_000, 1_800_000, 7_200_000),
)
"""Bounds of ``timewheel_lateness_seconds``."""


class MetricKind(StrEnum):
    """The type of a metric, as Prometheus names it."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Classes:
    """A row of a histogram: ``counts`` per class, not cumulated, one more than ``bounds``; ``total`` is their sum."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float], counts: Sequence[int] | None = None, total: float = 0) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1) if counts is None else list(counts)
        self.total = total

    def add(self, value: float, count: int = 1) -> None:
        """Count a value, or several equal ones."""
        self.counts[bisect_left(self.bounds, value)] += count
        self.total += value * count


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One metric: ``rows`` are pairs of the values of ``labels`` and a number (`Classes` of a histogram).

    ``name`` is the name on the wire: a counter's ends in ``_total``. ``text`` is one line of help.
    """

    name: str
    kind: MetricKind
    text: str
    labels: tuple[str, ...] = ()
    rows: Sequence[tuple[tuple[str, ...], float | Classes]] = ()


@runtime_checkable
class MeasuredPlugin(Plugin, Protocol):
    """A plug-in with metrics of its own."""

    def measure(self, topics_max: int) -> None:
        """Begin to count by topic, at most ``topics_max`` by name. Called once, between ``open`` and ``start``.

        It is not called without metrics, so that counting then costs nothing.
        """
        ...

    def families(self) -> Iterable[Family]:
        """Make its metrics. Any thread except the network loop's; takes the delivery lock for moments at most."""
        ...

    @property
    def lateness(self) -> Mapping[str, LatenessCounts]:
        """Lateness of its deliveries, by kind of delivery (``on_time``, ``recovery``)."""
        ...

    @property
    def first_delivery_ms(self) -> int:
        """Time of the first delivery since the start, epoch ms; 0: none yet."""
        ...


def lateness_row(path: str, lateness: LatenessCounts) -> tuple[tuple[str, ...], Classes]:
    """Make a row of ``timewheel_lateness_seconds``."""
    counts = lateness.within(LATENESS_BOUNDS_MS)
    return (path,), Classes([bound / 1000 for bound in LATENESS_BOUNDS_MS], counts, lateness.sum_ms / 1000)
