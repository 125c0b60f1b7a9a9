"""The metrics of one instance, collected at each scrape. Names and meanings are in docs/metrics.md.

A scrape runs in a thread of its own. It reads integers that the event loop changes, and asks the index of each cache
twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from service.link.clock import wall_ms
from service.running.instance_counts import InstanceCounts
from service.running.service import DelayService, SenderDoor
from store.disk.errors import StoreError
from store.put.lateness import BOUNDS_MS, LatenessCounts
from store.put.pending_api import PendingQuery

__all__ = ["ServiceCollector"]


class ServiceCollector(Collector):
    """The collector that `prometheus_client` calls."""

    def __init__(self, service: DelayService) -> None:
        self._service = service

    def collect(self) -> Iterator[Metric]:
        """Make all metrics."""
        yield from self._waiting()
        yield from _counted(self._service.tally)
        yield _lateness(self._service.tally.lateness)
        if self._service.door is not None:
            yield from _senders(self._service.door)

    def _waiting(self) -> Iterator[Metric]:
        service, now_ms = self._service, wall_ms()
        pending, overdue, refused, beyond, doubtful = (Counter[str]() for _ in range(5))
        states: Counter[str] = Counter()
        for owner in service.owners():
            shard = owner.name
            states[owner.shard.state.value] += 1
            doubtful[shard] = len(owner.shard.lost) + len(owner.shard.doubts)
            if owner.cache is None:
                continue
            pending[shard] = owner.cache.pending_count
            refused[shard] = owner.cache.refused_count
            try:
                desk = owner.cache.plugin.pending
                overdue[shard] = desk.count(PendingQuery(due_to_ms=now_ms)).count
                beyond[shard] = desk.count(PendingQuery(due_from_ms=now_ms + service.roll_after_ms)).count
            except StoreError:
                continue  # the shard is being given up
        yield _by("timewheel_service_pending_messages", "Entries that wait, in the shards of this instance.", pending)
        yield _by(
            "timewheel_service_overdue_messages",
            "Entries that are due and not delivered yet, in the shards of this instance.",
            overdue,
        )
        text = "Due entries that brokers refuse to the account of the service. They wait until it gets the right."
        yield _by("timewheel_service_refused_messages", text, refused)
        yield _by(
            "timewheel_service_beyond_roll_messages",
            "Entries due later than --roll-after from now: they are rolled before they are due.",
            beyond,
        )
        yield _by(
            "timewheel_service_doubts",
            "Deliveries without an answer, and earlier owners, whose messages are searched for in target queues.",
            doubtful,
        )
        shards = GaugeMetricFamily("timewheel_service_shards", "Shards of this instance by state.", labels=["state"])
        for state, count in states.items():
            shards.add_metric([state.replace(" ", "_")], count)
        yield shards


def _by(name: str, text: str, counts: Counter[str]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, text, labels=["shard"])
    for shard, count in sorted(counts.items()):
        family.add_metric([shard], count)
    return family


def _counted(tally: InstanceCounts) -> Iterator[Metric]:
    for name, text, value in (
        (
            "delivered",
            "Messages that brokers have stored in target topics, those in TIMEWHEEL_REJECTED included.",
            tally.delivered,
        ),
        (
            "rejected",
            "Messages that could not be delivered and went to TIMEWHEEL_REJECTED, with the reason.",
            tally.rejected,
        ),
        ("rolled", "Entries that were stored again before the cluster deletes them.", tally.rolled),
        ("takeovers", "Shards that this instance has come to own.", tally.takeovers),
        ("failed", "Ownerships and followings of shards that an error has ended; each is tried again.", tally.failed),
        ("fenced", "Shards that another owner took over.", tally.fenced),
        ("expired", "Entries that the cluster deleted before they were delivered: lost.", tally.expired),
        ("damaged", "Entries whose records could not be read.", tally.damaged),
    ):
        yield CounterMetricFamily(f"timewheel_service_{name}_total", text, value=value)
    commands = CounterMetricFamily(
        "timewheel_service_commands_total", "Verdicts on commands (cancel, move, get, ask).", labels=["op", "verdict"]
    )
    for (kind, verdict), count in list(tally.verdicts.items()):
        commands.add_metric([kind, verdict], count)
    yield commands
    yield CounterMetricFamily(
        "timewheel_service_early_total",
        "Deliveries acknowledged before they were due: always 0.",
        value=tally.lateness.early,
    )


def _senders(door: SenderDoor) -> Iterator[Metric]:
    yield GaugeMetricFamily("timewheel_service_senders", "Connections of senders (--listen).", value=door.senders)
    text = "Sends with a due time (--listen) by what the sender was told."
    sends = CounterMetricFamily("timewheel_service_sends_total", text, labels=["end"])
    for end, count in list(door.ended.items()):
        sends.add_metric([end], count)
    yield sends


def _lateness(counts: LatenessCounts) -> Metric:
    buckets: list[tuple[str, float]] = []
    total = 0
    for bound, count in zip((*BOUNDS_MS, None), counts.classes, strict=True):
        total += count
        buckets.append(("+Inf" if bound is None else repr(bound / 1000), total))
    family = HistogramMetricFamily("timewheel_service_lateness_seconds", "Acknowledged by the target minus due.")
    family.add_metric([], buckets, counts.sum_ms / 1000)
    return family
