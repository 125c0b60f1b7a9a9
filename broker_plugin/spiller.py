"""The spiller: sorts closed journal segments into runs, merges runs, gives space back.

`SpillStore.spill_step` does the work, in slices of about half a millisecond; this file only says when. It has a thread
of its own because its syncs may take long, and neither a delivery nor a send should wait for them. Work that has time
rests while deliveries are late.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from broker_plugin.threads.pace import Pace

if TYPE_CHECKING:
    from store.disk.checkpoint import DeliveryCheckpoint
    from store.spill.spill_store import SpillStore

__all__ = ["Spiller"]

PAUSE_MS = 100
"""Pause if there was nothing to do: a segment takes longer than this to fill."""
IDLE_MS = 250
"""Pause if the number of pending messages has not changed either."""

REST_MAX_MS = 30_000
"""Patient work rests while deliveries are late, until it has rested for this much longer than it was free to work."""
REST_BLOCK_MS = 1_000
"""After that it works and rests for this long in turn, as long as deliveries are late."""
REST_LOOK_MS = 3
"""So often a resting spiller looks whether deliveries are still late."""
_LONGEST_MS = 1_000
"""Time between two steps that counts at most: a process may have been stopped."""

TIDY_EVERY_MS = 10_000


class Spiller:
    """Steps the spill store's background work."""

    def __init__(self, spill: SpillStore, is_behind: Callable[[], bool], checkpoint: DeliveryCheckpoint) -> None:
        self.pace = Pace()
        self._spill = spill
        self._is_behind = is_behind
        self._checkpoint = checkpoint
        self._stepped_ms = 0
        self._idle_until_ms = 0
        self._rests = self._owes_work = False
        self._rested_ms = 0  # what it rested, less the time in which it was free to work; never below 0
        self._seen_pending = -1
        self.tidy: Callable[[int], None] = lambda _: None
        """Removes what has become old; called every `TIDY_EVERY_MS`, with the time in epoch ms."""
        self._tidy_ms = 0

    def step(self, now_ms: int) -> int:
        """Do one slice; returns when to call again, epoch ms (now or earlier: at once)."""
        has_time = self._has_time(now_ms)
        if not has_time and 0 < self._idle_until_ms - now_ms <= IDLE_MS:
            return now_ms + REST_LOOK_MS
        more = self._spill.spill_step(now_ms, patient=has_time)
        if self._spill.unsaved:
            self._checkpoint.touch()  # the next checkpoint frees files, and the memory of their columns
        # Also if the clock was set back.
        if not 0 <= now_ms - self._tidy_ms < TIDY_EVERY_MS:
            self._tidy_ms = now_ms
            self.tidy(now_ms)
        if more:
            return now_ms
        seen, self._seen_pending = self._seen_pending, self._spill.pending_count
        self._idle_until_ms = now_ms + (IDLE_MS if self._seen_pending == seen else PAUSE_MS)
        return self._idle_until_ms if has_time else now_ms + REST_LOOK_MS

    def _has_time(self, now_ms: int) -> bool:
        """Say whether patient work may go on.

        After a flood of messages that are due much later there are gigabytes to copy. That would take half of the
        interpreter from a hot second. If deliveries are late for hours, patient work gets half of the time.
        """
        passed_ms = min(max(0, now_ms - self._stepped_ms), _LONGEST_MS)
        self._stepped_ms = now_ms
        late = self._is_behind()
        if not self._rests:
            self._rested_ms = max(0, self._rested_ms - passed_ms)
        elif late:  # else it was late for a part of the time only
            self._rested_ms += passed_ms
        if self._rested_ms >= REST_MAX_MS:
            self._owes_work = True
        elif self._rested_ms <= REST_MAX_MS - REST_BLOCK_MS:
            self._owes_work = False
        self._rests = late and not self._owes_work
        return not self._rests
