"""Pending messages by due time, from the plug-ins' `store.put.pending_api.PendingControl`.

Four forecasts and one row of a listing are asked for at each scrape, and none of them reads a message's body.

======================================  ==================================================================
``rocketmq_timer_message_snapshot``     disjoint: due within 5 s, then from there within 60 s, and so on, as Apache's
``timewheel_overdue_messages``          disjoint: overdue by up to 1 s, from there up to 10 s, and so on, ``inf``
======================================  ==================================================================
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import pairwise

from broker.metrics.host import STORAGE, STORAGE_LABELS, gauge
from store.put.measures import OTHER, Family, MetricKind
from store.put.pending_api import Forecast, PendingControl, PendingFigures, PendingQuery

__all__ = ["OVERDUE_S", "SNAPSHOT_S", "last_due_ms", "oldest_overdue_ms", "pending_families"]

SNAPSHOT_S = (5, 60, 300, 900, 3600, 14_400, 28_800, 86_400)
OVERDUE_S = (1, 10, 60, 600)
_COUNTED_S = ((60, 12), (3600, 240), (86_400, 288))
"""Spans and bars of the forecasts: each bound above is the end of a bar."""


def oldest_overdue_ms(control: PendingControl, now_ms: int) -> int | None:
    """When the oldest overdue message came due, epoch ms; None if nothing is overdue."""
    rows = control.page(PendingQuery(due_to_ms=now_ms), 1).rows
    return rows[0].due_ms if rows else None


def last_due_ms(control: PendingControl, now_ms: int) -> int | None:
    """When the last pending message is due, epoch ms; None if nothing is due from now on."""
    last_ms = control.last_due()
    return None if last_ms is None or last_ms < now_ms else last_ms


def pending_families(control: PendingControl, levels: int, now_ms: int, topics_max: int) -> Iterator[Family]:
    """Make the metrics of one plug-in's pending messages; ``levels`` are pending on the level scheduler."""
    figures = control.figures()
    yield from _counts(figures, levels)
    yield from _by_topic(control, topics_max)
    yield from _by_due(control, now_ms)
    oldest_ms = oldest_overdue_ms(control, now_ms)
    age_ms = 0 if oldest_ms is None else now_ms - oldest_ms
    yield gauge("timewheel_oldest_overdue_seconds", "How late the oldest overdue message is; 0: none.", age_ms / 1000)
    yield from _ends(control, now_ms)


def _by_due(control: PendingControl, now_ms: int) -> Iterator[Family]:
    try:
        ahead, overdue = _ahead(control, now_ms), _overdue(control, now_ms)
    except NotImplementedError:  # a plug-in without forecasts
        return
    yield Family(
        name="rocketmq_timer_message_snapshot",
        kind=MetricKind.GAUGE,
        text="Pending messages by when they are due: disjoint ranges, each up to its bound.",
        labels=(*STORAGE_LABELS, "timer_bound_s"),
        rows=[((*STORAGE, str(bound)), count) for bound, count in ahead],
    )
    yield Family(
        name="timewheel_overdue_messages",
        kind=MetricKind.GAUGE,
        text="Overdue messages by how much: disjoint ranges, each up to its bound.",
        labels=("bound_s",),
        rows=overdue,
    )


def _counts(figures: PendingFigures, levels: int) -> Iterator[Family]:
    places = {
        "armed": figures.armed,
        "failed": figures.failed,
        "stored": max(0, figures.count - figures.armed - figures.failed),
        "levels": levels,
    }
    yield Family(
        name="timewheel_pending_messages",
        kind=MetricKind.GAUGE,
        text="Pending messages by where they wait: armed (due within a second), failed, stored, on a fixed level.",
        labels=("place",),
        rows=[((place,), count) for place, count in places.items()],
    )
    yield gauge("timewheel_pending_bytes", "Bytes of pending timed messages, about.", figures.bytes)
    yield Family(
        name="timewheel_commands_total",
        kind=MetricKind.COUNTER,
        text="Commands on pending messages.",
        labels=("op", "verdict"),
        rows=[((verb.value, verdict.value), count) for (verb, verdict), count in sorted(figures.verdicts.items())],
    )


def _by_topic(control: PendingControl, topics_max: int) -> Iterator[Family]:
    topics = control.topics()
    rows = [((*STORAGE, row.topic), row.count) for row in topics[:topics_max]]
    rest = sum(row.count for row in topics[topics_max:])
    if rest:
        rows.append(((*STORAGE, OTHER), rest))
    yield Family(
        name="rocketmq_timing_messages",
        kind=MetricKind.GAUGE,
        text="Pending timed messages.",
        labels=(*STORAGE_LABELS, "topic"),
        rows=rows,
    )


def _ahead(control: PendingControl, now_ms: int) -> list[tuple[int, int]]:
    """For each bound, count the messages due after the previous bound and up to this one."""
    within: dict[int, int] = {}
    for span_s, bars in _COUNTED_S:
        found = control.forecast(now_ms, now_ms + span_s * 1000, bars)
        for bound in SNAPSHOT_S:
            if bound <= span_s and bound not in within:
                within[bound] = _count_before(found, now_ms + bound * 1000)
    counts = [0, *(within[bound] for bound in SNAPSHOT_S)]
    return [(bound, max(0, new - old)) for bound, (old, new) in zip(SNAPSHOT_S, pairwise(counts), strict=True)]


def _overdue(control: PendingControl, now_ms: int) -> Sequence[tuple[tuple[str, ...], int]]:
    span_s = OVERDUE_S[-1]
    found = control.forecast(now_ms - span_s * 1000, now_ms, span_s)
    counts = [0] * len(OVERDUE_S)
    for bar in found.bars:
        # A bar of a second that begins n s ago holds what is overdue by more than n - 1 s, and n s at most.
        counts[bisect_left(OVERDUE_S, -(-(now_ms - bar.from_ms) // 1000))] += bar.count
    rows = [((str(bound),), count) for bound, count in zip(OVERDUE_S, counts, strict=True)]
    return [*rows, (("inf",), found.overdue)]


def _count_before(found: Forecast, until_ms: int) -> int:
    return sum(bar.count for bar in found.bars if bar.from_ms < until_ms)


def _ends(control: PendingControl, now_ms: int) -> Iterator[Family]:
    """When the next one and the last one are due; absent if nothing is pending."""
    ahead = control.page(PendingQuery(due_from_ms=now_ms), 1).rows
    last_ms = last_due_ms(control, now_ms)
    for name, text, due_ms in (
        ("next", "When the next message is due that is not overdue.", ahead[0].due_ms if ahead else None),
        ("last", "When the last one is due.", last_ms),
    ):
        yield Family(
            name=f"timewheel_{name}_due_timestamp_seconds",
            kind=MetricKind.GAUGE,
            text=f"{text} Absent if there is none.",
            rows=[] if due_ms is None else [((), due_ms / 1000)],
        )
