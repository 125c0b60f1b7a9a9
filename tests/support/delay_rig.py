"""A delay plug-in's parts on a bench: a clock that is set, a spill store and a target that are plain lists.

`FakeSpill` keeps the promises of `store.spill.spill_store.SpillStore` in the plainest way, and checks that its
caller keeps its own: refs that do not exist, blocks published twice, the lock not held. `FakeTarget` is a CommitLog
that fails as it is told.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from broker_plugin.delivery import Deliverer
from broker_plugin.failures import Failures
from broker_plugin.hook import Gate
from broker_plugin.pending.cancelled import CancelledRows
from broker_plugin.pending.changes import Changes
from broker_plugin.pending.commands import Commands
from broker_plugin.pending.desk import PendingDesk
from broker_plugin.recovery import OverdueRecovery
from broker_plugin.rules.ranges import KeyRanges
from broker_plugin.rules.stats import Stats
from broker_plugin.sweeper import Sweeper
from broker_plugin.threads.clock import Clock
from broker_plugin.threads.pace import BATCH_MAX
from remoting.messages.message import Message
from remoting.messages.properties import TW_ID, format_properties, get_property
from store.disk.delay_id import delay_id
from store.disk.errors import StoreFullError, SyncFailedError
from store.disk.flusher import Flusher
from store.disk.slab import Slab
from store.disk.ticket import Ticket
from store.put.plugin_api import Put, PutRecord, PutResult, PutStatus
from store.spill.rows.block import Block
from store.spill.rows.model import Columns, Found, RecordCorruptError
from store.spill.state.message_rows import MessageRows
from tests.support.simdisk import SimDisk

HOST = bytes((127, 0, 0, 1, 0, 0, 42, 159))
START_MS = 1_700_000_000_000


class ManualClock:
    """A wall clock that stands where it is set."""

    def __init__(self, now_ms: int = START_MS) -> None:
        self.now_ms = now_ms

    def __call__(self) -> int:
        return self.now_ms


class FakeJournal:
    name = "fake journal"

    def __init__(self) -> None:
        self.written = 0
        self.synced = 0
        self.broken = False

    def sync(self) -> None:
        if self.broken:
            raise SyncFailedError("fake journal: the disk is broken")
        self.synced = self.written


class _Entry:
    __slots__ = ("bad", "cancelled", "delay_id", "done", "due_ms", "record", "version", "visible")

    def __init__(self, due_ms: int, delay_id: int, record: bytes, version: int) -> None:
        self.due_ms = due_ms
        self.delay_id = delay_id
        self.record = record
        self.version = version
        self.visible = False
        self.done = False
        self.bad = False
        self.cancelled = False


class FakeSpill:
    """Pending messages in a list; a ref is the place in it."""

    def __init__(self, lock: threading.RLock) -> None:
        self.lock = lock
        self.journal = FakeJournal()
        self.frontier_ms = 0
        self.entries: list[_Entry] = []
        self.latest: dict[int, int] = {}
        self.epoch = 1
        self.sequence = 0
        self.full = False
        self.reads = 0
        self.read_max = 0

    def _locked(self) -> None:
        assert self.lock._is_owned(), "the delivery lock is not held"

    append_bytes_max = 1 << 26
    in_doubt: frozenset[int] = frozenset()

    def next_id(self) -> int:
        self.sequence += 1
        return delay_id(self.epoch, self.sequence)

    def append(self, entries: Sequence[tuple[int, int, bytes]]) -> Block:
        assert entries
        if self.full:
            raise StoreFullError("fake journal: full")
        return self._block([(due, found, record, 0) for due, found, record in entries])

    def append_columns(
        self, dues: Sequence[int], ids: Sequence[int], records: Sequence[bytes], _rows: bytes = b""
    ) -> Block:
        return self.append(list(zip(dues, ids, records, strict=True)))

    def _block(self, entries: Sequence[tuple[int, int, bytes, int]]) -> Block:
        first = len(self.entries)
        self.entries += [_Entry(*entry) for entry in entries]
        self.journal.written += sum(len(record) for _, _, record, _ in entries)
        dues = [due for due, *_ in entries]
        return Block(self.journal, self.journal.written, 0, first, 0, b"", dues, [e[1] for e in entries])

    def publish(self, block: Block) -> Columns:
        self._locked()
        assert not block.published, "published twice"
        block.published = True
        for ref in block.refs:
            entry = self.entries[ref]
            entry.visible = True
            self.latest[entry.delay_id] = ref
        return Columns(block.dues, block.ids, block.refs)

    def withdraw(self, block: Block, delay_id: int) -> None:
        if not block.published:
            self.publish(block)
        try:
            self.cancel(delay_id)
        except StoreFullError:
            self.mark_done([block.refs[block.ids.index(delay_id)]])

    def withdraw_block(self, block: Block) -> None:
        for taken in list(block.ids):
            self.withdraw(block, taken)

    def settle(self) -> None:
        """Nothing is owed here."""

    def withdrawn(self) -> Ticket:
        return Ticket((self.journal, self.journal.written))

    def scan(self, after: tuple[int, int], until_ms: int, limit: int) -> Columns:
        self._locked()
        found = sorted(
            (entry.due_ms, entry.delay_id, ref)
            for ref, entry in enumerate(self.entries)
            if entry.visible and not entry.done and (entry.due_ms, entry.delay_id) > after and entry.due_ms < until_ms
        )[:limit]
        return Columns([f[0] for f in found], [f[1] for f in found], [f[2] for f in found])

    def read(self, refs: Sequence[int], max_bytes: int | None = None) -> list[bytes]:
        self._locked()
        if max_bytes is not None:
            total, count = 0, 0
            for ref in refs:
                total += len(self.entries[ref].record)
                if count and total > max_bytes:
                    break
                count += 1
            refs = refs[:count]
        self.reads += len(refs)
        self.read_max = max(self.read_max, len(refs))
        for ref in refs:
            assert self.entries[ref].visible
            if self.entries[ref].bad:
                raise RecordCorruptError(f"fake record {ref} is bad", ref)
        return [self.entries[ref].record for ref in refs]

    def read_slab(self, refs: Sequence[int], max_bytes: int | None = None) -> Slab:
        return Slab.of(self.read(refs, max_bytes))

    def mark_done(self, refs: Sequence[int]) -> int:
        self._locked()
        fresh = {ref for ref in refs if not self.entries[ref].done}
        for ref in fresh:
            self.entries[ref].done = True
        return len(fresh)

    def is_done(self, ref: int) -> bool:
        self._locked()
        return self.entries[ref].done

    def home(self, ref: int) -> int:
        """Where it lives: nothing ever moves here."""
        return -1 if self.is_done(ref) else ref

    def homes(self, refs: Sequence[int]) -> list[int]:
        return list(map(self.home, refs))

    def find(self, wanted: int) -> Found | None:
        self._locked()
        ref = self.latest.get(wanted)
        if ref is None:
            return None
        entry = self.entries[ref]
        return Found(wanted, ref, entry.due_ms, entry.version, entry.done)

    def cancel(self, wanted: int) -> Ticket | None:
        self._locked()
        found = self.find(wanted)
        if found is None or found.done:
            return None
        if self.full:
            raise StoreFullError("fake journal: full")
        self.entries[found.ref].done = True
        self.entries[found.ref].cancelled = True
        self.journal.written += 1
        return Ticket((self.journal, self.journal.written))

    def read_outlines(self, refs: Sequence[int], max_bytes: int) -> tuple[list[bytes], list[int]]:
        records = self.read(refs, max_bytes)
        return records, [len(record) for record in records]

    def versions(self, refs: Sequence[int]) -> list[int]:
        return [self.entries[ref].version for ref in refs]

    def cancel_many(self, columns: Columns, versions: Sequence[int]) -> Ticket:
        assert list(versions) == self.versions(columns.refs)
        for wanted, ref in zip(columns.ids, columns.refs, strict=True):
            assert not self.entries[ref].done
            assert self.cancel(wanted) is not None
        return Ticket((self.journal, self.journal.written))

    def move(self, found: Found, record: bytes, due_ms: int) -> Block:
        self._locked()
        assert not self.entries[found.ref].done
        block = self._block([(due_ms, found.delay_id, record, found.version + 1)])
        self.entries[found.ref].done = True
        return block

    def restore_delivered_many(self, ids: Sequence[int], versions: Sequence[int]) -> int:
        count = 0
        for wanted, version in zip(ids, versions, strict=True):
            for entry in self.entries:
                if entry.delay_id == wanted and entry.version == version and not entry.done:
                    entry.done = True
                    count += 1
        return count

    @property
    def pending_count(self) -> int:
        return sum(1 for entry in self.entries if not entry.done)


class FakeTarget:
    """A CommitLog in a list, with the never-early check, a guard for topics, and faults."""

    def __init__(self, clock: Callable[[], int]) -> None:
        self.clock = clock
        self.log: list[tuple[int, PutRecord]] = []
        self.missing: set[str] = set()
        self.illegal: set[bytes] = set()
        self.refuses = False
        self.room: int | None = None
        """Puts until the disk is full; None for any number."""
        self.batches: list[int] = []
        self.attempts = 0

    def put_batch(self, puts: Sequence[Put]) -> list[PutResult]:
        now = self.clock()
        records = [put for put in puts if isinstance(put, PutRecord)]
        if len(records) < len(puts):
            return [PutResult(PutStatus.NOT_AS_ONE)] * len(puts)
        self.batches.append(len(records))
        results = []
        for put in records:
            self.attempts += 1
            if put.due_ms > now:
                results.append(PutResult(PutStatus.NOT_DUE))
            elif self.refuses or self.room == 0:
                results.append(PutResult(PutStatus.SERVICE_NOT_AVAILABLE, remark="full"))
            elif put.topic in self.missing:
                results.append(PutResult(PutStatus.TOPIC_NOT_EXIST))
            elif any(word in put.record for word in self.illegal):
                results.append(PutResult(PutStatus.MESSAGE_ILLEGAL))
            else:
                if self.room is not None:
                    self.room -= 1
                results.append(PutResult(PutStatus.PUT_OK, len(self.log), len(self.log), now))
                self.log.append((now, put))
        return results

    def scan(self, from_offset: int) -> Iterable[tuple[int, bytes]]:
        return [(at, put.record) for at, (_, put) in enumerate(self.log) if at >= from_offset]

    def find_delivered(self, wanted: int) -> bytes | None:
        text = f"{wanted - (1 << 62):x}"
        for _, put in self.log:
            found = get_property(put.record.decode("latin-1"), TW_ID) or ""
            if f"{TW_ID}\x01{text}\x02".encode() in put.record or f"{TW_ID}\x01{text}.".encode() in put.record:
                return bytes(put.record)
            assert found is not None
        return None

    @property
    def bodies(self) -> list[bytes]:
        """The bodies delivered, in order."""
        return [body_of(put.record) for _, put in self.log]

    @property
    def late_ms(self) -> list[int]:
        """How late each was."""
        return [now - put.due_ms for now, put in self.log]


def body_of(record: bytes | bytearray) -> bytes:
    """The body of an IPv4 record."""
    return bytes(record[88 : 88 + int.from_bytes(record[84:88], "big")])


class FakeCheckpoint:
    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.touched = 0

    def touch(self, count: int) -> None:
        assert self.lock._is_owned()
        self.touched += count


class Rig:
    """All parts of the plug-in on fakes."""

    def __init__(
        self,
        *,
        now_ms: int = START_MS,
        armed_max: int = 8192,
        hand_max: int = 1024,
        scan_max: int = 512,
        batch_max: int = BATCH_MAX,
        max_delay_ms: int | None = None,
    ) -> None:
        self.clock = ManualClock(now_ms)
        self.checkpoint = FakeCheckpoint()
        self.lock = self.checkpoint.lock
        self.spill = FakeSpill(self.lock)
        self.target = FakeTarget(self.clock)
        self.warnings: list[str] = []
        self.rung = 0
        self.rows = MessageRows(SimDisk(), Path("/cancelled"), b"", 1 << 40)
        self.flusher = Flusher(self.clock)
        self.flusher.add(self.spill.journal, 500)
        self.armed_max = armed_max
        self.hand_max = hand_max
        self.scan_max = scan_max
        self.batch_max = batch_max
        self.max_delay_ms = max_delay_ms
        self.build()

    def build(self) -> None:
        """Make the parts, as at an open: what is visible and not done is pending, what is overdue recovery's."""
        clock = Clock(self.clock)
        self.stats = Stats()
        self.failures = Failures()
        self.ranges = KeyRanges()
        self.ranges.add((-1, 0), self.clock.now_ms)
        self.deliverer = Deliverer(
            self.spill, self.target, self.checkpoint, self.failures, self.stats, self.warnings.append
        )
        self.sweeper = Sweeper(
            self.spill,
            self.deliverer,
            self.ranges,
            self.lock,
            clock,
            self.clock.now_ms,
            armed_max=self.armed_max,
            hand_max=self.hand_max,
            scan_max=self.scan_max,
            batch_max=self.batch_max,
        )
        self.sweeper.ring = self._ring
        self.recovery = OverdueRecovery(
            self.spill, self.deliverer, self.ranges, self.failures, self.lock, clock, batch_max=self.batch_max
        )
        self.gate = Gate(
            self.spill,
            self.sweeper,
            HOST,
            self.stats,
            max_delay_ms=self.max_delay_ms,
            max_body_bytes=4 << 20,
            max_record_bytes=(4 << 20) + (64 << 10),
        )
        past = CancelledRows(self.rows)
        self.changes = Changes(
            self.spill, self.sweeper, self.recovery, self.flusher, self.target, self.lock, self.stats, past
        )
        self.commands = Commands(self.spill, self.sweeper, self.recovery, self.lock, self.changes)
        self.desk = PendingDesk(self.spill, self.sweeper, self.recovery, self.lock, self.stats, self.changes)

    def _ring(self) -> None:
        self.rung += 1

    def crash(self) -> None:
        """Lose the memory: what was journalled and what is in the CommitLog is still there."""
        for ref, entry in enumerate(self.spill.entries):
            entry.visible = True
            current = self.spill.latest.get(entry.delay_id)
            if current is None or self.spill.entries[current].version < entry.version:
                self.spill.latest[entry.delay_id] = ref
        self.spill.epoch += 1
        self.spill.sequence = 0
        self.build()

    # ------------------------------------------------------------------------------------------------ sending

    def send(
        self,
        body: bytes = b"x",
        *,
        at_ms: int | None = None,
        topic: str = "T",
        queue_id: int = 0,
        commit: bool = True,
        **properties: str,
    ) -> int | None:
        """Send one message; answers its virtual offset, or None if it was not held."""
        if at_ms is not None:
            properties["__STARTDELIVERTIME"] = str(at_ms)
        message = Message(topic, queue_id, body=body, properties=format_properties(properties))
        held = self.gate.before_put(message, self.clock.now_ms)
        if commit:
            self.gate.commit_turn()
        return getattr(held, "offset", None)

    # ------------------------------------------------------------------------------------------------ running

    def sweep(self, most: int = 100_000) -> int:
        """Step the sweeper until it wants to sleep; answers until when."""
        for _ in range(most):
            wake = self.sweeper.step(self.clock.now_ms)
            self.check()
            if wake > self.clock.now_ms:
                return wake
        raise AssertionError(f"the sweeper is still busy after {most} steps")

    def recover(self, most: int = 100_000) -> int:
        """Step recovery until it wants to sleep; answers until when."""
        for _ in range(most):
            wake = self.recovery.step(self.clock.now_ms)
            self.check()
            if wake > self.clock.now_ms:
                return wake
        raise AssertionError(f"recovery is still busy after {most} steps")

    def run(self, until_ms: int) -> None:
        """Run both, in virtual time, each exactly when it wants."""
        while True:
            wake = min(self.sweep(), self.recover())
            if self.sweeper.wake_ms <= self.clock.now_ms:
                continue
            if wake > until_ms:
                self.clock.now_ms = until_ms
                self.sweep()
                self.recover()
                return
            self.clock.now_ms = wake

    def check(self) -> None:
        """Nothing early, nothing twice, and every part says that it is well."""
        with self.lock:
            assert self.sweeper.check() == []
            assert self.ranges.check() == []
        assert all(late >= 0 for late in self.target.late_ms[-2000:])
