"""`Reviver`: has messages come again whose time is over: copies them into the retry topic of their group.

A thread of its own, as a disk may have to be read. What is due is claimed under the lock of `InFlight`; from then on an
acknowledgement comes too late. Each message is read by its number in its queue, and its copy is put by the same
narrow interface as delayed messages: the append lock's clock is asked once more, so that none is early.

=====================================  ===============================================================================
put                                    the copy can be popped at once; the group's offset passes the original only when
                                       the log is synced that far, or a power cut could take the copy alone; a start
                                       that finds a copy in the log makes no second one (`broker.pop.recovery`)
not due by the clock of the append     the clock was set back: again when it is due
refused, or the disk cannot be read    again after a while that grows to ten seconds, for ever; until then its handles
                                       still acknowledge it
its pop is not durable yet             the journal of pops is synced first: a power cut that took the pop, and left
                                       the copy, would hand out both
no retry topic yet                     the network loop is asked to make it, and this tried again in a moment
message gone (retention), topic or     nothing comes again: there is nothing left to hand out, or nobody to take it
group deleted
=====================================  ===============================================================================
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from broker.pop.copier import PUT_BYTES_MAX, Claim, Copier
from broker.pop.handle import NORMAL, retry_flag, retry_topic
from store.disk.errors import StoreError
from store.pop.in_flight import InFlight
from store.pop.pop_queue import Batch, PopQueue
from store.put.plugin_api import PutBlock, PutStatus
from store.put.put import Put

if TYPE_CHECKING:
    from store.message_store import MessageStore
    from store.pop.journal import PopJournal

__all__ = ["Reviver"]

_LOG = logging.getLogger(__name__)

Puts = list[tuple[Put, list[Claim]]]
"""Copies, and which messages each is of."""
_BACK_OFF_MS = 100
_BACK_OFF_MAX_MS = 10_000
_TOPIC_WAIT_MS = 5
_TOPIC_WAIT_MAX_MS = 1_000
_MISSING_MAX = 1_000
_SYNC_WAIT_MS = 50
_WAIT_MAX_MS = 250
_YIELD_SECONDS = 0.0005


class Reviver:
    """Revives what is due. `step` by one thread; `wake` by any.

    Args:
        store: Where messages are read and copies are put.
        in_flight: What is due.
        now_ms: The clock of the thread.
        has_topic: Whether there is a topic. Any thread.
        need_topic: Has the network loop make a retry topic.
        journal: Gives the journal of pops, which knows what is durable.
        moved: Told the queues whose offsets may move.
        unblocked: Told the queues that are not blocked any more.
    """

    def __init__(
        self,
        store: MessageStore,
        in_flight: InFlight,
        now_ms: Callable[[], int],
        *,
        has_topic: Callable[[str], bool],
        need_topic: Callable[[str], object],
        journal: Callable[[], PopJournal],
        moved: Callable[[list[PopQueue]], object],
        unblocked: Callable[[list[PopQueue]], object],
    ) -> None:
        self._store = store
        self.copier = Copier(store)
        self._in_flight = in_flight
        self._now_ms = now_ms
        self._has_topic = has_topic
        self._need_topic = need_topic
        self._journal = journal
        self._moved = moved
        self._unblocked = unblocked
        self._unsynced: deque[tuple[int, int, Batch]] = deque()  # where copies begin and end in the log, and of what
        self._missing: dict[str, tuple[int, int]] = {}  # topics that are not there: since when, when to ask again
        self._putting = -1  # where the copies that are being put begin at the earliest
        self.slice_count = 128
        """Messages that are copied before other threads get a turn: two or three milliseconds."""
        self.revived_count = 0
        """Messages that were copied since the start."""
        self.failed_count = 0
        self.gone_count = 0
        self.on_failure: Callable[[BaseException], None] | None = None
        self._wake_ms: int | None = None
        self._condition = threading.Condition()
        self._woken = False
        self._stopping = False
        self._worker: threading.Thread | None = None

    # ------------------------------------------------------------------------------------------------ a slice

    def step(self, now_ms: int) -> int | None:
        """Revive a slice of what is due; when to come back (now: at once), None for no hurry."""
        moved = self._settle_synced()
        batches, unblocked = self._in_flight.claim(now_ms, self.slice_count)
        if unblocked:
            self._unblocked(unblocked)
        if batches:
            self._revive(self._secured(batches, now_ms), now_ms)
            moved += [batch.queue for batch in batches]
        if moved:
            self._moved(moved)
        if batches or unblocked:
            return now_ms
        self._wake_ms = None  # what comes from here on wakes this thread: the answer may not know it
        due_ms = self._in_flight.next_due_ms()
        if self._unsynced:
            due_ms = now_ms + _SYNC_WAIT_MS if due_ms is None else min(due_ms, now_ms + _SYNC_WAIT_MS)
        self._wake_ms = due_ms
        return due_ms

    def _settle_synced(self) -> list[PopQueue]:
        moved = []
        unsynced, synced = self._unsynced, self._store.commit_log.synced
        while unsynced and unsynced[0][1] <= synced:
            batch = unsynced[0][2]
            self._in_flight.settle(batch)
            unsynced.popleft()
            moved.append(batch.queue)
        return moved

    def settled_to(self) -> int:
        """The CommitLog position below which no copy waits to be durable. The caller holds the lock of `InFlight`."""
        if self._unsynced:
            return self._unsynced[0][0]
        return self._store.commit_log.end if self._putting < 0 else self._putting

    def finish(self) -> None:
        """Have all copies durable and settled, as the last act. Raises StoreError."""
        if self._unsynced:
            self._store.commit_log.sync()
            self._moved(self._settle_synced())

    def _secured(self, batches: list[Batch], now_ms: int) -> list[Batch]:
        """Those of claimed batches whose pop is durable; the others are due again later."""
        journal = self._journal()
        try:
            journal.secure(max(batch.name for batch in batches))
        except StoreError as error:
            for batch in batches:
                if batch.name > journal.synced_name:
                    self._in_flight.put_back(batch, self._back_off(batch, now_ms, str(error)))
        return [batch for batch in batches if batch.claimed]

    def _revive(self, batches: list[Batch], now_ms: int) -> None:
        """Copy the messages of claimed batches, as one put unless they are large."""
        topics: dict[str, list[Batch]] = {}
        for batch in batches:
            topic = self._topic_of(batch, now_ms)
            if topic is not None:
                topics.setdefault(topic, []).append(batch)
        late: dict[int, int] = {}
        done: dict[int, int] = {}
        log, lock = self._store.commit_log, self._in_flight.lock
        with lock:
            begin = self._putting = log.end
        puts: Puts = []
        size = 0
        for topic, own in topics.items():
            for more in self._copies(own, topic, late, now_ms):
                more_bytes = sum([put.data_bytes for put, _ in more])
                if puts and size + more_bytes > PUT_BYTES_MAX:
                    self._put(puts, done, late, now_ms)
                    puts, size = [], 0
                puts += more
                size += more_bytes
        if puts:
            self._put(puts, done, late, now_ms)
        end = log.end
        for batch in batches:
            if bits := done.get(batch.number, 0):
                self._unsynced.append((begin, end, self._in_flight.copied(batch, bits)))
            if batch.waiting and batch.number in late:
                self._in_flight.put_back(batch, late[batch.number])
        with lock:
            self._putting = -1

    def _copies(self, batches: list[Batch], topic: str, late: dict[int, int], now_ms: int) -> Iterator[Puts]:
        """Make copies for one retry topic; what cannot be read is added to ``late``."""
        try:
            found = self.copier.together(batches, topic)
        except StoreError:  # one by one: each batch has its own fate
            found = None
        if found is None:
            yield from self._single_copies(batches, topic, late, now_ms)
        else:
            yield found

    def _single_copies(self, batches: list[Batch], topic: str, late: dict[int, int], now_ms: int) -> Iterator[Puts]:
        for batch in batches:
            try:
                for part in self.copier.singly(batch, topic):
                    puts: Puts = []
                    for bit, record in part:
                        if record is None:
                            self.gone_count += 1
                            self._in_flight.settle(batch, bit)
                        else:
                            puts.append((record, [(batch, bit)]))
                    yield puts
            except StoreError as error:
                late[batch.number] = self._back_off(batch, now_ms, str(error))

    def _topic_of(self, batch: Batch, now_ms: int) -> str | None:
        """The topic that a batch comes again in; None if it does not come now."""
        queue = batch.queue
        if queue.gone or not self._has_topic(queue.topic):
            self._in_flight.settle(batch)
            return None
        if retry_flag(queue.topic) != NORMAL:
            return queue.topic
        topic = retry_topic(queue.topic, queue.group)
        if self._has_topic(topic):
            self._missing.pop(topic, None)
            return topic
        again_ms = self._ask_for(topic, now_ms)
        if not self._has_topic(topic):
            self._in_flight.put_back(batch, again_ms)
            return None
        return topic

    def _ask_for(self, topic: str, now_ms: int) -> int:
        """Have a retry topic made, unless that was asked for just now; when to look again.

        As long as it cannot be made, as on a full disk, it is asked for less and less often, for all batches at once.
        """
        since_ms, again_ms = self._missing.get(topic, (now_ms, now_ms))
        if again_ms > now_ms + _TOPIC_WAIT_MAX_MS:  # the clock was set back
            since_ms = again_ms = now_ms
        if now_ms >= again_ms:
            again_ms = now_ms + min(max(_TOPIC_WAIT_MS, (now_ms - since_ms) // 4), _TOPIC_WAIT_MAX_MS)
            if len(self._missing) >= _MISSING_MAX:
                self._missing.clear()
            self._missing[topic] = since_ms, again_ms
            self._need_topic(topic)
        return again_ms

    def _put(self, puts: Puts, done: dict[int, int], late: dict[int, int], now_ms: int) -> None:
        """Put copies; ``done`` gets for each batch the bits of those that were put, ``late`` what failed."""
        for (put, claims), result in zip(puts, self._store.put_batch([put for put, _ in puts]), strict=True):
            if result.status is not PutStatus.PUT_OK and isinstance(put, PutBlock):
                own = [batch for batch, _ in claims]  # what is refused of it, and why, each copy says by itself
                for again in self._single_copies(own, put.topics[0], late, now_ms):
                    self._put(again, done, late, now_ms)
                continue
            for batch, bits in claims:
                if result.status is PutStatus.PUT_OK:
                    done[batch.number] = done.get(batch.number, 0) | bits
                    self.revived_count += bits.bit_count()
                elif result.status is PutStatus.NOT_DUE:
                    late.setdefault(batch.number, max(batch.due_ms, now_ms + 1))
                elif batch.number not in late:
                    late[batch.number] = self._back_off(batch, now_ms, f"{result.status.name} {result.remark}")

    def _back_off(self, batch: Batch, now_ms: int, why: str) -> int:
        self.failed_count += 1
        batch.tries += 1
        if batch.tries == 1:
            queue = batch.queue
            _LOG.warning(
                "messages of %s-%d cannot be delivered again to group %s now: %s; tried until it succeeds",
                *(queue.topic, queue.queue_id, queue.group, why),
            )
        return now_ms + min(_BACK_OFF_MS * batch.tries, _BACK_OFF_MAX_MS)

    # ------------------------------------------------------------------------------------------------ the thread

    def wake(self, due_ms: int) -> None:
        """Something is due at ``due_ms``: the thread looks up if it means to sleep longer."""
        if self._worker is not None and (self._wake_ms is None or due_ms < self._wake_ms):
            with self._condition:
                self._woken = True
                self._condition.notify()

    def start(self) -> None:
        """Run in a thread of its own."""
        self._stopping = False
        self._worker = threading.Thread(target=self._run, name="pop-revive", daemon=True)
        self._worker.start()

    def stop(self) -> None:
        """End the thread after the slice it is in."""
        thread, self._worker = self._worker, None
        if thread is not None:
            with self._condition:
                self._stopping = self._woken = True
                self._condition.notify()
            thread.join()

    def _run(self) -> None:
        try:
            while not self._stopping:
                now_ms = self._now_ms()
                wake_ms = self.step(now_ms)
                self._wait(None if wake_ms is None else wake_ms - now_ms)
        except BaseException as failure:
            if self.on_failure is None:
                raise
            self.on_failure(failure)

    def _wait(self, wait_ms: int | None) -> None:
        """Sleep until something is due, at most a quarter of a second: a clock that is set is seen."""
        seconds = _WAIT_MAX_MS / 1000 if wait_ms is None else min(_WAIT_MAX_MS, wait_ms - 1) / 1000
        with self._condition:
            if not self._woken:
                self._condition.wait(max(seconds, _YIELD_SECONDS))
            self._woken = False
