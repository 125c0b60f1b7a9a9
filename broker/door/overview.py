"""The figures at the top of the page, in one answer: pending messages, lateness of deliveries, the broker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from broker.metrics.pending import last_due_ms, oldest_overdue_ms
from store.put.measures import LATENESS_BOUNDS_MS
from store.put.pending_api import PendingQuery

if TYPE_CHECKING:
    from broker.door.state import DoorState

__all__ = ["overview"]


def overview(state: DoorState) -> dict[str, Any]:
    """Make the overview, in a worker thread of the door. Raises StoreError, NotReadyError."""
    core, control = state.core, state.control
    now_ms = core.now_ms()
    figures = control.figures()
    ahead = control.page(PendingQuery(due_from_ms=now_ms), 1).rows
    oldest_ms = oldest_overdue_ms(control, now_ms)
    return {
        "now_ms": now_ms,
        "broker": core.config.broker_name,
        "cluster": core.config.cluster_name,
        "not_ready": state.why_not_ready(),
        "pending": {
            "count": figures.count,
            "bytes": figures.bytes,
            "armed": figures.armed,
            "failed": figures.failed,
            "levels": core.level_scheduler.pending_count(),
            "next_due_ms": ahead[0].due_ms if ahead else None,
            "last_due_ms": last_due_ms(control, now_ms),
            "oldest_overdue_ms": oldest_ms,
        },
        "lateness": {
            "bounds_ms": list(LATENESS_BOUNDS_MS),
            "since_start": state.exporter.lateness(),
            "minutes": [{"from_ms": at_ms, "counts": counts} for at_ms, counts in state.history.cells()],
        },
        "commands": [
            {"op": verb.value, "verdict": verdict.value, "count": count}
            for (verb, verdict), count in sorted(figures.verdicts.items())
        ],
    }
