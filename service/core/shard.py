"""One instance's ownership of one shard, from its takeover record to its end: a state machine without I/O.

The shell reads the shard's entry queue and tells what it reads (`read`, `end_seen`), appends what it is told to, and
asks before each delivery (`may_send`). All of it belongs to one thread. A `Shard` is for one takeover: who is fenced or
released makes a new one.

How a takeover goes::

    take_over(owner)       append the takeover record; load the progress (`load`), read the queue from `read_from`
    read(lines)            ... until the own record is seen: its offset is the generation. From then on `fence_ms`
    fence_is_over(now)     whoever owned the shard before has read the record, or its lease has ended
    settle(picture)        the progress read again: what it says is final. What its tails may hide is in doubt
    record(), saved()      the own snapshot; then the state is OWNING
    scanned(queue, ids)    one of the target queues that may hide deliveries was read: those are done, no others

Facts begin when they are *read* in the queue, never when they are written: a roll, a verdict, a release count for
their writer at the same place as for everybody after it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from service.core.commands import CommandTable, CommandVerdict, Decision
from service.core.done_entries import SPAN_MAX, DoneEntries
from service.core.lease import Lease, Timing
from service.core.lines import COMMANDS, Line, LineKind
from service.core.progress import Doubt, Picture, ProgressRecord, TargetQueue
from service.core.states import IllegalStateError, MaySend, OwnerState, moved
from service.core.takeovers import Takeovers

__all__ = ["SKEW_MS", "MaySend", "Shard"]

SKEW_MS = 60_000
"""By how much the clocks of two instances may differ for what is in doubt: beyond it nothing was delivered yet."""
_BEGUN = frozenset({OwnerState.READING_BACK, OwnerState.OWNING, OwnerState.RELEASING})


class Shard:
    """One takeover of one shard.

    ``name`` is the broker name and queue id of the entry topic, as ``broker-a/3``; ``timing``: of leases and waits.
    """

    def __init__(self, name: str, timing: Timing | None = None) -> None:
        self.name = name
        self.timing = timing or Timing()
        self.state = OwnerState.FOLLOWER
        self.owner = ""
        self.generation = -1
        self.done = DoneEntries()
        self.read_to = 0
        self.doubts: list[Doubt] = []
        self.lost: dict[int, TargetQueue] = {}  # own sends of which nobody knows what became: entry to target queue
        self.lease = Lease(self.timing.lease_ms)
        self.tails: dict[TargetQueue, int] = {}
        self._named: frozenset[TargetQueue] = frozenset()  # those of the last saved progress
        self._in_flight: dict[int, TargetQueue] = {}
        self._open: Counter[TargetQueue] = Counter()  # how many are under way to a queue, or lost
        self._top: dict[TargetQueue, int] = {}  # behind the last acknowledged delivery
        self._held: dict[int, int] = {}  # entry to the command or roll that was decided and is not read yet
        self.takeovers = Takeovers()  # who has taken the shard over, as far as its queue was read
        self.blind_at = -1  # what has ended the ownership, if it is a record that cannot be read: its offset
        self._settled = self._was_released = False
        self._fence_ms: int | None = None
        self._fresh: list[int] = []  # done since the last record
        self.commands = CommandTable()
        self._first = 0  # where the queue began at the takeover
        self._whole = True  # the next record is a snapshot
        self._sequence = 0
        self.expired = 0  # entries that the cluster deleted before they were done
        self._saving: ProgressRecord | None = None

    def _go(self, state: OwnerState) -> None:
        self.state = moved(self.state, state)

    def take_over(self, owner: str) -> None:
        """Begin: the shell appends a takeover record with this name, which is used once in all the world."""
        self._go(OwnerState.TAKING_OVER)
        self.owner = owner

    def load(self, picture: Picture, first_offset: int) -> None:
        """Learn the progress and where the queue begins; `read_from` is known now."""
        self.done = picture.done.copy()
        self._first = first_offset
        self.commands.learn(picture.cancelled, picture.forgot)
        # The last owner's takeover record is read again: what it wrote is told from others' by it.
        begin = picture.low if picture.generation < 0 else min(picture.low, picture.generation)
        self.read_to = max(first_offset, begin)
        self.expired = sum(1 for _ in self.done.pending(self.done.low, min(first_offset, self.done.low + SPAN_MAX)))
        self.done.raise_to(first_offset)
        self.takeovers.load(picture, self.read_to)

    def agrees(self, picture: Picture) -> bool:
        """Whether the owner of this progress has read the same takeovers; otherwise the queue is to be read anew."""
        is_last = self.generation < 0 or picture.generation < self.generation
        return is_last and self.takeovers.learn(picture, self.read_to)

    def follow(self, picture: Picture) -> list[int]:
        """Learn what an owner has done; which entries that are."""
        news = picture.done.beyond(self.done)
        for offset in news:
            self.done.add(offset)
        self.done.raise_to(picture.done.low)
        self.commands.learn(picture.cancelled, picture.forgot)
        return news

    @property
    def read_from(self) -> int:
        """Where to go on reading the queue."""
        return self.read_to

    def fence_is_over(self, mono_ms: int) -> bool:
        """Whether nobody else can deliver any more, and all that was there before the takeover has been read."""
        return self._fence_ms is not None and mono_ms >= self._fence_ms

    def settle(self, picture: Picture, wall_ms: int) -> None:
        """Take the progress as it is after the fence: from now on only the tails can hide a delivery.

        Raises IllegalStateError, a bug.
        """
        if self.state is not OwnerState.READING_BACK:
            raise IllegalStateError(f"settle while {self.state.value}")
        self.follow(picture)
        self.doubts = [doubt for doubt in picture.doubts if doubt.tails]
        if picture.tails and (picture.is_torn or not self._was_released):
            self.doubts.append(Doubt(self.generation, wall_ms + SKEW_MS, dict(picture.tails)))
        self._settled = True

    def scanned(self, queue: TargetQueue, delivered: Iterable[int], lost: Iterable[int]) -> None:
        """A target queue was read from where `scans` says to its end: these entries of the shard stand in it.

        ``lost``: those that were so before the reading began. If they were not found, they were not stored.
        """
        for offset in delivered:
            self._finish(offset)
        for doubt in self.doubts:
            doubt.tails.pop(queue, None)
        self.doubts = [doubt for doubt in self.doubts if doubt.tails]
        for offset in lost:
            if self.lost.pop(offset, None) is not None:
                self._open[queue] -= 1

    def scans(self) -> dict[TargetQueue, int]:
        """Target queues to be read before what is in doubt can be decided, and from which offset on."""
        wanted: dict[TargetQueue, int] = {}
        for doubt in self.doubts:
            for queue, at in doubt.tails.items():
                wanted[queue] = min(at, wanted.get(queue, at))
        for queue in self.lost.values():
            wanted[queue] = min(self.tails.get(queue, 0), wanted.get(queue, 1 << 62))
        return wanted

    # ------------------------------------------------------------------------------------------------ reading

    def read(self, lines: Sequence[Line], next_offset: int, mono_ms: int) -> list[Line]:
        """Take what was read, in order; answers what waits for its due time (entries and rolls), with that time."""
        waiting: list[Line] = []
        for line in lines:
            if line.offset < self.read_to:
                continue
            self._pass_over(line.offset, mono_ms)
            self.read_to = line.offset + 1
            generation = self.takeovers.begins_at(line)
            if generation >= 0:
                self._see_takeover(line, generation, mono_ms)
            elif line.damaged:
                self._cannot_read(line.offset, self.read_to)
            if generation == line.offset:
                self._finish(line.offset)
            elif line.kind is LineKind.ENTRY:
                if line.offset not in self.done:
                    waiting.append(line)
            elif self._control(line):
                waiting.append(line)
        self._pass_over(next_offset, mono_ms)
        self.read_to = max(self.read_to, next_offset)
        self.lease.read(self.read_to)
        return waiting

    def _pass_over(self, until: int, mono_ms: int) -> None:
        """Records are missing in the broker's answer, if it goes on further ahead."""
        if until > self.read_to:
            for at, generation in self.takeovers.known_in(self.read_to, until):
                self._see_takeover(Line(at, damaged=True), generation, mono_ms)
                self._finish(at)
            self._cannot_read(self.read_to, until)

    def _cannot_read(self, offset: int, until: int) -> None:
        """A record is damaged or missing: a takeover that others have read, a verdict that somebody was told?"""
        self.takeovers.unreadable(offset, until)
        self.commands.ask_again()
        if self.state in _BEGUN:
            self.blind_at = offset
            self._go(OwnerState.FENCED)

    def _control(self, line: Line) -> bool:
        """Take a record of the service; True for a roll, which waits like an entry."""
        if line.kind in COMMANDS:
            self.commands.read(line, self.done)
            return False
        if line.generation == self.takeovers.generation and line.generation >= 0:
            if line.kind is LineKind.RELEASE:
                self.takeovers.released()
            elif line.kind is LineKind.ROLL:
                self._held.pop(line.about, None)
                late = self.generation == line.generation and line.about in self.done
                self._finish(line.about)
                if not late:
                    self.commands.rolled(line.offset, line.about if line.entry < 0 else line.entry)
                    return line.offset not in self.done
            elif line.kind is LineKind.VERDICT:
                self._see_verdict(line)
        self._finish(line.offset)
        return False

    def _see_takeover(self, line: Line, generation: int, mono_ms: int) -> None:
        if self.state is OwnerState.TAKING_OVER and generation == line.offset and line.owner == self.owner:
            self.generation = generation
            self._was_released = self.takeovers.is_released
            self._fence_ms = mono_ms + (0 if self._was_released else self.timing.fence_ms)
            self._go(OwnerState.READING_BACK)
        elif self.state in _BEGUN:
            self._go(OwnerState.FENCED)
        self.takeovers.saw(line.offset, generation, line.owner)

    def _see_verdict(self, line: Line) -> None:
        self._finish(line.about)
        if self.commands.changes(line):
            self._held.pop(line.entry, None)
        for offset in self.commands.saw_verdict(line, self.done):
            self._finish(offset)

    def end_seen(self, asked_ms: int, end: int) -> None:
        """The queue ended at ``end`` when it was asked for (monotonic ms); that counts once it was read up to there."""
        self.lease.end_seen(asked_ms, end, self.read_to)

    # ------------------------------------------------------------------------------------------------ delivering

    def may_send(self, offset: int, due_ms: int, wall_ms: int, mono_ms: int, topics: Collection[str]) -> MaySend:
        """Say whether an entry may be delivered now; ``topics``: those that it may have been delivered to."""
        if offset in self.done:
            return MaySend.ALREADY
        if not self.may_write(mono_ms):
            return MaySend.NOT_OWNER
        if wall_ms < due_ms:
            return MaySend.NOT_DUE
        is_held = self._is_busy(offset) or self.commands.may_change(offset)
        is_held |= any(doubt.concerns(offset, due_ms, topics) for doubt in self.doubts)
        return MaySend.DOUBT if is_held else MaySend.GO

    def may_write(self, mono_ms: int) -> bool:
        """Whether it owns its queue and has read that to its end within the lease: asked again just before a write."""
        return self.state is OwnerState.OWNING and self.lease.holds(mono_ms)

    def aim(self, queue: TargetQueue, end: int) -> None:
        """A target queue that was not used so far ends there; it may be used once that is saved (`is_named`)."""
        self.tails.setdefault(queue, end)

    def is_named(self, queue: TargetQueue) -> bool:
        """Whether the saved progress names a target queue, so that a successor will look there."""
        return queue in self._named

    def sending(self, offset: int, queue: TargetQueue) -> None:
        """A delivery is about to be written to its connection; IllegalStateError if its queue is not named."""
        if queue not in self._named:
            raise IllegalStateError(f"a delivery to {queue}, which the progress does not name")
        self._in_flight[offset] = queue
        self._open[queue] += 1

    def acknowledged(self, offset: int, queue: TargetQueue, at: int) -> None:
        """The target has stored it, at this offset of its queue."""
        if self._in_flight.pop(offset, None) is not None:
            self._open[queue] -= 1
        self._finish(offset)
        self._top[queue] = max(self._top.get(queue, 0), at + 1)
        self._raise_tail(queue)

    def refused(self, offset: int) -> None:
        """The target has certainly not stored it."""
        queue = self._in_flight.pop(offset, None)
        if queue is not None:
            self._open[queue] -= 1
            self._raise_tail(queue)

    def lose(self, offset: int) -> None:
        """Nobody knows whether the target has stored it: the queue has to be read (`scans`)."""
        self.lost[offset] = self._in_flight.pop(offset)

    def _raise_tail(self, queue: TargetQueue) -> None:
        """Below the last acknowledged delivery all are done, if none to that queue is under way or lost."""
        top = self._top.get(queue)
        if top is not None and not self._open[queue]:
            self.tails[queue] = max(self.tails.get(queue, 0), top)

    def _finish(self, offset: int) -> None:
        if self.done.add(offset):
            self._fresh.append(offset)

    def roll(self, offset: int, due_ms: int) -> Line | None:
        """Decide to write an entry again; None if it cannot be now. It is not delivered until that is known."""
        unsure = self._is_unsure(offset, due_ms) or self.commands.may_change(offset)
        if self.state is not OwnerState.OWNING or offset in self.done or unsure:
            return None
        self._held[offset] = self.read_to
        return Line(-1, LineKind.ROLL, generation=self.generation, about=offset, entry=self.commands.origin_of(offset))

    def _is_unsure(self, offset: int, due_ms: int) -> bool:
        """Whether something is under way with an entry, or it may have been delivered: a copy of it would go, too."""
        in_doubt = any(offset < doubt.limit and due_ms <= doubt.due_ms for doubt in self.doubts)
        return in_doubt or self._is_busy(offset)

    def _is_busy(self, offset: int) -> bool:
        """Whether something is under way with an entry: it must end before something else begins."""
        return any(offset in at_work for at_work in (self._held, self.commands.changing, self.lost, self._in_flight))

    def roll_failed(self, offset: int) -> None:
        """The copy was certainly not stored: the entry is what it was."""
        self._held.pop(offset, None)

    def decide(self, command: int, entry: int, due_ms: int) -> Decision | None:
        """Decide about a command, for the entry where it stands now (`CommandTable.place_of`), due at ``due_ms``.

        None: not now, it is in doubt. With DONE the entry is held until the verdict is read, or until `roll_failed`.
        """
        line = self.commands.asked.get(command)
        if line is None or self.state is not OwnerState.OWNING:
            return None
        past = self.commands.judged(line, entry, self.done, self._first)
        if past is not None or self._is_unsure(entry, due_ms):
            return None if past is None else Decision(command, entry, past)
        if line.kind is LineKind.GET:
            return Decision(command, entry, CommandVerdict.PENDING)
        self._held[entry] = self.read_to
        return Decision(command, entry, CommandVerdict.DONE)

    def record(self) -> ProgressRecord | None:
        """The next progress record to be written; None while one is under way, or before `settle`."""
        if self._saving is not None or not self._settled or self.state not in _BEGUN:
            return None
        begin = min(self.done.low, self.generation)
        self._saving = ProgressRecord(
            self.name,
            self.generation,
            self._sequence,
            self.done.low,
            self.takeovers.before(begin),
            dict(self.tails),
            [replace(doubt, tails=dict(doubt.tails)) for doubt in self.doubts],
            self.done.copy() if self._whole else None,
            () if self._whole else tuple(self._fresh),
            tuple(self.commands.cancelled if self._whole else self.commands.fresh),
            self.commands.forgot,
            *(self.takeovers.rows_from(begin) if self._whole else ()),
        )
        self._whole = False
        self._fresh.clear()
        self.commands.fresh.clear()
        self.commands.prune(self.done.low)
        return self._saving

    @property
    def is_changed(self) -> bool:
        """Whether a record would say something new."""
        return bool(self._fresh) or self._named != self.tails.keys()

    def renew_chain(self) -> None:
        """Let the next record be a snapshot: the chain has become long."""
        self._whole = True

    def saved(self) -> None:
        """The record was acknowledged. The first one makes the owner. Raises IllegalStateError without a record."""
        if self._saving is None:
            raise IllegalStateError("no record was under way")
        self._named = frozenset(self._saving.tails)
        self._saving = None
        self._sequence += 1
        if self.state is OwnerState.READING_BACK:
            self._go(OwnerState.OWNING)

    def release(self) -> None:
        """Give the shard up: nothing new is sent from here on."""
        if self.state is OwnerState.OWNING:
            self._go(OwnerState.RELEASING)
        elif self.state in (OwnerState.TAKING_OVER, OwnerState.READING_BACK):
            self._go(OwnerState.FOLLOWER)

    @property
    def may_release(self) -> bool:
        """Whether all is known and saved, so that a release record may be appended."""
        idle = not (self._in_flight or self.lost or self._held or self._fresh or self._saving is not None)
        return self.state is OwnerState.RELEASING and idle

    def ended(self) -> None:
        """The shard is given up, or was lost."""
        if self.state is not OwnerState.FOLLOWER:
            self._go(OwnerState.FOLLOWER)
