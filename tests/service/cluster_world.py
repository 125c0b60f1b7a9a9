"""A cluster and a few instances of the delay service in virtual time: every fault from one seed, one ledger.

One entry queue with its progress queue, two target brokers. Requests are delayed, reordered (each takes its own time),
executed without an answer, or not executed at all; instances are killed, stopped and continued, cut off, and told by
rebalancing that they own the shard when another one still does; brokers hang and then work off what piled up.

`Node` is what the real shell does round `service.core.shard.Shard`, without bytes. The rules that make one copy are the
core's; `tests.service.planted` breaks them one at a time, and each break must be found by this world.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from service.core.calm import Calm
from service.core.commands import CommandVerdict
from service.core.lines import Line, LineKind
from service.core.progress import Picture, ProgressRecord, TargetQueue, read_record
from service.core.shard import MaySend, Shard
from service.core.states import OwnerState

TIMEOUT_MS = 3000
TICK_MS = 50
NAME = "broker-e/0"


@dataclass
class Broker:
    """A broker: it executes requests in the order of arrival, or when it goes on."""

    name: str
    hangs_until: int = 0
    queues: dict[TargetQueue, list[int]] = field(default_factory=dict)


class World:
    """Time, network, brokers and the ledger."""

    def __init__(self, seed: int, shard: Callable[[str], Shard] = Shard, calm: Callable[[], Calm] = Calm) -> None:
        self.random = random.Random(seed)
        self.make_shard, self.make_calm = shard, calm
        self.now = 0
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._count = 0
        self.entry_log: list[Line] = []
        self.progress_log: list[bytes] = []
        self.entry = Broker("broker-e")
        self.targets = {name: Broker(name, queues={("T", name, 0): []}) for name in ("broker-a", "broker-b")}
        self.nodes: list[Node] = []
        self.due: dict[int, int] = {}
        self.origin: dict[int, int] = {}
        """Entry to the one that a sender wrote: itself, unless it is a roll."""
        self.copies: Counter[int] = Counter()
        self.rejected: Counter[int] = Counter()
        """Records that are no sender's, and could not be read as the service's own."""
        self.early: list[tuple[int, int]] = []
        self.faulty = True
        self.lost_requests, self.lost_answers, self.rolled_share, self.fault_every_ms = 0.02, 0.03, 0.1, 250
        self.quiet = False
        """Nobody gives commands, and nothing is rolled: so owners write nothing but takeovers and releases."""
        self.resumes = False
        """New owners read from where their predecessor had read to; what is older they read while they deliver."""
        self.piece, self.hurry, self.skip_min = 64, 1.0, 1024
        """Of that older part: records that a pull brings, how often one is made, and what is left out if it is done."""
        self.begun_early = self.sent_early = 0
        """Ownerships that began, and deliveries, before the older part was read."""
        self.begun_anew = 0
        """Attempts that were given up because everything has to be read."""
        self.takeovers = self.rolls = 0
        self.cancelled: set[int] = set()
        """Entries of senders with a valid verdict that they are cancelled."""
        self.verdicts: dict[int, list[str]] = {}
        """Command to its valid verdicts."""
        self.untrue = 0
        """Verdicts that something was delivered which was not, at that time."""
        self.forgetful = False
        """Whether the service may have forgotten what became of an entry, and says so."""
        self.void: list[Line] = []
        """Verdicts that did not count where they were written: a takeover stood before them."""
        self._owner = -1

    def add_node(self, name: str) -> Node:
        """Start an instance."""
        return Node(self, name)

    # -- time

    def at(self, when: int, event: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._events, (max(when, self.now), self._count, event))

    def run(self, until: int) -> None:
        while self._events and self._events[0][0] <= until:
            self.now, _, event = heapq.heappop(self._events)
            event()
        self.now = until

    # -- network

    def request(
        self,
        node: Node,
        broker: Broker,
        execute: Callable[[], Any],
        answer: Callable[[Any], None],
        lost: Callable[[], None],
    ) -> None:
        """Have a broker execute something; ``answer`` its result, or ``lost`` after the timeout."""
        chance = self.random.random() if self.faulty else 1.0
        there = self._travel()
        back = self._travel()
        drop = node.cut or chance < self.lost_requests
        mute = chance < self.lost_requests + self.lost_answers
        answered = [False]

        def arrive() -> None:
            if broker.hangs_until > self.now:
                self.at(broker.hangs_until + self.random.randrange(300), arrive)
                return
            result = execute()
            if not mute and not node.cut:
                self.at(self.now + back, lambda: node.when_running(lambda: reply(result)))

        def reply(result: Any) -> None:
            if not answered[0] and not node.dead:
                answered[0] = True
                answer(result)

        def timeout() -> None:
            if not answered[0] and not node.dead:
                answered[0] = True
                lost()

        if not drop:
            self.at(self.now + there, arrive)
        self.at(self.now + TIMEOUT_MS, lambda: node.when_running(timeout))

    def _travel(self) -> int:
        if self.faulty and self.random.random() < 0.02:
            return self.random.randrange(900)
        return self.random.randrange(1, 20)

    # -- what brokers do

    def send(self, due_ms: int) -> None:
        """A producer's send."""
        offset = len(self.entry_log)
        self.entry_log.append(Line(offset, LineKind.ENTRY, due_ms))
        self.due[offset] = due_ms
        self.origin[offset] = offset

    def pulled(self, begin: int) -> tuple[list[Line], int, int]:
        """What a pull of the entry queue brings, where to go on, and where the queue ends."""
        lines = self.entry_log[begin : begin + 64]
        return lines, begin + len(lines), len(self.entry_log)

    def append(self, line: Line) -> int:
        offset = len(self.entry_log)
        self.entry_log.append(replace(line, offset=offset))
        if line.kind is LineKind.TAKEOVER:
            self.takeovers += 1
            self._owner = offset
        if line.kind is LineKind.ROLL:
            self.rolls += 1
            self.origin[offset] = self.origin[line.about]
        if line.kind is LineKind.VERDICT and line.generation == self._owner:
            self.verdicts[line.about].append(line.verdict)
            about = self.origin.get(self.entry_log[line.about].about, -1)
            self.untrue += line.verdict == CommandVerdict.TOO_LATE.value and not self.copies[about]
            if line.verdict == CommandVerdict.DONE.value and not line.due_ms:
                self.cancelled.add(self.origin[line.entry])
            elif line.verdict == CommandVerdict.DONE.value:
                self.due[self.origin[line.entry]] = line.due_ms
        elif line.kind is LineKind.VERDICT:
            self.void.append(self.entry_log[offset])
        return offset

    def command(self) -> None:
        """Somebody changes his mind about something that was sent."""
        draw = self.random
        if self.quiet:
            return
        known = sorted(self.due)
        about = draw.choice(known[-40:]) if known and draw.random() < 0.9 else draw.randrange(len(self.entry_log) + 1)
        kind = draw.choice((LineKind.CANCEL, LineKind.MOVE, LineKind.MOVE, LineKind.GET))
        self.verdicts[len(self.entry_log)] = []
        due_ms = self.now + draw.randrange(25_000) if kind is LineKind.MOVE else 0
        self.append(Line(-1, kind, due_ms, about=about))

    def wrong(self) -> int:
        """Commands without one definite verdict, or with one that is not true."""
        found = self.untrue
        for at, verdicts in self.verdicts.items():
            about = self.entry_log[at].about
            origin = self.origin.get(about, -1) if about < at else -1
            copies = self.copies[origin] if origin >= 0 else 0
            truth = {
                "done": origin >= 0,
                "already": origin in self.cancelled,
                "cancelled": origin in self.cancelled,
                "too_late": copies > 0,
                "pending": origin >= 0,
                "unknown": origin < 0 or self.forgetful,
            }
            found += len(verdicts) != 1 or not truth[verdicts[0]]
        return found

    def append_progress(self, record: ProgressRecord) -> bool:
        self.progress_log.append(record.encode())
        return True

    def picture(self) -> Picture:
        return Picture.of(map(read_record, self.progress_log))

    def deliver(self, queue: TargetQueue, entry: int) -> int:
        log = self.targets[queue[1]].queues[queue]
        log.append(entry)
        if entry not in self.origin:
            self.rejected[entry] += 1
            return len(log) - 1
        origin = self.origin[entry]
        self.copies[origin] += 1
        if self.now < self.due[origin]:
            self.early.append((entry, self.now))
        return len(log) - 1

    def verdict(self) -> dict[str, int]:
        """Lost, early, twice; delivered although cancelled; wrong answers to commands."""
        return {
            "lost": sum(1 for entry in self.due if not self.copies[entry] and entry not in self.cancelled),
            "early": len(self.early),
            "twice": sum(1 for count in self.copies.values() if count > 1),
            "undead": sum(1 for entry in self.cancelled if self.copies[entry]),
            "wrong": self.wrong(),
        }


def resuming(world: World) -> World:
    """Make new owners deliver before they have read all that waits. The older part is read fast or slowly."""
    draw = random.Random(world.random.random())
    world.resumes = True
    world.piece, world.hurry = draw.choice((1, 3, 16, 64)), draw.choice((0.05, 0.3, 1.0))
    world.skip_min = draw.choice((1, 8, 1024))
    return world


class HarshWorld(World):
    """A quarter of all requests, or of their answers, is lost; faults come twice as often, and rolls all the time."""

    def __init__(self, seed: int, shard: Callable[[str], Shard] = Shard, calm: Callable[[], Calm] = Calm) -> None:
        super().__init__(seed, shard, calm)
        self.lost_requests, self.lost_answers, self.rolled_share, self.fault_every_ms = 0.1, 0.15, 1.0, 125


class Node:
    """An instance: the shell's loop round the core."""

    def __init__(self, world: World, name: str) -> None:
        self.world, self.name = world, name
        self.cut = self.dead = self.assigned = self.reads_all = False
        self.paused_until = 0
        self.shard: Shard | None = None
        self.following = False
        self.takes = 0
        world.nodes.append(self)
        world.at(world.now + world.random.randrange(TICK_MS), self.tick)

    def when_running(self, event: Callable[[], None]) -> None:
        """A stopped process does everything later."""
        if self.dead:
            return
        if self.paused_until > self.world.now:
            self.world.at(self.paused_until, lambda: self.when_running(event))
        else:
            event()

    def ask(
        self,
        broker: Broker,
        execute: Callable[[], Any],
        answer: Callable[[Any], None],
        lost: Callable[[], None] | None = None,
    ) -> None:
        """A request on behalf of the present shard: answers for an earlier one are dropped."""
        shard = self.shard

        def current(result: Any) -> None:
            if self.shard is shard:
                answer(result)

        def failed() -> None:
            if self.shard is shard and lost is not None:
                lost()

        self.world.request(self, broker, execute, current, failed)

    # -- the loop

    def tick(self) -> None:
        world = self.world
        if self.dead:
            return
        if self.paused_until <= world.now:
            self.step()
        world.at(max(world.now + TICK_MS, self.paused_until), self.tick)

    def step(self) -> None:
        shard = self.shard
        if shard is not None and shard.needs_all:
            self.begin_anew(shard)
        if shard is not None and shard.state is OwnerState.FENCED:
            shard.ended()
        if shard is None or (shard.state is OwnerState.FOLLOWER and not self.following):
            self.shard = None
            if self.assigned or self.world.random.random() < 0.01:
                self.begin()
            return
        if self.following:
            self.follow(shard)
            return
        if not self.assigned or (shard.state is OwnerState.TAKING_OVER and 0 <= self.claimed < shard.read_from):
            shard.release()  # or the own record was stored, and cannot be read there
        self.pull()
        self.pull_back()
        if shard.state is OwnerState.READING_BACK and shard.fence_is_over(self.world.now) and not self.settling:
            self.settling = True
            self.ask(self.world.entry, self.world.picture, self.settle, self.again)
        self.save()
        self.scan()
        self.deliver()
        self.roll()
        self.obey()
        if shard.may_release and not self.releasing:
            self.releasing = True
            line = Line(-1, LineKind.RELEASE, generation=shard.generation)
            self.ask(self.world.entry, lambda: self.world.append(line), lambda _: shard.ended(), shard.ended)

    def begin_anew(self, shard: Shard) -> None:
        """Give up: the next attempt reads everything in its order."""
        self.reads_all, self.following = True, False
        self.world.begun_anew += 1
        if shard.state in (OwnerState.TAKING_OVER, OwnerState.READING_BACK):
            shard.release()

    def begin(self) -> None:
        world, self.takes = self.world, self.takes + 1
        shard = self.shard = world.make_shard(NAME)
        self.pending: dict[int, int] = {}
        self.pulling = self.filling = self.settling = self.saving = self.settled = self.releasing = self.loaded = False
        self.claimed = -1
        self.scanning: set[TargetQueue] = set()
        self.calm = world.make_calm()
        self.aiming: set[TargetQueue] = set()
        self.unknown_rolls: set[int] = set()
        self.unknown_verdicts: set[int] = set()  # by their commands
        self.deciding: dict[int, int] = {}  # command to the entry that is held for it, or -1
        self.following = True

        shard.reads_all, self.reads_all = self.reads_all or not world.resumes, False

        def load(picture: Picture) -> None:
            shard.load(picture, 0)
            shard.backfill.skip_min = world.skip_min
            self.loaded = True

        def give_up() -> None:
            self.following = False

        self.ask(world.entry, world.picture, load, give_up)

    def follow(self, shard: Shard) -> None:
        """A warm standby, until it is told that the shard is its own."""
        if not self.loaded:
            return
        self.pull()
        self.pull_back()
        if self.assigned:
            self.claim(shard)
        elif self.world.random.random() < 0.05:
            self.ask(self.world.entry, self.world.picture, lambda picture: self.learn(shard, picture))

    def learn(self, shard: Shard, picture: Picture) -> None:
        if not self.following:
            return
        if shard.agrees(picture):
            shard.follow(picture)
        else:
            self.following = False  # it is read anew

    def claim(self, shard: Shard) -> None:
        self.following = False
        owner = f"{self.name}#{self.takes}"
        shard.take_over(owner)

        def give_up() -> None:
            if shard.state is OwnerState.TAKING_OVER:
                shard.release()

        def stored(at: int) -> None:
            self.claimed = at

        line = Line(-1, LineKind.TAKEOVER, owner=owner)
        self.ask(self.world.entry, lambda: self.world.append(line), stored, give_up)

    def again(self) -> None:
        self.settling = False

    def settle(self, picture: Picture) -> None:
        shard = self.shard
        assert shard is not None
        if not shard.agrees(picture):
            shard.release()
        elif shard.state is OwnerState.READING_BACK:
            shard.settle(picture, self.world.now)
            for queue in shard.scans():
                self.calm.disturbed(queue[1], self.world.now)

    def pull(self) -> None:
        shard, world = self.shard, self.world
        if self.pulling or shard is None or not self.loaded:
            return
        self.pulling = True
        asked, begin = world.now, shard.read_from

        def read(result: tuple[list[Line], int, int]) -> None:
            self.pulling = False
            lines, next_offset, end = result
            for line in shard.read(lines, next_offset, world.now):
                self.pending[line.offset] = line.due_ms
            shard.end_seen(asked, end)

        def lost() -> None:
            self.pulling = False

        self.ask(world.entry, lambda: world.pulled(begin), read, lost)

    def pull_back(self) -> None:
        """Read a piece of what was not read before the shard was owned."""
        shard, world = self.shard, self.world
        if self.filling or shard is None or shard.backfill.is_whole:
            return
        if world.faulty and world.random.random() > world.hurry:
            return
        self.filling = True
        begin = shard.backfill.at
        end = begin + world.piece

        def read(result: tuple[list[Line], int, int]) -> None:
            self.filling = False
            lines = [line for line in result[0] if line.offset < end]
            for line in shard.backfilled(lines, min(end, result[1])):
                self.pending[line.offset] = line.due_ms

        def lost() -> None:
            self.filling = False

        self.ask(world.entry, lambda: world.pulled(begin), read, lost)

    def save(self) -> None:
        shard, world = self.shard, self.world
        if shard is None or self.saving or (shard.state is not OwnerState.READING_BACK and not shard.is_changed):
            return
        if world.random.random() < 0.1:
            shard.renew_chain()
        record = shard.record()
        if record is not None:
            self.saving = True
            self.put_progress(shard, record)

    def put_progress(self, shard: Shard, record: ProgressRecord) -> None:
        def saved(_: Any) -> None:
            self.saving = False
            begins = shard.state is OwnerState.READING_BACK
            shard.saved()
            self.world.begun_early += begins and not shard.backfill.is_whole

        self.ask(
            self.world.entry,
            lambda: self.world.append_progress(record),
            saved,
            lambda: self.put_progress(shard, record),
        )

    def scan(self) -> None:
        shard, world = self.shard, self.world
        assert shard is not None
        for name in self.calm.probes():
            asked = world.now
            self.ask(
                world.entry if name == world.entry.name else world.targets[name],
                lambda: True,
                lambda _, name=name, asked=asked: self.calm.answered(name, asked, world.now),  # type: ignore[misc]
            )
        for queue, begin in shard.scans().items():
            if queue in self.scanning or not self.calm.is_calm(queue[1], world.now):
                continue
            self.scanning.add(queue)
            lost = [offset for offset, at in shard.lost.items() if at == queue]

            self.scan_on(shard, queue, begin, lost, world.random.choice((1, 4, 1 << 30)))

    def scan_on(self, shard: Shard, queue: TargetQueue, begin: int, lost: list[int], piece: int) -> None:
        """Read a target queue on, in pieces: what becomes of each is in the next progress."""
        log = self.world.targets[queue[1]].queues[queue]

        def read(result: tuple[list[int], int]) -> None:
            found, end = result
            if begin + len(found) < end:
                shard.searched(queue, found, begin + len(found))
                self.scan_on(shard, queue, begin + len(found), lost, piece)
                return
            self.scanning.discard(queue)
            shard.scanned(queue, found, lost)

        self.ask(
            self.world.targets[queue[1]],
            lambda: (log[begin : begin + piece], len(log)),
            read,
            lambda: self.scanning.discard(queue),
        )

    def roll(self) -> None:
        """Write one of the entries again that are not due within two seconds; look for what got no answer."""
        shard, world, entry = self.shard, self.world, self.world.entry
        assert shard is not None
        if (self.unknown_rolls or self.unknown_verdicts) and self.calm.is_calm(entry.name, world.now):
            rolls, self.unknown_rolls = self.unknown_rolls, set()
            verdicts, self.unknown_verdicts = self.unknown_verdicts, set()

            def again() -> None:
                self.unknown_rolls |= rolls
                self.unknown_verdicts |= verdicts

            def ended(end: int) -> None:
                if shard.read_to < end:
                    again()
                    return
                for offset in rolls:
                    shard.roll_failed(offset)
                for command in verdicts:
                    held = self.deciding.pop(command)
                    if command in shard.commands.asked:
                        shard.roll_failed(held)

            self.ask(entry, lambda: len(world.entry_log), ended, again)
        # What could not be read is a rejected message. That is not rolled: `service.running.roller`.
        entries = ((offset, due_ms) for offset, due_ms in self.pending.items() if offset in world.origin)
        far = [offset for offset, due_ms in entries if abs(due_ms - world.now) > 2000]
        if not far or world.quiet or world.random.random() > world.rolled_share:
            return
        offset = world.random.choice(far)
        line = shard.roll(offset, self.pending[offset])
        if line is None:
            return
        line = replace(line, due_ms=self.pending[offset])

        def lost() -> None:
            self.unknown_rolls.add(offset)
            self.calm.disturbed(entry.name, world.now)

        self.ask(entry, lambda: world.append(line), lambda _: None, lost)

    def obey(self) -> None:
        """Decide about commands; let moved entries have their new due times, a while after they are known."""
        shard, world = self.shard, self.world
        assert shard is not None
        for entry, due_ms in list(shard.commands.changing.items()):
            if not shard.backfill.lacks(entry) and world.random.random() < 0.5:
                del shard.commands.changing[entry]
                if entry in self.pending:
                    self.pending[entry] = due_ms
        for line in list(shard.commands.asked.values()):
            if line.offset in self.deciding:
                continue
            about = line.about
            if 0 <= about < line.offset and world.entry_log[about].kind is LineKind.ROLL:
                about = world.entry_log[about].entry
            entry = shard.commands.place_of(about)
            if 0 <= entry < line.offset and world.entry_log[entry].kind not in (LineKind.ENTRY, LineKind.ROLL):
                entry = -1
            decision = shard.decide(line.offset, entry, self.pending.get(entry, 0))
            if decision is not None:
                self.answer(shard, line, decision.entry, decision.verdict)

    def answer(self, shard: Shard, command: Line, entry: int, verdict: CommandVerdict) -> None:
        self.deciding[command.offset] = entry if verdict is CommandVerdict.DONE else -1
        line = Line(
            -1,
            LineKind.VERDICT,
            command.due_ms,
            generation=shard.generation,
            about=command.offset,
            entry=entry,
            verdict=verdict.value,
            origin=shard.commands.origin_of(entry),
        )

        def lost() -> None:
            self.unknown_verdicts.add(command.offset)
            self.calm.disturbed(self.world.entry.name, self.world.now)

        self.ask(self.world.entry, lambda: self.world.append(line), lambda _: None, lost)

    def looked_at(self) -> list[int]:
        """The pending entries that a delivery looks at."""
        return list(self.pending)

    def deliver(self) -> None:
        shard, world = self.shard, self.world
        assert shard is not None
        for offset in self.looked_at():
            admission = shard.may_send(offset, self.pending[offset], world.now, world.now, ("T",))
            if admission is MaySend.ALREADY:
                del self.pending[offset]
            elif admission is MaySend.GO:
                broker = world.targets[world.random.choice(sorted(world.targets))]
                (queue,) = broker.queues
                if shard.is_named(queue):
                    self.put(shard, broker, queue, offset)
                else:
                    self.aim(shard, broker, queue)

    def aim(self, shard: Shard, broker: Broker, queue: TargetQueue) -> None:
        if queue in self.aiming or queue in shard.tails:
            return
        self.aiming.add(queue)

        def ended(end: int) -> None:
            self.aiming.discard(queue)
            shard.aim(queue, end)

        self.ask(broker, lambda: len(broker.queues[queue]), ended, lambda: self.aiming.discard(queue))

    def put(self, shard: Shard, broker: Broker, queue: TargetQueue, offset: int) -> None:
        shard.sending([offset], queue)
        self.world.sent_early += not shard.backfill.is_whole

        def lost() -> None:
            shard.lose(offset)
            self.calm.disturbed(broker.name, self.world.now)

        self.ask(
            broker,
            lambda: self.world.deliver(queue, offset),
            lambda at: shard.acknowledged([offset], queue, at),
            lost,
        )


def story(world: World, seconds: int = 90) -> dict[str, int]:
    """A minute and a half of sends and faults, then peace until everything is delivered; answers the verdict."""
    draw = world.random
    for number in range(3):
        world.add_node(f"n{number}")
    for _ in range(300):
        when = draw.randrange(seconds * 1000)
        world.at(when, lambda when=when: world.send(when + draw.randrange(20_000)))  # type: ignore[misc]
    for _ in range(100):
        world.at(draw.randrange(seconds * 1000), world.command)
    for when in range(0, seconds * 1000, world.fault_every_ms):
        world.at(when, lambda: fault(world))
    world.at(0, lambda: assign(world, lying=False))
    world.run(seconds * 1000)
    world.faulty = False
    for node in world.nodes:
        node.cut, node.paused_until = False, min(node.paused_until, world.now)
    assign(world, lying=False)
    for _ in range(120):
        world.run(world.now + 1000)
        if world.now > seconds * 1000 + 30_000 and not world.verdict()["lost"] and not world.wrong():
            break
    return world.verdict()


def assign(world: World, *, lying: bool) -> None:
    """Rebalance; while views differ, several may be told that the shard is theirs. Who is away hears nothing of it."""
    alive = [node for node in world.nodes if not node.dead]
    deaf = [node for node in alive if node.cut or node.paused_until > world.now]
    if len(deaf) < len(alive):
        alive = [node for node in alive if node not in deaf]
    chosen = world.random.sample(alive, min(len(alive), world.random.choice((0, 1, 2, 2)) if lying else 1))
    for node in alive:
        node.assigned = node in chosen


def fault(world: World) -> None:
    """One draw of bad luck."""
    draw = world.random
    node = draw.choice([node for node in world.nodes if not node.dead])
    luck = draw.random()
    if luck < 0.02:
        node.dead = True
        world.add_node(f"n{len(world.nodes)}")
        world.at(world.now + draw.randrange(500), lambda: assign(world, lying=False))
    elif luck < 0.04:
        node.paused_until = world.now + draw.choice((1500, 4000, 12_000))
        if draw.random() < 0.5:
            assign(world, lying=False)
    elif luck < 0.06:
        node.cut = True
        if draw.random() < 0.5:
            world.at(world.now + 500, lambda: assign(world, lying=False))
        world.at(world.now + draw.choice((1000, 5000, 15_000)), lambda: setattr(node, "cut", False))
    elif luck < 0.10:
        assign(world, lying=draw.random() < 0.6)
    elif luck < 0.12:
        broker = draw.choice([world.entry, *world.targets.values()])
        # never shorter than before: what waits already goes on when it was told
        broker.hangs_until = max(broker.hangs_until, world.now + draw.choice((500, 3000, 10_000)))
