"""The text that Prometheus scrapes: families of all parts, with the labels that every series carries.

prometheus_client only writes the text. It would count a value in 2 µs and find a labelled child in another one: at
100,000 messages a second a third of a core. Our counts are integers that are updated once a batch.

Families are gathered and written one at a time. Between two of them the thread pauses as long as it has worked, because
one thread runs Python at a time, and the network loop needs the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from store.put.measures import Classes, Family, MetricKind

__all__ = ["CONTENT_TYPE", "exposition", "merged"]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class _One(Collector):
    """A collector of one metric, so that each is written by itself."""

    def __init__(self, metric: Metric) -> None:
        self._metric = metric

    def collect(self) -> Iterator[Metric]:
        """Yield the one metric."""
        yield self._metric


def exposition(families: Iterable[Family], labels: Mapping[str, str], rest: Callable[[], None] = lambda: None) -> bytes:
    """Write families, sorted by name; ``labels`` are on every series. ``rest`` is called after each.

    Families of one name become one, and of two rows with the same labels the first one counts.
    """
    parts = []
    for family in merged(families, rest):
        registry = CollectorRegistry(auto_describe=False)
        registry.register(_One(_metric(family, labels)))
        parts.append(generate_latest(registry))
        rest()
    return b"".join(parts)


def merged(families: Iterable[Family], rest: Callable[[], None] = lambda: None) -> list[Family]:
    """Make one family of those that have the same name; sorted by name. Raises ValueError."""
    found: dict[str, Family] = {}
    for family in families:
        known = found.get(family.name)
        if known is not None:
            if (known.kind, known.labels) != (family.kind, family.labels):
                raise ValueError(f"{family.name} is a {known.kind} with {known.labels}, and a {family.kind} too")
            rows = {**dict(family.rows), **dict(known.rows)}
            family = Family(
                name=known.name, kind=known.kind, text=known.text, labels=known.labels, rows=list(rows.items())
            )
        found[family.name] = family
        rest()
    return [found[name] for name in sorted(found)]


def _metric(family: Family, labels: Mapping[str, str]) -> Metric:
    names, values = [*family.labels, *labels], list(labels.values())
    if family.kind is MetricKind.HISTOGRAM:
        histogram = HistogramMetricFamily(family.name, family.text, labels=names)
        for own, classes in family.rows:
            assert isinstance(classes, Classes)
            histogram.add_metric([*own, *values], _buckets(classes), classes.total)
        return histogram
    metric: CounterMetricFamily | GaugeMetricFamily
    if family.kind is MetricKind.COUNTER:
        metric = CounterMetricFamily(family.name, family.text, labels=names)
    else:
        metric = GaugeMetricFamily(family.name, family.text, labels=names)
    for own, value in family.rows:
        assert not isinstance(value, Classes)
        metric.add_metric([*own, *values], value)
    return metric


def _buckets(classes: Classes) -> list[tuple[str, float]]:
    found: list[tuple[str, float]] = []
    total = 0
    for bound, count in zip((*map(float, classes.bounds), float("inf")), classes.counts, strict=True):
        total += count
        found.append(("+Inf" if bound == float("inf") else repr(bound), total))
    return found
