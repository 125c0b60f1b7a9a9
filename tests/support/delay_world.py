"""The whole way of a delayed message on a disk that breaks: message store, spill store and plug-in, all real.

Nothing runs by itself: `DelayWorld.run` steps flusher, housekeeper, sweeper, recovery and spiller in virtual time.
Everything is tiny, so that segments roll, runs are merged and seconds are hot within a few dozen messages. The model
knows of each message what must be true in the end, and the CommitLog is the judge.
"""

from __future__ import annotations

import random
from pathlib import Path

from broker_plugin.plugin import DelayPlugin
from broker_plugin.rules.properties import own_properties_of
from remoting.messages.message import Message, record_fields
from remoting.messages.properties import format_properties
from store.disk.errors import StoreError
from store.message_store import MessageStore
from store.options import StoreOptions
from store.put.plugin_api import CommandOutcome, Held, PluginContext, PutStatus
from tests.support.delay_rig import HOST, START_MS, ManualClock, body_of
from tests.support.simdisk import PowerCut, SimDisk

__all__ = ["DelayWorld", "Fate"]

ROOT = Path("/store")
CONFIG = {
    "timewheelSegmentBytes": "3000",
    "timewheelPageBytes": "120",
    "timewheelNearMs": "3000",
    "timewheelNearBytes": "9000",
    "timewheelNearRecords": "60",
    "timewheelRunsMax": "3",
    "timewheelMergeWidth": "3",
    "timewheelPunchBytes": "600",
    "timewheelReserveBytes": "0",
    "timewheelCacheBytes": "600",
    "timewheelArmedRecords": "8",
    "timewheelHotRecords": "4",
    "timewheelBatchRecords": "3",
}


class Fate:
    """What the model knows of one message."""

    def __init__(self, number: int, due_ms: int) -> None:
        self.number = number
        self.must = False
        """It was acknowledged, and nothing has happened since that may have lost it."""
        self.acknowledged = False
        """The sender has an id of it; nobody else can ask for it by one."""
        self.may = True
        """It may be delivered."""
        self.allowed = {(0, due_ms)}
        """Versions and due times that it may be delivered under."""
        self.journal_end = 0
        """Journal position behind its acknowledgement."""


class DelayWorld:
    """Operations for a test to call in any order; `verify` compares with what the log says."""

    def __init__(self, seed: int, *, flush_sync: bool = False) -> None:
        self.rng = random.Random(seed)
        self.disk = SimDisk(seed)
        self.clock = ManualClock(START_MS)
        self.flush_sync = flush_sync
        self.fates: dict[int, Fate] = {}
        self.missing: set[str] = set()
        self.warnings: list[str] = []
        self.numbers = 0
        self.cuts = 0
        self.running: DelayPlugin | None = None  # the last one that came up
        self.graveyard: list[object] = []
        """What processes that died had in memory: were it collected, their unfinished work would tidy up the disk."""
        self.open()

    # ------------------------------------------------------------------------------------------------ life

    def open(self) -> None:
        """Start the process, over and over while the machine goes off or the disk fails in the middle of it."""
        while True:
            try:
                self._open()
                self.running = self.plugin
                return
            except PowerCut:
                self._lose_power()
            except StoreError as error:
                assert self.disk.fault is not None, error
                self.disk.kill()

    def _open(self) -> None:
        self.graveyard.append(self.__dict__.copy())
        options = StoreOptions(commit_log_segment_bytes=6000, flush_sync=self.flush_sync)
        self.store = MessageStore.open(self.disk, ROOT, options, self.clock, self.warnings.append)
        self.store.store_host = HOST
        self.store.topic_guard = self._guard
        self.plugin = DelayPlugin()
        self.plugin.open(
            PluginContext(
                target=self.store,
                files=self.disk,
                directory=ROOT / "timewheel" / "delay",
                store_id=self.store.store_id,
                store_host=HOST,
                config=CONFIG,
                flusher=self.store.flusher,
                checkpoint=self.store.checkpoint,
                now_ms=self.clock,
                warn=self.warnings.append,
            )
        )
        self.plugin.deliverer.block_min = self.rng.choice((1, 3, 1000))

    def _guard(self, topic: str, _queue_id: int) -> PutStatus:
        return PutStatus.TOPIC_NOT_EXIST if topic in self.missing else PutStatus.PUT_OK

    def stop_and_start(self) -> None:
        """A clean restart."""
        with self.machine():
            try:
                self.plugin.stop()
                self.store.flusher.sync_all()
                self.store.take_checkpoint()
                self.plugin.close()
                self.store.close()
            except StoreError as error:
                self.warnings.append(str(error))
                self.disk.kill()
            self.open()

    def kill(self) -> None:
        """SIGKILL: what was written is there."""
        self.disk.kill()
        self.open()

    def power_cut(self) -> None:
        """What was not synced may be gone, in part."""
        self._lose_power()
        self.open()

    def _lose_power(self) -> None:
        self.cuts += 1
        if self.running is not None:
            synced = self.running.spill.journal.synced
            for fate in self.fates.values():
                if fate.journal_end > synced:
                    fate.must = False
        self.disk.power_cut(self.rng.choice([0.0, 0.5, 1.0]))

    def machine(self) -> _Machine:
        """A context in which the power may fail; if it does, the machine comes back."""
        return _Machine(self)

    def fail_power_at(self, operation_no: int) -> None:
        """Have the power fail at the n-th disk operation from now."""
        self.disk.fail_at("all", {operation_no}, PowerCut())

    # ------------------------------------------------------------------------------------------------ messages

    def send(self, dues: list[int], topic: str) -> None:
        """Send some messages in one turn of the network loop."""
        fates: list[Fate] = []
        with self.machine():
            for due_ms in dues:
                self.numbers += 1
                body = b"%d." % self.numbers + bytes(self.rng.randrange(200))
                properties = format_properties({"TIMER_DELIVER_MS": str(due_ms), "KEYS": str(self.numbers)})
                message = Message(topic, self.numbers % 2, body=body, properties=properties)
                held = self.plugin.before_put(message, self.clock.now_ms)
                assert isinstance(held, Held)
                assert held.offset not in self.fates, "an id was given twice"
                fate = self.fates[held.offset] = Fate(self.numbers, due_ms)
                fates.append(fate)
            try:
                ticket = self.plugin.commit_turn()
            except StoreError:
                return
            assert ticket is not None
            if self.flush_sync:
                self.store.flusher.step(self.clock.now_ms)
                if not ticket.is_done():
                    return
            for fate in fates:
                fate.must = fate.acknowledged = True
                fate.journal_end = ticket.waits[0][1]

    def cancel(self, offset: int) -> None:
        """Cancel, and hold the answer against what is known."""
        fate = self.fates[offset]
        if not fate.acknowledged:
            return
        delivered = offset in self.delivered()
        with self.machine()(fate):
            try:
                outcome = self.plugin.cancel(offset, self.clock.now_ms).outcome
            except StoreError:
                fate.must = False
                return
            self._judge(fate, outcome, delivered)
            if outcome is CommandOutcome.DONE or (outcome is CommandOutcome.ALREADY_CANCELLED and not delivered):
                fate.must = fate.may = False

    def move(self, offset: int, due_ms: int) -> None:
        """Move, and hold the answer against what is known."""
        fate = self.fates[offset]
        if not fate.acknowledged:
            return
        delivered = offset in self.delivered()
        due_ms = max(due_ms, self.clock.now_ms)
        before = set(fate.allowed)
        may_be = {(version + 1, due_ms) for version, _ in before}  # a move that failed before may count or not
        with self.machine():
            fate.allowed |= may_be
            try:
                outcome = self.plugin.move(offset, due_ms, self.clock.now_ms).outcome
            except StoreError:
                return
            self._judge(fate, outcome, delivered)
            if outcome is CommandOutcome.DONE:
                record = self.plugin.view(offset)
                assert record is not None
                own = own_properties_of(record_fields(record)[2])
                assert own is not None
                assert own[2] == due_ms
                fate.allowed = {own[1:]}
                fate.must = True
                fate.journal_end = 0
            else:
                fate.allowed = before
                if outcome is CommandOutcome.ALREADY_CANCELLED and not delivered:
                    fate.must = fate.may = False

    def _judge(self, fate: Fate, outcome: CommandOutcome, delivered: bool) -> None:
        if delivered:
            assert outcome is CommandOutcome.ALREADY_DELIVERED
        elif not fate.may:
            assert outcome in (CommandOutcome.ALREADY_CANCELLED, CommandOutcome.UNKNOWN)
        elif fate.must:
            assert outcome is CommandOutcome.DONE

    # ------------------------------------------------------------------------------------------------ time

    def step(self, part: str) -> int:
        """Step one part; answers when it wants to be stepped again."""
        now = self.clock.now_ms
        steps = {
            "flusher": self.store.flusher.step,
            "housekeeper": self.store.housekeeper.step,
            "sweeper": self.plugin.sweeper.step,
            "recovery": self.plugin.recovery.step,
            "spiller": self.plugin.spiller.step,
        }
        try:
            wake = steps[part](now)
        except StoreError as error:
            self.warnings.append(str(error))
            wake = now + 100
        return now + 250 if wake is None else wake

    PARTS = ("flusher", "housekeeper", "sweeper", "recovery", "spiller")

    def run(self, for_ms: int) -> None:
        """Let everything run for some time, in an order of chance at each moment."""
        until = self.clock.now_ms + for_ms
        while self.clock.now_ms <= until:
            wakes: dict[str, int] = {}
            with self.machine():
                for _ in range(400):
                    now = self.clock.now_ms
                    waiting = [part for part in self.PARTS if wakes.get(part, now) <= now]
                    if not waiting:
                        break
                    part = self.rng.choice(waiting)
                    wakes[part] = self.step(part)
                    if part == "spiller" and wakes[part] <= now and self.rng.random() < 0.5:
                        wakes[part] = now + 1
            self.clock.now_ms = max(self.clock.now_ms + 1, min(wakes.values(), default=0))
        self.clock.now_ms = until

    # ------------------------------------------------------------------------------------------------ judgement

    def delivered(self) -> dict[int, tuple[int, int, int, bytes]]:
        """By delay id what the CommitLog has: version, due, store time, body. Asserts that nothing is there twice."""
        found: dict[int, tuple[int, int, int, bytes]] = {}
        for _, record in self.store.scan(self.store.commit_log.begin):
            own = own_properties_of(record_fields(record)[2])
            assert own is not None
            offset, version, due_ms = own
            assert offset not in found, f"message {offset:#x} was delivered twice"
            found[offset] = (version, due_ms, int.from_bytes(record[56:64], "big"), body_of(record))
        return found

    def verify(self) -> None:
        """Nothing early, nothing twice, nothing that must not be, every part well."""
        for offset, (version, due_ms, store_ms, body) in self.delivered().items():
            fate = self.fates[offset]
            assert fate.may, f"message {offset:#x} was cancelled and delivered"
            assert (version, due_ms) in fate.allowed
            assert store_ms >= due_ms, "early"
            assert body.startswith(b"%d." % fate.number)
        assert self.plugin.check() == []
        assert self.plugin.deliverer.uncertain == 0

    def finish(self) -> None:
        """Heal everything, wait long enough, and see that every message came to what it must."""
        self.disk.fault = None
        self.missing.clear()
        self.plugin.topics_changed()
        latest = max((due for fate in self.fates.values() for _, due in fate.allowed), default=0)
        self.run(max(0, latest - self.clock.now_ms) + 3000)
        self.verify()
        delivered = self.delivered()
        lost = [hex(offset) for offset, fate in self.fates.items() if fate.must and offset not in delivered]
        assert not lost, f"lost: {lost}"
        assert self.plugin.pending_count() == 0
        assert self.plugin.recovery.failed_count == 0
        assert self.plugin.list_pending(None, 10) == []
        assert self.store.check() == []


class _Machine:
    """Turns a power cut in the middle of something into one that is over."""

    def __init__(self, world: DelayWorld) -> None:
        self.world = world
        self.fate: Fate | None = None

    def __call__(self, fate: Fate) -> _Machine:
        self.fate = fate
        return self

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> bool:
        if kind is None or not issubclass(kind, PowerCut):
            return False
        if self.fate is not None:
            self.fate.must = False
        self.world.power_cut()
        return True
