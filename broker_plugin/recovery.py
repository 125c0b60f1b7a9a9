"""Missed-bucket recovery: delivers overdue messages without delaying those that are on time.

It owns

* **ranges** of keys (`broker_plugin.rules.ranges`): everything that was overdue at start, and the tails of hot seconds
  that the sweeper handed over. They are read by cursor in due order, a batch at a time; a range of ten million
  messages costs two numbers of memory;
* **failed deliveries** (`broker_plugin.failures`): retried with back-off by a scan over the range of their due times.
  The scan skips the keys that the ranges own.

``step`` does one batch under the delivery lock and releases it, so the sweeper waits for one batch at most. While
another thread wants the interpreter, batches are small and pauses long (`broker_plugin.threads.pace`).

Two owners of one record would do no harm (`broker_plugin.delivery`). A single owner keeps order, and saves
reading everything twice.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from broker_plugin.delivery import Deliverer
from broker_plugin.failures import FailedGroup, Failures
from broker_plugin.rules.ranges import KEY_MAX, Key, KeyRange, KeyRanges
from broker_plugin.rules.states import State
from broker_plugin.threads.clock import WAIT_MAX_MS, Clock
from broker_plugin.threads.pace import BATCH_MAX, LONG_SLICE_NS, Pace
from store.disk.errors import StoreClosedError, StoreError

if TYPE_CHECKING:
    from collections.abc import Callable
    from threading import RLock

    from store.spill.spill_store import SpillStore

__all__ = ["OverdueRecovery"]

PROBE = 16
"""For a topic failure, this many messages are tried before the rest of the group."""
ERROR_PAUSE_MS = 100
"""Pause after a scan that failed."""
RETRY_EVERY = 8
"""While there are ranges, one batch in this many goes to the retry under way."""


class _Retry:
    """A retry under way: a cursor over the due times of a failed group."""

    __slots__ = ("after", "again", "delivered", "group", "left")

    def __init__(self, group: FailedGroup) -> None:
        self.group = group
        self.after: Key = (group.first_ms - 1, KEY_MAX)
        self.left = group.count
        self.delivered = False
        self.again = False
        """Topics have changed meanwhile: if this retry is given up, try again at once."""


class OverdueRecovery:
    """Delivers overdue messages; `step` may be called from any thread, one at a time."""

    def __init__(
        self,
        spill: SpillStore,
        deliverer: Deliverer,
        ranges: KeyRanges,
        failures: Failures,
        lock: RLock,
        clock: Clock,
        *,
        batch_max: int = BATCH_MAX,
    ) -> None:
        self.pace = Pace(batch_max, LONG_SLICE_NS)
        self.ring: Callable[[], None] = lambda: None
        """Wakes the thread that calls `step`."""
        self._spill = spill
        self._deliverer = deliverer
        self._ranges = ranges
        self._failures = failures
        self._lock = lock
        self._clock = clock
        self._retry: _Retry | None = None
        self._turn = 0
        self._now_ms = 0
        self._topics_changed = False
        self._try_all = False

    def step(self, now_ms: int) -> int:
        """Do one batch; returns when to call again, epoch ms (now or earlier: at once)."""
        with self._lock:
            if now_ms < self._now_ms:
                self._failures.clock_went_back(now_ms)
            self._now_ms = now_ms
            # Both flags are cleared first: a change that comes meanwhile must not be lost.
            if self._topics_changed:
                self._topics_changed = False
                self._failures.topics_changed(now_ms)
                # The group under way is not among the failures: `take_due` took it out.
                if self._retry is not None:
                    self._retry.again = True
            if self._try_all:
                self._try_all = False
                self._failures.try_all(now_ms)
            if self._deliverer.is_stalled(now_ms):
                return min(self._deliverer.stalled_until_ms, now_ms + WAIT_MAX_MS)
            try:
                return self._work(now_ms)
            except StoreClosedError:
                raise
            except StoreError as error:
                self._deliverer.trouble(f"cannot look for what is overdue: {error}")
                return now_ms + ERROR_PAUSE_MS

    def _work(self, now_ms: int) -> int:
        if self._retry is None:
            group = self._failures.take_due(now_ms)
            if group is not None:
                self._retry = _Retry(group)
        self._turn += 1
        if self._retry is not None and (not self._ranges or self._turn % RETRY_EVERY == 0):
            self._try_again(self._retry, now_ms)
            return now_ms
        found = self._ranges.next()
        if found is not None:
            return self._work_on(found, now_ms)
        next_ms = self._failures.next_ms()
        return now_ms + WAIT_MAX_MS if next_ms is None else min(next_ms, now_ms + WAIT_MAX_MS)

    def topics_changed(self) -> None:
        """Retry topic failures at once. Any thread; takes no lock."""
        self._topics_changed = True
        self.ring()

    def try_all(self) -> None:
        """Retry all failures at once, whatever the reason. Any thread; takes no lock."""
        self._try_all = True
        self.ring()

    @property
    def failed_count(self) -> int:
        """Number of messages whose last delivery failed, as far as known. Any thread."""
        retry = self._retry
        return self._failures.count + (0 if retry is None else retry.left)

    def is_failed(self, topic: str, due_ms: int) -> bool:
        """True if a pending message of this topic and due time counts as failed. Under the delivery lock."""
        retry = self._retry
        if retry is not None and retry.group.covers(topic, due_ms):
            return True
        return self._failures.is_failed(topic, due_ms)

    def removed(self, topic: str, due_ms: int) -> None:
        """Note that a message was cancelled or moved. Under the delivery lock."""
        retry = self._retry
        if retry is not None and retry.left and retry.group.covers(topic, due_ms) and due_ms >= retry.after[0]:
            retry.left -= 1
        else:
            self._failures.removed(topic, due_ms)

    # ------------------------------------------------------------------------------------------------ parts of it

    def _work_on(self, found: KeyRange, now_ms: int) -> int:
        limit = self.pace.batch
        begin = self._clock.worked_ns()
        columns = self._spill.scan(found.after, found.until_ms, limit)
        dues, ids, refs = columns.dues, columns.ids, columns.refs
        if not refs:
            self._ranges.remove(found)
            return now_ms
        outcome = self._deliverer.deliver(
            dues, refs, now_ms, self._deliverer.stats.overdue, state=State.SPILLED, fresh=True
        )
        # Up to the first that stays. Later ones that were delivered are done, so no scan finds them again.
        done = outcome.kept[0] if outcome.kept else outcome.looked_at
        if done:
            found.after = (dues[done - 1], ids[done - 1])
            self.pace.worked(len(refs), outcome.looked_at, self._clock.worked_ns() - begin)
        if outcome.kept:
            # Refused by the store, or not due after all (the clock was set back).
            return max(now_ms + 1, min(dues[done], now_ms + WAIT_MAX_MS))
        if done == len(refs) < limit:
            self._ranges.remove(found)
        return now_ms

    def _try_again(self, retry: _Retry, now_ms: int) -> None:
        group = retry.group
        until_ms = self._jump_over_ranges(retry)
        limit = PROBE if group.is_about_topic and not retry.delivered else self.pace.batch
        columns = self._spill.scan(retry.after, until_ms, limit)
        dues, refs = columns.dues, columns.refs
        if refs:
            stats = self._deliverer.stats
            belongs = partial(self._failures.belongs, group)
            outcome = self._deliverer.deliver(dues, refs, now_ms, stats.overdue, belongs, state=State.FAILED)
            retry.delivered = retry.delivered or outcome.delivered > 0
            retry.left = max(0, retry.left - outcome.delivered - outcome.failed)
            if outcome.kept:
                self._give_up(retry, now_ms)
                return
            if group.is_about_topic and outcome.failed and not retry.delivered:
                self._give_up(retry, now_ms)
                return
            done = outcome.looked_at
            retry.after = (dues[done - 1], columns.ids[done - 1])
            if done < len(refs):
                return
        if len(refs) < limit:
            if until_ms <= group.last_ms:
                retry.after = max(retry.after, (until_ms - 1, KEY_MAX))
            else:
                self._retry = None
                self._failures.went_on(group, now_ms)

    def _give_up(self, retry: _Retry, now_ms: int) -> None:
        """End a retry early, because its first messages failed again or the store refuses: the rest waits longer."""
        self._retry = None
        group = retry.group
        group.count = retry.left
        self._failures.put_back(group, now_ms)
        if retry.again:
            self._failures.topics_changed(now_ms)

    def _jump_over_ranges(self, retry: _Retry) -> int:
        """Move the cursor out of recovery's own ranges; returns the due time at which the next one, or the end, is."""
        until_ms = retry.group.last_ms + 1
        for found in self._ranges:
            if found.after <= retry.after < found.last:
                retry.after = found.last
            elif found.after > retry.after:
                until_ms = min(until_ms, found.after[0] + 1)
                break
        return until_ms
