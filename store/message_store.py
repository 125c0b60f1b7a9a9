"""`MessageStore`: one directory with its CommitLog, ConsumeQueues and key index, opened, written, read and closed.

`store.store_writer` describes puts, `store.store_reader` pulls.

Threads
    ``flusher`` syncs the CommitLog and the journals of plug-ins. ``housekeeper`` does everything that may take longer:
    ConsumeQueues and index to disk, checkpoints, segments ahead, retention. `start` starts both; a simulation steps
    them instead. Locks, outer first: ``checkpoint.lock`` (deliveries), the append lock.

Life
    `open` takes the directory's lock, refuses what it cannot read, recovers, and writes ``abort``; `close` makes
    everything durable and removes it. The directory is then one that an Apache broker opens too.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Collection
from pathlib import Path

from store.derived.apache_index import ApacheIndex
from store.derived.consume_queue import ConsumeQueue
from store.derived.consume_queues import ConsumeQueues
from store.derived.index import KeyIndex
from store.disk.apache_files import TIMER_TOPIC, check_layout, check_timer
from store.disk.checkpoint import DeliveryCheckpoint
from store.disk.delay_id import DELAY_ID_BASE
from store.disk.errors import StoreError
from store.disk.files import Files
from store.disk.flusher import Flusher
from store.disk.identity import store_identity
from store.keeper import Keeper
from store.levels.level_tables import LevelTables
from store.log.commit_log import CommitLog
from store.options import StoreOptions
from store.recovery import Recovery
from store.retention import Retention, levels_need, readable_bytes
from store.store_reader import PullResult, PullStatus
from store.store_writer import DIRTY_BYTES_MAX, StoreWriter

__all__ = ["MessageStore", "PullResult", "PullStatus"]

_OUR_ABORT = b"timewheel"
_KNOWS_POPS = b" pops"
"""Written behind the marker by a broker that keeps the journal of pops."""


class MessageStore(StoreWriter):
    """The store of one broker. Every method may be called from any thread, unless it says otherwise.

    ====================  ================================================================================
    ``store_id``          bytes (16), drawn when the directory was first opened
    ``store_host``        bytes (8 or 20), the store host in records; the broker sets it
    ``options``           `StoreOptions`
    ``flusher``           `Flusher`, for tickets and for syncables of plug-ins
    ``housekeeper``       `Flusher`, for chores that may take their time
    ``checkpoint``        `DeliveryCheckpoint`, with the delivery lock
    ``retention``         `Retention`; its ``pins`` keep segments that are still needed
    ``on_arrival``        called after a put with the (topic, queue id) pairs that have new messages
    ``topic_guard``       called for each guarded record: PUT_OK, TOPIC_NOT_EXIST or NO_PERMISSION
    ``queue_for``         called with (topic, queue id) of an accepted message; gives the queue id that it goes to now
    ``recovery``          `Recovery`, the findings of the opening
    ``was_clean``         whether the last broker had closed the store
    ``pops_open``         whether the journal of pops is open: then the store does not count as closed either
    ``knew_pops``         if the store was not closed: whether the last broker keeps the journal of pops
    ====================  ================================================================================
    """

    def __init__(
        self,
        files: Files,
        root: Path,
        options: StoreOptions,
        now_ms: Callable[[], int],
        warn: Callable[[str], None],
        release: Callable[[], None],
    ) -> None:
        """Use `open`."""
        lock = threading.Lock()
        mine = root / "timewheel"
        log_path = Path(options.commit_log_path) if options.commit_log_path else root / "commitlog"
        log = CommitLog(files, log_path, options.commit_log_segment_bytes, mine / "aside")
        queues = ConsumeQueues(files, root / "consumequeue", options.consume_queue_segment_bytes)
        super().__init__(
            log,
            queues,
            KeyIndex(files, mine / "keyindex", lock),
            ApacheIndex(files, root / "index"),
            options,
            now_ms,
            lock,
            Flusher(now_ms, warn),
            Retention(files, root, log, queues, options, warn),
        )
        self.files = files
        self.root = root
        self.store_host = bytes(8)
        self._warn = warn
        self._release = release
        self._old_numbers = False  # all queues were derived anew, and the checkpoint speaks of their numbers before
        self._boot_ms = now_ms()
        self._clean = self.was_clean = not files.exists(root / "abort")
        before = b"" if self._clean else files.read_file(root / "abort")
        self._ours = before.startswith(_OUR_ABORT)
        self.pops_open = False
        self.knew_pops = self._ours and before.endswith(_KNOWS_POPS)
        self._never_ours = not files.exists(mine / "store")
        self.store_id = store_identity(files, mine / "store")
        self.checkpoint = DeliveryCheckpoint.open(files, mine / "checkpoint", self.store_id)
        self.housekeeper = Flusher(now_ms, warn, pause_ms=0.5)
        self._keeper = Keeper(
            files, root, self.commit_log, self.queues, self.index, self._append_lock, lambda: self._last
        )
        self.retention.followers = [self.index.drop_before, self.older_index.drop_before, self._keeper.expired]
        self._level_tables = LevelTables(files, mine / "levels", options.delay_levels_ms, warn)
        self.recovery = Recovery(
            files,
            root,
            self.commit_log,
            self.queues,
            self.index,
            self._level_tables.at,
            clean=self._clean,
            ours=self._ours,
            warn=warn,
        )

    # ------------------------------------------------------------------------------------------ opening

    @classmethod
    def open(
        cls,
        files: Files,
        root: Path,
        options: StoreOptions | None = None,
        now_ms: Callable[[], int] = lambda: 0,
        warn: Callable[[str], None] = lambda _: None,
    ) -> MessageStore:
        """Open a directory, or make a new one; recovers first if it was not closed.

        Raises `StoreLockedError` if another broker has it, `StoreFormatError` for another version or configuration or a
        store that cannot be taken over, `StoreCorruptError` for a log that ends before a position that was durable.
        """
        options = options or StoreOptions()
        files.makedirs(root)
        release = files.lock(root / "lock")
        try:
            check_layout(files, root)
            store = cls(files, root, options, now_ms, warn, release)
            store._recover()
            return store
        except BaseException:
            release()
            raise

    def _recover(self) -> None:
        checkpoint, log = self.checkpoint, self.commit_log
        durable = max([checkpoint.position, *(checkpoint.position_of(name) for name in checkpoint.sections)])
        self._check_timer_before()
        self.recovery.run(self._keeper.progress_path, durable)
        self._last = self.recovery.last
        self._old_numbers = self.recovery.rebuilt and bool(checkpoint.sections)
        check_timer(self.files, self.root, self.options.timer_precision_ms, self.max_offset(TIMER_TOPIC, 0))
        checkpoint.check_log_end(log.end)
        if self._never_ours and log.end:
            checkpoint.begin_at(log.end)
        self._level_tables.begin(log.begin, log.end)
        self._keeper.begin()
        self.files.replace_file(self.root / "abort", b"%b %d%b" % (_OUR_ABORT, self._boot_ms, _KNOWS_POPS))
        self.retention.look_at_disk()
        self.retention.pins.append(lambda: checkpoint.position)
        self.retention.pins.append(lambda: self._keeper.position)
        self.retention.levels_pin = lambda: levels_need(log, self.queues, self._now_ms())
        self.flusher.add(log, self.options.flush_interval_ms, DIRTY_BYTES_MAX)
        self.housekeeper.add_chore("segments ahead", self._allocate)
        self.housekeeper.add_chore("delivery checkpoint", self._step_checkpoint)
        self.housekeeper.add_chore("derived data", self._keeper.step)
        self.housekeeper.add_chore("retention", self.retention.step)

    def _check_timer_before(self) -> None:
        """Look for messages in Apache's timer before anything is changed; the log's tail may hold more."""
        directory = self.root / "consumequeue" / TIMER_TOPIC / "0"
        if self.files.exists(directory):
            known = ConsumeQueue(self.queues.cache, directory, TIMER_TOPIC, 0, self.options.consume_queue_segment_bytes)
            known.load_scanning(DELAY_ID_BASE)
            check_timer(self.files, self.root, self.options.timer_precision_ms, known.count)

    def start(self) -> None:
        """Start the threads of ``flusher`` and ``housekeeper``; ``flusher.on_failure`` is told if either dies."""
        if self.housekeeper.on_failure is None:
            self.housekeeper.on_failure = self.flusher.on_failure
        with contextlib.suppress(StoreError), self._append_lock:  # without room the first append reports it
            self.commit_log.make_first()
        self.flusher.start()
        self.housekeeper.start()

    # ------------------------------------------------------------------------------------------ durability

    def take_checkpoint(self) -> None:
        """Write a delivery checkpoint now, as the last act of those who deliver. Raises StoreError."""
        log = self.commit_log
        self.checkpoint.write(lambda: log.end, log.sync)
        self._old_numbers = False

    def _allocate(self, now_ms: int) -> int | None:
        self.commit_log.allocate_ahead()
        return now_ms + 250

    def _step_checkpoint(self, now_ms: int) -> int | None:
        log = self.commit_log
        self.checkpoint.step(now_ms, lambda: log.end, log.sync)
        return self.checkpoint.next_step_ms() or now_ms + 1000

    # ------------------------------------------------------------------------------------------ topics, retention

    def delete_topic(self, topic: str) -> bool:
        """Remove a topic's queues, durably; False if it had none. Its records stay in the log until they expire."""
        return self.delete_topics((topic,))

    def delete_topics(self, topics: Collection[str]) -> bool:
        """`delete_topic` for several, with one sync for all of them; False if none of them had any."""
        return self._keeper.delete_topics(topics)

    def delete_expired(self, now_ms: int) -> int:
        """Remove the segments that may be removed now; returns how many. The housekeeper does this by itself."""
        return self.retention.delete_expired(now_ms)

    # ------------------------------------------------------------------------------------------ figures, checks, end

    def runtime_info(self) -> dict[str, str]:
        """Figures for GET_BROKER_RUNTIME_INFO, under Apache's names where it has one."""
        log = self.commit_log
        return {
            "bootTimestamp": str(self._boot_ms),
            "commitLogMinOffset": str(log.begin),
            "commitLogMaxOffset": str(log.end),
            **self.retention.runtime_info(),
            "msgPutTotalTodayNow": str(self.put_count),
            "putMessageTimesTotal": str(self.put_count),
            "putMessageSizeTotal": str(self.put_bytes),
            "remainHowManyDataToFlush": readable_bytes(log.end - log.synced),
            "flushBehindBytes": str(log.end - log.synced),
            "derivedBehindBytes": str(log.end - max(self._keeper.position, log.begin)),
            "earliestMessageTimeStamp": str(self.earliest_store_time()),
            "queueCount": str(sum(map(len, self.queues.table.values()))),
            "deliveryCheckpoint": str(self.checkpoint.position),
        }

    def check(self) -> list[str]:
        """Walk log, queues and index, and say what is wrong; empty when nothing is. Takes as long as reading it all."""
        with self._append_lock:
            derived_end = self.commit_log.end
        wrong = self.check_reader(derived_end)
        begin, end, position = self.commit_log.begin, self.commit_log.end, self.checkpoint.position
        if position > end or (position < begin and self.checkpoint.sections):
            wrong.append(f"delivery checkpoint at {position}, outside the log [{begin}, {end})")
        return wrong

    def close(self) -> None:
        """Make everything durable, remove ``abort``, unlock. A second call does nothing.

        Raises the first StoreError on the way; ``abort`` then stays, and the next opening recovers. ``abort`` also
        stays while ``pops_open`` is set, and after a start that derived all queues anew but failed before its
        checkpoint: the next start must derive them again.
        """
        with self._append_lock:
            if self._closed:
                return
            self._closed = True
        self.flusher.stop()
        self.housekeeper.stop()
        try:
            self.flusher.sync_all()
            unfinished = self._old_numbers or self.pops_open
            if not unfinished:
                self._keeper.finish(clean=True)
            self.index.close()
            self.commit_log.close()
            if not unfinished:
                self.files.remove(self.root / "abort")
                self.files.sync_dir(self.root)
        finally:
            self.queues.close()
            self._release()
