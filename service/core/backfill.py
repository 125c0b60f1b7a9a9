"""The part of a shard's queue that its new owner has not read before it delivers, and reads meanwhile.

A progress record names ``read``: its owner had read the queue up to there. The new owner reads on from there, up to its
own takeover record. The older part, which may have hundreds of thousands of waiting entries, follows::

    low                          read              own takeover record
     │ waiting, done, waiting, …  │ since the last … │
     └ backfill, while it delivers┘ read before it owns

This is right because the last owner has judged everything below ``read``, and its judgement is in the progress:

=====================================  ===============================================================================
takeovers, releases, verdicts, void    are done
records, commands with a verdict
cancelled, rolled, delivered entries   are done
moved entries that wait                are named with their due time (``moves``)
what is not done                       waits: an entry, a roll, or a command without a verdict
deliveries since the last progress     are in target queues that the progress names. What is found there is done, read
                                       or not; until these queues were searched, nothing overdue is delivered
=====================================  ===============================================================================

So of the older part only the *contents* of what is not done are missing. A backfilled entry can be delivered at once.

Not known before the backfill is whole: rolls (the place of an entry that was rolled), and commands without a verdict.
So verdicts wait for it, if they are about an entry of this part.

If a record behind ``read`` cannot be read, it may be the verdict on one of these commands. Then the records must be
read in their order, including those that are left out here. So such a takeover begins anew and reads all of them
(`service.core.shard.Shard.needs_all`).
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Sequence

from service.core.commands import CommandTable
from service.core.done_entries import DoneEntries
from service.core.lines import COMMANDS, Line, LineKind
from service.core.takeovers import Takeovers

__all__ = ["Backfill"]

SKIP_MIN = 1024
"""Done records are left out where at least so many follow each other: pulls ahead are for a queue without gaps."""
MISSING_MAX = 65_536
"""Most gaps that are remembered: the first ones."""


class Backfill:
    """The reading of ``[at, until)``.

    >>> backfill = Backfill(); backfill.is_whole
    True
    """

    __slots__ = (
        "_missing",
        "at",
        "commands",
        "origins",
        "rolls",
        "skip_min",
        "until",
    )

    def __init__(self, at: int = 0, until: int = 0) -> None:
        self.at = at
        """The offset to be read next."""
        self.until = until
        self.skip_min = SKIP_MIN
        self.commands: list[Line] = []
        """Those without a verdict when they were read."""
        self.rolls = array("q")
        """Valid rolls, ascending."""
        self.origins = array("q")
        """Beside each roll the entry that a sender wrote."""
        self._missing: list[tuple[int, int]] = []  # records that no answer had, from where to where

    @property
    def is_whole(self) -> bool:
        """True if nothing is missing any more."""
        return self.at >= self.until

    def lacks(self, offset: int) -> bool:
        """True if an offset was not read yet."""
        return self.at <= offset < self.until

    def concerns(self, offset: int) -> bool:
        """True if an offset is in this part and that is not whole."""
        return offset < self.until and self.at < self.until

    def read(self, lines: Sequence[Line], next_offset: int, done: DoneEntries, takeovers: Takeovers) -> list[Line]:
        """Process records in order; returns the entries and rolls that wait. ``next_offset``: where to read on."""
        waiting: list[Line] = []
        for line in lines:
            if not self.lacks(line.offset):
                continue
            self._miss(line.offset)
            self.at = line.offset + 1
            is_roll = line.kind is LineKind.ROLL and self._is_valid(line, takeovers)
            if is_roll:
                self.rolls.append(line.offset)
                self.origins.append(line.about if line.entry < 0 else line.entry)
            if line.offset in done:
                continue
            if line.kind in COMMANDS:
                self.commands.append(line)
            elif is_roll or line.kind is LineKind.ENTRY:
                waiting.append(line)
            else:  # the last owner could not read it, and has judged without it
                done.add(line.offset)
        self._miss(min(next_offset, self.until))
        ahead = done.next_pending(self.at, self.until)
        if ahead - self.at >= self.skip_min:
            self.at = ahead
        return waiting

    def _miss(self, until: int) -> None:
        """Pass over what is missing in an answer: the cluster has deleted it, or its place cannot be read."""
        if until > self.at:
            if len(self._missing) < MISSING_MAX:
                self._missing.append((self.at, until))
            self.at = until

    def is_missing(self, offset: int) -> bool:
        """True if a record was passed over: what waits there will not be delivered by this owner."""
        # No offset is as high as `1 << 62`: a part that begins at `offset` itself stands before the place found.
        at = bisect_right(self._missing, (offset, 1 << 62)) - 1
        return at >= 0 and offset < self._missing[at][1]

    def misses_any(self, until: int, done: DoneEntries) -> bool:
        """True if a record before an offset was passed over and is not done."""
        parts = ((first, min(end, until)) for first, end in self._missing if first < until)
        return any(done.next_pending(first, end) < end for first, end in parts)

    def hand_over(self, commands: CommandTable, done: DoneEntries) -> None:
        """Once this is whole: give the table what was found."""
        # Looked up once more: a verdict may have been read since.
        commands.join([line for line in self.commands if line.offset not in done], self.rolls, self.origins)
        self.commands, self.rolls, self.origins = [], array("q"), array("q")

    @staticmethod
    def _is_valid(line: Line, takeovers: Takeovers) -> bool:
        generation = takeovers.before(line.offset + 1)  # a roll may itself prove the takeover
        return line.generation == generation >= 0 and max(line.about, line.entry) < line.offset
