"""The level scheduler: delivers messages of RocketMQ's fixed delay levels at their millisecond, once.

It works like Apache's ScheduleMessageService, except for these points:

=====================================  ==========================================================================
Apache                                 here
=====================================  ==========================================================================
checks each level every 100 ms         sleeps until the next due millisecond; `wake` if a message is due sooner
progress every 10 s: a crash repeats   a copy carries ``__TW_LEVEL`` = ``level:number`` and is found by recovery
an unreadable record is skipped        tried again, then kept in a list that is counted, shown and persisted
a clock step back releases at once     never before store time plus delay (`PutStatus.NOT_DUE`)
...and holds up later messages         the queue is cut where due times fall (`store.levels.level_queue`)
a failing put holds up its level       the level backs off; one message that fails alone waits alone
no file with offsets: starts at 0      the checkpoint has them; Apache's file is read and written too
=====================================  ==========================================================================

Claim, append and mark-done happen together under the delivery lock (`store.disk.checkpoint`). The records are read
before, because that may wait for a disk. This is safe, because only this scheduler removes entries from its queues.
``step(now_ms)`` is a slice of at most `SLICE_RECORDS` or `SLICE_BYTES`, about half a millisecond, in which each level
gets its share.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from remoting.messages.message import RecordError
from store.disk.errors import StoreError
from store.disk.files import Files
from store.levels.delay_levels import DelayLevels
from store.levels.level_copy import HALF_TOPIC, copy_of
from store.levels.level_progress import SECTION, LevelProgress, LevelStore
from store.levels.level_queue import Entry, LevelQueue, Stretch
from store.put.lateness import LatenessCounts
from store.put.plugin_api import PutRecord, PutResult, PutStatus

__all__ = ["LevelScheduler"]

SLICE_RECORDS = 16
SLICE_BYTES = 128 << 10
BACK_OFF_MS = 100
BACK_OFF_MAX_MS = 10_000
UNREADABLE_TRIES = 3
SET_ASIDE_MAX = 1000
"""Most stretches of a level caused by messages that cannot be put; beyond that the whole level backs off."""
WAIT_MAX_MS = 250
YIELD_SECONDS = 0.0003

_OF_THE_MESSAGE = frozenset(
    (
        PutStatus.MESSAGE_ILLEGAL,
        PutStatus.PROPERTIES_SIZE_EXCEEDED,
        PutStatus.TOPIC_NOT_EXIST,
        PutStatus.NO_PERMISSION,
    )
)


class _Claim:
    """One due entry under delivery."""

    __slots__ = ("entry", "number", "queue", "stretch")

    def __init__(self, queue: LevelQueue, stretch: Stretch, number: int, entry: Entry) -> None:
        self.queue = queue
        self.stretch = stretch
        self.number = number
        self.entry = entry


class LevelScheduler:
    """Delivers the delay levels of one store. `recover`, then `step` by step, or `start`.

    Any thread may use ``wake``, ``min_needed_offset`` and the figures; all other members belong to one thread.
    """

    def __init__(
        self,
        store: LevelStore,
        levels: DelayLevels,
        now_ms: Callable[[], int],
        *,
        files: Files | None = None,
        offsets_path: Path | None = None,
        warn: Callable[[str], None] = lambda _: None,
    ) -> None:
        """``now_ms`` is the clock of the thread; ``offsets_path`` is Apache's ``config/delayOffset.json``."""
        self.progress = LevelProgress(store, len(levels), files, offsets_path)
        self.delivered_count = 0
        self.lateness = LatenessCounts()
        """Lateness of its deliveries."""
        self.failed_count = 0
        """Puts that failed, each try counted."""
        self.discarded_count = 0
        self.failure: BaseException | None = None
        """The error that ended the thread, if any."""
        self.on_failure: Callable[[BaseException], None] | None = None
        self._store = store
        self._lock = store.checkpoint.lock
        self._queues = self.progress.queues
        self._now_ms = now_ms
        self._warn = warn
        self._turn = 0
        self._last_ms = 0
        self._wake_ms: int | None = None  # until when the thread means to sleep
        self._condition = threading.Condition()
        self._woken = False
        self._stopping = False
        self._thread: threading.Thread | None = None

    def recover(self) -> None:
        """Find the delivered messages before anything is delivered; see `LevelProgress.recover`."""
        for sentence in self.progress.recover():
            self._warn(sentence)

    def min_needed_offset(self) -> int:
        """The lowest CommitLog offset that retention must keep for this scheduler; ``2**62`` if there is none."""
        return self.progress.min_needed_offset()

    def pending_count(self) -> int:
        """Count the level messages that are not delivered."""
        return self.progress.pending_count()

    def runtime_info(self) -> dict[str, str]:
        """Figures for GET_BROKER_RUNTIME_INFO."""
        return {
            **self.progress.offsets_info(),
            "levelsDelivered": str(self.delivered_count),
            "levelsFailedPuts": str(self.failed_count),
            "levelsUnreadable": str(self.progress.unreadable_count),
            "levelsPending": str(self.pending_count()),
        }

    def check(self) -> list[str]:
        """Say what is wrong; empty when nothing is. A message that was given up counts."""
        return self.progress.check()

    # ---------------------------------------------------------------- a slice

    def step(self, now_ms: int) -> int | None:
        """Deliver a slice of the due messages; returns the time of the next step (now or earlier: at once), None for no
        hurry.

        Raises StoreError only if the queues' own files cannot be read.
        """
        if now_ms < self._last_ms:
            self._clock_went_back()
        self._last_ms = self.progress.now_ms = now_ms
        more = self._look_ahead()
        claims = self._claim(now_ms)
        if claims:
            return now_ms if self._deliver(claims, now_ms) or more else now_ms + 1
        if more:
            return now_ms
        self._wake_ms = wake_ms = self._next_wake_ms()
        return wake_ms

    def _clock_went_back(self) -> None:
        for queue in self._queues:
            queue.retry_ms = 0
            for stretch in queue.stretches:
                stretch.retry_ms = min(stretch.retry_ms, 1)

    def _look_ahead(self) -> bool:
        """Let each level read its next entries; True if one of them may have more."""
        more = False
        for queue in self._queues:
            with self._lock:
                if queue.look_ahead():
                    more = True
        return more

    def _claim(self, now_ms: int) -> list[_Claim]:
        """Choose the messages of this slice: a share for each level, starting with another level each time."""
        count = len(self._queues)
        self._turn = (self._turn + 1) % count
        order = [self._queues[(self._turn + index) % count] for index in range(count)]
        ready = [
            (queue, stretch)
            for queue in order
            if queue.retry_ms <= now_ms
            for stretch in queue.stretches
            if stretch.retry_ms <= now_ms and self._is_due(queue, stretch, now_ms)
        ]
        claims: list[_Claim] = []
        room_bytes = SLICE_BYTES
        for index, (queue, stretch) in enumerate(ready):
            share = max(1, (SLICE_RECORDS - len(claims)) // (len(ready) - index))
            for number, entry in queue.due(stretch, now_ms, share):
                if claims and room_bytes < entry[1]:
                    return claims
                room_bytes -= entry[1]
                claims.append(_Claim(queue, stretch, number, entry))
            if len(claims) >= SLICE_RECORDS:
                break
        return claims

    def _is_due(self, queue: LevelQueue, stretch: Stretch, now_ms: int) -> bool:
        entry = queue.front(stretch)
        return entry is not None and entry[2] <= now_ms

    def _deliver(self, claims: list[_Claim], now_ms: int) -> bool:
        """Put copies of the claimed messages; False if the store's clock is behind ``now_ms`` and it refused all."""
        records: list[PutRecord] = []
        put: list[_Claim] = []
        skipped: list[tuple[_Claim, str]] = []
        stuck: set[int] = set()
        for claim in claims:
            level = claim.queue.level
            if level in stuck:
                continue
            try:
                record = self._store.read_record(*claim.entry[:2])
                if record is None:
                    raise RecordError("no whole and valid record there")
                copy = copy_of(record, level, claim.number, claim.entry[2], self._store.put_bytes_max)
            except RecordError as error:
                skipped.append((claim, str(error)))
                continue
            except StoreError as error:
                self._back_off(claim.queue, now_ms, f"cannot read: {error}")
                stuck.add(level)
                continue
            if copy.topic == HALF_TOPIC:
                skipped.append((claim, ""))
            else:
                records.append(copy)
                put.append(claim)
        with self._lock:
            try:
                results = self._store.put_batch(records) if records else []
            except Exception:
                # A bug, which ends this thread. Appended copies are not marked as done; a restart finds them by
                # scanning the log from the checkpoint that is durable now, so no later one may be written.
                self._store.checkpoint.unregister(SECTION)
                raise
            self._settle(put, results, now_ms)
            for claim, reason in skipped:
                self._skip(claim, reason, now_ms)
        return not put or any(result.status != PutStatus.NOT_DUE for result in results)

    def _settle(self, claims: list[_Claim], results: Sequence[PutResult], now_ms: int) -> None:
        """Mark delivered messages; schedule failed ones for another try, without delaying the others."""
        succeeded = set()
        failed: list[tuple[_Claim, PutResult]] = []
        dues: list[int] = []
        store_ms = 0
        for claim, result in zip(claims, results, strict=True):
            if result.status == PutStatus.PUT_OK:
                dues.append(claim.entry[2])
                store_ms = result.store_ms
                claim.queue.mark_done(claim.number)
                succeeded.add(claim.queue)
            elif result.status != PutStatus.NOT_DUE:
                failed.append((claim, result))
        for queue in succeeded:
            queue.failures = 0
        if dues:
            self.lateness.add(store_ms, sorted(dues))
        done = len(claims) - len(failed)
        if done:
            self.delivered_count += sum(result.status == PutStatus.PUT_OK for result in results)
            self._store.checkpoint.touch(done)
        self.failed_count += len(failed)
        backing_off = set()
        for claim, result in failed:
            queue = claim.queue
            text = f"{result.status.name} {result.remark}".rstrip()
            alone = result.status in _OF_THE_MESSAGE or queue in succeeded
            if alone and len(queue.stretches) < SET_ASIDE_MAX:
                failures = claim.stretch.failures + 1 if claim.stretch.retry_ms else 1
                queue.set_aside(claim.number, now_ms + _back_off_ms(failures), failures)
                if failures == 1:
                    self._warn(f"level {queue.level}, message {claim.number}: {text}; tried again until it succeeds")
            elif queue.level not in backing_off:
                backing_off.add(queue.level)
                self._back_off(queue, now_ms, text)

    def _back_off(self, queue: LevelQueue, now_ms: int, text: str) -> None:
        queue.failures += 1
        queue.retry_ms = now_ms + _back_off_ms(queue.failures)
        if queue.failures == 1:
            self._warn(f"level {queue.level}: {text}; tried again until it succeeds")

    def _skip(self, claim: _Claim, reason: str, now_ms: int) -> None:
        """Handle a message of which no copy can be made."""
        queue = claim.queue
        if not reason:
            self.discarded_count += 1
            queue.mark_done(claim.number)
        else:
            failures = claim.stretch.failures + 1 if claim.stretch.retry_ms else 1
            if failures < UNREADABLE_TRIES and len(queue.stretches) < SET_ASIDE_MAX:
                queue.set_aside(claim.number, now_ms + _back_off_ms(failures), failures)
                return
            self.progress.give_up(queue, claim.number, claim.entry[0], reason)
            self._warn(f"level {queue.level}, message {claim.number} at {claim.entry[0]} is given up: {reason}")
        self._store.checkpoint.touch(1)

    def _next_wake_ms(self) -> int | None:
        wake_ms: int | None = None
        for queue in self._queues:
            for stretch in list(queue.stretches):
                entry = queue.front(stretch)
                if entry is None:  # retention removed the queue's oldest entries meanwhile
                    with self._lock:
                        report = self.progress.forget_gone(queue)
                    if report:
                        self._warn(report)
                    at_ms = self._last_ms + 1000
                else:
                    at_ms = max(entry[2], queue.retry_ms, stretch.retry_ms)
                if wake_ms is None or at_ms < wake_ms:
                    wake_ms = at_ms
        return wake_ms

    # ---------------------------------------------------------------- the thread

    def wake(self, due_ms: int) -> None:
        """Note a new message due at ``due_ms``; wakes the thread if it would sleep longer. Any thread."""
        if self._wake_ms is None or due_ms < self._wake_ms:
            with self._condition:
                self._woken = True
                self._condition.notify()

    def start(self) -> None:
        """Run in a thread of its own."""
        if self._thread is None:
            self._stopping = False
            self._thread = threading.Thread(target=self._run, name="levels", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """End the thread after its present slice."""
        self.progress.closing = True
        thread, self._thread = self._thread, None
        if thread is not None:
            with self._condition:
                self._stopping = self._woken = True
                self._condition.notify()
            if thread is not threading.current_thread():
                thread.join()

    def _run(self) -> None:
        try:
            while not self._stopping:
                now_ms = self._now_ms()
                try:
                    wake_ms = self.step(now_ms)
                except StoreError as error:
                    self._warn(f"levels: {error}")
                    self._wake_ms = wake_ms = now_ms + 1000
                self._wait(None if wake_ms is None else wake_ms - now_ms)
        except BaseException as failure:
            self.failure = failure
            if self.on_failure is None:
                raise
            self.on_failure(failure)

    def _wait(self, wait_ms: int | None) -> None:
        """Sleep in any case, even if there is more to do; the last millisecond in small parts, to be on time."""
        seconds = WAIT_MAX_MS / 1000 if wait_ms is None else min(WAIT_MAX_MS, wait_ms - 1) / 1000
        with self._condition:
            if not self._woken:
                self._condition.wait(max(seconds, YIELD_SECONDS))
            self._woken = False


def _back_off_ms(failures: int) -> int:
    return min(BACK_OFF_MS * failures, BACK_OFF_MAX_MS)
