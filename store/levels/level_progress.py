"""The delivered and pending messages of the delay levels: the state behind `store.levels.level_scheduler`.

It is durable as section ``levels`` of the delivery checkpoint (JSON: pending numbers of each level, and the messages
that were given up), together with the marks of the copies in the CommitLog behind the checkpoint. Apache's
``config/delayOffset.json`` is written from durable checkpoints, so that an Apache broker can take over.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from remoting.errors import ProtocolError
from remoting.json_dialect import dumps, loads
from store.disk.checkpoint import DeliveryCheckpoint
from store.disk.errors import StoreCorruptError
from store.disk.files import Files
from store.disk.segments import NOTHING_NEEDED
from store.levels.delay_levels import SCHEDULE_TOPIC
from store.levels.delay_offsets import DelayOffsets
from store.levels.level_copy import mark_of
from store.levels.level_queue import Entry, LevelQueue
from store.put.plugin_api import Put, PutResult

__all__ = ["LevelProgress", "LevelStore", "Unreadable"]

SECTION = "levels"
"""Our section of the delivery checkpoint."""
QUEUES = 18
"""Least number of queues of SCHEDULE_TOPIC_XXXX, whatever the table of levels says."""
LEVEL_LIMIT = 1 << 31
UNREADABLE_LISTED = 1000
OFFSETS_INTERVAL_MS = 10_000


class LevelStore(Protocol):
    """The part of `store.message_store.MessageStore` that the scheduler uses."""

    @property
    def checkpoint(self) -> DeliveryCheckpoint:
        """The delivery checkpoint, and the lock in it."""
        ...

    @property
    def put_bytes_max(self) -> int:
        """The largest record that can be put."""
        ...

    def put_batch(self, puts: Sequence[Put]) -> list[PutResult]:
        """Append, see `store.put.plugin_api.DeliveryTarget`."""
        ...

    def scan(self, from_offset: int) -> Iterable[tuple[int, bytes]]:
        """Yield (CommitLog offset, record) to the end."""
        ...

    def read_record(self, offset: int, size: int = 0) -> bytes | None:
        """Read the record at a CommitLog offset; None unless it is whole and valid. ``size``: if it is known."""
        ...

    def queue_entries(self, topic: str, queue_id: int, from_offset: int, limit: int) -> Sequence[Entry]:
        """Read ConsumeQueue entries (CommitLog offset, size, tags code); fewer at the end of a file or of the queue."""
        ...

    def queue_ids(self, topic: str) -> list[int]:
        """Ids of the queues of a topic that exist."""
        ...

    def min_offset(self, topic: str, queue_id: int) -> int:
        """Number of the first entry whose record is there; 0 for a queue that does not exist."""
        ...

    def max_offset(self, topic: str, queue_id: int) -> int:
        """Number behind the last entry; 0 for a queue that does not exist."""
        ...


class Unreadable:
    """A level message that could not be delivered because its record cannot be read."""

    __slots__ = ("level", "number", "offset", "reason")

    def __init__(self, level: int, number: int, offset: int, reason: str) -> None:
        self.level = level
        self.number = number
        self.offset = offset
        self.reason = reason


class LevelProgress:
    """The queues of all levels with their pending messages. The caller holds the delivery lock where stated.

    ==================  ==================================================================================
    ``queues``          one `LevelQueue` for each level of the table, and for each other level with messages that
                        `recover` found: the table may have had more levels
    ``unreadable``      messages that were given up (the first 1000), ``unreadable_count`` how many in all
    ``now_ms``          the time of the scheduler's last step
    ``closing``         True: Apache's file is written after every checkpoint, not once in ten seconds
    ==================  ==================================================================================
    """

    def __init__(self, store: LevelStore, level_count: int, files: Files | None, offsets_path: Path | None) -> None:
        self.unreadable_count = 0
        self.unreadable: list[Unreadable] = []
        self.now_ms = 0
        self.closing = False
        self._store = store
        self.queues = [self._queue(level) for level in range(1, max(level_count, QUEUES) + 1)]
        self._lock = store.checkpoint.lock
        self._offsets = None if files is None or offsets_path is None else DelayOffsets(files, offsets_path)
        self._snapshot_offsets: dict[int, int] = {}
        self._durable_offsets: dict[int, int] = {}
        self._offsets_ms: int | None = None

    def _queue(self, level: int) -> LevelQueue:
        return LevelQueue(level, partial(self._store.queue_entries, SCHEDULE_TOPIC, level - 1))

    def _add(self, levels: Iterable[int]) -> None:
        """Create a queue for each of these levels. Raises ValueError for an impossible level."""
        known = {queue.level for queue in self.queues}
        for level in sorted(set(levels) - known):
            if not 0 < level < LEVEL_LIMIT:
                raise ValueError(f"level {level}")
            self.queues.append(self._queue(level))

    def recover(self) -> list[str]:
        """Find the delivered messages before anything is delivered, and register the section. Returns sentences to
        report.

        The sources are the section, an Apache broker's file where that is further, and the copies in the CommitLog
        behind the checkpoint. Raises `StoreCorruptError` if the section is invalid.
        """
        checkpoint = self._store.checkpoint
        reports = []
        with self._lock:
            self._add(
                queue_id + 1 for queue_id in self._store.queue_ids(SCHEDULE_TOPIC) if 0 <= queue_id < LEVEL_LIMIT - 1
            )
            with checkpoint.reading(SECTION) as section:
                if section is not None:
                    self._restore(section)
            offsets = {} if self._offsets is None else self._offsets.offsets
            marks = self._marks(checkpoint.position_of(SECTION))
            for queue in self.queues:
                queue.forget_below(offsets.get(queue.level, 0))
                queue.forget_from(self._store.max_offset(SCHEDULE_TOPIC, queue.level - 1))
                self._durable_offsets[queue.level] = queue.lowest
                done = marks.get(queue.level, ())
                while done and queue.seen <= max(done) and queue.look_ahead():
                    pass
                for number in done:
                    if number < queue.seen:
                        queue.mark_done(number)
                gone = self.forget_gone(queue, count=section is not None)
                if gone:
                    reports.append(gone)
            checkpoint.register(SECTION, self._snapshot, self._durable)
        return reports

    def forget_gone(self, queue: LevelQueue, count: bool = True) -> str:
        """Give up messages that are no longer in the CommitLog; returns a sentence if there were any (lock)."""
        gone = queue.forget_below(self._store.min_offset(SCHEDULE_TOPIC, queue.level - 1))
        if not gone or not count:
            return ""
        self.unreadable_count += gone
        return f"level {queue.level}: {gone} undelivered messages are no longer in the CommitLog"

    def give_up(self, queue: LevelQueue, number: int, offset: int, reason: str) -> None:
        """Note a message that cannot be delivered, and count it as done (lock)."""
        self.unreadable_count += 1
        if len(self.unreadable) < UNREADABLE_LISTED:
            self.unreadable.append(Unreadable(queue.level, number, offset, reason))
        queue.mark_done(number)

    def _marks(self, from_offset: int) -> dict[int, list[int]]:
        marks: dict[int, list[int]] = {}
        for _, record in self._store.scan(from_offset):
            mark = mark_of(record)
            if mark is not None:
                marks.setdefault(mark[0], []).append(mark[1])
        return marks

    def _restore(self, section: bytes) -> None:
        try:
            value: Any = loads(section)
            self._add(map(int, value["pending"]))
            for queue in self.queues:
                pending = value["pending"].get(str(queue.level))
                if pending is not None:
                    queue.restore([(first, end) for first, end in pending])
            self.unreadable_count = int(value["unreadable_count"])
            self.unreadable = [Unreadable(*fields) for fields in value["unreadable"]]
        except (ProtocolError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            raise StoreCorruptError(f"it cannot be read: {error}") from error

    def _snapshot(self) -> bytes:
        self._snapshot_offsets = {queue.level: queue.lowest for queue in self.queues}
        return dumps(
            {
                "pending": {str(queue.level): queue.pending() for queue in self.queues if queue.seen},
                "unreadable_count": self.unreadable_count,
                "unreadable": [[u.level, u.number, u.offset, u.reason] for u in self.unreadable],
            }
        )

    def _durable(self) -> None:
        """A checkpoint is on disk: update Apache's file."""
        self._durable_offsets = self._snapshot_offsets
        last_ms = self._offsets_ms
        if self._offsets is None:
            return
        if self.closing or last_ms is None or not 0 <= self.now_ms - last_ms < OFFSETS_INTERVAL_MS:
            self._offsets.write(self._snapshot_offsets, self.now_ms)
            self._offsets_ms = self.now_ms

    # ---------------------------------------------------------------- what others ask

    def min_needed_offset(self) -> int:
        """The lowest CommitLog offset that a level may still have to deliver; `NOTHING_NEEDED` if there is none.

        Messages delivered since the last durable checkpoint count as well: a power cut may take their copies, and then
        the originals must be delivered once more.
        """
        lowest = NOTHING_NEEDED
        with self._lock:
            for queue in self.queues:
                queue_id = queue.level - 1
                number = min(queue.lowest, self._durable_offsets.get(queue.level, 0))
                number = max(number, self._store.min_offset(SCHEDULE_TOPIC, queue_id))
                entries = self._store.queue_entries(SCHEDULE_TOPIC, queue_id, number, 1)
                if entries:
                    lowest = min(lowest, entries[0][0])
        return lowest

    def pending_count(self) -> int:
        """Count the level messages that are not delivered."""
        pending = 0
        with self._lock:
            for queue in self.queues:
                pending += sum(stretch.end - stretch.next for stretch in queue.stretches)
                pending += max(0, self._store.max_offset(SCHEDULE_TOPIC, queue.level - 1) - queue.seen)
        return pending

    def offsets_info(self) -> dict[str, str]:
        """``scheduleMessageOffset_N`` as Apache's runtime information has it: next number, newest number."""
        with self._lock:
            return {
                f"scheduleMessageOffset_{queue.level}": f"{queue.lowest},{newest}"
                for queue in self.queues
                if (newest := self._store.max_offset(SCHEDULE_TOPIC, queue.level - 1))
            }

    def check(self) -> list[str]:
        """Return a sentence for each fault. A message that was given up counts as one."""
        with self._lock:
            problems = [problem for queue in self.queues for problem in queue.check()]
            problems += [
                f"level {u.level}, message {u.number} at CommitLog offset {u.offset} was given up: {u.reason}"
                for u in self.unreadable
            ]
        return problems
