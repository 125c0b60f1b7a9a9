"""One instance's ownership of one shard, from its takeover record to its end: a state machine without I/O.

The shell reads the shard's entry queue and passes on what it reads (`read`, `end_seen`), appends the records that it is
told to, and asks before each delivery (`may_send`). All of it belongs to one thread. A `Shard` is for one takeover: an
instance that was fenced, or has released the shard, makes a new one.

The steps of a takeover::

    take_over(owner)       append the takeover record; load the progress (`load`), read the queue from `read_from`
    read(lines)            ... until the own record is seen. Its offset is the generation. Now wait for `fence_ms`
    fence_is_over(now)     then the previous owner has read the record, or its lease has ended
    settle(picture)        the progress, read again, is final. Deliveries behind its tails are in doubt
    record(), saved()      the own snapshot is written; then the state is OWNING
    scanned(queue, ids)    a target queue that may have deliveries in doubt was read: these are done, no others

Facts begin when they are *read* in the queue, never when they are written: a roll, a verdict or a release takes effect
for its writer at the same offset as for every later reader.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from service.core.backfill import Backfill
from service.core.commands import CommandTable, CommandVerdict, Decision
from service.core.deliveries import Deliveries
from service.core.done_entries import SPAN_MAX
from service.core.lease import Lease, Timing
from service.core.lines import COMMANDS, Line, LineKind
from service.core.progress import Doubt, Picture, ProgressRecord
from service.core.states import IllegalStateError, MaySend, OwnerState, moved
from service.core.takeovers import Takeovers

__all__ = ["SKEW_MS", "MaySend", "Shard"]

SKEW_MS = 60_000
"""By how much the clocks of two instances may differ for what is in doubt: beyond it nothing was delivered yet."""
READ_ON_MAX = 4096
"""Records after which progress is written although nothing is done: the next owner would have to read them again."""
_BEGUN = frozenset({OwnerState.READING_BACK, OwnerState.OWNING, OwnerState.RELEASING})


class Shard(Deliveries):
    """One takeover of one shard.

    ``name`` is the broker name and queue id of the entry topic, as ``broker-a/3``; ``timing``: of leases and waits.
    """

    def __init__(self, name: str, timing: Timing | None = None) -> None:
        super().__init__()
        self.name = name
        self.timing = timing or Timing()
        self.state = OwnerState.FOLLOWER
        self.owner = ""
        self.generation = -1
        self.read_to = 0
        self.backfill = Backfill()
        self.reads_all = False
        """True: whatever the progress says, everything is read in its order before the shard is owned."""
        self.needs_all = False
        """True if it was not, and a record cannot be read whose effect depends on that order. Then nothing is owned."""
        self.lease = Lease(self.timing.lease_ms)
        self._held: dict[int, int] = {}  # entry to the command or roll that was decided and not yet read
        self.takeovers = Takeovers()  # the takeovers in the part of the queue that was read
        self.blind_at = -1  # offset of an unreadable record that ended the ownership
        self._settled = self._was_released = False
        self._fence_ms: int | None = None
        self.commands = CommandTable()
        self._first = 0  # where the queue began at the takeover
        self._whole = True  # the next record is a snapshot
        self._sequence = 0
        self.expired = 0  # entries that the cluster deleted before they were done, or read here
        self._saving: ProgressRecord | None = None
        self._saved_read = 0  # how far the last record said that the queue was read

    def _go(self, state: OwnerState) -> None:
        self.state = moved(self.state, state)

    def take_over(self, owner: str) -> None:
        """Begin: the shell appends a takeover record with this name, which must be used only once."""
        self._go(OwnerState.TAKING_OVER)
        self.owner = owner

    def load(self, picture: Picture, first_offset: int) -> None:
        """Take over the progress and the offset where the queue begins. Then `read_from` is known."""
        self.done = picture.done.copy()
        self._first = first_offset
        self.commands.learn(picture.cancelled, picture.forgot)
        # Read the last owner's takeover record again: it tells that owner's records from others'.
        begin = picture.low if picture.generation < 0 else min(picture.low, picture.generation)
        self.read_to = max(first_offset, begin)
        # The cluster has deleted what was before: it can never be delivered.
        self.done.raise_to(first_offset)
        self.takeovers.load(picture, self.read_to)
        read = picture.resumed_at()
        if first_offset <= read:
            self._resume(picture, read)

    def _resume(self, picture: Picture, read: int) -> None:
        """Keep what the last owner decided. The older part is backfilled or, with ``reads_all``, read first of all."""
        waiting = {at: due_ms for at, due_ms in picture.moves.items() if at < read}
        # A copy, because `done` goes on: what counts is what was done by then.
        self.commands.will_pass(read, self.done.copy(), waiting)
        if self.reads_all:
            return
        self.takeovers.resume(picture, read)
        self.commands.passes(read, self.done)
        self.backfill = Backfill(self.done.low, read)
        self.read_to = read

    def agrees(self, picture: Picture) -> bool:
        """True if the owner of this progress has read the same takeovers. If not, the queue must be read again."""
        is_last = self.generation < 0 or picture.generation < self.generation
        return is_last and self.takeovers.learn(picture, self.read_to)

    def follow(self, picture: Picture) -> list[int]:
        """Mark as done what the owner has done; returns these entries."""
        news = picture.done.beyond(self.done)
        self.done.merge(picture.done.low, news)
        self.commands.learn(picture.cancelled, picture.forgot)
        if self.state is OwnerState.FOLLOWER:  # the first record of its takeover will have everything
            self._fresh.clear()
            self.commands.followed(self.done.low)
        return news

    @property
    def read_from(self) -> int:
        """The offset from which the queue must be read next."""
        return self.read_to

    def fence_is_over(self, mono_ms: int) -> bool:
        """True if no other owner can deliver any more and the queue was read up to the own takeover record."""
        return self._fence_ms is not None and mono_ms >= self._fence_ms and not self.needs_all

    def settle(self, picture: Picture, wall_ms: int) -> None:
        """Take over the progress as read after the fence. Only deliveries behind its tails are unknown now.

        Raises IllegalStateError, a bug.
        """
        if self.state is not OwnerState.READING_BACK:
            raise IllegalStateError(f"settle while {self.state.value}")
        self.expired = sum(1 for _ in picture.done.pending(picture.low, min(self._first, picture.low + SPAN_MAX)))
        self.follow(picture)
        self.doubts = [doubt for doubt in picture.doubts if doubt.tails]
        if picture.tails and (picture.is_torn or not self._was_released):
            self.doubts.append(Doubt(self.generation, wall_ms + SKEW_MS, dict(picture.tails)))
        self._settled = True

    # ------------------------------------------------------------------------------------------------ reading

    def read(self, lines: Sequence[Line], next_offset: int, mono_ms: int) -> list[Line]:
        """Process records in order; returns the entries and rolls that wait for their due time, with that time."""
        waiting: list[Line] = []
        for line in lines:
            if line.offset < self.read_to:
                continue
            self._pass_over(line.offset, mono_ms)
            self.commands.passes(line.offset, self.done)
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
        self.commands.passes(self.read_to, self.done)
        self.lease.read(self.read_to)
        return waiting

    def _pass_over(self, until: int, mono_ms: int) -> None:
        """Handle a gap: the broker's answer continues at a later offset."""
        if until > self.read_to:
            for at, generation in self.takeovers.known_in(self.read_to, until):
                self._see_takeover(Line(at, damaged=True), generation, mono_ms)
                self._finish(at)
            self._cannot_read(self.read_to, until)

    def _cannot_read(self, offset: int, until: int) -> None:
        """Handle a damaged or missing record: it may be a takeover that others have read, or a verdict."""
        self.takeovers.unreadable(offset, until)
        self.commands.ask_again()
        self.needs_all = self.needs_all or self.backfill.until > 0
        if self.state in _BEGUN:
            self.blind_at = offset
            self._go(OwnerState.FENCED)

    def _control(self, line: Line) -> bool:
        """Process a record of the service; True for a roll, which waits like an entry."""
        if line.kind in COMMANDS:
            self.commands.read(line, self.done)
            return False
        own = line.generation == self.takeovers.generation >= 0
        # A record is always about earlier ones.
        if own and max(line.about, line.entry, line.origin) < line.offset:
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
            # Before `saw` below, which clears it.
            self._was_released = self.takeovers.is_released
            self._fence_ms = mono_ms + (0 if self._was_released else self.timing.fence_ms)
            self._go(OwnerState.READING_BACK)
        elif self.state in _BEGUN:
            self._go(OwnerState.FENCED)
        self.takeovers.saw(line.offset, generation, line.owner)

    def _see_verdict(self, line: Line) -> None:
        self._finish(line.about)
        lines = [line]
        if line.origin >= 0 and self.takeovers.was_unreadable(line.entry, line.entry + 1):
            # The roll has rotted before it was read here: its message still waits where it stood before.
            lines.append(replace(line, entry=self.commands.place_of(line.origin)))
        for one in lines:
            if self.commands.changes(one):
                self._held.pop(one.entry, None)
            for offset in self.commands.saw_verdict(one, self.done):
                self._finish(offset)

    def backfilled(self, lines: Sequence[Line], next_offset: int) -> list[Line]:
        """Process records from `Backfill.at` on, in order; returns the entries and rolls that wait, as `read` does."""
        backfill, was_whole = self.backfill, self.backfill.is_whole
        waiting = backfill.read(lines, next_offset, self.done, self.takeovers)
        if backfill.is_whole and not was_whole:
            backfill.hand_over(self.commands, self.done)
        return waiting

    def end_seen(self, asked_ms: int, end: int) -> None:
        """Note that the queue ended at ``end`` when asked (monotonic ms). It counts once the queue is read up to
        there."""
        self.lease.end_seen(asked_ms, end, self.read_to)

    # ------------------------------------------------------------------------------------------------ delivering

    def may_send(self, offset: int, due_ms: int, wall_ms: int, mono_ms: int, topics: Collection[str]) -> MaySend:
        """Decide whether an entry may be delivered now. ``topics``: the topics that it may have been delivered to."""
        if offset in self.done:
            return MaySend.ALREADY
        if not self.may_write(mono_ms):
            return MaySend.NOT_OWNER
        if wall_ms < due_ms:
            return MaySend.NOT_DUE
        is_held = self._is_busy(offset) or self.commands.may_change(offset)
        in_doubt = self.doubts and any(doubt.concerns(offset, due_ms, topics) for doubt in self.doubts)
        return MaySend.DOUBT if is_held or in_doubt else MaySend.GO

    def may_write(self, mono_ms: int) -> bool:
        """True if this owner has the shard and its lease holds. Asked again just before each write."""
        return self.state is OwnerState.OWNING and self.lease.holds(mono_ms)

    def roll(self, offset: int, due_ms: int) -> Line | None:
        """Decide to roll an entry; None if that is not possible now. It is held until the outcome is known."""
        unsure = self._is_unsure(offset, due_ms) or self.commands.may_change(offset) or self.backfill.concerns(offset)
        if self.state is not OwnerState.OWNING or offset in self.done or unsure:
            return None
        self._held[offset] = self.read_to
        return Line(-1, LineKind.ROLL, generation=self.generation, about=offset, entry=self.commands.origin_of(offset))

    def _is_unsure(self, offset: int, due_ms: int) -> bool:
        """True if an entry is at work, or may have been delivered: a roll would then be a second delivery."""
        return self._is_busy(offset) or any(offset < doubt.limit and due_ms <= doubt.due_ms for doubt in self.doubts)

    def _is_busy(self, offset: int) -> bool:
        """True if an entry is at work: a delivery, roll or command that must end before another begins."""
        other = offset in self._held or offset in self.lost or offset in self.commands.changing
        return other or offset in self._in_flight

    def roll_failed(self, offset: int) -> None:
        """Note that the copy was certainly not stored: the entry is as before."""
        self._held.pop(offset, None)

    def decide(self, command: int, entry: int, due_ms: int) -> Decision | None:
        """Decide about a command on the entry at its present offset (`CommandTable.place_of`), due at ``due_ms``.

        None: the entry is in doubt, so not now. With DONE it is held until the verdict is read, or until `roll_failed`.
        """
        line = self.commands.asked.get(command)
        if line is None or self.state is not OwnerState.OWNING:
            return None
        if self.backfill.concerns(min(line.about, entry, self.commands.origin_of(entry))):
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
        moves = self.commands.moves_to_save(self.done, whole=self._whole)
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
            *(self.takeovers.rows_from(begin) if self._whole else (0, {})),
            self.read_to if self.commands.is_sure and not self.takeovers.hide_any(self.done) else -1,
            moves,
            self.owner,
        )
        self._saved_read = self.read_to
        self._whole = self._has_searched = False
        self._fresh.clear()
        self.commands.fresh.clear()
        self.commands.prune(self.done.low)
        return self._saving

    @property
    def is_changed(self) -> bool:
        """True if a progress record would contain anything new."""
        has_read_on = self.read_to - self._saved_read >= READ_ON_MAX
        return bool(self._fresh) or self._named != self.tails.keys() or has_read_on or self._has_searched

    def renew_chain(self) -> None:
        """Make the next record a snapshot, because the chain has become long."""
        self._whole = True

    def saved(self) -> None:
        """Note that the record was acknowledged; after the first one: OWNING. Raises IllegalStateError without one."""
        if self._saving is None:
            raise IllegalStateError("no record was under way")
        self._named = frozenset(self._saving.tails)
        self._saving = None
        self._sequence += 1
        if self.state is OwnerState.READING_BACK:
            self._go(OwnerState.OWNING)

    def release(self) -> None:
        """Begin to give the shard up: no new delivery begins."""
        if self.state is OwnerState.OWNING:
            self._go(OwnerState.RELEASING)
        elif self.state in (OwnerState.TAKING_OVER, OwnerState.READING_BACK):
            self._go(OwnerState.FOLLOWER)

    @property
    def may_release(self) -> bool:
        """True if the result of each delivery is known and saved, so that the release record may be appended."""
        idle = not (self._in_flight or self.lost or self._held or self._fresh or self._saving is not None)
        return self.state is OwnerState.RELEASING and idle

    def ended(self) -> None:
        """Note that the shard was given up or lost."""
        if self.state is not OwnerState.FOLLOWER:
            self._go(OwnerState.FOLLOWER)
