"""Counts lost, repeated, early and late messages of a run whose messages and due times are known.

Lateness is measured in two ways, which are never mixed: *at the broker*, stored minus due (whole milliseconds, the
broker's clock), and *at the consumer*, received minus due. A negative lateness means early, which must not happen.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["Tally", "percentile", "summary"]


def percentile(sorted_values: Sequence[int], percent: float) -> int:
    """The smallest value such that at least ``percent`` % of all values are not above it (nearest rank).

    >>> percentile([1, 2, 3, 4], 50), percentile([1, 2, 3, 4], 99)
    (2, 4)

    Raises ValueError without values.
    """
    if not sorted_values:
        raise ValueError("no values")
    rank = -int(-len(sorted_values) * percent // 100)
    return sorted_values[max(0, min(len(sorted_values), rank) - 1)]


def summary(values: Sequence[int]) -> str:
    """Median, 99th percentile and maximum in one phrase.

    >>> summary([3, 1, 2])
    'p50 2 ms, p99 3 ms, max 3 ms'
    """
    if not values:
        return "nothing yet"
    ordered = sorted(values)
    return f"p50 {percentile(ordered, 50)} ms, p99 {percentile(ordered, 99)} ms, max {ordered[-1]} ms"


class Tally:
    """The sent messages and their fate. All times are epoch milliseconds."""

    __slots__ = ("_due", "broker_late_ms", "consumer_late_ms", "early", "repeated", "seen")

    def __init__(self) -> None:
        self._due: dict[str, int] = {}
        self.seen: set[str] = set()
        self.broker_late_ms: list[int] = []
        self.consumer_late_ms: list[int] = []
        self.repeated = 0
        self.early = 0

    def sent(self, message_id: str, due_ms: int) -> None:
        """Count a message that the broker accepted."""
        self._due[message_id] = due_ms

    def came(self, message_id: str, due_ms: int, store_ms: int, received_ms: int) -> bool:
        """Count an arrival; False if the message had arrived before, which counts as repeated only.

        A message may arrive before `sent` is called for it. So the due time is an argument here, too.
        """
        if message_id in self.seen:
            self.repeated += 1
            return False
        self.seen.add(message_id)
        self.broker_late_ms.append(store_ms - due_ms)
        self.consumer_late_ms.append(received_ms - due_ms)
        if store_ms < due_ms or received_ms < due_ms:
            self.early += 1
        return True

    @property
    def sent_count(self) -> int:
        """Number of accepted messages."""
        return len(self._due)

    @property
    def pending(self) -> int:
        """Number of accepted messages that have not arrived."""
        return sum(message_id not in self.seen for message_id in self._due)

    @property
    def good(self) -> bool:
        """True if every message came, once, and none early."""
        return self.pending == 0 and self.repeated == 0 and self.early == 0 and self.sent_count > 0

    def verdict(self) -> str:
        """The line at the end."""
        return (
            f"{'PASSED' if self.good else 'FAILED'}: {self.sent_count} sent, {len(self.seen)} delivered, "
            f"{self.pending} lost, {self.repeated} repeated, {self.early} early; "
            f"at the broker {summary(self.broker_late_ms)}; at the consumer {summary(self.consumer_late_ms)}"
        )
