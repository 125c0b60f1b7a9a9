"""Replies that wait until their messages are durable, and how many of them may wait.

Under SYNC_FLUSH the replies of a turn are made when the flusher reports that its bytes are on the disk. Meanwhile the
next turns go on. If the disk is slow, many requests wait; beyond a limit, sends are refused with SYSTEM_BUSY, as
Apache's broker does when its send queue is full.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from broker.turns.put_request import Entry
from broker.turns.replies import Replies
from store.log.commit_log import KEPT_BYTES_MAX
from store.put.plugin_api import PutResult, PutStatus

if TYPE_CHECKING:
    from store.disk.ticket import Ticket
    from store.message_store import MessageStore

__all__ = ["DurableReplies"]


class DurableReplies(Replies):
    """Replies at once, or after a sync. Only the network loop uses it.

    Args:
        store: Its flusher syncs; its ``store_host`` must be set.
        region, trace_on: MSG_REGION and TRACE_ON of replies.
        call_soon_threadsafe: Runs something in the network loop; called from the flusher's thread.
        waiting_max: Most sends that may wait for their sync (``sendThreadPoolQueueCapacity``).
    """

    def __init__(
        self,
        store: MessageStore,
        region: str,
        trace_on: bool,
        call_soon_threadsafe: Callable[[Callable[[], None]], object],
        waiting_max: int,
    ) -> None:
        super().__init__(store.store_host, region, trace_on, store.options.max_message_bytes)
        self._store = store
        self._call_soon_threadsafe = call_soon_threadsafe
        self._durable: deque[tuple[list[Entry], Sequence[PutResult], bool]] = deque()
        self._answering = False
        self._again: deque[tuple[Ticket, Callable[[bool], None]]] = deque()  # of refusals whose sync failed
        self.waiting = 0
        """Requests that are stored and wait for their sync (SYNC_FLUSH): many if the disk is slow."""
        self.waiting_max = waiting_max
        self.unsynced_bytes = 0
        """Bytes of the CommitLog that no sync has covered, as of the last `look_at_disk`."""
        self.refusing = False
        """True if sends must be refused until the disk has caught up; `busy_remark` says why."""

    # ------------------------------------------------------------------------------------------------ flow control

    def look_at_disk(self) -> None:
        """Measure how far the disk is behind, and submit tickets again that must be durable; call it often a second."""
        for _ in range(len(self._again)):  # those that the flusher's thread adds meanwhile wait for the next call
            ticket, callback = self._again.popleft()
            self._when_durable(ticket, callback)
        log = self._store.commit_log
        self.unsynced_bytes = log.written - log.synced
        self._decide()

    def busy_remark(self) -> str:
        """Why sends are refused, in Apache's words."""
        if self.waiting >= self.waiting_max:
            return (
                "[OVERLOAD]system busy, start flow control for a while: "
                f"{self.waiting} sends wait for the disk, "
                f"at most {self.waiting_max} may (sendThreadPoolQueueCapacity)"
            )
        return (
            "[REJECTREQUEST]system busy, start flow control for a while: "
            f"{self.unsynced_bytes} bytes wait for the disk to sync them, at most {KEPT_BYTES_MAX} may"
        )

    def _decide(self) -> None:
        self.refusing = self.waiting >= self.waiting_max or self.unsynced_bytes > KEPT_BYTES_MAX

    # ------------------------------------------------------------------------------------------------ answering

    def answer_after(
        self, ticket: Ticket, entries: list[Entry], results: Sequence[PutResult], durably: bool = False
    ) -> None:
        """Answer requests when the flusher reports that a ticket's bytes are durable, or could not be synced.

        ``durably``: only when they are durable, after as many tries as it takes. That is for a refused batch of which a
        part was taken back: before that, a crash could bring it back.
        """
        self.waiting += len(entries)
        self._decide()
        submit = self._when_durable if durably else self._store.flusher.submit
        submit(ticket, partial(self._flushed, entries, results))

    def _when_durable(self, ticket: Ticket, callback: Callable[[bool], None]) -> None:
        """Submit a ticket, and again with each `look_at_disk` until its bytes are durable."""

        def done(ok: bool) -> None:  # in the flusher's thread
            if ok:
                callback(True)
            else:
                self._again.append((ticket, callback))

        self._store.flusher.submit(ticket, done)

    def refuse_after(self, ticket: Ticket, entries: list[Entry], remark: str) -> None:
        """Answer that nothing was stored, when a ticket's bytes are durable, after as many tries as it takes."""
        self.waiting += len(entries)
        self._decide()

        def over() -> None:
            self.waiting -= len(entries)
            self.answer_failed(entries, PutStatus.SERVICE_NOT_AVAILABLE, remark)
            self._decide()

        def done(_ok: bool) -> None:
            self._call_soon_threadsafe(over)

        self._when_durable(ticket, done)

    def _flushed(self, entries: list[Entry], results: Sequence[PutResult], ok: bool) -> None:
        """Take the flusher's report about a turn, in its thread: the network loop answers."""
        # The reports before the flag: the loop clears the flag and only then empties the queue.
        self._durable.append((entries, results, ok))
        if not self._answering:
            self._answering = True
            self._call_soon_threadsafe(self._answer_durable)

    def _answer_durable(self) -> None:
        self._answering = False
        durable = self._durable
        while durable:
            entries, results, ok = durable.popleft()
            self.waiting -= len(entries)
            self.answer(entries, results, ok)
        self._decide()
