"""`MessageStore`: one directory with its CommitLog, ConsumeQueues and key index, opened, written, read and closed.

How a put goes
    Under the append lock: read the clock (the never-early check and the store time are that one reading), number the
    messages in their queues, copy and patch them into one buffer, write it. Then add what derives from them to the
    memory of ConsumeQueues and index. No sync, no read, no allocation, no record building. Who waits for a sync takes
    a ticket afterwards (`MessageStore.commit_ticket`).

Threads
    ``flusher`` syncs (the CommitLog here, a plug-in's journal besides); ``housekeeper`` does everything that may take
    its time: ConsumeQueues and index to disk, checkpoints, segments ahead, retention. `start` starts both; a
    simulation does not, and steps them. Locks, outer first: ``checkpoint.lock`` (deliveries), the append lock.

Life
    `open` takes the directory's lock, refuses what it cannot read, recovers, and writes ``abort``; `close` makes
    everything durable and removes it. The directory is then one that an Apache broker opens too.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import accumulate
from pathlib import Path
from typing import cast

import numpy as np
from numpy.typing import NDArray

from remoting.layout import LONG, QUEUE_ENTRY_BYTES, SYS_FLAG_LOW_AT
from remoting.messages.message import store_ms_at
from store.derived.apache_index import ApacheIndex
from store.derived.consume_queue import ENTRY, ConsumeQueue, pack_entries
from store.derived.consume_queues import ConsumeQueues
from store.derived.dispatch import SCHEDULE_TOPIC, UNQUEUED_BIT, Derived, as_queued
from store.derived.index import KeyIndex
from store.disk.apache_files import TIMER_TOPIC, check_layout, check_timer
from store.disk.checkpoint import DeliveryCheckpoint
from store.disk.delay_id import DELAY_ID_BASE
from store.disk.errors import StoreError
from store.disk.files import Files
from store.disk.flusher import Flusher, Ticket
from store.disk.identity import store_identity
from store.keeper import Keeper
from store.levels.level_tables import LevelTables
from store.log.commit_log import CommitLog
from store.options import StoreOptions
from store.put.plugin_api import PutRecord, PutResult, PutRows, PutStatus
from store.put.put_block import PutBlock
from store.put.put_record import in_queue
from store.put.ready_rows import ReadyRows
from store.recovery import Recovery
from store.retention import Retention, levels_need, readable_bytes
from store.store_reader import PullResult, PullStatus, StoreReader

__all__ = ["MessageStore", "PullResult", "PullStatus"]

DIRTY_BYTES_MAX = 32 << 20
"""More CommitLog bytes than that are synced at once, whatever the interval."""

_OUR_ABORT = b"timewheel"
_pack_entry = ENTRY.pack
_OK = PutStatus.PUT_OK
_BLOCK_QUEUES_MAX = 32
"""A block that goes to more queues than that saves nothing."""


class MessageStore(StoreReader):
    """The store of one broker. Every method may be called from any thread, unless it says otherwise.

    ====================  ================================================================================
    ``store_id``          bytes (16), drawn when the directory was first opened
    ``store_host``        bytes (8 or 20), what records name as their host; the broker sets it
    ``options``           `StoreOptions`
    ``flusher``           `Flusher`, for tickets and for syncables of plug-ins
    ``housekeeper``       `Flusher`, for chores that may take their time
    ``checkpoint``        `DeliveryCheckpoint`, with the delivery lock
    ``retention``         `Retention`; its ``pins`` keep segments that somebody still needs
    ``on_arrival``        called after a put with the (topic, queue id) pairs that have something new
    ``topic_guard``       asked for each guarded record: PUT_OK, TOPIC_NOT_EXIST or NO_PERMISSION
    ``queue_for``         told (topic, queue id) of what was accepted earlier, says to which queue it goes today
    ``recovery``          `Recovery`, what opening found
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
        """Not for callers: see `open`."""
        self._append_lock = threading.Lock()
        mine = root / "timewheel"
        log_path = Path(options.commit_log_path) if options.commit_log_path else root / "commitlog"
        super().__init__(
            CommitLog(files, log_path, options.commit_log_segment_bytes, mine / "aside"),
            ConsumeQueues(files, root / "consumequeue", options.consume_queue_segment_bytes),
            KeyIndex(files, mine / "keyindex", self._append_lock),
            ApacheIndex(files, root / "index"),
        )
        self.files = files
        self.root = root
        self.options = options
        self.store_host = bytes(8)
        self.on_arrival: Callable[[list[tuple[str, int]]], None] | None = None
        self.topic_guard: Callable[[str, int], PutStatus] | None = None
        self.queue_for: Callable[[str, int], int] | None = None
        self.put_count = 0
        self.put_bytes = 0
        self._now_ms = now_ms
        self._warn = warn
        self._release = release
        self._closed = False
        self._woken_for = 0
        self._old_numbers = False  # all queues were derived anew, and the checkpoint speaks of their numbers before
        self._last = (-1, 0, 0)
        self._boot_ms = now_ms()
        self._clean = not files.exists(root / "abort")
        self._ours = not self._clean and _is_ours(files, root / "abort")
        self._never_ours = not files.exists(mine / "store")
        self.store_id = store_identity(files, mine / "store")
        self.checkpoint = DeliveryCheckpoint.open(files, mine / "checkpoint", self.store_id)
        self.flusher = Flusher(now_ms, warn)
        self.housekeeper = Flusher(now_ms, warn, pause_ms=0.5)
        self._keeper = Keeper(
            files, root, self.commit_log, self.queues, self.index, self._append_lock, lambda: self._last
        )
        self.retention = Retention(files, root, self.commit_log, self.queues, options, warn)
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
        """Open a directory, or begin one; recovers first if it was not closed.

        Raises `StoreLockedError` if another broker has it, `StoreFormatError` for what is of another version or
        configuration or cannot be taken over, `StoreCorruptError` for a log that ends before what was durable.
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
        self.files.replace_file(self.root / "abort", b"%b %d" % (_OUR_ABORT, self._boot_ms))
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
        with contextlib.suppress(StoreError), self._append_lock:  # no room: the first append will say so
            self.commit_log.make_first()
        self.flusher.start()
        self.housekeeper.start()

    # ------------------------------------------------------------------------------------------ putting

    def put_batch(
        self, records: Sequence[PutRecord | PutRows | ReadyRows], units: Sequence[int] | None = None
    ) -> list[PutResult]:
        """Append finished records in order; one result each, never an exception for what is refused.

        The clock is read once, inside the append lock. A record that is due later is not appended (NOT_DUE), nor is
        a guarded one whose topic is gone or may not be written. ``units`` cuts the records into groups (their
        lengths, in order): a group is appended as one write into one segment, or not at all; if one of its records is
        refused, all of them get its result. `PutRows` and `ReadyRows` are a group of their own, with one result:
        the position of their first record, and the number of their first message.
        """
        if not records:
            return []
        results: list[PutResult] = [_NOTHING] * len(records)
        arrived: dict[ConsumeQueue, None] = {}
        allowed: dict[tuple[str, int], int] = {}
        with self._append_lock:
            now_ms = self._now_ms()
            refusal = self._refusal(records)
            if refusal is not None:
                return [PutResult(refusal[0], remark=refusal[1]) for _ in records]
            start = 0
            for count in (len(records),) if units is None else units:
                first = records[start]
                if isinstance(first, PutRows):
                    results[start] = self._append_rows(first, now_ms, arrived)
                elif isinstance(first, ReadyRows):
                    results[start] = self._append_ready(first, now_ms, arrived)
                else:
                    group = cast(Sequence[PutRecord], records if units is None else records[start : start + count])
                    self._append(group, results, start, now_ms, arrived, allowed, units is not None and count > 1)
                start += count
            end = self.commit_log.end
            self.index.covers(end)
        self._appended(end, arrived)
        return results

    def _appended(self, end: int, arrived: Iterable[ConsumeQueue]) -> None:
        """Tell the flusher and the consumers. The append lock is not held any more."""
        if end - self.commit_log.synced > DIRTY_BYTES_MAX and end - self._woken_for > DIRTY_BYTES_MAX // 4:
            self._woken_for = end
            self.flusher.wake()
        if arrived and self.on_arrival is not None:
            self.on_arrival([(queue.topic, queue.queue_id) for queue in arrived])

    def put_block(self, block: PutBlock, due_ms: int) -> PutResult | None:
        """Append the records of a block as one write, as deliveries of which the last is due at ``due_ms``.

        The result is that of the first record; None if one of them needs a look (not due, too large, its topic gone):
        nothing was appended then, and they are to be put by `put_batch`.
        """
        with self._append_lock:
            now_ms = self._now_ms()
            if self._closed or due_ms > now_ms or not self._takes(block):
                return None
            appended = self._append_columns(block, now_ms)
            if isinstance(appended, PutResult):
                return appended
            queues, numbers, offsets = appended
            self.index.add_columns(block.topics, block.keys, block.delay_ids, offsets, now_ms)
            end = self.commit_log.end
            self.index.covers(end)
        self._appended(end, queues)
        return PutResult(_OK, int(offsets[0]), int(numbers[0]), now_ms)

    def _takes(self, block: PutBlock) -> bool:
        """Whether nothing about any record of a block stands in its way."""
        if len(block.queues) > _BLOCK_QUEUES_MAX or block.data_bytes > self.commit_log.record_bytes_max:
            return False
        if int(block.sizes.max()) > self.commit_log.record_bytes_max or SCHEDULE_TOPIC in block.topics:
            return False
        guard, queue_for = self.topic_guard, self.queue_for
        for topic, queue_id, _ in block.queues:
            if guard is not None and guard(topic, queue_id) is not _OK:
                return False
            if queue_for is not None and queue_for(topic, queue_id) != queue_id:
                return False
        return True

    @property
    def record_bytes_max(self) -> int:
        """The largest record that is accepted today: what is to be put later is checked against it now.

        A put takes larger ones, up to what a segment holds: they were accepted when more was allowed.
        """
        return min(self.options.max_record_bytes, self.commit_log.record_bytes_max)

    @property
    def put_bytes_max(self) -> int:
        """The largest record that a put takes: what a segment holds."""
        return self.commit_log.record_bytes_max

    def _refusal(self, records: Sequence[PutRecord | PutRows | ReadyRows]) -> tuple[PutStatus, str] | None:
        if self._closed:
            return PutStatus.SERVICE_NOT_AVAILABLE, "the store is closed"
        if self.retention.disk_status is not _OK and not all(record.guarded or record.accepted for record in records):
            # What was accepted before goes on being delivered: room for it was held back.
            return self.retention.disk_status, self.retention.disk_remark
        return None

    def _append(
        self,
        records: Sequence[PutRecord],
        results: list[PutResult],
        start: int,
        now_ms: int,
        arrived: dict[ConsumeQueue, None],
        allowed: dict[tuple[str, int], int],
        whole: bool,
    ) -> None:
        """Number, write and derive; ``results`` are filled from ``start`` on. Caller holds the append lock.

        ``allowed`` are the queues of which the guard has said yes in this put, and to which one a delivery for each
        goes today: both are asked once for each.
        """
        table = self.queues.table
        limit = self.commit_log.record_bytes_max
        taken: list[PutRecord] = []
        raw: list[bytes | bytearray] = []
        numbers: list[int] = []
        queues: list[ConsumeQueue] = []
        places: list[int] = []
        flag_at, unqueued = SYS_FLAG_LOW_AT, UNQUEUED_BIT
        if whole:
            for record in records:
                refused = self._why_not(record, now_ms, limit, allowed)
                if refused is not None:
                    results[start : start + len(records)] = [refused] * len(records)
                    return
        for place, record in enumerate(records, start):
            data = record.record
            if record.due_ms > now_ms or record.guarded or record.accepted or len(data) > limit:
                refused = self._why_not(record, now_ms, limit, allowed)
                if refused is not None:
                    results[place] = refused
                    continue
                queue_id = self._queue_today(record, allowed)
                if queue_id != record.queue_id:
                    record = in_queue(record, queue_id)
                    data = record.record
            if data[flag_at] & unqueued:
                data = as_queued(data)
            try:
                queue = table[record.topic][record.queue_id]
            except KeyError:
                queue = self.queues.get(record.topic, record.queue_id)
            number = queue.next
            queue.next = number + 1
            taken.append(record)
            raw.append(data)
            numbers.append(number)
            queues.append(queue)
            places.append(place)
        if not taken:
            return
        offsets, error = self.commit_log.append(raw, numbers, now_ms, whole)
        done = len(offsets)
        if error is not None:
            for queue in queues[done:]:
                queue.next -= 1
            for place in places[done:]:
                results[place] = PutResult(PutStatus.SERVICE_NOT_AVAILABLE, remark=str(error))
        add_keys = self.index.add
        for record, offset, number, queue, place in zip(taken, offsets, numbers, queues, places, strict=False):
            tags = record.tags_code
            keys = record.keys
            if record.topic == SCHEDULE_TOPIC:
                tags = self._schedule_code(record, now_ms)
            queue.buffer += _pack_entry(offset, len(record.record), tags)
            queue.count = number + 1
            if not queue.dirty:
                queue.dirty = True
                self.queues.dirty.append(queue)
            if keys:
                add_keys(record.topic, keys, offset, now_ms)
            results[place] = PutResult(_OK, offset, number, now_ms)
            arrived[queue] = None
        if done:
            size = len(raw[done - 1])
            self._last = (offsets[-1], size, now_ms)
            self.put_count += done
            self.put_bytes += offsets[-1] + size - offsets[0]

    def _append_rows(self, put: PutRows, now_ms: int, arrived: dict[ConsumeQueue, None]) -> PutResult:
        """Number, write and derive a group that was made together. Caller holds the append lock."""
        rows, limit = put.rows, self.commit_log.record_bytes_max
        largest = max(rows.sizes)
        if largest > limit:
            remark = f"record of {largest} bytes, at most {limit} are possible"
            return PutResult(PutStatus.MESSAGE_ILLEGAL, remark=remark)
        queue = self.queues.get(put.topic, put.queue_id)
        number = queue.next
        offset, error = self.commit_log.append_whole(
            sum(rows.sizes), lambda position: rows.joined(number, position, now_ms)
        )
        if error is not None:
            return PutResult(PutStatus.SERVICE_NOT_AVAILABLE, remark=str(error))
        sizes = rows.sizes
        queue.add_rows(offset, sizes, put.tags_codes)
        self.queues.mark_dirty(queue)
        if put.keys:
            offsets: Iterable[int] = accumulate(sizes, initial=offset)
            if put.owners is not None:
                places = list(offsets)
                offsets = [places[row] for row in put.owners]
            self.index.add_rows(put.topic, put.keys, offsets, now_ms)
        arrived[queue] = None
        end = self.commit_log.end
        self._last = (end - sizes[-1], sizes[-1], now_ms)
        self.put_count += len(sizes)
        self.put_bytes += end - offset
        return PutResult(_OK, offset, number, now_ms)

    def _append_ready(self, put: ReadyRows, now_ms: int, arrived: dict[ConsumeQueue, None]) -> PutResult:
        """Number, write and derive a group that was gathered in slices. Caller holds the append lock."""
        if put.due_ms > now_ms:
            return PutResult(PutStatus.NOT_DUE, store_ms=now_ms)
        largest = int(put.sizes.max())
        if largest > self.commit_log.record_bytes_max:
            remark = f"record of {largest} bytes, at most {self.commit_log.record_bytes_max} are possible"
            return PutResult(PutStatus.MESSAGE_ILLEGAL, remark=remark)
        at = 0
        for (topic, _, count), sample in zip(put.queues, put.samples, strict=True):
            if topic == SCHEDULE_TOPIC and sample is not None:  # a queue of a level: all are due together
                put.tags_codes[at : at + count] = self._schedule_code(sample, now_ms)
            at += count
        appended = self._append_columns(put, now_ms)
        if isinstance(appended, PutResult):
            return appended
        queues, numbers, offsets = appended
        arrived.update(dict.fromkeys(queues))
        self.index.add_hashes(put.hashes, offsets[put.owners], now_ms)
        return PutResult(_OK, int(offsets[0]), int(numbers[put.rows.argmin()]), now_ms)

    def _append_columns(
        self, put: PutBlock | ReadyRows, now_ms: int
    ) -> tuple[list[ConsumeQueue], NDArray[np.int64], NDArray[np.int64]] | PutResult:
        """Number, write and queue records that stand queue by queue; what the disk refuses is the result.

        Answers their queues, and of each record its number and its position. The key index is the caller's. Caller
        holds the append lock.
        """
        queues = [self.queues.get(topic, queue_id) for topic, queue_id, _ in put.queues]
        counts = [count for _, _, count in put.queues]
        begins = list(accumulate(counts, initial=0))
        ahead = [queue.next - begin for queue, begin in zip(queues, begins, strict=False)]
        numbers = np.arange(len(put)) + np.repeat(ahead, counts)
        offset, error = self.commit_log.append_whole(
            put.data_bytes, lambda position: put.joined(numbers, position, now_ms)
        )
        if error is not None:
            return PutResult(PutStatus.SERVICE_NOT_AVAILABLE, remark=str(error))
        offsets = put.places(offset)
        entries = pack_entries(offsets, put.sizes, put.tags_codes)
        for queue, begin, end in zip(queues, begins, begins[1:], strict=False):
            queue.add_packed(entries[begin * QUEUE_ENTRY_BYTES : end * QUEUE_ENTRY_BYTES])
            self.queues.mark_dirty(queue)
        self._last = (int(offsets[-1]), int(put.sizes[-1]), now_ms)
        self.put_count += len(put)
        self.put_bytes += put.data_bytes
        return queues, numbers, offsets

    def _why_not(
        self, record: PutRecord, now_ms: int, limit: int, allowed: dict[tuple[str, int], int]
    ) -> PutResult | None:
        """Why a record may not be appended now, if there is a reason."""
        if record.due_ms > now_ms:
            return PutResult(PutStatus.NOT_DUE, store_ms=now_ms)
        queue = (record.topic, record.queue_id)
        if record.guarded and queue not in allowed:
            if self.topic_guard is not None:
                status = self.topic_guard(record.topic, record.queue_id)
                if status is not _OK:
                    return PutResult(status, remark=f"topic {record.topic}: {status.name}")
            allowed[queue] = record.queue_id if self.queue_for is None else self.queue_for(*queue)
        size = len(record.record)
        if size > limit:
            remark = f"record of {size} bytes, at most {limit} are possible"
            return PutResult(PutStatus.MESSAGE_ILLEGAL, remark=remark)
        return None

    def _queue_today(self, record: PutRecord, allowed: dict[tuple[str, int], int]) -> int:
        """The queue that a record goes to: for what was accepted earlier, one that its topic has today."""
        if record.guarded:
            return allowed[record.topic, record.queue_id]
        if record.accepted and self.queue_for is not None:
            return self.queue_for(record.topic, record.queue_id)
        return record.queue_id

    def _schedule_code(self, record: PutRecord, now_ms: int) -> int:
        """The deliver time of a level message, which only the append knows."""
        patched = bytearray(record.record)
        LONG.pack_into(patched, store_ms_at(patched), now_ms)
        return Derived(bytes(patched), self.options.delay_levels_ms).tags_code

    # ------------------------------------------------------------------------------------------ durability

    def commit_ticket(self) -> Ticket:
        """A ticket for everything that has been appended so far."""
        log = self.commit_log
        return Ticket((log, log.end))

    def settle(self) -> None:
        """See to it that what was refused stays refused, also after a crash. Raises StoreError: ask again."""
        if self.commit_log.is_torn:
            with self._append_lock:
                self.commit_log.settle()

    def writable(self, _now_ms: int = 0) -> PutStatus:
        """Whether puts are accepted: SERVICE_NOT_AVAILABLE when closed, after a failed sync, or on a full disk."""
        if self._closed or self.commit_log.failed:
            return PutStatus.SERVICE_NOT_AVAILABLE
        return self.retention.disk_status

    def disk_refusal(self) -> str:
        """Why nothing new is accepted, if the disk is the reason; else an empty text. Any thread, no lock."""
        return self.retention.disk_remark

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
        """The same for several, with one sync for all of them; False if none of them had any."""
        return self._keeper.delete_topics(topics)

    def delete_expired(self, now_ms: int) -> int:
        """Remove the segments that may go now; answers how many. The housekeeper does this by itself."""
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

        Raises the first StoreError on the way; ``abort`` then stays, and the next opening recovers. So it does after a
        start that derived all queues anew and failed before it took a checkpoint: the next one has to derive them, too.
        """
        with self._append_lock:
            if self._closed:
                return
            self._closed = True
        self.flusher.stop()
        self.housekeeper.stop()
        try:
            self.flusher.sync_all()
            if not self._old_numbers:
                self._keeper.finish(clean=True)
            self.index.close()
            self.commit_log.close()
            if not self._old_numbers:
                self.files.remove(self.root / "abort")
                self.files.sync_dir(self.root)
        finally:
            self.queues.close()
            self._release()


def _is_ours(files: Files, abort: Path) -> bool:
    """Whether a broker of ours was the last who opened the store: Apache's writes its process id, or nothing."""
    try:
        return files.read_file(abort).startswith(_OUR_ABORT)
    except StoreError:
        return False


_NOTHING = PutResult(PutStatus.UNKNOWN_ERROR)
