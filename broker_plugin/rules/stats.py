"""The plug-in's counters."""

from __future__ import annotations

from collections import Counter

from store.put.lateness import LatenessCounts
from store.put.pending_api import PendingVerb, PendingVerdict

__all__ = ["Rate", "Stats"]


class Rate:
    """Growth of a counter per second, between two looks that are at least a second apart."""

    __slots__ = ("_count", "_ns", "per_second")

    def __init__(self) -> None:
        self._ns: int | None = None
        self._count = 0
        self.per_second = 0.0

    def look(self, monotonic_ns: int, count: int) -> float:
        """Compare with the last look at least a second ago; returns the rate per second."""
        if self._ns is None:
            self._ns, self._count = monotonic_ns, count
        elif (elapsed := monotonic_ns - self._ns) >= 1_000_000_000:
            self.per_second = (count - self._count) * 1e9 / elapsed
            self._ns, self._count = monotonic_ns, count
        return self.per_second


class Stats:
    """Counters of one plug-in since its start; each is written by one thread or under the delivery lock."""

    __slots__ = (
        "accepted",
        "cancelled",
        "delivered",
        "first_delivery_ms",
        "handed_over",
        "moved",
        "on_time",
        "overdue",
        "put_failures",
        "refused",
        "restored",
        "stalls",
        "troubles",
        "unreadable",
        "verdicts",
    )

    def __init__(self) -> None:
        self.verdicts: Counter[tuple[PendingVerb, PendingVerdict]] = Counter()
        """Answers to changes of pending messages."""
        self.accepted = 0
        self.refused = 0
        self.delivered = 0
        self.first_delivery_ms = 0
        """Time of the first delivery, epoch ms; 0: none yet."""
        self.put_failures: dict[str, int] = {}
        """Refused deliveries by the name of the status; each try counts."""
        self.cancelled = 0
        self.moved = 0
        self.restored = 0
        """Found delivered in the CommitLog at open."""
        self.handed_over = 0
        """Number of times that the sweeper handed the tail of a hot second to recovery."""
        self.stalls = 0
        """Number of times that the store began to refuse all appends."""
        self.troubles = 0
        """Errors of the disk while looking for what is due."""
        self.unreadable = 0
        """Records that could not be read back; each try counts."""
        self.on_time = LatenessCounts()
        """Lateness of messages that the sweeper delivered."""
        self.overdue = LatenessCounts()
        """Lateness of messages that recovery delivered."""

    def put_failed(self, status: str) -> None:
        """Count a delivery that the store refused, by the name of the status."""
        self.put_failures[status] = self.put_failures.get(status, 0) + 1
