"""The plug-in's figures of GET_BROKER_RUNTIME_INFO, as texts."""

from __future__ import annotations

from broker_plugin.delivery import Deliverer
from broker_plugin.recovery import OverdueRecovery
from broker_plugin.rules.ranges import KeyRanges
from broker_plugin.rules.stats import Stats
from broker_plugin.sweeper import Sweeper
from broker_plugin.threads.clock import StepWatch
from store.put.lateness import LatenessCounts
from store.spill.spill_store import SpillStore

__all__ = ["lateness_texts", "runtime_texts"]


def runtime_texts(
    stats: Stats,
    sweeper: Sweeper,
    recovery: OverdueRecovery,
    ranges: KeyRanges,
    deliverer: Deliverer,
    spill: SpillStore,
    watch: StepWatch,
) -> dict[str, str]:
    """Counts, times in ms and sizes in bytes, as text: RocketMQ's names where it has one, else ``timewheel…``."""
    info = {
        "timerReadBehind": sweeper.behind_ms // 1000,
        "timerOffsetBehind": 0,
        "timerCongestNum": spill.pending_count,
        "timewheelPending": spill.pending_count,
        "timewheelPendingBytes": spill.pending_bytes,
        "timewheelArmed": sweeper.armed_count,
        "timewheelFailed": recovery.failed_count,
        "timewheelRecoveryRanges": len(ranges),
        "timewheelUncertain": deliverer.uncertain,
        "timewheelAccepted": stats.accepted,
        "timewheelRefused": stats.refused,
        "timewheelDelivered": stats.delivered,
        "timewheelCancelled": stats.cancelled,
        "timewheelMoved": stats.moved,
        "timewheelRestored": stats.restored,
        "timewheelHandedOver": stats.handed_over,
        "timewheelStalls": stats.stalls,
        "timewheelUnreadable": stats.unreadable,
        "timewheelClockStepsForward": watch.forward_count,
        "timewheelClockStepsBackward": watch.backward_count,
        "timewheelClockLastStepMs": watch.last_step_ms,
        "timewheelJournalBytes": spill.journal_bytes,
        "timewheelRuns": spill.run_count,
    }
    return {key: str(value) for key, value in info.items()}


def lateness_texts(stats: Stats) -> dict[str, str]:
    """Lateness of deliveries in ms, as text: those of the sweeper, and those of recovery."""
    return {
        "timewheelLatenessMs": _lateness_text(stats.on_time),
        "timewheelOverdueLatenessMs": _lateness_text(stats.overdue),
    }


def _lateness_text(lateness: LatenessCounts) -> str:
    """Count, mean, and upper bounds of p50, p99, p99.9 and the maximum, ms."""
    mean = lateness.sum_ms / lateness.count if lateness.count else 0.0
    p50, p99, p999 = (lateness.percentile_ms(share) for share in (0.5, 0.99, 0.999))
    return f"n={lateness.count} mean={mean:.2f} p50<={p50} p99<={p99} p99.9<={p999} max={lateness.max_ms}"
