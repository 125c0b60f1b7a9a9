"""The undecided half messages of transactions, and how a restart finds them again.

A half message stands in Apache's topic for them (`HALF_TOPIC`, queue 0); its number in that queue names the
transaction. Its outcome stands in `OP_TOPIC`, as Apache writes it, with one addition:

===========  ======================================================================================
tag ``d``    the body's numbers (``5,6,``) are decided: committed, rolled back or given up
tag ``c``    the producers of the body's numbers were asked once more (our addition; Apache skips it)
===========  ======================================================================================

A decision is one write: the committed (or given-up) message first, the op message behind it. If a crash cuts off the op
message, the committed message is the last record of the log. Its prepared offset then names the half message that it
decides, and `HalfMessages.recover` returns the number whose op message is missing.

A restart needs no scan of the log. `snapshot`, a section of the delivery checkpoint, has the undecided numbers, how far
both queues are accounted for, and the counts of checks. Later entries are read from the queues. The network loop makes
the snapshot (`publish`), so nothing here takes a lock; it is always older than the log, never newer.
"""

from __future__ import annotations

import heapq
import struct
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from remoting.messages.message import RecordError, decode_record, record_fields
from remoting.messages.properties import TAGS, TRAN_PREPARED_QUEUE_OFFSET, UNIQ_KEY, get_property
from store.derived.queue_entries import PRE_BLANK_SIZE
from store.disk.errors import StoreCorruptError, StoreError
from store.disk.segments import NOTHING_NEEDED
from store.levels.level_copy import HALF_TOPIC
from store.levels.level_queue import Entry

__all__ = [
    "CHECKED",
    "DECIDED",
    "DISCARD_TOPIC",
    "HALF_TOPIC",
    "OP_TOPIC",
    "SECTION",
    "Half",
    "HalfMessages",
    "HalfStore",
]

OP_TOPIC = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
DISCARD_TOPIC = "TRANS_CHECK_MAX_TIME_TOPIC"
SECTION = "transactions"
DECIDED, CHECKED = "d", "c"

SNAPSHOT_MAX = 4096
"""Up to this many undecided messages a snapshot is made every `SNAPSHOT_MS`, above that every `SNAPSHOT_LATE_MS`."""
SNAPSHOT_MS = 1_000
SNAPSHOT_LATE_MS = 60_000
SNAPSHOT_MOST = 100_000
"""With more undecided messages no snapshot is made, because it would hold up the network loop. A start uses an older
one and reads more."""
_READ_ENTRIES = 1024
_VERSION = 1
_HEAD = struct.Struct(">HHqqqqI")
_TRANSACTION_BITS, _COMMITTED = 0xC, 0x8


class HalfStore(Protocol):
    """The part of `store.message_store.MessageStore` that is used here."""

    def queue_entries(self, topic: str, queue_id: int, from_offset: int, limit: int) -> Sequence[Entry]:
        """Read ConsumeQueue entries (CommitLog offset, size, tags code); fewer at the end of a file or of the queue."""
        ...

    def min_offset(self, topic: str, queue_id: int) -> int:
        """Number of the first entry whose record is there; 0 for a queue that does not exist."""
        ...

    def max_offset(self, topic: str, queue_id: int) -> int:
        """Number behind the last entry; 0 for a queue that does not exist."""
        ...

    def read_record(self, offset: int) -> bytes | None:
        """Read the record at a CommitLog offset; None unless there is a whole and valid one."""
        ...


class Half:
    """One undecided half message: its record's ``offset`` and ``size`` (0: not known), how often it was checked."""

    __slots__ = ("checks", "offset", "size")

    def __init__(self, offset: int, size: int, checks: int = 0) -> None:
        self.offset = offset
        self.size = size
        self.checks = checks


class HalfMessages:
    """The undecided half messages of one store. Only the network loop uses it, unless a method says otherwise.

    ==================  ==================================================================================
    ``undecided``       number in the half queue to `Half`, ascending
    ``seen``            half messages below this number are accounted for
    ``op_seen``         op messages below this number are accounted for
    ``lost_count``      undecided messages whose record is gone or cannot be read
    ``pin``             lowest CommitLog offset that messages below ``seen`` still need, see `needed_offset`
    ==================  ==================================================================================
    """

    def __init__(self, store: HalfStore, warn: Callable[[str], None] = lambda _: None) -> None:
        self.undecided: dict[int, Half] = {}
        self.seen = 0
        self.op_seen = 0
        self.lost_count = 0
        self.pin = NOTHING_NEEDED
        self._store = store
        self._warn = warn
        self._due: list[tuple[int, int]] = []  # a heap of (when to look at it, number); decided ones may be in it
        self._op_done = 0
        self._sample = (0, 0)  # all op messages below the second concern half messages below the first
        self._changed = True
        self._snapshot = self._written = b""
        self._kept: bytes | None = None  # the last snapshot that a checkpoint has made durable
        self._durable: bytes | None = None  # the same, until `take_durable` has been asked
        self._pin_then = self._pin_since = NOTHING_NEEDED  # of the last snapshot; of what has come since
        self._snapshot_ms: int | None = None

    # ------------------------------------------------------------------------------------------ what happens

    def add(self, number: int, offset: int, due_ms: int) -> None:
        """Account for a half message that was stored at a CommitLog offset; `due` returns it from ``due_ms`` on."""
        self._changed = True
        if number == self.seen:
            try:
                size = self._store.queue_entries(HALF_TOPIC, 0, number, 1)[0][1]
            except StoreError as error:
                size = 0  # then its record says it
                self._warn(f"the queue of half messages cannot be read at {number}: {error}")
            self._wait_for(number, Half(offset, size))
            self.seen = number + 1
        elif number > self.seen:
            self.follow()
        if number in self.undecided:
            heapq.heappush(self._due, (due_ms, number))

    def apply(self, op_number: int, tag: str, numbers: Iterable[int]) -> None:
        """Account for an op message that was stored."""
        self._changed = True
        if op_number == self.op_seen:
            self.op_seen = op_number + 1
            self._apply(tag, numbers)
        elif op_number > self.op_seen:
            try:
                self.follow()
            except StoreError as error:
                self._warn(f"the op messages below {op_number} cannot be read: {error}")
                if tag == DECIDED:  # at once: else it could still be decided the other way
                    self._apply(tag, numbers)

    def look_again(self, number: int, due_ms: int) -> None:
        """Let `due` return a message again, from ``due_ms`` (epoch ms) on."""
        heapq.heappush(self._due, (due_ms, number))

    def due(self, now_ms: int) -> list[int]:
        """Take out the undecided messages whose time has come, in order; `look_again` puts them back."""
        found = set()
        while self._due and self._due[0][0] <= now_ms:
            number = heapq.heappop(self._due)[1]
            if number in self.undecided:
                found.add(number)
        if len(self._due) > 2 * len(self.undecided) + _READ_ENTRIES:
            self._due = [entry for entry in self._due if entry[1] in self.undecided]
            heapq.heapify(self._due)
        return sorted(found)

    def give_up(self, number: int, reason: str) -> None:
        """Forget a message whose record cannot be read."""
        if self.undecided.pop(number, None) is not None:
            self._changed = True
            self.lost_count += 1
            self._warn(f"undecided half message {number} is given up: {reason}")

    def needed_offset(self) -> int:
        """The lowest CommitLog offset that is still needed: a pin for the retention. Any thread.

        Also needed are messages that are stored but not accounted for yet, because their turn waits for a sync. (So
        ``seen`` is read before ``pin`` here, and set after it.) And those decided since the last durable snapshot: a
        power cut may lose the decision with the messages that it made.
        """
        entries = self._store.queue_entries(HALF_TOPIC, 0, self.seen, 1)
        return min(self.pin, entries[0][0]) if entries else self.pin

    def _wait_for(self, number: int, half: Half) -> None:
        self.undecided[number] = half
        self.pin = min(self.pin, half.offset)
        self._pin_since = min(self._pin_since, half.offset)

    def _apply(self, tag: str, numbers: Iterable[int]) -> None:
        if tag == DECIDED:
            for number in numbers:
                self.undecided.pop(number, None)
        elif tag == CHECKED:
            for number in numbers:
                half = self.undecided.get(number)
                if half is not None:
                    half.checks += 1

    # ------------------------------------------------------------------------------------------ catching up

    def follow(self) -> list[int]:
        """Account for everything new in the two queues; returns the numbers that were decided. Raises StoreError."""
        store = self._store
        decided: list[int] = []
        self.seen = max(self.seen, store.min_offset(HALF_TOPIC, 0))
        for number, offset, size in self._entries(HALF_TOPIC, self.seen):
            self._changed = True
            self._wait_for(number, Half(offset, size))
            self.seen = number + 1
            heapq.heappush(self._due, (0, number))
        self.op_seen = max(self.op_seen, store.min_offset(OP_TOPIC, 0))
        for op_number, offset, _ in self._entries(OP_TOPIC, self.op_seen):
            self._changed = True
            self.op_seen = op_number + 1
            tag, numbers = self._read_op(op_number, offset)
            self._apply(tag, numbers)
            if tag == DECIDED:
                decided += numbers
        return decided

    def _entries(self, topic: str, number: int) -> Iterable[tuple[int, int, int]]:
        """(number, CommitLog offset, size) of a queue's entries from a number on."""
        while entries := self._store.queue_entries(topic, 0, number, _READ_ENTRIES):
            for offset, size, _ in entries:
                if size != PRE_BLANK_SIZE:
                    yield number, offset, size
                number += 1

    def _read_op(self, op_number: int, offset: int) -> tuple[str, list[int]]:
        try:
            record = self._store.read_record(offset)
            if record is None:
                raise RecordError("no whole and valid record there")
            stored = decode_record(record)
            tag = get_property(stored.properties, TAGS) or ""
            return tag, [int(word) for word in stored.body.decode("ascii").split(",") if word]
        except (RecordError, ValueError) as error:
            self._warn(f"op message {op_number} at {offset} is skipped: {error}")
            return "", []

    # ------------------------------------------------------------------------------------------ restart

    def recover(self, section: bytes | None, apache: tuple[int, int], last_offset: int) -> int | None:
        """Find what is undecided; returns the number of one that is decided but has no op message, or None.

        Args:
            section: What `snapshot` gave at the last checkpoint; None without one.
            apache: Half and op offset of Apache's group for transactions; -1 where there is none.
            last_offset: CommitLog offset of the log's last record; -1 for an empty log.

        Raises StoreCorruptError if the section cannot be read.
        """
        half_offset, op_offset = apache
        mine = self._restore(section) if section else -1
        taken_over = mine < 0 or half_offset > mine
        if mine < 0:
            self.seen = max(0, half_offset)
            self.op_seen = self._op_done = max(0, op_offset)
        for number in [number for number in self.undecided if number < half_offset]:
            del self.undecided[number]  # an Apache broker has dealt with them since
        decided = self.follow()
        if taken_over:
            for number in [number for number in self.undecided if number < half_offset]:
                del self.undecided[number]
            self._drop_put_back(set(decided))
        torn = self._decided_by(last_offset)
        if torn is not None:
            self._apply(DECIDED, [torn])
        self.publish(0, True)
        return torn

    def _restore(self, section: bytes) -> int:
        """Take over a snapshot; returns the lowest number that was undecided in it."""
        try:
            version, _, seen, op_seen, lowest, self._op_done, count = _HEAD.unpack_from(section)
            if version != _VERSION:
                raise StoreCorruptError(f"it has version {version}, not {_VERSION}")
            numbers = struct.unpack_from(f">{count}q", section, _HEAD.size)
            checks = struct.unpack_from(f">{count}I", section, _HEAD.size + 8 * count)
        except struct.error as error:
            raise StoreCorruptError(f"it cannot be read: {error}") from error
        self.seen = min(seen, self._store.max_offset(HALF_TOPIC, 0))
        self.op_seen = min(op_seen, self._store.max_offset(OP_TOPIC, 0))
        for number, checked in zip(numbers, checks, strict=True):
            entries = self._store.queue_entries(HALF_TOPIC, 0, number, 1)
            if not entries or entries[0][1] == PRE_BLANK_SIZE:
                self.lost_count += 1
                self._warn(f"undecided half message {number} is no longer in the CommitLog")
                continue
            self._wait_for(number, Half(entries[0][0], entries[0][1], checked))
            heapq.heappush(self._due, (0, number))
        return int(lowest)

    def _drop_put_back(self, decided: set[int]) -> None:
        """Forget copies that an Apache broker made of a half message under a new number when the first was decided."""
        for number, half in list(self.undecided.items()):
            record = self._store.read_record(half.offset)
            first = None if record is None else get_property(record_fields(record)[2], TRAN_PREPARED_QUEUE_OFFSET)
            if first is not None and first.isdecimal() and len(first) < 20 and int(first) in decided:
                del self.undecided[number]

    def _decided_by(self, last_offset: int) -> int | None:
        """The undecided message that the log's last record decides."""
        record = self._store.read_record(last_offset) if last_offset >= 0 else None
        if record is None:
            return None
        stored = decode_record(record, check_crc=False)
        if stored.sys_flag & _TRANSACTION_BITS != _COMMITTED and stored.topic != DISCARD_TOPIC:
            return None
        key = get_property(stored.properties, UNIQ_KEY)
        for number, half in self.undecided.items():
            if half.offset == stored.prepared_offset:
                record = self._store.read_record(half.offset)
                same = record is not None and get_property(record_fields(record)[2], UNIQ_KEY) == key
                return number if same else None
        return None

    # ------------------------------------------------------------------------------------------ snapshots

    @property
    def lowest(self) -> int:
        """The lowest undecided number; without any, the number of the next half message."""
        return next(iter(self.undecided), self.seen)

    def publish(self, now_ms: int, force: bool = False) -> bool:
        """Make a new snapshot if something has changed; True if there is a new one."""
        if self._kept is self._snapshot:
            self.pin = min(self._pin_then, self._pin_since)
        if not self._changed and not force:
            return False
        count = len(self.undecided)
        wait_ms = SNAPSHOT_MS if count <= SNAPSHOT_MAX else SNAPSHOT_LATE_MS
        if self._snapshot_ms is not None and 0 <= now_ms - self._snapshot_ms < wait_ms and not force:
            return False
        lowest = self.lowest
        if lowest >= self._sample[0]:
            self._op_done = max(self._op_done, self._sample[1])
            self._sample = (self.seen, self.op_seen)
        self._snapshot_ms = now_ms
        if count > SNAPSHOT_MOST and not force:
            return False
        self._snapshot = b"".join(
            (
                _HEAD.pack(_VERSION, 0, self.seen, self.op_seen, lowest, self._op_done, count),
                struct.pack(f">{count}q", *self.undecided),
                struct.pack(f">{count}I", *[half.checks for half in self.undecided.values()]),
            )
        )
        half = self.undecided.get(lowest)
        self._pin_then = NOTHING_NEEDED if half is None else half.offset
        self._pin_since = NOTHING_NEEDED
        self._changed = False
        return True

    def snapshot(self) -> bytes:
        """The last snapshot, for the delivery checkpoint. Any thread."""
        self._written = self._snapshot
        return self._written

    def durable(self) -> None:
        """Note that a checkpoint with the last `snapshot` is durable. Any thread."""
        self._kept = self._durable = self._written

    def take_durable(self) -> tuple[int, int] | None:
        """Half and op offset from which an Apache broker may continue; None if they have not changed."""
        durable, self._durable = self._durable, None
        if durable is None:
            return None
        _, _, seen, _, lowest, op_done, _ = _HEAD.unpack_from(durable)
        return (lowest, op_done) if seen else None

    def check(self) -> list[str]:
        """Say what is wrong; empty when nothing is."""
        wrong = [
            f"undecided half message {number} at {half.offset} cannot be read"
            for number, half in self.undecided.items()
            if self._store.read_record(half.offset) is None
        ]
        if list(self.undecided) != sorted(self.undecided):
            wrong.append("undecided half messages are out of order")
        return wrong
