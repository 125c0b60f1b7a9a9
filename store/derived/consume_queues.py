"""All ConsumeQueues of a store: found by topic and queue, flushed in slices, loaded, dropped."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import ClassVar

from remoting.layout import RECORD_BYTES_MIN
from store.derived.consume_queue import ConsumeQueue
from store.derived.queue_entries import PRE_BLANK_SIZE
from store.disk.file_cache import FileCache
from store.disk.files import Files

__all__ = ["ConsumeQueues", "Placed"]

_NAME_BYTES_MAX = 255


def _may_be(topic: str, number: int, offset: int) -> bool:
    """True if a record at that offset may have this topic and queue offset, which no checksum covers.

    The topic becomes the name of a directory, so it must be a valid one; and a queue offset cannot exceed the number of
    records that fit before the record.
    """
    if topic in ("", ".", "..") or "/" in topic or "\0" in topic or len(topic.encode()) > _NAME_BYTES_MAX:
        return False
    return 0 <= number * RECORD_BYTES_MIN <= offset


class Placed:
    """The result of giving a recovered record to its queue."""

    DONE: ClassVar[int] = 0
    KNOWN: ClassVar[int] = 1
    """It is in the queue already."""
    CLASH: ClassVar[int] = 2
    """Another record has its queue offset, or its topic or offset is impossible: it cannot be reached by offset."""
    GAP: ClassVar[int] = 3
    """Entries before it are missing: the queue must be rebuilt from the beginning of the log."""


class ConsumeQueues:
    """The queues under ``consumequeue/``, by topic and queue id."""

    def __init__(self, files: Files, directory: Path, file_bytes: int) -> None:
        self.files = files
        self.directory = directory
        self.file_bytes = file_bytes
        self.cache = FileCache(files)
        self.table: dict[str, dict[int, ConsumeQueue]] = {}
        self.dirty: list[ConsumeQueue] = []
        """Queues with unflushed entries (append lock)."""
        self.grown: list[ConsumeQueue] = []
        """Queues with entries that no consumer was told of yet (append lock)."""

    def find(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """The queue, or None."""
        queues = self.table.get(topic)
        return None if queues is None else queues.get(queue_id)

    def get(self, topic: str, queue_id: int) -> ConsumeQueue:
        """The queue, created empty if missing (append lock). The first flush creates its files."""
        queues = self.table.get(topic)
        if queues is None:
            queues = self.table[topic] = {}
        queue = queues.get(queue_id)
        if queue is None:
            directory = self.directory / topic / str(queue_id)
            queue = queues[queue_id] = ConsumeQueue(self.cache, directory, topic, queue_id, self.file_bytes)
        return queue

    def __iter__(self) -> Iterator[ConsumeQueue]:
        """All queues."""
        # Copies, because the appender may add a topic or a queue meanwhile.
        for queues in list(self.table.values()):
            yield from list(queues.values())

    # ------------------------------------------------------------------------------------------ appending

    def append(self, queue: ConsumeQueue, entries: bytes, count: int) -> None:
        """Add ``count`` entries to a queue, of messages that took their numbers from its ``next`` before (append lock).

        The next flush and its consumers will hear of it.
        """
        # The bytes before the count: readers take no lock.
        queue.buffer += entries
        queue.count += count
        if not queue.dirty:
            queue.dirty = True
            self.dirty.append(queue)
        if not queue.grown:
            queue.grown = True
            self.grown.append(queue)

    def take_grown(self) -> list[ConsumeQueue]:
        """The queues that have new entries since the last call (append lock)."""
        grown, self.grown = self.grown, []
        for queue in grown:
            queue.grown = False
        return grown

    # ------------------------------------------------------------------------------------------ flushing

    def take_dirty(self) -> list[tuple[ConsumeQueue, int]]:
        """The queues that have new entries, each with its count now (append lock)."""
        taken = [(queue, queue.count) for queue in self.dirty]
        for queue in self.dirty:
            queue.dirty = False
        self.dirty.clear()
        return taken

    def mark_dirty(self, queue: ConsumeQueue) -> None:
        """Mark a queue for the next flush (append lock)."""
        if not queue.dirty:
            queue.dirty = True
            self.dirty.append(queue)

    # ------------------------------------------------------------------------------------------ life

    def on_disk(self) -> Iterator[ConsumeQueue]:
        """Create a queue object for every queue directory; names that are not queue ids are ignored."""
        for topic in self.files.listdir(self.directory):
            if not self.files.is_dir(self.directory / topic):
                continue
            for name in self.files.listdir(self.directory / topic):
                if name.isascii() and name.isdigit() and str(int(name)) == name:
                    yield self.get(topic, int(name))

    def place(
        self, topic: str, queue_id: int, number: int, offset: int, size: int, tags_code: int, fill: bool = False
    ) -> int:
        """Give a recovered record to its queue, at the record's own queue offset; see `Placed`.

        With ``fill`` the log is read from its very beginning, so entries missing before the record are gone; pre-blanks
        replace them.
        """
        if not _may_be(topic, number, offset):
            return Placed.CLASH
        queue = self.get(topic, queue_id)
        if number < queue.count:
            if number or offset < queue.log_end():
                known = queue.entry(number)
                same = known is None or known[0] == offset or known[1] == PRE_BLANK_SIZE
                return Placed.KNOWN if same or offset < queue.log_end() else Placed.CLASH
            # The topic was deleted and created again: its queue offsets started at 0 again.
            queue.remove()
            queue.start_at(0)
        if number > queue.count:
            if not fill:
                return Placed.GAP
            if queue.count == 0:
                queue.start_at(number)
            while queue.count < number:
                queue.add(0, PRE_BLANK_SIZE, 0)
        queue.add(offset, size, tags_code)
        self.mark_dirty(queue)
        return Placed.DONE

    def drop(self, topic: str) -> dict[int, ConsumeQueue] | None:
        """Remove a topic's queues from the table and return them (append lock); None if there were none. Files stay."""
        queues = self.table.pop(topic, None)
        if queues is not None:
            self.dirty = [queue for queue in self.dirty if queue.topic != topic]
        return queues

    def remove_files(self, topics: Collection[str]) -> None:
        """Remove the directories of topics; names with slashes or dots are ignored, because they may lead elsewhere."""
        there = sorted(set(self.files.listdir(self.directory)).intersection(topics))
        for topic in there:
            self._remove_directory(self.directory / topic)
        if there:
            self.files.sync_dir(self.directory)

    def _remove_directory(self, directory: Path) -> None:
        for name in self.files.listdir(directory):
            if self.files.is_dir(directory / name):
                for file in self.files.listdir(directory / name):
                    self.cache.remove(directory / name / file)
            self.files.remove(directory / name)
        self.files.remove(directory)

    def close(self) -> None:
        """Close the open files."""
        self.cache.clear()
