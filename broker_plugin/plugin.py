"""`DelayPlugin`: arbitrary-time delay for any broker that hosts `store.put.plugin_api.Plugin`.

The parts, and who may call them::

    Gate        before_put, commit_turn             network loop
    Sweeper     messages that are due now           its thread  ─┐
    Recovery    messages that are overdue           its thread   │ each a step(now_ms); all their state
    Spiller     journal segments into runs          its thread   │ lives under the delivery lock
    Commands    cancel, move, send now, list, view  any thread  ─┘
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from broker_plugin.aside import GateAside
from broker_plugin.behind import Behind
from broker_plugin.delivery import Deliverer
from broker_plugin.failures import Failures
from broker_plugin.figures.balance import TopicBalance
from broker_plugin.figures.measures import plugin_families
from broker_plugin.figures.tally import Accepted, Delivered
from broker_plugin.hook import Gate
from broker_plugin.options import config_number, spill_options
from broker_plugin.pending.rooms import DeskRooms
from broker_plugin.recovery import OverdueRecovery
from broker_plugin.rules.properties import own_properties_of
from broker_plugin.rules.ranges import KeyRanges
from broker_plugin.rules.stats import Rate, Stats
from broker_plugin.runtime import lateness_texts, runtime_texts
from broker_plugin.spiller import Spiller
from broker_plugin.sweeper import ARMED_MAX, HAND_MAX, Sweeper
from broker_plugin.threads.clock import Alarm, Clock, StepWatch
from broker_plugin.threads.pace import BATCH_MAX, Pace
from broker_plugin.threads.worker import Worker
from remoting.messages.message import Message, RecordError, UniformBatch, record_fields
from remoting.messages.properties import TW_ID
from store.put.lateness import LatenessCounts
from store.put.measures import Family
from store.put.plugin_api import (
    BeforePut,
    BoundedTarget,
    CommandResult,
    Held,
    HeldBatch,
    OneByOne,
    PendingMessage,
    PluginContext,
    Refused,
)
from store.spill.spill_store import SpillStore

if TYPE_CHECKING:
    from store.disk.ticket import Ticket

__all__ = ["DelayPlugin"]

SECTION = "delay"
"""Name of our section in the delivery checkpoint."""
_MARK = f"{TW_ID}\x01".encode()
_RESTORE_AT_ONCE = 50_000
_MAX_BODY_BYTES = 4 << 20
_MAX_RECORD_BYTES = (4 << 20) + (64 << 10)
_FLUSH_INTERVAL_MS = 500
SLICE_PAUSE_S = 0.0003
BEHIND_PAUSE_S = 0.005
BEHIND_MS = 2
"""The sweeper is late from here on: what it should have delivered next has been due for so many milliseconds."""


class DelayPlugin:
    """Delivers messages at their millisecond; see `store.put.plugin_api.Plugin` for what each call promises."""

    name = "delay"

    def __init__(self) -> None:
        self.stats = Stats()
        self.watch = StepWatch()
        self._accept_rate, self._deliver_rate = Rate(), Rate()
        self._opened = False
        self._never = Alarm()  # nobody rings it, so each wait is a pause of full length
        self.rooms: DeskRooms | None = None
        self._workers: list[Worker] = []

    # ------------------------------------------------------------------------------------------------ life

    def open(self, context: PluginContext) -> None:
        """Open the spill store, learn from the CommitLog what was delivered, and give overdue messages to recovery.

        Raises StoreError.
        """
        checkpoint = context.checkpoint
        self.clock = Clock(context.now_ms)
        self.lock = checkpoint.lock
        self._context = context
        options = spill_options(context.config)
        with checkpoint.reading(SECTION) as section:
            self.spill = SpillStore.open(
                context.files, context.directory, context.store_id, options, section, self.lock
            )
        self._opened = True
        rooms = self.rooms = DeskRooms(
            context.files, context.directory, context.store_id, self.spill, partial(config_number, context.config)
        )
        for note in self.spill.notes:
            context.warn(note)
        self._restore(context.target.scan(checkpoint.position_of(SECTION)))
        self._make_parts(context, self.clock.now_ms(), rooms)
        self._make_workers(context)
        # After `_restore`: a checkpoint in between would move P past deliveries that are in no done-set yet.
        checkpoint.register(SECTION, self.spill.snapshot, self.spill.durable, rooms.sync)
        self.deliverer.lose_track = partial(checkpoint.unregister, SECTION)
        interval_ms = config_number(context.config, "flushIntervalCommitLog", _FLUSH_INTERVAL_MS)
        # The flusher syncs in this order, so a delay key is durable before its message.
        context.flusher.add(rooms.key_rows, interval_ms)
        context.flusher.add(self.spill.journal, interval_ms)

    def _make_parts(self, context: PluginContext, now_ms: int, rooms: DeskRooms) -> None:
        config, spill, clock, lock = context.config, self.spill, self.clock, self.lock
        target = context.target
        batch_max = config_number(config, "timewheelBatchRecords", BATCH_MAX)
        self.failures = Failures()
        self.ranges = KeyRanges()
        # The sweeper's frontier begins at the same `now_ms`: no key is between the two, or in both.
        self.ranges.add((-1, 0), now_ms)
        self.deliverer = Deliverer(
            spill,
            target,
            context.checkpoint,
            self.failures,
            self.stats,
            context.warn,
            # Messages accepted from here on name this address; only those of an earlier start may name another.
            rehost=context.store_host if spill.pending_count else None,
        )
        self.sweeper = Sweeper(
            spill,
            self.deliverer,
            self.ranges,
            lock,
            clock,
            now_ms,
            armed_max=config_number(config, "timewheelArmedRecords", ARMED_MAX),
            hand_max=config_number(config, "timewheelHotRecords", HAND_MAX),
            batch_max=batch_max,
        )
        self.recovery = OverdueRecovery(
            spill, self.deliverer, self.ranges, self.failures, lock, clock, batch_max=batch_max
        )
        self.spiller = Spiller(spill, self.is_behind, context.checkpoint)
        max_delay_sec = config_number(config, "timerMaxDelaySec", 0)
        self.gate = Gate(
            spill,
            self.sweeper,
            context.store_host,
            self.stats,
            max_delay_ms=max_delay_sec * 1000 if max_delay_sec > 0 else None,
            max_body_bytes=config_number(config, "maxMessageSize", _MAX_BODY_BYTES),
            max_record_bytes=target.record_bytes_max if isinstance(target, BoundedTarget) else _MAX_RECORD_BYTES,
            disk_refusal=target.disk_refusal if isinstance(target, BoundedTarget) else str,
        )
        rooms.furnish(self.sweeper, self.recovery, context.flusher, target, self.stats)
        self.commands, self.pending = rooms.commands, rooms.desk
        # In virtual time nobody pauses: the pause is a wait on the real clock.
        if context.now_ms is None:
            self.pending.pause_by(self._let_others, clock.worked_ns, clock.monotonic_ns)
            rooms.pause = self._let_others
        self.gate.keyed, self.gate.limits = rooms.keyed, rooms.limits
        self.behind = Behind(self.sweeper, self.deliverer, self.ranges, lock, context.warn)
        self.spiller.tidy = self._tidy
        self.deliverer.tally = rooms.told(self.deliverer.tally)

    def _tidy(self, now_ms: int) -> None:
        assert self.rooms is not None
        self.behind.look(now_ms)  # first: the other may raise
        self.rooms.tidy(now_ms)

    def _let_others(self) -> None:
        """Pause between two slices of a look or a bulk change; longer while deliveries are late."""
        self._never.wait(SLICE_PAUSE_S)
        if self.is_behind():
            self._never.wait(BEHIND_PAUSE_S)

    def _make_workers(self, context: PluginContext) -> None:
        clock, warn = self.clock, context.warn
        sweeping = Worker("sweeper", self.sweeper.step, clock, self.sweeper.pace, warn, self.watch)
        recovering = Worker("recovery", self.recovery.step, clock, self.recovery.pace, warn)
        spilling = Worker("spiller", self.spiller.step, clock, self.spiller.pace, warn)
        self.sweeper.ring = sweeping.ring
        self.sweeper.ring_recovery = self.recovery.ring = recovering.ring
        self._workers = [sweeping, recovering, spilling]

    def _restore(self, records: Iterable[tuple[int, bytes]]) -> None:
        """Mark messages done that the CommitLog has behind the checkpoint. Before any delivery, or some come twice."""
        ids: list[int] = []
        versions: list[int] = []
        for _, record in records:
            # Most records are no deliveries: this search costs less than reading their fields.
            if _MARK not in record:
                continue
            try:
                own = own_properties_of(record_fields(record)[2])
            except RecordError:
                continue
            if own is not None:
                ids.append(own[0])
                versions.append(own[1])
                if len(ids) == _RESTORE_AT_ONCE:
                    self.stats.restored += self.spill.restore_delivered_many(ids, versions)
                    ids, versions = [], []
        if ids:
            self.stats.restored += self.spill.restore_delivered_many(ids, versions)

    def start(self) -> None:
        """Start sweeper, recovery and spiller."""
        for worker in self._workers:
            worker.start()

    def delivery_errors(self) -> int:
        """How many steps of sweeper and recovery ended with an error that they did not handle. Any thread."""
        return sum(worker.error_count for worker in self._workers[:2])

    def stop(self) -> None:
        """End the threads, each after the slice it is in."""
        for worker in self._workers:
            worker.stop()

    def close(self) -> None:
        """Sync the journal and give the files back."""
        if self._opened:
            self._opened = False
            self.stop()
            # Before anything is closed: a checkpoint must not ask it for a snapshot any more.
            self._context.checkpoint.unregister(SECTION)
            self._context.flusher.remove(self.spill.journal)
            try:
                if self.rooms is not None:
                    self._context.flusher.remove(self.rooms.key_rows)
                    self.rooms.close()
            finally:
                self.spill.close()

    # ------------------------------------------------------------------------------------------------ messages

    def before_put(self, message: Message, now_ms: int) -> Held | Refused | None:
        """Check one message: `Gate.before_put`."""
        return self.gate.before_put(message, now_ms)

    def direct_before_put(self) -> BeforePut:
        """The gate's own method, which saves one call for each message."""
        return self.gate.before_put

    def before_put_batch(self, batch: UniformBatch, now_ms: int) -> HeldBatch | OneByOne | None:
        """Check a client batch as a whole: `Gate.before_put_batch`."""
        return self.gate.before_put_batch(batch, now_ms)

    def aside(self) -> GateAside:
        """Begin a large batch: returns what keeps its held messages until all of it is checked."""
        return GateAside(self.gate)

    def take_back(self, held: Held) -> None:
        """Forget a message that was held in this turn."""
        self.gate.take_back(held)

    def taken_back(self) -> Ticket | None:
        """A ticket for what `take_back` has written."""
        return self.gate.taken_back()

    def commit_turn(self) -> Ticket | None:
        """Journal what was held since the last call. Raises StoreError."""
        return self.gate.commit_turn()

    def view(self, offset: int) -> bytes | None:
        """Read the record of a pending message by its virtual offset; None if it is not pending."""
        return self.commands.view(offset)

    def topics_changed(self) -> None:
        """Retry topic failures at once."""
        self.recovery.topics_changed()

    # ------------------------------------------------------------------------------------------------ commands

    def cancel(self, offset: int, now_ms: int) -> CommandResult:
        """Cancel a pending message. Raises StoreError."""
        return self.commands.cancel(offset, now_ms)

    def move(self, offset: int, due_ms: int, now_ms: int) -> CommandResult:
        """Give a pending message another due time, epoch ms. Raises StoreError."""
        return self.commands.move(offset, due_ms, now_ms)

    def send_now(self, offset: int, now_ms: int) -> CommandResult:
        """Make a pending message due now. Raises StoreError."""
        return self.commands.move(offset, now_ms, now_ms)

    def list_pending(self, after: tuple[int, int] | None, limit: int) -> list[PendingMessage]:
        """List pending messages in (due, offset) order."""
        return self.commands.list_pending(after, limit, self.clock.now_ms())

    # ------------------------------------------------------------------------------------------------ figures

    def pending_count(self) -> int:
        """Number of accepted messages that are neither delivered nor cancelled."""
        return self.spill.pending_count

    def promised_bytes(self) -> int:
        """Disk space that delivering all pending messages will take, bytes."""
        return self.spill.promised_bytes

    def is_behind(self) -> bool:
        """True if messages are overdue although the store accepts deliveries. Any thread, takes no lock."""
        if self.deliverer.is_refused:
            return False
        return len(self.ranges) > 0 or self.sweeper.late_ms(self.clock.now_ms()) >= BEHIND_MS

    def runtime_info(self) -> dict[str, str]:
        """Figures for GET_BROKER_RUNTIME_INFO: RocketMQ's timer names where it has one, else ``timewheel…``."""
        stats, now_ns = self.stats, self.clock.monotonic_ns()
        text = runtime_texts(stats, self.sweeper, self.recovery, self.ranges, self.deliverer, self.spill, self.watch)
        text["timewheelErrors"] = str(stats.troubles + sum(worker.error_count for worker in self._workers))
        text["timerEnqueueTps"] = f"{self._accept_rate.look(now_ns, stats.accepted):.1f}"
        text["timerDequeueTps"] = f"{self._deliver_rate.look(now_ns, stats.delivered):.1f}"
        return text | lateness_texts(stats)

    def measure(self, topics_max: int) -> None:
        """Begin to count by topic."""
        balance = TopicBalance()
        with self.lock:
            balance.load(self.spill, self.clock.now_ms())
        if balance.is_reading:
            step = partial(balance.step, self.spill, self._let_others)
            self._workers.append(Worker("counter", step, self.clock, Pace(), self._context.warn))
        self._accepted = self.gate.tally = Accepted(self.clock.now_ms, topics_max, balance)
        self._delivered = Delivered(topics_max, balance)
        self.deliverer.tally = self._delivered
        if self.rooms is not None:
            self.deliverer.tally = self.rooms.told(self._delivered)
            self.rooms.count_topics(balance, self._accepted)

    def families(self) -> Iterable[Family]:
        """Make the metrics."""
        accepted, delivered = self._accepted.rows(), self._delivered.rows()
        steps_ms, behind_ms = (self.watch.forward_ms, self.watch.backward_ms), self.sweeper.behind_ms
        pending, failures = self.spill.pending_count, dict(self.stats.put_failures)
        return plugin_families(self.lateness, failures, steps_ms, accepted, delivered, pending, behind_ms)

    @property
    def lateness(self) -> Mapping[str, LatenessCounts]:
        """Lateness of deliveries: those of the sweeper under ``on_time``, those of recovery under ``recovery``."""
        return {"on_time": self.stats.on_time, "recovery": self.stats.overdue}

    @property
    def first_delivery_ms(self) -> int:
        """Time of the first delivery since the start, epoch ms; 0: none yet."""
        return self.stats.first_delivery_ms

    def check(self) -> list[str]:
        """Say everything that is wrong with files and memory; empty when nothing is."""
        with self.lock:
            problems = self.sweeper.check() + self.ranges.check()
            if self.deliverer.uncertain:
                problems.append(f"{self.deliverer.uncertain} messages are uncertain until a restart")
        return problems + self.spill.check()
