"""A spill store in a world that goes wrong, beside a model that is two dictionaries and a list.

The world plays the plug-in (arms by scan and publish, delivers by ref into a list that stands for the CommitLog,
takes checkpoints) on a `SimDisk`, with time as a number. The model knows for each message what must be true
after a crash: what was synced must be there, what was not may be, and nothing is ever in two places.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from store.disk.errors import StoreDoubtError, StoreError, SyncFailedError
from store.spill.rows.block import Block
from store.spill.rows.model import SpillOptions
from store.spill.spill_store import SpillStore
from tests.support.simdisk import PowerCut, SimDisk

__all__ = ["SpillWorld", "tiny_options"]

ROOT = Path("/store/timewheel/delay")
STORE_ID = bytes(range(16))
FOREVER = 1 << 61


def tiny_options(**changes: int) -> SpillOptions:
    """Everything so small that every roll-over happens within a few messages."""
    sizes = {
        "segment_bytes": 700,
        "page_bytes": 120,
        "near_ms": 3_000,
        "near_bytes": 3_000,
        "near_records": 60,
        "runs_max": 3,
        "merge_width": 3,
        "punch_bytes": 60,
        "reserve_bytes": 0,
        "cache_bytes": 600,
    }
    return SpillOptions(**(sizes | changes))


class _Parts(random.Random):
    """How much of a failing write gets through: often all of it or nothing, and not some part only."""

    def randint(self, a: int, b: int) -> int:
        """A number from a to b."""
        kind = self.random()
        return b if kind < 0.4 else a if kind < 0.7 else super().randint(a, b)


class Message:
    """What the model knows of one delay id."""

    def __init__(self) -> None:
        self.versions: dict[int, tuple[int, bytes, int]] = {}  # version -> (due, record, journal position, -1 unsure)
        self.live: int | None = None  # the version that is live now
        self.cancel_end: int | None = None  # journal position of a cancel; -1: it failed, or may be there
        self.dead = False  # gone for good: its cancel was durable at a start, or it was never there


class SpillWorld:
    """Operations for a test to call in any order; `verify` compares with the model."""

    def __init__(self, seed: int, options: SpillOptions | None = None) -> None:
        self.rng = random.Random(seed)
        self.disk = SimDisk(seed)
        self.disk.rng = _Parts(seed)
        self.options = options or tiny_options()
        self.now_ms = 1_000_000
        self.messages: dict[int, Message] = {}
        self.log: list[tuple[int, int]] = []
        self.log_synced = 0
        self.checkpoint: tuple[int, bytes | None] = (0, None)
        self.offered: list[Block] = []
        self.armed: dict[int, tuple[int, int, int]] = {}
        self.covered = (-1, 0)
        self.doubts: list[Callable[[], None]] = []  # what to take back in the model when the journal is clear again
        self.opens = 0
        self.graveyard: list[SpillStore] = []  # crashed ones: collecting their jobs would tidy up behind them
        self.store = self._open()

    # ------------------------------------------------------------------------------------------------ life

    @contextmanager
    def lived(self) -> Iterator[None]:
        """Live in here; afterwards no call fails: jobs that are under way tidy up when they are collected."""
        try:
            yield
        finally:
            self.disk.fault, self.disk.off = None, False

    def _open(self) -> SpillStore:
        position, section = self.checkpoint
        store = SpillStore.open(self.disk, ROOT, STORE_ID, self.options, section)
        self.opens += 1
        delivered = self.log[position:]
        with store.lock:
            store.restore_delivered_many([i for i, _ in delivered], [v for _, v in delivered])
        self.offered, self.armed, self.covered, self.doubts = [], {}, (-1, 0), []
        return store

    def reopen(self, power: bool) -> None:
        """Go down (kill, or power cut), come up, compare with what may and must be there, and go on from that."""
        if power:
            self.disk.power_cut(self.rng.choice((0.0, 0.5, 1.0)))
            del self.log[self.rng.randint(self.log_synced, len(self.log)) :]
        else:
            self.disk.kill()
        synced = self.store.journal.synced if power else 1 << 62
        self.graveyard.append(self.store)
        self.store = self._open()
        self._adopt(synced)
        self.verify()

    def stop_and_start(self) -> None:
        """A clean end and a new start."""
        self.publish_all()
        self.store.close()
        self.store = self._open()
        self._adopt(1 << 62)
        self.verify()

    def _adopt(self, synced: int) -> None:
        live = self._scan_all()
        in_log = dict(self.log)
        for id_, message in self.messages.items():
            found = live.pop(id_, None)
            sure = [v for v, (_, _, end) in message.versions.items() if 0 <= end <= synced]
            cancelled = message.cancel_end is not None and 0 <= message.cancel_end <= synced
            if id_ in in_log or cancelled or message.dead:
                assert found is None, f"{id_:#x} is done (log {in_log.get(id_)}, cancelled {cancelled}), but live"
                message.live = None
                message.dead = message.dead or (cancelled and id_ not in in_log)
                continue
            if found is None:
                assert not sure or message.cancel_end is not None, f"{id_:#x} version {max(sure)} is lost"
                message.dead = True
                message.live = None
                continue
            version, due, record = found
            assert message.versions[version][:2] == (due, record), f"{id_:#x} has come back as something else"
            assert not sure or version >= max(sure), f"{id_:#x} version {version} is back, {max(sure)} was durable"
            message.live = version
            message.cancel_end = None
            message.versions = {v: (d, r, 0) for v, (d, r, _) in message.versions.items() if v <= version}
        assert not live, f"messages that nobody sent: {list(map(hex, live))}"

    def _scan_all(self) -> dict[int, tuple[int, int, bytes]]:
        store = self.store
        found: dict[int, tuple[int, int, bytes]] = {}
        with store.lock:
            columns = store.scan((-1, 0), FOREVER, 1 << 20)
            records = store.read(columns.refs)
            keys = list(zip(columns.dues, columns.ids, strict=True))
            assert keys == sorted(keys)
            for due, id_, ref, record in zip(columns.dues, columns.ids, columns.refs, records, strict=True):
                assert id_ not in found, f"{id_:#x} is live twice"
                known = store.find(id_)
                assert known is not None
                assert known.ref == ref, f"{id_:#x} {ref:#x} {known}"
                assert not known.done
                found[id_] = (known.version, due, record)
        return found

    # ------------------------------------------------------------------------------------------------ the plug-in

    def accept(self, count: int, *, far: bool) -> None:
        """Accept a turn's messages."""
        rng = self.rng
        entries = []
        for _ in range(count):
            id_ = self.store.next_id()
            due = self.now_ms + rng.randint(0, 200_000 if far else 5_000)
            record = b"%d/%d/" % (due, id_) + bytes(rng.randint(0, 40))
            entries.append((due, id_, record))
            self.messages[id_] = Message()
        try:
            block = self.store.append(entries)
        except StoreError as error:
            for due, id_, record in entries:
                self.messages[id_].versions[0] = (due, record, -1)
                self._refused(error, self.messages[id_], dead=True)
            raise
        except PowerCut:
            for due, id_, record in entries:
                self.messages[id_].versions[0] = (due, record, -1)
            raise
        self._cleared()
        end = block.ticket.waits[0][1]
        for due, id_, record in entries:
            self.messages[id_].versions[0] = (due, record, end)
        self.offered.append(block)

    def publish(self) -> None:
        """Publish one block, any; arm what is below the frontier."""
        if not self.offered:
            return
        block = self.offered.pop(self.rng.randrange(len(self.offered)))
        with self.store.lock:
            columns = self.store.publish(block)
            for due, id_, ref in zip(columns.dues, columns.ids, columns.refs, strict=True):
                message = self.messages[id_]
                version = max(message.versions)
                if message.live is None and not message.dead:
                    message.live = version
                if (due, id_) <= self.covered:
                    self.armed[ref] = (due, id_, version)

    def publish_all(self) -> None:
        """Publish every block."""
        while self.offered:
            self.publish()

    def arm(self) -> None:
        """Advance the frontier by one bounded scan."""
        limit = self.rng.choice((1, 3, 50))
        until_ms = self.now_ms + 1_000
        with self.store.lock:
            columns = self.store.scan(self.covered, until_ms, limit)
            if len(columns) == limit:
                covered = (columns.dues[-1], columns.ids[-1])
            else:
                covered = max(self.covered, (until_ms - 1, FOREVER * 4))
            self.store.frontier_ms = covered[0] + 1
            self.covered = covered
            for due, id_, ref in zip(columns.dues, columns.ids, columns.refs, strict=True):
                version = self.messages[id_].live
                assert version is not None, f"{id_:#x} is done, but scan answers it"
                self.armed[ref] = (due, id_, version)

    def deliver(self) -> None:
        """Deliver some of what is armed and due, by ref, whatever became of the file since."""
        due = sorted((d, i, v, ref) for ref, (d, i, v) in self.armed.items() if d <= self.now_ms)
        chosen = due[: self.rng.choice((1, 4, 100))]
        with self.store.lock:
            in_doubt = self.store.in_doubt
            chosen = [entry for entry in chosen if not self.store.is_done(entry[3]) and entry[1] not in in_doubt]
            records = self.store.read([ref for _, _, _, ref in chosen])
            for (due_ms, id_, version, ref), record in zip(chosen, records, strict=True):
                message = self.messages[id_]
                assert message.live == version, f"{id_:#x} version {version} is delivered, live is {message.live}"
                assert message.versions[version][:2] == (due_ms, record)
                self.log.append((id_, version))
                self.store.mark_done([ref])
                message.live = None
        for *_, ref in due:
            if self.store.is_done(ref):
                del self.armed[ref]

    def _some_live(self) -> int | None:
        ids = [i for i, m in self.messages.items() if m.live is not None]
        return self.rng.choice(ids) if ids else None

    def cancel(self) -> None:
        """Cancel one live message."""
        id_ = self._some_live()
        if id_ is None:
            return
        message = self.messages[id_]
        with self.store.lock:
            try:
                ticket = self.store.cancel(id_)
            except BaseException as error:
                message.cancel_end = -1
                self._refused(error, message, cancel_end=None)
                raise
            assert ticket is not None
            self._cleared()
            message.cancel_end = ticket.waits[0][1]
            message.live = None

    def move(self) -> None:
        """Move one live message."""
        id_ = self._some_live()
        if id_ is None:
            return
        message = self.messages[id_]
        with self.store.lock:
            found = self.store.find(id_)
            assert found is not None
            assert found.version == message.live
            due = self.now_ms + self.rng.randint(0, 100_000)
            if self.rng.random() < 0.4:
                due = self.rng.choice([due for due, _, _ in message.versions.values()])  # maybe the one it has
            record = b"moved %d/%d/" % (due, id_) + bytes(self.rng.randint(0, 40))
            try:
                block = self.store.move(found, record, due)
            except BaseException as error:
                before = dict(message.versions)
                message.versions[found.version + 1] = (due, record, -1)
                self._refused(error, message, versions=before)
                raise
            self._cleared()
            message.versions[found.version + 1] = (due, record, block.ticket.waits[0][1])
            message.live = None
        self.offered.append(block)

    def _refused(self, error: BaseException, message: Message, **before: object) -> None:
        """What was refused never counts, after a crash neither; unless the refusal said so, and then not for long."""

        def take_back() -> None:
            for name, value in before.items():
                setattr(message, name, value)

        if isinstance(error, StoreDoubtError):
            self.doubts.append(take_back)
        elif isinstance(error, StoreError):
            take_back()

    def _cleared(self) -> None:
        """Something was written to the journal, or nothing torn is in it: what was in doubt is not any more."""
        while self.doubts:
            self.doubts.pop()()

    def sync(self) -> None:
        """Sync the journal."""
        self.store.journal.sync()

    def take_checkpoint(self) -> None:
        """Snapshot, sync, write, tell."""
        with self.store.lock:
            position = len(self.log)
            section = self.store.snapshot()
        for _ in range(self.rng.choice((0, 0, 1, 4))):  # the world does not stand still while it is written
            self.rng.choice((self.deliver, self.arm, self.publish, self.cancel, self.move, self._some_spill))()
        self.store.journal.sync()
        self.log_synced = max(self.log_synced, position)
        try:
            self.disk.before("checkpoint", ROOT)
        except PowerCut:
            if self.rng.random() < 0.5:
                self.checkpoint = (position, section)
            raise
        self.checkpoint = (position, section)
        self.store.durable()

    def spill(self, slices: int) -> None:
        """Some slices of background work, a quarter of the time with deliveries late."""
        patient = self.rng.random() < 0.75
        for _ in range(slices):
            if not self.store.spill_step(self.now_ms, patient=patient):
                break

    def _some_spill(self) -> None:
        self.spill(self.rng.choice((1, 5, 60)))

    def pass_time(self, step_ms: int) -> None:
        """Let time go by (or back: what was armed for later is forgotten)."""
        self.now_ms += step_ms
        if step_ms < 0 and self.covered[0] > self.now_ms:
            with self.store.lock:
                self.covered = (self.now_ms, FOREVER * 4)
                self.store.frontier_ms = self.now_ms + 1
                self.armed = {ref: entry for ref, entry in self.armed.items() if entry[0] <= self.now_ms}

    # ------------------------------------------------------------------------------------------------ trouble

    def fault_at(self, number: int, error: BaseException | None, only: str = "all", span: int = 1) -> None:
        """Break the ``number``-th operation from now on: a power cut (None; nothing works after it) or an error.

        With ``span`` that many operations fail, one after the other: the write, and what would clear up after it.
        """
        count = 0

        def fault(operation: str, path: Path) -> None:
            nonlocal count
            if only not in ("all", operation) or "store" not in str(path):
                return
            count += 1
            if error is None and count >= number:
                raise PowerCut
            if error is not None and number <= count < number + span:
                if operation in ("sync", "sync_dir"):
                    if isinstance(error, SyncFailedError) or span > 1:
                        raise SyncFailedError("input/output error")
                elif not isinstance(error, SyncFailedError):
                    raise error
                count -= 1

        self.disk.fault = fault

    def attempt(self, operation: Callable[[], None]) -> bool:
        """Run an operation; a StoreError must have changed nothing, a power cut is followed by a start.

        False: it was refused.
        """
        try:
            operation()
            if not self.store.in_doubt and not self.store._journal.is_torn:
                self._cleared()
        except StoreError:
            return False
        except PowerCut:
            while True:
                try:
                    self.reopen(power=True)
                    break
                except PowerCut:  # no fault is set by then
                    raise AssertionError("power cut while the disk is fine") from None
        return True

    # ------------------------------------------------------------------------------------------------ comparing

    def verify(self, deep: bool = True) -> None:
        """Compare everything with the model."""
        expected = {
            i: (m.live, m.versions[m.live][0], m.versions[m.live][1])
            for i, m in self.messages.items()
            if m.live is not None
        }
        found = self._scan_all()
        assert found == expected, sorted(set(found.items()) ^ set(expected.items()))
        assert self.store.pending_count == len(expected) + sum(map(len, self.offered))
        if deep:
            problems = self.store.check()
            assert problems == [], problems
