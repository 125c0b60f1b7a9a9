"""The plug-in's metrics, made from existing counters: RocketMQ's names where it has one, else ``timewheel_…``.

==============================================  ==========================================================
``rocketmq_timer_enqueue_total{topic}``         accepted; ``rocketmq_timer_dequeue_total{topic}``: delivered
``rocketmq_timer_dequeue_lag``                  all pending messages, as Apache's broker counts it
``rocketmq_timer_dequeue_latency_milliseconds``  how late the sweeper is now
``rocketmq_delay_message_latency_seconds``      the requested delay, by topic
==============================================  ==========================================================

An accepted message is armed in the turn that stores it, so the ``enqueue`` lag of Apache's timer is 0 here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from broker_plugin.figures.tally import DELAYS_S, SIZES
from store.put.measures import Classes, Family, MetricKind, lateness_row
from store.put.plugin_api import PutStatus

if TYPE_CHECKING:
    from broker_plugin.figures.tally import AcceptedRow
    from store.put.lateness import LatenessCounts

__all__ = ["STORAGE", "STORAGE_LABELS", "plugin_families"]

STORAGE_LABELS = ("storage_type", "storage_medium")
STORAGE = ("local", "disk")
"""The values of `STORAGE_LABELS`, which Apache's broker puts on every figure of a store."""
_NONE_FAILED = {PutStatus.SERVICE_NOT_AVAILABLE.name: 0}
"""A series that exists from the start, so that a rate includes the first failure."""
_IN_LABELS = ("topic", "message_type", "is_system")


def plugin_families(
    lateness: Mapping[str, LatenessCounts],
    put_failures: Mapping[str, int],
    clock_steps_ms: tuple[int, int],
    accepted: Sequence[tuple[str, AcceptedRow]],
    delivered: Sequence[tuple[str, int]],
    pending: int,
    behind_ms: int,
) -> Iterator[Family]:
    """Make the families of one plug-in; ``accepted`` and ``delivered`` are counts by topic.

    ``clock_steps_ms`` are the ms by which the wall clock was set forward, and back, in all.
    """
    yield from _timer(accepted, delivered, pending, behind_ms)
    yield from _sends(accepted)
    yield Family(
        name="timewheel_lateness_seconds",
        kind=MetricKind.HISTOGRAM,
        text="Stored in the CommitLog minus due, by who delivered.",
        labels=("path",),
        rows=[lateness_row(path, counts) for path, counts in lateness.items()],
    )
    yield Family(
        name="timewheel_early_total",
        kind=MetricKind.COUNTER,
        text="Messages stored before they were due: always 0.",
        labels=("path",),
        rows=[((path,), counts.early) for path, counts in lateness.items()],
    )
    yield Family(
        name="timewheel_put_failures_total",
        kind=MetricKind.COUNTER,
        text="Deliveries that the store refused, each try counted.",
        labels=("status",),
        rows=[((status,), count) for status, count in {**_NONE_FAILED, **put_failures}.items()],
    )
    yield Family(
        name="timewheel_clock_step_seconds_total",
        kind=MetricKind.COUNTER,
        text="By how much the wall clock was set.",
        labels=("direction",),
        rows=[(("forward",), clock_steps_ms[0] / 1000), (("backward",), clock_steps_ms[1] / 1000)],
    )


def _timer(
    accepted: Sequence[tuple[str, AcceptedRow]], delivered: Sequence[tuple[str, int]], pending: int, behind_ms: int
) -> Iterator[Family]:
    labels = (*STORAGE_LABELS, "topic")
    yield Family(
        name="rocketmq_timer_enqueue_total",
        kind=MetricKind.COUNTER,
        text="Timed messages accepted.",
        labels=labels,
        rows=[((*STORAGE, topic), row.count) for topic, row in accepted],
    )
    yield Family(
        name="rocketmq_timer_dequeue_total",
        kind=MetricKind.COUNTER,
        text="Timed messages delivered.",
        labels=labels,
        rows=[((*STORAGE, topic), count) for topic, count in delivered],
    )
    for name, text, value in (
        ("enqueue_lag", "Accepted messages not looked at yet: none, here.", 0),
        ("enqueue_latency_milliseconds", "How long ago the oldest of them was accepted.", 0),
        ("dequeue_lag", "Pending messages (not only overdue ones), as Apache's broker counts them.", pending),
        ("dequeue_latency_milliseconds", "How long ago the oldest message in hand came due.", behind_ms),
    ):
        yield Family(
            name=f"rocketmq_timer_{name}",
            kind=MetricKind.GAUGE,
            text=text,
            labels=STORAGE_LABELS,
            rows=[(STORAGE, value)],
        )
    yield Family(
        name="rocketmq_delay_message_latency_seconds",
        kind=MetricKind.HISTOGRAM,
        text="The delay that was asked for.",
        labels=labels,
        rows=[((*STORAGE, topic), Classes(DELAYS_S, row.delays, row.delay_ms / 1000)) for topic, row in accepted],
    )


def _sends(accepted: Sequence[tuple[str, AcceptedRow]]) -> Iterator[Family]:
    """Timed sends, which the broker does not count. Under their own topic; Apache counts them under a system topic."""
    yield Family(
        name="rocketmq_messages_in_total",
        kind=MetricKind.COUNTER,
        text="Messages sent.",
        labels=_IN_LABELS,
        rows=[((topic, "delay", "false"), row.count) for topic, row in accepted],
    )
    yield Family(
        name="rocketmq_throughput_in_total",
        kind=MetricKind.COUNTER,
        text="Bytes of the records of messages sent.",
        labels=_IN_LABELS,
        rows=[((topic, "delay", "false"), row.bytes) for topic, row in accepted],
    )
    yield Family(
        name="rocketmq_message_size",
        kind=MetricKind.HISTOGRAM,
        text="Bytes of the records of messages sent.",
        labels=_IN_LABELS,
        rows=[((topic, "delay", "false"), Classes(SIZES, row.sizes, row.bytes)) for topic, row in accepted],
    )
