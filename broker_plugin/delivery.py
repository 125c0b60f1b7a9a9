"""One delivery: read the finished records, append them, mark them done; all under the delivery lock.

Nothing else in the plug-in puts messages, so "once" is decided here: a record is delivered if it is not done
*now*, under the same lock under which it is marked. The caller (sweeper, a range of recovery, a retry of
failures) matters for order and punctuality, never for correctness: two callers may ask for the same record,
and one may ask for it twice in a batch.

Many records that look alike are put as a block (`store.put.put_block`). If the target refuses it for any
reason, its records are put one by one, and each gets its own answer.

What follows from the answer of `DeliveryTarget.put_batch` for each record::

    PUT_OK, FLUSH_DISK_TIMEOUT      done (in RocketMQ the latter means: stored, sync not awaited)
    NOT_DUE                         stays with the caller: the clock was set back
    SERVICE_NOT_AVAILABLE, ...      stays with the caller; if a whole batch gets it, all deliveries pause
    TOPIC_NOT_EXIST, NO_PERMISSION  failed, see `broker_plugin.failures`
    anything else                   failed

A delivery also fails if a cancel or a move of the message was refused but may count after a crash, see
`SpillStore.in_doubt`.

A record that cannot be read back does not stop the others: they are then read one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from broker_plugin.due_record import due_record, rehosted
from broker_plugin.failures import ANY_TOPIC, UNREADABLE, Failures
from broker_plugin.figures.tally import Delivered, Uncounted
from broker_plugin.rules.properties import own_properties_of
from broker_plugin.rules.states import MOVE_OF, Claim, IllegalMoveError, Move, State, after
from broker_plugin.rules.stats import Stats
from remoting.messages.message import RecordError, record_fields
from store.disk.errors import StoreError
from store.put.lateness import LatenessCounts
from store.put.plugin_api import DeliveryTarget, PutBlock, PutRecord, PutResult, PutStatus

if TYPE_CHECKING:
    from store.disk.checkpoint import DeliveryCheckpoint
    from store.disk.slab import Slab
    from store.spill.spill_store import SpillStore

__all__ = ["BATCH_BYTES", "Deliverer", "Outcome"]

BATCH_BYTES = 768 << 10
"""A batch ends at this many bytes of records: this bounds its memory and its time."""
BLOCK_MIN = 64
"""Fewest records that are tried as a block; fewer cost less one by one."""
SINGLY_MAX = 32
"""Most records that one step reads one by one after one of a batch could not be read."""
STALL_MIN_MS, STALL_MAX_MS = 100, 1000
"""Shortest and longest pause between two tries while the store refuses everything."""

IN_DOUBT = "IN_DOUBT"
"""Reason of a failure: a cancel or a move was refused, and its failed write cannot be cleared from the journal."""
_T = TypeVar("_T")
_OK = PutStatus.PUT_OK


class Outcome:
    """The result of a batch.

    Only the first ``looked_at`` records were handled (a batch is bounded in bytes). ``kept`` are the ascending
    indices of those among them that are neither done nor failed: they stay with the caller. ``delivered`` and
    ``failed`` are counts; a record fails for its own or its topic's fault.
    """

    __slots__ = ("delivered", "failed", "kept", "looked_at")

    def __init__(self, looked_at: int, delivered: int = 0, failed: int = 0, kept: Sequence[int] = ()) -> None:
        self.looked_at = looked_at
        self.delivered = delivered
        self.failed = failed
        self.kept = kept


class Deliverer:
    """Puts pending records into the target. Everything here is called under the delivery lock."""

    __slots__ = (
        "_checkpoint",
        "_failures",
        "_rehost",
        "_spill",
        "_stalls",
        "_target",
        "_warn",
        "block_min",
        "lose_track",
        "stalled_until_ms",
        "stats",
        "tally",
        "uncertain",
    )

    def __init__(
        self,
        spill: SpillStore,
        target: DeliveryTarget,
        checkpoint: DeliveryCheckpoint,
        failures: Failures,
        stats: Stats,
        warn: Callable[[str], None],
        *,
        rehost: bytes | None = None,
    ) -> None:
        """``rehost``: IPv4 store host (8 bytes) for records that name another one, accepted at an earlier address."""
        self._rehost = rehost if rehost is not None and len(rehost) == 8 else None
        self._spill = spill
        self._target = target
        self._checkpoint = checkpoint
        self._failures = failures
        self._warn = warn
        self._stalls = 0
        self.block_min = BLOCK_MIN
        self.stats = stats
        self.lose_track: Callable[[], None] = lambda: None
        """Stops checkpoints, so that the durable one stays as it is until a restart."""
        self.uncertain = 0
        """Number of messages that may or may not have been appended; a restart reads the CommitLog and finds out."""
        self.tally: Delivered = Uncounted()
        self.stalled_until_ms = 0
        """No deliveries before this time (epoch ms), because the store refused everything."""

    def deliver(
        self,
        dues: Sequence[int],
        refs: Sequence[int],
        now_ms: int,
        lateness: LatenessCounts,
        wanted: Callable[[str, int], bool] | None = None,
        *,
        state: State,
        fresh: bool = False,
    ) -> Outcome:
        """Deliver those of these records that are not done, in the given order (due times ascend), to `BATCH_BYTES`.

        ``state`` is the state they are claimed from. ``wanted``, if given, is asked with topic and due time (epoch ms);
        records for which it answers False are not touched. ``fresh``: they were scanned under this hold of the lock, so
        none is done. Raises IllegalMoveError, which is a bug: what was appended is done, the rest is pending.
        """
        spill = self._spill
        looked_at = len(refs)
        places: Sequence[int] = range(looked_at)
        if not fresh:
            # Before the append, because it may read files: after it, marking must not be able to fail.
            try:
                refs = spill.homes(refs)
            except StoreError:
                return self._deliver_singly(places, dues, refs, now_ms, lateness, wanted, state)
            places = [place for place, ref in enumerate(refs) if ref >= 0]
            if len(set(refs)) < len(refs):
                first = {refs[place]: place for place in reversed(places)}
                places = sorted(first.values())
        if not places:
            return Outcome(looked_at)
        if len(places) < len(refs):
            dues, refs = _chosen(places, dues), _chosen(places, refs)
        try:
            slab = spill.read_slab(refs, BATCH_BYTES)
            count = len(slab)
            if count < len(refs):
                looked_at = places[count]
                places, dues, refs = places[:count], dues[:count], refs[:count]
            if wanted is None and count >= self.block_min and not spill.in_doubt:
                outcome = self._put_block(slab, dues, refs, lateness, Claim(state))
                if outcome is not None:
                    outcome.looked_at = looked_at
                    return outcome
            records = slab.records()
            if self._rehost is not None:
                records = [rehosted(record, self._rehost) for record in records]
            puts = list(map(due_record, records, dues))
        except (StoreError, RecordError):
            return self._deliver_singly(places, dues, refs, now_ms, lateness, wanted, state)
        if wanted is not None:
            chosen = [at for at, put in enumerate(puts) if wanted(put.topic, put.due_ms)]
            if not chosen:
                return Outcome(looked_at)
            places, dues, refs = _chosen(chosen, places), _chosen(chosen, dues), _chosen(chosen, refs)
            puts = _chosen(chosen, puts)
        outcome = self._put(places, dues, refs, puts, now_ms, lateness, Claim(state))
        outcome.looked_at = looked_at
        return outcome

    def _put_block(
        self, slab: Slab, dues: Sequence[int], refs: Sequence[int], lateness: LatenessCounts, claim: Claim
    ) -> Outcome | None:
        """Put all records at once; None if that is not possible, and then nothing has happened."""
        block = PutBlock.of(slab, max(dues), self._rehost)
        if block is None:
            return None
        try:
            (result,) = self._target.put_batch([block])
        except StoreError:
            return None
        except Exception as error:
            return self._uncertain(refs, error)
        if result.status is not _OK:
            return None
        claim.add(len(refs))
        self.tally.add_queues(block.queues, block.sizes)
        self._done(dues, refs, result.store_ms, lateness, claim)
        return Outcome(0, len(refs))

    def _put(
        self,
        places: Sequence[int],
        dues: Sequence[int],
        refs: Sequence[int],
        puts: list[PutRecord],
        now_ms: int,
        lateness: LatenessCounts,
        claim: Claim,
    ) -> Outcome:
        failed = 0
        claim.add(len(puts))
        in_doubt = self._spill.in_doubt
        if in_doubt:
            sure = [at for at, put in enumerate(puts) if not self._is_doubtful(put, in_doubt, now_ms)]
            failed = len(puts) - len(sure)
            claim.take(Move.PUT_FAILED, failed)
            places, dues, refs = _chosen(sure, places), _chosen(sure, dues), _chosen(sure, refs)
            puts = _chosen(sure, puts)
        outcome = self._put_sure(places, dues, refs, puts, now_ms, lateness, claim) if puts else Outcome(0)
        outcome.failed += failed
        return outcome

    def _is_doubtful(self, put: PutRecord, in_doubt: frozenset[int], now_ms: int) -> bool:
        """True if a refused cancel or move of this message may count after a crash; if so, it is noted as failed."""
        own = own_properties_of(record_fields(bytes(put.record))[2])
        if own is None or own[0] not in in_doubt:
            return False
        self._failures.add(IN_DOUBT, put.topic, put.due_ms, now_ms)
        return True

    def _put_sure(
        self,
        places: Sequence[int],
        dues: Sequence[int],
        refs: Sequence[int],
        puts: list[PutRecord],
        now_ms: int,
        lateness: LatenessCounts,
        claim: Claim,
    ) -> Outcome:
        try:
            results = self._target.put_batch(puts)
        except StoreError as error:
            self._warn(f"delivery of {len(puts)} messages: {error}")
            results = [PutResult(PutStatus.SERVICE_NOT_AVAILABLE, remark=str(error))] * len(puts)
        except Exception as error:
            return self._uncertain(refs, error)
        if len(results) != len(puts):
            return self._uncertain(refs, IllegalMoveError(f"{len(puts)} were put, {len(results)} have a result"))
        for result in results:
            if result.status is not _OK:
                return self._sort_out(places, dues, refs, puts, results, now_ms, lateness, claim)
        self.tally.add_puts(puts)
        self._done(dues, refs, results[0].store_ms, lateness, claim)
        return Outcome(0, len(puts))

    def _uncertain(self, refs: Sequence[int], error: Exception) -> Outcome:
        """Handle a bug: it is unknown which of these records were appended.

        A restart finds out by scanning the CommitLog, so no later checkpoint may be taken. Until then the records
        count as done and nobody delivers them: twice is worse than late. (The marks are in memory only, because
        there is no later checkpoint.)
        """
        self.uncertain += len(refs)
        self.lose_track()
        self._spill.mark_done(refs)
        self._warn(f"delivery of {len(refs)} messages: {type(error).__name__}: {error}; pending until a restart")
        return Outcome(0)

    def _done(
        self, dues: Sequence[int], refs: Sequence[int], store_ms: int, lateness: LatenessCounts, claim: Claim
    ) -> None:
        count = len(refs)
        fresh = self._spill.mark_done(refs)
        self._checkpoint.touch(count)
        self._stalls = 0
        if not self.stats.first_delivery_ms:
            self.stats.first_delivery_ms = store_ms
        self.stats.delivered += count
        lateness.add(store_ms, dues)
        # After everything that was appended is marked done: this may raise, and the caller then goes on.
        claim.take(Move.PUT_OK, count)
        if fresh != count:
            after(State.DELIVERED, Move.PUT_OK)

    def _sort_out(
        self,
        places: Sequence[int],
        dues: Sequence[int],
        refs: Sequence[int],
        puts: Sequence[PutRecord],
        results: Sequence[PutResult],
        now_ms: int,
        lateness: LatenessCounts,
        claim: Claim,
    ) -> Outcome:
        moves = [MOVE_OF.get(result.status, Move.PUT_FAILED) for result in results]
        stored = [at for at, move in enumerate(moves) if move is Move.PUT_OK]
        if stored:  # first of all: what was appended must be marked done, whatever fails below
            store_ms = results[stored[0]].store_ms
            self.tally.add_puts([puts[at] for at in stored])
            self._done([dues[at] for at in stored], [refs[at] for at in stored], store_ms, lateness, claim)
        kept: list[int] = []
        failed = 0
        for at, move in enumerate(moves):
            if move is Move.PUT_OK:
                continue
            if move is not Move.NOT_DUE:
                self.stats.put_failed(results[at].status.name)
            if claim.take(move) is State.FAILED:
                failed += 1
                self._failures.add(results[at].status.name, puts[at].topic, dues[at], now_ms)
            else:
                kept.append(places[at])
        claim.end()
        refused = [result for result, move in zip(results, moves, strict=True) if move is Move.STORE_REFUSES]
        if refused and not stored and len(refused) == len(kept):
            self._stall(now_ms, refused[0])
        return Outcome(0, len(stored), failed, kept)

    def _stall(self, now_ms: int, result: PutResult) -> None:
        if not self._stalls:
            self.stats.stalls += 1
            self._warn(f"deliveries wait: the store refuses everything ({result.status.name} {result.remark})")
        self.stalled_until_ms = now_ms + min(STALL_MAX_MS, STALL_MIN_MS << min(self._stalls, 10))
        self._stalls += 1

    def _deliver_singly(
        self,
        places: Sequence[int],
        dues: Sequence[int],
        refs: Sequence[int],
        now_ms: int,
        lateness: LatenessCounts,
        wanted: Callable[[str, int], bool] | None,
        state: State,
    ) -> Outcome:
        """Deliver records one by one because at least one cannot be read; those that cannot count as failed."""
        total = Outcome(0)
        kept: list[int] = []
        for place, due_ms, ref in zip(places[:SINGLY_MAX], dues, refs, strict=False):
            total.looked_at = place + 1
            claim = Claim(state)
            try:
                ref = self._spill.home(ref)
                if ref < 0:
                    continue
                record = self._spill.read((ref,))[0]
                put = due_record(rehosted(record, self._rehost) if self._rehost else record, due_ms)
            except (StoreError, RecordError) as error:
                if wanted is None or wanted(UNREADABLE, due_ms):
                    self.stats.unreadable += 1
                    total.failed += 1
                    claim.add(1)
                    claim.take(Move.PUT_FAILED)
                    self._failures.add(UNREADABLE, ANY_TOPIC, due_ms, now_ms)
                    if self.stats.unreadable & (self.stats.unreadable - 1) == 0:  # 1, 2, 4, 8, …
                        self._warn(f"pending message due at {due_ms} cannot be read: {error}")
                continue
            if wanted is not None and not wanted(put.topic, due_ms):
                continue
            part = self._put((place,), (due_ms,), (ref,), [put], now_ms, lateness, claim)
            total.delivered += part.delivered
            total.failed += part.failed
            kept.extend(part.kept)
        total.kept = kept
        return total

    def trouble(self, text: str) -> None:
        """Count an error of the disk; warn at the first, second, fourth, eighth one, and so on."""
        self.stats.troubles += 1
        if self.stats.troubles & (self.stats.troubles - 1) == 0:
            self._warn(f"{text} (error {self.stats.troubles})")

    @property
    def is_refused(self) -> bool:
        """True if the store refused all appends at the last try. Any thread."""
        return self._stalls > 0

    def is_stalled(self, now_ms: int) -> bool:
        """True if deliveries pause because the store has just refused all appends."""
        if now_ms < self.stalled_until_ms - STALL_MAX_MS:
            self.stalled_until_ms = now_ms  # the clock was set back
        return now_ms < self.stalled_until_ms


def _chosen(places: Sequence[int], column: Sequence[_T]) -> list[_T]:
    return [column[place] for place in places]
