"""One broker, whole, in virtual time: its parts as actors, its clients over memory channels, its disk breakable.

A `World` is a machine: a disk, a wall clock that can be set, and whichever broker runs on it at the moment. `act` lets
the clients do something, `turns` lets the actors run, `restart` ends the broker in some way and starts the next one.
With a `Baton` the actors are suspended at every lock and every call of the disk; without one each step runs through.
"""

from __future__ import annotations

import copy
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

from broker.config.broker_config import BrokerConfig
from broker.core import BrokerCore
from broker.net.channel import MemoryChannel
from broker_plugin.plugin import DelayPlugin
from remoting.codes import FLAG_RESPONSE, RequestCode, ResponseCode
from remoting.command import RemotingCommand, encode_command
from remoting.connection import FrameDecoder
from remoting.messages.message import join_batch, record_fields, record_size
from remoting.messages.properties import format_properties
from store.disk.errors import StoreError
from store.put.pending_api import PendingName, PendingOrder, PendingVerb, PendingVerdict
from store.put.plugin_api import CommandOutcome, PutStatus
from tests.simulation.baton import Baton, SimLock, Task, simulated
from tests.simulation.clerk import Clerk
from tests.simulation.decisions import COMMIT, ROLLBACK, Producer
from tests.simulation.durable import check_durable
from tests.simulation.inline import run_inline
from tests.simulation.kinds import Kind, Violation
from tests.simulation.ledger import VIRTUAL, Entry, Ledger, Sent, body_of
from tests.simulation.names import THERE, check_names
from tests.simulation.ordered import ORDERED
from tests.simulation.poppers import VERBS, Poppers
from tests.simulation.pops import GROUP
from tests.simulation.swarm import ACTORS, Swarm
from tests.support import hostile
from tests.support.simdisk import PowerCut, SimDisk

__all__ = ["ROOT", "Shape", "World"]

ROOT = Path("/store")
START_MS = 1_700_000_000_000
TOPICS = ("T", "U")
QUEUES = 2
_WITHOUT_WAKES = ("loop", "commands", "tables")
"""Threads that wake when there is something to do, and at no other time."""
_OUTCOMES = {
    PendingVerdict.DONE: CommandOutcome.DONE,
    PendingVerdict.ALREADY: CommandOutcome.ALREADY_CANCELLED,
    PendingVerdict.TOO_LATE: CommandOutcome.ALREADY_DELIVERED,
    PendingVerdict.CANCELLED: CommandOutcome.ALREADY_CANCELLED,
    PendingVerdict.UNKNOWN: CommandOutcome.UNKNOWN,
}
LEVELS = ("1s 1s 3s", "1s 1s 3s", "1s", "2s 1s", "1s 1s 3s 2s 1s")
ALL_HOURS = ";".join(f"{hour:02d}" for hour in range(24))
STEP_MS = (-86_400_000, -4000, -300, -20, -1, 1, 30, 2000, 86_400_000)


class Shape:
    """What kind of broker a seed has: everything tiny, so that everything rolls, spills, merges and overflows."""

    def __init__(self, rng: Random) -> None:
        self.sync = rng.random() < 0.5
        self.hot = rng.choice((4, 16, 1000))
        self.retention = rng.random() < 0.3
        self.values = {
            "flushDiskType": "SYNC_FLUSH" if self.sync else "ASYNC_FLUSH",
            "messageDelayLevel": LEVELS[0],
            "mappedFileSizeCommitLog": str(rng.choice((4096, 6000, 20_000))),
            "mappedFileSizeConsumeQueue": "200",
            "maxMessageSize": rng.choice(("1500", "1500", "6000")),
            "defaultTopicQueueNums": str(QUEUES),
            "timewheelSegmentBytes": str(rng.choice((2200, 3000, 9000))),
            "timewheelPageBytes": "120",
            "timewheelNearMs": str(rng.choice((700, 3000))),
            "timewheelNearBytes": "9000",
            "timewheelNearRecords": "60",
            "timewheelRunsMax": "3",
            "timewheelMergeWidth": "3",
            "timewheelPunchBytes": "600",
            "timewheelReserveBytes": "0",
            "timewheelCacheBytes": "600",
            "timewheelArmedRecords": str(rng.choice((8, 1000))),
            "timewheelHotRecords": str(self.hot),
            "timewheelBatchRecords": str(rng.choice((3, 100))),
            "transactionTimeOut": "300",
            "transactionCheckInterval": "400",
            "transactionCheckMax": str(rng.choice((1, 3))),
        }
        self.block_min = rng.choice((1, 2, 4, 1000))
        self.pop_tail_bytes = rng.choice((200, 1000, 100_000))
        self.slice_messages = rng.choice((1, 1, 2, 3, 1000))
        """Batches of more messages are looked at in slices."""
        if self.retention:
            self.values |= {"fileReservedTime": "0", "deleteWhen": ALL_HOURS}

    def changed(self, rng: Random) -> Shape:
        """The same broker with other settings, as its owner may start it the next time."""
        other = copy.copy(self)
        other.sync = rng.random() < 0.5
        other.values = {
            **self.values,
            "flushDiskType": "SYNC_FLUSH" if other.sync else "ASYNC_FLUSH",
            "messageDelayLevel": rng.choice(LEVELS),
            "maxMessageSize": str(rng.choice((1500, 700, 200))),
        }
        return other

    def delay_ms(self, level: int) -> int:
        """How long a message of this level waits; one that is too high counts as the highest."""
        words = self.values["messageDelayLevel"].split()
        return 1000 * int(words[min(level, len(words)) - 1][:-1])


class _Connection(MemoryChannel):
    """A client's connection: its replies are heard the moment they are sent."""

    __slots__ = ("decoder", "heard")

    def __init__(self, port: int, heard: Callable[[RemotingCommand], None]) -> None:
        super().__init__(("192.0.2.9", port))
        self.decoder = FrameDecoder()
        self.heard = heard

    def send(self, data: bytes) -> None:
        """Hear it, unless the client has gone."""
        if not self.closed:
            for command in self.decoder.feed(data):
                self.heard(command)


class World:
    """A machine with its broker. ``say`` is told what happens, for a trace; ``call_seen`` of each call of the disk."""

    def __init__(
        self,
        rng: Random,
        shape: Shape,
        disk: SimDisk,
        ledger: Ledger,
        wall_ms: int = START_MS,
        switch: float | None = None,
        say: Callable[[str], None] | None = None,
        swarm: Swarm | None = None,
    ) -> None:
        self.rng = rng
        self.swarm = swarm or Swarm(rng)
        self.shape = shape
        self.disk = disk
        self.ledger = ledger
        self.wall_ms = wall_ms
        self.switch = switch
        self.say = say
        self.calls = 0
        self.call_seen: Callable[[], None] | None = None
        self.fault: Callable[[str, Path], None] | None = None
        self.read_fault: Callable[[Path], None] | None = None
        self.looking = 0  # how many of the world's own looks at the store are under way: their reads never fail
        self.missing: set[str] = set()
        self.graveyard: list[Any] = []  # what dead brokers had in memory: nothing of it may tidy up
        self.baton: Baton | None = None
        self.core: BrokerCore | None = None
        self.tasks: dict[str, Task] = {}
        self.starts = 0
        self.synced = (0, 0)  # of CommitLog and journal, when the last broker ended
        self.append_times: list[tuple[int, int]] = []
        self.number = max(ledger.sent, default=0)
        self.wall_max_ms = wall_ms
        self.shift_ms = 0  # by how much the wall clock was set
        self.trouble_ms = -1  # when disk or clock were in trouble last, by the clock that nobody sets
        self.anew: bytearray | None = None  # the delivery checkpoint when all queues were taken away
        self.frozen: dict[str, int] = {}  # threads that stand still, and for how many turns
        self.freeze = self.swarm.freeze
        self._deliverer: object = None  # who held the delivery lock when somebody last looked
        self.producer = Producer(self)
        self.poppers = {group: Poppers(self, group) for group in (GROUP, ORDERED)}
        self.clerk = Clerk(self)
        self.pops_synced = 0  # of the journal of pops, when the last broker ended
        self.check_ms = 0
        self.flush_ms = 0  # when the flusher began its last step, by the clock that nobody sets
        self.ending = False  # from here on nothing goes wrong any more
        ledger.desk.count_max = int(shape.values.get("timewheelPendingMax", 0))
        ledger.desk.topic_max = int(shape.values.get("timewheelTopicPendingMax", 0))
        ledger.desk.strict = self.swarm.calm
        ledger.check_max = 0 if shape.retention else int(shape.values["transactionCheckMax"])

    # ------------------------------------------------------------------------------------------------ life

    def boot(self) -> None:
        """Start a broker, once; PowerCut or StoreError when it does not come up."""
        self.starts += 1
        self._forget_the_last_life()
        plugin = DelayPlugin()
        core = self._put_together(plugin)
        plugin.deliverer.block_min = self.shape.block_min
        self.core, self.plugin, self.store = core, plugin, core.store
        self.ledger.desk.epoch = plugin.spill.epoch
        core.large_batches.slice_messages = self.shape.slice_messages
        self.connections = [_Connection(50001, self._heard), _Connection(50002, self._heard)]
        self._guard = self.store.topic_guard
        self.store.topic_guard = self._topic_guard
        core.tables.late = True
        self._take_the_threads(core, plugin)
        self._make_pops_small(core)
        lock = self.store._append_lock
        if isinstance(lock, SimLock):
            lock.before = self._before_append
        check_durable(self)
        check_names(self)
        log = self.store.commit_log
        with self.sharp_eyes():
            self.ledger.reopened(log.begin, log.end, self.store.scan(log.begin))
        self.check_ms = 0
        for pops in self.ledger.popped:
            pops.opened(self.wall_ms)
        for poppers in self.poppers.values():
            poppers.opened()
        self.producer.greet()
        self.tell(f"start {self.starts}: CommitLog {log.begin} to {log.end}, {plugin.pending_count()} pending")

    def _forget_the_last_life(self) -> None:
        """What a process loses at its end; the broker before this one is kept, so that nothing of it is freed."""
        self.baton = None if self.switch is None else Baton(lambda: self.rng.random() < (self.switch or 0))
        self.inbox: deque[Callable[[], None]] = deque()
        self.commands: deque[Callable[[], None]] = deque()
        self.waiting: dict[int, tuple[list[int], str]] = {}
        self.opaque = 0
        self.wakes: dict[str, int] = {}
        self.tasks = {}
        self.pulling = False
        self.offsets: dict[tuple[str, int], int] = {}
        self.append_times = []
        self.disk.fault = self._call
        self.disk.watch = self._written
        self.disk.read_fault = self._read
        self.frozen.clear()
        self.graveyard.append((self.core, self.disk))
        self.core = None

    def _put_together(self, plugin: DelayPlugin) -> BrokerCore:
        """Make the broker, on the world's disk and clock."""
        config = BrokerConfig(ROOT, dict(self.shape.values), listen_port=10911, plugins=[])
        with simulated(self.baton, 7):
            return BrokerCore(
                config,
                10911,
                [plugin],
                files=self.disk,
                now_ms=lambda: self.wall_ms,
                schedule=lambda: None,
                call_soon_threadsafe=self.inbox.append,
                spawn=run_inline,
                random=Random(1),
            )

    def _take_the_threads(self, core: BrokerCore, plugin: DelayPlugin) -> None:
        """Each thread of the broker becomes a step, and its bell the time of its next step."""
        plugin.sweeper.ring = lambda: self.wakes.__setitem__("sweeper", 0)
        plugin.sweeper.ring_recovery = plugin.recovery.ring = lambda: self.wakes.__setitem__("recovery", 0)
        self.steps: dict[str, Callable[[int], int | None]] = {
            "loop": self._loop_step,
            "commands": self._command_step,
            "flusher": self.store.flusher.step,
            "housekeeper": self.store.housekeeper.step,
            "levels": core.level_scheduler.step,
            "sweeper": plugin.sweeper.step,
            "recovery": plugin.recovery.step,
            "spiller": plugin.spiller.step,
            "tables": self._tables_step,
            "reviver": core.processors.pop.reviver.step,
        }

    def _make_pops_small(self, core: BrokerCore) -> None:
        """Blocks, tails and marks of pops at sizes at which a short story has them."""
        journal, reviver = core.processors.pop.journal, core.processors.pop.reviver
        reviver.copier.block_min = 2
        if self.shape.pop_tail_bytes == 200:  # two at a time, so that what is due later passes the others
            reviver.slice_count = 2
        journal.tail_bytes, journal.mark_bytes = self.shape.pop_tail_bytes, 1_000

    def tell(self, text: str) -> None:
        """Add a line to the trace."""
        if self.say is not None:
            self.say(f"{self.wall_ms - START_MS:>9} ms  call {self.calls:>5}  {text}")

    def _topic_guard(self, topic: str, queue_id: int) -> PutStatus:
        if topic in self.missing:
            return PutStatus.NO_PERMISSION
        assert self._guard is not None
        return self._guard(topic, queue_id)

    def die(self, keep: float | None, rng: Random, doing: bool = False) -> None:
        """End the broker here: the power fails (``keep`` as in `SimDisk.power_cut`), or the process (None)."""
        self.note_crash(self.ledger, keep)
        if self.say is not None:
            self.tell(
                "the process is killed" if keep is None else f"the power fails, {keep:.0%} of what is dirty stays"
            )
        disk = self.disk.crashed(rng, keep, doing)
        self.bury()
        self.disk = disk

    def note_crash(self, ledger: Ledger, keep: float | None) -> None:
        """Tell a ledger how far log and journal were durable, by what the broker itself believed."""
        self.note_synced()
        # While a broker starts, nothing is more durable than it was when the last one ended.
        ledger.crashed(keep is not None, *self.synced)
        for pops in ledger.popped:
            pops.crashed(keep is not None, self.synced[0], self.pops_synced)

    def note_synced(self) -> None:
        """Remember how far everything was durable, for when the next broker dies while it starts."""
        if self.core is not None:
            self.synced = self.store.commit_log.synced, self.plugin.spill.journal.synced
            self.pops_synced = self.core.processors.pop.journal.synced

    def bury(self) -> None:
        """Kill everything that runs on the present disk."""
        self.disk.off = True
        tasks = [task for task in self.tasks.values() if not task.done]
        if self.baton is not None:
            self.baton.kill(tasks)
        self.tasks = {}
        self.graveyard.append((self.core, self.disk))
        self.disk.off = False  # what is collected later may tidy up here, where nobody looks any more
        self.disk.fault = self.disk.watch = self.disk.read_fault = None

    # ------------------------------------------------------------------------------------------------ the disk

    def _call(self, operation: str, path: Path) -> None:
        if self.baton is not None:
            self.baton.point()
        self.calls += 1
        if self.call_seen is not None:
            self.call_seen()
        if self.fault is not None:
            try:
                self.fault(operation, path)
            except PowerCut:
                if self.baton is not None:
                    self.baton.dead = True
                raise
            except StoreError:
                self.trouble_ms = self.passed_ms
                raise

    def _read(self, path: Path) -> None:
        if self.read_fault is not None and not self.looking:
            try:
                self.read_fault(path)
            except StoreError:
                self.trouble_ms = self.passed_ms
                raise

    @contextmanager
    def sharp_eyes(self) -> Iterator[None]:
        """The world itself looks at the store: what it reads can be read."""
        self.looking += 1
        try:
            yield
        finally:
            self.looking -= 1

    def _written(self, path: Path, offset: int, size: int) -> None:
        if path.parent.name == "commitlog":
            del size
            self.append_times.append((int(path.name) + offset, self.wall_ms))

    def _wall_at(self, offset: int) -> int | None:
        found = None
        for at, wall_ms in self.append_times:
            if at <= offset:
                found = wall_ms
        return found

    # ------------------------------------------------------------------------------------------------ actors

    @property
    def passed_ms(self) -> int:
        """The time by a clock that nobody sets."""
        return self.wall_ms - self.shift_ms

    def set_clock(self, step_ms: int) -> None:
        """Set the wall clock."""
        self.wall_max_ms = max(self.wall_max_ms, self.wall_ms)
        for pops in self.ledger.popped:
            pops.clock_is_set(self.wall_ms)
        self.wall_ms += step_ms
        self.shift_ms += step_ms
        self.trouble_ms = self.passed_ms
        self.ledger.order_holds = False
        self.tell(f"the clock is set by {step_ms} ms")

    def _before_append(self) -> None:
        """Somebody is about to get the append lock, and has not read the clock yet."""
        chance = self.swarm.clock_at_lock
        if chance and not self.ending and self.rng.random() < chance:
            self.set_clock(self.rng.choice(STEP_MS))

    def _thaw(self, ready: list[str]) -> list[str]:
        """Those of the ready that do not stand still; perhaps one begins to, in the middle of something."""
        if self.freeze and self.tasks and self.rng.random() < self.freeze:
            self.frozen[self.rng.choice(list(self.tasks))] = self.rng.randint(10, 150)
        for name in list(self.frozen):
            self.frozen[name] -= 1
            if not self.frozen[name]:
                del self.frozen[name]
        return [name for name in ready if name not in self.frozen]

    def turns(self, count: int, until_ms: int | None = None) -> None:
        """Let actors run, ``count`` times one of those that want to; time passes when none does."""
        weights = self.swarm.actors
        for _ in range(count):
            now = self.wall_ms
            ready = [name for name in ACTORS if self._wants(name, now)]
            if self.freeze or self.frozen:
                ready = self._thaw(ready)
            if not ready:
                wake = min(self.wakes.get(name, now) for name in ACTORS if name not in _WITHOUT_WAKES)
                wake = min(wake, self.check_ms)
                if until_ms is not None and wake > until_ms:
                    self.wall_ms = max(now, until_ms)
                    return
                self.wall_ms = max(now + 1, wake)
                continue
            self.run(self.rng.choices(ready, [weights[name] for name in ready])[0])

    def _wants(self, name: str, now: int) -> bool:
        task = self.tasks.get(name)
        if task is not None:
            return task.ready
        if name == "loop":
            return bool(self.inbox) or self._checks_wait(now)
        if name == "commands":
            return bool(self.commands)
        if name == "tables":
            assert self.core is not None
            return not self.core.tables._queue.empty()
        if name == "flusher" and not self.store.flusher._inbox.empty():
            return True
        return self.wakes.get(name, 0) <= now

    def run(self, name: str) -> None:
        """Let one actor go on: a whole step, or to its next suspension."""
        task = self.tasks.get(name)
        if task is None:
            now = self.wall_ms
            step = self.steps[name]
            task = Task(name, lambda: step(now))
            if name == "flusher":
                self.flush_ms = self.passed_ms
        if self.baton is None:
            try:
                task.result = task.call()
            except (StoreError, PowerCut, Violation) as error:
                task.error = error
            task.done = True
        else:
            self.tasks[name] = task
            self.baton.resume(task)
        if not task.done:
            return
        self.tasks.pop(name, None)
        if task.error is not None:
            if not isinstance(task.error, StoreError):
                raise task.error
            self.tell(f"{name}: {task.error}")
            self.trouble_ms = self.passed_ms
            self.wakes[name] = self.wall_ms + 100
        elif name not in _WITHOUT_WAKES:
            wake = task.result
            self.wakes[name] = self.wall_ms + 250 if wake is None else min(wake, self.wall_ms + 1000)
            if wake is not None and wake <= self.wall_ms and name == "spiller" and self.rng.random() < 0.5:
                self.wakes[name] = self.wall_ms + 1
        if name == "flusher":
            self.ledger.flushed(self.flush_ms, self.trouble_ms)
        self.look()
        if name == "housekeeper" and self.shape.retention and not self.appending:
            self.check_pins()

    def look(self) -> None:
        """Hold the CommitLog against the ledger."""
        store = self.store
        self.ledger.begin = store.commit_log.begin
        if self.ledger.scanned < store.commit_log.end:
            if self.plugin.stats.handed_over or self.plugin.recovery.failed_count:
                self.ledger.order_holds = False
            count = len(self.ledger.entries)
            with self.sharp_eyes():
                self.ledger.read(store.scan(max(self.ledger.scanned, store.commit_log.begin)), self._wall_at)
            self.append_times = self.append_times[-4:]
            self._note_passing(self.ledger.entries[count:])

    def _note_passing(self, entries: Iterable[Entry] = ()) -> None:
        """Note what was appended under the delivery lock by somebody who holds it still: it is not counted off yet."""
        lock, desk = self.plugin.spill.lock, self.ledger.desk
        owner = lock.owner if isinstance(lock, SimLock) else None
        if owner is None or owner is not self._deliverer:
            desk.passing = frozenset()
        self._deliverer = owner
        if owner is not None:
            desk.passing |= {entry.number for entry in entries if not entry.original}

    def check_pins(self) -> None:
        """Retention may not take a half message that nobody has decided, whether its sender was answered or not."""
        ledger, store = self.ledger, self.store
        with self.sharp_eyes():
            pinned = min(pin() for pin in store.retention.pins[2:])  # behind those of checkpoint and progress
        for number, entry in ledger.originals.items():
            sent = ledger.sent[number]
            if sent.kind != "half" or number in ledger.delivered or ledger.decisions.ended(number):
                continue
            if store.commit_log.begin <= entry.offset < pinned:
                raise Violation(Kind.UNPINNED, f"{sent} is undecided, and retention may take all below {pinned}")

    def quiet(self) -> None:
        """Let everything that is under way come to its end."""
        for _ in range(100_000):
            ready = [name for name, task in self.tasks.items() if task.ready]
            if not self.tasks:
                return
            if not ready:
                raise Violation(Kind.STUCK, f"deadlock: {sorted(self.tasks)} wait for each other")
            self.run(self.rng.choice(ready))
        raise Violation(Kind.STUCK, "an actor does not come to an end")

    @property
    def needs_restart(self) -> bool:
        """Whether a sync has failed in such a way that only a recovery can tell what the disk holds."""
        return self.store.commit_log.failed or self.plugin.spill.journal._failed is not None  # type: ignore[attr-defined]

    @property
    def appending(self) -> bool:
        """Whether somebody is in the middle of an append."""
        lock = self.store._append_lock
        return isinstance(lock, SimLock) and lock.locked()

    # ------------------------------------------------------------------------------------------------ clients

    def _loop_step(self, _now: int) -> None:
        """One turn of the network loop: some of what has come, then its end."""
        assert self.core is not None
        for _ in range(self.rng.randint(1, max(1, len(self.inbox)))):
            if self.inbox:
                self.inbox.popleft()()
        now = self.wall_ms
        if self._checks_wait(now):
            self.check_ms = now + (100 if self.core.halves.undecided else 1000)
            self.core.processors.checks.step(now)
        self.core.end_turn()

    def _tables_step(self, _now: int) -> None:
        assert self.core is not None
        self.core.tables.step()

    def end_tables(self) -> None:
        """Write and answer what waits for a table, as a broker does that stops."""
        assert self.core is not None
        self.core.end_turn()
        self.core.tables.stop()
        self.core.end_tables()
        self.core.end_turn()

    def _checks_wait(self, now: int) -> bool:
        return not now < self.check_ms <= now + 1000

    def _command_step(self, _now: int) -> None:
        self.commands.popleft()()

    def submit(
        self, code: int, ext: dict[str, Any], body: bytes, numbers: list[int], kind: str, connection: int = 0
    ) -> None:
        """Send a request: the network loop reads it in one of its next turns."""
        self.opaque += 1
        self.waiting[self.opaque] = (numbers, kind)
        fields = {name: str(value) for name, value in ext.items()}
        frame = encode_command(RemotingCommand(code, self.opaque, 0, ext=fields, body=body))

        def receive() -> None:
            assert self.core is not None
            if not channel.closed:
                self.core.dispatcher.received(channel, FrameDecoder().feed(frame))

        channel = self.connections[connection]
        self.inbox.append(receive)

    def hang_up(self) -> None:
        """The second client's connection ends, whatever it waits for; it makes another one."""
        gone, self.connections[1] = self.connections[1], _Connection(50002, self._heard)
        self.tell("the second client's connection ends")

        def close() -> None:
            assert self.core is not None
            gone.close()
            self.core.channel_closed(gone)

        self.inbox.append(close)

    def message(self, kind: str, due_ms: int, topic: str, queue_id: int, size: int) -> tuple[Sent, str]:
        """A new message, and its properties."""
        self.number += 1
        number, rng = self.number, self.rng
        level = rng.randint(1, 3) if kind == "level" else 0
        body = b"%d." % number + bytes([65 + number % 26]) * size
        odd = kind == "wild" or (self.swarm.hostile and rng.random() < self.swarm.hostile)
        if odd and rng.random() < 0.6:
            head = b"%d." % number
            limit = int(self.shape.values["maxMessageSize"])
            body = head + hostile.body(rng, (limit if rng.random() < 0.1 else min(limit, 1500)) - len(head))
        sent = Sent(number, kind, topic, queue_id, due_ms, body, self.shape.delay_ms(level) if level else 0)
        self.ledger.sent[number] = sent
        values = {"KEYS": f"k{number}", "UNIQ_KEY": f"{number:032X}"}
        if odd and rng.random() < 0.6:
            sent.plain = hostile.plain_properties(rng)
            values |= sent.plain
        if kind == "wild":
            values |= hostile.broker_properties(rng, self.wall_ms)
            sent.dues = {0: {self.wall_ms + 6000}}  # whatever the properties say, it comes by then
            return sent, hostile.property_text(rng, values)
        if kind == "timed":
            values["TIMER_DELIVER_MS" if number & 8 else "__STARTDELIVERTIME"] = str(due_ms)
        elif kind == "level":
            values["DELAY"] = str(level)
        elif kind in ("half", "illegal"):
            values |= {"TRAN_MSG": "true", "PGROUP": "pg"}
            if kind == "illegal":
                values["TIMER_DELIVER_MS"] = str(due_ms)
        return sent, format_properties(values)

    def send(
        self, kinds: list[tuple[str, int]], topic: str, queue_id: int, size: int, connection: int | None = None
    ) -> None:
        """Send one message, or several as a batch: all of them or none."""
        if connection is None:
            connection = int(self.rng.random() < self.swarm.second)
        self.send_made(
            [self.message(*kind, topic, queue_id, size) for kind in kinds], topic, queue_id, size, connection
        )

    def send_made(self, made: list[tuple[Sent, str]], topic: str, queue_id: int, size: int, connection: int) -> None:
        """Send what was made: one message with its properties, or a batch."""
        numbers, kind = [sent.number for sent, _ in made], made[0][0].kind
        self._note_passing()
        self.ledger.desk.sends(self.ledger, [sent for sent, _ in made])
        half = kind in ("half", "illegal")
        for sent, _ in made:
            sent.connection = connection
            sent.batch = numbers if len(made) > 1 else []
        sys_flag = hostile.sys_flag(self.rng) if kind == "wild" else 4 * half
        values = ("pg", topic, "TBW102", QUEUES, queue_id, sys_flag, self.wall_ms if half else 5, 0, 0, "false")
        head: dict[str, Any] = dict(zip("abcdefghjk", values, strict=True))
        if self.say is not None:
            what = ", ".join(f"{s.number} {s.kind} at {s.due_ms - START_MS}" for s, _ in made)
            self.tell(f"client {connection} sends to {topic}/{queue_id}, {size} bytes: {what}")
        if len(made) == 1:
            sent, text = made[0]
            head |= {"i": text, "m": "false"}
            self.submit(RequestCode.SEND_MESSAGE_V2, head, sent.body, numbers, "send", connection)
        else:
            body = join_batch([(0, sent.body, text) for sent, text in made])
            head |= {"i": "", "m": "true"}
            self.submit(RequestCode.SEND_BATCH_MESSAGE, head, body, numbers, "send", connection)
        self.ledger.names.sends(self.opaque, topic)

    def delete_topic(self, topic: str) -> None:
        """Delete a topic, as an administrator does; what waits for it waits on."""
        self.ledger.deleted[topic] = 1 << 62
        for pops in self.ledger.popped:
            pops.topic_goes([m.number for m in self.ledger.sent.values() if m.topic == topic], topic)
        # A start that finds its files, and no configuration, gives it as many queues as there are files.
        self.ledger.fewer.add(topic)
        self.submit(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": topic}, b"", [], f"delete {topic}")
        self.ledger.names.ask(self.opaque, ("topic", topic), None)

    def put_topic(self, topic: str, perm: int = 6, queues: int = QUEUES) -> None:
        """Make a topic (again), or change what may be done with it, and how many queues it has."""
        if queues < QUEUES:
            self.ledger.fewer.add(topic)
        fields = {"topic": topic, "defaultTopic": "TBW102", "readQueueNums": queues, "writeQueueNums": queues}
        fields |= {"perm": perm, "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": "false"}
        self.submit(RequestCode.UPDATE_AND_CREATE_TOPIC, fields, b"", [], "topic")
        self.ledger.names.ask(self.opaque, ("topic", topic), THERE)

    def pull(self, topic: str, queue_id: int) -> None:
        """Read on in a queue, and wait for more if there is nothing."""
        offset = self.offsets.get((topic, queue_id), 0)
        self.submit(RequestCode.PULL_MESSAGE, pull_fields(topic, queue_id, offset, 2), b"", [queue_id], topic)

    def _heard(self, reply: RemotingCommand) -> None:
        if not reply.flag & FLAG_RESPONSE:
            if reply.code == RequestCode.CHECK_TRANSACTION_STATE:
                self.producer.asked(reply)
            return
        numbers, kind = self.waiting.pop(reply.opaque)
        self.ledger.names.answered(reply.opaque, reply.code == ResponseCode.SUCCESS)
        if kind.startswith("delete "):
            # Another one on its way may still take what is stored until it is answered.
            if all(other != kind for _, other in self.waiting.values()):
                self.ledger.deleted[kind[7:]] = self.store.commit_log.end
                for pops in self.ledger.popped:
                    pops.going.discard(kind[7:])
            self.tell(f"reply to {kind}: {reply.code} {reply.remark or ''}")
            return
        if kind == "name":
            self.tell(f"reply to {reply.opaque}: {reply.code} {reply.remark or ''}")
        if kind == "topic":
            self.tell(f"reply to a topic's change: {reply.code} {reply.remark or ''}")
        if kind in ("heartbeat", "name", "topic"):
            return
        verb, _, about = kind.partition(" ")
        if verb in VERBS:
            group, _, handles = about.partition(" ")
            self.poppers[group].heard(verb, handles, numbers, reply)
            return
        if kind in (COMMIT, ROLLBACK):
            self.look()
            wrong = self.producer.heard(numbers[0], kind, reply)
            if wrong:
                raise Violation(Kind.TRANSACTION, f"{self.ledger.sent[numbers[0]]} {wrong}")
            return
        if kind != "send":
            if reply.code == ResponseCode.SUCCESS:
                self._pulled(kind, numbers[0], reply.body)
            return
        good = reply.code in (ResponseCode.SUCCESS, ResponseCode.FLUSH_DISK_TIMEOUT)
        self.look()
        self.tell(f"reply to {numbers}: {reply.code} {reply.remark or ''}")
        if good:
            self._stored(numbers, reply.ext["msgId"].split(","), reply.code == ResponseCode.SUCCESS)
            sent = self.ledger.sent[numbers[0]]
            sent.place = int(reply.ext["queueOffset"]), sent.offset
            if sent.kind == "illegal":
                raise Violation(Kind.ANSWER, f"{sent} was accepted: a half message with a time")
        elif reply.code == ResponseCode.SYSTEM_ERROR and not _DISK_FAILED.match(reply.remark or ""):
            raise Violation(Kind.ANSWER, f"messages {numbers} were answered with a system error: {reply.remark}")
        else:
            illegal, remark = reply.code == ResponseCode.MESSAGE_ILLEGAL, reply.remark or ""
            unsure = self.ledger.desk.refused(self.ledger, numbers, illegal, remark)
            for number in numbers:
                if number in unsure:
                    self.ledger.sent[number].state = "unsure"
                else:
                    self.ledger.refused(number)

    def _stored(self, numbers: list[int], ids: list[str], sure: bool) -> None:
        for number, text in zip(numbers, ids, strict=True):
            offset = int(text[-16:], 16)
            held = offset >= VIRTUAL
            end = self.plugin.spill.journal.written if held else self.store.commit_log.end
            sent = self.ledger.sent[number]
            if sent.note is not None and held:
                sent.offset = offset
            self.ledger.acked(number, offset, end, sure, None if self.shape.sync else self.passed_ms)
            if sent.note is not None:
                self.ledger.desk.acked(self.ledger, sent, self.wall_ms, self.shift_ms)
        self.ledger.desk.bounded(self.ledger)

    def _pulled(self, topic: str, queue_id: int, body: bytes) -> None:
        at = 0
        self.look()
        while at < len(body):
            size = record_size(body, at)
            record = body[at : at + size]
            number = int(body_of(record).partition(b".")[0])
            if number not in self.ledger.delivered or record_fields(record)[:2] != (topic, queue_id):
                raise Violation(
                    Kind.QUEUES, f"a consumer of {topic}/{queue_id} got message {number}, which is not there"
                )
            self.offsets[topic, queue_id] = int.from_bytes(record[20:28], "big") + 1
            at += size

    def cancel(self, number: int) -> None:
        """Cancel a message that was acknowledged."""

        def call() -> None:
            sent = self.ledger.sent[number]
            self.look()
            before, delivered = sent.cancel, number in self.ledger.delivered
            sent.cancel = before or "maybe"
            try:
                outcome = self._asked(PendingVerb.CANCEL, sent.offset, number)
            except StoreError as error:
                self.tell(f"cancel {number}: {error}")
                outcome = None
            sent.cancel = before
            self.look()
            self.tell(f"cancel {number}: {outcome!r}")
            self.ledger.cancel(number, outcome, delivered)

        self.commands.append(call)

    def move(self, number: int, delay_ms: int) -> None:
        """Move a message that was acknowledged."""

        def call() -> None:
            self.look()
            delivered = number in self.ledger.delivered
            due_ms = self.wall_ms + delay_ms
            version = self.ledger.moving(number, due_ms)
            try:
                verb = PendingVerb.MOVE if delay_ms else PendingVerb.NOW
                outcome = self._asked(verb, self.ledger.sent[number].offset, number, due_ms)
            except StoreError as error:
                self.tell(f"move {number}: {error}")
                outcome = None
            self.look()
            self.tell(f"move {number} to {due_ms - START_MS}: {outcome!r}")
            self.ledger.moved(number, due_ms, version, outcome, delivered)

        self.commands.append(call)

    def _asked(self, verb: PendingVerb, offset: int, number: int, due_ms: int | None = None) -> CommandOutcome | None:
        """Ask by one of the two doors; None: nothing was changed, and nothing is known by that."""
        if number % 3 == 0 and verb is not PendingVerb.NOW:
            if due_ms is None:
                return self.plugin.cancel(offset, self.wall_ms).outcome
            return self.plugin.move(offset, due_ms, self.wall_ms).outcome
        topic = self.ledger.sent[number].topic
        name = PendingName(offset=offset, topic=topic if number % 3 == 1 else "")
        order = PendingOrder(verb=verb, name=name, due_ms=None if verb is not PendingVerb.MOVE else due_ms)
        verdict = self.plugin.pending.change(order, self.wall_ms).verdict
        if verdict is PendingVerdict.ALREADY and verb is not PendingVerb.CANCEL:
            return None
        return _OUTCOMES[verdict]

    # ------------------------------------------------------------------------------------------------ the end

    def check(self) -> None:
        """Ask every part whether it is well."""
        assert self.core is not None
        problems = (
            self.plugin.check() + self.core.level_scheduler.check() + self.store.check() + self.core.halves.check()
        ) + self.core.processors.pop.check()
        if problems:
            raise Violation(Kind.CHECK, f"check: {problems}")

    def consume_all(self) -> None:
        """Pull every queue from its beginning: consumers see what the log has, in its order."""
        for topic in TOPICS:
            for queue_id in range(QUEUES):
                self._consume(topic, queue_id)

    def _consume(self, topic: str, queue_id: int) -> None:
        ledger = self.ledger
        offset = self.store.min_offset(topic, queue_id)
        records = []
        while found := self.store.queue_entries(topic, queue_id, offset, 100):
            records += [self.store.read_record(entry[0]) for entry in found]
            offset += len(found)
        seen = [int(body_of(record).partition(b".")[0]) for record in records if record is not None]
        stored = [
            entry
            for entry in ledger.entries
            if not entry.original
            and entry.offset >= self.store.commit_log.begin
            and (ledger.sent[entry.number].topic, entry.queue_id) == (topic, queue_id)
        ]
        # What was there before the topic was deleted may be gone, with all that was before it.
        first = len(stored) - len(seen)
        deleted = ledger.deleted.get(topic, 0)
        whole = first == 0 or all(entry.offset < deleted for entry in stored[: max(first, 0)])
        if first < 0 or not whole or seen != [entry.number for entry in stored[first:]]:
            numbers = [entry.number for entry in stored]
            raise Violation(Kind.QUEUES, f"consumers of {topic}/{queue_id} get {seen}, the CommitLog has {numbers}")

    def counted(self) -> None:
        """Nothing may be left."""
        assert self.core is not None
        undecided = len(self.core.halves.undecided)
        levels = self.core.level_scheduler.pending_count()
        left = self.plugin.pending_count(), self.plugin.recovery.failed_count, levels, undecided
        rows = self.plugin.list_pending(None, 10)
        if any(left) or rows:
            raise Violation(
                Kind.LOST,
                f"after the end of time: pending {left[0]}, failed {left[1]}, levels {left[2]}, undecided {left[3]}, "
                f"{rows}",
            )


def pull_fields(topic: str, queue_id: int, offset: int, sys_flag: int) -> dict[str, Any]:
    """Header fields of PULL_MESSAGE."""
    return {
        "consumerGroup": "cg",
        "topic": topic,
        "queueId": queue_id,
        "queueOffset": offset,
        "maxMsgNums": 32,
        "sysFlag": sys_flag | 4,
        "commitOffset": 0,
        "suspendTimeoutMillis": 15_000,
        "subscription": "*",
        "subVersion": 0,
        "expressionType": "TAG",
    }


_DISK_FAILED = re.compile("Store(Full)?Error: |SyncFailedError: ")
"""A topic could not be made, for example."""
