"""Why an instance is not ready: the reasons in the answer of ``/readyz``. Any thread.

This reads values that the event loop changes, and asks the index of each cache for the oldest due message.
"""

from __future__ import annotations

from service.core.states import OwnerState
from service.link.clock import mono_ms, wall_ms
from service.running.owner import Owner
from service.running.service import DelayService
from store.disk.errors import StoreError
from store.put.pending_api import PendingQuery

__all__ = ["BEHIND_MAX_MS", "SILENCE_MAX_MS", "why_not_ready"]

BEHIND_MAX_MS = 10_000
"""Deliveries this late make an instance not ready, as they make a broker."""
SILENCE_MAX_MS = 30_000
"""An instance is not ready when no broker has listed the members for this long: it asks every 10 s."""


def why_not_ready(service: DelayService) -> list[str]:
    """The reasons, one line each; empty if it is ready. An instance without a shard is ready."""
    seen_ms = service.seen_ms
    if seen_ms is None:
        return ["it has not begun: no broker of the cluster has listed the members of the service yet"]
    reasons = []
    silent_ms = mono_ms() - seen_ms
    if silent_ms > SILENCE_MAX_MS:
        reasons.append(f"no broker of the cluster has listed the members of the service for {silent_ms / 1000:.0f} s")
    owners = {owner.queue: owner for owner in service.owners()}
    without = sorted(service.wanted() - owners.keys())
    reasons += [
        f"{queue[1]}/{queue[2]}: assigned to this instance, but has no owner; the log says why" for queue in without
    ]
    for _, owner in sorted(owners.items()):
        reasons += _of_shard(owner)
    return reasons


def _of_shard(owner: Owner) -> list[str]:
    shard = owner.shard
    if shard.state is not OwnerState.OWNING:
        return [f"{owner.name}: not owned yet: {shard.state.value}"]
    if not shard.lease.holds(mono_ms()):
        return [f"{owner.name}: its queue was not read to its end within the last 2 s, so nothing may be delivered"]
    late_ms = _late_ms(owner)
    if late_ms > BEHIND_MAX_MS:
        return [f"{owner.name}: deliveries are behind: the oldest message came due {late_ms / 1000:.1f} s ago"]
    return []


def _late_ms(owner: Owner) -> int:
    """Lateness of the oldest due message, ms; 0 if none is due, or if some wait for a topic that is away."""
    if owner.cache is None:
        return 0
    desk, now_ms = owner.cache.plugin.pending, wall_ms()
    try:
        if desk.figures().failed:
            return 0
        rows = desk.page(PendingQuery(due_to_ms=now_ms), 1).rows
    except StoreError:
        return 0  # the shard is being given up
    return now_ms - rows[0].due_ms if rows else 0
