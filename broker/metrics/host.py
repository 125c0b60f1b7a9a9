"""The broker's own figures: its store, its levels, its tables, its waiting requests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from broker.processors.runtime import VERSION_TEXT
from broker.transactions.transaction_processor import COMMIT, ROLLBACK
from store.put.measures import Family, MeasuredPlugin, MetricKind, lateness_row

if TYPE_CHECKING:
    from broker.parts import BrokerParts
    from broker.processor_set import ProcessorSet

__all__ = ["STORAGE", "STORAGE_LABELS", "gauge", "host_families"]

STORAGE_LABELS = ("storage_type", "storage_medium")
STORAGE = ("local", "disk")
"""The values of `STORAGE_LABELS`, which every figure of a store has in Apache's exposition."""


def gauge(name: str, text: str, value: float) -> Family:
    """Make a gauge without labels."""
    return Family(name=name, kind=MetricKind.GAUGE, text=text, rows=[((), value)])


def host_families(parts: BrokerParts, processors: ProcessorSet, booted_ms: int, now_ms: int) -> Iterator[Family]:
    """Make the metrics of everything but plug-ins, senders and consumers."""
    yield from _storage(parts, now_ms)
    yield from _levels(parts)
    yield from _transactions(parts, processors)
    yield gauge("rocketmq_broker_permission", "4 readable, 2 writable, 6 both.", parts.permission())
    yield gauge("rocketmq_topic_number", "Topics.", len(parts.topics.table))
    yield gauge("rocketmq_consumer_group_number", "Subscription groups.", len(parts.groups.table))
    waiting = {
        "send": parts.turn.waiting,
        "pull": processors.pull.waiting,
    }
    yield Family(
        name="rocketmq_processor_watermark",
        kind=MetricKind.GAUGE,
        text="Requests that wait: sends for their sync, pulls for messages or the disk.",
        labels=("processor",),
        rows=[((name,), count) for name, count in waiting.items()],
    )
    yield Family(
        name="timewheel_build_info",
        kind=MetricKind.GAUGE,
        text="1; the version of RocketMQ that the broker answers with.",
        labels=("protocol_version",),
        rows=[((VERSION_TEXT,), 1)],
    )
    firsts = [plugin.first_delivery_ms for plugin in parts.plugins if isinstance(plugin, MeasuredPlugin)]
    first_ms = min((at_ms for at_ms in firsts if at_ms), default=0)
    yield Family(
        name="timewheel_start_to_first_delivery_seconds",
        kind=MetricKind.GAUGE,
        text="From the start to the first delivery of a timed message; absent before it.",
        rows=[((), (first_ms - booted_ms) / 1000)] if first_ms else [],
    )


def _storage(parts: BrokerParts, now_ms: int) -> Iterator[Family]:
    store = parts.store
    log = store.commit_log
    info = store.runtime_info()
    earliest_ms, behind = int(info["earliestMessageTimeStamp"]), int(info["derivedBehindBytes"])
    for name, text, value in (
        ("size_bytes", "Bytes of the CommitLog.", log.end - log.begin),
        ("flush_behind_bytes", "Bytes that no sync has covered yet.", max(0, log.end - log.synced)),
        ("dispatch_behind_bytes", "Bytes whose queues and index are not durable yet.", max(0, behind)),
        (
            "message_reserve_time_milliseconds",
            "Age of the oldest message.",
            max(0, now_ms - earliest_ms) if earliest_ms > 0 else 0,
        ),
    ):
        yield Family(
            name=f"rocketmq_storage_{name}",
            kind=MetricKind.GAUGE,
            text=text,
            labels=STORAGE_LABELS,
            rows=[(STORAGE, value)],
        )


def _levels(parts: BrokerParts) -> Iterator[Family]:
    lateness = parts.level_scheduler.lateness
    yield Family(
        name="timewheel_lateness_seconds",
        kind=MetricKind.HISTOGRAM,
        text="Stored in the CommitLog minus due, by who delivered.",
        labels=("path",),
        rows=[lateness_row("level", lateness)],
    )
    yield Family(
        name="timewheel_early_total",
        kind=MetricKind.COUNTER,
        text="Messages stored before they were due: always 0.",
        labels=("path",),
        rows=[(("level",), lateness.early)],
    )


def _transactions(parts: BrokerParts, processors: ProcessorSet) -> Iterator[Family]:
    yield gauge("rocketmq_half_messages", "Half messages that are not decided.", len(parts.halves.undecided))
    counts = processors.transactions.counts
    for name, outcome in (("commit", COMMIT), ("rollback", ROLLBACK)):
        yield Family(
            name=f"rocketmq_{name}_messages_total",
            kind=MetricKind.COUNTER,
            text=f"Half messages decided by {name}.",
            rows=[((), counts[outcome])],
        )
