"""Counters of an instance over all its shards, since its start."""

from __future__ import annotations

from collections import Counter

from store.put.lateness import LatenessCounts

__all__ = ["InstanceCounts"]


class InstanceCounts:
    """The counters. Changed in the event loop, read in any thread."""

    __slots__ = (
        "damaged",
        "delivered",
        "expired",
        "failed",
        "fenced",
        "lateness",
        "rejected",
        "rolled",
        "takeovers",
        "verdicts",
    )

    def __init__(self) -> None:
        self.delivered = self.rejected = self.rolled = 0
        self.takeovers = self.fenced = self.expired = self.damaged = self.failed = 0
        self.verdicts: Counter[tuple[str, str]] = Counter()
        """Verdicts given, by (kind of command, verdict)."""
        self.lateness = LatenessCounts()
        """Acknowledged by the target's broker minus due, by this machine's clock, ms."""
