"""What happens in one seed: clients, faults, crashes and clocks, drawn one after the other; and then the reckoning.

`Life` is a whole story. `Aftermath` is what comes after one crash point of it: the machine comes back (perhaps it fails
again while it does, several times), something more happens, all time passes, and the ledger must be right.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random

from broker_plugin.failures import BACKOFF_MAX_MS
from store.disk.errors import StoreError
from tests.simulation.decisions import COMMIT, ROLLBACK
from tests.simulation.durable import CHECKPOINT
from tests.simulation.faults import fails, fails_and_then, killed_behind, power_fails_at, reads_fail
from tests.simulation.kinds import Kind, Violation
from tests.simulation.ledger import Ledger
from tests.simulation.names import forget_name, put_name
from tests.simulation.ordered import ORDERED
from tests.simulation.poppers import INVISIBLE_MAX_MS
from tests.simulation.pops import GROUP
from tests.simulation.swarm import ACTORS, Swarm
from tests.simulation.troubles import TROUBLES
from tests.simulation.world import QUEUES, ROOT, STEP_MS, TOPICS, Shape, World
from tests.support.simdisk import PowerCut, SimDisk

__all__ = ["Aftermath", "Life", "draw_keep"]

DELAYS = (1, 2, 5, 40, 300, 900, 1001, 2500)
FAR = (4000, 9000, 30_000)
READ_FAULT_IN_START = 0.2
KEEPS = (None, 0.0, 0.3, 0.7, 1.0)


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
        size = rng.choice((0, 10, 10, 60, 300))
        what = world.swarm.draw(world.swarm.sends, rng)
        if what == "timed":
            for _ in range(rng.randint(1, 4)):
                world.send([("timed", self.due(now))], topic, queue_id, size)
        elif what == "batch":
            count = rng.randint(2, 4) if rng.random() < 0.7 else rng.randint(5, 9)
            kinds = [rng.choice(("timed", "timed", "timed", "past", "now", "level")) for _ in range(count)]
            if rng.random() < 0.05:
                kinds[rng.randrange(count)] = "half"  # refused, with all the others
            if size == 10:  # of one make: such batches have a way of their own
                kinds = kinds[:1] * len(kinds)
            world.send([self.of_kind(kind, now) for kind in kinds], topic, queue_id, size)
        elif what == "crowd":
            due_ms = self.due(now)
            for _ in range(rng.randint(3, 12)):
                world.send([("timed", due_ms)], topic, queue_id, size)
        elif what == "half":
            for _ in range(rng.randint(1, 3)):
                kind = "half" if rng.random() < 0.9 else "illegal"
                world.send([(kind, self.due(now) if kind == "illegal" else 0)], topic, queue_id, size)
        else:  # now, level, wild, past
            world.send([self.of_kind(what, now)], topic, queue_id, size)

    def of_kind(self, kind: str, now: int) -> tuple[str, int]:
        """A kind with a due time, if it needs one."""
        if kind == "past":
            return "timed", now - self.rng.choice((0, 1, 50))
        return kind, self.due(now) if kind == "timed" else 0

    def due(self, now: int) -> int:
        """A due time: soon, as a rule."""
        return now + self.rng.choice(DELAYS if self.rng.random() < 0.85 else FAR)

    def command_some(self) -> None:
        """Cancel or move something that was acknowledged; also what is delivered already."""
        sent = self.world.ledger.sent.values()
        known = [m.number for m in sent if m.held and m.state == "acked" and m.kind == "timed" and m.note is None]
        if not known:
            return
        self.command(self.rng.choice(known[-12:] if self.rng.random() < 0.8 else known))

    def command(self, number: int) -> None:
        """Cancel or move it."""
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

    def pend_some(self) -> None:
        """Sends with delay keys, changes of what is pending by key and by query, the remains of a deleted topic."""
        world, rng = self.world, self.rng
        what = rng.choice(("send",) * 6 + ("change",) * 5 + ("bulk",) * 2 + ("purge",))
        topic = rng.choice(TOPICS)
        if what == "purge" and any(pops.held for pops in world.ledger.popped):
            what = "bulk"  # what becomes of popped messages of a topic that goes is told elsewhere
        if what == "send":
            for _ in range(rng.randint(1, 3)):
                dues = [self.due(world.wall_ms) for _ in range(rng.choice((1, 1, 1, 2, 3)))]
                world.clerk.send(dues, topic, rng.randrange(QUEUES), rng)
        elif what == "change":
            for _ in range(rng.randint(1, 4)):
                world.clerk.change(rng)
        elif what == "bulk":
            world.clerk.bulk(topic, rng)
        else:
            world.delete_topic(topic)
            world.turns(rng.randint(5, 30), world.wall_ms + rng.choice((1, 600)))
            world.clerk.purge(topic)
        world.turns(rng.randint(1, 30), world.wall_ms + rng.choice((1, 1, 40, 600)))
        if what == "purge":
            world.put_topic(topic)

    def pop_some(self, group: str = GROUP) -> None:
        """Pop, acknowledge and change."""
        world, rng = self.world, self.rng
        poppers = world.poppers[group]
        for _ in range(rng.randint(1, 3)):
            poppers.pop(rng.choice(TOPICS), rng)
        world.turns(rng.randint(2, 10), world.wall_ms + rng.choice((1, 40)))
        for _ in range(rng.randint(0, 6)):
            poppers.answer(rng)
        world.turns(rng.randint(1, 20), world.wall_ms + rng.choice((1, 300)))

    def pop_all(self) -> None:
        """Pop and acknowledge until nothing comes any more: whatever nobody has acknowledged must come."""
        world, rng = self.world, self.rng
        for poppers in world.poppers.values():
            if not poppers.pops.held:
                continue
            for _ in range(6):
                world.wall_ms += INVISIBLE_MAX_MS + 1000
                self.settle()
                for _ in range(100):
                    known = len(poppers.got)
                    for topic in TOPICS:
                        poppers.pop(topic, rng, 32)
                        self.settle()
                    for number, one in poppers.got[known:]:
                        poppers.ack(number, one)
                    self.settle()
                    if len(poppers.got) == known:
                        break
            poppers.pops.finished(world.ledger, world.store.commit_log.begin)

    def break_reads(self) -> None:
        """Some files cannot be read for a while: deliveries, merges, scans and consumers have to wait."""
        world, rng = self.world, self.rng
        where = rng.choice(("", "commitlog", "consumequeue", "journal", "journal", "runs", "runs", "keyindex"))
        first, count = rng.choice(((0, 1), (0, 1000), (0, 1000), (rng.randint(0, 8), rng.randint(1, 6))))
        world.tell(f"the disk cannot read {where!r}, {count} times after {first}")
        world.ledger.order_holds = False
        world.read_fault = reads_fail(where, first, count)
        for _ in range(rng.randint(0, 2)):
            self.send_some()
        for _ in range(rng.choice((0, 1, 3))):
            self.command_some()
        world.turns(rng.randint(5, 60), world.wall_ms + rng.choice((5, 600, 3000)))
        if rng.random() < 0.8:
            world.read_fault = None

    def come_back(self, tries: int, crash_in_start: float) -> None:
        """Start until a broker is up; with a chance, the machine fails again in the middle of the start."""
        world, rng = self.world, self.rng
        if rng.random() < world.swarm.settings:
            world.shape = world.shape.changed(rng)
            names = ("flushDiskType", "messageDelayLevel", "maxMessageSize")
            world.tell(f"settings: {[world.shape.values[name] for name in names]}")
        while True:
            tries -= 1
            keep = draw_keep(rng)
            draw = rng.random()
            if tries <= 0:
                pass
            elif draw < crash_in_start:
                world.fault = power_fails_at(rng.randint(1, 45))
            elif draw < crash_in_start + 0.1:
                # Before the name of something is durable; the next start finds it, and may think that it is.
                world.fault, keep = killed_behind(rng.choice(("mkdir", "rename")), rng.randint(1, 5)), None
            elif draw < crash_in_start + 0.2:
                where = rng.choice(("commitlog", "commitlog", "journal", "consumequeue"))
                world.fault = fails("sync", where, [(rng.choice((0, 0, 1)), rng.choice((1, 1, 3)))])
            if tries > 0 and rng.random() < READ_FAULT_IN_START:
                where = rng.choice(("", "commitlog", "journal"))
                world.read_fault = reads_fail(where, rng.randint(0, 60 if not where else 8), rng.choice((1, 3, 1000)))
            try:
                world.boot()
                world.fault = world.read_fault = None
                return
            except PowerCut:
                world.fault = world.read_fault = None
                world.die(keep, rng)
            except StoreError as error:
                if world.fault is None and world.read_fault is None:
                    raise Violation(Kind.START, f"the broker does not start: {error}") from error
                world.tell(f"no start: {error}")
                world.fault = world.read_fault = None
                world.die(None, rng)

    def finish(self) -> None:
        """Heal everything, let all time pass, and hold the log against the ledger."""
        world = self.world
        for again in range(4):
            self.heal()
            self.run_out()
            # What is pending must not be missing: it may have been cancelled by a request that got no answer.
            waits = world.needs_restart and world.plugin.pending_count() > 0
            if not world.ledger.missing() and not waits:
                break
            if again == 3 or not world.needs_restart:
                world.ledger.finished()
            # After some failures of syncs a broker takes nothing more until it is started again.
            world.quiet()
            world.die(None, self.rng)
            self.come_back(1, 0)
        world.quiet()
        self.pop_all()
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
        world.frozen.clear()
        world.disk.free = 1 << 40
        while any(kind.startswith("delete ") for _, kind in world.waiting.values()):
            world.turns(1)  # a topic that is made while it is being deleted may be gone after that
        for topic in TOPICS:
            world.put_topic(topic)
        world.switch = 0.0 if world.switch is not None else None
        world.freeze, world.ending = 0.0, True
        world.frozen.clear()
        world.plugin.topics_changed()

    def run_out(self) -> None:
        """Let time pass until well after the last due time, first in small steps, then in large ones."""
        world, rng = self.world, self.rng
        dues = [due for m in world.ledger.sent.values() for versions in m.dues.values() for due in versions]
        for number, entry in world.ledger.originals.items():
            dues.append(entry.store_ms + world.ledger.sent[number].delay_ms)  # by the clock as it was set then
        for first, last in (span for spans in world.ledger.desk.asked.values() for span in spans):
            dues.append(min(last, first + 2 * FAR[-1]))  # of a restart without an answer nobody knows more
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
        raise Violation(Kind.STUCK, f"at {start} the actors find no rest")


class Aftermath(_Story):
    """One crash point and what comes after it, in a world of its own."""

    def __init__(
        self, before: World, rng: Random, keep: float | None, ledger: Ledger, say: Callable[[str], None] | None = None
    ) -> None:
        disk = before.disk.crashed(rng, keep, True)
        world = World(rng, before.shape, disk, ledger, before.wall_ms, None, say, before.swarm)
        world.shift_ms, world.trouble_ms = before.shift_ms, before.trouble_ms
        world.synced, world.pops_synced = before.synced, before.pops_synced
        for group, poppers in before.poppers.items():
            world.poppers[group].got = list(poppers.got)
        world.wall_max_ms = max(before.wall_max_ms, before.wall_ms)
        super().__init__(world, rng)

    def run(self) -> None:
        """Come back, go on for a little, come to the end."""
        world, rng = self.world, self.rng
        world.wall_ms += rng.choice((0, 0, 1, 40, 1500, 8000))
        if rng.random() < 0.05:
            world.set_clock(rng.choice((-5000, -40)))
        self.come_back(rng.choice((1, 2, 4)), 0.7)
        if rng.random() < world.swarm.reread:
            self.break_reads()
        for _ in range(rng.choice((0, 0, 1, 3))):
            self.send_some()
            if rng.random() < 0.3:
                self.command_some()
            if rng.random() < 0.4:
                self.decide_some()
            if world.ledger.pops.held and rng.random() < 0.5:
                self.pop_some()
            if world.ledger.ordered.held and rng.random() < 0.5:
                self.pop_some(ORDERED)
            if world.swarm.happens.get("pending") and rng.random() < 0.5:
                self.pend_some()
            world.turns(rng.randint(3, 25))
            if rng.random() < 0.15:
                world.die(draw_keep(rng), rng)
                self.come_back(2, 0.4)
        self.finish()


class Life(_Story):
    """The story of a seed. ``probe`` is called at each call of the disk, with its number.

    ``fond``: what half of it is to be about (of `tests.simulation.swarm.HAPPENS`, or of `TROUBLES`). ``keys``: whether
    there may be messages with delay keys, and what belongs to them. ``order``: whether there may be pops in order, and
    acknowledgements of several messages at once.
    """

    def __init__(
        self,
        seed: int,
        probe: Callable[[World, int], None] | None = None,
        say: Callable[[str], None] | None = None,
        length: int = 36,
        fond: str = "",
        keys: bool = True,
        order: bool = True,
    ) -> None:
        rng = Random(seed)
        self.seed = seed
        self.length = length
        shape, swarm = Shape(rng), Swarm(rng)
        habits = Random(f"{seed} pending")
        if keys:
            shape.values |= swarm.keep_keys(habits)
        if order:
            swarm.keep_order(Random(f"{seed} in order"))
        if fond:
            swarm.be_fond_of(fond)
        switch = rng.choice((0.02, 0.1, 0.3))
        disk = SimDisk(seed)
        disk.can_punch = rng.random() < 0.7
        super().__init__(World(rng, shape, disk, Ledger(), switch=switch, say=say, swarm=swarm), rng)
        self.switch = switch
        if probe is not None:
            self.world.call_seen = lambda: probe(self.world, self.world.calls)

    def run(self) -> None:
        """Live it, to the end."""
        self.world.tell(f"{self.world.shape.values}")
        self.come_back(3, 0.5)
        self.live()
        if self.rng.random() < 0.5:
            self.restart_cleanly()
        self.finish()

    def live(self) -> None:
        """Things happen, one after the other."""
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
            raise Violation(Kind.ERROR, f"an error that nobody expects: {error}") from error

    def happen(self) -> None:
        """One thing."""
        world, rng = self.world, self.rng
        what = world.swarm.draw(world.swarm.happens, rng)
        if what in TROUBLES:
            TROUBLES[what](self)
        elif what == "send":
            self.send_some()
            world.turns(rng.randint(1, 20))
        elif what in ("command", "decide"):
            (self.command_some if what == "command" else self.decide_some)()
            world.turns(rng.randint(1, 30))
        elif what in ("pop", "pop in order"):
            self.pop_some(GROUP if what == "pop" else ORDERED)
        elif what == "pending":
            self.pend_some()
        elif what == "pull":
            world.pull(rng.choice(TOPICS), rng.randrange(QUEUES))
            world.turns(rng.randint(1, 10))
        elif what == "reads":
            self.break_reads()
        elif what == "wait":
            world.turns(rng.randint(10, 80), world.wall_ms + rng.choice((5, 600, 3000)))
        elif what == "stand still":
            # A slow disk, a busy machine: time passes, whoever is in the middle of something stays there.
            world.wall_ms += rng.choice((1, 40, 700, 5000))
        elif what == "one stands still":
            self.one_stands_still()
        elif what == "break":
            self.break_something()
        elif what == "power":
            world.fault = power_fails_at(rng.randint(1, 60))
        elif what == "crash":
            world.die(draw_keep(rng), rng)
            self.come_back(3, 0.4)
        elif what == "fail and crash":
            self.fail_and_crash()
        elif what == "names":
            for _ in range(rng.choice((1, 1, 2, 5))):
                (put_name if rng.random() < 0.6 else forget_name)(world, rng)
            world.turns(rng.randint(1, 30))
        elif what == "lost deliveries":
            self.lose_deliveries()
        elif what == "derive anew":
            self.derive_anew()
        elif what == "between slices":
            self.between_slices()
        elif what == "topic away":
            self.topic_away()
        elif what == "roll":
            self.roll()
        elif what == "level fails":
            self.level_fails()
        else:
            self.restart_cleanly()

    def between_slices(self) -> None:
        """The second client sends a batch that is looked at in slices, and meanwhile something happens."""
        world, rng = self.world, self.rng
        topic, queue_id = rng.choice(TOPICS), rng.randrange(QUEUES)
        kinds = rng.choice((("timed",), ("timed",), ("timed", "now"), ("now",), ("timed", "now", "past", "level")))
        due_ms = self.due(world.wall_ms)
        batch = [(kind, due_ms) if kind == "timed" else self.of_kind(kind, world.wall_ms) for kind in kinds] * 9
        count = rng.randint(4, 9)
        room = int(world.shape.values["maxMessageSize"]) // count - 130
        world.send(batch[:count], topic, queue_id, max(0, min(room, rng.choice((10, 60, 450, 450)))), 1)
        self.only("loop", rng.randint(1, 4))
        what = rng.choice(("send", "send", "topic", "hang up", "disk", "disk", "power", "time"))
        if what == "send":
            for _ in range(rng.randint(1, 4)):
                world.send([self.of_kind(rng.choice(("now", "timed")), world.wall_ms)], topic, queue_id, 10, 0)
        elif what == "topic":
            world.delete_topic(topic) if rng.random() < 0.5 else world.put_topic(topic, rng.choice((4, 6)), 1)
        elif what == "hang up":
            world.hang_up()
        elif what == "time":
            world.wall_ms += rng.choice((300, 5000))
        elif what == "power":
            world.fault = power_fails_at(rng.randint(1, 12))
        else:
            world.ledger.order_holds = False
            where = rng.choice(("commitlog", "journal", "journal"))
            world.fault = fails(
                rng.choice(("full", "write", "sync")), where, [(rng.randint(0, 2), rng.choice((1, 2, 50)))]
            )
            world.tell(f"the disk fails: {where}")
        world.turns(rng.randint(5, 40), world.wall_ms + rng.choice((5, 600)))
        if what == "disk":
            world.fault = None
            if rng.random() < 0.4:
                world.die(draw_keep(rng), rng)
                self.come_back(2, 0.3)

    def level_fails(self) -> None:
        """What has waited for its level comes due, and the log cannot be written; nobody is killed for that."""
        world, rng = self.world, self.rng
        for _ in range(rng.randint(1, 4)):
            world.send([("level", 0)], rng.choice(TOPICS), rng.randrange(QUEUES), 10)
        world.turns(rng.randint(10, 30), world.wall_ms + 500)
        world.wall_ms += rng.choice((1000, 3000))
        world.ledger.order_holds = False
        world.fault = fails("write", "commitlog", [(0, rng.choice((1, 2, 4)))])
        world.tell("the disk cannot write 'commitlog' when levels are due")
        self.only("levels", rng.randint(3, 20))
        world.fault = None
        world.turns(rng.randint(0, 20))

    def topic_away(self) -> None:
        """A topic is deleted, or may not be written, when messages for it come due; later it is there again."""
        world, rng = self.world, self.rng
        topic = rng.choice(TOPICS)
        for _ in range(rng.randint(1, 4)):
            world.send([("timed", world.wall_ms + rng.choice((40, 300, 900)))], topic, rng.randrange(QUEUES), 10, 0)
        world.turns(rng.randint(10, 30), world.wall_ms)
        world.ledger.order_holds = False
        world.tell(f"topic {topic} goes away")
        world.delete_topic(topic) if rng.random() < 0.8 else world.put_topic(topic, 4)
        world.turns(rng.randint(20, 60), world.wall_ms + 1200)
        world.put_topic(topic)
        world.turns(rng.randint(5, 20))

    def roll(self) -> None:
        """The log goes from one segment to the next while the housekeeper makes segments ahead; perhaps all stops."""
        world, rng = self.world, self.rng
        names = ("loop", "loop", "housekeeper")
        for _ in range(rng.randint(4, 16)):
            world.send([("now", 0)], rng.choice(TOPICS), 0, rng.choice((300, 450)), 0)
            for _ in range(rng.randint(4, 20)):
                world.wakes["housekeeper"] = min(world.wakes.get("housekeeper", 0), world.wall_ms)
                ready = [name for name in names if world._wants(name, world.wall_ms)]
                if ready:
                    world.run(rng.choice(ready))
            world.wall_ms += rng.choice((1, 50, 100))
        if rng.random() < 0.7:
            self.restart_cleanly()

    def one_stands_still(self) -> None:
        """One thread gets no turn for a long time, in the middle of something perhaps; the others work on."""
        world, rng = self.world, self.rng
        if rng.random() < 0.5:
            for _ in range(rng.randint(8, 24)):  # what others append meanwhile
                due_ms = world.wall_ms + rng.choice((300, 900, 1001, 2500))
                world.send([("timed", due_ms)], rng.choice(TOPICS), rng.randrange(QUEUES), 300)
            world.turns(rng.randint(5, 40), world.wall_ms)
        for _ in range(rng.randint(1, 3)):
            self.send_some() if rng.random() < 0.3 else world.send([("half", 0)], TOPICS[0], 0, 10)
        world.turns(rng.randint(1, 15), world.wall_ms)
        name = rng.choice(("loop", "loop", "loop", *ACTORS))
        world.tell(f"{name} stands still")
        for _ in range(rng.randint(1, 5)):
            world.frozen[name] = 1 << 30
            world.store.retention._due_ms = 0  # it looks every ten seconds: now is as good as any
            world.turns(rng.randint(20, 200), world.wall_ms + rng.choice((600, 3000)))
            world.wall_ms += rng.choice((10, 1500, 4000))
        world.frozen.pop(name, None)

    def fail_and_crash(self) -> None:
        """The disk fails, the process is killed before it could make up for it, and soon afterwards the power fails."""
        world, rng = self.world, self.rng
        draw = rng.random()
        if draw < 0.2:
            self.break_disk()
        elif draw < 0.6:
            self.write_fails_once()
        else:
            world.fault = fails(
                "sync", rng.choice(("", "commitlog", "commitlog", "journal")), [(rng.randint(0, 1), 1000)]
            )
            world.ledger.order_holds = False
            world.tell("no sync succeeds any more")
            for _ in range(rng.randint(1, 3)):
                self.send_some()
            world.turns(rng.randint(5, 60), world.wall_ms + rng.choice((5, 600, 3000)))
        world.fault = None
        world.die(rng.choice((None, None, 0.3, 0.7)), rng)
        self.come_back(3, 0.3)
        world.turns(rng.randint(1, 60), world.wall_ms + rng.choice((5, 1500)))
        world.die(rng.choice((0.0, 0.3)), rng)
        self.come_back(3, 0.3)

    def write_fails_once(self) -> None:
        """A write of log or journal fails part-way, and at once clients cancel and move what it may have been about."""
        world, rng = self.world, self.rng
        first = world.number + 1
        kind = "level" if rng.random() < 0.2 else "timed"
        for _ in range(rng.randint(1, 6)):
            world.send([(kind, world.wall_ms + rng.choice((1, 40, 300)))], TOPICS[0], 0, 60, 0)
        world.turns(rng.randint(5, 30), world.wall_ms)
        if kind == "level":
            world.turns(20, world.wall_ms + 990)
        where = rng.choice(("commitlog", "commitlog", "commitlog", "journal"))
        once = fails(rng.choice(("write", "write", "full")), where, [(0, rng.choice((1, 2, 2, 3)))])
        failed: list[str] = []

        def fault(operation: str, path: Path) -> None:
            try:
                once(operation, path)
            except StoreError:
                failed.append(operation)
                raise

        world.tell("a write of log or journal fails")
        world.ledger.order_holds = False
        world.fault = fault
        for _ in range(80):
            world.turns(1, world.wall_ms + 300)
            if failed:
                break
        if kind == "level":
            world.turns(30, world.wall_ms + 300)
        if rng.random() < 0.5:  # the very ones, and nobody else does anything
            sent = world.ledger.sent
            for number in range(first, world.number + 1):
                if sent[number].held and sent[number].state == "acked" and sent[number].note is None:
                    self.command(number)
            for _ in range(60):
                if not world.commands and "commands" not in world.tasks:
                    break
                self.only("commands", 1)
            return
        for _ in range(rng.randint(0, 4)):
            self.command_some()
        world.turns(rng.randint(0, 12), world.wall_ms)

    def lose_deliveries(self) -> None:
        """What waits in runs is delivered while the flusher stands still, and the power takes a part of that."""
        world, rng = self.world, self.rng
        near_ms = int(world.shape.values["timewheelNearMs"])
        due_ms = world.wall_ms + near_ms + rng.choice((500, 2000))
        topic, queue_id = rng.choice(TOPICS), rng.randrange(QUEUES)
        for number in range(rng.randint(20, 40)):
            # The last ones of a run wait on: of a file that is done as a whole nothing has to be given back.
            world.send([("timed", due_ms + (number % 4 == 3) * 3 * near_ms)], topic, queue_id, 300)
        world.turns(rng.randint(100, 250), world.wall_ms + 400)
        self.only("spiller", rng.randint(50, 150))
        world.tell("the flusher stands still, and what is due is delivered")
        world.frozen["flusher"] = 1 << 30
        world.wall_ms = max(world.wall_ms, due_ms)
        self.only("sweeper", rng.randint(20, 60))
        self.only("spiller", rng.randint(20, 100))
        world.frozen.pop("flusher", None)
        world.die(rng.choice((0.3, 0.7)), rng)
        self.come_back(3, 0.3)

    def only(self, name: str, count: int) -> None:
        """Let one thread run, the others when it waits for them."""
        world = self.world
        for _ in range(count):
            task = world.tasks.get(name)
            if task is None or task.ready:
                world.run(name)
            else:
                world.turns(1, world.wall_ms)

    def derive_anew(self) -> None:
        """An administrator has all queues derived from the log again; and soon afterwards all ends once more."""
        world, rng = self.world, self.rng
        self.let_expire()
        world.die(None, rng)
        world.tell("all queues are taken away, to be derived anew")
        checkpoint = world.disk._seen.get(CHECKPOINT)
        world.anew = None if checkpoint is None else checkpoint.seen[:]
        world.disk.lose([ROOT / "consumequeue", ROOT / "timewheel" / "progress"])
        self.come_back(2, 0.2)
        for _ in range(rng.randint(0, 2)):
            now = world.wall_ms
            kind = rng.choice(("level", "half", "timed", "now"))
            world.send([self.of_kind(kind, now)], rng.choice(TOPICS), rng.randrange(QUEUES), 10)
        world.turns(rng.randint(5, 30), world.wall_ms + 200)
        if rng.random() < 0.6:
            world.die(draw_keep(rng), rng)
            self.come_back(2, 0.2)

    def let_expire(self) -> None:
        """So much is sent, and so much time passes, that retention has something to delete, if it deletes anything."""
        world, rng = self.world, self.rng
        if not world.shape.retention:
            return
        for _ in range(rng.randint(0, 3)):
            for _ in range(rng.randint(5, 15)):
                world.send([("now", 0)], rng.choice(TOPICS), rng.randrange(QUEUES), 300)
            world.turns(100, world.wall_ms + 1500)
            world.wall_ms += 10_000
        world.turns(100, world.wall_ms + 3000)

    def break_something(self) -> None:
        """Something fails for a while, or the clock is set."""
        world, rng = self.world, self.rng
        what = world.swarm.draw(world.swarm.breaks, rng)
        world.ledger.order_holds = False
        if what == "clock":
            if not world.appending:
                world.set_clock(rng.choice(STEP_MS))
        elif what == "topic":
            topic = rng.choice(TOPICS)
            if rng.random() < 0.6:
                world.tell(f"topic {topic} is deleted")
                world.delete_topic(topic)
            else:
                world.put_topic(topic, rng.choice((4, 6, 6)), rng.choice((1, QUEUES)))
            if rng.random() < 0.5:
                self.send_some()
            world.turns(rng.randint(1, 40))
        elif what == "missing":
            world.missing ^= {rng.choice(TOPICS)}
            world.plugin.topics_changed()
            world.tell(f"no permission for {sorted(world.missing)}")
        elif what == "room":
            world.disk.free = rng.choice((0, 3000, 1 << 40))
            world.tell(f"{world.disk.free} bytes of the disk are free")
        else:
            self.break_disk(what == "pair")

    def break_disk(self, pair: bool | None = None) -> None:
        """Calls of the disk fail for a while, one alone or two that belong together; clients go on meanwhile."""
        world, rng = self.world, self.rng
        kind = rng.choice(("full", "write", "sync", "any"))
        where = rng.choice(("", "", "commitlog", "commitlog", "journal", "journal", "runs", "manifest"))
        if pair is None:
            pair = rng.random() < 0.4
        if pair:
            after, then, count = rng.randint(0, 4), rng.choice((0, 0, 0, 1, 2)), rng.choice((1, 2, 5, 1000))
            world.tell(
                f"the disk fails: {kind} {where!r} after {after} calls; then {count} calls of that file after {then}"
            )
            world.fault = fails_and_then(kind, where, after, then, count)
        else:
            stretches = [rng.choice(((0, 15), (rng.randint(0, 8), rng.randint(1, 6))))]
            if rng.random() < 0.4:
                stretches.append((rng.randint(1, 3), rng.randint(1, 3)))
            world.tell(f"the disk fails: {kind} {where!r}, (well, failing) calls {stretches}")
            world.fault = fails(kind, where, stretches)
        for _ in range(rng.randint(0, 2)):
            self.send_some()
        for _ in range(rng.choice((0, 0, 1, 3))):
            self.command_some()
        world.turns(rng.randint(5, 40))
        if rng.random() < 0.8:
            world.fault = None

    def restart_cleanly(self) -> None:
        """Stop as a broker stops, and start again."""
        self.stop_cleanly()
        self.come_back(2, 0.3)

    def stop_cleanly(self) -> None:
        """Stop as a broker stops, if the disk lets it."""
        world = self.world
        world.fault = world.read_fault = None
        world.quiet()
        assert world.core is not None
        world.tell("a clean stop")
        try:
            world.end_tables()
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
