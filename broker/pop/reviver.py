"""`Reviver`: delivers messages again whose invisible time is over, by copying them into the retry topic of their group.

It has a thread of its own, because it may read from the disk. It claims due messages under the lock of `InFlight`; from
then on an acknowledgement is too late. It reads each message by its queue offset. It stores the copy as delayed
messages are stored: the clock is checked again inside the append lock, so no copy is early.

=====================================  ===============================================================================
stored                                 the copy can be popped at once; the group's offset passes the original only when
                                       the copy is synced, because a power cut could lose the copy alone; a start that
                                       finds a copy in the log makes no second one (`broker.pop.recovery`)
not due by the append lock's clock     the clock was set back: tried again when the message is due
refused, or the disk cannot be read    tried again without end, after pauses that grow to ten seconds; until then its
                                       handles still acknowledge the message
its pop is not durable yet             the journal of pops is synced first: after a power cut that loses the pop and
                                       keeps the copy, both would be handed out
no retry topic yet                     the network loop is asked to create it, and the reviver tries again soon
message gone (retention), topic or     nothing is copied: there is no message, or no group to read it
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
"""Copies, each with the messages that it is made of."""
_BACK_OFF_MS = 100
_BACK_OFF_MAX_MS = 10_000
_TOPIC_WAIT_MS = 5
_TOPIC_WAIT_MAX_MS = 1_000
_MISSING_MAX = 1_000
_SYNC_WAIT_MS = 50
_WAIT_MAX_MS = 250
_YIELD_SECONDS = 0.0005


class Reviver:
    """Revives due messages. `step` by one thread; `wake` by any.

    Args:
        store: Messages are read from it, and copies stored in it.
        in_flight: Tells which messages are due.
        now_ms: The clock of the thread.
        has_topic: Whether a topic exists. Any thread.
        need_topic: Makes the network loop create a retry topic.
        journal: Returns the journal of pops, which knows which pops are durable.
        moved: Is told the queues whose offsets may move.
        unblocked: Is told the queues that are no longer blocked.
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
        self._unsynced: deque[tuple[int, int, Batch]] = deque()  # begin and end of copies in the log, and their batch
        self._missing: dict[str, tuple[int, int]] = {}  # missing topics: since when, and when to ask again
        self._putting = -1  # least log position of the copies being stored; -1: none
        self.slice_count = 512
        """Messages copied before other threads get a turn: some four milliseconds of work."""
        self.revived_count = 0
        """Messages copied since the start."""
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
        """Revive a slice of the due messages; returns when to call it again (now_ms: at once), None: in no hurry."""
        moved = self._settle_synced()
        batches, unblocked = self._in_flight.claim(now_ms, self.slice_count)
        if unblocked:
            self._unblocked(unblocked)
        if batches:
            passing = self._in_flight.passing
            for part in (batches[:passing], batches[passing:]):
                if part:
                    self._revive(self._secured(part, now_ms), now_ms)
            moved += [batch.queue for batch in batches]
        if moved:
            self._moved(moved)
        if batches or unblocked:
            return now_ms
        self._wake_ms = None  # from here on `wake` ends the sleep: the due time read below may miss a new pop
        due_ms = self._in_flight.next_due_ms()
        if self._unsynced:
            due_ms = now_ms + _SYNC_WAIT_MS if due_ms is None else min(due_ms, now_ms + _SYNC_WAIT_MS)
        self._wake_ms = due_ms
        return due_ms

    def _settle_synced(self) -> list[PopQueue]:
        unsynced, synced = self._unsynced, self._store.commit_log.synced
        done: list[Batch] = []
        for _, end, batch in unsynced:
            if end > synced:
                break
            done.append(batch)
        if done:
            self._in_flight.settle_all(done)
            # Afterwards: `settled_to` must not pass a copy that the journal has not got as done with.
            with self._in_flight.lock:
                for _ in done:
                    unsynced.popleft()
        return [batch.queue for batch in done]

    def settled_to(self) -> int:
        """Return the CommitLog position below which all copies are durable. The caller holds the lock of `InFlight`."""
        if self._unsynced:
            return self._unsynced[0][0]
        return self._store.commit_log.end if self._putting < 0 else self._putting

    def finish(self) -> None:
        """Sync and settle all copies, at the end of the broker. Raises StoreError."""
        if self._unsynced:
            self._store.commit_log.sync()
            self._moved(self._settle_synced())

    def _secured(self, batches: list[Batch], now_ms: int) -> list[Batch]:
        """Return the claimed batches whose pop is durable; the others are put back, due later."""
        journal = self._journal()
        try:
            # Names only grow, so the newest one stands for all.
            journal.secure(max(batch.name for batch in batches))
        except StoreError as error:
            for batch in batches:
                if batch.name > journal.synced_name:
                    self._in_flight.put_back(batch, self._back_off(batch, now_ms, str(error)))
        # `put_back` has released those whose pop is not durable.
        return [batch for batch in batches if batch.claimed]

    def _revive(self, batches: list[Batch], now_ms: int) -> None:
        """Copy the messages of claimed batches, in one put unless they are large."""
        topics: dict[str, list[Batch]] = {}
        for batch in batches:
            topic = self._topic_of(batch, now_ms)
            if topic is not None:
                topics.setdefault(topic, []).append(batch)
        late: dict[int, int] = {}
        done: dict[int, int] = {}
        log, lock = self._store.commit_log, self._in_flight.lock
        # `settled_to` is called under this lock: from now on it must not pass the copies that are being stored.
        with lock:
            begin = self._putting = log.end
        puts: Puts = []
        size = 0
        for topic, own in topics.items():
            for more in self._copies(own, topic, late, now_ms):
                # A list: mypyc makes a plain loop of it, but of a generator an object that is resumed for each element.
                more_bytes = sum([put.data_bytes for put, _ in more])
                if puts and size + more_bytes > PUT_BYTES_MAX:
                    self._put(puts, done, late, now_ms)
                    puts, size = [], 0
                puts += more
                size += more_bytes
        if puts:
            self._put(puts, done, late, now_ms)
        # Maybe behind later messages too: the copies are then settled a little later.
        end = log.end
        copied = self._in_flight.all_copied([(batch, done[batch.number]) for batch in batches if batch.number in done])
        self._unsynced.extend([(begin, end, batch) for batch in copied])
        for batch in batches:
            if batch.waiting and batch.number in late:
                self._in_flight.put_back(batch, late[batch.number])
        # Last: until then `settled_to` must not rely on `_unsynced`, which has the copies by now.
        with lock:
            self._putting = -1

    def _copies(self, batches: list[Batch], topic: str, late: dict[int, int], now_ms: int) -> Iterator[Puts]:
        """Make the copies for one retry topic; batches that cannot be read are added to ``late``."""
        for group in self.copier.groups(batches):
            try:
                found = self.copier.together(group, topic)
            except StoreError:  # read one by one: a bad batch must not stop the others
                found = None
            if found is None:
                yield from self._single_copies([batch for batch, _, _, _ in group], topic, late, now_ms)
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
        """Return the retry topic for a batch; None if the batch is not copied now."""
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
        """Ask for a retry topic unless that was done just now; returns when to look again.

        While it cannot be created, as on a full disk, the pauses grow. All batches share them.
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
        """Store copies. ``done`` gets the bits of stored copies by batch, ``late`` the batches that failed."""
        for (put, claims), result in zip(puts, self._store.put_batch([put for put, _ in puts]), strict=True):
            if result.status is not PutStatus.PUT_OK and isinstance(put, PutBlock):
                own = [batch for batch, _ in claims]  # stored singly, each copy gets its own result
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
        """Wake the thread if it would sleep beyond ``due_ms``."""
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
        """Sleep until a message is due, but at most a quarter of a second: the clock may be set meanwhile."""
        seconds = _WAIT_MAX_MS / 1000 if wait_ms is None else min(_WAIT_MAX_MS, wait_ms - 1) / 1000
        with self._condition:
            if not self._woken:
                self._condition.wait(max(seconds, _YIELD_SECONDS))
            self._woken = False
