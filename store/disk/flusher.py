"""Group commit: one thread syncs for all others, and does small periodic work besides.

An appending thread never syncs. It writes, notes its position in a `Ticket`, and submits the ticket. The flusher takes
*all* tickets submitted while it was busy, syncs each of their files once, and answers them. So the busier the disk, the
larger the groups: 1,000 waiting sends cost one sync, not 1,000.

==================  =======================================================================================
SYNC_FLUSH          a reply waits for its ticket
ASYNC_FLUSH         nobody waits; each `Syncable` is synced every ``interval_ms``, and sooner when more than
                    ``dirty_max_bytes`` of it are not durable yet
chores              everything else that must not happen under the append lock: segments allocated ahead,
                    ConsumeQueue tails written out, checkpoints. One chore at most between two looks at the
                    tickets, and each chore works in slices, so a waiting send waits for one slice at most
==================  =======================================================================================

``step(now_ms)`` is the whole flusher; the thread is a loop around it that waits on a queue in between.

Tickets of a failed sync are answered with False. The `Syncable` itself then writes the same bytes again at its next
sync, or stays failed (see `store.log.commit_log`); the flusher only tries again.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue

from store.disk.errors import StoreError
from store.disk.ticket import Syncable, Ticket

__all__ = ["Flusher"]

WAIT_MAX_MS = 250
"""Longest wait of the thread, so that a step of the wall clock cannot put it to sleep for an hour."""
RETRY_MS = 100
"""Pause before a failed periodic sync or chore is tried again."""


class _Periodic:
    __slots__ = ("clean_ms", "dirty_max_bytes", "due_ms", "interval_ms", "syncable")

    def __init__(self, syncable: Syncable, interval_ms: int, dirty_max_bytes: int) -> None:
        self.syncable = syncable
        self.interval_ms = interval_ms
        self.dirty_max_bytes = dirty_max_bytes
        self.clean_ms: int | None = None  # when it was last seen clean
        self.due_ms: int | None = None  # None: it was clean at the last check


class _Chore:
    __slots__ = ("due_ms", "name", "step")

    def __init__(self, name: str, step: Callable[[int], int | None]) -> None:
        self.name = name
        self.step = step
        self.due_ms: int | None = 0


_Waiting = tuple[Ticket, Callable[[bool], None]]


class Flusher:
    """The group-commit loop. ``submit``, ``wake`` and ``wait`` may be called from any thread."""

    def __init__(
        self, now_ms: Callable[[], int], warn: Callable[[str], None] = lambda _: None, pause_ms: float = 0.0
    ) -> None:
        """``pause_ms``: the thread sleeps this long between slices, so that it never keeps the interpreter busy."""
        self.failure: BaseException | None = None
        """The error that ended the thread, if one did."""
        self.on_failure: Callable[[BaseException], None] | None = None
        self._now_ms = now_ms
        self._warn = warn
        self._pause_ms = pause_ms
        self._inbox: SimpleQueue[_Waiting | None] = SimpleQueue()
        self._periodic: tuple[_Periodic, ...] = ()
        self._chores: tuple[_Chore, ...] = ()
        self._next_chore = 0
        self._setup = threading.Lock()
        self._stepping = threading.Lock()
        self._thread: threading.Thread | None = None
        self._stopping = False
        self._last_now = 0
        self.sync_count = 0
        self.ticket_count = 0

    def add(self, syncable: Syncable, interval_ms: int, dirty_max_bytes: int = 32 << 20) -> None:
        """Sync this every ``interval_ms`` while it is dirty, or sooner beyond ``dirty_max_bytes``."""
        with self._setup:
            self._periodic = (*self._periodic, _Periodic(syncable, interval_ms, dirty_max_bytes))

    def remove(self, syncable: Syncable) -> None:
        """Forget a syncable."""
        with self._setup:
            self._periodic = tuple(p for p in self._periodic if p.syncable is not syncable)

    def add_chore(self, name: str, step: Callable[[int], int | None]) -> None:
        """Call ``step(now_ms)`` between syncs; it works in slices and returns the time of its next call.

        That is an epoch millisecond, or None for the flusher's next step. If it raises `StoreError`, a warning is
        logged and it is called again after a pause.
        """
        with self._setup:
            self._chores = (*self._chores, _Chore(name, step))

    def submit(self, ticket: Ticket, callback: Callable[[bool], None]) -> None:
        """Call ``callback(True)`` from the flusher when the ticket's bytes are durable, False when a sync failed."""
        if self.failure is not None:
            callback(False)
            return
        self._inbox.put((ticket, callback))
        self._refuse_after_failure()  # it may have failed meanwhile, after its last look into the inbox

    def wake(self) -> None:
        """Wake the thread."""
        self._inbox.put(None)

    def wait(self, ticket: Ticket) -> None:
        """Sync a ticket's files at once, in the calling thread. Raises `SyncFailedError`."""
        for syncable, position in ticket.waits:
            if syncable.synced < position:
                self.sync_count += 1
                syncable.sync()

    def step(self, now_ms: int) -> int | None:
        """Serve all tickets, then periodic syncs, then at most one slice of one chore.

        Returns the time of the next step: an epoch millisecond (now or earlier: at once), or None for no hurry.
        """
        with self._stepping:
            if now_ms < self._last_now:
                self._clock_went_back(now_ms)
            self._last_now = now_ms
            self._serve(self._take())
            wake = self._sync_periodic(now_ms)
            chore = self._do_chore(now_ms)
            if not self._inbox.empty():
                return now_ms
        return chore if wake is None else wake if chore is None else min(wake, chore)

    def sync_all(self) -> None:
        """Serve every waiting ticket and sync everything. Raises the first failure, after trying all."""
        with self._stepping:
            self._serve(self._take())
            failure: StoreError | None = None
            for entry in self._periodic:
                try:
                    if entry.syncable.synced < entry.syncable.written:
                        entry.syncable.sync()
                    entry.due_ms = None
                except StoreError as error:
                    failure = failure or error
            if failure is not None:
                raise failure

    def start(self) -> None:
        """Run the loop in a thread of its own."""
        if self._thread is None:
            self._stopping = False
            thread = threading.Thread(target=self._run, name="flusher", daemon=True)
            thread.start()
            self._thread = thread  # a thread that could not be started cannot be joined

    def stop(self) -> None:
        """End the thread after the step it is in; tickets that still wait are served by `sync_all` or a step."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._stopping = True
            self._inbox.put(None)
            # A thread cannot join itself, and a callback may call this.
            if thread is not threading.current_thread():
                thread.join()

    def _run(self) -> None:
        try:
            while not self._stopping:
                now = self._now_ms()
                wake = self.step(now)
                wait_ms = max(self._pause_ms, WAIT_MAX_MS if wake is None else min(WAIT_MAX_MS, wake - now))
                if wait_ms > 0:
                    try:
                        first = self._inbox.get(timeout=wait_ms / 1000)
                    except Empty:
                        continue
                    if first is not None:
                        self._serve(self._take(first))
        except BaseException as failure:
            self.failure = failure
            self._refuse_after_failure()
            if self.on_failure is None:
                raise
            self.on_failure(failure)

    def _refuse_after_failure(self) -> None:
        if self.failure is not None:
            for _, callback in self._take():
                with suppress(Exception):
                    callback(False)

    def _take(self, first: _Waiting | None = None) -> list[_Waiting]:
        taken = [] if first is None else [first]
        inbox = self._inbox
        try:
            while True:
                waiting = inbox.get_nowait()
                if waiting is not None:
                    taken.append(waiting)
        except Empty:
            return taken

    def _serve(self, waiting: Sequence[_Waiting]) -> None:
        """Sync each file that a ticket waits for once, then tell the tickets in the order they came."""
        if not waiting:
            return
        told = deque(waiting)
        try:
            self._sync_for(waiting)
            self.ticket_count += len(waiting)
            while told:
                ticket, callback = told.popleft()
                callback(ticket.is_done())
        except BaseException:  # a bug: the thread ends and refuses what is in the inbox
            for left in told:
                self._inbox.put(left)
            raise

    def _sync_for(self, waiting: Sequence[_Waiting]) -> None:
        failed: set[int] = set()
        done: set[int] = set()
        for ticket, _ in waiting:
            for syncable, position in ticket.waits:
                if syncable.synced >= position or id(syncable) in failed or id(syncable) in done:
                    continue
                try:
                    self.sync_count += 1
                    syncable.sync()
                    done.add(id(syncable))
                except StoreError as error:
                    failed.add(id(syncable))
                    self._warn(f"{syncable.name}: {error}")

    def _sync_periodic(self, now_ms: int) -> int | None:
        wake: int | None = None
        for entry in self._periodic:
            syncable = entry.syncable
            dirty = syncable.written - syncable.synced
            if dirty <= 0:
                entry.due_ms = None
                entry.clean_ms = now_ms
                continue
            if entry.due_ms is None:
                # The interval starts at the last time when it was clean: the oldest unsynced byte may be as old as
                # that.
                entry.due_ms = (now_ms if entry.clean_ms is None else entry.clean_ms) + entry.interval_ms
            if now_ms >= entry.due_ms or dirty > entry.dirty_max_bytes:
                try:
                    self.sync_count += 1
                    syncable.sync()
                    entry.clean_ms = now_ms
                    entry.due_ms = now_ms + entry.interval_ms if syncable.written > syncable.synced else None
                except StoreError as error:
                    entry.due_ms = now_ms + RETRY_MS
                    self._warn(f"{syncable.name}: {error}")
            if entry.due_ms is not None and (wake is None or entry.due_ms < wake):
                wake = entry.due_ms
        return wake

    def _do_chore(self, now_ms: int) -> int | None:
        """Run one slice of the next due chore in turn; return the earliest time that a chore asked for."""
        chores = self._chores
        for turn in range(len(chores)):
            number = (self._next_chore + turn) % len(chores)
            chore = chores[number]
            if chore.due_ms is None or chore.due_ms <= now_ms:
                self._next_chore = number + 1
                try:
                    chore.due_ms = chore.step(now_ms)
                except StoreError as error:
                    chore.due_ms = now_ms + RETRY_MS
                    self._warn(f"{chore.name}: {error}")
                break
        return min((chore.due_ms for chore in chores if chore.due_ms is not None), default=None)

    def _clock_went_back(self, now_ms: int) -> None:
        """After a step of the clock: run all chores again now, because their times were set by the old clock."""
        for entry in self._periodic:
            entry.clean_ms = now_ms
            entry.due_ms = None if entry.due_ms is None else now_ms
        for chore in self._chores:
            chore.due_ms = None if chore.due_ms is None else now_ms
