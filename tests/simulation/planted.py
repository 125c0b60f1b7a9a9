"""Planted bugs: each breaks one rule on which a promise rests, and the simulation must find it.

They live here and not in the product: a context manager puts the mistake in the place of the right thing. `SEEDS` says
within how many seeds (with crash points at `SHARE` of their calls, or at more: `LARGER_SHARES`) each is found; a test
holds it to that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from itertools import islice
from typing import Any
from unittest.mock import patch

import store.commit_log
import store.spill.replay
from broker.turn import Turn
from broker_plugin.delivery import Deliverer
from broker_plugin.failures import UNREADABLE, Failures
from broker_plugin.plugin import DelayPlugin
from broker_plugin.sweeper import Sweeper
from store.checkpoint import DeliveryCheckpoint
from store.commit_log import CommitLog
from store.errors import StoreError
from store.flusher import Flusher
from store.half_messages import HalfMessages
from store.hook import PutResult, PutStatus
from store.level_progress import LevelProgress
from store.level_scheduler import LevelScheduler
from store.message_store import MessageStore
from store.retention import Retention
from store.segments import Segment
from store.spill.format import MOVE
from store.spill.journal import Journal
from store.spill.model import delay_id
from store.spill.run_writer import RunWriter
from store.spill.spill_store import SpillStore
from timewheel import TimingWheel

__all__ = ["LARGER_SHARES", "PLANTED", "SEEDS", "SHARE", "Plant"]

Plant = Callable[[], AbstractContextManager[Any]]
SEEDS = 400
SHARE = 0.02
LARGER_SHARES = {"what a failed write left behind stays": 0.3}
"""What shows only in a crash between two neighbouring calls needs more of them."""

_right: dict[str, Any] = {
    "put": Deliverer._put,
    "put_one_block": Deliverer._put_block,
    "deliver": Deliverer.deliver,
    "put_batch": MessageStore.put_batch,
    "put_block": MessageStore.put_block,
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
}


def _swap(owner: Any, name: str, wrong: Any) -> Plant:
    return lambda: patch.object(owner, name, wrong)


def _write_progress(deliverer: Any, refs: Any) -> None:
    deliverer._spill.mark_done(refs)
    log = deliverer._target.commit_log
    deliverer._checkpoint.write(lambda: log.end, log.sync)


def _progress_before_append(self: Any, places: Any, dues: Any, refs: Any, *rest: Any) -> Any:
    _write_progress(self, refs)
    return _right["put"](self, places, dues, refs, *rest)


def _progress_before_block(self: Any, target: Any, block: Any, dues: Any, refs: Any, lateness: Any) -> Any:
    _write_progress(self, refs)
    return _right["put_one_block"](self, target, block, dues, refs, lateness)


def _failed_block_is_done(self: Any, block: Any, due_ms: int) -> Any:
    result = _right["put_block"](self, block, due_ms)
    return result and PutResult(PutStatus.PUT_OK, store_ms=due_ms)


def _sync_nothing(self: Any) -> None:
    self._synced = self._written if isinstance(self, Journal) else self._end


def _scan_too_short(self: Any, records: Any) -> None:
    _right["restore"](self, islice(records, 2))


def _claim_unchecked(self: Any, *args: Any, **named: Any) -> Any:
    return _right["deliver"](self, *args, **{**named, "fresh": True})


def _clock_outside_lock(self: Any, records: Any, units: Any = None) -> Any:
    read, clock = self._now_ms(), self._now_ms
    lock = self._append_lock

    class Outside:
        def __enter__(self) -> None:
            lock.acquire()
            store._now_ms = lambda: read

        def __exit__(self, *_: object) -> None:
            store._now_ms = clock
            lock.release()

    store = self
    with patch.object(self, "_append_lock", Outside()):
        return _right["put_batch"](self, records, units)


def _equal_dues_unordered(self: Any, *args: Any) -> Any:
    dues, refs = _right["advance"](self, *args)
    order = sorted(range(len(dues)), key=lambda at: (dues[at], -at))
    return [dues[at] for at in order], [refs[at] for at in order]


def _let_go_too_soon(self: Any, now_ms: int, frontier_ms: int) -> bool:
    finished = {segment.no for segment in self._journal.finished()} - self._housekeeping.busy
    self._housekeeping.removable |= finished
    more: bool = _right["spill_step"](self, now_ms, frontier_ms)
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


@contextmanager
def _next_segment_unlisted() -> Iterator[None]:
    """And the housekeeper looks for segments to be made ahead more often than it does, so that they meet."""

    def allocate(self: MessageStore, now_ms: int) -> int:
        self.commit_log.allocate_ahead()
        return now_ms + 100

    often = patch.object(MessageStore, "_allocate", allocate)
    with patch.object(CommitLog, "_next_segment", _unlisted_for_a_moment), often:
        yield


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


@contextmanager
def _lost_at_level_boundary() -> Iterator[None]:
    """The first slot of a level is never looked at."""

    def insert(self: Any, due_ms: int, item: Any) -> int:
        handle: int = _right["insert"](self, due_ms, item) if due_ms % 64 else 1
        return handle

    def insert_many(self: Any, dues: Any, items: Any) -> list[int]:
        return [insert(self, due_ms, item) for due_ms, item in zip(dues, items, strict=True)]

    with patch.object(TimingWheel, "insert", insert), patch.object(TimingWheel, "insert_many", insert_many):
        yield


@contextmanager
def _early_by_one() -> Iterator[None]:
    """A millisecond too soon, where the clock is checked last and where the sweeper looks first."""
    right, step = MessageStore._append, Sweeper.step

    def append(self: Any, records: Any, results: Any, start: int, now_ms: int, arrived: Any, whole: bool) -> None:
        right(self, records, results, start, now_ms + 1, arrived, whole)

    sooner = patch.object(Sweeper, "step", lambda self, now_ms: step(self, now_ms + 1))
    with patch.object(MessageStore, "_append", append), sooner:
        yield


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


PLANTED: dict[str, Plant] = {
    "progress is written before the append": _swap(Deliverer, "_put", _progress_before_append),
    "progress is written before a block is appended": _swap(Deliverer, "_put_block", _progress_before_block),
    "a block's put that failed counts as done": _swap(MessageStore, "put_block", _failed_block_is_done),
    "the checkpoint does not wait for the log's sync": _swap(DeliveryCheckpoint, "write", _checkpoint_before_sync),
    "the journal forgets to sync": _swap(Journal, "sync", _sync_nothing),
    "the log forgets to sync": _swap(CommitLog, "sync", _sync_nothing),
    "after a failed sync the journal is not written again": _swap(Journal, "_write_again", lambda *_: None),
    "after a failed sync the log is not written again": _swap(CommitLog, "_rewrite", lambda _: None),
    "a reply does not wait for its sync": _swap(Flusher, "submit", lambda _self, _ticket, tell: tell(True)),
    "a command does not wait for its sync": _swap(Flusher, "wait", lambda *_: None),
    "a timer on a level's boundary is lost": _lost_at_level_boundary,
    "a millisecond early": _early_by_one,
    "the clock is read outside the append lock": _swap(MessageStore, "put_batch", _clock_outside_lock),
    "a torn tail of the log is accepted": _swap(
        store.commit_log, "walk", partial(store.commit_log.walk, check_crc=False)
    ),
    "a torn frame of the journal is accepted": _swap(store.spill.replay, "records_are_whole", lambda *_: True),
    "what a failed write left behind stays": _swap(CommitLog, "_clear_torn", _torn_left),
    "the scan for delay ids is too short": _swap(DelayPlugin, "_restore", _scan_too_short),
    "the scan for level copies is left out": _swap(LevelProgress, "_marks", lambda *_: {}),
    "a claim is not checked against a cancel": _swap(Deliverer, "deliver", _claim_unchecked),
    "the old version of a moved message lives on": _swap(SpillStore, "move", _old_version_lives),
    "equal due times are not in order": _swap(TimingWheel, "advance", _equal_dues_unordered),
    "files go before a checkpoint says that they may": _swap(SpillStore, "spill_step", _let_go_too_soon),
    "a run is listed before it is synced": _swap(RunWriter, "finish", _run_unsynced),
    "retention does not ask for pins": _swap(Retention, "delete_expired", _no_pins),
    "every start has the same epoch": _swap(SpillStore, "next_id", _same_epoch),
    "a level's put that failed counts as done": _swap(LevelScheduler, "_settle", _failed_put_is_done),
    "what waits of a refused batch is not taken back": _swap(Turn, "_take_back_refused", lambda *_: None),
    "a message that cannot be read is forgotten": _swap(Failures, "add", _what_fails_is_forgotten),
    "a message without a topic is forgotten": _swap(Failures, "add", _what_has_no_topic_is_forgotten),
    "a decision is not remembered": _swap(HalfMessages, "_apply", lambda *_: None),
    "the checkpoint's undecided messages are forgotten": _swap(HalfMessages, "_restore", _nothing_undecided),
    "the next segment is not listed under its lock": _next_segment_unlisted,
}
