"""One queue's index into the CommitLog: 20 bytes a message, byte for byte as Apache RocketMQ keeps it.

Entry N is at byte 20 N of an endless range that is cut into files (see `store.disk.segments`). It contains the record's
position, its size, and its tags code: the Java hash of the tag, sign-extended; for a level message its deliver time in
ms.

Where an entry is
    The appender only adds 20 bytes to a buffer in memory. The flusher writes the buffer to the files from time to time,
    syncs them, and then drops durable entries from memory::

        files  [ … ………… synced )        memory  [ synced ……………… count )

    So readers need no lock. A failed sync loses nothing: the bytes are still in memory and are written again. A crash
    loses only entries that recovery derives again from the CommitLog's tail (see `store.recovery`).

A queue that does not begin at 0
    When the log's older part is gone before a queue is rebuilt, its first entry is some N > 0. The file that holds N
    is filled with *pre-blanks* in front of it (offset 0, size 0x7FFFFFFF), as Apache does.

Damage
    An entry carries no checksum, and a wrong one hides messages or delivers a level message before its time. So each
    file has a CRC-32 over its entries, kept in memory and in ``timewheel/progress``. A restart compares them (`verify`)
    and derives damaged files again.

Never more than one thread may be in `flush`, `load`, `delete_before`; `add` and `settle` are called under the append
lock, as is `ConsumeQueues.append`; everything else from any thread.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np

from remoting.layout import QUEUE_ENTRY_BYTES
from store.derived.entry_reader import CHUNK_ENTRIES, EntryReader
from store.derived.queue_entries import ENTRY, ENTRY_COLUMNS, PRE_BLANK, PRE_BLANK_SIZE
from store.derived.queue_sums import QueueSums, has_files
from store.disk.file_cache import FileCache
from store.disk.segments import Segment, list_segments, segment_name

__all__ = ["ConsumeQueue"]


class ConsumeQueue(EntryReader):
    """The entries of one queue of one topic.

    ==============  ===================================================================================
    ``next``        int, the number that the next message gets (append lock)
    ``count``       int, the number behind the last entry that can be read: the queue's max offset
    ``buffer``      bytearray, where the appender adds entries (append lock)
    ``dirty``       bool, the appender has told the flusher about this queue (append lock)
    ``grown``       bool, the appender has entries of which no consumer was told yet (append lock)
    ``synced``      int, entries below are durable
    ==============  ===================================================================================
    """

    __slots__ = ("_making", "_sums", "buffer", "dirty", "grown", "next", "queue_id", "synced", "topic")

    def __init__(self, cache: FileCache, directory: Path, topic: str, queue_id: int, file_bytes: int) -> None:
        super().__init__(cache, directory, file_bytes)
        self.topic = topic
        self.queue_id = queue_id
        self.next = 0
        self.synced = 0
        self.dirty = False
        self.grown = False
        self.buffer = self._memory[1]
        self._sums = QueueSums(file_bytes)
        self._making: Path | None = None  # the file whose creation has begun, or has failed on the way

    # ------------------------------------------------------------------------------------------ appending

    def start_at(self, number: int) -> None:
        """Start an empty queue at a number above 0, because the entries before it are gone."""
        self.next = self.count = self.synced = self._min = number
        self.buffer = bytearray()
        self._memory = (number, self.buffer)
        self._min_begin = -1
        self._sums.start_at(number)

    def add(self, offset: int, size: int, tags_code: int) -> None:
        """Add the next entry, of a record that recovery has found (under the append lock)."""
        self.buffer += ENTRY.pack(offset, size, tags_code)
        self.count += 1
        self.next = self.count

    # ------------------------------------------------------------------------------------------ flushing

    def flush(self, upto: int) -> None:
        """Write the entries below ``upto`` to their files and sync them; `settle` then drops them from memory.

        Raises StoreError: nothing is lost then, the next flush writes the same entries again.
        """
        first, buffer = self._memory
        if upto <= first:
            return
        data = bytes(buffer[: (upto - first) * QUEUE_ENTRY_BYTES])
        position = first * QUEUE_ENTRY_BYTES
        end = position + len(data)
        while position < end:
            start = position - position % self.file_bytes
            n = min(end, start + self.file_bytes) - position
            path = self.directory / segment_name(start)
            self._make(path, position - start)
            file = self._cache.get(path, self.file_bytes)
            at = position - first * QUEUE_ENTRY_BYTES
            file.pwrite(data[at : at + n], position - start)
            file.sync()
            position += n
        self._sums.add(data, first, upto)
        self.synced = max(self.synced, upto)

    def sums(self) -> tuple[tuple[int, int], ...]:
        """(Start, CRC-32 of the flushed entries) of each file, to be passed to `load`."""
        return self._sums.all()

    def verify(self, start: int) -> bool:
        """Compare a file's entries with their checksum; True if there is none. Reads the file. Raises StoreError."""
        size = self._sums.summed_bytes(start)
        if size is None:
            return True
        file = self._cache.get(self.directory / segment_name(start), self.file_bytes)
        return self._sums.agree(start, file.pread(size, 0))

    def settle(self) -> None:
        """Drop durable entries from memory (append lock)."""
        first, buffer = self._memory
        if self.synced > first:
            # A new buffer, not a shorter one: a reader without a lock may have taken the old one with its first number.
            self.buffer = buffer[(self.synced - first) * QUEUE_ENTRY_BYTES :]
            self._memory = (self.synced, self.buffer)

    def _make(self, path: Path, blanks_to: int) -> None:
        files = self._cache.files
        if path != self._making and files.exists(path):
            self._unmade = False
            return
        if self._unmade:
            files.makedirs(self.directory)
        self._making = path  # if a call fails from here on, the next flush repeats all of them
        file = self._cache.get(path, self.file_bytes, create=True)
        if blanks_to:
            file.pwrite(PRE_BLANK * (blanks_to // QUEUE_ENTRY_BYTES), 0)
        file.sync()
        files.sync_dir(self.directory)
        self._making = None
        self._unmade = False

    # ------------------------------------------------------------------------------------------ life

    def load(
        self, count: int, sums: tuple[tuple[int, int], ...] = (), expired: bool = True, *, same_size: bool = False
    ) -> bool:
        """Load the files, of which ``count`` entries are known to be durable; False if files are missing or damaged.

        With ``same_size`` the files are known to have been written with today's file size. A file of another size is
        then removed if it has none of the ``count`` entries, because a crash cut off its creation; otherwise it is
        damaged. ``sums`` and ``expired`` are used only with ``same_size``; without it they are ignored. ``sums`` are
        the checksums that `sums` returned. ``expired`` allows the first files to be missing, because the log's
        beginning has moved.
        """
        if not same_size:
            sums = ()
        elif not has_files(self._cache, self.directory, self.file_bytes, count, sums, expired):
            return False
        segments = self.segments()
        self._unmade = not segments
        if count and segments:
            last = (count - 1) * QUEUE_ENTRY_BYTES
            starts = {segment.start for segment in segments}
            whole = all(s in starts for s in range(segments[0].start, last + 1, self.file_bytes))
            if not whole or segments[0].start > last:
                return False
        elif count:
            return False
        self.start_at(count)
        if sums:
            self._sums.take(sums, segments[0].start)
        else:
            self._sum_last()
        return True

    def _sum_last(self) -> None:
        """Compute the checksum of the file of the next entry from its content."""
        position = self.count * QUEUE_ENTRY_BYTES
        start = position - position % self.file_bytes
        if start < position and not self._unmade:
            file = self._cache.get(self.directory / segment_name(start), self.file_bytes)
            self._sums.set(start, file.pread(position - start, 0))

    def segments(self) -> list[Segment]:
        """List the files; raises as `list_segments` does."""
        return list_segments(
            self._cache.files, self.directory, self.file_bytes, "ConsumeQueue", "mappedFileSizeConsumeQueue"
        )

    def load_scanning(self, log_limit: int) -> None:
        """Load files without a known number of entries: keep the entries of records below ``log_limit``.

        As Apache does, it checks from the third file from the end up to the first invalid entry.
        """
        segments = self.segments()
        self._unmade = not segments
        gap = next((i for i in range(1, len(segments)) if segments[i].start != segments[i - 1].end), len(segments))
        segments = segments[:gap]
        at = max(0, len(segments) - 3)
        while True:
            count = segments[at].start // QUEUE_ENTRY_BYTES if segments else 0
            for segment in segments[at:]:
                found = self._valid_in(segment.start, log_limit)
                count += found
                if found < self.file_bytes // QUEUE_ENTRY_BYTES:
                    break
            if at == 0 or count > segments[at].start // QUEUE_ENTRY_BYTES:
                break
            at -= 1
        self.start_at(count)
        self._sum_last()

    def _valid_in(self, start: int, log_limit: int) -> int:
        """Count the valid entries at the beginning of a file."""
        file = self._cache.get(self.directory / segment_name(start), self.file_bytes)
        total = self.file_bytes // QUEUE_ENTRY_BYTES
        done = 0
        while done < total:
            want = min(CHUNK_ENTRIES, total - done)
            data = file.pread(want * QUEUE_ENTRY_BYTES, done * QUEUE_ENTRY_BYTES)
            entries = np.frombuffer(data[: len(data) - len(data) % QUEUE_ENTRY_BYTES], ENTRY_COLUMNS)
            offset, size = entries["position"], entries["size"]
            # Sizes are widened first: a position in the log does not fit their 32 bits.
            bad = (offset < 0) | (size <= 0) | ((offset > log_limit - size.astype(np.int64)) & (size != PRE_BLANK_SIZE))
            if bad.any():
                return done + int(bad.argmax())
            done += len(entries)
            if len(entries) < want:
                break
        return done

    def clear_behind(self) -> None:
        """Overwrite everything behind the last entry with zeros, on disk too: old entries there must never count
        again."""
        if self._unmade:
            return
        files = self._cache.files
        end = self._memory[0] * QUEUE_ENTRY_BYTES
        for name in files.listdir(self.directory):
            start = int(name)
            path = self.directory / name
            if start > end or (start == end and start > 0):
                self._cache.remove(path)
            elif start + self.file_bytes > end:
                file = self._cache.get(path, self.file_bytes)
                size = start + self.file_bytes - end
                file.clear(end - start, size, size)
                file.sync()
        files.sync_dir(self.directory)

    def log_end(self) -> int:
        """CommitLog offset behind the record of the last entry; 0 if there is none, or it is a pre-blank."""
        last = self.entry(self.count - 1)
        return 0 if last is None or last[1] == PRE_BLANK_SIZE else last[0] + last[1]

    def delete_before(self, log_begin: int) -> int:
        """Remove files whose records are all gone from the log, except the last file. Returns the number of removed
        files."""
        starts = self.file_starts()
        gone = 0
        for start, following in pairwise(starts):
            last = self.entry(following // QUEUE_ENTRY_BYTES - 1)
            if last is None or following > self._memory[0] * QUEUE_ENTRY_BYTES:
                break
            if last[0] >= log_begin and last[1] != PRE_BLANK_SIZE:
                break
            path = self.directory / segment_name(start)
            self._cache.remove(path)
            self._sums.forget(start)
            gone += 1
        if gone:
            self._cache.files.sync_dir(self.directory)
        return gone

    def remove(self) -> None:
        """Remove the queue's files and its directory."""
        files = self._cache.files
        for name in files.listdir(self.directory):
            self._cache.remove(self.directory / name)
        if files.exists(self.directory):
            files.remove(self.directory)
        self._unmade = True

    def check(self, log_begin: int, log_end: int) -> list[str]:
        """Return a sentence for each invalid entry: wrong order, wrong size, position outside the log."""
        where = self.directory
        wrong: list[str] = []
        if not self._memory[0] <= self.count or self.synced > self.count:
            wrong.append(f"{where}: memory from {self._memory[0]}, synced {self.synced}, count {self.count}")
        wrong += [
            f"{where / segment_name(start)} at 0: the entries up to {self._sums.summed} "
            "are not what was written (checksum)"
            for start, _ in self.sums()
            if not self.verify(start)
        ]
        number = self.min_offset(log_begin)
        before = log_begin
        while number < self.count:
            data = self.read(number, CHUNK_ENTRIES)
            if not data:
                wrong.append(f"{where}: entry {number} of {self.count} cannot be read")
                break
            entries = np.frombuffer(data, ENTRY_COLUMNS)
            offsets = entries["position"].astype(np.int64)
            ends = np.where(entries["size"] == PRE_BLANK_SIZE, 0, offsets + entries["size"])
            starts = np.maximum.accumulate(np.concatenate(([before], ends[:-1])))
            bad = (entries["size"] <= 0) | (offsets < starts) | (ends > log_end)
            bad &= entries["size"] != PRE_BLANK_SIZE
            if bad.any():
                at = int(bad.argmax())
                wrong.append(
                    f"{where}: entry {number + at} says offset {int(offsets[at])}, size {int(entries['size'][at])}; "
                    f"the one before ends at {int(starts[at])}, the log at {log_end}"
                )
                break
            before = max(int(starts[-1]), int(ends[-1]))
            number += len(entries)
        return wrong

    def __repr__(self) -> str:
        return f"ConsumeQueue({self.topic!r}, {self.queue_id}, count={self.count}, synced={self.synced})"
