"""What happens in one seed: clients, faults, crashes and clocks, drawn one after the other; and then the reckoning.

`Life` is a whole story. `Aftermath` is what comes after one crash point of it: the machine comes back (perhaps it fails
again while it does, several times), something more happens, all time passes, and the ledger must be right.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random

from broker_plugin.failures import BACKOFF_MAX_MS
from store.errors import StoreError, SyncFailedError
from tests.simulation.decisions import COMMIT, ROLLBACK
from tests.simulation.ledger import Ledger, Violation
from tests.simulation.world import QUEUES, TOPICS, Shape, World
from tests.support.simdisk import PowerCut, SimDisk

__all__ = ["Aftermath", "Life", "draw_keep"]

DELAYS = (1, 2, 5, 40, 300, 900, 1001, 2500)
FAR = (4000, 9000, 30_000)
READ_FAULT_IN_START = 0.2
KEEPS = (None, 0.0, 0.3, 0.7, 1.0)
STEP_MS = (-86_400_000, -4000, -300, -20, -1, 1, 30, 2000, 86_400_000)


def draw_keep(rng: Random) -> float | None:
    """How a crash ends: only the process (None), or the power, and how much of what was dirty stays."""
    return rng.choice(KEEPS)


class _Story:
    """What `Life` and `Aftermath` have in common."""

    def __init__(self, world: World, rng: Random) -> None:
        self.world = world
        self.rng = rng

    def send_some(self) -> None:
        """Sends of every kind, alone, in batches, in crowds for one millisecond."""
        world, rng = self.world, self.rng
        now = world.wall_ms
        topic, queue_id = rng.choice(TOPICS), rng.randrange(QUEUES)
        what = rng.random()
        size = rng.choice((0, 10, 10, 60, 300))
        if what < 0.45:
            for _ in range(rng.randint(1, 4)):
                world.send([("timed", self.due(now))], topic, queue_id, size)
        elif what < 0.60:
            kinds = [rng.choice(("timed", "timed", "now", "level")) for _ in range(rng.randint(2, 4))]
            if size == 10:  # of one make: such batches have a way of their own
                kinds = kinds[:1] * len(kinds)
            world.send([(kind, self.due(now) if kind == "timed" else 0) for kind in kinds], topic, queue_id, size)
        elif what < 0.72:
            due_ms = self.due(now)
            for _ in range(rng.randint(3, 12)):
                world.send([("timed", due_ms)], topic, queue_id, size)
        elif what < 0.86:
            world.send([("now", 0)], topic, queue_id, size)
        elif what < 0.92:
            world.send([("level", 0)], topic, queue_id, size)
        elif what < 0.97:
            for _ in range(rng.randint(1, 3)):
                kind = "half" if rng.random() < 0.9 else "illegal"
                world.send([(kind, self.due(now) if kind == "illegal" else 0)], topic, queue_id, size)
        else:
            world.send([("timed", now - rng.choice((0, 1, 50)))], topic, queue_id, size)

    def due(self, now: int) -> int:
        """A due time: soon, as a rule."""
        return now + self.rng.choice(DELAYS if self.rng.random() < 0.85 else FAR)

    def command_some(self) -> None:
        """Cancel or move something that was acknowledged; also what is delivered already."""
        known = [m.number for m in self.world.ledger.sent.values() if m.held and m.state == "acked"]
        if not known:
            return
        number = self.rng.choice(known[-12:] if self.rng.random() < 0.8 else known)
        if self.rng.random() < 0.5:
            self.world.cancel(number)
        else:
            self.world.move(number, self.rng.choice((0, 1, 30, 700, 3000)))

    def decide_some(self) -> None:
        """Commit or roll back, as a rule what was not decided yet."""
        known = [m for m in self.world.ledger.sent.values() if m.kind == "half" and m.place is not None]
        for sent in known[-self.rng.randint(1, 6) :]:
            if not sent.asked or self.rng.random() < 0.2:
                self.world.producer.end(sent.number, COMMIT if self.rng.random() < 0.6 else ROLLBACK)

    def come_back(self, tries: int, crash_in_start: float) -> None:
        """Start until a broker is up; with a chance, the machine fails again in the middle of the start."""
        world, rng = self.world, self.rng
        while True:
            tries -= 1
            if tries > 0 and rng.random() < crash_in_start:
                world.fault = _power_fails_at(rng.randint(1, 45))
            if tries > 0 and rng.random() < READ_FAULT_IN_START:
                where = rng.choice(("", "commitlog", "journal"))
                world.read_fault = _reads_fail(where, rng.randint(0, 60 if not where else 8), rng.choice((1, 3, 1000)))
            try:
                world.boot()
                world.fault = world.read_fault = None
                return
            except PowerCut:
                world.fault = world.read_fault = None
                world.die(draw_keep(rng), rng)
            except StoreError as error:
                if world.fault is None and world.read_fault is None:
                    raise Violation(f"the broker does not start: {error}") from error
                world.tell(f"no start: {error}")
                world.fault = world.read_fault = None
                world.die(None, rng)

    def finish(self) -> None:
        """Heal everything, let all time pass, and hold the log against the ledger."""
        world = self.world
        for again in range(4):
            self.heal()
            self.run_out()
            if not world.ledger.missing():
                break
            if again == 3 or not world.needs_restart:
                world.ledger.finished()
            # After some failures of syncs a broker takes nothing more until it is started again.
            world.quiet()
            world.die(None, self.rng)
            self.come_back(1, 0)
        world.quiet()
        world.look()
        world.check()
        world.counted()
        world.consume_all()
        world.ledger.finished()

    def heal(self) -> None:
        """Nothing is broken any more."""
        world = self.world
        world.fault = world.read_fault = None
        world.missing.clear()
        world.disk.free = 1 << 40
        for topic in TOPICS:
            world.put_topic(topic)
        world.switch = 0.0 if world.switch is not None else None
        world.plugin.topics_changed()

    def run_out(self) -> None:
        """Let time pass until well after the last due time, first in small steps, then in large ones."""
        world, rng = self.world, self.rng
        dues = [due for m in world.ledger.sent.values() for versions in m.dues.values() for due in versions]
        for number, entry in world.ledger.originals.items():
            dues.append(entry.store_ms + world.ledger.sent[number].delay_ms)  # by the clock as it was set then
        end_ms = max([world.wall_ms, world.wall_max_ms, *dues]) + 5000
        for share in (rng.choice((0.0, 0.05)), rng.random(), 1.0):
            until_ms = world.wall_ms + int((end_ms - world.wall_ms) * share)
            if share < 0.1:
                until_ms = min(until_ms, world.wall_ms + 800)
                while world.wall_ms < until_ms:
                    world.turns(20, until_ms)
            world.wall_ms = max(world.wall_ms, until_ms)
            self.settle()
        for _ in range(14):
            world.wall_ms += 400
            self.settle()
        if world.plugin.recovery.failed_count:
            world.wall_ms += BACKOFF_MAX_MS
            self.settle()

    def settle(self) -> None:
        """Let everybody work until nobody wants to at this moment."""
        world = self.world
        for name in list(world.wakes):
            world.wakes[name] = min(world.wakes[name], world.wall_ms)
        world.check_ms = min(world.check_ms, world.wall_ms)
        start = world.wall_ms
        for _ in range(4000):
            world.turns(1, start)
            if world.wall_ms != start or not any(world._wants(name, start) for name in world.steps):
                return
        raise Violation(f"at {start} the actors find no rest")


class Aftermath(_Story):
    """One crash point and what comes after it, in a world of its own."""

    def __init__(
        self, before: World, rng: Random, keep: float | None, ledger: Ledger, say: Callable[[str], None] | None = None
    ) -> None:
        disk = before.disk.crashed(rng, keep, True)
        world = World(rng, before.shape, disk, ledger, before.wall_ms, None, say)
        world.synced = before.synced
        world.wall_max_ms = max(before.wall_max_ms, before.wall_ms)
        super().__init__(world, rng)

    def run(self) -> None:
        """Come back, go on for a little, come to the end."""
        world, rng = self.world, self.rng
        world.wall_ms += rng.choice((0, 0, 1, 40, 1500, 8000))
        if rng.random() < 0.05:
            world.wall_ms += rng.choice((-5000, -40))
            world.ledger.order_holds = False
        self.come_back(rng.choice((1, 2, 4)), 0.7)
        for _ in range(rng.choice((0, 0, 1, 3))):
            self.send_some()
            if rng.random() < 0.3:
                self.command_some()
            if rng.random() < 0.4:
                self.decide_some()
            world.turns(rng.randint(3, 25))
            if rng.random() < 0.15:
                world.die(draw_keep(rng), rng)
                self.come_back(2, 0.4)
        self.finish()


class Life(_Story):
    """The story of a seed. ``probe`` is called at each call of the disk, with its number."""

    def __init__(
        self,
        seed: int,
        probe: Callable[[World, int], None] | None = None,
        say: Callable[[str], None] | None = None,
        length: int = 36,
    ) -> None:
        rng = Random(seed)
        self.seed = seed
        self.length = length
        shape = Shape(rng)
        switch = rng.choice((0.02, 0.1, 0.3))
        self.calm = rng.random() < 0.4
        """Whether the disk never fails but for crashes, and the clock is never set."""
        disk = SimDisk(seed)
        super().__init__(World(rng, shape, disk, Ledger(), switch=switch, say=say), rng)
        self.switch = switch
        if probe is not None:
            self.world.call_seen = lambda: probe(self.world, self.world.calls)

    def run(self) -> None:
        """Live it, to the end."""
        self.world.tell(f"{self.world.shape.values}")
        self.come_back(3, 0.5)
        for _ in range(self.length):
            try:
                self.happen()
            except PowerCut:
                self.world.fault = self.world.read_fault = None
                self.world.die(draw_keep(self.rng), self.rng)
                self.come_back(3, 0.3)
        self.world.fault = self.world.read_fault = None
        try:
            self.world.quiet()
        except StoreError as error:
            raise Violation(f"an error that nobody expects: {error}") from error
        if self.rng.random() < 0.5:
            self.restart_cleanly()
        self.finish()

    def happen(self) -> None:
        """One thing."""
        world, rng = self.world, self.rng
        what = rng.random()
        if what < 0.46:
            self.send_some()
            world.turns(rng.randint(1, 20))
        elif what < 0.58:
            (self.command_some if rng.random() < 0.7 else self.decide_some)()
            world.turns(rng.randint(1, 30))
        elif what < 0.63:
            world.pull(rng.choice(TOPICS), rng.randrange(QUEUES))
            world.turns(rng.randint(1, 10))
        elif what < 0.67:
            if not self.calm:
                world.ledger.order_holds = False
                self.break_reads()
        elif what < 0.78:
            world.turns(rng.randint(10, 80), world.wall_ms + rng.choice((5, 600, 3000)))
        elif what < 0.81:
            # A slow disk, a busy machine: time passes, whoever is in the middle of something stays there.
            world.wall_ms += rng.choice((1, 40, 700, 5000))
        elif what < 0.93:
            if not self.calm:
                self.break_something()
        elif what < 0.96:
            world.fault = _power_fails_at(rng.randint(1, 60))
        elif what < 0.98:
            world.die(draw_keep(rng), rng)
            self.come_back(3, 0.4)
        else:
            self.restart_cleanly()

    def break_something(self) -> None:
        """Something fails for a while, or the clock is set."""
        world, rng = self.world, self.rng
        what = rng.random()
        world.ledger.order_holds = False
        if what < 0.3:
            step_ms = rng.choice(STEP_MS)
            if not world.appending:
                world.wall_max_ms = max(world.wall_max_ms, world.wall_ms)
                world.wall_ms += step_ms
                world.tell(f"the clock is set by {step_ms} ms")
            return
        if what < 0.36:
            topic = rng.choice(TOPICS)
            if rng.random() < 0.6:
                world.tell(f"topic {topic} is deleted")
                world.delete_topic(topic)
            else:
                world.put_topic(topic, rng.choice((4, 6, 6)))
            if rng.random() < 0.5:
                self.send_some()
            world.turns(rng.randint(1, 40))
            return
        if what < 0.4:
            world.missing ^= {rng.choice(TOPICS)}
            world.plugin.topics_changed()
            world.tell(f"no permission for {sorted(world.missing)}")
            return
        if what < 0.5:
            world.disk.free = rng.choice((0, 3000, 1 << 40))
            world.tell(f"{world.disk.free} bytes of the disk are free")
            return
        first, count = rng.choice(((0, 15), (rng.randint(0, 8), rng.randint(1, 6))))
        kind = rng.choice(("full", "write", "sync", "any"))
        where = rng.choice(("", "", "commitlog", "commitlog", "journal", "runs", "manifest"))
        world.tell(f"the disk fails: {kind} {where!r}, {count} calls after {first}")
        world.fault = _fails(kind, where, first, count)
        for _ in range(rng.randint(0, 2)):
            self.send_some()
        world.turns(rng.randint(5, 40))
        if rng.random() < 0.8:
            world.fault = None

    def break_reads(self) -> None:
        """Some files cannot be read for a while: deliveries, merges, scans and consumers have to wait."""
        world, rng = self.world, self.rng
        where = rng.choice(("", "commitlog", "consumequeue", "journal", "runs", "runs", "keyindex"))
        first, count = rng.choice(((0, 1), (0, 1000), (rng.randint(0, 8), rng.randint(1, 6))))
        world.tell(f"the disk cannot read {where!r}, {count} times after {first}")
        world.read_fault = _reads_fail(where, first, count)
        for _ in range(rng.randint(0, 2)):
            self.send_some()
        if rng.random() < 0.5:
            self.command_some()
        world.turns(rng.randint(5, 60), world.wall_ms + rng.choice((5, 600, 3000)))
        if rng.random() < 0.8:
            world.read_fault = None

    def restart_cleanly(self) -> None:
        """Stop as a broker stops, and start again."""
        world = self.world
        world.fault = world.read_fault = None
        world.quiet()
        assert world.core is not None
        world.tell("a clean stop")
        try:
            world.core.stop()
            world.core.close()
        except StoreError as error:
            world.tell(f"stop: {error}")
            world.die(None, self.rng)
        else:
            world.look()
            world.note_synced()
            disk = world.disk.copy()
            world.bury()
            disk.rng = self.rng
            world.disk = disk
        self.come_back(2, 0.3)


def _power_fails_at(number: int) -> Callable[[str, Path], None]:
    left = number

    def fault(_operation: str, _path: Path) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            raise PowerCut

    return fault


def _reads_fail(where: str, first: int, count: int) -> Callable[[Path], None]:
    """Some reads in a row fail, of the files whose path has these letters."""
    seen = 0

    def fault(path: Path) -> None:
        nonlocal seen
        if where in str(path):
            seen += 1
            if first < seen <= first + count:
                raise StoreError(f"cannot read {path}: Input/output error (errno 5)")

    return fault


def _fails(kind: str, where: str, first: int, count: int) -> Callable[[str, Path], None]:
    """Some calls in a row fail: the disk is full, it cannot write, it cannot sync, it can do nothing."""
    seen = 0
    wanted = {
        "full": ("pwrite", "create", "mkdir", "truncate"),
        "write": ("pwrite", "truncate"),
        "sync": ("sync", "sync_dir"),
        "any": ("pwrite", "create", "mkdir", "truncate", "rename", "remove", "sync", "sync_dir", "punch"),
    }[kind]

    def fault(operation: str, path: Path) -> None:
        nonlocal seen
        if operation not in wanted or where not in str(path):
            return
        seen += 1
        if not first < seen <= first + count:
            return
        if operation in ("sync", "sync_dir"):
            raise SyncFailedError(f"cannot sync {path}: Input/output error (errno 5)")
        if kind == "full":
            raise SimDisk().full()
        raise StoreError(f"cannot {operation} {path}: Input/output error (errno 5)")

    return fault
