"""Opening a store: find the end of the log, and make ConsumeQueues and key index agree with it again.

Where reading begins, best first:

1. ``timewheel/progress`` says how far everything derived is durable, and the log fits it: from there.
2. An Apache broker wrote the store. Stopped cleanly: from the end of the last record that any ConsumeQueue knows.
   Killed: from the newest segment whose first record is older than Apache's checkpoint, three seconds less.
3. Nothing to go by: from the beginning of the log.

Queue entries of records behind that place are dropped and derived again. If a record then has no predecessor in its
queue, entries were lost: all queues are removed and derived from the beginning.

The end of the log must not lie before a position that was durable (that of the delivery checkpoint, or of 1.). That
would be a loss, not a torn tail, and nothing is changed then.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from store.derived.consume_queue import ConsumeQueue
from store.derived.consume_queues import ConsumeQueues, Placed
from store.derived.dispatch import Derived
from store.derived.index import KeyIndex
from store.derived.queue_entries import PRE_BLANK_SIZE
from store.disk.apache_files import ApacheCheckpoint
from store.disk.files import Files
from store.disk.segments import segment_name
from store.log.commit_log import CommitLog
from store.log.log_scan import valid_size
from store.progress import Progress

__all__ = ["Recovery"]

REINDEX_BYTES_MAX = 256 << 20
"""The key index is derived again from at most this much of the log before the place where reading begins."""
VERIFY_BYTES_MAX = 64 << 20
"""Most bytes of ConsumeQueues that a start compares with their checksums, the newest files first."""
_FOREVER = 1 << 62
_FLUSH_EVERY = 100_000
_KEEP_MAX = 100_000


class Recovery:
    """One opening of a store by `run`; the attributes have what it found.

    ==============  ==========================================================================
    ``start``       int, CommitLog offset where reading began
    ``records``     int, records read from there
    ``rebuilt``     bool, all queues were derived from the beginning of the log
    ``clashes``     int, records whose number in their queue another record has
    ``last``        (offset, size, store ms) of the last record of the log, or (-1, 0, 0)
    ==============  ==========================================================================
    """

    def __init__(
        self,
        files: Files,
        root: Path,
        log: CommitLog,
        queues: ConsumeQueues,
        index: KeyIndex,
        levels_at: Callable[[int], tuple[int, ...]],
        *,
        clean: bool,
        ours: bool = False,
        warn: Callable[[str], None],
    ) -> None:
        """``clean``: there was no abort file. ``ours``: there was one, written by a Timewheel broker.

        ``levels_at`` returns the table of levels that was valid at a CommitLog offset.
        """
        self.start = 0
        self.records = 0
        self.rebuilt = False
        self.clashes = 0
        self.last = (-1, 0, 0)
        self._files = files
        self._progress_path = root / "timewheel" / "progress"  # the same that `run` is given
        self._root = root
        self._log = log
        self._queues = queues
        self._index = index
        self._levels_at = levels_at
        self._clean = clean
        self._ours = ours
        self._warn = warn
        self._kept: list[tuple[str, tuple[str, ...], int, int, int]] | None = []  # keys of the tail, for the index

    def run(self, progress_path: Path, at_least: int) -> None:
        """Recover. Raises `StoreCorruptError` if the log ends before ``at_least``, a position that was durable."""
        progress = Progress.read(self._files, progress_path)
        if progress is not None and progress.fits(self._log):
            self.start = max(progress.position, self._log.begin)
            self.last = (progress.last_offset, progress.last_size, progress.last_ms)
            whole = self._load_known(progress)
            at_least = max(at_least, progress.position)
        else:
            whole = self._load_found()
        if not whole:
            self._forget_all()
        if not self._read_log(at_least):
            self._warn(f"{self._root}: ConsumeQueue entries are missing: all are derived from the log again")
            self._forget_all()
            self._read_again()
        self._fill_index()
        if self._log.cut_aside is not None:
            end, kept = self._log.end, self._log.cut_aside
            self._warn(f"the bytes after the log's end, {end}, were not known to be durable: they are kept as {kept}")
        if self.clashes:
            self._warn(f"{self.clashes} records have the queue offset of another one: they cannot be reached")

    # ------------------------------------------------------------------------------------------ where to begin

    def _load_known(self, progress: Progress) -> bool:
        """Take the queues' lengths from the progress file; False if some of their files are missing.

        A queue that is not in the file is derived again from its first entry. A power cut may have torn the creation of
        its file on disk, so that is removed. If ConsumeQueue files had another size then, `load` refuses the store.
        """
        found = {(queue.topic, queue.queue_id): queue for queue in self._queues.on_disk()}
        known: list[ConsumeQueue] = []
        same_size = progress.file_bytes == self._queues.file_bytes
        expired = progress.begin != self._log.begin
        if same_size:
            for key in [key for key in found if not progress.counts.get(key)]:
                found.pop(key).remove()
            # Nothing is known from the log's begin on: everything is derived, perhaps again after an interrupted start.
            self.rebuilt = not progress.counts and progress.position == self._log.begin
        for key, count in progress.counts.items():
            queue = found.pop(key, None)
            if queue is None:
                if count:
                    self._warn(f"ConsumeQueue {key[0]}/{key[1]} is missing: all are derived from the log again")
                    return False
            elif not queue.load(count, progress.sums.get(key, ()), expired, same_size=same_size):
                self._warn(f"{queue.directory}: files are missing or cut off: all are derived from the log again")
                return False
            else:
                known.append(queue)
        for queue in found.values():
            queue.load(0)  # made after the last progress
        return self._verify(known)

    def _verify(self, queues: list[ConsumeQueue]) -> bool:
        """Compare the newest files of the queues with their checksums; False if one of them has changed."""
        left = VERIFY_BYTES_MAX
        newest = sorted(
            ((age, queue, start) for queue in queues for age, (start, _) in enumerate(reversed(queue.sums()))),
            key=lambda entry: entry[0],
        )
        for _, queue, start in newest:
            left -= queue.file_bytes
            if left < 0:
                break
            if not queue.verify(start):
                path = queue.directory / segment_name(start)
                self._warn(f"{path} is not what was written (checksum): all are derived from the log again")
                return False
        return True

    def _load_found(self) -> bool:
        """Find the queues' lengths from their files, as Apache does; False: derive all from the beginning."""
        queues = list(self._queues.on_disk())
        self.start = self._log.begin
        if not queues:
            return False
        limit = _FOREVER
        if not self._clean:
            limit = self.start = self._apache_start()
        for queue in queues:
            queue.load_scanning(limit)
        if self._clean:
            known, size = max(self._last_record_of(queue) for queue in queues)
            if known > self._log.begin and self._log.raw_record(known - size, size) is None:
                return False
            self.start = max(known, self._log.begin)
        return True

    @staticmethod
    def _last_record_of(queue: ConsumeQueue) -> tuple[int, int]:
        """Return the end of a queue's last record in the CommitLog, and its size; (0, 0) without one."""
        entry = queue.entry(queue.count - 1)
        return (0, 0) if entry is None or entry[1] == PRE_BLANK_SIZE else (entry[0] + entry[1], entry[1])

    def _apache_start(self) -> int:
        limit_ms = ApacheCheckpoint.read(self._files, self._root / "checkpoint").scan_from_ms()
        for segment in reversed(self._log.segments()):
            first_ms = self._log.first_store_ms(segment)
            if first_ms is not None and first_ms <= limit_ms:
                return segment.start
        return self._log.begin

    def _forget_all(self) -> None:
        """Remove every queue's files and begin at the beginning."""
        self.rebuilt = True
        # The progress file first: after a crash from here on no start may trust the rest of these files.
        begin, file_bytes = self._log.begin, self._queues.file_bytes
        Progress(begin, {}, begin=begin, file_bytes=file_bytes).write(self._files, self._progress_path)
        for queue in self._queues:
            queue.remove()
            queue.start_at(0)
        self._queues.dirty.clear()
        for queue in self._queues:
            queue.dirty = False
        self.start = self._log.begin

    # ------------------------------------------------------------------------------------------ reading

    def _read_log(self, at_least: int) -> bool:
        """Find the end of the log, deriving on the way; False if a queue has a gap (the end is found all the same)."""
        whole = True
        reading = self._log.recover(self.start, at_least, self._clean, self._ours)
        first = next(reading, None)
        if not self.rebuilt and not (self._clean and first is None):
            for queue in self._queues:
                queue.clear_behind()
        if first is None:
            return True
        whole = self._take(*first)
        for offset, record in reading:
            whole = self._take(offset, record) and whole
        return whole

    def _read_again(self) -> None:
        """Derive everything from the beginning of a log whose end is known."""
        self.records = 0
        self.clashes = 0
        self._kept = None
        for offset, record in self._log.scan(self._log.begin):
            self._take(offset, record)

    def _take(self, offset: int, record: bytes) -> bool:
        derived = Derived(record, self._levels_at(offset))
        size = len(record)
        self.records += 1
        self.last = (offset, size, derived.store_ms)
        if self._kept is not None:
            self._kept.append((derived.topic, derived.keys, offset, size, derived.store_ms))
            if len(self._kept) > _KEEP_MAX:
                self._kept = None
        if self.records % _FLUSH_EVERY == 0:
            self._flush_queues()
        if not derived.queued:
            return True
        placed = self._queues.place(
            derived.topic, derived.queue_id, derived.number, offset, size, derived.tags_code, self.rebuilt
        )
        if placed == Placed.CLASH:
            self.clashes += 1
        return placed != Placed.GAP

    def _flush_queues(self) -> None:
        """Keep memory flat while a long log is read."""
        for queue, count in self._queues.take_dirty():
            queue.flush(count)
            queue.settle()

    def _fill_index(self) -> None:
        """Add the keys that the key index does not have yet."""
        end = self._log.end
        known = max(self._index.open(end), self._log.begin)
        if known < end and self._log.read_record(known) is None and not self._is_blank(known):
            self._warn(f"{self._root}: the key index is of another log: it is built anew")
            self._index.reset()
            known = self._log.begin
        if self._kept is not None and known >= self.start:
            for topic, keys, offset, size, store_ms in self._kept:
                if offset >= known:
                    self._add_keys(topic, keys, offset, size, store_ms)
        else:
            if self.start - known > REINDEX_BYTES_MAX:
                starts = [s.start for s in self._log.segments() if s.start >= self.start - REINDEX_BYTES_MAX]
                known = min(starts, default=self.start)
                self._index.skip_to(known)
                self._warn(f"{self._root}: messages before CommitLog offset {known} are not in the key index")
            for offset, record in self._log.scan(known):
                derived = Derived(record, self._levels_at(offset))
                self._add_keys(derived.topic, derived.keys, offset, len(record), derived.store_ms)
        self._index.covers(end)
        self._kept = None

    def _is_blank(self, offset: int) -> bool:
        segment = self._log.segment_of(offset)
        return segment is not None and valid_size(segment.file.pread(8, offset - segment.start), 0, offset) < 0

    def _add_keys(self, topic: str, keys: tuple[str, ...], offset: int, size: int, store_ms: int) -> None:
        if keys:
            self._index.add(topic, keys, offset, store_ms)
            self._index.covers(offset + size)
        while self._index.step():
            pass
