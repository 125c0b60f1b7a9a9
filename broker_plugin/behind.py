"""A line in the log when deliveries fall behind, and one when they have caught up."""

from __future__ import annotations

from collections.abc import Callable
from threading import RLock
from typing import TYPE_CHECKING

from broker_plugin.rules.ranges import KeyRanges

if TYPE_CHECKING:
    from broker_plugin.delivery import Deliverer
    from broker_plugin.sweeper import Sweeper

__all__ = ["TELL_MS", "Behind"]

TELL_MS = 5_000
"""Deliveries that are this late are worth a line; the next line comes when they are twice as late."""
ON_TIME_MS = 1_000
PAUSE_MS = 60_000
"""After a longer pause between two looks the process has just started, was stopped, or its clock was set. Messages that
were due by then do not count."""


class Behind:
    """Tells when deliveries are late because more comes due than is delivered.

    Messages that came due before the first look, while the store refused everything, or while the process was stopped
    do not count: they are late for another reason.
    """

    def __init__(
        self, sweeper: Sweeper, deliverer: Deliverer, ranges: KeyRanges, lock: RLock, warn: Callable[[str], None]
    ) -> None:
        self._sweeper = sweeper
        self._deliverer = deliverer
        self._ranges = ranges
        self._lock = lock
        self._warn = warn
        self._since_ms = self._looked_ms = 0
        self._told_ms = 0  # in the last line; 0 while on time

    def late_ms(self, now_ms: int) -> int:
        """How late the oldest message is that is being delivered, of those that count; ms. Takes the delivery lock."""
        with self._lock:
            reached = [found.after[0] for found in self._ranges]
            reached.append(now_ms - self._sweeper.behind_ms)
        return max([now_ms - due_ms for due_ms in reached if due_ms >= self._since_ms], default=0)

    def look(self, now_ms: int) -> None:
        """Look, and say if something has changed; call it every few seconds. One thread."""
        stood_still = not 0 <= now_ms - self._looked_ms <= PAUSE_MS
        self._looked_ms = now_ms
        if stood_still or self._deliverer.is_refused:
            self._since_ms, self._told_ms = now_ms, 0
            return
        late_ms = self.late_ms(now_ms)
        if late_ms >= max(TELL_MS, 2 * self._told_ms):
            self._told_ms = late_ms
            self._warn(
                f"deliveries are {late_ms / 1000:.0f} s late: more comes due than is delivered. If this process uses a "
                "whole processor, spread the load over more shards or brokers (docs/operations.md, Load)"
            )
        elif self._told_ms and late_ms < ON_TIME_MS:
            self._warn(f"deliveries are on time again; they were more than {self._told_ms / 1000:.0f} s late")
            self._told_ms = 0
