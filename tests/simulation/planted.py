"""Planted bugs: each breaks one rule on which a promise rests, and the simulation must find it.

They live here and not in the product: a context manager puts the mistake in the place of the right thing. Each names
the kinds of findings that it must be found by, within `tests.simulation.plant.SEEDS` seeds; a test holds
it to that.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

import store.log.commit_log
import store.log.log_scan
import store.spill.journal.replay
import store.spill.upkeep.opening
from broker.core import BrokerCore
from broker.tables.late_tables import LateTable
from broker.turns.turn import Turn
from broker_plugin.aside import GateAside
from broker_plugin.delivery import Deliverer
from broker_plugin.failures import UNREADABLE, Failures
from broker_plugin.plugin import DelayPlugin
from broker_plugin.sweeper import Sweeper
from store.disk.checkpoint import DeliveryCheckpoint
from store.disk.delay_id import delay_id
from store.disk.errors import StoreError
from store.disk.file import File
from store.disk.files import Files
from store.disk.flusher import Flusher
from store.disk.segments import Segment
from store.half_messages import HalfMessages
from store.levels.level_progress import LevelProgress
from store.levels.level_scheduler import LevelScheduler
from store.log.commit_log import CommitLog
from store.message_store import MessageStore
from store.put.plugin_api import PutBlock, PutResult, PutStatus
from store.retention import Retention
from store.spill.journal.journal import Journal
from store.spill.rows.format import MOVE
from store.spill.runs.run import Run
from store.spill.runs.run_writer import RunWriter
from store.spill.spill_store import SpillStore
from store.spill.upkeep.housekeeping import Housekeeping
from tests.simulation.kinds import Kind
from tests.simulation.plant import Plant, swap
from tests.simulation.planted_pending import PLANTED_PENDING
from tests.simulation.planted_pops import PLANTED_POPS
from timewheel import TimingWheel

__all__ = ["PLANTED"]

_right: dict[str, Any] = {
    "makedirs": Files.makedirs,
    "mark_done": SpillStore.mark_done,
    "clear": File.clear,
    "put": Deliverer._put,
    "put_one_block": Deliverer._put_block,
    "deliver": Deliverer.deliver,
    "put_batch": MessageStore.put_batch,
    "append": MessageStore._append,
    "sweep": Sweeper.step,
    "recover_transactions": BrokerCore._recover_transactions,
    "restore": DelayPlugin._restore,
    "restore_halves": HalfMessages._restore,
    "add_failure": Failures.add,
    "advance": TimingWheel.advance,
    "insert": TimingWheel.insert,
    "spill_step": SpillStore.spill_step,
    "delete_expired": Retention.delete_expired,
    "settle": LevelScheduler._settle,
    "write": DeliveryCheckpoint.write,
    "finish": RunWriter.finish,
    "punchable": Run.punchable,
    "write_table": LateTable.write,
}


def _write_progress(deliverer: Any, refs: Any) -> None:
    deliverer._spill.mark_done(refs)
    log = deliverer._target.commit_log
    deliverer._checkpoint.write(lambda: log.end, log.sync)


def _fresh_in_any_case(self: Any, refs: Any) -> int:
    """The deliverer notices a second delivery by this answer; the mistake is to be found by what it does."""
    _right["mark_done"](self, refs)
    return len(refs)


def _progress_before_append(self: Any, places: Any, dues: Any, refs: Any, *rest: Any) -> Any:
    _write_progress(self, refs)
    return _right["put"](self, places, dues, refs, *rest)


def _progress_before_block(self: Any, slab: Any, dues: Any, refs: Any, *rest: Any) -> Any:
    _write_progress(self, refs)
    return _right["put_one_block"](self, slab, dues, refs, *rest)


def _failed_block_is_done(self: Any, puts: Any) -> Any:
    results = _right["put_batch"](self, puts)
    if puts and isinstance(puts[0], PutBlock) and results[0].status is PutStatus.SERVICE_NOT_AVAILABLE:
        results = [PutResult(PutStatus.PUT_OK, store_ms=puts[0].due_ms)]
    return results


def _sync_nothing(self: Any) -> None:
    self._synced = self._written if isinstance(self, Journal) else self._end


def _scan_too_short(self: Any, records: Any) -> None:
    _right["restore"](self, islice(records, 2))


def _claim_unchecked(self: Any, *args: Any, **named: Any) -> Any:
    return _right["deliver"](self, *args, **{**named, "fresh": True})


class _ReadBefore:
    """The clock of a store, as it was before somebody got its append lock."""

    def __init__(self, clock: Callable[[], int]) -> None:
        self.clock = clock
        self.read: dict[int, int] = {}  # by thread

    def __call__(self) -> int:
        return self.read.get(threading.get_ident(), 0) or self.clock()


def _clock_outside_lock(name: str) -> Callable[..., Any]:
    def put(self: Any, *args: Any) -> Any:
        if not isinstance(self._now_ms, _ReadBefore):
            self._now_ms = _ReadBefore(self._now_ms)
        clock = self._now_ms
        clock.read[threading.get_ident()] = clock.clock()
        try:
            return _right[name](self, *args)
        finally:
            del clock.read[threading.get_ident()]

    return put


def _equal_dues_unordered(self: Any, *args: Any) -> Any:
    dues, refs = _right["advance"](self, *args)
    order = sorted(range(len(dues)), key=lambda at: (dues[at], -at))
    return [dues[at] for at in order], [refs[at] for at in order]


def _let_go_too_soon(self: Any, now_ms: int, *, patient: bool = True) -> bool:
    finished = {segment.no for segment in self._journal.finished()} - self._housekeeping.busy
    self._housekeeping.removable |= finished
    more: bool = _right["spill_step"](self, now_ms, patient=patient)
    return more


def _no_pins(self: Any, now_ms: int) -> int:
    pins, levels_pin = self.pins, self.levels_pin
    self.pins, self.levels_pin = [], lambda: 1 << 62
    try:
        count: int = _right["delete_expired"](self, now_ms)
        return count
    finally:
        self.pins, self.levels_pin = pins, levels_pin


def _same_epoch(self: Any) -> int:
    sequence = self._sequence
    self._sequence = sequence + 1
    return delay_id(1, sequence)


def _old_version_lives(self: Any, found: Any, record: bytes, due_ms: int) -> Any:
    return self._journal.append(MOVE, (due_ms,), (found.delay_id,), (found.version + 1,), (record,))


def _failed_put_is_done(self: Any, claims: Any, results: Any, now_ms: int) -> None:
    _right["settle"](self, claims, [PutResult(PutStatus.PUT_OK) for _ in results], now_ms)


def _checkpoint_before_sync(self: Any, log_end: Any, sync: Any) -> None:
    del sync
    _right["write"](self, log_end, lambda: None)


def _unlisted_for_a_moment(self: CommitLog, segment: Segment | None = None) -> Segment:
    start = self._end if segment is None else segment.end
    with self._ahead_lock:
        following = self._ahead or self._segments.get(start)
        if following is None or following.start != start:
            following = Segment(self._files, self.directory, start, self.segment_bytes)
            following.create()
            self._directory_dirty = True
        self._ahead = None
    for _ in range(2):  # others have their chance at each call of the disk
        with suppress(StoreError):
            self._files.sync_dir(self.directory)
    self._segments[start] = following
    if segment is None:
        self._tail = following
    return following


def _often_ahead(self: MessageStore, now_ms: int) -> int:
    """The housekeeper looks for segments to be made ahead more often than it does, so that they meet."""
    self.commit_log.allocate_ahead()
    return now_ms + 100


class _NeverSynced:
    """A file that only says that it was synced."""

    def __init__(self, file: Any) -> None:
        self._file = file

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def sync(self) -> None:
        """Do nothing."""


def _run_unsynced(self: Any) -> Iterator[None]:
    self._out = _NeverSynced(self._out)
    yield from _right["finish"](self)


def _torn_left(self: CommitLog) -> None:
    self._torn_end = 0


def _lost_at_boundary(self: Any, due_ms: int, item: Any) -> int:
    """The first slot of a level is never looked at."""
    handle: int = _right["insert"](self, due_ms, item) if due_ms % 64 else 1
    return handle


def _many_lost_at_boundary(self: Any, dues: Any, items: Any) -> list[int]:
    return [_lost_at_boundary(self, due_ms, item) for due_ms, item in zip(dues, items, strict=True)]


def _append_early(self: Any, puts: Any, now_ms: int) -> Any:
    """A millisecond too soon, where the clock is checked last ..."""
    return _right["append"](self, puts, now_ms + 1)


def _sweep_early(self: Any, now_ms: int) -> Any:
    """... and where the sweeper looks first."""
    return _right["sweep"](self, now_ms + 1)


def _what_has_no_topic_is_forgotten(self: Any, reason: str, *rest: Any) -> None:
    if reason != PutStatus.TOPIC_NOT_EXIST.name:
        _right["add_failure"](self, reason, *rest)


def _nothing_undecided(self: Any, section: bytes) -> int:
    lowest: int = _right["restore_halves"](self, section)
    self.undecided.clear()
    return lowest


def _what_fails_is_forgotten(self: Any, reason: str, *rest: Any) -> None:
    if reason != UNREADABLE:
        _right["add_failure"](self, reason, *rest)


def _punch_what_is_done(self: Run) -> tuple[int, list[tuple[int, int]]]:
    """Holes for what is done, whether a durable checkpoint says so or not."""
    saved = self.saved
    self.saved = self.done.encode()
    try:
        found: tuple[int, list[tuple[int, int]]] = _right["punchable"](self)
        return found
    finally:
        self.saved = saved


def _reclaim_what_is_done(_self: Housekeeping, run: Run) -> int:
    done = min(run.done.prefix, run.end) - run.rows_per_page - run.punched
    return 0 if run.is_index or done <= 0 else run.shape.data_bytes * done // run.count


def _nothing_on_its_way(self: HalfMessages) -> int:
    return self.pin


def _as_if_not_rebuilt(self: BrokerCore) -> HalfMessages:
    halves: HalfMessages = _right["recover_transactions"](self)
    self.store.recovery.rebuilt = False
    return halves


def _read_only(self: Files, path: Any) -> bytes:
    return self.read_file(path)


def _makedirs_believes(self: Files, path: Any) -> None:
    """What is there is taken to be durable: else its directory is synced beside the point, and the names in it, too."""
    there = next(step for step in (path, *path.parents) if self.is_dir(step))
    self._durable.add(there)
    _right["makedirs"](self, path)


class _Tables:
    """What a table writes, one batch late: whoever waits for a batch is told before it is durable."""

    left: ClassVar[dict[int, tuple[Any, Any]]] = {}


def _write_one_late(self: LateTable[Any, Any]) -> None:
    right = self._save

    def save(planned: Any) -> None:
        before = _Tables.left.pop(id(self), None)
        _Tables.left[id(self)] = (self, dict(planned))
        if before is not None:
            right(before[1])

    self._save = save
    try:
        _right["write_table"](self)
    finally:
        self._save = right


def _clear_what_reads_as_something(self: File, offset: int, n: int, unsure: int = 0) -> None:
    del unsure
    _right["clear"](self, offset, n)


def _believe_what_is_there(self: Files, path: Path) -> None:
    for step in reversed([path, *path.parents]):
        if not self.is_dir(step):
            self.mkdir(step)
            self.sync_dir(step.parent)


_LOST = (Kind.LOST,)
_GONE = (Kind.LOST, Kind.START, Kind.DURABLE)
_UNNOTICED = (SpillStore, "mark_done", _fresh_in_any_case)
"""What had been durable is not there: lost, or the start says so, or a look at the medium does."""
_PENDING = (Kind.LOST, Kind.QUEUES)

PLANTED: dict[str, Plant] = {
    **PLANTED_POPS,
    **PLANTED_PENDING,
    "progress is written before the append": Plant(
        swap((Deliverer, "_put", _progress_before_append), _UNNOTICED), *_LOST
    ),
    "progress is written before a block is appended": Plant(
        swap((Deliverer, "_put_block", _progress_before_block), _UNNOTICED), *_LOST
    ),
    "a block's put that failed counts as done": Plant(
        swap((MessageStore, "put_batch", _failed_block_is_done)),
        *(Kind.LOST, Kind.COMMAND),
        share=0,
        fond="write is torn",
        first=5,
    ),
    "the checkpoint does not wait for the log's sync": Plant(
        swap((DeliveryCheckpoint, "write", _checkpoint_before_sync)), *_GONE
    ),
    "the journal forgets to sync": Plant(swap((Journal, "sync", _sync_nothing)), *_GONE),
    "the log forgets to sync": Plant(swap((CommitLog, "sync", _sync_nothing)), *_GONE),
    "after a failed sync the journal is not written again": Plant(
        swap((Journal, "_write_again", lambda *_: None)), *_GONE, share=0, fond="sync is made up for", first=4
    ),
    "after a failed sync the log is not written again": Plant(
        swap((CommitLog, "_rewrite", lambda _: None)), *_GONE, share=0, fond="sync is made up for"
    ),
    "a reply does not wait for its sync": Plant(
        swap((Flusher, "submit", lambda _self, _ticket, tell: tell(True))), *_LOST, first=4
    ),
    "a command does not wait for its sync": Plant(swap((Flusher, "wait", lambda *_: None)), Kind.COMMAND, first=4),
    "ASYNC_FLUSH never syncs": Plant(swap((Flusher, "_sync_periodic", lambda *_: None)), *_LOST, first=27),
    "a timer on a level's boundary is lost": Plant(
        swap((TimingWheel, "insert", _lost_at_boundary), (TimingWheel, "insert_many", _many_lost_at_boundary)), *_LOST
    ),
    "a millisecond early": Plant(
        swap((MessageStore, "_append", _append_early), (Sweeper, "step", _sweep_early)), Kind.EARLY
    ),
    "the clock is read outside the append lock": Plant(
        swap(
            (MessageStore, "put_batch", _clock_outside_lock("put_batch")),
        ),
        Kind.EARLY,
        share=0,
        fond="clock at the lock",
    ),
    "a torn tail of the log is accepted": Plant(
        swap((store.log.commit_log, "walk", partial(store.log.commit_log.walk, check_crc=False))),
        *(Kind.CONTENT, Kind.CHECK, Kind.QUEUES, Kind.LOST),
        share=0,
        fond="end is torn",
        first=4,
    ),
    "a torn frame of the journal is accepted": Plant(
        swap((store.spill.journal.replay, "records_are_whole", lambda *_: True)), *(*_LOST, Kind.CHECK), first=4
    ),
    "what a failed write left behind stays": Plant(
        swap((CommitLog, "_clear_torn", _torn_left)),
        *(Kind.REFUSED, Kind.TWICE, Kind.COMMAND, Kind.BATCH),
        share=0,
        fond="fail and crash",
    ),
    "the scan for delay ids is too short": Plant(swap((DelayPlugin, "_restore", _scan_too_short)), Kind.TWICE),
    "the scan for level copies is left out": Plant(
        swap((LevelProgress, "_marks", lambda *_: {})), Kind.TWICE, share=0, fond="crash", first=7
    ),
    "a claim is not checked against a cancel": Plant(
        swap((Deliverer, "deliver", _claim_unchecked), _UNNOTICED), *(Kind.COMMAND, Kind.TWICE)
    ),
    "the old version of a moved message lives on": Plant(
        swap((SpillStore, "move", _old_version_lives)), *(Kind.COMMAND, Kind.TWICE)
    ),
    "equal due times are not in order": Plant(swap((TimingWheel, "advance", _equal_dues_unordered)), Kind.ORDER),
    "files go before a checkpoint says that they may": Plant(
        swap((SpillStore, "spill_step", _let_go_too_soon)), *(Kind.LOST, Kind.TWICE, Kind.START, Kind.ANSWER), first=4
    ),
    "a run is listed before it is synced": Plant(swap((RunWriter, "finish", _run_unsynced)), *_GONE, first=4),
    "retention does not ask for pins": Plant(
        swap((Retention, "delete_expired", _no_pins)), *_GONE, share=0, fond="all expires"
    ),
    "every start has the same epoch": Plant(swap((SpillStore, "next_id", _same_epoch)), *(Kind.ANSWER, Kind.LOST)),
    "a level's put that failed counts as done": Plant(
        swap((LevelScheduler, "_settle", _failed_put_is_done)), *_LOST, share=0, fond="level fails"
    ),
    "what waits of a refused batch is not taken back": Plant(
        swap((Turn, "_take_back_refused", lambda _, entries, results: (entries, results))),
        Kind.BATCH,
        share=0,
        fond="batch is refused",
    ),
    "what waits of a refused large batch is not taken back": Plant(
        swap((GateAside, "take_back", lambda _: None)), Kind.BATCH, share=0, fond="batch is refused"
    ),
    "a message that cannot be read is forgotten": Plant(
        swap((Failures, "add", _what_fails_is_forgotten)), *_LOST, first=8
    ),
    "a message without a topic is forgotten": Plant(
        swap((Failures, "add", _what_has_no_topic_is_forgotten)), *_LOST, share=0, fond="topic away"
    ),
    "a decision is not remembered": Plant(
        swap((HalfMessages, "_apply", lambda *_: None)),
        *(Kind.TRANSACTION, Kind.TWICE),
        first=4,
    ),
    "the checkpoint's undecided messages are forgotten": Plant(
        swap((HalfMessages, "_restore", _nothing_undecided)),
        *(Kind.LOST, Kind.TRANSACTION),
        first=4,
    ),
    "the next segment is not listed under its lock": Plant(
        swap((CommitLog, "_next_segment", _unlisted_for_a_moment), (MessageStore, "_allocate", _often_ahead)),
        *_GONE,
        share=0,
        fond="roll",
        first=3,
    ),
    "holes are punched by done bits that are not durable": Plant(
        swap((Run, "punchable", _punch_what_is_done), (Housekeeping, "_reclaimable", _reclaim_what_is_done)),
        *(*_LOST, Kind.CHECK),
        share=0,
        fond="lost deliveries",
        first=5,
    ),
    "the journal's end is not zeroed": Plant(
        swap((store.spill.upkeep.opening, "cut_behind", lambda _: None)),
        Kind.DURABLE,
        first=2,
    ),
    "the log is not written again after an unclean end": Plant(
        swap((CommitLog, "_write_again", lambda *_: None)), *_GONE, share=0, fond="sync is made up for"
    ),
    "a state file is read without a sync of its name": Plant(
        swap((Files, "read_replaced", _read_only), (Files, "makedirs", _makedirs_believes)),
        *_GONE,
        first=5,
    ),
    "half messages that are not accounted for are not pinned": Plant(
        swap((HalfMessages, "needed_offset", _nothing_on_its_way)),
        *(Kind.LOST, Kind.UNPINNED),
        first=61,
    ),
    "a record's checksum is not looked at": Plant(
        swap((store.log.log_scan, "is_proof", lambda _: False)),
        *(Kind.CONTENT, Kind.QUEUES, Kind.CHECK, Kind.TWICE),
        share=0,
        fond="end is torn",
        first=4,
    ),
    "a command does not see to what a failed write has left behind": Plant(
        swap((MessageStore, "settle", lambda _: None)), *(Kind.COMMAND, Kind.TWICE), share=0, fond="write is torn"
    ),
    "zeros over what a failed write has left behind are not synced": Plant(
        swap((CommitLog, "_sync_file", lambda *_: None)),
        *(Kind.COMMAND, Kind.TWICE, Kind.REFUSED, Kind.BATCH),
        share=0,
        fond="write is torn",
        first=9,
    ),
    "zeros whose sync has failed are not written again": Plant(
        swap((File, "clear", _clear_what_reads_as_something)), *_GONE, share=0, fond="end is torn"
    ),
    "a directory of a killed process is built on as it is": Plant(
        swap((Files, "makedirs", _believe_what_is_there)), *_GONE, share=0
    ),
    "a table's change is answered before it is durable": Plant(swap((LateTable, "write", _write_one_late)), Kind.NAMES),
    "no checkpoint after all queues were derived": Plant(
        swap((BrokerCore, "_recover_transactions", _as_if_not_rebuilt)),
        *(Kind.LOST, Kind.TRANSACTION, Kind.DURABLE),
        share=0,
        fond="derive anew",
    ),
}
