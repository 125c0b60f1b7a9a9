"""The store's housekeeping, in slices: work that the append leaves for later so that it can be quick.

A *round* makes derived data durable. Under the append lock it notes the log's end and the queues with new entries. Then
it writes and syncs these queues, a few a slice. Last it writes how far a restart may trust them: in
``timewheel/progress``, and for an Apache broker in Apache's ``checkpoint``.

Each step may fail (a full disk) without harm: nothing is forgotten before it is durable, and the next round tries
again. It runs in a thread of its own (`MessageStore.housekeeper`), so that no send waits behind its syncs.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager
from pathlib import Path

from store.derived.consume_queue import ConsumeQueue
from store.derived.consume_queues import ConsumeQueues
from store.derived.index import KeyIndex
from store.disk.apache_files import ApacheCheckpoint
from store.disk.errors import StoreError
from store.disk.files import Files
from store.log.commit_log import CommitLog
from store.progress import Progress

__all__ = ["Keeper"]

ROUND_INTERVAL_MS = 2000
"""Longest time without a round while messages come in."""
ROUND_BYTES = 32 << 20
"""A round begins early after this much log, so that a restart reads not much more than this."""
TAIL_INTERVAL_MS = 10_000
"""Longest time without a saved tail of the key index."""
_SLICE = 4
_LOOK_MS = 50
_IDLE_LOOK_MS = 250


class _Round:
    __slots__ = ("begin", "last", "position", "queues")

    def __init__(
        self, position: int, last: tuple[int, int, int], queues: list[tuple[ConsumeQueue, int]], begin: int
    ) -> None:
        self.position = position
        self.last = last
        self.queues = queues
        self.begin = begin


class Keeper:
    """Makes derived data durable. `step` by one thread, `finish` by any."""

    def __init__(
        self,
        files: Files,
        root: Path,
        log: CommitLog,
        queues: ConsumeQueues,
        index: KeyIndex,
        append_lock: AbstractContextManager[object],
        last: Callable[[], tuple[int, int, int]],
    ) -> None:
        """``last`` returns (offset, size, store ms) of the last record; it is called under the append lock."""
        self._files = files
        self._root = root
        self._log = log
        self._queues = queues
        self._index = index
        self._append_lock = append_lock
        self._last = last
        self._stepping = threading.RLock()
        self._round: _Round | None = None
        self._due_ms = 0
        self._tail_due_ms = 0
        self._written = -1
        """Position of the progress file on disk; -1: unknown."""
        self._counts: dict[tuple[str, int], int] = {}
        self._sums: dict[tuple[str, int], tuple[tuple[int, int], ...]] = {}
        self._begin = self._begin_told = log.begin
        """The log offset below which all queues' files have expired; and the one that the progress file has."""
        self._checkpoint = ApacheCheckpoint.read(files, root / "checkpoint")
        self.rounds = 0

    @property
    def progress_path(self) -> Path:
        """The progress file."""
        return self._root / "timewheel" / "progress"

    @property
    def position(self) -> int:
        """Everything that derives from the log below this position is durable; -1 before the first round."""
        return self._written

    def begin(self) -> None:
        """Take over the queues as recovery has left them: those without new entries are durable as they are."""
        self._begin = self._begin_told = self._log.begin
        for queue in self._queues:
            if queue.synced:
                self._counts[queue.topic, queue.queue_id] = queue.synced
                self._sums[queue.topic, queue.queue_id] = queue.sums()

    def expired(self, begin: int) -> None:
        """Note that all ConsumeQueue files of the log below ``begin`` have expired: the progress file is written again.

        Until then it has the earlier begin of the log, and a start accepts that these files are missing.
        """
        self._begin = begin

    def delete_topics(self, topics: Collection[str]) -> bool:
        """Remove some topics' queues, with one write of the progress file for all; False if none of them had any."""
        gone, found = frozenset(topics), False
        with self._stepping:
            for topic in sorted(gone):
                with self._append_lock:
                    dropped = self._queues.drop(topic)
                found = found or dropped is not None
                while dropped:  # one by one: freeing 65,536 queues at once would hold the interpreter
                    dropped.popitem()
            self._queues.remove_files(gone)
            for key in [key for key in self._counts if key[0] in gone]:
                del self._counts[key]
                self._sums.pop(key, None)
            if self._round is not None:
                self._round.queues = [pair for pair in self._round.queues if pair[0].topic not in gone]
            self.finish()
            return found

    def step(self, now_ms: int) -> int | None:
        """Do one slice of the work; returns when to call again, epoch ms, or None."""
        with self._stepping:
            more = self._index.step()
            if self._round is None:
                if now_ms < self._due_ms - ROUND_INTERVAL_MS:
                    self._due_ms = now_ms  # the clock went back
                fresh = self._log.end - max(self._written, self._log.begin)
                idle = self._log.end == self._written and not self._is_stale
                if idle or (now_ms < self._due_ms and fresh < ROUND_BYTES):
                    return now_ms if more else now_ms + (_IDLE_LOOK_MS if idle else _LOOK_MS)
                self._start()
                self._due_ms = now_ms + ROUND_INTERVAL_MS
            if self._flush_some(_SLICE):
                return now_ms
            self._save_tail(now_ms)
            self._end(clean=False)
            return now_ms if more else now_ms + _LOOK_MS

    def finish(self, clean: bool = False) -> None:
        """Do a whole round now; ``clean`` is for the last one, with nothing appended any more."""
        with self._stepping:
            if self._round is not None:
                self._flush_some(len(self._round.queues))
                self._end(clean=False)
            self._start()
            self._flush_some(1 << 30)
            self._end(clean)

    @property
    def _is_stale(self) -> bool:
        return self._begin != self._begin_told

    def _start(self) -> None:
        begin = self._begin
        if self._is_stale:
            for queue in self._queues:
                if (queue.topic, queue.queue_id) in self._sums:
                    self._sums[queue.topic, queue.queue_id] = queue.sums()
        with self._append_lock:
            self._round = _Round(self._log.end, self._last(), self._queues.take_dirty(), begin)

    def _flush_some(self, limit: int) -> bool:
        """Write and sync some of the round's queues; True if there are more."""
        round_ = self._round
        if round_ is None:
            return False
        flushed: list[ConsumeQueue] = []
        try:
            while round_.queues and len(flushed) < limit:
                queue, count = round_.queues[-1]
                queue.flush(count)
                round_.queues.pop()
                flushed.append(queue)
                self._counts[queue.topic, queue.queue_id] = count
                self._sums[queue.topic, queue.queue_id] = queue.sums()
        except StoreError:
            self._round = None
            with self._append_lock:
                for queue, _ in round_.queues:
                    self._queues.mark_dirty(queue)
            raise
        finally:
            if flushed:
                with self._append_lock:
                    for queue in flushed:
                        queue.settle()
        return bool(round_.queues)

    def _save_tail(self, now_ms: int) -> None:
        behind = self._log.end - self._index.saved_to
        late = not now_ms < self._tail_due_ms <= now_ms + TAIL_INTERVAL_MS
        if behind >= ROUND_BYTES or (behind and late):
            self._index.save_tail()
            self._tail_due_ms = now_ms + TAIL_INTERVAL_MS

    def _end(self, clean: bool) -> None:
        """Say on disk how far everything is."""
        round_, self._round = self._round, None
        if round_ is None:
            return
        if self._log.synced < round_.position:
            self._log.sync()
        progress = Progress(
            round_.position, self._counts, round_.last, clean, self._sums, round_.begin, self._queues.file_bytes
        )
        progress.write(self._files, self.progress_path)
        self._begin_told = round_.begin
        self._written = round_.position
        self.rounds += 1
        if round_.last[2]:
            checkpoint = self._checkpoint
            checkpoint.physic_ms = checkpoint.logics_ms = round_.last[2]
            checkpoint.confirmed = checkpoint.master_flushed = 0
            checkpoint.write(self._files, self._root / "checkpoint")
