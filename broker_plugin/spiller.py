"""The spiller: sorts closed journal segments into runs, merges runs, gives space back.

`SpillStore.spill_step` does the work, in slices of about half a millisecond; this file only says when. It has a thread
of its own because its syncs may take long, and neither a delivery nor a send should wait for them.
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

TIDY_EVERY_MS = 10_000


class Spiller:
    """Steps the spill store's background work."""

    def __init__(self, spill: SpillStore, frontier_ms: Callable[[], int], checkpoint: DeliveryCheckpoint) -> None:
        self.pace = Pace()
        self._spill = spill
        self._frontier_ms = frontier_ms
        self._checkpoint = checkpoint
        self._seen_pending = -1
        self.tidy: Callable[[int], None] = lambda _: None
        """Removes what has become old; called every `TIDY_EVERY_MS`, with the time in epoch ms."""
        self._tidy_ms = 0

    def step(self, now_ms: int) -> int:
        """Do one slice; returns when to call again, epoch ms (now or earlier: at once)."""
        more = self._spill.spill_step(now_ms, self._frontier_ms())
        if self._spill.unsaved:
            self._checkpoint.touch()  # the next checkpoint frees files, and the memory of their columns
        # Also if the clock was set back.
        if not 0 <= now_ms - self._tidy_ms < TIDY_EVERY_MS:
            self._tidy_ms = now_ms
            self.tidy(now_ms)
        if more:
            return now_ms
        seen, self._seen_pending = self._seen_pending, self._spill.pending_count
        return now_ms + (IDLE_MS if self._seen_pending == seen else PAUSE_MS)
