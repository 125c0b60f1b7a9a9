"""The reading side of a store: pulls, offsets, records by position, by key, by delay id."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import IntEnum
from pathlib import Path

from remoting.filters.subscription import TagFilter
from remoting.layout import QUEUE_OFFSET_AT, STORE_MS_AT_V6
from remoting.layout.table import LONG
from remoting.messages.message import message_keys, record_fields, store_ms_at
from remoting.messages.properties import TW_ID, get_property
from store.derived.apache_index import ApacheIndex
from store.derived.consume_queue import ConsumeQueue
from store.derived.consume_queues import ConsumeQueues
from store.derived.dispatch import delivered_key
from store.derived.index import KeyIndex
from store.derived.queue_check import QueueCheck
from store.derived.queue_entries import ENTRY, PRE_BLANK_SIZE
from store.disk.delay_id import id_text
from store.disk.errors import StoreError
from store.log.commit_log import CommitLog

__all__ = ["PullResult", "PullStatus", "StoreReader"]

_HEAD_BYTES = STORE_MS_AT_V6 + LONG.size
"""The first bytes of a record, with its store time even if its addresses are IPv6."""

_FILTER_ENTRIES_MAX = 4_000
"""Entries that one filtered pull checks. If none of them matches, it answers so, and the consumer asks again."""
_PROOF_KEYS_MAX = 4
_PROOF_OFFSETS_MAX = 1_024
"""Most keys of a record, and most messages with one key, that `find_record` looks through for the record itself."""
_KEY_OFFSETS_MAX = 1 << 16
"""Most messages with one key that `each_behind` sorts by log position."""
_SECOND = 1_000  # Apache's index knows store times to the second
_FOREVER = (1 << 63) - 1


class PullStatus(IntEnum):
    """The outcome of a pull, with the names of Apache's GetMessageStatus."""

    FOUND = 0
    NO_MATCHED_MESSAGE = 1
    MESSAGE_WAS_REMOVING = 2
    OFFSET_OVERFLOW_BADLY = 5
    OFFSET_OVERFLOW_ONE = 6
    OFFSET_TOO_SMALL = 7
    NO_MATCHED_LOGIC_QUEUE = 8
    NO_MESSAGE_IN_QUEUE = 9


class PullResult:
    """The result of a pull: the places of its records in the CommitLog, not the records.

    ``next_offset`` is the queue offset of the next pull, ``min_offset`` and ``max_offset`` bound the queue,
    ``positions`` are (CommitLog offset, size) in queue order.
    """

    __slots__ = ("max_offset", "min_offset", "next_offset", "positions", "status")

    def __init__(
        self,
        status: PullStatus,
        next_offset: int,
        min_offset: int,
        max_offset: int,
        positions: list[tuple[int, int]],
    ) -> None:
        self.status = status
        self.next_offset = next_offset
        self.min_offset = min_offset
        self.max_offset = max_offset
        self.positions = positions

    def __repr__(self) -> str:
        return (
            f"PullResult({self.status.name}, next={self.next_offset}, [{self.min_offset}, {self.max_offset}), "
            f"{len(self.positions)} records)"
        )


class StoreReader:
    """Everything that only reads. Any thread; no lock is taken."""

    def __init__(self, log: CommitLog, queues: ConsumeQueues, index: KeyIndex, older: ApacheIndex) -> None:
        self.commit_log = log
        self.queues = queues
        self.index = index
        self.older_index = older

    # ------------------------------------------------------------------------------------------ records

    def read(self, offset: int, size: int) -> bytes:
        """Read CommitLog bytes; empty if they are not there (any more). May wait for the disk."""
        return self.commit_log.read(offset, size)

    def read_hot(self, offset: int, size: int) -> bytes | None:
        """Read CommitLog bytes if they are in memory; None if that would wait, or if they are not there."""
        return self.commit_log.read_hot(offset, size) or None

    def gather_hot(self, spans: Sequence[tuple[int, int]]) -> bytes | None:
        """Read many (offset, bytes) of the CommitLog into one; None unless all are there and in memory."""
        return self.commit_log.gather_hot(spans)

    def read_recent(self, positions: Sequence[tuple[int, int]]) -> bytes | None:
        """Read records (offset, size) one behind the other if all of them were appended just now; else None."""
        return self.commit_log.read_recent(positions)

    def read_record(self, offset: int, size: int = 0) -> bytes | None:
        """Read the record that starts at an offset; None unless a whole, valid one does. ``size``: if it is known."""
        return self.commit_log.read_record(offset, size)

    def find_record(self, offset: int) -> bytes | None:
        """Read the record that the store has put at an offset which a peer names; None if it has put none there.

        Bytes alone prove nothing: a client may put the bytes of a whole record into the body of its message, made for
        the very position where that body will stand. So the record's queue must have it under its queue offset. If the
        queue is gone with its topic, the key index must have it under its key. May wait for the disk.
        """
        record = self.commit_log.read_record(offset) if offset >= 0 else None
        if record is None:
            return None
        topic, queue_id, properties = record_fields(record)
        (number,) = LONG.unpack_from(record, QUEUE_OFFSET_AT)
        queue = self.queues.find(topic, queue_id)
        entry = None if queue is None else queue.entry(number)
        if entry is not None and entry[:2] == (offset, len(record)):
            return record
        (store_ms,) = LONG.unpack_from(record, store_ms_at(record))
        for key in message_keys(properties)[:_PROOF_KEYS_MAX]:
            for index in (self.index, self.older_index):
                if offset in index.find(topic, key, store_ms - _SECOND, store_ms + _SECOND, _PROOF_OFFSETS_MAX):
                    return record
        return None

    def segment_of(self, offset: int) -> tuple[Path, int]:
        """The file that holds a CommitLog offset, and the position in it. Raises KeyError if none does."""
        segment = self.commit_log.segment_of(offset)
        if segment is None:
            raise KeyError(offset)
        return segment.path, offset - segment.start

    def scan(self, from_offset: int) -> Iterator[tuple[int, bytes]]:
        """Yield (offset, record) from a record's offset (at least the log's begin) to the end."""
        return self.commit_log.scan(from_offset)

    # ------------------------------------------------------------------------------------------ queues

    def topics_on_disk(self) -> list[str]:
        """Topics that have at least one queue, sorted."""
        return sorted(topic for topic, queues in self.queues.table.items() if queues)

    def queue_ids(self, topic: str) -> list[int]:
        """Ids of the queues that a topic has, sorted."""
        return sorted(self.queues.table.get(topic, ()))

    def max_offset(self, topic: str, queue_id: int) -> int:
        """Number of the next message of a queue; 0 if there is no such queue."""
        queue = self.queues.find(topic, queue_id)
        return 0 if queue is None else queue.count

    def min_offset(self, topic: str, queue_id: int) -> int:
        """Number of the first message of a queue that is still there; 0 if there is no such queue."""
        queue = self.queues.find(topic, queue_id)
        return 0 if queue is None else queue.min_offset(self.commit_log.begin)

    def entry(self, topic: str, queue_id: int, number: int) -> tuple[int, int, int] | None:
        """One ConsumeQueue entry: (CommitLog offset, size, tags code); None outside the queue."""
        queue = self.queues.find(topic, queue_id)
        return None if queue is None else queue.entry(number)

    def queue_entries(self, topic: str, queue_id: int, from_offset: int, limit: int) -> list[tuple[int, int, int]]:
        """ConsumeQueue entries (CommitLog offset, size, tags code) from a number on; fewer at the end of a file."""
        queue = self.queues.find(topic, queue_id)
        return [] if queue is None else list(ENTRY.iter_unpack(queue.read(from_offset, limit)))

    def pull(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        max_count: int,
        max_bytes: int,
        tag_filter: TagFilter | None,
    ) -> PullResult:
        """Find the messages of a queue from an offset on, within a limit of count and bytes (but at least one).

        Reads the ConsumeQueue only. With a filter that matches little, the answer may be NO_MATCHED_MESSAGE with
        a ``next_offset`` to go on from.
        """
        queue = self.queues.find(topic, queue_id)
        if queue is None:
            return PullResult(PullStatus.NO_MATCHED_LOGIC_QUEUE, 0, 0, 0, [])
        last = queue.count
        first = queue.min_offset(self.commit_log.begin)
        if last == 0:
            return PullResult(PullStatus.NO_MESSAGE_IN_QUEUE, 0, first, last, [])
        if offset < first:
            return PullResult(PullStatus.OFFSET_TOO_SMALL, first, first, last, [])
        if offset == last:
            return PullResult(PullStatus.OFFSET_OVERFLOW_ONE, offset, first, last, [])
        if offset > last:
            return PullResult(PullStatus.OFFSET_OVERFLOW_BADLY, last, first, last, [])
        codes = None if tag_filter is None else tag_filter.codes
        positions, reached = self._gather(queue, offset, max(1, max_count), max_bytes, codes)
        if positions:
            status = PullStatus.FOUND
        elif reached > offset:
            status = PullStatus.NO_MATCHED_MESSAGE
        else:
            status = PullStatus.MESSAGE_WAS_REMOVING
            reached = max(offset, queue.min_offset(self.commit_log.begin))
        return PullResult(status, reached, first, last, positions)

    def _gather(
        self, queue: ConsumeQueue, offset: int, max_count: int, max_bytes: int, codes: frozenset[int] | None
    ) -> tuple[list[tuple[int, int]], int]:
        """Positions from an offset on, and the number behind the last entry that was looked at."""
        begin = self.commit_log.begin
        positions: list[tuple[int, int]] = []
        total = 0
        looked = 0
        limit = max_count if codes is None else max(max_count, _FILTER_ENTRIES_MAX)
        while looked < limit and len(positions) < max_count:
            want = min(limit - looked, max_count if codes is None else 800)
            data = queue.read(offset + looked, want)
            if not data:
                break
            for position, size, tags in ENTRY.iter_unpack(data):
                if (codes is None or tags in codes) and size != PRE_BLANK_SIZE and position >= begin:
                    total += size
                    if positions and total > max_bytes:
                        return positions, offset + looked
                    positions.append((position, size))
                looked += 1
                if len(positions) >= max_count:
                    break
        return positions, offset + looked

    def store_time_at(self, topic: str, queue_id: int, offset: int) -> int:
        """Store time of a queue's message, epoch ms; -1 if it is not there."""
        queue = self.queues.find(topic, queue_id)
        return -1 if queue is None else self._store_ms(queue, offset)

    def _store_ms(self, queue: ConsumeQueue, number: int) -> int:
        entry = queue.entry(number) if number >= 0 else None
        if entry is None or entry[1] == PRE_BLANK_SIZE:
            return -1
        head = self.commit_log.read(entry[0], min(entry[1], _HEAD_BYTES))
        return int(LONG.unpack_from(head, store_ms_at(head))[0]) if len(head) == _HEAD_BYTES else -1

    def offset_by_time(self, topic: str, queue_id: int, time_ms: int, upper: bool = False) -> int:
        """Number of the first message stored at or after a time; with ``upper``, of the last one at or before it.

        All stored before: the max offset (upper: the last message). All after: the min offset (upper: 0). No queue,
        or an empty one: 0. Supposes store times in order, as a clock that is never set gives them.
        """
        queue = self.queues.find(topic, queue_id)
        if queue is None or queue.count == 0:
            return 0
        first = queue.min_offset(self.commit_log.begin)
        low, high = first, queue.count
        while low < high:
            middle = (low + high) // 2
            stored_ms = self._store_ms(queue, middle)
            if stored_ms < time_ms or (upper and stored_ms == time_ms):
                low = middle + 1
            else:
                high = middle
        if upper:
            return low - 1 if low > first else 0
        return low

    def earliest_store_time(self) -> int:
        """Store time of the oldest message of the log, epoch ms; -1 if it is empty."""
        for _, record in self.commit_log.scan(self.commit_log.begin):
            return int(LONG.unpack_from(record, store_ms_at(record))[0])
        return -1

    # ------------------------------------------------------------------------------------------ by key

    def query(
        self, topic: str, key: str, max_count: int, begin_ms: int, end_ms: int, max_bytes: int = _FOREVER
    ) -> list[bytes]:
        """Find records of a topic by a key (UNIQ_KEY or a word of KEYS), newest first, by store time inclusive.

        As many as have ``max_bytes`` together, but one at least; the others are not kept in memory meanwhile.
        """
        found: list[bytes] = []
        size = 0
        for record in self.each_with_key(topic, key, max_count, begin_ms, end_ms):
            size += len(record)
            if found and size > max_bytes:
                break
            found.append(record)
        return found

    def each_with_key(self, topic: str, key: str, max_count: int, begin_ms: int, end_ms: int) -> Iterator[bytes]:
        """Read the same records one by one, for a caller that looks for one of them."""
        count = 0
        limit = max(4 * max_count, 64)
        offsets = self.index.find(topic, key, begin_ms, end_ms, limit)
        if len(offsets) < limit:
            offsets = list(dict.fromkeys(offsets + self.older_index.find(topic, key, begin_ms, end_ms, limit)))
        for offset in offsets:
            record = self.commit_log.read_record(offset)
            if record is None:
                continue
            record_topic, _, properties = record_fields(record)
            if record_topic == topic and key in message_keys(properties):
                yield record
                count += 1
                if count >= max_count:
                    return

    def each_behind(self, topic: str, key: str, offset: int, most: int) -> Iterator[bytes]:
        """Read the records of a topic with a key that stand behind a CommitLog offset, oldest first.

        Raises StoreError if it has to stop although there may be more: the wanted one may be among those.
        """
        found: set[int] = set()
        whole = True
        for index in (self.index, self.older_index):
            offsets = index.find(topic, key, 0, _FOREVER, _KEY_OFFSETS_MAX)
            whole = whole and len(offsets) < _KEY_OFFSETS_MAX
            found.update(at for at in offsets if at > offset)
        for count, at in enumerate(sorted(found) if whole else ()):
            if count == most:
                whole = False
                break
            record = self.commit_log.read_record(at)
            if record is not None:
                record_topic, _, properties = record_fields(record)
                if record_topic == topic and key in message_keys(properties):
                    yield record
        if not whole:
            raise StoreError(f"more than {most} messages of {topic!r:.200} have the key {key!r:.200}: too many to read")

    def find_delivered(self, virtual_offset: int) -> bytes | None:
        """Find the delivered copy of a delayed message by its virtual offset; None if none can be read."""
        text = id_text(virtual_offset)
        for offset in self.index.find("", delivered_key(text), 0, _FOREVER, 64):
            record = self.commit_log.read_record(offset)
            if record is None:
                continue
            found = get_property(record_fields(record)[2], TW_ID)
            if found is not None and found.partition(".")[0] == text:
                return record
        return None

    # ------------------------------------------------------------------------------------------ checks

    def check_reader(self, end: int) -> list[str]:
        """Check log, queues and index, and that records and queue entries belong together, up to an offset."""
        log = self.commit_log
        wrong: list[str] = []
        derived = QueueCheck(self.queues, log.begin)
        try:
            for offset, record in log.scan(log.begin, check_crc=True):
                if offset < end:
                    derived.look(offset, record)
        except StoreError as error:
            wrong.append(str(error))
        wrong += derived.wrong()
        for queue in self.queues:
            wrong += queue.check(log.begin, log.end)
            wrong += self._check_ends(queue)
        return wrong + self.index.check()

    def _check_ends(self, queue: ConsumeQueue) -> list[str]:
        """Compare the first and the last entry of a queue with their records."""
        numbers = {queue.min_offset(self.commit_log.begin), queue.count - 1}
        wrong: list[str] = []
        for number in sorted(n for n in numbers if 0 <= n < queue.count):
            entry = queue.entry(number)
            if entry is None or entry[1] == PRE_BLANK_SIZE or entry[0] < self.commit_log.begin:
                continue  # retention may have taken the last record of a queue, too
            try:
                record = self.commit_log.read_record(entry[0])
            except StoreError as error:
                wrong.append(f"{queue.directory}: entry {number}: {error}")
                continue
            if record is None or len(record) != entry[1]:
                wrong.append(
                    f"{queue.directory}: entry {number} points at {entry[0]}, where no record of {entry[1]} is"
                )
                continue
            topic, queue_id, _ = record_fields(record)
            (said,) = LONG.unpack_from(record, QUEUE_OFFSET_AT)
            if (topic, queue_id, said) != (queue.topic, queue.queue_id, number):
                found = f"a record of {topic}/{queue_id} number {said}"
                wrong.append(f"{queue.directory}: entry {number} points at {entry[0]}, {found}")
        return wrong
