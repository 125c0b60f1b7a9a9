"""Commands on entries: which of them wait for a verdict, and what must be known to give a definite one.

A command is a record in the shard's own queue, and so is its verdict. A verdict takes effect when it is *read*, for its
writer and for every later owner. Until then its entry is held: nobody delivers or rolls it. So a race between a command
and a delivery has one winner, which stays the winner over any takeover::

    entry 17 … command 40 (cancel 17) … verdict 52 (of 40, about 17: done)
                    │                        └ read: 17 is done and known as cancelled, 40 is done
                    └ read by the owner: is 17 delivered? under way? in doubt? decided ─► 17 is held, verdict written

==============  ======================================================================================================
done            the entry waited, and is cancelled or moved
already         it was cancelled before; it is due at that time
too_late        it was delivered (or rejected)
cancelled       it was cancelled, so it cannot be moved
pending         the answer to ``get``: it waits
unknown         there is no entry at that offset, and was none, or it was deleted long ago
refused         the command is not possible; the detail says why
==============  ======================================================================================================

A moved entry needs no memory of its own: an owner that reads the entry again also reads its verdicts, which come later
in the queue.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from service.core.done_entries import DoneEntries
from service.core.lines import Line, LineKind

__all__ = ["CANCELLED_MAX", "MOVES_MAX", "CommandTable", "CommandVerdict", "Decision"]

MOVES_MAX = 16_384
"""Most moved entries of a shard that wait and are named in its progress. With more, the next owner reads everything."""
CANCELLED_MAX = 65_536
"""Most cancelled entries of a shard that are known as such; of older ones a command learns that they are unknown."""


class CommandVerdict(Enum):
    """The outcome of a command; the value is that of the property ``TW_VERDICT``."""

    DONE = "done"
    ALREADY = "already"
    TOO_LATE = "too_late"
    CANCELLED = "cancelled"
    PENDING = "pending"
    UNKNOWN = "unknown"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Decision:
    """A verdict that was decided and not yet read. ``entry`` is held if the verdict is `CommandVerdict.DONE`."""

    command: int
    entry: int
    verdict: CommandVerdict


class CommandTable:
    """Commands of a shard, their verdicts, and the rolls that move entries to other offsets. Not thread-safe."""

    __slots__ = (
        "_answered",
        "_has_too_many",
        "_judged",
        "_origins",
        "_rolls",
        "_unsure",
        "_unsure_of",
        "asked",
        "cancelled",
        "changing",
        "forgot",
        "fresh",
        "fresh_moves",
        "gone",
        "moves",
    )

    def __init__(self) -> None:
        self.asked: dict[int, Line] = {}
        """Commands that were read and have no verdict yet, in the order of the queue."""
        self.cancelled: dict[int, None] = {}
        self.forgot = 0
        """Below this offset an entry may have been cancelled without being known as such."""
        self.fresh: list[int] = []
        """Cancelled since the last progress record."""
        self.changing: dict[int, int] = {}
        """Moved entries and their new due time (epoch ms), until the cache has it."""
        self.moves: dict[int, int] = {}
        """Moved entries and their due time. Some of them may be done."""
        self.fresh_moves: dict[int, int] = {}
        """Moved since the last progress record."""
        self._has_too_many = False
        self.gone: list[int] = []
        """Cancelled and rolled entries that the cache still has."""
        self._answered: dict[int, Line] = {}  # moves that have a verdict, by the progress, and it was not read yet
        self._judged: tuple[int, DoneEntries, dict[int, int]] | None = None  # see `will_pass`
        # Commands whose verdict may be what could not be read, with their entry's origin; and the other way round.
        self._unsure: dict[int, int] = {}
        self._unsure_of: dict[int, list[int]] = {}
        self._rolls = array("q")  # ascending, with the entry that a sender wrote beside it
        self._origins = array("q")

    @staticmethod
    def changes(line: Line) -> bool:
        """True if a verdict changes an entry."""
        return line.verdict == CommandVerdict.DONE.value and line.entry >= 0

    def read(self, line: Line, done: DoneEntries) -> None:
        """A command was read."""
        if line.offset not in done:
            self.asked[line.offset] = line
        elif line.kind is LineKind.MOVE:
            self._answered[line.offset] = line

    def ask_again(self) -> None:
        """Decide all earlier commands again: a record that cannot be read may be the verdict of any of them."""
        if self._answered:
            self.asked = dict(sorted((self.asked | self._answered).items()))
            self._answered.clear()
        for at, line in self.asked.items():
            if at not in self._unsure and line.kind in (LineKind.CANCEL, LineKind.MOVE):
                origin = self._unsure[at] = self.origin_of(line.about)
                self._unsure_of.setdefault(origin, []).append(at)

    def may_change(self, offset: int) -> bool:
        """True if an unreadable verdict may have moved or cancelled an entry: then it waits for a new verdict."""
        return bool(self._unsure_of) and self.origin_of(offset) in self._unsure_of

    def judged(self, line: Line, entry: int, done: DoneEntries, first: int) -> CommandVerdict | None:
        """The verdict on a command if its entry is done or there is none; None if the entry waits.

        ``first``: where the queue began.
        """
        origin = self.origin_of(entry)
        is_cancelled = entry in self.cancelled or origin in self.cancelled  # not every roll that is done is known
        if not 0 <= origin < line.offset or (entry < first and not is_cancelled):
            return CommandVerdict.UNKNOWN
        if entry not in done:
            return None
        if is_cancelled:
            return CommandVerdict.ALREADY if line.kind is LineKind.CANCEL else CommandVerdict.CANCELLED
        return CommandVerdict.UNKNOWN if entry < self.forgot else CommandVerdict.TOO_LATE

    def saw_verdict(self, line: Line, done: DoneEntries) -> list[int]:
        """Note that a verdict was read, so it takes effect; returns what is done by it, besides its command."""
        finished: list[int] = []
        self.asked.pop(line.about, None)
        self._answered.pop(line.about, None)
        if self._unsure:
            # Commands for one entry are decided in their order: what changes it stands behind all earlier verdicts.
            of_entry = self._unsure_of.get(self.origin_of(line.entry), ()) if self.changes(line) else ()
            for at in {line.about, *(at for at in of_entry if at < line.about)} & self._unsure.keys():
                finished.append(at)
                self.asked.pop(at, None)
                self._sure(at)
        if not self.changes(line):
            return finished
        if line.due_ms > 0:
            if line.entry not in done:
                self._move(line.entry, line.due_ms, done)
            return finished
        self.cancel(line.entry, line.origin)
        self.gone.append(line.entry)
        return [*finished, line.entry]

    def _move(self, entry: int, due_ms: int, done: DoneEntries) -> None:
        self.changing[entry] = due_ms
        if not self._has_too_many:
            self.moves[entry] = self.fresh_moves[entry] = due_ms
            if len(self.moves) > 2 * MOVES_MAX:
                self._drop_moves(done)

    def _drop_moves(self, done: DoneEntries) -> None:
        """Forget moves of entries that are done; all of them if too many are left, and for ever."""
        self.moves = {entry: due_ms for entry, due_ms in self.moves.items() if entry not in done}
        if len(self.moves) > MOVES_MAX:
            self._has_too_many = True
            self.moves, self.fresh_moves = {}, {}

    def moves_to_save(self, done: DoneEntries, *, whole: bool) -> dict[int, int]:
        """Moved entries for the next progress record: all of them, or the fresh ones."""
        if whole:
            self._drop_moves(done)
        moves = dict(self.moves) if whole else self.fresh_moves
        self.fresh_moves = {}
        return moves

    @property
    def is_sure(self) -> bool:
        """True if the moves are complete, and no verdict is missing that somebody else may have read."""
        return not self._has_too_many and not self._unsure

    def will_pass(self, read: int, done: DoneEntries, moves: dict[int, int]) -> None:
        """Note what an owner had judged that had read up to an offset. It counts, also if its records have rotted.

        ``done`` and ``moves``: what was done by then, and the moved entries that waited.
        """
        self._judged = read, done, moves

    def passes(self, offset: int, done: DoneEntries) -> None:
        """Note that everything below an offset was read, or need not be."""
        if self._judged is None or offset < self._judged[0]:
            return
        (read, judged, moves), self._judged = self._judged, None
        self._answered = {at: line for at, line in self._answered.items() if at >= read or at not in judged}
        for at in [at for at in self._unsure if at < read and at in judged]:
            self.asked.pop(at, None)
            self._sure(at)
        waiting = {entry: due_ms for entry, due_ms in moves.items() if entry not in done}
        self.moves |= waiting
        self.changing |= waiting

    def join(self, asked: Sequence[Line], rolls: array[int], origins: array[int]) -> None:
        """Add what an earlier part of the queue has: open commands, and rolls.

        ``origins``: beside each roll the entry that a sender wrote.
        """
        self.asked = dict(sorted((self.asked | {line.offset: line for line in asked}).items()))
        self._rolls, self._origins = rolls + self._rolls, origins + self._origins
        for offset in [offset for offset in self.cancelled if self.origin_of(offset) not in self.cancelled]:
            self.cancel(offset)  # an earlier version's verdict on a roll does not name the sender's entry

    def _sure(self, command: int) -> None:
        """Note that the verdict on a command was read, or is known to be no longer needed."""
        origin = self._unsure.pop(command)
        left = self._unsure_of[origin]
        left.remove(command)
        if not left:
            del self._unsure_of[origin]

    def cancel(self, offset: int, origin: int = -1) -> None:
        """Note that an entry was cancelled, also under the offset by which its sender knows it.

        ``origin``: that offset if a verdict names it: the roll may not be known yet (`service.core.backfill`).
        """
        for name in (offset, self.origin_of(offset), origin):
            if name >= 0 and name not in self.cancelled:
                self.cancelled[name] = None
                self.fresh.append(name)
        self._trim()

    def learn(self, offsets: Sequence[int], forgot: int) -> None:
        """Take over the contents of a progress record.

        Both lists are parts of one, in the order of the verdicts. Joined in that order, the latest ones stay known,
        however often the same record is read: a follower reads it every few seconds.
        """
        told = set(offsets)
        own = list(self.cancelled)
        begin = next((at for at, offset in enumerate(own) if offset in told), len(own))
        self.cancelled = dict.fromkeys((*own[:begin], *offsets, *own[begin:]))
        self.forgot = max(self.forgot, forgot)
        self._trim()

    def _trim(self) -> None:
        while len(self.cancelled) > CANCELLED_MAX:
            oldest = next(iter(self.cancelled))
            del self.cancelled[oldest]
            self.forgot = max(self.forgot, oldest + 1)

    # ------------------------------------------------------------------------------------------------ rolled entries

    def rolled(self, roll: int, origin: int) -> None:
        """Note that an entry has another offset now. Rolls come in ascending order."""
        if not self._rolls or roll > self._rolls[-1]:
            self._rolls.append(roll)
            self._origins.append(origin)

    def followed(self, low: int) -> None:
        """Forget what a follower would collect for ever: it writes no progress. ``low`` as in `prune`."""
        self.fresh.clear()
        self.fresh_moves.clear()
        self.prune(low)

    def prune(self, low: int) -> None:
        """Forget rolls below an offset, all of which are done."""
        count = bisect_left(self._rolls, low)
        # Not each time: a deletion at the front moves all other rows.
        if count * 2 > len(self._rolls):
            del self._rolls[:count], self._origins[:count]

    def origin_of(self, offset: int) -> int:
        """The offset of the entry that the sender wrote: the given offset, unless that is a roll."""
        at = bisect_left(self._rolls, offset)
        return self._origins[at] if at < len(self._rolls) and self._rolls[at] == offset else offset

    def is_rolled(self, offset: int) -> bool:
        """True if the entry was rolled and has another offset now.

        >>> table = CommandTable(); table.rolled(9, 4); table.rolled(12, 4)
        >>> [table.is_rolled(offset) for offset in (4, 9, 12, 5)]
        [True, True, False, False]
        """
        return self.place_of(self.origin_of(offset)) != offset

    def place_of(self, origin: int) -> int:
        """The present offset of an entry that a sender wrote: that of its last known roll, or its own.

        >>> table = CommandTable(); table.rolled(9, 4); table.rolled(12, 4); table.place_of(4), table.origin_of(12)
        (12, 4)
        """
        place, begin = origin, 0
        while True:
            try:
                at = self._origins.index(origin, begin)
            except ValueError:
                return place
            place, begin = self._rolls[at], at + 1
